"""Usage in every dialect, and found in bytes."""

from __future__ import annotations

import pytest

from relayd.record import Usage
from relayd.usage import MAX_COUNT, TAIL, TRIES, last_usage, merged, read_usage


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}, Usage(3, 5)),
        (
            {"input_tokens": 3, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 2}},
            Usage(3, 5, 2),
        ),
        ({"input_tokens": 3, "cache_read_input_tokens": 2}, Usage(3, None, 2)),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, Usage(3)),
        ({"prompt_tokens": -1, "completion_tokens": True}, None),
        ({"prompt_tokens": "3"}, None),
        ({"prompt_tokens": MAX_COUNT, "completion_tokens": MAX_COUNT + 1}, Usage(MAX_COUNT)),
        ({"prompt_tokens": 10**400}, None),
        ({"input_tokens": 3, "cache_creation_input_tokens": 100}, Usage(103)),
        ({"input_tokens": 3, "cache_creation_input_tokens": None}, Usage(3)),
        ({"cache_creation_input_tokens": 100, "output_tokens": 5}, Usage(None, 5)),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_usage_is_read_in_every_dialect_or_not_at_all(value: object, read: Usage | None) -> None:
    assert read_usage(value) == read


def test_the_newer_counts_win_where_they_speak() -> None:
    assert merged(Usage(3, 1, 2), Usage(None, 5)) == Usage(3, 5, 2)
    assert merged(Usage(3, 1), Usage(4, None, 1)) == Usage(4, 1, 1)


@pytest.mark.parametrize("one", [None, Usage(1)])
def test_one_alone_is_what_counts(one: Usage | None) -> None:
    assert merged(one, None) == one
    assert merged(None, one) == one


def test_the_last_usage_in_bytes_is_found_without_parsing_the_rest() -> None:
    data = b'{"a":[{"usage":{"x":1}}, "usage" , {"usage": {"prompt_tokens":2}, "bro'
    assert last_usage(data) == {"prompt_tokens": 2}


def test_a_word_of_the_same_name_hides_no_usage() -> None:
    data = b'{"usage":{"input_tokens":2},"metadata":{"usage":"billing"}}'
    assert last_usage(data) == {"input_tokens": 2}
    assert last_usage(data + b'"usage",' * TRIES) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"usage":null}',
        b'{"usage":{"prompt_tokens":',
        b'{"usage":' + b'{"a":' * TAIL,
        b'{"usage":{"a":"' + b"b" * TAIL + b'"}}',
    ],
)
def test_what_cannot_be_read_is_no_usage(data: bytes) -> None:
    assert last_usage(data) is None
