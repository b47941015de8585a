"""Any stream through any cutting: the client's bytes are the provider's, or visibly not all.

A `ChaosProxy` stands on either side of relayd and cuts what passes into small pieces, late, or
ends it in the middle. The streams are drawn by hypothesis.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import builders
from tests.support.chaos import PASS, ChaosProxy, Rules
from tests.support.client import RawClient, Response
from tests.support.gateway import config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.wire import Ended

from .shapes import CHAT, MESSAGES, STREAMED, Shape

ITEMS = [
    builders.PING,
    builders.role(),
    builders.delta("hello"),
    builders.delta("\u2028 \u0085 caf\xe9 \U0001f600"),
    builders.delta("x" * 700),
    builders.chunk([]),
    b'id: 1\nretry: 5\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"choices":\ndata: [{"delta":{"content":"b"}}]}\n\n',
    b"event: ping\ndata:\n\n",
    b"\n\n",
]

ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
sizes = st.sampled_from([0, 1, 2, 3, 7, 64, 1000])
pieces = st.one_of(
    st.builds(Rules, size=sizes),
    st.builds(Rules, size=st.sampled_from([40, 300]), delay=st.just(0.01)),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A whole chat stream with odd things in it and any line ends, at times with a BOM."""
    items = draw(st.lists(st.sampled_from(ITEMS), max_size=8))
    tail = [builders.delta("end"), builders.finish(), builders.DONE]
    whole = b"".join(item.replace(b"\n", draw(ends)) for item in [*items, *tail])
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + whole


@st.composite
def cuts(draw: st.DrawFn) -> list[int]:
    """Sizes of the HTTP chunks, used in turn."""
    return draw(st.lists(st.integers(1, 500), min_size=1, max_size=5))


def in_chunks(body: bytes, sizes: list[int]) -> bytes:
    """The body in HTTP chunks of these sizes, and the last one."""
    coded, at, turn = b"", 0, 0
    while at < len(body):
        piece = body[at : at + sizes[turn % len(sizes)]]
        coded += b"%x\r\n%b\r\n" % (len(piece), piece)
        at, turn = at + len(piece), turn + 1
    return coded + b"0\r\n\r\n"


async def through(
    body: bytes,
    chunks: list[int],
    near: Rules = PASS,
    far: Rules = PASS,
    shape: Shape = CHAT,
) -> tuple[Response, str]:
    """What a client gets of this stream, `near` spoiled on its side, `far` on the provider's; and
    the end_reason in the log."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        await peer.send(in_chunks(body, chunks))

    async with ScriptedProvider(script, name="a", surfaces=[shape.name]) as a:
        async with ChaosProxy(a.address, down=far, up=far if far.size else PASS) as behind:
            host, port = behind.address
            table = {**a.table, "base_url": f"http://{host}:{port}/v1"}
            async with gateway(config_for(table)) as g:
                assert isinstance(g.address, tuple)
                async with ChaosProxy(g.address, down=near) as before:
                    async with RawClient(before.address) as client:
                        answer = await client.open_stream(shape.path, shape.request(stream=True))
                        await answer.read()
                await asyncio.sleep(0.5)
                return answer, g.exchange["end_reason"]


@settings(max_examples=30)
@given(streams(), cuts(), pieces, pieces)
async def test_a_stream_in_any_pieces_arrives_byte_for_byte(
    body: bytes, chunks: list[int], near: Rules, far: Rules
) -> None:
    answer, reason = await through(body, chunks, near, far)
    assert answer.status == 200
    assert answer.body == body
    assert answer.ended is Ended.CHUNKS
    assert reason == "complete"


@settings(max_examples=60)
@given(streams(), cuts(), st.floats(0.0, 1.0), st.booleans(), sizes)
async def test_a_stream_that_ends_anywhere_is_a_prefix_and_never_looks_whole(
    body: bytes, chunks: list[int], where: float, resets: bool, size: int
) -> None:
    head = len(b"HTTP/1.1 200 Scripted\r\nContent-Type: text/event-stream\r\n") + 32
    total = head + len(in_chunks(body, chunks))
    after = max(1, int(where * (total - 6)))  # inside, the last chunk excluded
    rules = Rules(size=size, **{"rst_after" if resets else "fin_after": after})
    answer, reason = await through(body, chunks, far=rules)
    if answer.status != 200:
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        return
    assert reason == "upstream_truncated"
    relayed, mark, _ = answer.body.partition(b'data: {"error":')
    assert body.startswith(relayed)
    if mark:
        assert answer.whole
        assert b'"code":"upstream_truncated"' in answer.body
    else:
        assert answer.ended in (Ended.CUT, Ended.RESET), "a cut stream looks like a whole one"


@pytest.mark.parametrize("shape", STREAMED, ids=str)
@pytest.mark.parametrize("size", [1, 2, 5])
async def test_every_surfaces_stream_survives_single_bytes(shape: Shape, size: int) -> None:
    body = b"".join(shape.stream)
    answer, reason = await through(body, [1], Rules(size=size), Rules(size=size), shape)
    assert (answer.body, reason) == (body, "complete")


@pytest.mark.parametrize("shape", STREAMED, ids=str)
async def test_cut_anywhere_no_surface_looks_whole(shape: Shape) -> None:
    """The provider's connection ends after every seventh byte of the body in turn."""
    body = b"".join(shape.stream)
    commit = body.find(shape.content) + len(shape.content)
    for count in range(commit, len(body), 7):

        async def script(peer: Peer, _: Request, count: int = count) -> None:
            await peer.sse(body[:count], end=False)
            await peer.fin()

        async with ScriptedProvider(script, name="a", surfaces=[shape.name]) as a:
            async with gateway(config_for(a)) as g:
                answer = await g.post(shape.path, shape.request(stream=True))
        assert answer.body.startswith(body[:count])
        added = answer.body[count:]
        told = b"error" in added if shape is MESSAGES else b"upstream_truncated" in added
        assert told or not answer.whole, count
