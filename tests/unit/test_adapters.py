"""Wire formats: what is put to a provider, what its answers say, what they cost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import relayd.adapters
from relayd import adapters
from relayd.adapters import ADAPTERS, Said, Unsayable, adapter_for
from relayd.adapters.anthropic import Anthropic
from relayd.adapters.openai import OpenAI
from relayd.config import Price, Provider
from relayd.record import Usage
from relayd.surfaces import Surface
from tests.support import builders
from tests.support.configuration import config

NOTHING = Said()
LAST = Said(last=True)
PLAIN = Said(error="the provider reported an error")


def provider(kind: str, *surfaces: str, more: str = "") -> Provider:
    text = (
        f'[[provider]]\nname = "p"\nkind = "{kind}"\nbase_url = "http://127.0.0.1:9/v1"\n'
        f'key_env = "K"\nsurfaces = {json.dumps(surfaces)}\n{more}'
    )
    return config(text, K="sk-0123456789").providers[0]


# ---- which format


def test_every_module_with_an_adapter_is_found_by_name() -> None:
    assert [adapter.name for adapter in ADAPTERS] == ["anthropic", "openai"]


@pytest.mark.parametrize(
    ("kind", "surfaces", "expected"),
    [
        ("groq", ["chat"], "openai"),
        ("anthropic", ["chat"], "openai"),
        ("anthropic", ["chat", "messages"], "openai"),
        ("anthropic", ["messages"], "anthropic"),
        ("vllm", ["messages"], None),
        ("openai", ["embeddings"], None),
    ],
)
def test_a_provider_is_asked_in_the_format_that_speaks_to_it(
    kind: str, surfaces: list[str], expected: str | None
) -> None:
    found = adapter_for(provider(kind, *surfaces))
    assert (found.name if found else None) == expected


def test_another_wire_format_is_one_more_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gopher.py").write_text(
        "from relayd.adapters.openai import OpenAI\n"
        "class Gopher(OpenAI):\n"
        "    name = 'gopher'\n"
        "    def speaks(self, provider):\n"
        "        return provider.kind == 'ollama'\n"
        "ADAPTER = Gopher()\n"
    )
    monkeypatch.setattr(relayd.adapters, "__path__", [*relayd.adapters.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "relayd.adapters.gopher", raising=False)
    more = adapters.found([*relayd.adapters.__path__])
    found = adapter_for(provider("ollama", "chat"), more)
    assert found is not None
    assert found.name == "gopher"


# ---- costs

PRICE = Price(2.0, 10.0)


def test_input_and_output_have_their_own_price() -> None:
    used = Usage(1_000_000, 500_000, 400_000)
    assert adapters.cost(Surface.CHAT, used, PRICE) == pytest.approx(7.0)


def test_messages_count_what_came_from_a_cache_apart() -> None:
    used = Usage(600_000, 500_000, 400_000)
    assert adapters.cost(Surface.MESSAGES, used, PRICE) == pytest.approx(7.0)


@pytest.mark.parametrize("surface", Surface)
def test_what_was_not_counted_costs_nothing(surface: Surface) -> None:
    assert adapters.cost(surface, Usage(), PRICE) == 0.0


# ---- model lists


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_the_model_list_stands_beside_the_surfaces(adapter: adapters.Adapter) -> None:
    assert adapter.models(provider("openai", "chat")) == "/v1/models"
    queried = provider("openai", "chat", more='query = { api-version = "1" }')
    assert adapter.models(queried) == "/v1/models?api-version=1"


# ---- OpenAI's format

openai = OpenAI()


def test_the_messages_go_on_as_they_are() -> None:
    messages = b'[ {"role":"user","content":"\\u00e9","n":1.0e0} ]'
    assert openai.request(messages) == b'{"messages":%b,"stream":true}' % messages


def test_chat_needs_no_field_of_its_own() -> None:
    assert openai.fields(provider("openai", "chat")) == b""


def chunk(delta: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[DONE]", LAST),
        (chunk({"content": "hi"}), Said("hi")),
        (chunk({"content": None}), NOTHING),
        (chunk({"role": "assistant"}), NOTHING),
        (chunk(None), NOTHING),
        (chunk({"content": [{"type": "text", "text": "a"}, {"text": 1}, 2]}), Said("a")),
        (b'{"choices":[]}', NOTHING),
        (b'{"choices":null,"error":null}', NOTHING),
        (b'{"choices":[7]}', NOTHING),
        (b'{"choices":7}', NOTHING),
        (b"[]", NOTHING),
        (b"<html>", NOTHING),
        (b"[" * 100_000, NOTHING),
        (b'{"error":{"message":"broken"}}', Said(error="broken")),
        (b'{"error":"broken"}', Said(error="broken")),
        (b'{"error":{"message":""}}', PLAIN),
        (b'{"error":7}', PLAIN),
    ],
)
def test_an_event_of_chat_says_its_text_or_its_error(data: bytes, said: Said) -> None:
    assert openai.event(b"", data) == said


def test_a_whole_chat_answer_says_its_text() -> None:
    assert openai.whole(builders.encode(builders.completion("hello"))) == Said("hello")


# ---- Anthropic's format

anthropic = Anthropic()


def put(*messages: Any) -> Any:
    return json.loads(anthropic.request(json.dumps(messages).encode()))


def test_a_text_becomes_a_block() -> None:
    asked = put({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"})
    assert asked == {
        "max_tokens": 4096,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
        ],
        "stream": True,
    }


def test_system_messages_stand_apart() -> None:
    asked = put(
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
    )
    assert asked["system"] == "be short\n\nbe kind"
    assert len(asked["messages"]) == 1


def image(url: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_images_go_by_their_url_or_in_base64() -> None:
    parts = [image("https://host/a.png"), image("data:image/png;base64,QUJD")]
    blocks = put({"role": "user", "content": parts})["messages"][0]["content"]
    assert [block["source"] for block in blocks] == [
        {"type": "url", "url": "https://host/a.png"},
        {"type": "base64", "media_type": "image/png", "data": "QUJD"},
    ]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (7, "no object"),
        ({"role": "tool", "tool_call_id": "c", "content": "42"}, "tool calls"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "tool calls"),
        ({"role": "assistant", "content": None}, "without content"),
        ({"role": "user", "content": [7]}, "neither text nor an image"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "neither text nor an image"),
        ({"role": "user", "content": [{"type": "text"}]}, "neither text nor an image"),
        ({"role": "user", "content": [image(7)]}, "neither text nor an image"),
        ({"role": "system", "content": [image("u")]}, "in a system message"),
        ({"role": "system", "content": "be short"}, "system alone"),
    ],
)
def test_what_has_no_place_in_the_format_is_unsayable(message: Any, words: str) -> None:
    with pytest.raises(Unsayable, match=words):
        put(message)


def test_a_number_that_nobody_can_read_is_unsayable() -> None:
    with pytest.raises(Unsayable, match="digits"):
        anthropic.request(b"[%b]" % (b"1" * 10_000))


def test_the_version_is_sent() -> None:
    assert (
        anthropic.fields(provider("anthropic", "messages")) == b"anthropic-version: 2023-06-01\r\n"
    )


def delta(**more: Any) -> bytes:
    return json.dumps({"type": "content_block_delta", "index": 0, **more}).encode()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (delta(delta={"type": "text_delta", "text": "hi"}), Said("hi")),
        (delta(delta={"type": "text_delta"}), NOTHING),
        (delta(delta={"type": "thinking_delta", "thinking": "hm"}), NOTHING),
        (delta(delta=7), NOTHING),
        (b'{"type":"message_delta","delta":{"stop_reason":"end_turn"}}', NOTHING),
        (b'{"type":"ping"}', NOTHING),
        (b"[]", NOTHING),
        (b"<html>", NOTHING),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}',
            Said(error="Busy"),
        ),
        (b'{"type":"error","error":{}}', PLAIN),
        (b'{"type":"error"}', PLAIN),
    ],
)
def test_an_event_of_messages_says_its_text_or_its_error(data: bytes, said: Said) -> None:
    assert anthropic.event(b"", data) == said


def test_the_last_event_of_messages_may_have_its_type_in_its_name_alone() -> None:
    assert anthropic.event(b"message_stop", b"{}") == LAST


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"content":[{"type":"text","text":"a"},{"type":"x"},{"text":"b"},7]}', Said("ab")),
        (b'{"content":7}', NOTHING),
        (b"x", NOTHING),
    ],
)
def test_a_whole_messages_answer_says_its_text(body: bytes, said: Said) -> None:
    assert anthropic.whole(body) == said
