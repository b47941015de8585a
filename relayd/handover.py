"""From one generation of a daemon to the next, without a moment in which nobody accepts.

The old one starts the next with its listening sockets (`launcher` sees to it that it becomes a
child of the service manager) and waits for its word on a channel. Then it has the manager told and
lets the next one go on; both have been accepting meanwhile. If the next one ends or stays silent it
is gone and nothing has changed.

Does not know what is served, nor what the old generation does afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from pathlib import Path

from .sdnotify import FIRST_FD, watchdog_period

READY_SECONDS = 30.0
"""How long the next generation may take to serve: as long as systemd grants a start (the unit)."""

GO_SECONDS = 5.0
"""How long the next generation waits to be told to go on; it serves already."""

LAUNCHER = str(Path(__file__).with_name("launcher.py"))

CHANNEL = "RELAYD_HANDOVER"
"""The variable that holds the channel's descriptor in the next generation."""

WORD_BYTES = 32
"""A process id and a line end, which is all that is said."""


class HandoverFailed(Exception):
    """The next generation does not serve; the text says what became of it."""


@contextlib.asynccontextmanager
async def successor(listeners: Sequence[tuple[str, int]]) -> AsyncIterator[int]:
    """Start the next generation with these sockets (name, descriptor); its pid once it serves.

    Inside of the block it is nobody's child here, and waits; at the end of it, it goes on. Raises
    HandoverFailed, and leaves no process then, nor when it is cancelled.
    """
    if os.getpid() == 1:
        raise HandoverFailed("process 1 has nobody to hand over to: restart the container instead")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    hand, leash = socket.socketpair()
    with ours, hand:
        with theirs, leash:
            launcher = await _launch(listeners, theirs.fileno(), leash.fileno())
        try:
            pid = await _ready(ours, launcher)
        except BaseException:
            with contextlib.suppress(OSError):  # nobody is there any more
                hand.send(b"k")
            await launcher.wait()
            raise
        hand.close()
        await launcher.wait()
        yield pid


async def _launch(
    listeners: Sequence[tuple[str, int]], channel: int, leash: int
) -> asyncio.subprocess.Process:
    descriptors = [fd for _, fd in listeners]
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", LAUNCHER, str(leash), str(channel)),
            *(",".join(map(str, descriptors)), *command()),
            pass_fds=(*descriptors, channel, leash),
            env=environment(os.environ, [name for name, _ in listeners], os.getpid()),
        )
    except OSError as error:
        raise HandoverFailed(f"it cannot be started: {error.strerror}") from error


async def _ready(channel: socket.socket, launcher: asyncio.subprocess.Process) -> int:
    try:
        async with asyncio.timeout(READY_SECONDS):
            word = await asyncio.get_running_loop().sock_recv(channel, WORD_BYTES)
            if word:
                return int(word)
            code = await launcher.wait()
    except TimeoutError:
        raise HandoverFailed(f"it did not serve within {READY_SECONDS:g} s") from None
    raise HandoverFailed(f"it ended with exit code {code}; its own line on stderr says why")


def command() -> list[str]:
    """What this process was started with, on what may be a newer version by now."""
    return [sys.executable, *sys.orig_argv[1:]]


def environment(environ: Mapping[str, str], names: Sequence[str], pid: int) -> dict[str, str]:
    """The next generation's variables, given those of `pid`; `launcher` adds its process id."""
    given = dict(environ)
    if watchdog_period(environ, pid) is None:
        given.pop("WATCHDOG_USEC", None)
    given["LISTEN_FDS"] = str(len(names))
    given["LISTEN_FDNAMES"] = ":".join(names)
    given[CHANNEL] = str(FIRST_FD + len(names))
    return given


class Predecessor:
    """The old generation as the next one sees it: `take` gives one only where there is one."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Predecessor | None:
        """The one whose channel stands in `environ`, which is then forgotten there."""
        number = environ.pop(CHANNEL, "")
        if not number:
            return None
        try:
            channel = socket.socket(fileno=int(number))
        except (OSError, ValueError):
            return None  # a variable that has outlived its channel
        channel.set_inheritable(False)
        channel.setblocking(False)
        return cls(channel)

    async def relieve(self) -> None:
        """Say that this process serves; return when it has taken over, or the old one is gone."""
        loop = asyncio.get_running_loop()
        with self._channel:
            try:
                async with asyncio.timeout(GO_SECONDS):
                    await loop.sock_sendall(self._channel, b"%d\n" % os.getpid())
                    await loop.sock_recv(self._channel, WORD_BYTES)
            except (OSError, TimeoutError):
                pass  # it died; the sockets are here, so there is nothing else to do than serve
