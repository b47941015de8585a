"""Whatever a provider says of its failure: it is read or not, never an exception."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from relayd.refusal import MAX_TEXT, MAX_WORD, read, refused, retry_after

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["error", "message", "detail", "type", "param", "code"]), inner
        ),
    ),
    max_leaves=8,
)
LONG = st.text(max_size=3).map(lambda text: text * 2000)
DATES = st.lists(
    st.sampled_from(
        ["Sun,", "06", "Nov", "1994", "08:49:37", "GMT", "-0000", "+9999", ":", "-", "0", "99999"]
    ),
    max_size=8,
).map(" ".join)


@given(st.one_of(st.binary(max_size=60), JSON.map(json.dumps).map(str.encode)))
def test_any_body_is_read_or_says_nothing(body: bytes) -> None:
    understood = read(body)
    error = refused(400, understood, lambda text: text, expose=True)
    assert error.message


@given(LONG, LONG)
def test_what_is_told_has_its_bounds(message: str, code: str) -> None:
    body = json.dumps({"error": {"message": message, "code": code}}).encode()
    error = refused(400, read(body), lambda text: text, expose=True)
    assert len(error.message.encode("utf-8", "replace")) <= MAX_TEXT
    assert len(error.code or "") <= MAX_WORD


@given(
    st.sampled_from([b"retry-after", b"retry-after-ms"]),
    st.one_of(st.binary(max_size=30), st.text("0123456789.", max_size=12), DATES),
    st.floats(0, 1e10),
)
def test_any_retry_after_is_a_time_from_now_or_none(
    name: bytes, value: bytes | str, wall: float
) -> None:
    data = value.encode() if isinstance(value, str) else value
    seconds = retry_after({name: data}, wall)
    assert seconds is None or 0 <= seconds < 1e12
