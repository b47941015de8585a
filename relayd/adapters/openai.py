"""OpenAI's chat completions: the format of every OpenAI-compatible provider.

The messages go on as the client wrote them, byte for byte.
"""

from __future__ import annotations

from typing import Any

from ..answers import Document, is_error, read_document
from ..config import Price, Provider
from ..record import Usage
from ..surfaces import Surface
from .interface import LAST, NOTHING, UNSAID, Adapter, Said, failed, listing, priced


class OpenAI:
    """See `interface.Adapter`."""

    name = "openai"
    surface = Surface.CHAT

    def speaks(self, provider: Provider) -> bool:
        """Wherever chat is served."""
        return Surface.CHAT in provider.surfaces

    def request(self, messages: bytes) -> bytes:
        """The messages as they are."""
        return b'{"messages":%b,"stream":true}' % messages

    def fields(self, provider: Provider) -> bytes:
        """None."""
        return b""

    def event(self, name: bytes, data: bytes) -> Said:
        """The first choice's text, or the error."""
        if data.startswith(b"[DONE]"):
            return LAST
        document = read_document(data) or {}
        return failed(document) if name == b"error" else _said(document, "delta")

    def whole(self, body: bytes) -> Said:
        """The first choice's text, or the error."""
        return _said(read_document(body) or {}, "message")

    def models(self, provider: Provider) -> str:
        """`GET /models`."""
        return listing(provider)

    def cost(self, usage: Usage, price: Price) -> float:
        """The prompt's count includes what came from a cache."""
        return priced(usage.input, usage.output, price)


ADAPTER: Adapter = OpenAI()


def _said(document: Document, member: str) -> Said:
    if is_error(document):
        return failed(document)
    choices = document.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return NOTHING
    message = choice.get(member)
    text = _text(message.get("content")) if isinstance(message, dict) else ""
    return Said(text, UNSAID if choice.get("finish_reason") == "error" else None)  # OpenRouter


def _text(content: Any) -> str:
    """A text, or (Mistral) a list of parts of which some are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))
