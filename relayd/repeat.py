"""The usual read of a stream: one chunk that holds one event like the last but for its text.

A provider says nearly every event with the same words around another text. Once the exact way
(`framing` and `sse`) has judged one, a read that differs from it only inside that one JSON string
means the same: it is recognised by comparing, in a third of the time, and may be passed on as the
chunk it is. Whatever is not recognised takes the exact way.

Does not know what the event says, or whether the stream stands where one may begin.
"""

from __future__ import annotations

import re

LIMIT = 4096
"""Bytes of a read that may be a usual one."""

DOUBTS = 4
"""Events in a row that were learned in vain until a stream is taken for one without a pattern."""


def _heads() -> list[bytes]:
    """By length of a whole chunk, framing included: the line it then begins with.

    A length that no chunk of lower-case hexadecimal digits has is given what no read of that length
    can begin with.
    """
    heads = [bytes(LIMIT + 1)] * (LIMIT + 1)
    for size in range(1, LIMIT):
        head = b"%x\r\n" % size
        if (length := len(head) + size + 2) <= LIMIT:
            heads[length] = head
    return heads


_HEADS = _heads()
# What stands between the quotes of a JSON string, on one line.
_STRING = re.compile(rb'(?:[^"\\\r\n]++|\\[^\r\n])++')
_WHOLE = _STRING.fullmatch


class Repeat:
    """The pattern of one stream's events; none until `learn` was called."""

    __slots__ = ("_after", "_before", "_doubts", "_end", "_hits")

    def __init__(self) -> None:
        self._before = self._after = b""
        self._end = 0  # length of what comes after the text
        self._doubts = 0
        self._hits = 0

    @property
    def known(self) -> bool:
        """Whether there is a pattern."""
        return bool(self._before)

    def learn(self, payload: bytes, text: int, hits: int) -> None:
        """Take this event for the pattern, and the JSON string that begins at `text` for its text.

        `hits`: how many reads were usual ones so far. Learns nothing where no whole string begins
        at `text`, nor from a stream of which the last few patterns were in vain.
        """
        if hits != self._hits:
            self._hits, self._doubts = hits, 0
        found = _STRING.match(payload, text) if text > 0 else None
        if found is None or self._doubts == DOUBTS:
            return
        end = found.end()
        if payload[text - 1 : text] == b'"' == payload[end : end + 1]:
            self._doubts += 1
            self._before = payload[:text]
            self._after = payload[end:] + b"\r\n"
            self._end = len(self._after)

    def size(self, data: bytes) -> int:
        """Bytes of payload, if `data` is one chunk in plain framing of an event as learned; or 0.

        Only where there is a pattern, and where a chunk and an event begin with `data`.
        """
        length = len(data)
        if length > LIMIT:
            return 0
        head = _HEADS[length]
        before = head + self._before
        if (
            data.startswith(before)
            and data.endswith(self._after)
            and _WHOLE(data, len(before), length - self._end)
        ):
            return length - len(head) - 2
        return 0
