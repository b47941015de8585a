"""A provider's error answer, read as far as it can be trusted and rebuilt for the client.

Shapes met in the field: OpenAI's `{"error": {...}}`, a string there, Mistral's object without a
wrapper, `{"detail": ...}`, Gemini's array, HTML, nothing. Only four fields are ever taken, trimmed
and masked; everything else stays here. Does not know which statuses may be passed on.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from typing import NamedTuple

from .errors import ProviderRefused

MAX_ERROR_BODY = 65536
"""Bytes of an error answer that are read before the connection is given up."""

MAX_TEXT = 2048
"""Bytes of a provider's words that reach the client or the log."""

MAX_WORD = 128
"""Characters of a type, param or code."""

_SECONDS = re.compile(rb"[0-9]{1,300}(\.[0-9]{1,9})?")


class ProviderError(NamedTuple):
    """What was understood of an error body; all None if nothing was."""

    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: str | None = None


_decode = json.JSONDecoder().decode  # not `loads`, which looks for UTF-16 first (RFC 8259, 8.1)


def read(body: bytes) -> ProviderError:
    """The four fields of an error body in any of the known shapes; never raises."""
    try:
        value = _decode(body.removeprefix(BOM_UTF8).decode(errors="replace"))
    except (ValueError, RecursionError):
        return ProviderError()
    if not isinstance(value, dict):
        return ProviderError()
    inner = value.get("error", value)
    if isinstance(inner, str):
        return ProviderError(inner)
    if not isinstance(inner, dict):
        return ProviderError()
    message = inner.get("message")
    if not isinstance(message, str):
        message = inner.get("detail")
    return ProviderError(
        message if isinstance(message, str) else None,
        _word(inner.get("type")),
        _word(inner.get("param")),
        _word(inner.get("code")),
    )


def refused(
    status: int, error: ProviderError, mask: Callable[[str], str], *, expose: bool
) -> ProviderRefused:
    """What the client is told of a request-fault 4xx; a plain message if `expose` is False."""
    plain = f"the provider refused the request with status {status}"
    if not expose or error.message is None:
        error = ProviderError()
    return ProviderRefused(
        status,
        trimmed(mask(error.message)) if error.message else plain,
        type=_cut(error.type, mask) or "invalid_request_error",
        param=_cut(error.param, mask),
        code=_cut(error.code, mask),
    )


def _cut(word: str | None, mask: Callable[[str], str]) -> str | None:
    # Masked first: half a key is not recognised.
    return None if word is None else mask(word)[:MAX_WORD]


def retry_after(named: Mapping[bytes, bytes], wall: float) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` (number or date) asks for, or None.

    `named` has the first field of each name, by its name in lower case; `wall` is the present time
    in seconds since the epoch. An unreadable value counts as none.
    """
    if b"retry-after" not in named and b"retry-after-ms" not in named:
        return None
    for name, unit in ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0)):
        if _SECONDS.fullmatch(named.get(name, b"")):
            return float(named[name]) / unit
    return _until_date(named.get(b"retry-after", b"").decode("latin-1"), wall)


def _until_date(text: str, wall: float) -> float | None:
    if not text:
        return None
    from datetime import UTC  # these two cost 10 ms at start, and dates are rare
    from email.utils import parsedate_to_datetime

    try:
        due = parsedate_to_datetime(text)
        if due.tzinfo is None:  # the asctime form names no zone: it is UTC (RFC 9110, 5.6.7)
            due = due.replace(tzinfo=UTC)
        return max(0.0, due.timestamp() - wall)
    except (ValueError, OverflowError):
        return None


def _word(value: object) -> str | None:
    """A word as text: OpenRouter's and Gemini's codes are numbers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value)


def trimmed(text: str) -> str:
    """At most `MAX_TEXT` bytes of UTF-8."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= MAX_TEXT else data[:MAX_TEXT].decode("utf-8", "ignore")
