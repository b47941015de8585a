"""K75: a timeout of 30 s with two retries made the caller wait 91 s for a silent provider.

https://github.com/openai/openai-python/issues/3828
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import PING, delta
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider

POLICY = {"max_attempts": 5, "retries": 3}


def silent(name: str) -> ScriptedProvider:
    return ScriptedProvider(scripts.silent(), name=name)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_whole_exchange_ends_at_its_deadline(stream: bool) -> None:
    clocks = {"first_content": 2, "answer": 2, "deadline": 5}
    async with (
        silent("a") as a,
        silent("b") as b,
        silent("c") as c,
        gateway(config_for(a, b, c, clocks=clocks, failover=POLICY)) as g,
    ):
        with takes(5, within=0.2):
            answer = await g.chat("hi", stream=stream)
        assert [len(p.requests) for p in (a, b, c)] == [1, 1, 1]
        assert [p.open for p in (a, b, c)] == [0, 0, 0]
    assert answer.status == 504
    assert answer.error["code"] == "deadline_exceeded"
    assert [t["outcome"] for t in g.exchange["attempts"]][2] == "deadline"


async def test_a_silent_provider_is_never_asked_again_even_if_there_is_time() -> None:
    clocks = {"first_content": 2, "deadline": 60}
    async with (
        silent("a") as a,
        silent("b") as b,
        gateway(config_for(a, b, clocks=clocks, failover=POLICY)) as g,
    ):
        with takes(4, within=0.2):
            answer = await g.chat("hi", stream=True)
        assert [len(a.requests), len(b.requests)] == [1, 1]
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"


async def test_a_backoff_that_would_pass_the_deadline_is_not_begun() -> None:
    later = scripts.status(429, fields=[("Retry-After", "30")])
    async with (
        ScriptedProvider(later) as a,
        gateway(config_for(a, clocks={"deadline": 5}, failover=POLICY)) as g,
    ):
        with takes(0):
            answer = await g.chat("hi")
        assert len(a.requests) == 1
    assert answer.status == 429


async def test_a_connect_that_hangs_is_cut_by_the_deadline_too() -> None:
    with scripts.blackhole() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1"}
        async with gateway(config_for(table, clocks={"connect": 20, "deadline": 5})) as g:
            with takes(5, within=0.2):
                answer = await g.chat("hi")
    assert answer.status == 504


async def test_a_body_that_trickles_is_cut_by_the_deadline_too() -> None:
    async def trickles(peer: Peer, _: Request) -> None:
        await peer.head(200, [("Content-Type", "application/json"), ("Content-Length", "99")])
        await peer.drip(b"{" + b" " * 98, delay=1.0)

    async with (
        ScriptedProvider(trickles) as a,
        gateway(config_for(a, clocks={"deadline": 5})) as g,
    ):
        with takes(5, within=0.2):
            answer = await g.chat("hi")
    assert answer.status == 504


async def test_after_the_commit_the_deadline_ends_the_stream_and_says_so() -> None:
    talks = scripts.events(*[delta("x"), PING] * 20, delay=0.5)
    async with (
        ScriptedProvider(talks) as a,
        gateway(config_for(a, clocks={"deadline": 5})) as g,
    ):
        with takes(5, within=0.2):
            answer = await g.chat("hi", stream=True)
        assert a.open == 0
    assert answer.whole
    assert b'"code":"deadline_exceeded"' in answer.body
    assert b"[DONE]" not in answer.body
