"""Routes and clients: precedence, references, keys."""

from __future__ import annotations

import hashlib

import pytest

from relayd.config import Commit
from relayd.surfaces import Surface
from tests.support.configuration import ONE, ROUTES, TWO, config, files, problems


def test_a_candidate_has_the_clocks_of_route_then_provider_then_section() -> None:
    text = (
        "[clocks]\nconnect=1\nfirst_content=2\nanswer=3\nidle=4\ndeadline=50\n"
        + ONE
        + 'connect=5\nfirst_content=6\nanswer=7\nmodel="m1"\nmodels={fast="f"}\n'
        + '[[route]]\nname="r"\nproviders=["one"]\nfirst_content=8\nmodels={one="mr"}\n'
        + '[[route]]\nname="s"\nproviders=["one"]\ndeadline=9\ncommit="answer"\nanswer=1\nidle=2\n'
    )
    first, second = config(text).routes
    (one,) = first.candidates
    assert (one.connect, one.first_content, one.answer, one.idle) == (5.0, 8.0, 7.0, 4.0)
    assert (first.commit, first.deadline, one.model) == (Commit.CONTENT, 50.0, "mr")
    assert (one.hinted("fast"), one.hinted("cheap"), one.hinted(None)) == ("f", "mr", "mr")
    (one,) = second.candidates
    assert (one.first_content, one.answer, one.idle, one.model) == (6.0, 1.0, 2.0, "m1")
    assert (second.commit, second.deadline) == (Commit.ANSWER, 9.0)


def test_the_default_route_passes_the_clients_model_through() -> None:
    found = config("[routing]\nunknown = 'default'\n" + TWO)
    assert [each.model for each in found.routes[0].candidates] == [None, "m2"]
    assert found.route_for("anything") is found.routes[0]
    assert found.route_for(None) is found.routes[0]


def test_a_model_name_finds_its_route_and_an_unknown_one_the_first() -> None:
    found = config(ROUTES)
    assert found.named_routes
    assert found.route_for("b") is found.routes[1]
    assert found.route_for("c") is found.routes[0]
    assert found.route_for(None) is found.routes[0]


def test_an_unknown_model_name_can_be_rejected() -> None:
    found = config("[routing]\nunknown = 'reject'\n" + ROUTES)
    assert found.route_for("b") is found.routes[1]
    assert found.route_for("c") is None
    assert found.route_for(None) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('name="r"\nproviders=[]', "route[r].providers: expected at least one entry"),
        ('name="r"', "route[r].providers: missing"),
        ('name="a b"\nproviders=["two"]', "route[1].name: expected printable ASCII"),
        ('name="r"\nproviders=["two", "two"]', "route[r].providers: expected each entry once"),
        (
            'name="r"\nproviders=["tow"]',
            'route[r].providers: no provider "tow"; did you mean "two"',
        ),
        ('name="r"\nproviders=["one"]', 'route[r].providers: "one" has no model here; set `model`'),
        ('name="r"\nproviders=["two"]\nmodels={one="x"}', "route[r].models.one: no provider of th"),
        ('name="other"\nproviders=["two"]', 'route[other].name: "other" is traffic without a ro'),
        ('name="r"\nproviders=["two"]\nconnect=1', "route[r].connect: unknown key"),
        ('name="r"\nproviders=["two"]\n[[route]]\nname="r"\nproviders=["two"]', "route[2].name: "),
    ],
)
def test_a_fault_of_a_route_is_told_once(text: str, line: str) -> None:
    (told,) = problems(f"{TWO}[[route]]\n{text}")
    assert line in told


def test_a_route_is_not_blamed_for_its_provider() -> None:
    text = '[[provider]]\nname="x"\nbase_url="?"\n[[provider]]\nname="y"\nbase_url="http://h"\nmodel=1\n'
    lines = problems(f'{text}[[route]]\nname="r"\nproviders=["x", "y"]')
    assert [line.split(": ")[1] for line in lines] == ["provider[x].base_url", "provider[y].model"]


@pytest.mark.parametrize(
    ("everybody", "one", "is_capped"), [(0, 0, False), (1, 0, True), (0, 1, True)]
)
def test_turns_are_capped_for_everybody_or_for_a_client(
    everybody: int, one: int, is_capped: bool
) -> None:
    client = f'[[client]]\nname="h"\nkey_sha256="{"AB" * 32}"\ndaily_turns={one}\n'
    found = config(f"quota.daily_turns={everybody}\n" + ONE + client)
    assert found.capped is is_capped


def test_only_those_who_serve_a_surface_take_part_in_it() -> None:
    (route,) = config(TWO + 'surfaces=["chat", "embeddings"]\n').routes
    assert [each.provider.name for each in route.on(Surface.CHAT)] == ["one", "two"]
    assert [each.provider.name for each in route.on(Surface.EMBEDDINGS)] == ["two"]
    assert route.on(Surface.MESSAGES) == ()


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://H.example/v1", "h.example"),
        ("https://h.example:443", "h.example"),
        ("http://h.example:443/v1", "h.example:443"),
        ("http://[::1]:8000/v1", "[::1]:8000"),
    ],
)
def test_an_authority_has_the_port_where_it_is_not_the_usual_one(url: str, authority: str) -> None:
    (provider,) = config(f'[[provider]]\nname="x"\nbase_url="{url}"\n').providers
    assert provider.authority == authority


def test_clients_are_known_by_the_digest_of_their_key() -> None:
    digest = hashlib.sha256(b"k-env").hexdigest()
    text = (
        ROUTES
        + f'[[client]]\nname="h"\nkey_sha256="{"AB" * 32}"\ndaily_turns=0\nroutes=["a"]\n'
        + '[[client]]\nname="e"\nkey_env="K"\n[[client]]\nname="f"\nkey_file="/k"\n'
        + '[[client]]\nname="c"\nkey_credential="k"\n'
    )
    read = files(k=b"k-file\n", **{"creds/k": b"k-cred"})
    found = config(text, read, K="k-env", CREDENTIALS_DIRECTORY="/creds")
    named, env, file, credential = found.clients
    assert (named.digest, named.daily_turns, named.routes) == (b"\xab" * 32, 0, frozenset({"a"}))
    assert (env.digest.hex(), env.daily_turns, env.routes) == (digest, None, None)
    assert file.digest == hashlib.sha256(b"k-file").digest()
    assert credential.digest == hashlib.sha256(b"k-cred").digest()
    assert found.secrets == {"k-env", "k-file", "k-cred"}
    assert "k-env" not in repr(found)
    assert digest not in repr(found)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('name="c"', "client[c]: expected key_sha256, or one of key_env, key_file, key_credential"),
        (f'name="c"\nkey_sha256="{"0" * 64}"\nkey_env="K"', "got both"),
        ('name="c"\nkey_sha256="S3CR3T"', "client[c].key_sha256: expected the 64 hexadecimal"),
        ('name="c"\nkey_env="S3cR3T"', "client[c].key_env: expected the name of an environment"),
        ('name="c"\nkey_env="NONE"', "client[c].key_env: the variable NONE is not set"),
        ('name="c"\nkey_env="K"\nkey_file="/f"', "client[c].key_file: expected one place for keys"),
        ('name="anonymous"\nkey_env="K"', "client[anonymous].name: "),
        ('name="c"\nkey_env="K"\nroutes=["x"]', 'client[c].routes: no route "x"; expected one of'),
        ('name="c"\nkey_env="K"\nroutes=[]', "client[c].routes: expected at least one"),
        ('name="c"\nkey_env="K"\n[[client]]\nname="c"\nkey_env="L"', "client[2].name: "),
        (
            'name="c"\nkey_env="K"\n[[client]]\nname="d"\nkey_env="K"',
            "client[d]: has the same key as client[c]; give each client its own",
        ),
    ],
)
def test_a_fault_of_a_client_is_told_once(text: str, line: str) -> None:
    (told,) = problems(f"{ONE}[[client]]\n{text}", files(f=b"f"), K="k", L="l")
    assert line in told
    assert "S3" not in told


def test_two_clients_without_a_usable_key_do_not_share_one() -> None:
    lines = problems(f'{ONE}[[client]]\nname="a"\n[[client]]\nname="b"')
    assert ["got none" in line for line in lines] == [True, True]
