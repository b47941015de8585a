"""K50: a provider answered 413 early and stopped reading; the client got a 503 instead of it.

https://github.com/envoyproxy/envoy/issues/2929
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.builders import encode, error_object
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, ScriptedProvider
from tests.support.scripts import ok

MIB = 1_048_576
LARGE = {"max_request_bytes": 32 * MIB}
TOO_LARGE = encode(error_object("this is too large", "request_too_large"))


def refuses(
    after: float | None, fields: str = "Connection: close\r\n"
) -> Callable[[Peer], Awaitable[None]]:
    """Reads the head alone, says 413 and resets `after` seconds; None: keeps the connection."""

    async def script(peer: Peer) -> None:
        if not await peer.read_head():
            return
        head = f"HTTP/1.1 413 Too Large\r\n{fields}Content-Length: {len(TOO_LARGE)}\r\n\r\n"
        await peer.send(head.encode() + TOO_LARGE)
        if after is None:
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(20.0)
        else:
            await asyncio.sleep(after)
            await peer.rst()

    return script


@pytest.mark.parametrize("after", [0.0, 1.0])
async def test_the_413_reaches_the_client_and_nobody_else_is_asked(after: float) -> None:
    async with (
        ScriptedProvider(name="a", connection=refuses(after)) as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, server=LARGE)) as g,
    ):
        answer = await g.chat("x" * (20 * MIB))
        assert b.requests == []
        assert a.connections == 1
    assert answer.status == 413
    assert answer.error["message"] == "this is too large"
    assert answer.field("X-Gateway-Attempts") == "1"
    assert g.exchange["end_reason"] == "request_fault"


async def test_a_connection_with_a_half_sent_request_is_not_used_again() -> None:
    async with (
        ScriptedProvider(name="a", connection=refuses(None, fields="")) as a,
        gateway(config_for(a, server=LARGE)) as g,
    ):
        for number in (1, 2):
            with takes(0.0, within=1.0):
                answer = await g.chat("x" * (20 * MIB))
            assert answer.status == 413
            assert a.connections == number


async def test_an_early_error_of_the_provider_fails_over_although_nobody_reads() -> None:
    async def busy(peer: Peer) -> None:
        await peer.read_head()
        await peer.send(b"HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await peer.rst()

    async with (
        ScriptedProvider(name="a", connection=busy) as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, server=LARGE)) as g,
    ):
        answer = await g.chat("x" * (20 * MIB))
        assert len(b.requests[0].body) > 20 * MIB
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["status"] == 503


@pytest.mark.parametrize("then", ["fin", "cut", "rst"])
@pytest.mark.parametrize("size", [1, 20 * MIB], ids=["small", "large"])
async def test_an_answer_that_comes_before_the_request_is_read_all_the_same(
    then: str, size: int
) -> None:
    async def refuses_at_once(peer: Peer) -> None:
        head = b"HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        await peer.send(head % len(TOO_LARGE) + TOO_LARGE)
        await getattr(peer, then)()

    async with (
        ScriptedProvider(connection=refuses_at_once) as a,
        gateway(config_for(a, server=LARGE)) as g,
    ):
        answer = await g.chat("x" * size)
    assert answer.status == 413
    assert answer.error["message"] == "this is too large"
