"""Keys: where they are found, what refuses them, and that no message shows one."""

from __future__ import annotations

import pytest

from relayd.config import ConfigError, Unseen
from relayd.config.credentials import MAX_KEY, reason
from relayd.masking import Masker, mask
from tests.support.configuration import ONE, config, files, problems

READ = files(
    good=b" k-file\r\n",
    blank=b" \n",
    binary=b"\xffS3CR3T",
    two=b"S3CR3T\nS3CR3T",
    **{"creds/groq": b"k-cred\n"},
)
ENV = {"A": "k-a", "B": "\tk-b\n", "CREDENTIALS_DIRECTORY": "/creds"}


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("", []),
        ("key_env = 'A'", [("k-a", "A")]),
        ("key_env = ['B', 'A']", [("k-b", "B"), ("k-a", "A")]),
        ("key_file = '/good'", [("k-file", "/good")]),
        ("key_credential = ['groq']", [("k-cred", "groq")]),
    ],
)
def test_keys_come_from_variables_files_and_credentials(
    line: str, keys: list[tuple[str, str]]
) -> None:
    (provider,) = config(ONE + line, READ, **ENV).providers
    assert [(key.value, key.label) for key in provider.keys] == keys


def test_one_key_in_two_places_is_used_once() -> None:
    (provider,) = config(ONE + "key_env = ['A', 'C']", A="k", C=" k").providers
    assert [key.label for key in provider.keys] == ["A"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("key_env = 'NONE'", "key_env: the variable NONE is not set"),
        ("key_env = 'EMPTY'", "key_env: the variable EMPTY is empty"),
        ("key_env = 'BLANK'", "key_env: the variable BLANK is empty"),
        (
            "key_env = 'INNER'",
            "key_env: the variable INNER holds a blank, a control or",
        ),
        ("key_env = 'NBSP'", "key_env: the variable NBSP holds a blank, a control or"),
        ("key_env = 'LONG'", "key_env: the variable LONG holds more than 4096 characters"),
        ("key_env = 's3cr3t-S3CR3T'", "key_env: expected the name of an environment variable"),
        ("key_env = []", "key_env: expected at least one entry"),
        (
            "key_file = '/none'",
            "key_file: the file /none cannot be read: no such file or",
        ),
        ("key_file = '/blank'", "key_file: the file /blank is empty"),
        ("key_file = '/binary'", "key_file: the file /binary holds no text"),
        ("key_file = '/two'", "key_file: the file /two holds a blank, a control or"),
        ("key_credential = 'none'", "key_credential: the credential none cannot be read"),
        (
            "key_credential = 's3cr3t/S3CR3T'",
            "key_credential: expected the name of a credential, never the key itself",
        ),
        ("key_env = 'A'\nkey_file = '/good'", "key_file: expected one place for keys, got key_env"),
    ],
)
def test_an_unusable_key_is_refused_by_its_place(line: str, words: str) -> None:
    bad = {"EMPTY": "", "BLANK": " \n", "INNER": "S3CR3T\nS3CR3T", "NBSP": "S3CR3T\u00a0S3CR3T"}
    (told,) = problems(ONE + line, READ, **ENV, **bad, LONG="S3CR3T" + "x" * MAX_KEY)
    assert told.startswith(f"config.toml: provider[one].{words}")
    assert "s3cr3t" not in told.lower()


def test_each_bad_key_of_a_pool_is_named() -> None:
    told = problems(ONE + "key_env = ['X', 'A', 'Y']", A="k")
    assert [line.rpartition(": ")[2] for line in told] == [
        "the variable X is not set",
        "the variable Y is not set",
    ]


def test_a_credential_needs_systemd() -> None:
    (told,) = problems(ONE + "key_credential = 'groq'", READ)
    assert told.endswith(
        "the credential groq needs CREDENTIALS_DIRECTORY: start relayd by systemd with "
        "LoadCredential="
    )


CLIENTS = """
[[client]]
name = "a"
key_file = "/é"
[[client]]
name = "b"
key_credential = "b"
"""


def test_a_credential_that_only_the_service_sees_is_granted_and_told() -> None:
    found = config(ONE + "key_credential = ['x', 'y']", unseen=Unseen.CREDENTIALS)
    assert [key.label for key in found.providers[0].keys] == ["x", "y"]
    assert found.warnings == (
        "provider[one].key_credential: x: only the running service can see it",
        "provider[one].key_credential: y: only the running service can see it",
    )
    with pytest.raises(ConfigError, match="the variable NONE is not set"):
        config(ONE + "key_env = 'NONE'", unseen=Unseen.CREDENTIALS)


def test_a_key_in_the_place_of_a_credentials_name_is_not_shown() -> None:
    found = config(ONE + "key_credential = 'sk-proj-S3CR3T'", unseen=Unseen.CREDENTIALS)
    assert "S3CR3T" not in str(found.warnings)
    assert len(found.warnings) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("query = { api-key = 5 }", 'query: "api-key" is wrong: expected a string, got 5'),
        ("extra_body = { api_key = inf }", '"api_key" is wrong: expected what JSON can say, got'),
        ("api_key = 'k'", "api_key: unknown key; a key never stands in the file"),
    ],
)
def test_what_is_said_of_a_keys_name_is_not_taken_for_a_key(line: str, words: str) -> None:
    (told,) = problems(ONE + line)
    assert words in told
    assert mask(told) == told


@pytest.mark.parametrize("line", ["key_env = 'NONE'", "key_file = '/none'", "ca_file = '/none'"])
def test_who_needs_no_secret_is_asked_for_none(line: str) -> None:
    text = "store.url_env = 'NONE'\n" + ONE + line + CLIENTS
    found = config(text, unseen=Unseen.SECRETS)
    assert found.warnings == ()
    assert len({client.digest for client in found.clients}) == 2


def test_a_certificate_file_has_to_hold_one() -> None:
    (told,) = problems(ONE + "ca_file = '/good'", READ)
    assert told.endswith("provider[one].ca_file: /good holds no certificate in PEM form")


def test_no_key_is_in_a_configuration_as_text_or_in_an_error() -> None:
    found = config(ONE + "key_env = 'A'", A="S3CR3T")
    assert "S3CR3T" not in repr(found)
    assert found.secrets == {"S3CR3T"}
    with pytest.raises(ConfigError) as caught:
        config(ONE + "key_env = 'A'\nzzz = 1", A="S3CR3T")
    assert "S3CR3T" not in repr(caught.value)


def test_an_error_of_the_system_without_words_is_named_by_its_class() -> None:
    assert reason(OSError(2, "No Such File")) == "no such file"
    assert reason(IsADirectoryError()) == "isadirectoryerror"


def test_what_stands_in_the_file_under_the_name_of_a_key_is_masked_too() -> None:
    text = ONE + 'query = { api_key = "S3/CR3T", api-version = "2024" }\n'
    text += 'headers = { X-Auth-Token = "T0K3N", X-Title = "app" }\n'
    text += 'extra_body = { token = "B0DY", max_tokens = 5, prompt_cache_key = "app", key = 7, '
    text += 'tools = [{ headers = { x_api_key = "D33P" }, type = "mcp" }] }\n'
    found = config(text)
    assert found.secrets == {"S3/CR3T", "T0K3N", "B0DY", "D33P"}
    assert [warning.split(" has ")[0] for warning in found.warnings] == [
        'provider[one].headers: "X-Auth-Token"',
        'provider[one].query: "api_key"',
        'provider[one].extra_body: "token"',
        'provider[one].extra_body: "tools.headers.x_api_key"',
    ]
    assert all(Masker(found.secrets)(warning) == warning for warning in found.warnings)
