"""A memory over h11: header field lines that it has accepted before.

Bounded, without credentials, and without the fields that frame a message. Does not parse.
"""

from __future__ import annotations

Fields = list[tuple[bytes, bytes]]

MAX_KNOWN = 512
"""Lines remembered; then all are forgotten, and those in use come back with the next request."""

MAX_KNOWN_LINE = 256
"""Bytes of a line that is worth remembering."""

NEVER_KNOWN = frozenset(
    {
        b"host",  # h11 wants exactly one
        b"content-length",
        b"transfer-encoding",
        b"authorization",
        b"proxy-authorization",
        b"x-api-key",
        b"cookie",
    }
)
"""Fields that h11 sees in every request, because they frame it, and those that are secrets."""


class KnownLines:
    """Field lines that h11 has accepted before, with what it made of them.

    Clients repeat themselves: of an SDK's 17 fields 14 are the same in every request, and a field
    line is valid or not whatever stands around it. h11 parses what is new, and every time the
    fields whose meaning depends on others (`NEVER_KNOWN`). No credential is remembered.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[bytes, tuple[bytes, bytes]] = {}

    def split(self, lines: list[bytes]) -> tuple[list[tuple[bytes, bytes] | None], list[bytes]]:
        """What is known of each line (or None), and the lines that are new."""
        found = [self._lines.get(line) for line in lines]
        return found, [line for line, pair in zip(lines, found, strict=True) if pair is None]

    def learn(self, lines: list[bytes], fields: Fields) -> None:
        """Remember what h11 made of new lines, in the same order."""
        if len(self._lines) > MAX_KNOWN:
            self._lines.clear()
        for line, field in zip(lines, fields, strict=True):
            if field[0] not in NEVER_KNOWN and len(line) <= MAX_KNOWN_LINE:
                self._lines[line] = field
