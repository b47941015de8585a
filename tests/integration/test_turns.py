"""The settlement of a turn, by how the exchange ended; and who shares whose count."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from tests.support import builders
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import Script, ScriptedProvider
from tests.support.scripts import breaks_off, events, hangs_up, ok, silent, slow, status

from .shapes import ALL, CHAT, EVERY_SURFACE, MESSAGES, RESPONSES, Shape, whole

CAP = 3


def capped(*providers: ScriptedProvider, cap: int = CAP, **sections: Any) -> dict[str, Any]:
    quota = {"daily_turns": cap, **sections.pop("quota", {})}
    return config_for(*providers, quota=quota, **sections)


async def left(g: Gateway, fields: dict[str, str] | None = None) -> int:
    """How many turns the user has left: asked for until there are none."""
    for count in range(10):
        if (await g.chat("count", fields=fields)).status == 429:
            return count
    raise AssertionError("expected an end of the turns")


SETTLED: dict[str, tuple[Script, bool, str]] = {
    "a whole answer": (ok(), False, "charged"),
    "a stream": (ok(), True, "charged"),
    "a stream that breaks off": (breaks_off(CHAT.content, then="fin"), True, "charged"),
    "an error event after content": (events(CHAT.content, builders.error_event()), True, "charged"),
    "a request fault": (status(400), False, "refunded"),
    "a provider's own 499": (status(499), False, "refunded"),
    "a server error": (status(500), False, "refunded"),
    "no connection": (hangs_up(), False, "refunded"),
    "our own key refused": (status(401), False, "refunded"),
    "an empty answer": (whole(b""), False, "refunded"),
    "an empty stream": (events(), True, "refunded"),
    "rate limited": (status(429), False, "refunded"),
}


@pytest.mark.parametrize("case", SETTLED)
async def test_the_settlement_table(case: str) -> None:
    script, stream, word = SETTLED[case]
    async with ScriptedProvider(script, ok(), name="a") as a:
        async with gateway(capped(a)) as g:
            await g.chat(stream=stream)
            assert g.exchange["turn"] == word
            await asyncio.sleep(2)  # a rest is over
            assert await left(g) == (CAP - 1 if word == "charged" else CAP)


async def test_a_deadline_before_the_commit_is_refunded() -> None:
    async with ScriptedProvider(silent(), ok(), name="a") as a:
        async with gateway(capped(a, clocks={"deadline": 5.0})) as g:
            assert (await g.chat()).status == 504
            assert g.exchange["turn"] == "refunded"
            assert await left(g) == CAP


async def test_nobody_to_ask_is_refunded() -> None:
    async with ScriptedProvider(status(500), ok(), name="a") as a:
        async with gateway(capped(a, breaker={"failures": 1})) as g:
            await g.chat()
            assert (await g.chat()).status == 503
            assert [line["turn"] for line in g.exchanges] == ["refunded", "refunded"]
            await asyncio.sleep(10)
            assert await left(g) == CAP


async def test_a_drain_before_the_commit_is_refunded() -> None:
    async with ScriptedProvider(silent(), name="a") as a:
        async with gateway(capped(a)) as g:
            asking = asyncio.create_task(g.chat())
            await asyncio.sleep(1)
            await g.app.stop(1.0)
            assert (await asking).status == 503
            assert g.exchange["turn"] == "refunded"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT.path, b"nonsense"),
        (CHAT.path, b"{}"),
        ("/v1/nothing", b"{}"),
        (CHAT.path, b"x" * 2_000_000),
    ],
)
async def test_what_relayd_refuses_is_not_charged(path: str, body: bytes) -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(capped(a)) as g:
        async with g.client() as client:
            await client.send(
                b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
                % (path.encode(), len(body))
                + body[:1000]
            )
            await client.response("POST")
        assert await left(g) == CAP


async def test_a_refusal_for_the_cap_is_neither_charged_nor_refunded() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(capped(a, cap=1)) as g:
        await g.chat()
        await g.chat()
        assert [line["turn"] for line in g.exchanges] == ["charged", "none"]


async def test_a_used_up_cap_is_a_refusal_by_relayd() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(capped(a, cap=1)) as g:
        await g.chat()
        assert (await g.chat()).status == 429
        line = g.exchanges[-1]
        assert (line["ended_by"], line["end_reason"]) == ("relayd", "refused")


async def test_a_failover_never_counts_again() -> None:
    async with (
        ScriptedProvider(status(500), name="a") as a,
        ScriptedProvider(status(500), name="b") as b,
        ScriptedProvider(ok(), name="c") as c,
        gateway(capped(a, b, c)) as g,
    ):
        await g.chat()
        assert await left(g) == CAP - 1


async def test_turns_never_exceed_the_cap_whatever_is_concurrent() -> None:
    async with ScriptedProvider(slow(1.0, ok()), name="a") as a:
        async with gateway(capped(a, cap=7)) as g:
            codes = [
                answer.status for answer in await asyncio.gather(*[g.chat() for _ in range(40)])
            ]
            assert codes.count(200) == 7
            assert codes.count(429) == 33
            assert len(a.requests) == 7


async def test_a_turn_that_is_still_running_is_taken() -> None:
    async with ScriptedProvider(slow(5.0, ok()), name="a") as a:
        async with gateway(capped(a, cap=1)) as g:
            first = asyncio.create_task(g.chat())
            await asyncio.sleep(1)
            assert (await g.chat()).status == 429
            assert (await first).status == 200


# ---- continuations

TOOL = {
    CHAT: builders.tool_result(),
    MESSAGES: builders.messages(
        messages=[
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]},
        ]
    ),
    RESPONSES: builders.responses(
        input=[
            {"role": "user", "content": "hi"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ]
    ),
}


@pytest.mark.parametrize("shape", TOOL, ids=str)
async def test_a_tool_result_continues_a_turn_for_free(shape: Shape) -> None:
    script = whole(shape.answer)
    async with ScriptedProvider(script, name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(capped(a, cap=1)) as g:
            assert (await g.post(shape.path, shape.request())).status == 200
            for _ in range(5):
                assert (await g.post(shape.path, TOOL[shape])).status == 200
            assert (await g.post(shape.path, shape.request())).status == 429
            words = [line["turn"] for line in g.exchanges]
            assert words == ["charged", *["free"] * 5, "none"]


async def test_free_continuations_end_where_their_turns_pay_for_no_more() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(capped(a, cap=1, quota={"continuations_per_turn": 2})) as g:
            assert (await g.chat()).status == 200
            codes = [(await g.post(CHAT.path, TOOL[CHAT])).status for _ in range(4)]
            assert codes == [200, 200, 429, 429]


@pytest.mark.parametrize(
    "last",
    [
        {"role": "tool", "tool_call_id": "nobody", "content": "x"},
        {"role": "tool"},
        "not a message",
        {"role": 5},
        None,
    ],
)
async def test_a_forged_or_malformed_tail_counts(last: object) -> None:
    messages = [{"role": "user", "content": "hi"}, last]
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(capped(a, cap=1)) as g:
            for _ in range(3):
                await g.post(CHAT.path, {"model": "m", "messages": messages})
            assert len(a.requests) <= 1


@pytest.mark.parametrize("shape", ALL, ids=str)
async def test_every_surface_but_embeddings_costs_a_turn(shape: Shape) -> None:
    async with ScriptedProvider(whole(shape.answer), name="a", surfaces=EVERY_SURFACE) as a:
        async with gateway(capped(a, cap=1)) as g:
            codes = [(await g.post(shape.path, shape.request())).status for _ in range(3)]
            assert codes == ([200] * 3 if shape.name == "embeddings" else [200, 429, 429])


# ---- whose turns


async def test_each_user_of_a_trusted_peer_has_turns_of_their_own() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(capped(a)) as g:
        assert await left(g, {"X-User-Id": "ann"}) == CAP
        assert await left(g, {"X-User-Id": "bob"}) == CAP
        assert await left(g) == CAP
        users = [line["user"] for line in g.exchanges]
        assert {"ann", "bob", "anonymous"} == set(users)


async def test_an_untrusted_peer_does_not_choose_its_user() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(capped(a, server={"trusted_proxies": []})) as g:
            assert await left(g, {"X-User-Id": "ann"}) == CAP
            assert await left(g, {"X-User-Id": "bob"}) == 0
            assert {line["user"] for line in g.exchanges} == {"anonymous"}


async def test_a_reload_changes_whom_an_open_connection_may_speak_for() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(capped(a)) as g:
        async with g.client() as client:
            for trusted, user in ((["127.0.0.1"], "ann"), ([], "anonymous")) * 2:
                g.reload(capped(a, server={"trusted_proxies": trusted}))
                await client.post_json(CHAT.path, CHAT.request(), {"X-User-Id": "ann"})
                assert g.exchanges[-1]["user"] == user


async def test_a_user_who_is_named_twice_is_nobody() -> None:
    async with ScriptedProvider(ok(), name="a") as a, gateway(capped(a)) as g:
        answer = await g.post(
            CHAT.path, CHAT.request(), {"X-User-Id": "victim\r\nx-user-id: mallory"}
        )
        assert answer.status == 400
        assert answer.error["message"] == "X-User-Id is given more than once"
        assert a.requests == []
        assert await left(g, {"X-User-Id": "victim"}) == CAP


async def test_the_users_header_can_have_another_name() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(capped(a, server={"user_header": "X-Account"})) as g:
            assert await left(g, {"X-Account": "ann"}) == CAP
            assert await left(g, {"X-Account": "bob"}) == CAP
            assert await left(g, {"X-User-Id": "ann"}) == CAP


async def test_a_client_may_have_a_cap_of_its_own_and_users_within_it() -> None:
    def client(name: str, **more: Any) -> dict[str, Any]:
        digest = hashlib.sha256(f"sk-{name}-0123456789abcdef".encode()).hexdigest()
        return {"name": name, "key_sha256": digest, **more}

    def of(name: str, user: str | None = None) -> dict[str, str]:
        fields = {"Authorization": f"Bearer sk-{name}-0123456789abcdef"}
        return fields | ({"X-User-Id": user} if user else {})

    async with ScriptedProvider(ok(), name="a") as a:
        clients = [client("app", daily_turns=2), client("web")]
        async with gateway(capped(a, client=clients)) as g:
            assert await left(g, of("app", "ann")) == 2
            assert await left(g, of("app", "bob")) == 2
            assert await left(g, of("app")) == 2
            assert await left(g, of("web", "ann")) == CAP, "users of two clients were mixed"


async def test_turns_survive_a_reload_and_a_lower_cap_holds_at_once() -> None:
    async with ScriptedProvider(ok(), name="a") as a:
        async with gateway(capped(a, cap=3)) as g:
            await g.chat()
            await g.chat()
            table = capped(a, cap=2)
            g.reload(table)
            assert (await g.chat()).status == 429
            g.reload(capped(a, cap=3))
            assert (await g.chat()).status == 200
            assert (await g.chat()).status == 429
