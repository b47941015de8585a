"""What is understood of a provider's error answer, and what of it is told."""

from __future__ import annotations

import json

import pytest

from relayd.refusal import (
    MAX_TEXT,
    MAX_WORD,
    ProviderError,
    read,
    refused,
    retry_after,
    trimmed,
)

NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


def plain(text: str) -> str:
    return text


def masked(text: str) -> str:
    return text.replace("secret", "***")


@pytest.mark.parametrize(
    ("shape", "understood"),
    [
        (
            {"error": {"message": "m", "type": "t", "param": "p", "code": "c"}},
            ProviderError("m", "t", "p", "c"),
        ),
        ({"error": {"message": "m", "code": 502}}, ProviderError("m", code="502")),
        ({"error": {"message": "m", "code": 1.5}}, ProviderError("m", code="1.5")),
        ({"error": {"message": "m", "code": True, "type": None}}, ProviderError("m")),
        ({"error": {"message": ["m"], "type": {}}}, ProviderError()),
        ({"error": {"detail": "d"}}, ProviderError("d")),
        ({"error": "just words"}, ProviderError("just words")),
        ({"error": None, "message": "m"}, ProviderError()),
        ({"error": ["m"]}, ProviderError()),
        ({"object": "error", "message": "m", "type": "t"}, ProviderError("m", "t")),
        ({"detail": "d"}, ProviderError("d")),
        ({"detail": [{"msg": "d"}]}, ProviderError()),
        ({"message": "m", "detail": "d"}, ProviderError("m")),
        ({}, ProviderError()),
        ([{"error": {"message": "m"}}], ProviderError()),
        ("m", ProviderError()),
        (None, ProviderError()),
    ],
)
def test_an_error_body_is_read_in_any_shape(shape: object, understood: ProviderError) -> None:
    assert read(json.dumps(shape).encode()) == understood
    assert read(json.dumps(shape).encode("utf-8-sig")) == understood


def test_a_byte_that_is_no_utf_8_hides_nothing() -> None:
    body = b'{"error":{"message":"trop grand: m\xe9moire","code":"context_length_exceeded"}}'
    understood = ProviderError("trop grand: m\ufffdmoire", code="context_length_exceeded")
    assert read(body) == understood


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>502 Bad Gateway</html>",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"error":' * 50_000,
        b'{"code": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_cannot_be_read_says_nothing(data: bytes) -> None:
    assert read(data) == ProviderError()


def test_words_are_masked_before_they_are_cut() -> None:
    word = "x" * (MAX_WORD - 3) + "secret"
    error = refused(400, ProviderError("m", word, word, word), masked, expose=True)
    cut = "x" * (MAX_WORD - 3) + "***"
    assert (error.type, error.param, error.code) == (cut, cut, cut)


def test_four_fields_are_told_and_masked() -> None:
    error = refused(
        422, ProviderError("m secret", "t secret", "p secret", "c secret"), masked, expose=True
    )
    assert (error.status, error.message) == (422, "m ***")
    assert (error.type, error.param, error.code) == ("t ***", "p ***", "c ***")


def test_what_is_missing_is_null_and_the_type_has_a_default() -> None:
    error = refused(400, ProviderError("m"), plain, expose=True)
    assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)


@pytest.mark.parametrize(
    ("understood", "expose"),
    [
        (ProviderError("m", "t", "p", "c"), False),
        (ProviderError(None, "t", "p", "c"), True),
    ],
)
def test_a_plain_message_stands_for_what_is_not_told(
    understood: ProviderError, expose: bool
) -> None:
    error = refused(418, understood, plain, expose=expose)
    assert error.message == "the provider refused the request with status 418"
    assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)


def test_an_empty_message_becomes_a_plain_one_and_the_code_stays() -> None:
    error = refused(400, ProviderError("", code="c"), plain, expose=True)
    assert (error.message, error.code) == (
        "the provider refused the request with status 400",
        "c",
    )


def test_a_message_is_masked_before_it_is_cut() -> None:
    error = refused(400, ProviderError("x" * (MAX_TEXT - 3) + "secret"), masked, expose=True)
    assert error.message == "x" * (MAX_TEXT - 3) + "***"


def test_a_text_is_cut_between_characters() -> None:
    assert trimmed("x" * MAX_TEXT) == "x" * MAX_TEXT
    assert trimmed("x" * (MAX_TEXT + 1)) == "x" * MAX_TEXT
    assert trimmed("x" + "\u20ac" * MAX_TEXT) == "x" + "\u20ac" * ((MAX_TEXT - 1) // 3)


def test_a_lone_surrogate_does_not_stop_the_cutting() -> None:
    assert len(trimmed("\ud800" * (MAX_TEXT + 1))) == MAX_TEXT


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ([], None),
        ([(b"retry-after", b"7")], 7.0),
        ([(b"retry-after", b"0")], 0.0),
        ([(b"retry-after", b"1.5")], 1.5),
        ([(b"retry-after-ms", b"1500")], 1.5),
        ([(b"retry-after", b"9"), (b"retry-after-ms", b"20")], 0.02),
        ([(b"retry-after", b"9"), (b"retry-after-ms", b"soon")], 9.0),
        ([(b"retry-after", b"5"), (b"retry-after", b"9")], 5.0),
        ([(b"retry-after", b"-5")], None),
        ([(b"retry-after", b"soon")], None),
        ([(b"retry-after", b"")], None),
        ([(b"retry-after", b"1e9")], None),
        ([(b"retry-after", b"9" * 10)], 9999999999.0),
        ([(b"retry-after", b"\xff")], None),
        ([(b"retry-after", b"Sun, 06 Nov 1994 08:50:37 GMT")], 60.0),
        ([(b"retry-after", b"Sunday, 06-Nov-94 08:50:37 GMT")], 60.0),
        ([(b"retry-after", b"Sun Nov  6 08:50:37 1994")], 60.0),
        ([(b"retry-after", b"Sun, 06 Nov 1994 08:49:37 GMT")], 0.0),
        ([(b"retry-after", b"Sun, 06 Nov 1993 08:49:37 GMT")], 0.0),
        ([(b"retry-after", b"Sun, 99 Nov 1994 08:49:37 GMT")], None),
        ([(b"retry-after", b"Sun, 06 Nov 99999 08:49:37 GMT")], None),
    ],
)
def test_a_wait_is_read_in_seconds_milliseconds_or_as_a_date(
    fields: list[tuple[bytes, bytes]], seconds: float | None
) -> None:
    assert retry_after(dict(reversed(fields)), NOW) == seconds


def test_a_date_without_a_zone_is_utc_wherever_relayd_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert retry_after({b"retry-after": b"Sun Nov  6 08:50:37 1994"}, NOW) == 60.0
    finally:
        monkeypatch.undo()
        time.tzset()
