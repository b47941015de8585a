"""The admin listener: what is there, what only is there, what watchers see and what it may cost."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from relayd.admin import AGAIN, CONNECTIONS, STALLED, WATCHERS
from relayd.app import App
from relayd.config import build
from relayd.server import ListenError
from tests.support.builders import DONE, chat, delta, role, usage
from tests.support.client import RawClient, Response
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.metrics import series
from tests.support.provider import ScriptedProvider
from tests.support.scripts import (
    breaks_off,
    events,
    ok,
    ok_stream,
    refusing,
    silent,
    slow,
    status,
)

KEY = "sk-canary-0123456789abcdef"

PAGES = ["/metrics", "/status", "/status/events"]


@dataclass(slots=True)
class Watched:
    """A gateway with an admin listener at `socket`."""

    gateway: Gateway
    socket: str

    def client(self) -> RawClient:
        return RawClient(self.socket)

    async def get(self, path: str) -> Response:
        async with self.client() as client:
            return await client.get(path)

    async def snapshot(self) -> dict[str, Any]:
        async with self.client() as client:
            return await next_snapshot(await watch(client))

    async def figures(self) -> dict[str, float]:
        return await series(self.socket)


@asynccontextmanager
async def watched(config: Mapping[str, Any], folder: Path, **more: Any) -> AsyncIterator[Watched]:
    socket = str(folder / "admin.sock")
    table = {**config, "admin": {"listen": f"unix:{socket}"}}
    async with gateway(table, **more) as g:
        yield Watched(g, socket)


async def watch(client: RawClient) -> Response:
    await client.request("GET", "/status/events")
    return await client.head()


async def next_snapshot(stream: Response) -> dict[str, Any]:
    """The next event with data for programs."""
    while event := await stream.event():
        if event.raw.startswith(b"data:"):
            return dict(event.json())
    raise AssertionError("expected a snapshot, got the end of the stream")


async def settled() -> None:
    """Long enough for what has been answered to be told."""
    await asyncio.sleep(0.1)


# --- what is where ---


@pytest.mark.parametrize("path", PAGES)
async def test_the_public_listener_has_none_of_it(path: str, tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        assert (await w.gateway.get(path)).status == 404


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/", "/status/", "/metrics/x"])
async def test_the_admin_listener_has_nothing_else(path: str, tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        answer = await w.get(path)
        assert answer.status == 404
        assert answer.json()["error"]["code"] == "not_found"
        assert "see /status and /metrics" in answer.json()["error"]["message"]


async def test_without_an_address_there_is_no_admin_listener() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        assert g.app.admin is None
        assert (await g.get("/metrics")).status == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/health"])
async def test_the_probes_answer_as_on_the_public_listener(path: str, tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        mine, public = await w.get(path), await w.gateway.get(path)
        assert (mine.status, mine.field("Content-Type")) == (200, public.field("Content-Type"))


@pytest.mark.parametrize("path", PAGES)
async def test_only_reading_is_allowed(path: str, tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client:
            await client.request("DELETE", path)
            answer = await client.response()
        assert (answer.status, answer.field("Allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", PAGES)
async def test_head_is_answered_without_a_body(path: str, tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client:
            await client.request("HEAD", path)
            head = await client.response("HEAD")
            assert (head.status, head.body) == (200, b"")
            assert (await client.get("/healthz")).body == b"ok\n"


async def test_a_body_that_nobody_asked_for_ends_the_connection(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client:
            await client.request("GET", "/metrics", b"x" * 10)
            answer = await client.response()
            assert (answer.status, answer.field("Connection")) == (200, "close")


async def test_an_address_in_use_stops_the_start(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path):
        config = config_for(a, admin={"listen": f"unix:{tmp_path}/admin.sock"})
        second = App(build(config, "test.toml", {}, lambda path: b""))
        with pytest.raises(ListenError, match=r"admin\.sock: another process listens there"):
            await second.start()
        await second.stop(0.0)


async def test_the_start_says_where_it_is(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        (line,) = [line for line in w.gateway.log if line.get("event") == "admin"]
        assert line["message"] == f"metrics and status on unix:{w.socket}"


async def test_scrapes_and_watchers_are_not_logged(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        for path in ["/metrics", "/status", "/nothing"]:
            await w.get(path)
        await w.snapshot()
        assert not w.gateway.exchanges


# --- figures ---


async def test_a_failover_shows_in_the_figures(tmp_path: Path) -> None:
    streamed = [role(), delta("a"), delta("b"), usage(7, 11, 2), DONE]
    async with (
        ScriptedProvider(status(503), name="a") as a,
        ScriptedProvider(slow(0.4, events(*streamed, delay=0.2)), name="b") as b,
        watched(config_for(a, b, quota={"daily_turns": 9}), tmp_path) as w,
    ):
        await w.gateway.chat(stream=True)
        await settled()
        got = await w.figures()
    assert got["relayd_requests_total{route=default}{status=2xx}{surface=chat}"] == 1
    assert got["relayd_attempts_total{outcome=server_error}{provider=a}"] == 1
    assert got["relayd_attempts_total{outcome=ok}{provider=b}"] == 1
    assert got["relayd_failovers_total{provider=a}"] == 1
    assert got["relayd_rescued_requests_total{route=default}"] == 1
    ended = "relayd_exchange_ends_total{end_reason=complete}{provider=b}{route=default}"
    assert got[ended] == 1
    assert got["relayd_turns_total{turn=charged}"] == 1
    assert got["relayd_tokens_total{kind=input}{provider=b}"] == 7
    assert got["relayd_tokens_total{kind=output}{provider=b}"] == 11
    assert got["relayd_tokens_total{kind=cached}{provider=b}"] == 2
    assert got["relayd_response_bytes_total{route=default}"] == sum(map(len, streamed))
    assert got["relayd_request_bytes_total{route=default}"] > 20
    # b waited 0.4 s, and its first content came 0.2 s after its role.
    assert got["relayd_first_content_seconds_sum{provider=b}"] == pytest.approx(0.6, abs=0.01)
    assert got["relayd_commit_wait_seconds_sum{route=default}"] == pytest.approx(0.6, abs=0.01)
    duration = got["relayd_request_duration_seconds_sum{route=default}"]
    assert duration == pytest.approx(1.2, abs=0.01)
    gap = got["relayd_stream_longest_gap_seconds_sum{provider=b}"]
    assert gap == pytest.approx(0.2, abs=0.01)


async def test_an_early_head_is_told_apart_from_the_first_content(tmp_path: Path) -> None:
    script = events(role(), delta("a"), DONE, delay=3.0)
    config = {"routing": {"commit": "head"}}
    async with ScriptedProvider(script) as a, watched(config_for(a, **config), tmp_path) as w:
        await w.gateway.chat(stream=True)
        await settled()
        got = await w.figures()
    assert got["relayd_commit_wait_seconds_sum{route=default}"] == pytest.approx(0.0, abs=0.01)
    assert got["relayd_first_content_seconds_sum{provider=a}"] == pytest.approx(3.0, abs=0.01)


async def test_what_is_true_only_now_follows_the_exchanges(tmp_path: Path) -> None:
    script = events(role(), delta("a"), end=False)
    async with ScriptedProvider(script) as a, watched(config_for(a), tmp_path) as w:
        async with w.gateway.client() as client:
            stream = await client.open_stream(CHAT, chat(stream=True))
            await stream.event()
            during = await w.figures()
        await settled()
        after = await w.figures()
    for name in ["open_exchanges", "open_streams", "upstream_in_flight{provider=a}"]:
        assert (during[f"relayd_{name}"], after[f"relayd_{name}"]) == (1, 0)
    assert (during["relayd_client_connections"], after["relayd_client_connections"]) == (1, 0)
    ends = "relayd_exchange_ends_total{end_reason=client_left}{provider=a}{route=default}"
    assert after[ends] == 1


async def test_a_client_that_leaves_before_the_answer_counts_as_499(tmp_path: Path) -> None:
    async with ScriptedProvider(silent()) as a, watched(config_for(a), tmp_path) as w:
        async with w.gateway.client() as client:
            await client.request("POST", CHAT, json.dumps(chat()).encode())
            await asyncio.sleep(1)
        await settled()
        got = await w.figures()
    assert got["relayd_requests_total{route=default}{status=499}{surface=chat}"] == 1
    assert got["relayd_attempts_total{outcome=client_left}{provider=a}"] == 1


async def test_a_breaker_shows_its_state_and_its_changes(tmp_path: Path) -> None:
    config = {"breaker": {"failures": 1}}
    async with ScriptedProvider(status(500)) as a, watched(config_for(a, **config), tmp_path) as w:
        before = await w.figures()
        await w.gateway.chat()
        got = await w.figures()
    assert before["relayd_breaker_changes_total{provider=a}{state=open}"] == 0
    assert got["relayd_breaker_changes_total{provider=a}{state=open}"] == 1
    states = {
        s: got[f"relayd_breaker_state{{provider=a}}{{state={s}}}"] for s in ("closed", "open")
    }
    assert states == {"closed": 0, "open": 1}


async def test_a_throttled_provider_shows_as_resting(tmp_path: Path) -> None:
    async with ScriptedProvider(status(429)) as a, watched(config_for(a), tmp_path) as w:
        await w.gateway.chat()
        assert (await w.figures())["relayd_provider_resting{provider=a}"] == 1


async def test_refused_turns_are_counted(tmp_path: Path) -> None:
    config = {"quota": {"daily_turns": 1}}
    async with ScriptedProvider(ok()) as a, watched(config_for(a, **config), tmp_path) as w:
        answers = [(await w.gateway.chat()).status for _ in range(3)]
        assert answers == [200, 429, 429]
        assert (await w.figures())["relayd_quota_refusals_total"] == 2


async def test_a_store_that_is_away_shows_in_figures_and_page(tmp_path: Path) -> None:
    with refusing() as (host, port):
        config = {
            "store": {"url": f"redis://{host}:{port}/0"}, "quota": {"daily_turns": 5},
        }  # fmt: skip
        async with ScriptedProvider(ok()) as a, watched(config_for(a, **config), tmp_path) as w:
            assert (await w.gateway.chat()).status == 200
            got, page = await w.figures(), (await w.get("/status")).text
    assert (got["relayd_store_up"], got["relayd_store_lost_total"]) == (0, 1)
    assert got["relayd_turns_without_store_total"] == 1
    assert "The redis store is away." in page


async def test_without_the_package_the_rest_works_and_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        answer = await w.get("/metrics")
        assert answer.status == 501
        error = answer.json()["error"]
        assert error["code"] == "metrics_unavailable"
        assert 'pip install "relayd[metrics]"' in error["message"]
        assert (await w.get("/status")).status == 200
        assert [line for line in w.gateway.log if line.get("event") == "metrics"]


# --- the page and its stream ---


async def test_the_page_comes_whole_and_allows_nothing_but_itself(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        answer = await w.get("/status")
    page = answer.text
    assert answer.field("Content-Type") == "text/html; charset=utf-8"
    policy = answer.field("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"\s(on\w+|style)=", page), "an inline event or style"
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page), "an asset from elsewhere"
    assert "{{" not in page


async def test_the_page_shows_without_javascript_what_happened(tmp_path: Path) -> None:
    async with (
        ScriptedProvider(status(503), name="alpha") as a,
        ScriptedProvider(ok(), name="beta") as b,
        watched(config_for(a, b, quota={"daily_turns": 7}), tmp_path) as w,
    ):
        await w.gateway.chat(fields={"X-User-Id": "ann", "X-Request-ID": "the-one"})
        await settled()
        page = (await w.get("/status")).text
    body = page[: page.index("<script>")]
    for words in ["alpha", "beta", "server error 503", "the-one", "ann", "1 of 7", "<noscript>"]:
        assert words in body


async def test_a_snapshot_tells_the_whole_story(tmp_path: Path) -> None:
    stays = events(role(), delta("a"), end=False)
    async with (
        ScriptedProvider(status(503), name="a", max_in_flight=4) as a,
        ScriptedProvider(ok(), stays, name="b") as b,
        watched(config_for(a, b, quota={"daily_turns": 7}), tmp_path) as w,
        w.gateway.client() as client,
    ):
        await w.gateway.chat(fields={"X-User-Id": "ann"})
        stream = await client.open_stream(CHAT, chat(stream=True))
        await stream.event()
        await asyncio.sleep(2)
        got = await w.snapshot()
    first, second = got["providers"]
    assert (first["name"], first["state"], first["failures"]) == ("a", "closed", 2)
    assert (first["max_in_flight"], first["in_flight"], first["wait"]) == (4, 0, None)
    assert (second["answers"], second["in_flight"]) == (1, 1)
    assert sum(point["failures"] for point in first["points"]) == 2
    (running,) = got["open"]
    assert (running["provider"], running["streaming"], running["route"]) == ("b", True, "default")
    assert [(s["provider"], s["outcome"]) for s in running["trail"]] == [
        ("a", "server_error"),
        ("b", "ok"),
    ]
    (past,) = got["failed_over"]
    assert (past["user"], past["status"], past["end_reason"]) == ("ann", 200, "complete")
    assert got["users"] == [
        {"client": None, "user": "ann", "turns": 1, "error": 0, "cap": 7},
    ]
    assert (got["exchanges"], got["streams"], got["connections"]) == (1, 1, 1)
    assert (got["draining"], got["capped"], got["store"]["kind"]) == (False, True, "memory")


async def test_a_watcher_sees_each_second_once(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client:
            stream = await watch(client)
            assert stream.field("Content-Type") == "text/event-stream"
            uptimes = [(await next_snapshot(stream))["uptime"] for _ in range(4)]
    # The first one is made at once, the others at whole seconds.
    assert [round(later - sooner, 1) for sooner, later in pairwise(uptimes[1:])] == [1, 1]


async def test_all_watchers_share_one_snapshot(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        assert w.gateway.app.admin is not None
        async with w.client() as one, w.client() as two:
            first = await watch(one)
            await next_snapshot(first)
            await asyncio.sleep(0.3)
            second = await watch(two)
            await next_snapshot(second)
            pairs = [(await first.event(), await second.event()) for _ in range(6)]
        raw = [(mine.raw, other.raw) for mine, other in pairs if mine and other]
        # Both began with the page event of the second in which they came.
        assert raw
        assert all(mine == other for mine, other in raw[1:])


async def test_the_stream_carries_the_sections_of_the_page(tmp_path: Path) -> None:
    async with ScriptedProvider(ok(), name="alpha") as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client:
            stream = await watch(client)
            again, _, event = [await stream.event() for _ in range(3)]
    assert again is not None
    assert again.raw == AGAIN
    assert event is not None
    assert event.raw.startswith(b"event: page\n")
    sections = event.json()["sections"]
    page = (Path(__file__).parents[2] / "relayd" / "statuspage.html").read_text()
    assert set(sections) == set(re.findall(r'<section id="([a-z-]+)"', page))
    assert "alpha" in sections["providers"]


async def test_nothing_is_made_while_nobody_watches(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        admin = w.gateway.app.admin
        assert admin is not None
        await w.snapshot()
        made = admin._made
        await asyncio.sleep(5)
        assert admin._made is made


async def test_only_so_many_may_watch(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        clients = [w.client() for _ in range(WATCHERS)]
        for client in clients:
            await client.__aenter__()
            assert (await watch(client)).status == 200
        assert (await w.get("/status/events")).status == 503
        assert (await w.get("/healthz")).status == 200
        await clients[0].__aexit__(None, None, None)
        await settled()
        await w.snapshot()
        for client in clients[1:]:
            await client.__aexit__(None, None, None)
    assert WATCHERS < CONNECTIONS


async def test_a_watcher_that_reads_nothing_is_cut(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client:
            await watch(client)
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            # The buffers of a unix socket hold some hundred kilobytes.
            await asyncio.sleep(STALLED + 300)
            assert w.gateway.app.admin is not None
            assert w.gateway.app.admin._watchers == 0


async def test_a_reload_shows_the_new_providers_and_forgets_the_old_ones(tmp_path: Path) -> None:
    async with (
        ScriptedProvider(status(503), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        ScriptedProvider(ok(), name="c") as c,
        watched(config_for(a, b), tmp_path) as w,
    ):
        await w.gateway.chat()
        await settled()
        w.gateway.reload(config_for(b, c))
        snapshot, got = await w.snapshot(), await w.figures()
    assert [provider["name"] for provider in snapshot["providers"]] == ["b", "c"]
    assert snapshot["providers"][0]["answers"] == 1
    assert not [name for name in got if "provider=a" in name]
    assert got["relayd_attempts_total{outcome=ok}{provider=b}"] == 1


async def test_a_rejected_reload_shows_in_figures_and_page(tmp_path: Path) -> None:
    async with ScriptedProvider(ok()) as a, watched(config_for(a), tmp_path) as w:
        before = await w.figures()
        w.gateway.app.engine.loaded.problem = f"config.toml: x: unknown key {KEY}"
        after, page = await w.figures(), (await w.get("/status")).text
    name = "relayd_config_last_reload_successful"
    assert (before[name], after[name]) == (1, 0)
    assert "The last reload was rejected: config.toml: x: unknown key [masked]" in page


async def test_the_drain_can_be_watched_to_its_end(tmp_path: Path) -> None:
    script = ok_stream(*"abcdef", delay=1.0)
    async with ScriptedProvider(script) as a, watched(config_for(a), tmp_path) as w:
        async with w.client() as client, w.gateway.client() as asker:
            stream = await watch(client)
            answer = await asker.open_stream(CHAT, chat(stream=True))
            stopping = asyncio.create_task(w.gateway.app.stop(30.0))
            await settled()
            while not (seen := await next_snapshot(stream))["draining"]:
                pass
            assert seen["exchanges"] == 1
            assert (await w.get("/readyz")).status == 503
            await answer.read()
            assert answer.whole
            await stream.read()
            assert stream.whole
            await stopping


# --- what came from outside ---

EVIL = '<img src=x onerror="alert(1)">\x1b[31m\u202e' + KEY


async def test_text_of_a_client_is_escaped_masked_and_printable(tmp_path: Path) -> None:
    config = {"quota": {"daily_turns": 7}}
    async with (
        ScriptedProvider(status(503), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        watched(config_for(a, b, **config), tmp_path) as w,
    ):
        async with w.gateway.client() as client:
            body = json.dumps(chat()).encode()
            named = f"X-User-Id: {EVIL}\r\n".encode()
            named = named.replace(b"\x1b", b"\x9b")
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
            await client.send(head + named + b"\r\n" + body)
            assert (await client.response("POST")).status == 200
        await settled()
        page, snapshot = (await w.get("/status")).text, await w.snapshot()
    (past,) = snapshot["failed_over"]
    for user in (past["user"], snapshot["users"][0]["user"]):
        assert user.startswith("<img src=x")
        assert user.isprintable()
        assert KEY not in user
    assert "<img" not in page
    assert "&lt;img src=x onerror=" in page
    assert KEY not in page


async def test_no_key_is_in_any_answer(tmp_path: Path) -> None:
    table = {"key_env": "A_KEY"}
    echo = status(401, {"error": {"message": f"bad key {KEY}"}})
    broken = breaks_off(role(), delta(KEY), then="cut")
    async with (
        ScriptedProvider(echo, broken, name="a", **table) as a,
        watched(config_for(a), tmp_path, environ={"A_KEY": KEY}) as w,
    ):
        await w.gateway.chat()
        await w.gateway.chat(stream=True)
        await settled()
        pages = [(await w.get(path)).text for path in ("/metrics", "/status", "/health")]
        text = json.dumps(await w.snapshot()) + "".join(pages)
    assert "relayd" in text
    assert KEY not in text
