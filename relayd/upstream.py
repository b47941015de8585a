"""One attempt: borrow or dial, send, judge up to the commit.

`attempt` returns an `Answer` whose first bytes may go to the client, or raises `AttemptFailed`, or
lets `wake.Interrupt` through (the client left, the deadline, the drain). The connection belongs to
this module until then: whatever is raised, it is closed here. Does not know who is asked next, the
quota, or how an answer reaches the client.
"""

from __future__ import annotations

from collections.abc import Awaitable

from . import refusal
from .answers import CONTENT
from .failover import AttemptFailed
from .framing import BadChunk, Body
from .headers import is_coded, may_end
from .job import Answer, Job
from .net import Conn
from .outcomes import TOLD, Outcome, classify
from .peek import COMMIT, FAIL, LIMIT, MORE, WHOLE, Peek, Verdict, Why
from .reach import Reach, look, release
from .response import BadResponse, ResponseHead, response_body, take_response
from .sse import Watcher
from .wake import Clock

STALE = 1.0
"""Seconds after which a request has arrived: a provider that closes then has worked on it."""

MAX_INTERIM = 10
"""1xx heads that are skipped before an answer."""

ERROR_BODY_WAIT = 5.0
"""Seconds granted to the body of a 4xx, which says what the client or the key did wrong."""

ONE_WRITE = 65536
"""Bytes of a request up to which head and body are joined: one system call instead of two."""

LINGER = 2.0
"""Seconds granted to a provider that keeps the connection open after its last event."""


def attempt(job: Job, reach: Reach, clock: Clock, epoch: float) -> Awaitable[Answer]:
    """Ask one provider once. `epoch`: what the wall clock said at loop time 0."""
    return _Call(job, reach, clock, epoch).run()


def ended_well(conn: Conn, body: Body, watcher: Watcher | None) -> bool:
    """Whether the body of a connection that has ended is all there.

    A reset ends no body that ends with its connection; of a stream its final marker tells.
    """
    orderly = conn.error is None or (watcher is not None and watcher.final)
    return body.done or (orderly and body.close())


class _Stale(Exception):
    """The connection ended before its first byte."""


class _Call:
    """One request to one provider."""

    __slots__ = (
        "body",
        "clock",
        "conn",
        "due",
        "epoch",
        "interim",
        "job",
        "last",
        "lingers",
        "reach",
        "read",
        "started",
        "verdict",
    )

    conn: Conn
    body: Body

    def __init__(self, job: Job, reach: Reach, clock: Clock, epoch: float) -> None:
        self.job = job
        self.reach = reach
        self.clock = clock
        self.epoch = epoch
        self.interim = 0  # 1xx heads
        self.read = 0  # bytes that were looked at and are no head yet
        self.verdict = MORE
        self.lingers = False  # all is said, only the end of the body is awaited

    async def run(self) -> Answer:
        """Send, read the head, judge; closes the connection on every way but the good one.

        A pooled connection that closes at once and without a byte was closed before the request
        arrived: it is replaced by a fresh one at no cost (the one retry that RFC 9110, 9.2.2 leaves
        to a client).
        """
        job, wake = self.job, self.clock.wake
        pooled = self.reach.borrow(job.origin, self.clock.now())
        while True:
            conn = self.conn = pooled or await self._dial()
            conn.wake = wake
            try:
                self._send()
                while (head := self._head()) is None:
                    self._need_more()
                    await wake.wait()
                self.body = response_body(head)
                if head.status >= 300:
                    raise await self._failure(head)
                self._refuse_coded(head)
                if job.blind:
                    return self._blind(head)
                peek = Peek(job.surface, job.streaming, job.hold)
                while (answer := self._judge(peek, head)) is None:
                    self._need_more()
                    await wake.wait()
                return answer
            except _Stale as exc:
                conn.abort()
                if pooled is None:
                    raise AttemptFailed(Outcome.CLOSED, detail="closed without an answer") from exc
                pooled = None
            except BaseException:
                if conn.wake is not None:  # not given back
                    conn.abort()
                raise

    async def _dial(self) -> Conn:
        candidate, clock = self.job.candidate, self.clock
        return await self.reach.dial(self.job.origin, clock, clock.now() + candidate.connect)

    def _send(self) -> None:
        job = self.job
        self.started = self.last = self.clock.now()
        name = "answer" if job.hold and not (job.streaming or job.blind) else "first_content"
        self.due = self.started + getattr(job.candidate, name)
        self.clock.arm(name, self.due)
        job.sent = True
        if len(job.body) <= ONE_WRITE:
            self.conn.write(job.head + job.body)
        else:
            self.conn.write(job.head)
            self.conn.write(job.body)

    def _head(self) -> ResponseHead | None:
        """The head of the answer, if it is there; 1xx heads are skipped."""
        buffer = self.conn.buffer
        while may_end(buffer, self.read):
            self.read = len(buffer)
            try:
                head = take_response(buffer, self.reach.lines)
            except BadResponse as exc:
                raise AttemptFailed(Outcome.BAD_RESPONSE, detail=str(exc)) from exc
            if head is None or head.status >= 200:
                return head
            self.read = 0
            self.interim += 1
            if self.interim > MAX_INTERIM or head.status == 101:
                detail = "a 101 that was not asked for, or too many 1xx"
                raise AttemptFailed(Outcome.BAD_RESPONSE, detail=detail)
        return None

    def _need_more(self) -> None:
        """Raise if no more bytes will come, or not in time."""
        if self.conn.ended:
            at_once = self.clock.now() - self.started <= STALE
            if at_once and not self.read and not self.interim:  # not one byte came
                raise _Stale
            cause = self.conn.error
            detail = "reset before an answer" if cause else "closed before an answer"
            raise AttemptFailed(Outcome.CLOSED, detail=detail)
        look(self.clock)

    # A status that is no answer.

    async def _failure(self, head: ResponseHead) -> AttemptFailed:
        """The failure a status of 300 and up means; the connection is kept if its body is in."""
        left = max(self.due - self.clock.now(), 0.0)
        wait = min(ERROR_BODY_WAIT, left) if 400 <= head.status < 500 else 0.0
        text = await self._error_body(head, wait)
        job = self.job
        error = refusal.read(text)
        outcome = classify(head.status, error.code, error.type)
        if head.status == 400 and error.code in job.codes:
            outcome = Outcome.UNSUITABLE
        told = None
        if outcome in TOLD:
            told = refusal.refused(head.status, error, job.mask, expose=job.expose)
        return AttemptFailed(
            outcome,
            status=head.status,
            retry_after=refusal.retry_after(head.first, self.epoch + self.clock.now()),
            detail=refusal.trimmed(job.mask(error.message or "")),
            error=told,
        )

    async def _error_body(self, head: ResponseHead, wait: float) -> bytes:
        """As much of an error answer as comes in `wait` seconds; the status stands without it."""
        conn, clock = self.conn, self.clock
        if wait:
            clock.arm("error_body", clock.now() + wait)
        text = bytearray()
        try:  # cut, silent or broken: what came is enough
            while not self._drain_into(text, refusal.MAX_ERROR_BODY):
                if not wait or conn.ended or clock.expired is not None:
                    break
                await clock.wake.wait()
        except BadChunk as exc:
            text += exc.payload
        self._release(head)
        return bytes(text)

    def _drain_into(self, text: bytearray, limit: int) -> bool:
        """Move what came into `text`; True at the end of the body or at the limit."""
        if self.conn.buffer:
            text += self.body.feed(self.conn.take())
        return self.body.done or len(text) > limit

    def _release(self, head: ResponseHead) -> None:
        release(self.reach, self.job.origin, self.conn, head, self.body, self.clock.now())

    # A 2xx.

    def _refuse_coded(self, head: ResponseHead) -> None:
        if is_coded(head.first, head.fields):
            raise AttemptFailed(
                Outcome.NO_ANSWER, status=head.status, detail="content coding was not asked for"
            )

    def _blind(self, head: ResponseHead) -> Answer:
        kind = head.field(b"content-type") or b""
        watched = self.job.streaming and head.status != 204 and b"event-stream" in kind.lower()
        watcher = Watcher(self.job.surface) if watched else None
        return self._answer(head, b"", False, watcher, "head")

    def _judge(self, peek: Peek, head: ResponseHead) -> Answer | None:
        """The answer, once it commits or is whole; raises where it turns out to be none."""
        job, body, conn = self.job, self.body, self.conn
        nothing_came = not conn.buffer and not conn.ended
        verdict = self.verdict = self._take(peek, self.verdict)
        if self.lingers:
            over = body.done or conn.ended or self.clock.expired is not None
            return self._whole(peek, head) if over else None
        if verdict is FAIL:
            raise self._no_answer(peek, head)
        if (watcher := peek.watcher) and watcher.over:
            expired = self.clock.expired  # `answer` may come in the middle of another choice
            if expired == "idle" or (expired == "answer" and not watcher.goes_on):
                return self._whole(peek, head)  # all is said; its end will not come
        if body.done and (job.hold or peek.watcher is None):
            return self._whole(peek, head)
        if verdict in (COMMIT, LIMIT) and not job.hold:
            return self._commit(peek, head, verdict)
        if verdict is COMMIT:
            # After the final marker: the end of the body, if the provider sends one soon.
            self.lingers = True
            self.clock.arm("linger", self.clock.now() + LINGER)
        else:
            if nothing_came:
                look(self.clock)
            self._bound(peek, verdict)
        return None

    def _take(self, peek: Peek, verdict: Verdict) -> Verdict:
        """Show the peek what came, the end of the body included."""
        conn, body = self.conn, self.body
        peek.flags = 0  # whoever was woken by something else has seen no content
        try:
            if conn.buffer:
                verdict = peek.feed(body.feed(conn.take()))
        except BadChunk as exc:
            raise AttemptFailed(Outcome.BAD_RESPONSE, detail=str(exc)) from exc
        framed = body.done
        if conn.ended and not ended_well(conn, body, peek.watcher):
            raise AttemptFailed(Outcome.CLOSED, detail="closed in the middle of an answer")
        if body.done:
            verdict = peek.close(framed=framed)
        held_whole = self.job.hold or peek.watcher is None  # else the peek's own limit holds
        if held_whole and len(peek.held) > self.job.max_response_bytes:
            raise AttemptFailed(Outcome.TOO_LARGE)
        return verdict

    def _bound(self, peek: Peek, verdict: Verdict) -> None:
        """Arm the clock that holds now."""
        job, candidate = self.job, self.job.candidate
        answer = self.started + candidate.answer
        if not job.streaming:
            # `answer`, armed when the request was sent, or a stream that nobody asked for
            if peek.watcher is not None and peek.watcher.finished:
                if peek.flags & CONTENT:
                    self.last = self.clock.now()
                self._arm_first(("idle", self.last + candidate.idle), ("answer", answer))
            return
        if verdict is WHOLE:
            self.clock.arm("answer", answer)
        elif job.hold and peek.content_seen:
            if peek.flags & CONTENT:
                self.last = self.clock.now()
            self._arm_first(("idle", self.last + candidate.idle), ("answer", answer))
        elif job.hold:
            first = self.started + candidate.first_content
            self._arm_first(("first_content", first), ("answer", answer))

    def _arm_first(self, *clocks: tuple[str, float]) -> None:
        name, due = min(clocks, key=lambda clock: clock[1])
        self.clock.arm(name, due)

    def _no_answer(self, peek: Peek, head: ResponseHead) -> AttemptFailed:
        error = peek.reason in (Why.ERROR_EVENT, Why.ERROR_OBJECT)
        outcome = Outcome.ERROR_ANSWER if error else Outcome.NO_ANSWER
        if error:  # what is no answer may not be the one to this request: ours may still come
            self._release(head)
        return AttemptFailed(
            outcome, status=head.status, detail=peek.reason.value if peek.reason else ""
        )

    def _whole(self, peek: Peek, head: ResponseHead) -> Answer:
        word = "answer" if self.job.hold else "content"
        return self._answer(head, bytes(peek.held), True, peek.watcher, word)

    def _commit(self, peek: Peek, head: ResponseHead, verdict: Verdict) -> Answer:
        word = "content" if verdict is COMMIT else "limit"
        answer = self._answer(head, bytes(peek.held), False, peek.watcher, word)
        if not peek.content_seen:
            answer.content_at = None
            answer.first_due = self.started + self.job.candidate.first_content
        return answer

    def _answer(
        self, head: ResponseHead, held: bytes, whole: bool, watcher: Watcher | None, word: str
    ) -> Answer:
        now = None if word == "head" else self.clock.now()
        self.clock.disarm()
        return Answer(
            self.job.origin,
            head,
            self.conn,
            self.body,
            held,
            whole,
            watcher,
            word,
            now,
            None,
            self.job.candidate.idle,
        )
