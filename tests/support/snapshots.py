"""Snapshots of a relayd that never was, for what shows one: the page and the terminal."""

from __future__ import annotations

from typing import Any

from relayd.picture import POINTS
from relayd.status import (
    FailedOverView,
    OpenView,
    PointView,
    ProviderView,
    Snapshot,
    TriedView,
    UserView,
)


def step(
    provider: str = "a", outcome: str = "ok", status: int | None = 200, seconds: float = 0.25
) -> TriedView:
    return {"provider": provider, "outcome": outcome, "status": status, "seconds": seconds}


def point(answers: int = 0, failures: int = 0, wait: float | None = None) -> PointView:
    return {"answers": answers, "failures": failures, "wait": wait}


def provider(**more: Any) -> ProviderView:
    """One that is closed and was not asked; `more` are its members."""
    default: ProviderView = {
        "name": "a",
        "state": "closed",
        "resting": False,
        "since": 1.0,
        "retry_in": 0.0,
        "in_flight": 0,
        "max_in_flight": 0,
        "answers": 0,
        "failures": 0,
        "wait": None,
        "points": [point() for _ in range(POINTS)],
    }
    return {**default, **more}  # type: ignore[typeddict-item]


def open_exchange(**more: Any) -> OpenView:
    default: OpenView = {
        "id": "id",
        "route": "r",
        "user": "ann",
        "provider": "a",
        "seconds": 2.0,
        "streaming": False,
        "trail": [step()],
    }
    return {**default, **more}  # type: ignore[typeddict-item]


def past(**more: Any) -> FailedOverView:
    """One that failed over from a to b."""
    default: FailedOverView = {
        "id": "id",
        "at": 1_700_000_000.0,
        "route": "r",
        "user": "ann",
        "status": 200,
        "end_reason": "complete",
        "seconds": 2.0,
        "trail": [step("a", "server_error", 503), step("b")],
    }
    return {**default, **more}  # type: ignore[typeddict-item]


def user(**more: Any) -> UserView:
    default: UserView = {"client": None, "user": "ann", "turns": 1, "error": 0, "cap": 0}
    return {**default, **more}  # type: ignore[typeddict-item]


def snapshot(**more: Any) -> Snapshot:
    """A relayd with one quiet provider; `more` are members of the snapshot."""
    default: Snapshot = {
        "version": "1.2.3",
        "pid": 1,
        "at": 1_700_000_000.0,
        "uptime": 61.0,
        "draining": False,
        "connections": 0,
        "exchanges": 0,
        "streams": 0,
        "capped": False,
        "point_seconds": 10.0,
        "store": {"kind": "memory", "available": True, "lost": 0},
        "config": {"loaded": 1_700_000_000.0, "problem": None},
        "providers": [provider()],
        "open": [],
        "failed_over": [],
        "users": [],
    }
    return {**default, **more}  # type: ignore[typeddict-item]
