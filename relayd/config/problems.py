"""What is wrong with a configuration: collected while it is read, told all at once.

Every text is one line and passes through the mask, since people paste keys into the wrong place.
Does not know any key of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..masking import mask


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: the file (or `environment`), the key path in it ("" = all of it), what to do."""

    source: str
    path: str
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.source, self.path, self.text) if part)


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` in the order of the file's sections.

    Its text is one line a problem.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class Wrong(ValueError):
    """A value is wrong; whoever knows the key path adds it. A list or a table may be wrong in
    several ways: `texts` has one for each."""

    def __init__(self, *texts: str) -> None:
        super().__init__("; ".join(texts))
        self.texts = texts


class Notes:
    """Collects problems and warnings for one source.

    `rename` maps key paths to what the operator wrote instead (a variable, an option).
    """

    def __init__(self, source: str, rename: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        self.rename = dict(rename or {})
        self._wrong: set[str] = set()

    def add(self, path: str, text: str) -> None:
        """A fault that stops the start."""
        self._wrong.add(path)
        self.problems.append(Problem(self.source, self._place(path), one_line(text)))

    def warn(self, path: str, text: str) -> None:
        """Something that works and is probably not meant."""
        self.warnings.append(f"{self._place(path)}: {one_line(text)}")

    def has(self, path: str) -> bool:
        """True if something is wrong at `path` already: one fault must not be told twice."""
        return path in self._wrong  # not by what it is renamed to: one variable may stand for two

    def unknown(self, path: str, name: str, known: Iterable[str]) -> None:
        """The key `name` in the table at `path` is not one of `known`."""
        where = f"{path}.{name}" if path else name
        self.add(where, f"unknown key; {suggest(name, known)}")

    def stop(self) -> None:
        """Raises ConfigError when there is any problem."""
        if self.problems:
            raise ConfigError(self.problems)

    def _place(self, path: str) -> str:
        return one_line(self.rename.get(path, path))


KEY_WORDS = frozenset({"api_key", "apikey", "key", "token", "secret", "password", "bearer"})
"""Names under which people try to write a key into the file."""

CLOSE = 0.65
"""How alike names must be: `tow` may be meant for `two`, `nope` is not meant for `openai`."""


def suggest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the closest known one, or all of them."""
    from difflib import get_close_matches  # only a faulty file pays for this import

    choices = [choice for choice in known if choice]  # "": one that is wrong itself
    if name.lower() in KEY_WORDS and "key_env" in choices:
        return 'a key never stands in the file: name its variable with "key_env"'
    close = get_close_matches(name, choices, n=1, cutoff=CLOSE)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"expected one of: {', '.join(choices)}"


def one_line(text: str) -> str:
    """`text` masked, unprintable characters escaped (a quoted TOML key may hold a line end)."""
    masked = mask(text)
    if masked.isprintable():
        return masked
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in masked)
