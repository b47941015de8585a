"""K58: status 529 was in no list of statuses to move on from, so the fallback never came.

https://github.com/openclaw/openclaw/issues/49079
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

FAILURES = [500, 501, 502, 503, 504, 511, 520, 521, 522, 523, 524, 529, 530, 599]

every_failure = pytest.mark.parametrize("status", FAILURES)


@every_failure
async def test_every_status_from_500_on_is_a_failure_of_the_provider(status: int) -> None:
    async with (
        ScriptedProvider(scripts.status(status), name="a") as a,
        ScriptedProvider(scripts.ok("hello"), name="b") as b,
        gateway(config_for(a, b, breaker={"failures": 1})) as g,
    ):
        answers = [await g.chat("hi"), await g.chat("hi")]
        assert len(a.requests) == 1, "expected the breaker to be open after one failure"
    assert [answer.field("X-Gateway-Provider") for answer in answers] == ["b", "b"]
    first = g.exchanges[0]["attempts"][0]
    assert (first["outcome"], first["status"]) == ("server_error", status)


@every_failure
async def test_without_another_provider_the_client_gets_502(status: int) -> None:
    failing = scripts.status(status, fields=[("Retry-After", "7")])
    async with ScriptedProvider(failing) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"


async def test_a_status_without_a_body_and_with_a_reason_of_its_own_fails_over_too() -> None:
    site = b"HTTP/1.1 529 Site Overloaded\r\nContent-Length: 0\r\n\r\n"
    async with (
        ScriptedProvider(scripts.raw(site), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.field("X-Gateway-Provider") == "b"
