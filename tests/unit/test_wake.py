"""Waiting in one place, and a clock that moves."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable

import pytest

from relayd.wake import Alarm, Clock, Interrupt, Wake, Why
from tests.support.loop import elapsed, takes

pytestmark = pytest.mark.virtual_time


def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def timers() -> int:
    """Timers of the running loop that will still fire."""
    scheduled = loop()._scheduled  # type: ignore[attr-defined]
    return sum(1 for timer in scheduled if not timer.cancelled())


# ------------------------------------------------------------------ wake


async def test_a_wait_ends_with_a_wake() -> None:
    wake = Wake(loop())
    loop().call_later(3, wake.wake)
    with takes(3):
        await wake.wait()


async def test_a_wake_that_nobody_waits_for_is_forgotten() -> None:
    wake = Wake(loop())
    wake.wake()
    loop().call_later(3, wake.wake)
    with takes(3):
        await wake.wait()


async def test_a_second_wake_before_the_waiter_ran_does_nothing() -> None:
    wake = Wake(loop())
    loop().call_later(1, wake.wake)
    loop().call_later(1, wake.wake)
    await wake.wait()
    loop().call_later(3, wake.wake)
    with takes(3):
        await wake.wait()


async def test_an_interrupt_ends_the_wait_with_its_reason() -> None:
    wake = Wake(loop())
    loop().call_later(3, wake.interrupt, Why.CLIENT_LEFT)
    with takes(3), pytest.raises(Interrupt) as caught:
        await wake.wait()
    assert caught.value.why is Why.CLIENT_LEFT


async def test_an_interrupt_stays_until_it_is_reset_and_the_first_reason_counts() -> None:
    wake = Wake(loop())
    wake.check()
    wake.interrupt(Why.DEADLINE)
    wake.interrupt(Why.DRAINING)
    for _ in range(2):
        with takes(0), pytest.raises(Interrupt) as caught:
            await wake.wait()
        assert caught.value.why is Why.DEADLINE
    with pytest.raises(Interrupt):
        wake.check()
    wake.reset()
    wake.check()
    loop().call_later(3, wake.wake)
    with takes(3):
        await wake.wait()


async def test_a_wait_can_be_cancelled_and_begun_again() -> None:
    wake = Wake(loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await wake.wait()
    wake.wake()
    loop().call_later(2, wake.wake)
    with takes(2):
        await wake.wait()


def test_a_task_knows_it_as_a_future() -> None:
    with contextlib.closing(asyncio.new_event_loop()) as own:
        assert asyncio.isfuture(Wake(own))


class Waiting:
    """A task that waits again and again, and what it did."""

    def __init__(self, wake: Wake) -> None:
        self.wake = wake
        self.rounds = 0
        self.task = loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self.wake.wait()
            self.rounds += 1

    async def end(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def test_a_turn_lets_the_task_go_on_within_the_call() -> None:
    waiting = Waiting(Wake(loop()))
    seen: list[int] = []

    def callback() -> None:
        for _ in range(2):
            waiting.wake.turn()
            seen.append(waiting.rounds)

    await asyncio.sleep(1)
    loop().call_soon(callback)
    await asyncio.sleep(1)
    assert seen == [1, 2]
    await waiting.end()


async def test_a_wake_lets_the_task_go_on_in_its_turn() -> None:
    waiting = Waiting(Wake(loop()))
    seen: list[int] = []
    await asyncio.sleep(1)
    loop().call_soon(lambda: (waiting.wake.wake(), seen.append(waiting.rounds)))
    await asyncio.sleep(1)
    assert (seen, waiting.rounds) == ([0], 1)
    await waiting.end()


async def test_a_turn_by_another_task_waits_for_its_own() -> None:
    waiting = Waiting(Wake(loop()))
    await asyncio.sleep(1)
    waiting.wake.turn()
    assert waiting.rounds == 0
    await asyncio.sleep(1)
    assert waiting.rounds == 1
    await waiting.end()


@pytest.mark.parametrize("ends", [Wake.wake, Wake.turn])
async def test_the_task_goes_on_in_its_own_context(ends: Callable[[Wake], None]) -> None:
    whose = contextvars.ContextVar("whose", default="nobody's")
    wake = Wake(loop())

    async def waits() -> str:
        whose.set("the task's")
        await wake.wait()
        return whose.get()

    task = loop().create_task(waits())
    await asyncio.sleep(1)
    loop().call_soon(ends, wake)
    assert await task == "the task's"


@pytest.mark.parametrize("ends", [Wake.wake, Wake.turn])
async def test_a_callback_may_run_in_the_context_of_the_task(ends: Callable[[Wake], None]) -> None:
    wake, context = Wake(loop()), contextvars.copy_context()

    async def waits() -> None:
        await wake.wait()

    task = loop().create_task(waits(), context=context)
    await asyncio.sleep(1)
    loop().call_soon(ends, wake, context=context)
    with takes(0):
        await task


@pytest.mark.parametrize("ends", [Wake.wake, Wake.turn])
@pytest.mark.parametrize("first", ["cancel", "end"])
async def test_a_cancelled_wait_is_cancelled_whatever_ends_it(
    first: str, ends: Callable[[Wake], None]
) -> None:
    waiting = Waiting(Wake(loop()))
    await asyncio.sleep(1)
    if first == "cancel":
        waiting.task.cancel()
        ends(waiting.wake)
    else:
        ends(waiting.wake)
        waiting.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert waiting.rounds == 0
    waiting.wake.wake()  # nobody is there any more
    waiting.wake.turn()
    await asyncio.sleep(1)


async def test_a_cancellation_has_its_words() -> None:
    waiting = Waiting(Wake(loop()))
    await asyncio.sleep(1)
    waiting.task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await waiting.task


async def test_a_task_that_was_cancelled_before_it_waits_does_not_wait() -> None:
    wake = Wake(loop())

    async def waits() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await wake.wait()

    with takes(0), pytest.raises(asyncio.CancelledError):
        await loop().create_task(waits())


# ------------------------------------------------------------------ alarm


def alarm() -> tuple[Alarm, list[float]]:
    rung: list[float] = []
    return Alarm(loop(), lambda: rung.append(round(elapsed(), 3))), rung


async def test_an_alarm_rings_once_at_its_time() -> None:
    clock, rung = alarm()
    clock.set(loop().time() + 5)
    await asyncio.sleep(20)
    assert rung == [5.0]


@pytest.mark.parametrize(("first", "then"), [(5, 9), (9, 5)])
async def test_an_alarm_that_is_moved_rings_at_the_later_setting_alone(
    first: float, then: float
) -> None:
    clock, rung = alarm()
    clock.set(loop().time() + first)
    clock.set(loop().time() + then)
    await asyncio.sleep(20)
    assert rung == [float(then)]


async def test_an_alarm_in_the_past_rings_at_once() -> None:
    clock, rung = alarm()
    clock.set(loop().time() - 5)
    await asyncio.sleep(1)
    assert rung == [0.0]


async def test_a_cleared_alarm_does_not_ring_and_can_be_set_again() -> None:
    clock, rung = alarm()
    clock.set(loop().time() + 5)
    clock.clear()
    await asyncio.sleep(6)
    assert rung == []
    clock.set(loop().time() + 1)
    await asyncio.sleep(2)
    assert rung == [7.0]


async def test_moving_an_alarm_ahead_makes_no_new_timer() -> None:
    clock, _ = alarm()
    for seconds in range(1, 100):
        clock.set(loop().time() + seconds)
    assert timers() == 1
    clock.stop()


async def test_a_stopped_alarm_leaves_nothing_in_the_loop() -> None:
    clock, rung = alarm()
    clock.stop()
    clock.set(loop().time() + 5)
    clock.stop()
    assert timers() == 0
    await asyncio.sleep(9)
    assert rung == []


# ------------------------------------------------------------------ clock


async def test_a_clock_names_what_ran_out() -> None:
    clock = Clock(loop(), Wake(loop()))
    clock.arm("idle", clock.now() + 5)
    assert clock.expired is None
    with takes(5):
        await clock.wake.wait()
    assert clock.expired == "idle"


async def test_arming_again_forgets_what_ran_out() -> None:
    clock = Clock(loop(), Wake(loop()))
    clock.arm("connect", clock.now() + 1)
    await clock.wake.wait()
    clock.arm("answer", clock.now() + 4)
    assert clock.expired is None
    with takes(4):
        await clock.wake.wait()
    assert clock.expired == "answer"


async def test_who_waits_goes_on_within_the_ring() -> None:
    clock = Clock(loop(), Wake(loop()))
    seen: list[str | None] = []

    async def waits() -> None:
        await clock.wake.wait()
        seen.append(clock.expired)

    task = loop().create_task(waits())
    await asyncio.sleep(1)
    clock.arm("idle", clock.now() + 1)
    ring = clock.alarm.action
    clock.alarm.action = lambda: (ring(), seen.append("behind the ring"))
    await task
    assert seen == ["idle", "behind the ring"]


async def test_a_disarmed_clock_is_silent() -> None:
    clock = Clock(loop(), Wake(loop()))
    clock.arm("connect", clock.now() + 1)
    await clock.wake.wait()
    clock.arm("idle", clock.now() + 1)
    clock.disarm()
    loop().call_later(9, clock.wake.wake)
    with takes(9):
        await clock.wake.wait()
    assert clock.expired is None


@pytest.mark.parametrize("due", [5.0, 7.0, float("inf")])
async def test_the_deadline_interrupts_whatever_is_awaited(due: float) -> None:
    clock = Clock(loop(), Wake(loop()))
    clock.deadline = clock.now() + 5
    clock.arm("idle", clock.now() + due)
    with takes(5), pytest.raises(Interrupt) as caught:
        await clock.wake.wait()
    assert caught.value.why is Why.DEADLINE
    assert clock.expired is None
