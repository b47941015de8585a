"""When the head goes out, by `commit` value, kind of body and surface: what is rescued before it.

`a` is the provider in question, `b` a healthy one behind it. Who was asked and whose bytes arrived
tell whether the answer of `a` was taken for one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support import builders
from tests.support.client import Response
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.loop import elapsed, takes
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, ok_stream, raw, silent, slow

from .shapes import (
    ALL,
    CHAT,
    EVERY_SURFACE,
    MESSAGES,
    RESPONSES,
    STREAMED,
    Shape,
    open_stream,
    whole,
)

shapes = pytest.mark.parametrize("shape", ALL, ids=str)
streamed = pytest.mark.parametrize("shape", STREAMED, ids=str)
commits = pytest.mark.parametrize("commit", ["head", "content", "answer"])
holding = pytest.mark.parametrize("commit", ["content", "answer"])


@asynccontextmanager
async def chain(
    script: Script, shape: Shape = CHAT, commit: str = "content", **sections: Any
) -> AsyncIterator[tuple[Gateway, ScriptedProvider, ScriptedProvider]]:
    """relayd in front of `a`, which follows the script, and a healthy `b`."""
    healthy = events(*shape.stream) if shape.stream else whole(shape.answer)

    async def good(peer: Any, request: Any) -> None:
        streams = request.json().get("stream") is True
        await (healthy if streams else whole(shape.answer))(peer, request)

    async with (
        ScriptedProvider(script, name="a", surfaces=EVERY_SURFACE) as a,
        ScriptedProvider(good, name="b", surfaces=EVERY_SURFACE) as b,
        gateway(config_for(a, b, routing={"commit": commit}, **sections)) as g,
    ):
        yield g, a, b


async def ask(g: Gateway, shape: Shape = CHAT, *, stream: bool = True) -> Response:
    return await g.post(shape.path, shape.request(stream=True) if stream else shape.request())


def provider(answer: Response) -> str | None:
    return answer.field("X-Gateway-Provider")


# ---- what passes, whatever the commit


@streamed
@commits
async def test_a_good_stream_passes_byte_for_byte(shape: Shape, commit: str) -> None:
    async with chain(events(*shape.stream), shape, commit) as (g, _, b):
        answer = await ask(g, shape)
        assert (answer.status, answer.whole, provider(answer)) == (200, True, "a")
        assert answer.body == b"".join(shape.stream)
        assert answer.field("Content-Type") == "text/event-stream"
        assert not b.requests
        assert g.exchange["commit"] == commit


@shapes
@commits
async def test_a_good_whole_answer_passes_byte_for_byte(shape: Shape, commit: str) -> None:
    script = whole(shape.answer, ("Content-Type", "application/json; x=y"))
    async with chain(script, shape, commit) as (g, _, b):
        answer = await ask(g, shape, stream=False)
        assert (answer.status, answer.body) == (200, shape.answer)
        assert answer.field("Content-Length") == str(len(shape.answer))
        assert answer.field("Content-Type") == "application/json; x=y"
        assert not b.requests


@pytest.mark.parametrize("status", [200, 201, 202])
async def test_a_2xx_with_a_body_is_an_answer(status: int) -> None:
    async with chain(whole(CHAT.answer, status=status)) as (g, _, b):
        answer = await ask(g, stream=False)
        assert (answer.status, answer.body) == (status, CHAT.answer)
        assert not b.requests


async def test_a_missing_content_type_is_not_invented() -> None:
    async with chain(whole(CHAT.answer)) as (g, _, _b):
        assert (await ask(g, stream=False)).field("Content-Type") is None


@holding
@pytest.mark.parametrize("kind", ["text/plain", "text/html", "application/json"])
async def test_a_mislabelled_stream_is_judged_by_its_bytes(kind: str, commit: str) -> None:
    body = b"".join(CHAT.stream)
    async with chain(whole(body, ("Content-Type", kind)), commit=commit) as (g, _, b):
        answer = await ask(g)
        assert (answer.body, answer.field("Content-Type")) == (body, kind)
        assert not b.requests


@holding
async def test_a_stream_nobody_asked_for_is_held_whole_and_passed_on(commit: str) -> None:
    body = b"".join(CHAT.stream)
    async with chain(events(*CHAT.stream, delay=1.0), commit=commit) as (g, _, b):
        with takes(5.0):
            async with g.client() as client:
                answer = await client.open_stream(CHAT.path, CHAT.request())
        await answer.read()
        assert answer.field("Content-Length") == str(len(body))
        assert answer.body == body
        assert not b.requests


@holding
async def test_json_for_a_request_that_streams_is_held_whole_and_passed_on(commit: str) -> None:
    async with chain(whole(CHAT.answer), commit=commit) as (g, _, b):
        answer = await ask(g)
        assert (answer.status, answer.body) == (200, CHAT.answer)
        assert not b.requests


# ---- when the head goes out


@streamed
async def test_commit_head_sends_the_head_before_any_event(shape: Shape) -> None:
    async with chain(events(*shape.stream, delay=5.0), shape, "head") as (g, _, _b):
        async with g.client() as client:
            with takes(0.0):
                answer = await client.open_stream(shape.path, shape.request(stream=True))
            await answer.read()
            assert answer.body == b"".join(shape.stream)


@streamed
async def test_commit_content_waits_for_the_first_content(shape: Shape) -> None:
    quiet = len(shape.lifecycle)
    async with chain(events(*shape.stream, delay=5.0), shape) as (g, _, _b):
        async with g.client() as client:
            with takes(5.0 * quiet):
                answer = await client.open_stream(shape.path, shape.request(stream=True))
            for _ in range(quiet + 1):
                await answer.event()
            assert elapsed() == pytest.approx(5.0 * quiet, abs=0.05)  # the peek came with it
            await answer.read()
            assert answer.body == b"".join(shape.stream)


@streamed
async def test_commit_answer_waits_for_the_end(shape: Shape) -> None:
    waits = len(shape.stream) - 1
    async with chain(events(*shape.stream, delay=5.0), shape, "answer") as (g, _, _b):
        async with g.client() as client:
            with takes(5.0 * waits):
                answer = await client.open_stream(shape.path, shape.request(stream=True))
            await answer.read()
            assert answer.body == b"".join(shape.stream)
            assert answer.field("Content-Length") == str(len(answer.body))


# ---- what is content


def chat_delta(**members: object) -> bytes:
    return builders.chunk([{"index": 0, "delta": members}])


CONTENTS = {
    "text": (CHAT, chat_delta(content="x")),
    "reasoning": (CHAT, chat_delta(reasoning="x")),
    "reasoning_content": (CHAT, chat_delta(reasoning_content="x")),
    "tool_calls": (CHAT, chat_delta(tool_calls=[{"index": 0, "id": "c"}])),
    "refusal": (CHAT, chat_delta(refusal="no")),
    "audio": (CHAT, chat_delta(audio={"id": "a"})),
    "second choice": (
        CHAT,
        builders.chunk([{"index": 0, "delta": {}}, {"index": 1, "delta": {"content": "x"}}]),
    ),
    "finish stop": (CHAT, builders.finish("stop")),
    "finish length": (CHAT, builders.finish("length")),
    "finish content_filter": (CHAT, builders.finish("content_filter")),
    "completions text": (STREAMED[1], builders.text_chunk("x")),
    "completions finish": (STREAMED[1], builders.text_chunk("", "stop")),
    "responses text delta": (
        RESPONSES,
        builders.responses_event("response.output_text.delta", delta="x"),
    ),
    "responses arguments delta": (
        RESPONSES,
        builders.responses_event("response.function_call_arguments.delta", delta="{"),
    ),
    "responses completed": (RESPONSES, builders.responses_event("response.completed", response={})),
    "responses incomplete": (
        RESPONSES,
        builders.responses_event("response.incomplete", response={}),
    ),
    "messages delta": (MESSAGES, MESSAGES.content),
    "messages stop_reason": (
        MESSAGES,
        builders.messages_event("message_delta", delta={"stop_reason": "end_turn"}),
    ),
}


@pytest.mark.parametrize("case", CONTENTS)
async def test_content_commits(case: str) -> None:
    shape, event = CONTENTS[case]
    async with chain(open_stream(*shape.lifecycle, event), shape) as (g, _, b):
        async with g.client() as client:
            with takes(0.0):
                answer = await client.open_stream(shape.path, shape.request(stream=True))
            assert (answer.status, provider(answer)) == (200, "a")
            assert not b.requests


NO_CONTENT = {
    "role": (CHAT, builders.role()),
    "empty delta": (CHAT, chat_delta()),
    "null content": (CHAT, chat_delta(content=None)),
    "empty tool_calls": (CHAT, chat_delta(tool_calls=[])),
    "empty choices": (CHAT, builders.chunk([])),
    "usage alone": (CHAT, builders.usage()),
    "comment": (CHAT, b": OPENROUTER PROCESSING\n\n"),
    "byte order mark": (CHAT, b"\xef\xbb\xbf"),
    "blank lines": (CHAT, b"\n\n\r\n"),
    "empty data": (CHAT, b"event: ping\ndata: \n\n"),
    "null error": (CHAT, builders.event({"error": None, "choices": []})),
    "completions empty text": (STREAMED[1], builders.text_chunk("")),
    "responses created": (RESPONSES, RESPONSES.lifecycle[0]),
    "responses in_progress": (
        RESPONSES,
        builders.responses_event("response.in_progress", response={}),
    ),
    "messages start": (MESSAGES, MESSAGES.lifecycle[0]),
    "messages block start": (MESSAGES, MESSAGES.lifecycle[1]),
    "messages ping": (MESSAGES, MESSAGES.lifecycle[2]),
    "messages delta without stop_reason": (
        MESSAGES,
        builders.messages_event("message_delta", delta={"stop_reason": None}),
    ),
}


@pytest.mark.parametrize("case", NO_CONTENT)
async def test_what_is_no_content_does_not_commit(case: str) -> None:
    shape, event = NO_CONTENT[case]
    async with chain(open_stream(event), shape) as (g, a, b):
        answer = await ask(g, shape)
        assert provider(answer) == "b"
        assert (len(a.requests), len(b.requests)) == (1, 1)
        assert g.exchange["attempts"][0]["outcome"] == "first_content_timeout"
        assert answer.body == b"".join(shape.stream), "a byte of the first provider got through"


@pytest.mark.parametrize("case", NO_CONTENT)
async def test_what_comes_before_the_content_reaches_the_client_with_it(case: str) -> None:
    shape, event = NO_CONTENT[case]
    body = [event, *shape.stream]
    async with chain(events(*body, delay=1.0), shape) as (g, _, b):
        answer = await ask(g, shape)
        assert answer.body == b"".join(body)
        assert not b.requests


# ---- a 200 that is no answer

HTML = b"<!DOCTYPE html><html><body>Sign in</body></html>"
ERROR = json.dumps(builders.error_object()).encode()

NO_ANSWER = {
    "html": whole(HTML, ("Content-Type", "text/html")),
    "html called json": whole(HTML, ("Content-Type", "application/json")),
    "plain text": whole(b"upstream connect error"),
    "nothing": whole(b""),
    "blank lines": whole(b"\n\n  \r\n"),
    "204": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "an error object": whole(ERROR),
    "a string error": whole(b'{"error": "overloaded"}'),
    "gzip": whole(gzip.compress(CHAT.answer), ("Content-Encoding", "gzip")),
    "an unknown coding": whole(CHAT.answer, ("Content-Encoding", "zstd")),
    "an empty chunked body": events(),
    "a length that is cut": raw(
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + CHAT.answer[:40], then="fin"
    ),
    "a chunk that is cut": raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{", then="rst"
    ),
    "JSON that ends with its connection, cut": raw(
        b"HTTP/1.1 200 OK\r\n\r\n" + CHAT.answer[:-10], then="fin"
    ),
    "JSON that ends with its connection, reset": raw(
        b"HTTP/1.1 200 OK\r\n\r\n" + CHAT.answer[:-10], then="rst"
    ),
}
STREAM_ONLY = {
    "comments alone": events(b": a\n\n", b": b\n\n"),
    "role alone": events(builders.role()),
    "done alone": events(builders.DONE),
    "an error event first": events(builders.error_event(), builders.DONE),
    "an error event after the role": events(builders.role(), builders.error_event()),
    "an event named error": events(b'event: error\ndata: {"message": "x"}\n\n'),
    "an error event over two lines": events(b'data: {"error":\ndata: {"message": "x"}}\n\n'),
    "an error behind a byte order mark": events(b"\xef\xbb\xbf" + builders.error_event()),
    "an error with bare CR": events(builders.error_event().replace(b"\n", b"\r")),
    "a stream that is reset before content": breaks_off(builders.role(), then="rst"),
}


@holding
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("case", NO_ANSWER)
async def test_a_200_that_is_no_answer_is_replaced(case: str, streams: bool, commit: str) -> None:
    async with chain(NO_ANSWER[case], commit=commit) as (g, a, b):
        answer = await ask(g, stream=streams)
        assert (answer.status, provider(answer)) == (200, "b")
        assert answer.body == (b"".join(CHAT.stream) if streams else CHAT.answer)
        assert (len(a.requests), len(b.requests)) == (1, 1)


@holding
@pytest.mark.parametrize("case", STREAM_ONLY)
async def test_a_stream_that_is_no_answer_is_replaced(case: str, commit: str) -> None:
    async with chain(STREAM_ONLY[case], commit=commit) as (g, a, b):
        answer = await ask(g)
        assert (provider(answer), answer.body) == ("b", b"".join(CHAT.stream))
        assert (len(a.requests), len(b.requests)) == (1, 1)


@streamed
@holding
async def test_an_error_event_first_is_replaced_on_every_surface(shape: Shape, commit: str) -> None:
    error = builders.event({"type": "error", "error": {"type": "overloaded_error"}}, "error")
    async with chain(events(*shape.lifecycle, error), shape, commit) as (g, _, _b):
        answer = await ask(g, shape)
        assert (provider(answer), answer.body) == ("b", b"".join(shape.stream))
        assert g.exchange["attempts"][0]["outcome"] == "error_answer"


async def test_an_error_beside_an_answer_is_an_answer() -> None:
    body = json.dumps({**builders.completion(), "error": {"message": "partly"}}).encode()
    async with chain(whole(body)) as (g, _, b):
        assert (await ask(g, stream=False)).body == body
        assert not b.requests


async def test_a_null_error_is_no_error() -> None:
    body = json.dumps({**builders.completion(), "error": None}).encode()
    async with chain(whole(body)) as (g, _, b):
        assert (await ask(g, stream=False)).body == body
        assert not b.requests


@holding
@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_that_ends_with_its_connection_is_one_if_it_is_whole(
    streams: bool, commit: str
) -> None:
    until_close = raw(b"HTTP/1.1 200 OK\r\n\r\n" + CHAT.answer, then="fin")
    async with chain(until_close, commit=commit) as (g, _, b):
        assert (await ask(g, stream=streams)).body == CHAT.answer
        assert not b.requests


@holding
async def test_a_stream_nobody_asked_for_that_is_cut_at_its_end_is_replaced(commit: str) -> None:
    until_close = breaks_off(CHAT.content, then="fin", chunked=False)
    async with chain(until_close, commit=commit) as (g, _, _b):
        answer = await ask(g, stream=False)
        assert (provider(answer), answer.body) == ("b", CHAT.answer)


HALF = [*map(builders.delta, "ab"), builders.finish(), builders.delta("c")]  # of several choices


async def test_a_held_stream_that_is_reset_without_its_final_marker_is_replaced() -> None:
    async with chain(breaks_off(*HALF, then="rst", chunked=False), commit="answer") as (g, _, _b):
        assert provider(await ask(g, stream=True)) == "b"


async def test_a_stream_that_is_reset_without_its_final_marker_is_cut() -> None:
    async with chain(breaks_off(*HALF, then="rst", chunked=False)) as (g, _, _b):
        answer = await ask(g, stream=True)
        assert answer.body.startswith(b"".join(HALF))
        assert b"upstream_truncated" in answer.body


@pytest.mark.parametrize("commit", ["content", "answer"])
async def test_a_stream_that_is_reset_behind_its_final_marker_is_whole(commit: str) -> None:
    said = builders.stream("a")
    async with chain(breaks_off(*said, then="rst", chunked=False), commit=commit) as (g, _, b):
        assert (await ask(g, stream=True)).body == b"".join(said)
        assert not b.requests
        assert g.exchange["end_reason"] == "complete"


@pytest.mark.parametrize("case", ["html", "an error object", "plain text"])
async def test_commit_head_looks_at_no_body(case: str) -> None:
    async with chain(NO_ANSWER[case], commit="head") as (g, _, b):
        answer = await ask(g, stream=False)
        assert (answer.status, provider(answer)) == (200, "a")
        assert not b.requests


async def test_identity_as_a_content_coding_is_none() -> None:
    async with chain(whole(CHAT.answer, ("Content-Encoding", "identity"))) as (g, _, b):
        answer = await ask(g, stream=False)
        assert (answer.body, answer.field("Content-Encoding")) == (CHAT.answer, None)
        assert not b.requests


@commits
async def test_interim_answers_are_no_answers(commit: str) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(CHAT.answer)
    async with chain(raw(hints + head + CHAT.answer), commit=commit) as (g, _, b):
        answer = await ask(g, stream=False)
        assert (answer.status, answer.body, answer.informational) == (200, CHAT.answer, [])
        assert not b.requests


async def test_interim_answers_alone_are_silence() -> None:
    async with chain(raw(b"HTTP/1.1 103 Early Hints\r\n\r\n", then="stall")) as (g, _, _b):
        with takes(60.0):
            assert provider(await ask(g)) == "b"


# ---- commit = "answer" on streams that go wrong half way


@pytest.mark.parametrize("then", ["fin", "rst"])
@streamed
async def test_commit_answer_replaces_a_stream_that_breaks_off(shape: Shape, then: str) -> None:
    begun = [*shape.lifecycle, shape.content]
    async with chain(breaks_off(*begun, then=then), shape, "answer") as (g, _, _b):
        answer = await ask(g, shape)
        assert (provider(answer), answer.body) == ("b", b"".join(shape.stream))


async def test_commit_answer_replaces_a_stream_without_a_terminal_marker() -> None:
    async with chain(events(CHAT.content), commit="answer") as (g, _, _b):
        answer = await ask(g)
        assert (provider(answer), answer.body) == ("b", b"".join(CHAT.stream))


async def test_commit_answer_replaces_a_stream_with_an_error_half_way() -> None:
    script = events(CHAT.content, builders.error_event(), builders.DONE)
    async with chain(script, commit="answer") as (g, _, _b):
        answer = await ask(g)
        assert (provider(answer), answer.body) == ("b", b"".join(CHAT.stream))


async def test_commit_answer_replaces_a_stream_that_stalls_half_way() -> None:
    async with chain(open_stream(CHAT.content), commit="answer") as (g, _, _b):
        with takes(60.0):
            answer = await ask(g)
        assert provider(answer) == "b"
        assert g.exchange["attempts"][0]["outcome"] == "idle_timeout"


async def test_a_route_has_a_commit_of_its_own() -> None:
    async with (
        ScriptedProvider(breaks_off(CHAT.content, then="fin"), name="a", model="m") as a,
        ScriptedProvider(ok_stream(), name="b", model="m") as b,
    ):
        routes = [
            {"name": "live", "providers": ["a", "b"]},
            {"name": "batch", "providers": ["a", "b"], "commit": "answer"},
        ]
        async with gateway(config_for(a, b, route=routes)) as g:
            assert provider(await g.chat(model="live", stream=True)) == "a"
            assert provider(await g.chat(model="batch", stream=True)) == "b"


# ---- the peek has limits


async def test_a_peek_of_64_events_commits_without_content() -> None:
    async with chain(open_stream(*[builders.role()] * 64)) as (g, _, b):
        async with g.client() as client:
            with takes(0.0):
                answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            assert (answer.status, provider(answer)) == (200, "a")
        assert not b.requests
    assert g.exchange["commit"] == "limit"


async def test_a_peek_of_63_events_does_not_commit() -> None:
    async with chain(open_stream(*[builders.role()] * 63)) as (g, _, _b):
        assert provider(await ask(g)) == "b"


async def test_a_peek_of_256_kib_commits_without_content() -> None:
    comment = b": " + b"x" * 65_533 + b"\n"
    async with chain(open_stream(*[comment] * 4)) as (g, _, b):
        async with g.client() as client:
            with takes(0.0):
                answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            assert provider(answer) == "a"
        assert not b.requests


async def test_silence_after_a_full_peek_ends_the_stream_by_the_first_content_clock() -> None:
    async with chain(open_stream(*[builders.role()] * 64)) as (g, _, b):
        with takes(60.0):
            answer = await ask(g)
        assert answer.whole
        assert b'"code":"upstream_stalled"' in answer.body
        assert not b.requests


# ---- sizes before the commit


async def test_an_answer_larger_than_allowed_is_refused_and_nobody_else_is_asked() -> None:
    big = json.dumps(builders.completion("x" * 5000)).encode()
    async with chain(whole(big), failover={"max_response_bytes": 4096}) as (g, _, b):
        answer = await ask(g, stream=False)
        assert (answer.status, answer.error["code"]) == (502, "response_too_large")
        assert answer.field("x-should-retry") == "false", "it would be paid for again"
        assert not b.requests


async def test_a_stream_held_whole_is_bounded_too() -> None:
    many = [builders.delta("x" * 500)] * 20
    async with chain(
        events(*many, builders.finish()), commit="answer", failover={"max_response_bytes": 4096}
    ) as (g, _, b):
        answer = await ask(g)
        assert (answer.status, answer.error["code"]) == (502, "response_too_large")
        assert not b.requests


async def test_a_relayed_stream_is_not_bounded_by_the_size_of_a_held_answer() -> None:
    stream = builders.stream(*["x" * 500] * 20)
    body = b"".join(stream)
    async with chain(events(body), failover={"max_response_bytes": 4096}) as (g, _, _b):
        answer = await ask(g)
        assert (answer.status, answer.body) == (200, body)


async def test_the_last_provider_without_an_answer_is_a_502() -> None:
    async with ScriptedProvider(events(), name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat(stream=True)
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert g.exchange["turn"] == "none"


async def test_a_slow_first_provider_is_replaced_before_a_byte_went_out() -> None:
    async with chain(silent()) as (g, _, _b):
        async with g.client() as client:
            with takes(60.0):
                answer = await client.open_stream(CHAT.path, CHAT.request(stream=True))
            assert (await answer.read()).body == b"".join(CHAT.stream)


async def test_a_late_head_is_waited_for() -> None:
    async with chain(slow(59.0, ok_stream())) as (g, _, b):
        assert provider(await ask(g)) == "a"
        assert not b.requests
