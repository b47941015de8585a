"""K149: unknown model names from clients created endless metric series.

https://github.com/BerriAI/litellm/pull/39136
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders import chat
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.metrics import series
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok

ROUTES = [{"name": "smart", "providers": ["a"]}]


async def ask(g: Gateway, numbers: range) -> set[int]:
    async with g.client() as client:
        return {
            (await client.post_json(CHAT, chat(model=f"model-{number}"))).status
            for number in numbers
        }


@pytest.mark.parametrize(("unknown", "status"), [("reject", 404), ("default", 200)])
async def test_names_that_are_no_route_share_their_series(
    unknown: str, status: int, tmp_path: Path
) -> None:
    admin = str(tmp_path / "admin.sock")
    config = {
        "route": ROUTES,
        "routing": {"unknown": unknown},
        "admin": {"listen": f"unix:{admin}"},
    }
    async with (
        ScriptedProvider(ok(), name="a", model="m") as a,
        gateway(config_for(a, **config)) as g,
    ):
        assert await ask(g, range(2)) == {status}
        before = await series(admin)
        assert await ask(g, range(2, 1000)) == {status}
        after = await series(admin)
    assert set(after) == set(before)
    assert not [name for name in after if "model-" in name]
    route = "smart" if status == 200 else "other"
    counted = sum(
        value
        for name, value in after.items()
        if name.startswith("relayd_requests_total") and f"route={route}" in name
    )
    assert counted == 1000
