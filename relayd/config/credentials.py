"""Fetches keys from where the file says they are: a variable, a file, a credential of systemd.

Every message names the place and never the value. Does not open files: it is given a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ..masking import names_key
from .problems import Notes, Wrong
from .upstream import Provider, Secret

MAX_KEY = 4096
"""Characters of a key; providers read heads of 8 KiB."""


NO_KEYS = frozenset({"prompt_cache_key"})
"""Members of a request that are called a key and are none."""


class Unseen(Enum):
    """What only the running service can see, and whoever reads the configuration does not need:
    it is taken for granted."""

    NOTHING = "nothing"
    CREDENTIALS = "credentials of systemd"
    SECRETS = "keys, certificates and the store's URL, wherever they are"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where secrets come from: the environment, and a function that reads a file.

    `read_file` raises OSError.
    """

    environ: Mapping[str, str]
    read_file: Callable[[str], bytes]
    unseen: Unseen = Unseen.NOTHING

    @property
    def needless(self) -> bool:
        """True where no secret at all is asked for."""
        return self.unseen is Unseen.SECRETS

    def variable(self, name: str) -> str:
        """The value of a variable; raises Wrong where it is not set or empty."""
        value = self.environ.get(name)
        if value is None:
            raise Wrong(f"the variable {name} is not set")
        if not value.strip():
            raise Wrong(f"the variable {name} is empty")
        return value.strip()

    def from_env(self, name: str) -> Secret:
        """The key in a variable."""
        return _secret(self.variable(name), name, f"the variable {name}")

    def from_file(self, path: str) -> Secret:
        """The key in a file."""
        return self._file(path, path, f"the file {path}")

    def from_credential(self, name: str) -> Secret:
        """The key in a credential that systemd handed over."""
        if self.unseen is Unseen.CREDENTIALS:
            return _assumed(name)
        folder = self.environ.get("CREDENTIALS_DIRECTORY")
        if not folder:
            raise Wrong(
                f"the credential {name} needs CREDENTIALS_DIRECTORY: "
                "start relayd by systemd with LoadCredential="
            )
        return self._file(f"{folder}/{name}", name, f"the credential {name}")

    def _file(self, path: str, label: str, what: str) -> Secret:
        try:
            content = self.read_file(path).decode("utf-8").strip()
        except OSError as error:
            raise Wrong(f"{what} cannot be read: {reason(error)}") from error
        except UnicodeDecodeError as error:
            raise Wrong(f"{what} holds no text: expected a key in ASCII") from error
        if not content:
            raise Wrong(f"{what} is empty")
        return _secret(content, label, what)


def exposed(provider: Provider) -> dict[tuple[str, str], str]:
    """What stands in the file itself under the name of a key, by its table and name there: it
    belongs elsewhere, and is told to nobody all the same."""
    found = {("headers", name): value for name, value in provider.headers if names_key(name)}
    if provider.query:
        from urllib.parse import parse_qsl  # rarely used

        pairs = parse_qsl(provider.query)
        found |= {("query", name): value for name, value in pairs if names_key(name)}
    for name, text in provider.extra_body:
        found |= {("extra_body", path): value for path, value in _keys(name, json.loads(text))}
    return found


def _keys(path: str, value: object) -> Iterator[tuple[str, str]]:
    """The texts at and below `path` that have the name of a key, with their paths."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from _keys(f"{path}.{name}", member)
    elif isinstance(value, list):
        for member in value:
            yield from _keys(path, member)
    elif isinstance(value, str):
        name = path.rpartition(".")[2]
        if names_key(name) and name not in NO_KEYS:
            yield path, value


def reason(error: OSError) -> str:
    """Why a file cannot be read, in the system's words; the remedy where there is but one."""
    words = (error.strerror or type(error).__name__).lower()
    if isinstance(error, PermissionError):
        return f"{words}; make it readable for the user that runs relayd"
    return words


def pool(
    sources: Sources,
    path: str,
    places: Mapping[str, tuple[str, ...]],
    notes: Notes,
) -> tuple[Secret, ...]:
    """The keys of one table, from `key_env`, `key_file` or `key_credential` (`places`)."""
    used = [kind for kind, names in places.items() if names]
    if len(used) > 1:
        notes.add(f"{path}.{used[1]}", f"expected one place for keys, got {used[0]} too")
    if sources.needless:
        return tuple(_assumed(name) for kind in used for name in places[kind])
    fetch = {
        "key_env": sources.from_env,
        "key_file": sources.from_file,
        "key_credential": sources.from_credential,
    }
    found: dict[str, Secret] = {}
    for kind in used:
        for name in places[kind]:
            try:
                key = fetch[kind](name)
            except Wrong as wrong:
                notes.add(f"{path}.{kind}", str(wrong))
                continue
            first = found.setdefault(key.value, key)
            if first is not key:  # asking it twice would tell nothing new
                notes.warn(f"{path}.{kind}", f"{first.label} and {key.label} hold the same key")
            elif kind == "key_credential" and sources.unseen is Unseen.CREDENTIALS:
                notes.warn(f"{path}.{kind}", f"{key.label}: only the running service can see it")
    return tuple(found.values())


def _assumed(name: str) -> Secret:
    """In the place of a key that is not seen: one that no other name has."""
    return Secret(f"unseen-{name.encode().hex()}", name)


def _secret(value: str, label: str, what: str) -> Secret:
    """Visible ASCII only: anything else cannot stand in a header, or would end it."""
    if not all("!" <= char <= "~" for char in value):
        raise Wrong(f"{what} holds a blank, a control or a non-ASCII character inside the key")
    if len(value) > MAX_KEY:
        raise Wrong(f"{what} holds more than {MAX_KEY} characters; expected a key")
    return Secret(value, label)
