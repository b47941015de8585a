"""K70: a retry after "server disconnected" submitted a paid generation again: billed four times.

https://github.com/Comfy-Org/ComfyUI/pull/16204
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

ENDS = {"closes": scripts.hangs_up(), "resets": scripts.resets()}

each_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
LATE = 50.0
"""Seconds before the provider leaves: long after it has read the whole request."""


@each_end
async def test_on_a_fresh_connection_the_same_provider_is_not_asked_again(
    end: scripts.Script,
) -> None:
    async with (
        ScriptedProvider(scripts.slow(LATE, end), name="a") as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
        assert len(a.requests) == 1
        assert a.connections == 1
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"


@each_end
async def test_another_provider_is_asked_once_and_the_log_has_both_attempts(
    end: scripts.Script,
) -> None:
    async with (
        ScriptedProvider(scripts.slow(LATE, end), name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi")
        assert [len(a.requests), len(b.requests)] == [1, 1]
    assert answer.field("X-Gateway-Attempts") == "2"
    tried = [(t["provider"], t["outcome"]) for t in g.exchange["attempts"]]
    assert tried == [("a", "closed"), ("b", "ok")]
    assert [line["provider"] for line in g.log if line.get("event") == "attempt_failed"] == ["a"]


@pytest.mark.parametrize("begin", [b"HTTP/1.1 2", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_reused_connection_that_has_said_something_is_no_free_retry(begin: bytes) -> None:
    async with (
        ScriptedProvider(scripts.ok(), scripts.raw(begin, then="fin"), name="a") as a,
        gateway(config_for(a)) as g,
    ):
        answers = [await g.chat("hi"), await g.chat("hi")]
        assert len(a.requests) == 2
        assert a.connections == 1, "expected the second request on the first connection"
    assert [answer.status for answer in answers] == [200, 502]


async def test_the_free_retry_of_a_stale_connection_is_one_only_and_counts_as_no_attempt() -> None:
    scripted = [scripts.ok(), scripts.hangs_up(), scripts.hangs_up(), scripts.ok()]
    async with (
        ScriptedProvider(*scripted, name="a") as a,
        gateway(config_for(a)) as g,
    ):
        answers = [await g.chat("hi"), await g.chat("hi")]
        assert len(a.requests) == 3
    assert [answer.status for answer in answers] == [200, 502]
    assert answers[1].field("X-Gateway-Attempts") == "1"
