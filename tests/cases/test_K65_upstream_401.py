"""K65: a provider's 401 went to the client as its own, and no fallback was tried.

https://github.com/mnfst/llm-gateway/issues/1986
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import error_object
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import ScriptedProvider

WORDS = error_object("Incorrect API key provided: sk-own-key-of-relayd", "invalid_api_key")

each_status = pytest.mark.parametrize("status", [401, 403])


def refuses(status: int, name: str) -> ScriptedProvider:
    return ScriptedProvider(scripts.status(status, WORDS), name=name)


def errors_of(g: Gateway) -> list[str]:
    return [line["provider"] for line in g.log if line.get("level") == "error"]


@each_status
async def test_by_default_nobody_else_is_asked_and_the_client_hears_502(status: int) -> None:
    async with (
        refuses(status, "a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
        assert not b.requests
    assert answer.status == 502
    assert answer.error["code"] == "provider_auth"
    assert "sk-" not in answer.text
    assert errors_of(g) == ["a"]


@each_status
async def test_with_failover_of_credentials_the_next_one_answers(status: int) -> None:
    async with (
        refuses(status, "a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, failover={"credentials": True})) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 200
    assert answer.field("X-Gateway-Provider") == "b"
    assert errors_of(g) == ["a"]


@each_status
async def test_where_all_refuse_the_client_is_not_told_that_its_own_key_is_wrong(
    status: int,
) -> None:
    async with (
        refuses(status, "a") as a,
        refuses(status, "b") as b,
        gateway(config_for(a, b, failover={"credentials": True})) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 502
    assert answer.error["code"] == "provider_auth"
    assert answer.field("WWW-Authenticate") is None
    assert errors_of(g) == ["a", "b"]


async def test_a_refused_key_does_not_open_the_breaker() -> None:
    async with (
        refuses(401, "a") as a,
        gateway(config_for(a, breaker={"failures": 1})) as g,
    ):
        answers = [await g.chat("hi") for _ in range(3)]
        assert len(a.requests) == 3
    assert {answer.error["code"] for answer in answers} == {"provider_auth"}
