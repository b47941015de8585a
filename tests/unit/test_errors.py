"""The error table: statuses, codes, and the bodies that clients read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relayd import errors
from relayd.errors import ANTHROPIC_TYPES, RelayError, body, event
from relayd.surfaces import Surface

TABLE: list[tuple[RelayError, int, str | None, bool]] = [
    (errors.RelayError(), 500, "internal_error", False),
    (errors.BadRequest(), 400, "bad_request", False),
    (errors.BadFraming(), 400, "bad_request", True),
    (errors.UnsupportedVersion(), 505, "bad_request", True),
    (errors.UnknownExpectation(), 417, "bad_request", True),
    (errors.UnknownCoding(), 501, "bad_request", True),
    (errors.HeadTooLarge(), 431, "head_too_large", True),
    (errors.RequestTimeout(), 408, "timeout", True),
    (errors.RequestTooLarge(), 413, "request_too_large", True),
    (errors.UnsupportedEncoding(), 415, "unsupported_encoding", False),
    (errors.InvalidKey(), 401, "invalid_api_key", False),
    (errors.NotFound(), 404, "not_found", False),
    (errors.MethodNotAllowed("POST"), 405, "method_not_allowed", False),
    (errors.ModelNotFound(), 404, "model_not_found", False),
    (errors.RateLimited(limit=5, retry_after=60), 429, "rate_limited", False),
    (errors.ProviderRefused(422, "no", type="t", param="p", code=None), 422, None, False),
    (errors.DeadlineExceeded(), 504, "deadline_exceeded", False),
    (errors.UpstreamRateLimited(), 429, "upstream_rate_limited", False),
    (errors.NoProviderAvailable(), 503, "no_provider_available", False),
    (errors.ProviderAuth(), 502, "provider_auth", False),
    (errors.ResponseTooLarge(), 502, "response_too_large", False),
    (errors.UpstreamError(), 502, "upstream_error", False),
    (errors.StoreUnavailable(), 503, "store_unavailable", False),
    (errors.Draining(), 503, "draining", True),
    (errors.Overloaded(), 503, "overloaded", True),
]
IDS = [type(error).__name__ for error, *_ in TABLE]


def kinds() -> set[type[RelayError]]:
    """The errors of the tree at the top of the module."""
    everything = [thing for thing in vars(errors).values() if isinstance(thing, type)]
    return {kind for kind in everything if issubclass(kind, RelayError)}


def told(error: RelayError, surface: Surface | None = Surface.CHAT) -> dict[str, Any]:
    return dict(json.loads(body(error, surface)))


def test_the_table_names_every_error() -> None:
    branches = {errors.RequestFault, errors.RelayFault}
    assert {type(error) for error, *_ in TABLE} == kinds() - branches


@pytest.mark.parametrize(("error", "status", "code", "close"), TABLE, ids=IDS)
def test_an_error_has_a_status_a_code_and_its_say_on_the_connection(
    error: RelayError, status: int, code: str | None, close: bool
) -> None:
    assert (error.status, error.code, error.close) == (status, code, close)


@pytest.mark.parametrize("error", [error for error, *_ in TABLE], ids=IDS)
def test_an_error_body_has_four_members_and_a_message(error: RelayError) -> None:
    inner = told(error)["error"]
    assert inner == {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    assert inner["message"]
    assert str(error) == error.message


def test_a_message_and_a_param_can_be_given() -> None:
    inner = told(errors.BadRequest("no messages", param="messages"))["error"]
    assert (inner["message"], inner["param"]) == ("no messages", "messages")


def test_a_refused_key_says_how_to_send_one() -> None:
    assert errors.InvalidKey().fields == ((b"WWW-Authenticate", b"Bearer"),)


def test_a_wrong_method_is_told_the_right_ones() -> None:
    error = errors.MethodNotAllowed("GET, HEAD")
    assert error.fields == ((b"Allow", b"GET, HEAD"),)
    assert error.message == "use GET, HEAD here"


def test_a_used_up_quota_says_when_to_come_back_and_that_a_retry_is_useless() -> None:
    error = errors.RateLimited(limit=50, retry_after=3600)
    assert error.retry_after == 3600
    assert dict(error.fields) == {
        b"RateLimit": b'"turns";r=0;t=3600',
        b"RateLimit-Policy": b'"turns";q=50;w=86400',
    }
    assert not error.again


def test_too_much_at_once_is_worth_a_retry_after_a_second() -> None:
    assert errors.Overloaded().retry_after == 1
    assert errors.NoProviderAvailable(retry_after=7).retry_after == 7


def test_a_refusal_of_a_provider_keeps_its_fields() -> None:
    error = errors.ProviderRefused(400, "too long", type="t", param="messages", code="c")
    assert told(error)["error"] == {
        "message": "too long",
        "type": "t",
        "param": "messages",
        "code": "c",
    }
    assert isinstance(error, errors.RequestFault)


@pytest.mark.parametrize("error", [error for error, *_ in TABLE], ids=IDS)
def test_on_messages_an_error_has_anthropics_shape(error: RelayError) -> None:
    kind = told(error, Surface.MESSAGES)["error"]["type"]
    default = "invalid_request_error" if error.status < 500 else "api_error"
    assert told(error, Surface.MESSAGES) == {
        "type": "error",
        "error": {"type": kind, "message": error.message},
    }
    assert kind == ANTHROPIC_TYPES.get(error.status, default)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_anthropics_types_follow_the_status(status: int, kind: str) -> None:
    error = errors.ProviderRefused(status, "no", type="t", param=None, code=None)
    assert told(error, Surface.MESSAGES)["error"]["type"] == kind


def test_without_a_surface_an_error_has_openais_shape() -> None:
    assert set(told(errors.NotFound(), None)) == {"error"}


def test_a_lone_surrogate_can_be_told() -> None:
    assert body(errors.BadRequest("\ud800 \u00e9"), None).isascii()


@pytest.mark.parametrize("surface", [s for s in Surface if s is not Surface.MESSAGES])
def test_a_stream_ends_with_one_error_event(surface: Surface) -> None:
    data = event("upstream_stalled", 'stopped\n"', surface)
    assert data.startswith(b"data: {")
    assert data.endswith(b"}\n\n")
    assert data.count(b"\n") == 2
    assert json.loads(data[6:])["error"] == {
        "message": 'stopped\n"',
        "type": "upstream_error",
        "param": None,
        "code": "upstream_stalled",
    }


def test_a_stream_on_messages_ends_with_an_event_that_is_named_error() -> None:
    data = event("upstream_stalled", "stopped", Surface.MESSAGES)
    name, rest = data.split(b"\n", 1)
    assert name == b"event: error"
    shape = {"type": "error", "error": {"type": "api_error", "message": "stopped"}}
    assert json.loads(rest.removeprefix(b"data: ")) == shape
