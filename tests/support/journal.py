"""A journal that keeps what it is told."""

from __future__ import annotations

import asyncio

from relayd.engine import Journal
from relayd.record import Attempt, Record


class Kept(Journal):
    """Records, failed attempts, names of events, in order; `ended` once there is a record."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.failed: list[Attempt] = []
        self.events: list[str] = []
        self.ended = asyncio.Event()

    def exchange(self, record: Record) -> None:
        self.records.append(record)
        self.ended.set()

    def attempt_failed(self, record: Record, attempt: Attempt, detail: str) -> None:
        self.failed.append(attempt)

    def event(
        self, level: str, event: str, message: str, **fields: str | int | float | bool | None
    ) -> None:
        self.events.append(event)

    @property
    def record(self) -> Record:
        """The only one."""
        (record,) = self.records
        return record
