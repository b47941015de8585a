"""The whole configuration, frozen: what a process runs on until a reload swaps it.

A running exchange keeps the one it started with. Does not know how it was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .settings import (
    Admin,
    Breaker,
    Clocks,
    Errors,
    Failover,
    Log,
    Quota,
    Routing,
    Server,
    Store,
    Unknown,
)
from .upstream import Client, Provider, Route


@dataclass(frozen=True, slots=True)
class Config:
    """Every section under its name in the file.

    `routes` is never empty; without a `[[route]]` it is the one route `default` and `named_routes`
    is False. `source` is the file's name or `environment`; `listen_key` says where in it (or on
    the command line) the addresses of `server` stand. `warnings` are lines for the operator.
    `secrets` are all key values that are known, for the mask.
    """

    server: Server
    admin: Admin
    routing: Routing
    clocks: Clocks
    failover: Failover
    breaker: Breaker
    quota: Quota
    store: Store
    errors: Errors
    log: Log
    providers: tuple[Provider, ...]
    routes: tuple[Route, ...]
    clients: tuple[Client, ...]
    named_routes: bool
    source: str
    listen_key: str
    warnings: tuple[str, ...]
    secrets: frozenset[str] = field(repr=False)
    _by_name: dict[str, Route] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {route.name: route for route in self.routes})

    @property
    def capped(self) -> bool:
        """True if anybody's turns of a day are limited."""
        caps = (client.daily_turns for client in self.clients)
        return bool(self.quota.daily_turns) or any(caps)

    def route_for(self, model: str | None) -> Route | None:
        """The route that a request's `model` names; None where the answer is 404.

        Without named routes every model takes the one route. With them, a name that is none of
        them (or no name) takes the first route or, with `routing.unknown = "reject"`, nothing.
        """
        if not self.named_routes:
            return self.routes[0]
        found = self._by_name.get(model) if model is not None else None
        if found is None and self.routing.unknown is Unknown.DEFAULT:
            return self.routes[0]
        return found
