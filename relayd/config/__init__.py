"""Configuration: TOML or the environment to frozen dataclasses, with every problem at once.

    reading, environment    where it comes from; `load`, `build`, `from_environment`
    settings, tables        every key: name, default, bounds
    values, addresses       how one value is read
    resolve, credentials    what the keys mean together: providers, routes, clients, secrets
    doubts, problems        what is told to the operator
    model, upstream         what the program runs on

Opens no file and asks no clock: whoever calls hands in the environment and a file reader.
"""

from __future__ import annotations

from .addresses import Listen, Tcp, Trusted, Unix
from .credentials import Unseen
from .environment import from_environment
from .model import Config
from .problems import ConfigError, Problem
from .reading import build, load
from .settings import (
    Admin,
    Breaker,
    Clocks,
    Commit,
    Errors,
    Expose,
    Failover,
    Format,
    Level,
    Log,
    Loop,
    OnFailure,
    Quota,
    Routing,
    Server,
    Store,
    Stream,
    Unknown,
)
from .upstream import Candidate, Client, Provider, Route, Secret
from .values import Price

__all__ = [
    "Admin",
    "Breaker",
    "Candidate",
    "Client",
    "Clocks",
    "Commit",
    "Config",
    "ConfigError",
    "Errors",
    "Expose",
    "Failover",
    "Format",
    "Level",
    "Listen",
    "Log",
    "Loop",
    "OnFailure",
    "Price",
    "Problem",
    "Provider",
    "Quota",
    "Route",
    "Routing",
    "Secret",
    "Server",
    "Store",
    "Stream",
    "Tcp",
    "Trusted",
    "Unix",
    "Unknown",
    "Unseen",
    "build",
    "from_environment",
    "load",
]
