"""How many turns of the day somebody has left, as a client learns it: by asking until refused.

Knows the daily cap's configuration key and relayd's 429, not where turns are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .gateway import Gateway, config_for
from .provider import ScriptedProvider

MOST = 10
"""Answers after which a cap is taken for none."""


def capped(*providers: ScriptedProvider, cap: int, **sections: Any) -> dict[str, Any]:
    """`config_for` with so many turns a day for each user."""
    quota = {"daily_turns": cap, **sections.pop("quota", {})}
    return config_for(*providers, quota=quota, **sections)


async def left(g: Gateway, fields: Mapping[str, str] | None = None) -> int:
    """How many turns the user has left; none are left afterwards."""
    for count in range(MOST):
        answer = await g.chat("count", fields=fields)
        if answer.status == 429:
            assert answer.error["code"] == "rate_limited"
            return count
        assert answer.status == 200, (answer.status, answer.text)
    raise AssertionError("expected an end of the turns")
