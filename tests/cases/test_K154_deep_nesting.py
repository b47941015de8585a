"""K154: deep JSON within the size limit raised RecursionError, which is no ValueError: a 500.

https://github.com/Osmantic/ODS/pull/5680
The interpreter's own limit moves between versions, so relayd counts for itself.
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, delta, finish
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

LIMIT = 100
"""Levels of arrays and objects, the outermost object included."""

M = b'"messages":[{"role":"user","content":"x"}]'


def arrays(levels: int) -> bytes:
    return b'{"model":"m","x":' + b"[" * levels + b"]" * levels + b"," + M + b"}"


def objects(levels: int) -> bytes:
    return b'{"model":"m","x":' + b'{"y":' * levels + b"1" + b"}" * levels + b"," + M + b"}"


def mixed(levels: int) -> bytes:
    pairs = levels // 2
    return b'{"model":"m","x":' + b'[{"y":' * pairs + b"1" + b"}]" * pairs + b"," + M + b"}"


def in_messages(levels: int) -> bytes:
    deep = b"[" * (levels - 2) + b"]" * (levels - 2)
    return b'{"model":"m","messages":[{"role":"user","content":' + deep + b"}]}"


each_shape = pytest.mark.parametrize("shape", [arrays, objects, mixed, in_messages])


@each_shape
@pytest.mark.parametrize("levels", [LIMIT, 900, 5_000, 20_000, 100_000])
async def test_it_is_a_fault_of_the_request(shape: object, levels: int) -> None:
    body = shape(levels)  # type: ignore[operator]
    async with (
        ScriptedProvider(scripts.ok()) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post(CHAT, body)
        assert not a.requests
    assert answer.status == 400
    assert answer.error["code"] == "bad_request"
    assert answer.error["type"] == "invalid_request_error"


@each_shape
async def test_up_to_the_limit_it_crosses_as_it_is(shape: object) -> None:
    body = shape(LIMIT - 2)  # type: ignore[operator]
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT, body)
        assert a.requests[0].body == body
    assert answer.status == 200


async def test_brackets_in_a_string_are_no_depth() -> None:
    text = b"[" * 5000 + rb"\"" + b"{" * 5000 + rb"\\"
    body = b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}'
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        answer = await g.post(CHAT, body)
        assert a.requests[0].body == body
    assert answer.status == 200


async def test_many_shallow_brackets_are_no_depth() -> None:
    body = b'{"model":"m","x":[' + b",".join([b"[]"] * 5000) + b"]," + M + b"}"
    async with ScriptedProvider(scripts.ok()) as a, gateway(config_for(a)) as g:
        assert (await g.post(CHAT, body)).status == 200


@pytest.mark.parametrize("levels", [900, 20_000])
async def test_a_deep_whole_answer_crosses_as_it_is(levels: int) -> None:
    deep = b'{"choices":[{"message":{"content":"y"}}],"x":' + b"[" * levels + b"]" * levels + b"}"
    async with ScriptedProvider(scripts.status(200, deep)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 200
    assert answer.body == deep


@pytest.mark.parametrize("levels", [900, 20_000])
async def test_a_deep_event_crosses_as_it_is(levels: int) -> None:
    deep = b'data: {"choices":[],"x":' + b"[" * levels + b"]" * levels + b"}\n\n"
    events = [delta("hello"), deep, finish(), DONE]
    async with ScriptedProvider(scripts.events(*events)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi", stream=True)
    assert answer.body == b"".join(events)


@pytest.mark.parametrize("status", [400, 500, 429])
async def test_a_deep_error_is_an_error_that_cannot_be_read(status: int) -> None:
    body = b'{"error":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    async with (
        ScriptedProvider(scripts.status(status, body), name="a") as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == {400: 400, 500: 502, 429: 429}[status]
    assert not [line for line in g.log if line.get("event") == "internal_error"]
