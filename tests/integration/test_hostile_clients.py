"""Clients that mean harm: what they send costs them more than it costs the others.

What is refused, and how, is `test_errors`'; the clocks are `test_clocks`'.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from relayd.net import Conn
from tests.support.builders import chat
from tests.support.client import post, request
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.provider import LINGER_NONE, ScriptedProvider
from tests.support.scripts import ok

PROVIDER = {"name": "a", "base_url": "http://127.0.0.1:9/v1", "model": "m"}

LISTED = 500
"""Routes with long names: the list of models is then some 80 KB."""


def many_routes() -> dict[str, Any]:
    names = (f"{number:03}-" + "x" * 100 for number in range(LISTED))
    return config_for(PROVIDER, route=[{"name": name, "providers": ["a"]} for name in names])


def asked(g: Gateway, path: str) -> int:
    """How many requests for this path were served."""
    return sum(line["path"] == path for line in g.exchanges)


async def test_who_pipelines_and_does_not_read_is_answered_no_further_and_cut() -> None:
    async with gateway(many_routes()) as g, g.client() as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(request("GET", "/v1/models") * 1000)
        await asyncio.sleep(30.0)
        served = asked(g, "/v1/models")
        assert served < 200, "80 KB each: more than the kernel holds is kept for nobody"
        assert g.app.server.connections == 1
        # In this loop's time the kernel is slow: what it still moves counts as read, a few times.
        await asyncio.sleep(31.0 + 4 * 60.0)
        assert asked(g, "/v1/models") == served
        assert g.app.server.connections == 0


async def test_who_pipelines_and_reads_late_gets_every_answer() -> None:
    async with gateway(many_routes()) as g, g.client() as client:
        client.writer.write(request("GET", "/v1/models") * 100)
        for _ in range(100):
            await asyncio.sleep(1.0)
            assert (await client.response()).whole


async def test_a_flood_of_pipelined_requests_lets_the_others_have_their_turn() -> None:
    async with gateway(config_for(PROVIDER)) as g, g.client() as one, g.client() as other:
        one.writer.write(request("GET", "/flood") * 3000)
        other.writer.write(request("GET", "/other"))
        assert (await other.response()).status == 404
        assert asked(g, "/flood") < 100
        one.close()


async def test_requests_behind_requests_are_not_read_before_they_are_served() -> None:
    async with gateway(config_for(PROVIDER)) as g, g.client() as client:
        flood = request("GET", "/flood") * 60_000  # 3 MB
        client.writer.write(flood)
        [session] = g.app.server._sessions.values()
        most = 0
        for _ in range(2000):
            await client.response()
            most = max(most, len(session.conn.buffer))
        assert most < 512 * 1024
        client.close()


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_who_is_gone_before_the_accept_is_not_taken_for_a_peer_on_a_unix_socket(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> list[dict[str, Any]]:
        trusting = {"listen": "127.0.0.1:0", "trusted_proxies": ["unix:"]}
        async with gateway(config_for(PROVIDER, server=trusting)) as g:
            with socket.create_connection(g.address) as stranger:  # in the kernel's queue so far
                stranger.sendall(post(CHAT, chat(), {"X-User-Id": "victim"}))
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
            await g.chat()
            return g.exchanges

    with asyncio.Runner(loop_factory=make) as runner:
        exchanges = runner.run(run())
    # On uvloop the stranger has no name any more, and nobody is served, or charged, without one.
    assert {(line["user"], line["peer"]) for line in exchanges} == {("anonymous", "127.0.0.1")}


def test_a_flood_on_one_connection_leaves_the_others_their_turn_on_uvloop_too() -> None:
    async def run() -> tuple[int, int]:
        """How much came of what was sent, and the most reads in one turn of the loop."""
        loop, over, turns = asyncio.get_running_loop(), asyncio.Event(), [0]
        ours, theirs = socket.socketpair()
        _, writer = await asyncio.open_connection(sock=ours)
        conn = Conn(writer, None, loop.time())
        came = 0

        def read(data: bytes) -> None:
            nonlocal came
            came += len(data)
            if not turns[-1]:
                loop.call_soon(turns.append, 0)
            turns[-1] += 1

        conn.sink, conn.on_end = read, over.set
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.setblocking(False)
        sent = theirs.send(bytes(1 << 20))
        theirs.close()
        await over.wait()
        conn.close()
        assert sent > 300_000, "the kernel holds more than one read of uvloop"
        return sent - came, max(turns)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == (0, 1)


async def test_a_client_cannot_open_a_breaker_with_fields_that_a_provider_refuses() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        for _ in range(10):
            answer = await g.chat(fields={"OpenAI-Beta": "x" * 30_000})
            assert answer.status == 431
            assert answer.error["code"] == "head_too_large"
        assert a.requests == []
        assert (await g.chat(fields={"OpenAI-Beta": "assistants=v2"})).status == 200
