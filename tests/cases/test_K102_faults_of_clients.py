"""K102: one client's bad requests, and rate limits, drove the health of a provider down.

https://github.com/rpcplane/rpc-plane/pull/18
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import breakers
from tests.support.builders import error_object
from tests.support.provider import Peer, Request
from tests.support.scripts import ok, status

MANY = 50

FAULTS = [400, 404, 405, 409, 410, 413, 418, 422, 451]


@pytest.mark.parametrize("code", FAULTS)
async def test_request_faults_are_the_clients_and_the_provider_stays(code: int) -> None:
    async with breakers.relay(status(code), second=ok("from b")) as (g, a):
        codes = [(await g.chat()).status for _ in range(MANY)]
        assert codes == [code] * MANY
        assert len(a.requests) == MANY
        assert await breakers.state(g) == "closed"
        a.scripts = [ok("from a")]
        assert (await g.chat()).field("X-Gateway-Provider") == "a"


async def test_one_bad_client_takes_no_provider_from_the_others() -> None:
    async def by_text(peer: Peer, request: Request) -> None:
        bad = request.json()["messages"][0]["content"] == "bad"
        await (status(422) if bad else ok())(peer, request)

    async with breakers.relay(by_text) as (g, _):
        texts = ["bad", "good"] * MANY
        answers = await asyncio.gather(*[g.chat(text) for text in texts])
        assert [answer.status for answer in answers] == [422, 200] * MANY
        assert breakers.changes(g) == []


async def test_a_rate_limit_is_a_rest_as_long_as_it_says_and_no_failure() -> None:
    limited = status(429, fields=[("Retry-After", "20")])
    async with breakers.relay(limited, ok("from a"), second=ok("from b")) as (g, a):
        for _ in range(MANY):
            assert (await g.chat()).field("X-Gateway-Provider") == "b"
        assert len(a.requests) == 1
        told = await breakers.told(g)
        assert told["state"] == "closed"
        assert told["retry_in"] == pytest.approx(20, abs=0.5)
        await asyncio.sleep(20)
        assert (await g.chat()).field("X-Gateway-Provider") == "a"


async def test_rate_limits_one_after_the_other_never_open() -> None:
    async with breakers.relay(status(429)) as (g, a):
        for _ in range(MANY):
            assert (await g.chat()).error["code"] == "upstream_rate_limited"
            await asyncio.sleep(1)
        assert len(a.requests) == MANY
        assert breakers.changes(g) == []


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key_is_relayds_fault_and_no_failure(code: int) -> None:
    wrong = status(code, error_object("no such key", "invalid_api_key"))
    async with breakers.relay(wrong) as (g, a):
        for _ in range(MANY):
            answer = await g.chat()
            assert (answer.status, answer.error["code"]) == (502, "provider_auth")
        assert len(a.requests) == MANY
        assert await breakers.state(g) == "closed"
        lines = [line for line in g.log if line.get("event") == "attempt_failed"]
        assert {(line["level"], line["provider"]) for line in lines} == {("error", "a")}
