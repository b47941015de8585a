"""K68: a provider's 413 became 502 "try later", and clients retried what can never work.

https://github.com/faratech/bsod-analyzer/issues/53
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import error_object
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

TOO_LONG = error_object("the context is too long", "context_length_exceeded")
FAULTS = {
    "413": (413, error_object("too large", "request_too_large")),
    "422": (422, error_object("unprocessable", "invalid_value")),
    "400": (400, error_object("bad", "invalid_value")),
    "404": (404, error_object("no such model", "model_not_found")),
    "409": (409, error_object("conflict", None)),
    "context length": (400, TOO_LONG),
}

each_fault = pytest.mark.parametrize(("status", "body"), FAULTS.values(), ids=FAULTS)


@each_fault
async def test_it_crosses_with_its_status_and_nobody_else_is_asked(
    status: int, body: dict[str, dict[str, object]]
) -> None:
    async with (
        ScriptedProvider(scripts.status(status, body), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, failover={"codes": [], "retries": 3})) as g,
    ):
        answer = await g.chat("hi")
        assert [len(a.requests), len(b.requests)] == [1, 0]
    assert answer.status == status
    assert answer.error == body["error"]
    assert g.exchange["end_reason"] == "request_fault"


@each_fault
async def test_the_breaker_is_untouched(status: int, body: object) -> None:
    async with (
        ScriptedProvider(scripts.status(status, body)) as a,
        gateway(config_for(a, breaker={"failures": 1})) as g,
    ):
        assert [(await g.chat("hi")).status for _ in range(3)] == [status] * 3
        assert len(a.requests) == 3


@each_fault
async def test_the_turn_is_given_back(status: int, body: object) -> None:
    async with (
        ScriptedProvider(scripts.status(status, body), scripts.ok()) as a,
        gateway(config_for(a, quota={"daily_turns": 1})) as g,
    ):
        assert [(await g.chat("hi")).status for _ in range(2)] == [status, 200]
    assert [line["turn"] for line in g.exchanges] == ["refunded", "charged"]


async def test_a_context_that_is_too_long_is_tried_elsewhere_by_default() -> None:
    async with (
        ScriptedProvider(scripts.status(400, TOO_LONG), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, breaker={"failures": 1})) as g,
    ):
        answers = [await g.chat("hi") for _ in range(2)]
        assert len(a.requests) == 2, "expected no blame for it"
    assert [answer.field("X-Gateway-Provider") for answer in answers] == ["b", "b"]


async def test_a_context_too_long_for_all_crosses_as_what_it_is() -> None:
    async with (
        ScriptedProvider(scripts.status(400, TOO_LONG), name="a") as a,
        ScriptedProvider(scripts.status(400, TOO_LONG), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
