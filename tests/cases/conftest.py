"""What the cases share: names that resolve as a test says, and a list of models in a thread."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
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


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"data":[{"id":"m"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def models(tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, int]]:
    """The address of a provider that lists one model, for a command with a loop of its own."""
    server = HTTPServer(("127.0.0.1", 0), _Models)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a refused certificate
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield "127.0.0.1", server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
