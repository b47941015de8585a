"""Several processes on one store: the cap holds, whoever dies."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relayd.quota import Turn
from tests.contract.conftest import START, Place
from tests.support.real import PROJECT

CAP = 50
PROCESSES = 4


@asynccontextmanager
async def spenders(place: Place, number: int) -> AsyncIterator[list[Process]]:
    """Processes that are ready to ask for `number` turns each."""
    module = [sys.executable, "-m", "tests.contract.spender"]
    command = [*module, place.url, place.prefix, str(number), str(CAP)]
    processes = [
        await asyncio.create_subprocess_exec(*command, str(n), stdin=PIPE, stdout=PIPE, cwd=PROJECT)
        for n in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert await line(process) == "ready"
        yield processes
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


def go(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")


async def answers(process: Process) -> list[str]:
    """What it says up to "done", or up to its death."""
    found = []
    while (said := await line(process)) not in ("done", ""):
        found.append(said)
    return found


async def refused_at(place: Place, wall: float) -> int:
    """The turns that count at that time, when no further one is granted."""
    for n in range(CAP + 1):
        turn = Turn(f"last{wall}:{n}", "2026-03-01", "ann", CAP, 0, wall, 600.0)
        grant = await place.store.reserve(turn)
        if not grant.granted:
            return grant.used
    raise AssertionError("expected a refusal within the cap")


async def test_of_200_requests_in_four_processes_exactly_50_pass(shared: Place) -> None:
    async with spenders(shared, 200 // PROCESSES) as processes:
        for process in processes:
            go(process)
        said = [word for process in processes for word in await answers(process)]
        assert (said.count("granted"), said.count("refused")) == (CAP, 150)
        for process in processes:
            go(process)
            assert await line(process) == "charged"
    shared.advance(3600)
    assert await refused_at(shared, shared.wall) == CAP


async def test_a_process_killed_in_the_middle_never_lets_the_sum_exceed_the_cap(
    shared: Place,
) -> None:
    async with spenders(shared, 200 // PROCESSES) as processes:
        victim, *others = processes
        for process in processes:
            go(process)
        first = await line(victim)
        victim.kill()
        said = [first, *await answers(victim)]
        for process in others:
            said += await answers(process)
        assert said.count("granted") <= CAP
        assert await refused_at(shared, START) == CAP


async def test_what_a_killed_process_held_is_free_when_its_lease_ends(shared: Place) -> None:
    async with spenders(shared, 200 // PROCESSES) as processes:
        victim = processes[0]
        go(victim)
        assert (await answers(victim)).count("granted") == CAP
        victim.kill()
        await victim.wait()
        assert await refused_at(shared, shared.wall) == CAP
        shared.advance(600)
        turn = Turn("after", "2026-03-01", "ann", CAP, 0, shared.wall, 600.0)
        assert (await shared.store.reserve(turn)).used == 1
