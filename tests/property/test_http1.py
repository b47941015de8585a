"""Any bytes, in any cuts: a head, "more", or the one named exception; never another one."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from relayd import errors
from relayd.http1 import Request, request_body, take_request
from relayd.knownlines import KnownLines
from relayd.response import (
    MAX_RESPONSE_HEAD,
    BadResponse,
    ResponseHead,
    response_body,
    take_response,
)

LIMIT = 300

# ---- heads that are nearly right

NAMES = [
    "Host",
    "Content-Length",
    "content-length",
    "Transfer-Encoding",
    "Connection",
    "Expect",
    "X",
]
VALUES = [
    "a",
    "",
    "0",
    "5",
    "5, 5",
    "5, 6",
    "+5",
    "9" * 19,
    "chunked",
    "Chunked",
    "gzip",
    "gzip, chunked",
    "chunked, chunked",
    "identity",
    "close",
    "keep-alive, Close",
    "100-continue",
    "\xe9",
    "\x00",
    "x" * 250,
]
TARGETS = ["/", "/v1/models?x", "*", "http://h/a?b", "http://h?/a", "h:1", "/#", "//", "\xe9"]
SEPARATORS = st.sampled_from(["\r\n"] * 12 + ["\n", "\r", "\r\n ", "\r\n\t", "\r\n\r\n"])
COLONS = st.sampled_from([": "] * 8 + [":", " : ", "", " "])
LINES = st.builds("".join, st.tuples(st.sampled_from(NAMES), COLONS, st.sampled_from(VALUES)))
STARTS = st.builds(
    "{} {} HTTP/{}".format,
    st.sampled_from(["GET", "POST", "CONNECT", "OPTIONS", "G T", ""]),
    st.sampled_from(TARGETS),
    st.sampled_from(["1.1"] * 6 + ["1.0", "2.0", "1.2", "x"]),
)
ANSWERS = st.builds(
    "HTTP/{} {} -".format,
    st.sampled_from(["1.1"] * 6 + ["1.0", "2", "1.2"]),
    st.sampled_from(["200", "204", "304", "100", "103", "429", "599", "600", "999", "99", "2x0"]),
)


def head(starts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    rows = st.lists(st.tuples(SEPARATORS, LINES), max_size=6)
    return st.builds(
        lambda start, rows, tail: (start + "".join(map("".join, rows)) + tail).encode("latin-1"),
        starts,
        rows,
        st.sampled_from(["\r\n\r\n"] * 6 + ["\r\n\r\n{}GET", "\n\n", "\r\n", ""]),
    )


# ---- heads that are right more often than not

ROWS = st.sampled_from(
    [
        "Content-Length: 5",
        "content-length:5 ",
        "Content-Length: 5, 5",
        "Transfer-Encoding: chunked",
        "Connection: close",
        "Connection: x",
        "Expect: 100-continue",
        "Host: b",
        "X: 1",
        "X: 2",
    ]
)
FIRST = st.sampled_from(["GET /a?b HTTP/1.1", "POST /a HTTP/1.1", "POST http://h?/a HTTP/1.0"])
RIGHT = st.builds(
    lambda start, rows: "\r\n".join([start, "Host: a", *rows, "", "{}"]).encode(),
    FIRST,
    st.lists(ROWS, max_size=4),
)

REQUESTS = st.one_of(RIGHT, RIGHT, head(STARTS), st.binary(max_size=400))
RESPONSES = st.one_of(head(ANSWERS), st.binary(max_size=400))
SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=8)

REFUSALS = {
    errors.BadFraming,
    errors.UnsupportedVersion,
    errors.UnknownExpectation,
    errors.UnknownCoding,
    errors.HeadTooLarge,
}

Outcome = Request | ResponseHead | type[Exception] | None


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    found, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            return found
        found.append(data[at : at + size])
        at += size
    return found


def request_of(cuts: list[bytes]) -> tuple[Outcome, bytes]:
    """The first head in these cuts, and what is left behind it."""
    buffer = bytearray()
    for number, piece in enumerate(cuts):
        buffer += piece
        before = len(buffer)
        try:
            request = take_request(buffer, LIMIT, KnownLines())
        except errors.RelayError as error:
            return type(error), b""
        if request is not None:
            return request, bytes(buffer) + b"".join(cuts[number + 1 :])
        assert len(buffer) < LIMIT, "more than the limit is never waited for"
        assert before - len(buffer) == 0 or piece.startswith((b"\r\n", b"\n"))
    return None, bytes(buffer)


def response_of(cuts: list[bytes]) -> tuple[Outcome, bytes]:
    buffer = bytearray()
    for number, piece in enumerate(cuts):
        buffer += piece
        try:
            response = take_response(buffer)
        except BadResponse:
            return BadResponse, b""
        if response is not None:
            return response, bytes(buffer) + b"".join(cuts[number + 1 :])
        assert len(buffer) <= MAX_RESPONSE_HEAD
    return None, bytes(buffer)


# ---- the client's side


@given(REQUESTS, SIZES)
@example(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", [1])
@example(b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", [1])
def test_any_bytes_in_any_cuts_are_a_request_more_or_an_http_error(
    data: bytes, sizes: list[int]
) -> None:
    found, rest = request_of(pieces(data, sizes))
    whole, behind = request_of([data])
    if isinstance(found, Request):
        assert (found, rest) == (whole, behind)
    elif found is None:
        assert whole is None
    else:
        assert {found, whole} <= REFUSALS


@given(REQUESTS)
@example(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n")
@example(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")
def test_a_request_that_is_read_is_framed_in_one_way(data: bytes) -> None:
    found, _ = request_of([data])
    if isinstance(found, Request):
        lengths = [value for name, value in found.fields if name == b"content-length"]
        codings = [value for name, value in found.fields if name == b"transfer-encoding"]
        assert len(lengths) + len(codings) <= 1
        assert found.chunked is bool(codings)
        assert found.length == (int(lengths[0]) if lengths else None)
        assert found.version == b"1.1" or not found.chunked
        assert found.path == "*" or found.path.startswith("/") or found.method == "CONNECT"
        assert "?" not in found.path
        assert request_body(found).done is not found.has_body
        assert not any(set(b"\r\n\0") & set(name + value) for name, value in found.fields)


OFTEN = [
    "Host: a",
    "Host: b",
    "Content-Length: 5",
    "content-length:5 ",
    "Content-Length: 6",
    "Transfer-Encoding: chunked",
    "Authorization: k",
    "X: 1",
    "X: 2",
]
REPEATED = st.builds(
    lambda rows: "\r\n".join(["GET / HTTP/1.1", *rows, "", ""]).encode(),
    st.lists(st.sampled_from(OFTEN), max_size=5),
)
USUAL = [f"GET / HTTP/1.1\r\nHost: a\r\n{row}\r\n\r\n".encode() for row in OFTEN[2:]]


@given(
    st.lists(st.sampled_from(USUAL), max_size=6),
    st.lists(st.one_of(REPEATED, REPEATED, REQUESTS), min_size=1, max_size=6),
)
def test_what_was_read_before_changes_nothing(before: list[bytes], heads: list[bytes]) -> None:
    shared = KnownLines()
    connections = [KnownLines(shared), KnownLines(shared)]
    for data in [*before, *heads]:
        for known in connections:
            fresh, remembered = bytearray(data), bytearray(data)
            expected = got = None
            with contextlib.suppress(errors.RelayError):
                expected = take_request(fresh, LIMIT, KnownLines())
            with contextlib.suppress(errors.RelayError):
                got = take_request(remembered, LIMIT, known)
            assert got == expected


# ---- the provider's side


@given(RESPONSES, SIZES)
@example(b"HTTP/1.1 200 -\r\nA: 1\r\n\r\n", [1])
def test_any_bytes_in_any_cuts_are_a_response_more_or_a_bad_one(
    data: bytes, sizes: list[int]
) -> None:
    found, rest = response_of(pieces(data, sizes))
    whole, behind = response_of([data])
    if isinstance(found, ResponseHead):
        assert (found, rest) == (whole, behind)
    elif found is None:
        assert whole is None
    else:
        assert not isinstance(whole, ResponseHead)


@given(RESPONSES)
def test_a_response_that_is_read_is_framed_in_one_way(data: bytes) -> None:
    found, _ = response_of([data])
    if isinstance(found, ResponseHead):
        assert 100 <= found.status <= 999
        assert not (found.chunked and found.length is not None)
        if found.status < 200 or found.status in (204, 304):
            assert response_body(found).done
        if found.reusable:
            assert found.version == b"1.1"
            assert found.chunked or found.length is not None
        assert not any(set(b"\r\n\0") & set(name + value) for name, value in found.fields)
        assert all(name == name.lower().strip() and name for name, _ in found.fields)
