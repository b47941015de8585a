"""K30: any two bytes were taken for the end of a chunk, and requests smuggled (CVE-2025-43859).

https://github.com/i-am-bee/beeai-code-interpreter/issues/26
"""

from __future__ import annotations

import importlib.metadata

import pytest

from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok
from tests.support.wire import Ended

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
BODIES = {
    "two strange bytes": b"5\r\nAAAAAXX2\r\n45\r\n0\r\n\r\n",
    "a bare LF": b"5\r\nAAAAA\n2\r\n45\r\n0\r\n\r\n",
    "a bare CR": b"5\r\nAAAAA\rX2\r\n45\r\n0\r\n\r\n",
    "no hexadecimal size": b"5g\r\nAAAAA\r\n0\r\n\r\n",
    "a sign": b"+5\r\nAAAAA\r\n0\r\n\r\n",
    "a size without end": b"5" * 2000,
    "a size of 65 bits": b"10000000000000000\r\n",
    "LF behind the size": b"5\nAAAAA\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("size", [0, 1], ids=["one read", "byte by byte"])
async def test_it_is_a_400_and_a_close_and_nothing_is_asked(body: bytes, size: int) -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(HEAD + body + SMUGGLED, size=size)
        answer = await client.response("POST")
        assert answer.status == 400
        assert answer.error["code"] == "bad_request"
        assert answer.field("Connection") == "close"
        client.half_close()
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []


def test_the_fault_of_the_library_is_excluded_by_its_version() -> None:
    pins = importlib.metadata.requires("relayd") or []
    assert any(pin.replace(" ", "").startswith("h11") and ">=0.16" in pin for pin in pins)
