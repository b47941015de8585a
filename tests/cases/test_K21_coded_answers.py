"""K21: a coded answer was decoded on the way and still called coded; strict clients broke.

https://github.com/open-webui/open-webui/issues/23920
"""

from __future__ import annotations

import gzip

import pytest

from tests.support.builders import completion, delta, encode, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import ok

each_coding = pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "GZIP", "identity, gzip"])


def coded(coding: str, *, stream: bool) -> Script:
    """A 200 in this coding, whatever was asked for; a stream is flushed event by event."""

    async def script(peer: Peer, _: Request) -> None:
        fields = [("Content-Encoding", coding)]
        if stream:
            await peer.stream_head(fields)
            for event in (delta("a"), finish()):
                await peer.chunk(gzip.compress(event))
            await peer.last_chunk()
        else:
            await peer.whole(200, gzip.compress(encode(completion())), fields)

    return script


@each_coding
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("commit", ["head", "content", "answer"])
@pytest.mark.parametrize("accepted", ["identity", "gzip"])
async def test_it_is_a_failed_attempt_and_nothing_coded_crosses(
    coding: str, stream: bool, commit: str, accepted: str
) -> None:
    async with (
        ScriptedProvider(coded(coding, stream=stream), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, routing={"commit": commit})) as g,
    ):
        answer = await g.chat("hi", stream=stream, fields={"Accept-Encoding": accepted})
        assert a.requests[0].field("Accept-Encoding") == "identity"
    assert answer.field("X-Gateway-Provider") == "b"
    assert answer.field("Content-Encoding") is None
    assert b"hello" in answer.body


@each_coding
async def test_without_another_provider_it_is_a_502(coding: str) -> None:
    async with (
        ScriptedProvider(coded(coding, stream=False)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 502
    assert answer.field("Content-Encoding") is None
    assert answer.error["code"] == "upstream_error"


async def test_identity_is_no_coding() -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.json(200, completion(), [("Content-Encoding", "identity")])

    async with ScriptedProvider(script) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 200
    assert answer.json() == completion()
