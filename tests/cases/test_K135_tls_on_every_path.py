"""K135: TLS settings held on one path and not on the streaming one.

https://github.com/BerriAI/litellm/issues/26053
"""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from relayd.config import build
from relayd.online import check_online
from tests.cases.conftest import models
from tests.support import builders, scripts
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider

SURFACES = ["chat", "completions", "embeddings", "responses", "messages"]
REQUESTS: dict[str, dict[str, Any]] = {
    CHAT: builders.chat(),
    "/v1/completions": builders.completions(),
    "/v1/embeddings": builders.embeddings(),
    "/v1/responses": builders.responses(),
    "/v1/messages": builders.messages(),
}

each_path = pytest.mark.parametrize("path", REQUESTS)
each_stream = pytest.mark.parametrize("stream", [True, False])


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


def server(ca: trustme.CA, name: str = "127.0.0.1", **dates: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(name, **dates).configure_cert(context)
    return context


def file_of(ca: trustme.CA, folder: Path) -> str:
    ca.cert_pem.write_to_path(folder / "ca.pem")
    return str(folder / "ca.pem")


def asked(path: str, stream: bool) -> dict[str, Any]:
    return REQUESTS[path] if path == "/v1/embeddings" else {**REQUESTS[path], "stream": stream}


@each_path
@each_stream
async def test_a_private_ca_is_trusted(
    path: str, stream: bool, ca: trustme.CA, tmp_path: Path
) -> None:
    provider = ScriptedProvider(
        scripts.ok_json(), tls=server(ca), ca_file=file_of(ca, tmp_path), surfaces=SURFACES
    )
    async with provider as a, gateway(config_for(a)) as g:
        answer = await g.post(path, asked(path, stream))
    assert answer.status == 200


@each_path
@each_stream
async def test_without_it_nothing_is_sent_and_the_next_provider_answers(
    path: str, stream: bool, ca: trustme.CA
) -> None:
    async with (
        ScriptedProvider(scripts.ok(), name="a", tls=server(ca), surfaces=SURFACES) as a,
        ScriptedProvider(scripts.ok_json(), name="b", surfaces=SURFACES) as b,
        gateway(config_for(a, b)) as g,
    ):
        answer = await g.post(path, asked(path, stream))
        assert not a.requests
    assert answer.field("X-Gateway-Provider") == "b"


NOW = datetime.datetime.now(datetime.UTC)
LONG_AGO = {
    "not_before": NOW - datetime.timedelta(days=9),
    "not_after": NOW - datetime.timedelta(days=2),
}
WRONG = {
    "expired": ({"name": "127.0.0.1", **LONG_AGO}, True, "expired"),
    "unknown authority": ({"name": "127.0.0.1"}, False, "unable to get local issuer"),
    "another address": ({"name": "127.0.0.2"}, True, "IP address mismatch"),
    "another name": ({"name": "api.test"}, True, "IP address mismatch"),
}


@pytest.mark.parametrize(("issued", "trusted", "words"), WRONG.values(), ids=WRONG)
@each_stream
async def test_what_is_wrong_with_a_certificate_is_in_the_log(
    issued: dict[str, Any],
    trusted: bool,
    words: str,
    stream: bool,
    ca: trustme.CA,
    tmp_path: Path,
) -> None:
    settings = {"ca_file": file_of(ca, tmp_path)} if trusted else {}
    async with (
        ScriptedProvider(scripts.ok(), tls=server(ca, **issued), **settings) as a,
        gateway(config_for(a, failover={"retries": 2})) as g,
    ):
        answer = await g.chat("hi", stream=stream)
        assert not a.requests
        assert a.connections <= 1, "expected no second try without verification"
    assert answer.status == 502
    assert answer.error["code"] == "upstream_error"
    assert words not in answer.text
    (line,) = [line for line in g.log if line.get("event") == "attempt_failed"]
    assert line["outcome"] == "certificate_refused"
    assert words in line["detail"]


async def test_a_provider_that_speaks_no_tls_is_not_asked_in_clear(ca: trustme.CA) -> None:
    async with ScriptedProvider(scripts.raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as a:
        table = {**a.table, "base_url": a.base_url.replace("http:", "https:"), "key_env": "KEY"}
        config = config_for(table, clocks={"connect": 5, "first_content": 5})
        # What arrives is a TLS hello: it has no end of a head in it, so the script never runs.
        async with gateway(config, environ={"KEY": "sk-the-key-0001"}) as g:
            answer = await g.chat("hi")
        assert not a.requests
    assert answer.status == 502
    assert "sk-the-key" not in json.dumps(g.log)


@pytest.mark.parametrize(
    ("trusted", "code", "words"), [(True, 0, "TLS good"), (False, 1, "issuer")]
)
def test_the_check_of_the_providers_connects_in_the_same_way(
    trusted: bool,
    code: int,
    words: str,
    ca: trustme.CA,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"ca_file": file_of(ca, tmp_path)} if trusted else {}
    with models(server(ca, "api.test")) as (host, port):
        base_url = f"https://{host}:{port}/v1"
        table = {"name": "a", "base_url": base_url, "tls_server_name": "api.test", **settings}
        config = build({"provider": [table]}, "test.toml", {}, lambda p: Path(p).read_bytes())
        assert check_online(config) == code
    assert words in capsys.readouterr().out
