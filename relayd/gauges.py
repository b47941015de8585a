"""Figures that are true only now, read when a scrape asks: breakers, streams, places, the store.

Costs an exchange nothing. Does not know how figures are spelled on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from . import __version__
from .breaker import State
from .engine import Engine
from .families import Family, Labels
from .status import streams
from .stores.link import Link


def gauges(engine: Engine, link: Link, connections: int, lost: int, now: float) -> list[Family]:
    """All of them; `now` is loop time in seconds, `connections` the clients', `lost` log lines."""
    running = engine.open.values()
    return [
        _one("gauge", "relayd_build_info", "The version that runs.", ("version",), __version__),
        _one("gauge", "relayd_open_exchanges", "Requests being served now.", value=len(running)),
        _one(
            "gauge",
            "relayd_open_streams",
            "Event streams being relayed now.",
            value=sum(streams(record) for record in running),
        ),
        _one("gauge", "relayd_client_connections", "Open client connections.", value=connections),
        _one(
            "gauge",
            "relayd_idle_upstream_connections",
            "Connections to providers kept for the next request.",
            value=len(engine.reach.pool),
        ),
        *_providers(engine, now),
        _one(
            "counter",
            "relayd_quota_refusals_total",
            "Requests refused because the user's turns were used up.",
            value=engine.turns.refused,
        ),
        _one(
            "counter",
            "relayd_turns_without_store_total",
            "Reservations that were decided while the store was away.",
            value=engine.turns.without_store,
        ),
        _one(
            "gauge",
            "relayd_config_last_reload_successful",
            "0 after a reload that was rejected: the configuration before it goes on.",
            value=engine.loaded.problem is None,
        ),
        _one(
            "gauge",
            "relayd_config_loaded_timestamp_seconds",
            "When the configuration in use was loaded, in seconds since the epoch.",
            value=engine.loaded.at,
        ),
        _one("gauge", "relayd_store_up", "1 while the store answers.", value=link.available),
        _one("counter", "relayd_store_lost_total", "Times the store went away.", value=link.lost),
        _one(
            "counter",
            "relayd_log_lines_lost_total",
            "Log lines that a slow reader or a full disk did not take.",
            value=lost,
        ),
    ]


def _providers(engine: Engine, now: float) -> Iterable[Family]:
    states = Family(
        "gauge",
        "relayd_breaker_state",
        "1 for the state that a provider's breaker is in.",
        ("provider", "state"),
    )
    resting = Family(
        "gauge",
        "relayd_provider_resting",
        "1 while a provider rests after a 429 or 402.",
        ("provider",),
    )
    in_flight = Family(
        "gauge",
        "relayd_upstream_in_flight",
        "Requests that a provider is answering now.",
        ("provider",),
    )
    for provider in engine.setup.config.providers:
        name = provider.name
        look = engine.breakers.look(name, now)
        for state in State:
            states.add((name, state.value), state is look.state)
        resting.add((name,), look.rests)
        in_flight.add((name,), engine.in_flight[name])
    return states, resting, in_flight


def _one(
    kind: Literal["counter", "gauge"],
    name: str,
    help: str,
    labels: Labels = (),
    *label_values: str,
    value: float = 1,
) -> Family:
    return Family(kind, name, help, labels, {label_values: value})
