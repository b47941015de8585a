"""Programs started for a test answer when their context is entered and are gone after it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.client import RawClient
from tests.support.real import free_port, need, nginx, program, redis_server

LISTEN = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print('{"event": "ready"}', flush=True)
print("on stderr", file=sys.stderr, flush=True)
signal.pause()
"""


async def test_output_is_read_as_it_comes_and_the_exit_code_at_the_end() -> None:
    async with program(sys.executable, "-c", LISTEN) as running:
        assert await running.line(lambda line: "ready" in line) == '{"event": "ready"}'
        assert await running.line(lambda line: "stderr" in line) == "on stderr"
        assert running.log == [{"event": "ready"}]
        running.signal(signal.SIGTERM)
        assert await running.ended() == 3


async def test_a_program_that_dies_before_it_listens_is_told_with_its_output() -> None:
    async with program(sys.executable, "-c", "print('no such luck')") as running:
        with pytest.raises(AssertionError, match="no such luck"):
            await running.answers(("127.0.0.1", free_port()))


async def test_nginx_answers(tmp_path: Path) -> None:
    address = ("127.0.0.1", free_port())
    http = f"server {{ listen 127.0.0.1:{address[1]}; return 204; }}"
    async with nginx(tmp_path, http, address), RawClient(address) as client:
        assert (await client.get("/")).status == 204
    with pytest.raises(ConnectionRefusedError):
        await RawClient(address).connect()


async def test_redis_answers(tmp_path: Path) -> None:
    port = free_port()
    async with redis_server(tmp_path, port), RawClient(("127.0.0.1", port)) as client:
        await client.send(b"PING\r\n")
        assert await client.reader.readline() == b"+PONG\r\n"


def test_a_missing_program_fails_where_services_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELAYD_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-program is not installed"):
        need("no-such-program")


def test_a_missing_program_skips_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAYD_REQUIRE_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception):
        need("no-such-program")
