"""K54: X-Forwarded-Proto went upstream and made it redirect to https for ever.

https://github.com/agentic-community/mcp-gateway-registry/pull/1685
"""

from __future__ import annotations

import pytest

from tests.support.gateway import config_for, gateway
from tests.support.provider import Peer, Request, ScriptedProvider
from tests.support.scripts import ok, status

FIELDS = {
    "X-Forwarded-Proto": "http",
    "X-Forwarded-Host": "relayd.test",
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Port": "80",
    "X-Real-IP": "203.0.113.9",
    "X-User-Id": "anna",
    "Forwarded": "for=203.0.113.9;proto=http",
}


async def test_the_provider_does_not_see_them() -> None:
    async def script(peer: Peer, request: Request) -> None:
        if {name.lower() for name in FIELDS} & set(request.names()):
            await peer.whole(308, b"", [("Location", "https://elsewhere.test/")])
        else:
            await ok()(peer, request)

    async with ScriptedProvider(script) as a, gateway(config_for(a)) as g:
        answer = await g.chat("hi", fields=FIELDS)
        assert len(a.requests) == 1
        assert b"203.0.113.9" not in a.requests[0].head
        assert b"anna" not in a.requests[0].head + a.requests[0].body
    assert answer.status == 200


@pytest.mark.parametrize("code", [300, 301, 302, 303, 307, 308, 399])
async def test_a_redirect_is_never_followed(code: int) -> None:
    async with ScriptedProvider(ok(), name="elsewhere") as elsewhere:
        location = [("Location", f"{elsewhere.base_url}/chat/completions")]
        async with (
            ScriptedProvider(status(code, b"", location), name="a") as a,
            ScriptedProvider(ok(), name="b") as b,
        ):
            async with gateway(config_for(a, b)) as g:
                answer = await g.chat("hi")
                assert answer.field("X-Gateway-Provider") == "b"
                assert answer.field("X-Gateway-Attempts") == "2"
            async with gateway(config_for(a)) as g:
                alone = await g.chat("hi")
        assert elsewhere.connections == 0
        assert elsewhere.base_url not in alone.text
    assert alone.status == 502
    assert alone.field("Location") is None
