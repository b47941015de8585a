"""A connection over TLS over our own transport: what `Conn` promises of any holds here too."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from relayd.net import Conn
from relayd.transport import READ_SIZE, fits
from relayd.wake import Wake
from tests.support.heard import CAP, turns
from tests.support.tlspeer import MUCH, VERSIONS, Peer, agreed, ends, of, serving

UVLOOP_READ = 256 * 1024
"""Bytes that uvloop asks of the kernel in one read."""


@asynccontextmanager
async def connected(version: ssl.TLSVersion) -> AsyncIterator[tuple[Conn, Peer]]:
    """A connection that was just made, and its peer."""
    loop = asyncio.get_running_loop()
    one, other = ends()
    peer = Peer(other, serving(version))
    conn = Conn(await agreed(one, peer), Wake(loop), loop.time())
    await turns()
    with other:
        yield conn, peer
    conn.abort()
    await turns()
    assert conn.lost
    assert one.fileno() == -1, "expected the socket to be closed"


async def until_ended(conn: Conn) -> None:
    async with asyncio.timeout(CAP):
        while not conn.ended:
            assert conn.wake
            await conn.wake.wait()


@of(*VERSIONS)
async def test_bytes_go_to_the_sink_or_into_the_buffer(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        given: list[bytes] = []
        for word, sink in ((b"one", None), (b"two", given.append), (b"three", None)):
            conn.sink = sink
            await peer.send(peer.sealed(word))
            await turns()
        assert conn.take() == b"onethree"
        assert given == [b"two"]


@of(*VERSIONS)
async def test_a_full_buffer_makes_the_peer_wait(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        sending = asyncio.create_task(peer.send(peer.sealed(MUCH)))
        found = bytearray()
        one_read = READ_SIZE if fits(asyncio.get_running_loop()) else UVLOOP_READ
        async with asyncio.timeout(CAP):
            while len(found) < len(MUCH):
                await turns()
                assert len(conn.buffer) <= conn.limit + one_read
                found += conn.take()
        await sending
        assert found == MUCH


@of(*VERSIONS)
async def test_nothing_that_came_waits_unseen(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        assert conn.is_quiet()
        given: list[bytes] = []

        def sink(data: bytes) -> None:
            given.append(data)
            conn.pause()

        conn.sink = sink
        await peer.send(peer.sealed(b"an answer") + peer.sealed(b" and one that nobody asked for"))
        await turns()
        assert given == [b"an answer and one that nobody asked for"]
        assert conn.is_quiet()
        await peer.send(peer.sealed(b"more"))
        assert not conn.is_quiet()


@of(*VERSIONS)
async def test_half_a_record_is_known_of(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        answer, more = peer.sealed(b"an answer"), peer.sealed(b" and more")
        await peer.send(answer + more[:-1])
        await turns()
        assert (bytes(conn.buffer), conn.holds_part()) == (b"an answer", True)
        await peer.send(more[-1:])
        await turns()
        assert (bytes(conn.buffer), conn.holds_part()) == (b"an answer and more", False)


@of(*VERSIONS)
async def test_an_early_answer_behind_a_failed_write_is_kept(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        conn.pause()
        await peer.send(peer.sealed(b"too large") + peer.sealed(b", said early"))
        peer.reset()
        for _ in range(3):  # the first may still be taken by the kernel
            conn.write(b"much")
            await turns()
        await until_ended(conn)
        assert conn.error is not None
        assert conn.take() == b"too large, said early"


@of(*VERSIONS)
async def test_nothing_behind_a_farewell_is_read_of_a_lost_connection(
    version: ssl.TLSVersion,
) -> None:
    async with connected(version) as (conn, peer):
        late = peer.sealed(b"said early") + peer.bye() + b"and no record"
        assert conn.transport.late(late) == b"said early"


@of(*VERSIONS)
async def test_a_close_is_a_farewell_behind_what_was_written(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        conn.write(MUCH)
        assert not conn.writable
        assert conn.pending() > 0
        conn.close()
        assert conn.pending() == 0
        assert await peer.read_all() == MUCH


@of(*VERSIONS)
async def test_a_reset_is_one_and_an_abort_says_no_farewell(version: ssl.TLSVersion) -> None:
    for leave, heard in ((Conn.reset, ConnectionResetError), (Conn.abort, ssl.SSLEOFError)):
        async with connected(version) as (conn, peer):
            leave(conn)
            with pytest.raises(heard):
                await peer.read()


@of(*VERSIONS)
async def test_the_peers_end_is_told_with_its_cause(version: ssl.TLSVersion) -> None:
    async with connected(version) as (conn, peer):
        await peer.send(peer.sealed(b"last") + peer.bye())
        await until_ended(conn)
        await turns()
        assert (conn.take(), conn.lost, conn.error) == (b"last", True, None)
        conn.write(b"to nobody")
    async with connected(version) as (conn, peer):
        peer.reset()
        await until_ended(conn)
        assert isinstance(conn.error, ConnectionResetError)
    async with connected(version) as (conn, peer):
        await peer.send(b"no record at all")
        await until_ended(conn)
        assert isinstance(conn.error, ssl.SSLError)
