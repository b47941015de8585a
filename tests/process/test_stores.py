"""Several daemons on one store: one cap for all, whoever dies; and a store that goes away."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.support.builders import chat
from tests.support.client import Address, RawClient
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.real import Running, daemon, free_port, redis_server
from tests.support.scripts import ok_json, slow

CAP = 50
REQUESTS = 200
DAEMONS = 4

TIMEOUT = 1.0
PATIENCE = 10.0
"""`store.timeout` (s): where a store goes away, and where one step must not be given up, however
busy the machine and its disk are."""

SLACK = 1.0
"""Seconds by which a busy machine may be late."""

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[quota]
daily_turns = {cap}
[store]
url = "{url}"
timeout = {timeout}
[[provider]]
name = "a"
base_url = "{base}"
"""


@pytest.fixture(params=["sqlite", "redis"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Of a store that several processes share."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'state.db'}"
        return
    port = free_port()
    async with redis_server(tmp_path, port):
        yield f"redis://127.0.0.1:{port}/0"


@asynccontextmanager
async def running(
    folder: Path, provider: ScriptedProvider, url: str, cap: int = CAP, timeout: float = PATIENCE
) -> AsyncIterator[tuple[Address, Running]]:
    """One daemon, and where it listens."""
    port = free_port()
    address = ("127.0.0.1", port)
    text = CONFIG.format(port=port, cap=cap, url=url, timeout=timeout, base=provider.base_url)
    async with daemon(made(folder), text, address) as found:
        yield address, found


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@asynccontextmanager
async def fleet(
    folder: Path, provider: ScriptedProvider, url: str
) -> AsyncIterator[list[tuple[Address, Running]]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running(folder / str(number), provider, url))
            for number in range(DAEMONS)
        ]


async def ask(address: Address) -> int:
    """The status of one request; 0 if whoever served it died."""
    try:
        async with RawClient(address) as client:
            return (await client.post_json(CHAT, chat())).status
    except (EOFError, OSError):
        return 0


async def test_of_200_requests_to_four_daemons_exactly_50_are_served(
    url: str, tmp_path: Path
) -> None:
    async with ScriptedProvider(ok_json()) as a, fleet(tmp_path, a, url) as daemons:
        asked = [ask(daemons[number % DAEMONS][0]) for number in range(REQUESTS)]
        codes = Counter(await asyncio.gather(*asked))
        assert codes == {200: CAP, 429: REQUESTS - CAP}
        assert len(a.requests) == CAP


async def test_a_daemon_killed_in_the_middle_never_lets_the_sum_exceed_the_cap(
    url: str, tmp_path: Path
) -> None:
    async with (
        ScriptedProvider(slow(0.3, ok_json())) as a,
        fleet(tmp_path, a, url) as daemons,
    ):
        half = REQUESTS // 2
        first = [asyncio.create_task(ask(daemons[n % DAEMONS][0])) for n in range(CAP // 2)]
        async with asyncio.timeout(10):
            while len(a.requests) < CAP // 2:  # noqa: ASYNC110  (it has no event for it)
                await asyncio.sleep(0.02)
        daemons[0][1].signal(signal.SIGKILL)
        rest = await asyncio.gather(*[ask(daemons[1 + n % 3][0]) for n in range(half)])
        codes = Counter([*await asyncio.gather(*first), *rest])
        killed = codes[0]
        assert killed > 0, "expected the kill to come in the middle"
        # What the dead one held stays held until its lease ends: fewer, never more.
        assert codes[200] + killed == CAP
        assert len(a.requests) == CAP


async def test_a_redis_that_goes_away_and_comes_back_fails_no_request(tmp_path: Path) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    slowest = 0.0
    codes: Counter[int] = Counter()
    stop = asyncio.Event()

    async def load(address: Address) -> None:
        nonlocal slowest
        clock = asyncio.get_running_loop().time
        async with RawClient(address) as client:
            while not stop.is_set():
                began = clock()
                codes[(await client.post_json(CHAT, chat())).status] += 1
                slowest = max(slowest, clock() - began)
                await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        await first.enter_async_context(redis_server(tmp_path, port))
        a = await stack.enter_async_context(ScriptedProvider(ok_json()))
        address, found = await stack.enter_async_context(
            running(tmp_path / "one", a, url, cap=10**6, timeout=TIMEOUT)
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(load(address))
            await asyncio.sleep(0.3)
            await first.aclose()
            await found.line(lambda line: '"event":"store_away"' in line)
            before = sum(codes.values())
            await asyncio.sleep(1.0)
            meanwhile = sum(codes.values()) - before
            await stack.enter_async_context(redis_server(tmp_path, port))
            await found.line(lambda line: '"event":"store_back"' in line)
            await asyncio.sleep(0.5)
            stop.set()
        assert set(codes) == {200}
        assert slowest < TIMEOUT + SLACK
        assert meanwhile > 0
        # The server began with nothing, so what it knows of then was counted here and added later:
        # a daemon with a cap of as many turns has none left for the user.
        async with running(tmp_path / "two", a, url, cap=meanwhile) as (another, _):
            assert await ask(another) == 429
    events = [line["event"] for line in found.log if line.get("event", "").startswith("store_")]
    assert events == ["store_away", "store_back"]
