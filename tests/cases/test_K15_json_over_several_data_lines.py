"""K15: an event whose JSON is spread over several data lines was parsed line by line, and lost.

https://github.com/NOirBRight/CodexHub/issues/20
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, delta
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

SPREAD = b'data: {"error":\ndata: {"message":"x","code":"overloaded"}}\n\n'
ERRORS = {
    "named": b"event: error\n" + SPREAD,
    "without a name": SPREAD,
    "with CR LF": SPREAD.replace(b"\n", b"\r\n"),
    "without the space": SPREAD.replace(b"data: ", b"data:"),
    "name behind the data": SPREAD[:-1] + b"event: error\n\n",
}

each_error = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


@each_error
async def test_as_the_first_event_it_fails_over(error: bytes) -> None:
    async with (
        ScriptedProvider(scripts.events(error), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"
    assert b"overloaded" not in answer.body
    assert g.exchange["attempts"][0]["outcome"] == "error_answer"


@each_error
async def test_later_its_raw_bytes_are_passed_on(error: bytes) -> None:
    async with (
        ScriptedProvider(scripts.events(delta("a"), error)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == delta("a") + error
    assert g.exchange["end_reason"] == "upstream_error_event"


async def test_content_that_is_spread_counts_as_content() -> None:
    spread = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"a"}}]}\n\n'
    async with (
        ScriptedProvider(scripts.events(spread, DONE)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == spread + DONE
    assert g.exchange["end_reason"] == "complete"
