"""Whether a reader that is behind takes anything at all.

Times are given, in seconds. Does not know who reads, or what becomes of one that does not.
"""

from __future__ import annotations

from collections.abc import Callable

EARLY_LOOK = 1.0
"""Seconds after which a reader is looked at for the first time: what its own kernel takes at first
is nothing that it took."""

LOOKS = 4
"""Looks within its time, so that one that stops is cut a quarter of it late at the most."""


class Stall:
    """A reader that is behind since `now`: it may take nothing for `timeout` seconds.

    `untaken` says how many bytes it has not taken yet.
    """

    __slots__ = ("_first", "_left", "_since", "_timeout", "_untaken")

    def __init__(self, untaken: Callable[[], int], timeout: float, now: float) -> None:
        self._untaken = untaken
        self._timeout = timeout
        self._left = untaken()
        self._since = now  # when it last took something
        self._first = now + min(EARLY_LOOK, timeout / 2)

    def due(self, now: float) -> float:
        """When to look again; at or before `now` if the reader has stalled."""
        left = self._untaken()
        if left < self._left:
            self._left, self._since = left, now
        if now < self._first:
            return self._first
        return min(self._since + self._timeout, now + self._timeout / LOOKS)
