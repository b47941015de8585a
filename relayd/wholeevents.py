"""Lets whole events of a stream go by and holds back the one that has only begun.

Whoever is sent these pieces stands at an event boundary wherever the stream breaks off, so that an
event of one's own can say so. Bytes are never changed. Events end at an empty line, whatever the
line ends (LF, CR, CRLF, mixed). Does not know what an event says.
"""

from __future__ import annotations

import re

from .sse import MAX_EVENT

HELD_MOST = MAX_EVENT
"""Bytes of an event that are held back, of each stream. A longer one goes by in parts."""

_ENDS = (b"\n\n", b"\r\r", b"\n\r")
"""Two line ends, or their nearer halves: CR LF alone is one, and the LF behind CR LF CR is idle."""

_IDLE_LINES = re.compile(rb"(?::[^\r\n]*+[\r\n]|[\r\n])*+")


class WholeEvents:
    """The state of one stream."""

    __slots__ = ("_held", "_last")

    def __init__(self) -> None:
        self._held = b""  # an event begun
        self._last = b""  # its last byte, where a part of it has gone by

    def feed(self, data: bytes) -> bytes:
        """The next bytes that may go by."""
        data = self.rest() + data
        end = len(data) if data.endswith(b"\n\n") else _end(self._last + data) - len(self._last)
        if end > 0:
            self._last = b""
            return data[:end] + self._hold(data[end:])
        if self._last:
            self._last = data[-1:] or self._last
            return data
        return self._hold(data)

    def rest(self) -> bytes:
        """What is held back: it may go by after all."""
        held, self._held = self._held, b""
        return held

    def cut(self) -> bytes:
        """What must stand before an event of one's own once the stream has broken off.

        What is held back is dropped; a part that has gone by becomes an event that nobody can read.
        """
        self._held = b""
        return b"\n\n" if self._last else b""

    def _hold(self, data: bytes) -> bytes:
        """Hold back the beginning of an event; comments and empty lines before it may go."""
        found = _IDLE_LINES.match(data)
        assert found is not None  # it may be empty, so it always matches
        idle, begun = data[: found.end()], data[found.end() :]
        if len(begun) <= HELD_MOST:
            self._held = begun
            return idle
        self._last = begun[-1:]
        return data


def _end(data: bytes) -> int:
    """Where the last empty line ends; 0 without one."""
    return max((found + 2 for end in _ENDS if (found := data.rfind(end)) >= 0), default=0)
