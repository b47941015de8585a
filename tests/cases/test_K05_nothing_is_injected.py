"""K05: a keep-alive that the gateway put into the stream made an SDK read an empty event.

https://github.com/theopenco/llmgateway/pull/2334
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, chat, delta, finish
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider

EVENTS = [b"id: 1\n" + delta("a"), b"id: 2\n" + delta("b"), finish(), DONE]


@pytest.mark.parametrize("silence", [20.0, 55.0])
@pytest.mark.parametrize("commit", ["head", "content"])
async def test_a_silent_provider_makes_no_byte_of_our_own(silence: float, commit: str) -> None:
    async with (
        ScriptedProvider(scripts.events(*EVENTS, delay=silence)) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        with takes(3 * silence):
            answer = await g.chat("hi", stream=True)
    assert answer.body == b"".join(EVENTS)
    assert answer.whole


async def test_the_wait_for_the_first_content_makes_none_either() -> None:
    async with (
        ScriptedProvider(scripts.slow(50.0, scripts.events(*EVENTS))) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        with takes(50.0):
            answer = await client.open_stream(CHAT, chat(stream=True))
        assert answer.informational == []
        assert (await answer.read()).body == b"".join(EVENTS)
