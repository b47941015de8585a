"""Providers that mean harm, or answer as if they did.

What the answers of ordinary providers come to is `test_outcomes`' and `test_after_the_commit`'s.
"""

from __future__ import annotations

import pytest

from relayd.peek import MAX_PEEK
from tests.support.builders import DONE, delta, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import events


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b" "])
async def test_a_stream_behind_many_blanks_is_watched_like_any_other(blank: bytes) -> None:
    blanks = blank * MAX_PEEK
    cut = events(blanks, b"\n", delta("a"), delta("b"))
    whole = events(blanks, b"\n", delta("a"), finish(), DONE)
    async with ScriptedProvider(cut, whole) as a, gateway(config_for(a)) as g:
        answer = await g.chat(stream=True)
        assert '"code":"upstream_truncated"' in answer.text
        assert g.exchanges[-1]["end_reason"] == "upstream_truncated"
        assert (await g.chat(stream=True)).body.endswith(DONE)
        assert g.exchanges[-1]["end_reason"] == "complete"


async def test_nothing_but_blanks_is_never_a_complete_answer() -> None:
    async with ScriptedProvider(events(b"\n" * 2 * MAX_PEEK)) as a, gateway(config_for(a)) as g:
        await g.chat(stream=True)
        assert g.exchange["end_reason"] != "complete"
