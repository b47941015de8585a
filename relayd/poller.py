"""What asyncio's own loop waits with: the standard library's epoll selector, in fewer steps.

`asyncio.SelectorEventLoop` takes any selector. Of each event the standard one makes two Python
calls and some thirty steps; this one looks two things up. Knows descriptors only.
"""

from __future__ import annotations

import math
import select
from selectors import EVENT_READ, EVENT_WRITE, EpollSelector, SelectorKey
from typing import Any


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


class Poller(EpollSelector):
    """An `EpollSelector` whose `select` may tell of an event that nobody asked for.

    asyncio then has nobody to call. Everything else is the standard library's, and so are the two
    attributes that `select` reads; `tests/unit/test_poller.py` holds both selectors to the same.
    """

    _fd_to_key: dict[int, SelectorKey]
    _selector: Any

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """What happened; waits `timeout` seconds at most, without end for None."""
        if timeout is None:
            seconds = -1.0
        elif timeout <= 0:
            seconds = 0.0
        else:
            seconds = math.ceil(timeout * 1e3) * 1e-3  # epoll would round down, and be early
        keys = self._fd_to_key
        found = self._selector.poll(seconds, len(keys) or 1)
        # A descriptor that was closed too early stays in epoll while another process has it too.
        return [(keys[fd], _TOLD[bits]) for fd, bits in found if fd in keys]
