"""Whatever a file says: a configuration, or problems that name their place in one line each."""

from __future__ import annotations

import copy
import datetime
from dataclasses import fields
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from relayd.config import Config, ConfigError, build, from_environment
from relayd.config.settings import SECTIONS
from relayd.config.tables import REPEATED
from relayd.providers import KNOWN
from tests.support.configuration import no_file

KINDS: dict[str, Any] = {**SECTIONS, **REPEATED}
SOUND: dict[str, Any] = {
    "provider": [
        {"name": "a", "base_url": "https://a.example", "model": "m", "key_env": "A"},
        {"name": "b", "base_url": "https://b.example", "model": "m"},
    ],
    "route": [{"name": "r", "providers": ["a", "b"]}],
    "client": [{"name": "c", "key_env": "C"}],
}
ENVIRON = {"A": "k-a-S3CR3T", "C": "k-c-S3CR3T"}

VARIABLES = [
    *("PROVIDER", "FALLBACK", "DEFAULT_PROVIDER", "DAILY_CAP", "NO_TRAIN", "PORT", "REDIS_URL"),
    *("ATTRIBUTION_REFERER", "ATTRIBUTION_TITLE", "GROQ_API_KEY", "GROQ_BASE_URL", "GROQ_MODEL"),
]

scalars = st.one_of(
    st.none().map(lambda _: datetime.date(2026, 1, 1)),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["a", "b", "r", "A", "NONE", "https://h/v1", "unix:/a", "127.0.0.1:1", "3xx"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(["a", "input"]), inner, max_size=3)
    ),
    max_leaves=6,
)
changes = st.sampled_from(sorted(KINDS)).flatmap(
    lambda section: st.tuples(
        st.just(section),
        st.sampled_from([item.name for item in fields(KINDS[section])]) | st.text(max_size=8),
        values,
    )
)


def outcome(table: dict[str, Any]) -> Config | ConfigError:
    try:
        return build(table, "f", ENVIRON, no_file)
    except ConfigError as error:
        return error


def judge(found: Config | ConfigError) -> None:
    assert "S3CR3T" not in repr(found)
    if isinstance(found, ConfigError):
        assert found.problems
        assert len(str(found).split("\n")) == len(found.problems)
        assert str(found).replace("\n", "").isprintable()
    else:
        assert all(route.candidates for route in found.routes)
        assert found.route_for(found.routes[-1].name) is found.routes[-1]


@given(st.lists(changes, max_size=4))
@settings(max_examples=300)
def test_a_sound_file_with_faults_gives_problems_and_never_another_error(
    made: list[tuple[str, str, Any]],
) -> None:
    table = copy.deepcopy(SOUND)
    for section, name, value in made:
        entry = table.setdefault(section, {})
        (entry[0] if isinstance(entry, list) else entry)[name] = value
    judge(outcome(table))


@given(st.dictionaries(st.sampled_from(sorted(KINDS)) | st.text(max_size=6), values, max_size=4))
def test_any_table_gives_a_configuration_or_problems(table: dict[str, Any]) -> None:
    judge(outcome(table))


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "PROVIDER",
                "FALLBACK",
                "DEFAULT_PROVIDER",
                "DAILY_CAP",
                "NO_TRAIN",
                "ATTRIBUTION_REFERER",
                "ATTRIBUTION_TITLE",
                "PORT",
                "REDIS_URL",
                "GROQ_API_KEY",
                "GROQ_BASE_URL",
                "GROQ_MODEL",
            ]
        ),
        st.text(max_size=8) | st.sampled_from([*KNOWN, "1", "k", "redis://h", "https://h"]),
    )
)
def test_any_environment_gives_a_configuration_or_problems(environ: dict[str, str]) -> None:
    try:
        judge(from_environment(environ, no_file))
    except ConfigError as error:
        judge(error)
