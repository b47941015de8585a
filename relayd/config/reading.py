"""From a TOML file, a dict or the environment to a `Config`, or to every problem at once.

Opens nothing itself: the environment is a mapping, a file is read by the function handed in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import doubts, resolve
from .addresses import Tcp, store_ca, store_passwords, store_url
from .credentials import Sources, Unseen, exposed, reason
from .model import Config
from .problems import ConfigError, Notes, Problem, Wrong
from .settings import (
    SECTIONS,
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
)
from .tables import REPEATED, ClientTable, ProviderTable, RouteTable, has_key, read, read_all
from .upstream import Client, Provider

NAMES = (*SECTIONS, *REPEATED)
"""What may stand at the top of the file."""

Table = Mapping[str, Any]
ReadFile = Callable[[str], bytes]


def load(
    path: str,
    environ: Mapping[str, str],
    read_file: ReadFile,
    listen: Sequence[str] = (),
    unseen: Unseen = Unseen.NOTHING,
    missing: str = "name a file that is there",
) -> Config:
    """The configuration in the TOML file at `path`; `listen` is what `--listen` said.

    `read_file` takes a path and raises OSError. `unseen` is taken for granted. `missing` is what to
    do where there is no such file. Raises ConfigError.
    """
    try:
        table = tomllib.loads(read_file(path).decode("utf-8-sig"))
    except OSError as error:
        denied = isinstance(error, PermissionError)
        text = f"cannot be read: {reason(error)}" + ("" if denied else f"; {missing}")
        raise ConfigError([Problem(path or "''", "", text)]) from error
    except UnicodeDecodeError as error:
        text = f"expected UTF-8, got something else at byte {error.start}"
        raise ConfigError([Problem(path, "", text)]) from error
    except ValueError as error:  # TOMLDecodeError, or an integer of thousands of digits
        text = f"not TOML: {str(error)[:1].lower()}{str(error)[1:]}"
        raise ConfigError([Problem(path, "", text)]) from error
    except RecursionError as error:
        raise ConfigError([Problem(path, "", "not TOML: nested too deep")]) from error
    return build(table, path, environ, read_file, listen, unseen)


def build(
    table: Table,
    source: str,
    environ: Mapping[str, str],
    read_file: ReadFile,
    listen: Sequence[str] = (),
    unseen: Unseen = Unseen.NOTHING,
) -> Config:
    """The configuration in a TOML table; `source` names it in messages. Raises ConfigError."""
    rename = {"server.listen": "--listen"} if listen else {}
    notes = Notes(source, rename)
    return assemble(listening(table, listen), Sources(environ, read_file, unseen), notes)


def listening(table: Table, listen: Sequence[str]) -> Table:
    """`table` with its listeners replaced, where `listen` names any."""
    server = table.get("server", {})
    if not listen or not isinstance(server, Mapping):
        return table
    return {**table, "server": {**server, "listen": list(listen)}}


def assemble(table: Table, sources: Sources, notes: Notes) -> Config:
    """What `build` does once the table is there and the notes know how to name its keys."""
    for name in table:
        if name not in NAMES:
            _misplaced(name, table[name], notes)
    server = read(Server, table.get("server", {}), "server", notes)
    admin = read(Admin, table.get("admin", {}), "admin", notes)
    routing = read(Routing, table.get("routing", {}), "routing", notes)
    clocks = read(Clocks, table.get("clocks", {}), "clocks", notes)
    failover = read(Failover, table.get("failover", {}), "failover", notes)
    breaker = read(Breaker, table.get("breaker", {}), "breaker", notes)
    quota = read(Quota, table.get("quota", {}), "quota", notes)
    store = _store(table.get("store", {}), sources, notes)
    resolve.check_ca("store.url", store_ca(store.url), sources, notes)
    errors = read(Errors, table.get("errors", {}), "errors", notes)
    log = read(Log, table.get("log", {}), "log", notes)
    _check_sections(server, admin, breaker, notes)

    providers = _providers(table, clocks, sources, notes)
    tables = read_all(RouteTable, table.get("route", []), "route", notes)
    named = bool(tables)
    resolve.unique_names("route", [each.name for _, each in tables], notes)
    routes = resolve.routes(tables, providers, clocks, routing, notes)
    clients, secrets = _clients(table, [route.name for route in routes], sources, notes)
    notes.stop()

    found = tuple(provider for provider in providers.values() if provider)
    doubts.about_routes(routes, found, named, notes)
    doubts.about_routing(routing, named, notes)
    doubts.about_itself((*server.listen, *admin.listen), found, notes)
    doubts.about_access(server, admin.listen, quota, clients, notes)
    secrets |= {key.value for provider in found for key in provider.keys}
    secrets = secrets.union(store_passwords(store.url), *(exposed(each).values() for each in found))
    return Config(
        server=server,
        admin=admin,
        routing=routing,
        clocks=clocks,
        failover=failover,
        breaker=breaker,
        quota=quota,
        store=store,
        errors=errors,
        log=log,
        providers=found,
        routes=routes,
        clients=clients,
        named_routes=named,
        source=notes.source,
        listen_key=notes.rename.get("server.listen", "server.listen"),
        warnings=tuple(notes.warnings),
        secrets=frozenset(secrets),
    )


def _misplaced(name: str, value: object, notes: Notes) -> None:
    """A name at the top of the file that is no section: misspelt, or a key without its section."""
    homes = [f"[{home}]" for home, kind in SECTIONS.items() if has_key(kind, name)]
    homes += [f"[[{home}]]" for home, kind in REPEATED.items() if has_key(kind, name)]
    first = value[0] if isinstance(value, list) and value else value
    if homes and not isinstance(first, Mapping):
        notes.add(name, f'unknown key; did you mean "{name}" in {" or ".join(homes)}?')
    else:
        notes.unknown("", name, NAMES)


def _providers(
    table: Table, clocks: Clocks, sources: Sources, notes: Notes
) -> dict[str, Provider | None]:
    """The providers by name, in file order; None for one that cannot be used."""
    tables = read_all(ProviderTable, table.get("provider", []), "provider", notes)
    if table.get("provider", []) == [] and not notes.has("provider"):
        notes.add("provider", "missing; at least one [[provider]] is needed")
    resolve.unique_names("provider", [each.name for _, each in tables], notes)
    found: dict[str, Provider | None] = {}
    for path, each in tables:
        provider = resolve.provider(path, each, clocks, sources, notes)
        found.setdefault(each.name, provider)
        if provider:
            doubts.about_provider(path, each, provider, notes)
    return found


def _clients(
    table: Table, routes: Sequence[str], sources: Sources, notes: Notes
) -> tuple[tuple[Client, ...], set[str]]:
    """The clients, and those of their keys that relayd has seen."""
    tables = read_all(ClientTable, table.get("client", []), "client", notes)
    pairs = [resolve.client(path, each, routes, sources, notes) for path, each in tables]
    clients = tuple(client for client, _ in pairs)
    resolve.unique_names("client", [client.name for client in clients], notes)
    resolve.unique_keys(zip([path for path, _ in tables], clients, strict=True), notes)
    return clients, {key for _, key in pairs if key}


def _store(table: object, sources: Sources, notes: Notes) -> Store:
    """The store with the URL that counts: of its key, of a variable, or of systemd's directory."""
    store = read(Store, table, "store", notes)
    given = isinstance(table, Mapping) and "url" in table
    if store_passwords(store.url):
        notes.add(
            "store.url", "a password never stands in the file: name a variable in store.url_env"
        )
    if store.url_env:
        if given:
            notes.add("store.url_env", "expected url or url_env, got both")
        if sources.needless:
            return store
        try:
            return replace(store, url=store_url(sources.variable(store.url_env)))
        except Wrong as wrong:
            notes.add("store.url_env", str(wrong))
    # systemd separates several directories by colons; the first is ours.
    state = sources.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if state and not given:
        return replace(store, url=f"sqlite:{state}/state.db")
    return store


def _check_sections(server: Server, admin: Admin, breaker: Breaker, notes: Notes) -> None:
    for place in admin.listen:
        if place in server.listen and not (isinstance(place, Tcp) and place.port == 0):
            notes.add("admin.listen", f"{place} is in server.listen too; choose another")
    if breaker.cooldown > breaker.cooldown_max:
        notes.add(
            "breaker.cooldown_max",
            f"expected at least the cooldown of {breaker.cooldown:g} s, "
            f"got {breaker.cooldown_max:g}",
        )
