"""Counts and distributions of what exchanges were, for the metrics.

    counter        a sum by label values        requests{route="smart",surface="chat",status="2xx"}
    distribution   a histogram by label values  first_content{provider="groq"}

A label's value comes from the configuration (route, provider) or from a closed list; whatever else
a client sends is `other`, so no traffic can add a series. Exchanges that share all labels are one
`Kind`, found by one look-up and folded into families when somebody asks; no lock is needed, since
there is one event loop. Does not know how metrics are spelled on the wire, nor what is true only
now (breakers, open streams): `metrics` and `gauges` do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from .breaker import State
from .families import Distribution, Family, Histogram, Labels
from .figures import DURATIONS, GAPS, WAITS, counter, distribution
from .outcomes import BY_CLIENT, LEFT_STATUS, End, Outcome
from .record import OTHER, Record
from .surfaces import Surface

NONE = ""
"""No provider: Prometheus takes an empty label for an absent one."""

GONE = "\n"
"""Instead of a route or provider that is configured no more: no series, but part of what is summed
over it, since a counter that falls is read as one that began anew."""

KINDS = 1024
"""Spellings of kinds that are remembered; a provider's odd statuses cannot make it more."""

LEFT = frozenset(end.value for end in BY_CLIENT)

STATUSES = {hundreds: f"{hundreds}xx" for hundreds in range(2, 6)}
SURFACES = frozenset(surface.value for surface in Surface)
ENDS = frozenset(end.value for end in End)
OUTCOMES = frozenset(outcome.value for outcome in Outcome)
TURNS = frozenset({"charged", "refunded", "free"})
STATES = frozenset(state.value for state in State)


def first_content(record: Record) -> float:
    """Seconds that the provider of a committed answer took to its first content.

    Counted from the beginning of its own attempt: what failed before it is not its fault. An
    answer that was whole at the commit counts as content at the commit.
    """
    ttfb = record.ttfb or 0.0
    content = ttfb if record.first_content is None else record.first_content
    return max(content - ttfb + record.attempts[-1].duration, 0.0)


@dataclass(slots=True)
class Kind:
    """Exchanges that share every label, and the histograms that theirs go into."""

    route: str
    surface: str
    status: str
    provider: str
    end_reason: str
    turn: str
    duration: Histogram
    commit_wait: Histogram
    first_content: Histogram
    gaps: Histogram
    count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float = 0.0

    @property
    def key(self) -> tuple[str, str, str, str, str, str]:
        """Its labels."""
        return (
            self.route, self.surface, self.status, self.provider, self.end_reason, self.turn,
        )  # fmt: skip

    def absorb(self, other: Kind) -> None:
        """Take over what was counted there."""
        for name in ("count", "bytes_in", "bytes_out", "input", "output", "cached", "cost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


Spelling = tuple[str | None, str | None, int, str | None, str, str]


class Tally:
    """Everything that is counted; `keep` says which routes and providers are configured."""

    def __init__(self) -> None:
        self._routes: frozenset[str] = frozenset()
        self._providers: frozenset[str] = frozenset()
        self._kinds: dict[Labels, Kind] = {}
        self._spelled: dict[Spelling, Kind] = {}
        self._others = counter("requests")
        self._attempts = counter("attempts")
        self._failovers = counter("failovers")
        self._rescued = counter("rescued_requests")
        self._breaker_changes = counter("breaker_changes")
        self._duration = distribution("request_duration", DURATIONS)
        self._commit_wait = distribution("commit_wait", WAITS)
        self._first_content = distribution("first_content", WAITS)
        self._gaps = distribution("stream_longest_gap", GAPS)

    def keep(self, routes: Iterable[str], providers: Iterable[str]) -> None:
        """What is configured now; series of what no longer is are dropped, sums over them stay."""
        self._routes = frozenset(routes)
        self._providers = frozenset(providers)
        self._spelled.clear()
        kinds, self._kinds = self._kinds, {}
        for kind in kinds.values():
            route = _still(kind.route, self._routes)
            provider = _still(kind.provider, self._providers)
            if (route, provider) != (kind.route, kind.provider):
                nowhere = Histogram(())
                kind = replace(
                    kind, route=route, provider=provider, duration=nowhere, commit_wait=nowhere,
                    first_content=nowhere, gaps=nowhere,
                )  # fmt: skip
            same = self._kinds.setdefault(kind.key, kind)
            if same is not kind:
                same.absorb(kind)
        for family in self._kept():
            for labels in list(family.values):
                if not self._known(family.labels, labels):
                    del family.values[labels]
        # What alerts look at is there from the start: a rate needs the zero before the first one.
        for route in self._routes:
            self._rescued.add((route,), 0)
        for provider in self._providers:
            self._failovers.add((provider,), 0)
            self._breaker_changes.add((provider, State.OPEN.value), 0)

    # What is told.

    def exchange(self, record: Record) -> None:
        """One request has ended."""
        if record.surface is None:
            self._others.add((OTHER, OTHER, status_class(record.status, record.end_reason)))
            return
        kind = self._kind(record)
        kind.count += 1
        kind.bytes_in += record.bytes_in
        kind.bytes_out += record.bytes_out
        kind.duration.observe(record.duration)
        if record.attempts:
            self._tried(record)
        if record.ttfb is not None:
            _answered(kind, record, record.ttfb)

    def breaker(self, provider: str, state: str) -> None:
        """A provider's breaker has changed."""
        name = _listed(provider, self._providers)
        self._breaker_changes.add((name, _listed(state, STATES)))

    # What is asked.

    def figures(self) -> list[Family | Distribution]:
        """All of it, as of now."""
        requests, ends, turns = map(counter, ("requests", "exchange_ends", "turns"))
        received, sent = map(counter, ("request_bytes", "response_bytes"))
        tokens, cost = map(counter, ("tokens", "cost_dollars"))
        requests.values.update(self._others.values)
        for kind in self._kinds.values():
            requests.add((kind.route, kind.surface, kind.status), kind.count)
            ends.add((kind.route, kind.provider, kind.end_reason), kind.count)
            if kind.turn != OTHER:
                turns.add((kind.turn,), kind.count)
            received.add((kind.route,), kind.bytes_in)
            sent.add((kind.route,), kind.bytes_out)
            used = (("input", kind.input), ("output", kind.output), ("cached", kind.cached))
            for name, count in used:
                if count:
                    tokens.add((kind.provider, name), count)
            if kind.cost:
                cost.add((kind.provider,), kind.cost)
        for family in (requests, ends, received, sent, tokens, cost):
            for labels in [labels for labels in family.values if GONE in labels]:
                del family.values[labels]
        return [requests, ends, turns, received, sent, tokens, cost, *self._kept()[1:]]

    # Inside.

    def _kept(self) -> list[Family | Distribution]:
        return [value for value in vars(self).values() if isinstance(value, Family | Distribution)]

    def _known(self, names: Labels, labels: Labels) -> bool:
        configured = {"route": self._routes, "provider": self._providers}
        pairs = zip(names, labels, strict=True)
        return GONE not in [_still(value, configured[k]) for k, value in pairs if k in configured]

    def _kind(self, record: Record) -> Kind:
        spelling = (
            record.route,
            record.surface,
            record.status,
            record.provider,
            record.end_reason,
            record.turn,
        )
        kind = self._spelled.get(spelling)
        if kind is None:
            if len(self._spelled) >= KINDS:
                self._spelled.clear()
            kind = self._spelled[spelling] = self._new(*spelling)
        return kind

    def _new(
        self,
        route: str | None,
        surface: str | None,
        status: int,
        provider: str | None,
        end_reason: str,
        turn: str,
    ) -> Kind:
        key = (
            _listed(route, self._routes),
            _listed(surface, SURFACES),
            status_class(status, end_reason),
            NONE if provider is None else _listed(provider, self._providers),
            _listed(end_reason, ENDS),
            _listed(turn, TURNS),
        )
        if key not in self._kinds:
            nowhere = Histogram(())  # where nobody answered: nothing to observe, no series begins
            answered = key[3] != NONE
            self._kinds[key] = Kind(
                *key,
                self._duration.at(key[0]),
                self._commit_wait.at(key[0]),
                self._first_content.at(key[3]) if answered else nowhere,
                self._gaps.at(key[3]) if answered else nowhere,
            )
        return self._kinds[key]

    def _tried(self, record: Record) -> None:
        before = None
        for attempt in record.attempts:
            provider = _listed(attempt.provider, self._providers)
            self._attempts.add((provider, _listed(attempt.outcome, OUTCOMES)))
            if before is not None and before != provider:
                self._failovers.add((before,))
            before = provider
        moved = record.attempts[0].provider != record.attempts[-1].provider
        if moved and record.ttfb is not None:
            self._rescued.add((_listed(record.route, self._routes),))


def _answered(kind: Kind, record: Record, ttfb: float) -> None:
    kind.commit_wait.observe(ttfb)
    kind.first_content.observe(first_content(record))
    if record.events > 1:
        kind.gaps.observe(record.max_gap)
    if record.cost is not None:
        kind.cost += record.cost
    usage = record.usage
    if usage is not None:
        kind.input += usage.input or 0
        kind.output += usage.output or 0
        kind.cached += usage.cached or 0


def _listed(value: str | None, allowed: frozenset[str]) -> str:
    return value if value is not None and value in allowed else OTHER


def _still(value: str, configured: frozenset[str]) -> str:
    return value if value in configured or value in (OTHER, NONE) else GONE


def status_class(status: int, end_reason: str) -> str:
    """`2xx` to `5xx`, `499` (not where a provider said so), or `other`."""
    if status == LEFT_STATUS and end_reason in LEFT:
        return str(LEFT_STATUS)
    return STATUSES.get(status // 100, OTHER)
