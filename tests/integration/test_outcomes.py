"""Which outcome means what: another provider, the breaker, a rest, the same one again.

Each row of the outcome table is asked for all it says: is somebody else asked, is the breaker told,
what does the log call it. One failure opens a breaker here, so that a blame shows.
"""

from __future__ import annotations

import asyncio
import email.utils
import errno
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from relayd.job import Job
from relayd.outbound import Ask
from tests.support import builders
from tests.support.certificates import Authority
from tests.support.client import Response
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import (
    blackhole,
    hangs_up,
    ok,
    raw,
    refusing,
    resets,
    silent,
    slow,
    status,
)

from .shapes import CHAT, open_stream, whole

ONE_FAILURE = {"failures": 1}


@dataclass(slots=True)
class Chain:
    """relayd in front of `a`, the one in question, and a healthy `b`."""

    gateway: Gateway
    a: ScriptedProvider
    b: ScriptedProvider

    async def ask(self, **members: Any) -> Response:
        return await self.gateway.chat(**members)

    async def state(self, name: str = "a") -> str:
        """The state of a provider's breaker."""
        health = (await self.gateway.get("/health")).json()
        found: str = next(p["state"] for p in health["providers"] if p["name"] == name)
        return found

    @property
    def outcomes(self) -> list[str]:
        return [attempt["outcome"] for attempt in self.gateway.exchanges[-1]["attempts"]]


@asynccontextmanager
async def chain(
    *scripts: Script,
    failover: dict[str, Any] | None = None,
    keys: list[str] | None = None,
    breaker: dict[str, Any] = ONE_FAILURE,
    **settings: Any,
) -> AsyncIterator[Chain]:
    """`settings` are of provider `a`; its keys are named by their values."""
    if keys:
        settings["key_env"] = [f"KEY_{key.upper()}" for key in keys]
    environ = {f"KEY_{key.upper()}": f"sk-{key}" for key in keys or []}
    async with (
        ScriptedProvider(*scripts, name="a", **settings) as a,
        ScriptedProvider(ok(), name="b") as b,
    ):
        table = config_for(a, b, breaker=breaker, failover=failover or {})
        async with gateway(table, environ=environ) as g:
            yield Chain(g, a, b)


# ---- no connection


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_refused_connection_is_replaced_and_blamed(retries: int) -> None:
    with refusing() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1"}
        async with ScriptedProvider(ok(), name="b") as b:
            config = config_for(
                table, b, breaker={"failures": retries + 1}, failover={"retries": retries}
            )
            async with gateway(config) as g:
                answer = await g.chat()
                assert answer.field("X-Gateway-Provider") == "b"
                assert answer.field("X-Gateway-Attempts") == str(retries + 2)
                outcomes = [attempt["outcome"] for attempt in g.exchange["attempts"]]
                assert outcomes == ["connect_failed"] * (retries + 1) + ["ok"]
                assert (await g.get("/health")).json()["providers"][0]["state"] == "open"


async def test_a_connect_that_hangs_is_replaced_after_the_connect_clock() -> None:
    with blackhole() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1"}
        async with ScriptedProvider(ok(), name="b") as b:
            config = config_for(table, b, failover={"retries": 3})
            async with gateway(config) as g:
                with takes(5.0):
                    answer = await g.chat()
                assert answer.field("X-Gateway-Attempts") == "2", "a silent one was asked again"
                assert g.exchange["attempts"][0]["outcome"] == "connect_timeout"


async def test_the_words_of_an_error_may_come_in_a_record_of_their_own(tmp_path: Path) -> None:
    words = builders.encode({"error": {"message": "busy just now", "code": "busy"}})

    async def script(peer: Peer, _: Request) -> None:
        peer.writer.write(b"HTTP/1.1 503 -\r\nContent-Length: %d\r\n\r\n" % len(words))
        peer.writer.write(words)

    authority = Authority(tmp_path)
    async with ScriptedProvider(script, ok(), tls=authority.server()) as a:
        table = {**a.table, "ca_file": authority.ca_file}
        async with gateway(config_for(table, failover={"retries": 1})) as g:
            assert (await g.chat()).status == 200
        assert [line["detail"] for line in g.log if line.get("event") == "attempt_failed"] == [
            "busy just now"
        ]
        assert [request.connection for request in a.requests] == [0, 0]


@pytest.mark.parametrize("host", ["a..test", "a" * 64 + ".test"])
async def test_a_name_that_none_can_have_is_replaced(host: str) -> None:
    table = {"name": "a", "base_url": f"http://{host}/v1"}
    async with ScriptedProvider(ok(), name="b") as b, gateway(config_for(table, b)) as g:
        assert (await g.chat()).field("X-Gateway-Provider") == "b"
        assert g.exchange["attempts"][0]["outcome"] == "dns_failed"


async def test_a_name_that_does_not_resolve_is_replaced() -> None:
    table = {"name": "a", "base_url": "http://no-such-host.invalid/v1"}
    async with ScriptedProvider(ok(), name="b") as b, gateway(config_for(table, b)) as g:
        assert (await g.chat()).field("X-Gateway-Provider") == "b"
        assert g.exchange["attempts"][0]["outcome"] == "dns_failed"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("case", ["unknown authority", "another name"])
async def test_a_certificate_that_does_not_verify_is_never_talked_to(
    case: str, stream: bool, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    names = ("elsewhere.test",) if case == "another name" else ("127.0.0.1",)
    settings = {"ca_file": authority.ca_file} if case == "another name" else {}
    async with (
        ScriptedProvider(ok(), name="a", tls=authority.server(*names), **settings) as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, failover={"retries": 2})) as g,
    ):
        answer = await g.chat(stream=stream)
        assert answer.field("X-Gateway-Provider") == "b"
        assert not a.requests
        outcomes = [attempt["outcome"] for attempt in g.exchange["attempts"]]
        assert outcomes == ["certificate_refused", "ok"]


async def test_plain_http_where_tls_is_expected_is_a_tls_failure() -> None:
    async def shouts(peer: Any) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with (
        ScriptedProvider(connection=shouts, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
    ):
        table = {"name": "a", "base_url": a.base_url.replace("http:", "https:")}
        async with gateway(config_for(table, b)) as g:
            assert (await g.chat()).field("X-Gateway-Provider") == "b"
            assert g.exchange["attempts"][0]["outcome"] == "tls_failed"


async def test_a_private_authority_is_believed_where_it_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        ScriptedProvider(ok(), name="a", tls=authority.server(), ca_file=authority.ca_file) as a,
        gateway(config_for(a)) as g,
    ):
        assert (await g.chat(stream=True)).status == 200
        assert (await g.chat()).status == 200


# ---- one row of the table each: script, streams, log word, moves on, blamed

ROWS: dict[str, tuple[Script, str, bool, bool]] = {
    "closed without a byte": (hangs_up(), "closed", True, True),
    "reset without a byte": (resets(), "closed", True, True),
    "half a head": (raw(b"HTTP/1.1 200 OK\r\nContent-", then="fin"), "closed", True, True),
    "not HTTP": (raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", then="fin"), "bad_response", True, True),
    "a bad chunk": (
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", then="fin"),
        "bad_response",
        True,
        True,
    ),
    "too large a head": (
        raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, then="fin"),
        "bad_response",
        True,
        True,
    ),
    "500": (status(500), "server_error", True, True),
    "502 html": (status(502, b"<html>bad gateway</html>"), "server_error", True, True),
    "503": (status(503), "server_error", True, True),
    "529": (status(529), "server_error", True, True),
    "599": (status(599), "server_error", True, True),
    "408": (status(408), "request_timeout", True, True),
    "429": (status(429), "rate_limited", True, False),
    "300": (status(300), "redirect", True, True),
    "301": (status(301, b"", [("Location", "http://127.0.0.1:1/")]), "redirect", True, True),
    "307": (status(307, b"", [("Location", "http://127.0.0.1:1/")]), "redirect", True, True),
    "304": (raw(b"HTTP/1.1 304 Not Modified\r\n\r\n"), "redirect", True, True),
    "401": (status(401), "credential_refused", False, False),
    "403": (status(403), "credential_refused", False, False),
    "402": (status(402), "out_of_credit", True, False),
    "429 insufficient_quota": (
        status(429, builders.error_object(code="insufficient_quota")),
        "out_of_credit",
        True,
        False,
    ),
    "400 context_length_exceeded": (
        status(400, builders.error_object(code="context_length_exceeded")),
        "unsuitable",
        True,
        False,
    ),
    "400": (status(400), "refused", False, False),
    "404": (status(404), "refused", False, False),
    "413": (status(413), "refused", False, False),
    "418": (status(418), "refused", False, False),
    "422": (status(422), "refused", False, False),
    "an empty answer": (whole(b""), "no_answer", True, True),
    "an error in a 200": (
        whole(builders.encode(builders.error_object())),
        "error_answer",
        True,
        True,
    ),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("row", ROWS)
async def test_the_table(row: str, stream: bool) -> None:
    script, word, moves_on, blamed = ROWS[row]
    async with chain(script) as c:
        answer = await c.ask(stream=stream)
        assert len(c.a.requests) == 1
        assert len(c.b.requests) == int(moves_on)
        assert (answer.status == 200) is moves_on
        assert c.outcomes == [word] + ["ok"] * moves_on
        assert await c.state() == ("open" if blamed else "closed")


@pytest.mark.parametrize("row", [row for row in ROWS if row[:3].isdigit()])
async def test_the_log_tells_the_status_of_each_attempt(row: str) -> None:
    async with chain(ROWS[row][0]) as c:
        await c.ask()
        assert c.gateway.exchange["attempts"][0]["status"] == int(row[:3])


async def test_silence_is_replaced_and_blamed() -> None:
    async with chain(silent()) as c:
        with takes(60.0):
            await c.ask(stream=True)
        assert c.outcomes == ["first_content_timeout", "ok"]
        assert await c.state() == "open"


async def test_a_deadline_blames_nobody() -> None:
    async with ScriptedProvider(silent(), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        clocks = {"deadline": 30}
        async with gateway(config_for(a, b, clocks=clocks, breaker=ONE_FAILURE)) as g:
            with takes(30.0):
                answer = await g.chat(stream=True)
            assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
            assert not b.requests
            assert (await g.get("/health")).json()["providers"][0]["state"] == "closed"
            assert g.exchange["attempts"][0]["outcome"] == "deadline"


# ---- statuses, codes, credentials


@pytest.mark.parametrize(
    ("listed", "code", "moves_on"),
    [
        ([503], 503, True),
        ([503], 500, False),
        ([503], 429, False),
        ([503], 302, False),
        (["4xx"], 404, True),
        (["4xx"], 500, False),
        ([418], 418, True),
        ([], 500, False),
        (["5xx"], 529, True),
    ],
)
async def test_statuses_replace_the_list_that_moves_on(
    listed: list[Any], code: int, moves_on: bool
) -> None:
    async with chain(status(code), failover={"statuses": listed}) as c:
        answer = await c.ask()
        assert len(c.b.requests) == int(moves_on)
        assert (answer.status == 200) is moves_on


async def test_a_failure_without_a_status_moves_on_whatever_the_list() -> None:
    async with chain(hangs_up(), failover={"statuses": []}) as c:
        assert (await c.ask()).field("X-Gateway-Provider") == "b"


async def test_codes_of_a_400_that_move_on_are_configured() -> None:
    body = builders.error_object(code="string_above_max_length")
    async with chain(status(400, body), failover={"codes": ["string_above_max_length"]}) as c:
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
    body = builders.error_object(code="context_length_exceeded")
    async with chain(status(400, body), failover={"codes": []}) as c:
        assert (await c.ask()).status == 400


@pytest.mark.parametrize("code", [401, 403])
async def test_credentials_lets_a_refused_key_move_on(code: int) -> None:
    async with chain(status(code), failover={"credentials": True}) as c:
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
        assert await c.state() == "closed"


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key_is_an_error_in_the_log(code: int) -> None:
    async with chain(status(code, b"sk-own is wrong"), keys=["own"]) as c:
        answer = await c.ask()
        assert (answer.status, answer.error["code"]) == (502, "provider_auth")
        lines = [line for line in c.gateway.log if line.get("event") == "attempt_failed"]
        assert [line["level"] for line in lines] == ["error"]
        assert "sk-own" not in str(c.gateway.log) + answer.text


# ---- key pools


@pytest.mark.parametrize("code", [401, 402, 403, 429])
async def test_the_next_key_of_a_provider_is_asked_first(code: int) -> None:
    async with chain(status(code), ok(), keys=["one", "two"]) as c:
        answer = await c.ask()
        assert answer.field("X-Gateway-Provider") == "a"
        assert answer.field("X-Gateway-Attempts") == "2"
        used = [request.field("Authorization") for request in c.a.requests]
        assert used == ["Bearer sk-one", "Bearer sk-two"]


async def test_a_pool_of_refused_keys_is_a_refused_credential() -> None:
    async with chain(status(401), keys=["one", "two", "three"]) as c:
        answer = await c.ask()
        assert answer.error["code"] == "provider_auth"
        assert len({request.field("Authorization") for request in c.a.requests}) == 3
        assert not c.b.requests


async def test_keys_that_are_all_refused_are_told_of_each_time_and_hide_no_other_provider() -> None:
    async with chain(status(403), keys=["one", "two"]) as c:
        for _ in range(3):
            answer = await c.ask()
            assert (answer.status, answer.error["code"]) == (502, "provider_auth")
            assert answer.field("X-Gateway-Attempts") == "2"
        assert not c.b.requests, "a refused key is no reason to ask somebody else"


async def test_a_refused_key_steps_back_behind_the_one_that_is_good() -> None:
    async with chain(status(401), ok(), keys=["one", "two"]) as c:
        for _ in range(3):
            assert (await c.ask()).status == 200
        shown = [request.field("Authorization") for request in c.a.requests]
        assert shown == ["Bearer sk-one", *["Bearer sk-two"] * 3]


async def test_a_fault_that_is_not_the_keys_does_not_ask_the_next_key() -> None:
    async with chain(status(500), keys=["one", "two"]) as c:
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
        assert len(c.a.requests) == 1


async def test_keys_take_turns() -> None:
    async with chain(ok(), keys=["one", "two"]) as c:
        for _ in range(4):
            await c.ask()
        used = [request.field("Authorization") for request in c.a.requests]
        assert used == ["Bearer sk-one", "Bearer sk-two"] * 2


async def test_a_resting_key_is_left_out() -> None:
    limited = status(429, None, [("Retry-After", "60")])
    async with chain(limited, ok(), keys=["one", "two"]) as c:
        for _ in range(4):
            await c.ask()
        used = [request.field("Authorization") for request in c.a.requests]
        assert used[0] == "Bearer sk-one"
        assert set(used[1:]) == {"Bearer sk-two"}


async def test_max_attempts_bounds_the_keys_too() -> None:
    async with chain(status(401), keys=["one", "two", "three"], failover={"max_attempts": 2}) as c:
        await c.ask()
        assert len(c.a.requests) == 2


# ---- rests


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ([("Retry-After", "7")], 7.0),
        ([("retry-after-ms", "2500")], 2.5),
        ([("Retry-After", "7"), ("retry-after-ms", "2500")], 2.5),
        ([], 1.0),
        ([("Retry-After", "soon")], 1.0),
        ([("Retry-After", "86400")], 300.0),
    ],
)
async def test_a_rate_limited_provider_rests(fields: list[tuple[str, str]], seconds: float) -> None:
    async with chain(status(429, None, fields), ok()) as c:
        await c.ask()
        await asyncio.sleep(seconds - 0.1)
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
        await asyncio.sleep(0.2)
        assert (await c.ask()).field("X-Gateway-Provider") == "a"


async def test_retry_after_may_be_a_date() -> None:
    at = email.utils.formatdate(time.time() + 20, usegmt=True)
    async with chain(status(429, None, [("Retry-After", at)]), ok()) as c:
        await c.ask()
        await asyncio.sleep(15)
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
        await asyncio.sleep(6)
        assert (await c.ask()).field("X-Gateway-Provider") == "a"


async def test_a_date_is_measured_from_when_it_came() -> None:
    at = email.utils.formatdate(time.time() + 50, usegmt=True)
    limited = status(429, None, [("Retry-After", at)])
    async with chain(slow(30.0, limited), ok()) as c:
        await c.ask()
        await asyncio.sleep(15)
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
        await asyncio.sleep(6)
        assert (await c.ask()).field("X-Gateway-Provider") == "a"


@pytest.mark.parametrize("row", ["402", "429 insufficient_quota"])
async def test_an_empty_account_rests_for_300_s(row: str) -> None:
    async with chain(ROWS[row][0], ok()) as c:
        await c.ask()
        await asyncio.sleep(299)
        assert (await c.ask()).field("X-Gateway-Provider") == "b"
        await asyncio.sleep(2)
        assert (await c.ask()).field("X-Gateway-Provider") == "a"


# ---- retries


async def test_nobody_is_asked_twice_without_retries() -> None:
    async with chain(status(503)) as c:
        await c.ask()
        assert len(c.a.requests) == 1


@pytest.mark.parametrize("script", [status(503), hangs_up()], ids=["503", "closed"])
async def test_a_transient_failure_is_asked_again_as_often_as_configured(script: Script) -> None:
    async with chain(script, failover={"retries": 3}, breaker={}) as c:
        answer = await c.ask()
        assert len(c.a.requests) == 4
        assert answer.field("X-Gateway-Provider") == "b"
        assert answer.field("X-Gateway-Attempts") == "5"


@pytest.mark.parametrize("row", ["400", "401", "301", "408", "402", "an empty answer"])
async def test_other_failures_are_not_asked_again(row: str) -> None:
    async with chain(ROWS[row][0], failover={"retries": 3}) as c:
        await c.ask()
        assert len(c.a.requests) == 1


async def test_the_backoff_doubles_under_full_jitter() -> None:
    async with chain(status(503), failover={"retries": 3, "retry_backoff": 2.0}, breaker={}) as c:
        c.gateway.app.engine.jitter = lambda: 0.5
        with takes(1.0 + 2.0 + 4.0):
            await c.ask()
        at = [request.at for request in c.a.requests]
        gaps = [round(b - a, 2) for a, b in pairwise(at)]
        assert gaps == [1.0, 2.0, 4.0]


async def test_a_429_with_a_retry_after_that_fits_is_waited_for() -> None:
    limited = status(429, None, [("Retry-After", "20")])
    async with chain(limited, ok(), failover={"retries": 1}) as c:
        with takes(20.0):
            answer = await c.ask()
        assert answer.field("X-Gateway-Provider") == "a"


async def test_a_429_without_retry_after_is_not_waited_for() -> None:
    async with chain(status(429), ok(), failover={"retries": 1}) as c:
        with takes(0.0):
            answer = await c.ask()
        assert answer.field("X-Gateway-Provider") == "b"


async def test_nothing_sleeps_past_the_deadline() -> None:
    limited = status(429, None, [("Retry-After", "200")])
    async with ScriptedProvider(limited, name="a") as a:
        config = config_for(a, failover={"retries": 5}, clocks={"deadline": 100})
        async with gateway(config) as g:
            with takes(0.0):
                answer = await g.chat()
            assert (answer.status, answer.field("Retry-After")) == (429, "200")


async def test_max_attempts_bounds_providers_and_retries_together() -> None:
    async with chain(
        status(503), failover={"retries": 10, "max_attempts": 3, "retry_backoff": 0.05}, breaker={}
    ) as c:
        answer = await c.ask()
        assert (answer.status, answer.field("X-Gateway-Attempts")) == (502, "3")
        assert not c.b.requests


async def test_sixteen_attempts_are_the_most() -> None:
    providers = [ScriptedProvider(status(503), name=f"p{n}") for n in range(18)]
    for provider in providers:
        await provider.__aenter__()
    try:
        async with gateway(config_for(*providers)) as g:
            answer = await g.chat()
            assert answer.field("X-Gateway-Attempts") == "16"
            assert sum(len(provider.requests) for provider in providers) == 16
    finally:
        for provider in providers:
            await provider.__aexit__()


async def test_a_route_that_names_a_provider_once_asks_it_once() -> None:
    async with chain(status(503)) as c:
        for _ in range(3):
            await c.ask()
        assert len(c.a.requests) == 1, "an open breaker was asked"


# ---- stale connections


@pytest.mark.parametrize("script", [hangs_up(), resets()], ids=["closed", "reset"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_stale_connection_is_replaced_for_free(script: Script, stream: bool) -> None:
    async with chain(ok(), script, ok()) as c:
        await c.ask(stream=stream)
        answer = await c.ask(stream=stream)
        assert answer.status == 200
        assert answer.field("X-Gateway-Provider") == "a"
        assert answer.field("X-Gateway-Attempts") == "1"
        assert c.a.connections == 2
        assert await c.state() == "closed"


async def test_the_free_retry_is_given_once() -> None:
    async with chain(ok(), hangs_up()) as c:
        await c.ask()
        answer = await c.ask()
        assert answer.field("X-Gateway-Provider") == "b"
        assert len(c.a.requests) == 3
        assert answer.field("X-Gateway-Attempts") == "2"


async def test_a_reused_connection_that_breaks_after_a_byte_is_blamed() -> None:
    async with chain(ok(), raw(b"HTTP/1.1 2", then="fin")) as c:
        await c.ask()
        answer = await c.ask()
        assert answer.field("X-Gateway-Provider") == "b"
        assert len(c.a.requests) == 2
        assert await c.state() == "open"


# ---- full


async def test_a_full_provider_is_passed_over_without_an_attempt() -> None:
    async with chain(slow(5.0, ok()), max_in_flight=1) as c:
        first = asyncio.create_task(c.ask())
        await asyncio.sleep(1)
        second = await c.ask()
        assert second.field("X-Gateway-Provider") == "b"
        assert second.field("X-Gateway-Attempts") == "1"
        assert (await first).field("X-Gateway-Provider") == "a"
        assert (await c.ask()).field("X-Gateway-Provider") == "a", "the place was not given back"


FAILS = {
    "a status": (status(503), 200),
    "no answer": (hangs_up(), 200),
    "no connection": (None, 200),
    "a refusal": (status(400), 400),
    "everybody": (status(500), 502),
}


@pytest.mark.parametrize("how", FAILS)
async def test_a_failed_attempt_leaves_no_circle_that_holds_its_request(how: str) -> None:
    """A traceback holds frames, and they the request: it would live until a full collection."""
    script, expected = FAILS[how]
    b = status(500) if how == "everybody" else ok()
    async with (
        ScriptedProvider(script or ok(), name="a") as first,
        ScriptedProvider(b, name="b") as second,
        gateway(config_for(first, second)) as g,
    ):
        if script is None:
            first.stop_listening()
        gc.collect()
        gc.disable()
        try:
            assert (await g.chat("x" * 100_000)).status == expected
            await asyncio.sleep(0.1)
            kept = [type(thing) for thing in gc.get_objects() if isinstance(thing, Ask | Job)]
        finally:
            gc.enable()
        assert kept == []


async def test_no_file_is_left_is_a_fault_of_relayd_and_leaves_no_circle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_file(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with (
        ScriptedProvider(ok(), name="a") as a,
        gateway(config_for(a, breaker=ONE_FAILURE)) as g,
    ):
        gc.collect()
        gc.disable()
        try:
            with monkeypatch.context() as patched:
                patched.setattr("relayd.reach.connect", no_file)
                answer = await g.chat("x" * 100_000)
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            await asyncio.sleep(0.1)
            kept = [type(thing) for thing in gc.get_objects() if isinstance(thing, Ask | Job)]
        finally:
            gc.enable()
        assert kept == []
        assert (await g.chat()).status == 200, "nobody is blamed"


async def test_a_place_that_was_taken_during_a_backoff_is_not_taken_twice() -> None:
    """The second try finds its place taken by another request, and goes to the next provider."""
    backoff = {"retries": 1, "retry_backoff": 10.0}
    async with (
        ScriptedProvider(status(503), slow(10.0, ok()), name="a", max_in_flight=1) as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, failover=backoff)) as g,
    ):
        g.app.engine.jitter = lambda: 0.5
        retries = asyncio.create_task(g.chat())
        await asyncio.sleep(1.0)
        takes_it = asyncio.create_task(g.chat())
        answer = await retries
        assert answer.field("X-Gateway-Provider") == "b"
        assert answer.field("X-Gateway-Attempts") == "2", "a place that is taken is no attempt"
        assert (await takes_it).field("X-Gateway-Provider") == "a"
        assert len(a.requests) == 2
        assert not any(g.app.engine.in_flight.values())


async def test_a_stream_holds_its_place_until_it_ends() -> None:
    async with chain(open_stream(CHAT.content), ok(), max_in_flight=1) as c:
        async with c.gateway.client() as client:
            await client.open_stream(CHAT.path, CHAT.request(stream=True))
            assert (await c.ask()).field("X-Gateway-Provider") == "b"
        await asyncio.sleep(1)
        assert (await c.ask()).field("X-Gateway-Provider") == "a"


@pytest.mark.parametrize("script", [status(503), status(400), hangs_up(), whole(b"")])
async def test_a_failed_attempt_gives_its_place_back(script: Script) -> None:
    async with chain(script, ok(), max_in_flight=1, breaker={}) as c:
        await c.ask()
        assert (await c.ask()).field("X-Gateway-Provider") == "a"


# ---- after the commit


async def test_a_break_after_the_commit_is_blamed_and_nobody_else_is_asked() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b"%x\r\n%b\r\n" % (len(CHAT.content), CHAT.content)
    async with chain(raw(head + event, then="rst")) as c:
        answer = await c.ask(stream=True)
        assert b"upstream_truncated" in answer.body
        assert not c.b.requests
        assert await c.state() == "open"
