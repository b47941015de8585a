"""Places: listeners, trusted peers, provider URLs, store URLs."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from relayd.config import Store, addresses
from relayd.config.addresses import Base, Tcp, Trusted, Unix
from relayd.config.problems import Wrong, one_line
from relayd.masking import MASK


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ("127.0.0.1:8080", Tcp("127.0.0.1", 8080)),
        ("localhost:0", Tcp("localhost", 0)),
        ("[::1]:65535", Tcp("::1", 65535)),
        ("unix:/run/relayd/relayd.sock", Unix("/run/relayd/relayd.sock")),
    ],
)
def test_an_address_is_read_and_written_the_same_way(raw: str, place: object) -> None:
    assert addresses.listen(raw) == place
    assert str(place) == raw


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (8080, 'expected "host:port", "[::1]:port" or "unix:/path", got 8080'),
        ("unix:/a\nb", "control characters"),
        ("8080", 'got "8080"'),
        (":8080", "all addresses are 0.0.0.0 and [::]"),
        ("*:8080", "0.0.0.0"),
        ("::1:8080", "[::1]:port"),
        ("a b:1", "host:port"),
        ("host:65536", "expected a port from 0 to 65535, got 65536"),
        ("300.0.0.1:80", "expected an IPv4 address"),
        ("[127.0.0.1]:80", "expected an IPv6 address"),
        ("[:::]:80", "expected an IPv6 address"),
        ("unix:relayd.sock", 'expected "unix:" and an absolute path, got "relayd.sock"'),
        ("unix:/" + "é" * 54, "at most 107 bytes"),
    ],
)
def test_a_wrong_address_is_refused(raw: object, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        addresses.listen(raw)
    assert words in str(caught.value)


def test_a_list_of_addresses_may_hold_free_ports_but_no_address_twice() -> None:
    free = Tcp("127.0.0.1", 0)
    assert addresses.listeners(["127.0.0.1:0", "127.0.0.1:0"]) == (free, free)
    assert addresses.listeners("127.0.0.1:1") == (Tcp("127.0.0.1", 1),)
    assert addresses.listeners([]) == ()
    with pytest.raises(Wrong, match=r'once, got "unix:/a" twice'):
        addresses.listeners(["unix:/a", "unix:/a"])


def test_the_server_needs_an_address() -> None:
    assert addresses.server_listeners("unix:/a") == (Unix("/a"),)
    with pytest.raises(Wrong, match="at least one address"):
        addresses.server_listeners([])


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("LocalHost.", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_a_loopback_address_is_local(host: str, local: bool) -> None:
    assert addresses.is_loopback(host) is local
    assert Tcp(host, 1).local is local


def test_a_unix_socket_is_local() -> None:
    assert Unix("/a").local


def test_trusted_peers_are_networks_and_the_unix_flag() -> None:
    assert addresses.trusted(["10.0.0.0/8", "::1", "unix:"]) == Trusted(
        (ip_network("10.0.0.0/8"), ip_network("::1/128")), unix=True
    )
    assert addresses.trusted([]) == Trusted((), unix=False)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (["10.0.0.1/8"], '"10.0.0.1/8" has bits behind its prefix; did you mean "10.0.0.0/8"?'),
        (["nginx"], 'expected an address, a network such as "10.0.0.0/8" or "unix:", got "nginx"'),
        ([1], "expected a string, got 1"),
    ],
)
def test_a_wrong_peer_is_refused(raw: object, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        addresses.trusted(raw)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("address", "covered"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::1", True),
        ("11.0.0.1", False),
        ("2001:db9::1", False),
        ("nonsense", False),
        ("", False),
    ],
)
def test_a_peer_is_covered_by_its_network(address: str, covered: bool) -> None:
    assert addresses.trusted(["10.0.0.0/8", "2001:db8::/32"]).covers(address) is covered


def test_a_peer_without_address_is_a_unix_socket() -> None:
    assert addresses.trusted("unix:").covers("")
    assert not addresses.trusted("unix:").covers("127.0.0.1")


@pytest.mark.parametrize(
    ("raw", "base", "text"),
    [
        ("https://h/v1", Base("https", "h", 443, "/v1"), "https://h/v1"),
        ("https://h/v1/", Base("https", "h", 443, "/v1"), "https://h/v1"),
        ("HTTPS://H.Example:443", Base("https", "h.example", 443, ""), "https://h.example"),
        ("http://h:81/", Base("http", "h", 81, ""), "http://h:81"),
        ("http://[::1]:80/v1", Base("http", "::1", 80, "/v1"), "http://[::1]/v1"),
        ("https://h/v1/chat/completions", Base("https", "h", 443, "/v1"), "https://h/v1"),
        ("https://h/v1/chat/completions/", Base("https", "h", 443, "/v1"), "https://h/v1"),
        ("https://h/chat/completions", Base("https", "h", 443, ""), "https://h"),
        ("https://h/@cf/a%20b", Base("https", "h", 443, "/@cf/a%20b"), "https://h/@cf/a%20b"),
    ],
)
def test_a_base_url_is_taken_apart(raw: str, base: Base, text: str) -> None:
    assert addresses.base_url(raw) == base
    assert str(base) == text


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("https://user:S3CR3T@h/v1", "expected a URL without user info"),
        ("https://S3CR3T@h/v1", "without user info"),
        ("https:/u:S3CR3T@h", "without user info"),
        ("https://h/v1?key=S3CR3T", "without a query; a query is a key of its own"),
        ("https://h/v1#S3CR3T", "without a query"),
        ("ftp://h/v1", 'expected a URL such as "https://host/v1", got "ftp://h/v1"'),
        ("h/v1", "such as"),
        ("https://", "such as"),
        ("https://h /v1", "such as"),
        ("https://bücher.example/v1", "such as"),
        ("https://h:0/v1", "expected a port from 1 to 65535, got 0"),
        ("https://h:70000/v1", "got 70000"),
        ("https://1.2.3/v1", "expected an IPv4 address"),
        ("https://h/\n", "control characters"),
        (1, "expected a string, got 1"),
    ],
)
def test_a_wrong_base_url_is_refused_without_its_secret(raw: object, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        addresses.base_url(raw)
    assert words in str(caught.value)
    assert "S3CR3T" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "memory:",
        "sqlite:/var/lib/relayd/state.db",
        "sqlite:state.db",
        "redis://host",
        "redis://host:6379/0",
        "redis://[::1]:6379/0",
        "rediss://user:pw@host/1?ssl_ca_certs=/a.pem",
        "redis://user@host",
    ],
)
def test_a_store_url_stays_as_it_is(url: str) -> None:
    assert addresses.store_url(url) == url


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory", 'expected "memory:"'),
        ("sqlite:", "sqlite:/path/of/state.db"),
        ("sqlite:///state.db", "sqlite:/path/of/state.db"),
        ("sqlite::memory:", 'a count that is lost at exit is "memory:"'),
        ("sqlite:///state.db", "expected one slash"),
        ("redis://:S3CR3T@", 'expected "redis://host:port/number"'),
        ("redis:S3CR3T@host", 'expected "redis://host:port/number"'),
        ("redis://host:6379/zero", "host:port/number"),
        ("redis://:S3CR/3T@host", "%2F for /"),
        ("redis://host:65536/0", "host:port/number"),
        ("redis://host?foo=bar", "no query"),
        ("redis://host?ssl_ca_certs=/a.pem", "no query"),
        ("rediss://host?password=S3CR3T", "no query"),
        ("rediss://host?ssl_ca_certs=/a.pem&password=S3CR3T", "no query"),
        ("postgres://u:S3CR3T@h/db", 'got "postgres"'),
        ("S3CR3T@host:6379/0", 'or "rediss://…"'),
        ("S3CR3T:6379", 'or "rediss://…"'),
        ("S3CR3T", 'or "rediss://…"'),
        (1, "expected a string, got 1"),
    ],
)
def test_a_wrong_store_url_is_refused_without_its_secret(url: object, words: str) -> None:
    with pytest.raises(Wrong) as caught:
        addresses.store_url(url)
    assert words in str(caught.value)
    assert "S3CR3T" not in str(caught.value)
    assert MASK not in one_line(str(caught.value))  # the remedy is to be read


@pytest.mark.parametrize(
    ("url", "passwords"),
    [
        ("memory:", set()),
        ("redis://host", set()),
        ("redis://:@host", set()),
        ("redis://:a%2Fb@host", {"a%2Fb", "a/b"}),
        ("rediss://u:pw@host", {"pw"}),
    ],
)
def test_the_password_of_a_store_is_known_to_the_mask(url: str, passwords: set[str]) -> None:
    assert addresses.store_passwords(url) == passwords


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("memory:", "memory:"),
        ("sqlite:/var/lib/a@b?c/state.db", "sqlite:/var/lib/a@b?c/state.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:pass@host:6379/0", "redis://host:6379/0"),
        ("rediss://host/1?password=secret", "rediss://host/1"),
    ],
)
def test_the_place_of_a_store_is_shown_without_what_is_secret(url: str, place: str) -> None:
    assert Store(url=url).place == place
