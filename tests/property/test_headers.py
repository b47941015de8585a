"""Whatever fields a message has: only the allow-lists cross, and nothing `Connection` names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relayd.headers import crossing, is_traceparent, returning
from relayd.surfaces import Surface

ASKED = {
    Surface.CHAT: {"openai-beta"},
    Surface.COMPLETIONS: {"openai-beta"},
    Surface.EMBEDDINGS: {"openai-beta"},
    Surface.RESPONSES: {"openai-beta"},
    Surface.MESSAGES: {"anthropic-version", "anthropic-beta"},
}
TOLD = {
    "openai-processing-ms": "openai-processing-ms",
    "openai-version": "openai-version",
    "x-request-id": "x-upstream-request-id",
}

KNOWN = [
    "openai-beta",
    "anthropic-version",
    "anthropic-beta",
    "traceparent",
    "x-request-id",
    "openai-version",
    "openai-processing-ms",
    "authorization",
    "cookie",
    "set-cookie",
    "x-accel-redirect",
    "transfer-encoding",
    "x",
]
TRACES = ["00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-" + "0" * 32 + "-" + "b" * 16 + "-01"]
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12).map(str.strip)
OPTIONS = st.lists(st.sampled_from(["close", *KNOWN]), max_size=4).map(
    lambda names: ("connection", ", ".join(name.title() for name in names))
)
FIELDS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(KNOWN), TEXT),
        st.tuples(st.sampled_from(KNOWN), TEXT),
        st.tuples(st.just("traceparent"), st.sampled_from(TRACES)),
        OPTIONS,
    ),
    max_size=10,
)

Texts = list[tuple[str, str]]


def raw(fields: Texts) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in fields]


def lines(data: bytes) -> Texts:
    """The fields that were written, in order, names in lower case."""
    assert data == b"" or data.endswith(b"\r\n")
    rows = [line.partition(": ") for line in data.decode().split("\r\n")[:-1]]
    return [(name.lower(), value) for name, _, value in rows]


def named(fields: Texts) -> set[str]:
    values = [value for name, value in fields if name == "connection"]
    return {part.strip().lower() for value in values for part in value.split(",")}


@given(FIELDS, st.sampled_from(Surface))
def test_what_goes_upstream_is_on_the_list_and_not_named_by_connection(
    fields: Texts, surface: Surface
) -> None:
    traces = [value for name, value in fields if name == "traceparent"]
    allowed = set(ASKED[surface])
    if len(traces) == 1 and is_traceparent(traces[0].encode()):
        allowed.add("traceparent")
    allowed -= named(fields)
    expected = [(name, value) for name, value in fields if name in allowed]
    assert lines(crossing(dict(reversed(raw(fields))), raw(fields), surface)) == expected


@given(FIELDS)
def test_what_comes_back_is_on_the_list_and_not_named_by_connection(fields: Texts) -> None:
    allowed = set(TOLD) - named(fields)
    expected = [(TOLD[name], value) for name, value in fields if name in allowed]
    assert lines(returning(dict(reversed(raw(fields))), raw(fields))) == expected


@given(st.binary(max_size=60))
def test_any_bytes_are_a_trace_or_none(value: bytes) -> None:
    if is_traceparent(value):
        assert len(value) >= 55
        assert value[2:3] == value[35:36] == value[52:53] == b"-"
