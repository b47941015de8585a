"""Judges the body of a 2xx before the commit: is it an answer?

    bytes ── feed ──► MORE … MORE ──► COMMIT | LIMIT | FAIL        an event stream
                      MORE … WHOLE ─── close ──► COMMIT | FAIL     what is held until its end

The kind of the body is told by its first non-blank bytes and by whether the request streams, never
by a Content-Type:

| first bytes | request streams | request does not |
|---|---|---|
| `data:` `event:` `id:` `retry:` `:` | commit at the first content | held whole |
| `{` `[` | held whole; an object that is only an error fails | the same |
| anything else, nothing at all | fails | fails |

With `whole` (a route that commits on the whole answer) an event stream is judged at its end, too,
and must have a terminal marker. An error event before any content, and an end with neither content
nor finish, always fail; in what is held whole an error event anywhere does.

Does not know connections, statuses, clocks, or how much may be held of a whole answer: that limit
is the caller's.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from enum import Enum, auto

from .answers import CONTENT
from .sse import Watcher
from .surfaces import Surface
from .whole import is_cut, is_error_answer

MAX_PEEK = 256 * 1024
"""Bytes of an event stream that are held while no content comes."""

MAX_PEEK_EVENTS = 64
"""Events without content that are held: a provider sends one to five before its first."""

_BLANK = b" \t\r\n"
_JSON = (b"{", b"[")
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class Verdict(Enum):
    """What is to be done now."""

    MORE = auto()  # undecided: read on
    WHOLE = auto()  # no event stream to be passed on bit by bit: read on to its end
    COMMIT = auto()  # an answer
    LIMIT = auto()  # the peek is full: to be committed without having seen content
    FAIL = auto()  # no answer; `reason` says why


class Why(Enum):
    """Why a 2xx is no answer."""

    EMPTY = "empty"  # ended with neither content nor finish
    ERROR_EVENT = "error_event"
    ERROR_OBJECT = "error_object"  # JSON with nothing but an error in it
    NOT_AN_ANSWER = "not_an_answer"  # neither an event stream nor JSON
    CUT = "cut"  # had to be whole, but has no terminal marker or no end of its own


# Looked up once (see `surfaces`).
COMMIT, FAIL, LIMIT, MORE, WHOLE = (
    Verdict.COMMIT,
    Verdict.FAIL,
    Verdict.LIMIT,
    Verdict.MORE,
    Verdict.WHOLE,
)


class Peek:
    """One attempt's body up to the commit.

    `held`: all bytes so far, to be sent on at the commit. `watcher`: None unless the body is an
    event stream; has seen what is held and goes on with the rest. `flags`: the watcher's, of the
    last `feed` or `close`. `content_seen`: content has come. `reason`: set with FAIL.
    """

    __slots__ = (
        "_first",
        "_is_json",
        "_streaming",
        "_surface",
        "_whole",
        "content_seen",
        "flags",
        "held",
        "reason",
        "watcher",
    )

    def __init__(self, surface: Surface, streaming: bool, whole: bool = False) -> None:
        self._surface = surface
        self._streaming = streaming
        self._whole = whole or not streaming
        self._is_json = False
        self._first: bytes | None = None  # the first bytes that count; None: a BOM may still come
        self.watcher: Watcher | None = None
        self.held = bytearray()
        self.flags = 0
        self.content_seen = False
        self.reason: Why | None = None

    def feed(self, data: bytes) -> Verdict:
        """Take the next bytes of the body."""
        self.held += data
        if self._is_json:
            return WHOLE
        if self.watcher is None:
            verdict = self._recognise(data)
            if verdict not in (None, LIMIT):  # so many blanks can only be the lines of a stream
                return verdict
            self.watcher = Watcher(self._surface)
            data = bytes(self.held)
        return self._watch(self.watcher, data)

    def close(self, *, framed: bool = True) -> Verdict:
        """The body has ended as its framing said; `framed` False: with its connection.

        Then nothing but the answer itself tells a cut one from a whole one.
        """
        if self.reason is not None:
            return FAIL
        if self._is_json:
            return self._end(self._json_fault(bytes(self.held), framed))
        if self.watcher is None:
            return self._end(Why.NOT_AN_ANSWER if self._first else Why.EMPTY)
        self._flag(self.watcher.close())
        fault = self._fault(self.watcher)
        cut = not framed and self._whole and not self.watcher.over
        return self._end(Why.CUT if fault is None and cut else fault)

    def _json_fault(self, body: bytes, framed: bool) -> Why | None:
        if is_error_answer(body):
            return Why.ERROR_OBJECT
        return Why.CUT if not framed and is_cut(body) else None

    def _recognise(self, data: bytes) -> Verdict | None:
        """Tell the kind of the body by its first bytes that count; None: an event stream."""
        if self._first is None:
            data = bytes(self.held)
            if len(data) < len(BOM_UTF8) and BOM_UTF8.startswith(data):
                return self._more(0)
            self._first = b""
            data = data.removeprefix(BOM_UTF8)
        # What is kept here is the beginning of a field's name, so this stays short.
        self._first = first = (self._first + data).lstrip(_BLANK)
        if first.startswith(_FIELDS):
            return None
        if first.startswith(_JSON):
            self._is_json = True
            return WHOLE
        if any(name.startswith(first) for name in _FIELDS):
            return self._more(0)
        return self._end(Why.NOT_AN_ANSWER)

    def _watch(self, watcher: Watcher, data: bytes) -> Verdict:
        self._flag(watcher.feed(data))
        if self.content_seen and not self._whole:
            return COMMIT
        if watcher.error or watcher.final:
            return self._end(self._fault(watcher))
        return self._more(watcher.events)

    def _more(self, events: int) -> Verdict:
        if self._whole:
            return MORE if self._streaming or self.watcher is None else WHOLE
        full = len(self.held) >= MAX_PEEK or events >= MAX_PEEK_EVENTS
        return LIMIT if full else MORE

    def _fault(self, watcher: Watcher) -> Why | None:
        """What is wrong with an event stream that has come to its end."""
        if self.content_seen and not self._whole:
            return None
        if watcher.error or watcher.finish_reason == "failed":
            return Why.ERROR_EVENT
        if not self.content_seen:
            return Why.EMPTY
        # A stream that nobody asked for is passed on as it is.
        return Why.CUT if self._streaming and not watcher.over else None

    def _flag(self, flags: int) -> None:
        self.flags = flags
        self.content_seen = self.content_seen or bool(flags & CONTENT)

    def _end(self, fault: Why | None) -> Verdict:
        self.reason = fault
        return COMMIT if fault is None else FAIL
