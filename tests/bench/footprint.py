"""What the runner cannot see: a client that stops reading, and the price of quota and breaker.

Real sockets and the real program; loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.real import free_port

STREAM = 200 * 2**20
"""Bytes that the provider would like to send to a client which does not read."""

EVENT = b'data: {"choices":[{"delta":{"content":"' + b"x" * 960 + b'"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


def report() -> None:
    """Print both."""
    print("| by itself | figure | goal |\n|---|---|---|")
    grown, sent = asyncio.run(stalled_reader())
    print(f"| RSS growth, 200 MB stream, client stops reading | {grown:.1f} MiB | 5 MiB |")
    print(f"| … of which the provider could send | {sent / 2**20:.1f} MiB | |")
    memory = asyncio.run(price("memory:"))
    print(f"| quota and breaker, memory store, a request | {memory:.1f} us | 25 us |")
    if shutil.which("redis-server"):
        with redis() as url:
            shared = asyncio.run(price(url))
        print(f"| … redis store, 16 requests at once | {shared:.1f} us | 120 us |")
    print()


async def stalled_reader() -> tuple[float, int]:
    """MiB that relayd grows, and bytes that its provider got rid of."""
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while sent < STREAM:
                writer.write(CHUNK)
                await writer.drain()
                sent += len(CHUNK)

    provider = await asyncio.start_server(flood, "127.0.0.1", 0)
    with running(provider.sockets[0].getsockname()[1]) as (process, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        before = rss(process.pid)
        body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'
        client.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        last = -1
        while sent != last:  # until nothing moves for a second
            last = sent
            await asyncio.sleep(1.0)
        grown = rss(process.pid) - before
        client.close()
    provider.close()
    return grown / 2**20, sent


@contextlib.contextmanager
def running(provider: int):  # type: ignore[no-untyped-def]
    """relayd as a process in front of a provider's port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "relayd.toml")
        file.write_text(
            f'[server]\nlisten = "127.0.0.1:{port}"\n[[provider]]\nname = "flood"\n'
            f'base_url = "http://127.0.0.1:{provider}/v1"\nmodel = "m"\n'
        )
        command = [sys.executable, "-m", "relayd", "serve", "-c", str(file)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield process, port
        finally:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            process.wait()


def wait_for(port: int) -> None:
    """Return when somebody listens."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.01)
    raise SystemExit(f"nobody listens on port {port}")


def rss(pid: int) -> int:
    """Resident bytes."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The URL of a redis-server of our own, which keeps nothing."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


async def price(url: str, count: int = 8000, at_once: int = 16) -> float:
    """Microseconds of this process's CPU for one request's turn and permit."""
    from relayd.breaker import Policy, Verdict
    from relayd.breakers import Breakers
    from relayd.stores import open_store
    from relayd.stores.link import Link
    from relayd.turns import Turns

    link = Link(open_store(url, timeout=5.0), timeout=5.0)
    turns, breakers = Turns(link), Breakers(link, Policy())
    breakers.keep(["p"])

    async def requests(user: str) -> None:
        for _ in range(count // at_once):
            lease = await turns.reserve(user, 10**6, False, time.time(), 660.0)
            breakers.look("p", 1.0)
            permit = await breakers.admit("p", 1.0, 600.0)
            assert permit is not None
            permit.settle(Verdict.SUCCESS, 1.0)
            turns.settle(lease, True)

    began = time.process_time()
    await asyncio.gather(*(requests(f"u{number}") for number in range(at_once)))
    await turns.close()
    spent = time.process_time() - began
    await link.close()
    return spent / count * 1e6
