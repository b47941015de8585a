"""K36: a 103 was taken for the final answer.

https://github.com/snoyberg/http-client/issues/521
"""

from __future__ import annotations

import pytest

from tests.support.builders import chat, completion, encode
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, raw

EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY = encode(completion())
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
LIMITED = b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n"

each_size = pytest.mark.parametrize("size", [0, 1], ids=["one read", "byte by byte"])
each_version = pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
each_commit = pytest.mark.parametrize("commit", ["head", "content", "answer"])


@each_size
@each_version
@each_commit
async def test_the_final_head_reaches_the_client_and_no_other(
    size: int, version: bytes, commit: str
) -> None:
    async with (
        ScriptedProvider(raw(EARLY + CONTINUE + FINAL, size=size)) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, chat()).replace(b"HTTP/1.1", version, 1))
        answer = await client.response("POST")
    assert answer.status == 200
    assert answer.informational == []
    assert answer.field("Link") is None
    assert answer.body == BODY


@each_commit
async def test_a_429_behind_it_still_fails_over(commit: str) -> None:
    async with (
        ScriptedProvider(raw(EARLY + LIMITED), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi")
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["status"] == 429


async def test_it_does_not_end_the_wait_for_the_first_content() -> None:
    async with (
        ScriptedProvider(raw(EARLY, then="stall"), name="a", first_content=3.0) as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"
    assert g.exchange["attempts"][0]["outcome"] == "first_content_timeout"


@pytest.mark.parametrize(("count", "shown"), [(10, 200), (11, 502)])
async def test_ten_of_them_are_read(count: int, shown: int) -> None:
    async with ScriptedProvider(raw(EARLY * count + FINAL)) as a, gateway(config_for(a)) as g:
        assert (await g.chat("hi")).status == shown


async def test_a_switch_of_protocols_is_a_failed_attempt() -> None:
    switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"
    async with (
        ScriptedProvider(raw(switching + FINAL)) as a,
        gateway(config_for(a)) as g,
    ):
        assert (await g.chat("hi")).status == 502
        assert a.open == 0
