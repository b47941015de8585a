"""The snapshot behind `/status`, `/status/events` and `relayd top`: what a relayd is doing now.

Every member is data for programs, in seconds and plain counts; the page and the terminal only show
it. Text that came from a client is masked, made printable and cut here, once for all of them. Does
not know HTML, terminals or who watches.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from typing import TypedDict

from . import __version__
from .accesslog import printable
from .config import Config
from .engine import Engine
from .picture import POINT_SECONDS, Count, FailedOver, History, Picture, Tried, Who, tried
from .record import Record
from .stores.link import Link

OPEN_SHOWN = 100
"""Open exchanges that are listed, the longest-running first; their number is always whole."""

PROBLEM = 512
"""Characters of a configuration's problem: a path, a key and a remedy."""


class TriedView(TypedDict):
    """One attempt. `outcome` is empty while it runs."""

    provider: str
    outcome: str
    status: int | None
    seconds: float


class PointView(TypedDict):
    """One point of a sparkline; `wait` is the mean time to first content, None without answers."""

    answers: int
    failures: int
    wait: float | None


class ProviderView(TypedDict):
    """One provider. `state`: closed, open, half-open; `resting`: after a 429 or 402.

    `answers`, `failures` and `wait` are of all `points` together.
    """

    name: str
    state: str
    resting: bool
    since: float
    retry_in: float
    in_flight: int
    max_in_flight: int
    answers: int
    failures: int
    wait: float | None
    points: list[PointView]


class OpenView(TypedDict):
    """One open exchange. `streaming`: its answer has begun."""

    id: str
    route: str
    user: str
    provider: str
    seconds: float
    streaming: bool
    trail: list[TriedView]


class FailedOverView(TypedDict):
    """One exchange that needed more than one provider; `at` is seconds since the epoch."""

    id: str
    at: float
    route: str
    user: str
    status: int
    end_reason: str
    seconds: float
    trail: list[TriedView]


class UserView(TypedDict):
    """Turns charged today by this process: at most `turns`, at least `turns - error`.

    `cap` 0: no limit.
    """

    client: str | None
    user: str
    turns: int
    error: int
    cap: int


class StoreView(TypedDict):
    """`kind`: memory, sqlite, redis. `lost`: how often it went away."""

    kind: str
    available: bool
    lost: int


class ConfigView(TypedDict):
    """`loaded`: when, in seconds since the epoch. `problem`: why no newer one was taken."""

    loaded: float
    problem: str | None


class Snapshot(TypedDict):
    """All of it. `at` is seconds since the epoch, `uptime` seconds, `point_seconds` per point."""

    version: str
    pid: int
    at: float
    uptime: float
    draining: bool
    connections: int
    exchanges: int
    streams: int
    capped: bool
    point_seconds: float
    store: StoreView
    config: ConfigView
    providers: list[ProviderView]
    open: list[OpenView]
    failed_over: list[FailedOverView]
    users: list[UserView]


class Status:
    """Makes snapshots. `connections` and `draining` are the public listener's."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        picture: Picture,
        connections: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._link = link
        self._picture = picture
        self._connections = connections
        self._draining = draining
        self.began = 0.0

    def snapshot(self, now: float, wall: float) -> Snapshot:
        """What is true now. `now` is loop time, `wall` seconds since the epoch."""
        engine, config = self._engine, self._engine.setup.config
        running = engine.open.values()
        return {
            "version": __version__,
            "pid": os.getpid(),
            "at": wall,
            "uptime": round(now - self.began, 1),
            "draining": self._draining(),
            "connections": self._connections(),
            "exchanges": len(running),
            "streams": sum(streams(record) for record in running),
            "capped": config.capped,
            "point_seconds": POINT_SECONDS,
            "store": self._store(config),
            "config": {"loaded": engine.loaded.at, "problem": self._problem()},
            "providers": [self._provider(found, now) for found in engine.breakers.snapshot(now)],
            "open": [self._open(record, wall) for record in islice(running, OPEN_SHOWN)],
            "failed_over": [
                self._failed_over(past) for past in reversed(self._picture.failed_over)
            ],
            "users": [
                self._user(who, count, config)
                for who, count in self._picture.users.top(wall, self._picture.zone)
            ],
        }

    # Inside.

    def _text(self, text: str) -> str:
        return printable(self._engine.setup.mask(text))

    def _problem(self) -> str | None:
        problem = self._engine.loaded.problem
        return None if problem is None else printable(self._engine.setup.mask(problem), PROBLEM)

    def _store(self, config: Config) -> StoreView:
        kind = config.store.url.partition(":")[0].replace("rediss", "redis")
        return {"kind": kind, "available": self._link.available, "lost": self._link.lost}

    def _provider(self, found: dict[str, str | float], now: float) -> ProviderView:
        engine, name = self._engine, str(found["name"])
        points = self._picture.histories.get(name, History()).points(now)
        answers = sum(point.answers for point in points)
        waited = sum(point.waited for point in points)
        limits = {p.name: p.max_in_flight for p in engine.setup.config.providers}
        return {
            "name": name,
            "state": str(found["state"]),
            "resting": engine.breakers.look(name, now).rests,
            "since": float(found["since"]),
            "retry_in": float(found["retry_in"]),
            "in_flight": engine.in_flight[name],
            "max_in_flight": limits.get(name, 0),
            "answers": answers,
            "failures": sum(point.failures for point in points),
            "wait": round(waited / answers, 3) if answers else None,
            "points": [
                {
                    "answers": point.answers,
                    "failures": point.failures,
                    "wait": None if point.wait is None else round(point.wait, 3),
                }
                for point in points
            ],
        }

    def _open(self, record: Record, wall: float) -> OpenView:
        return {
            "id": self._text(record.id),
            "route": record.route or "",
            "user": self._text(record.user),
            "provider": record.attempts[-1].provider if record.attempts else "",
            "seconds": round(max(wall - record.began, 0.0), 1),
            "streaming": streams(record),
            "trail": trail(tried(record.attempts)),
        }

    def _failed_over(self, past: FailedOver) -> FailedOverView:
        return {
            "id": self._text(past.id),
            "at": past.wall,
            "route": past.route,
            "user": self._text(past.user),
            "status": past.status,
            "end_reason": past.end_reason,
            "seconds": round(past.seconds, 3),
            "trail": trail(past.trail),
        }

    def _user(self, who: Who, count: Count, config: Config) -> UserView:
        client, user = who
        caps = {c.name: c.daily_turns for c in config.clients if c.daily_turns is not None}
        return {
            "client": client,
            "user": self._text(user),
            "turns": count.turns,
            "error": count.error,
            "cap": caps.get(client or "", config.quota.daily_turns),
        }


def streams(record: Record) -> bool:
    """True once the client receives an event stream."""
    return record.stream and record.commit is not None


def trail(steps: tuple[Tried, ...]) -> list[TriedView]:
    """The attempts of an exchange as data."""
    return [
        {
            "provider": step.provider,
            "outcome": step.outcome,
            "status": step.status,
            "seconds": round(step.seconds, 3),
        }
        for step in steps
    ]
