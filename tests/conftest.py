"""What holds for every test: which event loop it gets, and what it may leave behind.

Tests under `integration/` and `cases/` run on the jumping loop (virtual time) and may leave no task
and no socket. All others run on the ordinary loop. A marker (`virtual_time`, `real_time`) overrides
the folder; `each_loop` adds those of a daemon, in real time. Every test has a real-time limit.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from relayd.resources import plain_loop, uv_loop
from relayd.stores.sqlite import SqliteStore

gc.disable()  # until everything is collected: nothing of that is garbage

pytest.register_assert_rewrite("tests.support")

from tests.support import leaks, real, service  # noqa: E402  # after the rewrite is registered
from tests.support import loop as loops  # noqa: E402

TESTS = Path(__file__).parent
VIRTUAL = {"integration", "cases"}
DAEMONS = {"asyncio": plain_loop, "uvloop": uv_loop}
"""The event loops that a daemon may have."""

STARTERS = (real, real.daemon, real.relayd, service.config, service.generations)
"""Who imports one of these starts real daemons."""

TEST_CAP = 60
"""Real time (s) of one test outside the jumping loop, which has its own, shorter cap."""

# A busy machine is no fault of the code: examples have no deadline, the test as a whole has one.
hypothesis.settings.register_profile(
    "wandering",  # new examples each time: pytest tests/property --hypothesis-profile=wandering
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
# The same examples each time, so that a red test is red for whoever runs it next.
hypothesis.settings.register_profile(
    "relayd", hypothesis.settings.get_profile("wandering"), derandomize=True, database=None
)
hypothesis.settings.load_profile("relayd")


def is_virtual(item: pytest.Item) -> bool:
    """Does this test run in virtual time?"""
    if item.get_closest_marker("virtual_time"):
        return True
    folder = item.path.relative_to(TESTS).parts[0]
    return folder in VIRTUAL and not item.get_closest_marker("real_time")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    each = DAEMONS if item.get_closest_marker("each_loop") else {}
    if is_virtual(item):
        return {**loops.virtual_factories(), **each}
    return each or loops.real_factories()


def pytest_itemcollected(item: pytest.Item) -> None:
    module = item.getparent(pytest.Module)
    imported = vars(module.obj).values() if module else ()
    by_name = "loop" in getattr(getattr(item, "callspec", None), "params", ())
    if not by_name and any(value is starter for value in imported for starter in STARTERS):
        item.add_marker("daemon")


def pytest_collection_finish() -> None:
    # What exists by now stays: later collections look only at what a test made.
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End a test that hangs. The alarm repeats, since a task may swallow the first one."""

    def alarm(*_: object) -> None:
        pytest.fail(f"{item.name}: expected an end within {TEST_CAP} s")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, TEST_CAP, 1)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True, scope="session")
def a_store_in_a_file_takes_no_virtual_time() -> Iterator[None]:
    """The jumping loop counts what is asked of a store's thread, however slow the disk is."""
    ask = SqliteStore._ask

    def counted(self: SqliteStore, act: Callable[[Any], Any]) -> asyncio.Future[Any]:
        done, running = ask(self, act), asyncio.get_running_loop()
        return running.count(done) if isinstance(running, loops.JumpingLoop) else done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "_ask", counted)
        patch.setattr(loops.JumpingLoop, "counted", ("asyncio_", "relayd-store"))
        yield


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> None:
    """What runs in virtual time, also or only, ends with the tasks and sockets it began with."""
    function = getattr(request.node, "function", None)
    if inspect.iscoroutinefunction(function) and is_virtual(request.node):
        request.getfixturevalue("leaves_no_task_or_socket")


@pytest.fixture
async def leaves_no_task_or_socket() -> AsyncIterator[None]:
    async with leaks.nothing_left():
        yield


@pytest.fixture
def free_port() -> int:
    """A TCP port on loopback that nobody listens on at the moment."""
    return real.free_port()
