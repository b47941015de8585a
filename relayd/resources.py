"""What this machine grants the process: open files, the event loop, the store's package.

Knows which figures of the configuration need files. Does not know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import select
from collections.abc import Callable

from .config import Config, ConfigError, Loop, Problem
from .gather import PAUSES, Pauses
from .stores import open_store

SPARE_FILES = 192
"""Descriptors besides connections of clients and to providers: listeners, log, store, epoll and a
few to spare (64), connections to the admin listener (64), and those that are being turned away by
either server (32 each)."""


def usable(config: Config) -> Config:
    """The configuration, if this process has enough files for it; else ConfigError."""
    problem = raise_file_limit(config)
    if problem is not None:
        raise ConfigError([problem])
    return config


def raise_file_limit(config: Config) -> Problem | None:
    """Raise RLIMIT_NOFILE to its hard limit; the problem, if the connections cannot fit."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # e.g. a filter that forbids it
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        limit = hard
    clients, exchanges = config.server.max_connections, config.server.max_exchanges
    idle = config.failover.max_idle_connections
    need = clients + exchanges + idle + SPARE_FILES
    if limit == resource.RLIM_INFINITY or need <= limit:
        return None
    return Problem(
        config.source,
        "server.max_connections",
        f"{clients} clients, {exchanges} exchanges and {idle} idle connections need {need} files, "
        f"the limit is {limit}; raise LimitNOFILE= or lower the figures",
    )


def installed(config: Config) -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop's factory, if all packages that the configuration needs are there. Raises
    ConfigError with every one that is missing."""
    problems: list[Problem] = []
    try:
        open_store(config.store.url)  # opens nothing yet
    except ValueError as error:
        problems.append(Problem(config.source, "store.url", str(error)))
    try:
        factory = loop_factory(config)
    except ConfigError as error:
        problems[:0] = error.problems
    if problems:
        raise ConfigError(problems)
    return factory


def loop_factory(config: Config) -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, if it is wanted and installed, or asyncio's own. Raises ConfigError."""
    if config.server.loop is Loop.ASYNCIO:
        return plain_loop
    try:
        import uvloop  # noqa: F401
    except ImportError:
        if config.server.loop is Loop.AUTO:
            return plain_loop
        remedy = 'uvloop is not installed: pip install "relayd[uvloop]"'
        raise ConfigError([Problem(config.source, "server.loop", remedy)]) from None
    return uv_loop


def uv_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, told of reads by whom it calls (`net`, `tlstransport`)."""
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    setattr(loop, PAUSES, Pauses(loop.call_soon))
    return loop


def plain_loop() -> asyncio.AbstractEventLoop:
    """asyncio's own loop, over our poller where there is epoll."""
    if not hasattr(select, "epoll"):
        return asyncio.new_event_loop()
    from .poller import PlainLoop

    return PlainLoop()
