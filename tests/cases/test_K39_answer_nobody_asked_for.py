"""K39: a second answer that was left on the connection went to the next user.

https://github.com/lysine-dev/okhttp/issues/9726
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.builders import DONE, completion, delta, encode
from tests.support.certificates import Authority
from tests.support.gateway import config_for, gateway
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import ok

SECRET = encode(completion("SECRET"))
EXTRA = {
    "a whole answer": b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(SECRET), SECRET),
    "the beginning of one": b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nSEC",
    "one byte": b"\n",
    "a CR LF": b"\r\n",
}
BODY = encode(completion("mine"))
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    len(delta("mine") + DONE),
    delta("mine") + DONE,
)
ERROR = b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}"

each_extra = pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA)
each_first = pytest.mark.parametrize(
    ("first", "stream"),
    [(WHOLE, False), (STREAM, True), (STREAM, False), (ERROR, False)],
    ids=["whole", "stream", "chunks held whole", "error"],
)


def answers(first: bytes, extra: bytes, after: float | None) -> Script:
    """The answer, and bytes more: in the same write, or `after` seconds."""

    async def script(peer: Peer, _: Request) -> None:
        if after is None:
            await peer.send(first + extra)
        else:
            await peer.send(first)
            await asyncio.sleep(after)
            await peer.send(extra)

    return script


async def test_what_is_no_answer_may_not_be_the_one_to_this_request() -> None:
    stray = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n<html>!</html>"

    async def shifted(peer: Peer, _: Request) -> None:
        await peer.send(stray)
        await asyncio.sleep(0.05)  # by then the next user's request may be on its way
        await peer.send(WHOLE.replace(b"mine", b"hers"))

    async with (
        ScriptedProvider(ok("first"), shifted, ok("mine"), name="a") as a,
        ScriptedProvider(ok("backup"), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        said = [(await g.chat("hi")).json()["choices"][0]["message"]["content"] for _ in range(3)]
        assert said == ["first", "backup", "mine"]
        assert [request.connection for request in a.requests] == [0, 0, 1]


@each_extra
@each_first
@pytest.mark.parametrize("after", [None, 0.0, 0.2])
async def test_the_next_user_gets_the_next_answer(
    extra: bytes, first: bytes, stream: bool, after: float | None
) -> None:
    async with (
        ScriptedProvider(answers(first, extra, after), ok("yours")) as a,
        gateway(config_for(a)) as g,
    ):
        await g.chat("hi", stream=stream)
        await asyncio.sleep(0.5)
        answer = await g.chat("hi")
        assert [request.connection for request in a.requests] == [0, 1]
    assert answer.status == 200
    assert b"yours" in answer.body
    assert b"SEC" not in answer.body


@each_extra
async def test_bytes_that_come_together_with_the_next_request_are_not_its_answer(
    extra: bytes,
) -> None:
    taken = asyncio.Event()

    async def script(peer: Peer, _: Request) -> None:
        await peer.send(WHOLE)
        await taken.wait()
        await peer.send(extra)

    async with ScriptedProvider(script, ok("yours")) as a, gateway(config_for(a)) as g:
        await g.chat("hi")
        taken.set()
        answer = await g.chat("hi")
    assert b"yours" in answer.body
    assert b"SEC" not in answer.body


# ------------------------------------------------------------------ records of TLS


def in_records(*pieces: bytes) -> Script:
    """Each piece in a TLS record of its own, all of them in one segment."""

    async def script(peer: Peer, _: Request) -> None:
        for piece in pieces:
            peer.writer.write(piece)

    return script


@pytest.mark.parametrize(
    ("status", "stream"), [(200, False), (200, True), (401, False), (429, False), (503, False)]
)
async def test_a_record_that_nobody_asked_for_is_seen_before_the_connection_is_used_again(
    status: int, stream: bool, tmp_path: Path
) -> None:
    whole = b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % status
    first = whole if status != 200 else STREAM if stream else WHOLE
    unasked = in_records(first, EXTRA["a whole answer"])
    authority = Authority(tmp_path)
    async with ScriptedProvider(unasked, ok("yours"), tls=authority.server()) as a:
        table = {**a.table, "ca_file": authority.ca_file, "key_env": ["KEY_ONE", "KEY_TWO"]}
        keys = {"KEY_ONE": "k-1", "KEY_TWO": "k-2"}
        policy = {"credentials": True, "retries": 1}
        async with gateway(config_for(table, failover=policy), environ=keys) as g:
            answer = await g.chat("hi", stream=stream)
            if status == 200:
                answer = await g.chat("hi")
        assert [request.connection for request in a.requests] == [0, 1]
    assert b"yours" in answer.body
    assert b"SEC" not in answer.body
