"""The dashboard and the alert rules ask for figures, labels and values that relayd really gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from relayd.breaker import State
from relayd.outcomes import End, Outcome
from relayd.tally import STATUSES
from tests.support.client import RawClient
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.real import PROJECT
from tests.support.scripts import ok, status

MONITORING = PROJECT / "systemd" / "monitoring"
FILES = ["alerts.yml", "grafana.json"]

VALUES = {
    "outcome": {outcome.value for outcome in Outcome},
    "end_reason": {end.value for end in End},
    "state": {state.value for state in State},
    "status": {*STATUSES.values(), "499", "other"},
}
SELECTOR = re.compile(r"\b((?:relayd|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
HISTOGRAM = re.compile(r"_(bucket|sum|count)$")


def expressions(file: str) -> Iterator[str]:
    """Every PromQL expression of a file."""
    text = (MONITORING / file).read_text()
    if file.endswith(".yml"):
        # One line behind `expr:`, or the deeper lines under `expr: |`.
        yield from re.findall(r"^ +expr: (?!\|)(.+)$", text, re.MULTILINE)
        yield from re.findall(r"^ +expr: \|\n((?: {10,}.+\n)+)", text, re.MULTILINE)
        return
    board = json.loads(text)
    targets = [target for panel in board["panels"] for target in panel.get("targets", [])]
    notes = board["annotations"]["list"]
    yield from (each["expr"] for each in [*targets, *notes])
    yield from (variable["definition"] for variable in board["templating"]["list"][1:])


async def page(folder: Path) -> str:
    socket = f"{folder}/admin.sock"
    async with (
        ScriptedProvider(status(503), name="a") as a,
        ScriptedProvider(ok(), name="b") as b,
        gateway(config_for(a, b, admin={"listen": f"unix:{socket}"})) as g,
    ):
        await g.chat()
        async with RawClient(socket) as client:
            return (await client.get("/metrics")).text


@pytest.mark.parametrize("file", FILES)
async def test_every_figure_that_is_asked_for_is_given(file: str, tmp_path: Path) -> None:
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", await page(tmp_path), re.MULTILINE))
    asked = [name for text in expressions(file) for name, _ in SELECTOR.findall(text)]
    assert len(set(asked)) > 8
    for name in asked:
        bare = HISTOGRAM.sub("", name)
        assert name in kinds or kinds.get(bare) == "histogram", f"{name} is not given"


@pytest.mark.parametrize("file", FILES)
async def test_every_label_and_value_that_is_asked_for_can_come(file: str, tmp_path: Path) -> None:
    labels = set(re.findall(r'(\w+)="', await page(tmp_path))) | {"job", "instance"}
    labels |= {"turn", "kind"}  # there is no cap and no usage in this one exchange
    seen = 0
    for text in expressions(file):
        named = re.findall(r"\b(?:by|on) \(([^)]*)\)", text)
        assert {label.strip() for group in named for label in group.split(",")} <= labels
        for _, matchers in SELECTOR.findall(text):
            for label, value in MATCHER.findall(matchers):
                assert label in labels, f"{label} is no label"
                if label in VALUES:
                    seen += 1
                    assert set(value.split("|")) <= VALUES[label], f"{label} is never {value}"
    assert seen > 5


def test_every_figure_of_relayd_is_on_the_dashboard() -> None:
    shown = {
        HISTOGRAM.sub("", name)
        for text in expressions("grafana.json")
        for name, _ in SELECTOR.findall(text)
    }
    source = (PROJECT / "relayd" / "gauges.py").read_text()
    known = set(re.findall(r'"(relayd_\w+)"', source))
    assert known - {"relayd_build_info"} <= shown


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
