"""What the SQLite store runs on its connection: every step as one function, inside a transaction.

The rules are those of `quota` and `breaker`. Rows are JSON on the machine's monotonic clock. Does
not know files, threads and locks.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from math import isfinite

from .. import breaker
from ..breaker import Policy, Row, Verdict
from ..quota import KEPT_DAYS, Grant, Tally, Turn, decide, is_over
from . import UNREADABLE, Probe, Settlement, Shared

SCHEMA = """
CREATE TABLE days (n INTEGER PRIMARY KEY, day TEXT UNIQUE NOT NULL);
CREATE TABLE turns (
    day TEXT, user TEXT, turns INTEGER NOT NULL, free INTEGER NOT NULL, PRIMARY KEY (day, user)
) WITHOUT ROWID;
CREATE TABLE leases (
    day TEXT, user TEXT, id TEXT, free INTEGER NOT NULL, ends REAL NOT NULL,
    PRIMARY KEY (day, user, id)
) WITHOUT ROWID;
CREATE TABLE tallies (
    ledger TEXT, day TEXT, user TEXT, turns INTEGER NOT NULL, free INTEGER NOT NULL,
    PRIMARY KEY (ledger, day, user)
) WITHOUT ROWID;
CREATE TABLE breakers (name TEXT PRIMARY KEY, row TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rests (name TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE boot (began REAL NOT NULL);
"""

ADD = """
INSERT INTO turns VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET turns = turns + excluded.turns, free = free + excluded.free
"""

USED = """
SELECT coalesce(sum(turns), 0), coalesce(sum(free), 0) FROM (
    SELECT turns, free FROM turns WHERE day = :day AND user = :user
    UNION ALL SELECT 1 - free, free FROM leases WHERE day = :day AND user = :user
)
"""


# turns


def reserve(db: sqlite3.Connection, turn: Turn) -> Grant:
    _begin(db, turn.day)
    key = {"day": turn.day, "user": turn.user}
    ended = "DELETE FROM leases WHERE day = :day AND user = :user AND ends <= :wall"
    db.execute(ended, {**key, "wall": turn.wall})
    grant = decide(turn, *db.execute(USED, key).fetchone())
    if grant.granted:
        lease = (turn.day, turn.user, turn.id, grant.free, turn.ends)
        db.execute("INSERT INTO leases VALUES (?, ?, ?, ?, ?)", lease)
    return grant


def settle(db: sqlite3.Connection, settlements: Sequence[Settlement]) -> None:
    for turn, charged in settlements:
        end = "DELETE FROM leases WHERE day = ? AND user = ? AND id = ? RETURNING free"
        held = db.execute(end, (turn.day, turn.user, turn.id)).fetchone()
        if held is not None and charged:
            db.execute(ADD, (turn.day, turn.user, 1 - held[0], held[0]))


def add(db: sqlite3.Connection, ledger: str, tallies: Sequence[Tally]) -> None:
    for day, user, turns, free in ((t.day, t.user, t.turns, t.free) for t in tallies):
        if is_over(day, [kept for (kept,) in db.execute("SELECT day FROM days")]):
            continue
        _begin(db, day)
        key = (ledger, day, user)
        known = "SELECT turns, free FROM tallies WHERE ledger = ? AND day = ? AND user = ?"
        before = db.execute(known, key).fetchone() or (0, 0)
        db.execute("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?, ?)", (*key, turns, free))
        db.execute(ADD, (day, user, turns - before[0], free - before[1]))


def _begin(db: sqlite3.Connection, day: str) -> None:
    if db.execute("SELECT 1 FROM days WHERE day = ?", (day,)).fetchone():
        return
    db.execute("INSERT INTO days (day) VALUES (?)", (day,))
    db.execute("DELETE FROM days WHERE n <= (SELECT max(n) FROM days) - ?", (KEPT_DAYS,))
    for table in ("turns", "leases", "tallies"):
        db.execute(f"DELETE FROM {table} WHERE day NOT IN (SELECT day FROM days)")


# breakers


def _load(db: sqlite3.Connection, name: str) -> Row:
    found = db.execute("SELECT row FROM breakers WHERE name = ?", (name,)).fetchone()
    return (found and _parsed(found[0])) or Row()


def _parsed(text: str) -> Row | None:
    """The row; None for one that cannot be read, which counts as none and is soon replaced."""
    try:
        generation, since, until, trips, lease, failures = json.loads(text)
        ends = [None if at is None else float(at) for at in (until, lease)]
        times = tuple(map(float, failures))
        row = Row(int(generation), float(since), ends[0], int(trips), ends[1], times)
        return row if all(isfinite(at or 0.0) for at in (row.since, *ends, *times)) else None
    except UNREADABLE:
        return None


def _save(db: sqlite3.Connection, name: str, row: Row) -> None:
    db.execute("INSERT OR REPLACE INTO breakers VALUES (?, ?)", (name, json.dumps(row)))


def probe(db: sqlite3.Connection, name: str, lease: float, now: float) -> Probe:
    row = _load(db, name)
    taken = breaker.probe(row, now, now + lease)
    if taken is None:
        return Probe(False, row)
    _save(db, name, taken)
    return Probe(True, taken)


def judge(
    db: sqlite3.Connection, name: str, generation: int, verdict: Verdict, policy: Policy, at: float
) -> Row:
    row = _load(db, name)
    after = breaker.judge(row, generation, verdict, policy, at)
    if after is not row:
        _save(db, name, after)
    return after


def rest(db: sqlite3.Connection, name: str, until: float) -> None:
    longer = "INSERT INTO rests VALUES (?, ?) ON CONFLICT DO UPDATE SET until = max(until, ?)"
    db.execute(longer, (name, until, until))


def read(db: sqlite3.Connection, now: float) -> Shared:
    over = "DELETE FROM rests WHERE until <= ? OR typeof(until) != 'real' OR until = 9e999"
    db.execute(over, (now,))
    found = {name: _parsed(text) for name, text in db.execute("SELECT name, row FROM breakers")}
    rows = {name: row for name, row in found.items() if row is not None}
    rests = {name: until - now for name, until in db.execute("SELECT name, until FROM rests")}
    return Shared(rows, rests)


def forget(db: sqlite3.Connection) -> None:
    """Every breaker begins anew, and no rest is left; no generation may repeat."""
    for name, text in db.execute("SELECT name, row FROM breakers").fetchall():
        _save(db, name, Row(generation=(_parsed(text) or Row()).generation + 1))
    db.execute("DELETE FROM rests")
