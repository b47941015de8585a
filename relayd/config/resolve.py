"""From the tables of the file to providers, routes and clients: precedence, references, defaults.

Notes what is impossible only in combination; single values are right by now. What is merely
doubtful is in `doubts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from .. import providers as known_providers
from ..jsonbody import with_member
from ..record import ANONYMOUS, OTHER
from .addresses import Base, base_url
from .credentials import Sources, pool, reason
from .problems import Notes, suggest
from .settings import Clocks, Routing
from .tables import ClientTable, ProviderTable, RouteTable
from .upstream import Candidate, Client, Provider, Route

CUSTOM = "custom"
DEFAULT_ROUTE = "default"


def provider(
    path: str, table: ProviderTable, clocks: Clocks, sources: Sources, notes: Notes
) -> Provider | None:
    """One provider; None where its place is unknown, which is noted."""
    kind = _kind(path, table, notes)
    base = table.base_url or _known_base(path, table, kind, notes)
    places = {
        "key_env": table.key_env,
        "key_file": table.key_file,
        "key_credential": table.key_credential,
    }
    keys = pool(sources, path, places, notes)
    check_ca(f"{path}.ca_file", table.ca_file, sources, notes)
    if base is None:
        return None
    no_train = table.no_train and known_providers.known(kind).no_train
    return Provider(
        name=table.name,
        kind=kind,
        base_url=str(base),
        scheme=base.scheme,
        host=base.host,
        port=base.port,
        path_prefix=base.path,
        model=table.model or None,
        models=table.models,
        keys=keys,
        surfaces=table.surfaces,
        no_train=no_train,
        headers=table.headers,
        query=table.query,
        extra_body=_denying(table.extra_body) if no_train else table.extra_body,
        ca_file=table.ca_file,
        # RFC 6066 3: no dot at the end of a server name.
        tls_server_name=table.tls_server_name or base.host.rstrip("."),
        max_in_flight=table.max_in_flight,
        price=table.price,
        connect=_first(table.connect, clocks.connect),
        first_content=_first(table.first_content, clocks.first_content),
        answer=_first(table.answer, clocks.answer),
        idle=_first(table.idle, clocks.idle),
    )


def routes(
    tables: Sequence[tuple[str, RouteTable]],
    providers: Mapping[str, Provider | None],
    clocks: Clocks,
    routing: Routing,
    notes: Notes,
) -> tuple[Route, ...]:
    """The named routes, or one named `default` with every provider in file order.

    `providers` by name; None for one whose table is wrong, which is no fault of the route.
    """
    if not tables:
        usable = [_candidate(each, RouteTable()) for each in providers.values() if each]
        return (Route(DEFAULT_ROUTE, tuple(usable), routing.commit, clocks.deadline),)
    return tuple(_route(path, table, providers, clocks, routing, notes) for path, table in tables)


def client(
    path: str, table: ClientTable, route_names: Iterable[str], sources: Sources, notes: Notes
) -> tuple[Client, str | None]:
    """One client, and its key where relayd has seen it (for the mask)."""
    if table.name == ANONYMOUS:
        # It would share its turns with whoever has none.
        notes.add(f"{path}.name", f'"{ANONYMOUS}" is the user without a name; choose another')
    for name in table.routes or ():
        if name not in route_names:
            notes.add(f"{path}.routes", f'no route "{name}"; {suggest(name, route_names)}')
    value, digest = _client_key(path, table, sources, notes)
    allowed = None if table.routes is None else frozenset(table.routes)
    return Client(table.name, digest, table.daily_turns, allowed), value


def unique_names(section: str, names: Iterable[str], notes: Notes) -> None:
    """Notes each name that an earlier `[[section]]` has; "" is one that is wrong already."""
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        if name and name in seen:
            notes.add(
                f"{section}[{number}].name",
                f'"{name}" is the name of an earlier [[{section}]]; choose another',
            )
        seen.add(name)


def unique_keys(clients: Iterable[tuple[str, Client]], notes: Notes) -> None:
    """Notes each client, under its key path, that has the key of an earlier one."""
    owners: dict[bytes, str] = {}
    for path, client in clients:
        owner = owners.setdefault(client.digest, path)
        if owner != path and client.digest:
            notes.add(path, f"has the same key as {owner}; give each client its own")


def _kind(path: str, table: ProviderTable, notes: Notes) -> str:
    kinds = known_providers.KNOWN
    if table.kind and table.kind not in kinds:
        notes.add(
            f"{path}.kind", f'"{table.kind}" is no known provider; {suggest(table.kind, kinds)}'
        )
    kind = table.kind or table.name
    return kind if kind in kinds else CUSTOM


def _known_base(path: str, table: ProviderTable, kind: str, notes: Notes) -> Base | None:
    url = known_providers.known(kind).base_url
    if url:
        return base_url(url)
    why = f'"{table.name}" is no known provider; {suggest(table.name, known_providers.KNOWN)}'
    if kind != CUSTOM:
        why = f"{kind} gives each customer its own"
    told = any(notes.has(f"{path}.{name}") for name in ("base_url", "kind", "name"))
    if not told:
        notes.add(f"{path}.base_url", f"missing; {why}")
    return None


def check_ca(key: str, ca_file: str, sources: Sources, notes: Notes) -> None:
    """A missing CA file would otherwise show only as a provider or store that is always down."""
    if not ca_file or sources.needless:
        return
    try:
        content = sources.read_file(ca_file)
    except OSError as error:
        notes.add(key, f"{ca_file} cannot be read: {reason(error)}")
        return
    if b"-----BEGIN CERTIFICATE-----" not in content:
        notes.add(key, f"{ca_file} holds no certificate in PEM form")


def _denying(members: tuple[tuple[str, bytes], ...]) -> tuple[tuple[str, bytes], ...]:
    """`extra_body` replaces the member `provider`, so the refusal must be in its value too."""
    return tuple(
        (name, with_member(value, *known_providers.NO_TRAIN) if name == "provider" else value)
        for name, value in members
    )


def _route(
    path: str,
    table: RouteTable,
    providers: Mapping[str, Provider | None],
    clocks: Clocks,
    routing: Routing,
    notes: Notes,
) -> Route:
    if table.name == OTHER:
        notes.add(
            f"{path}.name", f'"{OTHER}" is traffic without a route in metrics; choose another'
        )
    models = dict(table.models)
    for name in models:
        if name not in table.providers:
            notes.add(
                f"{path}.models.{name}",
                f"no provider of this route; {suggest(name, table.providers)}",
            )
    chain: list[Candidate] = []
    for name in table.providers:
        if name not in providers:
            notes.add(f"{path}.providers", f'no provider "{name}"; {suggest(name, providers)}')
        found = providers.get(name)
        if found is None:
            continue
        chain.append(_candidate(found, table))
        if chain[-1].model is None and not notes.has(f"provider[{name}].model"):
            remedy = f"set `model` in the provider or `models.{name}` in the route"
            notes.add(f"{path}.providers", f'"{name}" has no model here; {remedy}')
    deadline = _first(table.deadline, clocks.deadline)
    return Route(table.name, tuple(chain), table.commit or routing.commit, deadline)


def _candidate(provider: Provider, table: RouteTable) -> Candidate:
    return Candidate(
        provider=provider,
        model=dict(table.models).get(provider.name, provider.model),
        models=provider.models,
        connect=provider.connect,
        first_content=_first(table.first_content, provider.first_content),
        answer=_first(table.answer, provider.answer),
        idle=_first(table.idle, provider.idle),
    )


def _client_key(
    path: str, table: ClientTable, sources: Sources, notes: Notes
) -> tuple[str | None, bytes]:
    places = {
        "key_env": (table.key_env,) if table.key_env else (),
        "key_file": (table.key_file,) if table.key_file else (),
        "key_credential": (table.key_credential,) if table.key_credential else (),
    }
    named = any(places.values())
    told = any(notes.has(f"{path}.{kind}") for kind in ("key_sha256", *places))
    if named == bool(table.key_sha256) and not told:
        got = "both" if named else "none"
        notes.add(
            path, f"expected key_sha256, or one of key_env, key_file, key_credential; got {got}"
        )
    keys = pool(sources, path, places, notes)
    if not keys:
        return None, bytes.fromhex(table.key_sha256)
    return keys[0].value, hashlib.sha256(keys[0].value.encode("ascii")).digest()


def _first(value: float | None, default: float) -> float:
    return default if value is None else value
