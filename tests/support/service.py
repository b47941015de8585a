"""What stands around a daemon: a service manager that listens, traffic that must not notice.

`Manager` is the receiving end of NOTIFY_SOCKET, `Streams` a provider with many answers under way,
`asking` a client that asks one thing after the other. `generations` runs a daemon that may be
replaced by others, and ends them all. In real time; waits for messages and log lines.
"""

from __future__ import annotations

import array
import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from . import builders
from .client import Address, RawClient, Response
from .gateway import CHAT
from .provider import Peer, Request, ScriptedProvider
from .real import END_CAP, READY_CAP, Running, free_port, on_loop, program
from .wire import Ended

SCM_CREDENTIALS = 2
"""Linux's number; Python's socket module has no name for it."""

PACE = 0.02
"""Seconds between two events of a running stream."""


# ---- the service manager


@dataclass(frozen=True, slots=True)
class Message:
    """One datagram: who sent it, its assignments."""

    pid: int
    text: str

    def value(self, name: str) -> str | None:
        """The value of one assignment."""
        for line in self.text.split("\n"):
            key, _, value = line.partition("=")
            if key == name:
                return value
        return None


class Manager:
    """Listens where NOTIFY_SOCKET points and remembers what every process said."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify.sock")
        self.messages: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(self.path)
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    async def heard(
        self, name: str, value: str | None = None, *, pid: int | None = None, after: int = 0
    ) -> Message:
        """The first message behind the first `after` ones that assigns this, once it is there."""

        def wanted(message: Message) -> bool:
            given = message.value(name)
            return given is not None and value in (None, given) and pid in (None, message.pid)

        return await self._wait(wanted, after)

    async def heard_of(self, name: str, part: str) -> Message:
        """The first message that assigns something that holds `part`, once it is there."""
        return await self._wait(lambda message: part in (message.value(name) or ""), 0)

    async def _wait(self, wanted: Callable[[Message], bool], after: int) -> Message:
        async with asyncio.timeout(READY_CAP):
            while True:
                for message in self.messages[after:]:
                    if wanted(message):
                        return message
                self._news.clear()
                await self._news.wait()

    def _read(self) -> None:
        room = socket.CMSG_SPACE(array.array("i", [0, 0, 0]).itemsize * 3)
        data, notes, _, _ = self._socket.recvmsg(65536, room)
        credentials = array.array("i")
        for _, kind, content in notes:
            if kind == SCM_CREDENTIALS:
                credentials.frombytes(content[:12])
        self.messages.append(Message(credentials[0], data.decode()))
        self._news.set()


# ---- traffic


class Streams:
    """Answers that go on until `finish` is set. As a provider's script: `streams.script`."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.sent: dict[str, bytes] = {}

    async def script(self, peer: Peer, request: Request) -> None:
        """A stream whose every event is different; a request without `stream` is answered whole."""
        body = request.json()
        name = body["messages"][-1]["content"]
        if not body.get("stream"):
            await peer.json(200, builders.completion(name))
            return
        self.sent[name] = b""
        await peer.stream_head()
        await self._event(peer, name, builders.role())
        number = 0
        while not self.finish.is_set():
            number += 1
            await self._event(peer, name, builders.delta(f"{name}.{number}"))
            with suppress(TimeoutError):
                async with asyncio.timeout(PACE):
                    await self.finish.wait()
        for event in (builders.finish(), builders.DONE):
            await self._event(peer, name, event)
        await peer.last_chunk()

    async def _event(self, peer: Peer, name: str, event: bytes) -> None:
        self.sent[name] += event
        await peer.chunk(event)


@dataclass(slots=True)
class Reader:
    """One client of a running stream."""

    name: str
    client: RawClient
    answer: Response

    async def rest(self, streams: Streams) -> None:
        """Read to the end: every byte that the provider sent, once, and a proper end."""
        async with asyncio.timeout(READY_CAP):
            await self.answer.read()
        assert self.answer.ended is Ended.CHUNKS, f"{self.name}: {self.answer.ended}"
        assert self.answer.body == streams.sent[self.name], f"{self.name}: bytes differ"
        assert self.answer.body.endswith(builders.DONE)


@asynccontextmanager
async def readers(address: Address, count: int, name: str = "s") -> AsyncIterator[list[Reader]]:
    """So many streams, each on its own connection, their first content read."""
    found: list[Reader] = []
    try:
        for number in range(count):
            client = RawClient(address)
            await client.connect()
            found.append(await _begin(client, f"{name}{number}"))
        yield found
    finally:
        for reader in found:
            reader.client.close()


async def _begin(client: RawClient, name: str) -> Reader:
    answer = await client.open_stream(CHAT, builders.chat(name, stream=True))
    assert answer.status == 200
    await answer.piece()
    return Reader(name, client, answer)


async def arrived(provider: ScriptedProvider, count: int = 1) -> None:
    """Wait until so many requests are with the provider."""
    async with asyncio.timeout(READY_CAP):
        while len(provider.requests) < count:  # noqa: ASYNC110  (it has no event for it)
            await asyncio.sleep(PACE)


def exists(path: str) -> bool:
    """Whether there is such a file."""
    return Path(path).exists()


@dataclass(slots=True)
class Asked:
    """What became of one request after the other."""

    count: int = 0
    closed: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)


async def ask(address: Address, asked: Asked, path: str = CHAT) -> None:
    """Ask until told to stop, as a proxy does: on a connection that is kept as long as it may.

    Fails on anything that is no whole 200.
    """
    while not asked.stop.is_set():
        async with RawClient(address) as client:
            kept = True
            while kept and not asked.stop.is_set():
                answer = await client.post_json(path, builders.chat("loop"))
                assert answer.status == 200, (answer.status, answer.text)
                assert answer.whole
                asked.count += 1
                kept = answer.field("Connection") != "close"
            asked.closed += not kept


@asynccontextmanager
async def asking(*addresses: Address) -> AsyncIterator[Asked]:
    """Several clients that ask all the time, one for each address; none may see an error."""
    asked = Asked()
    async with asyncio.TaskGroup() as group:
        for address in addresses:
            group.create_task(ask(address, asked))
        yield asked
        asked.stop.set()


# ---- daemons


class Generations:
    """A daemon and those that replace it; all write to the same two pipes."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.pids = [running.pid]

    @property
    def log(self) -> list[dict[str, Any]]:
        return self.running.log

    @property
    def pid(self) -> int:
        """The youngest one's."""
        return self.pids[-1]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        return [line for line in self.log if line.get("event") == name]

    async def line(self, *parts: str) -> None:
        """Wait for a line of either stream that holds all of these."""
        try:
            await self.running.line(lambda line: all(part in line for part in parts))
        except TimeoutError:
            raise AssertionError(f"no line with {parts}:\n{self.running.output}") from None

    def signal(self, number: signal.Signals) -> None:
        """To the youngest one."""
        os.kill(self.pid, number)

    async def upgrade(self) -> int:
        """Have the youngest one replaced; the old one's process id, which may still run."""
        old = self.pid
        self.signal(signal.SIGUSR2)
        number = len(self.pids)
        await self.running.line(lambda _: len(self.takeovers) >= number)
        self.pids.append(int(self.takeovers[-1]["successor"]))
        return old

    @property
    def takeovers(self) -> list[dict[str, Any]]:
        """The log lines that say who has taken over."""
        return [line for line in self.events("upgrade") if "successor" in line]


async def gone(pid: int, cap: float = END_CAP) -> None:
    """Wait for the end of a process that is no child of ours."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        async with asyncio.timeout(cap):
            await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


@asynccontextmanager
async def generations(
    folder: Path,
    config: str,
    env: Mapping[str, str] | None = None,
    sockets: Sequence[tuple[str, socket.socket]] = (),
    own: Sequence[str] = (),
) -> AsyncIterator[Generations]:
    """`relayd serve` with this TOML text, from its `start` line on; ended with all successors.

    It finds `sockets` (name, socket) from descriptor 3 on, as systemd hands them over. `own` are
    variables that hold its process id.
    """
    file = folder / "config.toml"
    file.write_text(on_loop(config))
    exports = "".join(f"export {name}=$$; " for name in ("LISTEN_PID", *own))
    script = f'{exports} exec "$0" -m relayd serve -c "$1"'
    given = {
        "LISTEN_FDS": str(len(sockets)),
        "LISTEN_FDNAMES": ":".join(name for name, _ in sockets),
        **(env or {}),
    }
    moves = "".join(f" {n}<&{sock.fileno()}" for n, (_, sock) in enumerate(sockets, 3))
    command = ("bash", "-c", script + moves, sys.executable, str(file))
    fds = [sock.fileno() for _, sock in sockets]
    async with program(*command, env=given, pass_fds=fds) as running:
        found = Generations(running)
        await found.line('"event":"start"')
        try:
            yield found
        finally:
            for line in found.takeovers:
                with suppress(ProcessLookupError):
                    os.kill(int(line["successor"]), signal.SIGKILL)


def config(listen: Sequence[Address], *providers: ScriptedProvider, more: str = "") -> str:
    """TOML text. `more` begins with tables; lines before its first one belong to `[server]`."""
    places = [f"unix:{a}" if isinstance(a, str) else f"{a[0]}:{a[1]}" for a in listen]
    tables = "".join(
        f'[[provider]]\nname = "{p.name}"\nbase_url = "{p.base_url}"\nmodel = "m"\n'
        for p in providers
    )
    return on_loop(f"[server]\nlisten = {places}\n{more}\n{tables}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a daemon of a test listens."""

    tcp: tuple[str, int]
    unix: str

    @classmethod
    def free(cls, folder: Path) -> Place:
        """A free port, and a path in `folder`."""
        return cls(("127.0.0.1", free_port()), str(folder / "relayd.sock"))

    @property
    def both(self) -> tuple[Address, Address]:
        return self.tcp, self.unix
