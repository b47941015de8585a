"""State in Redis (extra `relayd[redis]`): shared by a fleet.

Every step is one Lua script, so one round trip and atomic; time is the server's `TIME` in whole
milliseconds. Every key begins with the prefix and expires by itself. redis-py retries nothing here:
a step fails at once, and its caller decides. Not for Redis Cluster: the keys of a user may lie in
different slots.

    PREFIX turns:DAY:USER   hash: t, f (settled turns, free continuations), l:LEDGER ("t f")
    PREFIX held:DAY:USER    sorted set: lease ids of turns, by the time they end
    PREFIX free:DAY:USER    the same for free continuations
    PREFIX breakers         hash: name to JSON [generation, since, until, trips, probe, failure ...]
    PREFIX rests            hash: name to the time the rest ends
    PREFIX seen             when anybody last asked for everything

Knows `quota` and `breaker` as the other stores do; the contract suite holds the scripts to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha1
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.retry import Retry

from ..breaker import Policy, Row, Verdict
from ..quota import KEPT_DAYS, Grant, Tally, Turn
from . import Probe, Settlement, Shared, StoreAway

MAX_CONNECTIONS = 16
"""Connections of one process; more steps at once wait for one of them, within the timeout."""

KEEP = KEPT_DAYS * 86_400
"""Seconds after which a key that nobody writes to expires."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

RESERVE = (
    NOW
    + f"""
local held, free = KEYS[2], KEYS[3]
redis.call('ZREMRANGEBYSCORE', held, '-inf', now)
redis.call('ZREMRANGEBYSCORE', free, '-inf', now)
local settled = redis.call('HMGET', KEYS[1], 't', 'f')
local used = (settled[1] or 0) + redis.call('ZCARD', held)
local spent = (settled[2] or 0) + redis.call('ZCARD', free)
local key
if spent < ARGV[3] * used then
    key = free
elseif used < tonumber(ARGV[2]) then
    key, used = held, used + 1
else
    return {{0, 0, used}}
end
redis.call('ZADD', key, now + ARGV[4], ARGV[1])
redis.call('EXPIRE', key, {KEEP})
return {{1, key == free and 1 or 0, used}}
"""
)

SETTLE = f"""
local turn = redis.call('ZREM', KEYS[2], ARGV[1])
local free = redis.call('ZREM', KEYS[3], ARGV[1])
if turn + free > 0 and ARGV[2] == '1' then
    redis.call('HINCRBY', KEYS[1], free == 1 and 'f' or 't', 1)
    redis.call('EXPIRE', KEYS[1], {KEEP})
end
"""

ADD = f"""
local field = 'l:' .. ARGV[1]
local t, f = string.match(redis.call('HGET', KEYS[1], field) or '0 0', '(%d+) (%d+)')
redis.call('HINCRBY', KEYS[1], 't', ARGV[2] - t)
redis.call('HINCRBY', KEYS[1], 'f', ARGV[3] - f)
redis.call('HSET', KEYS[1], field, ARGV[2] .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], {KEEP})
"""

# A row that began in the future is of a server whose clock was set back: it would hold for ever.
LOAD = (
    NOW
    + f"""
local name = ARGV[1]
local found = redis.call('HGET', KEYS[1], name)
local row = found and cjson.decode(found) or {{0, 0, 0, 0, 0}}
if row[2] > now then row = {{row[1] + 1, now, 0, 0, 0}} end
local function answer(granted)
    redis.call('HSET', KEYS[1], name, cjson.encode(row))
    redis.call('EXPIRE', KEYS[1], {KEEP})
    return {{granted, now, cjson.encode(row)}}
end
"""
)

PROBE = (
    LOAD
    + """
if row[3] == 0 or now < row[3] or now < row[5] then return answer(0) end
row[1], row[5] = row[1] + 1, now + ARGV[2]
return answer(1)
"""
)

JUDGE = (
    LOAD
    + """
local verdict, failures, at = ARGV[3], tonumber(ARGV[4]), now - ARGV[9]
if row[1] ~= tonumber(ARGV[2]) then return answer(0) end
if verdict == 'failure' then
    for i = #row, 6, -1 do
        if row[i] <= at - ARGV[5] then table.remove(row, i) end
    end
    table.insert(row, at)
    while #row - 5 > failures do table.remove(row, 6) end
    if row[3] ~= 0 or #row - 5 == failures then
        local trips = row[4] + 1
        local wait = math.min(ARGV[6] * ARGV[7] ^ (trips - 1), tonumber(ARGV[8]))
        row = {row[1] + 1, at, at + math.floor(wait), trips, 0}
    end
elseif verdict == 'neutral' then
    row[5] = 0
elseif row[3] ~= 0 then
    row = {row[1] + 1, at, 0, 0, 0}
end
return answer(0)
"""
)

REST = (
    NOW
    + f"""
local ends = math.max(now + ARGV[2], tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0))
redis.call('HSET', KEYS[1], ARGV[1], ends)
redis.call('EXPIRE', KEYS[1], {KEEP})
"""
)

READ = (
    NOW
    + """
local rests = redis.call('HGETALL', KEYS[2])
for i = 1, #rests, 2 do
    if tonumber(rests[i + 1]) <= now then redis.call('HDEL', KEYS[2], rests[i]) end
end
-- Written, because a replica or a full server answers whoever only reads.
redis.call('SET', KEYS[3], now, 'EX', 60)
return {now, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
"""
)

HASHES = {
    script: sha1(script.encode(), usedforsecurity=False).hexdigest()
    for script in (RESERVE, SETTLE, ADD, PROBE, JUDGE, REST, READ)
}
"""How Redis calls the scripts it has seen before."""


class RedisStore:
    """A store at `url`; `timeout` in seconds bounds a connect and the wait for a connection."""

    def __init__(self, url: str, *, prefix: str = "relayd:", timeout: float = 0.25) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=True,
        )
        self._redis: Redis = Redis.from_pool(pool)
        self._prefix = prefix

    async def reserve(self, turn: Turn) -> Grant:
        args = (turn.id, turn.cap, turn.budget, _ms(turn.lease))
        granted, free, used = await self._run(RESERVE, self._keys(turn), args)
        return Grant(bool(granted), bool(free), used)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._run_all(
            SETTLE, [(self._keys(turn), (turn.id, int(charged))) for turn, charged in settlements]
        )

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        await self._run_all(
            ADD, [(self._keys(tally)[:1], (ledger, tally.turns, tally.free)) for tally in tallies]
        )

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        answer = await self._run(PROBE, (self._prefix + "breakers",), (name, _ms(lease)))
        return Probe(bool(answer[0]), _row(answer[2], answer[1], now))

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, age: float, now: float
    ) -> Row:
        opens = (policy.failures, _ms(policy.window))
        cools = (_ms(policy.cooldown), policy.cooldown_growth, _ms(policy.cooldown_max))
        args = (name, generation, verdict.value, *opens, *cools, _ms(age))
        answer = await self._run(JUDGE, (self._prefix + "breakers",), args)
        return _row(answer[2], answer[1], now)

    async def rest(self, name: str, seconds: float, now: float) -> None:
        await self._run(REST, (self._prefix + "rests",), (name, _ms(seconds)))

    async def read(self, now: float) -> Shared:
        keys = tuple(self._prefix + name for name in ("breakers", "rests", "seen"))
        clock, rows, rests = await self._run(READ, keys, ())
        return Shared(
            {name: _row(text, clock, now) for name, text in _pairs(rows)},
            {name: (int(ends) - clock) / 1000 for name, ends in _pairs(rests)},
        )

    async def close(self) -> None:
        with _translated():
            await self._redis.aclose()
            await self._redis.connection_pool.disconnect()

    def _keys(self, of: Turn | Tally) -> tuple[str, str, str]:
        tail = f"{of.day}:{of.user}"
        prefix = self._prefix
        return f"{prefix}turns:{tail}", f"{prefix}held:{tail}", f"{prefix}free:{tail}"

    async def _run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        with _translated():
            try:
                return await self._redis.evalsha(HASHES[script], len(keys), *keys, *args)
            except NoScriptError:  # first use, or the server has started anew
                return await self._redis.eval(script, len(keys), *keys, *args)

    async def _run_all(self, script: str, calls: Sequence[tuple[Sequence[str], Any]]) -> None:
        """Each call is a step of its own; all of them share one round trip."""
        with _translated():
            try:
                await self._pipe(HASHES[script], calls)
            except NoScriptError:
                # Those that ran before it was lost may run again: these steps allow for it.
                await self._redis.script_load(script)
                await self._pipe(HASHES[script], calls)

    async def _pipe(self, sha: str, calls: Sequence[tuple[Sequence[str], Any]]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for keys, args in calls:
                pipe.evalsha(sha, len(keys), *keys, *args)
            await pipe.execute()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError) as error:
        raise StoreAway(f"redis: {type(error).__name__}: {error}") from error


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _row(text: str, clock: int, now: float) -> Row:
    """The row on the caller's clock, which shows `now` while the server's shows `clock` ms."""
    generation, since, until, trips, lease, *failures = json.loads(text)
    ours = [now + (at - clock) / 1000 for at in (since, until, lease, *failures)]
    return Row(
        generation,
        ours[0],
        ours[1] if until else None,
        trips,
        ours[2] if lease else None,
        tuple(ours[3:]),
    )


def _pairs(flat: list[str]) -> Iterator[tuple[str, str]]:
    return zip(flat[::2], flat[1::2], strict=True)
