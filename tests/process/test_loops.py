"""The daemon does the same on either event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import builders, real
from tests.support.client import RawClient
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.scripts import breaks_off, events, hangs_up, ok, resets, status
from tests.support.service import Place, config, generations

CONFIG = """
[server]
loop = "{loop}"
listen = "127.0.0.1:{port}"
[breaker]
failures = 100
[[provider]]
name = "a"
base_url = "{a}"
[[provider]]
name = "b"
base_url = "{b}"
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_every_kind_of_failure_before_the_answer_is_replaced(
    loop: str, tmp_path: Path, free_port: int
) -> None:
    pytest.importorskip("uvloop")
    empty = events(builders.DONE)
    cut = breaks_off(builders.role(), then="rst")
    failures = [status(503), hangs_up(), resets(), empty, cut, status(301), status(429)]
    where = ("127.0.0.1", free_port)
    async with ScriptedProvider(*failures, name="a") as a, ScriptedProvider(ok(), name="b") as b:
        text = CONFIG.format(loop=loop, port=free_port, a=a.base_url, b=b.base_url)
        async with real.daemon(tmp_path, text, where) as daemon:
            assert daemon.loop == loop
            async with RawClient(where) as client:
                for _ in failures:
                    response = await client.post_json(CHAT, builders.chat(stream=True))
                    assert (response.status, response.field("x-gateway-provider")) == (200, "b")
                    assert response.whole
            assert "internal_error" not in daemon.output


async def test_a_test_that_asks_for_no_loop_has_the_one_of_this_run(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    text = f'[server]\nlisten = "unix:{place.unix}"\n[[provider]]\nname = "ollama"\n'
    async with real.daemon(tmp_path, text, place.unix) as daemon:
        assert daemon.loop == real.LOOP
    async with generations(tmp_path, text) as daemons:
        assert daemons.running.loop == real.LOOP
    assert f'\nloop = "{real.LOOP}"\n' in config([place.unix])
