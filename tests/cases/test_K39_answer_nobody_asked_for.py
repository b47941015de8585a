"""K39: a second answer that was left on the connection went to the next user.

https://github.com/lysine-dev/okhttp/issues/9726
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import DONE, completion, delta, encode
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
