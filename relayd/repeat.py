"""The usual read of a stream: one chunk that holds one event like the last but for its text.

A provider says nearly every event with the same words around another text. Once the exact way
(`framing` and `sse`) has judged one, a read that differs from it only inside that one JSON string
means the same: it is recognised by comparing, in a third of the time, and may be passed on as the
chunk it is. Whatever is not recognised takes the exact way.

Does not know what the event says, or whether the stream stands where one may begin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

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
    """The short way of one stream, and what is counted on both ways. Times are seconds of `now`.

    A usual read goes to `send`, any other to `exact`; so does one with which more than `most` bytes
    of payload would have been sent. `content` is when content came last (infinite before the
    first), `max_gap` the longest wait between two, `sent` the bytes of payload, `hits` the usual
    reads.
    """

    __slots__ = (
        "_after",
        "_before",
        "_doubts",
        "_end",
        "_exact",
        "_longest",
        "_most",
        "_now",
        "_send",
        "_useful",
        "content",
        "hits",
        "max_gap",
        "sent",
    )

    def __init__(
        self,
        now: Callable[[], float],
        most: int,
        send: Callable[[bytes], None],
        exact: Callable[[bytes], None],
    ) -> None:
        self._now = now
        self._most = most
        self._send = send
        self._exact = exact
        self._before = self._after = b""
        self._end = 0  # length of what comes after the text
        self._longest = 0  # bytes of a read that may be a usual one: LIMIT or none
        self._doubts = 0
        self._useful = 0  # `hits` when the pattern was last learned
        self.content = math.inf
        self.max_gap = 0.0
        self.sent = 0
        self.hits = 0

    def feed(self, data: bytes) -> None:
        """One read."""
        length = len(data)
        if length <= self._longest:
            head = _HEADS[length]
            before = head + self._before
            if (
                data.startswith(before)
                and data.endswith(self._after)
                and _WHOLE(data, len(before), length - self._end)
                and (sent := self.sent + length - len(head) - 2) <= self._most
            ):
                clock, send = self._now, self._send
                now = clock()
                gap = now - self.content
                if gap > self.max_gap:
                    self.max_gap = gap
                self.content = now
                self.sent = sent
                self.hits += 1
                send(data)
                return
        self._exact(data)

    def arm(self) -> None:
        """A chunk and an event begin with the next read, so it may be a usual one."""
        if self._before:
            self._longest = LIMIT

    def disarm(self) -> None:
        """The next read is none."""
        self._longest = 0

    def close(self) -> None:
        """Nothing more is sent."""
        self._longest = 0
        self._send = self._exact = _nowhere

    def learn(self, payload: bytes, text: int) -> None:
        """Take this event for the pattern, and the JSON string that begins at `text` for its text.

        Learns nothing where no whole string begins at `text`, nor from a stream of which the last
        few patterns were in vain.
        """
        if self.hits != self._useful:
            self._useful, self._doubts = self.hits, 0
        found = _STRING.match(payload, text) if text > 0 else None
        if found is None or self._doubts == DOUBTS:
            return
        end = found.end()
        if payload[text - 1 : text] == b'"' == payload[end : end + 1]:
            self._doubts += 1
            self._before = payload[:text]
            self._after = payload[end:] + b"\r\n"
            self._end = len(self._after)


def _nowhere(data: bytes) -> None:
    """Nobody is sent anything any more."""
