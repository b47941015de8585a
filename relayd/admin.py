"""The admin listener: figures, the status page and its live stream, the probes.

A `Server` of its own with its own small table, so that the public one cannot serve any of this.
Exchanges are told to the metrics and the status page by way of `Told`, which stands in front of the
log only where an admin listener is configured: without one nothing is counted, nothing is paid.

A snapshot is made when somebody asks or watches, at most once a second for all of them. Does not
know what a figure means or how a page looks.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from . import errors
from .config import Config
from .endpoints import Endpoints, judge_body
from .engine import Engine, Journal
from .families import Distribution, Family
from .gauges import gauges
from .metrics import CONTENT_TYPE, Metrics, MetricsMissing
from .picture import Picture
from .quota import zone
from .record import Attempt, Record
from .replies import reply
from .server import Server
from .session import Rules
from .status import Snapshot, Status
from .statuspage import Page, clock, sections
from .stores.link import Link
from .tally import Tally
from .visit import Visit
from .wake import Interrupt, Why

PERIOD = 1.0
"""Seconds between two snapshots while somebody watches."""

CONNECTIONS = 64
"""Open connections: a scraper or two, and as many watchers as an incident calls."""

WATCHERS = 32
"""Live streams at a time; the rest of the connections stays free for scrapes and probes."""

STALLED = 60.0
"""Seconds that a watcher may take nothing before it is cut."""

HTML = (
    b"Content-Type: text/html; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nContent-Security-Policy: %b\r\n"
)
EVENTS = (
    b"Content-Type: text/event-stream\r\nX-Content-Type-Options: nosniff\r\n"
    b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
)
AGAIN = b"retry: 1000\n\n"
"""A browser looks for a relayd that went away after a second; its own habit is three or five."""

FIGURES = b"Content-Type: %b\r\n" % CONTENT_TYPE


class MetricsUnavailable(errors.RelayFault):
    """`/metrics` without prometheus-client: said to the scraper, with the remedy."""

    status = 501
    code = "metrics_unavailable"


@dataclass(frozen=True, slots=True)
class Told:
    """A journal that also tells the metrics and the status page; `now` is the loop's clock."""

    log: Journal
    tally: Tally = field(default_factory=Tally)
    picture: Picture = field(default_factory=Picture)
    now: Callable[[], float] = lambda: asyncio.get_running_loop().time()

    def exchange(self, record: Record) -> None:
        """To all three."""
        self.log.exchange(record)
        self.tally.exchange(record)
        self.picture.exchange(record, self.now(), record.began + record.duration)

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None:
        """To the log and the status page; the metrics count attempts with their exchange."""
        self.log.attempt_failed(record, attempt, detail)
        self.picture.attempt_failed(attempt.provider, attempt.outcome, self.now())

    def event(
        self, level: str, event: str, message: str, **fields: str | int | float | bool | None
    ) -> None:
        """To the log; changes of breakers are counted."""
        self.log.event(level, event, message, **fields)
        if event == "breaker":
            self.tally.breaker(str(fields["provider"]), str(fields["state"]))


class Admin:
    """What answers on `[admin] listen`. `start` it once, `stop` it once, in the same event loop.

    `public` is the server whose clients are counted; `endpoints` answers the probes. `told` is the
    engine's journal; `lost` says how many lines of the log got lost.
    """

    def __init__(
        self,
        engine: Engine,
        link: Link,
        endpoints: Endpoints,
        public: Server,
        told: Told,
        lost: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._link = link
        self._endpoints = endpoints
        self._public = public
        self._told = told
        self._lost = lost
        self._now = told.now
        self._status = Status(
            engine, link, told.picture, lambda: public.connections, lambda: public.draining
        )
        self._metrics = _metrics(self._figures)
        self._page = Page.load()
        self._watchers = 0
        self._made = (-1, b"")
        self.server = Server(
            self.serve,
            self._rules,
            lambda: CONNECTIONS,
            engine.fault,
            lambda _: None,
        )
        self.configure(engine.setup.config)

    def configure(self, config: Config) -> None:
        """After a reload: what is no longer configured is forgotten."""
        providers = [provider.name for provider in config.providers]
        self._told.tally.keep([route.name for route in config.routes], providers)
        self._told.picture.keep(providers, zone(config.quota.timezone))

    async def start(self, sockets: Sequence[tuple[str, socket.socket]], config: Config) -> None:
        """Listen, on the given sockets or as configured, and say where; raises `ListenError`."""
        self._status.began = self._now()
        for name, sock in sockets:
            await self.server.adopt(name, sock)
        for address in () if sockets else config.admin.listen:
            key = f"{config.source}: admin.listen"
            await self.server.listen(address, key, unix_mode=config.server.unix_mode)
        where = ", ".join(map(str, self.server.places))
        self._told.event("info", "admin", f"metrics and status on {where}")
        if isinstance(self._metrics, MetricsMissing):
            self._told.event("warning", "metrics", str(self._metrics))

    async def stop(self, grace: float) -> None:
        """End the live streams and close everything."""
        self.server.draining = True
        await self.server.close(grace)

    # The table.

    async def serve(self, visit: Visit) -> None:
        """Answer one request; nothing of it is logged but faults."""
        try:
            judge_body(visit.request, self._rules().max_request_bytes)
            endpoint = TABLE.get(visit.request.path)
            if endpoint is None:
                raise errors.NotFound("there is nothing at this path; see /status and /metrics")
            if visit.request.method not in ("GET", "HEAD"):
                raise errors.MethodNotAllowed("GET, HEAD")
            if visit.body_waits:
                visit.close_after()
            await endpoint(self, visit)
        except errors.RelayError as error:
            visit.refuse(error)

    async def metrics(self, visit: Visit) -> None:
        """All figures, for Prometheus."""
        if isinstance(self._metrics, MetricsMissing):
            raise MetricsUnavailable(str(self._metrics))
        reply(visit.sink, FIGURES, self._metrics.page(), visit.record)

    async def status(self, visit: Visit) -> None:
        """The page, as of now."""
        page = self._page.render(self._snapshot())
        reply(visit.sink, HTML % self._page.policy.encode("ascii"), page, visit.record)

    async def events(self, visit: Visit) -> None:
        """The live stream: a snapshot a second, as data and as sections of the page."""
        if self._watchers >= WATCHERS:
            raise errors.Overloaded()
        visit.watch()
        if visit.request.method == "HEAD":
            visit.sink.open(200, EVENTS, None, b"")
            return
        self._watchers += 1
        try:
            visit.sink.open(200, EVENTS, None, AGAIN + self._event())
            await self._watch(visit)
        except Interrupt as interrupt:
            visit.close_after()
            if interrupt.why is Why.DRAINING:
                visit.sink.end()
            else:
                visit.sink.cut()
        finally:
            self._watchers -= 1

    async def healthz(self, visit: Visit) -> None:
        """As on the public listener."""
        await self._endpoints.healthz(visit, None)

    async def readyz(self, visit: Visit) -> None:
        """As on the public listener."""
        await self._endpoints.readyz(visit, None)

    async def health(self, visit: Visit) -> None:
        """As on the public listener."""
        await self._endpoints.health(visit, None)

    # Inside.

    async def _watch(self, visit: Visit) -> None:
        """Write at each whole second; one who is behind misses snapshots instead of queueing."""
        sink, ticks = visit.sink, visit.clock
        behind_since = None
        while True:
            ticks.arm("tick", (ticks.now() // PERIOD + 1) * PERIOD)
            while ticks.expired is None:
                await ticks.wake.wait()
            if sink.writable:
                behind_since = None
                sink.write(self._event())
                continue
            behind_since = behind_since or ticks.now()
            if ticks.now() - behind_since > STALLED:
                raise Interrupt(Why.CLIENT_STALLED)

    def _event(self) -> bytes:
        """The events of this second, made for the first who asks."""
        # The clock may ring a little early.
        second = int((self._now() + 1e-3) // PERIOD)
        if self._made[0] != second:
            self._made = (second, events(self._snapshot()))
        return self._made[1]

    def _snapshot(self) -> Snapshot:
        return self._status.snapshot(self._now(), time.time())

    def _figures(self) -> list[Family | Distribution]:
        connections, lost = self._public.connections, self._lost()
        live = gauges(self._engine, self._link, connections, lost, self._now())
        return [*self._told.tally.figures(), *live]

    def _rules(self) -> Rules:
        return Rules.of(self._engine.setup.config)


TABLE: dict[str, Callable[[Admin, Visit], Awaitable[None]]] = {
    "/metrics": Admin.metrics,
    "/status": Admin.status,
    "/status/events": Admin.events,
    "/healthz": Admin.healthz,
    "/readyz": Admin.readyz,
    "/health": Admin.health,
}


def events(snapshot: Snapshot) -> bytes:
    """One snapshot as two events: unnamed for programs, `page` for the open page."""
    page = {"time": clock(snapshot["at"]), "sections": sections(snapshot)}
    return b"data: %b\n\nevent: page\ndata: %b\n\n" % (_json(snapshot), _json(page))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _metrics(source: Callable[[], list[Family | Distribution]]) -> Metrics | MetricsMissing:
    """The page of figures, or why there is none: the rest of the admin listener works without."""
    try:
        return Metrics(source)
    except MetricsMissing as missing:
        return missing
