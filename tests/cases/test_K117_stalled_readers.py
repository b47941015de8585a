"""K117: for a reader that stalls, the whole answer of the provider was buffered: 68 to 646 MB.

https://github.com/MAXeaglet/commandcode-proxy/issues/20
The memory is that of a process of its own, in real time.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.builders import chat, delta
from tests.support.client import RawClient
from tests.support.gateway import CHAT
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.real import daemon, free_port
from tests.support.scripts import ok_stream

pytestmark = pytest.mark.real_time

CLIENTS = 20
ANSWER = 200 * 1024 * 1024
"""Bytes that the provider would send to each, as fast as they are taken."""

PIECE = delta("x" * 65_000)

WINDOW = 1024 * 1024
"""Bytes of relayd's own memory for one stalled client: a few reads and what waits to be sent."""

KERNEL = 48 * 1024 * 1024
"""Bytes that the sockets of two connections may hold at most, with the largest buffers of Linux."""

WRITE_TIMEOUT = 2.0

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
write_timeout = {write_timeout}
[[provider]]
name = "a"
base_url = "{url}"
"""


async def test_memory_is_bounded_the_provider_is_slowed_and_the_stalled_are_dropped(
    tmp_path: Path,
) -> None:
    sent: dict[int, int] = {}

    async def floods(peer: Peer, request: Request) -> None:
        if request.json()["messages"][0]["content"] == "first":
            await ok_stream("hello")(peer, request)
            return
        await peer.stream_head()
        while sent.setdefault(peer.number, 0) < ANSWER:
            await peer.chunk(PIECE)
            sent[peer.number] += len(PIECE)

    port = free_port()
    address = ("127.0.0.1", port)
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(ScriptedProvider(floods))
        text = CONFIG.format(port=port, write_timeout=WRITE_TIMEOUT, url=a.base_url)
        running = await stack.enter_async_context(daemon(tmp_path, text, address))
        async with RawClient(address) as first:  # what is loaded for any exchange does not count
            await first.post_json(CHAT, chat("first", stream=True))
        before = running.memory()
        for _ in range(CLIENTS):
            client = await stack.enter_async_context(RawClient(address))
            # Only the head is read: asyncio stops reading the socket soon after.
            assert (await client.open_stream(CHAT, chat(stream=True))).status == 200
        async with asyncio.timeout(WRITE_TIMEOUT * 5):
            await asyncio.gather(*(peer.left.wait() for peer in a.seen.peers))
        peak = running.memory("VmHWM")
        assert len(sent) == CLIENTS
        assert max(sent.values()) < KERNEL
        assert peak - before < CLIENTS * WINDOW
    ends = [line["end_reason"] for line in running.log if "end_reason" in line]
    assert ends == ["complete"] + ["client_stalled"] * CLIENTS
