"""The pool against a model: a list of who is idle, in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relayd.pool import Origin, Pool

ORIGINS = [Origin("https", name, 443, name, "") for name in "ab"]
SIZE = 3
IDLE_AGE = 60.0
MAX_AGE = 100.0


@dataclass(eq=False)
class Line:
    """A connection as the pool sees it."""

    born: float
    quiet: bool = True
    closed: int = 0

    def is_quiet(self) -> bool:
        return self.quiet

    def close(self) -> None:
        self.closed += 1


class Connections(RuleBasedStateMachine):
    """Connections are dialled, lent, given back, closed by their peers, and grow old."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: Pool[Line] = Pool(SIZE, IDLE_AGE, MAX_AGE)
        self.now = 0.0
        self.idle: list[tuple[Origin, Line, float]] = []
        self.lent: list[tuple[Origin, Line]] = []
        self.gone: list[Line] = []

    def fresh(self, line: Line, since: float) -> bool:
        return self.now - since < IDLE_AGE and self.now - line.born < MAX_AGE

    def lose(self, entry: tuple[Origin, Line, float]) -> None:
        self.idle.remove(entry)
        self.gone.append(entry[1])

    @rule(origin=st.sampled_from(ORIGINS))
    def dial(self, origin: Origin) -> None:
        self.lent += [(origin, Line(self.now)) for _ in range(SIZE + 1)]

    @rule(seconds=st.sampled_from([0.5, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(origin=st.sampled_from(ORIGINS))
    def take(self, origin: Origin) -> None:
        expected = None
        for entry in reversed(self.idle):
            if entry[0] == origin and expected is None:
                if self.fresh(entry[1], entry[2]) and entry[1].quiet:
                    expected = entry[1]
                    self.idle.remove(entry)
                else:
                    self.lose(entry)
        assert self.pool.take(origin, self.now) is expected
        if expected is not None:
            self.lent.append((origin, expected))

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        origin, line = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        kept = self.fresh(line, self.now)
        assert self.pool.give(origin, line, self.now) is kept
        if not kept:
            self.gone.append(line)
            return
        if len(self.idle) == SIZE:
            self.lose(self.idle[0])
        self.idle.append((origin, line, self.now))

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def speak(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([line for _, line, _ in self.idle])).quiet = False

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.idle))
        self.pool.drop(entry[0], entry[1])
        self.lose(entry)

    @rule()
    def expire(self) -> None:
        self.pool.expire(self.now)
        for entry in list(self.idle):
            if not self.fresh(entry[1], entry[2]):
                self.lose(entry)

    @rule(kept=st.sets(st.sampled_from(ORIGINS)))
    def reload(self, kept: set[Origin]) -> None:
        self.pool.keep(kept)
        for entry in list(self.idle):
            if entry[0] not in kept:
                self.lose(entry)

    @invariant()
    def each_is_in_one_place_and_closed_once(self) -> None:
        assert len(self.pool) == len(self.idle)
        assert all(line.closed == 1 for line in self.gone)
        assert all(line.closed == 0 for _, line, _ in self.idle)
        assert all(line.closed == 0 for _, line in self.lent)

    def teardown(self) -> None:
        self.pool.close()
        assert all(line.closed == 1 for _, line, _ in self.idle)
        assert len(self.pool) == 0


TestConnections = Connections.TestCase
