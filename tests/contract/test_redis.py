"""What only the Redis store can do wrong; with a server that comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis

from relayd.breaker import Policy, Verdict
from relayd.quota import Tally, Turn
from relayd.stores import Settlement, Store, StoreAway, open_store
from relayd.stores.link import Link
from relayd.turns import Turns
from tests.contract.conftest import PATIENCE, START
from tests.support.real import free_port, redis_server

TIMEOUT = 1.0
"""`store.timeout` (s) here: well above what a busy machine needs for one step."""


@pytest.fixture
def server(redis_socket: Path) -> Iterator[redis.Redis]:
    client = redis.Redis(unix_socket_path=str(redis_socket), decode_responses=True)
    client.flushall()
    yield client
    client.close()


@pytest.fixture
async def store(server: redis.Redis, redis_socket: Path) -> AsyncIterator[Store]:
    store = open_store(f"unix://{redis_socket}", prefix="mine:", timeout=PATIENCE)
    yield store
    await store.close()


async def every_step(store: Store) -> None:
    turn = Turn("1", "2026-03-01", "ann", 5, 0, START, 600.0)
    await store.reserve(turn)
    await store.settle([Settlement(turn, True)])
    await store.reserve(turn)
    await store.reserve(Turn("2", "2026-03-01", "ann", 5, 9, START, 600.0))
    await store.judge("a", 0, Verdict.FAILURE, Policy(), 0.0, 0.0)
    await store.rest("a", 60.0, 0.0)
    await store.read(0.0)


async def test_every_key_has_the_prefix_and_an_end(store: Store, server: redis.Redis) -> None:
    await every_step(store)
    keys = {key: server.ttl(key) for key in server.keys("*")}
    assert set(keys) == {
        "mine:turns:2026-03-01:ann",
        "mine:held:2026-03-01:ann",
        "mine:free:2026-03-01:ann",
        "mine:breakers",
        "mine:rests",
        "mine:seen",
    }
    assert all(0 < ttl <= 3 * 86_400 for ttl in keys.values())


async def test_every_step_is_one_round_trip(store: Store, server: redis.Redis) -> None:
    await every_step(store)
    before = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    await every_step(store)
    after = server.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after - before == 7


async def test_a_server_that_forgot_the_scripts_is_taught_again(
    store: Store, server: redis.Redis
) -> None:
    await every_step(store)
    server.script_flush()
    server.flushdb()
    await every_step(store)
    assert server.hget("mine:turns:2026-03-01:ann", "t") == "1"


async def test_a_connection_that_was_closed_while_idle_is_no_absence(
    store: Store, server: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relayd.stores.redis.IDLE", -1.0)
    for _ in range(3):
        await store.read(0.0)
        server.client_kill_filter(_type="normal", skipme=True)
        await store.read(0.0)


async def test_a_silent_server_is_given_up(redis_socket: Path, server: redis.Redis) -> None:
    store = open_store(f"unix://{redis_socket}", timeout=0.05)
    await store.read(0.0)
    server.client_pause(500, all=True)
    results = await asyncio.gather(*(store.read(0.0) for _ in range(5)), return_exceptions=True)
    assert all(isinstance(result, StoreAway) for result in results)
    server.client_unpause()
    assert (await store.read(0.0)).rows == {}
    await store.close()


async def test_a_breaker_from_the_future_of_the_servers_clock_means_nothing(
    store: Store, server: redis.Redis
) -> None:
    server.hset("mine:breakers", "a", "[4, 99999999999999, 99999999999999, 1, 0]")
    given, row = await store.probe("a", 60.0, 0.0)
    assert not given
    assert (row.generation, row.until) == (5, None)


async def test_a_rest_from_the_future_of_the_servers_clock_means_nothing(
    store: Store, server: redis.Redis
) -> None:
    for read_first in (True, False):
        server.hset("mine:rests", "a", "99999999999999")
        if read_first:
            assert (await store.read(0.0)).rests == {}
        await store.rest("a", 60.0, 0.0)
        assert (await store.read(0.0)).rests["a"] <= 60.0
        server.delete("mine:rests")


async def test_a_key_of_another_type_counts_as_none(store: Store, server: redis.Redis) -> None:
    for name in ("turns", "held", "free"):
        server.set(f"mine:{name}:2026-03-01:ann", "x")
    for name in ("breakers", "rests"):
        server.lpush(f"mine:{name}", "x")
    await every_step(store)
    assert server.hget("mine:turns:2026-03-01:ann", "t") == "1"
    server.set("mine:turns:2026-03-01:ann", "x")
    await store.add("ledger", [Tally("2026-03-01", "ann", 3, 0)])
    assert server.hget("mine:turns:2026-03-01:ann", "t") == "3"


async def test_a_tally_that_was_under_way_for_long_takes_nothing_back(
    store: Store, server: redis.Redis
) -> None:
    for turns, free in ((5, 1), (4, 1), (5, 0)):
        await store.add("ledger", [Tally("2026-03-01", "ann", turns, free)])
    assert server.hmget("mine:turns:2026-03-01:ann", "t", "f") == ["5", "1"]


async def test_a_row_of_bytes_that_are_no_text_counts_as_none(
    store: Store, server: redis.Redis
) -> None:
    server.hset("mine:breakers", "a", b"\xff\xfe")
    assert (await store.read(0.0)).rows == {}
    assert not (await store.probe("a", 60.0, 0.0)).granted


async def test_nobody_there_is_an_absence_that_shows_no_password() -> None:
    store = open_store(f"redis://:hunter2@127.0.0.1:{free_port()}/0", timeout=PATIENCE)
    with pytest.raises(StoreAway) as caught:
        await store.read(0.0)
    assert "redis: ConnectionError" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    await store.close()


async def test_a_server_that_refuses_to_write_is_an_absence(
    store: Store, server: redis.Redis
) -> None:
    server.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreAway, match="OutOfMemory"):
            await store.read(0.0)
    finally:
        server.config_set("maxmemory", "0")
    await store.read(0.0)


async def test_a_server_that_refuses_is_asked_again_on_a_new_connection(
    store: Store, server: redis.Redis
) -> None:
    """It may be a master that was demoted, and its address leads to another one by now."""
    await store.read(0.0)
    before = {client["id"] for client in server.client_list()} - {str(server.client_id())}
    server.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreAway):
            await store.read(0.0)
    finally:
        server.config_set("maxmemory", "0")
    await store.read(0.0)
    assert before.isdisjoint(client["id"] for client in server.client_list())


async def test_to_connect_may_take_longer_than_a_step(
    server: redis.Redis, redis_socket: Path
) -> None:
    store = open_store(f"unix://{redis_socket}?db=1", timeout=0.2)
    before = server.info("stats")["total_connections_received"]
    server.client_pause(500, all=True)  # answers SELECT 1 when it is over
    assert (await store.read(0.0)).rows == {}
    assert server.info("stats")["total_connections_received"] == before + 1
    await store.close()


async def test_who_gave_up_while_it_was_connected_is_not_asked_for(
    server: redis.Redis, redis_socket: Path
) -> None:
    store = open_store(f"unix://{redis_socket}?db=1", prefix="mine:", timeout=PATIENCE)
    server.client_pause(200, all=True)
    turns = [Turn(id, "2026-03-01", "ann", 5, 0, START, 600.0) for id in "12"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await store.reserve(turns[0])
    assert (await store.reserve(turns[1])).used == 1
    await store.close()
    server.flushall()


async def test_a_step_that_was_given_up_leaves_no_answer_for_the_next(store: Store) -> None:
    for n in range(30):
        giving_up = asyncio.create_task(store.rest(f"p{n}", 60.0, 0.0))
        asyncio.get_running_loop().call_soon(giving_up.cancel)
        await asyncio.gather(giving_up, return_exceptions=True)
        assert set((await store.read(0.0)).rests) <= {f"p{m}" for m in range(n + 1)}


async def test_a_server_stopped_under_load_and_started_again(tmp_path: Path) -> None:
    port = free_port()
    said: list[bool] = []
    lost = asyncio.Event()

    def heard(available: bool, detail: str) -> None:
        said.append(available)
        if not available:
            lost.set()

    link = Link(open_store(f"redis://127.0.0.1:{port}/0"), timeout=TIMEOUT, on_store=heard)
    turns = Turns(link, wall=lambda: START)
    clock = asyncio.get_running_loop().time
    slowest = 0.0

    async def serve(number: int) -> None:
        nonlocal slowest
        for _ in range(number):
            began = clock()
            lease = await turns.reserve("ann", 10**6, False, START, 600.0)
            slowest = max(slowest, clock() - began)
            turns.settle(lease, True)

    async with AsyncExitStack() as first:
        await first.enter_async_context(redis_server(tmp_path, port))
        await serve(20)
        await turns.flush()
        load = asyncio.gather(*(serve(200) for _ in range(10)))
        await first.aclose()
        await lost.wait()
        await load
    assert not link.available
    await serve(30)
    counted_here = turns.without_store
    assert counted_here >= 30
    async with redis_server(tmp_path, port):
        await link.back()
        await serve(5)
        await turns.flush()
        client = redis.Redis(port=port, decode_responses=True)
        # The server began with nothing: what it knows now was counted here, or came afterwards.
        assert int(client.hget("relayd:turns:2026-03-01:ann", "t") or 0) == counted_here + 5
        client.close()
        await turns.close()
        await link.close()
    assert said == [False, True]
    assert slowest < TIMEOUT + 0.5
