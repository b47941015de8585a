"""K132: with an address in the URL and a name in the Host field the certificate was checked against
the address.

https://github.com/aio-libs/aiohttp/issues/3455
RFC 6066, section 3: an SNI is never an address, and has neither a port nor a dot at its end.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.cases.conftest import Names
from tests.support import scripts
from tests.support.certificates import Authority
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider


def noting(context: ssl.SSLContext, seen: list[str | None]) -> ssl.SSLContext:
    """The context, which notes the SNI of each hello."""
    context.sni_callback = lambda _, name, __: seen.append(name)
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def outcome(
    authority: Authority, certificate: str, host: str, seen: list[str | None], **settings: str
) -> str:
    """How an attempt ends at a provider with this certificate, asked as `host`."""
    context = noting(authority.server(certificate), seen)
    async with ScriptedProvider(scripts.ok(), tls=context) as a:
        base_url = f"https://{host}:{a.address[1]}/v1"
        table = {"name": "a", "base_url": base_url, "ca_file": authority.ca_file, **settings}
        async with gateway(config_for(table)) as g:
            await g.chat("hi")
        return str(g.exchange["attempts"][0]["outcome"])


async def test_the_configured_name_is_sent_and_verified(authority: Authority) -> None:
    seen: list[str | None] = []
    found = await outcome(authority, "api.test", "127.0.0.1", seen, tls_server_name="api.test")
    assert (found, seen) == ("ok", ["api.test"])


async def test_a_certificate_for_the_address_does_not_do_for_the_name(
    authority: Authority,
) -> None:
    seen: list[str | None] = []
    found = await outcome(authority, "127.0.0.1", "127.0.0.1", seen, tls_server_name="api.test")
    assert (found, seen) == ("certificate_refused", ["api.test"])


async def test_without_a_configured_name_an_address_is_verified_and_not_sent(
    authority: Authority,
) -> None:
    seen: list[str | None] = []
    found = await outcome(authority, "127.0.0.1", "127.0.0.1", seen)
    assert (found, seen) == ("ok", [None])


async def test_a_certificate_for_a_name_does_not_do_for_the_address(authority: Authority) -> None:
    seen: list[str | None] = []
    found = await outcome(authority, "api.test", "127.0.0.1", seen)
    assert found == "certificate_refused"


@pytest.mark.parametrize("host", ["api.test", "api.test.", "API.Test"])
async def test_a_host_of_the_url_is_sent_without_port_and_dot(
    authority: Authority, host: str, names: Names
) -> None:
    seen: list[str | None] = []
    context = noting(authority.server("api.test"), seen)
    async with ScriptedProvider(scripts.ok(), tls=context) as a:
        names[host.lower()] = [a.address]
        base_url = f"https://{host}:{a.address[1]}/v1"
        table = {"name": "a", "base_url": base_url, "ca_file": authority.ca_file}
        async with gateway(config_for(table)) as g:
            answer = await g.chat("hi")
    assert answer.status == 200
    assert seen == ["api.test"]


async def test_the_host_field_is_the_urls_whatever_the_tls_name(authority: Authority) -> None:
    async with ScriptedProvider(scripts.ok(), tls=authority.server("api.test")) as a:
        table = {**a.table, "tls_server_name": "api.test", "ca_file": authority.ca_file}
        async with gateway(config_for(table)) as g:
            await g.chat("hi")
        assert a.requests[0].field("Host") == f"127.0.0.1:{a.address[1]}"
