"""The stores under test, each with a clock that moves on demand.

Memory and SQLite are told the time. Redis has the server's, so there the clock makes everything in
the database older instead: nobody waits for a lease to end.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import redis

from relayd.stores import Store, open_store
from tests.support.real import need

START = 1_772_323_200.0
"""2026-03-01T00:00:00Z, wall-clock time of every test's beginning."""

PATIENCE = 10.0
"""`store.timeout` here (s): a busy machine must not look like a store that is away."""

_prefixes = (f"test{n}:" for n in count())


@dataclass
class Place:
    """A store, its URL for other processes, and its clock (`now` monotonic, `wall` epoch; s)."""

    store: Store
    url: str
    prefix: str
    server: redis.Redis | None
    now: float = 5_000.0
    wall: float = START

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds
        if self.server is not None:
            _age(self.server, self.prefix, round(seconds * 1000))

    def write(self, table: str, name: str, text: str) -> None:
        """Put a text where the store keeps the breaker or the rest of that name."""
        if self.server is not None:
            self.server.hset(f"{self.prefix}{table}", name, text)
            return
        with closing(sqlite3.connect(self.url.removeprefix("sqlite:"))) as db, db:
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (name, text))


def _age(server: redis.Redis, prefix: str, ms: int) -> None:
    for kind in ("held", "free"):
        for key in server.keys(f"{prefix}{kind}:*"):
            for lease in server.zrange(key, 0, -1):
                server.zincrby(key, -ms, lease)
    for name, text in server.hgetall(f"{prefix}breakers").items():
        generation, since, until, trips, probe, *failures = json.loads(text)
        times = [at and at - ms for at in (since, until, probe, *failures)]
        row = [generation, times[0], times[1], trips, *times[2:]]
        server.hset(f"{prefix}breakers", name, json.dumps(row))
    for name, ends in server.hgetall(f"{prefix}rests").items():
        server.hset(f"{prefix}rests", name, int(ends) - ms)


@pytest.fixture(scope="session")
def redis_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The unix socket of a redis-server that lives as long as the tests."""
    folder = tmp_path_factory.mktemp("redis")
    socket = folder / "redis.sock"
    command = [need("redis-server"), "--port", "0", "--unixsocket", str(socket), "--save", ""]
    with subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        for line in server.stdout:
            if b"eady to accept connections" in line or b"at " + bytes(socket) in line:
                break
        yield socket
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=10)


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """An empty store of each kind."""
    async for place in _places(request, tmp_path, request.param):
        yield place


@pytest.fixture(params=["sqlite", "redis"])
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """An empty store of each kind that several processes can use."""
    async for place in _places(request, tmp_path, request.param):
        yield place


@pytest.fixture
def store(place: Place) -> Store:
    return place.store


async def _places(request: pytest.FixtureRequest, folder: Path, kind: str) -> AsyncIterator[Place]:
    prefix, url, server = next(_prefixes), "memory:", None
    if kind == "sqlite":
        url = f"sqlite:{folder / 'state.db'}"
    elif kind == "redis":
        socket = request.getfixturevalue("redis_socket")
        url = f"unix://{socket}"
        server = redis.Redis(unix_socket_path=str(socket), decode_responses=True)
    store = open_store(url, prefix=prefix, timeout=PATIENCE)
    try:
        yield Place(store, url, prefix, server)
    finally:
        await store.close()
        if server is not None:
            server.close()
