"""What is asked of a provider, and what came back at the commit.

Two records between `outbound`, `upstream` and `pump`; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from .config import Candidate
from .framing import Body
from .net import Conn
from .pool import Origin
from .response import ResponseHead
from .sse import Watcher
from .surfaces import Surface


@dataclass(slots=True)
class Job:
    """One request to one provider, ready to send, and how its answer is judged.

    `hold` is True when the whole answer must be in before the commit (no stream asked for, or
    `commit = "answer"`); `blind` when the head alone commits (`commit = "head"`). `sent` from the
    moment it is on its way: that the provider was asked.
    """

    origin: Origin
    candidate: Candidate
    head: bytes
    body: bytes
    surface: Surface
    streaming: bool
    hold: bool
    blind: bool
    max_response_bytes: int
    codes: Collection[str]
    expose: bool
    mask: Callable[[str], str]
    sent: bool = False


@dataclass(slots=True)
class Answer:
    """An answer at its commit.

    `held` is the payload that came so far; `whole` says that it is all of it. Otherwise `body`
    decodes what `conn` still brings, and `watcher` (fed with `held`) watches it; None if the
    payload is no event stream. `commit` is the record's word; `content_at` the loop time of the
    first content, if there was one; `first_due` its clock when the peek was full too early; `idle`
    what bounds the gaps from here on, in seconds. `held_up`: see `pump.KEPT_WAITING`.
    """

    origin: Origin
    head: ResponseHead
    conn: Conn
    body: Body
    held: bytes
    whole: bool
    watcher: Watcher | None
    commit: str
    content_at: float | None
    first_due: float | None
    idle: float
    held_up: bool = False
