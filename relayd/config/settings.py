"""The sections of the file that are one table each: every key with its default and its bounds.

A field's name is the key's name, its default the documented one, its metadata the reader. Durations
are seconds, sizes bytes. To add a key, add a line here and one in `config.example.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .addresses import Listen, Tcp, Trusted, listeners, server_listeners, store_url, trusted
from .values import (
    KIB,
    MIB,
    TEXT,
    VARIABLE,
    boolean,
    choice,
    field_name,
    integer,
    key,
    listed,
    matching,
    mode,
    number,
    or_empty,
    seconds,
    statuses,
    text,
    timezone,
)

MANY = 1_000_000
"""The upper bound of counts that have no natural one: a slip of the finger, not a wish."""


class Loop(StrEnum):
    """The event loop; auto is uvloop where it is installed."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


class Commit(StrEnum):
    """When the head of an answer goes out (the commit rule)."""

    HEAD = "head"
    CONTENT = "content"
    ANSWER = "answer"


class Stream(StrEnum):
    """Whether a provider is asked for a stream: as the client said, or always."""

    CLIENT = "client"
    ALWAYS = "always"


class Unknown(StrEnum):
    """What a model name that is no route gets: the first route, or 404."""

    DEFAULT = "default"
    REJECT = "reject"


class OnFailure(StrEnum):
    """What happens to turns while the store is away."""

    LOCAL = "local"
    DENY = "deny"
    ALLOW = "allow"


class Expose(StrEnum):
    """Whether a provider's words about a faulty request reach the client."""

    REQUEST = "request"
    NONE = "none"


class Level(StrEnum):
    """From which level up log lines are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """The log's form; auto is text on a terminal and JSON elsewhere."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


_CLOCK = key(seconds())
_VARIABLE = matching(VARIABLE, "the name of an environment variable in upper case", shown=False)


@dataclass(frozen=True, slots=True)
class Server:
    """`[server]`: the client side."""

    loop: Loop = field(default=Loop.AUTO, metadata=key(choice(Loop)))
    listen: tuple[Listen, ...] = field(
        default=(Tcp("127.0.0.1", 8080),), metadata=key(server_listeners)
    )
    unix_mode: int = field(default=0o660, metadata=key(mode))
    reuse_port: bool = field(default=False, metadata=key(boolean))
    max_connections: int = field(default=4096, metadata=key(integer(1, MANY)))
    max_exchanges: int = field(default=2048, metadata=key(integer(1, MANY)))
    max_head_bytes: int = field(default=64 * KIB, metadata=key(integer(KIB, MIB)))
    max_request_bytes: int = field(default=MIB, metadata=key(integer(KIB, 256 * MIB)))
    head_timeout: float = field(default=10.0, metadata=_CLOCK)
    body_timeout: float = field(default=60.0, metadata=_CLOCK)
    write_timeout: float = field(default=60.0, metadata=_CLOCK)
    idle_timeout: float = field(default=75.0, metadata=_CLOCK)
    drain_timeout: float = field(default=30.0, metadata=key(seconds(0)))
    trusted_proxies: Trusted = field(
        default_factory=lambda: trusted(["127.0.0.0/8", "::1/128", "unix:"]), metadata=key(trusted)
    )
    user_header: str = field(default="X-User-Id", metadata=key(field_name))


@dataclass(frozen=True, slots=True)
class Admin:
    """`[admin]`: where `/metrics` and `/status` are; empty is nowhere."""

    listen: tuple[Listen, ...] = field(default=(), metadata=key(listeners))


@dataclass(frozen=True, slots=True)
class Routing:
    """`[routing]`: what holds for every route."""

    commit: Commit = field(default=Commit.CONTENT, metadata=key(choice(Commit)))
    stream: Stream = field(default=Stream.CLIENT, metadata=key(choice(Stream)))
    unknown: Unknown = field(default=Unknown.DEFAULT, metadata=key(choice(Unknown)))


@dataclass(frozen=True, slots=True)
class Clocks:
    """`[clocks]`: of attempts and exchanges, where neither route nor provider says otherwise."""

    connect: float = field(default=5.0, metadata=_CLOCK)
    first_content: float = field(default=60.0, metadata=_CLOCK)
    answer: float = field(default=300.0, metadata=_CLOCK)
    idle: float = field(default=60.0, metadata=_CLOCK)
    deadline: float = field(default=600.0, metadata=_CLOCK)


@dataclass(frozen=True, slots=True)
class Failover:
    """`[failover]`: `statuses` holds single statuses (300 to 599), never 401 or 403."""

    max_attempts: int = field(default=16, metadata=key(integer(1, 16)))
    statuses: frozenset[int] = field(
        default=statuses(["3xx", 402, 408, 429, "5xx"]), metadata=key(statuses)
    )
    credentials: bool = field(default=False, metadata=key(boolean))
    codes: tuple[str, ...] = field(default=("context_length_exceeded",), metadata=key(listed(text)))
    retries: int = field(default=0, metadata=key(integer(0, 10)))
    retry_backoff: float = field(default=0.5, metadata=key(seconds(0, 300)))
    max_response_bytes: int = field(default=16 * MIB, metadata=key(integer(KIB, 256 * MIB)))
    max_stream_bytes: int = field(default=0, metadata=key(integer(0, 2**40)))
    max_idle_connections: int = field(default=2048, metadata=key(integer(0, 65_536)))
    idle_connection_age: float = field(default=60.0, metadata=_CLOCK)
    max_connection_age: float = field(default=300.0, metadata=_CLOCK)


@dataclass(frozen=True, slots=True)
class Breaker:
    """`[breaker]`: one per provider."""

    failures: int = field(default=5, metadata=key(integer(1, 10**9)))
    window: float = field(default=30.0, metadata=_CLOCK)
    cooldown: float = field(default=10.0, metadata=_CLOCK)
    cooldown_growth: float = field(default=1.0, metadata=key(number(1, 100)))
    cooldown_max: float = field(default=300.0, metadata=_CLOCK)


@dataclass(frozen=True, slots=True)
class Quota:
    """`[quota]`: turns of a user per day; 0 is no limit."""

    daily_turns: int = field(default=0, metadata=key(integer(0, 10**9)))
    continuations_per_turn: int = field(default=64, metadata=key(integer(0, MANY)))
    timezone: str = field(default="UTC", metadata=key(timezone))


@dataclass(frozen=True, slots=True)
class Store:
    """`[store]`: where turns and breakers live. `url` is not shown: it may hold a password.

    `url_env` names a variable that holds the URL instead; after the reading `url` is what counts.
    """

    url: str = field(default="memory:", metadata=key(store_url), repr=False)
    url_env: str = field(default="", metadata=key(or_empty(_VARIABLE)))
    on_failure: OnFailure = field(default=OnFailure.LOCAL, metadata=key(choice(OnFailure)))
    timeout: float = field(default=0.25, metadata=key(seconds(0.01, 60)))
    prefix: str = field(default="relayd:", metadata=key(matching(TEXT, "a key prefix")))

    @property
    def place(self) -> str:
        """The URL as it may be shown: one of redis without user info and query."""
        scheme, slashes, rest = self.url.partition("//")
        if not scheme.startswith("redis"):
            return self.url
        return scheme + slashes + rest.rpartition("@")[2].partition("?")[0]


@dataclass(frozen=True, slots=True)
class Errors:
    """`[errors]`: what clients learn."""

    expose: Expose = field(default=Expose.REQUEST, metadata=key(choice(Expose)))


@dataclass(frozen=True, slots=True)
class Log:
    """`[log]`: level and form of the log."""

    level: Level = field(default=Level.INFO, metadata=key(choice(Level)))
    format: Format = field(default=Format.AUTO, metadata=key(choice(Format)))


SECTIONS = {
    "server": Server,
    "admin": Admin,
    "routing": Routing,
    "clocks": Clocks,
    "failover": Failover,
    "breaker": Breaker,
    "quota": Quota,
    "store": Store,
    "errors": Errors,
    "log": Log,
}
"""The sections by name, in the order in which problems are told."""
