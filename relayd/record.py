"""What is remembered of one exchange: filled in by it, read by the log, the metrics and `/status`.

Durations are seconds on the event loop's clock; `began` is wall-clock time (seconds since the
epoch). Holds no body, no key and no header value except request id, user and peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ANONYMOUS = "anonymous"
"""The user without a name."""

OTHER = "other"
"""A label's value instead of one that is neither configured nor on a closed list."""


@dataclass(slots=True)
class Usage:
    """LLM tokens as the provider counted them; None where it did not say."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None


@dataclass(slots=True)
class Attempt:
    """One request to one provider. `outcome` is a value of `outcomes.Outcome`."""

    provider: str
    upstream_model: str | None
    url: str
    outcome: str = ""
    status: int | None = None
    duration: float = 0.0
    breaker: str = "closed"


@dataclass(slots=True)
class Record:
    """One client request, from its head to its end.

    `surface` is None where nothing is relayed (health, models, what admission refuses). `commit`
    says what let the head out: `head`, `content`, `answer`, `limit` (the peek was full) or None.
    `ended_by` is client, provider or relayd; `end_reason` a value of `outcomes.End`.
    `ttfb` and `first_content` are the commit's and the first content's distance from `began`.
    `turn`: charged, refunded, free (a continuation) or none (nothing to count, or refused before).
    """

    id: str
    began: float
    method: str = ""
    path: str = ""
    surface: str | None = None
    client: str | None = None
    user: str = ANONYMOUS
    peer: str = ""
    route: str | None = None
    model: str | None = None
    provider: str | None = None
    upstream_model: str | None = None
    stream: bool = False
    status: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    ttfb: float | None = None
    first_content: float | None = None
    duration: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    events: int = 0
    max_gap: float = 0.0
    usage: Usage | None = None
    cost: float | None = None
    finish_reason: str | None = None
    commit: str | None = None
    ended_by: str = "relayd"
    end_reason: str = ""
    turn: str = "none"


def route_trace(record: Record) -> dict[str, Any]:
    """The way of one request, for people: which providers were asked and what each answered.

    `{"status", "attempts": [{"provider", "url", "status", "duration_ms", "outcome"}], "provider",
    "duration_ms"}`; URLs without query.
    """
    return {
        "status": record.status,
        "attempts": [
            {
                "provider": attempt.provider,
                "url": attempt.url,
                "status": attempt.status,
                "duration_ms": round(attempt.duration * 1000, 1),
                "outcome": attempt.outcome,
            }
            for attempt in record.attempts
        ],
        "provider": record.provider,
        "duration_ms": round(record.duration * 1000, 1),
    }
