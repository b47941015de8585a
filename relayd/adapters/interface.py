"""What an adapter is: one provider's wire format, as the small API and the checks need it.

Does not know sockets, chains of providers or how an answer reaches the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ..config import Price, Provider
from ..record import Usage
from ..surfaces import Surface


class Unsayable(Exception):
    """The messages cannot be put in this wire format; the text names the part, in lower case."""


class Said(NamedTuple):
    """What one event, or one whole answer, says: text for the client, an error's message.

    `last`: it is the final marker, and nothing behind it belongs to the answer.
    """

    text: str = ""
    error: str | None = None
    last: bool = False


NOTHING = Said()
"""An event that says nothing to a client of the small API."""

LAST = Said(last=True)


class Adapter(Protocol):
    """One wire format.

    `surface` is where requests in it go, and how their answers are judged before the commit.
    """

    name: str
    surface: Surface

    def speaks(self, provider: Provider) -> bool:
        """Whether this provider is to be asked in this format."""
        ...

    def request(self, messages: bytes) -> bytes:
        """A streaming request, without a model, for a JSON array of chat messages.

        Raises `Unsayable`.
        """
        ...

    def fields(self, provider: Provider) -> bytes:
        """Request header lines that the format needs, each with its CR LF; no credential."""
        ...

    def event(self, name: bytes, data: bytes) -> Said:
        """What one event of the answer's stream says; what cannot be read says nothing."""
        ...

    def whole(self, body: bytes) -> Said:
        """What an answer says that came whole, as JSON, although a stream was asked for."""
        ...

    def models(self, provider: Provider) -> str:
        """The request target of the model list, which a good key can read: the health check."""
        ...

    def cost(self, usage: Usage, price: Price) -> float:
        """USD for what was counted; what was not counted costs nothing here."""
        ...


UNSAID = "the provider reported an error"


def failed(document: Mapping[str, object]) -> Said:
    """An error event: its message stands in `error`, in an object or alone, or (vLLM) beside it."""
    error = document.get("error") or document
    found = error.get("message") if isinstance(error, Mapping) else error
    return Said(error=found if isinstance(found, str) and found else UNSAID)


MILLION = 1_000_000
"""LLM tokens that a price is for."""


def priced(input: int | None, output: int | None, price: Price) -> float:
    """USD for these LLM tokens."""
    return ((input or 0) * price.input + (output or 0) * price.output) / MILLION


def listing(provider: Provider) -> str:
    """The target of `GET {base}/models`, with the provider's query."""
    path = provider.path_prefix + "/models"
    return f"{path}?{provider.query}" if provider.query else path
