"""What a daemon is given by systemd or by this machine: sockets, files, an event loop."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import RawClient
from tests.support.provider import ScriptedProvider
from tests.support.real import program, relayd
from tests.support.service import Place, config, generations


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield found
    for sock in found:
        sock.close()


async def status(sock: socket.socket, path: str) -> int:
    async with RawClient(sock.getsockname()) as client:
        return (await client.get(path)).status


async def test_sockets_go_where_their_names_say(
    tmp_path: Path, sockets: list[socket.socket]
) -> None:
    place = Place.free(tmp_path)
    names = ["relayd.socket", "admin", "other"]
    async with (
        ScriptedProvider(name="a") as a,
        generations(
            tmp_path, config([place.tcp], a), sockets=list(zip(names, sockets, strict=True))
        ),
    ):
        assert [await status(sock, "/status") for sock in sockets] == [404, 200, 404]
        assert [await status(sock, "/v1/models") for sock in sockets] == [200, 404, 200]
        with pytest.raises(ConnectionRefusedError):
            await RawClient(place.tcp).connect()


async def test_a_socket_for_the_admin_alone_leaves_the_configured_listener(
    tmp_path: Path, sockets: list[socket.socket]
) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config([place.tcp], a), sockets=[("admin", sockets[0])]),
    ):
        assert await status(sockets[0], "/status") == 200
        async with RawClient(place.tcp) as client:
            assert (await client.get("/v1/models")).status == 200


@pytest.mark.parametrize("clients", [False, True], ids=["open", "with clients"])
async def test_a_socket_that_strangers_reach_is_warned_of(tmp_path: Path, clients: bool) -> None:
    place = Place.free(tmp_path)
    more = '[[client]]\nname = "c"\nkey_env = "KEY"\n' if clients else ""
    with socket.create_server(("0.0.0.0", 0)) as http, socket.create_server(("", 0)) as admin:
        given = [("http", http), ("admin", admin)]
        async with (
            ScriptedProvider(name="a") as a,
            generations(
                tmp_path, config([place.tcp], a, more=more), {"KEY": "k-123"}, sockets=given
            ) as daemon,
        ):
            said = [line["message"] for line in daemon.events("config")]
    open_to_all = [line for line in said if "whoever reaches it may use relayd" in line]
    assert [line.startswith("socket http at 0.0.0.0:") for line in open_to_all] == (
        [] if clients else [True]
    )
    (about_admin,) = [line for line in said if "sees metrics and status" in line]
    assert about_admin.startswith("socket admin at 0.0.0.0:")


async def test_a_socket_that_cannot_be_accepted_on_is_refused(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    (tmp_path / "config.toml").write_text(config([place.tcp]) + "[[provider]]\nname='ollama'\n")
    script = 'export LISTEN_PID=$$; exec "$0" -m relayd serve -c "$1" 3<&'
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        fd = udp.fileno()
        file = str(tmp_path / "config.toml")
        env = {"LISTEN_FDS": "1"}
        command = ("bash", "-c", f"{script}{fd}", sys.executable, file)
        async with program(*command, env=env, pass_fds=[fd]) as running:
            assert await running.ended() == 1
    (line,) = running.err
    assert line.startswith('relayd: LISTEN_FDS: descriptor 3 ("unknown"): expected a listening')


# ---- files


async def test_the_soft_limit_of_files_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    file = tmp_path / "config.toml"
    script = 'ulimit -Sn 256; ulimit -Hn 9000; exec "$0" -m relayd serve -c "$1"'
    async with ScriptedProvider(name="a") as a:
        file.write_text(config([place.tcp], a))
        async with program("bash", "-c", script, sys.executable, str(file)) as running:
            await running.answers(place.tcp)
            assert resource.prlimit(running.pid, resource.RLIMIT_NOFILE) == (9000, 9000)


async def test_a_figure_that_cannot_fit_stops_the_start_by_name(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    file = tmp_path / "config.toml"
    script = 'ulimit -n 1000; exec "$0" -m relayd serve -c "$1"'
    async with ScriptedProvider(name="a") as a:
        file.write_text(config([place.tcp], a))
        async with program("bash", "-c", script, sys.executable, str(file)) as running:
            assert await running.ended() == 78
    (line,) = running.err
    assert line == (
        f"{file}: server.max_connections: 4096 clients, 2048 exchanges and 2048 idle connections "
        "need 8384 files, the limit is 1000; raise LimitNOFILE= or lower the figures"
    )


async def test_without_a_file_for_a_new_connection_it_says_so_and_goes_on(tmp_path: Path) -> None:
    """What asyncio prints by itself is a traceback on stderr."""
    place = Place.free(tmp_path)
    async with ScriptedProvider(name="a") as a:
        text = config([place.tcp], a, more='loop = "asyncio"')
        async with generations(tmp_path, text) as daemon:
            limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
            async with RawClient(place.tcp) as waits:
                await daemon.line('"event":"out_of_files"', "LimitNOFILE")
                resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
                assert (await waits.get("/healthz")).status == 200
            assert daemon.running.err == []


# ---- the event loop


@pytest.mark.parametrize("loop", ["uvloop", "auto"])
async def test_without_uvloop_only_who_insists_on_it_is_refused(tmp_path: Path, loop: str) -> None:
    place = Place.free(tmp_path)
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    file = tmp_path / "config.toml"
    env = {"PYTHONPATH": str(tmp_path)}
    async with ScriptedProvider(name="a") as a:
        file.write_text(config([place.tcp], a, more=f'loop = "{loop}"'))
        async with relayd("serve", "-c", str(file), env=env) as running:
            if loop == "auto":
                await running.answers(place.tcp)
                return
            assert await running.ended() == 78
    remedy = 'uvloop is not installed: pip install "relayd[uvloop]"'
    assert running.err == [f"{file}: server.loop: {remedy}"]


@pytest.mark.parametrize("number", ["77", "x"])
async def test_a_stale_variable_of_a_handover_is_nothing(tmp_path: Path, number: str) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config([place.tcp], a), {"RELAYD_HANDOVER": number}) as daemon,
    ):
        async with RawClient(place.tcp) as client:
            assert (await client.get("/readyz")).status == 200
        assert not daemon.running.err
