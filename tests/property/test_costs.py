"""What a stranger sends costs time in proportion to its length, however it is made and cut.

Eight times the bytes may cost some ten times the time; a quadratic cost shows as sixty-four.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

import pytest

from relayd import refusal
from relayd.errors import RelayError
from relayd.events import EventReader
from relayd.framing import BadChunk, Chunked
from relayd.http1 import take_request
from relayd.jsonbody import BodyFault, read
from relayd.knownlines import KnownLines
from relayd.masking import Masker
from relayd.peek import Peek
from relayd.response import BadResponse, take_response
from relayd.sse import Watcher
from relayd.surfaces import Surface

GROWTH = 8
"""By so much the larger input is longer."""

LIMIT = 24
"""By so much it may take longer: between 8 (linear, and some noise) and 64 (quadratic)."""

NOISE = 0.001
"""Seconds; a shorter time is taken for so long."""

TOLD = (RelayError, BodyFault, BadResponse, BadChunk)
"""How hostile bytes are refused."""


def seconds(work: Callable[[bytes], object], data: bytes) -> float:
    """The processor time of this process that the work takes, at the best of three times."""
    times = []
    for _ in range(3):
        began = time.process_time()
        with contextlib.suppress(TOLD):
            work(data)
        times.append(time.process_time() - began)
    return min(times)


def assert_linear(work: Callable[[bytes], object], made: Callable[[int], bytes], size: int) -> None:
    small, large = seconds(work, made(size)), seconds(work, made(GROWTH * size))
    assert large < LIMIT * max(small, NOISE), f"{GROWTH} times the bytes: {small} s to {large} s"


BODIES: dict[str, Callable[[int], bytes]] = {
    "one member over and over": lambda n: b'{"messages":[1]' + b',"a":1' * (n // 6) + b"}",
    "one member, spelled with an escape": lambda n: (
        b"{%b}" % b",".join([rb'"\u0061":1'] * (n // 11))
    ),
    "many members": lambda n: b"{%b}" % b",".join(b'"%d":1' % i for i in range(n // 9)),
    "brackets": lambda n: b"[" * n,
    "objects": lambda n: b'{"a":' * (n // 5),
    "a long array": lambda n: b'{"messages":[' + b"[]," * (n // 3) + b"1]}",
    "open strings": lambda n: b"[" * 200 + rb"\"" * (n // 2),
    "a long number": lambda n: b'{"a":' + b"1" * n + b"}",
    "blanks": lambda n: b"{" + b" " * n,
    "tool messages": lambda n: (
        b'{"messages":[' + b'{"role":"tool","tool_call_id":"b"},' * (n // 35)
    ),
}


@pytest.mark.parametrize("made", BODIES.values(), ids=BODIES)
def test_a_request_body_costs_its_length(made: Callable[[int], bytes]) -> None:
    assert_linear(lambda data: read(data, Surface.CHAT), made, 8_000)


START = b"GET / HTTP/1.1\r\nHost: x\r\n"
HEADS: dict[str, Callable[[int], bytes]] = {
    "many fields": lambda n: START + b"".join(b"a%d: b\r\n" % i for i in range(n // 8)),
    "one field over and over": lambda n: START + b"a:b\r\n" * (n // 5),
    "lengths": lambda n: START + b"Content-Length: 5\r\n" * (n // 19),
    "codings": lambda n: START + b"Transfer-Encoding: " + b"a," * (n // 2) + b"\r\n",
    "blanks in a value": lambda n: START + b"A: " + b"b " * (n // 2) + b"\r\n",
    "blanks behind a value": lambda n: START + b"A: b" + b" " * n + b"\r\n",
    "no colon": lambda n: START + b"a" * n + b"\r\n",
    "empty lines": lambda n: b"\r\n" * (n // 2) + START,
    "a target with blanks": lambda n: b"GET /" + b"a " * (n // 2) + b" HTTP/1.1\r\nHost: x\r\n",
}


@pytest.mark.parametrize("made", HEADS.values(), ids=HEADS)
def test_a_request_head_costs_its_length(made: Callable[[int], bytes]) -> None:
    def work(data: bytes) -> None:
        take_request(bytearray(data), 1 << 20, KnownLines(KnownLines()))

    assert_linear(work, lambda n: made(n) + b"\r\n", 8_000)


ANSWER = b"HTTP/1.1 200 OK\r\nA: b\r\n"
ANSWERS: dict[str, Callable[[int], bytes]] = {
    "folds": lambda n: ANSWER + b" b\r\n" * (n // 4),
    "a fold of blanks": lambda n: ANSWER + b" " * n + b"\r\n",
    "lengths": lambda n: ANSWER + b"Content-Length: 5" + b",5" * (n // 2) + b"\r\n",
    "fields": lambda n: ANSWER + b"a: b\r\n" * (n // 6),
}


@pytest.mark.parametrize("made", ANSWERS.values(), ids=ANSWERS)
def test_a_response_head_costs_its_length(made: Callable[[int], bytes]) -> None:
    assert_linear(lambda data: take_response(bytearray(data)), lambda n: made(n) + b"\r\n", 7_000)


STREAMS: dict[str, Callable[[int], bytes]] = {
    "an event without end": lambda n: b'data: {"choices":[{"delta":{"content":"' + b"x" * n,
    "a comment without end": lambda n: b":" + b"x" * n,
    "comments": lambda n: b": x\n" * (n // 4),
    "blank lines": lambda n: b"\n" * n,
    "carriage returns": lambda n: b"\r" * n,
    "empty events": lambda n: b"data:\n\n" * (n // 7),
    "one event of many lines": lambda n: b"data: x\n" * (n // 8),
    "finishes": lambda n: b"data: " + b'"finish_reason":"a"' * (n // 19) + b"\n\n",
    "nesting": lambda n: b"data: " + b'{"a":' * (n // 5) + b"\n\n",
    "choices": lambda n: b"data: {" + b'"choices":[{' * (n // 12) + b"\n\n",
    "deltas": lambda n: b'data: {"choices":[{' + b'"delta"' * (n // 7) + b"\n\n",
    "members": lambda n: b'data: {"choices":[{"delta":{' + b'"a":null,' * (n // 9) + b"\n\n",
    "empty members": lambda n: b'data: {"choices":[{"delta":{' + b'"a":"",' * (n // 7) + b"\n\n",
    "blanks in a delta": lambda n: b'data: {"choices":[{"delta":{"a":' + b" " * n + b"\n\n",
    "types": lambda n: b"data: {" + b'"type":"' * (n // 8) + b"\n\n",
    "usage": lambda n: b'data: {"usage":{' * (n // 16) + b"\n\n",
}

READERS: dict[str, Callable[[], Watcher | Peek | EventReader]] = {
    "chat": partial(Watcher, Surface.CHAT),
    "responses": partial(Watcher, Surface.RESPONSES),
    "messages": partial(Watcher, Surface.MESSAGES),
    "peek": partial(Peek, Surface.CHAT, streaming=True, whole=True),
    "events": EventReader,
}


@pytest.mark.parametrize("made", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@pytest.mark.parametrize(("cut", "size"), [(16, 4_000), (65_536, 16_000)])
def test_a_stream_costs_its_length_in_any_cuts(
    made: Callable[[int], bytes],
    reader: Callable[[], Watcher | Peek | EventReader],
    cut: int,
    size: int,
) -> None:
    def work(data: bytes) -> None:
        stream = reader()
        for at in range(0, len(data), cut):
            stream.feed(data[at : at + cut])
        stream.close()

    assert_linear(work, made, size)


CHUNKS: dict[str, Callable[[int], bytes]] = {
    "small chunks": lambda n: b"1\r\na\r\n" * (n // 6),
    "extensions": lambda n: (b"1;" + b"a" * 1000 + b"\r\na\r\n") * (n // 1000),
}


@pytest.mark.parametrize("made", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("cut", [1, 65_536])
def test_chunks_cost_their_length_in_any_cuts(made: Callable[[int], bytes], cut: int) -> None:
    def work(data: bytes) -> None:
        body = Chunked()
        for at in range(0, len(data), cut):
            body.feed(data[at : at + cut])

    assert_linear(work, made, 8_000)


TEXTS: dict[str, str] = {
    "words": "a b ",
    "dashes": "a-",
    "names of keys": "key",
    "assignments": "key=",
    "bearers": "bearer ",
    "bearer tokens": "bearer" + " " * 50 + "token ",
    "blanks": "authorization: basic" + " " * 500,
    "URLs": "://a",
    "prefixes": "sk-",
    "web tokens": "eyJaaaaaaaa.",
    "nearly a secret": "sk-canary-",
}


@pytest.mark.parametrize("part", TEXTS.values(), ids=TEXTS)
def test_masking_costs_the_length_of_the_text(part: str) -> None:
    mask = Masker(["sk-canary-0123456789"])
    assert_linear(
        lambda data: mask(data.decode()), lambda n: (part * (n // len(part) + 1)).encode(), 8_000
    )


FAULTS: dict[str, Callable[[int], bytes]] = {
    "nesting": lambda n: b'{"error":' * (n // 9),
    "a long number": lambda n: b'{"error":{"code":' + b"1" * n + b"}}",
    "long numbers": lambda n: b"[%b]" % b",".join([b"1" * 4000] * (n // 4000)),
}


@pytest.mark.parametrize("made", FAULTS.values(), ids=FAULTS)
def test_an_error_body_costs_its_length(made: Callable[[int], bytes]) -> None:
    assert_linear(refusal.read, made, 8_000)
