"""OpenAI's chat completions: the format of every OpenAI-compatible provider.

The messages go on as the client wrote them, byte for byte.
"""

from __future__ import annotations

import json
from typing import Any

from ..config import Price, Provider
from ..record import Usage
from ..surfaces import Surface
from .interface import NOTHING, Adapter, Said, listing, priced, words_of


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
        if data == b"[DONE]":
            return NOTHING
        return _said(data, "delta")

    def whole(self, body: bytes) -> Said:
        """The first choice's text."""
        return _said(body, "message")

    def models(self, provider: Provider) -> str:
        """`GET /models`."""
        return listing(provider)

    def cost(self, usage: Usage, price: Price) -> float:
        """The prompt's count includes what came from a cache."""
        return priced(usage.input, usage.output, price)


ADAPTER: Adapter = OpenAI()


def _said(data: bytes, member: str) -> Said:
    try:
        document = json.loads(data)
        if document.get("error"):
            return Said(error=words_of(document["error"]))
        choices = document.get("choices") or [{}]
        return Said(_text((choices[0].get(member) or {}).get("content")))
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        return NOTHING


def _text(content: Any) -> str:
    """A text, or (Mistral) a list of parts of which some are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))
