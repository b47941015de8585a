"""Splicing changes what it was told to, and not one byte besides."""

from __future__ import annotations

import json

from hypothesis import assume, given
from hypothesis import strategies as st

from relayd.jsonbody import BodyFault, read, splice, with_member
from relayd.surfaces import Surface

SURFACE = Surface.RESPONSES  # asks for no messages

NUMBERS = st.sampled_from(["0", "-0", "1E5", "1e400", "9007199254740993", "0.10", "9" * 400])
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    NUMBERS | STRINGS.map(json.dumps) | st.sampled_from(["true", "null", '"\\ud800\\/"', '"é"']),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + " ,".join(items) + "]")
        | st.dictionaries(STRINGS, inner, max_size=3).map(
            lambda items: "{" + ",".join(f"{json.dumps(k)}: {v}" for k, v in items.items()) + "}"
        )
    ),
    max_leaves=8,
)
BLANKS = st.sampled_from(["", "", " ", "\n\t", "\r\n"])
NAMES = st.sampled_from(["model", "stream_options", "user", "n"]) | STRINGS


@st.composite
def members(draw: st.DrawFn) -> list[tuple[str, str, str]]:
    """Members as (key, key as it is written, value as it is written)."""
    written = []
    for key in draw(st.lists(NAMES, max_size=6, unique=True)):
        if key in ("stream", "messages"):
            continue
        value = '"m"' if key == "model" else draw(VALUES)
        written.append((key, json.dumps(key, ensure_ascii=draw(st.booleans())), value))
    return written


@st.composite
def bodies(draw: st.DrawFn) -> tuple[list[tuple[str, str, str]], str, bytes]:
    """Members, the object as a format with `%s` for each value, and the object itself."""
    parts = draw(members())
    form = ",".join(
        draw(BLANKS) + written.replace("%", "%%") + draw(BLANKS) + ":" + draw(BLANKS) + "%s"
        for _, written, _ in parts
    )
    form = draw(BLANKS) + "{" + form + draw(BLANKS) + "}" + draw(BLANKS)
    return parts, form, (form % tuple(value for _, _, value in parts)).encode()


@given(bodies(), st.data())
def test_a_replaced_member_changes_and_all_other_bytes_stay(
    body: tuple[list[tuple[str, str, str]], str, bytes], data: st.DataObject
) -> None:
    parts, form, raw = body
    assume(parts)
    facts = read(raw, SURFACE)
    chosen = data.draw(st.sets(st.sampled_from([key for key, _, _ in parts])))
    replaced = tuple("[0]" if key in chosen else value for key, _, value in parts)
    assert splice(raw, facts, dict.fromkeys(chosen, b"[0]")) == (form % replaced).encode()
    for key, _, value in parts:
        assert facts.value(raw, key) == value.encode()


@given(bodies(), VALUES)
def test_an_added_member_can_be_read_and_the_rest_follows_unchanged(
    body: tuple[list[tuple[str, str, str]], str, bytes], value: str
) -> None:
    parts, _, raw = body
    assume("added" not in [key for key, _, _ in parts])
    facts = read(raw, SURFACE)
    result = splice(raw, facts, {"added": value.encode()})
    assert result.startswith(raw[: facts.insert_at])
    assert result.endswith(raw[facts.insert_at :])
    again = read(result, SURFACE)
    assert again.value(result, "added") == value.encode()
    assert len(again.members) == len(parts) + 1


@given(bodies())
def test_a_member_set_in_an_object_leaves_its_other_members(
    body: tuple[list[tuple[str, str, str]], str, bytes],
) -> None:
    parts, _, raw = body
    result = with_member(raw.strip(), "data_collection", b'"deny"')
    facts = read(result, SURFACE)
    assert facts.value(result, "data_collection") == b'"deny"'
    for key, _, value in parts:
        if key != "data_collection":
            assert facts.value(result, key) == value.encode()


@given(st.binary(max_size=60) | st.text('{}[]":,\\ab1 ', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused_as_the_standard_library_would(body: bytes) -> None:
    try:
        standard = json.loads(body.decode("utf-8"))
    except ValueError:
        standard = None
    keys = set(standard) if isinstance(standard, dict) else None
    assert keys_of(body) == keys


def keys_of(body: bytes) -> set[str] | None:
    try:
        return set(read(body, SURFACE).members)
    except BodyFault:
        return None
