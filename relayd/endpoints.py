"""The table: method and path to what is served, and how each is served.

Method, path, key, length and codings are judged on the head alone, before a `100 Continue` and
before a body is read. Does not know sockets, chains of providers or how an answer is framed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import errors, smallapi
from .admission import account, ask_for, identify
from .config import Client, Config
from .engine import Engine
from .exchange import Exchange
from .headers import crossing, is_coded
from .http1 import Request
from .outcomes import End
from .replies import JSON, TEXT, reply
from .surfaces import MESSAGES, PATHS, Surface
from .visit import Left, Visit
from .wake import Interrupt

SURFACES = {"/v1" + path: surface for surface, path in PATHS.items()}

MODELS = "/v1/models"

NOTHING_HERE = "there is nothing at this path; the API is below /v1"
"""Most often an SDK whose base URL lacks its `/v1`."""

QUIET = frozenset({"/healthz", "/readyz", "/health"})
"""Probes: their successes are not worth a log line each."""

OLD_PROXY = (
    "nginx speaks HTTP/1.0 to relayd (or whichever proxy this is): a stream that breaks off looks "
    'whole to its clients; set proxy_http_version 1.1; and proxy_set_header Connection "";'
)
"""HTTP/1.0 has no last chunk, so the end of a connection is the end of the answer. It is nginx's
default before 1.29.7, and nothing else would show the mistake."""

UNHEARD_USER = (
    "a request names its user in {}, and is not believed since its peer is none of "
    "server.trusted_proxies; uvicorn puts the end client in the place of a proxy unless it is "
    "started with --no-proxy-headers (or let asgi.app(config, user=...) derive the user)"
)
"""All such users are one, with one count of turns, and nothing else would show the mistake."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What answers at a path: to `method`, and to HEAD where that is GET."""

    method: str
    serve: Callable[[Endpoints, Visit, Client | None], Awaitable[None]]
    surface: Surface | None = None

    @property
    def allow(self) -> str:
        """The value of `Allow`."""
        return "GET, HEAD" if self.method == "GET" else self.method


class Endpoints:
    """Everything that is served to clients, on one engine."""

    def __init__(self, engine: Engine, draining: Callable[[], bool]) -> None:
        self._engine = engine
        self._draining = draining
        self._told: set[str] = set()  # events whose every request would say the same

    async def serve(self, visit: Visit) -> None:
        """Answer one request, whatever it is."""
        try:
            endpoint, client = self._judge(visit)
            await endpoint.serve(self, visit, client)
        except errors.RelayError as error:
            self._refuse(visit, error)
        except (Interrupt, Left):
            raise
        except Exception as exc:
            if visit.record.status:
                raise  # it is answered, or about to be
            self._engine.fault(exc)
            visit.record.end_reason = End.INTERNAL_ERROR
            self._refuse(visit, errors.RelayError())
        else:
            if visit.record.surface is None and visit.request.path not in QUIET:
                self._note(visit)

    def _refuse(self, visit: Visit, error: errors.RelayError) -> None:
        visit.refuse(error, spoken(visit.request.path))
        self._note(visit)

    def _judge(self, visit: Visit) -> tuple[Endpoint, Client | None]:
        """What serves the request, and whose it is; raises what its head earns it."""
        request, config = visit.request, self._engine.setup.config
        endpoint = match(request.path)
        judge_body(request, config.server.max_request_bytes)
        client = None
        if request.path.startswith("/v1/"):
            client = identify(config, request.fields, spoken(request.path))
            visit.record.client = client.name if client else None
            visit.record.user = account(client, None)
        if endpoint is None:
            raise errors.NotFound(NOTHING_HERE)
        if request.method != endpoint.method and not (
            request.method == "HEAD" and endpoint.method == "GET"
        ):
            raise errors.MethodNotAllowed(endpoint.allow)
        if visit.body_waits and endpoint.surface is None:
            visit.close_after()  # nobody reads it
        if request.version == b"1.0" and request.method == "POST" and visit.peer.trusted:
            self._tell_once("old_proxy", OLD_PROXY)
        return endpoint, client

    def _tell_once(self, event: str, message: str, **fields: str) -> None:
        if event not in self._told:
            self._told.add(event)
            self._engine.journal.event("warning", event, message, **fields)

    def _note(self, visit: Visit) -> None:
        record = visit.record
        record.end_reason = record.end_reason or ("complete" if record.status < 400 else "refused")
        record.duration = visit.clock.now() - visit.began
        self._engine.journal.exchange(record)

    # What is served.

    async def relay(self, visit: Visit, client: Client | None) -> None:
        """One of the relayed surfaces."""
        engine, setup, record = self._engine, self._engine.setup, visit.record
        config, request = setup.config, visit.request
        surface = SURFACES[request.path]
        user = self._user(visit, config.server.user_header)
        body = await self._body(visit, config)
        lines = crossing(request.first, request.fields, surface)
        ask = ask_for(config, surface, body, lines, client, user, record, visit.began)
        del body  # it is the ask's alone, and goes with the commit
        request.forget()
        visit.watch()
        await Exchange(engine, setup, ask, visit.sink, visit.clock, record).run()

    async def small(self, visit: Visit, client: Client | None) -> None:
        """The small API: relayed in each provider's own wire format, translated on the way back."""
        engine, setup, record = self._engine, self._engine.setup, visit.record
        config = setup.config
        user = self._user(visit, config.server.user_header)
        body = await self._body(visit, config)
        lines = crossing(visit.request.first, visit.request.fields, None)
        ask = smallapi.ask_small(config, body, lines, client, user, record, visit.began)
        del body  # as above
        visit.request.forget()
        limit = config.failover.max_response_bytes
        sink = smallapi.Translator(visit.sink, ask.route, record, visit.clock, setup.mask, limit)
        visit.watch()
        await Exchange(engine, setup, ask, sink, visit.clock, record).run()

    def _user(self, visit: Visit, header: str) -> str | None:
        """The user's id, if it is known, for the record too; one not believed is worth a word."""
        user = visit.user(header)
        if user is not None:
            visit.record.user = user
        elif visit.ignores(header):
            self._tell_once("unheard_user", UNHEARD_USER.format(header), peer=visit.peer.address)
        return user

    async def _body(self, visit: Visit, config: Config) -> bytes:
        """The body of a request that becomes an exchange, if there is room for one."""
        engine, limit = self._engine, config.server.max_exchanges
        if engine.running >= limit:
            raise errors.Overloaded()
        body = await visit.body()
        visit.record.bytes_in = len(body)
        if engine.running >= limit:  # taken while the body was on its way
            raise errors.Overloaded()
        return body

    async def models(self, visit: Visit, client: Client | None) -> None:
        """The list of route names, or one of them."""
        from urllib.parse import unquote  # this is rarely asked for

        config = self._engine.setup.config
        known = model_names(config, client)
        # A route's name may hold a slash, and SDKs encode what stands in a path.
        name = unquote(visit.request.path[len(MODELS) + 1 :])
        if not name:
            listed = [model(known_name) for known_name in known]
            reply(visit.sink, JSON, _json({"object": "list", "data": listed}), visit.record)
        elif name in known:
            reply(visit.sink, JSON, _json(model(name)), visit.record)
        else:
            raise errors.ModelNotFound(param="model")

    async def healthz(self, visit: Visit, client: Client | None) -> None:
        """The event loop turns."""
        reply(visit.sink, TEXT, b"ok\n", visit.record)

    async def readyz(self, visit: Visit, client: Client | None) -> None:
        """New requests are welcome."""
        if self._draining():
            reply(visit.sink, TEXT, b"draining\n", visit.record, 503)
        else:
            reply(visit.sink, TEXT, b"ready\n", visit.record)

    async def health(self, visit: Visit, client: Client | None) -> None:
        """Providers and the store, for people and programs."""
        now = visit.clock.now()
        reply(visit.sink, JSON, _json(health(self._engine, now, self._draining())), visit.record)


TABLE = {
    **{path: Endpoint("POST", Endpoints.relay, surface) for path, surface in SURFACES.items()},
    smallapi.PATH: Endpoint("POST", Endpoints.small, Surface.CHAT),
    MODELS: Endpoint("GET", Endpoints.models),
    "/healthz": Endpoint("GET", Endpoints.healthz),
    "/readyz": Endpoint("GET", Endpoints.readyz),
    "/health": Endpoint("GET", Endpoints.health),
}


def match(path: str) -> Endpoint | None:
    """The endpoint at a path."""
    found = TABLE.get(path)
    if found is None and path.startswith(MODELS + "/") and path != MODELS + "/":
        return TABLE[MODELS]
    return found


def spoken(path: str) -> Surface | None:
    """Whose SDK asks at a path, served or not: it sends its key, and reads an error, in its way."""
    return MESSAGES if path.startswith("/v1/messages/") else SURFACES.get(path)


def judge_body(request: Request, limit: int) -> None:
    """Refuse a body on what the head says of it."""
    if request.length is not None and request.length > limit:
        raise errors.RequestTooLarge()
    if is_coded(request.first, request.fields):
        raise errors.UnsupportedEncoding()


def model_names(config: Config, client: Client | None) -> list[str]:
    """The route names that a client may use."""
    allowed = client.routes if client else None
    return [route.name for route in config.routes if allowed is None or route.name in allowed]


def model(name: str) -> dict[str, object]:
    """OpenAI's model object; a route has no birthday."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "relayd"}


def health(engine: Engine, now: float, draining: bool) -> dict[str, object]:
    """What `/health` says."""
    return {
        "status": "draining" if draining else "ok",
        "draining": draining,
        "providers": engine.breakers.snapshot(now),
        "store": engine.turns.store,
        "exchanges": engine.running,
        "config": {
            "loaded": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(engine.loaded.at)),
            "problem": engine.loaded.problem,
        },
    }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
