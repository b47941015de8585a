"""K137: a dead IPv6 address came first, and the connect hung although IPv4 worked.

https://github.com/aio-libs/aiohttp/pull/7954
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import pytest

from relayd.config import build
from relayd.online import check_online
from tests.cases.conftest import Names, models
from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider

URL = "http://provider.test/v1"


@pytest.mark.parametrize("dead", [1, 2, 3])
async def test_the_next_address_joins_after_a_quarter_of_a_second(dead: int, names: Names) -> None:
    with ExitStack() as stack:
        holes = [stack.enter_context(scripts.blackhole()) for _ in range(dead)]
        async with ScriptedProvider(scripts.ok()) as a:
            names["provider.test"] = [*holes, a.address]
            table = {"name": "a", "base_url": URL}
            async with gateway(config_for(table, clocks={"connect": 3})) as g:
                with takes(0.25 * dead, within=0.1):
                    answer = await g.chat("hi")
    assert answer.status == 200
    assert answer.field("X-Gateway-Attempts") == "1"


async def test_where_all_are_dead_the_connect_clock_ends_it(names: Names) -> None:
    with scripts.blackhole() as one, scripts.blackhole() as two:
        names["provider.test"] = [one, two]
        table = {"name": "a", "base_url": URL}
        async with gateway(config_for(table, clocks={"connect": 3})) as g:
            with takes(3):
                answer = await g.chat("hi")
    assert answer.status == 502
    assert g.exchange["attempts"][0]["outcome"] == "connect_timeout"


async def test_while_the_first_address_answers_the_second_is_not_asked(names: Names) -> None:
    async with ScriptedProvider(scripts.ok()) as a, ScriptedProvider(scripts.ok()) as second:
        names["provider.test"] = [a.address, second.address]
        async with gateway(config_for({"name": "a", "base_url": URL})) as g:
            assert (await g.chat("hi")).status == 200
        assert [a.connections, second.connections] == [1, 0]


def test_the_check_of_the_providers_does_not_wait_for_a_dead_one_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with scripts.blackhole() as hole, models() as alive:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in (hole, alive)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        table = {"name": "a", "base_url": URL, "connect": 10.0}
        began = time.monotonic()
        assert check_online(build({"provider": [table]}, "test.toml", {}, lambda _: b"")) == 0
    assert time.monotonic() - began < 5
    assert "reachable" in capsys.readouterr().out
