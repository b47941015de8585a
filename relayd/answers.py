"""What a provider's answer says, by surface: content, a finish, an error, usage.

One event (its `event:` name and joined data) in, a judgement out; `whole` has the whole answers.

- Providers differ, so a judgement never raises: what cannot be read says nothing.
- Quick searches over raw bytes come before any parsing, and the same searches decide for one event
  and for many at once. They are sound because a JSON string cannot hold an unescaped quote:
  `"finish_reason"` with real quotes is a real key or value, never a model's prose. (A key spelled
  with escapes is not recognised; nobody sends one.)
- An event too large to keep is judged by its head and its tail.

Does not know lines, reads or sockets, nor what follows from a judgement.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from .record import Usage
from .surfaces import Surface
from .usage import LENIENT, last_usage, read_usage

CONTENT = 1
"""There was content, or a finish that makes an empty answer an answer."""
FINISH = 2
"""A terminal marker: with it, a stream whose framing ended well is complete."""
FINAL = 4
"""The terminal marker after which the body ends."""
ERROR = 8
"""An error event: the provider's own, terminal."""

MAX_REASON = 64
"""Characters of a finish reason that is kept: a stranger wrote it, and it goes into the log."""
LONG_REASON = "other"
"""In place of a longer one: of a key that is cut in two no mask knows the half."""

Document = dict[str, object]


class Said(NamedTuple):
    """What one event or answer says; `flags` is a sum of CONTENT, FINISH, FINAL, ERROR."""

    flags: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None


_NOTHING = Said()
_CONTENTFUL = Said(CONTENT)
_DONE = Said(FINISH | FINAL)
_FAILED = Said(ERROR)


@dataclass(slots=True, frozen=True)
class Reading:
    """How the events of one surface are read.

    `telling`: from where on these bytes may say more than content, or -1 (never misses, may be
    wrong the other way). `affirms`: there is content in them for certain (may miss).
    `text`: its matches end with the first byte of such content's text; None where two events never
    differ in their text alone.
    `weigh`: what a parsed event says, given its `event:` name. No error reaches it.
    """

    telling: Callable[[bytes], int]
    affirms: Callable[[bytes], object]
    text: Callable[[bytes], re.Match[bytes] | None] | None
    weigh: Callable[[Document, str], Said]

    def judge(self, event: bytes, data: bytes) -> Said:
        """What one complete event says."""
        if data.startswith(b"[DONE]"):
            return _DONE
        if event == b"error":
            return _FAILED
        told = self.telling(data) >= 0 or self.telling(event) >= 0
        if not told and data.find(b"\n") < 0 and self.affirms(data):
            return _CONTENTFUL
        document = read_document(data)
        if document is None:
            return _NOTHING
        if told and is_error(document):
            return _FAILED
        said = self.weigh(document, event.decode("utf-8", "replace"))
        if told:
            return said
        return _CONTENTFUL if said.flags & CONTENT else _NOTHING

    def judge_large(self, event: bytes, head: bytes, tail: bytes) -> Said:
        """What an event says of which only the first and the last bytes are at hand."""
        if event == b"error" or _ERROR_HEAD.match(head):
            return _FAILED
        said = self.weigh(_sketch(head, tail), event.decode("utf-8", "replace"))
        certain = CONTENT if self.affirms(head) else 0
        return Said(said.flags | certain, said.finish_reason, said.usage)


def is_whole(data: bytes) -> bool:
    """Whether the data of an event without its end is all there."""
    return data.startswith(b"[DONE]") or read_document(data) is not None


def is_error(document: Document) -> bool:
    """Whether a parsed event or answer is an error: `"error": null` is none.

    Besides the usual key: `type` (Anthropic, Responses) and `object` (vLLM, Mistral).
    """
    if document.get("error") is not None:
        return True
    return document.get("type") == "error" or document.get("object") == "error"


# ---- one event, by surface


def _weigh_chat(document: Document, event: str) -> Said:
    flags = 0
    choices = _objects(document.get("choices"))
    for choice in choices:
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(delta[name] for name in delta if name != "role"):
            flags = CONTENT
    return _finished(document, choices, flags)


def _weigh_completion(document: Document, event: str) -> Said:
    choices = _objects(document.get("choices"))
    found = any(choice.get("text") for choice in choices)
    return _finished(document, choices, CONTENT if found else 0)


def _weigh_response(document: Document, event: str) -> Said:
    kind = kind_of(document, event)
    if kind in _RESPONSE_ENDS:
        usage = read_usage(_member(document, "response", "usage"))
        return Said(_RESPONSE_ENDS[kind], kind.removeprefix("response."), usage)
    content = kind.startswith("response.") and kind.endswith(".delta")
    return _CONTENTFUL if content else _NOTHING


def _weigh_message(document: Document, event: str) -> Said:
    kind = kind_of(document, event)
    if kind == "message_stop":
        return _DONE
    if kind == "content_block_delta":
        return _CONTENTFUL
    if kind == "message_start":
        return Said(usage=read_usage(_member(document, "message", "usage")))
    if kind != "message_delta":
        return _NOTHING
    reason = reason_of(_member(document, "delta", "stop_reason"))
    return Said(CONTENT if reason else 0, reason, read_usage(document.get("usage")))


def _finished(document: Document, choices: list[Document], flags: int) -> Said:
    """Chat and completions: the first choice's finish reason, and the usage, on top of `flags`."""
    reason = None
    for choice in choices:
        if (reason := reason_of(choice.get("finish_reason"))) is not None:
            flags |= CONTENT | FINISH
            break
    if reason == "error":  # OpenRouter's finish of a generation that broke off
        return _FAILED
    usage = document.get("usage")
    if usage is None:
        usage = _member(document, "x_groq", "usage")
    return Said(flags, reason, read_usage(usage))


_RESPONSE_ENDS = {
    "response.completed": CONTENT | FINISH | FINAL,
    "response.incomplete": CONTENT | FINISH | FINAL,
    "response.failed": FINISH | FINAL,  # the end, but no content: before the commit, a failure
}

# ---- quick searches, some 0.2 us for an event each

_ERROR_HEAD = re.compile(
    rb'\s*\{\s*(?:"error"\s*:\s*[^n\s]|"type"\s*:\s*"error"|"object"\s*:\s*"error")'
)
_KIND_HEAD = re.compile(rb'\s*\{[^{}]*?"type"\s*:\s*"([^"\\]+)"')
_KIND_TAIL = re.compile(rb'"type"\s*:\s*"([^"\\]+)"[^{}\[\]]*\}\s*$')
_FINISH_REASON, _NO_REASON = b'"finish_reason"', b'"finish_reason":null'
_SAID = re.compile(rb'\s*:\s*"([^"\\]+)"').match
_CHOICES_END = re.compile(
    rb'"(?:error"|usage"\s*:\s*\{|finish_reason"\s*:\s*(?:"[^"]|[^n"\s]))'
).search
_RESPONSE_END = re.compile(rb"response\.(?:completed|failed|incomplete)").search
# The first choice's delta with a non-empty member other than the role; members before it are texts
# or null. Nothing here matches a line end inside a string, so no match spans two events.
_CHOICE = rb'"choices"\s*:\s*\[\s*\{[^{}\n]*?'
_DELTA = re.compile(
    _CHOICE + rb'"delta"\s*:\s*\{(?:\s*"[a-z_]+"\s*:\s*(?:"[^"\\\n]*"|null)\s*,)*?'
    rb'\s*"(?!role")[a-z_]+"\s*:\s*(?:"[^"\n]|\[\s*[^\]\s]|\{\s*")'
).search
_TEXT = re.compile(_CHOICE + rb'"text"\s*:\s*"[^"\n]').search
_RESPONSE_DELTA = re.compile(rb'"type"\s*:\s*"response\.[a-z_.]+\.delta"').search
_BLOCK_DELTA = re.compile(rb'"type"\s*:\s*"content_block_delta"').search
_BLOCK_TEXT = re.compile(rb'"(?:text|thinking|partial_json)"\s*:\s*"[^"\n]').search


def _telling_choices(data: bytes) -> int:
    quiet = data.find(b'"error"') < 0 and data.find(b'"usage"') < 0
    if quiet and data.count(_FINISH_REASON) == data.count(_NO_REASON):
        return -1  # most often: seen in half the time
    found = _CHOICES_END(data)
    return found.start() if found else -1


def _telling_response(data: bytes) -> int:
    found = _RESPONSE_END(data)
    return _first(data.find(b'"error"'), found.start() if found else -1)


def _telling_message(data: bytes) -> int:
    return _first(data.find(b'"error"'), data.find(b"message_"))


def _first(one: int, other: int) -> int:
    """The smaller of two places, either of which may be -1 for nowhere."""
    return max(one, other) if one < 0 or other < 0 else min(one, other)


_COMPLETION = Reading(_telling_choices, _TEXT, _TEXT, _weigh_completion)

READINGS = {
    Surface.CHAT: Reading(_telling_choices, _DELTA, _DELTA, _weigh_chat),
    Surface.COMPLETIONS: _COMPLETION,
    Surface.EMBEDDINGS: _COMPLETION,  # never a stream; here so that the table is total
    Surface.RESPONSES: Reading(_telling_response, _RESPONSE_DELTA, None, _weigh_response),
    Surface.MESSAGES: Reading(_telling_message, _BLOCK_DELTA, _BLOCK_TEXT, _weigh_message),
}
assert set(READINGS) == set(Surface)

# ---- reading what strangers wrote


def read_document(data: bytes) -> Document | None:
    """The JSON object in `data`, or None: no JSON, no object, or nested beyond the interpreter.

    A control byte within a string is let pass, and so is one that is no UTF-8: neither may hide a
    finish or an error.
    """
    try:
        # As json.loads reads bytes, without its making a decoder for each call.
        value = LENIENT.decode(data.removeprefix(BOM_UTF8).decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _objects(value: object) -> list[Document]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _member(document: Document, outer: str, inner: str) -> object:
    value = document.get(outer)
    return value.get(inner) if isinstance(value, dict) else None


def kind_of(document: Document, event: str) -> str:
    """The type of an event, which may stand in its name alone."""
    kind = document.get("type")
    return kind if isinstance(kind, str) else event


def reason_of(value: object) -> str | None:
    """A finish reason as text; null is none, nor is the "" or "null" that some send each time."""
    if not value or value == "null":
        return None
    text = str(value)
    return text if len(text) <= MAX_REASON else LONG_REASON


def first_said(key: bytes, data: bytes) -> str | None:
    """The first text that is the value of a quoted key, as it stands; None without one."""
    at = data.find(key)  # many times as fast as an expression that begins with it
    while at >= 0:
        at += len(key)
        if found := _SAID(data, at):
            return found[1].decode("utf-8", "replace")
        at = data.find(key, at - 1)  # its last quote may be the first of another
    return None


def _sketch(head: bytes, tail: bytes) -> Document:
    """The few members of a large event that matter, in all the places where they are looked for."""
    kind = _KIND_HEAD.match(head) or _KIND_TAIL.search(tail)
    usage = last_usage(tail)
    return {
        "type": kind[1].decode("utf-8", "replace") if kind else None,
        "choices": [{"finish_reason": first_said(_FINISH_REASON, tail)}],
        "usage": usage,
        "response": {"usage": usage},
    }
