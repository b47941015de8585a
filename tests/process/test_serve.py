"""`relayd serve`, `check` and `--version` as processes: exit codes, start-up errors, sockets, ends.

In real time: each wait is for an event, and each is bounded.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relayd import __version__
from tests.support import builders
from tests.support.client import Address, RawClient
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.real import PROJECT, Running, daemon, on_loop, program, relayd
from tests.support.scripts import events, ok

CHAT = "/v1/chat/completions"
STREAM = builders.chat(stream=True)
KEY = "sk-canary-0123456789abcdef"


def text(provider: ScriptedProvider | None, address: Address, **server: Any) -> str:
    """A configuration that listens at the address, with one provider."""
    listen = f"unix:{address}" if isinstance(address, str) else f"127.0.0.1:{address[1]}"
    base = provider.base_url if provider else "http://127.0.0.1:9/v1"
    rows = "".join(f"{name} = {json.dumps(value)}\n" for name, value in server.items())
    return on_loop(
        f'[server]\nlisten = "{listen}"\n{rows}'
        f'[log]\nformat = "json"\n[[provider]]\nname = "a"\nbase_url = "{base}"\n'
    )


@asynccontextmanager
async def serving(
    folder: Path, provider: ScriptedProvider, address: Address, **server: Any
) -> AsyncIterator[Running]:
    async with daemon(folder, text(provider, address, **server), address) as running:
        yield running


async def ended(*arguments: str, cap: float = 10.0, **env: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that ends by itself."""
    async with relayd(*arguments, env=env) as running:
        code = await running.ended(cap)
        return code, "\n".join(running.out), "\n".join(running.err)


def written(folder: Path, config: str) -> str:
    file = folder / "config.toml"
    file.write_text(config)
    return str(file)


def there(path: str | Path) -> bool:
    """Something has this name, if only a link to nowhere."""
    return os.path.lexists(path)


def one_line(err: str) -> str:
    """What is on stderr, which has to be one line and no traceback."""
    assert len(err.splitlines()) == 1, err
    assert "Traceback" not in err
    return err


# ---- --version, --help, usage


async def test_version_is_one_line() -> None:
    assert await ended("--version") == (0, f"relayd {__version__}", "")


@pytest.mark.parametrize("command", ["serve", "check", "send", "demo", "healthcheck", "top"])
async def test_every_command_has_a_help(command: str) -> None:
    code, out, err = await ended(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: relayd {command}")


@pytest.mark.parametrize(
    "arguments",
    [[], ["nonsense"], ["serve", "--nonsense"], ["check", "-c"], ["serve", "--env", "-c", "x"]],
)
async def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    code, out, err = await ended(*arguments)
    assert (code, out) == (2, "")
    assert "usage: relayd" in err


# ---- check

FAULTY = """
[server]
listen = "127.0.0.1:99999"
[clocks]
conect = 3
deadline = -1
[[provider]]
name = "a"
base_url = "http://u:p@127.0.0.1:9/v1"
[[provider]]
name = "a"
base_url = "http://127.0.0.1:9/v1"
key_env = "ABSENT_KEY"
"""


@pytest.mark.parametrize("command", ["check", "serve"])
async def test_five_faults_are_named_at_once(command: str, tmp_path: Path) -> None:
    file = written(tmp_path, FAULTY)
    code, out, err = await ended(command, "-c", file)
    assert (code, out) == (78, "")
    lines = err.splitlines()
    assert len(lines) >= 5
    assert all(line.startswith(f"{file}: ") for line in lines)
    for word in ("server.listen", "clocks.conect", "clocks.deadline", "base_url", "ABSENT_KEY"):
        assert sum(word in line for line in lines) >= 1, f"{word} is not named"
    assert 'did you mean "connect"?' in err
    assert "Traceback" not in err
    assert "u:p@" not in err


async def test_a_good_file_is_exit_0(tmp_path: Path) -> None:
    file = written(tmp_path, text(None, ("127.0.0.1", 0)))
    code, out, err = await ended("check", "-c", file)
    assert (code, err) == (0, "")
    assert "ok" in out


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"this is no toml", "config.toml"), (b"\xff\xfe", "config.toml"), (b"", "provider")],
)
@pytest.mark.parametrize("command", ["check", "serve"])
async def test_a_file_that_is_none_is_exit_78(
    command: str, content: bytes, word: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_bytes(content)
    code, out, err = await ended(command, "-c", str(tmp_path / "config.toml"))
    assert (code, out) == (78, "")
    assert word in one_line(err)


@pytest.mark.parametrize("command", ["check", "serve"])
async def test_a_missing_file_is_exit_78_and_named(command: str, tmp_path: Path) -> None:
    code, _, err = await ended(command, "-c", str(tmp_path / "absent.toml"))
    assert code == 78
    assert str(tmp_path / "absent.toml") in one_line(err)


async def test_a_key_with_a_control_character_is_named_by_its_variable_alone(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, text(None, ("127.0.0.1", 0)) + 'key_env = "A_KEY"\n')
    code, _, err = await ended("serve", "-c", file, A_KEY=f"{KEY}\x01x")
    assert code == 78
    assert "A_KEY" in one_line(err)
    assert KEY not in err


async def test_the_file_is_found_by_variable_and_by_systemds_folder(tmp_path: Path) -> None:
    file = written(tmp_path, text(None, ("127.0.0.1", 0)))
    assert (await ended("check", RELAYD_CONFIG=file))[0] == 0
    assert (await ended("check", CONFIGURATION_DIRECTORY=str(tmp_path)))[0] == 0


@pytest.mark.parametrize("command", ["check", "serve"])
async def test_every_package_that_is_missing_is_named_at_once(
    command: str, tmp_path: Path
) -> None:
    for package in ("redis", "uvloop"):
        (tmp_path / f"{package}.py").write_text("raise ImportError")
    wanted = text(None, ("127.0.0.1", 0), loop="uvloop")
    file = written(tmp_path, f'store.url = "redis://h"\n{wanted}')
    code, out, err = await ended(command, "-c", file, PYTHONPATH=str(tmp_path))
    assert (code, out) == (78, "")
    loop, store = err.splitlines()
    assert loop == f'{file}: server.loop: uvloop is not installed: pip install "relayd[uvloop]"'
    assert store.startswith(f"{file}: store.url: a redis store needs the redis package: pip ")


async def test_log_lines_that_a_full_disk_does_not_take_are_counted(tmp_path: Path) -> None:
    admin = str(tmp_path / "admin.sock")
    config = f'admin.listen = "unix:{admin}"\n' + text(None, ("127.0.0.1", 0))
    command = f"exec {sys.executable} -m relayd serve -c {written(tmp_path, config)} >/dev/full"
    async with program("sh", "-c", command) as running:
        await running.answers(admin)
        async with RawClient(admin) as client:
            page = ""
            while not re.search(r"(?m)^relayd_log_lines_lost_total [1-9]", page):
                page = (await client.get("/metrics")).text
    assert "# TYPE relayd_log_lines_lost_total counter" in page


# ---- listening


async def test_the_first_line_says_where_it_listens(tmp_path: Path, free_port: int) -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with serving(tmp_path, a, ("127.0.0.1", free_port)) as running:
            line = json.loads(await running.line(lambda line: '"start"' in line))
            assert f"127.0.0.1:{free_port}" in line["message"]
            assert (line["level"], line["pid"]) == ("info", running.pid)


async def test_listen_on_the_command_line_goes_before_the_file(
    tmp_path: Path, free_port: int
) -> None:
    file = written(tmp_path, text(None, ("127.0.0.1", 1)))
    async with relayd("serve", "-c", file, "--listen", f"127.0.0.1:{free_port}") as running:
        await running.answers(("127.0.0.1", free_port))


IN_USE = "address already in use; stop what listens there, or choose another"


@pytest.mark.parametrize("key", ["server.listen", "admin.listen", "--listen", "PORT"])
async def test_a_port_in_use_is_one_line_with_its_key(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        at = f"127.0.0.1:{port}"
        public = port if key == "server.listen" else 0
        admin = f'[admin]\nlisten = "{at}"\n' if key == "admin.listen" else ""
        file = written(tmp_path, text(None, ("", public)) + admin)
        source, command, env = file, ["-c", file], {}
        if key == "--listen":
            command += ["--listen", at]
        if key == "PORT":
            source, command = "environment", ["--env"]
            env = {"PORT": port, "PROVIDER": "ollama", "OLLAMA_MODEL": "m"}
        code, _, err = await ended("serve", *command, **env)
    assert code == 1
    assert one_line(err) == f"relayd: {source}: {key}: cannot listen on {at}: {IN_USE}"


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("192.0.2.1:8080", "cannot assign requested address; choose an address of this machine"),
        ("unix:/nowhere/relayd.sock", "no such file or directory; create its folder first"),
        ("nobody.invalid:8080", "name or service not known; choose an address of this machine"),
        ("unix:/dev/null/a", "not a directory; name a path in a folder"),
    ],
)
async def test_a_place_one_cannot_have_is_one_line_with_a_remedy(
    tmp_path: Path, listen: str, why: str
) -> None:
    file = written(tmp_path, text(None, ("", 0)))
    code, _, err = await ended("serve", "-c", file, "--listen", listen)
    assert code == 1
    assert one_line(err) == f"relayd: {file}: --listen: cannot listen on {listen}: {why}"


# ---- unix sockets: their mode, and what may be in the way


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(("mode", "bits"), [(None, 0o660), ("0600", 0o600), ("0666", 0o666)])
async def test_a_unix_socket_has_its_mode_whatever_the_umask(
    mode: str | None, bits: int, umask: int, tmp_path: Path
) -> None:
    path = str(tmp_path / "s")
    server = {} if mode is None else {"unix_mode": mode}
    before = os.umask(umask)
    try:
        async with ScriptedProvider(ok(), name="a") as a, serving(tmp_path, a, path, **server):
            assert stat.S_IMODE(os.stat(path).st_mode) == bits
            async with RawClient(path) as client:
                assert (await client.post_json(CHAT, builders.chat())).status == 200
    finally:
        os.umask(before)


async def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with ScriptedProvider(ok(), name="a") as a:
        async with serving(tmp_path, a, path) as running:
            running.signal(signal.SIGKILL)
            await running.ended()
        assert there(path), "the socket of a killed process stays behind"
        async with serving(tmp_path, a, path):
            async with RawClient(path) as client:
                assert (await client.get("/healthz")).status == 200


async def test_a_live_socket_is_refused_and_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with ScriptedProvider(ok(), name="a") as a, serving(tmp_path, a, path):
        code, _, err = await ended("serve", "-c", str(tmp_path / "config.toml"))
        assert code == 1
        assert f"unix:{path}" in one_line(err)
        async with RawClient(path) as client:
            assert (await client.get("/healthz")).status == 200


@pytest.mark.parametrize("kind", ["file", "folder", "link to a file", "dangling link"])
async def test_whatever_else_is_in_the_way_is_refused_and_kept(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    precious = tmp_path / "precious"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        if kind == "link to a file":
            precious.write_text("precious")
        path.symlink_to(precious)
    code, _, err = await ended("serve", "-c", written(tmp_path, text(None, str(path))))
    assert code == 1
    assert f"unix:{path}" in one_line(err)
    assert there(path)
    if kind == "file":
        assert path.read_text() == "precious"


async def test_a_socket_in_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "s"
    code, _, err = await ended("serve", "-c", written(tmp_path, text(None, str(path))))
    assert code == 1
    assert f"unix:{path}" in one_line(err)


async def test_the_socket_file_is_gone_after_an_orderly_end(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    async with ScriptedProvider(ok(), name="a") as a, serving(tmp_path, a, path) as running:
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert not there(path)


# ---- the end


class Gate:
    """A provider's stream that says its first word and goes on when it is told to."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def script(self, peer: Peer, _: Request) -> None:
        await peer.sse(builders.delta("one"), end=False)
        await asyncio.wait(
            [
                asyncio.ensure_future(self.open.wait()),
                left := asyncio.ensure_future(peer.left.wait()),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )
        left.cancel()
        if self.open.is_set():
            for event in (builders.finish(), builders.DONE):
                await peer.chunk(event)
            await peer.last_chunk()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_drain_lets_a_stream_finish_and_closes_everything_else(
    number: signal.Signals, tmp_path: Path, free_port: int
) -> None:
    gate, address = Gate(), ("127.0.0.1", free_port)
    async with ScriptedProvider(gate.script, name="a") as a:
        async with serving(tmp_path, a, address) as running:
            async with RawClient(address) as client, RawClient(address) as idle:
                assert (await idle.get("/healthz")).status == 200
                answer = await client.open_stream(CHAT, STREAM)
                running.signal(number)
                await running.line(lambda line: '"drain"' in line)
                told = await idle.get("/readyz")
                assert (told.status, told.field("Connection")) == (503, "close")
                async with asyncio.timeout(2.0):
                    await idle.ended()
                with pytest.raises(OSError):
                    async with RawClient(address):
                        pass
                gate.open.set()
                await answer.read()
                assert answer.body.endswith(builders.DONE)
                assert answer.whole
            assert await running.ended() == 0
            assert running.log[-1]["event"] == "stop"
            assert running.err == []


async def test_at_the_drains_limit_a_stream_ends_honestly(tmp_path: Path, free_port: int) -> None:
    gate, address = Gate(), ("127.0.0.1", free_port)
    async with ScriptedProvider(gate.script, name="a") as a:
        async with serving(tmp_path, a, address, drain_timeout=1.0) as running:
            async with RawClient(address) as client:
                answer = await client.open_stream(CHAT, STREAM)
                began = time.monotonic()
                running.signal(signal.SIGTERM)
                await answer.read()
                assert b'"code":"shutting_down"' in answer.body
                assert b"[DONE]" not in answer.body
            assert await running.ended() == 0
            assert 0.9 < time.monotonic() - began < 3.0
            assert a.open == 0
            ends = [line["end_reason"] for line in running.log if "end_reason" in line]
            assert ends == ["shutting_down"]


async def test_a_second_signal_ends_at_once(tmp_path: Path, free_port: int) -> None:
    gate, address = Gate(), ("127.0.0.1", free_port)
    async with ScriptedProvider(gate.script, name="a") as a:
        async with serving(tmp_path, a, address) as running:
            async with RawClient(address) as client:
                answer = await client.open_stream(CHAT, STREAM)
                running.signal(signal.SIGTERM)
                await running.line(lambda line: '"drain"' in line)
                began = time.monotonic()
                running.signal(signal.SIGTERM)
                await answer.read()
                assert b'"code":"shutting_down"' in answer.body
            assert await running.ended() == 0
            assert time.monotonic() - began < 2.0


async def test_without_work_a_drain_is_immediate(tmp_path: Path, free_port: int) -> None:
    address = ("127.0.0.1", free_port)
    async with ScriptedProvider(ok(), name="a") as a, serving(tmp_path, a, address) as running:
        began = time.monotonic()
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert time.monotonic() - began < 2.0


# ---- reload


async def test_a_reload_takes_the_new_file_and_keeps_the_old_one_if_it_is_broken(
    tmp_path: Path, free_port: int
) -> None:
    address = ("127.0.0.1", free_port)
    async with (
        ScriptedProvider(ok("one"), name="a") as one,
        ScriptedProvider(ok("two"), name="a") as two,
    ):
        async with serving(tmp_path, one, address) as running, RawClient(address) as client:
            assert "one" in (await client.post_json(CHAT, builders.chat())).text
            written(tmp_path, "nonsense")
            running.signal(signal.SIGHUP)
            line = json.loads(await running.line(lambda line: '"error"' in line))
            assert line["event"] == "reload"
            assert "one" in (await client.post_json(CHAT, builders.chat())).text
            written(tmp_path, text(two, address))
            running.signal(signal.SIGHUP)
            await running.line(lambda line: '"reload"' in line and '"info"' in line)
            assert "two" in (await client.post_json(CHAT, builders.chat())).text


async def test_a_running_stream_keeps_its_provider_through_a_reload(
    tmp_path: Path, free_port: int
) -> None:
    gate, address = Gate(), ("127.0.0.1", free_port)
    async with (
        ScriptedProvider(gate.script, name="a") as old,
        ScriptedProvider(ok(), name="b") as new,
    ):
        async with serving(tmp_path, old, address) as running, RawClient(address) as client:
            answer = await client.open_stream(CHAT, STREAM)
            written(tmp_path, text(new, address).replace('name = "a"', 'name = "b"'))
            running.signal(signal.SIGHUP)
            await running.line(lambda line: '"reload"' in line and '"info"' in line)
            gate.open.set()
            await answer.read()
            assert answer.body.endswith(builders.DONE)
            again = await client.post_json(CHAT, builders.chat())
            assert again.field("X-Gateway-Provider") == "b"


# ---- the log as a process writes it


async def test_stdout_is_one_json_object_a_line_and_stderr_is_empty(
    tmp_path: Path, free_port: int
) -> None:
    address = ("127.0.0.1", free_port)
    async with ScriptedProvider(events(*builders.stream("a")), name="a") as a:
        async with serving(tmp_path, a, address) as running:
            async with RawClient(address) as client:
                await client.post_json(CHAT, STREAM)
                await client.post_json(CHAT, b"nonsense")
            running.signal(signal.SIGTERM)
            assert await running.ended() == 0
            assert [json.loads(line)["v"] for line in running.out]
            assert not any(line.startswith("<") for line in running.out)
            assert running.err == []


async def test_a_daemon_whose_stdout_is_gone_serves_on(tmp_path: Path, free_port: int) -> None:
    address = ("127.0.0.1", free_port)
    async with ScriptedProvider(ok(), name="a") as a:
        file = written(tmp_path, text(a, address))
        read, write = os.pipe()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relayd", "serve", "-c", file), stdout=write, cwd=PROJECT
        )
        os.close(write)
        os.close(read)
        try:
            async with asyncio.timeout(15):
                while True:
                    try:
                        async with RawClient(address) as client:
                            answers = [
                                (await client.post_json(CHAT, builders.chat())).status
                                for _ in range(3)
                            ]
                        break
                    except OSError:
                        await asyncio.sleep(0.02)
            assert answers == [200, 200, 200]
        finally:
            process.terminate()
            assert await process.wait() == 0
