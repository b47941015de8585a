"""What goes upstream: the bytes of the head, and the few that change in the body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relayd import __version__
from relayd.admission import ask_for
from relayd.config import Config
from relayd.headers import crossing
from relayd.job import Job
from relayd.outbound import Outbound
from relayd.pool import Origin
from relayd.record import Record
from relayd.surfaces import Surface
from tests.support.configuration import config

BASE = '[[provider]]\nname = "one"\n'
LOCAL = BASE + 'base_url = "http://127.0.0.1:9/v1"\n'
BODY = b'{ "model" : "m\\u0031", "n":1.0, "messages":[{"role":"user","content":"hi"}] }'


def plain(text: str) -> str:
    return text


def job(
    found: Config,
    body: bytes = BODY,
    surface: Surface = Surface.CHAT,
    fields: list[tuple[bytes, bytes]] | None = None,
    candidate: int = 0,
) -> Job:
    given = fields or []
    lines = crossing(dict(reversed(given)), given, surface)
    record = Record(id="id-1", began=0.0)
    ask = ask_for(found, surface, body, lines, None, None, record, began=0.0)
    chosen = ask.route.candidates[candidate]
    key = chosen.provider.keys[0] if chosen.provider.keys else None
    return Outbound(found, plain).job(ask, chosen, key)


def lines(found: Job) -> list[str]:
    assert found.head.endswith(b"\r\n\r\n")
    return found.head.decode("ascii").split("\r\n")[:-2]


# ------------------------------------------------------------------ the head


def test_a_head_holds_exactly_these_lines() -> None:
    found = job(config(LOCAL + 'key_env = "K"\n', K="sk-1"), fields=[(b"openai-beta", b"b")])
    assert lines(found) == [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: 127.0.0.1:9",
        "Content-Type: application/json",
        "Accept-Encoding: identity",
        f"User-Agent: relayd/{__version__}",
        "Via: 1.1 relayd",
        "Authorization: Bearer sk-1",
        "Accept: application/json",
        "OpenAI-Beta: b",
        "X-Request-ID: id-1",
        f"Content-Length: {len(BODY)}",
    ]


def test_without_a_key_no_credential_is_sent() -> None:
    assert not any("uthorization" in line for line in lines(job(config(LOCAL))))


def test_a_stream_is_accepted_where_one_is_asked_for() -> None:
    found = job(config(LOCAL), BODY.replace(b'"n":1.0', b'"stream":true'))
    assert "Accept: text/event-stream, application/json" in lines(found)


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("https://a.test/v1", "a.test", "/v1/chat/completions"),
        ("https://a.test:443", "a.test", "/chat/completions"),
        ("https://a.test:80/x/y", "a.test:80", "/x/y/chat/completions"),
        ("http://127.0.0.1", "127.0.0.1", "/chat/completions"),
        ("http://127.0.0.1:443/", "127.0.0.1:443", "/chat/completions"),
        ("http://[::1]:8000/v1", "[::1]:8000", "/v1/chat/completions"),
        ("http://[::1]/v1", "[::1]", "/v1/chat/completions"),
    ],
)
def test_the_host_is_the_providers(url: str, host: str, target: str) -> None:
    start, field, *_ = lines(job(config(f'{BASE}base_url = "{url}"\n')))
    assert (start, field) == (f"POST {target} HTTP/1.1", f"Host: {host}")


def test_a_providers_query_and_fields_are_sent() -> None:
    more = 'query = { api-version = "2024-10-21" }\nheaders = { X-Title = "t" }\n'
    found = lines(job(config(LOCAL + more)))
    assert found[0] == "POST /v1/chat/completions?api-version=2024-10-21 HTTP/1.1"
    assert "X-Title: t" in found


def test_the_fixed_lines_are_told_apart_by_surface_and_key() -> None:
    more = 'surfaces = ["chat", "messages"]\nkey_env = ["K", "L"]\n'
    found = config(LOCAL + more, K="k-1", L="k-2")
    outbound = Outbound(found, plain)

    def sent(surface: Surface, key: int) -> tuple[bytes, bool]:
        record = Record(id="id-1", began=0.0)
        ask = ask_for(found, surface, BODY, b"", None, None, record, began=0.0)
        candidate = ask.route.candidates[0]
        head = outbound.job(ask, candidate, candidate.provider.keys[key]).head
        return head.split()[1], b"k-%d" % (key + 1) in head

    courses = [(Surface.CHAT, 0), (Surface.MESSAGES, 0), (Surface.CHAT, 1), (Surface.CHAT, 0)]
    paths = [b"/v1/chat/completions", b"/v1/messages", b"/v1/chat/completions"]
    assert [sent(*course) for course in courses] == [(path, True) for path in [*paths, paths[0]]]


# ------------------------------------------------------------------ the body


def test_without_a_change_the_body_is_the_clients_own() -> None:
    found = config(LOCAL)
    assert job(found).body is BODY


def test_a_model_is_replaced_in_place() -> None:
    found = job(config(LOCAL + 'model = "other \\u00e9"\n'))
    assert found.body == BODY.replace(b'"m\\u0031"', b'"other \\u00e9"')
    assert f"Content-Length: {len(found.body)}" in lines(found)


def test_a_missing_model_is_added() -> None:
    found = job(config(LOCAL + 'model = "x"\n'), BODY.replace(b'"model" : "m\\u0031", ', b""))
    assert json.loads(found.body)["model"] == "x"


def test_a_forced_stream_is_added_once() -> None:
    forced = config(LOCAL + '[routing]\nstream = "always"\n')
    assert json.loads(job(forced).body)["stream"] is True
    asked = BODY.replace(b'"n":1.0', b'"stream": true')
    assert job(forced, asked).body is asked
    refused = job(forced, BODY.replace(b'"n":1.0', b'"stream": false')).body
    assert json.loads(refused)["stream"] is True
    assert refused.count(b"stream") == 1


ROUTER = BASE.replace("one", "openrouter") + 'key_env = "K"\nno_train = true\n'


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (b"", {"data_collection": "deny"}),
        (b'"provider":{"order":["a"]},', {"order": ["a"], "data_collection": "deny"}),
        (b'"provider":{"data_collection":"allow"},', {"data_collection": "deny"}),
        (b'"provider":null,', {"data_collection": "deny"}),
    ],
)
def test_training_is_refused_whatever_the_client_says(own: bytes, expected: object) -> None:
    found = job(config(ROUTER, K="k"), b"{" + own + BODY[1:])
    assert json.loads(found.body)["provider"] == expected


def test_training_is_refused_whatever_extra_body_says() -> None:
    extra = 'extra_body = { provider = { data_collection = "allow", sort = "price" } }\n'
    found = job(config(ROUTER + extra, K="k"))
    assert json.loads(found.body)["provider"] == {"data_collection": "deny", "sort": "price"}


def test_extra_members_replace_the_clients_own() -> None:
    found = job(config(LOCAL + 'extra_body = { n = 2, user = "u" }\n'))
    sent: dict[str, Any] = json.loads(found.body)
    assert (sent["n"], sent["user"]) == (2, "u")
    assert b'"model" : "m\\u0031", "n":2' in found.body


# ------------------------------------------------------------------ how it is judged


@pytest.mark.parametrize(
    ("commit", "stream", "hold", "blind"),
    [
        ("content", True, False, False),
        ("content", False, True, False),
        ("answer", True, True, False),
        ("answer", False, True, False),
        ("head", True, False, True),
        ("head", False, False, True),
    ],
)
def test_the_commit_rule_says_what_is_held(
    commit: str, stream: bool, hold: bool, blind: bool
) -> None:
    body = BODY.replace(b'"n":1.0', b'"stream":true') if stream else BODY
    found = job(config(LOCAL + f'[routing]\ncommit = "{commit}"\n'), body)
    assert (found.hold, found.blind, found.streaming) == (hold, blind, stream)


def test_a_job_goes_to_its_providers_origin() -> None:
    found = config(f'{BASE}base_url = "https://a.test/v1"\nca_file = "/ca.pem"\n', lambda _: PEM)
    origin = Origin("https", "a.test", 443, "a.test", "/ca.pem")
    assert job(found).origin == origin
    assert Outbound(found, plain).origins() == {origin}


PEM = b"-----BEGIN CERTIFICATE-----\n"
