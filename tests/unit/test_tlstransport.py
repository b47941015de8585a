"""The client's side of a TLS handshake over our own transport: how it succeeds, how it fails."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from relayd.tlstransport import TlsTransport, secured
from tests.support.heard import CAP, Heard, turns
from tests.support.tlspeer import (
    NAME,
    VERSIONS,
    Peer,
    agreed,
    ends,
    nothing_for_the_collector,
    of,
    opened,
    serving,
    trusting,
)

Task = asyncio.Task[TlsTransport]


@asynccontextmanager
async def shaking(
    version: ssl.TLSVersion, context: ssl.SSLContext | None = None, issued_for: str = NAME
) -> AsyncIterator[tuple[Task, Peer]]:
    """A client in its handshake, which fails, and the peer, which decides how."""
    loop = asyncio.get_running_loop()
    one, other = ends()
    task = loop.create_task(secured(loop, one, context or trusting(), NAME))
    with other:
        yield task, Peer(other, serving(version, issued_for))
        await turns()
        assert one.fileno() == -1, "expected the socket to be closed"


async def fault(task: Task) -> OSError:
    """What the handshake raises."""
    async with asyncio.timeout(CAP):
        with pytest.raises(OSError) as caught:
            await task
    return caught.value


async def flight(peer: Peer) -> bytes:
    """What the peer answers to the client's first words."""
    await peer._fill()
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.do_handshake()
    return peer.said()


async def alert(peer: Peer) -> str:
    """Why the peer's side of the handshake fails."""
    with pytest.raises(ssl.SSLError) as caught:
        await peer.shake()
        await peer.read()
    return str(caught.value.reason)


@of(*VERSIONS)
async def test_both_agree_and_understand_each_other(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, heard, peer):
        tls = transport.get_extra_info("ssl_object")
        assert tls.version() == peer.tls.version() == version.name.replace("_", ".")
        transport.write(b"question")
        assert await peer.read() == b"question"
        await peer.send(peer.sealed(b"answer"))
        await heard.until(lambda: heard.data == b"answer")
        assert heard.calls == []


@of(*VERSIONS)
async def test_what_it_knows_of_itself(version: ssl.TLSVersion) -> None:
    async with opened(version) as (transport, _, peer):
        assert transport.is_reading()
        assert not transport.is_closing()
        assert transport.get_extra_info("peername") == peer.sock.getsockname()
        assert transport.get_extra_info("unknown", 7) == 7


@of(*VERSIONS)
async def test_a_certificate_of_an_unknown_authority_is_refused(version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()  # the system's
    async with shaking(version, context) as (task, peer):
        assert await alert(peer) == "TLSV1_ALERT_UNKNOWN_CA"
        assert isinstance(await fault(task), ssl.SSLCertVerificationError)


@of(*VERSIONS)
async def test_a_certificate_for_another_name_is_refused(version: ssl.TLSVersion) -> None:
    async with shaking(version, issued_for="b.test") as (task, peer):
        assert await alert(peer) == "SSLV3_ALERT_BAD_CERTIFICATE"
        exc = await fault(task)
        assert isinstance(exc, ssl.SSLCertVerificationError)
        assert "Hostname mismatch" in exc.verify_message


@of(*VERSIONS)
async def test_a_version_that_the_peer_does_not_speak_is_refused(version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()
    other = next(other for other in VERSIONS if other != version)
    context.minimum_version = context.maximum_version = other
    async with shaking(version, context) as (task, peer):
        with pytest.raises(ssl.SSLError):
            await peer.shake()
        await peer.send(peer.said())
        exc = await fault(task)
        assert isinstance(exc, ssl.SSLError)
        assert exc.reason == "TLSV1_ALERT_PROTOCOL_VERSION"


@of(*VERSIONS)
async def test_a_peer_that_leaves_at_once_fails_it(version: ssl.TLSVersion) -> None:
    async with shaking(version) as (task, peer):
        await peer._fill()
        peer.sock.close()
        assert type(await fault(task)) is ConnectionResetError


@of(*VERSIONS)
async def test_a_peer_that_leaves_halfway_fails_it(version: ssl.TLSVersion) -> None:
    async with shaking(version) as (task, peer):
        await peer.send((await flight(peer))[:-1])
        peer.sock.close()
        assert type(await fault(task)) is ConnectionResetError


@of(*VERSIONS)
async def test_a_peer_that_resets_fails_it(version: ssl.TLSVersion) -> None:
    async with shaking(version) as (task, peer):
        await peer._fill()
        peer.reset()
        assert type(await fault(task)) is ConnectionResetError


@of(*VERSIONS)
async def test_a_peer_that_resets_behind_its_last_words_fails_it(version: ssl.TLSVersion) -> None:
    async with shaking(version) as (task, peer):
        await peer.send(await flight(peer))  # with TLS 1.3 the client agrees; it cannot say so
        peer.reset()
        assert isinstance(await fault(task), ConnectionError)


@of(*VERSIONS)
async def test_a_peer_that_has_reset_before_the_first_word_fails_it(
    version: ssl.TLSVersion,
) -> None:
    async with shaking(version) as (task, peer):
        peer.reset()
        assert isinstance(await fault(task), ConnectionError)


@of(b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 a.test ESMTP\r\n", bytes(64))
async def test_a_peer_that_speaks_no_tls_fails_it(words: bytes) -> None:
    async with shaking(VERSIONS[0]) as (task, peer):
        await peer.send(words)
        exc = await fault(task)
        assert isinstance(exc, ssl.SSLError)
        assert exc.reason == "WRONG_VERSION_NUMBER"


@of(*VERSIONS)
async def test_a_cancelled_handshake_closes_the_socket(version: ssl.TLSVersion) -> None:
    async with shaking(version) as (task, peer):
        await flight(peer)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ssl.SSLError, match="EOF"):
            await peer.read()


@of(*VERSIONS)
async def test_a_handshake_cancelled_in_any_turn_closes_the_socket(
    version: ssl.TLSVersion,
) -> None:
    cancelled = 0
    for count in range(1, 20):
        async with shaking(version) as (task, peer):
            agreeing = asyncio.create_task(peer.shake())
            for _ in range(count):
                await asyncio.sleep(0)
            if cancelled == count - 1 and task.cancel():
                cancelled += 1
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                (await task).abort()
            await asyncio.wait([agreeing])
            agreeing.exception()
    assert 2 <= cancelled < 19


@of("", ".a.test", "a" * 64 + ".test")
async def test_a_name_that_no_server_can_have_is_a_value_error(name: str) -> None:
    one, other = ends()
    with other, pytest.raises(ValueError):
        await secured(asyncio.get_running_loop(), one, trusting(), name)
    await turns()
    assert one.fileno() == -1


@of(*VERSIONS)
async def test_what_comes_with_the_end_of_the_handshake_waits_for_the_protocol(
    version: ssl.TLSVersion,
) -> None:
    one, other = ends()
    peer = Peer(other, serving(version))
    heard = Heard()
    with other:
        shaking = asyncio.create_task(peer.shake(flush=False))
        task = asyncio.create_task(secured(asyncio.get_running_loop(), one, trusting(), NAME))
        await shaking  # TLS 1.2: the client is still to hear the peer's last words
        await peer.send(peer.said() + peer.sealed(b"one") + peer.sealed(b"two") + peer.bye())
        other.close()
        transport = await task
        await turns()
        assert not transport.is_reading()
        transport.set_protocol(heard)
        await heard.until(lambda: heard.lost)
    assert heard.data == b"onetwo"
    assert heard.calls == ["eof", ("lost", type(None))]


@of(*VERSIONS)
async def test_a_handshake_in_single_bytes_is_one(version: ssl.TLSVersion) -> None:
    async with opened(version, cut=1) as (_, heard, peer):
        await peer.send(peer.sealed(b"hello") + peer.sealed(b" again") + peer.bye())
        await heard.until(lambda: heard.lost)
        assert heard.data == b"hello again"


@of("refused", "closed", "reset", "cancelled")
async def test_a_handshake_that_failed_leaves_nothing_to_the_collector(how: str) -> None:
    async with nothing_for_the_collector():
        await fail(how)


async def fail(how: str) -> None:
    """A handshake that fails so."""
    one, other = ends()
    task = asyncio.current_task()
    assert task is not None

    async def act(peer: Peer) -> None:
        words = await flight(peer)
        if how == "refused":
            await peer.send(words)
        elif how == "closed":
            peer.sock.close()
        elif how == "reset":
            peer.reset()
        else:
            task.cancel()

    acting = asyncio.create_task(act(Peer(other, serving(VERSIONS[1], "b.test"))))
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await secured(asyncio.get_running_loop(), one, trusting(), NAME)
    await acting
    other.close()


@of(*VERSIONS)
async def test_two_connections_do_not_share_anything(version: ssl.TLSVersion) -> None:
    async with opened(version) as (one, heard, peer), opened(version) as (_, other, another):
        await peer.send(peer.sealed(b"for one"))
        await another.send(another.sealed(b"for the other"))
        await heard.until(lambda: bool(heard.data))
        await other.until(lambda: bool(other.data))
        assert (heard.data, other.data) == (b"for one", b"for the other")
        one.close()
        assert await peer.read() == b""


@of(*VERSIONS)
async def test_the_handshake_gives_the_transport_to_who_asked(version: ssl.TLSVersion) -> None:
    one, other = ends()
    with other:
        transport = await agreed(one, Peer(other, serving(version)))
        assert not transport.is_reading(), "nothing is read before there is a protocol"
        transport.abort()
        await turns()
