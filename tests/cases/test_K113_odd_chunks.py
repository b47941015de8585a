"""K113: a chunk of usage alone, with `choices` empty or absent, crashed the stream's transform.

https://github.com/Portkey-AI/gateway/issues/1627
"""

from __future__ import annotations

import pytest

from tests.support import scripts
from tests.support.builders import DONE, chunk, delta, finish, role, usage
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

ODD = {
    "usage with empty choices": usage(),
    "usage alone": b'data: {"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
    "choices null": b'data: {"choices":null}\n\n',
    "choices a number": b'data: {"choices":5}\n\n',
    "choices a string": b'data: {"choices":"delta"}\n\n',
    "choices of null": b'data: {"choices":[null]}\n\n',
    "choices of numbers": b'data: {"choices":[1,2]}\n\n',
    "choices of lists": b'data: {"choices":[[]]}\n\n',
    "delta null": b'data: {"choices":[{"delta":null}]}\n\n',
    "delta a string": b'data: {"choices":[{"delta":"content"}]}\n\n',
    "delta a list": b'data: {"choices":[{"delta":["content"]}]}\n\n',
    "usage null": b'data: {"choices":[],"usage":null}\n\n',
    "usage a string": b'data: {"choices":[],"usage":"many"}\n\n',
    "usage of strings": b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\n',
    "usage of a huge number": b'data: {"choices":[],"usage":{"prompt_tokens":1e999}}\n\n',
    "usage with details null": b'data: {"usage":{"prompt_tokens_details":null}}\n\n',
    "a number": b"data: 5\n\n",
    "a string": b'data: "x"\n\n',
    "null": b"data: null\n\n",
    "a list": b"data: []\n\n",
    "not JSON": b"data: {bad\n\n",
    "nothing": b"data:\n\n",
    "not UTF-8": b'data: {"choices":"\xff\xfe"}\n\n',
    "very deep": b"data: " + b"[" * 20_000 + b"\n\n",
    "many digits": b'data: {"choices":[],"x":' + b"9" * 20_000 + b"}\n\n",
    "no known field": b": ping\nhello\n\n",
}

each_odd = pytest.mark.parametrize("odd", ODD.values(), ids=ODD)


@each_odd
@pytest.mark.parametrize("place", ["before", "between", "last"])
async def test_it_crosses_and_the_stream_goes_on(odd: bytes, place: str) -> None:
    events = {
        "before": [odd, role(), delta("hello"), finish(), DONE],
        "between": [delta("hello"), odd, delta("world"), finish(), DONE],
        "last": [delta("hello"), finish(), odd, DONE],
    }[place]
    async with ScriptedProvider(scripts.events(*events)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi", stream=True)
    assert answer.whole
    assert answer.body == b"".join(events)
    assert g.exchange["end_reason"] == "complete"


@each_odd
async def test_on_the_other_surfaces_it_raises_nothing_either(odd: bytes) -> None:
    surfaces = {"/v1/completions": "prompt", "/v1/responses": "input", "/v1/messages": "messages"}
    names = ["completions", "responses", "messages"]
    async with (
        ScriptedProvider(scripts.events(odd, odd), surfaces=names) as a,
        gateway(config_for(a, routing={"commit": "head"}, breaker={"failures": 99})) as g,
    ):
        for path, member in surfaces.items():
            body = {"model": "m", "stream": True, member: [{"role": "user", "content": "x"}]}
            answer = await g.post(path, body)
            assert answer.body.startswith(odd + odd)
    assert not [line for line in g.log if line.get("event") == "internal_error"]


async def test_the_usage_of_such_a_chunk_is_in_the_log() -> None:
    events = [delta("hello"), finish(), usage(3, 5, 1), DONE]
    async with ScriptedProvider(scripts.events(*events)) as a, gateway(config_for(a)) as g:
        await g.chat("hi", stream=True)
    assert g.exchange["usage"] == {"input": 3, "output": 5, "cached": 1}


async def test_chunks_without_choices_alone_are_no_answer() -> None:
    async with (
        ScriptedProvider(scripts.events(chunk([]), usage(), DONE), name="a") as a,
        ScriptedProvider(scripts.ok("hello"), name="b") as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.chat("hi", stream=True)
    assert answer.field("X-Gateway-Provider") == "b"
