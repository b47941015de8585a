"""Connecting: names, addresses that race, TLS that is verified; nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relayd.dial import (
    EYEBALLS_DELAY,
    connect,
    race,
    tls_context,
)
from relayd.net import Conn
from relayd.resources import uv_loop
from relayd.wake import Interrupt, Wake, Why
from tests.support.certificates import Authority
from tests.support.leaks import nothing_left
from tests.support.loop import elapsed, takes
from tests.support.provider import LINGER_NONE

pytestmark = [pytest.mark.virtual_time, pytest.mark.usefixtures("leaves_no_task_or_socket")]

V4, V6 = socket.AF_INET, socket.AF_INET6


def loop() -> Any:
    return asyncio.get_running_loop()


class Net:
    """Names and addresses as the running loop sees them; `dialled` are the addresses in order.

    Every address in `open` leads to a real listener, in `refused` to nobody; others are silent.
    """

    def __init__(self, names: dict[str, list[tuple[int, str]]]) -> None:
        self.names = names
        self.open: set[str] = set()
        self.refused: set[str] = set()
        self.dialled: list[tuple[str, float]] = []
        self.accepted = 0
        self.real: Callable[..., Any] = loop().sock_connect
        self.listener: tuple[str, int] = ("", 0)
        loop().getaddrinfo = self.look_up
        loop().sock_connect = self.dial

    async def look_up(self, host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, 1, 6, "", (address, port)) for family, address in self.names[host]]

    async def dial(self, sock: socket.socket, address: tuple[str, int]) -> None:
        self.dialled.append((address[0], round(elapsed(), 3)))
        if address[0] in self.refused:
            raise ConnectionRefusedError(111, f"refused by {address[0]}")
        if address[0] not in self.open:
            await asyncio.Event().wait()
        await self.real(sock, self.listener)


@asynccontextmanager
async def net(*addresses: tuple[int, str], name: str = "a.test") -> AsyncIterator[Net]:
    """A world in which `name` has these addresses."""
    found = Net({name: list(addresses)})

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.accepted += 1
        writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    found.listener = server.sockets[0].getsockname()
    async with server:
        yield found
        await asyncio.sleep(0.01)


async def connected() -> None:
    """Connect and let go again."""
    conn = await connect("a.test", 80, None, "", loop())
    conn.close()
    await asyncio.sleep(0.01)


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("family", [V4, V6])
async def test_an_address_is_not_looked_up(family: int) -> None:
    address = "127.0.0.1" if family == V4 else "::1"
    async with net() as world:
        world.refused = {address}
        with pytest.raises(ConnectionRefusedError):
            await connect(address, 80, None, "", loop())
    assert world.dialled == [(address, 0.0)]


async def test_a_name_without_address_is_a_fault_of_its_own() -> None:
    async with net():
        with pytest.raises(socket.gaierror):
            await connect("b.test", 80, None, "", loop())


async def test_an_empty_answer_is_a_failure_to_connect() -> None:
    async with net():
        with pytest.raises(OSError, match="no address"):
            await connect("a.test", 80, None, "", loop())


# ------------------------------------------------------------------ addresses


async def test_families_take_turns_and_no_address_is_dialled_twice() -> None:
    given = [(V6, "6a"), (V6, "6b"), (V6, "6a"), (V6, "6c"), (V4, "4a")]
    async with net(*given) as world:
        world.refused = {"6a", "6b", "6c", "4a"}
        with pytest.raises(ConnectionRefusedError):
            await connect("a.test", 80, None, "", loop())
    assert [address for address, _ in world.dialled] == ["6a", "4a", "6b", "6c"]


async def test_the_family_that_the_resolver_prefers_goes_first() -> None:
    async with net((V4, "4a"), (V6, "6a"), (V6, "6b")) as world:
        world.refused = {"4a", "6a", "6b"}
        with pytest.raises(ConnectionRefusedError):
            await connect("a.test", 80, None, "", loop())
    assert [address for address, _ in world.dialled] == ["4a", "6a", "6b"]


async def test_a_silent_address_costs_one_short_delay() -> None:
    async with net((V6, "6a"), (V4, "4a")) as world:
        world.open = {"4a"}
        with takes(EYEBALLS_DELAY):
            await connected()
    assert world.dialled == [("6a", 0.0), ("4a", EYEBALLS_DELAY)]


async def test_each_silent_address_costs_one_more() -> None:
    async with net((V4, "1"), (V4, "2"), (V4, "3")) as world:
        world.open = {"3"}
        with takes(2 * EYEBALLS_DELAY):
            await connected()


async def test_an_address_that_refuses_costs_nothing() -> None:
    async with net((V6, "6a"), (V4, "4a")) as world:
        world.refused, world.open = {"6a"}, {"4a"}
        with takes(0):
            await connected()


async def test_the_first_address_is_enough_when_it_answers() -> None:
    async with net((V4, "1"), (V4, "2")) as world:
        world.open = {"1", "2"}
        await connected()
    assert world.dialled == [("1", 0.0)]
    assert world.accepted == 1


async def test_a_slow_first_address_may_still_win() -> None:
    async with net((V4, "1"), (V4, "2")) as world:
        real = world.dial

        async def slow(sock: socket.socket, address: tuple[str, int]) -> None:
            if address[0] == "1":
                await asyncio.sleep(2 * EYEBALLS_DELAY)
                world.open.add("1")
            await real(sock, address)

        loop().sock_connect = slow
        with takes(2 * EYEBALLS_DELAY):
            await connected()


async def test_of_two_that_win_together_one_is_closed() -> None:
    async with net((V4, "1"), (V4, "2")) as world:
        world.open = {"1", "2"}
        gate = asyncio.Event()
        real = world.dial

        async def together(sock: socket.socket, address: tuple[str, int]) -> None:
            if address[0] == "2":
                gate.set()
            await gate.wait()
            await real(sock, address)

        loop().sock_connect = together
        await connected()
        await asyncio.sleep(0.01)
    assert world.accepted == 2


async def test_when_all_fail_the_last_error_is_told() -> None:
    async with net((V4, "1"), (V4, "2")) as world:
        world.refused = {"1", "2"}
        with pytest.raises(ConnectionRefusedError, match="refused by 2"):
            await connect("a.test", 80, None, "", loop())


async def test_giving_up_leaves_nothing_behind() -> None:
    async with net((V4, "1"), (V4, "2")), nothing_left():
        with takes(5), pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await connect("a.test", 80, None, "", loop())


async def test_a_new_connection_sends_small_writes_at_once_and_knows_its_birth() -> None:
    async with net((V4, "1")) as world:
        world.open = {"1"}
        await asyncio.sleep(7)
        conn = await connect("a.test", 80, None, "", loop())
        sock = conn.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert conn.born == loop().time()
        conn.close()
        await asyncio.sleep(0.01)


# ------------------------------------------------------------------ TLS


@asynccontextmanager
async def tls_server(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if context is None:
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.sleep(0.01)


async def dial_tls(port: int, context: ssl.SSLContext, name: str) -> Conn:
    return await connect("127.0.0.1", port, context, name, loop())


async def test_a_certificate_is_verified_by_the_given_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_server(authority.server("a.test")) as port:
        conn = await dial_tls(port, tls_context(authority.ca_file), "a.test")
        assert conn.transport.get_extra_info("ssl_object").version().startswith("TLS")
        conn.close()
        await asyncio.sleep(0.01)


async def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_server(authority.server("b.test")) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial_tls(port, tls_context(authority.ca_file), "a.test")


async def test_a_certificate_of_a_stranger_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_server(authority.server("a.test")) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial_tls(port, tls_context(""), "a.test")


async def test_a_peer_that_speaks_no_tls_is_a_tls_failure(tmp_path: Path) -> None:
    context = tls_context(Authority(tmp_path).ca_file)
    async with tls_server(None) as port:
        with pytest.raises(ssl.SSLError):
            await dial_tls(port, context, "a.test")


async def test_a_handshake_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    context = tls_context(Authority(tmp_path).ca_file)

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with takes(5), pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await dial_tls(port, context, "a.test")
        await asyncio.sleep(0.01)


async def test_http_1_1_is_all_that_is_offered(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.server("a.test")
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with tls_server(context) as port:
        conn = await dial_tls(port, tls_context(authority.ca_file), "a.test")
        chosen = conn.transport.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == "http/1.1"
        conn.close()
        await asyncio.sleep(0.01)


def test_verification_is_on(tmp_path: Path) -> None:
    for context in (tls_context(""), tls_context(Authority(tmp_path).ca_file)):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_ca_file_stands_for_all_others(tmp_path: Path) -> None:
    assert len(tls_context(Authority(tmp_path).ca_file).get_ca_certs()) == 1


def test_a_ca_file_that_is_none_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        tls_context(str(tmp_path / "none"))
    with pytest.raises(ssl.SSLError):
        tls_context(str(tmp_path / "empty"))


# ------------------------------------------------------------------ a race with the clock


async def after(seconds: float, result: str = "done") -> str:
    await asyncio.sleep(seconds)
    return result


async def never() -> str:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def fine() -> None:
    """Nothing has run out."""


async def test_work_that_ends_first_has_its_result() -> None:
    with takes(3):
        assert await race(after(3), Wake(loop()), fine, print) == "done"


async def test_work_that_fails_raises_its_own_error() -> None:
    async def fails() -> str:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        await race(fails(), Wake(loop()), fine, print)


async def test_a_spurious_wake_changes_nothing() -> None:
    wake = Wake(loop())
    looks: list[float] = []
    loop().call_later(1, wake.wake)
    assert await race(after(3), wake, lambda: looks.append(elapsed()), print) == "done"
    assert looks == [1.0]


async def test_an_interrupt_ends_the_work() -> None:
    wake = Wake(loop())
    loop().call_later(1, wake.interrupt, Why.CLIENT_LEFT)
    with takes(1), pytest.raises(Interrupt):
        await race(never(), wake, fine, print)


async def test_a_clock_that_ran_out_ends_the_work() -> None:
    wake = Wake(loop())
    loop().call_later(1, wake.wake)

    def expired() -> None:
        raise TimeoutError

    with takes(1), pytest.raises(TimeoutError):
        await race(never(), wake, expired, print)


async def test_a_cancellation_ends_the_work() -> None:
    with takes(1), pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await race(never(), Wake(loop()), fine, print)


async def test_a_result_that_comes_with_the_interrupt_is_given_back() -> None:
    wake = Wake(loop())
    late: list[str] = []
    work = loop().create_future()

    def both() -> None:
        work.set_result("conn")
        wake.interrupt(Why.CLIENT_LEFT)

    loop().call_later(1, both)
    with pytest.raises(Interrupt):
        await race(work, wake, fine, late.append)
    await asyncio.sleep(0)
    assert late == ["conn"]


async def test_a_result_that_comes_in_spite_of_the_cancellation_is_given_back() -> None:
    wake = Wake(loop())
    late: list[str] = []

    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "conn"

    loop().call_later(1, wake.interrupt, Why.DEADLINE)
    with pytest.raises(Interrupt):
        await race(stubborn(), wake, fine, late.append)
    await asyncio.sleep(0.01)
    assert late == ["conn"]


async def test_an_error_that_comes_too_late_is_dropped_in_silence() -> None:
    wake = Wake(loop())

    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise OSError("too late")

    loop().call_later(1, wake.interrupt, Why.DEADLINE)
    with pytest.raises(Interrupt):
        await race(stubborn(), wake, fine, print)
    await asyncio.sleep(0.01)


# ---- a peer that speaks first

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uv_loop,
}

SAYS = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


def speak(
    server: socket.socket,
    says: bytes,
    then: str,
    connected: threading.Event,
    spoken: threading.Event,
) -> None:
    peer, _ = server.accept()
    connected.wait(5)
    peer.sendall(says)
    if then == "fin":
        peer.shutdown(socket.SHUT_WR)
    if then == "rst":
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
        peer.close()
    spoken.set()
    server.accept()[0].close()  # the end of the test
    peer.close()


async def hear(
    port: int, says: bytes, then: str, connected: threading.Event, spoken: threading.Event
) -> None:
    """Connect so slowly that all was said before relayd's own side of the connection exists."""
    running = loop()
    real = running.sock_connect

    async def slowly(*args: Any) -> None:
        await real(*args)
        connected.set()
        await running.run_in_executor(None, spoken.wait)

    running.sock_connect = slowly
    conn = await connect("127.0.0.1", port, None, "", running)
    conn.wake = Wake(running)
    try:
        async with asyncio.timeout(5):
            while bytes(conn.buffer) != says or conn.ended is not (then != "nothing"):
                await conn.wake.wait()
    finally:
        conn.abort()


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("says", "then"), [(SAYS, "nothing"), (SAYS, "fin"), (SAYS, "rst"), (b"", "fin"), (b"", "rst")]
)
@pytest.mark.parametrize("kind", LOOPS)
def test_what_a_peer_says_before_it_is_asked_is_not_lost(kind: str, says: bytes, then: str) -> None:
    events = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = threading.Thread(target=speak, args=(server, says, then, *events))
        peer.start()
        try:
            with asyncio.Runner(loop_factory=LOOPS[kind]) as runner:
                runner.run(hear(server.getsockname()[1], says, then, *events))
        finally:
            socket.create_connection(server.getsockname()).close()
            peer.join()
