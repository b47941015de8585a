"""What a whole JSON answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relayd.record import Usage
from relayd.surfaces import Surface
from relayd.whole import MAX_PARSED, is_cut, is_error_answer, usage_of

CHAT, RESPONSES, MESSAGES = Surface.CHAT, Surface.RESPONSES, Surface.MESSAGES
DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"x","code":429}}',
        b' {"error": "x"}\n',
        b'{"type":"error","error":{"type":"overloaded_error"},"request_id":"r"}',
        b'{"id":"r","object":"chat.completion","choices":[],"error":{"code":502}}',
        b'{"id":"r","object":"response","status":"failed","error":{"code":"x"},"output":[]}',
        b'{"object":"error","message":"x"}',
        b'{"error":{"message":"mod\xe8le indisponible"}}',
    ],
)
def test_an_object_that_is_only_an_error_is_no_answer(body: bytes) -> None:
    assert is_error_answer(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"error":null,"choices":[{"message":{}}]}',
        b'{"error":{"code":502},"choices":[{"message":{"content":"a"}}]}',
        b'{"id":"r","error":null,"output":[{}]}',
        b'{"content":[{"text":"\\"error\\""}]}',
        b'[{"error":{"code":429}}]',
        b'{"error":{"message":"x"',
        b'{"error":' + DEEP,
        b'{"error":{"message":"' + b"a" * MAX_PARSED + b'"}}',
    ],
)
def test_anything_else_in_json_is_an_answer(body: bytes) -> None:
    assert not is_error_answer(body)


def test_usage_and_finish_of_a_whole_answer() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    chat = {"choices": [{"finish_reason": "stop"}], "usage": usage}
    response = {"status": "completed", "usage": {"input_tokens": 1, "output_tokens": 2}}
    message = {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 2}}
    counts = Usage(1, 2, None)
    for surface, answer, reason in [
        (CHAT, chat, "stop"),
        (CHAT, {"usage": usage}, None),
        (RESPONSES, response, "completed"),
        (MESSAGES, message, "end_turn"),
    ]:
        assert usage_of(json.dumps(answer).encode(), surface) == (counts, reason)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"choices":[]}', b'{"usage":', b'["usage"]', b'{"usage":5}']
)
def test_an_answer_without_usage_tells_none(body: bytes) -> None:
    assert usage_of(body, CHAT) == (None, None)


def test_usage_at_the_end_of_a_large_answer_is_found() -> None:
    numbers = b",".join([b"0.123"] * (MAX_PARSED // 5))
    body = b'{"data":[{"embedding":[%b]}],"usage":{"prompt_tokens":8,"total_tokens":8}}' % numbers
    assert usage_of(body, Surface.EMBEDDINGS) == (Usage(8, None, None), None)


def test_usage_at_the_start_of_a_large_answer_is_found() -> None:
    body = b'{"usage":{"prompt_tokens":8},"data":"%b"}' % (b"a" * MAX_PARSED)
    assert usage_of(body, Surface.EMBEDDINGS) == (Usage(8, None, None), None)


def test_the_first_finish_reason_that_is_a_text_counts() -> None:
    body = b'{"choices":[{"finish_reason":null},{"finish_reason": "stop"},{"finish_reason":"x"}]}'
    assert usage_of(body, CHAT)[1] == "stop"
    assert usage_of(b'{"choices":[{"finish_reason":null}]}', CHAT)[1] is None
    assert usage_of(b'{"finish_reason"finish_reason":"stop"', CHAT)[1] == "stop"  # no JSON at all


INNER = {"type": "tool_use", "input": {"stop_reason": "nope"}}
ITEM = {"type": "message", "status": "completed"}


@pytest.mark.parametrize(
    ("surface", "answer", "reason"),
    [
        (MESSAGES, {"content": [INNER], "stop_reason": "tool_use"}, "tool_use"),
        (MESSAGES, {"stop_reason": "tool_use", "content": [INNER]}, "tool_use"),
        (MESSAGES, {"stop_reason": None, "content": [INNER]}, None),
        (RESPONSES, {"output": [ITEM], "status": "incomplete"}, "incomplete"),
        (RESPONSES, {"status": "incomplete", "output": [ITEM]}, "incomplete"),
    ],
)
def test_the_finish_is_the_answers_own(surface: Surface, answer: Any, reason: str | None) -> None:
    assert usage_of(json.dumps(answer).encode(), surface)[1] == reason


@pytest.mark.parametrize(
    ("surface", "body"),
    [
        (RESPONSES, b'[{"status":"completed"},{"status":"completed"}]'),
        (MESSAGES, b'{"stop_reason":"end_turn","content":[{"stop_reason":'),
    ],
    ids=["a list", "cut"],
)
def test_what_is_no_object_tells_no_finish_of_its_own(surface: Surface, body: bytes) -> None:
    assert usage_of(body, surface) == (None, None)


def test_of_a_large_answer_the_first_finish_counts() -> None:
    large = {"stop_reason": "end_turn", "content": ["a" * MAX_PARSED, INNER]}
    assert usage_of(json.dumps(large, separators=(",", ":")).encode(), MESSAGES)[1] == "end_turn"


# ---- an answer that ends with its connection


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b' {"a":[1,{"b":"}"}]} \r\n',
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff\xed\xa0\x80\t"}',  # odd, but all there
        b"[" * 20_000 + b"]" * 20_000,
        b'{"a":"' + b"x" * MAX_PARSED + b'"}',
    ],
)
def test_a_whole_answer_is_not_cut(body: bytes) -> None:
    assert not is_cut(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"a":',
        b'{"a":"}',
        b'{"a":{}',
        b'{"a":[1]',
        b'{"a":"' + b"x" * MAX_PARSED,
    ],
)
def test_an_answer_that_stops_early_is_cut(body: bytes) -> None:
    assert is_cut(body)
