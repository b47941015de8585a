"""One request, from its head on, as an endpoint sees it, whoever brought it.

The HTTP server and the ASGI application each have their own kind. Does not know endpoints.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from .admission import new_id, user_id
from .config import Trusted
from .errors import BadRequest, RelayError
from .headers import is_request_id
from .http1 import Request
from .record import Record
from .replies import refuse
from .sink import Sink
from .surfaces import Surface
from .wake import Clock

FORWARDED = b"x-forwarded-for"


@dataclass(frozen=True, slots=True)
class Peer:
    """Whose connection it is: `address` for the log, `trusted` if its own fields are believed."""

    address: str
    trusted: bool

    @classmethod
    def named(cls, name: str, trusted: Trusted) -> Peer:
        """The one at this address; "" is whoever is at a unix socket."""
        return cls(name or "unix:", trusted.covers(name))


class Left(Exception):
    """The client went away before its request was complete: nobody is there to be answered."""


class Visit:
    """A request with what an answer needs. `body_waits`: its body has not been read.

    `began` is loop time in seconds. A kind of visit says how a body is read and a departure seen.
    """

    __slots__ = ("began", "body_waits", "clock", "peer", "record", "request", "sink")

    def __init__(self, request: Request, sink: Sink, clock: Clock, peer: Peer) -> None:
        self.request = request
        self.sink = sink
        self.clock = clock
        self.peer = peer
        self.began = clock.now()
        self.body_waits = request.has_body
        self.record = Record(self._id(), time.time(), request.method, request.path)
        self.record.peer = self._address()

    async def body(self) -> bytes:
        """The whole body, if there may be one; raises an `errors.RequestFault` or `Left`."""
        raise NotImplementedError

    def watch(self) -> None:
        """From now on the client's departure interrupts `clock.wake`."""
        raise NotImplementedError

    def close_after(self) -> None:
        """The connection cannot carry another request after this answer."""

    def refuse(self, error: RelayError, surface: Surface | None = None) -> None:
        """Answer with an error; a body that nobody has read ends the connection."""
        if error.close or self.body_waits:
            self.close_after()
        refuse(self.sink, error, surface, self.record)

    def user(self, header: str) -> str | None:
        """The user's id in the field named `header`, of a trusted peer; None without.

        Raises `errors.BadRequest` for several: a client's own may stand before its proxy's.
        """
        name = header.lower().encode("ascii")
        if not self.peer.trusted or name not in self.request.first:
            return None
        if sum(name == given for given, _ in self.request.fields) > 1:
            raise BadRequest(f"{header} is given more than once")
        return user_id(self.request.field(name))

    def ignores(self, header: str) -> bool:
        """Whether the field named `header` names a user and is not believed."""
        return not self.peer.trusted and header.lower().encode("ascii") in self.request.first

    def _id(self) -> str:
        given = self.request.field(b"x-request-id") if self.peer.trusted else None
        if given is not None and is_request_id(given):
            return given.decode("ascii")
        return new_id()

    def _address(self) -> str:
        if self.peer.trusted and FORWARDED in self.request.first:
            forwarded = [value for name, value in self.request.fields if name == FORWARDED]
            last = forwarded[-1].rpartition(b",")[2].strip()
            if last:  # the end of the last line is the peer's own word, the rest its client's
                return last.decode("latin-1")
        return self.peer.address
