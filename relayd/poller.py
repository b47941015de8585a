"""What asyncio's own loop waits with: epoll, with fewer steps an event than `selectors` takes.

`asyncio.SelectorEventLoop` takes any selector. The standard library's makes three Python calls and
some thirty steps of each event to serve files, sets of events and systems that are not met here.
Knows descriptors only.
"""

from __future__ import annotations

import contextlib
import math
import select
from collections.abc import Mapping
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from typing import Any

_BITS = (0, select.EPOLLIN, select.EPOLLOUT, select.EPOLLIN | select.EPOLLOUT)
"""What to ask of epoll, by what is asked of us."""


def _told(bits: int) -> int:
    """What there is to do: an error or a hang-up is told to whoever reads and to whoever writes."""
    read = EVENT_READ if bits & ~select.EPOLLOUT else 0
    write = EVENT_WRITE if bits & ~select.EPOLLIN else 0
    return read | write


_TOLD = tuple(
    _told(bits)
    for bits in range((select.EPOLLIN | select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP) + 1)
)
"""By what epoll says: it adds an error (8) and a hang-up (16) to what it was asked for."""


class Poller(BaseSelector):
    """A selector over epoll for descriptors, or what has one, as `asyncio` uses it.

    `select` may tell of an event that nobody asked for; asyncio then has nobody to call.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._keys: dict[int, SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """Watch a descriptor; raises KeyError if it is watched already."""
        fd = _descriptor(fileobj)
        if fd in self._keys:
            raise KeyError(f"descriptor {fd} is watched already")
        self._epoll.register(fd, _BITS[events])
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        """Watch it no more; raises KeyError if it is not watched."""
        key = self._keys.pop(_descriptor(fileobj))
        with contextlib.suppress(OSError):  # it was closed before it was taken from here
            self._epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        """Watch for other events, or with other data; raises KeyError if it is not watched."""
        fd = _descriptor(fileobj)
        if events != self._keys[fd].events:
            self._epoll.modify(fd, _BITS[events])
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What happened; waits `timeout` seconds at most, without end for None."""
        if timeout is None:
            seconds = -1.0
        elif timeout <= 0:
            seconds = 0.0
        else:
            seconds = math.ceil(timeout * 1e3) * 1e-3  # epoll would round down, and be early
        keys = self._keys
        found = self._epoll.poll(seconds, len(keys) or 1)
        # A descriptor that was closed too early stays in epoll while another process has it too.
        return [(keys[fd], _TOLD[bits]) for fd, bits in found if fd in keys]

    def get_key(self, fileobj: Any) -> SelectorKey:
        """How a descriptor is watched; raises KeyError if it is not."""
        return self._keys[_descriptor(fileobj)]

    def get_map(self) -> Mapping[Any, SelectorKey]:
        """The watched descriptors."""
        return self._keys

    def close(self) -> None:
        """Let go of everything."""
        self._epoll.close()
        self._keys.clear()


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
