"""`relayd top` as a program: once, live in a terminal, and where there is nothing to show."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relayd.top import ENTER, LEAVE
from tests.support.real import PROJECT, READY_CAP, Running, daemon, free_port, relayd

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[admin]
listen = {admin}
[[provider]]
name = "of-the-test"
base_url = "http://127.0.0.1:9/v1"
"""


def config(port: int, admin: str) -> str:
    return CONFIG.format(port=port, admin=admin)


@asynccontextmanager
async def running(folder: Path, admin: str) -> AsyncIterator[Running]:
    port = free_port()
    async with daemon(folder, config(port, admin), ("127.0.0.1", port)) as served:
        yield served


async def top(folder: Path, *arguments: str) -> tuple[int, Running]:
    async with relayd("top", "-c", str(folder / "config.toml"), *arguments) as process:
        return await process.ended(), process


@pytest.mark.parametrize("kind", ["tcp", "wildcard", "unix"])
async def test_one_snapshot_is_shown_from_every_kind_of_address(kind: str, tmp_path: Path) -> None:
    port = free_port()
    address = {
        "tcp": f"127.0.0.1:{port}",
        "wildcard": f"0.0.0.0:{port}",
        "unix": f"unix:{tmp_path}/admin.sock",
    }[kind]
    async with running(tmp_path, f'"{address}"'):
        code, process = await top(tmp_path, "--once")
    assert code == 0, process.output
    assert any("of-the-test" in line for line in process.out)
    assert not process.err


@pytest.mark.parametrize("form", ["http://127.0.0.1:{port}", "unix:{folder}/admin.sock"])
async def test_a_daemon_is_found_by_its_url_without_a_file(form: str, tmp_path: Path) -> None:
    url = form.format(port=free_port(), folder=tmp_path)
    async with running(tmp_path, f'"{url.removeprefix("http://")}"'):
        async with relayd("top", "--url", url) as process:
            assert await process.ended() == 0, process.output
    assert any("of-the-test" in line for line in process.out)


async def test_a_url_that_is_none_is_told_in_one_line() -> None:
    async with relayd("top", "--url", "127.0.0.1:9091") as process:
        assert await process.ended() == 1
    (line,) = process.err
    assert line.startswith("relayd: --url: expected http://host:port")


async def test_the_environment_names_no_admin_listener() -> None:
    async with relayd("top", "--env") as process:
        assert await process.ended() == 2


async def test_without_a_terminal_it_ends_after_one_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path, f'"unix:{tmp_path}/admin.sock"'):
        code, process = await top(tmp_path)
    assert code == 0
    assert not any("\x1b" in line for line in process.out)


async def test_a_missing_address_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(config(free_port(), "[]"))
    code, process = await top(tmp_path)
    assert code == 1
    (line,) = process.err
    assert "config.toml: admin.listen: empty: name an address there" in line
    assert "--url" in line


async def test_a_daemon_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "config.toml").write_text(config(free_port(), f'"127.0.0.1:{port}"'))
    code, process = await top(tmp_path)
    assert code == 1
    assert process.err == [
        f"relayd: no answer from 127.0.0.1:{port}: connection refused: is the daemon running?"
    ]


async def test_another_server_is_told_by_its_status(tmp_path: Path) -> None:
    port = free_port()
    # Its admin address is the public listener of another relayd, which has no /status/events.
    (tmp_path / "other").mkdir()
    async with daemon(tmp_path / "other", config(port, "[]"), ("127.0.0.1", port)):
        (tmp_path / "config.toml").write_text(config(free_port(), f'"127.0.0.1:{port}"'))
        code, process = await top(tmp_path)
    assert code == 1
    assert process.err == [f"relayd: 127.0.0.1:{port} answers with status 404"]


class Terminal:
    """A pseudo-terminal and what was drawn on it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        os.set_blocking(self.ours, False)
        self.drawn = ""

    async def run(self, *arguments: str) -> asyncio.subprocess.Process:
        """relayd, drawing on this terminal."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "relayd",
            *arguments,
            cwd=PROJECT,
            stdout=self.theirs,
            stderr=asyncio.subprocess.PIPE,
        )

    async def until(self, words: str) -> None:
        async with asyncio.timeout(READY_CAP):
            while words not in self.drawn:
                await asyncio.sleep(0.02)
                try:
                    self.drawn += os.read(self.ours, 65536).decode(errors="replace")
                except (BlockingIOError, OSError):
                    continue

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_in_a_terminal_it_is_live_until_interrupted_and_leaves_no_trace(
    tmp_path: Path, by: signal.Signals
) -> None:
    async with running(tmp_path, f'"unix:{tmp_path}/admin.sock"'):
        terminal = Terminal()
        process = await terminal.run("top", "-c", str(tmp_path / "config.toml"))
        try:
            await terminal.until(ENTER)
            await terminal.until("of-the-test")
            terminal.drawn = ""
            await terminal.until("of-the-test")  # drawn again, in the same place
            assert ENTER not in terminal.drawn
            process.send_signal(by)
            await terminal.until(LEAVE)
            _, errors = await process.communicate()
        finally:
            terminal.close()
    assert (process.returncode, errors) == (0, b"")


async def test_a_daemon_that_stops_ends_it_with_the_terminal_restored(tmp_path: Path) -> None:
    async with running(tmp_path, f'"unix:{tmp_path}/admin.sock"') as served:
        terminal = Terminal()
        process = await terminal.run("top", "-c", str(tmp_path / "config.toml"))
        try:
            await terminal.until("of-the-test")
            served.signal(signal.SIGTERM)
            await terminal.until(LEAVE)
            _, errors = await process.communicate()
        finally:
            terminal.close()
    assert process.returncode == 1
    assert b"the daemon has ended the stream" in errors
