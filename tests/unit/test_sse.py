"""Watching an event stream go by."""

from __future__ import annotations

import pytest

from relayd.answers import CONTENT, ERROR, FINAL, FINISH
from relayd.record import Usage
from relayd.sse import MAX_EVENT, Watcher
from relayd.surfaces import Surface
from relayd.usage import TAIL

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
FAULT = b'data: {"error":{"message":"x","code":429}}\n\n'
DONE = b"data: [DONE]\n\n"
TEXT = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{}}\n\n'
LARGE = b'data: {"choices":[{"delta":{"content":"' + b"a" * MAX_EVENT

ENDINGS = pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])


def watch(*pieces: bytes, surface: Surface = Surface.CHAT) -> Watcher:
    watcher = Watcher(surface)
    for piece in pieces:
        watcher.feed(piece)
    assert not watcher.broken
    return watcher


def bytewise(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


# ---- events and boundaries


def test_a_new_stream_stands_at_a_boundary() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.at_boundary
    assert watcher.feed(b"") == 0
    assert watcher.events == 0


@ENDINGS
def test_each_line_end_ends_an_event_at_once(end: bytes) -> None:
    watcher = Watcher(Surface.CHAT)
    for count in range(1, 4):
        assert watcher.feed(CHUNK.replace(b"\n", end)) == CONTENT
        assert watcher.at_boundary
        assert watcher.events == count


def test_line_ends_may_be_mixed() -> None:
    watcher = watch(b"data: 1\r\n\rdata: 2\n\r\ndata: 3\r\rdata: 4\r\n\ndata: 5\n\r\n")
    assert watcher.events == 5
    assert watcher.at_boundary


def test_a_pair_cut_in_two_is_one_line_end() -> None:
    watcher = watch(b'data: {"a":1}\r', b"\n\r", b"\ndata: [DONE]\r\n\r\n")
    assert watcher.events == 2
    assert watcher.final


def test_a_line_feed_after_the_boundary_is_swallowed() -> None:
    watcher = watch(b"data: 1\r\n\r")
    assert watcher.at_boundary
    watcher.feed(b"\n")
    assert watcher.at_boundary
    watcher.feed(b"data: 2\r")
    assert not watcher.at_boundary
    watcher.feed(b"\ndata: 3\r\r")
    assert (watcher.events, watcher.at_boundary) == (2, True)


def test_a_stream_may_come_byte_by_byte() -> None:
    stream = CHUNK.replace(b"\n", b"\r\n") + STOP + COUNTS.replace(b"\n", b"\r") + DONE
    watcher = watch(*bytewise(stream))
    assert (watcher.events, watcher.finished, watcher.final) == (4, True, True)
    assert watcher.usage == Usage(3, 4, None)


def test_several_events_may_come_at_once() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.feed(ROLE + CHUNK * 20 + STOP + COUNTS + DONE) == CONTENT | FINISH | FINAL
    assert (watcher.events, watcher.finish_reason) == (24, "stop")


def test_named_events_are_counted_too() -> None:
    watcher = Watcher(Surface.MESSAGES)
    assert watcher.feed(TEXT * 20) == CONTENT
    assert watcher.feed(TEXT + b'data: {"type":"content_block_delta"}\n\n') == CONTENT
    assert watcher.events == 22


def test_an_event_may_begin_in_one_read_and_end_in_another() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.feed(CHUNK + CHUNK[:20]) == CONTENT
    assert not watcher.at_boundary
    assert watcher.feed(CHUNK[20:30]) == 0
    assert watcher.feed(CHUNK[30:]) == CONTENT
    assert (watcher.events, watcher.at_boundary) == (2, True)


@pytest.mark.parametrize(
    "idle",
    [b"\n", b"\n\n\n", b": ping\n", b":\n\n", b": a\n: b\n\n\n", b"event: x\n\n", b"id: 1\n\n"],
)
def test_what_has_no_data_is_no_event(idle: bytes) -> None:
    watcher = watch(idle, CHUNK, idle, idle + CHUNK + idle)
    assert (watcher.events, watcher.at_boundary) == (2, True)


@pytest.mark.parametrize(
    "idle", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"event: ping\ndata: \n\n"]
)
def test_empty_data_is_no_event_and_no_error(idle: bytes) -> None:
    watcher = watch(CHUNK + idle + CHUNK, idle)
    assert (watcher.events, watcher.error) == (2, False)


def test_a_comment_may_be_cut_anywhere_and_grow_without_bound() -> None:
    watcher = watch(b": pi")
    assert not watcher.at_boundary
    watcher.feed(b"x" * MAX_EVENT * 2)
    assert not watcher.at_boundary
    watcher.feed(b"ng\n")
    assert watcher.at_boundary
    watcher.feed(b": again\ndata: [DO")
    watcher.feed(b"NE]\n\n")
    assert watcher.final


def test_a_field_is_not_at_a_boundary() -> None:
    for field in (b"id: 1\n", b"event: x\n", b"data: 1\n", b"d"):
        assert not watch(CHUNK + field).at_boundary


def test_lines_of_data_are_joined() -> None:
    watcher = watch(
        b'event: x\ndata: {"error":\n: comment\nid: 5\ndata: {"code":"overloaded"}}\n\n'
    )
    assert watcher.error
    assert watch(b'data:{"choices":\ndata:[{"finish_reason":"stop"}]}\n\n').finished


def test_only_one_blank_after_the_colon_is_taken_off() -> None:
    assert watch(b"data:[DONE]\n\n").final
    assert watch(b"event:x\ndata:[DONE]\n\n").final
    assert not watch(b"data:  [DONE]\n\n").final


def test_only_cr_and_lf_end_a_line() -> None:
    text = 'data: {"choices":[{"delta":{"content":"a\u2028b\u0085c"},"finish_reason":"stop"}]}\n\n'
    watcher = watch(text.encode())
    assert (watcher.events, watcher.finish_reason) == (1, "stop")


# ---- the byte order mark


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_one_byte_order_mark_is_taken_off(cut: int) -> None:
    stream = b"\xef\xbb\xbf" + FAULT
    watcher = Watcher(Surface.CHAT)
    watcher.feed(stream[:cut])
    assert watcher.at_boundary is (cut == 3)
    watcher.feed(stream[cut:])
    assert watcher.error


def test_a_second_byte_order_mark_belongs_to_the_line() -> None:
    watcher = watch(b"\xef\xbb\xbf\xef\xbb\xbf" + FAULT, b"\xef\xbb\xbf" + FAULT)
    assert (watcher.events, watcher.error) == (0, False)


def test_a_stream_that_ends_in_its_byte_order_mark_has_no_event() -> None:
    watcher = watch(b"\xef\xbb")
    assert watcher.close() == 0
    assert not watcher.at_boundary


# ---- what events say


def test_markers_are_told_once_with_the_read_that_brought_them() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.feed(ROLE) == 0
    assert watcher.feed(CHUNK) == CONTENT
    assert watcher.feed(STOP) == CONTENT | FINISH
    assert (watcher.finished, watcher.final) == (True, False)
    assert watcher.feed(DONE) == FINISH | FINAL
    assert (watcher.finished, watcher.final) == (True, True)


def test_usage_of_a_message_comes_in_two_parts() -> None:
    watcher = watch(
        b'data: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n',
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":5}}\n\n',
        surface=Surface.MESSAGES,
    )
    assert (watcher.usage, watcher.finish_reason) == (Usage(9, 5, None), "end_turn")


@pytest.mark.parametrize("name", [b"event: error", b"event:error"])
def test_an_event_named_error_is_an_error_whatever_its_data(name: bytes) -> None:
    watcher = Watcher(Surface.MESSAGES)
    assert watcher.feed(TEXT + name + TEXT[len("event: content_block_delta") :]) == CONTENT | ERROR


def test_done_after_an_error_is_no_success() -> None:
    for pieces in ([FAULT + DONE], [FAULT, DONE], bytewise(FAULT + DONE)):
        watcher = watch(CHUNK, *pieces)
        assert (watcher.error, watcher.finished, watcher.final) == (True, False, False)
        assert (watcher.events, watcher.at_boundary, watcher.close()) == (2, True, 0)


def test_what_follows_the_final_marker_is_counted_but_says_nothing() -> None:
    watcher = watch(DONE)
    for piece in (CHUNK * 2, STOP, FAULT, LARGE, b'"}}]}\n\n'):
        assert watcher.feed(piece) == 0
    assert (watcher.events, watcher.error, watcher.finish_reason) == (6, False, None)
    assert Watcher(Surface.CHAT).feed(DONE + CHUNK) == FINISH | FINAL


def test_an_error_is_told_after_the_content_before_it() -> None:
    assert Watcher(Surface.CHAT).feed(CHUNK + FAULT + CHUNK[:9]) == CONTENT | ERROR


@pytest.mark.parametrize(
    "odd", [b"data: {bad\n\n", b"data: 5\n\n", b"data: \xff\n\n", b"data: " + b"[" * 9999 + b"\n\n"]
)
def test_data_that_cannot_be_read_is_an_event_that_says_nothing(odd: bytes) -> None:
    watcher = watch(odd, CHUNK)
    assert (watcher.events, watcher.error) == (2, False)


def test_a_fault_of_the_watcher_only_disables_it() -> None:
    watcher = Watcher(Surface.CHAT)
    watcher.feed(CHUNK)
    assert watcher.feed("text") == 0  # type: ignore[arg-type]
    assert watcher.broken
    assert not watcher.at_boundary
    assert watcher.feed(DONE) == 0
    assert watcher.close() == 0
    assert (watcher.events, watcher.final) == (1, False)


# ---- events that are too large to keep


def test_a_large_event_is_content_as_soon_as_that_is_certain() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.feed(LARGE[:-100]) == 0
    assert watcher.feed(LARGE[-100:]) == CONTENT
    assert not watcher.at_boundary
    assert watcher.feed(b"a" * MAX_EVENT * 3) == 0
    assert watcher.feed(b'"},"finish_reason":"stop"}]}\n') == 0
    assert watcher.feed(b"\n" + CHUNK + b"data: 1\n") == CONTENT | FINISH
    assert (watcher.events, watcher.at_boundary) == (2, False)


def test_a_large_event_leaves_no_large_buffer() -> None:
    watcher = watch(LARGE, b"a" * MAX_EVENT * 20)
    assert len(watcher._held) + len(watcher._head) + len(watcher._tail) < MAX_EVENT + 8192


def test_a_large_event_in_one_read_is_judged_the_same() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.feed(CHUNK + LARGE + b'"},"finish_reason":"stop"}]}\n\n') == CONTENT | FINISH
    assert (watcher.events, watcher.at_boundary) == (2, True)


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
@pytest.mark.parametrize("more", [0, 1])
def test_an_event_is_kept_up_to_the_limit_in_any_cutting(cut: int, more: int) -> None:
    # An error this far behind is seen in what is kept, and only there.
    start, end = b'data: {"a":"', b'","error":{}}'
    event = start + b"a" * (MAX_EVENT + more - len(start) - len(end)) + end + b"\n\n"
    assert len(event) - 2 == MAX_EVENT + more
    watcher = watch(event[: len(event) - cut], event[len(event) - cut :])
    assert (watcher.events, watcher.error) == (1, more == 0)


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
@pytest.mark.parametrize("more", [0, 1])
def test_a_finish_is_found_in_the_tail_in_any_cutting(cut: int, more: int) -> None:
    finish = b'"finish_reason":"stop"'
    rest = b" " * (TAIL + more - len(finish))
    event = LARGE + b'"},' + finish + rest + b"\n\n"
    early, late = MAX_EVENT + 100, len(event) - cut
    watcher = watch(CHUNK, event[:early], event[early:late], event[late:])
    assert watcher.finished is (more == 0)


def test_many_events_in_one_large_read_are_all_judged() -> None:
    count = MAX_EVENT // len(CHUNK) + 2
    watcher = watch(CHUNK * count + STOP)
    assert (watcher.events, watcher.finished) == (count + 1, True)


def test_a_large_error_ends_the_judging() -> None:
    watcher = Watcher(Surface.CHAT)
    assert watcher.feed(b'data: {"error":{"message":"' + b"a" * MAX_EVENT) == 0
    assert watcher.feed(b'"}}\n\n' + CHUNK) == ERROR
    assert (watcher.events, watcher.error) == (1, True)


def test_a_large_block_without_data_is_no_event() -> None:
    assert watch(b"id: " + b"a" * MAX_EVENT, b"a\n\n" + CHUNK).events == 1


# ---- the end of the body


@pytest.mark.parametrize("end", [b"\n\n", b"\n", b""])
def test_a_last_event_without_its_empty_line_counts(end: bytes) -> None:
    watcher = watch(CHUNK, STOP.rstrip() + end)
    assert watcher.close() == (0 if end == b"\n\n" else CONTENT | FINISH)
    assert (watcher.finished, watcher.events) == (True, 2)
    assert watcher.at_boundary is (end == b"\n\n")
    assert watcher.close() == 0


@pytest.mark.parametrize("rest", [CHUNK[:60], b"data: [DON", b"event: x\n", b": ping", b"data:"])
def test_a_last_event_that_is_cut_does_not_count(rest: bytes) -> None:
    watcher = watch(CHUNK, rest)
    assert watcher.close() == 0
    assert (watcher.events, watcher.finished, watcher.at_boundary) == (1, False, False)


def test_a_last_event_that_is_large_counts_if_it_is_whole() -> None:
    watcher = watch(LARGE, b'"},"finish_reason":"stop"}]}\n')
    assert watcher.close() == CONTENT | FINISH
    cut = watch(LARGE)
    assert (cut.close(), cut.finished, cut.at_boundary) == (0, False, False)


def test_an_error_may_be_the_last_event_without_its_end() -> None:
    watcher = watch(CHUNK, FAULT.rstrip())
    assert watcher.close() == ERROR
    assert watcher.error


def test_an_empty_stream_closes_quietly() -> None:
    watcher = Watcher(Surface.CHAT)
    assert (watcher.close(), watcher.events, watcher.at_boundary) == (0, 0, True)


def test_an_event_begins_where_the_last_one_ended() -> None:
    watcher = Watcher(Surface.CHAT)
    found = [watcher.at_start]
    for piece in (b"data: {}\n\n", b"da", b"ta: {}\n", b"\r", b"data: {}\n\n", b": c", b"\n\n"):
        watcher.feed(piece)
        found.append(watcher.at_start)
    assert found == [False, True, False, False, False, True, False, True]


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b'data: {"error":{}}\n\n'])
def test_behind_the_last_event_none_begins(last: bytes) -> None:
    watcher = Watcher(Surface.CHAT)
    watcher.feed(last)
    assert not watcher.at_start


@pytest.mark.parametrize(
    ("surface", "event", "expected"),
    [
        (Surface.CHAT, b'{"choices":[{"delta":{"role":"assistant","content":"text"}}]}', b"text"),
        (Surface.COMPLETIONS, b'{"choices":[{"text":"text"}]}', b"text"),
        (Surface.MESSAGES, b'{"type":"content_block_delta","delta":{"text":"text"}}', b"text"),
        (Surface.CHAT, b'{"choices":[{"delta":{"role":"assistant"}}]}', None),
        (Surface.RESPONSES, b'{"type":"response.output_text.delta","delta":"text"}', None),
    ],
)
def test_the_text_of_an_event_is_found(
    surface: Surface, event: bytes, expected: bytes | None
) -> None:
    at = Watcher(surface).text(event)
    assert (event[at : at + 4] if at >= 0 else None) == expected


def test_part_of_an_event_behind_the_final_marker_keeps_no_stream_from_being_over() -> None:
    assert watch(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n').over
    assert watch(b"data: [DONE]\n\ndata: {").over
