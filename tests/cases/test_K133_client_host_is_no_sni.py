"""K133: the host name that the client used went upstream as the SNI.

https://github.com/mitmproxy/mitmproxy/issues/7534
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.conftest import Names
from tests.support import scripts
from tests.support.builders import chat
from tests.support.certificates import Authority
from tests.support.client import post
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

TARGETS = {
    "origin form": CHAT,
    "absolute form": "http://relay.example" + CHAT,
    "absolute form of the provider": "https://evil.example:444" + CHAT,
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("host", ["relay.example", "relay.example:8443", "127.0.0.1"])
async def test_sni_and_host_are_the_providers(
    target: str, host: str, tmp_path: Path, names: Names
) -> None:
    authority, seen = Authority(tmp_path), []
    context = authority.server("api.test")
    context.sni_callback = lambda _, name, __: seen.append(name)
    async with ScriptedProvider(scripts.ok(), tls=context) as a:
        names["api.test"] = [a.address]
        table = {
            "name": "a",
            "base_url": f"https://api.test:{a.address[1]}/v1",
            "ca_file": authority.ca_file,
        }
        async with gateway(config_for(table)) as g, g.client() as client:
            fields = {"Host": host, "X-Forwarded-Host": "evil.example", "Forwarded": "host=e"}
            await client.send(post(target, chat(), fields))
            answer = await client.response("POST")
        assert a.requests[0].field("Host") == f"api.test:{a.address[1]}"
        assert not {"x-forwarded-host", "forwarded"} & set(a.requests[0].names())
    assert answer.status == 200
    assert seen == ["api.test"]
