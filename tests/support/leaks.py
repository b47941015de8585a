"""What a block of code may not leave behind: tasks, sockets, transports that nobody closed.

Looks at this process alone (`/proc/self/fd`) and at the running loop. Knows nothing of relayd.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .loop import waiting_places

SETTLE = 0.05
"""Seconds of the loop's clock in which what the block closed may finish closing."""


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """After the block there are the tasks and the sockets that were there before it."""
    tasks, sockets = asyncio.all_tasks(), open_sockets()
    gc.freeze()  # what is older is none of its making: looking at it costs more than the test
    yield
    await asyncio.sleep(SETTLE)
    tasks |= {task for task in [asyncio.current_task()] if task}
    left = waiting_places(asyncio.all_tasks() - tasks)
    gc.collect()  # an unclosed transport warns when it is collected, and a warning is an error
    assert not left, f"expected no task after the test, got {left}"
    now = open_sockets()
    # uvloop makes its own two anew each time it runs
    more = now - sockets if len(now) > len(sockets) else ()
    assert not more, f"expected no new open socket after the test, got {sorted(more)}"


def open_sockets() -> set[str]:
    """The sockets of this process, by the names the kernel gives them."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
        if name.startswith("socket:"):
            found.add(f"{name} as {descriptor}")
    return found
