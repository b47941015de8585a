"""Warnings: what a configuration may say and its author has probably not meant.

Each function looks at one thing in a configuration that is otherwise right.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..providers import known
from .addresses import LOCAL_NAMES, Listen, Tcp, is_loopback
from .credentials import exposed
from .problems import Notes
from .settings import Quota, Routing, Server, Unknown
from .tables import ProviderTable
from .upstream import Client, Provider, Route

WILDCARDS = frozenset({"0.0.0.0", "::"})
EVERYONE = 0
"""Prefix length of a network that holds every address."""


def about_provider(path: str, table: ProviderTable, provider: Provider, notes: Notes) -> None:
    """Keys in the clear, keys that are missing, a promise the provider does not know."""
    if table.no_train and not provider.no_train:
        notes.warn(
            f"{path}.no_train", f"{provider.kind} has no such switch; the key has no effect here"
        )
    if provider.keys and provider.scheme == "http" and not is_loopback(provider.host):
        notes.warn(
            f"{path}.base_url",
            f"the key goes to {provider.host} unencrypted; use https if it can be had",
        )
    for place, name in exposed(provider):
        notes.warn(
            f"{path}.{place}",
            f'"{name}" has the name of a key, and whoever reads the file reads it: '
            "key_env keeps the provider's own out of there",
        )
    entry = known(provider.kind)
    if entry.needs_key and not provider.keys and table.base_url is None:
        notes.warn(path, f"{provider.kind} answers nobody without a key; set key_env")


def about_itself(places: Iterable[Listen], providers: Iterable[Provider], notes: Notes) -> None:
    """Providers that are relayd itself: a request would go round until the deadline."""
    own = [place for place in places if isinstance(place, Tcp)]
    for provider in providers:
        for place in own:
            if place.port == provider.port and _meets(provider.host, place):
                notes.warn(
                    f"provider[{provider.name}].base_url",
                    f"relayd itself is to listen on {place}; choose another port for one of them",
                )


def _meets(host: str, place: Tcp) -> bool:
    """Whether a connection to `host` may arrive at the listener, as far as names can tell."""
    own = place.host.lower()
    if host == own:
        return True
    either = bool(LOCAL_NAMES & {host.rstrip("."), own.rstrip(".")})
    return is_loopback(host) and (own in WILDCARDS or (place.local and either))


def about_routes(
    routes: Iterable[Route], providers: Iterable[Provider], named: bool, notes: Notes
) -> None:
    """Providers that no route asks, first attempts that leave no time for a second."""
    used = {candidate.provider.name for route in routes for candidate in route.candidates}
    for provider in providers:
        if provider.name not in used:
            notes.warn(f"provider[{provider.name}]", "stands in no route and is never asked")
    for route in routes:
        place = f"route[{route.name}].deadline" if named else "clocks.deadline"
        for candidate in route.candidates[:-1]:
            if candidate.first_content >= route.deadline:
                notes.warn(
                    place,
                    f"{route.deadline:g} s leave no time for another provider when "
                    f"{candidate.provider.name} is silent for its first_content of "
                    f"{candidate.first_content:g} s",
                )


def about_routing(routing: Routing, named: bool, notes: Notes) -> None:
    """A rule about route names where there are none."""
    if routing.unknown is Unknown.REJECT and not named:
        notes.warn("routing.unknown", "without [[route]] there is no name to reject by")


def about_access(
    server: Server, admin: Iterable[Listen], quota: Quota, clients: Iterable[Client], notes: Notes
) -> None:
    """Doors that are open to strangers."""
    open_places = [str(place) for place in server.listen if not place.local]
    if open_places and not any(clients):
        where = ", ".join(open_places)
        notes.warn("server.listen", f"without [[client]] whoever reaches {where} may use relayd")
        if quota.daily_turns:
            notes.warn(
                "quota.daily_turns", "without [[client]] all strangers share one `anonymous` cap"
            )
    for place in admin:
        if not place.local:
            notes.warn("admin.listen", f"whoever reaches {place} sees metrics and status")
    for network in server.trusted_proxies.networks:
        if network.prefixlen == EVERYONE:
            notes.warn(
                "server.trusted_proxies", f"with {network} any client may say which user it is"
            )
