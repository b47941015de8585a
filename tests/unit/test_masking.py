"""Keys in every dress; and text that must stay as it is."""

from __future__ import annotations

import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote

import pytest

from relayd.masking import MASK, Masker, mask, names_key

SECRET = "c4n4ry/Key+with=signs"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Incorrect API key provided: sk-abc***xyz.", f"Incorrect API key provided: {MASK}"),
        ("sk-proj-AbC_123-x is wrong", f"{MASK} is wrong"),
        ("gsk_0123456789 gone", f"{MASK} gone"),
        ("(csk-0123456789)", f"({MASK})"),
        ("xai-0123456789,", f"{MASK},"),
        ("AIzaSyA-0123456789", MASK),
        ("jwt eyJhbGciOiJI.eyJzdWIi.c2ln!", f"jwt {MASK}!"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {MASK}"),
        ('"authorization":"Bearer abc"', f'"authorization":"Bearer {MASK}"'),
        ("bearer auth.abc", f"bearer {MASK}"),
        ("authorization: basic dTpw", f"authorization: basic {MASK}"),
        ("x-api-key: abc", f"x-api-key: {MASK}"),
        ('{"api_key": "abc", "n": 1}', f'{{"api_key": "{MASK}", "n": 1}}'),
        ("GET /x?key=abc&n=1", f"GET /x?key={MASK}&n=1"),
        ("/x?n=1&access_token=abc HTTP", f"/x?n=1&access_token={MASK} HTTP"),
        ("redis://u:pw@host:1/0", f"redis://{MASK}@host:1/0"),
        ("https://token@host/p", f"https://{MASK}@host/p"),
    ],
)
def test_what_looks_like_a_key_is_masked(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "task-oriented risk-free desk-lamp",
        "https://host/path?n=1",
        "mail user@host.example",
        "key_credential, key_sha256, key_env",
        "the key is missing",
        "config.toml: provider[a].api_key: unknown key; did you mean",
        "a basic plan lacks this",
        "send a bearer token here, or bearer authentication",
        "model gpt-4o-mini-2024-07-18 does not exist",
    ],
)
def test_plain_text_stays(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        quote(SECRET, safe=""),
        quote(SECRET, safe="").replace("%2F", "%2f").replace("%2B", "%2b").replace("%3D", "%3d"),
        "".join(f"%{octet:02x}" for octet in SECRET.encode()),
        SECRET.upper(),
        SECRET.lower(),
    ],
)
def test_a_configured_secret_is_found_in_each_spelling(spelling: str) -> None:
    assert Masker([SECRET])(f"a {spelling}z") == f"a {MASK}z"


@pytest.mark.parametrize("before", ["", "u", "me", "you", "user:", "a?>~"])
@pytest.mark.parametrize("after", ["", "?", ">>", "~~~"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
@pytest.mark.parametrize("secret", [SECRET, "~~>>??~~~>", "\u00fc-\u20ac-key-7"])
def test_a_configured_secret_is_found_in_base64(
    before: str, after: str, encode: Callable[[bytes], bytes], secret: str
) -> None:
    shown = Masker([secret])(encode((before + secret + after).encode()).decode())
    assert MASK in shown
    assert len(shown.replace(MASK, "")) <= 4 * (len(before + after) // 3 + 2)


def test_a_secret_with_quotes_is_found_in_json() -> None:
    secret = 'a"b\\c-d-e-f'
    assert Masker([secret])(json.dumps({"m": secret})) == json.dumps({"m": MASK})


def test_the_longer_of_two_secrets_leaves_no_rest() -> None:
    assert Masker(["abcdefgh", "abcdefgh-ijkl"])("x abcdefgh-ijkl y") == f"x {MASK} y"


def test_a_short_secret_is_masked_only_as_a_word() -> None:
    assert Masker(["ab"])("ab cab abc (ab)") == f"{MASK} cab abc ({MASK})"


def test_an_empty_secret_masks_nothing() -> None:
    assert Masker([""])("text") == "text"


def test_without_secrets_the_looks_are_masked_all_the_same() -> None:
    assert Masker([])("?key=abc") == f"?key={MASK}"


@pytest.mark.parametrize("unit", ["a", "://", "key", "bearer ", "-", "sk-", "eyJ", "api key:"])
def test_the_time_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    began = time.process_time()
    mask(unit * (100_000 // len(unit)))
    assert time.process_time() - began < 2


@pytest.mark.parametrize("name", ["key", "API_KEY", "x-auth-token", "client_secret", "Sig"])
def test_a_name_that_ends_like_a_key_holds_one(name: str) -> None:
    assert names_key(name)


@pytest.mark.parametrize("name", ["api-version", "keyboard", "X-Title", "tokens", ""])
def test_another_name_holds_none(name: str) -> None:
    assert not names_key(name)
