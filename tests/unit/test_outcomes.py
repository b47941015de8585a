"""Statuses to outcomes, and what each outcome means for the plan and the breaker."""

from __future__ import annotations

import pytest

from relayd.breaker import Verdict
from relayd.outcomes import CREDIT_CODES, RULES, End, Outcome, classify, listed

DEFAULT = frozenset({*range(300, 400), 402, 408, 429, *range(500, 600)})


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.OK),
        (202, Outcome.OK),
        (299, Outcome.OK),
        (300, Outcome.REDIRECT),
        (304, Outcome.REDIRECT),
        (308, Outcome.REDIRECT),
        (400, Outcome.REFUSED),
        (401, Outcome.CREDENTIAL),
        (402, Outcome.OUT_OF_CREDIT),
        (403, Outcome.CREDENTIAL),
        (404, Outcome.REFUSED),
        (408, Outcome.REQUEST_TIMEOUT),
        (413, Outcome.REFUSED),
        (422, Outcome.REFUSED),
        (429, Outcome.RATE_LIMITED),
        (451, Outcome.REFUSED),
        (499, Outcome.REFUSED),
        (500, Outcome.SERVER_ERROR),
        (503, Outcome.SERVER_ERROR),
        (529, Outcome.SERVER_ERROR),
        (600, Outcome.SERVER_ERROR),
        (999, Outcome.SERVER_ERROR),
    ],
)
def test_a_status_means_an_outcome(status: int, outcome: Outcome) -> None:
    assert classify(status) is outcome


@pytest.mark.parametrize("word", sorted(CREDIT_CODES))
def test_a_429_of_an_empty_account_is_no_rate_limit(word: str) -> None:
    assert classify(429, word) is Outcome.OUT_OF_CREDIT
    assert classify(429, None, word) is Outcome.OUT_OF_CREDIT
    assert classify(500, word, word) is Outcome.SERVER_ERROR


def test_a_429_with_another_code_is_a_rate_limit() -> None:
    assert classify(429, "rate_limit_exceeded", "requests") is Outcome.RATE_LIMITED


@pytest.mark.parametrize("status", [300, 399, 402, 408, 429, 500, 529, 599, 600, 999])
def test_the_default_statuses_move_on(status: int) -> None:
    assert listed(status, DEFAULT)


@pytest.mark.parametrize("status", [400, 404, 409, 422, 499])
def test_other_statuses_do_not(status: int) -> None:
    assert not listed(status, DEFAULT)


def test_statuses_that_do_not_exist_count_as_5xx() -> None:
    assert not listed(600, {500, 600})


OUTSIDE = {
    Outcome.DEADLINE,
    Outcome.CLIENT_LEFT,
    Outcome.CLIENT_STALLED,
    Outcome.DRAINING,
    Outcome.INTERNAL,
}


def test_only_an_answer_is_a_success() -> None:
    assert [o for o in Outcome if RULES[o].verdict is Verdict.SUCCESS] == [Outcome.OK]


@pytest.mark.parametrize("outcome", sorted(OUTSIDE, key=lambda o: o.value))
def test_what_ends_an_exchange_from_outside_blames_nobody(outcome: Outcome) -> None:
    assert (RULES[outcome].moves_on, RULES[outcome].verdict) == (False, Verdict.NEUTRAL)


@pytest.mark.parametrize("outcome", [Outcome.RATE_LIMITED, Outcome.OUT_OF_CREDIT])
def test_a_limit_moves_on_and_does_not_count_for_the_breaker(outcome: Outcome) -> None:
    assert (RULES[outcome].moves_on, RULES[outcome].verdict) == (True, Verdict.NEUTRAL)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.CREDENTIAL, Outcome.UNSUITABLE])
def test_who_refuses_the_request_or_the_key_answers(outcome: Outcome) -> None:
    assert RULES[outcome].verdict is Verdict.ANSWERED
    assert RULES[outcome].moves_on is (outcome is Outcome.UNSUITABLE)


def test_only_what_is_transient_is_asked_again() -> None:
    again = {outcome for outcome in Outcome if RULES[outcome].again}
    broken = {Outcome.DNS, Outcome.CONNECT, Outcome.TLS, Outcome.CLOSED}
    assert again == broken | {Outcome.SERVER_ERROR, Outcome.RATE_LIMITED}
    assert all(RULES[outcome].moves_on for outcome in again)


def test_every_other_outcome_moves_on_and_blames_the_provider() -> None:
    rest = {outcome for outcome in Outcome if RULES[outcome].moves_on} - {
        Outcome.RATE_LIMITED,
        Outcome.OUT_OF_CREDIT,
        Outcome.UNSUITABLE,
    }
    assert {RULES[outcome].verdict for outcome in rest} == {Verdict.FAILURE}


@pytest.mark.parametrize("words", [Outcome, End])
def test_the_words_of_the_log_are_lower_case(words: type[Outcome] | type[End]) -> None:
    assert all(word.value == word.value.lower().replace(" ", "_") for word in words)
