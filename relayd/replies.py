"""Answers of relayd's own: errors and short bodies, whole and with the gateway's fields.

Does not know connections or framing: a `Sink` does.
"""

from __future__ import annotations

from . import errors
from .headers import MAX_RETURNING, returning
from .record import Record
from .response import ResponseHead
from .sink import Sink
from .surfaces import MESSAGES, Surface

JSON = b"Content-Type: application/json\r\n"
TEXT = b"Content-Type: text/plain; charset=utf-8\r\n"
EVENT_STREAM = b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


def gateway_lines(record: Record, attempts: int, surface: str | None) -> bytes:
    """The fields that every answer of a relayed request carries, as lines."""
    name = record.id.encode("ascii")
    lines = b"X-Gateway-Attempts: %d\r\nX-Request-ID: %b\r\nVia: 1.1 relayd\r\n" % (attempts, name)
    if surface is MESSAGES:
        lines += b"request-id: %b\r\n" % name  # the one that Anthropic's SDKs read
    if not record.attempts:
        return lines
    return b"X-Gateway-Provider: %b\r\n" % record.attempts[-1].provider.encode("ascii") + lines


def answer_lines(head: ResponseHead, record: Record, attempts: int, streams: bool) -> bytes:
    """The fields of a provider's answer as they go to the client, as lines."""
    kind = head.field(b"content-type")
    if kind is not None and len(kind) <= MAX_RETURNING:
        lines = b"Content-Type: %b\r\n" % kind
    else:
        lines = b""
    lines += gateway_lines(record, attempts, record.surface) + returning(head.first, head.fields)
    return lines + EVENT_STREAM if streams else lines


def refuse(
    sink: Sink, error: errors.RelayError, surface: Surface | None, record: Record, attempts: int = 0
) -> None:
    """Answer with an error; its status goes into the record."""
    body = errors.body(error, surface)
    block = JSON + gateway_lines(record, attempts, surface)
    if error.retry_after is not None:
        block += b"Retry-After: %d\r\n" % error.retry_after
    if not error.again:
        block += b"x-should-retry: false\r\n"  # SDKs obey it, whatever the status
    block += b"".join(b"%b: %b\r\n" % field for field in error.fields)
    record.status = error.status
    sink.open(error.status, block, len(body), body)
    sink.end()
    record.bytes_out = sink.sent


def reply(sink: Sink, kind: bytes, body: bytes, record: Record, status: int = 200) -> None:
    """Answer with a short body of our own."""
    record.status = status
    block = b"%bX-Request-ID: %b\r\n" % (kind, record.id.encode("ascii"))
    sink.open(status, block, len(body), body)
    sink.end()
    record.bytes_out = sink.sent
