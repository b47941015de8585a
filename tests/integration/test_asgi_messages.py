"""The ASGI application, message by message: what a server may say, and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from relayd import asgi
from relayd.asgi import Application
from relayd.config import Config, build
from relayd.engine import Journal
from relayd.stores import Store
from relayd.stores.memory import MemoryStore
from tests.support import builders
from tests.support.gateway import CHAT, config_for
from tests.support.journal import Kept
from tests.support.loop import takes
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import Endless, breaks_off, events, ok, silent, status

DISCONNECT = {"type": "http.disconnect"}
BODY = builders.encode(builders.chat(stream=True))


def settings(*providers: ScriptedProvider, **sections: Any) -> Config:
    return build(config_for(*providers, **sections), "test.toml", {}, lambda _: b"")


def application(
    *providers: ScriptedProvider,
    journal: Journal | None = None,
    store: Store | None = None,
    user: Any = None,
    **sections: Any,
) -> Application:
    return asgi.app(settings(*providers, **sections), journal=journal, store=store, user=user)


def scope(method: str = "POST", path: str = CHAT, **more: Any) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": [], **more}


def request(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


class Server:
    """The other side of the protocol: says `messages`, then nothing; keeps what it is told."""

    def __init__(self, *messages: dict[str, Any], fault: Exception | None = None) -> None:
        self.said: list[Any] = []
        self._messages = list(messages)
        self._fault = fault

    async def receive(self) -> dict[str, Any]:
        if not self._messages:
            await asyncio.Event().wait()
        return self._messages.pop(0)

    async def send(self, message: Any) -> None:
        self.said.append(message)
        if self._fault is not None and message["type"] == "http.response.body":
            raise self._fault

    @property
    def status(self) -> int:
        return int(self.said[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.said[1:])


class Stuck(Server):
    """A server whose client takes `takes` pieces of a body, one each `every` seconds."""

    def __init__(self, *messages: dict[str, Any], takes: int, every: float = 0.0) -> None:
        super().__init__(*messages)
        self._takes = takes
        self._every = every

    async def send(self, message: Any) -> None:
        if message.get("body"):
            if self._takes == 0:
                await asyncio.Event().wait()
            self._takes -= 1
            await asyncio.sleep(self._every)
        await super().send(message)


async def test_a_body_comes_in_pieces() -> None:
    server = Server(request(BODY[:9], True), request(BODY[9:20], True), request(BODY[20:]))
    async with ScriptedProvider(ok("x")) as a, application(a) as app:
        await app(scope(), server.receive, server.send)
    assert server.status == 200
    assert server.body == b"".join(builders.stream("x"))
    assert [message["more_body"] for message in server.said[1:]][-1] is False
    assert a.requests[0].body == BODY


async def test_a_client_that_leaves_inside_its_body_gets_an_empty_499() -> None:
    server = Server(request(BODY[:9], True), DISCONNECT)
    async with ScriptedProvider(ok()) as a, application(a) as app:
        await app(scope(), server.receive, server.send)
    assert (server.status, server.body) == (499, b"")
    assert not a.requests


async def test_a_body_that_does_not_come_is_408() -> None:
    server = Server(request(BODY[:9], True))
    async with ScriptedProvider(ok()) as a, application(a) as app:
        with takes(60.0):
            await app(scope(), server.receive, server.send)
    assert server.status == 408


async def test_a_client_that_leaves_before_the_answer_gets_an_empty_499() -> None:
    """For what stands between: a framework's middleware calls an application without any broken."""
    server = Server(request(BODY), DISCONNECT)
    async with ScriptedProvider(silent()) as a, application(a) as app:
        await app(scope(), server.receive, server.send)
        await asyncio.sleep(0.1)
        assert a.open == 0
    assert (server.status, server.body) == (499, b"")
    assert server.said[-1]["more_body"] is False


async def test_a_middleware_that_says_the_body_again_and_again_does_not_stop_the_loop() -> None:
    async def again() -> dict[str, Any]:
        return request(BODY)

    server = Server()
    async with ScriptedProvider(ok("x")) as a, application(a) as app:
        await app(scope(), again, server.send)
    assert builders.DONE in server.body


@pytest.mark.parametrize("fault", [ConnectionResetError(), OSError()])
async def test_a_send_that_fails_is_a_departure(fault: OSError) -> None:
    server = Server(request(BODY), fault=fault)
    async with ScriptedProvider(events(builders.delta("x"), end=False)) as a, application(a) as app:
        await app(scope(), server.receive, server.send)
        await asyncio.sleep(0.1)
        assert a.open == 0


async def test_a_fault_of_the_server_is_its_own_and_closes_the_upstream_connection() -> None:
    server = Server(request(BODY), fault=RuntimeError("the server is broken"))
    async with ScriptedProvider(events(builders.delta("x"), end=False)) as a, application(a) as app:
        with pytest.raises(RuntimeError, match="is broken"):
            await app(scope(), server.receive, server.send)
        await asyncio.sleep(0.1)
        assert a.open == 0


async def test_a_cancelled_request_closes_the_upstream_connection() -> None:
    server = Server(request(BODY))
    async with ScriptedProvider(silent()) as a, application(a) as app:
        task = asyncio.create_task(app(scope(), server.receive, server.send))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.1)
        assert a.open == 0


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        ("/llm", "/llm/healthz", 200),
        ("/llm/", "/llm/healthz", 200),
        ("/llm", "/healthz", 200),
        ("/llm", "/llm", 404),
    ],
)
async def test_the_prefix_of_a_mount_is_no_part_of_the_path(
    root: str, path: str, status: int
) -> None:
    server = Server(request(b""))
    async with ScriptedProvider(ok()) as a, application(a) as app:
        await app(scope("GET", path, root_path=root), server.receive, server.send)
    assert server.status == status


async def test_a_name_in_the_path_is_decoded_once() -> None:
    name = "org/100%25x"
    server = Server(request(b""))
    async with ScriptedProvider(ok(), name="a", model="m") as a:
        async with application(a, route=[{"name": name, "providers": ["a"]}]) as app:
            await app(scope("GET", f"/v1/models/{name}"), server.receive, server.send)
    assert server.status == 200


async def test_a_204_has_no_length() -> None:
    server = Server(request(BODY))
    async with ScriptedProvider(status(204, b"")) as a:
        async with application(a, routing={"commit": "head"}) as app:
            await app(scope(), server.receive, server.send)
    assert server.status == 204
    assert b"content-length" not in dict(server.said[0]["headers"])


async def test_a_peer_without_an_address_is_a_unix_socket() -> None:
    server = Server(request(BODY))
    headers = [(b"X-User-Id", b"ann")]
    async with ScriptedProvider(ok()) as a:
        async with application(a, quota={"daily_turns": 1}) as app:
            await app(scope(headers=headers), server.receive, server.send)
            again = Server(request(BODY))
            await app(scope(headers=headers), again.receive, again.send)
            other = Server(request(BODY))
            await app(scope(), other.receive, other.send)
    assert [server.status, again.status, other.status] == [200, 429, 200]


@pytest.mark.parametrize("own_rule", [True, False])
async def test_a_user_whose_proxy_the_server_hides_is_told_of_unless_there_is_a_rule(
    own_rule: bool,
) -> None:
    """As uvicorn does behind nginx: the end client stands in the place of its peer."""
    journal, derive = Kept(), (lambda _: None) if own_rule else None
    hidden = scope(client=("203.0.113.5", 0), headers=[(b"X-User-Id", b"ann")])
    async with ScriptedProvider(ok()) as a:
        async with application(a, journal=journal, user=derive) as app:
            for _ in range(2):
                server = Server(request(BODY))
                await app(hidden, server.receive, server.send)
    assert journal.events == ([] if own_rule else ["unheard_user"])
    assert journal.records[0].user == "anonymous"


async def test_a_rule_that_gives_no_text_is_named() -> None:
    server = Server(request(BODY))
    async with ScriptedProvider(ok()) as a, application(a, user=lambda _: 7) as app:
        await app(scope(), server.receive, server.send)
    assert server.status == 500
    assert b"asgi.app(user=...): user: expected str or None, got int" in server.body
    assert not a.requests


async def test_a_rule_that_is_to_be_awaited_is_refused_at_once() -> None:
    async def derive(_: Any) -> str:
        return "ann"

    async with ScriptedProvider(ok()) as a:
        with pytest.raises(TypeError, match="user: expected a plain function"):
            application(a, user=derive)


async def test_a_path_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[[provider]]\nname = "a"\nbase_url = "http://127.0.0.1:1/v1"\n')
    server = Server(request(b""))
    async with asgi.app(file) as app:
        await app(scope("GET", "/healthz"), server.receive, server.send)
    assert server.status == 200


async def test_a_drain_lets_the_running_exchanges_finish() -> None:
    server = Server(request(BODY))
    async with ScriptedProvider(ok("x")) as a, application(a) as app:
        a.scripts = [events(*builders.stream("x"), delay=1.0)]
        task = asyncio.create_task(app(scope(), server.receive, server.send))
        await asyncio.sleep(0.5)
        await app.aclose(drain=30.0)
        await task
    assert server.said[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert builders.DONE in server.body


async def test_what_comes_after_the_drain_is_refused() -> None:
    async with ScriptedProvider(ok(), events(builders.delta("x"), end=False)) as a:
        async with application(a) as app:
            await app.aclose()
            for path, expected in ((CHAT, 503), ("/readyz", 503), ("/healthz", 200)):
                server = Server(request(BODY))
                method = "POST" if path == CHAT else "GET"
                await app(scope(method, path), server.receive, server.send)
                assert server.status == expected
    assert a.connections == 0


async def test_a_body_that_comes_after_the_end_is_not_asked_of_the_store(tmp_path: Path) -> None:
    goes_on, journal = asyncio.Event(), Kept()
    shared = {"store": {"url": f"sqlite:{tmp_path}/s.db"}, "quota": {"daily_turns": 1}}

    class Slow(Server):
        async def receive(self) -> dict[str, Any]:
            await goes_on.wait()
            return await super().receive()

    server = Slow(request(BODY))
    async with ScriptedProvider(ok()) as a:
        async with asgi.app(settings(a, **shared), journal=journal) as app:
            task = asyncio.create_task(app(scope(), server.receive, server.send))
            await asyncio.sleep(1.0)
            await app.aclose()
            goes_on.set()
            await task
    assert server.status == 503
    assert b'"draining"' in server.body
    assert a.connections == 0
    assert journal.record.turn == "none"


async def test_an_end_that_is_cancelled_can_be_asked_for_again() -> None:
    class Slow(MemoryStore):
        closed = False

        async def close(self) -> None:
            await asyncio.sleep(0.1)
            self.closed = True

    store = Slow()
    async with ScriptedProvider(ok()) as a, application(a, store=store) as app:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await app.aclose()
        assert not store.closed
        await app.aclose()
        assert store.closed


async def test_the_small_api_says_that_it_broke_off_to_a_client_that_is_behind_too() -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.sse(builders.delta("x" * 200_000), end=False)
        await peer.chunk(b'data: {"choices":[{"delta":{"content":"hal')
        await peer.stall()

    body = builders.encode({"messages": [{"role": "user", "content": "hi"}]})
    server = Stuck(request(body), takes=100, every=3.0)
    async with (
        ScriptedProvider(script, model="m") as a,
        application(a, clocks={"deadline": 2.0}) as app,
    ):
        await app(scope(path="/v1/chat"), server.receive, server.send)
    assert server.said[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert server.body.endswith(b'data: {"error":"the answer broke off"}\n\ndata: [DONE]\n\n')


async def test_an_end_that_is_asked_for_twice_closes_the_store_once() -> None:
    class Counting(MemoryStore):
        closed = 0

        async def close(self) -> None:
            self.closed += 1

    store = Counting()
    async with ScriptedProvider(ok()) as a:
        async with application(a, store=store) as app:
            pass
        await app.aclose()
    assert store.closed == 1


async def test_it_begins_anew_after_its_end() -> None:
    async with ScriptedProvider(ok()) as a:
        app = application(a)
        for _ in range(2):
            async with app:
                for method, path in (("GET", "/readyz"), ("POST", CHAT)):
                    server = Server(request(BODY))
                    await app(scope(method, path), server.receive, server.send)
                    assert server.status == 200
    assert a.connections == 2


async def test_it_does_not_begin_anew_with_a_store_that_its_end_has_closed() -> None:
    async with ScriptedProvider(ok()) as a:
        app = application(a, store=MemoryStore())
        async with app:
            pass
        server = Server({"type": "lifespan.startup"})
        with pytest.raises(RuntimeError, match="closed the store it was given"):
            await app({"type": "lifespan"}, server.receive, server.send)
    assert [message["type"] for message in server.said] == ["lifespan.startup.failed"]


async def test_another_event_loop_is_refused_by_name() -> None:
    server = Server(request(BODY))
    async with ScriptedProvider(ok()) as a, application(a) as app:
        with pytest.raises(RuntimeError, match="this is another: use one for each loop"):
            await asyncio.to_thread(asyncio.run, app(scope(), server.receive, server.send))
    assert server.said == []


@pytest.mark.parametrize("then", ["rst", "fin"])
async def test_a_stream_that_breaks_off_inside_an_event_says_so_in_one_of_its_own(
    then: Any,
) -> None:
    server = Server(request(BODY))
    script = breaks_off(
        builders.delta("one"), b'data: {"choices":[{"delta":{"content":"tw', then=then
    )
    async with ScriptedProvider(script) as a, application(a) as app:
        await app(scope(), server.receive, server.send)
    one, told = server.body.split(b"\n\n")[:2]
    assert one + b"\n\n" == builders.delta("one")
    assert json.loads(told.removeprefix(b"data: "))["error"]["code"] == "upstream_truncated"
    assert server.said[-1]["more_body"] is False


async def test_a_large_event_that_breaks_off_is_ended_before_that_is_said() -> None:
    server = Server(request(BODY))
    large = b'data: {"choices":[{"delta":{"content":"' + b"x" * 100_000
    script = breaks_off(builders.delta("one"), large, then="rst")
    async with ScriptedProvider(script) as a, application(a) as app:
        await app(scope(), server.receive, server.send)
    events = server.body.split(b"\n\n")
    assert events[1] == large
    assert b"upstream_truncated" in events[2]


async def test_a_cut_that_cannot_be_told_has_no_last_message() -> None:
    async def script(peer: Peer, _: Request) -> None:
        await peer.head(200, [("Transfer-Encoding", "chunked")])
        await peer.chunk(b'{"choices":')
        await asyncio.sleep(0.1)
        await peer.rst()

    server = Server(request(builders.encode(builders.chat())))
    async with ScriptedProvider(script) as a, application(a, routing={"commit": "head"}) as app:
        await app(scope(), server.receive, server.send)
    assert server.body == b'{"choices":'
    assert server.said[-1]["more_body"] is True


@pytest.mark.parametrize("body", [BODY, builders.encode(builders.chat())])
async def test_a_client_that_takes_nothing_is_let_go(body: bytes) -> None:
    server = Stuck(request(body), takes=1)
    journal = Kept()
    script = Endless(8000) if body is BODY else ok("x" * 500_000)
    async with ScriptedProvider(script) as a, application(a, journal=journal) as app:
        with takes(60.0, 1.5):  # the first look is after one
            await app(scope(), server.receive, server.send)
        await asyncio.sleep(0.1)
        assert journal.record.end_reason == "client_stalled"
        assert server.said[-1]["more_body"] is True


async def test_a_client_that_takes_a_little_has_its_time() -> None:
    server = Stuck(request(builders.encode(builders.chat())), takes=-1, every=50.0)
    journal = Kept()
    async with ScriptedProvider(ok("x" * 400_000)) as a, application(a, journal=journal) as app:
        await app(scope(), server.receive, server.send)
    assert json.loads(server.body) == builders.completion("x" * 400_000)
    assert journal.record.end_reason == "complete"
    assert journal.record.duration > 300.0


async def test_an_error_that_nobody_takes_does_not_wait_for_ever() -> None:
    server = Stuck(request(b"{}"), takes=0)
    async with ScriptedProvider(ok()) as a, application(a) as app:
        with takes(60.0):
            await app(scope(), server.receive, server.send)
