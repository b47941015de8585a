"""What each relayed surface sends and receives, in one shape, so that a test can hold for all.

Knows the wire formats through `builders`, and nothing of relayd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support import builders as b
from tests.support.provider import Script
from tests.support.scripts import events, raw

OPEN = b'data: {"choices":[{"index":0,"delta":{"content":"'
"""The beginning of a chat event: whoever got this far is inside an event."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One surface: its path, a request, a whole answer, and the parts of a stream.

    `lifecycle` says nothing of substance, `content` does, `finish` and `final` end the stream
    (`final` may be empty where `finish` is the last word).
    """

    name: str
    path: str
    request: Callable[..., dict[str, Any]]
    answer: bytes
    lifecycle: tuple[bytes, ...]
    content: bytes
    finish: tuple[bytes, ...]
    final: tuple[bytes, ...]

    @property
    def stream(self) -> list[bytes]:
        """A whole stream."""
        return [*self.lifecycle, self.content, *self.finish, *self.final]

    def __str__(self) -> str:
        return self.name


_COUNTS = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}

CHAT = Shape(
    "chat",
    "/v1/chat/completions",
    b.chat,
    b.encode(b.completion()),
    (b.role(), b.PING, b.chunk([])),
    b.delta("hello"),
    (b.finish(),),
    (b.DONE,),
)
COMPLETIONS = Shape(
    "completions",
    "/v1/completions",
    b.completions,
    b.encode({"object": "text_completion", "choices": [{"text": "hello"}], "usage": _COUNTS}),
    (b.text_chunk(""),),
    b.text_chunk("hello"),
    (b.text_chunk("", "stop"),),
    (b.DONE,),
)
RESPONSES = Shape(
    "responses",
    "/v1/responses",
    b.responses,
    b.encode({"id": "resp_1", "object": "response", "status": "completed", "output": [{}]}),
    (b.responses_stream()[0],),
    b.responses_event("response.output_text.delta", delta="hello"),
    (),
    (b.responses_stream()[-1],),
)
_M = b.messages_stream("hello")
MESSAGES = Shape(
    "messages",
    "/v1/messages",
    b.messages,
    b.encode({"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "hello"}]}),
    tuple(_M[:3]),
    _M[3],
    tuple(_M[4:6]),
    (_M[6],),
)
EMBEDDINGS = Shape(
    "embeddings",
    "/v1/embeddings",
    b.embeddings,
    b.encode({"object": "list", "data": [{"embedding": [0.5]}], "usage": _COUNTS}),
    (),
    b"",
    (),
    (),
)

STREAMED = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
ALL = (*STREAMED, EMBEDDINGS)
EVERY_SURFACE = [shape.name for shape in ALL]


def whole(body: bytes, *fields: tuple[str, str], status: int = 200) -> Script:
    """A 200 with exactly this body and these fields, and no Content-Type of its own."""
    rows = "".join(f"{name}: {value}\r\n" for name, value in fields)
    head = f"HTTP/1.1 {status} Scripted\r\n{rows}Content-Length: {len(body)}\r\n\r\n"
    return raw(head.encode("latin-1") + body)


def open_stream(*items: bytes) -> Script:
    """A stream that sends these events and then stays open and silent."""
    return events(*items, end=False)
