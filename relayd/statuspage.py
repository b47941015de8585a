"""A snapshot as HTML: the whole page, and its sections alone for a page that is open already.

The sections are rendered here only, so that text from outside is escaped in one place and the page
is the same with and without JavaScript. No style and no script stands in an attribute: the page's
policy allows exactly the two blocks of `statuspage.html`. Does not know who makes a snapshot.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from .status import (
    FailedOverView,
    OpenView,
    PointView,
    ProviderView,
    Snapshot,
    TriedView,
    UserView,
)

TEMPLATE = Path(__file__).with_name("statuspage.html")

STEP = 4
"""Width of one point of a sparkline, in its own units."""

HEIGHT = 48
"""Height of a sparkline, in its own units."""

FLOOR = 0.5
"""Seconds at the top of a sparkline at least, so that milliseconds do not look like mountains."""


@dataclass(frozen=True, slots=True)
class Page:
    """The page around the sections; `policy` is its Content-Security-Policy."""

    template: str
    policy: str

    @classmethod
    def load(cls) -> Page:
        """Read it from the package."""
        text = TEMPLATE.read_text(encoding="utf-8")
        policy = (
            f"default-src 'none'; script-src {_hashes(text, 'script')}; "
            f"style-src {_hashes(text, 'style')}; img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return cls(text, policy)

    def render(self, snapshot: Snapshot) -> bytes:
        """All of it, for a browser that has nothing yet."""
        values = {
            **sections(snapshot),
            "version": escape(snapshot["version"]),
            "time": clock(snapshot["at"]),
        }
        return re.sub(r"\{\{([a-z-]+)\}\}", lambda m: values[m[1]], self.template).encode()


def sections(snapshot: Snapshot) -> dict[str, str]:
    """The inner HTML of every section, by the id of its element."""
    return {
        "notices": "".join(_notices(snapshot)),
        "facts": _facts(snapshot),
        "providers": _grid(map(_provider, snapshot["providers"])),
        "open": _table(
            ("Request", "Route", "User", "Way", "Seconds"),
            map(_open, snapshot["open"]),
            "Nothing is running.",
        ),
        "failed-over": _table(
            ("Ended", "Request", "Route", "User", "Way", "Status", "Seconds"),
            map(_failed_over, snapshot["failed_over"]),
            "No exchange needed a second provider.",
        ),
        "users": _table(
            ("User", "Client", "", "Turns"),
            map(_user, snapshot["users"]),
            "No turn was charged." if snapshot["capped"] else "No daily cap is configured.",
        ),
    }


def clock(wall: float) -> str:
    """Time of day in UTC."""
    return time.strftime("%H:%M:%S", time.gmtime(wall))


def duration(seconds: float) -> str:
    """Two units at most: `3 d 4 h`, `12 min 5 s`, `8 s`."""
    whole = int(seconds)
    for size, unit, part, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def wait(seconds: float | None) -> str:
    """A short time: `840 ms`, `2.4 s`; a dash for none."""
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def standing(provider: ProviderView) -> tuple[str, str]:
    """The class (good, warn, bad) and the words of a provider's state."""
    retry = f", retry in {duration(provider['retry_in'] + 0.999)}" if provider["retry_in"] else ""
    if provider["state"] == "open":
        return "bad", f"open{retry}"
    if provider["resting"]:
        return "warn", f"resting{retry}"
    if provider["state"] == "half-open":
        return "warn", "half-open, one probe"
    return "good", "closed"


# Sections.


def _notices(snapshot: Snapshot) -> Iterable[str]:
    if snapshot["draining"]:
        yield '<p class="notice">Draining: no new requests, open exchanges may finish.</p>'
    if not snapshot["store"]["available"]:
        kind = escape(snapshot["store"]["kind"])
        yield f'<p class="notice bad">The {kind} store is away.</p>'
    problem = snapshot["config"]["problem"]
    if problem is not None:
        yield f'<p class="notice bad">The last reload was rejected: {escape(problem)}</p>'


def _facts(snapshot: Snapshot) -> str:
    store = snapshot["store"]
    facts = (
        ("Open exchanges", str(snapshot["exchanges"])),
        ("Streams", str(snapshot["streams"])),
        ("Client connections", str(snapshot["connections"])),
        ("Store", f"{store['kind']}{'' if store['available'] else ', away'}"),
        ("Up for", duration(snapshot["uptime"])),
    )
    rows = "".join(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts card">{rows}</dl>'


def _grid(cards: Iterable[str]) -> str:
    return f'<div class="grid">{"".join(cards)}</div>'


def _provider(provider: ProviderView) -> str:
    kind, words = standing(provider)
    limit = f" of {provider['max_in_flight']}" if provider["max_in_flight"] else ""
    failed = ' class="failed"' if provider["failures"] else ""
    return (
        f'<article class="provider card"><h3>{escape(provider["name"])}'
        f'<span class="pill {kind}">{escape(words)}</span></h3><dl>'
        f"<div><dt>first content</dt><dd>{wait(provider['wait'])}</dd></div>"
        f"<div><dt>answers</dt><dd>{provider['answers']}</dd></div>"
        f"<div{failed}><dt>failures</dt><dd>{provider['failures']}</dd></div>"
        f"<div><dt>in flight</dt><dd>{provider['in_flight']}{limit}</dd></div></dl>"
        f"{sparkline(provider['points'])}</article>"
    )


def sparkline(points: list[PointView]) -> str:
    """Time to first content as a line, failures as bars from below: SVG and its scale."""
    waits = [point["wait"] for point in points]
    top = max([FLOOR, *(each for each in waits if each is not None)])
    lines, areas = [], []
    for run in _runs(waits):
        drawn = [
            f"{x * STEP + STEP / 2:g} {HEIGHT - value / top * (HEIGHT - 4):.1f}" for x, value in run
        ]
        first, last = run[0][0] * STEP + STEP / 2, run[-1][0] * STEP + STEP / 2
        # A point that stands alone would be a line of no length.
        lines.append(f"M{' L'.join(drawn)}" + (" h.1" if len(run) == 1 else ""))
        areas.append(f"M{first:g} {HEIGHT} L{' L'.join(drawn)} L{last:g} {HEIGHT}Z")
    bars = "".join(_bar(number, point) for number, point in enumerate(points))
    width = len(points) * STEP
    scale = f"top {wait(top)}" if lines else ""
    return (
        f'<svg class="spark" viewBox="0 0 {width} {HEIGHT}" preserveAspectRatio="none" role="img"'
        f' aria-label="time to first content and failures">'
        f'<line x1="0" x2="{width}" y1="{HEIGHT}" y2="{HEIGHT}"/>'
        f'<path class="area" d="{" ".join(areas)}"/>{bars}<path d="{" ".join(lines)}"/></svg>'
        f'<div class="scale"><span>−10 min</span><span>{scale}</span><span>now</span></div>'
    )


def _runs(waits: list[float | None]) -> list[list[tuple[int, float]]]:
    """Neighbouring points that have a value: (number, value)."""
    runs: list[list[tuple[int, float]]] = []
    after_gap = True
    for number, value in enumerate(waits):
        if value is None:
            after_gap = True
            continue
        if after_gap:
            runs.append([])
            after_gap = False
        runs[-1].append((number, value))
    return runs


def _bar(number: int, point: PointView) -> str:
    """The failed share of a point, at least visible."""
    if not point["failures"]:
        return ""
    share = point["failures"] / (point["failures"] + point["answers"])
    high = max(6.0, share * HEIGHT)
    return (
        f'<rect x="{number * STEP + 0.5}" y="{HEIGHT - high:.1f}" width="3" height="{high:.1f}"/>'
    )


def _table(head: tuple[str, ...], rows: Iterable[str], empty: str) -> str:
    body = "".join(rows)
    if not body:
        return f'<p class="empty card">{empty}</p>'
    numbers = ("Seconds", "Status", "Turns")
    cells = "".join(f"<th{' class=number' * (name in numbers)}>{name}</th>" for name in head)
    return (
        f'<div class="table card"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(*cells: str, numbers: Iterable[object] = ()) -> str:
    figures = "".join(f"<td class=number>{number}</td>" for number in numbers)
    return f"<tr>{''.join(cells)}{figures}</tr>"


def _cell(html: str) -> str:
    return f"<td>{html}</td>"


def _name(text: str) -> str:
    return f'<td class="name">{escape(text)}</td>'


def _open(exchange: OpenView) -> str:
    return _row(
        _cell(f"<code>{escape(exchange['id'])}</code>"),
        _name(exchange["route"]),
        _name(exchange["user"]),
        _cell(_trail(exchange["trail"], "streaming" if exchange["streaming"] else "waiting")),
        numbers=(f"{exchange['seconds']:.0f}",),
    )


def _failed_over(past: FailedOverView) -> str:
    return _row(
        _cell(clock(past["at"])),
        _cell(f"<code>{escape(past['id'])}</code>"),
        _name(past["route"]),
        _name(past["user"]),
        _cell(_trail(past["trail"], "")),
        numbers=(past["status"], f"{past['seconds']:.1f}"),
    )


def _user(user: UserView) -> str:
    cap, turns = user["cap"], user["turns"]
    about = "≤ " if user["error"] else ""
    return _row(
        _name(user["user"]),
        _name(user["client"] or ""),
        _cell(_share(turns, cap) if cap else ""),
        numbers=(f"{about}{turns}" + (f" of {cap}" if cap else ""),),
    )


def _share(used: int, cap: int) -> str:
    kind = "full" if used >= cap else "used"
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="100" height="6" rx="2"/>'
        f'<rect class="{kind}" width="{min(used / cap, 1) * 100:.1f}" height="6" rx="2"/></svg>'
    )


def _trail(steps: list[TriedView], now: str) -> str:
    shown = "".join(f"<li>{_step(step, now)}</li>" for step in steps)
    return f'<ol class="trail">{shown}</ol>'


def _step(step: TriedView, now: str) -> str:
    name = f"<b>{escape(step['provider'])}</b>"
    if not step["outcome"]:
        return f'{name} <span class="quiet">{now}</span>'
    kind = "good" if step["outcome"] == "ok" else "bad"
    words = now if kind == "good" and now else step["outcome"].replace("_", " ")
    status = "" if step["status"] is None or kind == "good" else f" {step['status']}"
    return (
        f'{name} <span class="{kind}">{escape(words)}{status}</span>'
        f' <span class="quiet">{wait(step["seconds"])}</span>'
    )


def _hashes(text: str, tag: str) -> str:
    """The sources that a policy allows: exactly the blocks of this page."""
    blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = (hashlib.sha256(block.encode()).digest() for block in blocks)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
