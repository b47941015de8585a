"""What only the SQLite store can do wrong."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from relayd.breaker import Policy, Row, Verdict
from relayd.quota import KEPT_DAYS, Turn
from relayd.stores import Settlement, StoreAway
from relayd.stores import sqlite as sqlite_store
from relayd.stores.sqlite import SqliteStore
from tests.contract.conftest import START

POLICY = Policy(failures=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), timeout=0.05)
    yield store
    await store.close()


@pytest.fixture
def other(path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """Another program with the same file open."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def a_turn(id: str, day: str = "2026-03-01") -> Turn:
    return Turn(id, day, "ann", 50, 0, START, 600.0)


def spoil(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)


def unspoil(path: Path) -> bytes:
    """Take the file away; what was in it."""
    found = path.read_bytes()
    path.unlink()
    return found


def size_of(path: Path) -> int:
    return path.stat().st_size


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may grow beyond that, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def spend(store: SqliteStore, id: str, day: str = "2026-03-01") -> int:
    turn = a_turn(id, day)
    grant = await store.reserve(turn)
    await store.settle([Settlement(turn, True)])
    return grant.used


async def test_what_was_counted_survives_a_restart(store: SqliteStore, path: Path) -> None:
    await spend(store, "1")
    await store.close()
    again = SqliteStore(str(path))
    assert await spend(again, "2") == 2
    await again.close()


async def test_a_closed_store_does_nothing(store: SqliteStore) -> None:
    await store.close()
    with pytest.raises(StoreAway) as caught:
        await store.read(0.0)
    assert not caught.value.asked


async def test_a_lock_that_another_holds_too_long_is_an_absence(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    await spend(store, "1")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreAway, match="locked"):
        await spend(store, "2")
    other.execute("ROLLBACK")
    assert await spend(store, "3") == 2


async def test_the_event_loop_turns_while_a_lock_is_waited_for(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    await spend(store, "1")
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(spend(store, "2"))
    turns = 0
    while not waiting.done():
        turns += 1
        # A loop that waited for the lock itself would come round once or twice.
        await asyncio.wait({waiting}, timeout=0.001)
    other.execute("ROLLBACK")
    assert turns > 5
    assert isinstance(waiting.exception(), StoreAway)


async def test_a_file_that_is_no_database_is_named_and_left_alone(
    store: SqliteStore, path: Path
) -> None:
    spoil(path)
    with pytest.raises(StoreAway, match="not a database"):
        await store.read(0.0)
    assert unspoil(path).startswith(b"not a database")
    assert await spend(store, "1") == 1


async def test_a_file_of_another_version_is_refused(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    other.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreAway, match=r"state.db is of schema version 7, expected 2"):
        await store.read(0.0)


async def test_a_folder_that_is_missing_is_an_absence(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "missing" / "state.db"))
    with pytest.raises(StoreAway, match="unable to open database file: create its folder"):
        await store.read(0.0)
    (tmp_path / "missing").mkdir()
    assert await spend(store, "1") == 1
    await store.close()


async def test_a_thread_that_cannot_be_started_is_an_absence(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refused)
        with pytest.raises(StoreAway, match="start new thread") as caught:
            await store.read(0.0)
        assert not caught.value.asked
    assert await spend(store, "1") == 1


async def test_a_file_that_was_deleted_is_an_absence_and_then_a_new_one(
    store: SqliteStore, path: Path
) -> None:
    assert await spend(store, "1") == 1
    unspoil(path)
    with pytest.raises(StoreAway, match=r"state.db or its -wal was deleted or replaced"):
        await store.read(0.0)
    assert await spend(store, "2") == 1
    second = SqliteStore(str(path))
    assert await spend(second, "3") == 2
    await second.close()


async def test_a_write_ahead_log_that_was_deleted_is_an_absence(
    store: SqliteStore, path: Path
) -> None:
    await spend(store, "1")
    unspoil(Path(f"{path}-wal"))
    with pytest.raises(StoreAway, match="or its -wal was deleted"):
        await spend(store, "2")
    await spend(store, "3")


async def test_a_file_that_was_replaced_is_an_absence_and_then_the_one_that_counts(
    store: SqliteStore, path: Path
) -> None:
    await spend(store, "1")
    for ending in ("", "-wal", "-shm"):
        unspoil(Path(f"{path}{ending}"))
    second = SqliteStore(str(path))
    assert await spend(second, "2") == 1
    with pytest.raises(StoreAway, match="deleted or replaced"):
        await spend(store, "3")
    assert await spend(store, "4") == 2
    await second.close()


async def test_days_beyond_those_kept_are_dropped(
    store: SqliteStore, other: sqlite3.Connection
) -> None:
    for n in range(KEPT_DAYS + 2):
        await spend(store, str(n), f"2026-03-0{n + 1}")
    kept = [day for (day,) in other.execute("SELECT day FROM turns ORDER BY day")]
    assert kept == ["2026-03-03", "2026-03-04", "2026-03-05"]


async def test_a_breaker_of_an_earlier_boot_means_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(path))
    opened = await store.judge("a", 0, Verdict.FAILURE, POLICY, 0.0, 90_000.0)
    await store.rest("a", 60.0, 90_000.0)
    granted, probed = await store.probe("a", 600.0, 90_011.0)
    assert opened.until is not None
    assert granted
    await store.close()
    store = SqliteStore(str(path))
    assert (await store.read(90_012.0)).rows == {"a": probed}, "the same boot"
    await store.close()
    later = sqlite_store.booted() + 100_000.0
    monkeypatch.setattr(sqlite_store, "booted", lambda: later)
    store = SqliteStore(str(path))
    for now in (5.0, 90_001.0, 90_020.0):
        shared = await store.read(now)
        assert shared.rows == {"a": Row(generation=probed.generation + 1)}
        assert shared.rests == {}
    await store.close()


async def test_a_row_that_cannot_be_read_does_not_outlive_the_boot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(path))
    await store.read(0.0)
    await store.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO breakers VALUES ('a', 'junk')")
    later = sqlite_store.booted() + 100_000.0
    monkeypatch.setattr(sqlite_store, "booted", lambda: later)
    store = SqliteStore(str(path))
    assert (await store.read(0.0)).rows == {"a": Row(generation=1)}
    await store.close()


async def test_one_row_that_is_no_text_hides_no_other(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.rest("b", 20.0, 0.0)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO breakers VALUES ('a', CAST(X'ff' AS TEXT))")
        db.execute("INSERT INTO rests VALUES ('c', 9e999)")
    shared = await store.read(0.0)
    assert (shared.rows, set(shared.rests)) == ({}, {"b"})
    await store.close()


async def test_a_step_that_fails_leaves_no_lock(path: Path) -> None:
    def fails(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO rests VALUES ('a', 1.0)")
        for _ in db.execute("SELECT 1 UNION ALL SELECT 2"):
            raise ValueError("half way")

    store = SqliteStore(str(path))
    await store.read(0.0)
    with pytest.raises(StoreAway) as kept:  # its frames hold the cursor
        await store._do(fails)
    with closing(sqlite3.connect(path, timeout=0)) as db:
        db.execute("BEGIN IMMEDIATE")
        assert db.execute("SELECT * FROM rests").fetchall() == []
    assert "half way" in str(kept.value)
    await store.close()


async def test_a_disk_that_hangs_does_not_keep_the_process(path: Path) -> None:
    text = """
import asyncio, sys, time
from relayd.stores.sqlite import SqliteStore
async def main():
    store = SqliteStore(sys.argv[1])
    await store.read(0.0)
    asking = asyncio.create_task(store._do(lambda db: time.sleep(60)))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(0.05):
            await store.close()
    except TimeoutError:
        print("left")
    asking.cancel()
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, str(path), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(20.0):
        assert await process.communicate() == (b"left\n", None)


async def test_two_stores_that_open_a_new_file_at_once_both_succeed(path: Path) -> None:
    stores = [SqliteStore(str(path), timeout=5.0) for _ in range(8)]
    await asyncio.gather(*(store.read(0.0) for store in stores))
    assert max(await asyncio.gather(*(spend(s, str(id(s))) for s in stores))) == 8
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_writer_of_a_new_file_is_waited_for(path: Path) -> None:
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    store = SqliteStore(str(path), timeout=5.0)
    reading = asyncio.create_task(store.read(0.0))
    await asyncio.wait([reading], timeout=0.05)
    assert not reading.done()
    writer.execute("ROLLBACK")
    assert (await reading).rows == {}
    await store.close()
    writer.close()


async def test_a_full_disk_is_an_absence_until_there_is_room_for_more_than_a_step(
    store: SqliteStore, path: Path
) -> None:
    assert await spend(store, "1") == 1
    await store.close()
    again = SqliteStore(str(path))
    with files_of_at_most(sqlite_store.ROOM // 2):
        for _ in range(3):
            with pytest.raises(StoreAway, match="sqlite: OperationalError"):
                await again.read(0.0)
    assert await spend(again, "2") == 2
    await again.close()


async def test_a_file_does_not_grow_by_being_opened(path: Path) -> None:
    sizes = set()
    for _ in range(3):
        store = SqliteStore(str(path))
        await store.read(0.0)
        await store.close()
        sizes.add(size_of(path))
    assert len(sizes) == 1
