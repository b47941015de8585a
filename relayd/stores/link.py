"""The way to a shared store: whether it is there, and how long anybody waits for it.

The first step that fails or takes longer than `timeout` marks the store as away. From then on
nobody waits: every step fails at once, while one task in the background asks until an answer
comes. Each change is told once. Knows that stores fail; not what is in them, nor what its users do
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from . import Store, StoreAway
from .memory import MemoryStore

P = ParamSpec("P")
T = TypeVar("T")

FIRST_WAIT = 0.1
"""Seconds before the store is asked whether it is back; doubling up to `LONGEST_WAIT`."""

LONGEST_WAIT = 2.0
"""Seconds between two such questions at most: so long a store may be back without being used."""

STEADY = 60.0
"""Seconds after which a store that came back counts as steady."""


class Link:
    """A store with its availability. One for each process, shared by `Turns` and `Breakers`.

    `timeout` in seconds. `on_store(available, detail)` is called once for each change; `lost`
    counts how often the store went away. `local` is the store itself when it is in this process.
    """

    def __init__(
        self,
        store: Store,
        *,
        timeout: float = 0.25,
        on_store: Callable[[bool, str], None] | None = None,
    ) -> None:
        self.store = store
        self.local = store if isinstance(store, MemoryStore) else None
        self.available = True
        self.lost = 0
        self._closed = False
        self.timeout = timeout
        self._on_store = on_store
        self._wait = FIRST_WAIT
        self._found = 0.0
        self._back = asyncio.Event()
        self._back.set()
        self._search: asyncio.Task[None] | None = None

    async def ask(self, step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of one step of the store; StoreAway when it is away, failed or too slow."""
        if not self.available:
            raise StoreAway("the store is away", asked=False)
        try:
            async with asyncio.timeout(self.timeout):
                return await step(*args, **kwargs)
        except TimeoutError as error:
            away = StoreAway(f"no answer within store.timeout, {self.timeout:g} s")
            away.__cause__ = error
        except StoreAway as error:
            away = error
        self._lose(str(away))
        raise away

    async def back(self) -> None:
        """Wait until the store is available."""
        await self._back.wait()

    async def close(self) -> None:
        """Stop asking, and close the store."""
        self._closed = True
        search, self._search = self._search, None
        if search is not None:
            search.cancel()
            await asyncio.gather(search, return_exceptions=True)
        try:
            async with asyncio.timeout(self.timeout):
                await self.store.close()
        except (StoreAway, TimeoutError):
            pass  # it is away: there is nothing left to close

    def _lose(self, detail: str) -> None:
        if self._closed or not self.available:
            return  # nobody looks for it; another step has told it
        self.available = False
        self.lost += 1
        self._back.clear()
        self._search = asyncio.get_running_loop().create_task(self._look_for_it())
        self._tell(detail)

    async def _look_for_it(self) -> None:
        clock = asyncio.get_running_loop().time
        # One that comes back only to fail again is asked as seldom as if it had stayed away.
        if clock() - self._found > STEADY:
            self._wait = FIRST_WAIT
        while not self.available:
            await asyncio.sleep(self._wait)
            self._wait = min(self._wait * 2, LONGEST_WAIT)
            try:
                async with asyncio.timeout(self.timeout):
                    await self.store.read(clock())
            except Exception:  # noqa: BLE001, S112  (whatever it is, it may pass; a search must go on)
                continue
            self.available = True
            self._found = clock()
            self._back.set()
        self._tell("the store answers again")

    def _tell(self, detail: str) -> None:
        if self._on_store is not None:
            self._on_store(self.available, detail)
