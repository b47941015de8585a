"""Ready-made scripts for `ScriptedProvider`, and addresses where nobody answers.

ScriptedProvider(status(503), ok())       # fails once, then works
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator

from . import builders
from .provider import Peer, Request, Script
from .wire import Fields


def ok(*texts: str) -> Script:
    """A stream if the request asks for one, else the whole answer."""
    texts = texts or ("hello",)

    async def script(peer: Peer, request: Request) -> None:
        streams = json.loads(request.body).get("stream") is True
        await (ok_stream(*texts) if streams else ok_json("".join(texts)))(peer, request)

    return script


def ok_json(text: str = "hello", fields: Fields = ()) -> Script:
    async def script(peer: Peer, _: Request) -> None:
        await peer.json(200, builders.completion(text), fields)

    return script


def ok_stream(*texts: str, delay: float = 0.0, chunked: bool = True) -> Script:
    return events(*builders.stream(*(texts or ("hello",))), delay=delay, chunked=chunked)


def events(*items: bytes, delay: float = 0.0, chunked: bool = True, end: bool = True) -> Script:
    """Exactly these events, in a 200 stream; `end=False` leaves it open and silent."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.sse(*items, delay=delay, chunked=chunked, end=end)
        if not end:
            await peer.stall()

    return script


def status(code: int, body: object = None, fields: Fields = ()) -> Script:
    """An error answer: OpenAI's error object, another JSON value, or bytes as they are."""

    async def script(peer: Peer, _: Request) -> None:
        if isinstance(body, bytes):
            await peer.whole(code, body, fields)
        else:
            await peer.json(code, builders.error_object() if body is None else body, fields)

    return script


def slow(delay: float, script: Script) -> Script:
    """`script`, begun `delay` seconds after the request was read."""

    async def later(peer: Peer, request: Request) -> None:
        await asyncio.sleep(delay)
        await script(peer, request)

    return later


def silent() -> Script:
    """Reads the request and never says a byte."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.stall()

    return script


def raw(*data: bytes, then: str = "keep", size: int = 0, delay: float = 0.0) -> Script:
    """These bytes, each its own write or in pieces of `size`; then keep|fin|cut|rst|stall."""

    async def script(peer: Peer, _: Request) -> None:
        for part in data:
            await peer.drip(part, delay, size or max(1, len(part)))
        if then != "keep":
            await getattr(peer, then)()

    return script


class Endless:
    """A stream whose events, of `size` bytes of text each, never end; `sent` of them went out."""

    def __init__(self, size: int) -> None:
        self.sent = 0
        self.more = asyncio.Event()
        """Set after each event."""
        self._event = builders.delta("x" * size)

    async def __call__(self, peer: Peer, _: Request) -> None:
        await peer.stream_head()
        while True:
            await peer.chunk(self._event)
            self.sent += 1
            self.more.set()


def hangs_up() -> Script:
    """Reads the request and closes without a byte."""
    return raw(then="fin")


def resets() -> Script:
    """Reads the request and resets without a byte."""
    return raw(then="rst")


def breaks_off(*items: bytes, then: str, chunked: bool = True) -> Script:
    """A 200 stream that begins with these events and then does `then`: fin|cut|rst|stall."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.sse(*items, chunked=chunked, end=False)
        await getattr(peer, then)()

    return script


def cut_after(count: int, answer: bytes, then: str = "fin") -> Script:
    """The first `count` bytes of a raw answer, then its end."""
    return raw(answer[:count], then=then)


@contextlib.contextmanager
def refusing() -> Iterator[tuple[str, int]]:
    """An address that refuses: bound, so that nobody else gets it, and not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()


@contextlib.contextmanager
def blackhole() -> Iterator[tuple[str, int]]:
    """An address where a connect neither succeeds nor fails: its accept queue is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        yield full.getsockname()
