"""Warnings: told where something is probably not meant, silent where it is."""

from __future__ import annotations

import pytest

from tests.support.configuration import ONE, ROUTES, TWO, config

FAR = '[[provider]]\nname="far"\nbase_url="http://far.example/v1"\n'
CLIENT = f'[[client]]\nname="c"\nkey_sha256="{"0" * 64}"\n'
AT = '[[provider]]\nname="at"\nbase_url="http://{}/v1"\n'
GROQ = '[[provider]]\nname="groq"\n'


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            GROQ + "key_env='K'\nno_train=true",
            "provider[groq].no_train: groq has no such switch; the key has no effect here",
        ),
        (
            FAR + "key_env='K'",
            "provider[far].base_url: the key goes to far.example unencrypted; "
            "use https if it can be had",
        ),
        (GROQ, "provider[groq]: groq answers nobody without a key; set key_env"),
        (
            ONE + "key_env=['K', 'SAME']",
            "provider[one].key_env: K and SAME hold the same key",
        ),
        (
            TWO + '[[route]]\nname="r"\nproviders=["two"]',
            "provider[one]: stands in no route and is never asked",
        ),
        (
            "clocks.deadline = 60\n" + TWO,
            "clocks.deadline: 60 s leave no time for another provider when one is silent for its "
            "first_content of 60 s",
        ),
        (
            ROUTES + "deadline=2.5\n",
            "route[b].deadline: 2.5 s leave no time for another provider when one is silent for "
            "its first_content of 60 s",
        ),
        (
            "routing.unknown='reject'\n" + ONE,
            "routing.unknown: without [[route]] there is no name to reject by",
        ),
        (
            'server.listen = ["unix:/a", "0.0.0.0:80", "[::]:80"]\n' + ONE,
            "server.listen: without [[client]] whoever reaches 0.0.0.0:80, [::]:80 may use relayd",
        ),
        (
            'admin.listen = "[::]:1"\n' + ONE,
            "admin.listen: whoever reaches [::]:1 sees metrics",
        ),
        (
            'server.trusted_proxies = ["10.0.0.0/8", "::/0"]\n' + ONE,
            "server.trusted_proxies: with ::/0 any client may say which user it is",
        ),
        (
            '[[provider]]\nname="llamacpp"',
            "provider[llamacpp].base_url: relayd itself is to listen on 127.0.0.1:8080; choose",
        ),
        (
            'server.listen = "localhost:81"\n' + AT.format("127.0.0.1:81"),
            "provider[at].base_url: relayd itself is to listen on localhost:81",
        ),
        (
            'server.listen = "127.0.0.1:81"\n' + AT.format("localhost:81"),
            "provider[at].base_url: relayd itself is to listen on 127.0.0.1:81",
        ),
        (
            'server.listen = "0.0.0.0:81"\n' + AT.format("127.0.0.1:81") + CLIENT,
            "provider[at].base_url: relayd itself is to listen on 0.0.0.0:81",
        ),
        (
            'admin.listen = "127.0.0.1:81"\n' + AT.format("127.0.0.1:81"),
            "provider[at].base_url: relayd itself is to listen on 127.0.0.1:81",
        ),
    ],
)
def test_a_doubt_is_told(text: str, warning: str) -> None:
    (told,) = config(text, K="k", SAME="k").warnings
    assert told.startswith(warning)


def test_a_cap_without_clients_is_shared_by_all_strangers() -> None:
    text = 'server.listen = "0.0.0.0:80"\nquota.daily_turns = 1\n' + ONE
    assert config(text).warnings[1:] == (
        "quota.daily_turns: without [[client]] all strangers share one `anonymous` cap",
    )


@pytest.mark.parametrize(
    "text",
    [
        ONE,
        ONE + "key_env='K'",
        FAR,
        '[[provider]]\nname="openrouter"\nkey_env="K"\nno_train=true',
        GROQ + 'base_url="https://gateway.example/v1"',
        '[[provider]]\nname="ollama"',
        'server.listen = "0.0.0.0:80"\nquota.daily_turns = 1\n' + ONE + CLIENT,
        'server.listen = ["unix:/a", "localhost:1"]\nquota.daily_turns = 1\n' + ONE,
        'admin.listen = "127.0.0.1:1"\n' + ONE,
        'server.trusted_proxies = ["10.0.0.0/8"]\n' + ONE,
        "routing.unknown='reject'\n" + ROUTES,
        "clocks.deadline = 60\n" + ONE,
        'server.listen = ["127.0.0.1:81", "unix:/a"]\n' + AT.format("127.0.0.1:82"),
        'server.listen = "127.0.0.1:81"\n' + AT.format("[::1]:81"),
        'server.listen = "127.0.0.1:81"\n' + AT.format("127.0.0.2:81"),
        'server.listen = "0.0.0.0:81"\n' + AT.format("10.0.0.1:81") + CLIENT,
    ],
)
def test_what_is_meant_is_not_doubted(text: str) -> None:
    assert config(text, K="k").warnings == ()
