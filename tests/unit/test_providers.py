"""The table of known providers and how each takes a key."""

from __future__ import annotations

import pytest

from relayd.providers import CUSTOM, KNOWN, credential, known, variable
from relayd.surfaces import Surface

OTHERS = [surface for surface in Surface if surface is not Surface.MESSAGES]


def test_the_known_providers_are_those_of_the_contract_in_its_order() -> None:
    local = ["ollama", "vllm", "llamacpp", "lmstudio"]
    big = ["openai", "openrouter", "groq", "cerebras", "gemini", "together", "fireworks"]
    more = ["deepseek", "mistral", "xai", "anthropic", "azure"]
    assert list(KNOWN) == [*big, *more, *local]


@pytest.mark.parametrize("name", KNOWN)
def test_a_base_url_is_https_or_on_this_machine(name: str) -> None:
    url = KNOWN[name].base_url
    assert url.startswith(("https://", "http://127.0.0.1:")) or (name, url) == ("azure", "")
    assert not url.endswith("/")


def test_only_local_servers_need_no_key() -> None:
    free = {name for name, entry in KNOWN.items() if not entry.needs_key}
    assert free == {"ollama", "vllm", "llamacpp", "lmstudio"}
    assert not CUSTOM.needs_key


def test_openrouter_alone_can_refuse_training_and_takes_attribution() -> None:
    assert [name for name, entry in KNOWN.items() if entry.no_train] == ["openrouter"]
    assert [name for name, entry in KNOWN.items() if entry.attribution] == ["openrouter"]
    assert KNOWN["openrouter"].attribution == ("HTTP-Referer", "X-OpenRouter-Title")


def test_an_unlisted_kind_is_a_custom_one() -> None:
    assert known("something") is CUSTOM
    assert known("groq") is KNOWN["groq"]


@pytest.mark.parametrize("surface", OTHERS)
@pytest.mark.parametrize("kind", [name for name in (*KNOWN, "custom") if name != "azure"])
def test_a_key_is_a_bearer(kind: str, surface: Surface) -> None:
    assert credential(kind, surface, "k") == (b"Authorization", b"Bearer k")


@pytest.mark.parametrize("surface", OTHERS)
def test_azure_takes_its_own_field(surface: Surface) -> None:
    assert credential("azure", surface, "k") == (b"api-key", b"k")


@pytest.mark.parametrize("kind", [*KNOWN, "custom"])
def test_messages_take_x_api_key_everywhere(kind: str) -> None:
    assert credential(kind, Surface.MESSAGES, "k") == (b"x-api-key", b"k")


def test_a_variable_is_the_name_in_upper_case() -> None:
    assert variable("my-llm", "BASE_URL") == "MY_LLM_BASE_URL"
