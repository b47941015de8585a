"""The scripted provider and the raw client, against each other, with and without the proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support import builders, scripts
from tests.support.certificates import Authority
from tests.support.chaos import ChaosProxy, Rules
from tests.support.client import RawClient, Response, post
from tests.support.loop import START, elapsed, takes
from tests.support.provider import Peer, ScriptedProvider
from tests.support.wire import Ended, WireFault, framing, parse_response

pytestmark = pytest.mark.virtual_time
PATH = "/v1/chat/completions"


async def ask(provider: ScriptedProvider, **members: object) -> Response:
    async with RawClient(provider.address) as client:
        return await client.post_json(PATH, builders.chat(**members))


async def test_a_provider_answers_json_or_a_stream_as_the_request_asks() -> None:
    async with ScriptedProvider(scripts.ok("a", "b")) as provider:
        whole = await ask(provider)
        stream = await ask(provider, stream=True)
    assert whole.json()["choices"][0]["message"]["content"] == "ab"
    assert (whole.ended, stream.ended) == (Ended.LENGTH, Ended.CHUNKS)
    assert stream.body == b"".join(builders.stream("a", "b"))


async def test_the_request_is_kept_as_it_came() -> None:
    async with ScriptedProvider(scripts.ok()) as provider:
        async with RawClient(provider.address) as client:
            body = b'{ "model":"m" , "messages":[] }'
            await client.post_json(PATH, body, {"X-One": "1"})
    (request,) = provider.requests
    assert request.body == body
    assert request.head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nHost: relayd.test\r\n")
    assert request.field("x-one") == "1"
    assert request.at == START


async def test_scripts_run_in_order_and_the_last_one_repeats() -> None:
    async with ScriptedProvider(scripts.status(503), scripts.ok()) as provider:
        assert [(await ask(provider)).status for _ in range(3)] == [503, 200, 200]


async def test_one_connection_carries_many_requests_and_pipelined_ones() -> None:
    async with ScriptedProvider(scripts.ok()) as provider:
        async with RawClient(provider.address) as client:
            await client.send(post(PATH, builders.chat()) * 2)
            assert [(await client.response()).status for _ in range(2)] == [200, 200]
            assert (await client.post_json(PATH, builders.chat())).whole
        assert provider.connections == 1


async def test_events_carry_the_virtual_time_at_which_they_came() -> None:
    events = builders.stream("a", "b")
    async with ScriptedProvider(scripts.events(*events, delay=30)) as provider:
        async with RawClient(provider.address) as client:
            stream = await client.open_stream(PATH, builders.chat())
            seen = await stream.events()
    assert [event.raw for event in seen] == events
    assert [round(event.at - START) for event in seen] == [0, 30, 60, 90, 120]
    assert seen[1].json()["choices"][0]["delta"] == {"content": "a"}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\r\n\n", b"\n\r"])
async def test_an_event_ends_at_a_blank_line_of_any_kind(end: bytes) -> None:
    events = [b"data: 1" + end, b"event: x" + end[: len(end) // 2] + b"data: 2" + end]
    async with ScriptedProvider(scripts.events(*events, delay=1)) as provider:
        async with RawClient(provider.address) as client:
            stream = await client.open_stream(PATH, builders.chat())
            assert [event.data for event in await stream.events()] == ["1", "2"]


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        (scripts.events(builders.delta("a"), chunked=False), Ended.CLOSE),
        (scripts.breaks_off(builders.delta("a"), then="fin"), Ended.CUT),
        (scripts.breaks_off(builders.delta("a"), then="cut"), Ended.CUT),
        (scripts.breaks_off(builders.delta("a"), then="rst"), Ended.RESET),
        (scripts.cut_after(45, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabcdef"), Ended.CUT),
        (scripts.raw(b"HTTP/1.1 204 No Content\r\n\r\n"), Ended.NONE),
    ],
)
async def test_the_client_tells_how_a_body_ended(script: scripts.Script, ended: Ended) -> None:
    async with ScriptedProvider(script) as provider:
        answer = await ask(provider)
    assert answer.ended is ended
    assert answer.whole == (ended in {Ended.CLOSE, Ended.NONE})


async def test_a_connection_that_ends_without_an_answer_is_told_from_a_reset() -> None:
    async with ScriptedProvider(scripts.hangs_up(), scripts.resets()) as provider:
        with pytest.raises(EOFError):
            await ask(provider)
        with pytest.raises(ConnectionResetError):
            await ask(provider)


@pytest.mark.parametrize("leave", ["close", "half_close", "rst"])
async def test_a_departure_is_seen_at_once_by_a_script_that_waits(leave: str) -> None:
    async with ScriptedProvider(scripts.silent()) as provider:
        async with RawClient(provider.address) as client:
            await client.send(post(PATH, builders.chat()))
            await asyncio.sleep(7)
            assert provider.open == 1
            getattr(client, leave)()
            await asyncio.sleep(0.01)
        assert provider.departures == [START + 7]
        assert provider.open == 0


async def test_a_fault_in_a_script_fails_the_test() -> None:
    async def broken(peer: Peer, _: object) -> None:
        raise KeyError("no such thing")

    with pytest.raises(AssertionError, match="script of provider b failed"):
        async with ScriptedProvider(broken, name="b") as provider:
            with pytest.raises(EOFError):
                await ask(provider)


async def test_a_script_may_have_the_bare_connection() -> None:
    async def early(peer: Peer) -> None:
        await peer.read_head()
        await peer.json(413, {"error": "too large"}, [("Connection", "close")])
        await peer.rst()

    async with ScriptedProvider(connection=early) as provider:
        assert (await ask(provider)).status == 413


@pytest.mark.parametrize("end", ["fin", "cut"])
async def test_tls_works_on_the_virtual_clock(end: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    script = scripts.breaks_off(builders.delta("a"), then=end)
    async with ScriptedProvider(script, tls=authority.server()) as provider:
        assert provider.base_url.startswith("https://127.0.0.1:")
        async with RawClient(provider.address, tls=authority.client()) as client:
            answer = await client.post_json(PATH, builders.chat())
    assert answer.body == builders.delta("a")
    assert answer.ended is Ended.CUT
    assert elapsed() == 0


async def test_an_address_can_refuse_or_swallow_a_connect() -> None:
    with scripts.refusing() as address, pytest.raises(ConnectionRefusedError):
        await RawClient(address).connect()
    with scripts.blackhole() as address, takes(5), pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await RawClient(address).connect()


async def test_the_proxy_cuts_into_pieces_that_arrive_one_by_one() -> None:
    sizes: list[int] = []

    async def measure(peer: Peer) -> None:
        while data := await peer.reader.read(65_536):
            sizes.append(len(data))

    async with ScriptedProvider(connection=measure) as provider:
        async with ChaosProxy(provider.address, up=Rules(size=3)) as proxy:
            async with RawClient(proxy.address) as client:
                await client.send(b"x" * 30)
                await asyncio.sleep(1)
    assert sizes == [3] * 10


async def test_the_client_can_send_in_pieces_that_arrive_one_by_one() -> None:
    sizes: list[int] = []

    async def measure(peer: Peer) -> None:
        while data := await peer.reader.read(65_536):
            sizes.append(len(data))

    async with ScriptedProvider(connection=measure) as provider:
        async with RawClient(provider.address) as client:
            with takes(1.0):
                await client.send(b"x" * 10, size=1, delay=0.1)
    assert sizes == [1] * 10


@pytest.mark.parametrize(
    ("rules", "ended"),
    [
        (Rules(fin_after=150), Ended.CUT),
        (Rules(rst_after=150), Ended.RESET),
        (Rules(size=1), Ended.CHUNKS),
    ],
)
async def test_the_proxy_ends_a_direction_after_so_many_bytes(rules: Rules, ended: Ended) -> None:
    async with ScriptedProvider(scripts.ok("a" * 500)) as provider:
        async with ChaosProxy(provider.address, down=rules) as proxy:
            async with RawClient(proxy.address) as client:
                answer = await client.post_json(PATH, builders.chat(stream=True))
            assert proxy.passed["down"] == 150 or ended is Ended.CHUNKS
    assert answer.ended is ended


async def test_the_proxy_can_stop_reading() -> None:
    async with ScriptedProvider(scripts.ok("a" * 10_000_000)) as provider:
        async with ChaosProxy(provider.address, down=Rules(stop_after=1000)) as proxy:
            async with RawClient(proxy.address) as client:
                answer = await client.open_stream(PATH, builders.chat(stream=True))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(60):
                        await answer.read()
        assert proxy.passed["down"] == 1000


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: 1\nB: 2\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
    ],
)
def test_a_head_that_http_does_not_allow_is_a_fault(head: bytes) -> None:
    with pytest.raises(WireFault):
        parse_response(head)


@pytest.mark.parametrize(
    "fields",
    [
        [("Content-Length", "1"), ("Transfer-Encoding", "chunked")],
        [("Content-Length", "1"), ("content-length", "1")],
        [("Transfer-Encoding", "gzip")],
    ],
)
def test_framing_that_http_does_not_allow_is_a_fault(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(WireFault):
        framing("GET", 200, fields)


@pytest.mark.parametrize("body", [b"5 \r\nhello\r\n", b"5\r\nhello!\r\n", b"-1\r\n", b"0x5\r\n"])
async def test_chunks_that_http_does_not_allow_are_a_fault(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with ScriptedProvider(scripts.raw(head + body)) as provider:
        with pytest.raises(WireFault):
            await ask(provider)
