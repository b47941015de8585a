"""`config.example.toml` is the reference: it has every key, and what it calls a default is one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from relayd.config import Config, build
from relayd.config.settings import SECTIONS
from relayd.config.tables import REPEATED

TEXT = (Path(__file__).parents[2] / "config.example.toml").read_text(encoding="utf-8")
KINDS: dict[str, Any] = {**SECTIONS, **REPEATED}
SETTING = re.compile(r"#?(?P<line>(?P<name>[a-z_0-9]+) = [^\s#].*?)\s*(?:#\s*(?P<remark>.*))?")


def settings(section: str) -> dict[str, tuple[bool, Any, str]]:
    """Every key of a section: is it commented out, its value, its remark."""
    found: dict[str, tuple[bool, Any, str]] = {}
    here = ""
    for line in TEXT.splitlines():
        if head := re.match(r"\[+([a-z]+)\]+", line):
            here = head[1]
        elif here == section and (match := SETTING.fullmatch(line)):
            value = tomllib.loads(match["line"])[match["name"]]
            found.setdefault(match["name"], (line[0] == "#", value, match["remark"] or ""))
    return found


def certificate(path: str) -> bytes:
    return b"-----BEGIN CERTIFICATE-----"


def example(text: str, read_file: Callable[[str], bytes]) -> Config:
    environ = {name: f"key-of-{name}" for name in re.findall(r'"([A-Z0-9_]+)"', text)}
    return build(tomllib.loads(text), "config.example.toml", environ, read_file)


@pytest.mark.parametrize("section", KINDS)
def test_every_key_is_there_and_no_other(section: str) -> None:
    assert set(settings(section)) == {item.name for item in fields(KINDS[section])}


@pytest.mark.parametrize("section", KINDS)
def test_every_key_has_a_remark(section: str) -> None:
    assert [name for name, (_, _, remark) in settings(section).items() if not remark] == []


@pytest.mark.parametrize("section", KINDS)
def test_a_default_is_what_the_program_takes_without_the_key(section: str) -> None:
    kind = KINDS[section]
    for item in fields(kind):
        commented, value, remark = settings(section)[item.name]
        if commented and not remark.startswith("example"):
            assert item.metadata["read"](value) == getattr(kind(), item.name), item.name


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_shows_nothing_but_defaults(section: str) -> None:
    shown = settings(section).values()
    assert all(commented and not remark.startswith("example") for commented, _, remark in shown)


def test_the_example_loads_without_a_warning() -> None:
    found = example(TEXT, certificate)
    assert [provider.name for provider in found.providers] == ["groq", "openai"]
    assert found.warnings == ()


def test_the_example_is_the_default_wherever_it_can_be() -> None:
    found = example(TEXT, certificate)
    for section, kind in SECTIONS.items():
        assert getattr(found, section) == kind()


def test_no_client_can_have_the_key_of_the_example() -> None:
    (client,) = example(TEXT, certificate).clients
    assert client.digest == bytes(32)
