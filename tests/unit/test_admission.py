"""Who asks, and for what: keys, users, routes, and the request that comes of it."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest

from relayd import errors
from relayd.admission import (
    MAX_USER,
    account,
    ask_for,
    daily_cap,
    facts_of,
    identify,
    routed,
    user_id,
    user_named,
)
from relayd.config import Config
from relayd.headers import crossing
from relayd.outbound import Ask
from relayd.record import ANONYMOUS, Record
from relayd.surfaces import Surface
from tests.support.builders import chat, embeddings, encode
from tests.support.configuration import ONE, ROUTES, config


def client(name: str, key: str, *lines: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return "\n".join(["[[client]]", f'name = "{name}"', f'key_sha256 = "{digest}"', *lines, ""])


KEYED = config(
    ROUTES + client("app", "k-app") + client("web", "k-web", 'routes = ["b"]', "daily_turns = 7")
)
APP, WEB = KEYED.clients
OPEN = config(ONE)

Fields = list[tuple[bytes, bytes]]


def bearer(value: str) -> Fields:
    return [(b"host", b"a"), (b"authorization", value.encode())]


# ------------------------------------------------------------------ who


def test_without_clients_nobody_is_asked_for_a_key() -> None:
    assert identify(OPEN, [], Surface.CHAT) is None


@pytest.mark.parametrize("value", ["Bearer k-web", "bearer k-web", "BEARER  k-web\t"])
def test_a_key_names_its_client(value: str) -> None:
    assert identify(KEYED, bearer(value), Surface.CHAT) is WEB


@pytest.mark.parametrize("key", ["k-app", "k-web"])
def test_on_messages_a_key_may_come_in_its_own_field(key: str) -> None:
    found = identify(KEYED, [(b"x-api-key", key.encode())], Surface.MESSAGES)
    assert found is (APP if key == "k-app" else WEB)


@pytest.mark.parametrize("surface", [None, *(s for s in Surface if s is not Surface.MESSAGES)])
def test_elsewhere_that_field_is_no_key(surface: Surface | None) -> None:
    with pytest.raises(errors.InvalidKey):
        identify(KEYED, [(b"x-api-key", b"k-app")], surface)


def test_on_messages_a_bearer_works_too() -> None:
    assert identify(KEYED, bearer("Bearer k-app"), Surface.MESSAGES) is APP
    empty = [(b"x-api-key", b""), *bearer("Bearer k-app")]
    assert identify(KEYED, empty, Surface.MESSAGES) is APP


@pytest.mark.parametrize(
    "fields",
    [
        [],
        bearer("Bearer k-other"),
        bearer("Bearer"),
        bearer("Bearer "),
        bearer("Bearerk-app"),
        bearer("Basic k-app"),
        bearer("k-app"),
        bearer("Bearer k-app, Bearer k-web"),
        bearer("Bearer k-app") + bearer("Bearer k-web"),
        bearer("Bearer k-app") * 2,
    ],
)
def test_no_key_or_a_wrong_one_is_refused_and_not_repeated(fields: Fields) -> None:
    with pytest.raises(errors.InvalidKey) as caught:
        identify(KEYED, fields, Surface.CHAT)
    assert "k-" not in str(caught.value)


def test_on_messages_one_of_two_fields_may_be_somebody_elses() -> None:
    """SDKs send both: the key that they were given, and one that they found in the environment."""
    fields = [(b"x-api-key", b"k-other"), *bearer("Bearer k-app")]
    assert identify(KEYED, fields, Surface.MESSAGES) is APP
    fields = [(b"x-api-key", b"k-web"), *bearer("Bearer k-other")]
    assert identify(KEYED, fields, Surface.MESSAGES) is WEB
    fields = [(b"x-api-key", b"k-web"), *bearer("Bearer k-web")]
    assert identify(KEYED, fields, Surface.MESSAGES) is WEB
    with pytest.raises(errors.InvalidKey):
        identify(KEYED, [(b"x-api-key", b"k-web"), *bearer("Bearer k-app")], Surface.MESSAGES)


def test_two_keys_in_one_request_are_none() -> None:
    fields = [(b"x-api-key", b"k-app"), (b"x-api-key", b"k-web")]
    with pytest.raises(errors.InvalidKey):
        identify(KEYED, fields, Surface.MESSAGES)


@pytest.mark.parametrize(
    ("value", "user"),
    [
        (None, None),
        (b"", None),
        (b"u-1", "u-1"),
        ("\u00fc".encode(), "\u00fc"),
        (b"\xff", "\\xff"),
        (b"x" * MAX_USER, "x" * MAX_USER),
    ],
)
def test_a_user_is_named_by_a_header(value: bytes | None, user: str | None) -> None:
    assert user_id(value) == user


def test_a_user_with_a_long_name_is_known_by_its_hash() -> None:
    names = [user_id(b"x" * (MAX_USER + more)) for more in (1, 2)]
    assert names[0] != names[1]
    assert all(name and name.startswith("sha256:") and len(name) == 71 for name in names)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        (None, None),
        ("", None),
        ("u-1", "u-1"),
        ("\u00fc", "\u00fc"),
        ("\ud800", "\\ud800"),
        ("x" * (MAX_USER + 1), user_id(b"x" * (MAX_USER + 1))),
    ],
)
def test_a_program_names_a_user_as_a_header_does(name: str | None, user: str | None) -> None:
    assert user_named(name) == user


@pytest.mark.parametrize("name", [7, 2**70, ("t", 1), b"u-1", uuid.UUID(int=1)])
def test_a_user_that_is_no_string_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=f"user: expected str or None, got {type(name).__name__}"):
        user_named(name)


def test_turns_are_counted_by_client_and_user() -> None:
    assert account(None, None) == ANONYMOUS
    assert account(None, "u") == "u"
    assert account(APP, None) == "app"
    assert account(APP, "u") == "app/u"


def test_a_client_may_have_its_own_cap() -> None:
    capped = config(ROUTES + client("a", "k") + client("b", "l", "daily_turns = 0") + QUOTA)
    assert [daily_cap(capped, who) for who in (None, *capped.clients)] == [5, 5, 0]
    assert daily_cap(KEYED, WEB) == 7


QUOTA = "[quota]\ndaily_turns = 5\n"

# ------------------------------------------------------------------ for what


@pytest.mark.parametrize(("model", "name"), [("a", "a"), ("b", "b"), ("c", "a"), (None, "a")])
def test_a_model_names_a_route(model: str | None, name: str) -> None:
    assert routed(KEYED, None, model).name == name


def test_an_unknown_model_can_be_refused() -> None:
    strict = config(ROUTES + '[routing]\nunknown = "reject"\n')
    with pytest.raises(errors.ModelNotFound) as caught:
        routed(strict, None, "c")
    assert caught.value.param == "model"


def test_a_client_may_use_its_routes_alone() -> None:
    assert routed(KEYED, WEB, "b").name == "b"
    assert routed(KEYED, APP, "a").name == "a"
    for model in ("a", "c", None):
        with pytest.raises(errors.ModelNotFound):
            routed(KEYED, WEB, model)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": "a", "model": "b"}'])
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        facts_of(body, Surface.CHAT)
    assert caught.value.status == 400


def asked(
    found: Config,
    surface: Surface = Surface.CHAT,
    body: object = None,
    record: Record | None = None,
    **more: Any,
) -> Ask:
    record = record or Record(id="id-1", began=5.0)
    data = encode(chat() if body is None else body)
    fields = [(b"openai-beta", b"x"), (b"cookie", b"c")]
    given: dict[str, Any] = {"client": None, "user": None, "began": 1.0, **more}
    lines = crossing(dict(reversed(fields)), fields, surface)
    return ask_for(found, surface, data, lines, record=record, **given)


def test_a_request_becomes_what_an_exchange_takes() -> None:
    record = Record(id="id-1", began=5.0)
    ask = asked(KEYED, body=chat(model="b", stream=True), record=record, client=WEB, user="u")
    assert (ask.surface, ask.route.name, ask.user, ask.cap) == (Surface.CHAT, "b", "web/u", 7)
    assert (ask.request_id, ask.began, ask.wall) == ("id-1", 1.0, 5.0)
    assert (ask.streaming, ask.crossing) == (True, b"OpenAI-Beta: x\r\n")
    assert ask.body == encode(chat(model="b", stream=True))
    assert (record.surface, record.route, record.model, record.stream) == ("chat", "b", "b", True)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_is_what_the_client_asks_for(stream: bool) -> None:
    assert asked(OPEN, body=chat(stream=stream)).streaming is stream


def test_streams_can_be_asked_for_always_where_they_exist() -> None:
    forced = config(ONE + 'surfaces = ["chat", "embeddings"]\n' + '[routing]\nstream = "always"\n')
    assert asked(forced).streaming
    assert not asked(forced, Surface.EMBEDDINGS, embeddings()).streaming


def test_a_surface_that_no_provider_of_the_route_serves_is_refused() -> None:
    with pytest.raises(errors.ModelNotFound) as caught:
        asked(OPEN, Surface.EMBEDDINGS, embeddings())
    assert "embeddings" in caught.value.message


def test_a_route_can_be_given_whatever_the_model_says() -> None:
    other = KEYED.routes[1]
    assert asked(KEYED, body=chat(model="a"), route=other).route is other
