"""Judging the body of a 2xx before the commit."""

from __future__ import annotations

import pytest

from relayd.answers import CONTENT, FINAL, FINISH
from relayd.peek import MAX_PEEK, MAX_PEEK_EVENTS, Peek, Verdict, Why
from relayd.surfaces import Surface

CHAT = Surface.CHAT
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
FILTER = b'data: {"choices":[],"prompt_filter_results":[{"index":0}]}\n\n'
FAULT = b'data: {"error":{"message":"x","code":429}}\n\n'
DONE = b"data: [DONE]\n\n"

MORE, WHOLE, COMMIT = Verdict.MORE, Verdict.WHOLE, Verdict.COMMIT
LIMIT, FAIL = Verdict.LIMIT, Verdict.FAIL


def show(peek: Peek, *pieces: bytes) -> list[Verdict]:
    return [peek.feed(piece) for piece in pieces]


def ends(peek: Peek, *pieces: bytes) -> tuple[Verdict, Why | None]:
    """The verdict after these pieces and the end of the body."""
    show(peek, *pieces)
    return peek.close(), peek.reason


# ---- a stream that was asked for


def test_the_first_content_commits() -> None:
    peek = Peek(CHAT, streaming=True)
    assert show(peek, b": ping\n\n", ROLE, FILTER, CHUNK[:30]) == [MORE] * 4
    assert not peek.content_seen
    assert peek.feed(CHUNK[30:]) is COMMIT
    assert (peek.content_seen, peek.flags, peek.reason) == (True, CONTENT, None)
    assert bytes(peek.held) == b": ping\n\n" + ROLE + FILTER + CHUNK


def test_the_watcher_has_seen_all_that_is_held() -> None:
    peek = Peek(CHAT, streaming=True)
    show(peek, b"da", b"ta: 1\n\n" + ROLE, CHUNK + b"data")
    assert peek.watcher is not None
    assert (peek.watcher.events, peek.watcher.at_boundary) == (3, False)


def test_a_finish_without_content_is_an_answer() -> None:
    assert show(Peek(CHAT, streaming=True), ROLE, STOP) == [MORE, COMMIT]


def test_content_before_an_error_in_the_same_read_commits() -> None:
    peek = Peek(CHAT, streaming=True)
    assert peek.feed(CHUNK + FAULT) is COMMIT
    assert peek.close() is COMMIT


@pytest.mark.parametrize("before", [b"", b": ping\n\n", b"\xef\xbb\xbf", b"\r\n\n", ROLE])
def test_an_error_event_first_fails(before: bytes) -> None:
    peek = Peek(CHAT, streaming=True)
    assert peek.feed(before + FAULT) is FAIL
    assert (peek.reason, peek.close()) == (Why.ERROR_EVENT, FAIL)


@pytest.mark.parametrize("stream", [b": ping\n\n", ROLE, FILTER, b"id: 1\n\n", b"data: {bad"])
def test_an_end_without_content_or_finish_fails(stream: bytes) -> None:
    assert ends(Peek(CHAT, streaming=True), stream) == (FAIL, Why.EMPTY)


def test_done_without_content_fails_at_once() -> None:
    peek = Peek(CHAT, streaming=True)
    assert peek.feed(ROLE + DONE) is FAIL
    assert (peek.reason, peek.flags) == (Why.EMPTY, FINISH | FINAL)


def test_a_response_that_failed_first_fails_as_an_error() -> None:
    peek = Peek(Surface.RESPONSES, streaming=True)
    assert peek.feed(b'data: {"type":"response.failed","response":{}}\n\n') is FAIL
    assert peek.reason is Why.ERROR_EVENT


def test_content_in_an_event_without_its_end_commits_at_the_end() -> None:
    peek = Peek(CHAT, streaming=True)
    assert peek.feed(CHUNK.rstrip()) is MORE
    assert (peek.close(), peek.flags) == (COMMIT, CONTENT)


def test_a_peek_full_of_bytes_is_committed() -> None:
    peek = Peek(CHAT, streaming=True)
    assert peek.feed(b": " + b"x" * (MAX_PEEK - 3)) is MORE
    assert peek.feed(b"x") is LIMIT
    assert not peek.content_seen


def test_a_peek_full_of_events_is_committed() -> None:
    peek = Peek(CHAT, streaming=True)
    assert peek.feed(ROLE * (MAX_PEEK_EVENTS - 1)) is MORE
    assert peek.feed(ROLE) is LIMIT


def test_a_peek_full_of_blanks_is_committed() -> None:
    peek = Peek(CHAT, streaming=True)
    assert show(peek, b"\n" * (MAX_PEEK - 1), b"\n") == [MORE, LIMIT]
    assert peek.watcher is not None, "what follows must be watched, or a cut looks whole"


# ---- what kind of body it is


@pytest.mark.parametrize("name", [b"data:", b"event:", b"id:", b"retry:", b":"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b" \r\n\t\n"])
def test_the_fields_of_an_event_stream_are_recognised_in_any_cuts(
    name: bytes, before: bytes
) -> None:
    stream = before + name
    peek = Peek(CHAT, streaming=True)
    for at in range(len(stream)):
        assert peek.watcher is None
        assert peek.feed(stream[at : at + 1]) is MORE
    assert peek.watcher is not None


@pytest.mark.parametrize("body", [b"{", b"[", b" \n{", b"\xef\xbb\xbf[", b'{"a":'])
@pytest.mark.parametrize("streaming", [True, False])
def test_json_is_recognised_and_held(body: bytes, streaming: bool) -> None:
    peek = Peek(CHAT, streaming)
    assert [peek.feed(body[:1]), peek.feed(body[1:])][-1] is WHOLE
    assert peek.feed(b"}" * MAX_PEEK) is WHOLE
    assert peek.close() is COMMIT
    assert peek.watcher is None


@pytest.mark.parametrize(
    "body",
    [b"<html>", b"x", b"dat:", b"dataset", b"even ", b"\xef\xbb\xbf<", b"\xefx", b'"hi"', b"null"],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_anything_else_is_no_answer(body: bytes, streaming: bool) -> None:
    peek = Peek(CHAT, streaming)
    assert peek.feed(body) is FAIL
    assert peek.reason is Why.NOT_AN_ANSWER
    assert peek.close() is FAIL


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", Why.EMPTY),
        (b" \r\n", Why.EMPTY),
        (b"\xef\xbb", Why.EMPTY),
        (b"\xef\xbb\xbf", Why.EMPTY),
        (b"dat", Why.NOT_AN_ANSWER),
    ],
)
def test_a_body_that_ends_too_early_to_tell_is_no_answer(
    body: bytes, why: Why, streaming: bool
) -> None:
    peek = Peek(CHAT, streaming)
    assert peek.feed(body) is MORE
    assert (peek.close(), peek.reason) == (FAIL, why)


def test_a_body_that_never_comes_is_no_answer() -> None:
    assert ends(Peek(CHAT, streaming=True)) == (FAIL, Why.EMPTY)


@pytest.mark.parametrize("streaming", [True, False])
def test_json_that_is_only_an_error_fails_at_its_end(streaming: bool) -> None:
    peek = Peek(CHAT, streaming)
    assert show(peek, b'{"error":', b'{"message":"x"}}') == [WHOLE, WHOLE]
    assert (peek.close(), peek.reason) == (FAIL, Why.ERROR_OBJECT)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"id":"x"}', None),
        (b' \n{"id":"x"}\n', None),
        (b'{"id":"x"', Why.CUT),
        (b'{"error":{"message":"x"}}', Why.ERROR_OBJECT),
    ],
)
def test_json_that_ends_with_its_connection_must_be_whole_by_itself(
    body: bytes, why: Why | None, streaming: bool
) -> None:
    peek = Peek(CHAT, streaming)
    peek.feed(body)
    assert peek.close(framed=False) is (FAIL if why else COMMIT)
    assert peek.reason is why


@pytest.mark.parametrize("streaming", [True, False])
def test_json_that_ends_as_its_framing_says_is_passed_on_as_it_is(streaming: bool) -> None:
    peek = Peek(CHAT, streaming)
    peek.feed(b'{"choices":[')
    assert peek.close(framed=True) is COMMIT


# ---- an event stream that nobody asked for


@pytest.mark.parametrize(
    ("stream", "why"), [(CHUNK, Why.CUT), (CHUNK + STOP, None), (ROLE, Why.EMPTY)]
)
def test_one_that_ends_with_its_connection_must_have_its_marker(
    stream: bytes, why: Why | None
) -> None:
    peek = Peek(CHAT, streaming=False)
    peek.feed(stream)
    assert peek.close(framed=False) is (FAIL if why else COMMIT)
    assert peek.reason is why


def test_a_stream_that_was_asked_for_and_has_content_is_the_relays_to_judge() -> None:
    peek = Peek(CHAT, streaming=True)
    peek.feed(CHUNK)
    assert peek.close(framed=False) is COMMIT


def test_a_stream_nobody_asked_for_is_held_and_passed_on_as_it_is() -> None:
    peek = Peek(CHAT, streaming=False)
    assert show(peek, b"\n", b"da", b"ta: 1\n\n", CHUNK) == [MORE, MORE, WHOLE, WHOLE]
    assert (peek.close(), peek.reason) == (COMMIT, None)


@pytest.mark.parametrize(
    ("stream", "why"), [(FAULT, Why.ERROR_EVENT), (CHUNK + FAULT, Why.ERROR_EVENT)]
)
def test_an_error_in_a_stream_nobody_asked_for_fails(stream: bytes, why: Why) -> None:
    assert ends(Peek(CHAT, streaming=False), stream) == (FAIL, why)


def test_a_stream_nobody_asked_for_must_say_something() -> None:
    assert ends(Peek(CHAT, streaming=False), ROLE) == (FAIL, Why.EMPTY)


# ---- a stream that must be whole


def test_a_stream_that_must_be_whole_commits_at_its_final_marker() -> None:
    peek = Peek(CHAT, streaming=True, whole=True)
    assert show(peek, ROLE, CHUNK, STOP, DONE) == [MORE, MORE, MORE, COMMIT]


def test_a_stream_that_must_be_whole_may_end_after_its_finish() -> None:
    peek = Peek(CHAT, streaming=True, whole=True)
    show(peek, CHUNK, STOP)
    assert peek.content_seen
    assert peek.close() is COMMIT


def test_a_stream_that_must_be_whole_has_no_limit_here() -> None:
    assert Peek(CHAT, streaming=True, whole=True).feed(CHUNK * 5000) is MORE


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (CHUNK, Why.CUT),
        (CHUNK + FAULT, Why.ERROR_EVENT),
        (CHUNK + STOP + FAULT, Why.ERROR_EVENT),
        (FAULT + DONE, Why.ERROR_EVENT),
        (ROLE + DONE, Why.EMPTY),
        (b": ping\n\n", Why.EMPTY),
    ],
)
def test_a_stream_that_must_be_whole_and_is_not_fails(stream: bytes, why: Why) -> None:
    assert ends(Peek(CHAT, streaming=True, whole=True), stream) == (FAIL, why)


def test_a_response_that_fails_half_way_is_not_whole() -> None:
    stream = (
        b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
        b'data: {"type":"response.failed","response":{}}\n\n'
    )
    assert ends(Peek(Surface.RESPONSES, True, whole=True), stream) == (FAIL, Why.ERROR_EVENT)
