"""Every clock, from its own start to its own end, at its production value.

Each test says which clock runs, what does not move it, and what its expiry does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support import builders
from tests.support.client import RawClient, Response, post
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import elapsed, takes
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import blackhole, events, ok, raw, silent, slow, status
from tests.support.wire import Ended

from .shapes import CHAT, MESSAGES, RESPONSES, Shape, open_stream, whole


@asynccontextmanager
async def pair(
    script: Script, sections: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """relayd in front of `a`, which follows the script, and a healthy `b`."""
    surfaces = ["chat", "responses", "messages"]
    async with (
        ScriptedProvider(script, name="a", surfaces=surfaces, **settings) as a,
        ScriptedProvider(ok(), name="b", surfaces=surfaces) as b,
        gateway(config_for(a, b, **(sections or {}))) as g,
    ):
        yield g


def first(g: Gateway) -> str:
    """The log's word for the first attempt."""
    word: str = g.exchange["attempts"][0]["outcome"]
    return word


async def provider(g: Gateway, *, stream: bool = True) -> str | None:
    return (await g.chat(stream=stream)).field("X-Gateway-Provider")


def keeps_saying(item: bytes, every: float, *before: bytes) -> Script:
    """A stream that says `before`, and then the same for ever."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.sse(*before, end=False)
        while True:
            await peer.chunk(item)
            await asyncio.sleep(every)

    return script


# ---- connect


@pytest.mark.parametrize("answer", [2.0, 8.0])
async def test_the_words_of_a_refusal_are_not_waited_for_beyond_its_clock(answer: float) -> None:
    stuck = raw(b"HTTP/1.1 429 Slow Down\r\nContent-Length: 100\r\n\r\n{", then="stall")
    async with (
        ScriptedProvider(stuck, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, clocks={"answer": answer, "first_content": answer})) as g,
    ):
        with takes(min(answer, 5.0)):
            assert (await g.chat()).status == 200


@pytest.mark.parametrize("stream", [True, False], ids=["asked for", "not asked for"])
async def test_silence_behind_a_bare_finish_ends_an_answer_that_is_held_whole(
    stream: bool,
) -> None:
    script = keeps_saying(b": ping\n\n", 1.0, builders.delta("x"), builders.finish())
    routing = {"commit": "answer"}
    async with (
        ScriptedProvider(script, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, routing=routing, clocks={"idle": 7.0})) as g,
    ):
        with takes(7.0):
            answer = await g.chat(stream=stream)
        assert answer.status == 200
        assert not b.requests, "a finished answer is not paid for twice"
    assert answer.body.startswith(builders.delta("x") + builders.finish())


async def test_an_answer_that_finished_is_one_when_its_time_is_over() -> None:
    script = events(builders.delta("x"), builders.finish(), end=False)
    clocks = {"idle": 60.0, "answer": 5.0}
    async with (
        ScriptedProvider(script, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, routing={"commit": "answer"}, clocks=clocks)) as g,
    ):
        with takes(5.0):
            assert (await g.chat(stream=True)).status == 200
        assert not b.requests


@pytest.mark.parametrize("stream", [True, False], ids=["asked for", "not asked for"])
@pytest.mark.parametrize("apart", [b"", b"\ndata: "], ids=["on one line", "on two lines"])
async def test_the_finish_of_one_choice_does_not_end_another_in_its_middle(
    stream: bool, apart: bytes
) -> None:
    other = builders.chunk([{"index": 1, "delta": {"content": "more"}, "finish_reason": None}])
    other = other.replace(b'"choices"', apart + b'"choices"')
    script = keeps_saying(other, 1.0, builders.delta("x"), other, builders.finish())
    clocks = {"idle": 2.0, "answer": 5.0}
    async with pair(script, {"routing": {"commit": "answer"}, "clocks": clocks}) as g:
        with takes(5.0):
            assert await provider(g, stream=stream) == "b"
        assert first(g) == "answer_timeout"


async def test_connect_bounds_the_way_to_the_connection() -> None:
    with blackhole() as (host, port):
        table = {"name": "a", "base_url": f"http://{host}:{port}/v1"}
        async with ScriptedProvider(ok(), name="b") as b, gateway(config_for(table, b)) as g:
            with takes(5.0):
                assert await provider(g) == "b"
            assert first(g) == "connect_timeout"


async def test_connect_bounds_a_tls_handshake_too() -> None:
    async def mute(peer: Peer) -> None:
        await peer.stall()

    async with (
        ScriptedProvider(connection=mute, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
    ):
        table = {"name": "a", "base_url": a.base_url.replace("http:", "https:"), "connect": 2.5}
        async with gateway(config_for(table, b)) as g:
            with takes(2.5):
                assert await provider(g) == "b"
            assert first(g) == "connect_timeout"


# ---- first_content


@pytest.mark.parametrize(
    ("shape", "item"),
    [
        (CHAT, builders.PING),
        (CHAT, builders.role()),
        (CHAT, builders.chunk([])),
        (RESPONSES, RESPONSES.lifecycle[0]),
        (MESSAGES, MESSAGES.lifecycle[2]),
    ],
    ids=["comment", "role", "empty choices", "lifecycle", "ping"],
)
async def test_what_is_no_content_neither_ends_nor_rearms_first_content(
    shape: Shape, item: bytes
) -> None:
    async with pair(keeps_saying(item, 7.0)) as g:
        with takes(60.0):
            answer = await g.post(shape.path, shape.request(stream=True))
        assert answer.field("X-Gateway-Provider") == "b"
        assert first(g) == "first_content_timeout"


@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_first_content_bounds_the_head_of_a_stream(interim: bytes) -> None:
    async with pair(raw(interim, then="stall")) as g:
        with takes(60.0):
            assert await provider(g) == "b"
        assert first(g) == "first_content_timeout"


@pytest.mark.parametrize("stream", [True, False])
async def test_with_commit_head_first_content_bounds_the_head(stream: bool) -> None:
    async with pair(silent(), {"routing": {"commit": "head"}}) as g:
        with takes(60.0):
            assert await provider(g, stream=stream) == "b"
        assert first(g) == "first_content_timeout"


async def test_first_content_does_not_bound_an_answer_without_a_stream() -> None:
    async with pair(slow(299.0, ok())) as g:
        with takes(299.0):
            assert await provider(g, stream=False) == "a"


async def test_content_at_the_last_moment_is_in_time() -> None:
    async with pair(slow(59.9, ok())) as g:
        assert await provider(g) == "a"


async def test_a_provider_has_clocks_of_its_own() -> None:
    async with pair(silent(), None, first_content=3.0) as g:
        with takes(3.0):
            assert await provider(g) == "b"


async def test_a_route_has_clocks_of_its_own() -> None:
    async with (
        ScriptedProvider(silent(), name="a", model="m") as a,
        ScriptedProvider(ok(), name="b", model="m") as b,
    ):
        routes = [{"name": "quick", "providers": ["a", "b"], "first_content": 4.0}]
        async with gateway(config_for(a, b, route=routes)) as g:
            with takes(4.0):
                assert await provider(g) == "b"


# ---- answer


@pytest.mark.parametrize(
    "script",
    [
        silent(),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", then="stall"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n", b" " * 10_000, size=10, delay=1),
    ],
    ids=["silent", "head alone", "dripping"],
)
async def test_answer_bounds_an_answer_that_must_be_whole(script: Script) -> None:
    async with pair(script) as g:
        with takes(300.0):
            assert await provider(g, stream=False) == "b"
        assert first(g) == "answer_timeout"


async def test_answer_bounds_a_stream_that_must_be_whole() -> None:
    sections = {"routing": {"commit": "answer"}}
    async with pair(keeps_saying(builders.delta("x"), 10.0), sections) as g:
        with takes(300.0):
            assert await provider(g) == "b"
        assert first(g) == "answer_timeout"


async def test_silence_before_a_stream_that_must_be_whole_is_bounded_by_first_content() -> None:
    async with pair(silent(), {"routing": {"commit": "answer"}}) as g:
        with takes(60.0):
            assert await provider(g) == "b"
        assert first(g) == "first_content_timeout"


async def test_a_request_behind_one_whose_deadline_ran_out_is_served() -> None:
    async with (
        ScriptedProvider(silent(), ok(), name="a") as a,
        gateway(config_for(a, clocks={"deadline": 30})) as g,
        g.client() as client,
    ):
        ask = CHAT.request()
        assert (await client.post_json(CHAT.path, ask)).status == 504
        assert (await client.post_json(CHAT.path, ask)).status == 200


async def test_json_for_a_stream_is_bounded_by_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"
    async with pair(raw(head, then="stall")) as g:
        with takes(300.0):
            assert await provider(g) == "b"
        assert first(g) == "answer_timeout"


# ---- idle


async def test_idle_before_the_commit_moves_on() -> None:
    async with pair(open_stream(CHAT.content), {"routing": {"commit": "answer"}}) as g:
        with takes(60.0):
            assert await provider(g) == "b"
        assert first(g) == "idle_timeout"


@pytest.mark.parametrize("commit", ["content", "answer"])
async def test_comments_do_not_rearm_idle(commit: str) -> None:
    script = keeps_saying(builders.PING, 10.0, CHAT.content)
    async with pair(script, {"routing": {"commit": commit}}) as g:
        with takes(60.0):
            answer = await g.chat(stream=True)
        if commit == "answer":
            assert answer.field("X-Gateway-Provider") == "b"
        else:
            assert b"upstream_stalled" in answer.body


@pytest.mark.parametrize("item", [builders.role(), builders.chunk([]), builders.event("")])
async def test_events_without_content_do_not_rearm_idle(item: bytes) -> None:
    async with pair(keeps_saying(item, 10.0, CHAT.content)) as g:
        with takes(60.0):
            answer = await g.chat(stream=True)
        assert b"upstream_stalled" in answer.body


async def test_content_rearms_idle() -> None:
    items = [builders.delta("x")] * 5
    async with pair(events(*items, builders.finish(), builders.DONE, delay=59.0)) as g:
        with takes(6 * 59.0):
            answer = await g.chat(stream=True)
        assert answer.body.endswith(builders.DONE)


async def test_what_a_client_pipelines_does_not_rearm_idle() -> None:
    async with pair(open_stream(CHAT.content), {"routing": {"commit": "answer"}}) as g:
        async with g.client() as client:
            await client.send(post(CHAT.path, CHAT.request(stream=True)))
            with takes(60.0):
                for _ in range(5):
                    await asyncio.sleep(10.0)
                    await client.send(b"\r\n")
                answer = await client.response()
            assert answer.field("X-Gateway-Provider") == "b"


async def test_half_an_event_does_not_rearm_idle() -> None:
    async def drips(peer: Peer, _: Request) -> None:
        await peer.sse(CHAT.content, end=False)
        while True:
            await peer.chunk(b"x")
            await asyncio.sleep(10)

    async with pair(drips) as g:
        with takes(60.0):
            answer = await g.chat(stream=True)
        assert answer.ended in (Ended.CUT, Ended.RESET)


async def test_a_body_that_is_no_stream_is_bounded_by_idle_after_commit_head() -> None:
    script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", then="stall")
    async with pair(script, {"routing": {"commit": "head"}}) as g:
        with takes(60.0):
            answer = await g.chat()
        assert not answer.whole
        assert g.exchange["end_reason"] == "upstream_stalled"


@pytest.mark.parametrize("gap", [0.0, 0.2])
async def test_so_it_is_however_its_first_bytes_are_cut_from_its_head(gap: float) -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        await asyncio.sleep(gap)
        await peer.send(b"{")
        await peer.stall()

    async with pair(script, {"routing": {"commit": "head"}}) as g:
        with takes(60.0 + gap):
            answer = await g.chat()
        assert not answer.whole
        assert g.exchange["end_reason"] == "upstream_stalled"


async def test_after_commit_head_a_stream_without_content_has_the_deadline_alone() -> None:
    async with pair(open_stream(builders.PING), {"routing": {"commit": "head"}}) as g:
        with takes(600.0):
            answer = await g.chat(stream=True)
        assert b"deadline_exceeded" in answer.body


# ---- deadline


async def test_the_deadline_bounds_all_attempts_together() -> None:
    async with (
        ScriptedProvider(silent(), name="a") as a,
        ScriptedProvider(silent(), name="b") as b,
        ScriptedProvider(silent(), name="c") as c,
        gateway(config_for(a, b, c, clocks={"deadline": 150.0})) as g,
    ):
        with takes(150.0):
            answer = await g.chat(stream=True)
        assert (answer.status, answer.field("X-Gateway-Attempts")) == (504, "3")
        outcomes = [attempt["outcome"] for attempt in g.exchange["attempts"]]
        assert outcomes == ["first_content_timeout", "first_content_timeout", "deadline"]
        assert c.departures[0] == pytest.approx(1150.0, abs=1.0)


async def test_the_deadline_bounds_a_backoff() -> None:
    limited = status(429, None, [("Retry-After", "8")])
    async with ScriptedProvider(limited, name="a") as a:
        config = config_for(a, clocks={"deadline": 20.0}, failover={"retries": 10})
        async with gateway(config) as g:
            with takes(16.0):
                answer = await g.chat()
            assert answer.status == 429
            assert len(a.requests) == 3


async def test_after_the_deadline_nobody_is_asked() -> None:
    request = post(CHAT.path, CHAT.request())
    async with ScriptedProvider(ok(), name="a") as a:
        config = config_for(a, clocks={"deadline": 20.0}, quota={"daily_turns": 5})
        async with gateway(config) as g, g.client() as client:
            await client.send(request[:-1])
            await asyncio.sleep(30.0)  # `body` gives it 60
            await client.send(request[-1:])
            answer = await client.response()
            assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
            assert a.connections == 0
            assert g.exchange["turn"] == "refunded"


async def test_the_deadline_is_600_s_and_counts_the_stream() -> None:
    async with pair(keeps_saying(builders.delta("x"), 30.0)) as g:
        with takes(600.0):
            answer = await g.chat(stream=True)
        assert b"deadline_exceeded" in answer.body


@pytest.mark.parametrize(("stream", "limit"), [(True, 60.0), (False, 300.0)])
async def test_a_head_that_drips_ends_by_the_clock_of_its_attempt(
    stream: bool, limit: float
) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50
    async with pair(raw(head, size=1, delay=5.0)) as g:
        with takes(limit):
            assert await provider(g, stream=stream) == "b"


@pytest.mark.parametrize("head", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-"])
async def test_half_a_head_is_silence(head: bytes) -> None:
    async with pair(raw(head, then="stall")) as g:
        with takes(60.0):
            assert await provider(g) == "b"
        assert first(g) == "first_content_timeout"


async def test_half_a_head_does_not_outlive_the_deadline() -> None:
    script = raw(b"HTTP/1.1 200", then="stall")
    async with pair(script, {"clocks": {"deadline": 30.0}}) as g:
        with takes(30.0):
            assert (await g.chat(stream=True)).status == 504


@pytest.mark.parametrize("code", [400, 401, 429])
async def test_an_error_answer_that_does_not_end_is_not_waited_for(code: int) -> None:
    head = f"HTTP/1.1 {code} Scripted\r\nContent-Length: 900\r\n\r\n{{".encode()
    async with pair(raw(head, then="stall"), {"failover": {"credentials": True}}) as g:
        answer = await g.chat()
        assert elapsed() <= 10.0
        assert answer.status == (400 if code == 400 else 200)


@pytest.mark.parametrize("code", [500, 503, 302])
async def test_the_body_of_an_answer_that_moves_on_anyway_is_not_waited_for(code: int) -> None:
    head = f"HTTP/1.1 {code} Scripted\r\nContent-Length: 900\r\n\r\n{{".encode()
    async with pair(raw(head, then="stall")) as g:
        with takes(0.0):
            assert await provider(g) == "b"


# ---- the client's side


async def test_a_head_has_ten_seconds_however_it_drips() -> None:
    async with pair(ok()) as g, g.client() as client:
        sending = asyncio.create_task(
            client.send(b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 50, size=1, delay=0.5)
        )
        with takes(10.0):
            answer = await client.response()
        assert (answer.status, answer.error["code"]) == (408, "timeout")
        assert answer.field("Connection") == "close"
        sending.cancel()


async def test_a_body_has_sixty_seconds_however_it_drips() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n"
    async with pair(ok()) as g, g.client() as client:
        await client.send(head)
        sending = asyncio.create_task(client.send(b" " * 499, size=1, delay=5.0))
        with takes(60.0):
            answer = await client.response()
        assert answer.status == 408
        sending.cancel()


@pytest.mark.parametrize("used", [False, True])
async def test_an_idle_connection_closes_silently_after_75_s(used: bool) -> None:
    async with pair(ok()) as g, g.client() as client:
        if used:
            assert (await client.post_json(CHAT.path, CHAT.request())).status == 200
        with takes(75.0):
            assert await client.ended() is Ended.CLOSE


async def test_empty_lines_win_an_idle_connection_no_time() -> None:
    async with pair(ok()) as g, g.client() as client:
        for _ in range(7):
            await asyncio.sleep(10)
            await client.send(b"\r\n")
        with takes(5.0):
            assert await client.ended() is Ended.CLOSE


async def test_the_idle_clock_does_not_run_during_an_exchange() -> None:
    async with pair(slow(200.0, ok())) as g, g.client() as client:
        assert (await client.post_json(CHAT.path, CHAT.request())).status == 200
        await asyncio.sleep(70)
        assert (await client.post_json(CHAT.path, CHAT.request())).status == 200


# ---- a client that does not read

FLOOD = builders.delta("x" * 60_000)


def floods(count: int) -> Script:
    return events(*[FLOOD] * count, builders.finish(), builders.DONE)


async def begun(client: RawClient) -> Response:
    """A stream whose reader stops after the head: the transport is paused at its limit."""
    answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return answer


async def test_a_client_that_does_not_read_is_cut_after_write_timeout() -> None:
    async with ScriptedProvider(floods(500), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            await begun(client)
            await asyncio.sleep(62)
            assert a.open == 0, "the provider is still being read"
            line = g.exchange
            assert (line["end_reason"], line["ended_by"]) == ("client_stalled", "client")
            assert (await g.get("/health")).json()["providers"][0]["state"] == "closed"


async def test_idle_stands_still_while_the_client_does_not_read() -> None:
    config = {"clocks": {"idle": 5.0}}
    async with ScriptedProvider(floods(300), name="a") as a:
        async with gateway(config_for(a, **config)) as g, g.client() as client:
            answer = await begun(client)
            await asyncio.sleep(40)
            assert a.open == 1, "the provider was let go while the client was behind"
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await answer.read()
            assert answer.body.endswith(builders.DONE)
            assert g.exchange["end_reason"] == "complete"


def gives_up(patience: float, then: str) -> Script:
    """A stream whose provider ends the connection when nobody has taken anything for so long."""

    async def script(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        try:
            while True:
                peer.writer.write(b"%x\r\n%b\r\n" % (len(FLOOD), FLOOD))
                async with asyncio.timeout(patience):
                    await peer.writer.drain()
        except TimeoutError:
            if then == "rst":
                await peer.rst()
            peer.writer.transport.abort()
            await asyncio.sleep(0)

    return script


@pytest.mark.parametrize("then", ["rst", "fin"])
async def test_a_provider_that_gives_up_on_a_slow_client_is_not_blamed(then: str) -> None:
    """Or whoever reads slowly would open the breaker for everybody."""
    async with ScriptedProvider(gives_up(20.0, then), name="a") as a:
        async with gateway(config_for(a, breaker={"failures": 1})) as g, g.client() as client:
            answer = await begun(client)
            await asyncio.sleep(50)
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await answer.read()
            line = g.exchange
            assert (line["end_reason"], line["ended_by"]) == ("upstream_truncated", "provider")
            assert (await g.get("/health")).json()["providers"][0]["state"] == "closed"


async def test_a_client_that_takes_a_little_now_and_then_is_no_stalled_one() -> None:
    async with ScriptedProvider(floods(300), name="a") as a:
        async with gateway(config_for(a)) as g, g.client() as client:
            answer = await begun(client)
            for _ in range(4):
                await asyncio.sleep(50)
                client.writer.transport.resume_reading()  # type: ignore[attr-defined]
                for _ in range(40):
                    await answer.piece()
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            assert a.open == 1
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await answer.read()
            assert answer.body.endswith(builders.DONE)


async def test_the_deadline_holds_for_a_client_that_does_not_read() -> None:
    config = {"clocks": {"deadline": 30.0}}
    async with ScriptedProvider(floods(500), name="a") as a:
        async with gateway(config_for(a, **config)) as g, g.client() as client:
            await begun(client)
            await asyncio.sleep(31)
            assert a.open == 0
            assert g.exchange["end_reason"] == "deadline_exceeded"


async def test_a_whole_answer_that_nobody_takes_is_cut_after_write_timeout() -> None:
    body = builders.encode(builders.completion("x" * 8_000_000))
    async with ScriptedProvider(whole(body), name="a") as a:
        async with gateway(config_for(a)) as g, g.client() as client:
            await client.send(b"")
            await client.request("POST", CHAT.path, builders.encode(CHAT.request()))
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(62)
            assert g.exchange["end_reason"] == "client_stalled"
            assert g.app.engine.running == 0
