"""The repeated tables as the file writes them, and how any table becomes a dataclass.

An empty string or None is "not given". What these keys mean together is decided in `resolve`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from ..surfaces import Surface
from .addresses import Base, base_url
from .problems import Notes, Wrong
from .settings import Commit
from .values import (
    HINTS,
    NAME,
    ROUTE,
    VARIABLE,
    Price,
    boolean,
    choice,
    describe,
    fields_table,
    integer,
    key,
    listed,
    mapping,
    matching,
    members,
    one_of,
    or_empty,
    price,
    query,
    seconds,
    string,
    surfaces,
    text,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)

_SHA256 = re.compile("[0-9a-fA-F]{64}")
_CLOCK = key(seconds())
_VARIABLE = matching(
    VARIABLE,
    "the name of an environment variable in upper case, never the key itself",
    shown=False,
)
_CREDENTIAL = matching(
    re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,255}"),
    "the name of a credential, never the key itself",
    shown=False,
)
_PROVIDER = matching(NAME, "a name of letters, digits, `-`, `_` and `.`")
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = matching(re.compile(rf"(?!_){_LABEL}(\.{_LABEL})*"), "a host name")


@dataclass(frozen=True, slots=True)
class ProviderTable:
    """`[[provider]]`."""

    name: str = field(default="", metadata=key(_PROVIDER, required=True))
    kind: str = field(default="", metadata=key(text))
    base_url: Base | None = field(default=None, metadata=key(base_url))
    model: str = field(default="", metadata=key(text))
    models: tuple[tuple[str, str], ...] = field(
        default=(), metadata=key(mapping(one_of(HINTS), text))
    )
    key_env: tuple[str, ...] = field(default=(), metadata=key(listed(_VARIABLE, least=1)))
    key_file: tuple[str, ...] = field(default=(), metadata=key(listed(text, least=1)))
    key_credential: tuple[str, ...] = field(default=(), metadata=key(listed(_CREDENTIAL, least=1)))
    surfaces: frozenset[Surface] = field(default=frozenset({Surface.CHAT}), metadata=key(surfaces))
    no_train: bool = field(default=False, metadata=key(boolean))
    headers: tuple[tuple[str, str], ...] = field(default=(), metadata=key(fields_table))
    query: str = field(default="", metadata=key(query))
    extra_body: tuple[tuple[str, bytes], ...] = field(default=(), metadata=key(members))
    ca_file: str = field(default="", metadata=key(string))
    tls_server_name: str = field(default="", metadata=key(or_empty(_HOST)))
    max_in_flight: int = field(default=0, metadata=key(integer(0, 1_000_000)))
    price: Price | None = field(default=None, metadata=key(price))
    connect: float | None = field(default=None, metadata=_CLOCK)
    first_content: float | None = field(default=None, metadata=_CLOCK)
    answer: float | None = field(default=None, metadata=_CLOCK)
    idle: float | None = field(default=None, metadata=_CLOCK)


@dataclass(frozen=True, slots=True)
class RouteTable:
    """`[[route]]`."""

    name: str = field(
        default="",
        metadata=key(matching(ROUTE, "printable ASCII without blanks"), required=True),
    )
    providers: tuple[str, ...] = field(
        default=(), metadata=key(listed(text, least=1), required=True)
    )
    models: tuple[tuple[str, str], ...] = field(default=(), metadata=key(mapping(text, text)))
    commit: Commit | None = field(default=None, metadata=key(choice(Commit)))
    first_content: float | None = field(default=None, metadata=_CLOCK)
    answer: float | None = field(default=None, metadata=_CLOCK)
    idle: float | None = field(default=None, metadata=_CLOCK)
    deadline: float | None = field(default=None, metadata=_CLOCK)


@dataclass(frozen=True, slots=True)
class ClientTable:
    """`[[client]]`; it has one key, in one of four places."""

    name: str = field(default="", metadata=key(_PROVIDER, required=True))
    key_sha256: str = field(
        default="",
        metadata=key(matching(_SHA256, "the 64 hexadecimal digits of a SHA-256", shown=False)),
    )
    key_env: str = field(default="", metadata=key(_VARIABLE))
    key_file: str = field(default="", metadata=key(text))
    key_credential: str = field(default="", metadata=key(_CREDENTIAL))
    daily_turns: int | None = field(default=None, metadata=key(integer(0, 10**9)))
    routes: tuple[str, ...] | None = field(default=None, metadata=key(listed(text, least=1)))


REPEATED = {"provider": ProviderTable, "route": RouteTable, "client": ClientTable}
"""The tables that may stand more than once, in the order in which problems are told."""


def read(kind: type[D], table: object, path: str, notes: Notes) -> D:
    """One table as a `kind`; a key that is wrong is noted and has its default."""
    if not isinstance(table, Mapping):
        notes.add(path, f"expected a table, got {describe(table)}")
        return kind()
    known = {item.name: item.metadata for item in fields(kind)}
    for name in table:
        if name not in known:
            notes.unknown(path, str(name), known)
    values: dict[str, Any] = {}
    for name, metadata in known.items():
        if name not in table:
            if metadata["required"]:
                notes.add(f"{path}.{name}", "missing; it has no default")
            continue
        try:
            values[name] = metadata["read"](table[name])
        except Wrong as wrong:
            for text_ in wrong.texts:
                notes.add(f"{path}.{name}", text_)
    return kind(**values)


def has_key(kind: type[DataclassInstance], name: str) -> bool:
    """Whether a table that becomes a `kind` may hold this key."""
    return name in {item.name for item in fields(kind)}


def read_all(kind: type[D], tables: object, section: str, notes: Notes) -> list[tuple[str, D]]:
    """Every `[[section]]` as (key path, dataclass), in file order; what is no table is left out."""
    if not isinstance(tables, list):
        notes.add(section, f"expected [[{section}]], got {describe(tables)}")
        return []
    found: list[tuple[str, D]] = []
    for number, table in enumerate(tables, start=1):
        path = place(section, number, table)
        if isinstance(table, Mapping):
            found.append((path, read(kind, table, path, notes)))
        else:
            notes.add(path, f"expected a table, got {describe(table)}")
    return found


def place(section: str, number: int, table: object) -> str:
    """The key path of one repeated table: `provider[groq]`, or `provider[2]` without a name."""
    name = table.get("name") if isinstance(table, Mapping) else None
    named = isinstance(name, str) and ROUTE.fullmatch(name)
    return f"{section}[{name if named else number}]"
