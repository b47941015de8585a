"""The standard streams of a command: there from the start, and what is lost is told.

Every command writes its answer with `write`; the daemon's log has a way of its own (`logsink`).
"""

from __future__ import annotations

import io
import os
import sys

from .config.credentials import reason


class Unwritable(Exception):
    """Standard output takes no more; the text says why."""


def open_missing() -> None:
    """Put /dev/null where a descriptor from 0 to 2 is closed: the first socket would be it.

    What the encoding of standard output does not have becomes a question mark.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free one: `fd`
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def write(data: str | bytes) -> None:
    """Put it on standard output at once. Raises `Unwritable`."""
    try:
        if isinstance(data, bytes):
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data)
        sys.stdout.flush()
    except OSError as exc:
        # What Python would flush at its end must not fail again.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        raise Unwritable(f"stdout: cannot be written: {reason(exc)}") from exc
