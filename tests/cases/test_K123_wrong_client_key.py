"""K123: a wrong client key was echoed in the error and logged in clear.

https://github.com/BerriAI/litellm/pull/25203
Often it is the real key of another service.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.support import scripts
from tests.support.builders import chat, messages
from tests.support.client import request
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.provider import ScriptedProvider

OWN = "client-key-0001"
CLIENT = {"name": "c", "key_sha256": hashlib.sha256(OWN.encode()).hexdigest()}

WRONG = "sk-realLooking1234567890"
FIELDS = {
    "unknown": [("Authorization", f"Bearer {WRONG}")],
    "Basic": [("Authorization", f"Basic {WRONG}")],
    "no scheme": [("Authorization", WRONG)],
    "the right one with another scheme": [("Authorization", f"Token {OWN}")],
    "the right one twice": [("Authorization", f"Bearer {OWN}")] * 2,
    "the right one and another": [
        ("Authorization", f"Bearer {OWN}"),
        ("Authorization", f"Bearer {WRONG}"),
    ],
    "both in one field": [("Authorization", f"Bearer {OWN}, Bearer {WRONG}")],
    "10 KB": [("Authorization", "Bearer " + WRONG * 430)],
    "not ASCII": [("Authorization", f"Bearer {WRONG}\xe9\xff")],
    "empty": [("Authorization", "Bearer ")],
    "the scheme alone": [("Authorization", "Bearer")],
    "another field": [("x-api-key", OWN)],
    "in a cookie": [("Cookie", f"key={WRONG}")],
    "none at all": [],
    "the right one, cut": [("Authorization", f"Bearer {OWN[:-1]}")],
    "the right one in capitals": [("Authorization", f"Bearer {OWN.upper()}")],
    "the digest instead": [("Authorization", f"Bearer {CLIENT['key_sha256']}")],
}

each_wrong = pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)


def asks(fields: list[tuple[str, str]], path: str = CHAT) -> bytes:
    body = json.dumps(chat() if path == CHAT else messages()).encode()
    head, _, rest = request("POST", path, body).partition(b"\r\n\r\n")
    rows = "".join(f"\r\n{name}: {value}" for name, value in fields).encode("latin-1")
    return head + rows + b"\r\n\r\n" + rest


def assert_untold(g: Gateway, text: str) -> None:
    told = text + json.dumps(g.log)
    for secret in (WRONG, OWN, OWN.upper(), CLIENT["key_sha256"]):
        assert secret not in told


@each_wrong
async def test_it_gets_401_and_the_key_is_told_to_nobody(fields: list[tuple[str, str]]) -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a, client=[CLIENT], log={"level": "debug"})) as g:
            async with g.client() as client:
                await client.send(asks(fields))
                answer = await client.response("POST")
        assert a.connections == 0
    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.field("WWW-Authenticate") == "Bearer"
    assert_untold(g, str(answer.fields) + answer.text)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/embeddings", "/v1/nothing", "/v1/messages"])
async def test_so_it_is_on_every_path_under_v1(path: str) -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a, client=[CLIENT])) as g:
            method = "GET" if path == "/v1/models" else "POST"
            async with g.client() as client:
                await client.request(method, path, fields={"Authorization": f"Bearer {WRONG}"})
                answer = await client.response(method)
    assert answer.status == 401
    assert_untold(g, answer.text)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_key_is_let_in_and_does_not_cross(scheme: str) -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a, client=[CLIENT])) as g:
            answer = await g.chat("hi", fields={"Authorization": f"{scheme} {OWN}"})
        assert OWN.encode() not in a.requests[0].head
    assert answer.status == 200
    assert g.exchange["client"] == "c"
    assert_untold(g, answer.text)


async def test_it_is_refused_on_the_head_alone() -> None:
    async with ScriptedProvider(scripts.ok()) as a:
        async with gateway(config_for(a, client=[CLIENT])) as g, g.client() as client:
            fields = {"Content-Length": "1000", "Authorization": f"Bearer {WRONG}"}
            await client.send(request("POST", CHAT, b"", {**fields, "Expect": "100-continue"}))
            answer = await client.response("POST")
    assert answer.status == 401
    assert answer.informational == []
