"""The documents say what the program does: commands, make targets, keys, codes, links.

Reads the documents and the program's own tables; runs nothing.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from relayd import errors
from relayd.accesslog import Log
from relayd.admin import MetricsUnavailable
from relayd.config import build
from relayd.config.problems import Notes
from relayd.config.settings import SECTIONS
from relayd.config.tables import REPEATED, read
from relayd.outcomes import End, Outcome
from tests.support.records import exchange

PROJECT = Path(__file__).parents[1]
README = PROJECT / "README.md"
EXAMPLE = PROJECT / "config.example.toml"
PAGES = sorted(p for p in PROJECT.glob("**/*.md") if ".venv" not in p.parts)

COMMANDS = ["serve", "check", "send", "demo", "healthcheck", "top"]
VARIABLES = [
    "RELAYD_CONFIG",
    "PROVIDER",
    "FALLBACK",
    "DEFAULT_PROVIDER",
    "<NAME>_API_KEY",
    "<NAME>_MODEL",
    "<NAME>_BASE_URL",
    "DAILY_CAP",
    "NO_TRAIN",
    "ATTRIBUTION_REFERER",
    "ATTRIBUTION_TITLE",
    "PORT",
    "REDIS_URL",
]

SECTION = re.compile(r"\[{1,2}([a-z]+)\]{1,2}")
KEY = re.compile(r"(?:#\s?)?([a-z_0-9]+) = ")
"""A key of the example, set or shown as a comment."""


def targets() -> set[str]:
    """What can be made."""
    return set(re.findall(r"^([a-z]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))


def keys_shown() -> dict[str, dict[str, str]]:
    """Section → key → the line it stands on (without a leading `#`), in config.example.toml."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    section = ""
    for line in EXAMPLE.read_text().splitlines():
        bare = re.sub(r"^#\s?", "", line)
        if match := SECTION.match(bare):
            section = match[1]
        elif match := KEY.match(line):
            found[section].setdefault(match[1], bare)
    return found


KINDS: dict[str, Any] = {**SECTIONS, **REPEATED}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_names_every_command(command: str) -> None:
    assert f"relayd {command}" in README.read_text()


@pytest.mark.parametrize("option", ["--version", "--help", "check --online", "--env", "--listen"])
def test_the_readme_names_every_option_of_the_command_line(option: str) -> None:
    assert option in README.read_text()


def test_the_readme_names_no_command_that_does_not_exist() -> None:
    named = set(re.findall(r"(?:^|`|\$ |/)relayd ([a-z]+)", README.read_text(), re.MULTILINE))
    assert named <= set(COMMANDS)


def names_in(text: str) -> list[str]:
    """The words in backquotes, in order."""
    return re.findall(r"`([a-z_]+)`", text)


def test_the_readme_names_every_outcome_and_no_other() -> None:
    sentence = re.search(
        r"`outcome` of an attempt is one of (.*?)\.\n", README.read_text(), re.DOTALL
    )
    assert sentence is not None
    assert names_in(sentence[1]) == [outcome.value for outcome in Outcome]


def test_the_readme_names_every_end_and_no_other() -> None:
    row = re.search(r"\| `end_reason` \|(.*)\|", README.read_text())
    assert row is not None
    assert sorted(names_in(row[1])) == sorted(end.value for end in End)


def test_the_readme_names_every_field_of_the_log_and_no_other() -> None:
    lines: list[bytes] = []
    log = Log(
        lines.append, level="info", format="json", priorities=False, mask=str, wall=lambda: 0.0
    )
    log.exchange(exchange(cost=0.5))
    table = re.search(
        r"\| field \| what \|\n\|---\|---\|\n(.*?)\n\n", README.read_text(), re.DOTALL
    )
    assert table is not None
    named = [names_in(row.split("|")[1]) for row in table[1].splitlines()]
    assert sorted(name for names in named for name in names) == sorted(json.loads(lines[0]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_what_a_page_tells_to_make_can_be_made(page: Path) -> None:
    named = set(re.findall(r"(?:^|`|\$ )make ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= targets()


def test_the_readme_begins_with_the_two_commands() -> None:
    text = README.read_text()
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_readme_names_every_environment_variable(variable: str) -> None:
    assert variable in README.read_text()


def codes() -> set[str]:
    """Every code an error answer may have."""
    waiting: list[type[errors.RelayError]] = [errors.RelayError, MetricsUnavailable]
    found = set()
    while waiting:
        kind = waiting.pop()
        found.add(kind.code)
        waiting += kind.__subclasses__()
    return found


@pytest.mark.parametrize("code", sorted(codes()))
def test_the_readme_names_every_error_code(code: str) -> None:
    assert f"`{code}`" in README.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text())
    lost = [link for link in links if not (page.parent / link).exists()]
    assert not lost


@pytest.mark.parametrize("section", KINDS)
def test_the_example_has_every_key(section: str) -> None:
    known = {item.name for item in fields(KINDS[section])}
    assert set(keys_shown()[section]) == known


@pytest.mark.parametrize("section", KINDS)
def test_the_example_says_something_about_every_key(section: str) -> None:
    silent = {key for key, line in keys_shown()[section].items() if " # " not in line}
    assert not silent


def test_the_example_has_no_section_that_does_not_exist() -> None:
    assert set(keys_shown()) <= set(KINDS)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_example_shows_the_defaults(section: str) -> None:
    kind = KINDS[section]
    table = tomllib.loads("\n".join(keys_shown()[section].values()))
    notes = Notes("config.example.toml")
    assert read(kind, table, section, notes) == kind()
    assert not notes.problems


def test_the_example_is_a_configuration_that_starts() -> None:
    text = EXAMPLE.read_text()
    environ = {name: f"sk-{name}" for name in re.findall(r'"([A-Z][A-Z_0-9]+)"', text)}
    build(tomllib.loads(text), EXAMPLE.name, environ, lambda path: path.encode())
