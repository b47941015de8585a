"""No text may show a secret, and a mask is its own mask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relayd.masking import MASK, Masker, mask


@given(st.text(), st.text(st.characters(codec="ascii", min_codepoint=33), min_size=8))
def test_no_secret_survives_any_text(text: str, secret: str) -> None:
    masked = Masker([secret])(f"{text}{secret}{text}")
    assert secret not in masked.replace(MASK, "\0")


@given(st.text())
def test_masking_twice_changes_nothing_more(text: str) -> None:
    assert mask(mask(text)) == mask(text)


@given(
    st.lists(st.sampled_from(["key=", "sk-abcdefg", "bearer ", "api-key: ", "://", "@", " x", '"']))
)
def test_masking_twice_changes_nothing_in_texts_full_of_keys(parts: list[str]) -> None:
    text = "".join(parts)
    assert mask(mask(text)) == mask(text)
