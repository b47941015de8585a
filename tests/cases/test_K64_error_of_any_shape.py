"""K64: `"error"` as a string crashed code that expected an object.

https://github.com/openai/openai-python/issues/413
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.builders import DONE, completion, event, finish
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

SHAPES: list[object] = [
    "x",
    {"code": 429},
    {"message": None},
    {"message": {"deep": 1}},
    ["x"],
    [],
    {},
    5,
    True,
]

each_shape = pytest.mark.parametrize("shape", SHAPES, ids=json.dumps)


@each_shape
async def test_as_the_body_of_a_404_it_becomes_an_object_with_its_status(shape: object) -> None:
    async with (
        ScriptedProvider(scripts.status(404, {"error": shape})) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.status == 404
    assert isinstance(answer.error["message"], str)
    assert answer.error["message"]


async def test_a_string_is_the_message() -> None:
    async with (
        ScriptedProvider(scripts.status(404, {"error": "Not Found"})) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi")
    assert answer.error["message"] == "Not Found"


@each_shape
@pytest.mark.parametrize("stream", [True, False])
async def test_as_all_there_is_in_a_200_it_is_a_failed_attempt(shape: object, stream: bool) -> None:
    value = {"error": shape}
    script = scripts.events(event(value), DONE) if stream else scripts.status(200, value)
    async with (
        ScriptedProvider(script, name="a") as a,
        ScriptedProvider(scripts.ok(), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=stream)
    assert answer.field("X-Gateway-Provider") == "b"


async def test_an_error_that_is_null_is_none_in_a_chunk() -> None:
    choice = {"index": 0, "delta": {"content": "hello"}}
    first = event({"error": None, "choices": [choice]})
    async with (
        ScriptedProvider(scripts.events(first, finish(), DONE)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.status == 200
    assert answer.body == first + finish() + DONE
    assert g.exchange["end_reason"] == "complete"


async def test_an_error_that_is_null_is_none_in_a_whole_answer() -> None:
    whole = {"error": None, **completion("hello")}
    async with ScriptedProvider(scripts.status(200, whole)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 200
    assert answer.json() == whole


@each_shape
async def test_after_content_it_is_passed_on_and_ends_the_stream(shape: object) -> None:
    begin = event({"choices": [{"index": 0, "delta": {"content": "hello"}}]})
    error = event({"error": shape})
    async with (
        ScriptedProvider(scripts.events(begin, error)) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.body == begin + error
    assert g.exchange["end_reason"] == "upstream_error_event"
