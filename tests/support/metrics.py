"""Reads `/metrics` of an admin listener with Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from .client import Address, RawClient


def parsed(text: str) -> dict[str, float]:
    """Every sample by its name and labels: `relayd_tokens_total{kind=input}{provider=a}`."""
    return {
        sample.name + "".join(f"{{{k}={v}}}" for k, v in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def series(address: Address) -> dict[str, float]:
    """One scrape."""
    async with RawClient(address) as client:
        answer = await client.get("/metrics")
    assert answer.status == 200, answer.text
    return parsed(answer.text)
