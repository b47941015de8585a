"""A socket's transport does what asyncio's own does, on both loops with a selector."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relayd.transport import READ_SIZE, WRITE_HIGH, SocketTransport
from tests.support.heard import LOOPS, Heard, turns
from tests.support.provider import LINGER_NONE
from tests.support.sockets import tcp_pair

MUCH = b"y" * (16 * 1024 * 1024)
"""More than any pair of kernel buffers takes."""


async def ours(sock: socket.socket) -> tuple[Any, Heard]:
    heard = Heard()
    transport = SocketTransport(asyncio.get_running_loop(), sock)
    transport.set_protocol(heard)
    return transport, heard


async def theirs(sock: socket.socket) -> tuple[Any, Heard]:
    return await asyncio.get_running_loop().create_connection(Heard, sock=sock)


KINDS: dict[str, Callable[[socket.socket], Coroutine[Any, Any, tuple[Any, Heard]]]] = {
    "ours": ours,
    "theirs": theirs,
}


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[tuple[Any, Heard, socket.socket]]:
    """A transport, what its protocol heard, and the bare socket at the other end."""
    one, other = tcp_pair()
    one.setblocking(False)
    other.setblocking(False)
    transport, heard = await KINDS[kind](one)
    try:
        yield transport, heard, other
    finally:
        other.close()
        if not heard.lost:
            transport.abort()
            await heard.until(lambda: heard.lost)


Test = Callable[[str], Coroutine[Any, Any, None]]


def of(*kinds: str) -> Callable[[Test], Callable[..., None]]:
    """Run a test with each of these transports on each loop."""

    def decorate(test: Test) -> Callable[..., None]:
        def run(loop: str, kind: str) -> None:
            with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
                runner.run(test(kind))

        run.__name__ = test.__name__
        run = pytest.mark.parametrize("loop", LOOPS)(run)
        return pytest.mark.parametrize("kind", kinds)(run)

    return decorate


async def receive_all(peer: socket.socket) -> bytes:
    found = bytearray()
    async with asyncio.timeout(10):
        while data := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
            found += data
    return bytes(found)


# ------------------------------------------------------------------ reading


@of("ours", "theirs")
async def test_what_comes_is_told_and_then_the_end(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        peer.send(b"hello")
        await heard.until(lambda: heard.data == b"hello")
        assert transport.is_reading()
        peer.shutdown(socket.SHUT_WR)
        await heard.until(lambda: bool(heard.calls))
        await turns()
        assert heard.calls == ["eof"], "told once, and the transport stays open"
        transport.write(b"answer")
        transport.close()
        assert await receive_all(peer) == b"answer"
        await heard.until(lambda: heard.lost)
        assert heard.calls == ["eof", ("lost", type(None))]


@of("ours", "theirs")
async def test_who_does_not_keep_it_open_at_the_end_loses_it(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        heard.keep_open = False
        peer.shutdown(socket.SHUT_WR)
        await heard.until(lambda: heard.lost)
        assert heard.calls == ["eof", ("lost", type(None))]
        assert transport.is_closing()


@of("ours", "theirs")
async def test_a_pause_leaves_what_comes_to_the_kernel(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.pause_reading()
        assert not transport.is_reading()
        peer.send(b"hello")
        await turns()
        assert not heard.data
        transport.resume_reading()
        await heard.until(lambda: heard.data == b"hello")


@of("ours")
async def test_pausing_and_resuming_twice_is_once(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        for _ in range(2):
            transport.pause_reading()
        for _ in range(2):
            transport.resume_reading()
        peer.send(b"hello")
        await heard.until(lambda: heard.data == b"hello")


@of("ours")
async def test_nothing_is_read_after_the_end_or_a_close(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        peer.shutdown(socket.SHUT_WR)
        await heard.until(lambda: bool(heard.calls))
        transport.resume_reading()
        assert not transport.is_reading()
        await turns()
        assert heard.calls == ["eof"]
        transport.close()
        transport.resume_reading()
        assert not transport.is_reading()


@of("ours", "theirs")
async def test_the_others_have_their_turn_between_two_reads(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        course: list[str] = []

        def hear(_: bytes) -> None:
            course.append("read")
            asyncio.get_running_loop().call_soon(course.append, "turn")

        heard.on_data = hear
        sent = peer.send(MUCH[: READ_SIZE * 5])
        if kind == "theirs":
            transport.max_size = READ_SIZE
        await heard.until(lambda: len(heard.data) == sent)
        await turns()
        assert course == ["read", "turn"] * (len(course) // 2)
        assert len(course) >= 4


@of("ours", "theirs")
async def test_a_reset_is_a_loss_with_its_cause(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        await heard.until(lambda: heard.lost)
        assert heard.calls == [("lost", ConnectionResetError)]
        assert transport.is_closing()
        transport.write(b"to nobody")


@of("ours")
async def test_a_fault_of_the_protocol_is_told_and_ends_the_connection(kind: str) -> None:
    async with opened(kind) as (_, heard, peer):
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        fault = ValueError("of the protocol")

        def fail(_: bytes) -> None:
            raise fault

        heard.on_data = fail
        peer.send(b"hello")
        await heard.until(lambda: heard.lost)
        assert [context["exception"] for context in told] == [fault]
        assert heard.calls == [("lost", ValueError)]
        assert await receive_all(peer) == b""


@of("ours")
async def test_a_readiness_that_was_none_is_passed_over(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport._readable()
        assert heard.calls == []
        assert not transport.is_closing()
        peer.send(b"hello")
        await heard.until(lambda: heard.data == b"hello")


# ------------------------------------------------------------------ writing


@of("ours", "theirs")
async def test_what_is_written_arrives_in_order(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.write(b"head")
        transport.write(MUCH)
        transport.write(b"tail")
        assert 0 < transport.get_write_buffer_size() < len(MUCH) + 8
        transport.write_eof()
        assert await receive_all(peer) == b"head" + MUCH + b"tail"
        assert transport.get_write_buffer_size() == 0
        assert not transport.is_closing(), "it can still hear"
        peer.send(b"not yet")
        await heard.until(lambda: heard.data == b"not yet")


@of("ours", "theirs")
async def test_a_peer_that_does_not_read_pauses_the_protocol(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        transport.write(MUCH)
        assert heard.calls == ["pause"]
        transport.write(b"more")
        assert heard.calls == ["pause"], "told once"
        transport.close()
        assert len(await receive_all(peer)) == len(MUCH) + 4
        await heard.until(lambda: heard.lost)
        assert heard.calls == ["pause", "resume", ("lost", type(None))]


@of("ours", "theirs")
async def test_limits_that_are_lowered_pause_at_once(kind: str) -> None:
    async with opened(kind) as (transport, heard, _):
        transport.set_write_buffer_limits(high=len(MUCH))
        transport.write(MUCH)
        assert heard.calls == []
        transport.set_write_buffer_limits(high=0)
        assert heard.calls == ["pause"]
        assert transport.get_write_buffer_limits() == (0, 0)


@of("ours", "theirs")
async def test_the_usual_limits(kind: str) -> None:
    async with opened(kind) as (transport, _, _peer):
        transport.set_write_buffer_limits()
        assert transport.get_write_buffer_limits() == (WRITE_HIGH // 4, WRITE_HIGH)
        transport.set_write_buffer_limits(high=100, low=7)
        assert transport.get_write_buffer_limits() == (7, 100)


@of("ours", "theirs")
async def test_who_may_go_on_may_write_at_once(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        heard.on_resume = lambda: (transport.write(b"tail"), transport.write_eof())
        transport.write(MUCH)
        assert await receive_all(peer) == MUCH + b"tail"


@of("ours", "theirs")
async def test_who_may_go_on_may_also_leave(kind: str) -> None:
    for leave in ("close", "abort"):
        async with opened(kind) as (transport, heard, peer):
            transport.set_write_buffer_limits(high=0)
            heard.on_resume = getattr(transport, leave)
            transport.write(MUCH)
            assert await receive_all(peer) == MUCH
            await heard.until(lambda: heard.lost)
            assert heard.calls == ["pause", "resume", ("lost", type(None))]


@of("ours")
async def test_a_close_or_an_end_is_the_last_word(kind: str) -> None:
    async with opened(kind) as (transport, _, peer):
        transport.write(MUCH)
        transport.write_eof()
        transport.write(b"LATE")
        transport.write_eof()
        transport.close()
        transport.write(b"LATE")
        transport.write_eof()
        transport.close()
        assert await receive_all(peer) == MUCH


@of("ours", "theirs")
async def test_an_abort_drops_what_was_not_sent(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.write(MUCH)
        transport.abort()
        transport.abort()
        assert transport.is_closing()
        assert heard.calls in ([], ["pause"]), "not from within the call"
        await heard.until(lambda: heard.lost)
        assert heard.calls[-1] == ("lost", type(None))
        with contextlib.suppress(ConnectionResetError):
            assert len(await receive_all(peer)) < len(MUCH)


@of("ours", "theirs")
async def test_an_abort_while_it_closes_drops_the_rest(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.write(MUCH)
        transport.close()
        transport.abort()
        await heard.until(lambda: heard.lost)
        with contextlib.suppress(ConnectionResetError):
            assert len(await receive_all(peer)) < len(MUCH)


@of("ours", "theirs")
async def test_a_peer_that_resets_under_a_backlog_is_a_loss(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.pause_reading()  # the write has to find out
        transport.write(MUCH)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        await heard.until(lambda: heard.lost)
        assert heard.calls[-1][1] in (ConnectionResetError, BrokenPipeError)
        assert transport.get_write_buffer_size() == 0


@of("ours", "theirs")
async def test_a_write_that_fails_is_told_later(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        transport.pause_reading()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        for _ in range(3):
            transport.write(b"to nobody")
        assert heard.calls == []
        await heard.until(lambda: heard.lost)
        assert issubclass(heard.calls[-1][1], ConnectionError)


@of("ours")
async def test_a_half_close_is_the_last_word_too(kind: str) -> None:
    async with opened(kind) as (transport, _, peer):
        transport.write(b"said")
        transport.write_eof()
        transport.write(b"LATE")
        assert transport.get_write_buffer_size() == 0
        assert await receive_all(peer) == b"said"


@of("ours", "theirs")
async def test_a_write_that_finds_the_kernel_full_waits(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        sock = transport.get_extra_info("socket")
        filled = 0
        copy = socket.socket(fileno=socket.dup(sock.fileno()))
        with copy, contextlib.suppress(BlockingIOError):
            copy.setblocking(False)
            while True:
                filled += copy.send(b"x" * READ_SIZE)
        transport.write(b"tail")
        assert transport.get_write_buffer_size() == 4
        transport.close()
        assert (await receive_all(peer))[filled:] == b"tail"
        await heard.until(lambda: heard.lost)


@of("ours")
async def test_a_readiness_to_write_that_was_none_is_passed_over(kind: str) -> None:
    async with opened(kind) as (transport, _, peer):
        transport.write(MUCH)
        transport._writable()
        assert not transport.is_closing()
        transport.close()
        assert await receive_all(peer) == MUCH


@of("ours")
async def test_a_protocol_that_fails_at_the_loss_does_not_keep_the_socket(kind: str) -> None:
    one, other = tcp_pair()
    one.setblocking(False)
    transport, heard = await KINDS[kind](one)
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    heard.connection_lost = failing  # type: ignore[method-assign]
    transport.abort()
    await turns()
    assert [type(context["exception"]) for context in told] == [ValueError]
    assert one.fileno() == -1
    other.close()


def failing(_: Exception | None) -> None:
    raise ValueError("of the protocol")


@of("ours", "theirs")
async def test_exactly_the_limit_is_no_pause(kind: str) -> None:
    async with opened(kind) as (transport, heard, _):
        transport.set_write_buffer_limits(high=len(MUCH))
        transport.write(MUCH)
        size = transport.get_write_buffer_size()
        transport.set_write_buffer_limits(high=size)
        assert heard.calls == []
        transport.set_write_buffer_limits(high=size - 1)
        assert heard.calls == ["pause"]


# ------------------------------------------------------------------ the rest


@of("ours", "theirs")
async def test_what_it_knows_of_itself(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        assert transport.can_write_eof()
        assert transport.get_protocol() is heard
        assert transport.get_extra_info("peername") == peer.getsockname()
        assert transport.get_extra_info("sockname") == peer.getpeername()
        assert transport.get_extra_info("socket").family == socket.AF_INET
        assert transport.get_extra_info("ssl_object") is None
        assert transport.get_extra_info("unknown", 7) == 7


@of("ours")
async def test_the_name_of_a_peer_that_is_gone_is_the_default(kind: str) -> None:
    async with opened(kind) as (transport, heard, peer):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
        await heard.until(lambda: heard.lost)
        assert transport.get_extra_info("peername") is None


@of("ours", "theirs")
async def test_another_protocol_may_take_over(kind: str) -> None:
    async with opened(kind) as (transport, first, peer):
        second = Heard()
        transport.set_protocol(second)
        peer.send(b"hello")
        await second.until(lambda: second.data == b"hello")
        assert not first.data
        transport.set_protocol(first)
