"""relayd as an ASGI 3 application: the endpoints of the server, under a server of another make.

    application = app(config)          # uvicorn module:application, or mount it in a framework

No framework is imported. Where the outer application runs the lifespan of what it mounts, start and
stop come from there; where it does not, enter the application as a context in the outer lifespan,
or it starts with its first request. Does not know sockets; TLS, limits on connections and slow
heads are the server's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum, auto
from typing import Any, Self
from urllib.parse import quote

from . import errors
from .admission import Deriver, user_named
from .asgisink import AsgiSink
from .config import Config
from .embed import Logged, load_file
from .endpoints import Endpoints
from .engine import Guarded, Journal, Setup
from .http1 import Request
from .outcomes import End
from .queuesink import Cut
from .runtime import CLOSE_GRACE, Runtime
from .stores import Store
from .visit import Left, Peer, Visit
from .wake import Clock, Wake, Why

PATH_SAFE = "/:@!$&'()*+,;="
"""What stands in a path as it is (RFC 3986, 3.3), besides letters, digits and `-._~`."""

STORE_CLOSED = "this application has ended, and closed the store it was given: make a new one"

PIECE = 64 * 1024
"""Bytes a message: how far a slow client is shows only between two of them."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def app(
    config: Config | str | os.PathLike[str],
    *,
    user: Deriver | None = None,
    store: Store | None = None,
    journal: Journal | None = None,
) -> Application:
    """The endpoints of a configuration, or of the configuration file at a path.

    `user` derives the user's id from the request's fields (lower-case names, bytes) instead of
    `server.user_header`; it may raise an `errors.RelayError`, which is then the answer. `store`
    replaces the configured one. `journal` replaces the logger `relayd`, which is silent until the
    program says otherwise. Raises `config.ConfigError`, or `TypeError` for a `user` that is to be
    awaited.
    """
    if inspect.iscoroutinefunction(user):
        raise TypeError("user: expected a plain function, got one that is to be awaited")
    if not isinstance(config, Config):
        config = load_file(config)
    return Application(Setup.of(config), user, store, Guarded(journal or Logged()))


class _State(Enum):
    NEW = auto()
    RUNNING = auto()
    DRAINING = auto()  # exchanges may finish, and new ones begin
    ENDED = auto()  # nothing may begin
    CLOSED = auto()  # nor is anything left


class Application:
    """An ASGI application. Belongs to the event loop that starts it, until its end."""

    def __init__(
        self, setup: Setup, user: Deriver | None, store: Store | None, journal: Journal
    ) -> None:
        self._setup = setup
        self._user = user
        self._store = store
        self._journal = journal
        self._wakes: set[Wake] = set()
        self._renew()

    def _renew(self) -> None:
        self._state = _State.NEW
        self._runtime = Runtime(self._setup, self._journal, self._store)
        self._endpoints = Endpoints(self._runtime.engine, self._is_ending)

    def _is_ending(self) -> bool:
        return self._state not in (_State.NEW, _State.RUNNING)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":  # any stranger may ask for one: a refusal, no fault
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"expected an http or lifespan scope, got {scope['type']}")

    def start(self) -> None:
        """Begin, in the running event loop; once is enough. After its end it begins anew.

        Raises `RuntimeError` in another loop than the one it runs in, or where the end has closed
        the store that it was given.
        """
        if self._state in (_State.ENDED, _State.CLOSED):
            if self._store is not None:
                raise RuntimeError(STORE_CLOSED)
            self._renew()
        self._runtime.claim()
        if self._state is _State.NEW:
            self._state = _State.RUNNING
            self._runtime.start()

    async def aclose(self, drain: float = 0.0) -> None:
        """End: exchanges may finish for `drain` seconds, then they are ended honestly."""
        if self._state is _State.CLOSED:
            return
        runtime = self._runtime
        runtime.claim()
        if self._state is not _State.ENDED:  # else an end that was cancelled goes on
            self._state = _State.DRAINING
        await runtime.engine.idle(drain)
        self._state = _State.ENDED
        for wake in self._wakes:
            wake.interrupt(Why.DRAINING)
        await runtime.engine.idle(CLOSE_GRACE)
        await runtime.close()
        if runtime is self._runtime:  # not begun anew meanwhile
            self._state = _State.CLOSED

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self.start()
                except RuntimeError as exc:  # without the word for it a server goes on without us
                    await send({"type": "lifespan.startup.failed", "message": str(exc)})
                    raise
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.aclose()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        clock = Clock(loop, Wake(loop))
        if self._state in (_State.ENDED, _State.CLOSED):
            clock.wake.interrupt(Why.DRAINING)
        else:
            self.start()
        sink = AsgiSink()
        config = self._runtime.engine.setup.config
        visit = _AsgiVisit(scope, receive, sink, clock, config, self._user)
        self._wakes.add(clock.wake)
        sender = loop.create_task(_send_all(sink, send, clock.wake))
        try:
            await self._serve(visit)
            if visit.record.end_reason != End.CLIENT_STALLED:
                with contextlib.suppress(TimeoutError):  # what is left is taken soon or never
                    async with asyncio.timeout(config.server.write_timeout):
                        await sender
        finally:
            self._wakes.discard(clock.wake)
            clock.alarm.stop()
            visit.forget()
            sender.cancel()

    async def _serve(self, visit: _AsgiVisit) -> None:
        try:
            await self._endpoints.serve(visit)
        except Left:
            visit.sink.cut()


class _AsgiVisit(Visit):
    """A request that an ASGI server brings."""

    __slots__ = ("_config", "_derive", "_receive", "_watching")

    def __init__(
        self,
        scope: Message,
        receive: Receive,
        sink: AsgiSink,
        clock: Clock,
        config: Config,
        derive: Deriver | None,
    ) -> None:
        self._receive = receive
        self._config = config
        self._derive = derive
        self._watching: asyncio.Task[None] | None = None
        super().__init__(_request(scope), sink, clock, _peer(scope, config))

    async def body(self) -> bytes:
        """The whole body; raises `RequestTooLarge`, `RequestTimeout`, `Draining` or `Left`."""
        server = self._config.server
        body = bytearray()
        more = True
        try:
            async with asyncio.timeout(server.body_timeout):
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Left
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > server.max_request_bytes:
                        raise errors.RequestTooLarge()
        except TimeoutError:
            raise errors.RequestTimeout() from None
        if self.clock.wake.why is not None:  # the client is not watched yet, so relayd ends
            raise errors.Draining()
        self.body_waits = False
        return bytes(body)

    def watch(self) -> None:
        """Wait for the server's word that the client has left."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def forget(self) -> None:
        """The request is over."""
        if self._watching is not None:
            self._watching.cancel()

    def user(self, header: str) -> str | None:
        """What the embedder's own rule says, if there is one."""
        if self._derive is None:
            return super().user(header)
        found = self._derive(self.request.fields)
        try:
            return user_named(found)
        except TypeError as exc:
            raise errors.RelayError(f"asgi.app(user=...): {exc}") from exc

    def ignores(self, header: str) -> bool:
        """Nothing is, where the embedder's own rule holds."""
        return self._derive is None and super().ignores(header)

    async def _watch(self) -> None:
        # A middleware that has read the body may say it again, at once and for ever: no news.
        if (await self._receive())["type"] == "http.disconnect":
            self.clock.wake.interrupt(Why.CLIENT_LEFT)


async def _send_all(sink: AsgiSink, send: Send, wake: Wake) -> None:
    """Hand the answer to the server as it comes.

    A cut answer ends without its last message: the server then closes the connection.
    """
    try:
        await sink.opened()
        await send({"type": "http.response.start", "status": sink.status, "headers": sink.fields})
        while data := await sink.take():
            for start in range(0, len(data), PIECE):
                piece = data[start : start + PIECE]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                sink.passed(len(piece))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    except Cut:
        pass
    except BaseException as exc:
        wake.interrupt(Why.CLIENT_LEFT)  # nobody takes the rest
        if not isinstance(exc, OSError):  # which is how ASGI 2.4 says that the client has left
            raise


def _request(scope: Message) -> Request:
    fields = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
    first = dict(reversed(fields))
    length = first.get(b"content-length", b"")
    path = scope["path"]
    root = scope.get("root_path", "").rstrip("/")
    if root and path.startswith(root):  # mounted: the path is told with its prefix
        path = path[len(root) :] or "/"
    path = quote(path, safe=PATH_SAFE)  # as HTTP tells it: ASGI has decoded it
    return Request(
        method=scope["method"],
        path=path,
        version=scope.get("http_version", "1.1").encode("ascii"),
        fields=fields,
        first=first,
        length=int(length) if length.isdigit() else None,
        chunked=b"transfer-encoding" in first,
        keep_alive=True,
        expects=False,
    )


def _peer(scope: Message, config: Config) -> Peer:
    client = scope.get("client")
    return Peer.named(str(client[0]) if client else "", config.server.trusted_proxies)
