"""K152: a TLS provider sent an event of more than 1 MB and closed at once: the tail was lost.

https://github.com/mitmproxy/mitmproxy/issues/8364
Real time and a provider in a thread of its own, with plain sockets: what matters is what the kernel
and the TLS layer still hold when the end arrives.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import logging
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.builders import DONE, chat
from tests.support.certificates import Authority
from tests.support.gateway import CHAT, config_for, gateway

pytestmark = pytest.mark.real_time

RUNS = 4
"""Connections of each variant."""

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 6 * 1024 * 1024)
"""More than the kernel takes for a client that does not read, so that relayd stops reading."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
CHUNKED = b"%bTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    HEAD,
    len(EVENT),
    EVENT,
    len(DONE),
    DONE,
)
UNTIL_CLOSE = HEAD + b"\r\n" + EVENT + DONE


def with_notify(tls: ssl.SSLSocket) -> None:
    tls.unwrap().close()


def without_notify(tls: ssl.SSLSocket) -> None:
    tls.close()


def fin_then_rst(tls: ssl.SSLSocket) -> None:
    """FIN, and a reset once the other side's kernel has everything."""
    tls.shutdown(socket.SHUT_WR)
    unsent = array.array("i", [1])
    while unsent[0] > 0:
        fcntl.ioctl(tls.fileno(), termios.TIOCOUTQ, unsent)
        time.sleep(0.001)
    tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    tls.close()


ENDS = {
    "close_notify": with_notify,
    "no close_notify": without_notify,
    "RST after FIN": fin_then_rst,
}
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@contextmanager
def provider(
    context: ssl.SSLContext, data: bytes, end: Callable[[ssl.SSLSocket], None]
) -> Iterator[int]:
    """A port where each connection gets `data` at once and then `end`."""
    faults: list[OSError] = []

    def answer(sock: socket.socket) -> None:
        try:
            with context.wrap_socket(sock, server_side=True) as tls:
                while not tls.recv(65536).endswith(b"true}"):
                    pass
                tls.sendall(data)
                end(tls)
        except OSError as fault:
            faults.append(fault)

    def serve() -> None:
        for _ in range(RUNS):
            answer(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(5)
    assert not faults


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("data", [CHUNKED, UNTIL_CLOSE], ids=["chunked", "until close"])
@pytest.mark.parametrize("pause", [0.0, 0.1], ids=["reads", "reads late"])
async def test_the_client_gets_every_byte(
    end: Callable[[ssl.SSLSocket], None],
    version: ssl.TLSVersion,
    data: bytes,
    pause: float,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    authority = Authority(tmp_path)
    context = authority.server()
    context.minimum_version = context.maximum_version = version
    with provider(context, data, end) as port, caplog.at_level(logging.WARNING):
        table = {
            "name": "a",
            "base_url": f"https://127.0.0.1:{port}/v1",
            "ca_file": authority.ca_file,
        }
        async with gateway(config_for(table)) as g:
            for _ in range(RUNS):
                async with g.client() as client:
                    answer = await client.open_stream(CHAT, chat(stream=True))
                    await asyncio.sleep(pause)
                    await answer.read()
                assert answer.whole
                assert answer.body == EVENT + DONE
    assert [line["end_reason"] for line in g.exchanges] == ["complete"] * RUNS
    assert not caplog.records, "expected no word of asyncio's own"
