"""relayd: an OpenAI-compatible gateway that replaces a failing provider before the first byte.

For a program that embeds it:

    Relay, Reply             a chain of providers in this process, and one answer of it
    Application              the HTTP endpoints as an ASGI 3 application (`relayd.asgi.app`)
    Config, Route, load_file a configuration, one chain in it, and how a file is read
    RelayError               the base of every error that `Relay.open` raises (`relayd.errors`)
    classify, Outcome        what a provider's status means
    attempt, Job, Answer     one request to one provider, judged up to the commit
    Exchange                 one request along one route, with breakers, quota and log

Names are loaded at their first use, so that a command pays for nothing it does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .asgi import Application as Application
    from .config import Config as Config
    from .config import Route as Route
    from .embed import Relay as Relay
    from .embed import Reply as Reply
    from .embed import load_file as load_file
    from .errors import RelayError as RelayError
    from .exchange import Exchange as Exchange
    from .job import Answer as Answer
    from .job import Job as Job
    from .outcomes import Outcome as Outcome
    from .outcomes import classify as classify
    from .upstream import attempt as attempt

__version__ = "0.1.0"

_WHERE = {
    "Answer": "job",
    "Application": "asgi",
    "Config": "config",
    "Exchange": "exchange",
    "Job": "job",
    "Outcome": "outcomes",
    "Relay": "embed",
    "RelayError": "errors",
    "Reply": "embed",
    "Route": "config",
    "attempt": "upstream",
    "classify": "outcomes",
    "load_file": "embed",
}

__all__ = ["__version__", *_WHERE]


if not TYPE_CHECKING:  # else every name would be one

    def __getattr__(name: str) -> object:
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
