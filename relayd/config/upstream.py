"""Providers, routes and clients as the rest of the program uses them: every default resolved.

Frozen, compared by value (a reload asks what changed). Does not know the file, the environment or
any connection.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from .. import providers
from ..surfaces import Surface
from .settings import Commit
from .values import Price


@dataclass(frozen=True, slots=True)
class Secret:
    """A key that no text shows.

    `value` is visible ASCII; `label` says where it came from (a variable, a file, a credential);
    `id` is stable and short, for stores and logs: 8 hexadecimal digits of the SHA-256.
    """

    value: str = field(repr=False)
    label: str
    id: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256(self.value.encode("utf-8")).hexdigest()
        object.__setattr__(self, "id", digest[:8])


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider: where it is, what it is asked for, how long one may wait for it.

    `kind` is a name in `providers.KNOWN`, or `custom`. `base_url` has no user info, query or slash
    at its end; `path_prefix` is its path. `model` None: the client's model goes through. `keys`
    empty: no credential is sent. `query` is encoded, without `?`. `extra_body` holds JSON bytes by
    member name. `ca_file` empty: the system's authorities. `tls_server_name` is the name for SNI
    and verification. `max_in_flight` 0: no limit. Clocks in seconds.
    """

    name: str
    kind: str
    base_url: str
    scheme: str
    host: str
    port: int
    path_prefix: str
    model: str | None
    models: tuple[tuple[str, str], ...]
    keys: tuple[Secret, ...]
    surfaces: frozenset[Surface]
    no_train: bool
    headers: tuple[tuple[str, str], ...]
    query: str
    extra_body: tuple[tuple[str, bytes], ...]
    ca_file: str
    tls_server_name: str
    max_in_flight: int
    price: Price | None
    connect: float
    first_content: float
    answer: float
    idle: float

    @property
    def authority(self) -> str:
        """Host, and the port where it is not the usual one: the value of `Host`."""
        return self.base_url.partition("://")[2].partition("/")[0]

    def target(self, surface: Surface) -> str:
        """The request target: path and query."""
        path = self.path_prefix + surface.path
        return f"{path}?{self.query}" if self.query else path

    def url(self, surface: Surface) -> str:
        """The URL for traces and logs: without the query."""
        return self.base_url + surface.path

    def credential(self, surface: Surface, key: Secret) -> tuple[bytes, bytes]:
        """The request field (name, value) that carries `key`."""
        return providers.credential(self.kind, surface, key.value)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A provider in a route, with what holds there: route before provider before `[clocks]`.

    `model` None: the client's model goes through. `models` by hint of the small API.
    """

    provider: Provider
    model: str | None
    models: tuple[tuple[str, str], ...]
    connect: float
    first_content: float
    answer: float
    idle: float

    def hinted(self, hint: str | None) -> str | None:
        """The model for a `model_hint` of the small API; `model` where the hint has none."""
        return dict(self.models).get(hint or "", self.model) if self.models else self.model


@dataclass(frozen=True, slots=True)
class Route:
    """A chain of candidates (at least one, no provider twice) under a model name."""

    name: str
    candidates: tuple[Candidate, ...]
    commit: Commit
    deadline: float
    _on: dict[Surface, tuple[Candidate, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        on = {
            surface: tuple(c for c in self.candidates if surface in c.provider.surfaces)
            for surface in Surface
        }
        object.__setattr__(self, "_on", on)

    def on(self, surface: Surface) -> tuple[Candidate, ...]:
        """The candidates that take part in a surface."""
        return self._on[surface]


@dataclass(frozen=True, slots=True)
class Client:
    """Who may call: `digest` is the SHA-256 of its key (32 bytes).

    `daily_turns` None: that of `[quota]`; 0: no limit. `routes` None: all of them.
    """

    name: str
    digest: bytes = field(repr=False)
    daily_turns: int | None
    routes: frozenset[str] | None
