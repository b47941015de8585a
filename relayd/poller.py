"""asyncio's own loop in fewer steps: a poller that calls back at once, and the loop above it.

The standard loop makes an event of each ready descriptor, an entry of its queue of each event, and
a call in a copied context of each entry. Here whoever asked by `add_reader` or `add_writer` is
called from the poll itself. What asyncio watches for its own transports goes the usual way. Knows
descriptors only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import select
import time
from collections import deque
from collections.abc import Callable, Collection
from selectors import EVENT_READ, EVENT_WRITE, EpollSelector, SelectorKey
from typing import Any

from .gather import PAUSE, Gather

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT

AT_ONCE = 512
"""Events taken in one poll, so that timers and tasks have their turn; epoll goes round the rest."""

Call = Callable[[], object]


def _told(bits: int) -> int:
    """What there is to do: an error or a hang-up is told to whoever reads and to whoever writes."""
    read = EVENT_READ if bits & ~_OUT else 0
    write = EVENT_WRITE if bits & ~_IN else 0
    return read | write


_TOLD = tuple(_told(bits) for bits in range((_IN | _OUT | select.EPOLLERR | select.EPOLLHUP) + 1))
"""By what epoll says: it adds an error (8) and a hang-up (16) to what it was asked for."""


class Poller(EpollSelector):
    """An `EpollSelector` whose `select` calls those who `watch`, and tells of the others.

    Where events are dense it lets some `gather` before it waits for one.

    It may tell of an event that nobody asked for; asyncio then has nobody to call. `fault` is told
    what a call raises, `ready` is what has a turn next, and `stale` says that the loop would no
    longer wait as long as it said. Everything else is the standard library's, and so are the two
    attributes that `select` reads; `tests/unit/test_poller.py` holds both selectors to the same.
    """

    _fd_to_key: dict[int, SelectorKey]
    _selector: Any

    def __init__(self, fault: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._fault = fault
        self._calls: dict[int, dict[int, Call]] = {_IN: {}, _OUT: {}}
        self._readers = self._calls[_IN]
        self._writers = self._calls[_OUT]
        self.ready: Collection[object] = ()
        self.stale = False
        self.gather = Gather()

    def watch(self, fd: int, bit: int, call: Call) -> None:
        """Call when `fd` can be read (EPOLLIN) or written (EPOLLOUT), instead of who was before."""
        before = self._bits(fd)
        if not before:
            self._selector.register(fd, bit)
        elif not before & bit:
            self._selector.modify(fd, before | bit)
        self._calls[bit][fd] = call

    def forget(self, fd: int, bit: int) -> bool:
        """Call no more; False if nobody was to be called."""
        if self._calls[bit].pop(fd, None) is None:
            return False
        with contextlib.suppress(OSError):  # closed already
            if left := self._bits(fd):
                self._selector.modify(fd, left)
            else:
                self._selector.unregister(fd)
        return True

    def _bits(self, fd: int) -> int:
        return (_IN if fd in self._readers else 0) | (_OUT if fd in self._writers else 0)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Call, and tell, what happened; waits `timeout` seconds at most, without end for None.

        Waits on after its own calls, as long as nothing is `ready` and the timeout is not `stale`.
        """
        self.stale = timeout is not None and timeout <= 0
        clock = time.monotonic
        seconds = -1.0 if timeout is None else max(timeout, 0.0)
        until = math.inf if timeout is None else clock() + timeout
        keys = self._fd_to_key
        readers = self._readers
        poll = self._selector.poll
        others: list[tuple[int, int]] = []
        gather = self.gather
        while found := self._gathered(seconds) if gather.on else poll(seconds, AT_ONCE):
            gather.seen(len(found))
            for fd, bits in found:
                # A call may have closed a descriptor of the same poll, and one that was closed too
                # early stays in epoll while another process has it too.
                reader = readers.get(fd)
                if reader is not None and bits == _IN:
                    try:
                        reader()
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as exc:  # noqa: BLE001  (as asyncio, any callback)
                        self._fault(exc)
                elif fd in keys:
                    others.append((fd, bits))
                else:
                    self._call(fd, bits)
            if others or self.ready or self.stale:
                break
            if timeout is not None and (seconds := until - clock()) <= 0:
                break
        # Not sooner: a call may have made asyncio ask anew, by another key.
        return [(keys[fd], _TOLD[bits]) for fd, bits in others if fd in keys]

    def _gathered(self, seconds: float) -> list[tuple[int, int]]:
        """What there is now; if there is nothing, the next events gather for a moment first."""
        poll: Callable[[float, int], list[tuple[int, int]]] = self._selector.poll
        found = poll(0, AT_ONCE)
        if found or not seconds:
            return found
        if self.gather.pays():
            pause = min(seconds, PAUSE) if seconds > 0 else PAUSE
            time.sleep(pause)
            if seconds > 0:
                seconds -= pause
        return poll(seconds, AT_ONCE)

    def _call(self, fd: int, bits: int) -> None:
        """An error or a hang-up is told to whoever reads and to whoever writes."""
        for calls, other in ((self._readers, _OUT), (self._writers, _IN)):
            call = calls.get(fd)
            if call is not None and bits & ~other:
                try:
                    call()
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as exc:  # noqa: BLE001  (as above)
                    self._fault(exc)

    def close(self) -> None:
        """Watch nothing any more."""
        self._readers.clear()
        self._writers.clear()
        super().close()


class PlainLoop(asyncio.SelectorEventLoop):
    """asyncio's loop over a `Poller`.

    Who is added by `add_reader` or `add_writer` is called as soon as the poll returns, before what
    waits for its turn, and in no context of its own. A descriptor is watched so or by asyncio (its
    `sock_*` methods, its transports), not by both.
    """

    _ready: deque[asyncio.Handle]  # asyncio's own, and one of it for its whole life

    def __init__(self) -> None:
        self._poller = Poller(self._failed)
        super().__init__(self._poller)
        self._poller.ready = self._ready
        self.time = time.monotonic  # type: ignore[method-assign]  # without the call around it

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """See `asyncio.loop.call_at`."""
        self._poller.stale = True
        return super().call_at(when, callback, *args, context=context)

    def stop(self) -> None:
        """See `asyncio.loop.stop`."""
        self._poller.stale = True
        super().stop()

    # typeshed names the arguments by a variadic type, which says nothing here.

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """See `asyncio.loop.add_reader`."""
        self._poller.watch(_fileno(fd), _IN, _bound(callback, args))

    def remove_reader(self, fd: Any) -> bool:
        """See `asyncio.loop.remove_reader`; asyncio calls it for its own too."""
        return self._poller.forget(_fileno(fd), _IN) or super().remove_reader(fd)

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """See `asyncio.loop.add_writer`."""
        self._poller.watch(_fileno(fd), _OUT, _bound(callback, args))

    def remove_writer(self, fd: Any) -> bool:
        """See `asyncio.loop.remove_writer`; asyncio calls it for its own too."""
        return self._poller.forget(_fileno(fd), _OUT) or super().remove_writer(fd)

    def _failed(self, exc: BaseException) -> None:
        self.call_exception_handler({"message": "a reader or writer failed", "exception": exc})


def _fileno(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _bound(callback: Callable[..., object], args: tuple[Any, ...]) -> Call:
    return functools.partial(callback, *args) if args else callback
