r"""K125: a key with a blank or a line end raised an error that was shown as a network failure.

https://github.com/apache/devlake/issues/7132
"""

from __future__ import annotations

from typing import Any

import pytest

from relayd.config import ConfigError
from tests.support import scripts
from tests.support.builders import chat
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

STRIPPED = ["sk-abc\n", "sk-abc\r\n", " sk-abc", "\tsk-abc \n\n", "sk-abc\xa0"]
REFUSED = ["sk-a\nbc", "sk-a bc", "sk-a\tbc", "sk-a\xa0bc", "sk-a\x00bc", "sk-ab\x7f", "sk-äbc"]
EMPTY = ["", " ", "\n", "\r\n\t"]

PLACES = {
    "env": {"key_env": "THE_KEY"},
    "file": {"key_file": "/keys/the_key"},
    "credential": {"key_credential": "the_key"},
}

each_place = pytest.mark.parametrize("place", PLACES)


def sources(place: str, value: str) -> dict[str, Any]:
    """What `gateway` needs to find `value` at `place`."""
    if place == "env":
        return {"environ": {"THE_KEY": value}}
    environ = {"CREDENTIALS_DIRECTORY": "/keys"}
    return {"environ": environ, "read_file": lambda path: {"/keys/the_key": value.encode()}[path]}


@each_place
@pytest.mark.parametrize("value", STRIPPED)
async def test_white_space_around_a_key_is_stripped(place: str, value: str) -> None:
    async with (
        ScriptedProvider(scripts.ok(), **PLACES[place]) as a,
        gateway(config_for(a), **sources(place, value)) as g,
    ):
        assert (await g.chat("hi")).status == 200
        assert b"\r\nAuthorization: Bearer sk-abc\r\n" in a.requests[0].head


@each_place
@pytest.mark.parametrize("value", REFUSED + EMPTY)
async def test_any_other_stops_the_start_and_names_the_place_and_not_the_key(
    place: str, value: str
) -> None:
    table = {"name": "a", "base_url": "http://127.0.0.1:9/v1", **PLACES[place]}
    with pytest.raises(ConfigError) as refused:
        async with gateway(config_for(table), **sources(place, value)):
            pass
    words = str(refused.value)
    assert "the_key" in words.lower()
    assert PLACES[place].keys() & set(words.replace(":", " ").replace(".", " ").split())
    for half in value.split():
        assert half not in words


@pytest.mark.parametrize("value", REFUSED)
async def test_in_a_reload_it_leaves_the_running_configuration_in_place(value: str) -> None:
    async with ScriptedProvider(scripts.ok(), key_env="THE_KEY") as a:
        table = config_for(a)
        async with gateway(table, environ={"THE_KEY": "sk-abc"}) as g:
            with pytest.raises(ConfigError):
                g.reload(table, {"THE_KEY": value})
            assert (await g.post(CHAT, chat())).status == 200
            assert a.requests[0].field("Authorization") == "Bearer sk-abc"


async def test_a_clients_key_is_read_in_the_same_way() -> None:
    client = {"name": "c", "key_env": "CLIENT_KEY"}
    async with ScriptedProvider(scripts.ok()) as a:
        config = config_for(a, client=[client])
        async with gateway(config, environ={"CLIENT_KEY": " client-key-0001\r\n"}) as g:
            fields = {"Authorization": "Bearer client-key-0001"}
            assert (await g.chat("hi", fields=fields)).status == 200
        with pytest.raises(ConfigError):
            async with gateway(config, environ={"CLIENT_KEY": "client\nkey"}):
                pass
