"""What relayd says: one line per exchange, one per noteworthy event, as JSON or as readable text.

An exchange line has exactly the documented fields (`v` is the version of that list); every other
line has `ts, v, level, event, message` and the fields of its event. Text from outside is masked,
made printable and cut; the access line is never held back, repeated events are.

Does not know configuration, HTTP, what an outcome means, or where the lines go (`logsink`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote

from .record import Attempt, Record

VERSION = 1
"""Of the exchange line's fields: raised when one is renamed, removed or changes its meaning."""

PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""Level to syslog priority, which is also the order of the levels."""

TEXT_LIMIT = 128
"""Characters of one field of an exchange line: the longest request id that is taken."""
PROSE_LIMIT = 2048
"""Bytes of one message or detail: enough for a provider's error, small beside journald's 48 KiB."""
PROSE_READ = 4 * PROSE_LIMIT
TEXT_READ = 8 * TEXT_LIMIT
"""Characters that are looked at; more than are shown, so that no half of a key escapes the mask."""
TEXT_CACHE = 1024
"""Remembered field values: names, models, paths and users repeat, escaping them again does not."""

FLOOD_LINES = 10
"""Lines of one event (of one provider and outcome) that are written per `FLOOD_SECONDS`."""
FLOOD_SECONDS = 10.0
FLOOD_KEYS = 256
"""Events counted apart from each other; more than providers times outcomes need."""

COST = '"cost":%.9g,'
"""US dollars; a thousand tokens of the cheapest model are some 1e-5."""

Field = str | int | float | bool | None


def printable(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` as at most `limit` printable characters; the rest escaped, a cut marked by `…`."""
    if not text.isprintable():
        text = "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
            for c in text[: limit + 1]
        )
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Log:
    """Every line of the process, written with `write(line)`; `wall()` gives seconds since 1970.

    `mask` removes keys from text. `priorities` puts `<N>` before each line (journald reads it).
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        *,
        level: str,
        format: str,
        priorities: bool,
        mask: Callable[[str], str],
        wall: Callable[[], float],
    ) -> None:
        self._write = write
        self._wall = wall
        self._prefix = {name: f"<{n}>" if priorities else "" for name, n in PRIORITY.items()}
        self._second = -1
        self._stamp = ""
        self._counts: dict[tuple[str, Field, Field], int] = {}
        self._window = math.nan
        self.configure(level=level, format=format, mask=mask)

    def configure(self, *, level: str, format: str, mask: Callable[[str], str]) -> None:
        """What a reload may change. Forgets what the old mask let through."""
        self._threshold = PRIORITY[level]
        self._access = self._threshold >= PRIORITY["info"]
        self._json = format == "json"
        self._mask = mask
        self._text = lru_cache(TEXT_CACHE)(self._field)
        self._what = lru_cache(TEXT_CACHE)(self._what_json)
        self._tried = lru_cache(TEXT_CACHE)(self._tried_json)
        self._ended = lru_cache(TEXT_CACHE)(self._ended_json)
        self._line = self._exchange_json if self._json else self._exchange_text

    def exchange(self, record: Record) -> None:
        """The access line, level info."""
        if not self._access:
            return
        now = self._wall()
        if self._counts and not 0.0 <= now - self._window < FLOOD_SECONDS:
            self._end_window(now)
        self._write(self._line(self._prefix["info"], self._time(now), record))

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None:
        """A warning; an error where the provider refused relayd's own key (401, 403)."""
        refused = attempt.status in (401, 403)
        level, event = "error" if refused else "warning", "attempt_failed"
        if not self._wants(level, (event, attempt.provider, attempt.outcome)):
            return  # a provider that is down is told of ten times, and then fails in silence
        remedy = " refused the configured key: check it" if refused else f": {attempt.outcome}"
        fields: dict[str, Field] = {
            "id": record.id,
            "provider": attempt.provider,
            "upstream_model": attempt.upstream_model,
            "outcome": attempt.outcome,
            "status": attempt.status,
            "ms": round(attempt.duration * 1000, 1),
            "breaker": attempt.breaker,
            "detail": detail,
        }
        self._say(self._wall(), level, event, f"provider {attempt.provider}{remedy}", fields)

    def event(self, level: str, event: str, message: str, **fields: Field) -> None:
        """Anything else worth a line: breaker changes, reloads, start, stop, warnings."""
        if self._wants(level, (event, fields.get("provider"), fields.get("outcome"))):
            self._say(self._wall(), level, event, message, fields)

    def lost(self, lines: int) -> None:
        """Says that the sink dropped `lines`: made to be its `report`."""
        message = f"{lines} log lines lost: a slow reader or a full disk"
        self._say(self._wall(), "warning", "log_lines_lost", message, {"lines": lines})

    def close(self) -> None:
        """Says what is still held back; the sink is closed by its owner."""
        self._end_window(self._wall())

    # ---- floods: fixed windows, so that one number per event is all there is to keep

    def _wants(self, level: str, key: tuple[str, Field, Field]) -> bool:
        """Whether an event of this kind is told now."""
        if self._threshold < PRIORITY[level]:
            return False
        now = self._wall()
        # A clock that was set back must not stretch a window: outside means ended, either way.
        if not 0.0 <= now - self._window < FLOOD_SECONDS:
            self._end_window(now)
            self._window = now
        if key not in self._counts and len(self._counts) >= FLOOD_KEYS:
            key = ("other events", None, None)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count <= FLOOD_LINES

    def _end_window(self, now: float) -> None:
        counts, self._counts = self._counts, {}
        for (event, provider, outcome), count in counts.items():
            if count > FLOOD_LINES:
                more = count - FLOOD_LINES
                fields: dict[str, Field] = {
                    "of": event,
                    "count": more,
                    "provider": provider,
                    "outcome": outcome,
                }
                self._say(now, "warning", "suppressed", f"suppressed {more} more {event}", fields)

    # ---- lines

    def _say(
        self, now: float, level: str, event: str, message: str, fields: Mapping[str, Field]
    ) -> None:
        start, shown = self._prefix[level], self._prose(message)
        if self._json:
            more = "".join(f',"{k}":{self._value(v)}' for k, v in fields.items())
            line = (
                f'{start}{{"ts":"{self._time(now)}","v":{VERSION},"level":"{level}",'
                f'"event":{quote(event)},"message":{quote(shown)}{more}}}\n'
            )
        else:
            more = "".join(f" {k}={self._value(v)}" for k, v in fields.items() if v is not None)
            line = f"{start}{self._time(now)} {level} {event}: {shown}{more}\n"
        self._write(line.encode())

    def _exchange_json(self, start: str, stamp: str, r: Record) -> bytes:
        text, tried, usage = self._text, self._tried, r.usage
        attempts = ",".join(
            [
                f"{tried(a.provider, a.outcome, a.status, a.breaker)}{a.duration * 1000:.1f}}}"
                for a in r.attempts
            ]
        )
        tokens = (
            "null"
            if usage is None
            else f'{{"input":{"null" if usage.input is None else usage.input},'
            f'"output":{"null" if usage.output is None else usage.output},'
            f'"cached":{"null" if usage.cached is None else usage.cached}}}'
        )
        what = self._what(
            r.method[:TEXT_READ],
            r.path[:TEXT_READ],
            r.route,
            r.model and r.model[:TEXT_READ],
            r.provider,
            r.upstream_model and r.upstream_model[:TEXT_READ],
        )
        first = "null" if r.ttfb is None else f"{r.ttfb * 1000:.1f}"
        finish = r.finish_reason and r.finish_reason[:TEXT_READ]
        ended = self._ended(finish, r.commit, r.ended_by, r.end_reason, r.turn)
        return (
            f'{start}{{"ts":"{stamp}","v":{VERSION},"id":{quote(r.id[:TEXT_LIMIT])},'
            f'"client":{text(r.client)},"user":{text(r.user[:TEXT_READ])},'
            f'"peer":{text(r.peer[:TEXT_READ])},'
            f'{what}"stream":{"true" if r.stream else "false"},'
            f'"status":{r.status},"attempts":[{attempts}],"ttfb_ms":{first},'
            f'"duration_ms":{r.duration * 1000:.1f},"bytes_in":{r.bytes_in},'
            f'"bytes_out":{r.bytes_out},"events":{r.events},"usage":{tokens},'
            f"{'' if r.cost is None else COST % r.cost}{ended}\n"
        ).encode("ascii")

    # What repeats is made once; the keys are cut, so that the caches hold no body of a request.

    def _what_json(self, *fields: str | None) -> str:
        method, path, route, model, provider, upstream_model = fields
        text = self._text
        return (
            f'"method":{text(method)},"path":{self._path(path or "")},"route":{text(route)},'
            f'"model":{text(model)},"provider":{text(provider)},'
            f'"upstream_model":{text(upstream_model)},'
        )

    def _tried_json(self, provider: str, outcome: str, status: int | None, breaker: str) -> str:
        text = self._text
        return (
            f'{{"provider":{text(provider)},"outcome":{text(outcome)},'
            f'"status":{"null" if status is None else status},"breaker":{text(breaker)},"ms":'
        )

    def _ended_json(self, *fields: str | None) -> str:
        text = self._text
        finish_reason, commit, ended_by, end_reason, turn = fields
        return (
            f'"finish_reason":{text(finish_reason)},"commit":{text(commit)},'
            f'"ended_by":{text(ended_by)},"end_reason":{text(end_reason)},"turn":{text(turn)}}}'
        )

    def _exchange_text(self, start: str, stamp: str, r: Record) -> bytes:
        text = self._field
        trail = ", ".join(
            f"{text(a.provider)} {text(a.outcome)}"
            f"{'' if a.status is None else f' {a.status}'} {a.duration * 1000:.0f} ms"
            for a in r.attempts
        )
        first = "" if r.ttfb is None else f", first byte {r.ttfb * 1000:.0f} ms"
        ended = f"{text(r.end_reason)} by {text(r.ended_by)}"
        return (
            f"{start}{stamp} info {r.status} {text(r.method)} {self._path(r.path)}"
            f" {text(r.route)} {text(r.model)}: {ended}, {r.duration * 1000:.0f} ms{first},"
            f" {r.bytes_out} bytes, {r.events} events [{trail}]"
            f" user={text(r.user)} peer={text(r.peer)} turn={text(r.turn)} id={printable(r.id)}\n"
        ).encode()

    # ---- values

    def _field(self, text: str | None) -> str:
        if text is None:
            return "null" if self._json else "-"
        shown = printable(self._mask(text[:TEXT_READ]))
        return quote(shown) if self._json else shown

    def _path(self, path: str) -> str:
        # A record's path has no query; that no key in one is shown must not depend on it.
        return self._field(path[:TEXT_READ].partition("?")[0])

    def _prose(self, text: str) -> str:
        shown = printable(self._mask(text[:PROSE_READ]), PROSE_LIMIT)
        return shown.encode()[:PROSE_LIMIT].decode(errors="ignore")

    def _value(self, value: Field) -> str:
        if isinstance(value, str):
            return quote(self._prose(value))
        if isinstance(value, bool) or value is None:
            return {True: "true", False: "false", None: "null"}[value]
        return str(value) if math.isfinite(value) else "null"

    def _time(self, now: float) -> str:
        """RFC 3339, UTC, milliseconds; the part up to the second is made once a second."""
        second = int(now)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S.%%03dZ", time.gmtime(second))
        return self._stamp % ((now - second) * 1000)
