"""What outlives a request: the configuration, the engine, the servers; start, reload, drain.

One `App` is one running relayd inside an event loop. Its parts are swapped or kept here on a
reload; the process around it (signals, systemd, the command line) is `daemon`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .accesslog import Log
from .config import Config, Format, Unix
from .endpoints import Endpoints
from .engine import Loaded, Setup
from .runtime import CLOSE_GRACE, Runtime
from .server import Server
from .session import Rules

if TYPE_CHECKING:
    from .admin import Admin, Told


LOOK_AGAIN = 0.02
"""Seconds between two looks at requests that are being read while relayd drains."""


def _to_nobody(line: bytes) -> None:
    """No log is wanted."""


class App:
    """A relayd. `start` it once, `stop` it once; both in the same event loop.

    `write` takes log lines, `lost` says how many of them got lost. `admin`: there is an admin
    listener, whatever the configuration says.
    """

    def __init__(
        self,
        config: Config,
        *,
        write: Callable[[bytes], None] = _to_nobody,
        lost: Callable[[], int] = int,
        priorities: bool = False,
        text: bool = False,
        admin: bool = False,
    ) -> None:
        self.config = config
        self._rules = Rules.of(config)
        self._text = text
        setup = Setup.of(config)
        self.log = Log(
            write,
            level=config.log.level.value,
            format=self._format(config),
            priorities=priorities,
            mask=setup.mask,
            wall=time.time,
        )
        told = _told(self.log) if admin or config.admin.listen else None
        self.runtime = Runtime(setup, told or self.log)
        self.engine = self.runtime.engine
        self.endpoints = Endpoints(self.engine, lambda: self.server.draining)
        self.server = Server(
            self.endpoints.serve,
            lambda: self._rules,
            lambda: self.config.server.max_connections,
            self.engine.fault,
            self.engine.journal.exchange,
        )
        self.admin = self._admin(told, lost) if told else None
        self._patience: asyncio.Timeout | None = None

    @property
    def addresses(self) -> list[tuple[str, int] | str]:
        """Where it listens: (host, port), or the path of a unix socket."""
        return [
            place.path if isinstance(place, Unix) else (place.host, place.port)
            for place in self.server.places
        ]

    async def start(
        self,
        sockets: Sequence[tuple[str, socket.socket]] = (),
        admin: Sequence[tuple[str, socket.socket]] = (),
    ) -> None:
        """Listen, on the given sockets (see `Server.adopt`) or on the configured addresses.

        Raises `ListenError`.
        """
        server = self.config.server
        for name, sock in sockets:
            await self.server.adopt(name, sock)
        for address in () if sockets else server.listen:
            await self.server.listen(
                address,
                f"{self.config.source}: {self.config.listen_key}",
                unix_mode=server.unix_mode,
                reuse_port=server.reuse_port,
            )
        if self.admin is not None:
            await self.admin.start(admin, self.config)
        self.runtime.start()

    def reload(self, config: Config) -> None:
        """Swap the configuration; what is unchanged keeps its state. If it raises, nothing is."""
        setup = Setup.of(config)
        self.config = config
        self._rules = Rules.of(config)
        self.runtime.reload(setup)
        self.engine.loaded = Loaded(time.time())
        if self.admin is not None:
            self.admin.configure(config)
        self.log.configure(
            level=config.log.level.value, format=self._format(config), mask=setup.mask
        )

    def bequeath(self) -> None:
        """Leave the sockets, and the files of unix sockets, to a next generation."""
        self.server.bequeath()
        if self.admin is not None:
            self.admin.server.bequeath()

    async def stop(self, drain: float | None, grace: float = 0.0) -> None:
        """Accept no more, let exchanges finish for `drain` seconds, then end them honestly.

        None: as long as their own clocks allow. With a `grace` idle clients may ask once more until
        so many seconds after the last exchange, and are told then that the connection ends.
        """
        self.server.draining = True
        if not grace:
            self.server.close_listeners(shared=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain) as self._patience:
                await self._quiet(grace)
        self._patience = None
        await self.server.close(CLOSE_GRACE)
        if self.admin is not None:
            await self.admin.stop(CLOSE_GRACE)
        await self.runtime.close()

    def limit(self, seconds: float) -> None:
        """The drain that has begun ends in `seconds` at the latest; 0 ends it now."""
        if self._patience is not None:
            with contextlib.suppress(RuntimeError):  # it is ending already
                self._patience.reschedule(asyncio.get_running_loop().time() + seconds)

    async def _quiet(self, grace: float) -> None:
        now = asyncio.get_running_loop().time
        until = now() + grace
        if grace:
            await asyncio.sleep(LOOK_AGAIN)  # what was accepted a moment ago shows by then
        while True:
            ran = self.engine.running
            await self.engine.idle(None)
            if ran or self.server.busy:
                until = now() + grace
            elif not self.server.connections or now() >= until:
                return
            await asyncio.sleep(LOOK_AGAIN)

    # Inside.

    def _admin(self, told: Told, lost: Callable[[], int]) -> Admin:
        from .admin import Admin

        return Admin(self.engine, self.runtime.link, self.endpoints, self.server, told, lost)

    def _format(self, config: Config) -> str:
        if config.log.format is Format.AUTO:
            return "text" if self._text else "json"
        return config.log.format.value


def _told(log: Log) -> Told:
    # Page, figures and memories cost 10 ms and 1 MiB: only where somebody may look at them.
    from .admin import Told

    return Told(log)
