"""Readers of places: listeners, trusted peers, provider URLs, store URLs.

The URL patterns are narrower than urllib's, which drops line ends and accepts much that two readers
would understand differently. Resolves no name and opens nothing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .problems import Wrong
from .values import describe, each, listed, string

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

SOCKET_PATH = 107
"""Bytes of a unix socket's path: `sun_path` is 108 with its zero byte."""

HIGHEST_PORT = 65_535

CHAT_SUFFIX = "/chat/completions"
LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})

_HOST = r"(?P<host>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_.])?|\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\])"
_NUMERIC = re.compile(r"[0-9.]+")
_LISTEN = re.compile(_HOST + r":(?P<port>[0-9]{1,5})")
_BASE = re.compile(
    r"(?P<scheme>https?)://" + _HOST + r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]*)*)",
    re.IGNORECASE,
)
_REDIS = re.compile(
    r"redis(?P<tls>s)?://(?:(?P<user>[^/@:\s]*):(?P<password>[^/@\s]*)@|[^/@:\s]*@)?" + _HOST +
    r"(?::(?P<port>[0-9]{1,5}))?(?:/[0-9]{0,5})?(?(tls)(?:\?ssl_ca_certs=(?P<ca>/[^&#?\s]+))?)"
)  # fmt: skip
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")
"""What may be repeated of a wrong store URL: before a mere colon there may be a password."""


@dataclass(frozen=True, slots=True)
class Tcp:
    """A TCP listener; `host` without brackets, port 0 takes a free one."""

    host: str
    port: int

    @property
    def local(self) -> bool:
        """True if only this machine reaches it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Unix:
    """A unix socket at an absolute path."""

    path: str

    @property
    def local(self) -> bool:
        """True: no other machine reaches it."""
        return True

    def __str__(self) -> str:
        return f"unix:{self.path}"


Listen = Tcp | Unix


@dataclass(frozen=True, slots=True)
class Trusted:
    """Peers that are believed: IP networks, and (`unix`) whoever reaches a unix socket."""

    networks: tuple[IPv4Network | IPv6Network, ...]
    unix: bool

    def covers(self, address: str) -> bool:
        """True if the peer's `address` is in it; "" is a unix socket, nonsense is not trusted.

        An IPv4 peer of a dual-stack listener (`::ffff:10.0.0.1`) is judged by its IPv4 address.
        """
        if not address:
            return self.unix
        ip = _ip(address)
        return ip is not None and any(ip in network for network in self.networks)


class Base(NamedTuple):
    """A provider's API root, in parts; `path` has no slash at its end."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == DEFAULT_PORTS[self.scheme]
        return f"{self.scheme}://{host}{'' if usual else f':{self.port}'}{self.path}"


DEFAULT_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """True for the loopback addresses and `localhost`; resolves nothing."""
    ip = _ip(host)
    return ip.is_loopback if ip else host.lower().rstrip(".") in LOCAL_NAMES


def listen(value: object) -> Listen:
    """`host:port`, `[v6]:port` or `unix:/path`."""
    if isinstance(value, str) and string(value).startswith("unix:"):
        return _unix(value.removeprefix("unix:"))
    match = _LISTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Wrong(
            f'expected "host:port", "[::1]:port" or "unix:/path", got {describe(value)}; '
            "all addresses are 0.0.0.0 and [::]"
        )
    return Tcp(_host(match["host"]), _port(match["port"]))


def listeners(value: object) -> tuple[Listen, ...]:
    """One address or a list; a TCP port 0 may stand in it more than once."""
    items = value if isinstance(value, list) else [value]
    places = tuple(each(listen, items))
    fixed = [place for place in places if not (isinstance(place, Tcp) and place.port == 0)]
    for place in fixed:
        if fixed.count(place) > 1:
            raise Wrong(f'expected each address once, got "{place}" twice')
    return places


def server_listeners(value: object) -> tuple[Listen, ...]:
    """Like `listeners`, but at least one."""
    if value == []:
        raise Wrong("expected at least one address, got an empty list")
    return listeners(value)


def trusted(value: object) -> Trusted:
    """A list of IP addresses, networks in CIDR form, and `unix:`."""
    entries = listed(string)(value)
    networks = each(_network, (entry for entry in entries if entry != "unix:"))
    return Trusted(tuple(networks), "unix:" in entries)


def base_url(value: object) -> Base:
    """The API root, or the full URL of chat completions, whose suffix is taken off."""
    url = string(value)
    if "@" in url and not _BASE.fullmatch(url):  # not repeated: it may hold a password
        raise Wrong("expected a URL without user info; a key comes from key_env")
    if "?" in url or "#" in url:
        raise Wrong("expected a URL without a query; a query is a key of its own: query = { … }")
    match = _BASE.fullmatch(url)
    if match is None:
        raise Wrong(f'expected a URL such as "https://host/v1", got {describe(url)}')
    scheme = match["scheme"].lower()
    port = _port(match["port"]) if match["port"] else DEFAULT_PORTS[scheme]
    if port == 0:
        raise Wrong("expected a port from 1 to 65535, got 0")
    path = match["path"].rstrip("/").removesuffix(CHAT_SUFFIX).rstrip("/")
    return Base(scheme, _host(match["host"]).lower(), port, path)


def store_url(value: object) -> str:
    """`memory:`, `sqlite:PATH`, `redis://…` or `rediss://…`; returned as it is."""
    url = string(value)
    if url == "memory:":
        return url
    if url.startswith("sqlite:"):
        return _sqlite(url)
    if url.startswith(("redis:", "rediss:")):
        return _redis(url)
    scheme = _SCHEME.match(url)
    raise Wrong(
        'expected "memory:", "sqlite:/path/of/state.db", "redis://host:6379/0" or "rediss://…"'
        + (f", got {describe(scheme[0])}…" if scheme else "")
    )


def _sqlite(url: str) -> str:
    path = url.removeprefix("sqlite:")
    if path.startswith("//"):
        raise Wrong('expected one slash after the colon: "sqlite:/path/of/state.db"')
    if not path or path.startswith(":"):
        raise Wrong(
            'expected "sqlite:/path/of/state.db"; a count that is lost at exit is "memory:"'
        )
    return url


def _redis(url: str) -> str:
    match = _REDIS.fullmatch(url)
    if match is None or int(match["port"] or 0) > HIGHEST_PORT:  # not repeated: its password
        raise Wrong(
            'expected "redis://host:port/number" or "rediss://host:port/number", before the host '
            '"user:password@" with %40 for @ and %2F for /, and no query but '
            "?ssl_ca_certs=/path of rediss"
        )
    return url


def store_passwords(url: str) -> set[str]:
    """The password in a redis URL: as it is written and as it is sent; empty without one."""
    match = _REDIS.fullmatch(url)
    if match is None or not match["password"]:
        return set()
    from urllib.parse import unquote  # only those who have a password pay for this import

    return {match["password"], unquote(match["password"])}


def store_ca(url: str) -> str:
    """The file of authorities in a redis URL; empty without one."""
    match = _REDIS.fullmatch(url)
    return (match and match["ca"]) or ""


def _unix(path: str) -> Unix:
    if not path.startswith("/"):
        raise Wrong(f'expected "unix:" and an absolute path, got {describe(path)}')
    if len(os.fsencode(path)) > SOCKET_PATH:
        raise Wrong(f"expected a socket path of at most {SOCKET_PATH} bytes")
    return Unix(path)


def _host(host: str) -> str:
    inner = host.strip("[]")
    if host.startswith("[") and (":" not in inner or _ip(inner) is None):
        raise Wrong(f"expected an IPv6 address in brackets, got {describe(host)}")
    if _NUMERIC.fullmatch(inner) and _ip(inner) is None:
        raise Wrong(f"expected an IPv4 address of four numbers, got {describe(host)}")
    return inner


def _port(digits: str) -> int:
    if int(digits) > HIGHEST_PORT:
        raise Wrong(f"expected a port from 0 to 65535, got {digits}")
    return int(digits)


def _network(entry: str) -> IPv4Network | IPv6Network:
    from ipaddress import ip_network

    try:
        return ip_network(entry)
    except ValueError:
        pass
    try:
        meant = ip_network(entry, strict=False)
    except ValueError as error:
        raise Wrong(
            f'expected an address, a network such as "10.0.0.0/8" or "unix:", got {describe(entry)}'
        ) from error
    raise Wrong(f'"{entry}" has bits behind its prefix; did you mean "{meant}"?')


def _ip(address: str) -> IPv4Address | IPv6Address | None:
    from ipaddress import IPv6Address, ip_address

    try:
        ip = ip_address(address)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        return ip.ipv4_mapped or ip
    return ip
