"""K130: a changed configuration forced a restart, which dropped the requests that were running.

https://github.com/openclaw/openclaw/issues/88443
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from relayd.cli import EX_CONFIG, main
from tests.support.builders import chat, stream
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.loop import takes
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_json, ok_stream, silent


@pytest.mark.parametrize("removed", [False, True], ids=["clocks changed", "provider removed"])
async def test_a_running_stream_goes_on_by_the_file_it_began_with(removed: bool) -> None:
    texts = [str(number) for number in range(10)]
    async with (
        ScriptedProvider(ok_stream(*texts, delay=20.0), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        gateway(config_for(a)) as g,
        g.client() as client,
    ):
        answer = await client.open_stream(CHAT, chat(stream=True))
        # By the new clocks 20 s of silence would end it, and so would its length.
        clocks = {"idle": 1.0, "first_content": 1.0, "deadline": 5.0}
        g.reload(config_for(b if removed else a, clocks=clocks))
        if removed:
            assert (await g.chat()).field("X-Gateway-Provider") == "b"
        await answer.read()
        assert answer.body == b"".join(stream(*texts))
        assert answer.whole


async def test_a_request_that_waits_for_its_first_byte_keeps_its_clocks_too() -> None:
    async with ScriptedProvider(silent(), name="a") as a, gateway(config_for(a)) as g:
        with takes(60.0):
            asking = asyncio.create_task(g.chat(stream=True))
            await asyncio.sleep(1.0)
            g.reload(config_for(a, clocks={"first_content": 2.0}))
            assert (await asking).status == 502
        with takes(2.0):
            assert (await g.chat(stream=True)).status == 502


async def test_an_exchange_fails_over_among_the_providers_it_began_with() -> None:
    async with (
        ScriptedProvider(silent(), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        ScriptedProvider(ok_json(), name="c") as c,
        gateway(config_for(a, b)) as g,
    ):
        asking = asyncio.create_task(g.chat())
        await asyncio.sleep(1.0)
        g.reload(config_for(a, c))
        assert (await asking).field("X-Gateway-Provider") == "b"


# What a daemon does with a broken file on SIGHUP is in tests/process/test_reload.py.


@pytest.mark.real_time
@pytest.mark.parametrize(
    "text", ["[[provider]", "[[provider]]\nname = 'x'\n", "", "[server]\nlisten = 'nowhere'\n"]
)
def test_the_check_before_a_reload_fails_on_a_broken_file(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert main(["check", "-c", str(file)]) == EX_CONFIG
    assert str(file) in capsys.readouterr().err
