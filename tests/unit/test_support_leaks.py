"""What a test leaves behind must be found, or the other tests prove less than they seem to."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.support.leaks import nothing_left

pytestmark = pytest.mark.virtual_time


async def test_a_task_that_goes_on_is_found() -> None:
    with pytest.raises(AssertionError, match=r"expected no task .*stray"):
        async with nothing_left():
            stray = asyncio.create_task(asyncio.sleep(600), name="stray")
    stray.cancel()


async def test_a_socket_that_stays_open_is_found() -> None:
    with pytest.raises(AssertionError, match=r"expected no new open socket .*socket:"):
        async with nothing_left():
            stray = socket.socket()
    stray.close()


async def test_what_ends_in_time_is_no_leak() -> None:
    async with nothing_left():
        task = asyncio.create_task(asyncio.sleep(0.01))
    assert task.done()


async def test_what_was_there_before_is_no_leak() -> None:
    before = asyncio.create_task(asyncio.sleep(600))
    with socket.socket():
        async with nothing_left():
            pass
    before.cancel()
