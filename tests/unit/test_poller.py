"""The poller does what the standard library's selector does, as far as asyncio asks."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, EpollSelector

import pytest

from relayd.poller import Poller
from relayd.resources import plain_loop

Pair = tuple[socket.socket, socket.socket]
BOTH = EVENT_READ | EVENT_WRITE


@pytest.fixture(params=[Poller, EpollSelector])
def selector(request: pytest.FixtureRequest) -> Iterator[BaseSelector]:
    made: BaseSelector = request.param()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def told(selector: BaseSelector) -> list[tuple[int, int, object]]:
    return [(key.fd, mask & key.events, key.data) for key, mask in selector.select(0)]


def test_nothing_watched_is_nothing_told(selector: BaseSelector) -> None:
    assert selector.select(0) == []
    assert selector.select(-1) == []


def test_what_can_be_read_and_written_is_told(selector: BaseSelector, pair: Pair) -> None:
    one, other = pair
    fd = one.fileno()
    assert selector.register(fd, EVENT_READ, "data") == (fd, fd, EVENT_READ, "data")
    assert told(selector) == []
    other.send(b"x")
    assert told(selector) == [(fd, EVENT_READ, "data")]
    selector.modify(fd, BOTH, "more")
    assert told(selector) == [(fd, BOTH, "more")]
    selector.modify(fd, BOTH, "the same events")
    assert told(selector) == [(fd, BOTH, "the same events")]
    selector.modify(fd, EVENT_WRITE, None)
    assert told(selector) == [(fd, EVENT_WRITE, None)]
    assert selector.unregister(fd).fd == fd
    assert selector.select(0) == []


def test_an_end_is_told_to_readers_and_writers(selector: BaseSelector, pair: Pair) -> None:
    one, other = pair
    selector.register(one, BOTH)
    other.close()
    assert told(selector) == [(one.fileno(), BOTH, None)]


def test_a_reset_is_told_to_a_reader_alone(selector: BaseSelector) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with one, other:
            selector.register(one.fileno(), EVENT_READ)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            other.close()
            ((key, mask),) = selector.select(1)
            assert (key.fd, mask & key.events) == (one.fileno(), EVENT_READ)


def test_faults_of_the_caller_are_key_errors(selector: BaseSelector, pair: Pair) -> None:
    fd = pair[0].fileno()
    with pytest.raises(KeyError):
        selector.get_key(fd)
    with pytest.raises(KeyError):
        selector.unregister(fd)
    with pytest.raises(KeyError):
        selector.modify(fd, EVENT_READ)
    key = selector.register(fd, EVENT_READ)
    assert selector.get_key(fd) == selector.get_key(pair[0]) == key
    assert list(selector.get_map()) == [fd]
    with pytest.raises(KeyError):
        selector.register(fd, EVENT_READ)


def test_a_descriptor_that_was_closed_can_be_taken_out(selector: BaseSelector) -> None:
    one, other = socket.socketpair()
    with other:
        fd = one.fileno()
        selector.register(fd, EVENT_READ)
        one.close()
        assert selector.unregister(fd).fd == fd
        assert selector.select(0) == []


def test_one_that_lives_on_elsewhere_is_not_told(selector: BaseSelector) -> None:
    one, other = socket.socketpair()
    with other:
        kept = os.dup(one.fileno())
        fd = one.fileno()
        selector.register(fd, EVENT_READ)
        one.close()  # epoll goes by the open file, which `kept` keeps open
        selector.unregister(fd)
        other.send(b"x")
        assert selector.select(0) == []
        os.close(kept)


def test_it_waits_as_long_as_it_is_told(selector: BaseSelector, pair: Pair) -> None:
    selector.register(pair[0].fileno(), EVENT_READ)
    began = time.monotonic()
    assert selector.select(0.0101) == []
    assert time.monotonic() - began >= 0.0101
    pair[1].send(b"x")
    assert len(selector.select()) == 1


def test_a_loop_runs_on_it(pair: Pair) -> None:
    async def heard() -> bytes:
        reader, writer = await asyncio.open_connection(sock=pair[0])
        pair[1].sendall(b"over")
        pair[1].shutdown(socket.SHUT_WR)
        found = await reader.read()
        writer.close()
        return found

    with asyncio.Runner(loop_factory=plain_loop) as runner:
        assert runner.run(heard()) == b"over"


def test_without_epoll_asyncio_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("select.epoll")
    loop = plain_loop()
    loop.close()
    assert not isinstance(vars(loop)["_selector"], Poller)
