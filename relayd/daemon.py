"""The process around an `App`: signals, the order of start and stop, what systemd is told.

    SIGTERM, SIGINT   drain and end; a second one ends at once
    SIGHUP            read the configuration again
    SIGUSR2           start a next generation, leave it the sockets, drain and end

Does not know HTTP or providers.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

from . import __version__
from .activation import estate, given_sockets, open_doors
from .app import App
from .breaker import State
from .config import Config, ConfigError, Problem
from .engine import where
from .handover import HandoverFailed, Predecessor, successor
from .logsink import StreamSink
from .resources import installed, usable
from .sdnotify import ActivationError, Notifier, journal_stream, watchdog_period
from .server import ListenError

EX_OK = 0
EX_FAILED = 1

GC_THRESHOLDS = (10_000, 20, 50)
"""New objects before the collector looks, and looks before it looks at older ones (700, 10, 10 by
default): an exchange leaves no cycles, so looking often is in vain and costs 5 % of a request."""

STATUS_SECONDS = 1.0
"""Between two looks whether `systemctl status` should say something else."""

PATIENCE = 5.0
"""Seconds that systemd is asked for at a time while draining: several looks, should one be late."""

GRACE = 2.0
"""Seconds for which an old generation, after its last exchange, waits for requests on connections
that are kept alive: nginx may have sent one just now, and would answer 502 if it met a close."""

ADMIN = "admin.listen"

FIXED: dict[str, Callable[[Config], object]] = {
    "server.loop": lambda c: c.server.loop,
    "server.listen": lambda c: c.server.listen,
    "server.unix_mode": lambda c: c.server.unix_mode,
    "server.reuse_port": lambda c: c.server.reuse_port,
    ADMIN: lambda c: c.admin.listen,
    "store.url": lambda c: c.store.url,
    "store.timeout": lambda c: c.store.timeout,
    "store.prefix": lambda c: c.store.prefix,
}
"""What a running process cannot change."""

INHERITED = ("server.listen", "server.unix_mode", "server.reuse_port")
"""What not even its next generation can: the sockets stay as they are; so does `ADMIN`'s."""


class Daemon:
    """One `relayd serve`, from its first to its last line."""

    def __init__(self, config: Config, read_again: Callable[[], Config] | None) -> None:
        self._began_with = config
        self._read_again = read_again
        self._predecessor = Predecessor.take(os.environ)
        self._given = given_sockets(os.environ, os.getpid())
        self._notifier = Notifier({} if self._predecessor else os.environ)
        self._watchdog = watchdog_period(os.environ, os.getpid())
        self._sink = StreamSink(sys.stdout.fileno())
        self._app = App(
            config,
            write=self._sink.write,
            lost=lambda: self._sink.lost,
            priorities=journal_stream(os.environ, sys.stdout.fileno()),
            text=sys.stdout.isatty(),
            admin=bool(self._given.admin),
        )
        self._log = self._app.log
        self._sink.report = self._log.lost
        self._stop = asyncio.Event()
        self._signals = 0
        self._status = ""
        self._upgrade: asyncio.Task[None] | None = None
        self._replaced = False

    async def run(self) -> int:
        """Serve until a signal says otherwise; the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._uncaught)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._asked_to_reload)
        loop.add_signal_handler(signal.SIGUSR2, self._asked_to_upgrade)
        try:
            await self._app.start(self._given.public, self._given.admin)
        except ListenError as exc:
            sys.stderr.write(f"relayd: {exc}\n")
            if self._predecessor is not None:
                self._app.bequeath()  # the files are still its own
            await self._app.stop(0.0)
            return EX_FAILED
        if self._predecessor is not None:
            await self._predecessor.relieve()
            self._notifier = Notifier(os.environ)
        self._started()
        telling = [loop.create_task(self._tell()), loop.create_task(self._feed())]
        await self._stop.wait()
        for task in telling:
            task.cancel()
        await self._drain()
        return EX_OK

    def _started(self) -> None:
        config = self._app.config
        for warning in (*config.warnings, *open_doors(config, self._given)):
            self._log.event("warning", "config", warning)
        where = ", ".join(map(str, self._app.server.places))
        self._log.event(
            "info", "start", f"listening on {where}", pid=os.getpid(), version=__version__
        )
        self._notifier.ready()
        self._say_status()
        # What start-up made stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)

    def _uncaught(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault outside of any exchange, or no file left to accept a connection with.

        asyncio would print a traceback, and in it the arguments of a callback.
        """
        exc = context.get("exception")
        if isinstance(exc, OSError) and exc.errno in (errno.EMFILE, errno.ENFILE):
            told = "no file is left for another connection: raise LimitNOFILE="
            self._log.event("error", "out_of_files", told)
            return
        place = None if exc is None else where(exc)
        self._log.event("error", "internal_error", "a fault outside of any request", where=place)

    # The end.

    def _asked_to_stop(self) -> None:
        self._signals += 1
        if self._upgrade is not None:
            self._upgrade.cancel()
        self._stop.set()
        if self._signals > 1:
            self._log.event("warning", "stop", "second signal: ending at once")
            self._app.limit(0.0)
        elif self._replaced:
            self._app.limit(self._app.config.server.drain_timeout)

    async def _drain(self) -> None:
        limit = None if self._replaced else self._app.config.server.drain_timeout
        if self._signals > 1:
            limit = 0.0  # the second came before there was a drain to cut short
        running = self._app.engine.running
        how_long = "until the last exchange ends" if limit is None else f"for up to {limit:g} s"
        self._log.event("info", "drain", f"draining {how_long}", running=running)
        self._notifier.stopping()
        keeping = asyncio.get_running_loop().create_task(self._extend())
        await self._app.stop(limit, GRACE if self._replaced else 0.0)
        keeping.cancel()
        self._log.event("info", "stop", "stopped", pid=os.getpid())
        self._log.close()
        self._sink.close()

    # What systemd is told.

    async def _extend(self) -> None:
        """Ask systemd for patience, a few seconds at a time, and say what it is for."""
        while True:
            self._notifier.extend(PATIENCE)
            self._say_status()
            await asyncio.sleep(STATUS_SECONDS)

    async def _feed(self) -> None:
        """The watchdog, from the event loop: a thread of its own would prove nothing."""
        while self._watchdog is not None:
            self._notifier.watchdog()
            await asyncio.sleep(self._watchdog)

    async def _tell(self) -> None:
        while self._notifier.heard:
            self._say_status()
            await asyncio.sleep(STATUS_SECONDS)

    def _say_status(self) -> None:
        status = self._status_line()
        if status != self._status:
            self._status = status
            self._notifier.status(status)

    def _status_line(self) -> str:
        app, now = self._app, asyncio.get_running_loop().time()
        looks = [app.engine.breakers.look(p.name, now) for p in app.config.providers]
        up = sum(look.state is not State.OPEN and not look.rests for look in looks)
        parts = [f"{up} of {len(looks)} providers up", f"{app.engine.running} open exchanges"]
        if app.server.draining:
            parts.insert(0, "draining")
        if app.engine.loaded.problem is not None:
            parts.append(f"reload rejected: {app.engine.loaded.problem}")
        return f"relayd {__version__}: {', '.join(parts)}"

    # Reload.

    def _asked_to_reload(self) -> None:
        if self._stop.is_set():
            self._log.event("warning", "reload", "not now: relayd is draining")
            return
        self._notifier.reloading()
        self._reload()
        self._notifier.ready()
        self._say_status()

    def _reload(self) -> None:
        if self._read_again is None:
            self._log.event("warning", "reload", "nothing to reload: there is no file")
            return
        try:
            config = usable(self._read_again())
            self._app.reload(config)
        except Exception as exc:  # noqa: BLE001  (whatever is wrong, the old one stays)
            found = _problems(exc)
            self._app.engine.loaded.problem = found[0]
            for problem in found:
                self._log.event("error", "reload", f"the old configuration stays: {problem}")
            return
        for warning in (*config.warnings, *self._fixed(FIXED, config)):
            self._log.event("warning", "config", warning)
        self._log.event("info", "reload", "configuration reloaded")

    def _fixed(self, keys: Iterable[str], config: Config) -> list[str]:
        """Which of these keys differ from those that this process began with."""
        before = self._began_with
        return [
            f"{config.source}: {key} has changed: it needs a restart"
            for key in keys
            if FIXED[key](config) != FIXED[key](before)
        ]

    # Upgrade.

    def _asked_to_upgrade(self) -> None:
        running = self._upgrade is not None and not self._upgrade.done()
        if running or self._stop.is_set():
            why = "the next generation is starting already" if running else "relayd is draining"
            self._log.event("warning", "upgrade", f"not now: {why}")
            return
        self._upgrade = asyncio.get_running_loop().create_task(self._hand_over())

    async def _hand_over(self) -> None:
        self._log.event("info", "upgrade", "starting the next generation", pid=os.getpid())
        try:
            if self._read_again is not None:
                # A file that is wrong is told here, where the log is read.
                keys = (*INHERITED, ADMIN) if self._app.admin is not None else INHERITED
                for warning in self._fixed(keys, usable(self._read_again())):
                    self._log.event("warning", "config", warning)
            if self._app.config.store.url == "memory:" and self._app.config.capped:
                self._log.event("warning", "upgrade", 'store.url = "memory:": turns begin anew')
            async with successor(estate(self._app)) as pid:
                self._notifier.mainpid(pid)
                self._notifier = Notifier({})
                self._replaced = True
                self._app.bequeath()
        except Exception as exc:  # noqa: BLE001  (whatever is wrong, this one goes on)
            for problem in _problems(exc):
                self._log.event("error", "upgrade", f"this generation goes on: {problem}")
            return
        self._log.event("info", "upgrade", f"process {pid} has taken over", successor=pid)
        self._stop.set()


def _remedy(problem: Problem) -> str:
    """What else to do about it where relayd runs already, and every check by hand finds it good."""
    frozen = problem.path.endswith("_env")
    return "; a running relayd has the variables of its start: restart it" if frozen else ""


def _problems(exc: Exception) -> list[str]:
    """What can be said of an error; nothing of one that is not meant to be read."""
    if isinstance(exc, ConfigError):
        return [str(problem) + _remedy(problem) for problem in exc.problems]
    return [str(exc)] if isinstance(exc, HandoverFailed) else [where(exc)]


def serve(config: Config, read_again: Callable[[], Config] | None) -> int:
    """Run the daemon; returns its exit code. Raises ConfigError for what cannot work here."""
    for number in (signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # until somebody is there to ask; they would kill

    async def main() -> int:
        try:
            daemon = Daemon(config, read_again)
        except ActivationError as exc:
            sys.stderr.write(f"relayd: {exc}\n")
            return EX_FAILED
        return await daemon.run()

    with asyncio.Runner(loop_factory=installed(usable(config))) as runner:
        return runner.run(main())
