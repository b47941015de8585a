"""Connecting to a provider: names, addresses, TLS; every second of it inside the connect clock.

Verification is always on. Addresses race as in RFC 8305, written here because uvloop has no happy
eyeballs. Does not know pools, HTTP or which clock bounds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from .net import Conn
from .tlstransport import secured
from .transport import SocketTransport, fits
from .wake import Wake

T = TypeVar("T")

EYEBALLS_DELAY = 0.25
"""Seconds before the next address is tried beside a slow one (RFC 8305, section 8)."""


async def race(
    work: Awaitable[T], wake: Wake, look: Callable[[], None], late: Callable[[T], None]
) -> T:
    """The result of `work`, or what `wake` or `look` raises first.

    `look` is called after each wake (a clock may have expired). `late` gets a result that comes
    after all, so that it can be given back.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda _: wake.turn())
    try:
        while not task.done():
            await wake.wait()
            if not task.done():
                look()
        return task.result()
    except BaseException:
        task.cancel()
        task.add_done_callback(lambda done: _discard(done, late))
        raise
    finally:
        del task  # what it raised holds this frame


def _discard(task: asyncio.Future[T], late: Callable[[T], None]) -> None:
    if not task.cancelled() and task.exception() is None:
        late(task.result())


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, tls_name: str, loop: asyncio.AbstractEventLoop
) -> Conn:
    """A connection to `host`; the caller bounds the time.

    Raises `socket.gaierror` (DNS), `ssl.SSLError` (TLS; `ssl.SSLCertVerificationError` for the
    certificate), `OSError`, or `ValueError` for a name that no host can have.
    """
    sock = await _dial(await _addresses(host, port, loop), loop)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is not None:
        return Conn(await secured(loop, sock, tls, tls_name), None, loop.time())
    if fits(loop):
        return Conn(SocketTransport(loop, sock), None, loop.time())
    try:
        reader, writer = await asyncio.open_connection(sock=sock)
    except BaseException:
        sock.close()
        raise
    conn = Conn(writer, None, loop.time())
    _hand_on(reader, conn)
    return conn


def _hand_on(reader: asyncio.StreamReader, conn: Conn) -> None:
    """Give `conn` what came before it took over: uvloop reads before `open_connection` returns.

    A provider that is overloaded may answer, and leave, without having been asked.
    """
    early: bytearray = reader.__dict__["_buffer"]
    if early:
        conn.data_received(bytes(early))
        early.clear()
    if conn.transport.is_closing():
        conn.connection_lost(reader.exception())
    elif reader.at_eof():
        conn.eof_received()


Address = tuple[int, Any]  # family, sockaddr


async def _addresses(host: str, port: int, loop: asyncio.AbstractEventLoop) -> list[Address]:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    unique = dict.fromkeys((int(family), address) for family, _, _, _, address in found)
    addresses: list[Address] = list(unique)
    first = [a for a in addresses if a[0] == addresses[0][0]]
    other = [a for a in addresses if a[0] != addresses[0][0]]
    # Families alternate (RFC 8305, section 4): a dead family costs one delay, not one per address.
    woven = [a for pair in zip(first, other, strict=False) for a in pair]
    return woven + first[len(other) :] + other[len(first) :]


async def _dial(addresses: list[Address], loop: asyncio.AbstractEventLoop) -> socket.socket:
    """The first socket that connects; a next address joins after a failure or a short delay."""
    if len(addresses) == 1:
        return await _dial_one(addresses[0], loop)
    waiting = list(addresses)
    running: set[asyncio.Task[socket.socket]] = set()
    error: Exception | None = None
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(_dial_one(waiting.pop(0), loop)))
            delay = EYEBALLS_DELAY if waiting else None
            done, running = await asyncio.wait(
                running, timeout=delay, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (failed := task.exception()) is None:
                    done.discard(task)
                    running |= done  # a second winner is closed below
                    return task.result()
                error = failed if isinstance(failed, Exception) else error
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(lambda late: _discard(late, socket.socket.close))
    raise error or OSError("no address to connect to")


async def _dial_one(address: Address, loop: asyncio.AbstractEventLoop) -> socket.socket:
    family, sockaddr = address
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await loop.sock_connect(sock, sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def tls_context(ca_file: str) -> ssl.SSLContext:
    """A verifying client context: the system's CAs, or `ca_file` alone when it is given.

    Raises `OSError` (no such file) or `ssl.SSLError` (no certificate in it).
    """
    context = ssl.create_default_context(cafile=ca_file or None)
    context.set_alpn_protocols(["http/1.1"])
    return context
