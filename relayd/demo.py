"""`relayd demo`: a failing primary, a working backup and relayd between them, all on loopback.

Everything is real: three listening sockets, one request over TCP, one failover. The two providers
are a few lines each and know only what a demonstration needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from .app import App
from .config import build
from .events import EventReader
from .fetch import closing, payloads, read_head
from .standard import write

WORDS = ("The primary ", "was down; ", "the backup ", "answered.")

PAUSE = 0.05
"""Seconds between two events of the backup: a reader shall see them arrive one by one."""

LIMIT = 10.0
"""Seconds after which the demonstration has failed."""

HEAD_LIMIT = 8192
"""Bytes of a request head that the two providers read."""

Provider = Callable[[asyncio.StreamWriter], Awaitable[None]]


def demo() -> int:
    """Run it; the exit code."""
    return asyncio.run(_demo())


async def _demo() -> int:
    async with (
        asyncio.timeout(LIMIT),
        _listening(_primary) as primary,
        _listening(_backup) as backup,
        _relayd(primary, backup) as (host, port),
    ):
        return await _ask(host, port)


# ---- the two providers


async def _primary(writer: asyncio.StreamWriter) -> None:
    body = b'{"error":{"message":"out of order","type":"server_error","param":null,"code":null}}'
    head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode("ascii") + body)


async def _backup(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for word in WORDS:
        writer.write(_event({"content": word}, None))
        await writer.drain()
        await asyncio.sleep(PAUSE)
    writer.write(_event({}, "stop") + b"data: [DONE]\n\n")


def _event(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "demo", "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode("ascii") + b"\n\n"


@asynccontextmanager
async def _listening(answer: Provider) -> AsyncIterator[str]:
    """A provider on a free port; its base URL."""
    talks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of our own: asyncio 3.11 prints a traceback for one of its own that is cancelled.
        talks.add(asyncio.create_task(_talk(answer, reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=HEAD_LIMIT)
    try:
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _talk(
    answer: Provider, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    async with closing(writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        await answer(writer)
        await writer.drain()


# ---- relayd and its client


@asynccontextmanager
async def _relayd(primary: str, backup: str) -> AsyncIterator[tuple[str, int]]:
    providers = [
        {"name": "primary", "base_url": primary, "model": "demo"},
        {"name": "backup", "base_url": backup, "model": "demo"},
    ]
    table = {"server": {"listen": "127.0.0.1:0"}, "provider": providers}
    app = App(build(table, "the demonstration", {}, _no_file))
    await app.start()
    try:
        address = app.addresses[0]
        assert not isinstance(address, str)
        yield address
    finally:
        await app.stop(0.0)


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(path)


async def _ask(host: str, port: int) -> int:
    """One streaming request; prints what came of it."""
    reader, writer = await asyncio.open_connection(host, port)
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hello"}]})
    async with closing(writer):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode("ascii"))
        buffer = bytearray()
        answer = await read_head(reader, buffer)
        write(f"HTTP {answer.status}\n")
        write(f"ATTEMPTS {_shown(answer.field(b'x-gateway-attempts'))}\n")
        write(f"PROVIDER {_shown(answer.field(b'x-gateway-provider'))}\n")
        text = ""
        async for words in _texts(payloads(reader, answer, buffer)):
            text += words
            write(words)
        write("\n")
    return 0 if text == "".join(WORDS) else 1


def _shown(value: bytes | None) -> str:
    return "-" if value is None else value.decode("ascii")


async def _texts(stream: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The text of each event, as it arrives."""
    reader = EventReader()
    async for payload in stream:
        for event in reader.feed(payload):
            if event.data != b"[DONE]":
                yield json.loads(event.data)["choices"][0]["delta"].get("content", "")
