"""Message bodies of HTTP/1.1: where one ends, whatever cuts its bytes arrive in.

Of both sides: a provider's response and a client's request. `Chunked` is strict (CR LF everywhere,
hexadecimal digits only: any other reading is a smuggling gap, CVE-2025-43859); chunk extensions and
trailers are read within limits and dropped. Does not know heads, sockets or what a payload means.
"""

from __future__ import annotations

from typing import Protocol

_DIGITS_LIMIT = 16
"""Hexadecimal digits of a chunk size: 64 bits."""

_HEX = b"0123456789abcdefABCDEF"

MAX_CHUNK_LINE = 1024
"""Bytes of a chunk-size line with its extensions, which nobody sends (RFC 9112, 7.1.1)."""

MAX_TRAILERS = 8192
"""Bytes of a trailer section, read and dropped."""


class Body(Protocol):
    """A message body that is taken from bytes in any cuts.

    `feed` returns payload; `done` says that the body has ended, `rest` what came after its end.
    `close` is for the end of the connection: True if the body is complete. `at_start` says that
    what comes next begins a chunk, where there are any.
    """

    done: bool
    rest: bytes

    @property
    def at_start(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...
    def close(self) -> bool: ...


class Length:
    """A body of known length."""

    __slots__ = ("_left", "done", "rest")
    at_start = False

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`."""
        if self.done:
            self.rest += data
            return b""
        left = self._left - len(data)
        if left > 0:
            self._left = left
            return data
        self.done = True
        if left:
            data, self.rest = data[: self._left], data[self._left :]
        return data

    def close(self) -> bool:
        """Whole only if every byte came."""
        return self.done


class UntilClose:
    """A response body that ends with its connection: nothing tells a cut one from a whole one."""

    __slots__ = ("done", "rest")
    at_start = False

    def __init__(self) -> None:
        self.done = False
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """All of it."""
        return data

    def close(self) -> bool:
        """Complete by definition (RFC 9112, 8)."""
        self.done = True
        return True


_COMMON = {b"%x" % size: size for size in range(1, 1025)}
"""Sizes of events as providers write them: looking one up costs a tenth of reading it."""


class BadChunk(ValueError):
    """The chunked coding is broken: nothing after this point can be trusted.

    `payload`: what came whole before it in the same read, so that no cut of the bytes decides.
    """

    payload = b""


class Chunked:
    """The chunked coding (RFC 9112, 7.1), strict: CR LF everywhere, hexadecimal digits only."""

    __slots__ = ("_carry", "_left", "_trailer", "done", "rest")

    def __init__(self) -> None:
        self._carry = b""  # an unfinished size line, line end or trailer line
        self._left = -1  # payload bytes due in this chunk; 0: its CR LF is due; -1: a size line
        self._trailer = -1  # bytes of trailers so far; -1: not there yet
        self.done = False
        self.rest = b""

    @property
    def at_start(self) -> bool:
        """Whether what comes next begins a chunk."""
        return self._left < 0 and self._trailer < 0 and not self._carry and not self.done

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`; raises `BadChunk`."""
        if self._carry:
            data = self._carry + data
            self._carry = b""
        if self.done or self._trailer >= 0:
            self._trailers(data, 0)
            return b""
        parts: list[bytes] = []
        try:
            self._chunks(data, parts)
        except BadChunk as exc:
            exc.payload = b"".join(parts)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> bool:
        """Whole only if the last chunk and its empty line came."""
        return self.done

    def _chunks(self, data: bytes, parts: list[bytes]) -> None:
        at = 0
        end = len(data)
        while at < end:
            left = self._left
            if left < 0:
                line = data.find(b"\r\n", at, at + MAX_CHUNK_LINE)
                if line < 0:
                    self._unfinished_line(data, at)
                    break
                text = data[at:line]
                size = _COMMON.get(text) or _chunk_size(text)
                at = line + 2
                if size and data.startswith(b"\r\n", at + size):  # most often it is all there
                    parts.append(data[at : at + size])
                    at += size + 2
                    continue
                self._left = size
                if not size:
                    self._trailer = 0
                    self._trailers(data, at)
                    break
            elif left:
                part = data[at : at + left]
                parts.append(part)
                at += len(part)
                self._left = left - len(part)
            else:
                if data[at : at + 2] != b"\r\n":
                    self._short(data, at, b"\r")
                    break
                at += 2
                self._left = -1

    def _short(self, data: bytes, at: int, start: bytes) -> None:
        if data[at:] != start:
            raise BadChunk("chunk does not end with CR LF")
        self._carry = data[at:]

    def _unfinished_line(self, data: bytes, at: int) -> None:
        line = data[at:]
        if len(line) >= MAX_CHUNK_LINE or b"\n" in line:
            raise BadChunk("chunk size line is too long or not ended by CR LF")
        self._carry = line

    def _trailers(self, data: bytes, at: int) -> None:
        """Skip trailer lines up to the empty one."""
        while not self.done:
            line = data.find(b"\r\n", at)
            if line < 0:
                if self._trailer + len(data) - at > MAX_TRAILERS or b"\n" in data[at:]:
                    raise BadChunk("trailers are too long or not ended by CR LF")
                self._carry = data[at:]
                return
            if line > at:
                _judge_trailer(data[at:line])
            self._trailer += line + 2 - at
            if self._trailer > MAX_TRAILERS:
                raise BadChunk(f"trailers over {MAX_TRAILERS} bytes")
            self.done = line == at
            at = line + 2
        self.rest += data[at:]


def _judge_trailer(line: bytes) -> None:
    if b"\n" in line or b"\r" in line:
        raise BadChunk("trailer line not ended by CR LF")
    if line[0] in b" \t:" or b":" not in line:
        raise BadChunk("trailer line is no field")


def _chunk_size(line: bytes) -> int:
    """The size in a chunk's first line; extensions are ignored, spaces around it allowed."""
    if b"\n" in line or b"\r" in line:
        raise BadChunk("chunk size line not ended by CR LF")
    digits = line.partition(b";")[0].rstrip(b" \t")
    if not digits or digits.translate(None, _HEX) or len(digits) > _DIGITS_LIMIT:
        raise BadChunk("chunk size is no hexadecimal number")
    return int(digits, 16)
