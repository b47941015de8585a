"""Watches the event stream of a provider go by.

The relay passes the bytes on as they come; this gets a copy of them, in any cuts, and knows at each
moment how many events there were, whether a terminal marker or an error was among them, and whether
the stream stands at an event boundary. It never changes a byte and never raises into the relay: a
fault of its own only disables it (`broken`).

Lines are those of the WHATWG rules: LF, CR or CRLF, also mixed; comments; one byte order mark at
the start; several `data:` lines of an event are joined. So the first step is to turn every line end
into LF (a CR at the end of a read counts at once, an LF after it is swallowed), and the rest is cut
at empty lines. Other than in the rules, an event with empty data is none (SDKs choke on it), and an
unterminated last event is judged if it is whole, since newer SDKs read it.

Two ways lead to the same result. A read that is nothing but whole one-line events (nearly all of
them) is searched as one piece; everything else is taken apart event by event.

Does not know HTTP, the commit rule or time.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from enum import Enum, auto

from .answers import CONTENT, ERROR, FINAL, FINISH, READINGS, Said, is_whole
from .record import Usage
from .surfaces import Surface
from .usage import TAIL, merged

MAX_EVENT = 64 * 1024
"""Bytes of one event that are kept. A longer one (an image, a whole response repeated at its end)
is judged by its first MAX_EVENT and its last TAIL bytes, which is where its type and usage are."""

_END = b"\n\n"
# Whole events of one data line each, all of them with a name or none. Left to the exact way: empty
# data, `[DONE]`, and the name that makes an error of any data.
_DATA = rb"data:(?! ?(?:\n|\[DONE\]))[^\n]*+\n\n"
_PLAIN = re.compile(rb"(?:" + _DATA + rb")++").match
_NAMED = re.compile(rb"(?:event:(?! ?error\n)[^\n]*+\n" + _DATA + rb")++").match
_IDLE_LINES = re.compile(rb"(?:(?::[^\n]*+)?+\n)*+")


class _Mode(Enum):
    START = auto()  # a byte order mark may come
    EVENTS = auto()
    COMMENT = auto()  # inside a comment line between two events
    LARGE = auto()  # inside an event that is not kept
    ENDED = auto()  # broken, or behind an error: nothing is judged any more


# Looked up once (see `surfaces`).
_START, _EVENTS, _COMMENT = _Mode.START, _Mode.EVENTS, _Mode.COMMENT
_LARGE, _ENDED = _Mode.LARGE, _Mode.ENDED


class Watcher:
    """The state of one stream.

    `events` with data so far; `finished`: a terminal marker came; `goes_on`: content behind it,
    which another choice has; `final`: the marker after which the body ends; `error`: an error event
    came, which outweighs all three (vLLM sends `[DONE]` after it); `finish_reason` and `usage` as
    the provider gave them; `broken`: this watcher saw nothing of the rest.
    """

    __slots__ = (
        "_affirms",
        "_closed",
        "_head",
        "_held",
        "_mode",
        "_reading",
        "_skip_lf",
        "_tail",
        "_telling",
        "broken",
        "error",
        "events",
        "final",
        "finish_reason",
        "finished",
        "goes_on",
        "usage",
    )

    def __init__(self, surface: Surface) -> None:
        self._reading = READINGS[surface]
        self._telling = self._reading.telling
        self._affirms = self._reading.affirms
        self._mode = _START
        self._skip_lf = False
        self._held = bytearray()  # an event begun, at most MAX_EVENT + 1
        self._head = b""  # LARGE: its first MAX_EVENT bytes
        self._tail = b""  # LARGE: its last TAIL + 1
        self._closed = False
        self.events = 0
        self.finished = False
        self.goes_on = False
        self.final = False
        self.error = False
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.broken = False

    @property
    def at_boundary(self) -> bool:
        """Whether an event put in here would be read as one of its own."""
        idle = self._mode is not _COMMENT and self._mode is not _LARGE
        return idle and not self._held and not self.broken

    @property
    def at_start(self) -> bool:
        """Whether what comes next begins an event, and one that will be judged."""
        clean = not self._held and not self._skip_lf and not self.final
        return clean and self._mode is _EVENTS

    @property
    def over(self) -> bool:
        """Whether the stream may end here: a terminal marker came, and behind a bare finish, which
        may be one of several, no part of an event."""
        if self.final or not self.finished:
            return self.finished
        return not self._begun or self._is_whole()

    def text(self, event: bytes) -> int:
        """Where the text begins of an event that surely says content and nothing else, or -1."""
        search = self._reading.text
        if search is None or self._telling(event) >= 0 or not self._affirms(event):
            return -1
        found = search(event)
        return found.end() - 1 if found else -1

    def feed(self, data: bytes) -> int:
        """Take the next bytes; returns the flags (CONTENT …) of the events that ended in them.

        CONTENT also comes early, when an event that is too large to keep is sure to have it.
        """
        try:
            return self._feed(data)
        except Exception:  # noqa: BLE001  # whatever it is, the stream itself must go on
            self.broken = True
            self._mode = _ENDED
            return 0

    def close(self) -> int:
        """The body has ended: judge an event that lacks its empty line, unless it is cut.

        `at_boundary` stays what it was.
        """
        mode = self._mode
        if self._closed or mode is _ENDED:
            return 0
        self._closed = True
        if not self._begun or not self._is_whole():
            return 0
        if mode is _LARGE:
            return self._large(self._head, self._tail)
        return self._block(bytes(self._held))

    @property
    def _begun(self) -> bool:
        """Whether an event has begun."""
        return self._mode is _LARGE or (self._mode is _EVENTS and bool(self._held))

    def _is_whole(self) -> bool:
        """Whether the event that has begun lacks but its end."""
        if self._mode is _LARGE:
            return self._tail.rstrip().endswith(b"}")
        return is_whole(_fields(bytes(self._held))[1])

    # ---- bytes to LF-only text

    def _feed(self, data: bytes) -> int:
        if self._mode is not _EVENTS:
            if self._mode is _ENDED:
                return 0
            if self._mode is _START:
                data = self._start(data)
        if self._skip_lf or data.find(b"\r") >= 0:  # quicker than `in` (see `response`)
            data = self._with_line_feeds(data)
        if not data:
            return 0
        if self._mode is _EVENTS:
            return self._append(data)
        return self._resume(data)

    def _start(self, data: bytes) -> bytes:
        """What follows the byte order mark, if there is one; nothing while that is open."""
        data = bytes(self._held) + data
        if len(data) < len(BOM_UTF8) and BOM_UTF8.startswith(data):
            self._held[:] = data
            return b""
        self._held.clear()
        self._mode = _EVENTS
        return data.removeprefix(BOM_UTF8)

    def _with_line_feeds(self, data: bytes) -> bytes:
        """The same with every line end an LF. A CR at the end counts at once."""
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if data.find(b"\r") >= 0:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _resume(self, data: bytes) -> int:
        """Look for the end of what is not kept; go on behind it."""
        if self._mode is _COMMENT:
            end = data.find(b"\n")
            if end < 0:
                return 0
            self._mode = _EVENTS
            return self._append(data[end + 1 :])
        window = self._tail + data
        end = window.find(_END)
        if end < 0:
            self._tail = window[-TAIL - 1 :]
            return 0
        self._mode = _EVENTS
        flags = self._large(self._head, window[max(0, end - TAIL) : end])
        return flags if self.error else flags | self._append(window[end + 2 :])

    # ---- text to events

    def _append(self, data: bytes) -> int:
        held = self._held
        if held:
            start = len(held) - 1
            held += data
            if held.find(_END, start) < 0:
                return self._limit()
            data = bytes(held)
            held.clear()
        if data.endswith(_END):
            return self._events(data)
        end = data.rfind(_END)
        flags = 0
        if end >= 0:
            flags = self._events(data[: end + 2])
            data = data[end + 2 :]
        return flags if self.error else flags | self._hold(data)

    def _hold(self, data: bytes) -> int:
        """Keep the beginning of an event; comments and empty lines before it are done with."""
        data = data[_idle(data) :]
        if data.startswith(b":"):
            self._mode = _COMMENT
            return 0
        self._held += data
        return self._limit()

    def _limit(self) -> int:
        """Stop keeping an event that is too large. One byte more may still be half of its end."""
        held = self._held
        if len(held) <= MAX_EVENT + 1:
            return 0
        self._mode = _LARGE
        self._head = bytes(held[:MAX_EVENT])
        self._tail = bytes(held[-TAIL - 1 :])
        held.clear()
        if self.final:
            return 0
        return self._reading.judge_large(*_fields(self._head), b"").flags & CONTENT

    def _events(self, data: bytes) -> int:
        """Judge a piece that ends with an empty line."""
        done = self._routine(data)
        flags = CONTENT if done else 0
        if done == len(data):
            return flags
        for block in data[done:].split(_END)[:-1]:  # behind the last end is nothing
            flags |= self._block(block)
            if self.error:
                break
        return flags

    def _routine(self, data: bytes) -> int:
        """Count the plain events at the start that hold content and say no more; their length."""
        if self.final or len(data) > MAX_EVENT:
            return 0
        end = self._telling(data)
        end = len(data) if end < 0 else data.rfind(_END, 0, end) + 2
        found = _PLAIN(data, 0, end) or _NAMED(data, 0, end)
        if found is None or not self._affirms(routine := found[0]):
            return 0
        self.events += routine.count(_END)
        self.goes_on = self.finished
        return len(routine)

    def _block(self, block: bytes) -> int:
        """Judge the lines of one event."""
        block = block[_idle(block) :]
        if len(block) > MAX_EVENT:
            return self._large(block[:MAX_EVENT], block[-TAIL:])
        event, data = _fields(block)
        if not data:
            return 0
        return self._note(self._reading.judge(event, data))

    def _large(self, head: bytes, tail: bytes) -> int:
        event, data = _fields(head)
        if not data:
            return 0
        return self._note(self._reading.judge_large(event, data, tail))

    def _note(self, said: Said) -> int:
        self.events += 1
        if self.final:  # what follows the end of an answer is no part of it
            return 0
        flags = said.flags
        if flags & (CONTENT | FINISH):
            self.goes_on = self.finished and not flags & FINISH
        self.finished = self.finished or bool(flags & FINISH)
        self.final = bool(flags & FINAL)
        self.finish_reason = said.finish_reason or self.finish_reason
        self.usage = merged(self.usage, said.usage)
        if flags & ERROR:
            self.error = True
            self._mode = _ENDED
        return flags


def _idle(data: bytes) -> int:
    """How many bytes at the start are empty lines and whole comment lines."""
    found = _IDLE_LINES.match(data)
    assert found is not None  # it may be empty, so it always matches
    return found.end()


def _fields(block: bytes) -> tuple[bytes, bytes]:
    """The event's name and its data lines, joined."""
    if block.startswith(b"data:") and block.find(b"\n") < 0:
        return b"", block[5:].removeprefix(b" ")
    event = b""
    lines = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
        elif name == b"event":
            event = value.removeprefix(b" ")
    return event, b"\n".join(lines)
