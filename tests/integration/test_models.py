"""`GET /v1/models`: the route names that a client may use, in the shape of OpenAI's list."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.gateway import config_for, gateway

PROVIDER = {"name": "a", "base_url": "http://127.0.0.1:9/v1", "model": "m"}

NAMES = ["smart", "openai/gpt-4o", "fast:free", "50%25", "a?b", "a#b", "é".encode().hex()]
"""What may stand in a route's name may stand in a path, if need be percent-encoded."""


def routes(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "providers": ["a"]} for name in names]


def client(name: str, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(f"sk-{name}-0123456789abcdef".encode()).hexdigest()
    return {"name": name, "key_sha256": digest, **more}


def of(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}-0123456789abcdef"}


def shape(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "relayd"}


async def test_without_routes_there_is_the_default_one() -> None:
    async with gateway(config_for(PROVIDER)) as g:
        answer = await g.get("/v1/models")
        assert answer.status == 200
        assert answer.field("Content-Type") == "application/json"
        assert answer.json() == {"object": "list", "data": [shape("default")]}


async def test_routes_stand_in_the_order_of_the_file() -> None:
    async with gateway(config_for(PROVIDER, route=routes(*NAMES))) as g:
        listed = (await g.get("/v1/models")).json()["data"]
        assert listed == [shape(name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
async def test_each_can_be_asked_for_as_an_sdk_writes_it(name: str) -> None:
    async with gateway(config_for(PROVIDER, route=routes(*NAMES))) as g:
        answer = await g.get(f"/v1/models/{quote(name, safe='')}")
        assert (answer.status, answer.json()) == (200, shape(name))


async def test_a_slash_and_a_colon_may_stand_as_they_are() -> None:
    async with gateway(config_for(PROVIDER, route=routes(*NAMES))) as g:
        for name in ("openai/gpt-4o", "fast:free"):
            assert (await g.get(f"/v1/models/{name}")).json() == shape(name)


@pytest.mark.parametrize("name", ["nobody", "m", "%", "%zz", "smart%00", "smart/", "%73mart%ff"])
async def test_any_other_name_is_a_404(name: str) -> None:
    async with gateway(config_for(PROVIDER, route=routes("smart"))) as g:
        answer = await g.get(f"/v1/models/{name}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert answer.error["param"] == "model"


async def test_a_client_sees_its_own_routes_alone() -> None:
    clients = [client("app", routes=["smart"]), client("all")]
    config = config_for(PROVIDER, route=routes("smart", "fast"), client=clients)
    async with gateway(config) as g:
        seen = {
            name: [model["id"] for model in (await g.get("/v1/models", of(name))).json()["data"]]
            for name in ("app", "all")
        }
        assert seen == {"app": ["smart"], "all": ["smart", "fast"]}
        assert (await g.get("/v1/models/fast", of("all"))).status == 200
        assert (await g.get("/v1/models/fast", of("app"))).status == 404
        assert (await g.get("/v1/models")).status == 401
