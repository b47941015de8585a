"""K12: U+2028 and its like inside JSON cut the line, so the finish and the usage were missed.

https://github.com/Soju06/codex-lb/issues/1010
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

SIGNS = {
    "U+2028": "\u2028",
    "U+2029": "\u2029",
    "U+0085": "\u0085",
    "VT": "\x0b",
    "FF": "\x0c",
    "FS": "\x1c",
    "all": "\u2028b\u0085c\u2029\x0b\x0c\x1c\x1d\x1e",
}


@pytest.mark.parametrize("sign", SIGNS.values(), ids=SIGNS)
@pytest.mark.parametrize("size", [0, 1], ids=["one read", "byte by byte"])
async def test_what_python_calls_a_line_end_is_text(sign: str, size: int) -> None:
    body = (
        'data: {"choices":[{"delta":{"content":"a' + sign + 'c"},"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
    ).encode()
    pieces = [body[at : at + 1] for at in range(len(body))] if size else [body]
    async with (
        ScriptedProvider(scripts.events(*pieces, DONE)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == body + DONE
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"
    assert g.exchange["finish_reason"] == "stop"
    assert g.exchange["usage"]["output"] == 5


async def test_the_finish_alone_completes_the_stream() -> None:
    body = 'data: {"choices":[{"delta":{"content":"a\u2028b\u0085c"},"finish_reason":"stop"}]}\n\n'
    async with (
        ScriptedProvider(scripts.events(body.encode())) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == body.encode()
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"
    assert g.exchange["events"] == 1
