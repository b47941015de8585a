"""The known providers: one entry each with its API root, how it takes a key, and its quirks.

To add a provider, add an entry to `KNOWN`. Any other provider is used through `CUSTOM` and its own
`base_url`. Does not know keys, models, routes, or how a request is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .surfaces import Surface


class Auth(Enum):
    """How a credential is sent; the value is the field's name and what stands before the key."""

    BEARER = (b"Authorization", b"Bearer ")
    API_KEY = (b"api-key", b"")
    X_API_KEY = (b"x-api-key", b"")


NO_TRAIN = ("data_collection", b'"deny"')
"""The member of a request's `provider`, and its value, that forbids training on what is sent."""


@dataclass(frozen=True, slots=True)
class Known:
    """What relayd knows of one provider.

    `base_url`: API root, or "" where each customer has its own. `needs_key`: it answers nobody
    without a key. `auth`: its credential field everywhere but on `messages`. `no_train`: it obeys
    `NO_TRAIN`. `attribution`: the request fields that name the calling
    application's URL and title, or None.
    """

    base_url: str
    needs_key: bool = True
    auth: Auth = Auth.BEARER
    no_train: bool = False
    attribution: tuple[str, str] | None = None


CUSTOM = Known("", needs_key=False)
"""A provider that is none of the known ones: an OpenAI-compatible server of whatever make."""

# The order is that in which `--env` lines up the providers whose keys it finds.
KNOWN = {
    "openai": Known("https://api.openai.com/v1"),
    "openrouter": Known(
        "https://openrouter.ai/api/v1",
        no_train=True,
        attribution=("HTTP-Referer", "X-OpenRouter-Title"),
    ),
    "groq": Known("https://api.groq.com/openai/v1"),
    "cerebras": Known("https://api.cerebras.ai/v1"),
    "gemini": Known("https://generativelanguage.googleapis.com/v1beta/openai"),
    "together": Known("https://api.together.ai/v1"),
    "fireworks": Known("https://api.fireworks.ai/inference/v1"),
    "deepseek": Known("https://api.deepseek.com"),
    "mistral": Known("https://api.mistral.ai/v1"),
    "xai": Known("https://api.x.ai/v1"),
    # A Bearer key works on its OpenAI-compatible chat; `messages` takes x-api-key (see below).
    "anthropic": Known("https://api.anthropic.com/v1"),
    # https://RESOURCE.openai.azure.com/openai/v1; the model is the deployment's name.
    "azure": Known("", auth=Auth.API_KEY),
    "ollama": Known("http://127.0.0.1:11434/v1", needs_key=False),
    "vllm": Known("http://127.0.0.1:8000/v1", needs_key=False),
    "llamacpp": Known("http://127.0.0.1:8080/v1", needs_key=False),
    "lmstudio": Known("http://127.0.0.1:1234/v1", needs_key=False),
}


def known(kind: str) -> Known:
    """The entry of `kind`; `CUSTOM` for a kind that is not listed."""
    return KNOWN.get(kind, CUSTOM)


def credential(kind: str, surface: Surface, key: str) -> tuple[bytes, bytes]:
    """The request field (name, value) that carries `key` (visible ASCII) to a provider of `kind`.

    The Messages API takes `x-api-key` wherever it is served.
    """
    auth = Auth.X_API_KEY if surface is Surface.MESSAGES else known(kind).auth
    name, prefix = auth.value
    return name, prefix + key.encode("ascii")


def variable(name: str, what: str) -> str:
    """The environment variable for provider `name`, e.g. `variable("my-llm", "MODEL")`."""
    return f"{name.upper().replace('-', '_')}_{what}"
