"""K25: events with another label, for a client that asked for no stream, were refused as bad JSON.

https://github.com/Wei-Shaw/sub2api/issues/2826
"""

from __future__ import annotations

import pytest

from tests.integration.shapes import whole
from tests.support.builders import DONE, completion, delta, encode, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

EVENTS = delta("a") + finish() + DONE
LABELS = {
    "text/plain": "text/plain",
    "with a charset": "text/plain; charset=utf-8",
    "json": "application/json",
    "events": "text/event-stream",
    "none": None,
}

each_label = pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)


@each_label
@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.parametrize("body", [EVENTS, encode(completion())], ids=["events", "json"])
async def test_label_and_bytes_are_passed_on(
    label: str | None, stream: bool | None, body: bytes
) -> None:
    fields = [] if label is None else [("Content-Type", label)]
    more = {} if stream is None else {"stream": stream}
    async with (
        ScriptedProvider(whole(body, *fields)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", **more)
    assert answer.status == 200
    assert answer.field("Content-Type") == label
    assert answer.body == body
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"


async def test_two_lines_are_enough() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    async with (
        ScriptedProvider(whole(body, ("Content-Type", "text/plain"))) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=False)
    assert answer.body == body
    assert answer.field("Content-Length") == str(len(body))
