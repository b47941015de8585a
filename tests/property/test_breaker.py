"""Breakers over any course of verdicts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relayd.breaker import Policy, Row, State, Verdict, judge, probe, probing, state

POLICY = Policy(failures=3, window=10.0, cooldown=5.0, cooldown_growth=2.0, cooldown_max=12.0)
LEASE = 8.0


class Course(RuleBasedStateMachine):
    """Permits taken at any time and settled at any later one, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Row()
        self.now = 100.0
        self.permits: list[tuple[int, bool, float]] = []  # generation, probe, lease end
        self.failures: list[float] = []  # of this closed generation, by the model's count

    def probes(self) -> int:
        """Probes that could still decide something."""
        return sum(
            is_probe and generation == self.row.generation and self.now < ends
            for generation, is_probe, ends in self.permits
        )

    @rule()
    def admit(self) -> None:
        if state(self.row, self.now) is State.CLOSED:
            self.permits.append((self.row.generation, False, self.now + LEASE))
            return
        taken = probe(self.row, self.now, self.now + LEASE)
        if taken is not None:
            assert state(self.row, self.now) is State.HALF_OPEN
            assert self.probes() == 0
            self.row = taken
            self.permits.append((taken.generation, True, self.now + LEASE))

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), verdict=st.sampled_from(Verdict))
    def settle(self, data: st.DataObject, verdict: Verdict) -> None:
        permit = data.draw(st.sampled_from(self.permits))
        self.permits.remove(permit)
        before = self.row
        self.row = judge(before, permit[0], verdict, POLICY, self.now)
        if permit[0] != before.generation:
            assert self.row is before
        elif before.until is not None:
            self.judged_probe(before, verdict)
        elif verdict is Verdict.FAILURE:
            self.failures.append(self.now)
            recent = [at for at in self.failures if at > self.now - POLICY.window]
            assert (self.row.until is not None) is (len(recent) >= POLICY.failures)
        else:
            assert self.row is before
        if self.row.generation != before.generation:
            self.failures = []

    def judged_probe(self, before: Row, verdict: Verdict) -> None:
        assert not probing(self.row, self.now)
        if verdict in (Verdict.SUCCESS, Verdict.ANSWERED):
            assert self.row == Row(generation=before.generation + 1, since=self.now)
        elif verdict is Verdict.FAILURE:
            assert state(self.row, self.now) is State.OPEN
            assert self.row.trips == before.trips + 1
        else:
            assert state(self.row, self.now) is state(before, self.now)

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, LEASE, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def never_more_than_one_probe(self) -> None:
        assert self.probes() <= 1

    @invariant()
    def nothing_holds_it_longer_than_cooldown_and_lease(self) -> None:
        later = self.now + POLICY.cooldown_max + LEASE
        if self.row.until is not None:
            assert probe(self.row, later, later + LEASE) is not None

    @invariant()
    def what_is_remembered_has_a_limit(self) -> None:
        assert len(self.row.failures) < POLICY.failures


TestCourse = Course.TestCase


@given(st.integers(1, 10**6), st.floats(1.0, 100.0), st.floats(0.05, 300.0))
def test_a_cooldown_is_never_shorter_than_asked_nor_longer_than_allowed(
    trips: int, growth: float, cooldown: float
) -> None:
    policy = Policy(cooldown=cooldown, cooldown_growth=growth, cooldown_max=300.0)
    assert cooldown <= policy.wait(trips) <= 300.0
