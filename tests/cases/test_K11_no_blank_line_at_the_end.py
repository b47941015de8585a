"""K11: the last event without its blank line was dropped, and with it the finish.

https://github.com/openai/openai-node/issues/2725
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, delta, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

ENDS = {"a blank line": b"\n\n", "one line end": b"\n", "none": b"", "a CR": b"\r"}

each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)


@each_end
@pytest.mark.parametrize("last", [finish(), DONE], ids=["finish", "done"])
@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_the_stream_is_complete_and_nothing_is_added(
    end: bytes, last: bytes, commit: str
) -> None:
    body = delta("a") + last.rstrip(b"\n") + end
    async with (
        ScriptedProvider(scripts.events(delta("a"), last.rstrip(b"\n") + end)) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == body
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"


@each_end
async def test_it_may_be_the_only_event_too(end: bytes) -> None:
    body = finish("length").rstrip(b"\n") + end
    async with (
        ScriptedProvider(scripts.events(body)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == body
    assert answer.whole
    assert g.exchange["finish_reason"] == "length"


async def test_the_end_of_the_connection_flushes_it_as_well() -> None:
    body = delta("a") + finish().rstrip(b"\n")
    async with (
        ScriptedProvider(scripts.events(body, chunked=False)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == body
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"


async def test_an_event_that_is_cut_in_its_json_is_no_finish() -> None:
    cut = finish()[:-10]
    async with (
        ScriptedProvider(scripts.events(delta("a"), cut)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == delta("a") + cut
    assert not answer.whole
    assert g.exchange["end_reason"] == "upstream_truncated"
