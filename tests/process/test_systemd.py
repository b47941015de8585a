"""The units under a real systemd, PID 1 of namespaces of its own, with their whole sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.builders import chat
from tests.support.client import Address, RawClient, Response
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.real import POLL, PROJECT, READY_CAP, Running, free_port
from tests.support.scripts import ok_json
from tests.support.service import Streams, asking, config, exists, readers

RUNNER = PROJECT / "tests" / "support" / "systemd_ns.sh"
NEEDED = ("unshare", "nsenter", "systemctl", "pgrep")
PACKAGES = ("relayd", "h11", "uvloop")
TEMPLATES = ("relayd@.service", "relayd@.socket", "relayd-admin@.socket")
UNITS = ("relayd.service", "relayd.socket", *TEMPLATES)


@dataclass(frozen=True, slots=True)
class Systemd:
    """A running manager. What is below /run there is below `root`/run here."""

    folder: Path
    pid: int

    @property
    def root(self) -> str:
        return f"/proc/{self.pid}/root"

    @property
    def out(self) -> str:
        """What the units' programs have printed so far."""
        return (self.folder / "out").read_text()

    def drop_in(self, unit: str, text: str) -> None:
        """Change a unit for the test that runs."""
        folder = self.folder / "units" / f"{unit}.d"
        folder.mkdir(exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.conf").write_text(text)

    async def ctl(self, *arguments: str) -> tuple[int, str]:
        """`systemctl ARGUMENTS`: its exit code and what it printed."""
        running = await Running.start(
            "nsenter", "-t", str(self.pid), "-m", "-p", "systemctl", "--no-pager", *arguments
        )
        return await running.ended(cap=30.0), running.output

    async def do(self, *arguments: str) -> None:
        """`systemctl ARGUMENTS`, which must work."""
        code, output = await self.ctl(*arguments)
        assert code == 0, f"{arguments}: {output}\n{self.out}"

    async def show(self, name: str, unit: str = "relayd") -> str:
        """One property of a unit."""
        return (await self.ctl("show", "-p", name, "--value", unit))[1]

    async def until(self, wanted: Callable[[str], bool]) -> None:
        """Wait until the output is as wanted."""
        end = time.monotonic() + READY_CAP
        while not wanted(self.out):
            assert time.monotonic() < end, f"it does not come:\n{self.out}"
            await asyncio.sleep(POLL)

    async def is_(self, name: str, value: str, unit: str = "relayd") -> None:
        """Wait until a property has this value."""
        end = time.monotonic() + READY_CAP
        while (found := await self.show(name, unit)) != value:
            assert time.monotonic() < end, f"{name}: expected {value}, got {found}\n{self.out}"
            await asyncio.sleep(POLL)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    """The manager with the shipped units; skipped where this machine does not allow one."""
    if os.geteuid() != 0:
        pytest.skip("a systemd of our own needs root")
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"a systemd of our own needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("systemd")
    for name in ("units", "etc"):
        (folder / name).mkdir(mode=0o755)
    for unit in UNITS:
        shutil.copy(PROJECT / "systemd" / unit, folder / "units")
    command = [str(RUNNER), str(folder), sys.base_prefix, *packages()]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Systemd(folder, started(process, folder))
    finally:
        process.terminate()
        process.wait()


def packages() -> list[str]:
    """The folders of what runs inside."""
    specs = [importlib.util.find_spec(name) for name in PACKAGES]
    return [str(Path(spec.origin).parent) for spec in specs if spec and spec.origin]


def started(process: subprocess.Popen[bytes], folder: Path) -> int:
    """The manager's process id, once it answers; skips if it does not."""
    pid, end = folder / "pid", time.monotonic() + READY_CAP
    while time.monotonic() < end and process.poll() is None:
        if pid.exists() and pid.read_text().strip():
            inside = ["nsenter", "-t", pid.read_text().strip(), "-m", "-p"]
            asked = [*inside, "systemctl", "is-system-running", "--wait"]
            if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                return int(pid.read_text())
        time.sleep(POLL)
    process.terminate()
    process.wait()
    pytest.skip(f"no systemd of our own here: {(folder / 'log').read_text()[-300:]}")


@pytest.fixture
async def systemd(manager: Systemd) -> AsyncIterator[Systemd]:
    """The manager, with units as shipped but for where their output goes."""
    (manager.folder / "out").write_text("")
    for unit in ("relayd.service", "relayd@.service"):
        manager.drop_in(
            unit,
            "[Service]\nEnvironment=LD_LIBRARY_PATH=/opt/python/lib\n"
            f"StandardOutput=append:{manager.folder}/out\n"
            f"StandardError=append:{manager.folder}/out\n",
        )
    yield manager
    await manager.ctl("stop", "relayd*")
    await manager.ctl("reset-failed")
    for folder in (manager.folder / "units").glob("*.d"):
        shutil.rmtree(folder)
    await manager.ctl("daemon-reload")


@dataclass(slots=True)
class Unit:
    """relayd.service with a configuration of the test."""

    systemd: Systemd
    at: tuple[str, int]

    def write(self, *providers: ScriptedProvider, more: str = "", end: str = "") -> None:
        text = config([self.at], *providers, more=more) + end
        (self.systemd.folder / "etc" / "config.toml").write_text(text)

    async def start(self) -> int:
        """`systemctl start`; the main process, as seen from here."""
        await self.systemd.do("daemon-reload")
        await self.systemd.do("start", "relayd")
        await self.began(1)
        return int(await self.systemd.show("MainPID"))

    async def began(self, count: int) -> None:
        """Wait until so many processes have said that they serve; what is killed earlier may not
        have written the line yet."""
        await self.systemd.until(lambda out: out.count('"event":"start"') == count)

    async def kill(self, name: str) -> None:
        await self.systemd.do("kill", "-s", name, "--kill-who=main", "relayd")

    async def post(self) -> Response:
        async with RawClient(self.at) as client:
            return await client.post_json(CHAT, chat())


@pytest.fixture
def unit(systemd: Systemd) -> Unit:
    return Unit(systemd, ("127.0.0.1", free_port()))


async def test_start_reload_upgrade_and_stop_lose_no_stream_and_no_request(unit: Unit) -> None:
    systemd, streams = unit.systemd, Streams()
    async with ScriptedProvider(streams.script, name="a") as a:
        unit.write(a)
        first = await unit.start()
        async with readers(unit.at, 20) as old:
            async with asking(unit.at) as asked:
                await systemd.do("reload", "relayd")
                await systemd.until(lambda out: "configuration reloaded" in out)
                assert int(await systemd.show("MainPID")) == first

                await unit.kill("USR2")
                await systemd.until(lambda out: "has taken over" in out)
                second = int(await systemd.show("MainPID"))
                assert second != first
                assert await systemd.show("ActiveState") == "active"
                assert await systemd.show("NRestarts") == "0"
                await systemd.do("reload", "relayd")
            assert asked.count > 5
            assert asked.closed >= 1
            async with readers(unit.at, 5, "t") as young:
                stopping = asyncio.create_task(systemd.do("stop", "relayd"))
                await systemd.until(lambda out: "draining for up to 30 s" in out)
                assert not stopping.done()
                streams.finish.set()
                for reader in (*old, *young):
                    await reader.rest(streams)
                await stopping
        assert await systemd.show("Result") == "success"
        assert await systemd.show("ActiveState") == "inactive"


async def test_systemd_shows_what_it_does(unit: Unit) -> None:
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a)
        await unit.start()
        assert "1 of 1 providers up, 0 open exchanges" in await unit.systemd.show("StatusText")


async def test_a_file_that_is_wrong_makes_the_reload_fail_and_nothing_else(unit: Unit) -> None:
    systemd = unit.systemd
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a)
        pid = await unit.start()
        unit.write(a, more="nonsense = 1")
        code, _ = await systemd.ctl("reload", "relayd")
        assert code != 0
        assert "server.nonsense: unknown key" in systemd.out
        assert await systemd.show("ActiveState") == "active"
        assert int(await systemd.show("MainPID")) == pid
        assert (await unit.post()).status == 200

        # Somebody sends the signal all the same.
        await unit.kill("HUP")
        await systemd.until(lambda out: "the old configuration stays" in out)
        assert "reload rejected" in await systemd.show("StatusText")
        assert (await unit.post()).status == 200

        unit.write(a)
        await systemd.do("reload", "relayd")
        await systemd.until(lambda out: "configuration reloaded" in out)


async def test_a_credential_is_a_key_before_and_after_a_reload_and_an_upgrade(unit: Unit) -> None:
    systemd = unit.systemd
    (systemd.folder / "etc" / "key").write_text("sk-canary\n")
    systemd.drop_in("relayd.service", "[Service]\nLoadCredential=groq:/etc/relayd/key\n")
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a, end='key_credential = "groq"\n')
        await unit.start()
        assert (await unit.post()).status == 200
        await systemd.do("reload", "relayd")
        await systemd.until(lambda out: "configuration reloaded" in out)
        assert (await unit.post()).status == 200
        await unit.kill("USR2")
        await systemd.until(lambda out: "has taken over" in out)
        assert (await unit.post()).status == 200
    assert {r.field("Authorization") for r in a.requests} == {"Bearer sk-canary"}
    assert "sk-canary" not in systemd.out


async def test_a_loop_that_hangs_is_killed_and_started_again(unit: Unit) -> None:
    systemd = unit.systemd
    systemd.drop_in("relayd.service", "[Service]\nWatchdogSec=1\nTimeoutAbortSec=1\n")
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a)
        await unit.start()
        await unit.kill("USR2")  # the next generation must be watched too
        await systemd.until(lambda out: "has taken over" in out)
        await unit.began(2)
        await unit.kill("STOP")
        await unit.began(3)
        assert await systemd.show("NRestarts") == "1"
        assert (await unit.post()).status == 200


async def test_a_crash_starts_it_again(unit: Unit) -> None:
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a)
        await unit.start()
        await unit.kill("KILL")
        await unit.began(2)
        assert await unit.systemd.show("NRestarts") == "1"
        assert (await unit.post()).status == 200


async def test_a_configuration_error_is_not_tried_again(unit: Unit) -> None:
    systemd = unit.systemd
    unit.write(more="nonsense = 1")
    await systemd.do("daemon-reload")
    code, _ = await systemd.ctl("start", "relayd")
    assert code != 0
    assert await systemd.show("ActiveState") == "failed"
    assert await systemd.show("ExecMainStatus") == "78"
    assert await systemd.show("NRestarts") == "0"
    assert "/etc/relayd/config.toml: server.nonsense: unknown key" in systemd.out


async def test_what_fails_again_and_again_is_given_up(unit: Unit) -> None:
    systemd = unit.systemd
    systemd.drop_in("relayd.service", "[Service]\nRestartSec=10ms\n")
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.at = a.address  # taken
        unit.write(a)
        await systemd.do("daemon-reload")
        await systemd.ctl("start", "relayd")
        await systemd.is_("Result", "exit-code")
        await systemd.is_("ActiveState", "failed")
        assert await systemd.show("NRestarts") == "5"
        assert "cannot listen on" in systemd.out


async def test_a_stop_may_take_longer_than_the_unit_grants_as_long_as_it_is_told(
    unit: Unit,
) -> None:
    systemd, streams = unit.systemd, Streams()
    systemd.drop_in("relayd.service", "[Service]\nTimeoutStopSec=1\n")
    async with ScriptedProvider(streams.script, name="a") as a:
        unit.write(a)
        await unit.start()
        async with readers(unit.at, 1) as (reader,):
            stopping = asyncio.create_task(systemd.do("stop", "relayd"))
            await systemd.until(lambda out: '"event":"drain"' in out)
            for _ in range(200):  # of the stream's events, 20 ms apart
                await reader.answer.event()
            streams.finish.set()
            await reader.rest(streams)
            await stopping
    assert await systemd.show("Result") == "success"


async def test_the_sockets_of_systemd_outlive_a_restart(unit: Unit) -> None:
    systemd, port = unit.systemd, free_port()
    systemd.drop_in(
        "relayd.socket",
        f"[Socket]\nListenStream=\nListenStream=127.0.0.1:{port}\nListenStream=/run/relayd.sock\n",
    )
    path = f"{systemd.root}/run/relayd.sock"
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a)
        await systemd.do("daemon-reload")
        await systemd.do("start", "relayd.socket")
        status = os.stat(path)
        assert status.st_mode & 0o777 == 0o660
        assert await systemd.show("ActiveState") == "inactive"
        both: tuple[Address, Address] = (("127.0.0.1", port), path)
        for action in ("restart", "USR2", "restart"):
            for address in both:
                async with RawClient(address) as client:  # the first one starts the service
                    assert (await client.post_json(CHAT, chat())).status == 200
            with pytest.raises(ConnectionRefusedError):
                await RawClient(unit.at).connect()
            if action == "USR2":
                await unit.kill("USR2")
                await systemd.until(lambda out: "has taken over" in out)
            else:
                await systemd.do("restart", "relayd")
        assert os.stat(path).st_ino == status.st_ino
        await systemd.do("stop", "relayd.socket", "relayd")


async def test_a_service_that_is_started_again_has_its_sockets_again(unit: Unit) -> None:
    systemd = unit.systemd
    other = "[Socket]\nListenStream=\nListenStream=/run/relayd.sock\n"
    systemd.drop_in("relayd.socket", other)
    unit.write(more="nonsense = 1")
    await systemd.do("daemon-reload")
    await systemd.do("enable", "--now", "relayd.socket")
    async with ScriptedProvider(ok_json(), name="a") as a:
        async with RawClient(f"{systemd.root}/run/relayd.sock"):  # starts it, again and again
            await systemd.is_("ActiveState", "failed", "relayd.socket")
        assert not exists(f"{systemd.root}/run/relayd.sock")
        unit.write(a)
        await systemd.do("reset-failed", "relayd*")
        await systemd.do("start", "relayd")
        async with RawClient(f"{systemd.root}/run/relayd.sock") as client:
            assert (await client.post_json(CHAT, chat())).status == 200
        await systemd.do("disable", "relayd.socket")
        await systemd.do("stop", "relayd.socket", "relayd")


async def test_instances_share_the_turns_of_a_user(unit: Unit) -> None:
    systemd = unit.systemd
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a, more="[quota]\ndaily_turns = 2")
        await systemd.do("daemon-reload")
        await systemd.do("start", "relayd@1.socket", "relayd@2.socket")
        statuses = []
        for instance in (1, 2, 1, 2):
            async with RawClient(f"{systemd.root}/run/relayd-{instance}.sock") as client:
                statuses.append((await client.post_json(CHAT, chat())).status)
        assert statuses == [200, 200, 429, 429]
        sockets = ("relayd@1.socket", "relayd@2.socket")
        await systemd.do("stop", *sockets, "relayd@1", "relayd@2")


async def test_instances_have_an_admin_listener_each(unit: Unit) -> None:
    systemd = unit.systemd
    # A path in the place of the fixed port, which may be in use on this machine.
    other = "[Socket]\nListenStream=\nListenStream=/run/relayd-admin-%i.sock\n"
    systemd.drop_in("relayd-admin@.socket", other)
    sockets = [f"relayd{kind}@{number}.socket" for number in (1, 2) for kind in ("", "-admin")]
    async with ScriptedProvider(ok_json(), name="a") as a:
        unit.write(a)
        await systemd.do("daemon-reload")
        await systemd.do("start", *sockets)
        for instance in (1, 2):
            async with RawClient(f"{systemd.root}/run/relayd-admin-{instance}.sock") as client:
                answer = await client.get("/status")  # the first request starts the service
            assert answer.status == 200
            async with RawClient(f"{systemd.root}/run/relayd-{instance}.sock") as client:
                assert (await client.post_json(CHAT, chat())).status == 200
        await systemd.do("stop", *sockets, "relayd@1", "relayd@2")
