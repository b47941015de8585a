"""What events say, by surface."""

from __future__ import annotations

import json

import pytest

from relayd.answers import (
    CONTENT,
    ERROR,
    FINAL,
    FINISH,
    READINGS,
    Said,
    is_whole,
)
from relayd.record import Usage
from relayd.surfaces import Surface
from relayd.usage import merged

CHAT, COMPLETIONS = Surface.CHAT, Surface.COMPLETIONS
RESPONSES, MESSAGES = Surface.RESPONSES, Surface.MESSAGES
DEEP = b"[" * 100_000


def said(surface: Surface, data: object, event: bytes = b"") -> Said:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return READINGS[surface].judge(event, raw)


def delta(**members: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": None}], "usage": None}


def finish(reason: object, **members: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **members}


# ---- chat


@pytest.mark.parametrize(
    "members",
    [
        {"content": "a"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "", "reasoning": "a"},
        {"role": "assistant", "content": None, "reasoning_content": "a"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0}]},
        {"role": "assistant", "content": None, "tool_calls": [{}]},
        {"audio": {"data": "x"}},
        {"content": 'a "quoted" {brace}'},
        {"content": "\n"},
        {"x": 'role"', "y": {"z": 1}},
        {"annotations": [], "n": 5},
    ],
)
def test_a_delta_with_anything_but_a_role_is_content(members: dict[str, object]) -> None:
    assert said(CHAT, delta(**members)) == Said(CONTENT)


def test_compact_and_spaced_json_are_read_alike() -> None:
    compact = json.dumps(delta(content="a"), separators=(",", ":")).encode()
    wide = json.dumps(delta(content="a"), indent=2).encode()
    assert said(CHAT, compact) == said(CHAT, wide) == Said(CONTENT)


@pytest.mark.parametrize(
    "data",
    [
        delta(),
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(role="assistant", content=None, tool_calls=[], audio={}),
        {"choices": []},
        {"choices": None},
        {"choices": "x"},
        {"choices": [5, None, "x"]},
        {"choices": [{"delta": None}, {"delta": "content"}, {}]},
        {"choices": [], "prompt_filter_results": [{"content_filter_results": {"hate": "no"}}]},
        finish(None),
        finish(""),
        finish(0),
        {"error": None, "choices": []},
        b"5",
        b"null",
        b'"delta"',
        b"{bad",
        b"\xff",
        DEEP,
        b"  ",
        b'{"content":"a"}',
    ],
)
def test_what_carries_nothing_says_nothing(data: object) -> None:
    assert said(CHAT, data) == Said()


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "tool_calls"])
def test_a_finish_reason_is_content_and_a_terminal_marker(reason: str) -> None:
    assert said(CHAT, finish(reason)) == Said(CONTENT | FINISH, reason)


def test_a_finish_reason_that_is_no_string_still_ends() -> None:
    assert said(CHAT, finish(7)) == Said(CONTENT | FINISH, "7")


def test_the_word_null_with_every_chunk_is_no_finish() -> None:
    # KoboldCpp wrote it so (fixed in March 2025): taken for an end, each cut stream looks whole.
    assert said(CHAT, finish("null")) == Said()


def test_a_finish_reason_that_is_too_long_to_be_one_is_not_kept() -> None:
    assert said(CHAT, finish("x" * 5000)).finish_reason == "other"


def test_the_finish_of_any_choice_counts() -> None:
    choices = [{"delta": {"content": "a"}}, {"finish_reason": "stop"}]
    assert said(CHAT, {"choices": choices}) == Said(CONTENT | FINISH, "stop")


def test_done_is_final_but_no_content() -> None:
    for surface in Surface:
        assert said(surface, b"[DONE]") == Said(FINISH | FINAL)


def test_a_model_that_talks_about_markers_is_not_taken_for_one() -> None:
    prose = '[DONE] {"error":{"message":"x"}} "finish_reason":"stop" "usage":{"prompt_tokens":1}'
    assert said(CHAT, delta(content=prose)) == Said(CONTENT)


def test_a_member_named_error_beside_content_is_read_exactly() -> None:
    assert said(CHAT, {"error": None, **delta(content="a")}) == Said(CONTENT)


def test_two_documents_in_one_event_are_no_json() -> None:
    one = json.dumps(delta(content="a")).encode()
    assert said(CHAT, one + b"\n" + one) == Said()


# ---- errors


@pytest.mark.parametrize(
    "data",
    [
        {"error": {"message": "x", "code": 429}},
        {"error": "x"},
        {"error": 5},
        {"error": []},
        {"error": {}, **delta(content="a")},
        {"error": {"code": 502}, **finish("error")},
        finish("error"),
        {"type": "error", "code": "server_error", "message": "x", "param": None},
        {"type": "error", "error": {"type": "overloaded_error", "message": "x"}},
        {"object": "error", "message": "x", "code": 400},
    ],
)
def test_an_error_event_is_an_error(data: object) -> None:
    assert said(CHAT, data) == Said(ERROR)


@pytest.mark.parametrize("surface", list(Surface))
def test_every_surface_knows_errors_by_name_by_key_and_by_type(surface: Surface) -> None:
    assert said(surface, b"whatever", b"error") == Said(ERROR)
    assert said(surface, {"error": {"message": "x"}}) == Said(ERROR)
    assert said(surface, {"type": "error"}, b"message") == Said(ERROR)


# ---- usage


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4, None)),
        (
            {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
            Usage(3, None, 2),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(3, None, None)),
        ({"prompt_tokens": "3", "completion_tokens": -1}, None),
        ({"prompt_tokens": True, "completion_tokens": 1.5}, None),
        ({}, None),
    ],
)
def test_usage_is_read_where_it_can_be(usage: object, counts: Usage | None) -> None:
    assert said(CHAT, {"choices": [], "usage": usage}) == Said(0, None, counts)


def test_groq_puts_usage_into_a_member_of_its_own() -> None:
    data = finish("stop", x_groq={"usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    assert said(CHAT, data).usage == Usage(1, 2, None)
    assert said(CHAT, finish("stop", x_groq="no")).usage is None


def test_newer_counts_replace_older_ones_where_they_are_given() -> None:
    older, newer = Usage(10, 1, 5), Usage(None, 20, None)
    assert merged(older, newer) == Usage(10, 20, 5)
    assert merged(newer, older) == older
    assert merged(None, newer) is newer
    assert merged(older, None) is older
    assert merged(None, None) is None


# ---- completions


def test_completions_carry_text_or_finish() -> None:
    def chunk(text: object, reason: object = None) -> dict[str, object]:
        return {"choices": [{"text": text, "finish_reason": reason}]}

    assert said(COMPLETIONS, chunk("a")) == Said(CONTENT)
    assert said(COMPLETIONS, chunk("")) == Said()
    assert said(COMPLETIONS, chunk("", "stop")) == Said(CONTENT | FINISH, "stop")
    assert said(COMPLETIONS, chunk(["a"])) == Said(CONTENT)


# ---- responses


@pytest.mark.parametrize(
    "kind", ["output_text", "refusal", "function_call_arguments", "reasoning_summary_text"]
)
def test_any_delta_of_a_response_is_content(kind: str) -> None:
    assert said(RESPONSES, {"type": f"response.{kind}.delta", "delta": "a"}) == Said(CONTENT)


@pytest.mark.parametrize("kind", ["created", "in_progress", "output_item.added", "content.done"])
def test_the_life_of_a_response_is_no_content(kind: str) -> None:
    data = {"type": f"response.{kind}", "response": {"error": None, "usage": None}}
    assert said(RESPONSES, data) == Said()


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        ("completed", CONTENT | FINISH | FINAL),
        ("incomplete", CONTENT | FINISH | FINAL),
        ("failed", FINISH | FINAL),
    ],
)
def test_a_response_ends_in_one_of_three_ways(kind: str, flags: int) -> None:
    usage = {"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}
    data = {"type": f"response.{kind}", "response": {"usage": usage, "error": None}}
    assert said(RESPONSES, data) == Said(flags, kind, Usage(1, 2, 0))
    assert said(RESPONSES, {"type": f"response.{kind}", "response": 5}) == Said(flags, kind)


def test_the_name_of_the_event_stands_in_for_a_missing_type() -> None:
    assert said(RESPONSES, {"delta": "a"}, b"response.output_text.delta") == Said(CONTENT)
    assert said(RESPONSES, {}, b"response.completed").flags == CONTENT | FINISH | FINAL
    assert said(RESPONSES, {}, b"\xff") == Said()


# ---- messages


def test_the_events_of_a_message() -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4}},
    }
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    assert said(MESSAGES, start) == Said(0, None, Usage(9, None, 4))
    assert said(MESSAGES, {"type": "message_start"}) == Said()
    assert said(MESSAGES, {"type": "ping"}) == Said()
    assert said(MESSAGES, {"type": "content_block_start"}) == Said()
    assert said(MESSAGES, {"type": "content_block_delta", "delta": {"text": ""}}) == Said(CONTENT)
    assert said(MESSAGES, {"delta": {"text": "a"}}, b"content_block_delta") == Said(CONTENT)
    assert said(MESSAGES, {"type": "message_delta", "delta": {"stop_reason": None}}) == Said()
    assert said(MESSAGES, {**end, "usage": {"output_tokens": 3}}) == Said(
        CONTENT, "end_turn", Usage(None, 3, None)
    )
    assert said(MESSAGES, {"type": "message_stop"}) == Said(FINISH | FINAL)


# ---- events that are too large to keep


def large(surface: Surface, head: bytes, tail: bytes, event: bytes = b"") -> Said:
    return READINGS[surface].judge_large(event, head, tail)


def test_a_large_event_is_judged_by_head_and_tail() -> None:
    head = b'{"choices":[{"delta":{"content":"aaaaa'
    tail = b'aaa"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}'
    assert large(CHAT, head, tail) == Said(CONTENT | FINISH, "stop", Usage(1, None, None))
    assert large(CHAT, head, b'"}}]}') == Said(CONTENT)
    assert large(CHAT, b"aaa", b"aaa") == Said()


def test_of_several_choices_in_a_large_event_the_first_reason_that_is_one_counts() -> None:
    tail = b'a"},"finish_reason":null},{"delta":{},"finish_reason":"length"}]}'
    assert large(CHAT, b'{"choices":[', tail).finish_reason == "length"


def test_a_large_end_of_a_response_is_recognised() -> None:
    head = b'{"type": "response.completed","response":{"output":[{"text":"aaa'
    tail = b'"}],"usage":{"input_tokens":1,"output_tokens":2},"user":null}}'
    end = Said(CONTENT | FINISH | FINAL, "completed", Usage(1, 2, None))
    assert large(RESPONSES, head, tail) == end
    assert large(RESPONSES, b'{"x":"aa', tail, b"response.completed") == end


def test_so_it_is_if_its_type_stands_at_its_end() -> None:
    head = b'{"response":{"output":[{"text":"aaa'
    tail = b'"}],"usage":{"input_tokens":1,"output_tokens":2}},"type": "response.completed"'
    end = Said(CONTENT | FINISH | FINAL, "completed", Usage(1, 2, None))
    for more in (b"}", b',"sequence_number":7 }\n'):
        assert large(RESPONSES, head, tail + more) == end
    for more in (b"}}", b',"x":[1]}', b""):  # of an inner object, perhaps, or not at the end
        assert not large(RESPONSES, head, tail + more).flags & FINAL


@pytest.mark.parametrize(
    "head", [b'{"error":{"message":"aaa', b' { "type" : "error" ,', b'{"object":"error","m":"a']
)
def test_a_large_error_is_an_error(head: bytes) -> None:
    assert large(CHAT, head, b'"}}') == Said(ERROR)


def test_a_large_event_named_error_is_an_error() -> None:
    assert large(CHAT, b"aaa", b"aaa", b"error") == Said(ERROR)


@pytest.mark.parametrize("tail", [b'"usage":null}', b'"usage":{"prompt_tokens":', b"a", b""])
def test_usage_that_is_not_whole_in_the_tail_is_no_usage(tail: bytes) -> None:
    assert large(CHAT, b'{"error":null,', tail) == Said()


# ---- the end of a stream


@pytest.mark.parametrize("data", [b"[DONE]", b"{}", b' {"a":1}'])
def test_an_event_without_its_end_can_be_whole(data: bytes) -> None:
    assert is_whole(data)


@pytest.mark.parametrize("data", [b"", b"[DON", b'{"a":', b"5"])
def test_an_event_without_its_end_can_be_cut(data: bytes) -> None:
    assert not is_whole(data)


# ---- whole answers


@pytest.mark.parametrize("sign", [b"\x0b", b"\x0c", b"\x1c", b"\t", b"\xe9", b"\xed\xa0\x80"])
def test_an_odd_byte_in_a_text_hides_neither_finish_nor_error(sign: bytes) -> None:
    reading = READINGS[Surface.CHAT]
    finish = b'{"choices":[{"delta":{"content":"a%b"},"finish_reason":"stop"}]}' % sign
    assert reading.judge(b"", finish).finish_reason == "stop"
    assert reading.judge(b"", b'{"error":{"message":"a%b"}}' % sign).flags & ERROR
