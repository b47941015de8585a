"""Connections over real sockets, on both event loops: back-pressure, ends, what is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relayd import net
from relayd.dial import connect
from relayd.net import Conn, plain
from relayd.pool import Origin, Pool
from relayd.reach import Reach
from relayd.resources import plain_loop, uv_loop
from relayd.transport import READ_SIZE, WRITE_HIGH, SocketTransport
from relayd.wake import Wake
from tests.support.certificates import Authority
from tests.support.provider import LINGER_NONE
from tests.support.sockets import tcp_pair

UVLOOP_READ = 262_144
"""Bytes of one read at most, on either loop; uvloop's cannot be changed."""

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "plain": plain_loop,
    "asyncio": asyncio.new_event_loop,
    "uvloop": uv_loop,
}


def on_each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test once on each event loop and once for each kind of socket."""

    def run(loop: str, pair: Callable[[], tuple[socket.socket, socket.socket]]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(test(pair))

    run.__name__ = test.__name__
    run = pytest.mark.parametrize("loop", LOOPS)(run)
    return pytest.mark.parametrize("pair", [unix_pair, tcp_pair], ids=["unix", "tcp"])(run)


Pair = Callable[[], tuple[socket.socket, socket.socket]]


def unix_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


@asynccontextmanager
async def connected(pair: Pair) -> AsyncIterator[tuple[Conn, socket.socket]]:
    """A `Conn` and the bare socket at its other end."""
    ours, theirs = pair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    _, writer = await asyncio.open_connection(sock=ours)
    conn = Conn(plain(writer), Wake(loop), loop.time())
    try:
        yield conn, theirs
    finally:
        theirs.close()
        await let_go(conn)


async def let_go(conn: Conn) -> None:
    """Abort, and wait until the loop has let the transport go."""
    gone = asyncio.Event()
    conn.abort()
    conn.on_writable = gone.set
    if not conn.lost:
        async with asyncio.timeout(5):
            await gone.wait()


async def turns() -> None:
    """Let the loop look at its sockets a few times."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(conn: Conn, met: Callable[[], bool]) -> None:
    """Wait, as a task of relayd does, until something holds."""
    wake = conn.wake
    assert wake is not None
    async with asyncio.timeout(10):
        while not met():
            await wake.wait()


async def receive(peer: socket.socket, size: int = 65536) -> bytes:
    async with asyncio.timeout(10):
        return await asyncio.get_running_loop().sock_recv(peer, size)


async def receive_all(peer: socket.socket) -> bytes:
    found = b""
    while data := await receive(peer):
        found += data
    return found


def flood(peer: socket.socket) -> int:
    """Send until the kernel takes no more; how many bytes it took."""
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += peer.send(b"x" * READ_SIZE)
    return sent


# ------------------------------------------------------------------ bytes in


@on_each_loop
async def test_bytes_wait_in_the_buffer_and_wake_their_reader(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        peer.send(b"hello")
        await until(conn, lambda: len(conn.buffer) == 5)
        assert conn.take() == b"hello"
        assert conn.take() == b""
        assert not conn.ended


@on_each_loop
async def test_a_sink_gets_the_bytes_instead(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        got: list[bytes] = []
        conn.sink = lambda data: (got.append(data), conn.wake and conn.wake.wake())  # type: ignore
        peer.send(b"hello")
        await until(conn, lambda: b"".join(got) == b"hello")
        assert not conn.buffer


@on_each_loop
async def test_a_slow_reader_slows_its_peer(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        conn.limit = 1000
        sent = 0
        while more := flood(peer):  # until neither the kernel nor the connection takes any more
            sent += more
            await turns()
        assert 1000 < len(conn.buffer) <= 1000 + UVLOOP_READ
        assert len(conn.buffer) < sent
        got = len(conn.take())
        while got < sent:
            await until(conn, lambda: bool(conn.buffer))
            got += len(conn.take())
        assert got == sent


@on_each_loop
async def test_a_watched_peer_that_sends_too_much_is_not_paused(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        conn.hold = False
        conn.limit = 10
        peer.send(b"0123456789")
        await until(conn, lambda: len(conn.buffer) == 10)
        assert not conn.overran
        peer.send(b"x")
        peer.shutdown(socket.SHUT_WR)
        await until(conn, lambda: conn.ended)
        assert conn.overran
        assert conn.buffer == b"0123456789"


# ------------------------------------------------------------------ bytes out


@on_each_loop
async def test_a_peer_that_does_not_read_makes_us_wait(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        wake = conn.wake
        assert wake is not None
        conn.on_writable = wake.wake
        data = b"y" * (16 * 1024 * 1024)
        conn.write(data)
        assert not conn.writable
        assert WRITE_HIGH < conn.pending() < len(data)
        left = len(data)
        while left:
            left -= len(await receive(peer))
        await until(conn, lambda: conn.writable)
        assert conn.pending() == 0


@on_each_loop
async def test_with_a_mark_of_zero_writable_means_that_all_is_sent(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        pending: list[int] = []
        left = 16 * 1024 * 1024
        conn.mark(0)
        conn.write(b"y" * left)
        conn.on_writable = lambda: pending.append(conn.pending())
        while left:
            left -= len(await receive(peer))
        await turns()
        assert pending == [0]


@on_each_loop
async def test_closing_sends_what_was_written(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        data = b"y" * (4 * 1024 * 1024)
        conn.write(data)
        conn.close()
        assert await receive_all(peer) == data


@on_each_loop
async def test_what_the_peer_takes_of_the_kernels_bytes_is_seen(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        assert conn.untaken() == 0
        conn.write(b"y" * (16 * 1024 * 1024))
        await turns()
        pending, before = conn.pending(), conn.untaken()
        assert before > pending > 0
        while conn.untaken() == before:
            assert peer.recv(65536)
        assert conn.pending() == pending, "the loop had no turn"
        conn.abort()
        await turns()
        assert conn.untaken() == 0


@on_each_loop
async def test_a_peer_that_takes_no_last_words_is_not_waited_for(pair: Pair) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net, "LAST_WORDS", 0.05)
        async with connected(pair) as (conn, _):
            conn.write(b"y" * (16 * 1024 * 1024))
            conn.close()
            gone = asyncio.Event()
            conn.on_writable = gone.set
            async with asyncio.timeout(5):
                await gone.wait()


@on_each_loop
async def test_a_peer_that_takes_its_time_gets_all_last_words(pair: Pair) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net, "LAST_WORDS", 0.05)
        async with connected(pair) as (conn, peer):
            data = b"y" * (16 * 1024 * 1024)
            conn.write(data)
            conn.close()
            found = 0
            while part := await receive(peer, 4096):
                found += len(part)
            assert found == len(data)


@on_each_loop
async def test_after_a_close_nothing_more_is_said(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        conn.close()
        conn.write(b"late")
        conn.finish()
        conn.mark(0)
        conn.pause()
        conn.resume()
        assert conn.pending() == 0
        assert await receive_all(peer) == b""


@on_each_loop
async def test_aborting_drops_what_was_not_sent(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        data = b"y" * (16 * 1024 * 1024)
        conn.write(data)
        conn.abort()
        with contextlib.suppress(ConnectionResetError):
            assert len(await receive_all(peer)) < len(data)


@on_each_loop
async def test_a_reset_is_no_end_that_a_peer_could_take_for_complete(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        conn.write(b"half an answer")
        conn.reset()
        if peer.family == socket.AF_UNIX:  # there is no RST: a plain close
            assert await receive_all(peer) == b"half an answer"
        else:
            with pytest.raises(ConnectionResetError):
                await receive_all(peer)


# ------------------------------------------------------------------ ends


@on_each_loop
async def test_a_reset_after_the_loss_is_no_fault(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        conn.write(b"to nobody")
        await until(conn, lambda: conn.lost)
        conn.reset()


@on_each_loop
async def test_a_half_close_ends_one_direction_alone(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        ends: list[str] = []
        conn.on_end = lambda: ends.append("end")
        peer.send(b"last")
        peer.shutdown(socket.SHUT_WR)
        await until(conn, lambda: conn.ended)
        assert (conn.lost, conn.error, ends) == (False, None, ["end"])
        assert conn.take() == b"last"
        conn.write(b"answer")
        assert await receive(peer) == b"answer"


@on_each_loop
async def test_our_half_close_leaves_the_peer_its_say(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        conn.write(b"bye")
        conn.finish()
        assert await receive_all(peer) == b"bye"
        peer.send(b"not yet")
        await until(conn, lambda: conn.buffer == b"not yet")


@on_each_loop
async def test_a_half_close_towards_a_peer_that_has_reset_is_no_fault(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        conn.finish()
        await until(conn, lambda: conn.ended)


@on_each_loop
async def test_a_loss_tells_everybody_who_waits(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        told: list[str] = []
        conn.on_end = lambda: told.append("end")
        conn.on_writable = lambda: told.append("writable")
        conn.write(b"y" * (16 * 1024 * 1024))
        assert not conn.writable
        if peer.family != socket.AF_UNIX:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        await until(conn, lambda: conn.lost)
        assert isinstance(conn.error, ConnectionError)
        assert conn.ended
        assert conn.writable
        assert set(told) == {"end", "writable"}
        assert conn.pending() == 0


@on_each_loop
async def test_an_answer_that_came_before_a_failed_write_is_not_lost(pair: Pair) -> None:
    # An early refusal: the peer answers and closes while we still send.
    async with connected(pair) as (conn, peer):
        answer = b"HTTP/1.1 413 -\r\n\r\n" + b"z" * 100_000
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
        assert peer.send(answer) == len(answer)
        peer.close()
        for _ in range(3):  # the loop has not looked yet: the first or second of these fails
            conn.write(b"more")
        await until(conn, lambda: conn.ended)
        await until(conn, lambda: conn.lost or conn.error is None)
        assert conn.take() == answer


@on_each_loop
async def test_who_waits_goes_on_within_the_read_that_it_waits_for(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        seen: list[bytes] = []
        assert conn.wake is not None
        wake = conn.wake

        async def waits() -> None:
            await wake.wait()
            seen.append(bytes(conn.buffer))

        task = asyncio.create_task(waits())
        received = conn.data_received

        def watched(data: bytes) -> None:
            received(data)
            seen.append(b"behind the call")

        conn.data_received = watched
        conn.transport.set_protocol(conn)  # uvloop looks the place up once
        await asyncio.sleep(0)
        peer.send(b"hello")
        await task
        await turns()
        assert seen == [b"hello", b"behind the call"]


@on_each_loop
async def test_who_waits_sees_all_that_a_lost_connection_still_held(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        answer = b"HTTP/1.1 413 -\r\n\r\n" + b"z" * 100_000  # two reads
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
        seen: list[tuple[bool, int]] = []
        assert conn.wake is not None
        wake = conn.wake

        async def waits() -> None:
            while not conn.ended:
                await wake.wait()
                seen.append((conn.ended or conn.lost, len(conn.buffer)))

        task = asyncio.create_task(waits())
        await turns()
        assert peer.send(answer) == len(answer)
        peer.close()
        for _ in range(3):  # as above
            conn.write(b"more")
        await task
        assert seen
        assert all(size == len(answer) for over, size in seen if over)


@on_each_loop
async def test_who_is_silenced_tells_nobody(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        wake = conn.wake
        told: list[object] = []
        conn.on_end = lambda: told.append("end")
        conn.sink = told.append
        conn.silence()
        peer.send(b"hello")
        peer.shutdown(socket.SHUT_WR)
        await turns()
        assert conn.ended
        assert told == []
        assert conn.buffer == b"hello"
        assert wake is not None
        assert conn.wake is None


# ------------------------------------------------------------------ quiet


@on_each_loop
async def test_a_connection_is_quiet_until_its_peer_speaks(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        assert conn.is_quiet()
        peer.send(b"x")
        assert not conn.is_quiet(), "the kernel knows before the loop does"
        await until(conn, lambda: bool(conn.buffer))
        assert not conn.is_quiet()
        conn.take()
        assert conn.is_quiet()


@on_each_loop
async def test_a_connection_that_ended_is_not_quiet(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        peer.shutdown(socket.SHUT_WR)
        assert not conn.is_quiet()
        await until(conn, lambda: conn.ended)
        assert not conn.is_quiet()


@on_each_loop
async def test_a_connection_that_is_closing_is_not_quiet(pair: Pair) -> None:
    async with connected(pair) as (conn, _):
        conn.transport.close()
        assert not conn.is_quiet()


# ------------------------------------------------------------------ TLS


@pytest.mark.parametrize("loop", LOOPS)
def test_the_end_of_a_tls_connection_is_an_end_without_a_warning(
    loop: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()
            served.set()

        served = asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=authority.server())
        async with server:
            host, port = server.sockets[0].getsockname()
            running = asyncio.get_running_loop()
            conn = await connect(host, port, authority.client(), host, running)
            conn.wake = Wake(running)
            await until(conn, lambda: conn.ended)
            assert conn.take() == b"hello"
            assert conn.error is None
            await let_go(conn)
            await served.wait()

    with caplog.at_level(logging.WARNING), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
    assert not caplog.records


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_written_behind_a_close_that_is_under_way(loop: str) -> None:
    async def said() -> bytes:
        here, there = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        here.setblocking(False)
        _, writer = await asyncio.open_connection(sock=here)
        conn = Conn(plain(writer), None, 0.0)
        conn.write(b"x" * 400_000)
        assert conn.pending()
        conn.close()
        conn.write(b"LATE")
        reader, other = await asyncio.open_connection(sock=there)
        heard = await reader.read()
        other.close()
        return heard

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert runner.run(said()) == b"x" * 400_000


@on_each_loop
async def test_a_lost_connection_holds_no_circle(pair: Pair) -> None:
    here, there = pair()
    _, writer = await asyncio.open_connection(sock=here)
    conn = Conn(plain(writer), Wake(asyncio.get_running_loop()), 0.0)
    del writer, _
    there.close()
    assert conn.wake is not None
    while not conn.ended:
        await conn.wake.wait()
    conn.abort()
    await turns()
    assert conn.lost
    conn.sink = None
    assert not hasattr(conn.data_received, "__self__")
    assert not hasattr(conn.write, "__self__")
    if isinstance(conn.transport, SocketTransport):
        assert conn.transport.get_protocol() is not conn


@on_each_loop
async def test_a_connection_that_ended_paused_reads_for_the_next_exchange(pair: Pair) -> None:
    async with connected(pair) as (conn, peer):
        reach, there = Reach(Pool(4, 60.0, 60.0)), Origin("http", "a", 80, "", "")
        conn.pause()
        reach.give_back(there, conn, 0.0)
        assert reach.borrow(there, 0.0) is conn
        conn.wake = Wake(asyncio.get_running_loop())
        peer.send(b"answer")
        async with asyncio.timeout(5):
            await conn.wake.wait()
        assert conn.take() == b"answer"
        reach.pool.close()
