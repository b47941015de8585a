"""K74: a gateway in front cut after 30 s, because no byte is sent before the first token.

https://github.com/ollama/ollama/issues/7685
relayd is silent until it commits, or failover would be over: so whoever stands in front has to wait
longer than relayd does. Real time, since nginx is another program.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from relayd.config import build
from tests.support import scripts
from tests.support.builders import chat
from tests.support.client import RawClient, Response
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.real import PROJECT, free_port, nginx

pytestmark = pytest.mark.real_time

FIRST = 1.5
"""Seconds until the provider says its first word."""

SERVER = """
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://127.0.0.1:{to};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout {wait};
        }}
    }}
"""


@asynccontextmanager
async def behind_nginx(folder: Path, wait: str) -> AsyncIterator[tuple[Gateway, RawClient]]:
    """relayd with a thoughtful provider, and a client of the nginx before it."""
    port = free_port()
    slow = scripts.slow(FIRST, scripts.ok_stream("hello"))
    async with ScriptedProvider(slow) as a, gateway(config_for(a)) as g:
        http = SERVER.format(port=port, to=g.address[1], wait=wait)
        async with nginx(folder, http, ("127.0.0.1", port)):
            async with RawClient(("127.0.0.1", port)) as client:
                yield g, client


async def ask(client: RawClient) -> Response:
    return await client.post_json(CHAT, chat(stream=True))


async def test_an_nginx_that_waits_less_cuts_and_relayd_counts_it_as_a_departure(
    tmp_path: Path,
) -> None:
    async with behind_nginx(tmp_path, "1s") as (g, client):
        answer = await ask(client)
    assert answer.status == 504
    assert g.exchange["end_reason"] == "client_left"
    assert g.exchange["status"] == 499


async def test_an_nginx_that_waits_longer_passes_the_stream_on(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path, "10s") as (g, client):
        answer = await ask(client)
    assert answer.status == 200
    assert b"hello" in answer.body
    assert answer.whole
    assert g.exchange["end_reason"] == "complete"


def test_the_nginx_of_the_sample_waits_longer_than_the_deadline() -> None:
    sample = (PROJECT / "systemd" / "nginx.conf.example").read_text()
    table = {"provider": [{"name": "a", "base_url": "http://127.0.0.1:9/v1"}]}
    config = build(table, "test.toml", {}, lambda _: b"")
    waits = [int(found) for found in re.findall(r"proxy_read_timeout (\d+)s;", sample)]
    assert waits
    assert min(waits) > max(route.deadline for route in config.routes)
