"""K14: a byte order mark became part of the first field's name, and the first event was lost.

https://github.com/openai/openai-python/pull/3819
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, delta, error_event, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

BOM = b"\xef\xbb\xbf"


def cuts(event: bytes) -> dict[str, list[bytes]]:
    return {
        "one read": [BOM + event],
        "apart": [BOM, event],
        "in three": [BOM[:1], BOM[1:2], BOM[2:], event],
        "in the middle": [BOM[:2], BOM[2:] + event],
    }


each_cut = pytest.mark.parametrize("how", cuts(b""))


@each_cut
async def test_an_error_behind_it_is_still_an_error(how: str) -> None:
    async with (
        ScriptedProvider(scripts.events(*cuts(error_event())[how], delay=0.01), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"
    assert BOM not in answer.body
    assert g.exchange["attempts"][0]["outcome"] == "error_answer"


@each_cut
async def test_it_is_passed_on(how: str) -> None:
    pieces = [*cuts(delta("a"))[how], finish(), DONE]
    async with (
        ScriptedProvider(scripts.events(*pieces, delay=0.01)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == BOM + delta("a") + finish() + DONE
    assert g.exchange["events"] == 3


async def test_only_one_is_stripped() -> None:
    # The second one is part of a field's name, so this event is none.
    async with (
        ScriptedProvider(scripts.events(BOM + BOM + error_event(), delta("a"), DONE)) as a,
        gateway(config_for(a, routing={"commit": "head"})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"
