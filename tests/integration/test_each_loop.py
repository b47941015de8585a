"""What a loop does itself: pauses, ends and resets, on both loops that a daemon may have.

In real time. Nothing here sleeps: each step waits for what the other side does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support import builders
from tests.support.client import RawClient, post
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import ok, raw
from tests.support.wire import Ended

from .shapes import CHAT, OPEN

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.each_loop,
    pytest.mark.usefixtures("leaves_no_task_or_socket"),
]

CAP = 15.0
"""Real time (s) that one step may take on a busy machine."""

LEAVING = 1.0
"""Seconds in which the provider's connection is closed once the client has left."""

SLACK = 2.0
"""Seconds by which a busy machine may be late."""

STILL = 0.5
"""Seconds without progress after which a writer counts as stopped."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
BARE = HEAD + b"\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TAIL = builders.finish() + builders.DONE

LARGE = 64 * 1024 * 1024
"""Bytes of a stream that no row of socket buffers holds."""

HELD = 32 * 1024 * 1024
"""Bytes that relayd and four sockets may hold at most while nobody reads."""


async def ended(g: Gateway) -> Mapping[str, Any]:
    """The log line of the one exchange, once it is there."""
    async with asyncio.timeout(CAP):
        while not g.exchanges:  # noqa: ASYNC110  (it has no event for it)
            await asyncio.sleep(0)
    return g.exchange


# ---- whole streams


@pytest.mark.parametrize("chunked", [True, False], ids=["chunks", "close"])
async def test_streams_side_by_side_arrive_byte_for_byte(chunked: bool) -> None:
    def body(name: str) -> bytes:
        sizes = (n * 977 % 9000 for n in range(120))
        return b"".join(builders.delta(f"{name}{size}" * (size // 4)) for size in sizes) + TAIL

    async def script(peer: Peer, request: Request) -> None:
        whole = body(request.json()["messages"][0]["content"])
        await peer.stream_head(chunked=chunked)
        for at in range(0, len(whole), 7001):
            part = whole[at : at + 7001]
            await (peer.chunk(part) if chunked else peer.send(part))
        await (peer.last_chunk() if chunked else peer.fin())

    async with ScriptedProvider(script) as a, gateway(config_for(a)) as g:
        async with asyncio.timeout(CAP):
            names = [f"{n}-" for n in range(20)]
            answers = await asyncio.gather(*(g.chat(name, stream=True) for name in names))
    for name, answer in zip(names, answers, strict=True):
        assert answer.ended is Ended.CHUNKS
        assert answer.body == body(name)
    assert {line["end_reason"] for line in g.exchanges} == {"complete"}


# ---- back-pressure


class Flood:
    """A stream of `LARGE` bytes; `stopped` once nobody takes any more of it."""

    PIECE = builders.delta("x" * 60_000)

    def __init__(self) -> None:
        self.sent = 0
        self.stopped = asyncio.Event()

    async def script(self, peer: Peer, _: Request) -> None:
        await peer.stream_head()
        while self.sent < LARGE:
            self.sent += len(self.PIECE)
            try:
                async with asyncio.timeout(STILL):
                    await peer.chunk(self.PIECE)
            except TimeoutError:
                self.stopped.set()
                await peer.writer.drain()
        await peer.chunk(TAIL)
        await peer.last_chunk()


async def test_who_does_not_read_stops_the_provider_and_loses_nothing() -> None:
    flood = Flood()
    async with (
        ScriptedProvider(flood.script) as a,
        gateway(config_for(a, server={"write_timeout": CAP})) as g,
        g.client() as client,
        asyncio.timeout(CAP * 2),
    ):
        answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
        await flood.stopped.wait()
        assert flood.sent < HELD
        assert (await g.get("/healthz")).status == 200
        assert sum([len(part) async for part in answer.incoming]) == flood.sent + len(TAIL)
        assert (await ended(g))["end_reason"] == "complete"


async def test_who_never_reads_is_dropped_and_the_provider_with_it() -> None:
    flood = Flood()
    async with (
        ScriptedProvider(flood.script) as a,
        gateway(config_for(a, server={"write_timeout": STILL})) as g,
        g.client() as client,
    ):
        await client.open_stream(CHAT.path, CHAT.request(stream=True))
        assert (await ended(g))["end_reason"] == "client_stalled"
        async with asyncio.timeout(CAP):
            await a.seen.peers[0].left.wait()


async def test_a_provider_that_reads_late_gets_the_whole_request() -> None:
    text, go = "x" * 12_000_000, asyncio.Event()

    async def late(peer: Peer) -> None:
        if peer.number == 0:
            await go.wait()
        request = await peer.read_request()
        assert request is not None
        read = request.json()["messages"][0]["content"]
        await peer.json(200, builders.completion(f"read {len(read)}"))

    async with (
        ScriptedProvider(connection=late) as a,
        gateway(config_for(a, server={"max_request_bytes": 16_000_000})) as g,
        asyncio.timeout(CAP),
    ):
        asking = asyncio.create_task(g.chat(text))
        while not a.connections:  # noqa: ASYNC110  (it has no event for it)
            await asyncio.sleep(0)
        assert (await g.chat("small")).status == 200
        go.set()
        answer = await asking
        assert answer.json()["choices"][0]["message"]["content"] == f"read {len(text)}"


# ---- the client leaves


def leaves_off(data: bytes, there: asyncio.Event) -> Script:
    """These bytes and no more; `there` once they are sent."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.send(data)
        there.set()
        await peer.stall()

    return script


def in_a_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


leaving = pytest.mark.parametrize(
    "leave", [RawClient.half_close, RawClient.close, RawClient.rst], ids=["fin", "close", "rst"]
)
BEFORE = {
    "before a byte": b"",
    "inside the head": HEAD,
    "after the head": CHUNKED,
    "after the role": CHUNKED + in_a_chunk(builders.role()),
    "inside a whole answer": b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{",
}
AFTER = {
    "between events": CHUNKED + in_a_chunk(builders.delta("hello")),
    "inside an event": CHUNKED + in_a_chunk(builders.delta("hello") + OPEN),
    "inside a chunk": CHUNKED + in_a_chunk(builders.delta("hello")) + b"400\r\ndata: ",
}


@leaving
@pytest.mark.parametrize("moment", [*BEFORE, *AFTER])
async def test_leaving_ends_the_request_to_the_provider(
    moment: str, leave: Callable[[RawClient], None]
) -> None:
    there = asyncio.Event()
    script = leaves_off({**BEFORE, **AFTER}[moment], there)
    async with (
        ScriptedProvider(script, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
        g.client() as client,
        asyncio.timeout(CAP),
    ):
        await client.send(post(CHAT.path, CHAT.request(stream=True)))
        await there.wait()
        if moment in AFTER:
            await (await client.head("POST")).piece()
        leave(client)
        async with asyncio.timeout(LEAVING + SLACK):
            await a.seen.peers[0].left.wait()
        line = await ended(g)
        assert line["end_reason"] == "client_left"
        assert line["status"] == (200 if moment in AFTER else 499)
        assert g.app.engine.running == 0
        assert not b.requests


async def test_leaving_while_behind_in_reading() -> None:
    flood = Flood()
    async with (
        ScriptedProvider(flood.script) as a,
        gateway(config_for(a, server={"write_timeout": CAP})) as g,
        g.client() as client,
        asyncio.timeout(CAP),
    ):
        await client.open_stream(CHAT.path, CHAT.request(stream=True))
        await flood.stopped.wait()
        client.rst()
        async with asyncio.timeout(LEAVING + SLACK):
            await a.seen.peers[0].left.wait()
        assert (await ended(g))["end_reason"] == "client_left"


# ---- the provider's ends


@pytest.mark.parametrize("then", ["fin", "rst"])
async def test_an_end_without_a_byte_is_replaced(then: str) -> None:
    async with (
        ScriptedProvider(raw(then=then), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
        asyncio.timeout(CAP),
    ):
        answer = await g.chat(stream=True)
        assert (answer.status, answer.field("X-Gateway-Provider")) == (200, "b")
        assert answer.whole


@pytest.mark.parametrize(("then", "whole"), [("fin", True), ("rst", False)])
async def test_a_fin_ends_an_answer_and_a_reset_cuts_it(then: str, whole: bool) -> None:
    heard = asyncio.Event()

    async def script(peer: Peer, _: Request) -> None:
        await peer.send(BARE + builders.delta("hello"))
        await heard.wait()
        await getattr(peer, then)()

    async with (
        ScriptedProvider(script) as a,
        gateway(config_for(a, routing={"commit": "head"})) as g,
        g.client() as client,
        asyncio.timeout(CAP),
    ):
        answer = await client.open_stream(CHAT.path, CHAT.request())
        await answer.piece()
        heard.set()
        await answer.read()
        assert answer.whole is whole
        assert (await ended(g))["end_reason"] == ("complete" if whole else "upstream_truncated")
