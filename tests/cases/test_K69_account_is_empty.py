"""K69: a provider told of an empty account, was treated as answering, and kept getting traffic.

https://github.com/BerriAI/litellm/pull/16092
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import scripts
from tests.support.builders import error_object
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

QUOTA = error_object("You exceeded your current quota", "insufficient_quota")
TYPED = {"error": {"message": "no credit", "type": "insufficient_quota", "code": None}}
LOW = {
    "type": "error",
    "error": {"type": "invalid_request_error", "message": "Your credit balance is too low"},
}
EMPTY = {"402": (402, LOW), "429 by code": (429, QUOTA), "429 by type": (429, TYPED)}

each_empty = pytest.mark.parametrize(("status", "body"), EMPTY.values(), ids=EMPTY)


@each_empty
async def test_another_provider_takes_over_and_the_first_one_rests_for_300_s(
    status: int, body: object
) -> None:
    async with (
        ScriptedProvider(scripts.status(status, body), scripts.ok(), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answers = [await g.chat("hi"), await g.chat("hi")]
        await asyncio.sleep(299)
        answers.append(await g.chat("hi"))
        assert len(a.requests) == 1
        await asyncio.sleep(2)
        answers.append(await g.chat("hi"))
    assert [answer.field("X-Gateway-Provider") for answer in answers] == ["b", "b", "b", "a"]
    assert g.exchanges[0]["attempts"][0]["outcome"] == "out_of_credit"


@each_empty
async def test_a_short_retry_after_does_not_end_that_rest(status: int, body: object) -> None:
    empty = scripts.status(status, body, [("Retry-After", "1")])
    async with (
        ScriptedProvider(empty, name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, failover={"retries": 2})) as g,
    ):
        await g.chat("hi")
        await asyncio.sleep(60)
        await g.chat("hi")
        assert len(a.requests) == 1


@each_empty
async def test_it_counts_for_no_breaker(status: int, body: object) -> None:
    async with (
        ScriptedProvider(scripts.status(status, body), name="a") as a,
        gateway(config_for(a, breaker={"failures": 1})) as g,
    ):
        await g.chat("hi")
        health = (await g.get("/health")).json()
    assert "open" not in str(health)


async def test_an_empty_account_as_a_400_crosses_as_a_request_fault() -> None:
    async with (
        ScriptedProvider(scripts.status(400, LOW), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
        assert not b.requests
    assert answer.status == 400
    assert answer.error["message"] == "Your credit balance is too low"


async def test_a_named_code_makes_that_400_move_on() -> None:
    named = {"error": {"type": "x", "message": "no credit", "code": "credit_too_low"}}
    async with (
        ScriptedProvider(scripts.status(400, named), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, failover={"codes": ["credit_too_low"]})) as g,
    ):
        answer = await g.chat("hi")
    assert answer.field("X-Gateway-Provider") == "b"


async def test_where_all_accounts_are_empty_a_429_says_when_to_come_back() -> None:
    async with (
        ScriptedProvider(scripts.status(429, QUOTA), name="a") as a,
        ScriptedProvider(scripts.status(429, QUOTA), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 429
    assert answer.error["code"] == "upstream_rate_limited"
    assert answer.field("Retry-After") == "300"


async def test_where_the_only_account_wants_payment_the_client_is_not_asked_to_pay() -> None:
    async with ScriptedProvider(scripts.status(402, LOW)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"
