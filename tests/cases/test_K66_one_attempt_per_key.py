"""K66: the same dead key was tried again for each fallback model of its provider.

https://github.com/routatic/proxy/issues/108
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.support import scripts
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

KEYS = {"SHARED": "sk-shared-key-0001", "OTHER": "sk-other-key-0002"}
MODELS = ["large", "medium", "small"]


@pytest.mark.parametrize("status", [401, 403, 402])
async def test_after_a_refusal_the_other_entries_with_that_key_are_skipped(status: int) -> None:
    async with AsyncExitStack() as stack:
        dead = [
            await stack.enter_async_context(
                ScriptedProvider(
                    scripts.status(status), name=f"a-{model}", model=model, key_env="SHARED"
                )
            )
            for model in MODELS
        ]
        b = await stack.enter_async_context(
            ScriptedProvider(scripts.ok(), name="b", key_env="OTHER")
        )
        config = config_for(*dead, b, failover={"credentials": True})
        g = await stack.enter_async_context(gateway(config, environ=KEYS))
        answer = await g.chat("hi")
        assert [len(provider.requests) for provider in [*dead, b]] == [1, 0, 0, 1]
    assert answer.status == 200
    assert answer.field("X-Gateway-Attempts") == "2"


async def test_where_only_the_dead_key_is_left_the_exchange_ends_after_one_attempt() -> None:
    async with AsyncExitStack() as stack:
        dead = [
            await stack.enter_async_context(
                ScriptedProvider(
                    scripts.status(401), name=f"a-{model}", model=model, key_env="SHARED"
                )
            )
            for model in MODELS
        ]
        config = config_for(*dead, failover={"credentials": True})
        g = await stack.enter_async_context(gateway(config, environ=KEYS))
        answer = await g.chat("hi")
        assert sum(len(provider.requests) for provider in dead) == 1
    assert answer.status == 502
    assert answer.error["code"] == "provider_auth"
    assert answer.field("X-Gateway-Attempts") == "1"


async def test_an_exchange_later_the_key_gets_its_chance_again() -> None:
    recovering = ScriptedProvider(
        scripts.status(401), scripts.ok(), name="a", model="large", key_env="SHARED"
    )
    async with (
        recovering as a,
        gateway(config_for(a, failover={"credentials": True}), environ=KEYS) as g,
    ):
        assert [(await g.chat("hi")).status for _ in range(2)] == [502, 200]


async def test_the_next_key_of_the_same_provider_is_asked_first() -> None:
    async with (
        ScriptedProvider(
            scripts.status(401), scripts.ok(), name="a", key_env=["SHARED", "OTHER"]
        ) as a,
        gateway(config_for(a), environ=KEYS) as g,
    ):
        answer = await g.chat("hi")
        sent = [request.field("Authorization") for request in a.requests]
    assert answer.status == 200
    assert sent == ["Bearer sk-shared-key-0001", "Bearer sk-other-key-0002"]
