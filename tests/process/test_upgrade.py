"""SIGUSR2: the next generation serves while the old one finishes what it began."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from relayd import handover
from relayd.handover import HandoverFailed, successor
from tests.support.builders import chat
from tests.support.client import RawClient
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_json, slow
from tests.support.service import (
    Generations,
    Manager,
    Place,
    Streams,
    arrived,
    asking,
    config,
    exists,
    generations,
    gone,
    readers,
)
from tests.support.wire import Ended


async def test_fifty_streams_and_a_stream_of_requests_notice_nothing_twice(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        generations(tmp_path, config(place.both, a)) as daemon,
        readers(place.tcp, 50) as first,
        asking(place.tcp, place.unix) as asked,
    ):
        oldest = await daemon.upgrade()
        await _more(asked.count, place)
        async with readers(place.unix, 5, "t") as second:
            old = await daemon.upgrade()
            await _more(asked.count, place)
            assert len(set(daemon.pids)) == 3
            streams.finish.set()
            for reader in (*first, *second):
                await reader.rest(streams)
        await gone(oldest)
        await gone(old)
    assert asked.count > 50
    assert asked.closed >= 4  # each client, each time: told, not cut
    assert oldest != old


async def _more(count: int, place: Place) -> None:
    """Some requests, each on a connection of its own."""
    for address in place.both * 5:
        async with RawClient(address) as client:
            assert (await client.post_json(CHAT, chat("more"))).status == 200


async def test_a_connection_that_is_kept_alive_is_answered_once_more(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
        RawClient(place.tcp) as client,
    ):
        assert (await client.post_json(CHAT, chat())).field("Connection") is None
        old = await daemon.upgrade()
        answer = await client.post_json(CHAT, chat())
        assert answer.status == 200
        assert answer.field("Connection") == "close"
        assert await client.ended() is Ended.CLOSE
        await gone(old)


async def test_a_connection_that_nobody_uses_does_not_hold_the_old_one(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
        RawClient(place.tcp) as client,
        RawClient(place.tcp) as unused,
    ):
        await client.get("/healthz")
        old = await daemon.upgrade()
        await gone(old)
        assert await client.ended() is Ended.CLOSE
        assert await unused.ended() is Ended.CLOSE


async def test_the_file_of_a_unix_socket_belongs_to_whoever_serves(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config(place.both, a)) as daemon,
    ):
        inode = os.stat(place.unix).st_ino
        for _ in range(2):
            await gone(await daemon.upgrade())
            assert os.stat(place.unix).st_ino == inode
            async with RawClient(place.unix) as client:
                assert (await client.get("/healthz")).status == 200
        daemon.signal(signal.SIGTERM)
        await gone(daemon.pid)
        assert not exists(place.unix)


async def test_the_admin_listener_goes_too(tmp_path: Path) -> None:
    place, admin = Place.free(tmp_path), str(tmp_path / "admin.sock")
    async with (
        ScriptedProvider(name="a") as a,
        generations(
            tmp_path, config([place.tcp], a, more=f'[admin]\nlisten = ["unix:{admin}"]')
        ) as daemon,
    ):
        await gone(await daemon.upgrade())
        async with RawClient(admin) as client:
            assert (await client.get("/status")).status == 200
        async with RawClient(place.tcp) as client:
            assert (await client.get("/status")).status == 404
        daemon.signal(signal.SIGTERM)
        await gone(daemon.pid)
        assert not exists(admin)


async def test_an_admin_listener_that_the_file_has_dropped_is_told(tmp_path: Path) -> None:
    place, admin = Place.free(tmp_path), str(tmp_path / "admin.sock")
    async with ScriptedProvider(name="a") as a:
        with_admin = config([place.tcp], a, more=f'[admin]\nlisten = ["unix:{admin}"]')
        async with generations(tmp_path, config([place.tcp], a)) as daemon:
            (tmp_path / "config.toml").write_text(with_admin)
            await daemon.upgrade()  # which binds it
            assert "has changed" not in daemon.running.output
            (tmp_path / "config.toml").write_text(config([place.tcp], a))
            await daemon.upgrade()
            await daemon.line('"event":"config"', "admin.listen has changed: it needs a restart")


async def test_the_manager_hears_of_it_and_then_only_the_new_one(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with ScriptedProvider(name="a") as a, Manager(tmp_path) as manager:
        env = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}
        async with generations(tmp_path, config([place.tcp], a), env) as daemon:
            await manager.heard("WATCHDOG", "1", pid=daemon.pid)
            old = await daemon.upgrade()
            handed = await manager.heard("MAINPID", str(daemon.pid), pid=old)
            at = manager.messages.index(handed)
            assert {m.pid for m in manager.messages[:at]} == {old}
            await manager.heard("READY", "1", pid=daemon.pid, after=at)
            await manager.heard("WATCHDOG", "1", pid=daemon.pid, after=at)
            await gone(old)
            assert {m.pid for m in manager.messages[at + 1 :]} == {daemon.pid}


async def test_a_watchdog_that_names_its_process_names_the_next_one(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with ScriptedProvider(name="a") as a, Manager(tmp_path) as manager:
        env = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}
        text = config([place.tcp], a)
        async with generations(tmp_path, text, env, own=["WATCHDOG_PID"]) as daemon:
            await manager.heard("WATCHDOG", "1", pid=daemon.pid)
            await daemon.upgrade()
            await manager.heard("WATCHDOG", "1", pid=daemon.pid)


async def test_sockets_of_systemd_go_on_under_their_names(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    path = str(tmp_path / "http.sock")
    with (
        socket.socket(socket.AF_UNIX) as http,
        socket.create_server(("127.0.0.1", 0)) as admin,
    ):
        http.bind(path)
        http.listen()
        async with (
            ScriptedProvider(name="a") as a,
            generations(
                tmp_path, config([place.tcp], a), sockets=[("http", http), ("admin", admin)]
            ) as daemon,
        ):
            for _ in range(2):
                await gone(await daemon.upgrade())
                async with RawClient(path) as client:
                    assert (await client.get("/healthz")).status == 200
                async with RawClient(admin.getsockname()) as client:
                    assert (await client.get("/status")).status == 200
            with pytest.raises(ConnectionRefusedError):
                await RawClient(place.tcp).connect()
            daemon.signal(signal.SIGTERM)
            await gone(daemon.pid)
    assert exists(path)  # it is systemd's


@pytest.mark.parametrize("turns", [0, 5])
async def test_turns_that_are_not_handed_over_are_told(tmp_path: Path, turns: int) -> None:
    place = Place.free(tmp_path)
    more = f"[quota]\ndaily_turns = {turns}"
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config([place.tcp], a, more=more)) as daemon,
    ):
        await daemon.upgrade()
        assert ("turns begin anew" in daemon.running.output) is bool(turns)


# ---- what goes wrong


async def goes_on(daemon: Generations, place: Place, *why: str) -> None:
    daemon.signal(signal.SIGUSR2)
    await daemon.line('"event":"upgrade"', "this generation goes on", *why)
    async with RawClient(place.tcp) as client:
        assert (await client.get("/readyz")).status == 200


async def test_a_file_that_is_wrong_is_told_and_the_old_one_goes_on(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
    ):
        (tmp_path / "config.toml").write_text("[server]\nlistn = 1")
        await goes_on(daemon, place, "server.listn: unknown key")
        (tmp_path / "config.toml").write_text(config([place.tcp], a))
        await daemon.upgrade()


async def test_a_next_generation_that_cannot_start_changes_nothing(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with (
            ScriptedProvider(name="a") as a,
            generations(tmp_path, config(place.both, a)) as daemon,
        ):
            more = f'[admin]\nlisten = ["127.0.0.1:{port}"]'
            (tmp_path / "config.toml").write_text(config(place.both, a, more=more))
            await goes_on(daemon, place, "exit code 1")
            await daemon.line(f"admin.listen: cannot listen on 127.0.0.1:{port}: ")
            async with RawClient(place.unix) as client:
                assert (await client.get("/readyz")).status == 200


async def test_a_stop_meanwhile_ends_both(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
    ):
        daemon.signal(signal.SIGUSR2)
        await daemon.line("starting the next generation")
        daemon.signal(signal.SIGTERM)
        assert await daemon.running.ended() == 0  # nobody holds its output any more
        assert not daemon.takeovers


async def test_a_stop_bounds_what_an_old_generation_still_does(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(slow(50.0, ok_json()), name="a") as a,
        generations(tmp_path, config([place.tcp], a, more="drain_timeout = 0.2")) as daemon,
        RawClient(place.tcp) as client,
    ):
        asking = asyncio.create_task(client.post_json(CHAT, chat()))
        await arrived(a)
        old = await daemon.upgrade()
        os.kill(old, signal.SIGTERM)
        assert (await asking).error["code"] == "draining"
        await gone(old)


class Command:
    """In place of the daemon's own command: a program that holds what it was given."""

    def __init__(self, folder: Path, rest: str) -> None:
        self.file = folder / "pid"
        os.mkfifo(self.file)
        code = f"import os; open({str(self.file)!r}, 'w').write(str(os.getpid())); {rest}"
        self.argv = [sys.executable, "-c", code]

    async def pid(self) -> int:
        return int(await asyncio.to_thread(self.file.read_text))


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def hand_over(listener: socket.socket) -> None:
    async with successor([("relayd-own", listener.fileno())]):
        pytest.fail("nobody was ready")


async def test_one_that_stays_silent_is_ended(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tmp_path, "import time; time.sleep(60)")
    monkeypatch.setattr(sys, "orig_argv", command.argv)
    monkeypatch.setattr(handover, "READY_SECONDS", 0.5)
    handing = asyncio.create_task(hand_over(listener))
    pid = await command.pid()
    with listener, pytest.raises(HandoverFailed, match="did not serve within"):
        await handing
    await gone(pid)


async def test_one_is_ended_where_nobody_waits_any_more(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tmp_path, "import time; time.sleep(60)")
    monkeypatch.setattr(sys, "orig_argv", command.argv)
    handing = asyncio.create_task(hand_over(listener))
    pid = await command.pid()
    handing.cancel()
    with listener, pytest.raises(asyncio.CancelledError):
        await handing
    await gone(pid)


async def test_a_violent_end_is_told_in_the_manner_of_a_shell(
    tmp_path: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(tmp_path, "os.kill(os.getpid(), 9)")
    monkeypatch.setattr(sys, "orig_argv", command.argv)
    handing = asyncio.create_task(hand_over(listener))
    await command.pid()
    with listener, pytest.raises(HandoverFailed, match="exit code 137"):
        await handing


async def test_a_program_that_is_not_there_is_told(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handover, "command", lambda: ["/nowhere/python"])
    with listener, pytest.raises(HandoverFailed, match="exit code 127"):
        await hand_over(listener)
    assert "cannot start /nowhere/python: No such file" in capfd.readouterr().err


async def test_process_1_has_nobody_to_leave_its_successor_to(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with listener, pytest.raises(HandoverFailed, match="restart the container"):
        await hand_over(listener)


def test_a_watchdog_of_somebody_else_is_not_passed_on() -> None:
    environ = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "7", "PATH": "/bin"}
    assert handover.environment(environ, ["a", "b"], 8) == {
        "PATH": "/bin",
        "WATCHDOG_PID": "7",
        "LISTEN_FDS": "2",
        "LISTEN_FDNAMES": "a:b",
        "RELAYD_HANDOVER": "5",
    }
