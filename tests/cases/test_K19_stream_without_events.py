"""K19: a stream with no event at all ended as a success with nothing in it.

https://github.com/Wei-Shaw/sub2api/pull/6298
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, PING, chunk, role, usage
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

NOTHING = {
    "no byte": [],
    "only comments": [PING, b": still here\n\n"],
    "only blank lines": [b"\n\n", b"\r\n"],
    "only a role": [role()],
    "only [DONE]": [DONE],
    "only usage": [usage(), DONE],
    "only empty choices": [chunk([])],
}

each_nothing = pytest.mark.parametrize("events", NOTHING.values(), ids=NOTHING)
each_framing = pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "close"])


@each_nothing
@each_framing
async def test_the_next_provider_is_asked(events: list[bytes], chunked: bool) -> None:
    async with (
        ScriptedProvider(scripts.events(*events, chunked=chunked), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.status == 200
    assert answer.field("X-Gateway-Provider") == "b"
    assert answer.field("X-Gateway-Attempts") == "2"
    assert g.exchange["attempts"][0]["outcome"] == "no_answer"


@each_nothing
@each_framing
async def test_as_the_last_one_it_is_a_502_and_costs_no_turn(
    events: list[bytes], chunked: bool
) -> None:
    async with (
        ScriptedProvider(scripts.events(*events, chunked=chunked)) as a,
        gateway(config_for(a, quota={"daily_turns": 1})) as g,
    ):
        for _ in range(2):
            answer = await g.chat("hi", stream=True)
            assert answer.status == 502
            assert answer.error["code"] == "upstream_error"
            assert answer.field("Content-Type") == "application/json"
    assert {line["turn"] for line in g.exchanges} == {"refunded"}
