"""Idle connections: which is taken, which is closed and when."""

from __future__ import annotations

from dataclasses import dataclass

from relayd.pool import Origin, Pool

HERE = Origin("https", "a", 443, "a", "")
THERE = Origin("https", "b", 443, "b", "")


@dataclass(eq=False)
class Line:
    """A connection as the pool sees it."""

    born: float = 0.0
    since: float = 0.0
    quiet: bool = True
    closed: int = 0

    def is_quiet(self) -> bool:
        return self.quiet

    def close(self) -> None:
        self.closed += 1


def pool(size: int = 2, idle_age: float = 60.0, max_age: float = 300.0) -> Pool[Line]:
    return Pool(size, idle_age, max_age)


def test_who_finds_nothing_dials() -> None:
    assert pool().take(HERE, 0.0) is None


def test_the_newest_is_taken_first() -> None:
    idle, old, new = pool(), Line(), Line()
    assert idle.give(HERE, old, 1.0)
    assert idle.give(HERE, new, 2.0)
    assert [idle.take(HERE, 3.0) for _ in range(3)] == [new, old, None]
    assert (old.closed, new.closed) == (0, 0)


def test_connections_are_exchangeable_only_within_an_origin() -> None:
    idle = pool()
    idle.give(HERE, Line(), 0.0)
    for other in (
        Origin("http", "a", 443, "a", ""),
        Origin("https", "b", 443, "a", ""),
        Origin("https", "a", 444, "a", ""),
        Origin("https", "a", 443, "b", ""),
        Origin("https", "a", 443, "a", "/ca"),
    ):
        assert idle.take(other, 1.0) is None
    assert idle.take(Origin("https", "a", 443, "a", ""), 1.0)


def test_the_oldest_makes_room() -> None:
    idle, lines = pool(size=2), [Line() for _ in range(3)]
    assert all(idle.give(HERE, line, 0.0) for line in lines)
    assert [line.closed for line in lines] == [1, 0, 0]
    assert len(idle) == 2


def test_room_is_made_where_nobody_has_asked_for_longest() -> None:
    idle, lines = pool(size=3), [Line() for _ in range(5)]
    for at, (origin, line) in enumerate(zip([HERE, THERE, THERE, HERE, HERE], lines, strict=True)):
        idle.give(origin, line, float(at))
    assert [line.closed for line in lines] == [1, 1, 0, 0, 0]
    assert idle.take(HERE, 5.0) is lines[4]
    assert idle.take(THERE, 5.0) is lines[2]
    assert len(idle) == 1


def test_a_smaller_size_after_a_reload_holds_at_once() -> None:
    idle, lines = pool(size=3), [Line() for _ in range(4)]
    for line, at in zip(lines[:3], (3.0, 1.0, 2.0), strict=True):
        idle.give(HERE if at == 3.0 else THERE, line, at)
    idle.configure(1, 60.0, 300.0)
    assert [line.closed for line in lines] == [0, 1, 1, 0]
    idle.give(HERE, lines[3], 4.0)
    assert [line.closed for line in lines] == [1, 1, 1, 0]
    idle.configure(0, 60.0, 300.0)
    assert len(idle) == 0


def test_size_zero_keeps_nothing() -> None:
    idle, line = pool(size=0), Line()
    assert not idle.give(HERE, line, 0.0)
    assert (line.closed, len(idle)) == (1, 0)


def test_what_is_too_old_is_closed_and_not_kept() -> None:
    idle, line = pool(max_age=10.0), Line(born=0.0)
    assert not idle.give(HERE, line, 10.0)
    assert line.closed == 1


def test_what_spoke_while_idle_is_closed_and_the_next_one_taken() -> None:
    idle, good, bad = pool(), Line(), Line()
    idle.give(HERE, good, 0.0)
    idle.give(HERE, bad, 0.0)
    bad.quiet = False
    assert idle.take(HERE, 1.0) is good
    assert (bad.closed, len(idle)) == (1, 0)


def test_what_was_idle_too_long_is_closed_when_it_would_be_taken() -> None:
    idle, line = pool(idle_age=60.0), Line()
    idle.give(HERE, line, 0.0)
    assert idle.take(HERE, 60.0) is None
    assert line.closed == 1


def test_what_was_born_too_long_ago_is_closed_when_it_would_be_taken() -> None:
    idle, line = pool(max_age=300.0), Line(born=0.0)
    idle.give(HERE, line, 299.0)
    assert idle.take(HERE, 300.0) is None
    assert line.closed == 1


def test_expiry_closes_the_old_and_keeps_the_young() -> None:
    idle, old, young, other = pool(idle_age=60.0), Line(), Line(born=50.0), Line()
    idle.give(HERE, old, 0.0)
    idle.give(HERE, young, 50.0)
    idle.give(THERE, other, 0.0)
    idle.expire(60.0)
    assert (old.closed, young.closed, other.closed, len(idle)) == (1, 0, 1, 1)
    idle.expire(61.0)
    assert (old.closed, idle.take(HERE, 62.0)) == (1, young)


def test_what_speaks_while_idle_can_be_dropped_by_name() -> None:
    idle, first, second = pool(), Line(), Line()
    idle.give(HERE, first, 0.0)
    idle.give(HERE, second, 0.0)
    idle.drop(HERE, second, b"what it said")
    assert (first.closed, second.closed, len(idle)) == (0, 1, 1)
    assert idle.take(HERE, 1.0) is first


def test_dropping_what_is_not_there_does_nothing() -> None:
    idle, line = pool(), Line()
    idle.give(HERE, Line(), 0.0)
    idle.drop(HERE, line)
    idle.drop(THERE, line)
    assert (line.closed, len(idle)) == (0, 1)


def test_a_reload_closes_the_connections_of_origins_that_went() -> None:
    idle, stays, goes = pool(), Line(), Line()
    idle.give(HERE, stays, 0.0)
    idle.give(THERE, goes, 0.0)
    idle.keep([HERE])
    assert (stays.closed, goes.closed, len(idle)) == (0, 1, 1)


def test_close_closes_all_of_them() -> None:
    idle, lines = pool(), [Line(), Line()]
    idle.give(HERE, lines[0], 0.0)
    idle.give(THERE, lines[1], 0.0)
    idle.close()
    assert ([line.closed for line in lines], len(idle)) == ([1, 1], 0)
