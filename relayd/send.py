"""`relayd send`: one request through the chain, without a server.

The answer goes to stdout as it arrives; the route trace and log lines go to stderr. Nothing is
counted and no shared state is touched, so it can be tried beside a running daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import errors
from .accesslog import Log
from .config import Config, Format
from .embed import Relay
from .masking import Masker
from .net import reason
from .record import Attempt, Record, route_trace
from .standard import Unwritable, write
from .surfaces import Surface

EX_FAILED = 1
EX_USAGE = 2


def send(config: Config, path: str, surface: str, user: str | None, trace: str | None) -> int:
    """Send the body in the file `path` (`-`: stdin); the exit code.

    0 for a complete 2xx answer. `trace` names a file for the route trace.
    """
    if surface not in {each.value for each in Surface}:
        known = ", ".join(each.value for each in Surface)
        _say(f"relayd: --surface: expected one of {known}, got {surface}")
        return EX_USAGE
    try:
        body = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as exc:
        _say(f"relayd: {path}: cannot be read: {reason(exc)}")
        return EX_FAILED
    if trace is not None and not _tell("", trace):
        return EX_FAILED  # before anything is paid for
    journal = _Journal(config)
    done = False
    try:
        done = asyncio.run(_send(alone(config), journal, body, Surface(surface), user))
    except Unwritable as exc:
        _say(f"relayd: {exc}")
    told = _tell(json.dumps(journal.trace()) + "\n", trace)
    return 0 if done and told and journal.complete else EX_FAILED


def alone(config: Config) -> Config:
    """The configuration without what is shared: no turns are counted, no store is asked."""
    return replace(
        config,
        store=replace(config.store, url="memory:"),
        quota=replace(config.quota, daily_turns=0),
    )


async def _send(
    config: Config, journal: _Journal, body: bytes, surface: Surface, user: str | None
) -> bool:
    """Whether an answer came to its end."""
    async with Relay(config, journal=journal) as relay:
        try:
            reply = await relay.open(body, user=user, surface=surface)
        except errors.RelayError as error:
            journal.refused(error)
            write(errors.body(error, surface) + b"\n")
            return False
        async with reply:
            try:
                async for chunk in reply:
                    write(chunk)
            except errors.UpstreamError:
                return False  # it broke off; the journal says so
    return True


def _tell(line: str, file: str | None) -> bool:
    if file is None:
        sys.stderr.write(line)
        return True
    try:
        Path(file).write_text(line, encoding="ascii")
    except OSError as exc:
        _say(f"relayd: {file}: cannot be written: {reason(exc)}")
        return False
    return True


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(line + "\n")


class _Journal:
    """Log lines from `warning` up on stderr; keeps the record for the trace."""

    def __init__(self, config: Config) -> None:
        self.record: Record | None = None
        self._status = 0
        as_text = config.log.format is Format.TEXT
        if config.log.format is Format.AUTO:
            as_text = sys.stderr.isatty()
        self._log = Log(
            lambda line: _say(line.decode().rstrip("\n")),
            level="warning",
            format="text" if as_text else "json",
            priorities=False,
            mask=Masker(config.secrets),
            wall=time.time,
        )

    @property
    def complete(self) -> bool:
        """A 2xx answer came to its end."""
        record = self.record
        return record is not None and 200 <= record.status < 300 and record.end_reason == "complete"

    def refused(self, error: errors.RelayError) -> None:
        """No answer, for this reason."""
        self._status = error.status

    def trace(self) -> dict[str, Any]:
        """The route trace; of a request that was never sent, its status alone."""
        if self.record is not None:
            return route_trace(self.record)
        return {"status": self._status, "attempts": [], "provider": None, "duration_ms": 0.0}

    def exchange(self, record: Record) -> None:
        """The exchange has ended; an answer that broke off is told, since its attempt was good."""
        self.record = record
        if record.commit is not None and record.end_reason not in ("complete", "client_left"):
            text = f"the answer broke off: {record.end_reason}"
            self._log.event("warning", "broke_off", text, id=record.id, provider=record.provider)

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None:
        """See `engine.Journal`."""
        self._log.attempt_failed(record, attempt, detail)

    def event(
        self, level: str, event: str, message: str, **fields: str | int | float | bool | None
    ) -> None:
        """See `engine.Journal`."""
        self._log.event(level, event, message, **fields)
