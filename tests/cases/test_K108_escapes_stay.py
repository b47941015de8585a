r"""K108: a proxy turned `\u000b` into the raw control byte, which no JSON string may hold.

https://github.com/ProxymanApp/Proxyman/issues/1344
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, finish
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

ESCAPES = [rb"\u000b", rb"\u0011", rb"\u2028", rb"\u0000", rb"\/", rb"\u005c\u0022", rb"\n\r\t"]

each_escape = pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.decode())


@each_escape
async def test_in_a_request_through_a_change_of_model(escape: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"k%b":1}' % (escape, escape)
    async with ScriptedProvider(scripts.ok(), model="m2") as a, gateway(config_for(a)) as g:
        await g.post(CHAT, body)
        assert a.requests[0].body == body.replace(b'"m"', b'"m2"', 1)


@each_escape
async def test_in_a_stream(escape: bytes) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % escape
    async with (
        ScriptedProvider(scripts.events(event, finish(), DONE)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == event + finish() + DONE


@each_escape
async def test_in_a_whole_answer(escape: bytes) -> None:
    body = b'{"choices":[{"message":{"content":"%b"}}]}' % escape
    async with ScriptedProvider(scripts.status(200, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.body == body


@pytest.mark.parametrize("raw", [b"\x0b", b"\x11", b"\x00", b"\n"])
async def test_a_raw_control_byte_in_a_request_is_no_json(raw: bytes) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % raw
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT, body)
        assert not a.requests
    assert answer.status == 400
    assert answer.error["code"] == "bad_request"
