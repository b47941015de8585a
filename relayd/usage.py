"""What a provider counted: LLM tokens, in any of the dialects.

Reads the value of a `usage` member, or finds it in bytes without parsing what is around it. Does
not know events or surfaces.
"""

from __future__ import annotations

import json
import re

from .record import Usage

TAIL = 4096
"""Bytes at the end of a large event or answer in which the finish and the usage are looked for."""

TRIES = 8
"""Places from the end in which the usage is looked for: echoed members may have the same name."""

MAX_COUNT = 2**53
"""LLM tokens from which on it is none: what a float and a reader of JSON hold exactly."""

LENIENT = json.JSONDecoder(strict=False)
"""Lets a control byte within a string pass."""
_COUNTS = re.compile(rb'"usage"\s*:\s*\{')


def merged(older: Usage | None, newer: Usage | None) -> Usage | None:
    """The newer counts, with the older ones where the newer are silent."""
    if older is None or newer is None:
        return newer or older
    return Usage(
        older.input if newer.input is None else newer.input,
        older.output if newer.output is None else newer.output,
        older.cached if newer.cached is None else newer.cached,
    )


def read_usage(value: object) -> Usage | None:
    """Usage in any of the dialects, or None where not one count can be read."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details", value.get("input_tokens_details"))
    if not isinstance(details, dict):
        details = {}
    given = _count(value.get("prompt_tokens", value.get("input_tokens")))
    stored = _count(value.get("cache_creation_input_tokens"))  # counted apart (Anthropic)
    usage = Usage(
        given if given is None or stored is None else given + stored,
        _count(value.get("completion_tokens", value.get("output_tokens"))),
        _count(details.get("cached_tokens", value.get("cache_read_input_tokens"))),
    )
    said = usage.input is not None or usage.output is not None or usage.cached is not None
    return usage if said else None


def last_usage(tail: bytes) -> object:
    """The value of the last `"usage"` in the tail that is an object, or None."""
    start, found = len(tail), None
    for _ in range(TRIES):
        start = tail.rfind(b'"usage"', 0, start)
        if start < 0 or (found := _COUNTS.match(tail, start)):
            break
    if found is None:
        return None
    text = tail[found.end() - 1 : found.end() + TAIL].decode("utf-8", "replace")
    try:
        return LENIENT.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _count(value: object) -> int | None:
    """What is a count; a stranger wrote it, and it goes into sums and prices."""
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None
