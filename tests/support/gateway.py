"""A relayd in the test's own event loop, on a loopback port, in front of scripted providers.

    async with ScriptedProvider(ok(), name="a") as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
        assert g.exchange["status"] == 200

Knows how a configuration becomes an `App`, and nothing of what one does.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relayd.app import App
from relayd.config import build

from . import builders
from .client import Address, RawClient, Response
from .provider import ScriptedProvider

CHAT = "/v1/chat/completions"


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


@dataclass(slots=True)
class Gateway:
    """A running relayd: where it listens and what it has logged."""

    app: App
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def address(self) -> Address:
        """The first listener."""
        return self.addresses[0]

    @property
    def addresses(self) -> list[Address]:
        return list(self.app.addresses)

    def client(self, which: int = 0) -> RawClient:
        """A connection to the n-th listener, to be entered."""
        return RawClient(self.addresses[which])

    async def chat(
        self, text: str = "hi", *, fields: Mapping[str, str] | None = None, **members: Any
    ) -> Response:
        """One chat request on a connection of its own, and its whole answer."""
        return await self.post(CHAT, builders.chat(text, **members), fields)

    async def post(
        self, path: str, value: object, fields: Mapping[str, str] | None = None
    ) -> Response:
        """One POST on a connection of its own, and its whole answer."""
        async with self.client() as client:
            return await client.post_json(path, value, fields)

    async def get(self, path: str, fields: Mapping[str, str] | None = None) -> Response:
        """One GET on a connection of its own, and its whole answer."""
        async with self.client() as client:
            return await client.get(path, fields)

    def reload(
        self, config: Mapping[str, Any], environ: Mapping[str, str] | None = None
    ) -> None:
        """Go on with this table."""
        self.app.reload(build(dict(config), "test.toml", environ or {}, read_bytes))

    @property
    def exchanges(self) -> list[dict[str, Any]]:
        """The log lines of exchanges, oldest first."""
        return [line for line in self.log if "end_reason" in line]

    @property
    def exchange(self) -> dict[str, Any]:
        """The log line of the one exchange there was."""
        assert len(self.exchanges) == 1, f"expected one exchange in the log, got {self.exchanges}"
        return self.exchanges[0]


@asynccontextmanager
async def gateway(
    config: Mapping[str, Any] | str,
    *,
    environ: Mapping[str, str] | None = None,
    read_file: Callable[[str], bytes] = read_bytes,
    drain: float = 0.0,
) -> AsyncIterator[Gateway]:
    """relayd with this table or TOML text; stopped with `drain` seconds at the end.

    The environment is `environ` alone, not this process's.
    """
    table = tomllib.loads(config) if isinstance(config, str) else dict(config)
    log: list[dict[str, Any]] = []
    settings = build(table, "test.toml", environ or {}, read_file)
    app = App(settings, write=lambda line: log.append(json.loads(line)))
    await app.start()
    try:
        yield Gateway(app, log)
    finally:
        await app.stop(drain)


def config_for(*providers: ScriptedProvider | Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    """A configuration table: these providers in order, a free loopback port, and `sections`.

    `config_for(a, b, clocks={"idle": 1}, route=[{"name": "r", "providers": ["a"]}])`. A provider
    may be a `[[provider]]` table instead of a scripted one.
    """
    tables = [p.table if isinstance(p, ScriptedProvider) else dict(p) for p in providers]
    server = {"listen": "127.0.0.1:0", **sections.pop("server", {})}
    return {"server": server, "provider": tables, **sections}
