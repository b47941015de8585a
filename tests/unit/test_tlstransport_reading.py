"""What comes inside TLS over our own transport: whole, in order and not too early."""

from __future__ import annotations

import asyncio
import ssl

from tests.support.heard import Heard, turns
from tests.support.tlspeer import (
    ALL,
    LOST,
    MUCH,
    RECORD,
    VERSIONS,
    Peer,
    agreed,
    early,
    ends,
    of,
    opened,
    records,
    serving,
)


@of(*VERSIONS)
async def test_sixteen_megabytes_come_as_they_are(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        sending = asyncio.create_task(peer.send(peer.sealed(MUCH)))
        await heard.until(lambda: len(heard.data) == len(MUCH))
        await sending
        assert heard.data == MUCH


@of(*VERSIONS)
async def test_all_records_of_a_read_are_given_in_one_call(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        given: list[bytes] = []
        heard.on_data = given.append
        await peer.send(records(peer))
        await heard.until(lambda: heard.data == ALL)
        assert given == [ALL]


@of(*VERSIONS)
async def test_records_may_be_cut_anywhere(version: ssl.TLSVersion) -> None:
    async with opened(version) as (_, heard, peer):
        whole = records(peer)
        for at in range(len(whole) + 1):
            heard.data.clear()
            await peer.send(whole[:at])
            await turns()
            assert ALL.startswith(heard.data)
            await peer.send(whole[at:])
            await heard.until(lambda: len(heard.data) == len(ALL))
            assert heard.data == ALL
            whole = records(peer)


@of(*VERSIONS)
async def test_a_full_record_that_comes_in_small_pieces_is_one(version: ssl.TLSVersion) -> None:
    async with opened(version, cut=100) as (_, heard, peer):
        given: list[bytes] = []
        heard.on_data = given.append
        await peer.send(peer.sealed(MUCH[:RECORD]))
        await heard.until(lambda: bool(heard.data))
        assert given == [MUCH[:RECORD]]


@of(0, 1)
async def test_session_tickets_that_come_late_are_no_text(cut: int) -> None:
    one, other = ends()
    peer, heard = Peer(other, serving(VERSIONS[1]), cut), Heard()
    transport = await agreed(one, peer, flush=False)
    transport.set_protocol(heard)
    tickets = peer.said()
    assert len(tickets) > 100
    await peer.send(tickets)
    await turns()
    assert not heard.data
    await peer.send(peer.sealed(b"one") + peer.bye())
    await heard.until(lambda: heard.lost)
    assert heard.data == b"one"
    assert heard.calls == ["eof", ("lost", type(None))]
    other.close()
    await turns()
    assert one.fileno() == -1


# ------------------------------------------------------------------ pauses


@of(*VERSIONS)
async def test_a_pause_leaves_what_comes_to_the_kernel(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport.pause_reading()
        assert not transport.is_reading()
        await peer.send(records(peer) + peer.bye())
        await turns()
        assert not heard.data
        transport.resume_reading()
        assert not heard.data, "not from within the call"
        await heard.until(lambda: heard.lost)
        assert heard.data == ALL
        assert heard.calls == ["eof", LOST]


@of(*VERSIONS)
async def test_a_peer_that_is_not_read_has_to_wait(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        transport.pause_reading()
        sending = asyncio.create_task(peer.send(peer.sealed(MUCH)))
        await turns()
        assert not sending.done()
        assert not heard.data
        transport.resume_reading()
        await heard.until(lambda: len(heard.data) == len(MUCH))
        await sending


@of(*VERSIONS)
async def test_a_pause_while_it_is_given_something_holds_the_next_read(
    version: ssl.TLSVersion,
) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_data = lambda _: transport.pause_reading()
        await peer.send(records(peer))
        await heard.until(lambda: bool(heard.data))
        await peer.send(peer.sealed(b"five") + peer.bye())
        await turns()
        assert heard.data == ALL, "and nothing more"
        assert heard.calls == []
        transport.resume_reading()
        await heard.until(lambda: heard.lost)
        assert heard.data == ALL + b"five"
        assert heard.calls == ["eof", LOST]


@of(*VERSIONS)
async def test_a_pause_in_the_middle_of_a_record_goes_on_with_its_rest(
    version: ssl.TLSVersion,
) -> None:
    async with opened(version) as (transport, heard, peer):
        heard.on_data = lambda _: transport.pause_reading()
        first, second = peer.sealed(b"one"), peer.sealed(b"two")
        await peer.send(first + second[:9])
        await heard.until(lambda: heard.data == b"one")
        assert not transport.is_reading()
        transport.resume_reading()
        assert transport.is_reading()
        await peer.send(second[9:])
        await heard.until(lambda: heard.data == b"onetwo")


@of(*VERSIONS)
async def test_who_pauses_and_resumes_at_once_is_given_all_in_order(
    version: ssl.TLSVersion,
) -> None:
    async with opened(version) as (transport, heard, peer):

        def flicker(_: bytes) -> None:
            for _ in range(3):
                transport.pause_reading()
                transport.resume_reading()

        heard.on_data = flicker
        await peer.send(records(peer) + peer.bye())
        await heard.until(lambda: heard.lost)
        assert heard.data == ALL
        assert heard.calls == ["eof", LOST]


@of(0, 1, 2)
async def test_a_pause_just_after_the_first_resume_holds(more: int) -> None:
    async with early(b"hello") as (transport, peer):
        heard = Heard()
        transport.set_protocol(heard)
        assert not transport.is_reading(), "not before what waits here was given"
        transport.pause_reading()
        await turns()
        assert not heard.data
        for _ in range(more):  # several times is once
            transport.resume_reading()
            transport.pause_reading()
        transport.resume_reading()
        transport.resume_reading()
        assert not heard.data, "not from within the call"
        await turns()
        assert heard.data == b"hello"
        assert transport.is_reading()
        await peer.send(peer.sealed(b" again"))
        await heard.until(lambda: heard.data == b"hello again")


@of(*VERSIONS)
async def test_another_protocol_is_given_the_next_read(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        other = Heard()
        heard.on_data = lambda _: transport.set_protocol(other)
        await peer.send(peer.sealed(b"one"))
        await heard.until(lambda: heard.data == b"one")
        await peer.send(peer.sealed(b"two"))
        await other.until(lambda: other.data == b"two")
        assert heard.data == b"one"
        transport.set_protocol(heard)
