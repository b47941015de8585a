"""K95: a probe that ended in an error that does not count kept its place for ever.

https://github.com/bytedance/deer-flow/pull/3991
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import breakers
from tests.support.builders import error_object
from tests.support.provider import Script
from tests.support.scripts import events, ok, ok_json, ok_stream, raw, status

TOO_LONG = error_object(code="context_length_exceeded")
EMPTY = error_object(code="insufficient_quota")

CLOSES: dict[str, tuple[Script, int]] = {
    "200": (ok(), 200),
    "400": (status(400), 400),
    "401": (status(401), 502),
    "403": (status(403), 502),
    "404": (status(404), 404),
    "413": (status(413), 413),
    "422": (status(422), 422),
    "a context that is too long": (status(400, TOO_LONG), 400),
}
"""The provider answers, whatever it says of the request or the key."""

OPENS: dict[str, tuple[Script, int]] = {
    "500": (status(500), 502),
    "529": (status(529), 502),
    "408": (status(408), 502),
    "302": (status(302, fields=[("Location", "http://127.0.0.1:1/")]), 502),
    "a close in the head": (raw(b"HTTP/1.1 2", then="fin"), 502),
    "a reset in the head": (raw(b"HTTP/1.1 2", then="rst"), 502),
    "no HTTP": (raw(b"SSH-2.0-x\r\n\r\n", then="fin"), 502),
    "an empty stream": (events(), 502),
}

SAYS_NOTHING: dict[str, tuple[Script, int]] = {
    "429": (status(429, fields=[("Retry-After", "3")]), 429),
    "402": (status(402), 502),
    "429 without credit": (status(429, EMPTY), 429),
}

REST = {"429": 3.0, "402": 300.0, "429 without credit": 300.0}
"""Seconds after which the provider may be asked again."""


@pytest.mark.parametrize("outcome", CLOSES)
async def test_an_answer_closes(outcome: str) -> None:
    script, code = CLOSES[outcome]
    async with breakers.tripped(script, ok()) as (g, a):
        assert (await g.chat()).status == code
        assert await breakers.state(g) == "closed"
        assert (await g.chat()).status == 200
        assert len(a.requests) == 3
        assert breakers.changes(g) == ["open", "half-open", "closed"]


@pytest.mark.parametrize("outcome", OPENS)
async def test_what_counts_opens_again_and_the_next_probe_may_come(outcome: str) -> None:
    script, code = OPENS[outcome]
    async with breakers.tripped(script, ok()) as (g, a):
        assert (await g.chat()).status == code
        assert await breakers.state(g) == "open"
        assert (await g.chat()).status == 503
        await asyncio.sleep(breakers.COOLDOWN)
        assert (await g.chat()).status == 200
        assert len(a.requests) == 3


@pytest.mark.parametrize("outcome", SAYS_NOTHING)
async def test_a_rate_limit_gives_the_place_back_without_a_verdict(outcome: str) -> None:
    script, code = SAYS_NOTHING[outcome]
    async with breakers.tripped(script, ok()) as (g, a):
        assert (await g.chat()).status == code
        assert await breakers.state(g) == "half-open"
        assert (await g.chat()).status == 429, "expected the provider to rest"
        await asyncio.sleep(REST[outcome])
        assert (await g.chat()).status == 200
        assert await breakers.state(g) == "closed"
        assert len(a.requests) == 3


async def test_an_answer_that_is_too_large_gives_the_place_back() -> None:
    small = {"max_response_bytes": 1024}
    async with breakers.tripped(ok_json("x" * 2000), ok_json("x"), failover=small) as (g, _):
        assert (await g.chat()).error["code"] == "response_too_large"
        assert await breakers.state(g) == "half-open"
        assert (await g.chat()).status == 200


@pytest.mark.parametrize("commit", ["head", "content", "answer"])
async def test_a_probe_that_streams_ends_too(commit: str) -> None:
    routing = {"commit": commit}
    async with breakers.tripped(ok_stream("a", "b"), routing=routing) as (g, _):
        assert (await g.chat(stream=True)).status == 200
        assert await breakers.state(g) == "closed"
