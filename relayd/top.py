"""`relayd top`: the live picture of a running daemon in the terminal, from its admin listener.

Reads the same stream of snapshots as the page, and redraws in place; with `--once`, or where
standard output is no terminal, shows one snapshot and ends. Does not know how a snapshot is made.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from enum import StrEnum

from .config import Config, Listen
from .events import EventReader
from .fetch import NoAnswer, closing, knock, payloads, place_of, read_head
from .net import reason
from .standard import write
from .status import FailedOverView, OpenView, ProviderView, Snapshot, TriedView, UserView
from .statuspage import clock, duration, standing, wait

CONNECT = 2.0
"""Seconds for the connection and the head of the answer."""

SILENCE = 10.0
"""Seconds without a snapshot after which the daemon counts as gone; one comes each second."""

MAX_EVENT = 4 * 2**20
"""Bytes of one event: a hundred exchanges of sixteen attempts are a tenth of it."""

SPARKS = "▁▂▃▄▅▆▇█"
FAILED = "×"
WIDTH = 200
"""Columns where there is no terminal."""
BESIDE = 85
"""Columns of a provider's row beside its sparks."""

ENTER = "\x1b[?1049h\x1b[?25l"
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
REST = "\x1b[J"
LINE = "\x1b[K\r\n"


class Paint(StrEnum):
    """How a piece of text is shown; the value is the escape code's number."""

    PLAIN = "0"
    BOLD = "1"
    QUIET = "2"
    GOOD = "32"
    WARN = "33"
    BAD = "31"


Piece = tuple[str, Paint]
Row = list[Piece]

KINDS = {"good": Paint.GOOD, "warn": Paint.WARN, "bad": Paint.BAD}


class Unreachable(Exception):
    """No daemon answers; the text says where, and what to do."""


def top(asked: str | Config, once: bool) -> int:
    """Show the daemon at a URL, or of a configuration, until it is interrupted; the exit code."""
    live = sys.stdout.isatty() and not once
    try:
        asyncio.run(_show(*_place(asked), live))
    except (Unreachable, ValueError) as exc:
        sys.stderr.write(f"relayd: {exc}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 0
    return 0


def _place(asked: str | Config) -> tuple[Listen, bool]:
    """Where to ask, and whether TLS is spoken there."""
    if isinstance(asked, str):
        return place_of(asked)
    if not asked.admin.listen:
        raise Unreachable(
            f"{asked.source}: admin.listen: empty: name an address there, such as "
            '"127.0.0.1:9090", and start the daemon again; '
            "or name one that systemd listens on with --url"
        )
    return asked.admin.listen[0], False


async def _show(listen: Listen, tls: bool, live: bool) -> None:
    colours = live and "NO_COLOR" not in os.environ
    entered = False
    if live and (task := asyncio.current_task()):
        for number in (signal.SIGTERM, signal.SIGHUP):  # no less an end than Ctrl-C
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        async with aclosing(snapshots(listen, tls)) as stream:
            async for snapshot in stream:
                if not live:
                    write(whole(snapshot))
                    return
                write(("" if entered else ENTER) + screen(snapshot, colours))
                entered = True
    finally:
        if entered:
            write(LEAVE)


# The stream.


async def snapshots(listen: Listen, tls: bool) -> AsyncGenerator[Snapshot, None]:
    """Each snapshot as it comes. Raises `Unreachable` at the latest when the stream ends."""
    where = str(listen)
    try:
        async with asyncio.timeout(CONNECT) as limit:
            reader, writer = await knock(listen, tls)
            async with closing(writer):
                writer.write(REQUEST)
                buffer = bytearray()
                head = await read_head(reader, buffer)
                if head.status != 200:
                    raise Unreachable(f"{where} answers with status {head.status}")
                stream = EventReader(MAX_EVENT)
                async for payload in payloads(reader, head, buffer):
                    limit.reschedule(asyncio.get_running_loop().time() + SILENCE)
                    for snapshot in snapshots_in(stream, payload):
                        yield snapshot
    except TimeoutError:
        raise Unreachable(f"no answer from {where}: is the daemon stuck?") from None
    except OSError as exc:
        words = f"no answer from {where}: {reason(exc)}: is the daemon running?"
        raise Unreachable(words) from exc
    except NoAnswer as exc:
        raise Unreachable(f"no answer from {where}: {exc}") from exc
    raise Unreachable(f"{where}: the daemon has ended the stream")


REQUEST = b"GET /status/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def snapshots_in(stream: EventReader, data: bytes) -> Iterable[Snapshot]:
    """Those that are whole with these bytes; the events with a name are a browser's."""
    for event in stream.feed(data):
        if not event.name:
            yield json.loads(event.data)
    if stream.overran:
        raise NoAnswer(f"an event of more than {MAX_EVENT} bytes")


# The picture.


def whole(snapshot: Snapshot) -> str:
    """Every row, without colours."""
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    return "".join(f"{paint(row, width, False)}\n" for row in picture(snapshot, width))


def screen(snapshot: Snapshot, colours: bool) -> str:
    """One redraw: as many rows as the terminal has."""
    width, height = shutil.get_terminal_size()
    rows = picture(snapshot, width)[:height]
    return HOME + LINE.join(paint(row, width, colours) for row in rows) + "\x1b[K" + REST


def paint(row: Row, width: int, colours: bool) -> str:
    """A row as text, at most `width` characters that show."""
    out = []
    for text, how in row:
        shown = text[:width]
        width -= len(shown)
        plain = not (colours and shown) or how is Paint.PLAIN
        out.append(shown if plain else f"\x1b[{how.value}m{shown}\x1b[0m")
    return "".join(out).rstrip() if not colours else "".join(out)


def picture(snapshot: Snapshot, width: int) -> list[Row]:
    """All rows: what is true now, then what was."""
    rows = [_title(snapshot), []]
    rows += _notices(snapshot)
    rows += _block("PROVIDERS", (_provider(each, width) for each in snapshot["providers"]))
    rows += _block("OPEN", map(_open_row, snapshot["open"]), f"{snapshot['exchanges']} exchanges")
    rows += _block("FAILED OVER", map(_failed_over, snapshot["failed_over"]))
    rows += _block("TURNS TODAY", map(_user, snapshot["users"]))
    return rows


def _title(snapshot: Snapshot) -> Row:
    store = snapshot["store"]
    return [
        ("relayd ", Paint.BOLD),
        (snapshot["version"], Paint.QUIET),
        (
            f"   up {duration(snapshot['uptime'])}   {snapshot['exchanges']} exchanges, "
            f"{snapshot['streams']} streams, {snapshot['connections']} connections   "
            f"store {store['kind']}   {clock(snapshot['at'])} UTC",
            Paint.PLAIN,
        ),
    ]


def _notices(snapshot: Snapshot) -> list[Row]:
    rows: list[Row] = []
    if snapshot["draining"]:
        rows += [[("draining: open exchanges may finish", Paint.WARN)], []]
    if not snapshot["store"]["available"]:
        rows += [[(f"the {snapshot['store']['kind']} store is away", Paint.BAD)], []]
    if (problem := snapshot["config"]["problem"]) is not None:
        rows += [[(f"the last reload was rejected: {problem}", Paint.BAD)], []]
    return rows


def _block(title: str, rows: Iterable[Row], note: str = "") -> list[Row]:
    found = list(rows)
    if not found:
        return []
    return [[(title, Paint.BOLD), (f"  {note}", Paint.QUIET)], *found, []]


def _provider(provider: ProviderView, width: int) -> Row:
    kind, words = standing(provider)
    failures = provider["failures"]
    return [
        (f"{provider['name']:<16.16} ", Paint.PLAIN),
        (f"{words:<24}", KINDS[kind]),
        (f"{wait(provider['wait']):>8}", Paint.PLAIN),
        (f"{provider['answers']:>8} ok", Paint.PLAIN),
        (f"{failures:>7} failed", Paint.BAD if failures else Paint.QUIET),
        (f"{provider['in_flight']:>5} now  ", Paint.PLAIN),
        (spark(provider, max(0, min(len(provider["points"]), width - BESIDE))), Paint.PLAIN),
    ]


def spark(provider: ProviderView, width: int) -> str:
    """The newest `width` points: time to first content; × where all failed, a space for none."""
    points = provider["points"][-width:] if width else []
    waits = [point["wait"] for point in points if point["wait"] is not None]
    highest = max([0.001, *waits])
    return "".join(
        (FAILED if point["failures"] else " ")
        if point["wait"] is None
        else SPARKS[min(int(point["wait"] / highest * len(SPARKS)), len(SPARKS) - 1)]
        for point in points
    )


def _open_row(exchange: OpenView) -> Row:
    now = "streaming" if exchange["streaming"] else "waiting"
    return [
        (f"{exchange['seconds']:>6.0f} s  {exchange['user']:<16.16} ", Paint.PLAIN),
        (f"{exchange['route']:<14.14} ", Paint.QUIET),
        *_trail(exchange["trail"], now),
    ]


def _failed_over(past: FailedOverView) -> Row:
    kind = Paint.GOOD if past["status"] < 400 else Paint.BAD
    return [
        (f"{clock(past['at'])} ", Paint.PLAIN),
        (f"{past['status']} ", kind),
        (f"{past['user']:<16.16} ", Paint.PLAIN),
        (f"{past['route']:<14.14} ", Paint.QUIET),
        *_trail(past["trail"], ""),
    ]


def _trail(steps: list[TriedView], now: str) -> Row:
    row: Row = []
    for step in steps:
        row += [(" → ", Paint.QUIET)] if row else []
        fine = step["outcome"] in ("ok", "")
        words = now if now and fine else step["outcome"].replace("_", " ")
        row += [(f"{step['provider']} ", Paint.PLAIN), (words, Paint.GOOD if fine else Paint.BAD)]
        row += [(f" {wait(step['seconds'])}", Paint.QUIET)] if step["outcome"] else []
    return row


def _user(user: UserView) -> Row:
    client = f"{user['client']}/" if user["client"] else ""
    about = "≤ " if user["error"] else ""
    cap = f" of {user['cap']}" if user["cap"] else ""
    return [
        (f"{client + user['user']:<34.34} ", Paint.PLAIN),
        (f"{about}{user['turns']}{cap}", Paint.PLAIN),
    ]
