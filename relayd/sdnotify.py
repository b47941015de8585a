"""systemd's side of a daemon: what it is told, and the sockets and variables it hands over.

Everything here is a no-op or empty without systemd. Protocols: sd_notify(3), sd_listen_fds(3),
sd_watchdog_enabled(3), systemd.exec(5). Does not know when relayd is ready or what it serves.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping, MutableMapping

FIRST_FD = 3
"""Where handed-over descriptors start: SD_LISTEN_FDS_START."""
SEND_SECONDS = 0.25
"""How long one message may wait for a busy service manager; more would stop the event loop."""
STATUS_LIMIT = 256
"""Characters of a STATUS line: one line of `systemctl status`."""
LISTEN_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")
FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)


class ActivationError(Exception):
    """A descriptor handed over by systemd that nobody can be accepted from."""


class Notifier:
    """Tells the service manager named by NOTIFY_SOCKET; errors are ignored, as sd_notify(3) asks.

    With `NotifyAccess=main` only the main process is heard.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        # `@` stands for the abstract namespace; vsock: and whatever else comes is not ours.
        self._address = "\0" + name[1:] if name[:1] == "@" else name if name[:1] == "/" else ""

    @property
    def heard(self) -> bool:
        """Whether there is a service manager to tell."""
        return bool(self._address)

    def ready(self) -> None:
        """Start-up or a reload is complete."""
        self._send("READY=1")

    def reloading(self) -> None:
        """A reload began; `ready` must follow, whether it worked or not."""
        # Type=notify-reload compares this with the moment it sent its signal.
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={microseconds}")

    def stopping(self) -> None:
        """The drain began."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`; line ends become spaces."""
        self._send("STATUS=" + " ".join(text.split())[:STATUS_LIMIT])

    def watchdog(self) -> None:
        """The event loop turns: to be sent from it, every `watchdog_period` seconds."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """The start, the reload or the stop needs so much longer, from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    def mainpid(self, pid: int) -> None:
        """`pid` takes over. It must be a child of the service manager, not of this process."""
        self._send(f"MAINPID={pid}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.settimeout(SEND_SECONDS)
            sock.sendto(message.encode(errors="replace"), self._address)


def watchdog_period(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds between two calls of `Notifier.watchdog`, or None if none are expected from `pid`.

    Half of WATCHDOG_USEC, as sd_watchdog_enabled(3) recommends.
    """
    usec = _natural(environ.get("WATCHDOG_USEC"))
    if not usec or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return usec / 2e6


def take_listeners(environ: MutableMapping[str, str], pid: int) -> list[tuple[str, socket.socket]]:
    """The listening sockets handed over to `pid`: (FileDescriptorName, socket), in unit order.

    Takes the variables out of `environ`, so that no child believes them. The sockets arrive
    blocking and inheritable and leave here neither. Raises ActivationError.
    """
    values = {name: environ.pop(name, "") for name in LISTEN_VARIABLES}
    count = _natural(values["LISTEN_FDS"])
    if not count or values["LISTEN_PID"] != str(pid):
        return []
    names = values["LISTEN_FDNAMES"].split(":")
    taken: list[tuple[str, socket.socket]] = []
    try:
        for index in range(count):
            name = names[index] if index < len(names) and names[index] else "unknown"
            taken.append((name, _take(FIRST_FD + index, name)))
    except ActivationError:
        for _, sock in taken:
            sock.close()
        raise
    return taken


def _take(fd: int, name: str) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise ActivationError(_complaint(fd, name, "no socket")) from error
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family not in FAMILIES or sock.type != socket.SOCK_STREAM or not listens:
        sock.close()
        raise ActivationError(_complaint(fd, name, "another socket"))
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _complaint(fd: int, name: str, got: str) -> str:
    return (
        f'LISTEN_FDS: descriptor {fd} ("{name}"): expected a listening stream socket, got {got}: '
        "use ListenStream= and Accept=no in the socket unit"
    )


def journal_stream(environ: Mapping[str, str], fd: int) -> bool:
    """Whether what is written to `fd` goes to the journal, which reads `<N>` prefixes."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    # The variable is inherited further than the descriptor: only the pair proves it.
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _natural(text: str | None) -> int:
    """A decimal number of at most 64 bits; 0 for anything else."""
    return int(text) if text and len(text) < 20 and text.isascii() and text.isdigit() else 0
