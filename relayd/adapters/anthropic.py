"""Anthropic's Messages API, for a provider of kind `anthropic` that serves no chat.

System messages become `system`, text and images become content blocks. Tool calls are not put in
this format: the API refuses them without the tools' definitions, which the small API has not.
"""

from __future__ import annotations

import json
from typing import Any

from ..answers import is_error, kind_of, read_document
from ..config import Price, Provider
from ..record import Usage
from ..surfaces import Surface
from .interface import LAST, NOTHING, Adapter, Said, Unsayable, failed, listing, priced

VERSION = b"anthropic-version"

MAX_TOKENS = 4096
"""LLM tokens of an answer: the format wants a limit, and every model allows this one. Another one
comes from `extra_body = { max_tokens = … }`."""


class Anthropic:
    """See `interface.Adapter`."""

    name = "anthropic"
    surface = Surface.MESSAGES

    def speaks(self, provider: Provider) -> bool:
        """Only where nothing more general does."""
        surfaces = provider.surfaces
        messages = Surface.MESSAGES in surfaces and Surface.CHAT not in surfaces
        return messages and provider.kind == "anthropic"

    def request(self, messages: bytes) -> bytes:
        """Raises `Unsayable` for tool calls, audio and whatever else has no place here, such as
        messages that are all the system's."""
        try:
            given = json.loads(messages)
        except (ValueError, RecursionError) as exc:
            raise Unsayable("numbers of thousands of digits") from exc
        system: list[str] = []
        turns: list[dict[str, object]] = []
        for message in given:
            _add(message, system, turns)
        if not turns:
            raise Unsayable("messages of the system alone")
        body: dict[str, object] = {"max_tokens": MAX_TOKENS, "messages": turns, "stream": True}
        if system:
            body["system"] = "\n\n".join(system)
        return json.dumps(body, separators=(",", ":")).encode("ascii")

    def fields(self, provider: Provider) -> bytes:
        """The version of the format."""
        return VERSION + b": 2023-06-01\r\n"

    def event(self, name: bytes, data: bytes) -> Said:
        """A block's text, or the error."""
        document = read_document(data) or {}
        if name == b"error" or is_error(document):
            return failed(document)
        kind = kind_of(document, name.decode("utf-8", "replace"))
        if kind == "message_stop":
            return LAST
        delta = document.get("delta")
        if kind != "content_block_delta" or not isinstance(delta, dict):
            return NOTHING
        return Said(_text(delta)) if delta.get("type") == "text_delta" else NOTHING

    def whole(self, body: bytes) -> Said:
        """The text of all blocks, or the error."""
        document = read_document(body) or {}
        if is_error(document):
            return failed(document)
        blocks = document.get("content")
        if not isinstance(blocks, list):
            return NOTHING
        return Said("".join(_text(block) for block in blocks if isinstance(block, dict)))

    def models(self, provider: Provider) -> str:
        """`GET /models`."""
        return listing(provider)

    def cost(self, usage: Usage, price: Price) -> float:
        """What came from a cache is counted apart here; it is priced like the rest."""
        return priced((usage.input or 0) + (usage.cached or 0), usage.output, price)


ADAPTER: Adapter = Anthropic()


# ---- out


def _add(message: Any, system: list[str], turns: list[dict[str, object]]) -> None:
    if not isinstance(message, dict):
        raise Unsayable("a message that is no object")
    role, content = message.get("role"), message.get("content")
    if message.get("tool_calls") or role not in ("system", "developer", "user", "assistant"):
        raise Unsayable("tool calls and their results")
    if role in ("system", "developer"):
        system.append("".join(_only_text(block) for block in _blocks(content)))
    else:
        turns.append({"role": role, "content": _blocks(content)})


def _blocks(content: Any) -> list[dict[str, object]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise Unsayable("a message without content")
    return [_block(part) for part in content]


def _block(part: Any) -> dict[str, object]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url") if kind == "image_url" else None
    if isinstance(image, dict) and isinstance(image.get("url"), str):
        return {"type": "image", "source": _source(image["url"])}
    raise Unsayable("a part of a message that is neither text nor an image")


def _source(url: str) -> dict[str, object]:
    head, comma, data = url.partition(";base64,")
    if comma and head.startswith("data:"):
        return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    return {"type": "url", "url": url}


def _only_text(block: dict[str, object]) -> str:
    if block["type"] != "text":
        raise Unsayable("an image in a system message")
    return str(block["text"])


# ---- in


def _text(block: dict[str, Any]) -> str:
    text = block.get("text")
    return text if isinstance(text, str) else ""
