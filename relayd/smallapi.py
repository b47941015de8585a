"""The small API: `{"messages", "model_hint"}` in, `data: {"delta": "text"}` events out.

An exchange serves it like any other request. On its way out the request takes the form of each
provider's wire format (`adapters`); on the way back a `Translator` stands before the client's sink.
Does not know wire formats, sockets or who is asked.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable

from . import errors
from .adapters import UNSAID, Adapter, Said, Unsayable, adapter_for
from .admission import account, daily_cap, facts_of
from .config import Client, Config, Route
from .config.values import HINTS
from .events import Event, EventReader
from .headers import without
from .jsonbody import Facts
from .outbound import Ask, Form
from .outcomes import End
from .record import Record
from .refusal import trimmed
from .sink import Sink
from .surfaces import Surface
from .wake import Clock, Why

PATH = "/v1/chat"

MEMBERS = ("messages", "model_hint")
"""What a request may hold: a member that would be ignored in silence is refused."""

HEAD = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"

_OWN = frozenset({b"content-type", b"cache-control", b"x-accel-buffering"})

DONE = b"data: [DONE]\n\n"

BROKE_OFF = "the answer broke off"
TOO_LARGE = "the provider sent an event that is larger than this gateway reads"


def ask_small(
    config: Config,
    body: bytes,
    crossing: bytes,
    client: Client | None,
    user: str | None,
    record: Record,
    began: float,
) -> Ask:
    """A request of the small API, judged, in the form of each provider that can take part.

    Fills the record with each fact as it is known. Raises `errors.RequestFault`s.
    """
    record.stream = True
    facts = facts_of(body, Surface.CHAT)
    hint = _judged(body, facts)
    route = first_route(config, client)
    record.surface, record.route = Surface.CHAT.value, route.name
    return Ask(
        surface=Surface.CHAT,
        body=body,
        facts=facts,
        route=route,
        user=account(client, user),
        cap=daily_cap(config, client),
        request_id=record.id,
        crossing=crossing,
        began=began,
        wall=record.began,
        streaming=True,
        hint=hint,
        forms=forms_of(route, hint, facts.value(body, "messages") or b"[]"),
    )


def first_route(config: Config, client: Client | None) -> Route:
    """The first route that this client may use: a request of the small API names none."""
    for route in config.routes:
        if client is None or client.routes is None or route.name in client.routes:
            return route
    raise errors.ModelNotFound()


def forms_of(route: Route, hint: str | None, messages: bytes) -> dict[str, Form]:
    """The request as each provider of the route gets it; those that cannot take part are missing.

    Raises `ModelNotFound` where nobody speaks, `BadRequest` where nobody can say these messages.
    """
    forms: dict[str, Form] = {}
    made: dict[str, Form | None] = {}
    problem = ""
    for candidate in route.candidates:
        provider = candidate.provider
        adapter = adapter_for(provider)
        if adapter is None or candidate.hinted(hint) is None:
            continue
        if adapter.name not in made:
            made[adapter.name], said = _form(adapter, messages)
            problem = problem or said
        form = made[adapter.name]
        if form is not None:
            fields = adapter.fields(provider)
            forms[provider.name] = Form(form.surface, form.body, form.facts, fields)
    if not forms and problem:
        raise errors.BadRequest(f"no provider here can take {problem}", param="messages")
    if not forms:
        raise errors.ModelNotFound("no provider here has a model for this API: see `models`")
    return forms


def _form(adapter: Adapter, messages: bytes) -> tuple[Form | None, str]:
    try:
        body = adapter.request(messages)
    except Unsayable as exc:
        return None, str(exc)
    return Form(adapter.surface, body, facts_of(body, adapter.surface), b""), ""


def _judged(body: bytes, facts: Facts) -> str | None:
    """The model hint; raises `BadRequest` for any other member or value."""
    for name, spans in facts.members.items():
        if name not in MEMBERS:
            raise errors.BadRequest(f"unknown member; expected {' and '.join(MEMBERS)}", param=name)
        if len(spans) > 1:
            raise errors.BadRequest(f"`{name}` is given more than once", param=name)
    value = facts.value(body, "model_hint")
    if value is None:
        return None
    hint = json.loads(value) if value.startswith(b'"') else None
    if hint not in HINTS:
        expected = ", ".join(HINTS)
        raise errors.BadRequest(f"`model_hint` must be one of {expected}", param="model_hint")
    return str(hint)


class Translator:
    """A sink before the client's sink: a provider's events become those of the small API.

    An error before the answer passes as it is. After it every end is a clean one, `[DONE]`; where
    the answer is not complete an error event stands before that. `limit`: bytes of an answer that
    comes as one JSON document.
    """

    def __init__(
        self,
        sink: Sink,
        route: Route,
        record: Record,
        clock: Clock,
        mask: Callable[[str], str],
        limit: int,
    ) -> None:
        self._sink = sink
        self._record = record
        self._clock = clock
        self._mask = mask
        self._limit = limit
        self._route = route
        self._adapter: Adapter | None = None  # set when an answer begins
        self._reader = EventReader()
        self._document: bytearray | None = None  # an answer that is no event stream
        self._over = False  # the last event was written
        self._said_all = False

    def heed(self, behind: Callable[[], None], writable: Callable[[], None]) -> None:
        """See `Sink.heed`."""
        self._sink.heed(behind, writable)

    @property
    def sent(self) -> int:
        """Bytes that went to the client."""
        return self._sink.sent

    @sent.setter
    def sent(self, count: int) -> None:
        self._sink.sent = count

    @property
    def writable(self) -> bool:
        """False while the client is behind."""
        return self._sink.writable

    def pending(self) -> int:
        """Bytes that wait for the client."""
        return self._sink.pending()

    def untaken(self) -> int:
        """See `Sink.untaken`."""
        return self._sink.untaken()

    async def flush(self, clock: Clock, timeout: float) -> None:
        """See `Sink.flush`."""
        await self._sink.flush(clock, timeout)

    def open(self, status: int, block: bytes, length: int | None, first: bytes) -> None:
        """An error as it is, or the beginning of a stream."""
        if status >= 300:
            self._sink.open(status, block, length, first)
            return
        names = {each.provider.name: each.provider for each in self._route.candidates}
        self._adapter = adapter_for(names[self._record.provider or ""])
        self._record.status = 200
        self._sink.open(200, HEAD + without(block, _OWN), None, self._translated(first))

    def write(self, payload: bytes) -> None:
        """More of the provider's answer."""
        if data := self._translated(payload):
            self._sink.write(data)

    def chunks(self) -> None:
        """None: each event is made anew."""

    def end(self) -> None:
        """Whatever is still held, and the last event."""
        if self._adapter is not None:
            said = self._rest()
            if self._record.end_reason is End.UPSTREAM_ERROR_EVENT:  # told above, unless unread
                said += self._event(Said(error=UNSAID))
            self._sink.write(said + DONE)
        self._over = True
        self._sink.end()

    def cut(self, last: bytes = b"") -> None:
        """The answer broke off inside an event; the client is told in an event of its own."""
        gone = self._clock.wake.why in (Why.CLIENT_LEFT, Why.CLIENT_STALLED)
        if self._adapter is None or gone or self._over:
            self._sink.cut()
            return
        self._over = True
        self._sink.write(self._event(Said(error=BROKE_OFF)) + DONE)
        self._sink.end()

    # Inside.

    def _translated(self, payload: bytes) -> bytes:
        if self._document is None and not self._reader.begun and _is_json(payload):
            self._document = bytearray()
        if self._document is not None:
            self._document += payload
            if len(self._document) > self._limit:
                self._document.clear()
                return self._event(Said(error=TOO_LARGE))
            return b""
        return self._events(self._reader.feed(payload))

    def _rest(self) -> bytes:
        if self._document is None:
            return self._events(self._reader.close())
        assert self._adapter is not None
        return self._event(self._adapter.whole(bytes(self._document)))

    def _events(self, events: list[Event]) -> bytes:
        adapter = self._adapter
        assert adapter is not None
        told = b"".join(self._event(adapter.event(event.name, event.data)) for event in events)
        return told + self._event(Said(error=TOO_LARGE)) if self._reader.overran else told

    def _event(self, said: Said) -> bytes:
        """What the client reads of this; nothing behind an error or the final marker."""
        if self._said_all:
            return b""
        self._said_all = said.last or said.error is not None
        told = _data({"delta": said.text}) if said.text else b""
        if said.error is not None:
            told += _data({"error": trimmed(self._mask(said.error))})
        return told


def _is_json(payload: bytes) -> bool:
    return payload.removeprefix(BOM_UTF8).lstrip(b" \t\r\n").startswith((b"{", b"["))


def _data(value: dict[str, str]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n\n"
