"""The parent of the next generation until it is ready. Run as a script by a fresh interpreter:

    python -I -S launcher.py LEASH CHANNEL LISTENERS COMMAND...

A service manager hears a new main process only if it is its own child. So the old generation, a
process with threads that must not fork, starts this one; this one forks the next generation and
leaves, and the kernel hands that to the manager. LEASH is a socket: its end means "leave",
a byte means "kill it first". LISTENERS are descriptors with commas between, which the
next generation finds from 3 on, with CHANNEL behind them. The exit code is 0 after a release, else
that of the next generation, in the shell's manner.

Knows nothing of relayd and imports nothing of it: the file on disk may already be a newer version.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
from collections.abc import Sequence

FIRST_FD = 3
CANNOT_EXECUTE = 127


def main(leash: int, channel: int, listeners: Sequence[int], command: list[str]) -> int:
    """Start `command` and stay until it ends or is released; the exit code."""
    old = os.getppid()
    child = os.fork()
    if child == 0:
        become(old, (*listeners, channel), command)
    for fd in (*listeners, channel):
        os.close(fd)
    pidfd = os.pidfd_open(child)
    events = select.poll()  # the old one's descriptors may be beyond what select() takes
    events.register(leash, select.POLLIN)
    events.register(pidfd, select.POLLIN)
    if pidfd not in dict(events.poll()):
        if not os.read(leash, 1):
            return 0
        os.kill(child, 9)
    return shown(os.waitpid(child, 0)[1])


def become(old: int, given: Sequence[int], command: list[str]) -> None:
    """Replace this process by `command`, with the descriptors and variables in place."""
    try:
        # First out of the way: the place of one may be where another one is now.
        beyond = FIRST_FD + len(given)
        moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, beyond) for fd in given]
        for place, fd in enumerate(moved, FIRST_FD):
            os.dup2(fd, place)
        os.closerange(beyond, os.sysconf("SC_OPEN_MAX"))
        own = str(os.getpid())
        environ = {**os.environ, "LISTEN_PID": own}
        if environ.get("WATCHDOG_PID") == str(old):
            environ["WATCHDOG_PID"] = own
        os.execve(command[0], command, environ)
    except OSError as error:
        sys.stderr.write(f"relayd: cannot start {command[0]}: {error.strerror}\n")
    finally:
        os._exit(CANNOT_EXECUTE)


def shown(status: int) -> int:
    """A wait status as a shell shows it: 128 and the signal's number for a violent end."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    _, LEASH, CHANNEL, LISTENERS, *COMMAND = sys.argv
    sys.exit(main(int(LEASH), int(CHANNEL), [int(fd) for fd in LISTENERS.split(",")], COMMAND))
