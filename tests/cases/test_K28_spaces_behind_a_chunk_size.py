"""K28: spaces behind a chunk size, which some providers pad with, broke the parser.

https://github.com/python-hyper/h11/issues/133
"""

from __future__ import annotations

import pytest

from tests.support.builders import completion, encode
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import raw

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

each_size = pytest.mark.parametrize("size", [0, 1], ids=["one read", "byte by byte"])


@each_size
async def test_the_answer_is_taken_and_framed_anew(size: int) -> None:
    answer_bytes = HEAD + b"5  \r\nhello\r\n0\r\n\r\n"
    async with (
        ScriptedProvider(raw(answer_bytes, size=size)) as a,
        gateway(config_for(a, routing={"commit": "head"})) as g,
    ):
        answer = await g.chat("hi")
    assert answer.body == b"hello"
    assert answer.whole


@each_size
@pytest.mark.parametrize("pad", [b"  ", b"\t", b";x=y", b" ; x", b""])
async def test_so_it_is_with_extensions_and_zeros(size: int, pad: bytes) -> None:
    body = encode(completion())
    chunks = b"%04X%b\r\n%b\r\n000%b\r\nX-Trailer: 1\r\n\r\n" % (len(body), pad, body, pad)
    async with (
        ScriptedProvider(raw(HEAD + chunks, size=size)) as a,
        gateway(config_for(a)) as g,
    ):
        for _ in range(2):
            answer = await g.chat("hi")
            assert answer.body == body
            assert answer.field("Content-Length") == str(len(body))
            assert answer.field("X-Trailer") is None
        assert a.connections == 1  # whoever pads is understood well enough to be asked again


@pytest.mark.parametrize("line", [b" 5", b"0x5", b"5 5", b"-5", b"+5", b"", b"5;\n", b"5\n"])
async def test_a_size_that_two_readers_could_read_differently_is_refused(line: bytes) -> None:
    async with (
        ScriptedProvider(raw(HEAD + line + b"\r\nhello\r\n0\r\n\r\n", then="stall")) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 502
    assert g.exchange["attempts"][0]["outcome"] == "bad_response"
