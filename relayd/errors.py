"""Every error a client can meet, and the words it gets.

    RelayError                     500 internal_error
    ├── RequestFault               the client's request is at fault
    │   ├── BadRequest             400 bad_request
    │   ├── BadFraming             400 bad_request, close
    │   ├── UnsupportedVersion     505 bad_request, close
    │   ├── UnknownExpectation     417 bad_request, close
    │   ├── UnknownCoding          501 bad_request, close
    │   ├── HeadTooLarge           431 head_too_large, close
    │   ├── RequestTimeout         408 timeout, close
    │   ├── RequestTooLarge        413 request_too_large, close
    │   ├── UnsupportedEncoding    415 unsupported_encoding
    │   ├── InvalidKey             401 invalid_api_key
    │   ├── NotFound               404 not_found
    │   ├── MethodNotAllowed       405 method_not_allowed
    │   ├── ModelNotFound          404 model_not_found
    │   ├── RateLimited            429 rate_limited
    │   └── ProviderRefused        a provider's request-fault 4xx, its own status
    └── RelayFault                 no answer could be had
        ├── DeadlineExceeded       504 deadline_exceeded
        ├── UpstreamRateLimited    429 upstream_rate_limited
        ├── NoProviderAvailable    503 no_provider_available
        ├── ProviderAuth           502 provider_auth
        ├── ResponseTooLarge       502 response_too_large
        ├── UpstreamError          502 upstream_error
        ├── StoreUnavailable       503 store_unavailable
        ├── Draining               503 draining, close
        └── Overloaded             503 overloaded, close

The classes follow the error table of the README in its order. A message here is for the client: it
never holds a key, a URL or a provider's own words (`ProviderRefused` was trimmed by its maker).
Does not know sockets, HTTP framing or which provider failed.
"""

from __future__ import annotations

import json

from .surfaces import Surface


class RelayError(Exception):
    """The base: `status` (HTTP), `code` and `type` (OpenAI's error object), `message`, `param`.

    `retry_after` is in whole seconds or None; `fields` are further response fields as
    (name, value) byte pairs; `close`: its connection ends with it; `again`: an SDK may retry.
    """

    status = 500
    code = "internal_error"
    type = "server_error"
    words = "relayd failed to serve this request"
    close = False
    again = True

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        fields: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.message = message or self.words
        super().__init__(self.message)
        self.param = param
        self.retry_after = retry_after
        self.fields = fields

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, whatever its class is made from: it may cross from a process to another."""
        return Exception.__new__, (type(self), self.message), self.__dict__


class RequestFault(RelayError):
    """The request is at fault: the same request will fail again."""

    status = 400
    code = "bad_request"
    type = "invalid_request_error"
    words = "the request cannot be served as it is"


class BadRequest(RequestFault):
    """The body is no usable request."""


class BadFraming(RequestFault):
    """Not HTTP, or HTTP that two readers would cut differently."""

    words = "the request is not valid HTTP/1.1"
    close = True


class UnsupportedVersion(RequestFault):
    """Neither HTTP/1.0 nor HTTP/1.1."""

    status = 505
    words = "only HTTP/1.1 and HTTP/1.0 are spoken here"
    close = True


class UnknownExpectation(RequestFault):
    """An `Expect` other than `100-continue`."""

    status = 417
    words = "the only expectation met here is 100-continue"
    close = True


class UnknownCoding(RequestFault):
    """A transfer coding other than `chunked`."""

    status = 501
    words = "the only transfer coding read here is chunked"
    close = True


class HeadTooLarge(RequestFault):
    """More than `server.max_head_bytes` before the empty line."""

    status = 431
    code = "head_too_large"
    words = "the request head is larger than this server reads"
    close = True


class RequestTimeout(RequestFault):
    """The head or the body did not arrive in its time."""

    status = 408
    code = "timeout"
    words = "the request did not arrive in time"
    close = True


class RequestTooLarge(RequestFault):
    """More than `server.max_request_bytes`."""

    status = 413
    code = "request_too_large"
    words = "the request body is larger than this server takes"
    close = True


class UnsupportedEncoding(RequestFault):
    """A `Content-Encoding` on the request."""

    status = 415
    code = "unsupported_encoding"
    words = "send the body without a Content-Encoding"


class InvalidKey(RequestFault):
    """No key, or one that is not known; the key itself is never repeated."""

    status = 401
    code = "invalid_api_key"
    words = "no valid API key was sent: use the header Authorization: Bearer KEY"

    def __init__(self) -> None:
        super().__init__(fields=((b"WWW-Authenticate", b"Bearer"),))


class NotFound(RequestFault):
    """No such path."""

    status = 404
    code = "not_found"
    words = "there is nothing at this path"


class MethodNotAllowed(RequestFault):
    """A known path, another method; `allow` names those that work."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, allow: str) -> None:
        super().__init__(f"use {allow} here", fields=((b"Allow", allow.encode("ascii")),))


class ModelNotFound(RequestFault):
    """The model is no route, or not one of this client's."""

    status = 404
    code = "model_not_found"
    words = "this model does not exist or you may not use it"


class RateLimited(RequestFault):
    """The user's daily turns are used up: retrying before the day ends is of no use."""

    status = 429
    code = "rate_limited"
    type = "rate_limit_error"
    words = "the daily turns of this user are used up"
    again = False

    def __init__(self, *, limit: int, retry_after: int) -> None:
        fields = (
            (b"RateLimit", f'"turns";r=0;t={retry_after}'.encode("ascii")),
            (b"RateLimit-Policy", f'"turns";q={limit};w=86400'.encode("ascii")),
        )
        super().__init__(retry_after=retry_after, fields=fields)


class ProviderRefused(RequestFault):
    """A provider's request-fault 4xx, as four fields that relayd rebuilt and masked."""

    def __init__(
        self, status: int, message: str, *, type: str, param: str | None, code: str | None
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type = type
        self.code = code  # type: ignore[assignment]  # the one error whose code may be null


class RelayFault(RelayError):
    """No answer could be had; the request itself may be fine."""


class DeadlineExceeded(RelayFault):
    """`clocks.deadline` ran out before the commit."""

    status = 504
    code = "deadline_exceeded"
    type = "upstream_error"
    words = "no provider answered within the deadline"


class UpstreamRateLimited(RelayFault):
    """Every candidate answered 429 or rests after one."""

    status = 429
    code = "upstream_rate_limited"
    type = "rate_limit_error"
    words = "every provider is rate limited at the moment"


class NoProviderAvailable(RelayFault):
    """No provider could be asked: breakers open, resting or full."""

    status = 503
    code = "no_provider_available"
    type = "upstream_error"
    words = "no provider is available at the moment"


class ProviderAuth(RelayFault):
    """The provider refused relayd's own key."""

    status = 502
    code = "provider_auth"
    type = "upstream_error"
    words = "the provider did not accept this gateway's credential"


class ResponseTooLarge(RelayFault):
    """An answer larger than `failover.max_response_bytes`."""

    status = 502
    code = "response_too_large"
    type = "upstream_error"
    words = "the provider's answer is larger than this gateway passes on"
    again = False  # it would be paid for again, and as large


class UpstreamError(RelayFault):
    """Everything else that failed upstream."""

    status = 502
    code = "upstream_error"
    type = "upstream_error"
    words = "no provider could answer this request"


class StoreUnavailable(RelayFault):
    """The store is away and `store.on_failure = "deny"`."""

    status = 503
    code = "store_unavailable"
    words = "the turn count cannot be reached at the moment"


class Draining(RelayFault):
    """relayd is stopping: this connection is new, or its request could not be finished."""

    status = 503
    code = "draining"
    words = "this gateway is stopping: ask again"
    close = True


class Overloaded(RelayFault):
    """Too many connections or open exchanges."""

    status = 503
    code = "overloaded"
    words = "too many requests are open at the moment"
    close = True

    def __init__(self) -> None:
        super().__init__(retry_after=1)


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's error types by status; else `invalid_request_error` (4xx) or `api_error`."""


def body(error: RelayError, surface: Surface | None) -> bytes:
    """The JSON body of an error answer, in the shape that the surface's SDK reads."""
    if surface is Surface.MESSAGES:
        return _json(_anthropic(error))
    said = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return _json({"error": said})


def event(code: str, message: str, surface: Surface) -> bytes:
    """The one event (with its blank line) that ends a stream which failed after the commit."""
    if surface is Surface.MESSAGES:
        shape = {"type": "error", "error": {"type": "api_error", "message": message}}
        return b"event: error\ndata: " + _json(shape) + b"\n\n"
    inner = {"message": message, "type": "upstream_error", "param": None, "code": code}
    return b"data: " + _json({"error": inner}) + b"\n\n"


def _anthropic(error: RelayError) -> dict[str, object]:
    default = "invalid_request_error" if error.status < 500 else "api_error"
    kind = ANTHROPIC_TYPES.get(error.status, default)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def _json(value: object) -> bytes:
    # ASCII output: a lone surrogate that came in with a request stays encodable.
    return json.dumps(value, separators=(",", ":")).encode("ascii")
