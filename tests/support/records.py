"""Records of exchanges that never were, for what is told of one: metrics, status page."""

from __future__ import annotations

from typing import Any

from relayd.record import Attempt, Record

BEGAN = 1_700_000_000.0
"""When they began: seconds since the epoch, 22:13:20 UTC."""


def attempt(
    provider: str = "a", outcome: str = "ok", duration: float = 0.25, status: int | None = 200
) -> Attempt:
    """One attempt."""
    return Attempt(provider, "m", f"https://{provider}.test/v1", outcome, status, duration)


def exchange(*attempts: Attempt, **more: Any) -> Record:
    """A relayed and answered chat request of route `r`; `more` are members of the record."""
    tried = list(attempts or [attempt()])
    members = {
        "surface": "chat",
        "route": "r",
        "provider": tried[-1].provider,
        "status": 200,
        "ttfb": 0.5,
        "first_content": 0.5,
        "end_reason": "complete",
        "attempts": tried,
    }
    return Record("id", BEGAN, **{**members, **more})


def failed(*attempts: Attempt, **more: Any) -> Record:
    """One that no provider answered."""
    nothing = {"ttfb": None, "first_content": None, "provider": None}
    return exchange(*attempts, **{**nothing, "status": 502, "end_reason": "failed", **more})
