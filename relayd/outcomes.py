"""What can become of an attempt and of an exchange: closed lists, and the table that rules on them.

`Outcome` is how one attempt ended, `End` how the exchange ended; both appear in the log. `RULES` is
total: adding an outcome without a rule fails at import. Knows no HTTP beyond status codes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from .breaker import Verdict


class Outcome(StrEnum):
    """How one attempt ended; the value is the log's word."""

    OK = "ok"
    DNS = "dns_failed"
    CONNECT = "connect_failed"
    TLS = "tls_failed"
    CERTIFICATE = "certificate_refused"
    CONNECT_TIMEOUT = "connect_timeout"
    FIRST_CONTENT_TIMEOUT = "first_content_timeout"
    ANSWER_TIMEOUT = "answer_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    CLOSED = "closed"
    BAD_RESPONSE = "bad_response"
    SERVER_ERROR = "server_error"
    REQUEST_TIMEOUT = "request_timeout"
    RATE_LIMITED = "rate_limited"
    OUT_OF_CREDIT = "out_of_credit"
    REDIRECT = "redirect"
    NO_ANSWER = "no_answer"
    ERROR_ANSWER = "error_answer"
    CREDENTIAL = "credential_refused"
    UNSUITABLE = "unsuitable"
    REFUSED = "refused"
    TOO_LARGE = "too_large"
    DEADLINE = "deadline"
    CLIENT_LEFT = "client_left"
    CLIENT_STALLED = "client_stalled"
    DRAINING = "draining"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Rule:
    """`moves_on`: another provider may be asked. `again`: so may the same one (`retries`)."""

    moves_on: bool
    verdict: Verdict
    again: bool = False


_FAILED = Rule(True, Verdict.FAILURE)
_FAILED_AT_ONCE = Rule(True, Verdict.FAILURE, again=True)
_ENDED = Rule(False, Verdict.NEUTRAL)

RULES = {
    Outcome.OK: Rule(False, Verdict.SUCCESS),
    Outcome.DNS: _FAILED_AT_ONCE,
    Outcome.CONNECT: _FAILED_AT_ONCE,
    Outcome.TLS: _FAILED_AT_ONCE,
    Outcome.CERTIFICATE: _FAILED,  # asking again without verification is not an option
    Outcome.CONNECT_TIMEOUT: _FAILED,  # a silent provider is never asked again
    Outcome.FIRST_CONTENT_TIMEOUT: _FAILED,
    Outcome.ANSWER_TIMEOUT: _FAILED,
    Outcome.IDLE_TIMEOUT: _FAILED,
    Outcome.CLOSED: _FAILED_AT_ONCE,
    Outcome.BAD_RESPONSE: _FAILED,
    Outcome.SERVER_ERROR: _FAILED_AT_ONCE,
    Outcome.REQUEST_TIMEOUT: _FAILED,
    Outcome.RATE_LIMITED: Rule(True, Verdict.NEUTRAL, again=True),
    Outcome.OUT_OF_CREDIT: Rule(True, Verdict.NEUTRAL),
    Outcome.REDIRECT: _FAILED,
    Outcome.NO_ANSWER: _FAILED,
    Outcome.ERROR_ANSWER: _FAILED,
    Outcome.CREDENTIAL: Rule(False, Verdict.ANSWERED),  # `failover.credentials` lets it move on
    Outcome.UNSUITABLE: Rule(True, Verdict.ANSWERED),
    Outcome.REFUSED: Rule(False, Verdict.ANSWERED),
    Outcome.TOO_LARGE: Rule(False, Verdict.NEUTRAL),
    Outcome.DEADLINE: _ENDED,
    Outcome.CLIENT_LEFT: _ENDED,
    Outcome.CLIENT_STALLED: _ENDED,
    Outcome.DRAINING: _ENDED,
    Outcome.INTERNAL: _ENDED,
}
assert set(RULES) == set(Outcome), "every outcome needs a rule"


class End(StrEnum):
    """Why an exchange ended; the value is the log's `end_reason`."""

    COMPLETE = "complete"
    REFUSED = "refused"  # by relayd, before a provider was asked
    REQUEST_FAULT = "request_fault"  # a provider's 4xx was passed on
    FAILED = "failed"  # no provider could answer
    UPSTREAM_ERROR_EVENT = "upstream_error_event"  # sent by the provider after the commit
    UPSTREAM_TRUNCATED = "upstream_truncated"
    UPSTREAM_STALLED = "upstream_stalled"
    RESPONSE_TOO_LARGE = "response_too_large"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    SHUTTING_DOWN = "shutting_down"
    CLIENT_LEFT = "client_left"
    CLIENT_STALLED = "client_stalled"
    INTERNAL_ERROR = "internal_error"


LAST_WORDS = {
    End.UPSTREAM_TRUNCATED: "the provider's stream broke off",
    End.UPSTREAM_STALLED: "the provider's stream stopped",
    End.DEADLINE_EXCEEDED: "the deadline of this request passed",
    End.RESPONSE_TOO_LARGE: "the provider's stream is larger than this gateway passes on",
    End.SHUTTING_DOWN: "this gateway is stopping",
    End.INTERNAL_ERROR: "this gateway failed",
}
"""What the one error event says, by how a stream ended; its code is the end's value."""

# Looked up once, as what nearly every exchange or failure asks for (see `surfaces`).
OK, INTERNAL, COMPLETE = Outcome.OK, Outcome.INTERNAL, End.COMPLETE
CREDENTIAL, RATE_LIMITED, OUT_OF_CREDIT = (
    Outcome.CREDENTIAL,
    Outcome.RATE_LIMITED,
    Outcome.OUT_OF_CREDIT,
)

TOLD = frozenset({Outcome.REFUSED, Outcome.UNSUITABLE})
"""Outcomes of which the client may read the provider's own words."""

BLAMED = frozenset({End.UPSTREAM_TRUNCATED, End.UPSTREAM_STALLED, End.UPSTREAM_ERROR_EVENT})
"""Ends after the commit that count for the provider's breaker."""

BY_CLIENT = frozenset({End.CLIENT_LEFT, End.CLIENT_STALLED})

LEFT_STATUS = 499
"""What log and metrics say when the client left before an answer (nginx's number)."""

CREDIT_CODES = frozenset(
    {
        "insufficient_quota",
        "credit_balance_exhausted",
        "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded",
        "organization_usage_limit_exceeded",
    }
)
"""Codes (or types) of a 429 that mean "the account is empty": waiting a second does not help."""


def classify(status: int, code: str | None = None, kind: str | None = None) -> Outcome:
    """The outcome that a provider's status means, with its error object's `code` and `type`.

    2xx is `OK` here: whether it is an answer is judged by its body (`peek`).
    """
    if 200 <= status < 300:
        return Outcome.OK
    if 300 <= status < 400:
        return Outcome.REDIRECT
    if status == 408:
        return Outcome.REQUEST_TIMEOUT
    if status == 402:
        return Outcome.OUT_OF_CREDIT
    if status == 429:
        empty = code in CREDIT_CODES or kind in CREDIT_CODES
        return Outcome.OUT_OF_CREDIT if empty else Outcome.RATE_LIMITED
    if status in (401, 403):
        return Outcome.CREDENTIAL
    return Outcome.REFUSED if 400 <= status < 500 else Outcome.SERVER_ERROR


def listed(status: int, statuses: Collection[int]) -> bool:
    """True if `failover.statuses` names this status.

    600 and above are invalid and count as 5xx (RFC 9110, 15).
    """
    return min(status, 599) in statuses
