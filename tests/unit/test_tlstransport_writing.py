"""What is written into TLS over our own transport: all of it, in order, and the last words."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable

import pytest

from relayd.tlstransport import SEALED_AT_ONCE, TlsTransport, secured
from relayd.transport import WRITE_HIGH
from tests.support.heard import CAP, Heard, turns
from tests.support.tlspeer import (
    LOST,
    MUCH,
    NAME,
    VERSIONS,
    ends,
    of,
    opened,
    serving,
    trusting,
)


@of(*VERSIONS)
async def test_sixteen_megabytes_arrive_as_they_are(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, _, peer):
        transport.write(b"head")
        transport.write(MUCH)
        transport.write(b"")
        transport.write(b"tail")
        assert 0 < transport.get_write_buffer_size() < len(MUCH) * 1.01
        assert await peer.read_exactly(len(MUCH) + 8) == b"head" + MUCH + b"tail"
        assert transport.get_write_buffer_size() == 0


@of(*VERSIONS)
async def test_sixteen_megabytes_pass_each_way_at_once(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        sending = asyncio.create_task(peer.send(peer.sealed(MUCH)))
        transport.write(MUCH[::-1])
        assert await peer.read_exactly(len(MUCH)) == MUCH[::-1]
        await sending
        await heard.until(lambda: len(heard.data) == len(MUCH))
        assert heard.data == MUCH


@of(*VERSIONS)
async def test_a_peer_that_does_not_read_pauses_the_protocol(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport.set_write_buffer_limits(high=WRITE_HIGH)
        transport.write(MUCH)
        assert heard.calls == ["pause"]
        transport.write(b"more")
        assert heard.calls == ["pause"], "told once"
        await peer.read_exactly(len(MUCH) + 4)
        await heard.until(lambda: len(heard.calls) > 1)
        assert heard.calls == ["pause", "resume"]


@of(*VERSIONS)
async def test_who_may_go_on_may_write_at_once(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_resume = lambda: (transport.write(b"tail"), transport.close())
        transport.write(MUCH)
        assert await peer.read_all() == MUCH + b"tail"


@of(*VERSIONS)
async def test_an_answer_may_be_written_from_within_a_read(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_data = transport.write
        await peer.send(peer.sealed(b"one") + peer.sealed(b"two"))
        assert await peer.read_exactly(6) == b"onetwo"


@of(*VERSIONS)
async def test_a_write_that_fails_is_told_later(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport.pause_reading()
        peer.reset()
        for _ in range(3):
            transport.write(b"to nobody")
        assert transport.is_closing()
        assert heard.calls == []
        await heard.until(lambda: heard.lost)
        assert issubclass(heard.calls[-1][1], ConnectionError)


@of(*VERSIONS)
async def test_who_is_asked_to_pause_may_close_and_loses_nothing(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_pause = transport.close
        transport.write(MUCH)
        assert await peer.read_all() == MUCH


@of(*VERSIONS)
async def test_a_big_write_is_encrypted_in_pieces(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, _, peer):
        write, sizes = transport._write, []

        def noting(data: bytes) -> int:
            assert transport._outgoing.pending == 0
            sizes.append(len(data))
            return write(data)

        transport._write = noting
        transport.write(MUCH)
        assert await peer.read_exactly(len(MUCH)) == MUCH
        assert max(sizes) == SEALED_AT_ONCE, "OpenSSL's buffer stays as big as it ever was"
        sizes.clear()
        transport.write(MUCH[:SEALED_AT_ONCE])
        assert sizes == [SEALED_AT_ONCE]


# ------------------------------------------------------------------ the peer negotiates anew


def busy(transport: TlsTransport, times: int, after: int = 0) -> None:
    """As while the peer negotiates anew: after some records, so many writes have to wait."""
    write, count = transport._write, 0

    def wait(data: bytes) -> int:
        nonlocal count
        count += 1
        if after < count <= after + times:
            raise ssl.SSLWantReadError
        return write(data)

    transport._write = wait


@of(*VERSIONS)
async def test_what_is_written_meanwhile_goes_out_in_order(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, _, peer):
        busy(transport, 1)
        for text in (b"one", b"two", b"three"):
            transport.write(text)
        assert transport.get_write_buffer_size() == 11
        await turns()
        await peer.send(peer.sealed(b"done"))
        assert await peer.read_exactly(11) == b"onetwothree"
        assert transport.get_write_buffer_size() == 0


@of(*VERSIONS)
async def test_a_write_that_has_to_wait_in_its_middle_goes_on_there(
    version: ssl.TLSVersion,
) -> None:
    async with opened(version) as (transport, _, peer):
        busy(transport, 2, after=3)
        text = MUCH[: 5 * SEALED_AT_ONCE]
        transport.write(text)
        transport.write(b"tail")
        await peer.send(peer.sealed(b"not yet"))
        await turns()
        await peer.send(peer.sealed(b"done"))
        assert await peer.read_exactly(len(text) + 4) == text + b"tail"


@of(*VERSIONS)
async def test_a_write_that_tls_refuses_ends_it(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, _):

        def fail(_: bytes) -> int:
            raise ssl.SSLError(1, "out of luck")

        transport._write = fail
        transport.write(b"hello")
        assert transport.is_closing()
        await heard.until(lambda: heard.lost)
        assert heard.calls == [("lost", ssl.SSLError)]


# ------------------------------------------------------------------ the last words


def read_slowly(sock: socket.socket, version: ssl.TLSVersion, begin: threading.Event) -> bytes:
    """What a blocking peer reads up to a close_notify, a little at a time; an end is an error."""
    sock.settimeout(CAP)
    with serving(version).wrap_socket(sock, server_side=True, suppress_ragged_eofs=False) as tls:
        tls.sendall(b"ready")
        begin.wait(CAP)
        found = bytearray()
        while data := tls.read(3000):
            found += data
        return bytes(found)


@of(*VERSIONS)
async def test_a_close_sends_everything_and_a_farewell_to_a_slow_peer(
    version: ssl.TLSVersion,
) -> None:
    loop = asyncio.get_running_loop()
    one, other = ends()
    begin, heard = threading.Event(), Heard()
    reading = loop.run_in_executor(None, read_slowly, other, version, begin)
    transport = await secured(loop, one, trusting(), NAME)
    transport.set_protocol(heard)
    await heard.until(lambda: heard.data == b"ready")
    transport.write(MUCH)
    transport.close()
    transport.close()
    assert transport.is_closing()
    assert not transport.is_reading()
    begin.set()
    assert await reading == MUCH
    await heard.until(lambda: heard.lost)
    assert heard.calls == ["pause", "resume", LOST]
    await turns()
    assert one.fileno() == -1


@of(*VERSIONS)
async def test_a_close_of_what_said_nothing_is_a_farewell(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport.close()
        assert heard.calls == [], "not from within the call"
        assert await peer.read_all() == b""
        await heard.until(lambda: heard.lost)
        assert heard.calls == [LOST]


@of(*VERSIONS)
async def test_nothing_is_written_after_a_close(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport.write(MUCH)
        transport.close()
        transport.write(b"LATE")
        assert await peer.read_all() == MUCH
        await heard.until(lambda: heard.lost)
        transport.write(b"LATE")
        transport.close()
        transport.abort()
        await turns()
        assert heard.calls == ["pause", "resume", LOST]


@of(*VERSIONS)
async def test_a_close_from_within_a_read_reads_no_more(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_data = lambda _: transport.close()
        transport.write(MUCH)
        await peer.send(peer.sealed(b"one"))
        assert await peer.read_all() == MUCH
        transport.resume_reading()
        assert not transport.is_reading()
        await heard.until(lambda: heard.lost)
        assert heard.data == b"one"


Leave = Callable[[TlsTransport], None]


@of(*VERSIONS)
async def test_an_abort_drops_what_was_not_sent(version: ssl.TLSVersion) -> None:
    first: Leave = TlsTransport.abort
    for leave in (first, TlsTransport.close):
        async with opened(version) as (transport, heard, peer):
            transport.write(MUCH)
            leave(transport)
            transport.abort()
            assert heard.calls == ["pause"], "not from within the call"
            transport.write(b"LATE")
            await heard.until(lambda: heard.lost)
            assert heard.calls == ["pause", LOST]
            with pytest.raises(OSError):  # RST, or an end without a close_notify
                await peer.read_all()


@of(*VERSIONS)
async def test_an_abort_from_within_a_read_hears_of_no_end(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_data = lambda _: transport.abort()
        await peer.send(peer.sealed(b"one") + peer.bye())
        await heard.until(lambda: heard.lost)
        assert heard.data == b"one"
        assert heard.calls == [LOST]
