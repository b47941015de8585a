"""A TLS server whose every byte is in the test's hand, and a client's transport at its other end.

    @of(*VERSIONS)
    async def test_what_comes_is_told(version: ssl.TLSVersion) -> None:
        async with opened(version) as (transport, heard, peer):
            await peer.send(peer.sealed(b"hello"))

Of relayd it knows how the two transports are made.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relayd.resources import uv_loop
from relayd.tlstransport import TlsTransport, secured
from relayd.transport import SocketTransport

from .certificates import Authority
from .heard import CAP, LOOPS, Heard, turns
from .leaks import open_sockets
from .provider import LINGER_NONE
from .sockets import tcp_pair

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
NAME = "a.test"

RECORD = 16384
"""Bytes of text that a record holds at most."""

LOST = ("lost", type(None))
"""What a protocol hears of an end without an error."""

TEXTS = [b"one", b"two", b"three", b"four"]
ALL = b"".join(TEXTS)

MUCH = bytes(range(256)) * (16 * 1024 * 4)
"""16 MiB: more than any pair of kernel buffers takes."""


@functools.cache
def _authority() -> tuple[Authority, ssl.SSLContext]:
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        return authority, authority.client()


def trusting() -> ssl.SSLContext:
    """A client's context, which trusts whoever has issued for the servers here."""
    return _authority()[1]


@functools.cache
def serving(version: ssl.TLSVersion, name: str = NAME) -> ssl.SSLContext:
    """A server's context for this version alone."""
    context = _authority()[0].server(name)
    context.minimum_version = context.maximum_version = version
    return context


class Peer:
    """The server's side over a bare socket: nothing is sent or read unless the test says so."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, cut: int = 0) -> None:
        self.sock = sock
        self.cut = cut
        """Each piece of so many bytes is read before the next is sent; 0: no pieces."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_side=True)

    async def shake(self, *, flush: bool = True) -> None:
        """Agree with the client; the last words may be kept for the first `said`."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send(self.said())
                await self._fill()
            else:
                break
        if flush:
            await self.send(self.said())

    def said(self) -> bytes:
        """What TLS wants to be sent."""
        return self._out.read()

    def sealed(self, text: bytes) -> bytes:
        """The records of this text."""
        sent = 0
        while sent < len(text):
            sent += self.tls.write(memoryview(text)[sent:])
        return self.said()

    def bye(self) -> bytes:
        """A close_notify."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self.said()

    async def send(self, data: bytes) -> None:
        """Onto the wire as it is, in pieces if there is a `cut`."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CAP):
            for at in range(0, len(data), self.cut or max(1, len(data))):
                await loop.sock_sendall(self.sock, data[at : at + self.cut] if self.cut else data)
                if self.cut:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)

    async def read(self) -> bytes:
        """What text has come; b"" for a close_notify.

        Raises `ssl.SSLEOFError` for an end without one and `ssl.SSLError` for an alert.
        """
        while True:
            try:
                return self.tls.read(1 << 20)
            except ssl.SSLWantReadError:
                await self._fill()

    async def read_all(self) -> bytes:
        """All text up to the close_notify."""
        found = bytearray()
        while data := await self.read():
            found += data
        return bytes(found)

    async def read_exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            found += await self.read()
        return bytes(found)

    def reset(self) -> None:
        """RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        self.sock.close()

    async def _fill(self) -> None:
        async with asyncio.timeout(CAP):
            data = await asyncio.get_running_loop().sock_recv(self.sock, 1 << 20)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()


def ends() -> tuple[socket.socket, socket.socket]:
    """A socket for the client, and the one at the other end."""
    one, other = tcp_pair()
    one.setblocking(False)
    other.setblocking(False)
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, other


async def agreed(one: socket.socket, peer: Peer, *, flush: bool = True) -> TlsTransport:
    """A client's transport after its handshake with the peer, which may keep its last words."""
    shaking = asyncio.create_task(peer.shake(flush=flush))
    async with asyncio.timeout(CAP):
        transport = await secured(asyncio.get_running_loop(), one, trusting(), NAME)
        await shaking
    return transport


@asynccontextmanager
async def opened(
    version: ssl.TLSVersion, cut: int = 0
) -> AsyncIterator[tuple[TlsTransport, Heard, Peer]]:
    """A transport, what its protocol heard, and the peer; nothing is left afterwards."""
    one, other = ends()
    peer = Peer(other, serving(version), cut)
    transport = await agreed(one, peer)
    heard = Heard()
    transport.set_protocol(heard)
    await turns()  # the session tickets of TLS 1.3: a close with bytes unread would be a reset
    try:
        yield transport, heard, peer
    finally:
        other.close()
        if not heard.lost:
            transport.abort()
            await heard.until(lambda: heard.lost)
        await turns()
        assert one.fileno() == -1, "expected the socket to be closed"


def records(peer: Peer) -> bytes:
    """One for each of `TEXTS`, so short that one read takes them all."""
    return b"".join(peer.sealed(text) for text in TEXTS)


@asynccontextmanager
async def nothing_for_the_collector() -> AsyncIterator[None]:
    """After the block every transport that it made has gone, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        before = _alive()
        yield
        await turns()
        assert _alive() == before
    finally:
        gc.enable()


def _alive() -> list[str]:
    kinds = (TlsTransport, SocketTransport, ssl.SSLObject, Heard)
    return [type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds)]


@asynccontextmanager
async def early(text: bytes) -> AsyncIterator[tuple[TlsTransport, Peer]]:
    """A transport without a protocol so far, and with text that came with its handshake's end."""
    one, other = ends()
    peer = Peer(other, serving(ssl.TLSVersion.TLSv1_2))  # where the last words are the server's
    shaking = asyncio.create_task(peer.shake(flush=False))
    task = asyncio.create_task(secured(asyncio.get_running_loop(), one, trusting(), NAME))
    await shaking
    await peer.send(peer.said() + peer.sealed(text))
    async with asyncio.timeout(CAP):
        transport = await task
    with other:
        yield transport, peer
    transport.abort()
    await turns()
    assert one.fileno() == -1, "expected the socket to be closed"


ALL_LOOPS = {**LOOPS, "uvloop": uv_loop}
"""Those over whose plain transport a client speaks TLS."""

Test = Callable[[Any], Coroutine[Any, Any, None]]


def of(*cases: Any) -> Callable[[Test], Callable[..., None]]:
    """Run a test with each of these on each loop: no socket is left, no exception reaches it."""

    def decorate(test: Test) -> Callable[..., None]:
        def run(loop: str, case: Any) -> None:
            faults: list[dict[str, Any]] = []

            async def watched() -> None:
                running = asyncio.get_running_loop()
                running.set_exception_handler(lambda _, context: faults.append(context))
                await test(case)
                await turns()

            before = open_sockets()
            with asyncio.Runner(loop_factory=ALL_LOOPS[loop]) as runner:
                runner.run(watched())
            left = open_sockets() - before
            assert not left, f"expected no new open socket, got {sorted(left)}"
            assert not faults, f"expected no fault to reach the loop, got {faults}"

        run.__name__ = test.__name__
        run = pytest.mark.parametrize("loop", ALL_LOOPS)(run)
        found: Callable[..., None] = pytest.mark.parametrize("case", cases, ids=_called)(run)
        return found

    return decorate


def _called(case: Any) -> str:
    return str(getattr(case, "name", getattr(case, "__name__", case)))
