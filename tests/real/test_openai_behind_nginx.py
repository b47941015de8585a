"""The OpenAI SDK before a real nginx before a real `relayd serve`, whose primary always fails.

nginx speaks HTTP/1.1 to relayd and buffers as it does by default.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support import builders
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.real import daemon, free_port, nginx
from tests.support.scripts import (
    breaks_off,
    events,
    hangs_up,
    ok_json,
    ok_stream,
    raw,
    resets,
    silent,
    status,
)

HI: list[Any] = [{"role": "user", "content": "hi"}]

STEP = 5.0
"""Real time (s) for one event to get through; nginx's own buffering would wait for ever."""

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[clocks]
first_content = 0.5
answer = 0.5
[breaker]
failures = 1000
[failover]
max_response_bytes = 100000
[[provider]]
name = "a"
base_url = "{a}"
[[provider]]
name = "b"
base_url = "{b}"
first_content = 30
answer = 30
"""

SITE = """
server {{
    listen 127.0.0.1:{port};
    location / {{
        proxy_pass http://127.0.0.1:{relayd};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
    }}
}}
"""

HTML = b"<html>Sign in</html>"
JSON = builders.encode(builders.completion())

FAILS: dict[str, Script] = {
    "closes": hangs_up(),
    "resets": resets(),
    "is silent": silent(),
    "speaks no HTTP": raw(b"SSH-2.0-OpenSSH\r\n\r\n", then="fin"),
    "has a head without end": raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, then="fin"),
    "frames badly": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
    "says 500": status(500),
    "says 503 in HTML": status(503, HTML),
    "says 529": status(529),
    "says 408": status(408),
    "redirects": status(307, b"", [("Location", "http://127.0.0.1:9/")]),
    "says 429": status(429, fields=[("Retry-After", "0")]),
    "takes no such context": status(400, builders.error_object(code="context_length_exceeded")),
    "shows a page": status(200, HTML),
    "says nothing": status(200, b""),
    "has no content": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "is an error in a 200": status(200, builders.error_object()),
    "is coded": status(200, gzip.compress(JSON), [("Content-Encoding", "gzip")]),
    "is cut": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n" + JSON[:50], then="fin"),
    "is cut where only its end tells": raw(b"HTTP/1.1 200 OK\r\n\r\n" + JSON[:50], then="fin"),
    "streams nothing": events(),
    "streams comments": events(b": a\n\n", b": b\n\n"),
    "streams an error first": events(builders.role(), builders.error_event()),
    "stops before content": breaks_off(builders.role(), then="stall"),
    "breaks before content": breaks_off(builders.role(), then="rst"),
    "wants money": status(402),  # rests for long after it: the last one
}


@asynccontextmanager
async def before_nginx(
    folder: Path, primary: list[Script], backup: Script
) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedProvider]]:
    """A client of nginx, and the primary."""
    port, relayd = free_port(), free_port()
    async with (
        ScriptedProvider(*primary, name="a") as a,
        ScriptedProvider(backup, name="b") as b,
        daemon(
            folder,
            CONFIG.format(port=relayd, a=a.base_url, b=b.base_url),
            ("127.0.0.1", relayd),
        ),
        nginx(folder, SITE.format(port=port, relayd=relayd), ("127.0.0.1", port)),
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0
        ) as client,
    ):
        yield client, a


@pytest.mark.parametrize("stream", [True, False])
async def test_whatever_the_primary_does_the_sdk_reads_the_backups_answer(
    stream: bool, tmp_path: Path
) -> None:
    backup = ok_stream("he", "llo") if stream else ok_json("hello")
    async with before_nginx(tmp_path, list(FAILS.values()), backup) as (client, a):
        for number, way in enumerate(FAILS, start=1):
            create = client.chat.completions.with_raw_response.create
            answer = await create(model="m", messages=HI, stream=stream)
            assert answer.headers["X-Gateway-Provider"] == "b", way
            assert answer.headers["X-Gateway-Attempts"] == "2", way
            found: Any = answer.parse()
            if stream:
                texts = [c.choices[0].delta.content or "" async for c in found]
                assert "".join(texts) == "hello", way
            else:
                assert found.choices[0].message.content == "hello", way
            assert len(a.requests) == number, way


async def test_the_sdk_gets_each_event_as_it_is_sent(tmp_path: Path) -> None:
    heard = asyncio.Semaphore(0)
    words = ["one", "two", "three", "four", "five"]

    async def in_step(peer: Peer, _: Request) -> None:
        await peer.stream_head()
        for word in words:
            await peer.chunk(builders.delta(word))
            await heard.acquire()
        await peer.chunk(builders.finish() + builders.DONE)
        await peer.last_chunk()

    async with before_nginx(tmp_path, [in_step], ok_stream()) as (client, _):
        stream = await client.chat.completions.create(model="m", messages=HI, stream=True)
        for word in words:
            async with asyncio.timeout(STEP):
                chunk = await anext(stream)
            assert chunk.choices[0].delta.content == word
            heard.release()
        assert [chunk.choices[0].finish_reason async for chunk in stream] == ["stop"]
