"""`relayd healthcheck`: is the daemon of this configuration there, and does its event loop turn?

Does not know what the daemon does besides.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit

from .config import Config, Listen, Unix
from .dial import tls_context
from .fetch import NoAnswer, fetch
from .net import reason

LIMIT = 2.0
"""Seconds for the whole answer: a supervisor that asks every few seconds must not pile up."""

MAX_BODY = 4096
"""Bytes of an answer to `/healthz`, which has three."""

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that nobody can connect to, and where their listener is reached."""


def healthcheck(url: str | None, config: Config | None) -> int:
    """Ask `url` (`http://…`, `https://…`, `unix:/…`), or else where `config` listens.

    0 if the answer is 200 within `LIMIT` seconds, else 1 with one line on stderr.
    """
    try:
        place = _place(url) if url else _listener(config)
        problem = asyncio.run(_ask(place))
    except ValueError as exc:
        problem = str(exc)
    if problem:
        sys.stderr.write(f"relayd: {problem}\n")
        return 1
    sys.stdout.write("ok\n")
    return 0


Place = tuple[str, int, bool] | str
"""Host, port and whether TLS is spoken; or the path of a unix socket."""


def _place(url: str) -> Place:
    if url.startswith("unix:/"):
        return url.removeprefix("unix:")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"expected http://host:port or unix:/path, got {url!r}")
    tls = parts.scheme == "https"
    return parts.hostname, parts.port or (443 if tls else 80), tls


def _listener(config: Config | None) -> Place:
    listen: Listen | None = config.server.listen[0] if config else None
    if listen is None:
        raise ValueError("expected a URL or a configuration, got neither")
    if isinstance(listen, Unix):
        return listen.path
    return WILDCARDS.get(listen.host, listen.host), listen.port, False


async def _ask(place: Place) -> str | None:
    """What is wrong; None if nothing is."""
    where = f"unix:{place}" if isinstance(place, str) else f"{place[0]} port {place[1]}"
    try:
        async with asyncio.timeout(LIMIT):
            streams = await _open(place)
            host = "localhost" if isinstance(place, str) else place[0]
            answer = await fetch(*streams, _request(host), MAX_BODY)
    except TimeoutError:
        return f"no answer from {where} within {LIMIT:g} s"
    except OSError as exc:
        return f"no answer from {where}: {reason(exc)}"
    except NoAnswer as exc:
        return f"no answer from {where}: {exc}"
    return None if answer.status == 200 else f"{where} answers with status {answer.status}"


async def _open(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(place, str):
        return await asyncio.open_unix_connection(place)
    host, port, tls = place
    return await asyncio.open_connection(host, port, ssl=tls_context("") if tls else None)


def _request(host: str) -> bytes:
    shown = f"[{host}]" if ":" in host else host
    return f"GET /healthz HTTP/1.1\r\nHost: {shown}\r\nConnection: close\r\n\r\n".encode("ascii")
