"""Heads of providers' answers: what is read and what is refused."""

from __future__ import annotations

import pytest

from relayd.framing import Chunked, Length, UntilClose
from relayd.headers import MAX_FIELDS
from relayd.response import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_LINE,
    MAX_RESPONSE_HEAD,
    BadResponse,
    ResponseHead,
    ResponseLines,
    response_body,
    take_response,
)


def answer(*fields: str, start: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([start, *fields, "", ""]).encode("latin-1")


def take(data: bytes) -> ResponseHead:
    response = take_response(bytearray(data))
    assert response is not None
    return response


def unfit(data: bytes) -> str:
    with pytest.raises(BadResponse) as caught:
        take_response(bytearray(data))
    return str(caught.value)


def test_a_response_head_is_taken_and_what_follows_stays() -> None:
    buffer = bytearray(answer("Content-Length: 2", "A:1") + b"{}")
    response = take_response(buffer)
    assert response is not None
    assert (response.status, response.version) == (200, b"1.1")
    assert (response.length, response.chunked, response.reusable) == (2, False, True)
    assert response.fields == [(b"content-length", b"2"), (b"a", b"1")]
    assert (response.field(b"a"), response.field(b"b")) == (b"1", None)
    assert buffer == b"{}"


@pytest.mark.parametrize("cut", range(len(answer("A: 1"))))
def test_a_part_of_a_response_head_asks_for_more(cut: int) -> None:
    buffer = bytearray(answer("A: 1")[:cut])
    assert take_response(buffer) is None
    assert buffer == answer("A: 1")[:cut]


@pytest.mark.parametrize(
    "data",
    [
        b"\x15\x03\x03",
        b"\r\n",
        b"HTTP/2",
        b"ICY 200 OK\r\n",
        b"<html>",
        b"http/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    ],
)
def test_what_can_never_become_a_response_is_refused_before_its_end(data: bytes) -> None:
    assert unfit(data)


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("HTTP/1.1 200 OK", 200),
        ("HTTP/1.1 200 ", 200),
        ("HTTP/1.1 200", 200),
        ("HTTP/1.1 200 \xe9t\xe9 OK", 200),
        ("HTTP/1.0 100 Continue", 100),
        ("HTTP/1.1 600 ?", 600),
        ("HTTP/1.1 999 ?", 999),
    ],
)
def test_a_status_is_three_digits_and_its_reason_is_free(line: str, status: int) -> None:
    assert take(answer(start=line)).status == status


@pytest.mark.parametrize(
    "line",
    [
        "HTTP/1.2 200 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 20",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2 0 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 -10 OK",
        "HTTP/1.1 20x OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1 ",
        "HTTP/1.12 200 OK",
        "HTTP/1.1200 OK",
    ],
)
def test_another_status_line_is_refused(line: str) -> None:
    assert "status" in unfit(answer(start=line))


@pytest.mark.parametrize(
    "field",
    [
        "A: \x00",
        "A: \x7f",
        "A: 1\n",
        "A: 1\nB: 2",
        "A: 1\rB: 2",
        "no colon",
        ": 1",
        " : 1",
        "a b: 1",
        "a\xe9: 1",
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 2, 3",
        "Content-Length: 2,",
        "Content-Length:",
        "Content-Length: +2",
        "Content-Length: -2",
        "Content-Length: 2.0",
        "Content-Length: 0x2",
        "Content-Length: " + "1" * 19,
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding:",
    ],
)
def test_a_response_that_cannot_be_trusted_is_refused(field: str) -> None:
    assert unfit(answer(field))


def test_a_fold_becomes_a_space() -> None:
    response = take(answer("A: 1", "\t 2", " \t", " 3", "B: 4"))
    name, value = response.fields[0]
    assert (name, value.split(), response.field(b"b")) == (b"a", [b"1", b"2", b"3"], b"4")


def test_a_folded_coding_counts() -> None:
    assert take(answer("Transfer-Encoding:", " chunked")).chunked


def test_a_fold_under_the_status_line_belongs_to_no_field() -> None:
    assert unfit(answer(" Transfer-Encoding: chunked"))


def test_many_folds_are_one_value() -> None:
    folds = ["A: 1", *[" x"] * 15_000]
    assert take(answer(*folds)).field(b"a") == b"1" + b" x" * 15_000


def test_space_before_a_colon_is_dropped() -> None:
    assert take(answer("Content-Length \t: 2")).length == 2


def test_heads_have_a_limit_in_bytes_and_in_fields() -> None:
    assert take(answer(*["A: 1"] * MAX_FIELDS)).status == 200
    assert "fields" in unfit(answer(*["A: 1"] * (MAX_FIELDS + 1)))
    long = answer("A: " + "x" * MAX_RESPONSE_HEAD)
    assert "bytes" in unfit(long)
    assert "bytes" in unfit(long[:-4])
    exact = answer("A: " + "x" * (MAX_RESPONSE_HEAD - len(answer("A: ")) + 4))
    assert take(exact).status == 200


@pytest.mark.parametrize("value", ["2", "2, 2", "2\r\nContent-Length:  2 "])
def test_equal_lengths_of_a_response_are_one(value: str) -> None:
    assert take(answer(f"Content-Length: {value}")).length == 2


def test_chunked_wins_over_a_length_and_the_connection_is_not_used_again() -> None:
    both = take(answer("Content-Length: 3", "Transfer-Encoding: Chunked"))
    assert (both.chunked, both.length, both.reusable) == (True, None, False)
    odd = take(answer("Content-Length: x", "Transfer-Encoding: , chunked"))
    assert (odd.chunked, odd.reusable) == (True, False)


def test_a_coding_in_an_http_1_0_response_is_refused() -> None:
    assert unfit(answer("Transfer-Encoding: chunked", start="HTTP/1.0 200 OK"))


@pytest.mark.parametrize("status", [100, 103, 204, 304])
@pytest.mark.parametrize(
    ("field", "reusable"),
    [
        ("A: 1", True),
        ("Content-Length: 0", True),
        ("Content-Length: 5", False),
        ("Transfer-Encoding: chunked", False),
    ],
)
def test_some_statuses_have_no_body_whatever_is_announced(
    status: int, field: str, reusable: bool
) -> None:
    response = take(answer(field, start=f"HTTP/1.1 {status} -"))
    assert (response.length, response.chunked) == (0, False)
    assert response.reusable is reusable
    assert response_body(response).done


@pytest.mark.parametrize(
    ("version", "fields", "reusable"),
    [
        ("1.1", ["Content-Length: 0"], True),
        ("1.1", ["Content-Length: 0", "Connection: keep-alive"], True),
        ("1.1", ["Content-Length: 0", "Connection: x, CLOSE"], False),
        ("1.1", ["Transfer-Encoding: chunked"], True),
        ("1.1", [], False),
        ("1.0", ["Content-Length: 0"], False),
        ("1.0", ["Content-Length: 0", "Connection: keep-alive"], False),
    ],
)
def test_a_connection_is_reusable_when_both_ends_know_where_the_body_ends(
    version: str, fields: list[str], reusable: bool
) -> None:
    assert take(answer(*fields, start=f"HTTP/{version} 200 OK")).reusable is reusable


def test_a_response_body_is_what_its_head_announces() -> None:
    assert isinstance(response_body(take(answer("Transfer-Encoding: chunked"))), Chunked)
    assert isinstance(response_body(take(answer("Content-Length: 2"))), Length)
    assert isinstance(response_body(take(answer())), UntilClose)


# ------------------------------------------------------------------ lines that are known

HEADS = (
    answer("Content-Length: 2", "A: 1"),
    answer("Content-Length: 2", "A: 2", "a:1"),
    answer("content-length: 2", "A : 1", "Transfer-Encoding: chunked"),
    answer(start="HTTP/1.0 503 Busy"),
    answer("A: 1\r\n 2"),
    answer("A: " + "x" * MAX_REMEMBERED_LINE),
)


def test_known_lines_mean_what_they_meant() -> None:
    lines = ResponseLines()
    fresh = [take(head) for head in HEADS]
    for _ in range(2):
        assert [take_response(bytearray(head), lines) for head in HEADS] == fresh


def test_known_lines_do_not_hide_what_is_wrong_only_together() -> None:
    lines = ResponseLines()
    for length in ("2", "3"):
        assert take_response(bytearray(answer(f"Content-Length: {length}")), lines)
    for _ in range(2):
        with pytest.raises(BadResponse, match="differing"):
            take_response(bytearray(answer("Content-Length: 2", "Content-Length: 3")), lines)


@pytest.mark.parametrize("line", ["no colon", "A\x01: 1", "A: 1\n", "A b: 1", ": 1"])
def test_a_bad_line_is_bad_each_time(line: str) -> None:
    lines = ResponseLines()
    for _ in range(2):
        with pytest.raises(BadResponse):
            take_response(bytearray(answer("A: 1", line, "B: 1")), lines)


def test_the_memory_is_bounded() -> None:
    lines = ResponseLines()
    for n in range(3 * MAX_REMEMBERED):
        head = take_response(bytearray(answer(f"X-{n}: {n}", start=f"HTTP/1.1 200 {n}")), lines)
        assert head is not None
        assert head.fields == [(b"x-%d" % n, b"%d" % n)]
    kept = [getattr(lines, name) for name in ResponseLines.__slots__]
    assert all(0 < len(memory) <= MAX_REMEMBERED for memory in kept)


def test_a_long_line_is_not_kept() -> None:
    lines = ResponseLines()
    assert take_response(bytearray(answer("A: " + "x" * MAX_REMEMBERED_LINE)), lines)
    assert not lines._fields


def test_what_nobody_asks_for_any_more_can_be_forgotten() -> None:
    head = take(answer("Content-Length: 0"))
    head.forget()
    assert head.fields == []
    assert head.field(b"content-length") is None
