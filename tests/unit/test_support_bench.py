"""`make bench` without its runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.__main__ import runner


def test_a_runner_that_nobody_named_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELAYD_BENCH", raising=False)
    with pytest.raises(SystemExit, match="RELAYD_BENCH is not set: name the folder"):
        runner()


def test_a_folder_without_the_runner_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RELAYD_BENCH", str(tmp_path))
    with pytest.raises(SystemExit, match=f"no run_peers in {tmp_path}"):
        runner()
    (tmp_path / "run_peers").touch()
    assert runner() == tmp_path / "run_peers"
