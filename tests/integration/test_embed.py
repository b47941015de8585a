"""relayd inside another program: one exchange, the documented errors, departures, back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import logging
import math
import pickle
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import relayd
from relayd import Relay, RelayError, attempt, classify, errors
from relayd.admission import ask_for
from relayd.config import Config, ConfigError, build
from relayd.engine import Setup, reach_for
from relayd.failover import AttemptFailed
from relayd.outbound import Ask
from relayd.outcomes import Outcome
from relayd.record import Record
from relayd.stores import Settlement
from relayd.stores.memory import MemoryStore
from relayd.surfaces import Surface
from relayd.wake import Clock, Wake, Why
from tests.contract.fakes import Mood, Moody
from tests.support import builders
from tests.support.gateway import config_for
from tests.support.journal import Kept
from tests.support.loop import takes
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import Endless, breaks_off, events, ok, ok_stream, silent, status

CONTENT = builders.delta("one")

KEY = "sk-canary-0123456789abcdef"


def config(*providers: ScriptedProvider, **sections: Any) -> Config:
    return build(config_for(*providers, **sections), "test.toml", {"KEY": KEY}, _no_file)


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(path)


async def test_a_whole_answer_has_status_headers_and_body() -> None:
    async with ScriptedProvider(ok("hello")) as a:
        async with Relay(config(a)) as relay:
            async with await relay.open(builders.chat()) as reply:
                assert reply.status == 200
                assert reply.headers["content-type"] == "application/json"
                assert reply.headers["x-gateway-provider"] == "a"
                body = await reply.read()
    assert json.loads(body) == builders.completion("hello")
    assert reply.end_reason == "complete"


async def test_a_stream_arrives_event_by_event() -> None:
    async with ScriptedProvider(ok_stream("one", "two", delay=1.0)) as a:
        async with Relay(config(a)) as relay:
            reply = await relay.open(builders.chat(stream=True))
            chunks = [chunk async for chunk in reply]
    assert len(chunks) > 2
    assert b"".join(chunks) == b"".join(builders.stream("one", "two"))


async def test_bytes_go_upstream_as_they_are() -> None:
    body = b'{ "model":"m" , "messages":[{"role":"user","content":"\\u00e9"}],"n":1.0e0}'
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            await (await relay.open(body)).read()
    assert a.requests[0].body == body


async def test_a_failed_provider_is_replaced_before_open_returns() -> None:
    async with ScriptedProvider(status(503), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with Relay(config(a, b)) as relay:
            reply = await relay.open(builders.chat())
            await reply.read()
    assert reply.provider == "b"
    assert [attempt.outcome for attempt in reply.attempts] == ["server_error", "ok"]
    assert [tried["status"] for tried in reply.trace["attempts"]] == [503, 200]
    assert reply.trace["status"] == 200


async def test_every_provider_down_raises_before_any_byte() -> None:
    async with ScriptedProvider(status(500)) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(errors.UpstreamError):
                await relay.open(builders.chat())


async def test_a_fault_of_the_request_is_raised_with_the_providers_words() -> None:
    refused = builders.error_object("no such tool", "invalid_tool")
    async with ScriptedProvider(status(400, refused)) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(errors.ProviderRefused, match="no such tool") as caught:
                await relay.open(builders.chat())
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body", [b"[]", b"{", {"messages": []}, {"messages": [], "n": float("nan")}]
)
async def test_a_body_that_is_no_request_is_raised_at_once(body: Any) -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(errors.BadRequest):
                await relay.open(body)
    assert not a.requests


@pytest.mark.parametrize("kind", [MappingProxyType, UserDict])
async def test_any_mapping_is_a_request(kind: Any) -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            await (await relay.open(kind(builders.chat()))).read()
    assert json.loads(a.requests[0].body) == builders.chat()


@pytest.mark.parametrize("body", ["{}", [1], None])
async def test_what_is_no_mapping_is_a_type_error(body: Any) -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(TypeError, match="expected a mapping or JSON bytes, got"):
                await relay.open(body)


async def test_a_deadline_that_is_no_number_is_a_value_error() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(ValueError, match="deadline: expected seconds, got nan"):
                await relay.open(builders.chat(), deadline=math.nan)
    assert not a.requests


async def test_an_unknown_surface_is_a_value_error() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(ValueError, match="smell"):
                await relay.open(builders.chat(), surface="smell")


async def test_another_surface_is_asked_for_by_its_name() -> None:
    async with ScriptedProvider(status(200, {"data": [1]}), surfaces=["embeddings"]) as a:
        async with Relay(config(a)) as relay:
            reply = await relay.open(builders.embeddings(), surface="embeddings")
            assert json.loads(await reply.read()) == {"data": [1]}
    assert a.requests[0].target == "/v1/embeddings"


async def test_the_earlier_deadline_wins() -> None:
    async with ScriptedProvider(silent()) as a:
        async with Relay(config(a, clocks={"deadline": 20.0})) as relay:
            with takes(3.0), pytest.raises(errors.DeadlineExceeded):
                await relay.open(builders.chat(), deadline=3.0)
            with takes(20.0), pytest.raises(errors.DeadlineExceeded):
                await relay.open(builders.chat(), deadline=300.0)


async def test_a_route_can_be_named_whatever_the_model_says() -> None:
    async with ScriptedProvider(ok(), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        a.settings["model"] = b.settings["model"] = "x"
        routes = [{"name": "first", "providers": ["a"]}, {"name": "second", "providers": ["b"]}]
        async with Relay(config(a, b, route=routes)) as relay:
            reply = await relay.open(builders.chat(model="first"), route="second")
            await reply.read()
            with pytest.raises(errors.ModelNotFound):
                await relay.open(builders.chat(), route="third")
    assert reply.provider == "b"


async def test_leaving_early_closes_the_upstream_connection() -> None:
    async with ScriptedProvider(events(builders.delta("one"), end=False)) as a:
        async with Relay(config(a)) as relay:
            async with await relay.open(builders.chat(stream=True)) as reply:
                assert await anext(reply) == builders.delta("one")
                assert a.open == 1
            await asyncio.sleep(0.1)
            assert a.open == 0
    assert reply.end_reason == "client_left"


async def test_a_cancelled_open_closes_the_upstream_connection() -> None:
    async with ScriptedProvider(silent(), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with Relay(config(a, b)) as relay:
            task = asyncio.create_task(relay.open(builders.chat()))
            await asyncio.sleep(1.0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            assert a.open == 0
    assert not b.requests


@pytest.mark.parametrize(
    ("script", "status", "commit", "outcome"),
    [(silent(), 499, None, "client_left"), (events(CONTENT, end=False), 200, "content", "ok")],
)
async def test_an_exchange_that_the_program_cancels_is_a_client_that_left(
    script: Script, status: int, commit: str | None, outcome: str
) -> None:
    journal = Kept()
    async with ScriptedProvider(script, name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with Relay(config(a, b, quota={"daily_turns": 1}), journal=journal) as relay:
            opening = asyncio.create_task(relay.open(builders.chat(stream=True)))
            await asyncio.sleep(1.0)
            (task,) = relay._running
            task.cancel()
            await asyncio.wait([task, opening])
            await asyncio.sleep(0.1)
            assert a.open == 0
        assert opening.exception() is None or commit is None
    record = journal.record
    assert (record.status, record.commit, record.turn) == (status, commit, "charged")
    assert (record.ended_by, record.end_reason) == ("client", "client_left")
    assert [attempt.outcome for attempt in record.attempts] == [outcome]
    assert journal.failed == []
    assert not b.requests


async def test_a_program_that_cancels_before_a_provider_is_asked_pays_no_turn() -> None:
    journal, store = Kept(), Moody()
    store.mood = Mood.SILENT
    async with ScriptedProvider(ok()) as a:
        async with Relay(
            config(a, quota={"daily_turns": 1}), store=store, journal=journal
        ) as relay:
            opening = asyncio.create_task(relay.open(builders.chat()))
            await asyncio.sleep(0.1)
            (task,) = relay._running
            task.cancel()
            await asyncio.wait([task, opening])
            assert isinstance(opening.exception(), RelayError)
            store.mood = Mood.WELL
    assert (journal.record.status, journal.record.end_reason) == (499, "client_left")
    assert journal.record.turn != "charged"
    assert not a.requests


async def test_an_exchange_that_is_cancelled_while_relayd_stops_is_refused_as_draining() -> None:
    journal = Kept()
    async with ScriptedProvider(silent()) as a:
        async with Relay(config(a), journal=journal) as relay:
            opening = asyncio.create_task(relay.open(builders.chat()))
            await asyncio.sleep(1.0)
            ((task, wake),) = relay._running.items()
            wake.why = Why.DRAINING
            task.cancel()
            with pytest.raises(errors.Draining):
                await opening
    assert (journal.record.status, journal.record.end_reason) == (503, "shutting_down")
    assert [attempt.outcome for attempt in journal.record.attempts] == ["draining"]


async def test_a_stream_that_breaks_off_inside_an_event_raises() -> None:
    script = breaks_off(builders.delta("one"), b'data: {"cho', then="rst")
    async with ScriptedProvider(script) as a:
        async with Relay(config(a)) as relay:
            reply = await relay.open(builders.chat(stream=True))
            with pytest.raises(errors.UpstreamError, match="broke off"):
                await reply.read()


async def test_a_stream_that_breaks_off_between_events_ends_with_an_error_event() -> None:
    async with ScriptedProvider(breaks_off(builders.delta("one"), then="fin")) as a:
        async with Relay(config(a)) as relay:
            reply = await relay.open(builders.chat(stream=True))
            body = await reply.read()
    assert b"upstream_truncated" in body
    assert reply.end_reason == "upstream_truncated"


async def test_closing_the_relay_ends_what_still_runs() -> None:
    async with ScriptedProvider(events(builders.delta("one"), end=False)) as a:
        async with Relay(config(a)) as relay:
            reply = await relay.open(builders.chat(stream=True))
        assert b"shutting_down" in await reply.read()
        await asyncio.sleep(0.1)
        assert a.open == 0


async def test_closing_the_relay_refuses_what_has_no_answer_yet() -> None:
    async with ScriptedProvider(silent()) as a:
        async with Relay(config(a)) as relay:
            task = asyncio.create_task(relay.open(builders.chat()))
            await asyncio.sleep(1.0)
        with pytest.raises(errors.Draining):
            await task


class Slow(Moody):
    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await super().settle(settlements)
        self.asked.append("settled")


async def test_an_end_that_was_cancelled_can_be_asked_for_again() -> None:
    store = Slow()
    store.trip = 2.0
    async with ScriptedProvider(ok()) as a:
        settings = config(a, quota={"daily_turns": 5}, store={"timeout": 9.0})
        async with Relay(settings, store=store) as relay:
            await (await relay.open(builders.chat(), user="ann")).read()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(relay.aclose(), 1.0)
            assert "close" not in store.asked
        assert store.asked[-2:] == ["settled", "close"]


async def test_a_reply_that_is_dropped_before_its_end_is_a_departure() -> None:
    journal = Kept()
    async with ScriptedProvider(events(builders.delta("one"), end=False)) as a:
        async with Relay(config(a), journal=journal) as relay:
            reply = await relay.open(builders.chat(stream=True))
            assert await anext(reply) == builders.delta("one")
            del reply
            with takes(0.0):
                await journal.ended.wait()
            await a.seen.peers[0].left.wait()
    assert journal.record.end_reason == "client_left"


async def test_an_error_crosses_from_one_process_to_another() -> None:
    refused = status(404, {"error": {"message": "no such model", "code": "gone", "param": "model"}})
    async with ScriptedProvider(refused) as a, Relay(config(a)) as relay:
        with pytest.raises(errors.ProviderRefused) as caught:
            await relay.open(builders.chat())
    here = caught.value
    for there in (pickle.loads(pickle.dumps(here)), copy.copy(here)):
        assert type(there) is errors.ProviderRefused
        assert str(there) == str(here)
        assert vars(there) == vars(here)


async def test_a_closed_relay_opens_nothing() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            pass
        with pytest.raises(RuntimeError, match=r"this relay is closed: call open\(\) inside"):
            await relay.open(builders.chat())
    assert a.connections == 0


async def test_a_relay_is_entered_once() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(RuntimeError, match="started already"):
                await relay.__aenter__()
            assert (await relay.open(builders.chat())).status == 200
        with pytest.raises(RuntimeError, match="is closed: make a new one"):
            await relay.__aenter__()


async def test_another_event_loop_is_refused_by_name() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            await (await relay.open(builders.chat())).read()
            for call in (relay.open(builders.chat()), relay.aclose()):
                with pytest.raises(RuntimeError, match="this is another: use one for each loop"):
                    await asyncio.to_thread(asyncio.run, call)
            await (await relay.open(builders.chat())).read()
    assert a.connections == 1


async def test_a_reader_that_does_not_read_stops_the_provider() -> None:
    endless = Endless(8000)
    async with ScriptedProvider(endless) as a:
        async with Relay(config(a)) as relay:
            async with await relay.open(builders.chat(stream=True)) as reply:
                await asyncio.sleep(1.0)
                stuck = endless.sent
                await asyncio.sleep(10.0)
                assert endless.sent == stuck
                for _ in range(200):
                    await anext(reply)
                await asyncio.sleep(1.0)
                assert endless.sent > stuck


async def test_a_call_that_raises_leaves_no_circle_that_holds_its_request() -> None:
    async with ScriptedProvider(status(500)) as a:
        async with Relay(config(a)) as relay:
            gc.collect()
            gc.disable()
            try:
                with contextlib.suppress(errors.UpstreamError):
                    await relay.open(builders.chat("x" * 100_000))
                await asyncio.sleep(0.1)
                kept = [type(thing) for thing in gc.get_objects() if isinstance(thing, Ask)]
            finally:
                gc.enable()
    assert kept == []


async def test_a_reader_that_comes_late_leaves_the_next_answer_its_limit() -> None:
    """What waits of an answer that has ended is read when its connection serves another one."""
    endless, big = Endless(8000), builders.delta("x" * 40_000)
    async with ScriptedProvider(events(big, big, builders.DONE), endless) as a:
        async with Relay(config(a)) as relay:
            first = await relay.open(builders.chat(stream=True))
            await asyncio.sleep(1.0)
            assert first.end_reason == "complete"
            async with await relay.open(builders.chat(stream=True)):
                await asyncio.sleep(1.0)
                stuck = endless.sent
                await first.read()
                await asyncio.sleep(10.0)
                assert endless.sent == stuck
    assert a.connections == 1, "expected one connection for both"


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "\u00e9", "a\r\nAuthorization: Bearer b"])
async def test_a_request_id_that_cannot_be_sent_is_a_value_error(given: str) -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(ValueError, match="request_id"):
                await relay.open(builders.chat(), request_id=given)
            reply = await relay.open(builders.chat(), request_id="id-1")
            await reply.aclose()
    assert [request.field("x-request-id") for request in a.requests] == ["id-1"]


async def test_turns_are_counted_for_the_named_user() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a, quota={"daily_turns": 1})) as relay:
            await (await relay.open(builders.chat(), user="ann")).read()
            with pytest.raises(errors.RateLimited) as caught:
                await relay.open(builders.chat(), user="ann")
            await (await relay.open(builders.chat(), user="bob")).read()
    assert caught.value.retry_after is not None


@pytest.mark.parametrize("user", ["\ud800", "x" * 1000])
async def test_a_user_whose_name_no_store_can_hold_is_counted_all_the_same(
    user: str, tmp_path: Path
) -> None:
    place = {"url": f"sqlite:{tmp_path / 'state.db'}", "timeout": 5}
    async with ScriptedProvider(ok()) as a:
        settings = config(a, quota={"daily_turns": 1}, store=place)
        async with Relay(settings) as relay:
            await (await relay.open(builders.chat(), user=user)).read()
        async with Relay(settings) as relay:
            with pytest.raises(errors.RateLimited):
                await relay.open(builders.chat(), user=user)
            assert relay._runtime.link.lost == 0


async def test_a_user_that_is_no_string_is_a_type_error() -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(TypeError, match="user: expected str or None, got int"):
                await relay.open(builders.chat(), user=7)  # type: ignore[arg-type]
    assert a.connections == 0


async def test_a_store_of_the_program_holds_the_turns() -> None:
    store = MemoryStore()
    async with ScriptedProvider(ok()) as a:
        settings = config(a, quota={"daily_turns": 1})
        async with Relay(settings, store=store) as relay:
            await (await relay.open(builders.chat(), user="ann")).read()
        async with Relay(settings, store=store) as relay:
            with pytest.raises(errors.RateLimited):
                await relay.open(builders.chat(), user="ann")


async def test_it_is_silent_until_the_program_listens(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedProvider(status(500), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with Relay(config(a, b)) as relay:
            await (await relay.open(builders.chat())).read()
            assert capfd.readouterr() == ("", "")
            caplog.set_level(logging.INFO, "relayd")
            await (await relay.open(builders.chat())).read()
    assert "server_error" in caplog.text
    assert "complete" in caplog.text


async def test_turns_that_a_store_of_the_program_cannot_take_are_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Moody()
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a, quota={"daily_turns": 1}), store=store) as relay:
            reply = await relay.open(builders.chat(), user="bob")
            store.refused = {"bob"}
            await reply.read()
            await relay._runtime.engine.turns.flush()
            assert relay._runtime.link.lost == 0
    told = "turn_dropped: the store of the program cannot take the turns of a user"
    assert caplog.text.count(told) == 1
    assert "bob" in caplog.text
    assert "Unstorable at fakes.py" in caplog.text


class Broken(Kept):
    """A journal that raises from `method`, after it has kept what it was told."""

    def __init__(self, method: str) -> None:
        super().__init__()
        told = getattr(self, method)

        def fails(*words: Any, **fields: Any) -> None:
            told(*words, **fields)
            raise ValueError(method)

        setattr(self, method, fails)


def complaints() -> list[str]:
    """What the event loop's exception handler is told from now on."""
    said: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: said.append(str(told["message"])))
    return said


@pytest.mark.parametrize("method", ["exchange", "attempt_failed", "event"])
async def test_a_journal_that_raises_changes_no_answer_and_is_told_of(method: str) -> None:
    said, journal = complaints(), Broken(method)
    async with ScriptedProvider(status(503), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with Relay(config(a, b, breaker={"failures": 1}), journal=journal) as relay:
            reply = await relay.open(builders.chat())
            assert json.loads(await reply.read()) == builders.completion()
    assert (journal.record.status, journal.record.end_reason) == (200, "complete")
    assert [attempt.outcome for attempt in journal.failed] == ["server_error"]
    assert journal.events == ["breaker"]
    assert said == [f"relayd: the journal failed in {method}()"]


async def test_a_journal_that_raises_leaves_no_connection_open() -> None:
    said, journal = complaints(), Broken("event")
    script = breaks_off(CONTENT, then="stall")
    async with ScriptedProvider(script) as a:
        async with Relay(config(a, breaker={"failures": 1}), journal=journal) as relay:
            reply = await relay.open(builders.chat(stream=True))
            assert b"upstream_stalled" in await reply.read()
            await asyncio.sleep(0.1)
            assert a.open == 0
    assert reply.end_reason == "upstream_stalled"
    assert said == ["relayd: the journal failed in event()"]


class Faulty:
    """A store that raises what the protocol of stores does not allow."""

    async def read(self, now: float) -> Any:
        raise KeyError("what it was about")

    async def close(self) -> None:
        """Nothing is held."""


async def test_a_fault_in_the_background_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with ScriptedProvider(ok()) as a:
        async with Relay(config(a), store=Faulty()) as relay:  # type: ignore[arg-type]
            assert (await (await relay.open(builders.chat())).read()) != b""
            told = caplog.text
    assert "a background task of relayd has failed" in told
    assert "KeyError at test_embed.py" in told
    assert "what it was about" not in told


async def test_no_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "relayd")
    refused = status(400, builders.error_object(f"bad key {KEY}"))
    async with ScriptedProvider(refused, key_env="KEY") as a:
        async with Relay(config(a)) as relay:
            with pytest.raises(RelayError) as caught:
                await relay.open(builders.chat())
    assert a.requests[0].field("authorization") == f"Bearer {KEY}"
    assert caplog.records
    assert KEY not in caplog.text
    assert KEY not in str(caught.value)


async def test_a_reload_holds_for_the_next_request() -> None:
    async with ScriptedProvider(ok(), name="a") as a, ScriptedProvider(ok(), name="b") as b:
        async with Relay(config(a)) as relay:
            await (await relay.open(builders.chat())).read()
            relay.reload(config(b))
            reply = await relay.open(builders.chat())
            await reply.read()
    assert reply.provider == "b"


async def test_a_reload_that_names_another_store_says_that_it_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = "test.toml: store.url has changed: it needs a new Relay"
    async with ScriptedProvider(ok()) as a:
        other = config(a, store={"url": "sqlite:/nowhere/state.db"})
        async with Relay(config(a)) as relay:
            relay.reload(config(a))
            assert told not in caplog.text
            relay.reload(other)
            assert told in caplog.text
        caplog.clear()
        async with Relay(config(a), store=MemoryStore()) as relay:
            relay.reload(other)
        assert told not in caplog.text


async def test_it_is_made_from_a_file_or_from_the_environment(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedProvider(ok()) as a:
        file = tmp_path / "config.toml"
        file.write_text(f'[[provider]]\nname = "a"\nbase_url = "{a.base_url}"\n')
        monkeypatch.setenv("PROVIDER", "own")
        monkeypatch.setenv("OWN_BASE_URL", a.base_url)
        for made in (Relay.from_file(str(file)), Relay.from_env()):
            async with made as relay:
                await (await relay.open(builders.chat())).read()
    assert len(a.requests) == 2
    with pytest.raises(ConfigError):
        Relay.from_file(str(tmp_path / "nothing.toml"))


def test_the_front_door_shows_what_it_names() -> None:
    for name in relayd.__all__:
        assert getattr(relayd, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = relayd.nothing  # type: ignore[attr-defined]


def test_a_status_is_classified_by_name() -> None:
    assert classify(503) is Outcome.SERVER_ERROR
    assert classify(429, "insufficient_quota") is Outcome.OUT_OF_CREDIT


async def test_one_attempt_can_be_made_by_itself() -> None:
    scripts = [ok("hello"), status(429, fields=[("Retry-After", "7")])]
    async with ScriptedProvider(*scripts, name="a", key_env="KEY") as a:
        loop, settings = asyncio.get_running_loop(), config(a)
        setup, reach = Setup.of(settings), reach_for(settings)
        record, body = Record("id", 0.0), json.dumps(builders.chat()).encode()
        ask = ask_for(settings, Surface.CHAT, body, b"", None, None, record, loop.time())
        candidate = ask.route.candidates[0]
        job = setup.outbound.job(ask, candidate, candidate.provider.keys[0])
        clock = Clock(loop, Wake(loop))
        answer = await attempt(job, reach, clock, 0.0)
        assert (answer.head.status, answer.whole) == (200, True)
        assert json.loads(answer.held) == builders.completion("hello")
        answer.conn.abort()
        with pytest.raises(AttemptFailed) as caught:
            await attempt(job, reach, clock, 0.0)
        assert (caught.value.outcome, caught.value.rest) == (Outcome.RATE_LIMITED, 7.0)
        clock.alarm.stop()
        reach.pool.close()
