"""SIGTERM: what runs is finished or ended honestly, then the process is gone."""

from __future__ import annotations

import asyncio
import signal
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.builders import chat
from tests.support.client import RawClient
from tests.support.gateway import CHAT
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok_json, silent
from tests.support.service import (
    Manager,
    Place,
    Streams,
    arrived,
    config,
    exists,
    generations,
    readers,
)
from tests.support.wire import Ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_with_nothing_running_it_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        generations(tmp_path, config(place.both, a, more="drain_timeout = 3600")) as daemon,
        RawClient(place.tcp) as idle,
        RawClient(place.tcp),
    ):
        await idle.get("/healthz")
        daemon.signal(number)
        assert await daemon.running.ended() == 0
        assert await idle.ended() is Ended.CLOSE
        assert not exists(place.unix)
        assert [line["event"] for line in daemon.log[-2:]] == ["drain", "stop"]


async def test_fifty_streams_end_as_their_provider_ends_them(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    more = "drain_timeout = 50"
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        generations(tmp_path, config(place.both, a, more=more)) as daemon,
        readers(place.tcp, 50) as running,
    ):
        daemon.signal(signal.SIGTERM)
        await daemon.line("draining for up to 50 s")
        for address in place.both:
            with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
                await RawClient(address).connect()
        assert daemon.running.process.returncode is None
        streams.finish.set()
        for reader in running:
            await reader.rest(streams)
        assert await daemon.running.ended() == 0


async def test_a_stream_that_takes_too_long_is_ended_honestly(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    more = "drain_timeout = 0.2"
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        generations(tmp_path, config([place.tcp], a, more=more)) as daemon,
        readers(place.tcp, 3) as running,
    ):
        daemon.signal(signal.SIGTERM)
        for reader in running:
            await reader.answer.read()
            assert reader.answer.ended is Ended.CHUNKS
            assert b'"code":"shutting_down"' in reader.answer.body
            assert b"[DONE]" not in reader.answer.body
        assert await daemon.running.ended() == 0
        assert {line["end_reason"] for line in daemon.log if "end_reason" in line} == {
            "shutting_down"
        }


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        generations(tmp_path, config([place.tcp], a, more="drain_timeout = 3600")) as daemon,
        readers(place.tcp, 3) as running,
    ):
        daemon.signal(signal.SIGTERM)
        await daemon.line("draining for up to 3600 s")
        daemon.signal(signal.SIGINT)
        for reader in running:
            await reader.answer.read()
            assert b'"code":"shutting_down"' in reader.answer.body
        assert await daemon.running.ended() == 0


STOPS = {
    "when the drain is over": (0.2, [signal.SIGTERM]),
    "at once, by two in one turn": (
        3600,
        [signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT],
    ),
}


@pytest.mark.parametrize("when", STOPS)
async def test_an_exchange_before_its_commit_is_told_that_relayd_stops(
    when: str, tmp_path: Path
) -> None:
    place = Place.free(tmp_path)
    drain, signals = STOPS[when]
    async with (
        ScriptedProvider(silent(), name="a") as a,
        generations(tmp_path, config([place.tcp], a, more=f"drain_timeout = {drain}")) as daemon,
        RawClient(place.tcp) as client,
    ):
        asking = asyncio.create_task(client.post_json(CHAT, chat()))
        await arrived(a)
        for number in signals:
            daemon.signal(number)
        answer = await asking
        assert (answer.status, answer.error["code"]) == (503, "draining")
        assert await daemon.running.ended() == 0


async def test_a_request_whose_body_is_still_coming_is_served(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    async with (
        ScriptedProvider(ok_json(), name="a") as a,
        generations(tmp_path, config([place.tcp], a)) as daemon,
        RawClient(place.tcp) as client,
    ):
        await client.send(head.encode())
        assert await client.reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        await client.reader.readline()
        daemon.signal(signal.SIGTERM)
        await daemon.line("draining for up to 30 s")
        await client.send(b"{}")
        answer = await client.response("POST")
        assert answer.status == 400
        assert answer.field("Connection") == "close"
        assert await daemon.running.ended() == 0


async def test_meanwhile_it_is_not_ready_and_says_so(tmp_path: Path) -> None:
    place, streams, admin = Place.free(tmp_path), Streams(), str(tmp_path / "admin.sock")
    more = f'[admin]\nlisten = ["unix:{admin}"]'
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        generations(tmp_path, config([place.tcp], a, more=more)) as daemon,
        readers(place.tcp, 1) as (reader,),
    ):
        daemon.signal(signal.SIGTERM)
        await daemon.line('"event":"drain"')
        async with RawClient(admin) as client:
            assert (await client.get("/readyz")).status == 503
        async with RawClient(admin) as client:
            assert (await client.get("/healthz")).status == 200
        async with RawClient(admin) as client:
            assert (await client.get("/health")).json()["draining"] is True
        streams.finish.set()
        await reader.rest(streams)
        assert await daemon.running.ended() == 0


async def test_on_a_socket_of_systemd_a_new_connection_is_told(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    with socket.create_server(("127.0.0.1", 0)) as http:
        at = http.getsockname()
        async with (
            ScriptedProvider(streams.script, name="a") as a,
            generations(
                tmp_path, config([place.tcp], a), sockets=[("relayd.socket", http)]
            ) as daemon,
            readers(at, 1) as (reader,),
        ):
            daemon.signal(signal.SIGTERM)
            await daemon.line('"event":"drain"')
            async with RawClient(at) as client:
                answer = await client.post_json(CHAT, chat())
            assert (answer.status, answer.error["code"]) == (503, "draining")
            streams.finish.set()
            await reader.rest(streams)
            assert await daemon.running.ended() == 0


async def test_the_manager_hears_how_long_it_takes(tmp_path: Path) -> None:
    place, streams = Place.free(tmp_path), Streams()
    async with (
        ScriptedProvider(streams.script, name="a") as a,
        Manager(tmp_path) as manager,
        generations(tmp_path, config([place.tcp], a), {"NOTIFY_SOCKET": manager.path}) as daemon,
        readers(place.tcp, 2) as running,
    ):
        await manager.heard("READY", "1")
        status = "1 of 1 providers up, 2 open exchanges"
        await manager.heard_of("STATUS", status)
        daemon.signal(signal.SIGTERM)
        stopping = await manager.heard("STOPPING", "1")
        at = manager.messages.index(stopping)
        extended = await manager.heard("EXTEND_TIMEOUT_USEC", after=at)
        again = manager.messages.index(extended) + 1
        await manager.heard("EXTEND_TIMEOUT_USEC", after=again)
        await manager.heard_of("STATUS", f"draining, {status}")
        streams.finish.set()
        for reader in running:
            await reader.rest(streams)
        assert await daemon.running.ended() == 0
        said = [text for m in manager.messages if (text := m.value("STATUS"))]
        assert all(one != other for one, other in pairwise(said))  # only what is new
