"""nginx before a daemon, as the sample configures it or as it comes; over TCP and a unix socket."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import builders
from tests.support.builders import chat
from tests.support.client import Address, RawClient, post, request
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.real import PROJECT, free_port, nginx
from tests.support.scripts import breaks_off, ok, ok_stream
from tests.support.service import (
    Generations,
    Place,
    Streams,
    asking,
    config,
    generations,
    gone,
    readers,
)
from tests.support.wire import WHOLE

PLAIN = """
    upstream relayd {{ server {upstream}; }}
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://relayd; }} }}
"""
"""What somebody writes who has read nothing: HTTP/1.0, buffering on."""

KINDS = ["tcp", "unix"]


def plain(port: int, upstream: str) -> str:
    return PLAIN.format(port=port, upstream=upstream)


def sample(port: int, upstream: str) -> str:
    """The shipped site without its TLS, at this port."""
    text = (PROJECT / "systemd" / "nginx.conf.example").read_text()
    text = re.sub(r"(?m)^ +(listen \[::\]|ssl_).*\n", "", text)
    text = text.replace("listen 443 ssl http2", f"listen 127.0.0.1:{port}")
    assert text.count(f"127.0.0.1:{port}") == 1
    return text.replace("unix:/run/relayd.sock", upstream)


@dataclass(frozen=True, slots=True)
class Site:
    """A daemon behind nginx."""

    at: Address
    daemon: Generations
    place: Place


@asynccontextmanager
async def behind(
    folder: Path, provider: ScriptedProvider, kind: str, *, ours: bool = True
) -> AsyncIterator[Site]:
    place, port = Place.free(folder), free_port()
    upstream = f"unix:{place.unix}" if kind == "unix" else f"127.0.0.1:{place.tcp[1]}"
    site = sample(port, upstream) if ours else plain(port, upstream)
    async with (
        generations(folder, config(place.both, provider)) as daemon,
        nginx(folder, site, ("127.0.0.1", port)),
    ):
        yield Site(("127.0.0.1", port), daemon, place)


async def pipelined(at: Address, requests: list[bytes]) -> list[int]:
    """The statuses of requests that are sent all at once on one connection."""
    async with RawClient(at) as client:
        sending = asyncio.create_task(client.send(b"".join(requests)))
        statuses = [(await client.response()).status for _ in requests]
        await sending
    return statuses


async def test_ten_thousand_requests_over_a_unix_socket_meet_no_502(tmp_path: Path) -> None:
    each = [request("GET", "/v1/models")] * 48 + [post(CHAT, chat())] * 2
    async with ScriptedProvider(ok(), name="a") as a, behind(tmp_path, a, "unix") as site:
        tasks = [pipelined(site.at, each * 20) for _ in range(10)]
        statuses = [status for found in await asyncio.gather(*tasks) for status in found]
    assert len(statuses) == 10_000
    assert set(statuses) == {200}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ours", [True, False], ids=["sample", "defaults"])
async def test_events_arrive_one_by_one(tmp_path: Path, kind: str, ours: bool) -> None:
    streams = Streams()  # goes on until it is told to finish, so that a held event never comes
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        behind(tmp_path, a, kind, ours=ours) as site,
        readers(site.at, 1) as (reader,),
    ):
        for _ in range(5):
            event = await reader.answer.event()
            assert event is not None
        streams.finish.set()
        await reader.rest(streams)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_that_is_cut_does_not_look_whole(tmp_path: Path, kind: str) -> None:
    cut = breaks_off(builders.role(), builders.delta("a"), b'data: {"ch', then="fin")
    async with (
        ScriptedProvider(cut, name="a") as a,
        behind(tmp_path, a, kind) as site,
        RawClient(site.at) as client,
    ):
        answer = await (await client.open_stream(CHAT, chat(stream=True))).read()
        assert b"[DONE]" not in answer.body
        assert answer.ended not in WHOLE


@pytest.mark.parametrize("kind", KINDS)
async def test_an_error_event_after_the_commit_arrives(tmp_path: Path, kind: str) -> None:
    cut = breaks_off(builders.role(), builders.delta("a"), then="fin")
    async with (
        ScriptedProvider(cut, name="a") as a,
        behind(tmp_path, a, kind) as site,
        RawClient(site.at) as client,
    ):
        answer = await (await client.open_stream(CHAT, chat(stream=True))).read()
        assert answer.whole
        assert b'"code":"upstream_truncated"' in answer.body


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_leaves_is_seen_through_nginx(tmp_path: Path, kind: str) -> None:
    streams = Streams()
    async with ScriptedProvider(streams.script, name="a") as a, behind(tmp_path, a, kind) as site:
        async with readers(site.at, 1):
            assert a.open == 1
        await a.seen.peers[0].left.wait()
        await site.daemon.line('"end_reason":"client_left"')


@pytest.mark.parametrize("kind", KINDS)
async def test_reload_and_upgrade_are_not_seen_through_nginx(tmp_path: Path, kind: str) -> None:
    streams = Streams()
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        behind(tmp_path, a, kind) as site,
        readers(site.at, 10) as running,
        asking(site.at, site.at) as asked,
    ):
        for turn in range(2):
            site.daemon.signal(signal.SIGHUP)
            await site.daemon.running.line(
                lambda _, n=turn + 1: len(site.daemon.events("reload")) >= n
            )
            old = await site.daemon.upgrade()
            count = asked.count
            while asked.count < count + 20:
                async with RawClient(site.at) as client:
                    assert (await client.post_json(CHAT, chat())).status == 200
        streams.finish.set()
        for reader in running:
            await reader.rest(streams)
        await gone(old)
    assert asked.count > 40


@pytest.mark.parametrize("kind", KINDS)
async def test_the_user_is_taken_from_nginx(tmp_path: Path, kind: str) -> None:
    async with ScriptedProvider(ok_stream(), name="a") as a, behind(tmp_path, a, kind) as site:
        async with RawClient(site.at) as client:
            await client.post_json(CHAT, chat(), {"X-Forwarded-For": "9.9.9.9"})
        await site.daemon.line('"peer":"127.0.0.1"')


async def test_http_1_0_is_warned_of_once(tmp_path: Path) -> None:
    async with (
        ScriptedProvider(ok(), name="a") as a,
        behind(tmp_path, a, "tcp", ours=False) as site,
    ):
        for _ in range(3):
            async with RawClient(site.at) as client:
                assert (await client.post_json(CHAT, chat())).status == 200
        await site.daemon.line("nginx speaks HTTP/1.0", "proxy_http_version 1.1")
        assert sum("HTTP/1.0" in line for line in site.daemon.running.out) == 1
