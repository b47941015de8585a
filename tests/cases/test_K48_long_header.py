"""K48: a header line that was too long got an empty reply instead of an error.

https://github.com/eclipse-vertx/vert.x/issues/1727
"""

from __future__ import annotations

import pytest

from tests.support.builders import chat
from tests.support.client import post, request
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok
from tests.support.wire import Ended

KIB = 1024
HEADS = {
    "one long value": request("GET", "/healthz", fields={"X-Long": "a" * 128 * KIB}),
    "one long name": request("GET", "/healthz", fields={"x" * 128 * KIB: "a"}),
    "many fields": request("GET", "/healthz", fields={f"X-{n}": "a" * 100 for n in range(1200)}),
    "a long target": request("GET", "/" + "a" * 128 * KIB),
    "a POST": post(CHAT, chat(), {"X-Long": "a" * 128 * KIB}),
    "a line without end": b"GET /" + b"a" * 128 * KIB,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("size", [0, 4096], ids=["at once", "in pieces"])
async def test_a_whole_431_can_be_read_after_everything_was_written(head: bytes, size: int) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(head, size=size)
        answer = await client.response()
        assert answer.status == 431
        assert answer.error["code"] == "head_too_large"
        assert answer.field("Content-Type") == "application/json"
        assert answer.field("Connection") == "close"
        assert answer.whole
        assert await client.ended() is Ended.CLOSE
        assert a.requests == []


@pytest.mark.parametrize(("length", "status"), [(65_536, 200), (65_537, 431)])
@pytest.mark.parametrize("size", [0, 4096], ids=["at once", "in pieces"])
async def test_the_limit_is_exact(length: int, status: int, size: int) -> None:
    short = request("GET", "/healthz", fields={"X-Long": "a"})
    head = request("GET", "/healthz", fields={"X-Long": "a" * (length - len(short) + 1)})
    assert len(head) == length
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(head, size=size)
        assert (await client.response()).status == status
