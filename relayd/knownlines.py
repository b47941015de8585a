"""A memory over h11: the lines of request heads that it has accepted before.

Clients repeat themselves: all lines of an SDK's request but one or two are the same every time, and
a field line is valid or not whatever stands around it. So h11 parses what is new, together with the
fields whose meaning depends on others (`FRAMING`); where nothing is new and each of those stands
once, its earlier word holds. Bounded. Credentials are remembered by their own connection alone.
Does not parse.
"""

from __future__ import annotations

from typing import Any

from .headers import Field, Fields

Start = tuple[str, str, bytes]
"""Method, path and version of a request line."""

MAX_KNOWN = 512
"""Lines remembered; then all are forgotten, and those in use come back with the next request."""

MAX_KNOWN_LINE = 256
"""Bytes of a line that is worth remembering."""

MAX_SECRET_LINE = 4096
"""Bytes of a line with a credential: web tokens are long, but each idle connection keeps one."""

FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding"})
"""Fields that are right or wrong only together (RFC 9112, 3.2 and 6.3)."""

SECRET = frozenset({b"authorization", b"proxy-authorization", b"x-api-key", b"cookie"})


class KnownLines:
    """What is remembered; `shared` by all connections, the rest of this one."""

    __slots__ = ("_own", "_shared", "_starts")

    def __init__(self, shared: KnownLines | None = None) -> None:
        self._starts: dict[bytes, Start] = shared._starts if shared else {}
        self._shared: dict[bytes, Field] = shared._shared if shared else {}
        self._own: dict[bytes, Field] = {}

    def start(self, line: bytes) -> Start | None:
        """What a request line says, if it is known."""
        return self._starts.get(line)

    def fields(self, lines: list[bytes]) -> list[Any]:
        """What each line says (a `Field`), None where it is new."""
        found: list[Any] = list(map(self._shared.get, lines))
        if self._own and not all(found):
            place = found.index(None)  # most often the only one, and the credential
            found[place] = self._own.get(lines[place])
        return found

    def learn(self, start: bytes, meant: Start, lines: list[bytes], fields: Fields) -> None:
        """Remember what h11 made of a request line and of field lines in the same order."""
        if len(self._shared) > MAX_KNOWN or len(self._starts) > MAX_KNOWN:
            self._shared.clear()
            self._starts.clear()
        if b"?" not in start and len(start) <= MAX_KNOWN_LINE:  # a query may hold a key
            self._starts[start] = meant
        for line, field in zip(lines, fields, strict=True):
            if field[0] in SECRET:
                self._own = {line: field} if len(line) <= MAX_SECRET_LINE else {}
            elif len(line) <= MAX_KNOWN_LINE and field[0] != b"transfer-encoding":
                self._shared[line] = field
