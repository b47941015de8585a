"""The connection of one client: what it may send, in which pieces, and how its answers are framed.

What is refused, and with which words, is `test_errors`'; the clocks of reading are `test_clocks`'.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.support.builders import DONE, chat, completion, delta, encode, stream
from tests.support.client import RawClient, Response, post, request
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok, ok_json, ok_stream, slow, status
from tests.support.wire import Ended

from .shapes import ALL

GETS = ["/healthz", "/readyz", "/health", "/v1/models", "/v1/models/default"]
POSTS = [shape.path for shape in ALL]
BODY = encode(chat())


def old(data: bytes) -> bytes:
    """The same request in HTTP/1.0."""
    return data.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


def chunks(*pieces: bytes, trailers: bytes = b"") -> bytes:
    """A chunked POST of these pieces."""
    head = request("POST", CHAT, fields={"Content-Length": "", "Transfer-Encoding": "chunked"})
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + b"0\r\n" + trailers + b"\r\n"


async def dated(client: RawClient, method: str, path: str) -> Response:
    await client.request(method, path)
    answer = await client.response(method)
    assert answer.field("Date"), "every answer has a date"
    return answer


# --- one connection, many requests


async def test_one_connection_serves_all_kinds_of_answers() -> None:
    scripts = [ok_json("1"), ok_stream("2"), status(400), status(503), ok_json("3")]
    async with (
        ScriptedProvider(*scripts) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        seen = []
        for streams in (False, True, False, False, False):
            answer = await client.post_json(CHAT, chat(stream=streams))
            assert answer.whole
            assert answer.field("Connection") is None
            seen.append(answer.status)
            assert (await client.get("/healthz")).status == 200
        assert seen == [200, 200, 400, 502, 200]


@pytest.mark.parametrize("value", ["close", "Close", "keep-alive, close", "close, X-Y"])
@pytest.mark.parametrize("path", ["/healthz", "/nothing"])
async def test_connection_close_is_obeyed(value: str, path: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        answer = await client.get(path, {"Connection": value})
        assert answer.field("Connection") == "close"
        assert await client.ended() is Ended.CLOSE


async def test_the_end_of_the_connection_comes_at_once_when_the_client_asked_for_it() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        with takes(0.0):
            await client.post_json(CHAT, chat(stream=True), {"Connection": "close"})
            await client.ended()


@pytest.mark.each_loop
@pytest.mark.parametrize("size", [0, 1, 3], ids=["at once", "byte by byte", "in threes"])
async def test_pipelined_requests_of_all_kinds_are_answered_in_order(size: int) -> None:
    requests = [
        post(CHAT, chat("1")),
        request("GET", "/healthz"),
        post(CHAT, chat("2", stream=True)),
        request("GET", "/nothing"),
        chunks(BODY[:9], BODY[9:]),
        request("HEAD", "/healthz"),
        post(CHAT, b"{"),
        request("GET", "/v1/models"),
    ]
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        sending = asyncio.create_task(client.send(b"".join(requests), size=size))
        seen = []
        for one in requests:
            answer = await client.response("HEAD" if one.startswith(b"HEAD") else "POST")
            assert answer.whole
            seen.append(answer.status)
        await sending
        assert seen == [200, 200, 200, 404, 200, 200, 400, 200]


@pytest.mark.each_loop
async def test_what_was_asked_before_a_half_close_is_answered() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(request("GET", "/healthz") * 3)
        client.writer.write_eof()
        assert [(await client.response()).status for _ in range(3)] == [200] * 3
        assert await client.ended() is Ended.CLOSE


@pytest.mark.parametrize("between", [b"\r\n", b"\r\n\r\n"])
async def test_empty_lines_between_requests_are_skipped(between: bytes) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(between + post(CHAT, chat()) + between + request("GET", "/healthz"))
        assert (await client.response()).status == 200
        assert (await client.response()).body == b"ok\n"


async def test_a_fault_of_framing_ends_the_pipeline_after_the_answers_before_it() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        good, bad = request("GET", "/healthz"), b"GET /healthz\r\n\r\n"
        await client.send(good + bad + good)
        assert (await client.response()).status == 200
        refused = await client.response()
        assert refused.status == 400
        assert refused.field("Connection") == "close"
        assert await client.ended() is Ended.CLOSE


# --- targets and methods


@pytest.mark.parametrize(
    "target",
    [
        "http://relayd.test/healthz",
        "HTTP://other.test:80/healthz",
        "https://relayd.test/healthz?a=b",
        "/healthz?",
        "/healthz?a=http://b/c",
    ],
)
async def test_absolute_targets_and_queries_lead_to_the_path(target: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        assert (await g.get(target)).body == b"ok\n"


@pytest.mark.parametrize(
    "target",
    ["/", "//healthz", "/healthz/", "/HEALTHZ", "/v1", "/v1/", "/v1/models/", "/%68ealthz"],
)
async def test_a_path_is_what_it_says(target: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        answer = await g.get(target)
    assert answer.status == 404
    assert answer.error["code"] == "not_found"


async def test_a_query_of_a_relayed_request_is_not_forwarded() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        assert (await g.post(CHAT + "?api-version=1&key=sk-secret", chat())).status == 200
        assert a.requests[0].target == CHAT


@pytest.mark.parametrize("path", GETS)
async def test_head_is_get_without_a_body(path: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        got, asked = await dated(client, "GET", path), await dated(client, "HEAD", path)
        assert asked.status == got.status == 200
        assert asked.body == b""
        shown = {n: v for n, v in got.fields if n not in ("X-Request-ID", "Date")}
        assert {n: v for n, v in asked.fields if n not in ("X-Request-ID", "Date")} == shown
        assert (await client.get("/healthz")).body == b"ok\n"


@pytest.mark.parametrize("path", [*POSTS, "/nothing"])
async def test_head_elsewhere_is_refused_without_a_body(path: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        answer = await dated(client, "HEAD", path)
        assert answer.status == (404 if path == "/nothing" else 405)
        assert answer.body == b""
        assert int(answer.field("Content-Length") or 0) > 0
        assert (await client.get("/healthz")).body == b"ok\n"


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW", "get"])
@pytest.mark.parametrize("path", [*GETS, *POSTS])
async def test_another_method_is_a_405_that_names_those_that_work(method: str, path: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        answer = await dated(client, method, path)
        assert answer.status == 405
        assert answer.field("Allow") == ("POST" if path in POSTS else "GET, HEAD")
        assert "POST" in answer.error["message"] or "GET" in answer.error["message"]
        assert answer.field("Access-Control-Allow-Origin") is None
        assert (await client.get("/healthz")).status == 200
        assert a.requests == []


@pytest.mark.parametrize(("method", "target"), [("OPTIONS", "*"), ("CONNECT", "a.test:443")])
async def test_what_is_asked_of_no_path_is_not_found(method: str, target: str) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.request(method, target)
        assert (await client.response()).status == 404


async def test_a_get_with_a_body_is_answered_and_its_body_is_no_request() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        inner = request("GET", "/v1/models")
        await client.request("GET", "/healthz", inner)
        answer = await client.response()
        assert answer.body == b"ok\n"
        assert answer.field("Connection") == "close"
        assert await client.ended() is Ended.CLOSE


# --- 100-continue


@pytest.mark.parametrize("body", [{}, {"stream": True}], ids=["whole", "stream"])
async def test_who_waits_for_a_100_gets_it_and_then_the_answer(body: dict[str, Any]) -> None:
    data = post(CHAT, chat(**body), {"Expect": "100-continue"})
    at = data.index(b"\r\n\r\n") + 4
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(data[:at])
        async with asyncio.timeout(1.0):
            interim = await client.reader.readuntil(b"\r\n\r\n")
        assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(data[at:])
        answer = await client.response("POST")
        assert answer.status == 200
        assert answer.informational == []


REFUSED = {
    "unknown path": (request("POST", "/nothing", BODY), 404),
    "wrong method": (request("PUT", CHAT, BODY), 405),
    "too large": (request("POST", CHAT, fields={"Content-Length": "99999999"}), 413),
    "coded": (request("POST", CHAT, BODY, {"Content-Encoding": "gzip"}), 415),
    "another expectation": (request("POST", CHAT, BODY, {"Expect": "200-ok"}), 417),
}


@pytest.mark.parametrize(("data", "code"), REFUSED.values(), ids=REFUSED)
async def test_what_the_head_says_is_judged_before_a_100(data: bytes, code: int) -> None:
    head = data[: data.index(b"\r\n\r\n") + 4]
    if b"Expect" not in head:
        head = head[:-2] + b"Expect: 100-continue\r\n\r\n"
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(head)
        answer = await client.response("POST")
        assert answer.status == code
        assert answer.informational == []
        assert answer.field("Connection") == "close"


async def test_a_body_that_is_there_already_needs_no_100() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi", fields={"Expect": "100-continue"})
    assert answer.status == 200
    assert answer.informational == []


async def test_an_http_1_0_client_never_gets_a_100() -> None:
    data = old(post(CHAT, chat(), {"Expect": "100-continue"}))
    at = data.index(b"\r\n\r\n") + 4
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(data[:at])
        await asyncio.sleep(1.0)
        await client.send(data[at:])
        answer = await client.response("POST")
        assert answer.status == 200
        assert answer.informational == []


# --- HTTP/1.0


@pytest.mark.parametrize("more", [{}, {"Connection": "keep-alive"}], ids=["plain", "keep-alive"])
@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
async def test_an_http_1_0_client_gets_no_chunks_and_the_end_is_the_close(
    streams: bool, more: dict[str, str]
) -> None:
    async with (
        ScriptedProvider(ok("hello")) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(old(post(CHAT, chat(stream=streams), more)))
        answer = await client.response("POST")
        assert answer.field("Transfer-Encoding") is None
        assert answer.field("Connection") == "close"
        assert answer.ended is (Ended.CLOSE if streams else Ended.LENGTH)
        if streams:
            assert answer.body == b"".join(stream("hello"))
        else:
            assert answer.json() == completion()
        assert await client.ended() is Ended.CLOSE


async def test_http_1_0_needs_no_host() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await client.response()).body == b"ok\n"


# --- uploads


CUTS = {
    "one chunk": (BODY,),
    "two chunks": (BODY[:5], BODY[5:]),
    "a chunk a byte": tuple(BODY[at : at + 1] for at in range(len(BODY))),
}


@pytest.mark.each_loop
@pytest.mark.parametrize("pieces", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("size", [0, 1], ids=["at once", "byte by byte"])
async def test_a_chunked_body_goes_upstream_whole_with_one_length(
    pieces: tuple[bytes, ...], size: int
) -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(chunks(*pieces) + request("GET", "/healthz"), size=size)
        assert (await client.response("POST")).status == 200
        assert (await client.response()).body == b"ok\n"
        asked = a.requests[0]
    assert asked.body == BODY
    assert asked.field("Content-Length") == str(len(BODY))
    assert asked.field("Transfer-Encoding") is None


async def test_extensions_and_trailers_are_read_and_dropped() -> None:
    data = chunks(BODY, trailers=b"X-Sum: 1\r\nAuthorization: Bearer x\r\n")
    data = data.replace(b"%x\r\n" % len(BODY), b'%X;a="b"\r\n' % len(BODY), 1)
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(data)
        assert (await client.response("POST")).status == 200
        assert a.requests[0].body == BODY
        assert not {"x-sum", "authorization"} & set(a.requests[0].names())


@pytest.mark.parametrize("framed", ["length", "chunks"])
@pytest.mark.parametrize(("excess", "code"), [(0, 200), (1, 413)])
async def test_the_limit_of_a_body_is_exact(framed: str, excess: int, code: int) -> None:
    limit = 4096
    body = encode(chat("x" * (limit - len(encode(chat(""))) + excess)))
    assert len(body) == limit + excess
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, server={"max_request_bytes": limit})) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, body) if framed == "length" else chunks(body[:99], body[99:]))
        assert (await client.response("POST")).status == code
        assert len(a.requests) == (code == 200)


async def test_a_client_that_leaves_within_its_body_is_no_exchange() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g:
        for leave in ("close", "rst", "half_close"):
            async with g.client() as client:
                await client.send(post(CHAT, chat())[:-5])
                getattr(client, leave)()
                await asyncio.sleep(0.1)
        assert a.requests == []
        assert g.exchanges == []
        assert (await g.get("/healthz")).status == 200


# --- refused early


@pytest.mark.each_loop
@pytest.mark.parametrize("case", ["unknown path", "wrong method", "too large", "coded"])
async def test_an_early_refusal_can_be_read_by_a_client_that_still_sends(case: str) -> None:
    head = REFUSED[case][0].partition(b"\r\n\r\n")[0]
    rows = [row for row in head.split(b"\r\n") if not row.startswith(b"Content-Length")]
    length = 3 * 1_048_576
    head = b"\r\n".join([*rows, b"Content-Length: %d\r\n\r\n" % length])
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(head + b"x" * length)
        answer = await client.response("POST")
        assert answer.whole
        assert answer.status == 413  # the first row of the table that applies
        assert await client.ended() is Ended.CLOSE


async def test_after_a_refusal_the_connection_is_open_for_two_seconds_at_most() -> None:
    async with ScriptedProvider(ok()) as a, gateway(config_for(a)) as g, g.client() as client:
        await client.send(request("POST", "/nothing", fields={"Content-Length": "1000"}))
        assert (await client.response("POST")).status == 404
        assert await client.ended() is Ended.CLOSE  # half-closed
        assert connections(g) == 1
        await asyncio.sleep(1.9)
        assert connections(g) == 1
        await asyncio.sleep(0.2)
        assert connections(g) == 0


def connections(g: Gateway) -> int:
    return g.app.server.connections


# --- too many


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "only connects"])
async def test_above_the_limit_a_connection_is_turned_away_in_full(asks: bool) -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, server={"max_connections": 2})) as g,
        AsyncExitStack() as stack,
    ):
        inside = [await stack.enter_async_context(g.client()) for _ in range(2)]
        for client in inside:
            assert (await client.get("/healthz")).status == 200
        async with g.client() as third:
            if asks:
                await third.send(post(CHAT, chat("x" * 500_000)))
            answer = await third.response()
            assert answer.status == 503
            assert answer.error["code"] == "overloaded"
            assert answer.field("Retry-After") == "1"
            assert answer.field("Connection") == "close"
            assert answer.field("Date")
            assert answer.field("X-Request-ID")
            assert await third.ended() is Ended.CLOSE
        assert (await inside[0].get("/healthz")).status == 200
        inside[1].close()
        await asyncio.sleep(0.1)
        assert (await g.get("/healthz")).status == 200
        assert a.requests == []


async def test_those_who_are_turned_away_are_not_counted_and_all_are_told() -> None:
    async with (
        ScriptedProvider(ok()) as a,
        gateway(config_for(a, server={"max_connections": 1})) as g,
        AsyncExitStack() as stack,
    ):
        inside = await stack.enter_async_context(g.client())
        await inside.get("/healthz")
        for _ in range(100):
            client = await stack.enter_async_context(g.client())
            assert (await client.response()).status == 503
        assert connections(g) == 1
        inside.close()
        await asyncio.sleep(0.1)
        assert (await g.get("/healthz")).status == 200


async def test_above_the_limit_of_exchanges_a_request_is_refused_and_probes_are_not() -> None:
    async with (
        ScriptedProvider(slow(5.0, ok())) as a,
        gateway(config_for(a, server={"max_exchanges": 1})) as g,
    ):
        first = asyncio.create_task(g.chat("hi"))
        await asyncio.sleep(1.0)
        refused = await g.chat("hi")
        assert refused.status == 503
        assert refused.error["code"] == "overloaded"
        assert refused.field("Retry-After") == "1"
        assert (await g.get("/healthz")).status == 200
        assert (await first).status == 200
        assert (await g.chat("hi")).status == 200


async def test_a_place_that_was_free_at_the_head_may_be_taken_when_the_body_is_there() -> None:
    whole = post(CHAT, chat())
    async with (
        ScriptedProvider(slow(5.0, ok())) as a,
        gateway(config_for(a, server={"max_exchanges": 1})) as g,
        g.client() as late,
    ):
        await late.send(whole[:-5])
        first = asyncio.create_task(g.chat("hi"))
        await asyncio.sleep(1.0)
        await late.send(whole[-5:])
        refused = await late.response("POST")
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert (await first).status == 200
        assert len(a.requests) == 1


# --- framing of answers


async def test_a_whole_answer_has_a_length_and_a_stream_has_chunks() -> None:
    async with ScriptedProvider(ok("hello")) as a, gateway(config_for(a)) as g:
        whole = await g.chat("hi")
        events = await g.chat("hi", stream=True)
    assert whole.field("Content-Length") == str(len(whole.body))
    assert whole.field("Transfer-Encoding") is None
    assert events.field("Content-Length") is None
    assert events.ended is Ended.CHUNKS
    assert events.body == b"".join(stream("hello"))


async def test_a_stream_that_is_held_whole_has_a_length() -> None:
    async with (
        ScriptedProvider(ok_stream("hello")) as a,
        gateway(config_for(a, routing={"commit": "answer"})) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("Content-Length") == str(len(answer.body))
    assert answer.body == b"".join(stream("hello"))


async def test_an_event_is_one_chunk_so_that_no_reader_waits_for_half_of_it() -> None:
    async with (
        ScriptedProvider(ok_stream("a", "b", delay=0.1)) as a,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        await client.send(post(CHAT, chat(stream=True)))
        raw = await client.reader.readuntil(b"0\r\n\r\n")
    assert b"%x\r\n%b\r\n" % (len(delta("b")), delta("b")) in raw
    assert b"%x\r\n%b\r\n" % (len(DONE), DONE) in raw
