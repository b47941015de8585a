"""Which fields cross, which come back, and which never do."""

from __future__ import annotations

import pytest

from relayd.errors import HeadTooLarge
from relayd.headers import (
    CROSSING,
    MAX_CROSSING,
    MAX_RETURNING,
    Fields,
    Head,
    closes,
    connection_names,
    crossing,
    is_coded,
    is_request_id,
    is_traceparent,
    listed,
    may_end,
    members,
    returning,
)
from relayd.surfaces import Surface


def sent(fields: Fields, surface: Surface) -> bytes:
    """What of a head goes upstream."""
    return crossing(dict(reversed(fields)), fields, surface)


TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHERS = [surface for surface in Surface if surface is not Surface.MESSAGES]

OWN = [
    (b"host", b"a"),
    (b"authorization", b"Bearer k"),
    (b"x-api-key", b"k"),
    (b"cookie", b"c"),
    (b"user-agent", b"u"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"transfer-encoding", b"chunked"),
    (b"te", b"trailers"),
    (b"tracestate", b"a=b"),
]


def test_every_surface_has_its_list() -> None:
    assert set(CROSSING) == {*Surface, None}
    assert CROSSING[None] == {}


@pytest.mark.parametrize("surface", Surface)
def test_nothing_of_the_caller_crosses_that_is_not_listed(surface: Surface) -> None:
    assert sent(OWN, surface) == b""


@pytest.mark.parametrize("surface", OTHERS)
def test_openai_beta_crosses_everywhere_but_on_messages(surface: Surface) -> None:
    fields = [*OWN, (b"openai-beta", b"assistants=v2"), (b"anthropic-beta", b"x")]
    assert sent(fields, surface) == b"OpenAI-Beta: assistants=v2\r\n"


def test_the_anthropic_fields_cross_on_messages_alone() -> None:
    fields = [
        *OWN,
        (b"anthropic-beta", b"a"),
        (b"openai-beta", b"x"),
        (b"anthropic-version", b"2023-06-01"),
        (b"anthropic-beta", b"b"),
    ]
    lines = [b"anthropic-beta: a", b"anthropic-version: 2023-06-01", b"anthropic-beta: b", b""]
    assert sent(fields, Surface.MESSAGES) == b"\r\n".join(lines)


@pytest.mark.parametrize("surface", Surface)
def test_a_valid_trace_crosses_on_every_surface(surface: Surface) -> None:
    assert sent([(b"traceparent", TRACE)], surface) == b"traceparent: " + TRACE + b"\r\n"


def test_an_invalid_trace_stays_behind() -> None:
    assert sent([(b"traceparent", b"00-0-0-01")], Surface.CHAT) == b""


def test_of_two_traces_none_crosses() -> None:
    assert sent([(b"traceparent", TRACE)] * 2, Surface.CHAT) == b""


@pytest.mark.parametrize("name", [b"openai-beta", b"traceparent"])
def test_what_connection_names_does_not_cross(name: bytes) -> None:
    fields = [(b"openai-beta", b"x"), (b"traceparent", TRACE)]
    named = sent([*fields, (b"connection", b"close, " + name.upper())], Surface.CHAT)
    assert name not in named.lower()
    assert named, "the other one has nothing to do with it"


@pytest.mark.parametrize("count", [1, 2])
def test_no_more_crosses_than_a_provider_reads(count: int) -> None:
    line = b"OpenAI-Beta: " + b"x" * (MAX_CROSSING // count - 15) + b"\r\n"
    field = (b"openai-beta", line[13:-2])
    assert sent([field] * count, Surface.CHAT) == line * count
    with pytest.raises(HeadTooLarge):
        sent([field] * count + [(b"openai-beta", b"")], Surface.CHAT)


def test_three_fields_come_back_one_of_them_under_another_name() -> None:
    fields = [
        (b"x-request-id", b"req_1"),
        (b"openai-version", b"2020-10-01"),
        (b"openai-processing-ms", b"7"),
        (b"set-cookie", b"c"),
        (b"x-accel-redirect", b"/secret"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"content-type", b"text/plain"),
        (b"keep-alive", b"timeout=5"),
        (b"server", b"s"),
    ]
    expected = [
        b"X-Upstream-Request-ID: req_1",
        b"openai-version: 2020-10-01",
        b"openai-processing-ms: 7",
        b"",
    ]
    assert returning(dict(reversed(fields)), fields) == b"\r\n".join(expected)


def test_what_connection_names_does_not_come_back() -> None:
    fields = [(b"connection", b"X-Request-Id"), (b"x-request-id", b"r"), (b"openai-version", b"v")]
    assert returning(dict(reversed(fields)), fields) == b"openai-version: v\r\n"


@pytest.mark.parametrize("size", [MAX_RETURNING, MAX_RETURNING + 1])
def test_more_than_nginx_would_take_does_not_come_back(size: int) -> None:
    value = b"v" * (size - len(b"openai-version: \r\n"))
    fields = [(b"openai-version", value)]
    assert len(returning(dict(fields), fields)) == (size if size <= MAX_RETURNING else 0)


def test_connection_may_come_in_several_lines() -> None:
    fields = [(b"connection", b" A,\tb "), (b"x", b"c"), (b"connection", b"D")]
    assert connection_names(dict(reversed(fields)), fields) == {b"a", b"b", b"d"}


def test_a_list_has_its_members_in_lower_case_without_the_empty_ones() -> None:
    assert members(b" A,\tb ,,c d, ") == [b"a", b"b", b"c d"]
    assert members(b"") == []


@pytest.mark.parametrize(
    ("values", "coded"),
    [
        ([], False),
        ([b""], False),
        ([b"Identity"], False),
        ([b"identity, identity", b"identity"], False),
        ([b"gzip"], True),
        ([b"identity, br"], True),
        ([b"identity", b"br"], True),
    ],
)
def test_a_body_is_coded_by_anything_but_identity(values: list[bytes], coded: bool) -> None:
    fields = [(b"a", b"gzip"), *((b"content-encoding", value) for value in values)]
    assert is_coded(dict(reversed(fields)), fields) is coded


@pytest.mark.parametrize(
    "value",
    [
        TRACE,
        TRACE[:-2] + b"00",
        b"01" + TRACE[2:],
        b"01" + TRACE[2:] + b"-what the future holds",
    ],
)
def test_a_trace_is_valid_by_its_shape(value: bytes) -> None:
    assert is_traceparent(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        TRACE + b"-more",
        TRACE + b"0",
        b"01" + TRACE[2:] + b"0",
        b"ff" + TRACE[2:],
        TRACE.upper(),
        TRACE.replace(b"0af7651916cd43dd8448eb211c80319c", b"0" * 32),
        TRACE.replace(b"b7ad6b7169203331", b"0" * 16),
        TRACE + b"\n",
        b" " + TRACE,
    ],
)
def test_another_trace_is_not(value: bytes) -> None:
    assert not is_traceparent(value)


@pytest.mark.parametrize("value", [b"a", b"A.b_c:d-9", b"x" * 128])
def test_a_request_id_is_of_letters_digits_and_four_marks(value: bytes) -> None:
    assert is_request_id(value)


@pytest.mark.parametrize("value", [b"", b"x" * 129, b"a b", b"a\n", b"\xc3\xa4", b"a/b", b'"a"'])
def test_another_request_id_is_not(value: bytes) -> None:
    assert not is_request_id(value)


def test_a_head_in_pieces_is_looked_at_when_it_may_end_or_has_doubled() -> None:
    head = b"HTTP/1.1 200 OK\r\nA: " + b"b" * 200 + b"\r\n\r\n"
    looks, read = 0, 0
    for end in range(len(head) + 1):
        if may_end(bytearray(head[:end]), read):
            looks, read = looks + 1, end
    assert read == len(head)
    assert looks < 12


# ------------------------------------------------------------------ what the fields of a head say


def head(*fields: tuple[bytes, bytes]) -> Head:
    return Head(list(fields), dict(reversed(fields)))


def test_the_first_value_of_a_name_is_asked_for_until_it_is_forgotten() -> None:
    found = head((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    assert (found.field(b"a"), found.field(b"b"), found.field(b"c")) == (b"1", b"2", None)
    found.forget()
    assert found.fields == []
    assert found.field(b"a") is None


def test_a_list_goes_over_all_lines_of_its_name() -> None:
    once = head((b"a", b"1, 2"), (b"b", b"3"))
    assert listed(once.first, once.fields, b"a") == b"1, 2"
    again = head((b"a", b"1, 2"), (b"b", b"3"), (b"a", b"4"))
    assert listed(again.first, again.fields, b"a") == b"1, 2,4"
    assert listed(again.first, again.fields, b"b") == b"3"


@pytest.mark.parametrize(
    ("values", "closing"),
    [
        ([b"close"], True),
        ([b"Keep-Alive"], False),
        ([b"keep-alive, CLOSE"], True),
        ([b"x", b"close"], True),
        ([b"closed"], False),
        ([b""], False),
    ],
)
def test_a_connection_closes_if_any_of_its_fields_says_so(
    values: list[bytes], closing: bool
) -> None:
    found = head((b"a", b"1"), *((b"connection", value) for value in values))
    assert closes(found.first, found.fields) is closing
