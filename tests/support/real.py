"""Real programs as subprocesses: relayd itself, nginx, redis-server. In real time.

Each is a context that waits until the program answers and ends it again. What a program prints is
in `output`. Knows command lines and ports, not what the programs are asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from .client import Address, RawClient

PROJECT = Path(__file__).parents[2]

READY_CAP = 15.0
"""Real time (s) that a program may take to answer its first connection."""

POLL = 0.02
"""Real time (s) between two tries."""

PORTS = range(12_000, 32_768)
"""Below those that Linux gives to clients and to whoever binds port 0."""

END_CAP = 10.0
"""Real time (s) between asking a program to end and killing it."""


LOOP = os.environ.get("RELAYD_TEST_LOOP", "asyncio")
"""The event loop of every daemon whose test asks for none by name."""


def on_loop(config: str) -> str:
    """The TOML text, with `LOOP` in its `[server]` table if it names no loop."""
    if re.search(r"(?m)^loop *=", config):
        return config
    return re.sub(r"(?m)^\[server\]$", f'[server]\nloop = "{LOOP}"', config, count=1)


def need(program: str) -> str:
    """The path of a program. Where it is missing the test is skipped, or fails if
    RELAYD_REQUIRE_SERVICES is set."""
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found:
        return found
    words = f"{program} is not installed"
    if os.environ.get("RELAYD_REQUIRE_SERVICES"):
        pytest.fail(words)
    pytest.skip(words)


def free_port() -> int:
    """A TCP port on loopback that nobody listens on; the kernel gives it to nobody meanwhile."""
    while True:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Running:
    """A subprocess; its output is read as it comes, line by line, both streams apart."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._more = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._read(stream, lines))
            for stream, lines in ((process.stdout, self.out), (process.stderr, self.err))
            if stream is not None
        ]

    @classmethod
    async def start(
        cls,
        *command: str,
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        cwd: Path = PROJECT,
    ) -> Running:
        """`env` is added to this process's environment; an empty value takes a variable out."""
        merged = {k: v for k, v in {**os.environ, **(env or {})}.items() if v}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, env=merged, pass_fds=pass_fds, cwd=cwd, stdout=pipe, stderr=pipe
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        """Everything printed so far, for messages of failed tests."""
        return "\n".join([*self.out, *self.err])

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out if line.startswith("{")]

    def memory(self, which: str = "VmRSS") -> int:
        """Bytes of the process that are in memory; `VmHWM`: at most so far."""
        rows = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        (row,) = [row for row in rows if row.startswith(which)]
        return int(row.split()[1]) * 1024

    @property
    def loop(self) -> str:
        """The event loop that the daemon runs on: who has uvloop has loaded its library."""
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        return "uvloop" if "/uvloop/" in maps else "asyncio"

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def line(self, wanted: Callable[[str], bool], cap: float = READY_CAP) -> str:
        """The first line, of either stream, that is wanted, as soon as it is there."""
        async with asyncio.timeout(cap), self._more:
            while True:
                for line in [*self.out, *self.err]:
                    if wanted(line):
                        return line
                await self._more.wait()

    async def ended(self, cap: float = END_CAP) -> int:
        """The exit code (negative: the signal), after all output was read."""
        async with asyncio.timeout(cap):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    async def stop(self) -> int:
        """SIGTERM if it still runs, SIGKILL if that does not help."""
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            return await self.ended()
        except TimeoutError:
            self.process.kill()
            await self.ended()
            raise AssertionError(f"expected an end on SIGTERM, got none:\n{self.output}") from None

    async def answers(self, address: Address) -> None:
        """Wait until somebody accepts connections at `address`."""
        until = time.monotonic() + READY_CAP
        while not await _accepts(address):
            dead = self.process.returncode is not None
            assert not dead, f"the program ended before it listened:\n{self.output}"
            assert time.monotonic() < until, f"nobody listens at {address}:\n{self.output}"
            await asyncio.sleep(POLL)

    async def _read(self, stream: asyncio.StreamReader, lines: list[str]) -> None:
        async for line in stream:
            async with self._more:
                lines.append(line.decode(errors="replace").rstrip("\n"))
                self._more.notify_all()


async def _accepts(address: Address) -> bool:
    try:
        async with RawClient(address):
            return True
    except OSError:
        return False


@asynccontextmanager
async def program(*command: str, **options: Any) -> AsyncIterator[Running]:
    """Any program, ended at the end of the block; options as for `Running.start`."""
    running = await Running.start(*command, **options)
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def relayd(*arguments: str, **options: Any) -> AsyncIterator[Running]:
    """`relayd ARGUMENTS` from this project's sources."""
    async with program(sys.executable, "-m", "relayd", *arguments, **options) as running:
        yield running


@asynccontextmanager
async def daemon(
    folder: Path, config: str, address: Address, *arguments: str, **options: Any
) -> AsyncIterator[Running]:
    """`relayd serve` with this TOML text, once it listens at `address`, which the text names."""
    file = folder / "config.toml"
    file.write_text(on_loop(config))
    async with relayd("serve", "-c", str(file), *arguments, **options) as running:
        await running.answers(address)
        yield running


NGINX = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{http}
}}
"""


@asynccontextmanager
async def nginx(folder: Path, http: str, address: Address) -> AsyncIterator[Running]:
    """nginx with `http` inside its http block, once it listens at `address`."""
    binary = need("nginx")
    user = "user root;" if os.geteuid() == 0 else ""  # or its worker cannot enter `folder`
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, http=http, user=user))
    async with program(binary, "-p", str(folder), "-e", "stderr", "-c", str(file)) as running:
        await running.answers(address)
        yield running


@asynccontextmanager
async def redis_server(folder: Path, port: int, *arguments: str) -> AsyncIterator[Running]:
    """An empty redis-server on loopback that writes nothing to disk."""
    binary = need("redis-server")
    fixed = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    async with program(binary, *fixed, *arguments) as running:
        await running.answers(("127.0.0.1", port))
        yield running
