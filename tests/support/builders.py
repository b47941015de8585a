"""Request bodies and events, as bytes, in the shapes of the relayed surfaces.

Knows the wire formats' happy shapes and nothing of relayd.
"""

from __future__ import annotations

import json
from typing import Any

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def event(value: object, name: str | None = None) -> bytes:
    """One event with its blank line; a value that is no str or bytes becomes JSON."""
    data = value.encode() if isinstance(value, str) else value
    data = data if isinstance(data, bytes) else encode(data)
    label = f"event: {name}\n".encode() if name else b""
    return label + b"data: " + data + b"\n\n"


# --- chat ---


def chat(text: str = "hi", *, model: str | None = "m", **more: Any) -> dict[str, Any]:
    """A chat request with one user message; `more` adds or replaces members."""
    head = {} if model is None else {"model": model}
    return {**head, "messages": [{"role": "user", "content": text}], **more}


def tool_result(**more: Any) -> dict[str, Any]:
    """A chat request that continues a turn: its last message answers a tool call."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    return {"model": "m", "messages": messages, **more}


def chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
    """One `chat.completion.chunk` event."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**head, "choices": choices, **more})


def delta(text: str) -> bytes:
    return chunk([{"index": 0, "delta": {"content": text}, "finish_reason": None}])


def role() -> bytes:
    """The first event of most providers: it names the role and carries no content."""
    return chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}}])


def finish(reason: str = "stop") -> bytes:
    return chunk([{"index": 0, "delta": {}, "finish_reason": reason}])


def usage(input: int = 3, output: int = 5, cached: int = 0) -> bytes:
    counts = {
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return chunk([], usage=counts)


def error_object(message: str = "broken", code: str | None = "server_error") -> dict[str, Any]:
    shape = {"message": message, "type": "server_error", "param": None, "code": code}
    return {"error": shape}


def error_event(message: str = "broken", code: str | None = "server_error") -> bytes:
    return event(error_object(message, code))


def stream(*texts: str) -> list[bytes]:
    """A whole chat stream: role, one delta for each text, finish, `[DONE]`."""
    return [role(), *map(delta, texts), finish(), DONE]


def completion(text: str = "hello") -> dict[str, Any]:
    """A whole chat answer."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
    }


# --- completions, embeddings ---


def completions(prompt: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, **more}


def text_chunk(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    return event({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})


def embeddings(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": text, **more}


# --- responses ---


def responses(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": text, **more}


def responses_event(kind: str, **more: Any) -> bytes:
    """An event whose `type` is `kind`, e.g. `response.output_text.delta`."""
    return event({"type": kind, **more}, kind)


def responses_stream(*texts: str) -> list[bytes]:
    """A whole responses stream: created, one delta for each text, completed."""
    deltas = [responses_event("response.output_text.delta", delta=text) for text in texts]
    counts = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    done = {"id": "resp_1", "object": "response", "status": "completed", "usage": counts}
    begun = {**done, "status": "in_progress", "usage": None}
    return [
        responses_event("response.created", response=begun),
        *deltas,
        responses_event("response.completed", response=done),
    ]


# --- messages (Anthropic) ---


def messages(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": text}],
        **more,
    }


def messages_event(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, kind)


def messages_stream(*texts: str) -> list[bytes]:
    """A whole messages stream, from `message_start` to `message_stop`."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    begun = {**message, "usage": {"input_tokens": 3, "output_tokens": 1}}
    counts = {"output_tokens": 5}
    empty = {"type": "text", "text": ""}
    deltas = [
        messages_event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        for text in texts
    ]
    return [
        messages_event("message_start", message=begun),
        messages_event("content_block_start", index=0, content_block=empty),
        messages_event("ping"),
        *deltas,
        messages_event("content_block_stop", index=0),
        messages_event("message_delta", delta={"stop_reason": "end_turn"}, usage=counts),
        messages_event("message_stop"),
    ]
