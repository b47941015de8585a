"""From `store.url` to a store."""

from __future__ import annotations

import sys

import pytest

from relayd.stores import open_store
from relayd.stores.memory import MemoryStore
from relayd.stores.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "kind"), [("memory:", MemoryStore), ("sqlite:/nowhere/state.db", SqliteStore)]
)
def test_the_scheme_picks_the_store_and_nothing_is_opened(url: str, kind: type) -> None:
    assert isinstance(open_store(url), kind)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://h/db", "expected memory:, sqlite:PATH or redis://HOST, got mysql:"),
        ("sqlite:", "expected sqlite:PATH, got no path"),
    ],
)
def test_what_is_no_store_is_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_store(url)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "relayd.stores.redis", raising=False)
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(ValueError, match=r"pip install 'relayd\[redis\]'"):
        open_store("redis://localhost")
