"""K127: a 307 or 308 to another host sent the Authorization field, and the prompt, there.

https://github.com/forwardemail/superagent/issues/1844
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

STATUSES = [300, 301, 302, 303, 304, 305, 307, 308, 399]

each_status = pytest.mark.parametrize("status", STATUSES)


def redirect(status: int, location: str) -> scripts.Script:
    fields = f"Location: {location}\r\nRefresh: 0; url={location}\r\n"
    length = "" if status == 304 else "Content-Length: 0\r\n"
    return scripts.raw(f"HTTP/1.1 {status} Moved\r\n{fields}{length}\r\n".encode())


@each_status
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_nobody_follows_it_and_the_next_provider_answers(status: int, host: str) -> None:
    async with ScriptedProvider(scripts.ok("evil"), name="evil") as evil:
        target = f"http://{host}:{evil.address[1]}/v1/chat/completions"
        async with (
            ScriptedProvider(redirect(status, target), name="a", key_env="KEY") as a,
            ScriptedProvider(scripts.ok("good"), name="b") as b,
            gateway(config_for(a, b), environ={"KEY": "sk-the-key-0001"}) as g,
        ):
            answer = await g.chat("hi")
            assert a.connections == 1
        assert evil.connections == 0
    assert answer.field("X-Gateway-Provider") == "b"
    assert answer.field("Location") is None
    assert g.exchange["attempts"][0]["outcome"] == "redirect"


@each_status
async def test_without_another_provider_it_is_502_and_the_location_is_not_shown(
    status: int,
) -> None:
    async with (
        ScriptedProvider(redirect(status, "http://evil.test/")) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"
    assert "evil" not in str(answer.fields) + answer.text + json.dumps(g.log)


@each_status
async def test_it_counts_for_the_breaker(status: int) -> None:
    async with (
        ScriptedProvider(redirect(status, "/elsewhere"), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, breaker={"failures": 1})) as g,
    ):
        await g.chat("hi")
        await g.chat("hi")
        assert len(a.requests) == 1


async def test_where_redirects_do_not_move_on_the_client_still_gets_no_3xx() -> None:
    async with (
        ScriptedProvider(redirect(307, "http://evil.test/"), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b, failover={"statuses": ["5xx"]})) as g,
    ):
        answer = await g.chat("hi")
        assert not b.requests
    assert answer.status == 502
    assert answer.field("Location") is None


@pytest.mark.parametrize("status", [200, 201])
async def test_the_location_of_an_answer_is_not_shown_either(status: int) -> None:
    async with (
        ScriptedProvider(scripts.status(status, {"choices": []}, [("Location", "/x")])) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == status
    assert answer.field("Location") is None
