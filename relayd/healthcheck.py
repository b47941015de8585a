"""`relayd healthcheck`: is the daemon of this configuration there, and does its event loop turn?

Does not know what the daemon does besides.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import urlsplit

from .config import Config, Listen, Tcp, Unix
from .fetch import NoAnswer, fetch, knock
from .masking import mask
from .net import reason
from .standard import write

LIMIT = 2.0
"""Seconds for the whole answer: a supervisor that asks every few seconds must not pile up."""

MAX_BODY = 4096
"""Bytes of an answer to `/healthz`, which has three."""


def healthcheck(asked: str | Config) -> int:
    """Ask a URL (`http://…`, `https://…`, `unix:/…`), or where a configuration listens.

    0 if the answer is 200 within `LIMIT` seconds, else 1 with one line on stderr.
    """
    try:
        place, tls = _place(asked) if isinstance(asked, str) else (asked.server.listen[0], False)
        problem = asyncio.run(_ask(place, tls))
    except ValueError as exc:
        problem = str(exc)
    if problem:
        sys.stderr.write(f"relayd: {problem}\n")
        return 1
    write("ok\n")
    return 0


def _place(url: str) -> tuple[Listen, bool]:
    """Where to ask, and whether TLS is spoken there."""
    if url.startswith("unix:/"):
        return Unix(url.removeprefix("unix:")), False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    tls = parts.scheme == "https"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        expected = "http://host:port, https://host or unix:/path"
        raise ValueError(f"--url: expected {expected}, got {mask(url)!r}")
    return Tcp(parts.hostname, port or (443 if tls else 80)), tls


async def _ask(place: Listen, tls: bool) -> str | None:
    """What is wrong; None if nothing is."""
    host = "localhost" if isinstance(place, Unix) else str(place)
    request = f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(LIMIT):
            answer = await fetch(*await knock(place, tls), request.encode("ascii"), MAX_BODY)
    except TimeoutError:
        return f"no answer from {place} within {LIMIT:g} s"
    except OSError as exc:
        return f"no answer from {place}: {reason(exc)}"
    except NoAnswer as exc:
        return f"no answer from {place}: {exc}"
    return None if answer.status == 200 else f"{place} answers with status {answer.status}"
