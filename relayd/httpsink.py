"""The HTTP client as a sink: status line, framing and connection fields of an answer.

Heads are built from bytes here, not by h11 (61-73 us an answer); what goes in has been judged by
`headers` and `response`. Does not know what the answer says or who gave it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus

from .http1 import Request
from .net import Conn
from .sink import all_taken
from .transport import WRITE_HIGH
from .wake import Clock

STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

LAST_CHUNK = b"0\r\n\r\n"


class DateLine:
    """The `Date` line, made once a second; `wall` gives seconds since the epoch."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def at(self, wall: float) -> bytes:
        """The line for this time, with its CR LF."""
        second = int(wall)
        if second != self._second:
            self._second = second
            self._line = b"Date: " + http_date(second) + b"\r\n"
        return self._line


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def http_date(second: int) -> bytes:
    """An IMF-fixdate (RFC 9110, 5.6.7); not strftime, whose names follow the locale."""
    t = time.gmtime(second)
    text = (
        f"{_DAYS[t.tm_wday]}, {t.tm_mday:02} {_MONTHS[t.tm_mon - 1]} {t.tm_year} "
        f"{t.tm_hour:02}:{t.tm_min:02}:{t.tm_sec:02} GMT"
    )
    return text.encode("ascii")


class HttpSink:
    """Answers to one client connection, one after the other (`start` begins the next).

    After an answer `keep_alive` says whether the connection can carry another request; `opened`
    whether a head went out; `sent` how many body bytes did.
    """

    __slots__ = (
        "_bare",
        "_chunked",
        "_conn",
        "_date",
        "_http10",
        "keep_alive",
        "opened",
        "sent",
    )

    def __init__(self, conn: Conn, date: DateLine) -> None:
        self._conn = conn
        self._date = date
        self._bare = False
        self._chunked = False
        self._http10 = False
        self.keep_alive = False
        self.opened = False
        self.sent = 0

    def start(self, request: Request | None) -> None:
        """The next answer is for this request; None if its head could not be read."""
        self.opened = False
        self.sent = 0
        self._chunked = False
        if request is None:
            self._bare = self._http10 = self.keep_alive = False
        else:
            self._bare = request.method == "HEAD"
            self._http10 = request.version == b"1.0"
            self.keep_alive = request.keep_alive

    def heed(self, behind: Callable[[], None], writable: Callable[[], None]) -> None:
        """See `Sink.heed`."""
        self._conn.on_behind, self._conn.on_writable = behind, writable

    @property
    def writable(self) -> bool:
        """False while more than `transport.WRITE_HIGH` bytes wait for the client."""
        return self._conn.writable

    def pending(self) -> int:
        """Bytes that wait for the client."""
        return self._conn.pending()

    def untaken(self) -> int:
        """See `Sink.untaken`."""
        return self._conn.untaken()

    def open(self, status: int, block: bytes, length: int | None, first: bytes) -> None:
        """Send the head and the first payload in one write."""
        self.opened = True
        self.sent = 0 if self._bare else len(first)
        framing = b""
        if status == 204:
            pass  # it has no body and may not announce one (RFC 9110, 8.6)
        elif length is not None:
            framing = b"Content-Length: %d\r\n" % length
        elif self._http10:
            self.keep_alive = False
        else:
            framing = b"Transfer-Encoding: chunked\r\n"
            self._chunked = True
            first = b"%x\r\n%b\r\n" % (len(first), first) if first else b""
        if self._conn.overran:  # of a next request, which will not be read
            self.keep_alive = False
        closing = b"" if self.keep_alive else b"Connection: close\r\n"
        line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        head = b"".join((line, self._date.at(time.time()), block, framing, closing, b"\r\n"))
        self._conn.write(head if self._bare else head + first)

    def write(self, payload: bytes) -> None:
        """Send payload, as one chunk where chunks are spoken."""
        self.sent += len(payload)
        if self._chunked:
            payload = b"%x\r\n%b\r\n" % (len(payload), payload)
        self._conn.write(payload)

    def chunks(self) -> Callable[[bytes], None] | None:
        """See `Sink.chunks`."""
        return self._conn.write if self._chunked else None

    def end(self) -> None:
        """The body is complete."""
        if self._chunked:
            self._conn.write(LAST_CHUNK)

    async def flush(self, clock: Clock, timeout: float) -> None:
        """Wait until the kernel has taken everything; `CLIENT_STALLED` if it takes nothing."""
        if not self.pending():
            return
        self._conn.mark(0)
        self._conn.on_writable = clock.wake.wake
        await all_taken(self, clock, timeout)
        self._conn.mark(WRITE_HIGH)

    def cut(self, last: bytes = b"") -> None:
        """End the connection so that nobody takes the body for complete.

        Chunked: without the last chunk, after what was sent. HTTP/1.0, where the end of the
        connection is the end of the body: by a reset, or where there is none (a unix socket) by
        `last`, behind an event that nobody can read. A reader that stopped reading: at once.
        """
        self.keep_alive = False
        if self._http10 and last and not self._conn.can_reset:
            self.write(b"\n\n" + last)
            self._conn.close()
        elif self._http10:
            self._conn.reset()
        elif self._conn.writable:
            self._conn.close()
        else:
            self._conn.abort()
