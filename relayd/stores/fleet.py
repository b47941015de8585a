"""What a mirror of the breakers remembers about the shared store, and has still to tell it.

A queue with its book-keeping: knows neither the store nor what a verdict does.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from ..breaker import Verdict

MAX_NEWS = 1024
"""Verdicts that wait for the store; beyond it the oldest are forgotten."""


class News(NamedTuple):
    """A verdict to be told to the store."""

    name: str
    generation: int
    verdict: Verdict
    probe: bool
    at: float


class Fleet:
    """What the mirror remembers about the shared store.

    `generations`: the store's, as last seen, or as it will be when it has heard of a change that
    was made here. `waiting`: how many news of each breaker are not told yet.
    """

    def __init__(self) -> None:
        self.generations: dict[str, int] = {}
        self.news: deque[News] = deque()
        self.rests: dict[str, float] = {}
        self.waiting: Counter[str] = Counter()
        self._call = asyncio.Event()

    def tell(self, news: News) -> None:
        if len(self.news) >= MAX_NEWS:
            self.forget(self.news[0])
        self.news.append(news)
        self.waiting[news.name] += 1
        self._call.set()

    def forget(self, news: News) -> None:
        if self.news and self.news[0] is news:
            self.news.popleft()
            self.waiting[news.name] -= 1

    def begin_anew(self, names: Iterable[str]) -> None:
        """The store knows nothing of these breakers: what it will hear of them is the first."""
        for name in names:
            if not self.waiting[name]:
                self.generations[name] = 0

    def rest(self, name: str, until: float) -> None:
        self.rests[name] = until
        self._call.set()

    async def wait(self, seconds: float) -> None:
        """Until there is news, or that long."""
        try:
            async with asyncio.timeout(seconds):
                await self._call.wait()
        except TimeoutError:
            pass  # time for the regular look
        self._call.clear()
