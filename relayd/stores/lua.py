"""What the Redis store runs inside the server: every step as one script, atomic by itself.

Time is the server's `TIME` in whole milliseconds. Keys and their contents:

    PREFIX turns:DAY:USER   hash: t, f (settled turns, free continuations), l:LEDGER ("t f")
    PREFIX held:DAY:USER    sorted set: lease ids of turns, by the time they end
    PREFIX free:DAY:USER    the same for free continuations
    PREFIX breakers         hash: name to JSON [generation, since, until, trips, probe, failure ...]
    PREFIX rests            hash: name to the time the rest ends
    PREFIX seen             when anybody last asked for everything

Every key expires by itself. The rules are those of `quota` and `breaker`, said again in Lua; the
contract suite holds the two to each other. Does not know connections.
"""

from __future__ import annotations

from hashlib import sha1

from ..breaker import MOST, REST_MAX
from ..quota import KEPT_DAYS


class Script:
    """A script, and the hash by which a server that has seen it can be asked to run it."""

    __slots__ = ("hash", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.hash = sha1(text.encode(), usedforsecurity=False).hexdigest()


KEEP = KEPT_DAYS * 86_400
"""Seconds after which a key that nobody writes to expires."""

NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""


def _kinds(*kinds: str) -> str:
    """First lines of a script: a key of another type is something else's, and counts as none."""
    named = ", ".join(f"'{kind}'" for kind in kinds)
    return f"""
for i, kind in ipairs({{{named}}}) do
    local found = redis.call('TYPE', KEYS[i]).ok
    if found ~= kind and found ~= 'none' then redis.call('DEL', KEYS[i]) end
end
"""


TURNS = _kinds("hash", "zset", "zset")
HASH = _kinds("hash")

RESERVE = Script(
    TURNS
    + NOW
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

SETTLE = Script(
    TURNS
    + f"""
local turn = redis.call('ZREM', KEYS[2], ARGV[1])
local free = redis.call('ZREM', KEYS[3], ARGV[1])
if turn + free > 0 and ARGV[2] == '1' then
    redis.call('HINCRBY', KEYS[1], free == 1 and 'f' or 't', 1)
    redis.call('EXPIRE', KEYS[1], {KEEP})
end
"""
)

# The totals of a ledger only grow: a smaller one was under way for long, and another came first.
ADD = Script(
    HASH
    + f"""
local field = 'l:' .. ARGV[1]
local t, f = string.match(redis.call('HGET', KEYS[1], field) or '0 0', '(%d+) (%d+)')
if ARGV[2] - t < 0 or ARGV[3] - f < 0 then return end
redis.call('HINCRBY', KEYS[1], 't', ARGV[2] - t)
redis.call('HINCRBY', KEYS[1], 'f', ARGV[3] - f)
redis.call('HSET', KEYS[1], field, ARGV[2] .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], {KEEP})
"""
)

# A row that began in the future is of a server whose clock was set back: it would hold for ever.
# One that something else has written, or another relayd in another shape, counts as none.
LOAD = (
    HASH
    + NOW
    + f"""
local function legible(row)
    if type(row) ~= 'table' or #row < 5 then return false end
    for _, each in ipairs(row) do
        if type(each) ~= 'number' or each - each ~= 0 then return false end
    end
    return true
end
local name = ARGV[1]
local found = redis.call('HGET', KEYS[1], name)
local read, row = pcall(cjson.decode, found)
if not read or not legible(row) then row = {{0, 0, 0, 0, 0}} end
if row[2] > now then row = {{row[1] + 1, now, 0, 0, 0}} end
local function answer(granted)
    redis.call('HSET', KEYS[1], name, cjson.encode(row))
    redis.call('EXPIRE', KEYS[1], {KEEP})
    return {{granted, now, cjson.encode(row)}}
end
"""
)

PROBE = Script(
    LOAD
    + """
if row[3] == 0 or now < row[3] or now < row[5] then return answer(0) end
row[1], row[5] = row[1] + 1, now + ARGV[2]
return answer(1)
"""
)

JUDGE = Script(
    LOAD
    + f"local most = {MOST}"
    + """
local verdict, failures, at = ARGV[3], tonumber(ARGV[4]), now - ARGV[9]
if row[1] ~= tonumber(ARGV[2]) then return answer(0) end
if verdict == 'failure' and row[3] == 0 and failures > most then
    return answer(0)
elseif verdict == 'failure' then
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

# A rest that ends later than any may is of a server whose clock was set back.
LATEST = f"""
local latest = now + {round(REST_MAX * 1000)}
"""

REST = Script(
    HASH
    + NOW
    + LATEST
    + f"""
local known = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) or 0
local ends = math.max(now + ARGV[2], known > latest and 0 or known)
redis.call('HSET', KEYS[1], ARGV[1], ends)
redis.call('EXPIRE', KEYS[1], {KEEP})
"""
)

READ = Script(
    _kinds("hash", "hash")
    + NOW
    + LATEST
    + """
local rests = redis.call('HGETALL', KEYS[2])
for i = 1, #rests, 2 do
    local ends = string.match(rests[i + 1], '^%d+$')
    if not ends or tonumber(ends) <= now or tonumber(ends) > latest then
        redis.call('HDEL', KEYS[2], rests[i])
    end
end
-- Written, because a replica or a full server answers whoever only reads.
redis.call('SET', KEYS[3], now, 'EX', 60)
return {now, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
"""
)
