"""Takes an event stream apart: bytes in any cuts to events, by the WHATWG rules.

For those who need what the events say; the relay itself only watches them go by (`sse`). Lines end
with CR LF, LF or CR; comments and unknown fields are skipped; `data` lines are joined; a byte order
mark at the start is dropped. An event without data is none. Does not know what data means.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import NamedTuple

MAX_EVENT = 1024 * 1024
"""Bytes of one event's lines; a longer one is a fault, since nothing made of text needs it."""

_LINE = re.compile(rb"\r\n|\n|\r")


class Event(NamedTuple):
    """`name` is b"" where none was given."""

    name: bytes
    data: bytes


class EventReader:
    """The state of one stream.

    `begun` once its first bytes were read; `overran`: an event was longer than `limit` bytes, and
    nothing from there on is read.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self._limit = limit
        self._rest = bytearray()
        self.begun = False
        self.overran = False
        self._skip_lf = False
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that are whole with these bytes."""
        if self.overran:
            return []
        if not self.begun:
            data = bytes(self._rest) + data
            self._rest.clear()
            if len(data) < len(BOM_UTF8) and BOM_UTF8.startswith(data):
                self._rest += data
                return []
            self.begun = True
            data = data.removeprefix(BOM_UTF8)
        # A CR at the end counts at once, or its event would wait for the next one; the LF that may
        # follow belongs to it.
        if data:
            data = data.removeprefix(b"\n") if self._skip_lf else data
            self._skip_lf = data.endswith(b"\r")
        # Only what is new is searched: a long line in small pieces must not cost its square.
        *lines, rest = _LINE.split(data)
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        events = [event for line in lines if (event := self._line(line)) is not None]
        if self._size + len(self._rest) > self._limit:
            self._overrun()
        return events

    def close(self) -> list[Event]:
        """What is left at the end of the stream: an event that only lacks its empty line."""
        return [event for event in (*self.feed(b"\n"), self._line(b"")) if event is not None]

    def _line(self, line: bytes) -> Event | None:
        self._size += len(line)
        if self._size > self._limit:
            self._overrun()
        if self.overran:
            return None
        if not line:
            return self._take()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value
        return None

    def _overrun(self) -> None:
        self.overran = True
        self._rest.clear()
        self._data.clear()

    def _take(self) -> Event | None:
        event = Event(self._name, b"\n".join(self._data))
        self._name, self._size = b"", 0
        self._data.clear()
        return event if event.data else None
