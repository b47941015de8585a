"""What the cases share: names that resolve to what a test says, and nothing else does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

Names = dict[str, Sequence[tuple[str, int]]]
"""A name to its addresses, in the order in which the resolver gives them."""


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Fill it in, and relayd's connections go there; an unknown name is one for the resolver too.

    The port that relayd asks for is not looked at: each address brings its own.
    """
    known: Names = {}

    async def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [_entry(address) for address in known[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return known


def _entry(address: tuple[str, int]) -> tuple[int, int, int, str, tuple[Any, ...]]:
    host, port = address
    if ":" in host:
        return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (host, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)
