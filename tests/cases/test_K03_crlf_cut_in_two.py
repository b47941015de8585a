"""K03: a CR LF pair that two reads cut in the middle was counted as two line ends, or missed.

https://github.com/withastro/flue/pull/215
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

FIRST = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}'
BARE = b'data: {"a":1}'
LAST = b"\ndata: [DONE]\r\n\r\n"


def cuts(first: bytes) -> dict[str, list[bytes]]:
    body = first + b"\r\n\r" + LAST
    return {
        "between the pairs' halves": [first + b"\r", b"\n\r", LAST],
        "before each half": [first, b"\r", b"\n", b"\r", LAST],
        "byte by byte": [body[at : at + 1] for at in range(len(body))],
    }


@pytest.mark.parametrize("how", cuts(b""))
async def test_the_client_gets_the_same_bytes_and_two_events_are_counted(how: str) -> None:
    pieces = cuts(FIRST)[how]
    async with (
        ScriptedProvider(scripts.events(*pieces, delay=0.05)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == FIRST + b"\r\n\r" + LAST
    assert answer.whole
    assert g.exchange["events"] == 2
    assert g.exchange["end_reason"] == "complete"


@pytest.mark.parametrize("how", cuts(b""))
async def test_events_without_content_are_counted_alike_when_the_head_commits(how: str) -> None:
    async with (
        ScriptedProvider(scripts.events(*cuts(BARE)[how], delay=0.05)) as a,
        gateway(config_for(a, routing={"commit": "head"})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == BARE + b"\r\n\r" + LAST
    assert g.exchange["events"] == 2
    assert g.exchange["end_reason"] == "complete"


@pytest.mark.parametrize("size", [0, 1], ids=["at the CR", "byte by byte"])
async def test_half_a_line_end_does_not_end_the_event_it_is_in(size: int) -> None:
    # The line feed that follows in the next read would be an empty line if it counted again.
    spread = b'data: {"choices":[\r\ndata: {"index":0,"delta":{"content":"a"}}]}\r\n\r\n'
    body = spread + LAST[1:]
    at = body.index(b"\n")
    pieces = [body[n : n + 1] for n in range(len(body))] if size else [body[:at], body[at:]]
    async with (
        ScriptedProvider(scripts.events(*pieces, delay=0.05)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == body
    assert answer.whole
    assert g.exchange["events"] == 2
