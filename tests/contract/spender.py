"""A process that takes turns from a store: `-m tests.contract.spender URL PREFIX N CAP NAME`.

Prints "ready", waits for a line on standard input, then asks for N turns at once and prints
"granted" or "refused" for each as soon as it knows. A second line lets it charge what it holds.
"""

from __future__ import annotations

import asyncio
import sys

from relayd.quota import Turn
from relayd.stores import Settlement, Store, open_store
from tests.contract.conftest import PATIENCE, START


async def take(store: Store, turn: Turn) -> Turn | None:
    granted = (await store.reserve(turn)).granted
    print("granted" if granted else "refused", flush=True)
    return turn if granted else None


async def spend(url: str, prefix: str, number: int, cap: int) -> None:
    store = open_store(url, prefix=prefix, timeout=PATIENCE)
    await store.read(0.0)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    me = sys.argv[5]
    turns = [Turn(f"{me}:{n}", "2026-03-01", "ann", cap, 0, START, 600.0) for n in range(number)]
    held = await asyncio.gather(*(take(store, turn) for turn in turns))
    print("done", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.settle([Settlement(turn, True) for turn in held if turn is not None])
    await store.close()
    print("charged", flush=True)


if __name__ == "__main__":
    asyncio.run(spend(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
