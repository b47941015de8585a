"""How a TLS connection over our own transport ends: by the peer, by a fault, and what is left."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from tests.support.heard import Heard
from tests.support.tlspeer import (
    ALL,
    LOST,
    VERSIONS,
    Peer,
    early,
    nothing_for_the_collector,
    of,
    opened,
    records,
)


@of(*VERSIONS)
async def test_the_peers_farewell_is_answered_and_ends_it(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        await peer.send(peer.sealed(b"last") + peer.bye())
        await heard.until(lambda: heard.lost)
        assert heard.data == b"last"
        assert heard.calls == ["eof", LOST]
        assert transport.is_closing()
        with pytest.raises(ssl.SSLZeroReturnError):
            await peer.read()


@of(*VERSIONS)
async def test_what_follows_a_farewell_is_nothing(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        await peer.send(peer.bye() + b"and more")
        await heard.until(lambda: heard.lost)
        assert not heard.data
        assert heard.calls == ["eof", LOST]


@of(*VERSIONS)
async def test_an_end_without_a_farewell_is_an_end(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        await peer.send(peer.sealed(b"last"))
        peer.sock.shutdown(socket.SHUT_WR)
        await heard.until(lambda: heard.lost)
        assert heard.data == b"last"
        assert heard.calls == ["eof", LOST]


@of(*VERSIONS)
async def test_an_end_within_a_record_gives_nothing_of_it(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        await peer.send(peer.sealed(b"whole") + peer.sealed(b"cut")[:-1])
        peer.sock.shutdown(socket.SHUT_WR)
        await heard.until(lambda: heard.lost)
        assert heard.data == b"whole"
        assert heard.calls == ["eof", LOST]


@of(*VERSIONS)
async def test_a_reset_is_a_loss_with_its_cause(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        peer.reset()
        await heard.until(lambda: heard.lost)
        assert heard.calls == [("lost", ConnectionResetError)]
        assert transport.is_closing()
        transport.write(b"to nobody")


async def broken(heard: Heard, peer: Peer, data: bytes) -> None:
    """Not all of this is a record: our side loses the connection, and says why to the peer."""
    await peer.send(data)
    await heard.until(lambda: heard.lost)
    assert heard.data == b"good"
    assert heard.calls == [("lost", ssl.SSLError)]
    with pytest.raises(ssl.SSLError, match="ALERT"):
        await peer.read()


@of(*VERSIONS)
async def test_what_is_no_record_is_a_loss_and_the_peer_is_told(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        await broken(heard, peer, peer.sealed(b"good") + b"HTTP/1.1 408 Request Timeout\r\n\r\n")


@of(*VERSIONS)
async def test_a_flipped_bit_is_a_loss_and_the_peer_is_told(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        data = bytearray(peer.sealed(b"good") + peer.sealed(b"to be spoilt"))
        data[-1] ^= 1
        await broken(heard, peer, bytes(data))


@of(*VERSIONS)
async def test_an_alert_of_the_peer_is_a_loss_with_its_cause(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport._link.write(b"no record at all")
        with pytest.raises(ssl.SSLError):
            await peer.read()
        await peer.send(peer.said())
        await heard.until(lambda: heard.lost)
        assert heard.calls == [("lost", ssl.SSLError)]


# ------------------------------------------------------------------ faults, and what is left


def told() -> list[BaseException]:
    """What reaches the loop's exception handler from now on."""
    found: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: found.append(context["exception"])
    )
    return found


@of(*VERSIONS)
async def test_a_fault_of_the_protocol_is_told_and_ends_the_connection(
    version: ssl.TLSVersion,
) -> None:
    async with opened(version) as (transport, heard, peer):
        faults, fault = told(), ValueError("of the protocol")

        def fail(_: bytes) -> None:
            raise fault

        heard.on_data = fail
        await peer.send(records(peer))
        await heard.until(lambda: heard.lost)
        assert faults == [fault]
        assert heard.data == ALL
        assert heard.calls == [("lost", ValueError)]
        assert transport.is_closing()


@of(ValueError, asyncio.CancelledError)
async def test_a_fault_over_what_came_early_is_told_and_ends_it_too(
    kind: type[BaseException],
) -> None:
    async with early(b"hello") as (transport, _):
        faults, heard = told(), Heard()

        def fail(_: bytes) -> None:
            raise kind("of the protocol")

        heard.on_data = fail
        transport.set_protocol(heard)
        await heard.until(lambda: heard.lost)
        assert [type(fault) for fault in faults] == [kind]
        assert heard.calls == [("lost", kind)]


@of(*VERSIONS)
async def test_what_came_before_a_broken_record_is_told_before_the_loss(
    version: ssl.TLSVersion,
) -> None:
    async with opened(version) as (_, heard, peer):
        await peer.send(records(peer) + b"no record")
        await heard.until(lambda: heard.lost)
        assert heard.data == ALL
        assert heard.calls == [("lost", ssl.SSLError)]


@of("farewell", "end", "reset", "broken", "close", "abort", "paused")
async def test_a_connection_that_is_lost_leaves_nothing_to_the_collector(how: str) -> None:
    async with nothing_for_the_collector():
        await lose(how)


async def lose(how: str) -> None:
    """A connection that ends so."""
    async with opened(VERSIONS[1]) as (transport, heard, peer):
        heard.on_pause = transport.close  # a protocol knows its transport
        transport.write(b"hello")
        await peer.send(records(peer))
        await heard.until(lambda: heard.data == ALL)
        if how == "close":
            transport.close()
        elif how == "abort":
            transport.abort()
        elif how == "paused":
            transport.pause_reading()
            transport.close()
        elif how == "reset":
            peer.reset()
        else:
            end = {"farewell": peer.bye(), "broken": b"no record", "end": b""}
            await peer.send(end[how])
            peer.sock.shutdown(socket.SHUT_WR)
        await heard.until(lambda: heard.lost)
