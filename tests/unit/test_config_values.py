"""Single values: what each reader takes, what it refuses and with which words."""

from __future__ import annotations

import datetime
import math
import re
from enum import StrEnum

import pytest

from relayd.config import addresses, values
from relayd.config.problems import Wrong
from relayd.config.values import Price, Reader
from relayd.surfaces import Surface


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


WORD = re.compile("[a-z]+")


@pytest.mark.parametrize(
    ("reader", "raw", "value"),
    [
        (values.boolean, True, True),
        (values.string, "", ""),
        (values.text, "a b", "a b"),
        (values.matching(WORD, "a word"), "abc", "abc"),
        (values.or_empty(values.matching(WORD, "a word")), "", ""),
        (values.or_empty(values.matching(WORD, "a word")), "abc", "abc"),
        (values.integer(1, 3), 1, 1),
        (values.integer(1, 3), 3, 3),
        (values.number(0, 1), 1, 1.0),
        (values.seconds(), 0.05, 0.05),
        (values.seconds(), 86_400, 86_400.0),
        (values.choice(Colour), "red", Colour.RED),
        (values.listed(values.text), "a", ("a",)),
        (values.listed(values.text), ["a", "b"], ("a", "b")),
        (values.listed(values.text), [], ()),
        (values.mapping(values.text, values.text), {"b": "1", "a": "2"}, (("b", "1"), ("a", "2"))),
        (values.one_of(("a", "b")), "b", "b"),
        (values.mode, "0660", 0o660),
        (values.mode, "600", 0o600),
        (values.surfaces, "messages", frozenset({Surface.MESSAGES})),
        (values.surfaces, ["chat", "responses"], frozenset({Surface.CHAT, Surface.RESPONSES})),
        (values.statuses, [], frozenset()),
        (values.statuses, [300, 599], frozenset({300, 599})),
        (values.statuses, ["5xx"], frozenset(range(500, 600))),
        (values.statuses, ["4xx"], frozenset(range(400, 500)) - {401, 403}),
        (values.timezone, "UTC", "UTC"),
        (values.timezone, "Europe/Berlin", "Europe/Berlin"),
        (values.fields_table, {"X-Title": "a b"}, (("X-Title", "a b"),)),
        (values.query, {}, ""),
        (values.query, {"api-version": "2024-10-21", "a b": "&"}, "api-version=2024-10-21&a+b=%26"),
        (values.members, {"a": {"b": [1, 2.5, "é"]}}, (("a", b'{"b":[1,2.5,"\\u00e9"]}'),)),
        (values.price, {"output": 2, "input": 1.5}, Price(1.5, 2.0)),
    ],
)
def test_a_right_value_is_read(reader: Reader[object], raw: object, value: object) -> None:
    assert reader(raw) == value


@pytest.mark.parametrize(
    ("reader", "raw", "words"),
    [
        (values.boolean, 1, "expected true or false, got 1"),
        (values.string, 1.5, "expected a string, got 1.5"),
        (values.string, "a\nb", "without control characters"),
        (values.text, "", "expected a string that is not empty"),
        (values.matching(WORD, "a word"), "A1", 'expected a word, got "A1"'),
        (values.matching(WORD, "a word", shown=False), "A1", "expected a word"),
        (values.or_empty(values.matching(WORD, "a word")), "1", 'expected a word, got "1"'),
        (values.integer(1, 3), 0, "expected a whole number from 1 to 3, got 0"),
        (values.integer(1, 3), 4, "got 4"),
        (values.integer(1, 3), True, "got true"),
        (values.integer(1, 3), 2.0, "got 2.0"),
        pytest.param(values.integer(1, 3), 10**5000, "got a huge number", id="huge"),
        (values.number(0, 1), False, "expected a number from 0 to 1, got false"),
        (values.number(0, 1), math.nan, "got nan"),
        (values.number(0, 1), math.inf, "got inf"),
        (values.number(0, 1), "1", 'got "1"'),
        (values.seconds(), 0.04, "expected seconds from 0.05 to 86400, got 0.04"),
        (values.seconds(), 86_401, "got 86401"),
        (values.choice(Colour), "rde", 'expected "red" | "green", got "rde"'),
        (values.choice(Colour), True, 'expected "red" | "green", got true'),
        (values.one_of(("a", "b")), 5, "expected one of: a, b; got 5"),
        (values.listed(values.text, least=1), [], "expected at least one entry"),
        (values.listed(values.text), ["a", "a"], 'expected each entry once, got "a" twice'),
        (values.listed(values.text), [{}], "expected a string, got a table"),
        (values.mapping(values.text, values.text), [], "expected a table, got a list"),
        (values.mapping(values.text, values.text), {"a": 1}, '"a" is wrong: expected a str'),
        (values.one_of(("fast", "slow")), "fsat", 'unknown name "fsat"; did you mean "fast"?'),
        (values.mode, 0o660, 'expected an octal string such as "0660", got 432'),
        (values.mode, "0680", "octal"),
        (values.mode, "06600", "octal"),
        (values.surfaces, [], "at least one"),
        (values.surfaces, ["chta"], 'did you mean "chat"?'),
        (values.statuses, 429, "expected a list, got 429"),
        (values.statuses, [299], "expected 300 to 599"),
        (values.statuses, [600], "got 600"),
        (values.statuses, ["2xx"], 'got "2xx"'),
        (values.statuses, [True], "got true"),
        (values.statuses, [[]], "got a list"),
        (values.statuses, [401], "401 cannot be named here: set failover.credentials = true"),
        (values.statuses, [403], "403 cannot be named here"),
        (values.timezone, "Mars/Olympus", "expected a time zone"),
        (values.timezone, "../etc/passwd", "expected a time zone"),
        (values.timezone, "Europe", "expected a time zone"),
        (values.fields_table, {"a b": "1"}, 'expected a header name, got "a b"'),
        (values.fields_table, {"HOST": "1"}, 'the header "HOST" cannot be used here'),
        (values.fields_table, {"Authorization": "1"}, "a credential or of the"),
        (values.fields_table, {"TE": "1"}, "a credential or of the"),
        (values.fields_table, {"X-A": "1\r\nX-B: 2"}, '"X-A" is wrong: expected a string with'),
        (values.fields_table, {"X-A": " 1"}, '"X-A" is wrong: expected printable ASCII'),
        (values.fields_table, {"X-A": ""}, '"X-A" is wrong: expected printable ASCII'),
        (values.fields_table, {"X-A": "1", "x-a": "2"}, "expected each header once"),
        (values.query, {"a": 1}, '"a" is wrong: expected a str'),
        (values.members, {"model": "x"}, '"model" cannot be set here: set the provider\'s `model`'),
        (values.members, {"stream": True}, "routing.stream"),
        (
            values.members,
            {"a": datetime.date(2026, 1, 1)},
            '"a" is wrong: expected what JSON can say, got a d',
        ),
        (values.members, {"a": [math.inf]}, 'expected what JSON can say, got inf or nan'),
        (values.price, {"input": 1}, "expected both `input` and `output`"),
        (values.price, {"inptu": 1, "output": 1}, 'did you mean "input"?'),
        (values.price, {"input": -1, "output": 1}, '"input" is wrong: expected a number from 0'),
    ],
)
def test_a_wrong_value_is_refused_by_name(reader: Reader[object], raw: object, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        reader(raw)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("reader", "raw", "texts"),
    [
        (values.listed(values.text), ["a", 1, ""], ["a string, got 1", "a string that is not"]),
        (values.mapping(values.text, values.text), {"a": 1, "b": 2}, ['"a" is w', '"b" is w']),
        (values.mapping(values.text, values.statuses), {"a": [1, 401]}, ['"a" is', "wrong: 401"]),
        (values.statuses, [401, 403, 429, 700], ["401 cannot", "403 cannot", "got 700"]),
        (values.surfaces, ["chta", "chat", "x"], ['"chat"?', 'unknown name "x"']),
        (values.members, {"model": 1, "stream": True}, ['"model" cannot', '"stream" cannot']),
        (addresses.listeners, ["a", "127.0.0.1:99999"], ['got "a"', "got 99999"]),
        (addresses.trusted, ["a", "unix:", "b"], ['got "a"', 'got "b"']),
    ],
)
def test_every_fault_of_a_list_or_table_is_told(
    reader: Reader[object], raw: object, texts: list[str]
) -> None:
    with pytest.raises(Wrong) as caught:
        reader(raw)
    assert len(caught.value.texts) == len(texts)
    for told, words in zip(caught.value.texts, texts, strict=True):
        assert words in told


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "true"),
        (False, "false"),
        (-3, "-3"),
        (1e300, "1e+300"),
        (-(10**18), "a huge number"),
        ('a"b', '"a\\"b"'),
        ("x" * 100, '"' + "x" * 60 + '…"'),
        ([1], "a list"),
        ({}, "a table"),
        (datetime.time(1, 2), "a date"),
    ],
)
def test_a_value_is_described_in_the_words_of_toml(value: object, words: str) -> None:
    assert values.describe(value) == words


def test_a_value_that_may_be_a_secret_is_not_repeated() -> None:
    with pytest.raises(Wrong) as caught:
        values.matching(WORD, "a word", shown=False)("S3CR3T")
    assert str(caught.value) == "expected a word"
