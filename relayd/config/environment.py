"""The configuration without a file (`--env`): variables are put into the shape of a file.

The file's own reading then does the rest, and its messages name the variable instead of the key.
An empty variable counts as unset, as container tools like to pass them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..providers import KNOWN, known, variable
from .credentials import Sources, Unseen
from .model import Config
from .problems import Notes, Wrong
from .reading import ReadFile, assemble, listening
from .tables import place
from .values import describe, field_value, integer

SOURCE = "environment"
DEFAULT_PORT = "8080"
MAX_DIGITS = 18
"""More are no sensible number, and int() has a limit of its own."""
WORDS = {"1": True, "true": True, "yes": True, "on": True}
WORDS |= {"0": False, "false": False, "no": False, "off": False}


def from_environment(
    environ: Mapping[str, str],
    read_file: ReadFile,
    listen: Sequence[str] = (),
    unseen: Unseen = Unseen.NOTHING,
) -> Config:
    """The configuration that the environment describes; `listen` is what `--listen` said.

    `unseen` is taken for granted. Raises ConfigError.
    """
    given = {name: value.strip() for name, value in environ.items() if value.strip()}
    notes = Notes(SOURCE, {"server.listen": "--listen" if listen else "PORT"})
    table: dict[str, Any] = {
        "server": {"listen": f"127.0.0.1:{_whole('PORT', DEFAULT_PORT, 65_535, given, notes)}"},
        "quota": {"daily_turns": _whole("DAILY_CAP", "0", 10**9, given, notes)},
        "store": {"url_env": "REDIS_URL"} if "REDIS_URL" in given else {"url": "memory:"},
    }
    notes.rename |= {"quota.daily_turns": "DAILY_CAP", "store.url_env": "REDIS_URL"}
    names = _names(given, notes)
    no_train = _no_train(given, notes)
    texts = _attribution(given, names, notes)
    table["provider"] = [
        _provider(number, name, given, no_train, texts, notes)
        for number, name in enumerate(names, 1)
    ]
    return assemble(listening(table, listen), Sources(environ, read_file, unseen), notes)


def _names(given: Mapping[str, str], notes: Notes) -> list[str]:
    """The providers in the order in which they are asked."""
    notes.rename["provider"] = "PROVIDER"
    if "PROVIDER" in given:
        if "DEFAULT_PROVIDER" in given:
            notes.warn("DEFAULT_PROVIDER", "has no effect beside PROVIDER")
        return _chain(given["PROVIDER"], given.get("FALLBACK", ""), notes)
    if "FALLBACK" in given:
        notes.warn("FALLBACK", "has no effect without PROVIDER")
    preferred = given.get("DEFAULT_PROVIDER")
    found = [name for name in KNOWN if variable(name, "API_KEY") in given and name != preferred]
    if preferred:
        return [preferred, *found]
    if not found:
        notes.add(
            "provider", "not set; set it, or the key of a known provider such as OPENAI_API_KEY"
        )
    return found


def _chain(first: str, fallbacks: str, notes: Notes) -> list[str]:
    names = [first]
    for name in filter(None, map(str.strip, fallbacks.split(","))):
        if name in names:
            before = "is PROVIDER" if name == first else "stands here before"
            notes.add("FALLBACK", f"{describe(name)} {before}; name each provider once")
        else:
            names.append(name)
    return names


def _provider(
    number: int,
    name: str,
    given: Mapping[str, str],
    no_train: bool,
    texts: Sequence[str | None],
    notes: Notes,
) -> dict[str, Any]:
    """One `[[provider]]`, and in the notes the variables that its keys come from."""
    entry = known(name)
    names = {
        "key_env": variable(name, "API_KEY"),
        "model": variable(name, "MODEL"),
        "base_url": variable(name, "BASE_URL"),
    }
    path = place("provider", number, {"name": name})
    notes.rename |= {f"{path}.{key}": variable_name for key, variable_name in names.items()}
    first = "PROVIDER" if "PROVIDER" in given else "DEFAULT_PROVIDER"
    origin = first if number == 1 else "FALLBACK"
    notes.rename |= {f"{path}.name": origin, f"provider[{number}].name": origin}
    notes.rename[f"{path}.no_train"] = "NO_TRAIN"

    table: dict[str, Any] = {"name": name, "no_train": no_train}
    table |= {key: given[names[key]] for key in ("model", "base_url") if names[key] in given}
    # A key that is needed is named even where it is not set: the reading then says so.
    if names["key_env"] in given or (entry.needs_key and "base_url" not in table):
        table["key_env"] = names["key_env"]
    pairs = zip(entry.attribution or (), texts, strict=False)
    table["headers"] = {field: text for field, text in pairs if text}
    return table


def _attribution(given: Mapping[str, str], names: Sequence[str], notes: Notes) -> list[str | None]:
    """What names the calling application, in the order of a provider's fields for it."""
    understood = any(known(name).attribution for name in names)
    texts: list[str | None] = []
    for name in ("ATTRIBUTION_REFERER", "ATTRIBUTION_TITLE"):
        texts.append(None)
        if name not in given:
            continue
        if names and not understood:
            notes.warn(name, "has no effect: none of these providers has a field for it")
        try:
            texts[-1] = field_value(given[name])
        except Wrong as wrong:
            notes.add(name, str(wrong))
    return texts


def _whole(name: str, default: str, high: int, given: Mapping[str, str], notes: Notes) -> int:
    text = given.get(name, default)
    plain = text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS
    try:
        return integer(0, high)(int(text) if plain else text)
    except Wrong as wrong:
        notes.add(name, str(wrong))
        return int(default)


def _no_train(given: Mapping[str, str], notes: Notes) -> bool:
    word = given.get("NO_TRAIN", "0")
    if word.lower() not in WORDS:
        notes.add("NO_TRAIN", f"expected one of {', '.join(WORDS)}, got {describe(word)}")
    return WORDS.get(word.lower(), True)
