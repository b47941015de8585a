"""K88: a request refused by the limit of concurrency still used up the rate quota.

https://github.com/BerriAI/litellm/issues/39309
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.builders import chat, encode
from tests.support.client import RawClient, request
from tests.support.gateway import CHAT, Gateway, gateway
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import ok, slow, status
from tests.support.turns import capped, left

CAP = 2

KEY = "sk-client-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def relay(
    *scripts: Script, **sections: Any
) -> AsyncIterator[tuple[Gateway, ScriptedProvider]]:
    """relayd with one client key, CAP turns a day and a provider that takes one at a time."""
    client = {"name": "app", "key_sha256": hashlib.sha256(KEY.encode()).hexdigest()}
    async with (
        ScriptedProvider(*scripts, max_in_flight=1) as a,
        gateway(capped(a, cap=CAP, client=[client], **sections)) as g,
    ):
        yield g, a


async def test_who_finds_no_place_has_used_no_turn() -> None:
    async with relay(slow(1.0, ok()), ok()) as (g, a):
        first = asyncio.create_task(g.chat(fields=BEARER))
        await asyncio.sleep(0.5)
        second = await g.chat(fields=BEARER)
        assert second.status == 503
        assert second.error["code"] == "no_provider_available"
        assert (await first).status == 200
        assert (await g.chat(fields=BEARER)).status == 200
        assert [line["turn"] for line in g.exchanges] == ["refunded", "charged", "charged"]
        assert (await g.chat(fields=BEARER)).status == 429, "expected both turns to be used"
        assert len(a.requests) == 2


async def test_who_comes_while_too_many_are_served_has_used_none() -> None:
    async with relay(slow(1.0, ok()), ok(), server={"max_exchanges": 1}) as (g, _):
        first = asyncio.create_task(g.chat(fields=BEARER))
        await asyncio.sleep(0.5)
        second = await g.chat(fields=BEARER)
        assert (second.status, second.error["code"]) == (503, "overloaded")
        await first
        assert await left(g, BEARER) == CAP - 1


async def test_whose_place_is_taken_while_his_body_comes_has_used_none() -> None:
    async with relay(slow(1.0, ok()), ok(), server={"max_exchanges": 1}) as (g, _):
        async with RawClient(g.address) as client:
            await client.send(post(GOOD)[:-5])
            first = asyncio.create_task(g.chat(fields=BEARER))
            await asyncio.sleep(0.5)
            await client.send(GOOD[-5:])
            assert (await client.response("POST")).status == 503
        await first
        told = [line["bytes_in"] for line in g.log if line.get("status") == 503]
        assert told == [len(GOOD)], "what came in is logged all the same"
        assert await left(g, BEARER) == CAP - 1


def post(body: bytes, **fields: str) -> bytes:
    return request("POST", CHAT, body, {**BEARER, **fields})


GOOD = encode(chat())

REFUSED = {
    400: post(b"{}"),
    401: request("POST", CHAT, GOOD),
    404: request("POST", "/v1/nothing", GOOD, BEARER),
    405: request("GET", CHAT, fields=BEARER),
    413: post(b"", **{"Content-Length": "99999999"}),
    415: post(GOOD, **{"Content-Encoding": "gzip"}),
    417: post(GOOD, Expect="a-miracle"),
    431: post(GOOD, **{"X-Long": "x" * 70_000}),
    501: post(b"", **{"Content-Length": "", "Transfer-Encoding": "gzip, chunked"}),
    505: post(GOOD).replace(b"HTTP/1.1", b"HTTP/3.0"),
}


@pytest.mark.parametrize("code", REFUSED)
async def test_what_is_refused_on_the_spot_uses_none(code: int) -> None:
    async with relay(ok()) as (g, a):
        for _ in range(CAP + 1):
            async with RawClient(g.address) as client:
                await client.send(REFUSED[code])
                assert (await client.response("POST")).status == code
        assert not a.requests
        assert await left(g, BEARER) == CAP


async def test_a_body_that_never_comes_uses_none() -> None:
    async with relay(ok()) as (g, _):
        async with RawClient(g.address) as client:
            await client.send(post(GOOD)[:-5])
            assert (await client.response("POST")).status == 408
        assert await left(g, BEARER) == CAP


async def test_a_provider_whose_breaker_is_open_uses_none() -> None:
    breaker = {"failures": 1, "cooldown": 10.0}
    async with relay(status(500), ok(), breaker=breaker) as (g, _):
        codes = [(await g.chat(fields=BEARER)).status for _ in range(5)]
        assert codes == [502] + [503] * 4
        await asyncio.sleep(10)
        assert await left(g, BEARER) == CAP


async def test_a_resting_provider_uses_none() -> None:
    async with relay(status(429, fields=[("Retry-After", "20")]), ok()) as (g, a):
        codes = [(await g.chat(fields=BEARER)).status for _ in range(5)]
        assert codes == [429] * 5
        assert len(a.requests) == 1
        await asyncio.sleep(20)
        assert await left(g, BEARER) == CAP
