"""`relayd healthcheck`: is the daemon of this configuration there, and does its event loop turn?

Does not know what the daemon does besides.
"""

from __future__ import annotations

import asyncio
import sys

from .config import Config, Listen, Unix
from .fetch import NoAnswer, fetch, knock, place_of
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
        place, tls = place_of(asked) if isinstance(asked, str) else (asked.server.listen[0], False)
        problem = asyncio.run(_ask(place, tls))
    except ValueError as exc:
        problem = str(exc)
    if problem:
        sys.stderr.write(f"relayd: {problem}\n")
        return 1
    write("ok\n")
    return 0


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
