"""The JSON POST surfaces that relayd relays, and where each one lives.

Knows names and paths only: no HTTP, no JSON, no provider.
"""

from __future__ import annotations

from enum import StrEnum


class Surface(StrEnum):
    """One relayed API; the value is its name in configuration (`surfaces = [...]`)."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"

    @property
    def path(self) -> str:
        """What is appended to a provider's API root, e.g. `/chat/completions`."""
        return PATHS[self]


# Looked up once: on Python 3.11 a member costs a call each time it is asked of its class.
CHAT, COMPLETIONS, EMBEDDINGS = Surface.CHAT, Surface.COMPLETIONS, Surface.EMBEDDINGS
RESPONSES, MESSAGES = Surface.RESPONSES, Surface.MESSAGES

PATHS = {
    CHAT: "/chat/completions",
    COMPLETIONS: "/completions",
    EMBEDDINGS: "/embeddings",
    RESPONSES: "/responses",
    MESSAGES: "/messages",
}
assert set(PATHS) == set(Surface)

STREAMING = frozenset(Surface) - {EMBEDDINGS}
"""Surfaces on which a client may ask for an event stream."""
