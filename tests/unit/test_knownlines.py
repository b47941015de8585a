"""A bounded memory: what is kept, for whom, and what never."""

from __future__ import annotations

import pytest

from relayd.knownlines import MAX_KNOWN, MAX_KNOWN_LINE, MAX_SECRET_LINE, KnownLines

START = b"POST /v1/chat/completions HTTP/1.1"
MEANT = (b"POST", b"/v1/chat/completions", b"1.1")
LINES = [b"Host: a", b"Accept: */*"]
FIELDS = [(b"host", b"a"), (b"accept", b"*/*")]


def taught(shared: KnownLines | None = None) -> KnownLines:
    known = KnownLines(shared)
    known.learn(START, MEANT, LINES, FIELDS)
    return known


def test_nothing_is_known_at_first() -> None:
    assert KnownLines().start(START) is None
    assert KnownLines().fields(LINES) == [None, None]


def test_what_was_learnt_is_known() -> None:
    known = taught()
    assert known.start(START) == MEANT
    assert known.fields([b"New: 1", *LINES]) == [None, *FIELDS]


def test_a_line_is_known_as_it_was_written() -> None:
    assert taught().fields([b"host: a", b"Accept:*/*"]) == [None, None]


def test_what_one_connection_learns_all_know() -> None:
    shared = KnownLines()
    taught(shared)
    assert KnownLines(shared).fields(LINES) == FIELDS
    assert KnownLines(shared).start(START) == MEANT


@pytest.mark.parametrize(
    "name", [b"Authorization", b"X-Api-Key", b"Cookie", b"Proxy-Authorization"]
)
def test_a_credential_is_known_to_its_own_connection_alone(name: bytes) -> None:
    shared = KnownLines()
    own, other = KnownLines(shared), KnownLines(shared)
    line, field = name + b": secret", (name.lower(), b"secret")
    own.learn(START, MEANT, [line], [field])
    assert own.fields([line]) == [field]
    assert other.fields([line]) == [None]


def test_of_two_credentials_the_last_one_is_known() -> None:
    known = KnownLines()
    for key in (b"one", b"two"):
        known.learn(START, MEANT, [b"Cookie: " + key], [(b"cookie", key)])
    assert known.fields([b"Cookie: one"]) == [None]
    assert known.fields([b"Cookie: two"]) == [(b"cookie", b"two")]


def test_a_coding_is_never_known() -> None:
    known = KnownLines()
    line = b"Transfer-Encoding: chunked"
    known.learn(START, MEANT, [line], [(b"transfer-encoding", b"chunked")])
    assert known.fields([line]) == [None]


def test_a_query_is_never_known() -> None:
    known = KnownLines()
    start = b"POST /v1?key=secret HTTP/1.1"
    known.learn(start, (b"POST", b"/v1?key=secret", b"1.1"), [], [])
    assert known.start(start) is None


def test_a_long_line_is_not_worth_it() -> None:
    known = KnownLines()
    fit, long = (b"A: ".ljust(MAX_KNOWN_LINE + more, b"x") for more in (0, 1))
    known.learn(START, MEANT, [fit, long], [(b"a", fit[3:]), (b"a", long[3:])])
    assert known.fields([fit, long]) == [(b"a", fit[3:]), None]
    start = b"GET /".ljust(MAX_KNOWN_LINE + 1, b"x")
    known.learn(start, MEANT, [], [])
    assert known.start(start) is None


@pytest.mark.parametrize("excess", [0, 1])
def test_a_credential_of_any_size_costs_an_idle_connection_little(excess: int) -> None:
    known = KnownLines()
    line = b"Cookie: ".ljust(MAX_SECRET_LINE + excess, b"x")
    known.learn(START, MEANT, [line], [(b"cookie", line[8:])])
    assert (known.fields([line]) == [None]) is bool(excess)


def test_a_full_memory_is_emptied_and_what_is_in_use_comes_back() -> None:
    known = taught()
    for number in range(MAX_KNOWN):
        line = b"X: %d" % number
        known.learn(START, MEANT, [line], [(b"x", b"%d" % number)])
    assert known.fields([LINES[0]]) == [None]
    known.learn(START, MEANT, LINES, FIELDS)
    assert known.fields(LINES) == FIELDS


def test_many_request_lines_are_forgotten_too() -> None:
    known = KnownLines()
    starts = [b"GET /%d HTTP/1.1" % number for number in range(MAX_KNOWN + 2)]
    for start in starts:
        known.learn(start, MEANT, [], [])
    assert [known.start(starts[0]), known.start(starts[-1])] == [None, MEANT]
