"""The list of what is counted: name, help text, labels, and the bounds of what is distributed.

Does not know who counts, or how a figure is spelled on the wire.
"""

from __future__ import annotations

from .families import Distribution, Family, Labels

WAITS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds: first tokens come after 0.2 to 5 s, models that reason in silence after minutes."""

DURATIONS = (*WAITS, 600.0)
"""Seconds of a whole exchange, up to the default deadline."""

GAPS = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds between two events: some 20 ms at 50 tokens a second, up to the default `idle`."""

METRICS: dict[str, tuple[str, Labels]] = {
    "requests": (
        "Requests by class of their status; 499: the client left before an answer.",
        ("route", "surface", "status"),
    ),
    "exchange_ends": (
        "Relayed requests by how they ended, and the provider that answered, if one did.",
        ("route", "provider", "end_reason"),
    ),
    "attempts": (
        "Requests to providers by outcome; ok is an answer that was committed to.",
        ("provider", "outcome"),
    ),
    "failovers": (
        "Moves to another provider, by the provider that was left.",
        ("provider",),
    ),
    "rescued_requests": (
        "Requests that a provider answered after another one had failed.",
        ("route",),
    ),
    "turns": (
        "Turns by what became of them.",
        ("turn",),
    ),
    "request_bytes": (
        "Bytes of request bodies.",
        ("route",),
    ),
    "response_bytes": (
        "Bytes of response bodies.",
        ("route",),
    ),
    "tokens": (
        "LLM tokens as the providers counted them; of OpenAI's input the cached ones are a part, "
        "beside Anthropic's they stand apart.",
        ("provider", "kind"),
    ),
    "cost_dollars": (
        "US dollars, of providers with a configured price.",
        ("provider",),
    ),
    "breaker_changes": (
        "Changes of a provider's breaker, by the state it went to.",
        ("provider", "state"),
    ),
    "commit_wait": (
        "From the request's head to the head of its answer, failovers included.",
        ("route",),
    ),
    "first_content": (
        "From the beginning of a provider's attempt to its first content.",
        ("provider",),
    ),
    "request_duration": (
        "Relayed requests, from their head to the end of their answer.",
        ("route",),
    ),
    "stream_longest_gap": (
        "The longest silence between two events with content, one value a stream.",
        ("provider",),
    ),
}
"""What is counted: the help text and the labels of each metric."""


def counter(name: str) -> Family:
    """A sum that is on the list, with no series yet."""
    return Family("counter", f"relayd_{name}_total", *METRICS[name])


def distribution(name: str, bounds: tuple[float, ...]) -> Distribution:
    """A histogram that is on the list, with no series yet."""
    return Distribution(f"relayd_{name}_seconds", *METRICS[name], bounds)
