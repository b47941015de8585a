"""Who asks, and for what: from a request head and body to an `Ask`.

Shared by everything that brings requests: the HTTP server, the ASGI application, an embedder. Does
not know sockets; what it refuses it raises as `errors.RelayError`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from random import getrandbits

from . import errors
from .config import Client, Config, Route
from .headers import Fields
from .jsonbody import BodyFault, Facts, read
from .outbound import Ask, wants_stream
from .record import ANONYMOUS, Record
from .surfaces import MESSAGES, Surface

MAX_USER = 128
"""Characters of a user id that are kept as they are; a longer one is known by its hash."""


def identify(config: Config, fields: Fields, surface: Surface | None) -> Client | None:
    """The client whose key came with the request; None where no client is configured.

    Raises `InvalidKey`. Every configured digest is compared, in constant time.
    """
    if not config.clients:
        return None
    digests = [hashlib.sha256(key).digest() for key in _keys(fields, surface)]
    found = [
        client
        for client in config.clients
        for digest in digests
        if hmac.compare_digest(client.digest, digest)
    ]
    if not found or found[0] is not found[-1]:  # nobody's, or two clients'
        raise errors.InvalidKey()
    return found[0]


def _keys(fields: Fields, surface: Surface | None) -> list[bytes]:
    """What may be the client's key: of a field that is given twice none can be trusted."""
    found = []
    bearers = [value for name, value in fields if name == b"authorization"]
    if len(bearers) == 1 and bearers[0][:7].lower() == b"bearer ":
        found.append(bearers[0][7:].strip(b" \t"))
    keys = [value for name, value in fields if name == b"x-api-key"]
    if surface is MESSAGES and len(keys) == 1 and keys[0]:
        found.append(keys[0])
    return found


def new_id() -> str:
    """A request id where the client gave none: 32 hexadecimal digits."""
    return f"{getrandbits(128):032x}"


def user_id(value: bytes | None) -> str | None:
    """The user named by a trusted peer's header; None without one."""
    if not value:
        return None
    text = value.decode("utf-8", "backslashreplace")
    return text if len(text) <= MAX_USER else "sha256:" + hashlib.sha256(value).hexdigest()


def user_named(name: str | None) -> str | None:
    """The user named by the program around relayd: the same id as from a field with that text.

    Half of a surrogate pair, which no store and no field can hold, is spelled out, so that two
    users stay two. Raises `TypeError` for anything but a string or None: it would be counted under
    a name that only this process knows.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"user: expected str or None, got {type(name).__name__}")
    return user_id(name.encode("utf-8", "backslashreplace")) if name else None


def routed(config: Config, client: Client | None, model: str | None) -> Route:
    """The route of a request; raises `ModelNotFound`."""
    route = config.route_for(model)
    if route is None or (client and client.routes is not None and route.name not in client.routes):
        raise errors.ModelNotFound(param="model")
    return route


def facts_of(body: bytes, surface: Surface) -> Facts:
    """The facts of a body; raises `BadRequest`."""
    try:
        return read(body, surface)
    except BodyFault as fault:
        raise errors.BadRequest(fault.message, param=fault.param) from fault


def ask_for(
    config: Config,
    surface: Surface,
    body: bytes,
    crossing: bytes,
    client: Client | None,
    user: str | None,
    record: Record,
    began: float,
    route: Route | None = None,
) -> Ask:
    """A request, judged; fills the record with each fact as it is known. Raises `RequestFault`s.

    `crossing`: lines of its head that go upstream (see `headers.crossing`). `route`:
    that one, whatever the body's model says.
    """
    facts = facts_of(body, surface)
    streaming = wants_stream(surface, facts, config.routing.stream)
    record.model, record.stream = facts.model, streaming
    route = route or routed(config, client, facts.model)
    record.route = route.name
    if not route.on(surface):
        raise errors.ModelNotFound(f"no provider of this model serves {surface}", param="model")
    record.surface = surface
    return Ask(
        surface,
        body,
        facts,
        route,
        account(client, user),
        daily_cap(config, client),
        record.id,
        crossing,
        began,
        record.began,
        streaming,
    )


def daily_cap(config: Config, client: Client | None) -> int:
    """Turns a day of each user of this client; 0: no limit."""
    if client is not None and client.daily_turns is not None:
        return client.daily_turns
    return config.quota.daily_turns


def account(client: Client | None, user: str | None) -> str:
    """The name under which turns are counted."""
    if client is None:
        return user or ANONYMOUS
    return client.name if user is None else f"{client.name}/{user}"


Deriver = Callable[[Fields], str | None]
"""An embedder's own way to the user id, from the request's fields (lower-case names)."""
