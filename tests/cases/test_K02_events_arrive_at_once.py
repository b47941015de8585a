"""K02: only LF LF ended an event, so with other line ends the client saw nothing until the close.

https://github.com/Continuum-AI-Corp/OrcaRouter-Lite/pull/98
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.builders import chat, delta
from tests.support.client import Response
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider

APART = 0.3
LATE = 0.05
ENDS = {
    "CR CR": [b"\r\r"],
    "CR LF CR LF": [b"\r\n\r\n"],
    "LF LF": [b"\n\n"],
    "mixed": [b"\r\r", b"\r\n\r\n", b"\n\n", b"\r\n\r", b"\n\r\n"],
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "close-delimited"])
@pytest.mark.parametrize("commit", ["head", "content"])
async def test_no_event_waits_for_the_next_one(
    ends: list[bytes], chunked: bool, commit: str
) -> None:
    events = [delta(str(n)).rstrip(b"\n") + ends[n % len(ends)] for n in range(5)]
    sent: list[float] = []

    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head(chunked=chunked)
        for event in events:
            await (peer.chunk(event) if chunked else peer.send(event))
            sent.append(asyncio.get_running_loop().time())
            await asyncio.sleep(APART)
        await peer.stall()

    async with (
        ScriptedProvider(script) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(CHAT, chat(stream=True))
        for number, event in enumerate(events):
            assert await piece_of(answer, len(event)) == event
            assert asyncio.get_running_loop().time() - sent[number] <= LATE


async def piece_of(answer: Response, length: int) -> bytes:
    """The next `length` bytes of the body, without waiting for more."""
    begin = len(answer.body)
    while len(answer.body) < begin + length:
        assert await answer.piece()
    return bytes(answer.body[begin:])
