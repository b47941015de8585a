"""Counts and distributions of what exchanges were, for the metrics.

    counter        a sum by label values        requests{route="smart",surface="chat",status="2xx"}
    distribution   a histogram by label values  first_content{provider="groq"}

A label's value comes from the configuration (route, provider) or from a closed list; whatever else
a client sends is `other`, so no traffic can add a series. One exchange costs some dozen additions
and no lock: there is one event loop. Does not know how metrics are spelled on the wire, nor what
is true only now (breakers, open streams): `gauges` and `metrics` do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from .breaker import State
from .outcomes import End, Outcome
from .record import Record
from .surfaces import Surface

Labels = tuple[str, ...]

OTHER = "other"
"""Instead of a value that is neither configured nor on a closed list."""

NONE = ""
"""No provider: Prometheus takes an empty label for an absent one."""

WAITS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: first tokens come after 0.2 to 5 s, models that reason in silence after minutes."""

DURATIONS = (*WAITS, 600.0)
"""Seconds of a whole exchange, up to the default deadline."""

GAPS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds between two events: some 20 ms at 50 tokens a second, up to the default `idle`."""

LEFT_STATUS = 499

STATUSES = {hundreds: f"{hundreds}xx" for hundreds in range(2, 6)}
SURFACES = frozenset(surface.value for surface in Surface)
ENDS = frozenset(end.value for end in End)
OUTCOMES = frozenset(outcome.value for outcome in Outcome)
TURNS = frozenset({"charged", "refunded", "free"})
STATES = frozenset(state.value for state in State)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: values by label values. `name` is whole, with unit and, if a sum, `_total`."""

    kind: Literal["counter", "gauge"]
    name: str
    help: str
    labels: Labels
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add to a sum."""
        self.values[labels] = self.values.get(labels, 0) + amount


class Histogram:
    """How often which value was seen. `counts` is per bucket, not cumulated; the last is +Inf."""

    __slots__ = ("counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0


@dataclass(frozen=True, slots=True)
class Distribution:
    """One histogram metric. `bounds` are upper bounds in seconds, included."""

    name: str
    help: str
    labels: Labels
    bounds: tuple[float, ...]
    values: dict[Labels, Histogram] = field(default_factory=dict)

    def observe(self, labels: Labels, value: float) -> None:
        """One more value."""
        found = self.values.get(labels)
        if found is None:
            found = self.values[labels] = Histogram(self.bounds)
        found.counts[bisect_left(self.bounds, value)] += 1
        found.sum += value


def first_content(record: Record) -> float:
    """Seconds that the provider of a committed answer took to its first content.

    Counted from the beginning of its own attempt: what failed before it is not its fault. An
    answer that was whole at the commit counts as content at the commit.
    """
    ttfb = record.ttfb or 0.0
    content = ttfb if record.first_content is None else record.first_content
    return max(content - ttfb + record.attempts[-1].duration, 0.0)


METRICS: dict[str, tuple[str, Labels]] = {
    "relayd_requests_total": (
        "Requests by class of their status; 499: the client left before an answer.",
        ("route", "surface", "status"),
    ),
    "relayd_exchange_ends_total": (
        "Relayed requests by how they ended, and the provider that answered, if one did.",
        ("route", "provider", "end_reason"),
    ),
    "relayd_attempts_total": (
        "Requests to providers by outcome; ok is an answer that was committed to.",
        ("provider", "outcome"),
    ),
    "relayd_failovers_total": (
        "Moves to another provider, by the provider that was left.",
        ("provider",),
    ),
    "relayd_rescued_requests_total": (
        "Requests that a provider answered after another one had failed.",
        ("route",),
    ),
    "relayd_turns_total": (
        "Turns by what became of them.",
        ("turn",),
    ),
    "relayd_request_bytes_total": (
        "Bytes of request bodies.",
        ("route",),
    ),
    "relayd_response_bytes_total": (
        "Bytes of response bodies.",
        ("route",),
    ),
    "relayd_tokens_total": (
        "LLM tokens as the providers counted them; cached ones are part of the input.",
        ("provider", "kind"),
    ),
    "relayd_cost_dollars_total": (
        "US dollars, of providers with a configured price.",
        ("provider",),
    ),
    "relayd_breaker_changes_total": (
        "Changes of a provider's breaker, by the state it went to.",
        ("provider", "state"),
    ),
    "relayd_commit_wait_seconds": (
        "From the request's head to the head of its answer, failovers included.",
        ("route",),
    ),
    "relayd_first_content_seconds": (
        "From the beginning of a provider's attempt to its first content.",
        ("provider",),
    ),
    "relayd_request_duration_seconds": (
        "Relayed requests, from their head to the end of their answer.",
        ("route",),
    ),
    "relayd_stream_longest_gap_seconds": (
        "The longest silence between two events with content, one value a stream.",
        ("provider",),
    ),
}
"""What is counted: the help text and the labels of each metric."""


def _counter(name: str) -> Family:
    return Family("counter", name, *METRICS[name])


def _distribution(name: str, bounds: tuple[float, ...]) -> Distribution:
    return Distribution(name, *METRICS[name], bounds)


class Tally:
    """Everything that is counted; `keep` says which routes and providers are configured."""

    def __init__(self) -> None:
        self._routes: frozenset[str] = frozenset()
        self._providers: frozenset[str] = frozenset()
        self.requests = _counter("relayd_requests_total")
        self.ends = _counter("relayd_exchange_ends_total")
        self.attempts = _counter("relayd_attempts_total")
        self.failovers = _counter("relayd_failovers_total")
        self.rescued = _counter("relayd_rescued_requests_total")
        self.turns = _counter("relayd_turns_total")
        self.bytes_in = _counter("relayd_request_bytes_total")
        self.bytes_out = _counter("relayd_response_bytes_total")
        self.tokens = _counter("relayd_tokens_total")
        self.cost = _counter("relayd_cost_dollars_total")
        self.breaker_changes = _counter("relayd_breaker_changes_total")
        self.commit_wait = _distribution("relayd_commit_wait_seconds", WAITS)
        self.first_content = _distribution("relayd_first_content_seconds", WAITS)
        self.duration = _distribution("relayd_request_duration_seconds", DURATIONS)
        self.gaps = _distribution("relayd_stream_longest_gap_seconds", GAPS)

    @property
    def families(self) -> list[Family]:
        """All sums."""
        return [found for found in vars(self).values() if isinstance(found, Family)]

    @property
    def distributions(self) -> list[Distribution]:
        """All histograms."""
        return [found for found in vars(self).values() if isinstance(found, Distribution)]

    def keep(self, routes: Iterable[str], providers: Iterable[str]) -> None:
        """What is configured now; series of what no longer is are dropped."""
        self._routes = frozenset(routes)
        self._providers = frozenset(providers)
        known = {
            "route": self._routes | {OTHER},
            "provider": self._providers | {OTHER, NONE},
        }
        families: list[Family | Distribution] = [*self.families, *self.distributions]
        for family in families:
            for labels in list(family.values):
                named = zip(family.labels, labels, strict=True)
                if any(label in known and value not in known[label] for label, value in named):
                    del family.values[labels]

    # What is told.

    def exchange(self, record: Record) -> None:
        """One request has ended."""
        route = _known(record.route, self._routes)
        surface = _known(record.surface, SURFACES)
        self.requests.add((route, surface, _status(record.status)))
        if record.surface is None:
            return
        provider = _known(record.provider, self._providers) if record.provider else NONE
        self.ends.add((route, provider, _known(record.end_reason, ENDS)))
        self.duration.observe((route,), record.duration)
        self.bytes_in.add((route,), record.bytes_in)
        self.bytes_out.add((route,), record.bytes_out)
        if record.turn in TURNS:
            self.turns.add((record.turn,))
        if record.attempts:
            self._tried(record, route)
        if record.ttfb is not None:
            self._answered(record, route, provider)

    def breaker(self, provider: str, state: str) -> None:
        """A provider's breaker has changed."""
        self.breaker_changes.add((_known(provider, self._providers), _known(state, STATES)))

    # Inside.

    def _tried(self, record: Record, route: str) -> None:
        before = None
        for attempt in record.attempts:
            provider = _known(attempt.provider, self._providers)
            self.attempts.add((provider, _known(attempt.outcome, OUTCOMES)))
            if before is not None and before != provider:
                self.failovers.add((before,))
            before = provider
        moved = record.attempts[0].provider != record.attempts[-1].provider
        if moved and record.ttfb is not None:
            self.rescued.add((route,))

    def _answered(self, record: Record, route: str, provider: str) -> None:
        self.commit_wait.observe((route,), record.ttfb or 0.0)
        self.first_content.observe((provider,), first_content(record))
        if record.events > 1:
            self.gaps.observe((provider,), record.max_gap)
        if record.cost is not None:
            self.cost.add((provider,), record.cost)
        usage = record.usage
        if usage is not None:
            self._used(provider, (usage.input, usage.output, usage.cached))

    def _used(self, provider: str, counts: tuple[int | None, ...]) -> None:
        for kind, count in zip(("input", "output", "cached"), counts, strict=True):
            if count:
                self.tokens.add((provider, kind), count)


def _known(value: str | None, allowed: frozenset[str]) -> str:
    return value if value is not None and value in allowed else OTHER


def _status(status: int) -> str:
    return "499" if status == LEFT_STATUS else STATUSES.get(status // 100, OTHER)
