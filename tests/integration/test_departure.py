"""The client leaves, at every moment from the end of its request on, by FIN and by RST.

Each time: the provider's connection is closed within a second, nobody else is asked, the log says
499 before the commit, no breaker is blamed, and the turn follows the rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support import builders
from tests.support.client import RawClient, post, request
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import elapsed, takes
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import blackhole, events, ok, raw, silent, slow, status
from tests.support.wire import Ended

from .shapes import CHAT, OPEN, open_stream

leaving = pytest.mark.parametrize(
    "leave", [RawClient.half_close, RawClient.close, RawClient.rst], ids=["fin", "close", "rst"]
)
Leave = Callable[[RawClient], None]

ONE = {"failures": 1}
CAP = {"daily_turns": 10}


@asynccontextmanager
async def pair(
    *scripts: Script, **sections: object
) -> AsyncIterator[tuple[Gateway, ScriptedProvider, ScriptedProvider]]:
    """relayd with a cap and touchy breakers, in front of `a` and a healthy `b`."""
    async with (
        ScriptedProvider(*scripts, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, **{"breaker": ONE, "quota": CAP, **sections})) as g,
    ):
        yield g, a, b


async def leave_after(g: Gateway, leave: Leave, delay: float, *, stream: bool = True) -> None:
    """Ask, leave after `delay` seconds, and give relayd a second."""
    async with g.client() as client:
        await client.send(post(CHAT.path, CHAT.request(stream=stream)))
        await asyncio.sleep(delay)
        leave(client)
        await asyncio.sleep(1.0)


async def check_gone(g: Gateway, a: ScriptedProvider, b: ScriptedProvider, left_at: float) -> None:
    """Everything let go, nobody else asked, nobody blamed."""
    assert a.open == 0, "the provider's connection is still open"
    assert all(at - 1000 <= left_at + 1.0 for at in a.departures)
    assert not b.requests
    engine = g.app.engine
    assert engine.running == 0
    assert not any(engine.in_flight.values())
    health = (await g.get("/health")).json()
    assert {p["state"] for p in health["providers"]} == {"closed"}


MOMENTS: dict[str, tuple[Script, float]] = {
    "before a byte": (silent(), 5.0),
    "at once": (silent(), 0.0),
    "inside the head": (raw(b"HTTP/1.1 200 OK\r\nConten", then="stall"), 5.0),
    "after the head": (
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", then="stall"),
        5.0,
    ),
    "after the role": (open_stream(builders.role()), 5.0),
    "while comments come": (events(*[builders.PING] * 60, delay=1.0), 5.0),
    "inside an error answer": (
        raw(b"HTTP/1.1 400 Bad\r\nContent-Length: 50\r\n\r\n{", then="stall"),
        2.0,
    ),
}


@leaving
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_leaving_before_the_commit(moment: str, stream: bool, leave: Leave) -> None:
    script, delay = MOMENTS[moment]
    async with pair(script) as (g, a, b):
        await leave_after(g, leave, delay, stream=stream)
        await check_gone(g, a, b, delay)
        line = g.exchange
        assert (line["status"], line["ended_by"], line["end_reason"]) == (
            499,
            "client",
            "client_left",
        )
        assert [attempt["outcome"] for attempt in line["attempts"]] == ["client_left"]
        assert line["turn"] == ("charged" if a.requests else "refunded")


@leaving
async def test_leaving_inside_a_json_answer(leave: Leave) -> None:
    script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{", then="stall")
    async with pair(script) as (g, a, b):
        await leave_after(g, leave, 5.0, stream=False)
        await check_gone(g, a, b, 5.0)
        assert g.exchange["status"] == 499


@leaving
async def test_leaving_while_connecting(leave: Leave) -> None:
    with blackhole() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1"}
        async with ScriptedProvider(ok(), name="b") as b:
            async with gateway(config_for(table, b, breaker=ONE, quota=CAP)) as g:
                await leave_after(g, leave, 2.0)
                assert not b.requests
                assert g.exchange["status"] == 499
                assert g.exchange["turn"] == "refunded", "no provider had been asked"
                assert g.app.engine.running == 0


@leaving
async def test_leaving_while_connecting_after_somebody_was_asked(leave: Leave) -> None:
    with blackhole() as (host, port):
        table = {"name": "b", "base_url": f"http://{host}:{port}/v1"}
        async with ScriptedProvider(status(500), name="a") as a:
            async with gateway(config_for(a, table, breaker=ONE, quota=CAP)) as g:
                await leave_after(g, leave, 2.0)
                assert (g.exchange["status"], g.exchange["turn"]) == (499, "charged")


@leaving
async def test_leaving_during_a_backoff(leave: Leave) -> None:
    limited = status(429, None, [("Retry-After", "30")])
    async with pair(limited, failover={"retries": 2}) as (g, a, b):
        await leave_after(g, leave, 5.0)
        assert g.exchange["status"] == 499
        assert g.exchange["turn"] == "charged"
        assert len(a.requests) == 1
        assert not b.requests
        await asyncio.sleep(60)
        assert len(a.requests) == 1, "the departed client's request was sent again"


@leaving
async def test_leaving_during_the_second_attempt(leave: Leave) -> None:
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(silent(), name="b") as b,
        ScriptedProvider(ok(), name="c") as c,
        gateway(config_for(a, b, c)) as g,
    ):
        await leave_after(g, leave, 5.0)
        assert b.open == 0
        assert not c.requests
        outcomes = [attempt["outcome"] for attempt in g.exchange["attempts"]]
        assert outcomes == ["server_error", "client_left"]


AFTER: dict[str, Script] = {
    "while it streams": events(*[builders.delta("x")] * 60, delay=1.0),
    "while it is silent": open_stream(CHAT.content),
    "inside an event": open_stream(CHAT.content + OPEN),
    "while only comments come": events(CHAT.content, *[builders.PING] * 50, delay=1.0),
}


@leaving
@pytest.mark.parametrize("moment", AFTER)
async def test_leaving_after_the_commit(moment: str, leave: Leave) -> None:
    async with pair(AFTER[moment]) as (g, a, b):
        async with g.client() as client:
            answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            await answer.piece()
            await asyncio.sleep(5.0)
            leave(client)
            await asyncio.sleep(1.0)
        await check_gone(g, a, b, 5.0)
        line = g.exchange
        assert (line["status"], line["ended_by"]) == (200, "client")
        assert line["end_reason"] == "client_left"
        assert line["turn"] == "charged"


@leaving
async def test_leaving_after_commit_head_before_a_byte_of_the_body(leave: Leave) -> None:
    script = raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        then="stall",
    )
    async with pair(script, routing={"commit": "head"}) as (g, a, b):
        async with g.client() as client:
            await client.open_stream(CHAT.path, CHAT.request(stream=True))
            leave(client)
            await asyncio.sleep(1.0)
        await check_gone(g, a, b, 0.0)
        assert (g.exchange["status"], g.exchange["end_reason"]) == (200, "client_left")


@leaving
async def test_leaving_while_the_answer_is_held_whole(leave: Leave) -> None:
    script = events(*[builders.delta("x")] * 60, delay=1.0)
    async with pair(script, routing={"commit": "answer"}) as (g, a, b):
        await leave_after(g, leave, 5.0)
        await check_gone(g, a, b, 5.0)
        assert g.exchange["status"] == 499


async def test_leaving_while_behind_in_reading() -> None:
    script = events(*[builders.delta("x" * 60_000)] * 300)
    async with pair(script) as (g, a, b):
        async with g.client() as client:
            await client.open_stream(CHAT.path, CHAT.request(stream=True))
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(10)
            assert a.open == 1
            client.rst()
            await asyncio.sleep(1.0)
        await check_gone(g, a, b, 10.0)


@leaving
async def test_leaving_before_the_body_is_there_asks_nobody(leave: Leave) -> None:
    async with pair(ok()) as (g, a, b):
        async with g.client() as client:
            await client.send(post(CHAT.path, CHAT.request())[:-5])
            await asyncio.sleep(1.0)
            leave(client)
            await asyncio.sleep(1.0)
        assert not a.requests
        assert not b.requests
        assert g.app.engine.running == 0


async def test_a_body_that_is_not_sent_to_its_end_is_not_waited_for() -> None:
    async with pair(ok()) as (g, _a, _b), g.client() as client:
        await client.send(post(CHAT.path, CHAT.request())[:-5])
        await asyncio.sleep(1.0)
        client.half_close()
        with takes(0.0):
            assert await client.ended() is Ended.CLOSE


async def test_a_client_that_leaves_while_its_turn_is_reserved_asks_nobody(tmp_path: Path) -> None:
    """A store in a file takes a moment; the FIN comes right behind the request."""
    async with pair(ok(), store={"url": f"sqlite:{tmp_path / 'state.db'}"}) as (g, a, b):
        async with g.client() as client:
            await client.send(post(CHAT.path, CHAT.request()))
            client.half_close()
            await asyncio.sleep(1.0)
        await check_gone(g, a, b, 0.0)
        line = g.exchange
        assert (line["status"], line["attempts"], line["turn"]) == (499, [], "refunded")
        assert not a.seen.peers, "a connection was made for somebody who had left"


# ---- not a departure


async def test_a_pipelined_request_is_no_departure() -> None:
    async with pair(slow(5.0, ok("one")), ok("two")) as (g, a, _):
        async with g.client() as client:
            await client.send(post(CHAT.path, CHAT.request(stream=True)) * 2)
            first = await client.response("POST")
            second = await client.response("POST")
        assert first.body == b"".join(builders.stream("one"))
        assert second.body == b"".join(builders.stream("two"))
        assert len(a.requests) == 2


async def test_a_pipelined_request_that_comes_during_a_stream_is_served_after_it() -> None:
    async with pair(events(*CHAT.stream, delay=1.0)) as (g, a, _):
        async with g.client() as client:
            first = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            await client.send(post(CHAT.path, CHAT.request(stream=True)))
            await first.read()
            assert (await client.response("POST")).body == first.body
        assert len(a.requests) == 2


async def test_more_pipelined_bytes_than_are_held_close_the_connection_after_the_answer() -> None:
    async with pair(events(*CHAT.stream, delay=1.0)) as (g, _a, _):
        async with g.client() as client:
            answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            sending = asyncio.create_task(client.send(b"x" * 400_000))
            await answer.read()
            assert answer.body == b"".join(CHAT.stream)
            sending.cancel()
            await client.ended()
        assert g.exchange["end_reason"] == "complete"


async def test_and_an_answer_that_begins_later_says_so() -> None:
    async with pair(slow(5.0, ok())) as (g, _, _b), g.client() as client:
        sending = asyncio.create_task(client.send(post(CHAT.path, CHAT.request()) + b"x" * 400_000))
        answer = await client.response("POST")
        assert (answer.status, answer.field("Connection")) == (200, "close")
        sending.cancel()


@leaving
async def test_leaving_with_pipelined_bytes_is_a_departure(leave: Leave) -> None:
    async with pair(silent()) as (g, a, b):
        async with g.client() as client:
            await client.send(post(CHAT.path, CHAT.request()) * 2)
            await asyncio.sleep(2.0)
            leave(client)
            await asyncio.sleep(1.0)
        await check_gone(g, a, b, 2.0)
        assert g.exchange["status"] == 499
        assert len(a.requests) == 1


async def test_who_left_while_earlier_requests_were_served_asks_nobody() -> None:
    asks = request("GET", "/healthz") * 8 + post(CHAT.path, CHAT.request())
    async with pair(ok()) as (g, a, _):
        async with g.client() as client:
            await client.send(asks)
            client.half_close()
            await asyncio.sleep(1.0)
        assert not a.requests
        assert (g.exchange["status"], g.exchange["turn"]) == (499, "refunded")


async def test_after_the_answer_leaving_is_no_departure() -> None:
    async with pair(ok()) as (g, _a, _b):
        await g.chat(stream=True)
        assert elapsed() < 1.0
        assert g.exchange["end_reason"] == "complete"
