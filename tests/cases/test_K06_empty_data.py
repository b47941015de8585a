"""K06: an event with empty data was parsed as JSON, and the stream taken for broken.

https://github.com/caozhiyuan/copilot-api/pull/88
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.builders import DONE, PING, chat, delta, finish
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

EMPTY = {
    "a named ping": b"event: ping\ndata: \n\n",
    "no space": b"data:\n\n",
    "no colon": b"data\n\n",
    "two empty lines of data": b"data:\ndata:\n\n",
    "only an id": b"id: 7\n\n",
}

each_empty = pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY)


@each_empty
async def test_it_is_passed_on_untouched_and_says_nothing(empty: bytes) -> None:
    events = [PING, empty, delta("a"), empty, delta("b"), finish(), empty, DONE]
    async with (
        ScriptedProvider(scripts.events(*events)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
        assert len(a.requests) == 1
    assert answer.body == b"".join(events)
    assert g.exchange["end_reason"] == "complete"
    assert g.exchange["attempts"][0]["outcome"] == "ok"


@each_empty
async def test_it_is_no_content_so_a_stream_of_them_is_no_answer(empty: bytes) -> None:
    async with (
        ScriptedProvider(scripts.events(empty, empty), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"


async def test_the_event_that_relayd_writes_itself_has_data() -> None:
    async with (
        ScriptedProvider(scripts.breaks_off(delta("a"), EMPTY["no space"], then="fin")) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(CHAT, chat(stream=True))
        events = await answer.events()
    assert json.loads(events[-1].data)["error"]["code"] == "upstream_truncated"
