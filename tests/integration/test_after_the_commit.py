"""How a stream ends once a byte of it went out: complete, with one error event, or visibly cut.

Whatever happens, no second provider is asked and no cut answer looks like a finished one.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relayd.admission import ask_for
from relayd.exchange import Exchange
from relayd.pump import Pump
from relayd.queuesink import QueueSink
from relayd.record import Record
from relayd.surfaces import Surface
from relayd.wake import Clock, Wake
from tests.support import builders
from tests.support.client import RawClient, Response
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, ok, raw
from tests.support.wire import Ended

from .shapes import CHAT, EVERY_SURFACE, MESSAGES, OPEN, STREAMED, Shape, open_stream

streamed = pytest.mark.parametrize("shape", STREAMED, ids=str)


@asynccontextmanager
async def asked(
    script: Script, shape: Shape = CHAT, **sections: Any
) -> AsyncIterator[tuple[Gateway, RawClient, Response]]:
    """relayd in front of a provider with this script, and the head of its stream."""
    async with (
        ScriptedProvider(script, name="a", surfaces=EVERY_SURFACE) as a,
        ScriptedProvider(ok(), name="b", surfaces=EVERY_SURFACE) as b,
        gateway(config_for(a, b, **sections)) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(shape.path, shape.request(stream=True))
        assert answer.status == 200
        yield g, client, answer
        await asyncio.sleep(0.05)
        assert not b.requests, "a second provider was asked after the commit"
        if g.exchanges:
            assert g.app.engine.running == 0
            assert not any(g.app.engine.in_flight.values())


def last_event(answer: Response) -> dict[str, Any]:
    """The data of the last event of a body that was read."""
    value: dict[str, Any] = json.loads(answer.text.rstrip("\n").rpartition("data: ")[2])
    return value


def check_error(answer: Response, sent: bytes, code: str) -> None:
    """What was sent, then one error event with this code, then the end of the body."""
    assert answer.whole
    assert answer.body.startswith(sent)
    added = answer.body[len(sent) :]
    assert added.startswith(b"data: ")
    assert added.endswith(b"\n\n")
    assert added.count(b"\n") == 2
    error = last_event(answer)["error"]
    assert (error["code"], error["type"], error["param"]) == (code, "upstream_error", None)
    assert error["message"]
    assert b"[DONE]" not in added


# ---- broken off by the provider


def cut_stream(*items: bytes, then: str, framed: str) -> Script:
    """A stream that ends wrongly after these events; `framed`: chunked, length or bare."""
    head = {
        "chunked": "Transfer-Encoding: chunked",
        "length": "Content-Length: 100000",
        "bare": "Connection: close",
    }[framed]
    lines = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{head}\r\n\r\n".encode()
    body = b"".join(b"%x\r\n%b\r\n" % (len(i), i) if framed == "chunked" else i for i in items)
    return raw(lines + body, then=then)


@pytest.mark.each_loop
@pytest.mark.parametrize("framed", ["chunked", "length", "bare"])
@pytest.mark.parametrize("then", ["fin", "rst", "cut"])
async def test_a_stream_cut_at_a_boundary_ends_with_one_error_event(then: str, framed: str) -> None:
    script = cut_stream(builders.role(), CHAT.content, then=then, framed=framed)
    async with asked(script) as (g, _, answer):
        await answer.read()
        check_error(answer, builders.role() + CHAT.content, "upstream_truncated")
        line = g.exchange
        assert (line["status"], line["ended_by"]) == (200, "provider")
        assert line["end_reason"] == "upstream_truncated"


@pytest.mark.each_loop
@pytest.mark.parametrize("framed", ["chunked", "length", "bare"])
@pytest.mark.parametrize("then", ["fin", "rst"])
async def test_a_stream_cut_inside_an_event_is_cut(then: str, framed: str) -> None:
    script = cut_stream(CHAT.content, OPEN, then=then, framed=framed)
    async with asked(script) as (g, _, answer):
        await answer.read()
        assert answer.ended in (Ended.CUT, Ended.RESET)
        assert answer.body == CHAT.content + OPEN
        assert g.exchange["end_reason"] == "upstream_truncated"


@pytest.mark.parametrize(
    "tail",
    [b": half a comment", b"data", b"event: x\n", b"data: x\n", b"id: 1\r\n", b"data: {}\r"],
)
async def test_half_an_event_is_no_boundary(tail: bytes) -> None:
    async with asked(cut_stream(CHAT.content + tail, then="fin", framed="chunked")) as (_, _c, a):
        await a.read()
        assert a.ended in (Ended.CUT, Ended.RESET)
        assert a.body == CHAT.content + tail


@pytest.mark.parametrize("tail", [b"", b"\n", b": a whole comment\n", b"\r\n", b"data: x\r\r"])
async def test_a_blank_line_is_a_boundary(tail: bytes) -> None:
    async with asked(cut_stream(CHAT.content + tail, then="fin", framed="chunked")) as (_, _c, a):
        await a.read()
        check_error(a, CHAT.content + tail, "upstream_truncated")


async def test_a_clean_end_without_a_terminal_marker_is_a_cut_stream() -> None:
    async with asked(events(CHAT.content)) as (g, _, answer):
        await answer.read()
        check_error(answer, CHAT.content, "upstream_truncated")
        assert g.exchange["end_reason"] == "upstream_truncated"


async def test_a_bad_chunk_after_the_commit_is_a_cut_stream() -> None:
    item = b"%x\r\n%b\r\n" % (len(CHAT.content), CHAT.content)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with asked(raw(head + item, b"zz\r\n", delay=1.0)) as (_, _c, answer):
        await answer.read()
        check_error(answer, CHAT.content, "upstream_truncated")


@streamed
async def test_each_surface_has_its_error_event(shape: Shape) -> None:
    async with asked(breaks_off(*shape.lifecycle, shape.content, then="fin"), shape) as (_, _c, a):
        await a.read()
        assert a.whole
        value = last_event(a)
        if shape is MESSAGES:
            assert value["type"] == "error"
            assert set(value["error"]) == {"type", "message"}
            assert b"event: error\n" in a.body
        else:
            assert value["error"]["code"] == "upstream_truncated"


@pytest.mark.each_loop
async def test_a_cut_stream_is_a_reset_for_an_http_1_0_client() -> None:
    script = cut_stream(CHAT.content, OPEN, then="fin", framed="chunked")
    async with ScriptedProvider(script, name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            body = builders.encode(CHAT.request(stream=True))
            await client.send(
                b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
                + body
            )
            answer = await client.head()
            assert answer.field("Transfer-Encoding") is None
            assert answer.field("Connection") == "close"
            await answer.read()
            assert answer.ended is Ended.RESET


@pytest.mark.each_loop
async def test_on_a_unix_socket_where_none_is_an_event_nobody_can_read_comes_before_the_error(
    tmp_path: Path,
) -> None:
    """nginx, in front of it and in its default HTTP/1.0, would end the client's body cleanly."""
    script = cut_stream(CHAT.content, OPEN, then="fin", framed="chunked")
    socket = f"{tmp_path}/relayd.sock"
    async with (
        ScriptedProvider(script, name="a") as a,
        gateway(config_for(a, server={"listen": f"unix:{socket}"})),
        RawClient(socket) as client,
    ):
        body = builders.encode(CHAT.request(stream=True))
        await client.send(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        answer = await client.response()
        assert answer.body.startswith(CHAT.content + OPEN + b"\n\ndata: ")
        assert last_event(answer)["error"]["code"] == "upstream_truncated"


@pytest.mark.each_loop
async def test_a_stream_for_an_http_1_0_client_ends_with_its_connection() -> None:
    async with ScriptedProvider(ok("a", "b"), name="a") as a, gateway(config_for(a)) as g:
        async with g.client() as client:
            body = builders.encode(CHAT.request(stream=True))
            await client.send(
                b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
                + body
            )
            answer = await client.response()
            assert answer.ended is Ended.CLOSE
            assert answer.body == b"".join(builders.stream("a", "b"))


async def test_a_whole_answer_cut_after_commit_head_is_cut() -> None:
    script = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", b'"a"', then="fin", delay=1.0)
    async with ScriptedProvider(script, name="a") as a:
        async with gateway(config_for(a, routing={"commit": "head"})) as g:
            answer = await g.chat()
            assert (answer.status, answer.whole) == (200, False)
            assert answer.body == b'{"a"'


@pytest.mark.parametrize(("then", "whole"), [("fin", True), ("rst", False)])
async def test_a_reset_ends_no_answer_that_ends_with_its_connection(then: str, whole: bool) -> None:
    script = raw(b"HTTP/1.1 200 OK\r\n\r\n{", b'"a":1}', then=then, delay=1.0)
    async with ScriptedProvider(script, name="a") as a:
        async with gateway(config_for(a, routing={"commit": "head"})) as g:
            answer = await g.chat()
            assert (answer.status, answer.body) == (200, b'{"a":1}')
            assert answer.whole is whole
            assert g.exchange["end_reason"] == ("complete" if whole else "upstream_truncated")


# ---- stalled


async def test_a_stalled_stream_ends_after_idle_with_one_error_event() -> None:
    async with asked(open_stream(CHAT.content)) as (g, _, answer):
        with takes(60.0):
            await answer.read()
        check_error(answer, CHAT.content, "upstream_stalled")
        assert g.exchange["end_reason"] == "upstream_stalled"
        assert g.exchange["ended_by"] == "provider"


async def test_a_stream_that_stalls_inside_an_event_is_cut() -> None:
    async with asked(open_stream(CHAT.content + OPEN)) as (g, _, answer):
        with takes(60.0):
            await answer.read()
        assert answer.ended in (Ended.CUT, Ended.RESET)
        assert g.exchange["end_reason"] == "upstream_stalled"


# ---- the deadline, sizes, relayd's own end


async def test_the_deadline_ends_a_running_stream_with_its_own_code() -> None:
    script = events(*[builders.delta("x")] * 100, delay=5.0)
    async with asked(script, clocks={"deadline": 12}) as (g, _, answer):
        with takes(12.0):
            await answer.read()
        check_error(answer, builders.delta("x") * 3, "deadline_exceeded")
        assert (g.exchange["end_reason"], g.exchange["ended_by"]) == ("deadline_exceeded", "relayd")


async def test_a_stream_larger_than_allowed_ends_with_its_own_code() -> None:
    script = events(*[builders.delta("x" * 1000)] * 10, delay=1.0)
    async with asked(script, failover={"max_stream_bytes": 4000}) as (g, _, answer):
        await answer.read()
        check_error(answer, builders.delta("x" * 1000) * 3, "response_too_large")
        assert g.exchange["end_reason"] == "response_too_large"


async def test_a_drain_that_is_over_ends_a_stream_with_its_own_code() -> None:
    async with asked(open_stream(CHAT.content)) as (g, _, answer):
        stopping = asyncio.create_task(g.app.stop(5.0))
        with takes(5.0):
            await answer.read()
        check_error(answer, CHAT.content, "shutting_down")
        await stopping
        assert g.exchange["end_reason"] == "shutting_down"


# ---- the provider's own error


@streamed
@pytest.mark.parametrize("end", ["clean", "fin", "rst", "stall"])
async def test_a_providers_error_event_is_passed_on_and_nothing_is_added(
    shape: Shape, end: str
) -> None:
    error = builders.event({"type": "error", "error": {"message": "overloaded"}}, "error")
    sent = [*shape.lifecycle, shape.content, error]
    script = events(*sent) if end == "clean" else breaks_off(*sent, then=end)
    async with asked(script, shape) as (g, _, answer):
        with takes(2.0 if end == "stall" else 0.0):
            await answer.read()
        assert answer.body == b"".join(sent)
        assert answer.whole
        assert g.exchange["end_reason"] == "upstream_error_event"
        assert g.exchange["ended_by"] == "provider"


LAST = {
    "an error": ([builders.error_event()], "upstream_error_event"),
    "a final marker": ([builders.finish(), builders.DONE], "complete"),
}


@pytest.mark.parametrize("by", ["deadline", "drain"])
@pytest.mark.parametrize("last", LAST)
async def test_behind_the_last_word_nothing_is_added_whatever_ends_the_stream(
    last: str, by: str
) -> None:
    words, reason = LAST[last]
    sent = [CHAT.content, *words]
    script = breaks_off(*sent, then="stall")
    clocks = {"deadline": 1.0 if by == "deadline" else 600.0}
    async with asked(script, clocks=clocks) as (g, _, answer):
        stopping = asyncio.create_task(g.app.stop(1.0)) if by == "drain" else None
        with takes(1.0):
            await answer.read()
        assert answer.body == b"".join(sent)
        assert answer.whole
        if stopping:
            await stopping
        assert g.exchange["end_reason"] == reason
        assert g.exchange["ended_by"] == "provider"


async def test_a_finish_of_one_choice_is_no_last_word() -> None:
    other = {"index": 1, "delta": {"content": "and"}, "finish_reason": None}
    sent = [CHAT.content, builders.finish(), builders.chunk([other])]
    async with asked(breaks_off(*sent, then="stall"), clocks={"deadline": 1.0}) as (g, _, answer):
        await answer.read()
        check_error(answer, b"".join(sent), "deadline_exceeded")
        assert g.exchange["end_reason"] == "deadline_exceeded"


async def test_what_comes_behind_the_final_marker_cannot_be_too_large() -> None:
    sent = [CHAT.content, builders.finish(), builders.DONE]
    script = breaks_off(*sent, b": " + b"x" * 5000 + b"\n\n", then="stall")
    limit = {"max_stream_bytes": 4096}
    async with asked(script, failover=limit) as (g, _, answer):
        await answer.read()
        assert answer.body == b"".join(sent)
        assert answer.whole
        assert g.exchange["end_reason"] == "complete"


async def test_a_client_that_leaves_behind_the_final_marker_has_all_of_it() -> None:
    sent = [CHAT.content, builders.finish(), builders.DONE]
    async with asked(breaks_off(*sent, then="stall")) as (g, client, answer):
        while await answer.event() is not None and not answer.text.endswith("[DONE]\n\n"):
            pass
        client.close()
        await asyncio.sleep(0.5)
        assert g.exchange["end_reason"] == "complete"


async def test_done_after_an_error_event_does_not_make_it_complete() -> None:
    sent = [CHAT.content, builders.error_event(), builders.DONE]
    async with asked(events(*sent)) as (g, _, answer):
        await answer.read()
        assert answer.body == b"".join(sent)
        assert g.exchange["end_reason"] == "upstream_error_event"


async def test_a_null_error_in_a_stream_is_none() -> None:
    quirk = builders.event({"choices": [], "error": None})
    sent = [CHAT.content, quirk, builders.finish(), builders.DONE]
    async with asked(events(*sent)) as (g, _, answer):
        await answer.read()
        assert answer.body == b"".join(sent)
        assert g.exchange["end_reason"] == "complete"


# ---- complete


@streamed
async def test_a_final_marker_ends_the_body_within_two_seconds(shape: Shape) -> None:
    async with asked(open_stream(*shape.stream), shape) as (g, _, answer):
        with takes(2.0):
            await answer.read()
        assert answer.whole
        assert answer.body == b"".join(shape.stream)
        assert g.exchange["end_reason"] == "complete"


async def test_the_end_of_a_provider_that_trails_its_final_marker_is_awaited() -> None:
    async with asked(events(*CHAT.stream, b": bye\n\n", delay=1.5)) as (g, _, answer):
        await answer.read()
        assert answer.body == b"".join(CHAT.stream) + b": bye\n\n"
        assert g.exchange["end_reason"] == "complete"


async def test_chatter_after_the_final_marker_does_not_keep_the_body_open() -> None:
    async def chatters(peer: Peer, _: Request) -> None:
        await peer.sse(CHAT.content, builders.DONE, end=False)
        while True:
            await peer.chunk(builders.PING)
            await asyncio.sleep(1)

    async with asked(chatters) as (g, _, answer):
        with takes(2.0):
            await answer.read()
        assert answer.whole
        assert g.exchange["end_reason"] == "complete"


async def test_silence_for_idle_after_a_bare_finish_reason_is_complete() -> None:
    async with asked(open_stream(CHAT.content, builders.finish())) as (g, _, answer):
        with takes(60.0):
            await answer.read()
        assert answer.whole
        assert answer.body == CHAT.content + builders.finish()
        assert g.exchange["end_reason"] == "complete"


async def test_a_clean_end_after_a_bare_finish_reason_is_complete() -> None:
    async with asked(events(CHAT.content, builders.finish())) as (g, _, answer):
        await answer.read()
        assert answer.body == CHAT.content + builders.finish()
        assert g.exchange["end_reason"] == "complete"


@pytest.mark.parametrize("then", ["fin", "rst"])
async def test_a_terminal_marker_alone_does_not_excuse_a_broken_framing(then: str) -> None:
    async with asked(breaks_off(CHAT.content, builders.finish(), then=then)) as (g, _, answer):
        await answer.read()
        check_error(answer, CHAT.content + builders.finish(), "upstream_truncated")
        assert g.exchange["end_reason"] == "upstream_truncated"


@streamed
@pytest.mark.parametrize("then", ["fin", "rst"])
async def test_behind_a_final_marker_a_broken_framing_is_told_to_the_log_alone(
    shape: Shape, then: str
) -> None:
    """All was said: an SDK would raise on an error behind it, and a whole answer be lost."""
    async with asked(breaks_off(*shape.stream, then=then), shape) as (g, _, answer):
        await answer.read()
        assert answer.whole
        assert answer.body == b"".join(shape.stream)
        assert g.exchange["end_reason"] == "upstream_truncated"
        assert g.exchange["finish_reason"]


TWO_CHOICES = builders.finish() + b'data: {"choices":[{"index":1,"delta":{"content":"hal'


@pytest.mark.parametrize("framed", ["chunked", "length", "bare"])
@pytest.mark.parametrize("then", ["fin", "rst", "stall"])
async def test_half_an_event_behind_a_bare_finish_is_no_end(framed: str, then: str) -> None:
    script = cut_stream(CHAT.content, TWO_CHOICES, then=then, framed=framed)
    async with asked(script) as (g, _, answer):
        await answer.read()
        assert not answer.whole
        reason = "upstream_stalled" if then == "stall" else "upstream_truncated"
        assert g.exchange["end_reason"] == reason


@pytest.mark.parametrize("framed", ["chunked", "bare"])
@pytest.mark.parametrize("then", ["fin", "rst", "stall"])
async def test_nor_is_it_of_an_answer_that_is_held(framed: str, then: str) -> None:
    script = cut_stream(CHAT.content, TWO_CHOICES, then=then, framed=framed)
    async with (
        ScriptedProvider(script, name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, routing={"commit": "answer"})) as g,
    ):
        answer = await g.chat(stream=True)
        assert (answer.status, answer.field("X-Gateway-Provider")) == (200, "b")


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("end", [b"", builders.finish(), builders.finish() + builders.DONE])
async def test_the_limit_of_bytes_holds_in_the_read_that_also_ends_the_body(
    end: bytes, chunked: bool
) -> None:
    many = builders.delta("x" * 3000) + end
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    rest = b"%x\r\n%b\r\n0\r\n\r\n" % (len(many), many) if chunked else many
    framing = (
        b"Transfer-Encoding: chunked"
        if chunked
        else b"Content-Length: %d" % len(CHAT.content + many)
    )

    async def script(peer: Peer, _: Request) -> None:
        first = b"%x\r\n%b\r\n" % (len(CHAT.content), CHAT.content)
        await peer.send(head + framing + b"\r\n\r\n" + (first if chunked else CHAT.content))
        await asyncio.sleep(1)
        await peer.send(rest)

    async with asked(script, failover={"max_stream_bytes": 1500}) as (g, _, answer):
        await answer.read()
        check_error(answer, CHAT.content, "response_too_large")
        assert g.exchange["end_reason"] == "response_too_large"


@pytest.mark.parametrize("chunked", [True, False])
async def test_so_it_does_for_a_body_that_is_no_stream(chunked: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 3000"

    async def script(peer: Peer, _: Request) -> None:
        def part(data: bytes) -> bytes:
            return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data

        await peer.send(head + framing + b"\r\n\r\n" + part(b"{".ljust(1000)))
        await asyncio.sleep(1)
        end = b"0\r\n\r\n" if chunked else b""
        await peer.send(part(b"}".rjust(2000)) + end)

    sections = {"routing": {"commit": "head"}, "failover": {"max_stream_bytes": 1500}}
    async with ScriptedProvider(script) as a, gateway(config_for(a, **sections)) as g:
        async with g.client() as client:
            answer = await client.post_json(CHAT.path, CHAT.request())
            assert not answer.whole
            assert await client.ended() is Ended.CLOSE
        assert g.exchange["end_reason"] == "response_too_large"


@pytest.mark.parametrize("pieces", [1, 2])
async def test_what_came_whole_before_a_broken_chunk_arrives_however_it_is_cut(
    pieces: int,
) -> None:
    more = CHAT.content + builders.finish()
    chunk, broken = b"%x\r\n%b\r\n" % (len(more), more), b"0\r\nno trailer\r\n\r\n"

    async def script(peer: Peer, _: Request) -> None:
        await peer.sse(CHAT.content, end=False)
        await asyncio.sleep(1)
        for data in [chunk + broken] if pieces == 1 else [chunk, broken]:
            await peer.send(data)
            await asyncio.sleep(1)

    async with asked(script) as (g, _, answer):
        await answer.read()
        check_error(answer, CHAT.content + more, "upstream_truncated")
        assert g.exchange["finish_reason"] == "stop"


async def test_a_stream_that_ends_with_its_connection_is_complete_with_a_marker() -> None:
    async with asked(events(*CHAT.stream, chunked=False)) as (g, _, answer):
        await answer.read()
        assert answer.body == b"".join(CHAT.stream)
        assert g.exchange["end_reason"] == "complete"


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_a_last_event_without_its_blank_line_still_counts(missing: int) -> None:
    end = builders.finish()[: -missing or None]
    async with asked(events(CHAT.content, end)) as (g, _, answer):
        await answer.read()
        assert answer.body == CHAT.content + end
        assert answer.whole
        assert g.exchange["end_reason"] == "complete"


# ---- delivery


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
async def test_an_event_is_never_held_back_for_the_next(end: bytes) -> None:
    items = [builders.delta(str(n))[:-2] + end for n in range(4)]
    async with asked(events(*items, builders.finish(), delay=3.0)) as (_, _c, answer):
        for number, item in enumerate(items):
            with takes(3.0 if number else 0.0):
                got = await answer.event()
            assert got is not None
            assert got.raw == item
        await answer.read()


async def test_bytes_of_an_event_are_not_held_back_for_its_end() -> None:
    async with asked(events(CHAT.content, OPEN, b'x"}}]}\n\n', *CHAT.final, delay=3.0)) as (
        _,
        _c,
        a,
    ):
        await a.piece()
        with takes(3.0):
            assert await a.piece() == OPEN
        await a.read()


async def test_the_fields_of_a_stream() -> None:
    async with asked(events(*CHAT.stream)) as (_, _c, answer):
        assert answer.field("Cache-Control") == "no-cache"
        assert answer.field("X-Accel-Buffering") == "no"
        assert answer.field("X-Gateway-Provider") == "a"
        assert answer.field("X-Gateway-Attempts") == "1"
        assert answer.field("Via") == "1.1 relayd"
        assert answer.field("Transfer-Encoding") == "chunked"
        assert answer.field("Content-Length") is None
        assert answer.field("X-Request-ID")
        assert answer.field("Date")
        await answer.read()


async def test_the_connection_serves_on_after_a_stream() -> None:
    async with asked(events(*CHAT.stream)) as (_, client, answer):
        await answer.read()
        again = await client.post_json(CHAT.path, CHAT.request(stream=True))
        assert again.body == b"".join(CHAT.stream)


async def test_the_connection_serves_on_after_an_error_event_of_our_own() -> None:
    async with asked(breaks_off(CHAT.content, then="fin")) as (_, client, answer):
        await answer.read()
        assert (await client.get("/healthz")).status == 200


async def test_an_idle_client_keeps_nothing_of_its_last_answer() -> None:
    async with asked(events(*CHAT.stream)) as (_, client, answer):
        await answer.read()
        assert (await client.get("/healthz")).status == 200
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Pump)]


# ---- a fault of relayd's own


class Stumbles(QueueSink):
    """A sink with a fault: its second payload cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads = 0

    def write(self, payload: bytes) -> None:
        self.payloads += 1
        if self.payloads == 2:
            raise ZeroDivisionError("of a secret")
        super().write(payload)


async def test_a_fault_of_relayd_ends_a_stream_honestly_and_blames_nobody() -> None:
    script = events(builders.delta("a"), builders.delta("b"), delay=1.0, end=False)
    async with (
        ScriptedProvider(script, name="a") as a,
        gateway(config_for(a, breaker={"failures": 1})) as g,
    ):
        loop, engine, sink = asyncio.get_running_loop(), g.app.engine, Stumbles()
        clock, record = Clock(loop, Wake(loop)), Record("id", 0.0)
        body = json.dumps(CHAT.request(stream=True)).encode()
        config = engine.setup.config
        ask = ask_for(config, Surface.CHAT, body, b"", None, None, record, loop.time())
        await Exchange(engine, engine.setup, ask, sink, clock, record).run()
        clock.alarm.stop()
        sent, _, error = (await sink.take()).partition(builders.delta("a"))
        assert sent == b""
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "internal_error"
        await asyncio.sleep(0.1)
        assert a.open == 0
        assert (g.exchange["end_reason"], g.exchange["ended_by"]) == ("internal_error", "relayd")
        assert [line["event"] for line in g.log if "event" in line] == ["internal_error"]
        assert "secret" not in json.dumps(g.log)
