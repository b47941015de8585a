"""State in Redis (extra `relayd[redis]`): shared by a fleet.

Every step is one Lua script (`lua`), so one round trip and atomic. One connection carries all steps
of a process: what is asked at the same moment goes out together, and answers come back in the same
order. Nothing is retried here: a step fails at once, and its caller decides. Not for Redis Cluster:
the keys of a user may lie in different slots.

Knows `quota` and `breaker` by their shapes only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from ..breaker import Policy, Row, Verdict
from ..quota import Grant, Tally, Turn
from . import UNREADABLE, Probe, Settlement, Shared, StoreAway, check_users
from .lua import ADD, JUDGE, PROBE, READ, RESERVE, REST, SETTLE, Script

BATCH = 128
"""Steps that share a round trip at most."""

IDLE = 30.0
"""Seconds without use after which a new connection is made: a server or a balancer may have closed
the old one, and that would look like an absence."""

CONNECT_LIMIT = 2.0
"""Seconds to connect, with TLS and the password: several round trips, where a step is one. Whoever
asks meanwhile waits no longer than for a step; the connection is there for those who come after."""


class RedisStore:
    """A store at `url`; a server that leaves a step without answer for `timeout` s is given up."""

    def __init__(self, url: str, *, prefix: str = "relayd:", timeout: float = 0.25) -> None:
        self._wire = _Wire(url, timeout)
        self._prefix = prefix

    async def reserve(self, turn: Turn) -> Grant:
        check_users([turn])
        args = (turn.id, turn.cap, turn.budget, _ms(turn.lease))
        granted, free, used = await self._run(RESERVE, self._keys(turn), args)
        return Grant(bool(granted), bool(free), used)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Each settlement is a step of its own; all of them share one round trip."""
        check_users(settlements)
        calls = [(self._keys(turn), (turn.id, int(charged))) for turn, charged in settlements]
        await self._wire.ask([Call(SETTLE, keys, args) for keys, args in calls])

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        """Each tally is a step of its own; all of them share one round trip."""
        check_users(tallies)
        calls = [(self._keys(tally)[:1], (ledger, tally.turns, tally.free)) for tally in tallies]
        await self._wire.ask([Call(ADD, keys, args) for keys, args in calls])

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        answer = await self._run(PROBE, (self._prefix + "breakers",), (name, _ms(lease)))
        return Probe(bool(answer[0]), _row(answer[2], answer[1], now) or Row())

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, age: float, now: float
    ) -> Row:
        opens = (policy.failures, _ms(policy.window))
        cools = (_ms(policy.cooldown), policy.cooldown_growth, _ms(policy.cooldown_max))
        args = (name, generation, verdict.value, *opens, *cools, _ms(age))
        answer = await self._run(JUDGE, (self._prefix + "breakers",), args)
        return _row(answer[2], answer[1], now) or Row()

    async def rest(self, name: str, seconds: float, now: float) -> None:
        await self._run(REST, (self._prefix + "rests",), (name, _ms(seconds)))

    async def read(self, now: float) -> Shared:
        keys = tuple(self._prefix + name for name in ("breakers", "rests", "seen"))
        clock, rows, rests = await self._run(READ, keys, ())
        found = {name: _row(text, clock, now) for name, text in _pairs(rows)}
        return Shared(
            {name: row for name, row in found.items() if row is not None},
            {name: (int(ends) - clock) / 1000 for name, ends in _pairs(rests)},
        )

    async def close(self) -> None:
        await self._wire.close()

    def _keys(self, of: Turn | Tally) -> tuple[str, str, str]:
        tail = f"{of.day}:{of.user}"
        prefix = self._prefix
        return f"{prefix}turns:{tail}", f"{prefix}held:{tail}", f"{prefix}free:{tail}"

    async def _run(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        return (await self._wire.ask([Call(script, keys, args)]))[0]


class Call:
    """One script to run, and the future that waits for its answer."""

    __slots__ = ("answer", "args", "script")

    def __init__(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> None:
        self.script = script
        self.args = (len(keys), *keys, *args)
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def packed(self, known: bool) -> bytes:
        """The command on the wire. redis-py's own packing costs several times as much."""
        run = ("EVALSHA", self.script.hash) if known else ("EVAL", self.script.text)
        words = [str(word).encode() for word in (*run, *self.args)]
        parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        return b"*%d\r\n%b" % (len(parts), b"".join(parts))


class _Wire:
    """The connection, and the task that talks on it while there is something to ask.

    The queue needs no limit of its own: each caller waits for its answers, and after `timeout`
    without one everybody is told that the store is away.
    """

    def __init__(self, url: str, timeout: float) -> None:
        # A pool only because it reads URLs; its connections are made and kept here.
        self._pool = ConnectionPool.from_url(
            url,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
            encoding_errors="replace",
        )
        self._timeout = timeout
        self._connection: AbstractConnection | None = None
        self._used = 0.0
        self._calls: list[Call] = []
        self._talk: asyncio.Task[None] | None = None

    async def ask(self, calls: Sequence[Call]) -> list[Any]:
        """The answers in the order of the calls. Raises StoreAway."""
        self._calls += calls
        if self._talk is None:
            self._talk = asyncio.get_running_loop().create_task(self._talking())
        if len(calls) == 1:
            return [await calls[0].answer]
        return await asyncio.gather(*(call.answer for call in calls))

    async def close(self) -> None:
        if self._talk is not None:
            await self._talk
        await self._hang_up()

    async def _talking(self) -> None:
        try:
            while self._calls:
                batch, self._calls = self._calls[:BATCH], self._calls[BATCH:]
                await self._exchange(batch)
        finally:
            self._talk = None

    async def _exchange(self, batch: list[Call]) -> None:
        try:
            unknown = await self._send(batch, known=True)
            if unknown:  # scripts of first use, or the server has started anew
                await self._send(unknown, known=False)
        except BaseException as error:
            # Whatever it was: nobody may be left waiting, and no answer left on the wire.
            for call in batch:
                _fail(call, error)
            await self._hang_up()
            if not isinstance(error, Exception):
                raise

    async def _send(self, batch: list[Call], *, known: bool) -> list[Call]:
        """Run the calls; those whose script the server did not know are returned."""
        async with asyncio.timeout(CONNECT_LIMIT):
            connection = await self._connected()
        batch = [call for call in batch if not call.answer.done()]  # the others gave up
        async with asyncio.timeout(self._timeout):
            await connection.send_packed_command(b"".join(call.packed(known) for call in batch))
            unknown, refused = await self._read(connection, batch)
        self._used = asyncio.get_running_loop().time()
        if refused:  # it may have been demoted, and another stands at this address by now
            await self._hang_up()
        return unknown

    async def _read(
        self, connection: AbstractConnection, batch: list[Call]
    ) -> tuple[list[Call], bool]:
        """Hand out the answers; the calls of unknown scripts, and whether any was refused."""
        unknown, refused = [], False
        for call in batch:
            try:
                answer = await connection.read_response()
            except NoScriptError:
                unknown.append(call)
            except ResponseError as error:
                refused = True
                _fail(call, error)
            else:
                if not call.answer.done():
                    call.answer.set_result(answer)
        return unknown, refused

    async def _connected(self) -> AbstractConnection:
        if asyncio.get_running_loop().time() - self._used > IDLE:
            await self._hang_up()
        if self._connection is None:
            made: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            await made.connect()  # type: ignore[no-untyped-call]
            self._connection = made
        return self._connection

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


def _fail(call: Call, error: BaseException) -> None:
    if not call.answer.done():
        away = StoreAway(f"redis: {type(error).__name__}: {error}")
        away.__cause__ = error
        call.answer.set_exception(away)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _row(text: str, clock: int, now: float) -> Row | None:
    """The row on the caller's clock, which shows `now` while the server's shows `clock` ms.

    None for one that cannot be read; the next step of its breaker replaces it.
    """
    try:
        generation, since, until, trips, lease, *failures = json.loads(text)
        ours = [now + (at - clock) / 1000 for at in (since, until, lease, *failures)]
        return Row(
            int(generation),
            ours[0],
            ours[1] if until else None,
            int(trips),
            ours[2] if lease else None,
            tuple(ours[3:]),
        )
    except UNREADABLE:
        return None


def _pairs(flat: list[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)
