"""SIGHUP: a new configuration under way, and one that is refused."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import chat
from tests.support.client import RawClient
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_json, status
from tests.support.service import (
    Generations,
    Manager,
    Place,
    Streams,
    asking,
    config,
    generations,
    readers,
)


async def health(place: Place) -> dict[str, Any]:
    async with RawClient(place.tcp) as client:
        return dict((await client.get("/health")).json())


async def provider_of(place: Place) -> str | None:
    """Who answers a request now."""
    async with RawClient(place.tcp) as client:
        answer = await client.post_json(CHAT, chat())
        assert answer.status == 200, answer.text
        return answer.field("X-Gateway-Provider")


async def reload(daemon: Generations, text: str, folder: Path, event: str = "reloaded") -> None:
    """Put this into the file, and wait until the daemon says what it thinks of it."""
    (folder / "config.toml").write_text(text)
    seen = len(daemon.events("reload"))
    daemon.signal(signal.SIGHUP)
    await daemon.running.line(
        lambda _: any(event in line["message"] for line in daemon.events("reload")[seen:])
    )


async def test_fifty_streams_and_a_stream_of_requests_notice_nothing(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    a = ScriptedProvider(streams.script, name="a")
    b = ScriptedProvider(ok_json(), name="b")
    async with (
        a,
        b,
        generations(tmp_path, config(place.both, a)) as daemon,
        readers(place.tcp, 50) as running,
        asking(place.tcp, place.unix) as asked,
    ):
        # The provider of the streams goes, every clock changes, and back again.
        changed = "[clocks]\nidle = 1.0\nfirst_content = 2.0\n"
        for text in (config(place.both, b, more=changed), config(place.both, a)) * 3:
            await reload(daemon, text, tmp_path)
            before = asked.count
            while asked.count < before + 20:
                await provider_of(place)
        streams.finish.set()
        for reader in running:
            await reader.rest(streams)
    assert asked.count > 100
    assert not asked.closed


async def test_what_begins_afterwards_goes_by_the_new_file(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        generations(tmp_path, config([place.tcp], a)) as daemon,
        RawClient(place.tcp) as client,
    ):
        assert await provider_of(place) == "a"
        await reload(daemon, config([place.tcp], b, more="max_request_bytes = 2048"), tmp_path)
        assert await provider_of(place) == "b"
        # On a connection of before, too: the limits of the server are read for each request.
        assert (await client.post_json(CHAT, chat("x" * 3000))).status == 413


async def test_idle_connections_to_a_provider_that_was_removed_are_closed(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        generations(tmp_path, config([place.tcp], a)) as daemon,
    ):
        await provider_of(place)
        assert a.open == 1
        await reload(daemon, config([place.tcp], b), tmp_path)
        await a.seen.peers[0].left.wait()


async def test_what_is_unchanged_keeps_its_connections_and_its_breaker(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(ok_json(), name="b") as b,
        generations(
            tmp_path, config([place.tcp], a, b, more="[breaker]\ncooldown = 300")
        ) as daemon,
    ):
        for _ in range(6):
            assert await provider_of(place) == "b"
        assert len(a.requests) == 5  # then its breaker is open
        more = "[breaker]\ncooldown = 300\n[clocks]\nidle = 5"
        await reload(daemon, config([place.tcp], a, b, more=more), tmp_path)
        assert await provider_of(place) == "b"
        assert len(a.requests) == 5
        assert b.connections == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not toml", "not TOML"),
        ("[server]\nlistn = 1\n", "server.listn: unknown key"),
        ("[[provider]]\nname = 'groq'\nkey_env = 'NOT_THERE'\n", "NOT_THERE is not set; a running"),
        (None, "cannot be read"),
    ],
    ids=["syntax", "key", "secret", "missing"],
)
async def test_a_file_that_is_wrong_changes_nothing_and_is_told_everywhere(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        Manager(tmp_path) as manager,
        generations(tmp_path, config([place.tcp], a), {"NOTIFY_SOCKET": manager.path}) as daemon,
    ):
        good = await health(place)
        assert good["config"]["problem"] is None
        file = tmp_path / "config.toml"
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        daemon.signal(signal.SIGHUP)
        await daemon.line('"event":"reload"', "the old configuration stays", problem)
        assert await provider_of(place) == "a"
        bad = await health(place)
        assert problem in bad["config"]["problem"]
        assert bad["config"]["loaded"] == good["config"]["loaded"]
        begun = await manager.heard("RELOADING", "1")
        told = [m.text for m in manager.messages[manager.messages.index(begun) :]]
        assert told[1] == "READY=1"
        assert "reload rejected" in told[2]
        assert problem in told[2]

        await reload(daemon, config([place.tcp], a), tmp_path)
        assert (await health(place))["config"]["problem"] is None
        assert "rejected" not in manager.messages[-1].text


async def test_the_manager_is_told_when_a_reload_began_and_that_it_ended(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        Manager(tmp_path) as manager,
        generations(tmp_path, config([place.tcp], a), {"NOTIFY_SOCKET": manager.path}) as daemon,
    ):
        await reload(daemon, config([place.tcp], a), tmp_path)
        begun = await manager.heard("RELOADING", "1")
        assert re.fullmatch("[0-9]{6,}", begun.value("MONOTONIC_USEC") or "")
        await manager.heard("READY", "1", after=manager.messages.index(begun))


async def test_keys_in_files_are_read_again(tmp_path: Path) -> None:
    place, key = Place.free(tmp_path), tmp_path / "key"
    key.write_text("sk-first\n")
    async with ScriptedProvider(ok_json(), name="a") as a:
        text = config([place.tcp], a) + f'key_file = "{key}"\n'
        async with generations(tmp_path, text) as daemon:
            await provider_of(place)
            key.write_text("sk-second\n")
            await reload(daemon, text, tmp_path)
            await provider_of(place)
    assert [r.field("Authorization") for r in a.requests] == ["Bearer sk-first", "Bearer sk-second"]
    assert "sk-" not in daemon.running.output


async def test_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    changed = (
        'loop = "auto"\nunix_mode = "0600"\n[admin]\nlisten = ["127.0.0.1:0"]\n'
        f'[store]\nurl = "sqlite:{tmp_path}/state.db"\nprefix = "other:"\n'
    )
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
    ):
        await reload(daemon, config([place.tcp, place.unix], a, more=changed), tmp_path)
        said = [line["message"] for line in daemon.events("config")]
        named = {m[1] for line in said if (m := re.search(r": ([\w.]+) has changed: .*res", line))}
        assert named == {
            "server.loop",
            "server.listen",
            "server.unix_mode",
            "admin.listen",
            "store.url",
            "store.prefix",
        }
        assert "relayd.sock" not in os.listdir(tmp_path)
        assert await provider_of(place) == "a"


async def test_a_figure_that_cannot_fit_is_refused_by_name(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
    ):
        more = "max_connections = 1000000\nmax_exchanges = 1000000"
        await reload(daemon, config([place.tcp], a, more=more), tmp_path, "old configuration stays")
        await daemon.line("server.max_connections", "raise LimitNOFILE=")
        assert await provider_of(place) == "a"
