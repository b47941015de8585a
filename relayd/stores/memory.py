"""State in this process: exact, gone with it, and never away.

Also the stand-in of a shared store: `turns` counts here while that one is away, and `breakers`
reads its hot path from here. For both every step exists as a plain method that never awaits. Knows
`quota` and `breaker`; does not know asyncio.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..breaker import Policy, Row, Verdict, judge, probe
from ..quota import KEPT_DAYS, Account, Grant, Tally, Turn, is_over
from . import Probe, Settlement, Shared

MAX_USERS = 1_000_000
"""Users counted one by one on one day (some 300 bytes each); all further ones share an account."""

OTHERS = "(others)"
"""The account of the users beyond `MAX_USERS`: dropping anybody's would give turns back."""

NEW = Row()
"""A breaker that nobody has seen fail."""


class MemoryStore:
    """The reference store. Synchronous twins: `hold`, `end`, and the tables themselves."""

    def __init__(self, max_users: int = MAX_USERS) -> None:
        self.rows: dict[str, Row] = {}
        self.rests: dict[str, float] = {}
        self._max_users = max_users
        self._days: dict[str, dict[str, Account]] = {}
        self._told: dict[tuple[str, str, str], Tally] = {}

    # turns

    def hold(self, turn: Turn) -> Grant:
        """`reserve`, at once."""
        return self._account(turn.day, turn.user).reserve(turn)

    def end(self, turn: Turn, charged: bool) -> Tally | None:
        """`settle`, at once: the user's totals after it, None if nothing was held."""
        accounts = self._days.get(turn.day, {})
        for user in (turn.user, OTHERS):
            account = accounts.get(user)
            if account is not None and account.settle(turn.id, charged):
                if account.empty:
                    del accounts[user]
                return Tally(turn.day, user, account.turns, account.free)
        return None

    async def reserve(self, turn: Turn) -> Grant:
        return self.hold(turn)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        for turn, charged in settlements:
            self.end(turn, charged)

    async def add(self, ledger: str, tallies: Sequence[Tally]) -> None:
        for tally in tallies:
            if is_over(tally.day, self._days):
                continue
            account = self._account(tally.day, tally.user)
            key = (ledger, tally.day, tally.user)
            told = self._told.get(key)
            account.turns += tally.turns - (told.turns if told else 0)
            account.free += tally.free - (told.free if told else 0)
            self._told[key] = tally

    def _account(self, day: str, user: str) -> Account:
        accounts = self._days.get(day)
        if accounts is None:
            accounts = self._begin(day)
        account = accounts.get(user)
        if account is None:
            if len(accounts) >= self._max_users:
                user = OTHERS
            account = accounts.setdefault(user, Account())
        return account

    def _begin(self, day: str) -> dict[str, Account]:
        accounts = self._days[day] = {}
        while len(self._days) > KEPT_DAYS:
            del self._days[next(iter(self._days))]
        self._told = {key: told for key, told in self._told.items() if key[1] in self._days}
        return accounts

    # breakers

    async def probe(self, name: str, lease: float, now: float) -> Probe:
        row = self.rows.get(name, NEW)
        taken = probe(row, now, now + lease)
        if taken is None:
            return Probe(False, row)
        self.rows[name] = taken
        return Probe(True, taken)

    async def judge(
        self, name: str, generation: int, verdict: Verdict, policy: Policy, age: float, now: float
    ) -> Row:
        row = judge(self.rows.get(name, NEW), generation, verdict, policy, now - age)
        self.rows[name] = row
        return row

    async def rest(self, name: str, seconds: float, now: float) -> None:
        self.rests[name] = max(self.rests.get(name, 0.0), now + seconds)

    async def read(self, now: float) -> Shared:
        self.rests = {name: until for name, until in self.rests.items() if until > now}
        return Shared(dict(self.rows), {name: until - now for name, until in self.rests.items()})

    async def close(self) -> None:
        pass
