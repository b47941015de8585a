"""What outlives a request: the configuration, the engine, the servers; start, reload, drain.

One `App` is one running relayd inside an event loop. Its parts are swapped or kept here on a
reload; the process around it (signals, systemd, the command line) is `daemon`'s.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence

from .accesslog import Log
from .admin import Admin, Told
from .config import Config, Format
from .dial import small_tls_buffers
from .endpoints import Endpoints
from .engine import Setup
from .runtime import Runtime
from .server import Server
from .session import Rules

CLOSE_GRACE = 1.0
"""Seconds for the last words of exchanges whose drain is over."""


class App:
    """A relayd. `start` it once, `stop` it once; both in the same event loop.

    `write` takes log lines as bytes; `log_sink` (instead) as text, one line a call.
    """

    def __init__(
        self,
        config: Config,
        *,
        write: Callable[[bytes], None] | None = None,
        log_sink: Callable[[str], None] | None = None,
        priorities: bool = False,
        text: bool = False,
    ) -> None:
        self.config = config
        self._rules = rules(config)
        self._text = text
        setup = Setup.of(config)
        self.log = Log(
            write or _lines_to(log_sink),
            level=config.log.level.value,
            format=self._format(config),
            priorities=priorities,
            mask=setup.mask,
            wall=time.time,
        )
        told = Told(self.log) if config.admin.listen else None
        self.runtime = Runtime(setup, told or self.log)
        self.engine = self.runtime.engine
        self.endpoints = Endpoints(self.engine, lambda: self.server.draining)
        self.server = Server(
            self.endpoints.serve,
            lambda: self._rules,
            lambda: self.config.server.trusted_proxies,
            lambda: self.config.server.max_connections,
            self.engine.fault,
        )
        self.admin = (
            Admin(self.engine, self.runtime.link, self.endpoints, self.server, told)
            if told
            else None
        )
        self._drain: asyncio.Task[bool] | None = None

    @property
    def addresses(self) -> list[tuple[str, int] | str]:
        """Where it listens: (host, port), or the path of a unix socket."""
        return [
            name if isinstance(name := sock.getsockname(), str) else (name[0], name[1])
            for sock in self.server.sockets
        ]

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on the given sockets or on the configured addresses; raises `ListenError`."""
        small_tls_buffers()
        server = self.config.server
        for sock in sockets:
            await self.server.adopt(sock)
        for address in () if sockets else server.listen:
            await self.server.listen(
                address, unix_mode=server.unix_mode, reuse_port=server.reuse_port
            )
        if self.admin is not None:
            await self.admin.start(self.config.admin.listen, server.unix_mode)
        self.runtime.start()

    def reload(self, config: Config) -> None:
        """Swap the configuration; what is unchanged keeps its state."""
        setup = Setup.of(config)
        self.config = config
        self.runtime.reload(setup)
        if self.admin is not None:
            self.admin.configure(config)
        self.log.configure(
            level=config.log.level.value, format=self._format(config), mask=setup.mask
        )

    async def stop(self, drain: float) -> None:
        """Accept no more, let exchanges finish for `drain` seconds, then end them honestly."""
        self.server.draining = True
        self.server.close_listeners()
        self._drain = asyncio.get_running_loop().create_task(self.engine.idle(drain))
        await asyncio.wait([self._drain])
        await self.server.close(CLOSE_GRACE)
        if self.admin is not None:
            await self.admin.stop(CLOSE_GRACE)
        await self.runtime.close()

    def hurry(self) -> None:
        """End the drain now."""
        if self._drain is not None:
            self._drain.cancel()

    # Inside.

    def _format(self, config: Config) -> str:
        if config.log.format is Format.AUTO:
            return "text" if self._text else "json"
        return config.log.format.value


def rules(config: Config) -> Rules:
    """The server's limits as configured."""
    server = config.server
    return Rules(
        server.max_head_bytes,
        server.max_request_bytes,
        server.head_timeout,
        server.body_timeout,
        server.idle_timeout,
    )


def _lines_to(sink: Callable[[str], None] | None) -> Callable[[bytes], None]:
    return (lambda line: sink(line.decode().rstrip("\n"))) if sink else (lambda _: None)
