"""Where a body ends, and what is refused on the way there."""

from __future__ import annotations

import pytest

from relayd.framing import (
    MAX_CHUNK_LINE,
    MAX_TRAILERS,
    BadChunk,
    Body,
    Chunked,
    Length,
    UntilClose,
)

CUTS = [1, 2, 3, 5, 1_000_000]


def read(body: Body, data: bytes, size: int) -> bytes:
    return b"".join(body.feed(data[at : at + size]) for at in range(0, len(data), size))


# ------------------------------------------------------------------ length and close


@pytest.mark.parametrize("size", CUTS)
def test_a_body_of_known_length_ends_there_and_what_follows_is_the_rest(size: int) -> None:
    body = Length(5)
    assert read(body, b"hello" + b"HTTP/1.1 200", size) == b"hello"
    assert (body.done, body.close(), body.rest) == (True, True, b"HTTP/1.1 200")


def test_a_body_of_known_length_is_incomplete_before_its_last_byte() -> None:
    body = Length(5)
    assert body.feed(b"hell") == b"hell"
    assert (body.done, body.close(), body.rest) == (False, False, b"")
    assert body.feed(b"") == b""
    assert body.feed(b"o") == b"o"
    assert (body.done, body.close(), body.rest) == (True, True, b"")


def test_a_body_of_length_zero_is_done_before_it_began() -> None:
    body = Length(0)
    assert body.done
    assert (body.feed(b"x"), body.rest) == (b"", b"x")


def test_a_body_until_the_close_is_complete_when_the_connection_ends() -> None:
    body = UntilClose()
    assert (body.feed(b"a"), body.feed(b"b"), body.done) == (b"a", b"b", False)
    assert (body.close(), body.done, body.rest) == (True, True, b"")


# ------------------------------------------------------------------ chunks

WHOLE = [
    (b"0\r\n\r\n", b""),
    (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", b"hello"),
    (b"A\r\n\r\n0\r\n\r\n1\r\n\r\n0\r\n\r\n", b"\r\n0\r\n\r\n1\r\n"),
    (b"a\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    (b"0000000000000005\r\nhello\r\n000\r\n\r\n", b"hello"),
    (b"5  \r\nhello\r\n0\r\n\r\n", b"hello"),
    (b'5;a=b;c="d"\r\nhello\r\n0;last\r\n\r\n', b"hello"),
    (b"5 ; a\r\nhello\r\n0\r\n\r\n", b"hello"),
    (b"5\r\nhello\r\n0\r\nA: 1\r\nB:\r\n\r\n", b"hello"),
]


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize(("data", "payload"), WHOLE)
def test_chunks_are_read_in_any_cuts(data: bytes, payload: bytes, size: int) -> None:
    body = Chunked()
    assert read(body, data, size) == payload
    assert (body.done, body.close(), body.rest) == (True, True, b"")


@pytest.mark.parametrize("size", CUTS)
def test_what_follows_the_last_chunk_is_the_rest(size: int) -> None:
    body = Chunked()
    assert read(body, b"1\r\na\r\n0\r\nT: 1\r\n\r\n0\r\n\r\nGET", size) == b"a"
    assert body.rest == b"0\r\n\r\nGET"


@pytest.mark.parametrize(("data", "_"), WHOLE)
def test_a_body_in_chunks_is_incomplete_before_its_last_byte(data: bytes, _: bytes) -> None:
    body = Chunked()
    body.feed(data[:-1])
    assert (body.done, body.close()) == (False, False)
    body.feed(data[-1:])
    assert body.close()


BROKEN = [
    b"\r\n",
    b"\n",
    b"x\r\n",
    b" 5\r\n",
    b"\t5\r\n",
    b"0x5\r\n",
    b"+5\r\n",
    b"-5\r\n",
    b"5_0\r\n",
    b"5 5\r\n",
    b"5,\r\n",
    b";a\r\n",
    b"\xb2\r\n",  # a digit to `str.isdigit`
    b"10000000000000000\r\n",
    b"5\nhello\n",
    b"5\r\r\n",
    b"5;a\nb\r\n",
    b"5;a\rb\r\n",
    b"5\r\nhelloXX",  # CVE-2025-43859: any two bytes after a chunk
    b"5\r\nhello\n0",
    b"5\r\nhello\r0",
    b"5\r\nhello!\r\n",
    b"0\r\nA: 1\n",
    b"0\r\nA: 1\n\r\n",
    b"0\r\nA: 1\rB: 2\r\n",
    b"0\r\n A: 1\r\n",
    b"0\r\n\tA: 1\r\n",
    b"0\r\n: 1\r\n",
    b"0\r\nGET / HTTP/1.1\r\n",
]


@pytest.mark.parametrize("size", CUTS)
@pytest.mark.parametrize("data", BROKEN)
def test_a_broken_coding_is_refused_in_any_cuts(data: bytes, size: int) -> None:
    with pytest.raises(BadChunk):
        read(Chunked(), data, size)


@pytest.mark.parametrize(
    "broken", [b"x\r\n", b"0\r\nbad trailer\r\n\r\n", b"1\r\naXX", b"1\r\nXX", b"\n"]
)
def test_what_came_whole_before_the_break_is_told_with_it(broken: bytes) -> None:
    with pytest.raises(BadChunk) as caught:
        Chunked().feed(b"3\r\none\r\n3\r\ntwo\r\n" + broken)
    assert caught.value.payload.startswith(b"onetwo")
    assert Chunked().feed(b"3\r\none\r\n3\r\ntwo\r\n") == b"onetwo"


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_a_size_line_has_a_limit(size: int) -> None:
    line = b"0;" + b"x" * (MAX_CHUNK_LINE - 4) + b"\r\n"
    body = Chunked()
    read(body, line + b"\r\n", size)
    assert body.done
    with pytest.raises(BadChunk):
        read(Chunked(), line.replace(b"x", b"xx", 1), size)


def test_a_size_line_without_end_is_refused_at_the_limit() -> None:
    body = Chunked()
    body.feed(b"0;" + b"x" * (MAX_CHUNK_LINE - 3))
    with pytest.raises(BadChunk):
        body.feed(b"x")


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
@pytest.mark.parametrize("lines", [1, 3])
def test_trailers_have_a_limit_all_together(lines: int, size: int) -> None:
    def trailers(length: int) -> bytes:
        short = b"A:\r\n" * (lines - 1)
        return short + b"A:".ljust(length - len(short) - 4, b"x") + b"\r\n\r\n"

    body = Chunked()
    read(body, b"0\r\n" + trailers(MAX_TRAILERS), size)
    assert body.done
    with pytest.raises(BadChunk):
        read(Chunked(), b"0\r\n" + trailers(MAX_TRAILERS + 1), size)


def test_a_trailer_without_end_is_refused_over_the_limit() -> None:
    body = Chunked()
    body.feed(b"0\r\n" + b"A:".ljust(MAX_TRAILERS, b"x"))
    with pytest.raises(BadChunk):
        body.feed(b"x")


def test_a_chunk_begins_where_the_last_one_ended() -> None:
    body = Chunked()
    found = []
    for piece in (
        b"",
        b"3",
        b"\r\n",
        b"ab",
        b"c",
        b"\r",
        b"\n",
        b"3\r\nabc\r\n",
        b"0\r\n",
        b"\r\n",
    ):
        body.feed(piece)
        found.append(body.at_start)
    assert found == [True, False, False, False, False, False, True, True, False, False]


def test_no_chunk_begins_where_there_are_none() -> None:
    assert not Length(3).at_start
    assert not UntilClose().at_start
