"""A real nginx in front of a real `relayd serve`: with nginx's defaults, and as our sample says.

What is one by one is shown without a clock: the provider says its next word only when the client
has read the one before.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.support import builders
from tests.support.client import RawClient, Response
from tests.support.provider import Peer, Request, Script, ScriptedProvider
from tests.support.real import PROJECT, Running, daemon, free_port, nginx
from tests.support.scripts import breaks_off, events, ok

CHAT = "/v1/chat/completions"
STREAM = builders.chat(stream=True)
WORDS = [builders.delta(word) for word in ("one", "two", "three", "four", "five")]

STEP = 5.0
"""Real time (s) for one event to get through; nginx's own buffering would wait for ever."""

DEFAULTS = "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{upstream}; }} }}"


@dataclass(slots=True)
class Front:
    """nginx before relayd before `a`."""

    address: tuple[str, int]
    tls: ssl.SSLContext | None
    relayd: Running
    a: ScriptedProvider

    def client(self) -> RawClient:
        return RawClient(self.address, tls=self.tls)

    async def post(self, value: object = STREAM) -> Response:
        async with self.client() as client:
            return await client.post_json(CHAT, value)

    def told(self, event: str) -> list[str]:
        """The messages of relayd's log lines of this kind."""
        return [line["message"] for line in self.relayd.log if line.get("event") == event]

    async def exchanges(self, count: int) -> list[dict[str, object]]:
        """The log lines of the exchanges, once there are so many."""

        def found() -> list[dict[str, object]]:
            return [line for line in self.relayd.log if "end_reason" in line]

        await self.relayd.line(lambda _: len(found()) >= count, STEP)
        return found()


def http2_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, section 4.1."""
    head = len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4)
    return head + payload


def http2_field(name: str, value: str) -> bytes:
    """A field line in HPACK, literal and without an index (RFC 7541, section 6.2.2)."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode("ascii") for text in (name, value))


async def http2_refusal(front: Front, length: int) -> bytes:
    """The answer's body to a POST over HTTP/2 that announces so many bytes and sends none."""
    assert front.tls is not None
    front.tls.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection(*front.address, ssl=front.tls)
    fields = [(":method", "POST"), (":scheme", "https"), (":path", CHAT), (":authority", "x")]
    head = b"".join(http2_field(*each) for each in [*fields, ("content-length", str(length))])
    end_of_headers = 4
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0))
    writer.write(http2_frame(1, end_of_headers, 1, head))
    body, ended = b"", False
    async with asyncio.timeout(STEP):
        while not ended:
            size, kind, flags = struct.unpack("!3sBB4x", await reader.readexactly(9))
            payload = await reader.readexactly(int.from_bytes(size))
            if kind == 0:
                body, ended = body + payload, bool(flags & 1)
    writer.transport.abort()
    return body


def sample(folder: Path, port: int, socket: str) -> tuple[str, ssl.SSLContext]:
    """Our nginx sample with this test's paths and port, and a client's context that trusts it."""
    authority = trustme.CA()
    both = folder / "both.pem"
    issued = authority.issue_cert("llm.example.com").private_key_and_cert_chain_pem
    issued.write_to_path(str(both))
    text = (PROJECT / "systemd" / "nginx.conf.example").read_text()
    text = re.sub(r"/etc/ssl/[\w./]+\.pem", str(both), text)
    text = re.sub(r"(?m)^ +listen \[::\].*\n", "", text)
    text = text.replace("listen 443", f"listen 127.0.0.1:{port}")
    text = text.replace("unix:/run/relayd.sock", f"unix:{socket}")
    context = ssl.create_default_context()
    context.check_hostname = False
    authority.configure_trust(context)
    return text, context


@asynccontextmanager
async def front(folder: Path, script: Script, *, ours: bool) -> AsyncIterator[Front]:
    """nginx (`ours`: as the sample says) in front of relayd on a unix socket."""
    socket, port = str(folder / "relayd.sock"), free_port()
    async with ScriptedProvider(script, name="a") as a:
        config = (
            f'[server]\nlisten = "unix:{socket}"\n[log]\nformat = "json"\n'
            f'[[provider]]\nname = "a"\nbase_url = "{a.base_url}"\n'
        )
        async with daemon(folder, config, socket) as relayd:
            http, tls = sample(folder, port, socket) if ours else (None, None)
            if http is None:
                http = DEFAULTS.format(port=port, upstream=f"unix:{socket}:")
            async with nginx(folder, http, ("127.0.0.1", port)):
                yield Front(("127.0.0.1", port), tls, relayd, a)


class InStep:
    """A stream whose every next event waits until the one before was heard."""

    def __init__(self) -> None:
        self.heard = asyncio.Semaphore(0)

    async def script(self, peer: Peer, _: Request) -> None:
        await peer.stream_head()
        for word in WORDS:
            await peer.chunk(word)
            await self.heard.acquire()
        await peer.chunk(builders.finish() + builders.DONE)
        await peer.last_chunk()


both_ways = pytest.mark.parametrize("ours", [False, True], ids=["defaults", "sample"])


@both_ways
async def test_events_arrive_one_by_one(ours: bool, tmp_path: Path) -> None:
    steps = InStep()
    async with front(tmp_path, steps.script, ours=ours) as f, f.client() as client:
        answer = await client.open_stream(CHAT, STREAM)
        for word in WORDS:
            async with asyncio.timeout(STEP):
                event = await answer.event()
            assert event is not None
            assert event.raw == word
            steps.heard.release()
        assert (await answer.read()).body.endswith(builders.DONE)
        assert answer.whole


@both_ways
async def test_answers_are_the_providers_bytes(ours: bool, tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=ours) as f:
        whole = await f.post(builders.chat())
        assert whole.json() == builders.completion("hello")
        stream = await f.post(STREAM)
        assert stream.body == b"".join(builders.stream("hello"))
        assert stream.field("X-Gateway-Provider") == "a"
        assert stream.field("X-Accel-Buffering") is None, "it is meant for nginx alone"


async def test_nginx_defaults_are_told_of_once(tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=False) as f:
        for _ in range(3):
            await f.post()
        await f.exchanges(3)
        assert len(f.told("old_proxy")) == 1
        assert "nginx speaks HTTP/1.0" in f.told("old_proxy")[0]


async def test_the_sample_gives_nothing_to_tell_of(tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=True) as f:
        await f.post()
        await f.exchanges(1)
        assert f.told("old_proxy") == []


async def test_a_stream_cut_inside_an_event_is_visible_through_the_sample(tmp_path: Path) -> None:
    script = breaks_off(WORDS[0], b'data: {"choices":[', then="fin")
    async with front(tmp_path, script, ours=True) as f:
        answer = await f.post()
        assert answer.body == WORDS[0] + b'data: {"choices":['
        assert not answer.whole, "a cut stream looks like a whole one"


@both_ways
async def test_a_stream_cut_at_a_boundary_says_so(ours: bool, tmp_path: Path) -> None:
    async with front(tmp_path, breaks_off(WORDS[0], then="rst"), ours=ours) as f:
        answer = await f.post()
        assert answer.body.startswith(WORDS[0])
        assert b'"code":"upstream_truncated"' in answer.body
        assert b"[DONE]" not in answer.body


async def test_nginx_names_the_request_and_its_client_in_the_log(tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=True) as f:
        async with f.client() as client:
            forged = {"X-User-Id": "admin", "X-Request-ID": "mine", "X-Forwarded-For": "9.9.9.9"}
            answer = await client.post_json(CHAT, builders.chat(), forged)
        (line,) = await f.exchanges(1)
        assert re.fullmatch("[0-9a-f]{32}", str(line["id"]))
        assert answer.field("X-Request-ID") == line["id"]
        assert (line["peer"], line["user"]) == ("127.0.0.1", "anonymous")


@both_ways
async def test_a_client_that_leaves_nginx_leaves_relayd_too(ours: bool, tmp_path: Path) -> None:
    async with front(tmp_path, events(WORDS[0], end=False), ours=ours) as f:
        async with f.client() as client:
            answer = await client.open_stream(CHAT, STREAM)
            await answer.event()
        (line,) = await f.exchanges(1)
        assert line["end_reason"] == "client_left"
        async with asyncio.timeout(1.0):
            await f.a.seen.peers[0].left.wait()


async def test_a_thousand_requests_on_kept_connections_meet_no_502(tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=True) as f:

        async def a_hundred() -> list[int]:
            async with f.client() as client:
                return [
                    (await client.post_json(CHAT, builders.chat(stream=bool(n % 2)))).status
                    for n in range(100)
                ]

        codes = await asyncio.gather(*[a_hundred() for _ in range(10)])
        assert [code for each in codes for code in each] == [200] * 1000
        f.relayd.signal(signal.SIGTERM)
        assert await f.relayd.ended() == 0
        ends = [line["end_reason"] for line in f.relayd.log if "end_reason" in line]
        assert ends == ["complete"] * 1000
        assert f.a.connections <= 40


async def test_an_early_refusal_of_relayd_gets_through_nginx(tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=True) as f:
        answer = await f.post(b"x" * 1_000_000)
        assert (answer.status, answer.error["code"]) == (400, "bad_request")
        assert json.loads(answer.body)["error"]["message"]


async def test_too_large_a_body_over_http2_is_refused_in_json(tmp_path: Path) -> None:
    async with front(tmp_path, ok("hello"), ours=True) as f:
        body = await http2_refusal(f, 2 * 1024 * 1024)
        assert json.loads(body)["error"]["code"] == "request_too_large"
