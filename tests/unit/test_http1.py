"""Request heads: what is read, what is refused and by which status."""

from __future__ import annotations

import pytest

from relayd import errors
from relayd.framing import Chunked, Length
from relayd.headers import MAX_FIELDS
from relayd.http1 import Request, request_body, take_request
from relayd.knownlines import KnownLines

LIMIT = 4096


def head(*fields: str, start: str = "POST /v1/chat/completions HTTP/1.1", host: str = "a") -> bytes:
    """A request head; `host` "" leaves that field out."""
    rows = [f"Host: {host}"] if host else []
    return "\r\n".join([start, *rows, *fields, "", ""]).encode("latin-1")


def read(data: bytes, limit: int = LIMIT) -> Request:
    request = take_request(bytearray(data), limit, KnownLines())
    assert request is not None
    return request


def refused(data: bytes, limit: int = LIMIT) -> errors.RelayError:
    with pytest.raises(errors.RelayError) as caught:
        take_request(bytearray(data), limit, KnownLines())
    assert caught.value.close, "after a head that is not served the connection is of no use"
    return caught.value


def test_a_head_has_a_limit_of_fields() -> None:
    def of(count: int) -> bytearray:
        return bytearray(head(*[f"X-{n}: v" for n in range(count - 1)]))

    for known in (KnownLines(), KnownLines(KnownLines())):
        assert take_request(of(MAX_FIELDS), 65536, known)
        with pytest.raises(errors.HeadTooLarge, match="fields"):
            take_request(of(MAX_FIELDS + 1), 65536, known)


# ------------------------------------------------------------------ requests


def test_a_head_is_taken_from_the_buffer_and_what_follows_stays() -> None:
    buffer = bytearray(head("Content-Length: 2") + b"{}GET")
    request = take_request(buffer, LIMIT, KnownLines())
    assert request is not None
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert (request.version, request.length, request.chunked) == (b"1.1", 2, False)
    assert (request.keep_alive, request.expects, request.has_body) == (True, False, True)
    assert buffer == b"{}GET"


def test_fields_keep_their_order_with_names_in_lower_case() -> None:
    request = read(head("B: 1", "a:  2 ", "b: 3"))
    assert request.fields == [(b"host", b"a"), (b"b", b"1"), (b"a", b"2"), (b"b", b"3")]
    assert request.field(b"b") == b"1"
    assert request.field(b"c") is None


@pytest.mark.parametrize("cut", range(len(head())))
def test_a_part_of_a_head_asks_for_more_and_takes_nothing(cut: int) -> None:
    buffer = bytearray(head()[:cut])
    assert take_request(buffer, LIMIT, KnownLines()) is None
    assert buffer == head()[:cut]


def test_empty_lines_before_a_request_are_skipped() -> None:
    assert read(b"\r\n\r\n" + head()).method == "POST"
    assert take_request(bytearray(b"\r\n\r"), LIMIT, KnownLines()) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",  # a TLS hello
        b" GET / HTTP/1.1\r\n",
        b"\n",
        b"\rG",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\n",
    ],
)
def test_what_can_never_become_a_request_is_refused_before_its_end(data: bytes) -> None:
    assert refused(data).status == 400


def test_a_head_of_exactly_the_limit_is_read() -> None:
    data = head("X: " + "x" * 100)
    assert read(data, len(data)).method == "POST"


def test_a_head_over_the_limit_is_refused_whether_it_ended_or_not() -> None:
    data = head("X: " + "x" * 100)
    assert refused(data, len(data) - 1).status == 431
    assert refused(data[:-4], len(data) - 4).status == 431


def test_a_body_behind_the_head_does_not_count_as_head() -> None:
    data = head("Content-Length: 5000")
    assert read(data + b"x" * 5000, len(data)).length == 5000


def test_garbage_over_the_limit_is_called_garbage() -> None:
    assert refused(b"\x00" * 200, 100).status == 400


@pytest.mark.parametrize(
    "field",
    [
        "A: 1\n",
        "A: 1\nB: 2",
        "A: 1\rB: 2",
        "A: 1\r",
        "A: 1\r\n folded",
        "A: 1\r\n\tfolded",
        "A: \x00",
        "A: \x0b",
        "A: \x7f",
        "A : 1",
        ": 1",
        "A",
        "A\x80: 1",
        "Host: b",
        "Content-Length: 1\r\nContent-Length: 2",
        "Content-Length: 1, 2",
        "Content-Length: +2",
        "Content-Length: -2",
        "Content-Length: 2;",
        "Content-Length: 0x2",
        "Content-Length: 2_0",
        "Content-Length:",
        "Content-Length: " + "9" * 21,
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
        "Transfer-Encoding: chunked\r\nContent-Length: 0",
        "Transfer-Encoding: gzip\r\nContent-Length: 4",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding:",
        "Transfer-Encoding: ,",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: \x0bchunked",
    ],
)
def test_what_two_readers_could_cut_differently_is_refused(field: str) -> None:
    assert (refused(head(field)).status, refused(head(field)).code) == (400, "bad_request")


@pytest.mark.parametrize("value", ["2", "2, 2", "2,2", "2\r\nContent-Length: 2"])
def test_equal_lengths_are_one(value: str) -> None:
    assert read(head(f"Content-Length: {value}")).length == 2


def test_a_length_of_zero_is_no_body_and_neither_is_none() -> None:
    assert not read(head("Content-Length: 0")).has_body
    assert not read(head()).has_body


@pytest.mark.parametrize("name", ["Transfer-Encoding: chunked", "transfer-encoding:CHUNKED"])
def test_chunked_is_the_one_coding(name: str) -> None:
    request = read(head(name))
    assert (request.chunked, request.length, request.has_body) == (True, None, True)


@pytest.mark.parametrize("value", ["gzip", "gzip, chunked", "identity", "xchunked", '"chunked"'])
def test_another_coding_is_refused_by_name(value: str) -> None:
    assert refused(head(f"Transfer-Encoding: {value}")).status == 501


@pytest.mark.parametrize("value", ["chunked", "gzip", "identity"])
def test_a_coding_in_http_1_0_is_bad_framing(value: str) -> None:
    data = head(f"Transfer-Encoding: {value}", start="POST / HTTP/1.0")
    assert refused(data).status == 400


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0"])
@pytest.mark.parametrize("more", [[], ["Transfer-Encoding: gzip"]])
def test_another_version_is_refused_by_name(version: str, more: list[str]) -> None:
    assert refused(head(*more, start=f"POST / HTTP/{version}")).status == 505


def test_the_preface_of_http_2_is_another_version() -> None:
    assert refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").status == 505


@pytest.mark.parametrize(
    "start",
    [
        "GET /",
        "GET / HTTP",
        "GET / HTTP/1",
        "GET / HTTP/1.10",
        "GET / HTTP/11.1",
        "GET / http/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET /a b HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET /\xe9 HTTP/1.1",
    ],
)
def test_a_request_line_that_is_none_is_refused(start: str) -> None:
    assert refused(head(start=start)).status == 400


def test_http_1_1_needs_a_host_and_http_1_0_does_not() -> None:
    assert refused(head(host="")).status == 400
    assert read(head(start="GET / HTTP/1.0", host="")).path == "/"


@pytest.mark.parametrize("host", ["a b", "a/b", "u@a", "a?b", "a#b", "a\\b", "<a>", "\xe9"])
def test_a_host_that_is_none_is_refused(host: str) -> None:
    assert refused(head(host=host)).status == 400


@pytest.mark.parametrize(
    "host", ["a.b:80", "[::1]:8080", "[fe80::1%25eth0]", "127.0.0.1", "a_b-c~"]
)
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert read(head(host=host)).field(b"host") == host.encode()


def test_an_empty_host_is_allowed() -> None:
    assert read(b"GET / HTTP/1.1\r\nHost:\r\n\r\n").path == "/"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/", "/"),
        ("/a?b=/c", "/a"),
        ("/?", "/"),
        ("//a/b", "//a/b"),
        ("/a%2Fb/../c", "/a%2Fb/../c"),
        ("*", "*"),
        ("http://h/a?b", "/a"),
        ("HTTPS://h:1/a", "/a"),
        ("http://h", "/"),
        ("http://h?x", "/"),
        ("http://h?/v1/models", "/"),
        ("/a?http://h/b", "/a"),
    ],
)
def test_the_path_is_what_a_target_names_without_its_query(target: str, path: str) -> None:
    assert read(head(start=f"GET {target} HTTP/1.1")).path == path


def test_connect_names_an_authority() -> None:
    assert read(head(start="CONNECT h:443 HTTP/1.1")).path == "h:443"


@pytest.mark.parametrize(
    "target", ["a", "h:443", "ftp://h/a", "?a", "http:///a", "http://?a", "https://", "/a#b"]
)
def test_a_target_of_another_form_is_refused(target: str) -> None:
    assert refused(head(start=f"GET {target} HTTP/1.1")).status == 400


@pytest.mark.parametrize(
    ("version", "fields", "kept"),
    [
        ("1.1", [], True),
        ("1.1", ["Connection: keep-alive"], True),
        ("1.1", ["Connection: x-close"], True),
        ("1.1", ["Connection: Close"], False),
        ("1.1", ["Connection: keep-alive, close"], False),
        ("1.1", ["Connection: x", "Connection: close"], False),
        ("1.0", [], False),
        ("1.0", ["Connection: keep-alive"], False),  # RFC 9112, 9.3: not through a gateway
    ],
)
def test_a_connection_is_kept_as_the_client_allows(
    version: str, fields: list[str], kept: bool
) -> None:
    assert read(head(*fields, start=f"GET / HTTP/{version}")).keep_alive is kept


def test_a_client_may_expect_100_continue_in_any_case() -> None:
    assert read(head("Expect: 100-Continue")).expects


@pytest.mark.parametrize("value", ["100-continue", "something"])
def test_an_expectation_in_http_1_0_is_ignored(value: str) -> None:
    assert not read(head(f"Expect: {value}", start="POST / HTTP/1.0")).expects


def test_another_expectation_in_a_line_of_its_own_is_refused_too() -> None:
    with pytest.raises(errors.UnknownExpectation):
        read(head("Expect: 100-continue", "Expect: foo"))


def test_another_expectation_is_refused_by_name() -> None:
    assert refused(head("Expect: 200-ok")).status == 417


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        (["Expect: 200-ok", "Content-Length: 4", "Transfer-Encoding: chunked"], "/"),
        (["Expect: 200-ok"], "/#a"),
    ],
)
def test_bad_framing_is_named_before_an_expectation(fields: list[str], target: str) -> None:
    assert refused(head(*fields, start=f"POST {target} HTTP/1.1")).status == 400


def test_a_request_body_is_what_its_head_announces() -> None:
    assert isinstance(request_body(read(head("Transfer-Encoding: chunked"))), Chunked)
    sized = request_body(read(head("Content-Length: 2")))
    assert isinstance(sized, Length)
    assert (sized.feed(b"abc"), sized.rest) == (b"ab", b"c")
    assert request_body(read(head())).done


# ------------------------------------------------------------------ lines that are known


def again(known: KnownLines, data: bytes) -> Request:
    request = take_request(bytearray(data), LIMIT, known)
    assert request is not None
    return request


@pytest.mark.parametrize(
    "data",
    [
        head("Accept: */*", "Content-Length: 2"),
        head("Accept: */*", "Content-Length: 3", "Authorization: Bearer k"),
        head("Content-Length: 2", "Accept: */*", start="POST /a?k HTTP/1.1"),
        head("Transfer-Encoding: chunked", "Connection: close"),
    ],
)
def test_a_known_head_means_what_it_meant(data: bytes) -> None:
    known = KnownLines()
    again(known, head("Accept: */*", "Content-Length: 2"))
    assert [again(known, data) for _ in range(3)] == [read(data)] * 3


def test_known_lines_do_not_hide_what_is_wrong_only_together() -> None:
    known = KnownLines()
    again(known, head("Content-Length: 2"))
    again(known, head("Content-Length: 3", host="b"))
    again(known, head("Transfer-Encoding: chunked"))
    for fields in (
        ["Content-Length: 2", "Content-Length: 3"],
        ["Host: b"],
        ["Content-Length: 2", "Transfer-Encoding: chunked"],
    ):
        with pytest.raises(errors.BadFraming):
            take_request(bytearray(head(*fields)), LIMIT, known)
    with pytest.raises(errors.BadFraming):
        take_request(bytearray(head("Content-Length: 2", host="")), LIMIT, known)


def test_equal_lengths_are_one_among_known_lines_too() -> None:
    known = KnownLines()
    twice = head("Accept: */*", "Content-Length: 2", "content-length: 2")
    again(known, head("Accept: */*", "Content-Length: 2"))
    request = again(known, twice)
    assert request.length == 2
    assert sorted(request.fields) == sorted(read(twice).fields)


def test_what_nobody_asks_for_any_more_can_be_forgotten() -> None:
    request = take_request(bytearray(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), LIMIT, KnownLines())
    assert request is not None
    request.forget()
    assert request.fields == []
    assert request.field(b"host") is None
