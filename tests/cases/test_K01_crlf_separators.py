"""K01: a stream with CR LF line ends was not understood, and the request was silently sent again.

https://github.com/farion1231/cc-switch/issues/1787
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

LINES = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}',
    b"",
    b"data: [DONE]",
    b"",
    b"",
)


@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r"], ids=["CR LF", "LF", "CR"])
@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_every_line_end_is_one_and_nothing_is_asked_twice(end: bytes, commit: str) -> None:
    body = end.join(LINES)
    async with (
        ScriptedProvider(scripts.events(body)) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi", stream=True)
        assert len(a.requests) == 1
    assert answer.body == body
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"
    assert g.exchange["events"] == 2
