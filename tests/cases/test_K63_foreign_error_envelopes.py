"""K63: an error body in another envelope was dropped by the SDK: "400 status code (no body)".

https://github.com/earendil-works/pi/issues/7748
openai-node reads nothing but the member `error`, so a request fault is rebuilt into it.
"""

from __future__ import annotations

import json

import pytest

from tests.support import scripts
from tests.support.builders import messages
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

UNDERSTOOD = {
    "no wrapper": b'{"error_code":"BAD_REQUEST","message":"x is wrong"}',
    "detail": b'{"detail":"x is wrong"}',
    "a string": b'{"error":"x is wrong"}',
    "OpenAI's": b'{"error":{"message":"x is wrong","type":"t","param":null,"code":null}}',
    "extra members": b'{"error":{"message":"x is wrong","metadata":{"raw":"y"}},"user_id":"u"}',
}
NOT_UNDERSTOOD = {
    "an array": b'[{"error":{"message":"x is wrong","code":400}}]',
    "plain text": b"x is wrong",
    "nothing": b"",
    "HTML": b"<html>x is wrong</html>",
    "a number": b"5",
    "null": b"null",
    "half of it": b'{"error":{"message":"x is wr',
    "not UTF-8": b"\xff\xfe",
    "error without words": b'{"error":{"code":400}}',
    "error null": b'{"error":null}',
    "error a list": b'{"error":["x is wrong"]}',
    "very deep": b"[" * 20_000 + b"]" * 20_000,
}
STATUSES = [400, 404, 409, 413, 415, 422, 451]


def assert_complete(error: dict[str, object]) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert isinstance(error["param"], str | None)
    assert isinstance(error["code"], str | None)


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("body", UNDERSTOOD.values(), ids=UNDERSTOOD)
async def test_status_and_words_cross_in_the_envelope_that_sdks_read(
    body: bytes, status: int
) -> None:
    async with ScriptedProvider(scripts.status(status, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == status
    assert answer.field("Content-Type") == "application/json"
    assert answer.error["message"] == "x is wrong"
    assert_complete(answer.error)


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("body", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
async def test_what_cannot_be_read_becomes_plain_words(body: bytes, status: int) -> None:
    async with ScriptedProvider(scripts.status(status, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == status
    assert answer.error["message"] == f"the provider refused the request with status {status}"
    assert_complete(answer.error)


async def test_only_the_four_fields_cross() -> None:
    body = UNDERSTOOD["extra members"]
    async with ScriptedProvider(scripts.status(400, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert list(answer.json()) == ["error"]
    assert "metadata" not in answer.text


async def test_numbers_as_type_param_or_code_become_strings() -> None:
    body = b'{"error":{"message":"x","type":1,"param":2,"code":400}}'
    async with ScriptedProvider(scripts.status(400, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.error == {"message": "x", "type": "1", "param": "2", "code": "400"}


async def test_a_long_message_is_cut() -> None:
    body = json.dumps({"error": {"message": "x" * 60_000}}).encode()
    async with ScriptedProvider(scripts.status(400, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.error["message"] == "x" * 2048


async def test_a_body_that_never_ends_is_read_in_part_and_not_understood() -> None:
    body = json.dumps({"error": {"message": "x" * 5_000_000}}).encode()
    async with ScriptedProvider(scripts.status(400, body)) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi")
    assert answer.status == 400
    assert answer.error["message"] == "the provider refused the request with status 400"


async def test_on_the_messages_surface_the_envelope_is_anthropics() -> None:
    fault = scripts.status(400, UNDERSTOOD["detail"])
    async with (
        ScriptedProvider(fault, surfaces=["messages"]) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.post("/v1/messages", messages())
    assert answer.json()["type"] == "error"
    assert answer.error == {"type": "invalid_request_error", "message": "x is wrong"}
