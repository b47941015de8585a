"""K20: a failover after bytes were sent spliced two streams into one.

https://github.com/Wei-Shaw/sub2api/pull/1007
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import (
    delta,
    error_event,
    event,
    messages,
    messages_event,
    messages_stream,
)
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

ERRORS = {
    "named": b"event: error\n" + error_event("x"),
    "without a name": error_event("x"),
    "by its type": event({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("end", [True, False], ids=["ended", "left open"])
async def test_the_error_event_is_passed_on_and_nobody_else_is_asked(
    error: bytes, end: bool
) -> None:
    events = [delta("a"), delta("b"), error]
    async with (
        ScriptedProvider(scripts.events(*events, end=end), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
        assert b.connections == 0
    assert answer.body == b"".join(events)
    assert answer.field("X-Gateway-Provider") == "a"
    assert g.exchange["end_reason"] == "upstream_error_event"


async def test_one_message_start_reaches_an_anthropic_client() -> None:
    surfaces = ["messages"]
    begun = messages_stream("one")[:4]
    error = messages_event("error", error={"type": "overloaded_error", "message": "x"})
    async with (
        ScriptedProvider(scripts.events(*begun, error), name="a", surfaces=surfaces) as a,
        ScriptedProvider(scripts.events(*messages_stream("two")), name="b", surfaces=surfaces) as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.post("/v1/messages", messages(stream=True))
        assert b.connections == 0
    assert answer.body == b"".join([*begun, error])
    assert answer.body.count(b'"message_start"') == 1
