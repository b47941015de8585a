"""What goes upstream: the client's body with a few bytes spliced in, and a head of our own.

One `Outbound` per configuration; what does not change from request to request (request line, host,
credential, the provider's own fields) is built once per provider, surface and key. Does not know
sockets, clocks or which provider is next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from . import __version__
from .config import Candidate, Commit, Config, Expose, Provider, Route, Secret, Stream
from .headers import MAY_CROSS, without
from .job import Job
from .jsonbody import Facts, splice, with_member
from .pool import Origin
from .providers import NO_TRAIN
from .surfaces import STREAMING, Surface

_ACCEPT = {
    True: b"Accept: text/event-stream, application/json\r\n",
    False: b"Accept: application/json\r\n",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A request as it is put to one provider, where that is not how the client put it.

    `fields` are header lines, each with its CR LF.
    """

    surface: Surface
    body: bytes
    facts: Facts
    fields: bytes


@dataclass(slots=True)
class Ask:
    """One request as an exchange takes it, whoever brought it.

    `streaming`: an event stream is wanted, by the client or by `routing.stream`. `user` and `cap`
    are the quota's; `crossing` are header lines that go upstream as they are; `hint` picks a model
    by the small API's `model_hint`, and `forms` says, by provider, how its request is put (None: as
    it came). `began` is loop time, `wall` seconds since the epoch.
    """

    surface: Surface
    body: bytes
    facts: Facts
    route: Route
    user: str
    cap: int
    request_id: str
    crossing: bytes
    began: float
    wall: float
    streaming: bool
    hint: str | None = None
    forms: Mapping[str, Form] | None = None

    def candidates(self) -> tuple[Candidate, ...]:
        """Those of the route that can be asked at all, in their order."""
        if self.forms is None:
            return self.route.on(self.surface)
        return tuple(c for c in self.route.candidates if c.provider.name in self.forms)

    def surface_at(self, provider: Provider) -> Surface:
        """On which surface this provider is asked."""
        return self.surface if self.forms is None else self.forms[provider.name].surface

    def put_to(self, provider: Provider) -> Ask:
        """The request in the form that is meant for this provider."""
        if self.forms is None:
            return self
        form = self.forms[provider.name]
        crossing = self.crossing + form.fields
        return replace(
            self, surface=form.surface, body=form.body, facts=form.facts, crossing=crossing
        )


def wants_stream(surface: Surface, facts: Facts, stream: Stream) -> bool:
    """Whether the answer should be an event stream."""
    return surface in STREAMING and (facts.stream or stream is Stream.ALWAYS)


# Looked up once (see `surfaces`).
ANSWER, CONTENT, HEAD = Commit.ANSWER, Commit.CONTENT, Commit.HEAD


class Outbound:
    """The requests that one configuration makes."""

    __slots__ = ("_codes", "_expose", "_heads", "_limit", "_mask", "_models", "_origins", "_set")

    def __init__(self, config: Config, mask: Callable[[str], str]) -> None:
        self._limit = config.failover.max_response_bytes
        self._codes = config.failover.codes
        self._expose = config.errors.expose is Expose.REQUEST
        self._mask = mask
        self._heads: dict[tuple[str, Surface, str, bool], bytes] = {}
        self._models: dict[str, bytes] = {}
        self._origins = {provider.name: origin(provider) for provider in config.providers}
        # What the file sets goes before what a client says, by provider.
        self._set = {p.name: own for p in config.providers if (own := fields_set(p) & MAY_CROSS)}

    def job(self, ask: Ask, candidate: Candidate, key: Secret | None) -> Job:
        """The request to this candidate, ready to send."""
        provider = candidate.provider
        ask = ask.put_to(provider)
        commit = ask.route.commit
        body = self._body(ask, candidate)
        return Job(  # by position: a class called by names makes a dict of them first
            self._origins[provider.name],
            candidate,
            self._head(ask, provider, key, len(body)),
            body,
            ask.surface,
            ask.streaming,
            commit is ANSWER or (commit is CONTENT and not ask.streaming),
            commit is HEAD and ask.forms is None,  # events of our own are made of judged ones
            self._limit,
            self._codes,
            self._expose,
            self._mask,
        )

    def origins(self) -> set[Origin]:
        """Every origin that this configuration can ask."""
        return set(self._origins.values())

    def _head(self, ask: Ask, provider: Provider, key: Secret | None, length: int) -> bytes:
        name = (provider.name, ask.surface, key.id if key else "", ask.streaming)
        fixed = self._heads.get(name)
        if fixed is None:
            fixed = fixed_head(provider, ask.surface, key) + _ACCEPT[ask.streaming]
            self._heads[name] = fixed
        crossing = ask.crossing
        if crossing and provider.name in self._set:
            crossing = without(crossing, self._set[provider.name])
        return b"%b%bX-Request-ID: %b\r\nContent-Length: %d\r\n\r\n" % (
            fixed,
            crossing,
            ask.request_id.encode("ascii"),
            length,
        )

    def _body(self, ask: Ask, candidate: Candidate) -> bytes:
        model, provider = candidate.hinted(ask.hint), candidate.provider
        replace: dict[str, bytes] = {}
        if provider.no_train:
            own = ask.facts.value(ask.body, "provider")
            replace["provider"] = with_member(own, *NO_TRAIN)
        if provider.extra_body:
            replace.update(provider.extra_body)
        if model is not None:
            replace["model"] = self._model(model)
        if ask.streaming and not ask.facts.stream:
            replace["stream"] = b"true"
        return splice(ask.body, ask.facts, replace) if replace else ask.body

    def _model(self, model: str) -> bytes:
        text = self._models.get(model)
        if text is None:
            text = self._models[model] = json.dumps(model).encode("ascii")
        return text


def origin(provider: Provider) -> Origin:
    """Where a provider's connections go."""
    return Origin(
        provider.scheme, provider.host, provider.port, provider.tls_server_name, provider.ca_file
    )


def fields_set(provider: Provider) -> frozenset[bytes]:
    """The fields, in lower case, that a provider's `headers` name."""
    return frozenset(name.lower().encode("ascii") for name, _ in provider.headers)


def fixed_head(provider: Provider, surface: Surface, key: Secret | None) -> bytes:
    """The lines of a request head that are the same for every request."""
    lines = [
        f"POST {provider.target(surface)} HTTP/1.1",
        f"Host: {provider.authority}",
        "Content-Type: application/json",
        "Accept-Encoding: identity",
        f"User-Agent: relayd/{__version__}",
        "Via: 1.1 relayd",
        *(f"{name}: {value}" for name, value in provider.headers),
    ]
    text = "\r\n".join(lines).encode("ascii") + b"\r\n"
    if key is not None:
        text += b"%b: %b\r\n" % provider.credential(surface, key)
    return text
