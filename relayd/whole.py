"""What a whole JSON answer says: whether it is an error or cut, its usage and finish reason.

Never raises: what cannot be read says nothing. Does not know where it came from.
"""

from __future__ import annotations

from codecs import BOM_UTF8

from .answers import first_said, is_error, read_document, reason_of
from .record import Usage
from .surfaces import Surface
from .usage import LENIENT, last_usage, read_usage

MAX_PARSED = 256 * 1024
"""Bytes of a whole answer that are parsed: some 3 ms. Of a larger one the tail is searched."""

_SUBSTANCE = ("choices", "data", "output", "content")
"""The members that hold an answer: chat and completions, embeddings, responses, messages."""

_REASON_KEYS = {
    Surface.CHAT: b'"finish_reason"',
    Surface.COMPLETIONS: b'"finish_reason"',
    Surface.EMBEDDINGS: None,
    Surface.RESPONSES: b'"status"',
    Surface.MESSAGES: b'"stop_reason"',
}
"""The key of the finish reason."""
assert set(_REASON_KEYS) == set(Surface)
_NESTED = (Surface.RESPONSES, Surface.MESSAGES)
"""Where an inner object may have the same key."""


def is_error_answer(body: bytes) -> bool:
    """Whether a whole JSON answer is an object whose only substance is an error."""
    if len(body) > MAX_PARSED or body.find(b'"error"') < 0:
        return False  # no error is that large
    document = read_document(body)
    if document is None or not is_error(document):
        return False
    return not any(document.get(name) for name in _SUBSTANCE)


def is_cut(body: bytes) -> bool:
    """Whether a JSON answer, of which nothing but its connection's end says so, is not all there.

    In one that is too large to be parsed a cut right behind an inner bracket goes unseen.
    """
    text = body.removeprefix(BOM_UTF8).strip()
    if not text.endswith((b"}", b"]")):
        return True
    if len(text) > MAX_PARSED:
        return False
    try:
        LENIENT.decode(text.decode("utf-8", "replace"))
    except RecursionError:
        return False
    except ValueError:
        return True
    return False


def usage_of(body: bytes, surface: Surface) -> tuple[Usage | None, str | None]:
    """Usage and finish reason of a whole JSON answer, each None where it is not given.

    Found by searching: of the usage the last one counts, of the reasons the first. It is parsed
    where the reason's key stands in inner objects too.
    """
    key = _REASON_KEYS[surface]
    reason: object = None
    if key and surface in _NESTED and len(body) <= MAX_PARSED and body.count(key) > 1:
        document = read_document(body) or {}
        reason = document.get(key.strip(b'"').decode("ascii"))
    elif key:
        reason = first_said(key, body)
    return read_usage(last_usage(body)), reason_of(reason)
