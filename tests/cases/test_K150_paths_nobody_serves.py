"""K150: raw request paths as a label let scanners grow the registry.

https://github.com/BerriAI/litellm/issues/35666
"""

from __future__ import annotations

from pathlib import Path

from tests.support.builders import chat
from tests.support.gateway import CHAT, Gateway, config_for, gateway
from tests.support.metrics import series
from tests.support.provider import ScriptedProvider
from tests.support.scripts import status

STATUSES = [code for code in range(400, 600) if code not in (401, 402, 403, 408, 429)]


async def scan(g: Gateway, numbers: range) -> None:
    """A path, a method and a provider's status that were not seen before, each time."""
    async with g.client() as client:
        for number in numbers:
            await client.get(f"/wp-admin/{number}.php")
            await client.request(f"FOO{number}", "/v1/models")
            assert (await client.response()).status == 405
            if number < len(STATUSES):
                await client.post_json(CHAT, chat())


async def test_a_scanner_adds_no_series(tmp_path: Path) -> None:
    admin = str(tmp_path / "admin.sock")
    config = {"admin": {"listen": f"unix:{admin}"}, "breaker": {"failures": 10**6}}
    ordered = [599, 400, 499, *STATUSES]
    async with (
        ScriptedProvider(*map(status, ordered), name="a") as a,
        gateway(config_for(a, **config)) as g,
    ):
        await scan(g, range(3))
        before = await series(admin)
        await scan(g, range(3, 500))
        after = await series(admin)
    assert set(after) == set(before)
    assert not [name for name in after if "wp-admin" in name or "FOO" in name]
    unserved = "relayd_requests_total{route=other}{status=4xx}{surface=other}"
    assert after[unserved] == 2 * 500
