"""K09: one data line over 1 MiB (an image) ended the stream with "line too long".

https://github.com/nextlevelbuilder/goclaw/issues/1348
"""

from __future__ import annotations

import hashlib
import tracemalloc

import pytest

from tests.support import scripts
from tests.support.builders import DONE, chat
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider

BEGIN = b'data: {"choices":[{"index":0,"delta":{"content":"'
END = b'"}}]}\n\n'
PIECE = b"QUJD" * 16_384
MIB = 1_048_576


def huge(length: int) -> bytes:
    """One event with a line of exactly `length` bytes."""
    return BEGIN + b"A" * (length - len(BEGIN) - len(END) + 2) + END


@pytest.mark.parametrize("length", [65_536, 65_537, 262_144, 262_145, MIB + 1, 3 * MIB])
@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_it_passes_byte_for_byte(length: int, commit: str) -> None:
    event = huge(length)
    async with (
        ScriptedProvider(scripts.events(event, DONE)) as a,
        gateway(config_for(a, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.status == 200
    assert answer.whole
    assert answer.body == event + DONE
    assert g.exchange["end_reason"] == "complete"


@pytest.mark.parametrize("opening", [BEGIN, b'data: {"x":"'], ids=["content", "nothing known"])
async def test_sixteen_mib_pass_in_the_memory_of_a_few_reads(opening: bytes) -> None:
    # 256 pieces of 64 KiB in one event; what is not recognised as content fills the peek, and a
    # full peek commits. tracemalloc sees every buffer of this process, the peers' included.
    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        await peer.chunk(opening)
        for _ in range(256):
            await peer.chunk(PIECE)
        await peer.chunk(END + DONE)
        await peer.last_chunk()

    async with (
        ScriptedProvider(script) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        tracemalloc.start()
        answer = await client.open_stream(CHAT, chat(stream=True))
        digest = hashlib.sha256()
        async for piece in answer.incoming:
            digest.update(piece)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert digest.digest() == hashlib.sha256(opening + PIECE * 256 + END + DONE).digest()
    assert peak < 3 * MIB
    assert g.exchange["end_reason"] == "complete"


async def test_only_the_limit_of_the_whole_answer_stops_it() -> None:
    async with (
        ScriptedProvider(scripts.events(huge(3 * MIB), DONE)) as a,
        gateway(config_for(a, failover={"max_stream_bytes": MIB})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert not answer.whole
    assert len(answer.body) <= MIB
    assert g.exchange["end_reason"] == "response_too_large"
