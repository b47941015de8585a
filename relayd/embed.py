"""relayd inside another program: the same exchange as behind the server, without a socket.

    async with Relay.from_file("config.toml") as relay:
        async with await relay.open({"messages": [...], "stream": True}, user="ann") as reply:
            async for chunk in reply:
                ...

`open` returns at the commit, so whatever can be rescued has been: it raises the errors of
`relayd.errors` before there is any byte. Logs to the logger `relayd`, which is silent until the
program says otherwise. Does not know HTTP clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from . import errors
from .admission import ask_for, new_id, user_named
from .config import Config, Route, from_environment, load
from .engine import Guarded, Journal, Setup
from .exchange import Exchange
from .headers import is_request_id
from .queuesink import Cut, QueueSink
from .record import Attempt, Record, route_trace
from .runtime import Runtime
from .stores import Store
from .surfaces import Surface
from .wake import Clock, Wake, Why

LOGGER = logging.getLogger("relayd")
LOGGER.addHandler(logging.NullHandler())

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Relay:
    """A chain of providers in this process. Use it as a context, in one event loop.

    `store` replaces the configured one (any object with the protocol of `relayd.stores.Store`) and
    is closed with the relay. `journal` is told of exchanges, failed attempts and events instead of
    the logger (see `relayd.engine.Journal`); what it raises goes to the event loop's exception
    handler and changes nothing. Client keys and listeners of the configuration have no meaning
    here; quotas, breakers, routes and clocks have.
    """

    def __init__(
        self, config: Config, *, store: Store | None = None, journal: Journal | None = None
    ) -> None:
        self._runtime = Runtime(Setup.of(config), Guarded(journal or Logged()), store)
        self._running: dict[asyncio.Task[None], Wake] = {}
        self._closed = False

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        store: Store | None = None,
        journal: Journal | None = None,
    ) -> Self:
        """From a TOML file and this process's environment; raises `config.ConfigError`."""
        return cls(load_file(path), store=store, journal=journal)

    @classmethod
    def from_env(cls, *, store: Store | None = None, journal: Journal | None = None) -> Self:
        """From the environment alone, as `--env` does; raises `config.ConfigError`."""
        return cls(from_environment(os.environ, _read_file), store=store, journal=journal)

    async def __aenter__(self) -> Self:
        if self._closed:
            raise RuntimeError("this relay is closed: make a new one")
        self._runtime.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what still runs, as a drain does, and close connections and store."""
        self._runtime.claim()
        self._closed = True
        for wake in self._running.values():
            wake.interrupt(Why.DRAINING)
        if self._running:
            await asyncio.wait(list(self._running))
        await self._runtime.close()

    @property
    def config(self) -> Config:
        """The configuration in use."""
        return self._runtime.engine.setup.config

    def reload(self, config: Config) -> None:
        """Use another configuration from now on; running exchanges keep theirs, and all of them
        the store."""
        self._runtime.reload(Setup.of(config))
        if self._runtime.keeps_from(config):
            text = f"{config.source}: store.url has changed: it needs a new Relay"
            self._runtime.engine.journal.event("warning", "config", text)

    async def open(
        self,
        body: bytes | Mapping[str, Any],
        *,
        user: str | None = None,
        surface: Surface | str = Surface.CHAT,
        route: str | None = None,
        deadline: float | None = None,
        request_id: str | None = None,
    ) -> Reply:
        """Ask the chain; returns at the commit.

        `body` is a request of `surface` (`chat`, `completions`, `embeddings`, `responses`,
        `messages`), as JSON bytes or as a mapping. `user` is whose turns are counted: any string,
        beyond 128 characters known by its hash. `route` picks a route by name instead of the body's
        `model`. `deadline` in seconds from now; the earlier of it and the route's wins. Cancelling
        the call, like closing the reply early, closes the upstream connection. Raises an
        `errors.RelayError`, `TypeError` for a `user` that is no string, `ValueError` for a
        `request_id` other than 1 to 128 characters of `[A-Za-z0-9._:-]` or a `deadline` that is no
        number, or `RuntimeError` once the relay is closed and in another event loop than its own.
        """
        if self._closed:  # nobody would close what it left open
            raise RuntimeError("this relay is closed: call open() inside of its `async with` block")
        if request_id is not None and not is_request_id(request_id.encode()):
            raise ValueError("request_id: expected 1 to 128 characters of [A-Za-z0-9._:-]")
        user = user_named(user)
        loop = self._runtime.claim()
        record = Record(id=request_id or new_id(), began=time.time(), peer="embedded")
        data = encoded(body)
        record.bytes_in = len(data)
        setup = self._runtime.engine.setup
        wanted = self._route(route) if route is not None else None
        ask = ask_for(
            setup.config, Surface(surface), data, b"", None, user, record, loop.time(), wanted
        )
        record.user = ask.user
        ask.route = bounded(ask.route, deadline)
        clock = Clock(loop, Wake(loop))
        sink = QueueSink()
        exchange = Exchange(self._runtime.engine, setup, ask, sink, clock, record)
        task = loop.create_task(_run(exchange, sink, clock))
        self._running[task] = clock.wake
        task.add_done_callback(self._running.pop)
        reply = Reply(sink, record, clock.wake, task)
        await reply.opened()
        try:
            if exchange.error is not None:
                raise exchange.error
        finally:
            del exchange  # its error holds this frame
        return reply

    def _route(self, name: str) -> Route:
        for route in self.config.routes:
            if route.name == name:
                return route
        raise errors.ModelNotFound(param="model")


async def _run(exchange: Exchange, sink: QueueSink, clock: Clock) -> None:
    try:
        await exchange.run()
    finally:
        sink.cut()  # a cancelled exchange must not leave its reader waiting
        clock.alarm.stop()


class Reply:
    """One answer from its commit on: the head at once, the payload as it arrives.

    Iterate it once, in one task. Used as a context it is closed at the end, whatever happened.
    """

    def __init__(
        self, sink: QueueSink, record: Record, wake: Wake, task: asyncio.Task[None]
    ) -> None:
        self._sink = sink
        self._wake = wake
        self._task = task
        self._record = record

    @property
    def status(self) -> int:
        """The provider's status, 2xx."""
        return self._sink.status

    @property
    def headers(self) -> dict[str, str]:
        """The fields an HTTP client would get, by lower-case name."""
        return {name.decode("ascii"): value.decode("latin-1") for name, value in self._sink.fields}

    @property
    def request_id(self) -> str:
        """What the log calls this exchange, and what the provider got as X-Request-ID."""
        return self._record.id

    @property
    def provider(self) -> str | None:
        """The provider that answers."""
        return self._record.provider

    @property
    def attempts(self) -> list[Attempt]:
        """Every request that was made for this answer, in order."""
        return list(self._record.attempts)

    @property
    def end_reason(self) -> str:
        """Once it has ended: `complete`, or why it is not (a value of `outcomes.End`)."""
        return self._record.end_reason

    @property
    def trace(self) -> dict[str, Any]:
        """The way of this request: see `route_trace`."""
        return route_trace(self._record)

    async def opened(self) -> None:
        """Wait for the head. Raises `errors.RelayError` if nothing is left to wait for."""
        try:
            await self._sink.opened()
        except Cut:
            raise errors.RelayError() from None
        except asyncio.CancelledError:
            self._leave()
            raise

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """The payload that has arrived since the last one. Raises `errors.UpstreamError` where the
        answer breaks off without a word."""
        try:
            data = await self._sink.take()
        except Cut:
            raise errors.UpstreamError("the answer broke off before its end") from None
        if not data:
            await asyncio.wait([self._task])
            raise StopAsyncIteration
        return data

    async def read(self) -> bytes:
        """All payload that is left, joined."""
        return b"".join([data async for data in self])

    async def aclose(self) -> None:
        """Let go: before the end this is a departure, which closes the upstream connection."""
        self._leave()
        await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _leave(self) -> None:
        self._wake.interrupt(Why.CLIENT_LEFT)

    def __del__(self) -> None:
        """Dropped before its end: nobody will read the rest, so it is a departure."""
        if not self._task.done():
            leave, loop = self._wake.interrupt, self._task.get_loop()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(leave, Why.CLIENT_LEFT)


class Logged:
    """A journal that writes to the logger `relayd`; exchanges at level info."""

    def exchange(self, record: Record) -> None:
        """One line for each exchange, without its payload."""
        LOGGER.info(
            "%s %s: %d from %s after %d attempts, %s, %.3f s",
            record.id,
            record.surface,
            record.status,
            record.provider,
            len(record.attempts),
            record.end_reason,
            record.duration,
        )

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None:
        """One line for each failed attempt."""
        LOGGER.warning("%s %s: %s %s", record.id, attempt.provider, attempt.outcome, detail)

    def event(
        self, level: str, event: str, message: str, **fields: str | int | float | bool | None
    ) -> None:
        """Breaker changes, a store that is away, faults of relayd's own."""
        LOGGER.log(LEVELS[level], "%s: %s %s", event, message, fields or "")


def encoded(body: bytes | Mapping[str, Any]) -> bytes:
    """A request as JSON bytes; raises `TypeError` for what is neither that nor a mapping."""
    if isinstance(body, bytes):
        return body
    if not isinstance(body, Mapping):
        raise TypeError(f"body: expected a mapping or JSON bytes, got {type(body).__name__}")
    return json.dumps(dict(body)).encode("ascii")


def bounded(route: Route, deadline: float | None) -> Route:
    """The route with the earlier of two deadlines (seconds); raises `ValueError` for NaN."""
    if deadline is not None and math.isnan(deadline):
        raise ValueError("deadline: expected seconds, got nan")
    if deadline is None or deadline >= route.deadline:
        return route
    return replace(route, deadline=deadline)


def load_file(path: str | os.PathLike[str]) -> Config:
    """The configuration in a TOML file, with this process's environment; raises ConfigError."""
    return load(os.fspath(path), os.environ, _read_file)


def _read_file(path: str) -> bytes:
    return Path(path).read_bytes()
