"""A plain request of relayd's own: whatever the other side does, a time limit around it holds."""

from __future__ import annotations

import asyncio

import pytest

from relayd.fetch import fetch
from tests.support.tlspeer import NAME, VERSIONS, Peer, ends, serving, trusting

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
async def test_a_peer_that_says_no_farewell_over_tls_is_not_waited_for(
    version: int, said: bytes
) -> None:
    one, other = ends()
    peer = Peer(other, serving(version))  # type: ignore[arg-type]
    shaking = asyncio.create_task(peer.shake())
    reader, writer = await asyncio.open_connection(sock=one, ssl=trusting(), server_hostname=NAME)
    await shaking
    with other:
        if said:
            await peer.send(peer.sealed(said))
        async with asyncio.timeout(5.0):
            if said:
                assert (await fetch(reader, writer, b"GET / HTTP/1.1\r\n\r\n", 10)).body == b"ok"
            else:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await fetch(reader, writer, b"GET / HTTP/1.1\r\n\r\n", 10)
