"""What systemd is told, and what it hands over."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relayd import sdnotify
from relayd.sdnotify import (
    ActivationError,
    Notifier,
    journal_stream,
    take_listeners,
    watchdog_period,
)


class Systemd:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(5)
        self.socket.bind(address)

    def said(self) -> str:
        return self.socket.recv(4096).decode()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    manager = Systemd(str(tmp_path / "notify"))
    yield manager
    manager.socket.close()


@pytest.fixture
def notifier(systemd: Systemd) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": systemd.socket.getsockname()})


# ---- messages


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (Notifier.ready, "READY=1"),
        (Notifier.stopping, "STOPPING=1"),
        (Notifier.watchdog, "WATCHDOG=1"),
        (lambda n: n.status("two providers up"), "STATUS=two providers up"),
        (lambda n: n.extend(2.5), "EXTEND_TIMEOUT_USEC=2500000"),
        (lambda n: n.mainpid(4711), "MAINPID=4711"),
    ],
)
def test_each_message_is_one_datagram(
    systemd: Systemd, notifier: Notifier, say: Callable[[Notifier], None], message: str
) -> None:
    say(notifier)
    assert systemd.said() == message


def test_a_reload_carries_the_moment_it_began(systemd: Systemd, notifier: Notifier) -> None:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    first, second = systemd.said().split("\n")
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert before <= int(second.split("=")[1]) <= after


def test_a_status_cannot_say_anything_but_a_status(systemd: Systemd, notifier: Notifier) -> None:
    notifier.status("fine\nREADY=1\r\n\tand \ud800 more")
    assert systemd.said() == "STATUS=fine READY=1 and ? more"


def test_a_status_is_one_short_line(systemd: Systemd, notifier: Notifier) -> None:
    notifier.status("x" * 5000)
    assert len(systemd.said()) == len("STATUS=") + sdnotify.STATUS_LIMIT


def test_an_abstract_address_is_understood() -> None:
    name = f"relayd-test-{os.getpid()}"
    manager = Systemd(f"\0{name}")
    Notifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
    assert manager.said() == "READY=1"
    manager.socket.close()


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_manager_nothing_is_sent(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", None)  # opening one would raise
    Notifier(environ).ready()


@pytest.mark.parametrize(
    ("address", "heard"),
    [("/run/notify", True), ("@notify", True), ("", False), ("vsock:2", False)],
)
def test_it_is_known_whether_somebody_hears(address: str, heard: bool) -> None:
    assert Notifier({"NOTIFY_SOCKET": address}).heard is heard


def test_a_manager_that_has_gone_is_ignored(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready()


def test_a_manager_that_does_not_read_costs_a_bounded_time(
    systemd: Systemd, notifier: Notifier
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                filler.sendto(b"X_FILL=1", systemd.socket.getsockname())
    began = time.monotonic()
    notifier.watchdog()
    assert time.monotonic() - began < 10 * sdnotify.SEND_SECONDS


# ---- the watchdog


def test_the_watchdog_is_fed_at_half_its_period() -> None:
    environ = {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "42"}
    assert watchdog_period(environ, 42) == 15.0


def test_a_watchdog_without_a_pid_is_everybody_s() -> None:
    assert watchdog_period({"WATCHDOG_USEC": "1000000"}, 42) == 0.5


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_PID": "42"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "43"},
        {"WATCHDOG_USEC": "0", "WATCHDOG_PID": "42"},
        {"WATCHDOG_USEC": "-5", "WATCHDOG_PID": "42"},
        {"WATCHDOG_USEC": "soon", "WATCHDOG_PID": "42"},
        {"WATCHDOG_USEC": "²", "WATCHDOG_PID": "42"},
        {"WATCHDOG_USEC": "9" * 5000, "WATCHDOG_PID": "42"},
    ],
)
def test_no_watchdog_of_ours_is_none(environ: dict[str, str]) -> None:
    assert watchdog_period(environ, 42) is None


# ---- socket activation


@pytest.fixture
def at() -> Iterator[Callable[[socket.socket], int]]:
    """Puts a copy of a socket where systemd would: inheritable, the first place that is free.

    `sdnotify.FIRST_FD` is 3, where the test runner has descriptors of its own.
    """
    taken: list[int] = []

    def place(sock: socket.socket) -> int:
        fd = os.dup2(sock.fileno(), 900 + len(taken), inheritable=True)
        taken.append(fd)
        return fd

    yield place
    for fd in taken:
        try:
            os.close(fd)
        except OSError:
            continue  # its new owner has closed it


@pytest.fixture
def first_is_900(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdnotify, "FIRST_FD", 900)


def variables(count: int, names: str = "") -> dict[str, str]:
    given = {"LISTEN_PID": "42", "LISTEN_FDS": str(count), "PATH": "/bin"}
    return given | ({"LISTEN_FDNAMES": names} if names else {})


@pytest.mark.usefixtures("first_is_900")
def test_sockets_come_with_their_names_in_order(
    at: Callable[[socket.socket], int], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "s"))
        unix.listen()
        at(tcp)
        at(unix)
        taken = take_listeners(variables(2, "http:local"), 42)
        assert [name for name, _ in taken] == ["http", "local"]
        assert [s.getsockname() for _, s in taken] == [tcp.getsockname(), unix.getsockname()]
        assert [s.family for _, s in taken] == [socket.AF_INET, socket.AF_UNIX]
        for _, sock in taken:
            sock.close()


@pytest.mark.usefixtures("first_is_900")
def test_sockets_arrive_blocking_and_inheritable_and_leave_neither(
    at: Callable[[socket.socket], int],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        fd = at(tcp)
        assert os.get_inheritable(fd)
        assert os.get_blocking(fd)
        ((_, sock),) = take_listeners(variables(1), 42)
        assert not os.get_inheritable(fd)
        assert not os.get_blocking(fd)
        sock.close()


@pytest.mark.usefixtures("first_is_900")
@pytest.mark.parametrize(("names", "expected"), [("", "unknown"), (":b", "unknown"), ("a", "a")])
def test_a_socket_without_a_name_is_unknown(
    at: Callable[[socket.socket], int], names: str, expected: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        at(tcp)
        ((name, sock),) = take_listeners(variables(1, names), 42)
        assert name == expected
        sock.close()


@pytest.mark.usefixtures("first_is_900")
@pytest.mark.parametrize("pid", ["42", "43"])
def test_the_variables_are_gone_afterwards_whoever_they_were_for(
    at: Callable[[socket.socket], int], pid: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        at(tcp)
        environ = {**variables(1, "a"), "LISTEN_PID": pid, "LISTEN_PIDFDID": "7"}
        for _, sock in take_listeners(environ, 42):
            sock.close()
        assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "change",
    [{"LISTEN_PID": "43"}, {"LISTEN_PID": ""}, {"LISTEN_FDS": "0"}, {"LISTEN_FDS": "x"}],
)
def test_nothing_is_taken_that_is_not_for_us(change: dict[str, str]) -> None:
    assert take_listeners(variables(1) | change, 42) == []


def test_nothing_is_taken_without_systemd() -> None:
    assert take_listeners({}, 42) == []


@pytest.mark.usefixtures("first_is_900")
def test_a_socket_that_does_not_listen_is_refused_by_name(
    at: Callable[[socket.socket], int],
) -> None:
    with socket.socket() as tcp, socket.create_server(("127.0.0.1", 0)) as good:
        at(good)
        at(tcp)
        with pytest.raises(ActivationError, match=r'descriptor 901 \("b"\): expected a listening'):
            take_listeners(variables(2, "a:b"), 42)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(900)  # the good one was not kept either


@pytest.mark.usefixtures("first_is_900")
def test_a_datagram_socket_is_refused(at: Callable[[socket.socket], int]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        at(udp)
        with pytest.raises(ActivationError, match="got another socket"):
            take_listeners(variables(1), 42)


@pytest.mark.usefixtures("first_is_900")
def test_a_descriptor_that_is_no_socket_or_not_there_is_refused() -> None:
    with pytest.raises(ActivationError, match=r"descriptor 900 .* got no socket"):
        take_listeners(variables(10**9), 42)


# ---- the journal


def test_the_journal_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "f").open("w") as file, (tmp_path / "g").open("w") as other:
        status = os.fstat(file.fileno())
        environ = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert journal_stream(environ, file.fileno())
        assert not journal_stream(environ, other.fileno())
        assert not journal_stream({}, file.fileno())


def test_a_closed_descriptor_is_no_journal() -> None:
    assert not journal_stream({"JOURNAL_STREAM": "1:2"}, 999)
