"""The configuration that variables describe."""

from __future__ import annotations

import pytest

from relayd.config import Config, ConfigError, Tcp, Unix, Unseen, from_environment
from relayd.providers import KNOWN
from tests.support.configuration import no_file

GROQ = {"PROVIDER": "groq", "GROQ_API_KEY": "k-groq"}


def config(environ: dict[str, str], *listen: str) -> Config:
    return from_environment(environ, no_file, listen)


def names(environ: dict[str, str]) -> list[str]:
    return [provider.name for provider in config(environ).providers]


def problems(environ: dict[str, str], *listen: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(environ, *listen)
    return str(caught.value).splitlines()


def test_one_provider_and_its_key_are_enough() -> None:
    found = config(GROQ)
    (groq,) = found.providers
    assert (groq.base_url, groq.model) == ("https://api.groq.com/openai/v1", None)
    assert [(key.value, key.label) for key in groq.keys] == [("k-groq", "GROQ_API_KEY")]
    assert found.server.listen == (Tcp("127.0.0.1", 8080),)
    assert (found.store.url, found.quota.daily_turns) == ("memory:", 0)
    assert (found.source, found.warnings, found.named_routes) == ("environment", (), False)


def test_who_needs_no_secret_is_asked_for_none() -> None:
    environ = {"PROVIDER": "groq", "REDIS_URL": "?", "PORT": "81"}
    found = from_environment(environ, no_file, unseen=Unseen.SECRETS)
    assert found.server.listen == (Tcp("127.0.0.1", 81),)


def test_fallbacks_follow_in_their_order() -> None:
    environ = {"OPENAI_API_KEY": "a", "FALLBACK": " ollama, openai ,,"}
    assert names(GROQ | environ) == ["groq", "ollama", "openai"]


def test_each_provider_has_its_model_url_and_key() -> None:
    environ = {
        "PROVIDER": "my-llm",
        "MY_LLM_BASE_URL": "http://127.0.0.1:9/v1/chat/completions",
        "MY_LLM_MODEL": "m",
        "MY_LLM_API_KEY": "k",
    }
    (mine,) = config(environ).providers
    assert (mine.base_url, mine.model) == ("http://127.0.0.1:9/v1", "m")
    assert [key.label for key in mine.keys] == ["MY_LLM_API_KEY"]


def test_a_provider_elsewhere_needs_no_key() -> None:
    (groq,) = config({"PROVIDER": "groq", "GROQ_BASE_URL": "http://127.0.0.1:9"}).providers
    assert groq.keys == ()


def test_without_a_provider_every_key_that_is_there_makes_one() -> None:
    keys = {"XAI_API_KEY": "a", "GROQ_API_KEY": "b", "OPENAI_API_KEY": "c", "MISTRAL_API_KEY": " "}
    assert names(keys) == ["openai", "groq", "xai"]
    assert names(keys | {"DEFAULT_PROVIDER": "xai"}) == ["xai", "openai", "groq"]
    assert names(keys | {"DEFAULT_PROVIDER": "ollama"}) == ["ollama", "openai", "groq", "xai"]


def test_every_known_provider_can_be_found_by_its_key() -> None:
    environ = {f"{name.upper()}_API_KEY": "k" for name in KNOWN}
    assert names(environ | {"AZURE_BASE_URL": "https://r.example/openai/v1"}) == list(KNOWN)


def test_the_remaining_variables_set_what_they_say() -> None:
    found = config(
        GROQ | {"DAILY_CAP": "5", "PORT": "81", "REDIS_URL": "redis://:pw@h:1/0", "FALLBACK": ""}
    )
    assert (found.quota.daily_turns, found.server.listen) == (5, (Tcp("127.0.0.1", 81),))
    assert (found.store.url, found.secrets) == ("redis://:pw@h:1/0", {"pw", "k-groq"})


def test_the_state_directory_does_not_pick_the_store() -> None:
    assert config(GROQ | {"STATE_DIRECTORY": "/a"}).store.url == "memory:"


def test_listeners_of_the_command_line_win_over_the_port() -> None:
    assert config(GROQ | {"PORT": "81"}, "unix:/a").server.listen == (Unix("/a"),)


def test_attribution_goes_where_it_is_understood() -> None:
    environ = {"FALLBACK": "openrouter", "OPENROUTER_API_KEY": "k", "ATTRIBUTION_TITLE": "My app"}
    groq, openrouter = config(GROQ | environ).providers
    assert groq.headers == ()
    assert openrouter.headers == (("X-OpenRouter-Title", "My app"),)
    both = environ | {"ATTRIBUTION_REFERER": "https://app.example"}
    assert config(GROQ | both).providers[1].headers == (
        ("HTTP-Referer", "https://app.example"),
        ("X-OpenRouter-Title", "My app"),
    )


@pytest.mark.parametrize(
    ("word", "no_train"), [("1", True), ("TRUE", True), ("off", False), ("0", False), ("", False)]
)
def test_no_train_is_a_word_for_yes_or_no(word: str, no_train: bool) -> None:
    found = config({"OPENROUTER_API_KEY": "k", "NO_TRAIN": word})
    assert found.providers[0].no_train is no_train
    assert found.warnings == ()


def test_no_train_that_a_provider_ignores_is_told() -> None:
    assert config(GROQ | {"NO_TRAIN": "yes"}).warnings == (
        "NO_TRAIN: groq has no such switch; the key has no effect here",
    )


@pytest.mark.parametrize("name", ["ATTRIBUTION_REFERER", "ATTRIBUTION_TITLE"])
def test_attribution_that_no_provider_understands_is_told(name: str) -> None:
    assert config(GROQ | {name: "My app"}).warnings == (
        f"{name}: has no effect: none of these providers has a field for it",
    )


def test_a_default_beside_a_provider_is_told() -> None:
    assert config(GROQ | {"DEFAULT_PROVIDER": "openai"}).warnings == (
        "DEFAULT_PROVIDER: has no effect beside PROVIDER",
    )


def test_fallbacks_without_a_provider_are_told() -> None:
    assert config({"GROQ_API_KEY": "k", "FALLBACK": "openai"}).warnings == (
        "FALLBACK: has no effect without PROVIDER",
    )


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, "PROVIDER: not set; set it, or the key of a known provider such as OPENAI_API_KEY"),
        ({"PROVIDER": "groq"}, "GROQ_API_KEY: the variable GROQ_API_KEY is not set"),
        ({"PROVIDER": "groq", "GROQ_API_KEY": ""}, "GROQ_API_KEY: the variable GROQ_API_KEY is em"),
        ({"DEFAULT_PROVIDER": "groq"}, "GROQ_API_KEY: the variable GROQ_API_KEY is not set"),
        ({"PROVIDER": "gorq"}, 'GORQ_BASE_URL: missing; "gorq" is no known provider; did you mea'),
        ({"PROVIDER": "ollama", "OLLAMA_BASE_URL": "h"}, "OLLAMA_BASE_URL: expected a URL such as"),
        (GROQ | {"FALLBACK": "groq"}, 'FALLBACK: "groq" is PROVIDER; name each provider once'),
        (
            GROQ | {"FALLBACK": "ollama, ollama"},
            'FALLBACK: "ollama" stands here before; name each provider once',
        ),
        (GROQ | {"GROQ_API_KEY": "a b"}, "GROQ_API_KEY: the variable GROQ_API_KEY holds a blank"),
        (GROQ | {"PORT": "http"}, 'PORT: expected a whole number from 0 to 65535, got "http"'),
        (GROQ | {"PORT": "65536"}, "PORT: expected a whole number from 0 to 65535, got 65536"),
        (GROQ | {"DAILY_CAP": "-1"}, "DAILY_CAP: expected a whole number from 0 to 1000000000"),
        (GROQ | {"DAILY_CAP": "1" * 9999}, "DAILY_CAP: expected a whole number from 0"),
        (GROQ | {"NO_TRAIN": "maybe"}, "NO_TRAIN: expected one of 1, true, yes, on, 0, false, no,"),
        (GROQ | {"REDIS_URL": "http://h"}, 'REDIS_URL: expected "memory:", "sqlite:/path/of/state'),
        (
            {"PROVIDER": "openrouter", "OPENROUTER_API_KEY": "k", "ATTRIBUTION_TITLE": "é"},
            "ATTRIBUTION_TITLE: expected printable ASCII",
        ),
        (GROQ | {"ATTRIBUTION_REFERER": "é"}, "ATTRIBUTION_REFERER: expected printable ASCII"),
        (
            {"PROVIDER": "gr oq"},
            "PROVIDER: expected a name of letters, digits, `-`, `_` and `.`, g",
        ),
        ({"DEFAULT_PROVIDER": "gr oq"}, "DEFAULT_PROVIDER: expected a name of letters"),
    ],
)
def test_a_fault_is_told_once_by_its_variable(environ: dict[str, str], line: str) -> None:
    (told,) = problems(environ)
    assert told.startswith(f"environment: {line}")


def test_all_faults_of_one_variable_are_told_at_once() -> None:
    told = problems({"PROVIDER": "ollama", "FALLBACK": "ollama,foo,b r"})
    assert [line.split(": ")[1] for line in told] == ["FALLBACK", "FALLBACK", "FOO_BASE_URL"]


def test_a_wrong_listener_is_that_of_the_command_line() -> None:
    (told,) = problems(GROQ, "8080")
    assert told.startswith('environment: --listen: expected "host:port"')
