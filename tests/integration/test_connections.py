"""Connections to providers: which are used again, which never are, and when they are closed.

The rules of the pool alone are unit-tested; here they hold over sockets, for every way in which an
answer or a client can end.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from relayd.net import Conn
from tests.support.builders import DONE, chat, completion, delta, encode, finish, stream
from tests.support.client import post
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import LINGER_NONE, Peer, Request, Script, ScriptedProvider
from tests.support.scripts import (
    breaks_off,
    events,
    ok,
    ok_json,
    ok_stream,
    raw,
    silent,
    slow,
    status,
)

BODY = encode(completion())
HEAD = b"HTTP/1.1 200 OK\r\n"
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def used(a: ScriptedProvider) -> list[int]:
    """For each request the number of the connection that brought it."""
    return [request.connection for request in a.requests]


async def twice(g: Gateway, *, apart: float = 0.0, **members: Any) -> list[int]:
    """Two chats, one after the other; their statuses."""
    first = await g.chat("1", **members)
    await asyncio.sleep(apart)
    second = await g.chat("2", **members)
    return [first.status, second.status]


# --- used again

GOOD = {
    "a whole answer": (ok_json(), False),
    "a stream": (ok_stream("a", "b"), True),
    "chunks held whole": (raw(CHUNKED), False),
    "a stream nobody asked for": (ok_stream("a"), False),
    "JSON for a stream": (ok_json(), True),
    "a refused request": (status(400), False),
    "an empty refusal": (status(404, b""), False),
    "a server error": (status(500), False),
    "interim heads": (raw(b"HTTP/1.1 103 Early Hints\r\n\r\n" + WHOLE), False),
}


@pytest.mark.parametrize(("script", "streams"), GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("commit", ["content", "answer"])
async def test_a_connection_whose_answer_ended_as_announced_is_used_again(
    script: Script, streams: bool, commit: str
) -> None:
    async with (
        ScriptedProvider(script) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        await twice(g, stream=streams)
        assert used(a) == [0, 0]
        assert a.open == 1


@pytest.mark.parametrize("commit", ["head", "content", "answer"])
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_it_is_so_whatever_commits(commit: str, streams: bool) -> None:
    async with (
        ScriptedProvider(ok("a")) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        assert await twice(g, stream=streams) == [200, 200]
        assert used(a) == [0, 0]


async def test_requests_at_once_have_a_connection_each_and_the_newest_is_taken_first() -> None:
    async with (
        ScriptedProvider(slow(1.0, ok())) as a,
        gateway(config_for(a)) as g,
    ):
        await asyncio.gather(*(g.chat("hi") for _ in range(5)))
        assert sorted(used(a)) == [0, 1, 2, 3, 4]
        assert a.open == 5
        for _ in range(3):
            await g.chat("hi")
        assert len(set(used(a)[5:])) == 1


async def test_two_providers_of_one_origin_share_connections() -> None:
    async with ScriptedProvider(status(503), ok(), name="a") as a:
        twin = {**a.table, "name": "twin"}
        async with gateway(config_for(a, twin)) as g:
            answer = await g.chat("hi")
        assert answer.field("X-Gateway-Provider") == "twin"
        assert used(a) == [0, 0]


async def test_clients_share_connections_and_a_closing_client_closes_none() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        for _ in range(3):
            await g.chat("hi", fields={"Connection": "close"})
        assert used(a) == [0, 0, 0]


# --- never used again

BAD = {
    "connection: close": raw(HEAD + b"Connection: close\r\n" + WHOLE[len(HEAD) :]),
    "close among others": raw(HEAD + b"Connection: x, Close\r\n" + WHOLE[len(HEAD) :]),
    "HTTP/1.0": raw(WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0")),
    "length and chunks": raw(CHUNKED.replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1)),
    "no length": raw(HEAD + b"\r\n" + BODY, then="fin"),
    "one byte too many": raw(WHOLE + b"\n"),
    "a byte behind the chunks": raw(CHUNKED + b"0"),
    "a second answer": raw(WHOLE + WHOLE),
    "a coded answer": raw(HEAD + b"Content-Encoding: gzip\r\n" + WHOLE[len(HEAD) :]),
    "no answer": events(),
    "no HTTP": raw(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    "bad chunks": raw(CHUNKED.replace(b"0\r\n\r\n", b"zz\r\n"), then="stall"),
    "cut short": raw(WHOLE[:-3], then="fin"),
    "reset": raw(WHOLE[:-3], then="rst"),
    "a switch of protocols": raw(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"),
    "an error without end": raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\n{", then="stall"),
    "a huge error": status(400, b"x" * 200_000),
}


@pytest.mark.parametrize("script", BAD.values(), ids=BAD)
async def test_a_connection_that_cannot_be_trusted_is_closed_at_once(script: Script) -> None:
    async with ScriptedProvider(script, ok()) as a, gateway(config_for(a)) as g:
        await g.chat("1")
        await asyncio.sleep(0.1)
        assert a.open == 0
        assert (await g.chat("2")).status == 200
        assert used(a) == [0, 1]


STREAMS = {
    "cut": breaks_off(delta("a"), then="fin"),
    "reset": breaks_off(delta("a"), then="rst"),
    "silent": events(delta("a"), end=False),
    "open after its end": events(*stream("a"), end=False),
    "open after an error": events(delta("a"), b'data: {"error":{"message":"x"}}\n\n', end=False),
    "open after a finish": events(delta("a"), finish(), end=False),
}


@pytest.mark.parametrize("script", STREAMS.values(), ids=STREAMS)
async def test_so_is_one_whose_stream_did_not_end(script: Script) -> None:
    async with (
        ScriptedProvider(script, ok("b")) as a,
        gateway(config_for(a, clocks={"idle": 5.0})) as g,
    ):
        await g.chat("1", stream=True)
        await asyncio.sleep(0.1)
        assert a.open == 0
        assert (await g.chat("2")).status == 200
        assert used(a) == [0, 1]


@pytest.mark.parametrize(
    "clocks",
    [{"first_content": 3.0}, {"answer": 3.0}, {"deadline": 3.0}],
    ids=lambda c: next(iter(c)),
)
async def test_so_is_one_whose_provider_was_silent_too_long(clocks: dict[str, float]) -> None:
    streams = "first_content" in clocks
    async with (
        ScriptedProvider(silent(), ok()) as a,
        gateway(config_for(a, clocks=clocks)) as g,
    ):
        with takes(3.0):
            assert (await g.chat("1", stream=streams)).status in (502, 504)
        await asyncio.sleep(0.1)
        assert a.open == 0
        assert (await g.chat("2")).status == 200


@pytest.mark.parametrize("leave", ["close", "rst", "half_close"])
@pytest.mark.parametrize("when", ["before the answer", "within the answer"])
@pytest.mark.parametrize("reused", [True, False], ids=["reused", "fresh"])
async def test_so_is_one_whose_client_left(leave: str, when: str, reused: bool) -> None:
    script = silent() if when.startswith("before") else ok_stream(*"abcdefgh", delay=1.0)
    before = [ok()] if reused else []
    async with (
        ScriptedProvider(*before, script, ok()) as a,
        gateway(config_for(a)) as g,
    ):
        for _ in before:
            await g.chat("0")
        async with g.client() as client:
            await client.send(post(CHAT, chat(stream=True)))
            await asyncio.sleep(3.5)
            getattr(client, leave)()
            await asyncio.sleep(1.0)
            assert a.open == 0
        assert (await g.chat("2")).status == 200
        assert a.connections == 2
        assert len(a.requests) == len(before) + 2  # nobody asked again for who had left


# --- stale


class Ends:
    """A connection script: answers `count` requests on each connection and then does `how`."""

    def __init__(self, how: str, count: int = 1) -> None:
        self.how = how
        self.count = count

    async def __call__(self, peer: Peer) -> None:
        for _ in range(self.count):
            if await peer.read_request() is None:
                return
            await peer.json(200, completion())
        if self.how == "idle":
            await peer.fin()
            return
        await peer.read_request()
        await getattr(peer, self.how)()


@pytest.mark.each_loop
@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_a_connection_that_ends_without_a_byte_costs_nothing(how: str) -> None:
    async with (
        ScriptedProvider(connection=Ends(how)) as a,
        gateway(config_for(a, breaker={"failures": 1})) as g,
    ):
        for _ in range(5):
            answer = await g.chat("hi")
            assert answer.status == 200
            assert answer.field("X-Gateway-Attempts") == "1"
        assert a.connections == 5
    assert [len(line["attempts"]) for line in g.exchanges] == [1] * 5


async def test_the_clock_of_the_first_content_begins_anew_on_the_fresh_connection() -> None:
    async def script(peer: Peer) -> None:
        if not await peer.read_request():
            return
        if peer.number == 0:
            await peer.json(200, completion())
            await peer.read_request()
            await asyncio.sleep(0.9)
            await peer.fin()
            return
        await asyncio.sleep(4.5)
        await peer.json(200, completion())

    async with (
        ScriptedProvider(connection=script) as a,
        gateway(config_for(a, clocks={"first_content": 5.0, "answer": 5.0})) as g,
    ):
        with takes(5.4):
            assert await twice(g) == [200, 200]


@pytest.mark.parametrize("how", ["fin", "rst"])
async def test_who_has_worked_on_a_request_is_not_asked_twice(how: str) -> None:
    """It ends a kept connection without a byte, but seconds after the request."""

    async def script(peer: Peer) -> None:
        await peer.read_request()
        await peer.json(200, completion())
        await peer.read_request()
        await asyncio.sleep(2.0)
        await getattr(peer, how)()

    async with (
        ScriptedProvider(connection=script) as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        with takes(2.0):
            assert await twice(g) == [200, 200]
        assert (a.connections, len(b.requests)) == (1, 1)
        outcomes = [tried["outcome"] for tried in g.exchanges[-1]["attempts"]]
        assert outcomes == ["closed", "ok"]


async def test_a_fin_while_idle_drops_the_connection_before_the_next_request() -> None:
    async with ScriptedProvider(connection=Ends("idle")) as a, gateway(config_for(a)) as g:
        await g.chat("1")
        await asyncio.sleep(0.1)
        assert a.open == 0  # closed by relayd, too
        assert (await g.chat("2")).status == 200
        assert a.connections == 2


async def test_of_many_stale_connections_one_costs_a_retry_and_the_rest_are_not_tried() -> None:
    async def script(peer: Peer) -> None:
        if not await peer.read_request():
            return
        if peer.number < 4:
            await asyncio.sleep(1.0)
            await peer.json(200, completion())
            await peer.read_request()
            await peer.rst()
        else:
            await peer.json(200, completion("fresh"))
            await peer.until_closed()

    async with ScriptedProvider(connection=script) as a, gateway(config_for(a)) as g:
        await asyncio.gather(*(g.chat("hi") for _ in range(4)))
        assert a.connections == 4
        answer = await g.chat("hi")
        assert "fresh" in answer.text
        assert a.connections == 5


async def test_a_provider_that_went_away_is_a_failure_after_the_free_retry() -> None:
    async with (
        ScriptedProvider(connection=Ends("rst"), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        assert (await g.chat("1")).field("X-Gateway-Provider") == "a"
        a.stop_listening()
        answer = await g.chat("2")
    assert answer.field("X-Gateway-Provider") == "b"
    assert answer.field("X-Gateway-Attempts") == "2"
    assert g.exchanges[1]["attempts"][0]["outcome"] == "connect_failed"


# --- what speaks while idle


@pytest.mark.parametrize("extra", [b"\n", WHOLE, b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
async def test_bytes_while_idle_drop_the_connection(extra: bytes) -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.json(200, completion("1"))
        await asyncio.sleep(1.0)
        await peer.send(extra)

    async with ScriptedProvider(script, ok("2")) as a, gateway(config_for(a)) as g:
        await g.chat("1")
        await asyncio.sleep(2.0)
        assert a.open == 0
        answer = await g.chat("2")
        assert used(a) == [0, 1]
    assert '"2"' in answer.text


# --- age and number


@pytest.mark.parametrize(("apart", "same"), [(59.0, True), (61.0, False)])
async def test_a_connection_unused_for_60_s_is_closed(apart: float, same: bool) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        assert await twice(g, apart=apart) == [200, 200]
        assert used(a) == ([0, 0] if same else [0, 1])


async def test_it_is_closed_without_another_request_too() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        await g.chat("hi")
        began = asyncio.get_running_loop().time()
        await a.seen.peers[0].left.wait()
    assert 60.0 <= a.departures[0] - began <= 65.1


async def test_a_connection_of_300_s_is_replaced_although_it_is_in_use() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        for _ in range(8):
            await g.chat("hi")
            await asyncio.sleep(50.0)
        assert used(a) == [0, 0, 0, 0, 0, 0, 1, 1]


async def test_a_stream_that_outlives_the_age_is_not_touched() -> None:
    async with (
        ScriptedProvider(ok_stream(*"abc", delay=50.0), ok()) as a,
        gateway(config_for(a, failover={"max_connection_age": 100.0})) as g,
    ):
        answer = await g.chat("1", stream=True)
        assert answer.whole
        assert answer.body.endswith(DONE)
        await g.chat("2")
        assert used(a) == [0, 1]


async def test_no_more_idle_connections_are_kept_than_configured() -> None:
    async with (
        ScriptedProvider(slow(1.0, ok())) as a,
        gateway(config_for(a, failover={"max_idle_connections": 2})) as g,
    ):
        await asyncio.gather(*(g.chat("hi") for _ in range(5)))
        await asyncio.sleep(0.1)
        assert a.open == 2


async def test_after_a_burst_all_of_its_connections_are_kept_for_the_next_and_then_age() -> None:
    burst = 90
    async with ScriptedProvider(slow(1.0, ok())) as a, gateway(config_for(a)) as g:
        for _ in range(3):
            await asyncio.gather(*(g.chat("hi") for _ in range(burst)))
        assert max(used(a)) == burst - 1, "expected no connection beyond those of the first"
        assert a.open == burst
        await asyncio.sleep(70)
        assert a.open == 0


async def test_none_is_kept_when_none_is_allowed() -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, failover={"max_idle_connections": 0})) as g,
    ):
        await twice(g)
        await asyncio.sleep(0.1)
        assert used(a) == [0, 1]
        assert a.open == 0


async def test_stopping_closes_them() -> None:
    async with ScriptedProvider(ok()) as a:
        async with gateway(config_for(a)) as g:
            await g.chat("hi")
            assert a.open == 1
        await asyncio.sleep(0.1)
        assert a.open == 0


# --- an answer that overtakes the failure of a write


@pytest.mark.each_loop
async def test_what_is_unread_when_a_write_fails_is_not_lost() -> None:
    # The answer and the reset arrive between two turns of the loop: the write sees the reset
    # before the loop sees the answer, and asyncio would drop it unread.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, writer = await asyncio.open_connection(*listener.getsockname())
        peer, _ = listener.accept()
        conn = Conn(writer, None, 0.0)
        peer.sendall(WHOLE)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        conn.transport.write(b"POST / HTTP/1.1\r\n")
        conn.transport.write(b"\r\n")
        await asyncio.sleep(0.1)
    assert conn.lost
    assert bytes(conn.buffer) == WHOLE
    conn.abort()


# --- of an old generation


@pytest.mark.parametrize("lasts", [1.0, 30.0])
async def test_a_client_may_ask_once_more_after_the_last_exchange(lasts: float) -> None:
    async with (
        ScriptedProvider(ok_stream("a", "b", delay=lasts), ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(CHAT, chat("hi", stream=True))
        g.app.bequeath()
        ending = asyncio.create_task(g.app.stop(None, 2.0))
        first = await answer.read()
        await asyncio.sleep(1.0)
        second = await client.post_json(CHAT, chat("once more"))
        assert (first.status, second.status) == (200, 200)
        assert second.field("Connection") == "close"
        await ending
