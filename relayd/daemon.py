"""The process around an `App`: signals, the order of start and stop, what systemd is told.

Does not know HTTP or providers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable

from .app import App
from .config import Config, Loop
from .logsink import StreamSink
from .sdnotify import Notifier, journal_stream, take_listeners, watchdog_period
from .server import ListenError

EX_FAILED = 1
EX_CONFIG = 78

SPARE_FILES = 64
"""Descriptors besides connections: listeners, log, store, epoll, and a few to spare."""


class Daemon:
    """One `relayd serve`, from its first to its last line."""

    def __init__(self, config: Config, read_again: Callable[[], Config] | None) -> None:
        self._config = config
        self._read_again = read_again
        self._notifier = Notifier(os.environ)
        self._sink = StreamSink(sys.stdout.fileno())
        self._app = App(
            config,
            write=self._sink.write,
            priorities=journal_stream(os.environ, sys.stdout.fileno()),
            text=sys.stdout.isatty(),
        )
        self._sink.report = self._app.log.lost
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self) -> int:
        """Serve until a signal says otherwise; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            sockets = [sock for _, sock in take_listeners(os.environ, os.getpid())]
            await self._app.start(sockets)
        except ListenError as exc:
            sys.stderr.write(f"relayd: {exc}\n")
            await self._app.stop(0.0)
            return EX_FAILED
        self._started()
        watchdog = loop.create_task(self._watchdog())
        await self._stop.wait()
        watchdog.cancel()
        await self._drain()
        return 0

    def _started(self) -> None:
        config = self._config
        for warning in config.warnings:
            self._app.log.event("warning", "config", warning)
        where = ", ".join(_shown(address) for address in self._app.addresses)
        self._app.log.event("info", "start", f"listening on {where}", pid=os.getpid())
        self._notifier.ready()
        # What start-up made stays for good: the collector need not look at it again.
        gc.collect()
        gc.freeze()

    def _asked_to_stop(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:
            self._app.log.event("warning", "stop", "second signal: ending at once")
            self._app.hurry()

    async def _drain(self) -> None:
        limit = self._app.config.server.drain_timeout
        self._notifier.stopping()
        running = self._app.engine.running
        self._app.log.event("info", "drain", f"draining for up to {limit:g} s", running=running)
        keeping = asyncio.get_running_loop().create_task(self._extend())
        await self._app.stop(limit)
        keeping.cancel()
        self._app.log.event("info", "stop", "stopped")
        self._app.log.close()
        self._sink.close()

    async def _extend(self) -> None:
        """Ask systemd for patience, a few seconds at a time."""
        while True:
            self._notifier.extend(5.0)
            await asyncio.sleep(2.0)

    async def _watchdog(self) -> None:
        period = watchdog_period(os.environ, os.getpid())
        while period is not None:
            self._notifier.watchdog()
            await asyncio.sleep(period)

    def _reload(self) -> None:
        if self._read_again is None:
            self._app.log.event("warning", "reload", "nothing to reload: there is no file")
            return
        self._notifier.reloading()
        try:
            config = self._read_again()
        except Exception as exc:  # noqa: BLE001  (whatever is wrong, the old one stays)
            self._app.log.event("error", "reload", f"the old configuration stays: {exc}")
        else:
            self._app.reload(config)
            self._app.log.event("info", "reload", "configuration reloaded")
        self._notifier.ready()


def raise_file_limit(config: Config) -> str | None:
    """Raise RLIMIT_NOFILE to its hard limit; the problem, if the connections cannot fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    need = config.server.max_connections + config.server.max_exchanges + SPARE_FILES
    if hard != resource.RLIM_INFINITY and need > hard:
        return (
            f"{config.source}: server.max_connections: {config.server.max_connections} clients and "
            f"{config.server.max_exchanges} exchanges need {need} files, the limit is {hard}; "
            "raise LimitNOFILE= or lower the figure"
        )
    return None


def serve(config: Config, read_again: Callable[[], Config] | None) -> int:
    """Run the daemon; returns its exit code."""
    problem = raise_file_limit(config)
    if problem is not None:
        sys.stderr.write(f"relayd: {problem}\n")
        return EX_CONFIG

    async def main() -> int:
        return await Daemon(config, read_again).run()

    with asyncio.Runner(loop_factory=loop_factory(config.server.loop)) as runner:
        return runner.run(main())


def loop_factory(loop: Loop) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is wanted and installed; None for asyncio's own."""
    if loop is Loop.ASYNCIO:
        return None
    try:
        import uvloop
    except ImportError:
        if loop is Loop.AUTO:
            return None
        raise SystemExit(
            'relayd: server.loop = "uvloop" needs the package: pip install "relayd[uvloop]"'
        ) from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _shown(address: tuple[str, int] | str) -> str:
    return f"unix:{address}" if isinstance(address, str) else f"{address[0]}:{address[1]}"
