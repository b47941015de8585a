"""State in one SQLite file: survives restarts, shared by all relayd processes of a machine.

One thread owns the connection and does everything in the order it was asked, so that the event
loop never waits for a disk or a lock. What is asked at the same moment shares a transaction: under
load the lock between processes is taken once for many steps. `BEGIN IMMEDIATE` takes it before the
first read, so that no step decides on figures that another process is changing. In WAL mode a
process may be killed at any instant: a transaction is in the file as a whole or not at all.

The steps themselves are `sql`. Rows are on the machine's monotonic clock, which starts again with
the machine: whoever opens the file first after that forgets the breakers and the rests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..breaker import Policy, Row, Verdict
from ..quota import Grant, Tally, Turn
from . import Probe, Settlement, Shared, StoreAway, check_users, sql

T = TypeVar("T")

BATCH = 64
"""Steps that share a transaction at most: some milliseconds, while other processes wait."""

LOOK_AGAIN = 0.005
"""Seconds between two looks at a new file that another process is setting up: some milliseconds."""

SAME_BOOT = 10.0
"""Seconds by which two figures for the start of one machine may differ: a clock that is set in
between makes it more, and breakers and rests are forgotten then, too."""

ROOM = 262_144
"""Bytes that must be free when the file is opened: roughly what a batch of steps may add at most.
With less, a store on a full disk would come back only to fail at the first step, ever again."""

REMEDIES = {
    sqlite3.SQLITE_CANTOPEN: "create its folder, and let relayd write there",
    sqlite3.SQLITE_READONLY: "let relayd write to it and to its folder",
    sqlite3.SQLITE_NOTADB: "move it away",
    sqlite3.SQLITE_CORRUPT: "move it away",
    sqlite3.SQLITE_FULL: "make room on its disk",
}
"""What to do where the file cannot be used."""

VERSION = 2
"""`user_version` of the file; another one is refused rather than guessed at."""


class Step(NamedTuple):
    """One thing to do on the thread, and the future that waits for it."""

    act: Callable[[sqlite3.Connection], Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


def _last(db: sqlite3.Connection) -> None:
    """No step comes after this one: the thread ends."""


class SqliteStore:
    """A store in the file `path`; another process's lock is waited for up to `timeout` seconds."""

    def __init__(self, path: str, *, timeout: float = 0.25) -> None:
        self._thread: threading.Thread | None = None
        self._closed = False
        self._file = _File(path, timeout)

    async def reserve(self, turn: Turn) -> Grant:
        check_users([turn])
        return await self._do(lambda db: sql.reserve(db, turn))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        check_users(settlements)
        await self._do(lambda db: sql.settle(db, settlements))

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        check_users(tallies)
        await self._do(lambda db: sql.add(db, ledger, tallies))

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        return await self._do(lambda db: sql.probe(db, name, lease, now))

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, age: float, now: float
    ) -> Row:
        return await self._do(
            lambda db: sql.judge(db, name, generation, verdict, policy, now - age)
        )

    async def rest(self, name: str, seconds: float, now: float) -> None:
        await self._do(lambda db: sql.rest(db, name, now + seconds))

    async def read(self, now: float) -> Shared:
        return await self._do(lambda db: sql.read(db, now))

    async def close(self) -> None:
        """End the thread after what was asked before; a later step fails. Once is enough."""
        closed, self._closed = self._closed, True
        if self._thread is not None and not closed:
            await self._ask(_last)

    async def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StoreAway("sqlite: closed", asked=False)
        if self._thread is None:
            # A daemon thread: a disk that hangs must not keep the process from ending.
            thread = threading.Thread(target=self._file.run, name="relayd-store", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # TasksMax=, or no memory; the next step may have luck
                raise StoreAway(f"sqlite: {error}", asked=False) from error
            self._thread = thread
        return await self._ask(act)

    def _ask(self, act: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._file.steps.put(Step(act, done, loop))
        return done


class _File:
    """The thread's side: takes steps from the queue, a batch at a time.

    The queue needs no limit of its own: whoever asks waits, so it holds at most one step for each
    open exchange and a few of the synchronisation.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.steps: queue.SimpleQueue[Step] = queue.SimpleQueue()
        self._path = path
        self._timeout = timeout
        self._db: sqlite3.Connection | None = None
        self._opened: list[tuple[int, int] | None] = []

    def run(self) -> None:
        last: Step | None = None
        while last is None:
            batch = [self.steps.get()]
            while batch[-1].act is not _last and len(batch) < BATCH and not self.steps.empty():
                batch.append(self.steps.get())
            if batch[-1].act is _last:
                last = batch.pop()
            if batch:
                self._batch(batch)
        self._drop()
        _deliver([(last, None, None)])

    def _batch(self, batch: list[Step]) -> None:
        try:
            results = self._transaction(batch)
        except Exception as error:  # noqa: BLE001  # the thread must outlive whatever one step does
            self._drop()
            away = StoreAway(f"sqlite: {type(error).__name__}: {error}{_remedy(error)}")
            away.__cause__ = error
            _deliver([(step, None, away) for step in batch])
        else:
            _deliver([(step, result, None) for step, result in zip(batch, results, strict=True)])

    def _transaction(self, batch: list[Step]) -> list[Any]:
        if self._db is None:
            self._db = _open(self._path, self._timeout)
            self._opened = _files(self._path)
        elif _files(self._path) != self._opened:
            # Whoever starts now begins a file of that name: two would count apart.
            raise sqlite3.OperationalError(f"{self._path} or its -wal was deleted or replaced")
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        results = [step.act(db) for step in batch]
        db.execute("COMMIT")
        return results

    def _drop(self) -> None:
        # The next step opens the file anew, whatever became of it. Closing rolls back only once no
        # cursor lives, and one that failed lives in the frames of what it raised.
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.rollback()
            db.close()


def _remedy(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF  # without its details
    return f": {REMEDIES[code]}" if code in REMEDIES else ""


def _files(path: str) -> list[tuple[int, int] | None]:
    """Which files are the database and its write-ahead log; None for one that is not there."""
    return [_identity(path), _identity(path + "-wal")]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _deliver(results: list[tuple[Step, Any, StoreAway | None]]) -> None:
    for step, result, error in results:
        try:
            step.loop.call_soon_threadsafe(_answer, step.done, result, error)
        except RuntimeError:
            continue  # the loop is closed: nobody waits any more


def _answer(done: asyncio.Future[Any], result: Any, error: StoreAway | None) -> None:
    if done.done():
        return  # the one who asked has left
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def _open(path: str, timeout: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    db.text_factory = lambda text: text.decode("utf-8", "replace")  # one row must not hide the rest
    try:
        _write_ahead(db, time.monotonic() + timeout)
        # A killed process loses nothing; a power cut may lose the last moments.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")
        found = db.execute("PRAGMA user_version").fetchone()[0]
        if found == 0:
            for statement in sql.SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")
        elif found != VERSION:
            words = f"{path} is of schema version {found}, expected {VERSION}: move it away"
            raise sqlite3.DatabaseError(words)
        _forget_earlier_boot(db)
        _find_room(db)
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def _find_room(db: sqlite3.Connection) -> None:
    # It stays filled: what one transaction makes and drops would never be written.
    db.execute("CREATE TABLE IF NOT EXISTS room (filler)")
    db.execute("DELETE FROM room")
    db.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM,))


def _forget_earlier_boot(db: sqlite3.Connection) -> None:
    began = booted()
    found = db.execute("SELECT began FROM boot").fetchone()
    if found is not None and abs(found[0] - began) <= SAME_BOOT:
        return
    sql.forget(db)
    db.execute("DELETE FROM boot")
    db.execute("INSERT INTO boot VALUES (?)", (began,))


def booted() -> float:
    """When this machine started, in seconds since the epoch; `/proc` may be hidden from a unit."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _write_ahead(db: sqlite3.Connection, deadline: float) -> None:
    """Set the journal's mode. For this SQLite waits for no writer of a file that is new."""
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(LOOK_AGAIN)
