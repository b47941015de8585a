"""Whether a reader that is behind takes anything at all.

Times are given, in seconds. Does not know who reads, or what becomes of one that does not.
"""

from __future__ import annotations

from collections.abc import Callable

SETTLE = 1.0
"""Seconds after which what is on its way has come to a halt, if the reader reads no more: until
then its own kernel takes some."""


class Stall:
    """A reader that is behind since `now`: it may take nothing for `timeout` seconds.

    `untaken` says how many bytes it has not taken yet.
    """

    __slots__ = ("_left", "_since", "_timeout", "_untaken")

    def __init__(self, untaken: Callable[[], int], timeout: float, now: float) -> None:
        self._untaken = untaken
        self._timeout = timeout
        self._since = now
        self._left: int | None = None  # untaken at the last look

    def due(self, now: float) -> float:
        """When to look again; at or before `now` if the reader has stalled."""
        if self._left is None:
            settled = self._since + min(SETTLE, self._timeout)
            if now < settled:
                return settled
            self._left = self._untaken()
        elif (left := self._untaken()) < self._left:
            self._left, self._since = left, now
        return self._since + self._timeout
