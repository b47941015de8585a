"""K134: a CA file of one provider was not applied to its TLS, landed in the request body instead,
and was no part of the key under which connections were kept.

https://github.com/BerriAI/litellm/issues/38178
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import scripts
from tests.support.certificates import Authority
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider

ROUTES = [{"name": name, "providers": [name]} for name in ("with", "without", "foreign")]


def tables(a: ScriptedProvider, authority: Authority, other: Authority) -> list[dict[str, Any]]:
    """The same address three times: with its CA, with the system's CAs, with another CA."""
    table = {**a.table, "model": "m"}
    return [
        {**table, "name": "with", "ca_file": authority.ca_file},
        {**table, "name": "without"},
        {**table, "name": "foreign", "ca_file": other.ca_file},
    ]


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Authority, Authority]:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    return Authority(folders[0]), Authority(folders[1])


@pytest.mark.parametrize("order", [["with", "without", "foreign"], ["without", "foreign", "with"]])
async def test_each_provider_verifies_with_its_own_and_shares_no_connection(
    order: list[str], authorities: tuple[Authority, Authority]
) -> None:
    authority, other = authorities
    async with ScriptedProvider(scripts.ok(), tls=authority.server()) as a:
        config = config_for(*tables(a, authority, other), route=ROUTES)
        async with gateway(config) as g:
            found = {name: (await g.chat("hi", model=name)).status for name in order * 2}
        assert len(a.requests) == 2
    assert found == {"with": 200, "without": 502, "foreign": 502}
    outcomes = {
        line["attempts"][0]["provider"]: line["attempts"][0]["outcome"] for line in g.exchanges
    }
    assert outcomes["without"] == outcomes["foreign"] == "certificate_refused"


async def test_a_failure_to_verify_fails_over_and_nothing_of_the_request_is_sent(
    authorities: tuple[Authority, Authority],
) -> None:
    authority, other = authorities
    async with ScriptedProvider(scripts.ok(), tls=authority.server()) as a:
        good, _, bad = tables(a, authority, other)
        async with gateway(config_for(bad, good)) as g:
            answer = await g.chat("hi")
        assert len(a.requests) == 1
    assert answer.field("X-Gateway-Provider") == "with"


async def test_no_word_of_it_is_in_the_request(authorities: tuple[Authority, Authority]) -> None:
    authority, _ = authorities
    async with ScriptedProvider(
        scripts.ok(), tls=authority.server(), ca_file=authority.ca_file
    ) as a:
        async with gateway(config_for(a)) as g:
            await g.chat("hi")
        request = a.requests[0]
    assert b"ca" not in request.body.split(b'"messages"')[0]
    assert b".pem" not in request.head + request.body


async def test_two_tls_names_at_one_address_share_no_connection(
    authorities: tuple[Authority, Authority],
) -> None:
    authority, _ = authorities
    context = authority.server("one.test", "two.test")
    async with ScriptedProvider(scripts.ok(), tls=context) as a:
        table = {**a.table, "ca_file": authority.ca_file, "model": "m"}
        named = [
            {**table, "name": name, "tls_server_name": f"{name}.test"} for name in ("one", "two")
        ]
        routes = [{"name": name, "providers": [name]} for name in ("one", "two")]
        async with gateway(config_for(*named, route=routes)) as g:
            for name in ("one", "two", "one", "two"):
                assert (await g.chat("hi", model=name)).status == 200
        assert a.connections == 2


async def test_a_reload_reads_a_ca_file_again(authorities: tuple[Authority, Authority]) -> None:
    authority, other = authorities
    async with ScriptedProvider(scripts.ok(), tls=authority.server()) as a:
        config = config_for({**a.table, "ca_file": other.ca_file})
        async with gateway(config) as g:
            before = (await g.chat()).status
            shutil.copyfile(authority.ca_file, other.ca_file)
            g.reload(config)
            assert (before, (await g.chat()).status) == (502, 200)
