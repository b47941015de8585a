"""Whole configurations: precedence, references, every problem at once."""

from __future__ import annotations

import pytest

from relayd.config import (
    ConfigError,
    Price,
    Problem,
    Secret,
    Tcp,
    Unix,
    load,
)
from relayd.surfaces import Surface
from tests.support.configuration import ONE, ROUTES, TWO, config, files, no_file, problems


def test_one_provider_is_a_whole_configuration() -> None:
    found = config(ONE)
    assert [provider.name for provider in found.providers] == ["one"]
    assert [route.name for route in found.routes] == ["default"]
    assert (found.named_routes, found.clients, found.warnings) == (False, (), ())
    assert found.source == "config.toml"


def test_the_configuration_of_the_benchmark_loads_as_it_is() -> None:
    found = config('[server]\nlisten = "127.0.0.1:18080"\n[breaker]\nfailures = 1000000\n' + TWO)
    assert found.server.listen == (Tcp("127.0.0.1", 18080),)
    assert found.breaker.failures == 1_000_000
    assert found.warnings == ()


def test_a_typo_is_named_with_its_path_and_what_was_meant() -> None:
    assert problems("[breaker]\ncooldwn = 1\n" + ONE) == [
        'config.toml: breaker.cooldwn: unknown key; did you mean "cooldown"?'
    ]


def test_five_faults_are_five_problems() -> None:
    text = """
        [servr]
        [server]
        max_request_bytes = true
        [quota]
        timezone = "Mars"
        [[provider]]
        name = "one"
        base_url = "http://127.0.0.1:9/v1"
        key_env = "ABSENT"
        [[route]]
        name = "r"
        providers = ["noe"]
    """
    assert [line.split(": ")[1] for line in problems(text)] == [
        "servr",
        "server.max_request_bytes",
        "quota.timezone",
        "provider[one].key_env",
        "route[r].providers",
    ]


def test_each_fault_of_a_list_is_a_problem_with_its_place() -> None:
    text = '[server]\nlisten = ["127.0.0.1:99999", "here"]\n[failover]\nstatuses = [200, 401]\n'
    assert [line.split(": ")[1] for line in problems(text + ONE)] == [
        *["server.listen"] * 2,
        *["failover.statuses"] * 2,
    ]


def test_a_table_without_a_name_is_one_fault_and_no_name_to_choose() -> None:
    text = '[[provider]]\nmodel = "m"\n[[route]]\nname = "r"\nproviders = ["x"]\n'
    assert problems(text + ONE) == [
        "config.toml: provider[1].name: missing; it has no default",
        'config.toml: route[r].providers: no provider "x"; expected one of: one',
    ]


def test_an_error_keeps_its_problems_apart() -> None:
    error = ConfigError([Problem("f", "a.b", "bad"), Problem("f", "", "worse")])
    assert error.problems == (Problem("f", "a.b", "bad"), Problem("f", "", "worse"))
    assert str(error) == "f: a.b: bad\nf: worse"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "provider: missing; at least one [[provider]] is needed"),
        ("provider = 1", "provider: expected [[provider]], got 1"),
        ("provider = [1]", "provider[1]: expected a table, got 1"),
        ("server = 1\n" + ONE, "server: expected a table, got 1"),
        ("[[providers]]\n" + ONE, 'providers: unknown key; did you mean "provider"?'),
        ("zzz = 1\n" + ONE, "zzz: unknown key; expected one of: server, admin, routing,"),
        (
            "listen = '127.0.0.1:1'\n" + ONE,
            'listen: unknown key; did you mean "listen" in [server] or [admin]?',
        ),
        ("key_env = 'K'\n" + ONE, 'did you mean "key_env" in [[provider]] or [[client]]?'),
        ("servr = 1\n" + ONE, 'servr: unknown key; did you mean "server"?'),
        (ONE + 'api_key = "S3CR3T"', "api_key: unknown key; a key never stands in the file"),
        ("[[provider]]\nbase_url = 'http://h'", "provider[1].name: missing; it has no default"),
        ('"a\\nb" = 1\n' + ONE, r"a\nb: unknown key"),
        ("[[provider]]\nname='gorq'", 'base_url: missing; "gorq" is no known provider; did you'),
        ("[[provider]]\nname='azure'", "base_url: missing; azure gives each customer its own"),
        ("[[provider]]\nname='a'\nkind='gorq'", 'provider[a].kind: "gorq" is no known provider;'),
        ("[[provider]]\nname='a'\nbase_url='h'", "provider[a].base_url: expected a URL such as"),
        (ONE + ONE, 'provider[2].name: "one" is the name of an earlier [[provider]]'),
        (ONE + "ca_file = '/none'", "ca_file: /none cannot be read: no such file or directory"),
        (ONE + "tls_server_name = '-'", "tls_server_name: expected a host name"),
        (ONE + "tls_server_name = 'a..b'", "tls_server_name: expected a host name"),
        (ONE + f"tls_server_name = '{'a' * 64}.test'", "tls_server_name: expected a host name"),
        (ONE + "models = {quick='m'}", 'provider[one].models: unknown name "quick"'),
        (ONE + "connect = 0", "provider[one].connect: expected seconds from 0.05 to 86400"),
        (
            "[breaker]\ncooldown = 301\n" + ONE,
            "cooldown_max: expected at least the cooldown of 301",
        ),
        ("admin.listen = 'unix:/a'\nserver.listen = 'unix:/a'\n" + ONE, "admin.listen: unix:/a is"),
        ("[store]\nurl = 'redis://:S3CR3T@h'\n" + ONE, "store.url: a password never stands in"),
        ("[server]\nuser_header = 'Authorization'\n" + ONE, "server.user_header: the header"),
        (
            "[store]\nurl = 'rediss://h?ssl_ca_certs=/none'\n" + ONE,
            "store.url: /none cannot be read: no such file or directory",
        ),
        ("[store]\nurl_env = 'U'\n" + ONE, "store.url_env: the variable U is not set"),
        ("[failover]\nstatuses = [401]\n" + ONE, "failover.statuses: 401 cannot be named here"),
        ("[failover]\nmax_attempts = 17\n" + ONE, "max_attempts: expected a whole number from 1"),
    ],
)
def test_a_fault_is_told_once_with_its_place(text: str, line: str) -> None:
    (told,) = problems(text)
    assert line in told
    assert "S3CR3T" not in told


def test_listeners_of_the_command_line_replace_those_of_the_file() -> None:
    text = 'server = { listen = "nonsense", unix_mode = "0600" }\n' + ONE
    found = config(text, listen=("unix:/a", "127.0.0.1:1"))
    assert found.server.listen == (Unix("/a"), Tcp("127.0.0.1", 1))
    assert found.server.unix_mode == 0o600
    with pytest.raises(ConfigError, match=r"config.toml: --listen: expected "):
        config(ONE, listen=("8080",))


def test_listeners_of_the_command_line_do_not_hide_a_wrong_section() -> None:
    with pytest.raises(ConfigError, match=r"server: expected a table, got 1"):
        config("server = 1\n" + ONE, listen=("unix:/a",))


def test_a_free_port_may_stand_in_both_sections() -> None:
    found = config('admin.listen = "127.0.0.1:0"\nserver.listen = "127.0.0.1:0"\n' + ONE)
    assert found.admin.listen == found.server.listen == (Tcp("127.0.0.1", 0),)


def test_a_provider_has_everything_in_the_form_in_which_it_is_used() -> None:
    text = """
        [[provider]]
        name = "az"
        kind = "azure"
        base_url = "https://R.Example.:8443/openai/v1/chat/completions"
        model = "m"
        models = { fast = "f" }
        key_env = ["A", "B"]
        surfaces = ["chat", "messages"]
        headers = { X-Title = "t" }
        query = { api-version = "1" }
        extra_body = { provider = { sort = "price" } }
        ca_file = "/ca"
        max_in_flight = 3
        price = { input = 1, output = 2 }
        idle = 7
    """
    (az,) = config(text, files(ca=b"-----BEGIN CERTIFICATE-----"), A=" k-a\n", B="k-b").providers
    assert (az.kind, az.scheme, az.host, az.port) == ("azure", "https", "r.example.", 8443)
    assert az.base_url == "https://r.example.:8443/openai/v1"
    assert az.tls_server_name == "r.example"
    assert az.url(Surface.CHAT) == "https://r.example.:8443/openai/v1/chat/completions"
    assert az.target(Surface.CHAT) == "/openai/v1/chat/completions?api-version=1"
    assert [(key.value, key.label) for key in az.keys] == [("k-a", "A"), ("k-b", "B")]
    assert az.credential(Surface.CHAT, az.keys[0]) == (b"api-key", b"k-a")
    assert az.credential(Surface.MESSAGES, az.keys[1]) == (b"x-api-key", b"k-b")
    assert az.surfaces == {Surface.CHAT, Surface.MESSAGES}
    assert az.extra_body == (("provider", b'{"sort":"price"}'),)
    assert (az.models, az.headers) == ((("fast", "f"),), (("X-Title", "t"),))
    assert (az.max_in_flight, az.price, az.ca_file) == (3, Price(1.0, 2.0), "/ca")
    assert (az.connect, az.first_content, az.answer, az.idle) == (5.0, 60.0, 300.0, 7.0)


def test_a_known_name_brings_its_url_and_a_kind_lends_it_to_another_name() -> None:
    text = '[[provider]]\nname = "groq"\n[[provider]]\nname = "mine"\nkind = "ollama"\n'
    groq, mine = config(text).providers
    assert (groq.kind, groq.base_url) == ("groq", "https://api.groq.com/openai/v1")
    assert (mine.kind, mine.base_url) == ("ollama", "http://127.0.0.1:11434/v1")
    assert groq.target(Surface.CHAT) == "/openai/v1/chat/completions"


def test_the_tls_name_may_differ_from_the_host() -> None:
    (one,) = config(ONE + 'tls_server_name = "api.test"').providers
    assert (one.host, one.tls_server_name) == ("127.0.0.1", "api.test")


@pytest.mark.parametrize(
    ("members", "value"),
    [
        ('{ order = ["a"] }', b'{"data_collection":"deny","order":["a"]}'),
        ('{ data_collection = "allow" }', b'{"data_collection":"deny"}'),
        ('"x"', b'{"data_collection":"deny"}'),
    ],
)
def test_no_train_holds_inside_of_an_extra_member(members: str, value: bytes) -> None:
    text = f'[[provider]]\nname="openrouter"\nno_train=true\nextra_body={{provider={members},n=1}}'
    (provider,) = config(text).providers
    assert provider.no_train
    assert provider.extra_body == (("provider", value), ("n", b"1"))


@pytest.mark.parametrize(
    ("text", "env", "url"),
    [
        ("", {}, "memory:"),
        ("", {"STATE_DIRECTORY": "/var/lib/relayd"}, "sqlite:/var/lib/relayd/state.db"),
        ("", {"STATE_DIRECTORY": "/a:/b"}, "sqlite:/a/state.db"),
        ("[store]\nurl='memory:'\n", {"STATE_DIRECTORY": "/a"}, "memory:"),
        (
            "[store]\nurl_env='U'\n",
            {"U": "redis://:pw@h", "STATE_DIRECTORY": "/a"},
            "redis://:pw@h",
        ),
    ],
)
def test_the_store_is_where_file_variable_or_systemd_say(
    text: str, env: dict[str, str], url: str
) -> None:
    found = config(text + ONE, **env)
    assert found.store.url == url
    assert "pw" not in repr(found)
    assert ("pw" in found.secrets) == ("pw" in url)


def test_a_store_has_one_url() -> None:
    lines = problems("[store]\nurl='memory:'\nurl_env='U'\n" + ONE, U="redis://h/x")
    assert [line.partition("; ")[0][:45] for line in lines] == [
        "config.toml: store.url_env: expected url or u",
        'config.toml: store.url_env: expected "redis:/',
    ]


def test_a_file_is_read_as_utf_8_with_or_without_a_mark() -> None:
    read = files(a="\ufeff".encode() + ONE.encode())
    assert load("/a", {}, read, ("unix:/s",)).server.listen == (Unix("/s"),)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff", "/a: expected UTF-8, got something else at byte 0"),
        (b"[server", "/a: not TOML: expected ']' at the end of a table declaration (at end of doc"),
        (b"a = 1\na = 2", "/a: not TOML: cannot overwrite a value (at "),
        (b"a = " + b"9" * 5000, "/a: not TOML: exceeds the limit"),
        (b"a = " + b"[" * 100_000, "/a: not TOML: nested too deep"),
    ],
)
def test_what_is_no_toml_is_one_problem(content: bytes, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("/a", {}, files(a=content))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        load("/b", {}, no_file)
    assert str(caught.value) == (
        "/b: cannot be read: no such file or directory; name a file that is there"
    )
    with pytest.raises(ConfigError, match=r"; say -c$"):
        load("/b", {}, no_file, missing="say -c")


def test_a_file_that_is_not_readable_is_there_and_needs_no_other_name() -> None:
    def denied(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    told = "cannot be read: permission denied; make it readable for the user that runs relayd"
    with pytest.raises(ConfigError) as caught:
        load("/b", {}, denied)
    assert str(caught.value) == f"/b: {told}"
    assert problems(ONE + "key_file = '/k'", denied) == [
        f"config.toml: provider[one].key_file: the file /k {told}"
    ]


def test_two_readings_of_one_file_are_equal_and_a_change_is_seen() -> None:
    assert config(ROUTES) == config(ROUTES)
    assert config(ROUTES).providers[0] == config(TWO).providers[0]
    assert config(ROUTES) != config(TWO)


def test_a_secret_has_a_short_stable_id() -> None:
    assert Secret("abc", "A").id == "ba7816bf"
    assert repr(Secret("abc", "A")) == str(Secret("abc", "A")) == "Secret(label='A', id='ba7816bf')"
