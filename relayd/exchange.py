"""One exchange: admit, attempt, commit, relay, settle.

`Exchange.run` is the whole way of a request, top to bottom. It never raises except
`CancelledError`; afterwards the lease is settled, the permit has its verdict, the connection is
closed or back in the pool, and one record is in the journal. Decisions are `failover`'s and
`outcomes`'; this module carries them out. Does not know HTTP framing or who asks.
"""

from __future__ import annotations

from asyncio import CancelledError

from . import errors
from .adapters import cost
from .breakers import Permit
from .config import Candidate, Price
from .engine import Engine, Setup
from .failover import AttemptFailed, FailoverPlan, Ready, Step
from .job import Answer
from .jsonbody import FORGOTTEN
from .outbound import Ask
from .outcomes import (
    BLAMED,
    BY_CLIENT,
    COMPLETE,
    CREDENTIAL,
    INTERNAL,
    LAST_WORDS,
    LEFT_STATUS,
    OK,
    RULES,
    End,
    Outcome,
)
from .pump import Limits, Pump, said
from .quota import LEASE_GRACE
from .reach import release
from .record import Attempt, Record
from .replies import answer_lines, refuse
from .sink import Sink
from .surfaces import EMBEDDINGS
from .turns import NO_LEASE, Lease
from .upstream import attempt
from .wake import Clock, Interrupt, Why
from .whole import usage_of

INTERRUPTED = {
    Why.CLIENT_LEFT: (Outcome.CLIENT_LEFT, End.CLIENT_LEFT),
    Why.CLIENT_STALLED: (Outcome.CLIENT_STALLED, End.CLIENT_STALLED),
    Why.DEADLINE: (Outcome.DEADLINE, End.DEADLINE_EXCEEDED),
    Why.DRAINING: (Outcome.DRAINING, End.SHUTTING_DOWN),
}
assert set(INTERRUPTED) == set(Why)

NOBODYS_FAULT = frozenset({outcome for outcome, _ in INTERRUPTED.values()})
"""Attempts that ended from outside: not worth a warning."""


class Exchange:
    """One request on its way."""

    __slots__ = (
        "_answer",
        "_ask",
        "_asked",
        "_clock",
        "_ended",
        "_engine",
        "_lease",
        "_permit",
        "_plan",
        "_price",
        "_record",
        "_setup",
        "_sink",
        "_slot",
        "_surface",
        "error",
    )

    def __init__(
        self, engine: Engine, setup: Setup, ask: Ask, sink: Sink, clock: Clock, record: Record
    ) -> None:
        self._engine = engine
        self._setup = setup
        self._ask = ask
        self._sink = sink
        self._clock = clock
        self._record = record
        self._plan = FailoverPlan(ask.candidates(), setup.config.failover, engine.jitter)
        self._lease: Lease = NO_LEASE
        self._permit: Permit | None = None
        self._slot: str | None = None  # the provider whose place in flight is taken
        self._answer: Answer | None = None  # set at the commit
        self._price: Price | None = None
        self._surface = ask.surface  # that of the present attempt
        self._asked = False  # whether any provider was sent the request
        self._ended = False
        self.error: errors.RelayError | None = None  # what the client was told instead

    async def run(self) -> None:
        """Serve the request and write the record; raises only `CancelledError`."""
        ask = self._ask
        self._engine.enter(self._record)
        self._clock.deadline = ask.began + ask.route.deadline
        try:
            if ask.cap and ask.surface is not EMBEDDINGS:
                await self._reserve()
            self._answer = answer = await self._attempts()
            self._deliver(answer)
            if not answer.whole:
                await self._relay(answer)
            if self._sink.pending():
                await self._sink.flush(self._clock, self._setup.config.server.write_timeout)
        except errors.RelayError as error:
            self._refuse(error)
        except Interrupt as interrupt:
            self._interrupted(interrupt.why)
        except Exception as exc:  # noqa: BLE001  (the last resort: a 500, never a hang)
            self._fault(exc)
        except BaseException:  # whoever runs it has let go of it, and so of the client
            wake = self._clock.wake
            wake.why = wake.why or Why.CLIENT_LEFT
            self._interrupted(wake.why)
            raise
        finally:
            self._settle()

    # Before the commit.

    async def _reserve(self) -> None:
        ask = self._ask
        lease = ask.route.deadline + LEASE_GRACE
        self._lease = await self._engine.turns.reserve(
            ask.user, ask.cap, ask.facts.continuation, ask.wall, lease
        )

    async def _attempts(self) -> Answer:
        plan, engine, clock = self._plan, self._engine, self._clock
        epoch = self._ask.wall - self._ask.began
        while (step := plan.next(self._ready)) is not None:
            if step.delay:
                await clock.pause(step.delay)
            provider = step.candidate.provider
            found = engine.admit_at_once(provider) or await engine.admit(provider, clock)
            if isinstance(found, Ready):
                plan.turned_away(found)
                clock.check()  # whoever left meanwhile is told nothing
                continue
            self._permit, self._slot = found, provider.name
            clock.check()  # whoever has left, or came too late, must not pay for an attempt
            job = self._setup.outbound.job(self._ask, step.candidate, step.key)
            plan.asked()
            noted, began = self._begin(step, found), clock.now()
            outcome, detail = INTERNAL, ""
            try:
                answer = await attempt(job, engine.reach, clock, epoch)
                outcome, noted.status = OK, answer.head.status
                return answer
            except AttemptFailed as failure:
                outcome, noted.status, detail = failure.outcome, failure.status, failure.detail
                self._rest(step, failure)
                plan.failed(step, failure, clock.deadline - clock.now())
            except (Interrupt, CancelledError):
                outcome = INTERRUPTED[clock.wake.why or Why.CLIENT_LEFT][0]
                raise
            finally:
                noted.duration = clock.now() - began
                self._asked |= job.sent
                self._judge(noted, outcome, detail)
        raise plan.verdict()

    def _ready(self, candidate: Candidate) -> Ready:
        return self._engine.ready(candidate, self._clock.now())

    def _begin(self, step: Step, permit: Permit) -> Attempt:
        """The record of an attempt that is about to be made."""
        provider = step.candidate.provider
        self._surface, self._price = self._ask.surface_at(provider), provider.price
        model = step.candidate.hinted(self._ask.hint) or self._record.model
        noted = Attempt(provider.name, model, provider.url(self._surface), breaker=permit.state)
        self._record.attempts.append(noted)
        return noted

    def _rest(self, step: Step, failure: AttemptFailed) -> None:
        provider, key, now = step.candidate.provider, step.key, self._clock.now()
        if failure.outcome is CREDENTIAL:
            self._engine.refused(provider, key, now)
        elif failure.rest:
            self._engine.rest(provider, key, failure.rest, now)

    def _judge(self, noted: Attempt, outcome: Outcome, detail: str) -> None:
        """An attempt has ended: its verdict, and a word about a failure."""
        noted.outcome = outcome
        self._give_verdict(outcome)
        if outcome is not OK:
            self._leave_slot()
            if outcome not in NOBODYS_FAULT:
                self._engine.journal.attempt_failed(self._record, noted, detail)

    def _give_verdict(self, outcome: Outcome) -> None:
        if self._permit is not None:
            self._permit.settle(RULES[outcome].verdict, self._clock.now())

    def _leave_slot(self) -> None:
        if self._slot is not None:
            self._engine.in_flight[self._slot] -= 1
            self._slot = None

    # From the commit on.

    def _deliver(self, answer: Answer) -> None:
        """The head and what came so far; an answer that is whole ends here."""
        head, now = answer.head, self._clock.now()
        record = self._record
        tried = record.attempts[-1]
        record.provider, record.upstream_model = tried.provider, tried.upstream_model
        record.status, record.commit = head.status, answer.commit
        record.ttfb, record.first_content = now - self._ask.began, self._since(answer.content_at)
        block = answer_lines(head, record, self._plan.attempts, answer.watcher is not None)
        if answer.whole:
            self._sink.open(head.status, block, len(answer.held), answer.held)
            if answer.watcher is None:
                told = usage_of(answer.held, self._surface)
                record.usage, record.finish_reason = told
            self._finish(COMPLETE)
        else:
            length = head.length if answer.watcher is None else None
            self._sink.open(head.status, block, length, answer.held)

    async def _relay(self, answer: Answer) -> None:
        config = self._setup.config
        limits = Limits(answer.idle, config.server.write_timeout, config.failover.max_stream_bytes)
        pump = Pump(answer, self._sink, self._clock, limits)
        # A stream may be long: what only another attempt would need goes now.
        answer.held = self._ask.body = b""
        self._ask.facts, self._ask.forms = FORGOTTEN, None
        answer.head.forget()
        try:
            end = await pump.run()
        finally:
            self._record.max_gap = pump.max_gap
            self._record.first_content = self._since(pump.first_content)
            answer.held_up = pump.held_up
        self._finish(end)

    def _since(self, at: float | None) -> float | None:
        """Seconds from the beginning to a loop time."""
        return None if at is None else at - self._ask.began

    def _finish(self, end: End) -> None:
        """End the client's side as honestly as the framing allows, and let the provider go."""
        answer, sink, self._ended = self._answer, self._sink, True
        assert answer is not None
        self._note_end(end)
        if end is COMPLETE or end is End.UPSTREAM_ERROR_EVENT:
            sink.end()
        elif end in BY_CLIENT or answer.watcher is None:
            sink.cut()
        elif answer.watcher.final:
            sink.end()  # all was said: an error behind it would unsay it
        elif answer.watcher.at_boundary:
            sink.write(errors.event(end.value, LAST_WORDS[end], self._surface))
            sink.end()
        else:
            sink.cut(errors.event(end.value, LAST_WORDS[end], self._surface))
        self._let_go(answer, end)

    def _let_go(self, answer: Answer, end: End) -> None:
        engine, now = self._engine, self._clock.now()
        release(engine.reach, answer.origin, answer.conn, answer.head, answer.body, now)
        self._leave_slot()
        if end in BLAMED and self._permit is not None and not answer.held_up:
            self._permit.broke(now)

    # When there is no answer, or no more of it.

    def _refuse(self, error: errors.RelayError) -> None:
        """Tell the client why, before any byte of an answer went out."""
        self.error = error.with_traceback(None)  # its frames hold this exchange
        refuse(self._sink, error, self._ask.surface, self._record, self._plan.attempts)
        if isinstance(error, errors.ProviderRefused):
            self._end("provider", End.REQUEST_FAULT)
        elif isinstance(error, errors.RequestFault) or not self._plan.attempts:
            self._end("relayd", End.REFUSED)
        else:
            self._end("provider", End.FAILED)

    def _interrupted(self, why: Why) -> None:
        """The client left, stalled or was let go of, the deadline passed, or relayd stops."""
        end = INTERRUPTED[why][1]
        if self._answer is not None:
            if not self._ended:
                self._finish(said(self._answer.watcher, end))
            else:
                self._sink.cut()  # everything was written; the client did not take it
                self._note_end(end)
            return
        if end in BY_CLIENT:
            self._sink.cut()
            self._record.status = LEFT_STATUS
        elif why is Why.DEADLINE:
            self._refuse(errors.DeadlineExceeded())
        else:
            self._refuse(errors.Draining())
        self._note_end(end)

    def _fault(self, exc: Exception) -> None:
        """A fault of our own: said to the log by type and place, to the client not at all."""
        self._engine.fault(exc)
        if self._answer is None:
            self._refuse(errors.RelayError())
            self._note_end(End.INTERNAL_ERROR)
        elif not self._ended:
            self._finish(End.INTERNAL_ERROR)

    def _settle(self) -> None:
        """Give everything back and write the record; no await, so nothing can get in between."""
        if self._answer is None:
            self._give_verdict(Outcome.DRAINING)  # of one that was given, but not asked with
        self._leave_slot()
        self._clock.disarm()
        record = self._record
        charged = self._answer is not None
        if self._answer is None and record.end_reason in BY_CLIENT:
            charged = self._asked
        self._engine.turns.settle(self._lease, charged)
        record.turn = self._lease.fate(charged)
        record.bytes_out = self._sink.sent
        if record.usage is not None and self._price is not None:
            record.cost = cost(self._surface, record.usage, self._price)
        record.duration = self._clock.now() - self._ask.began
        self._engine.leave(record)
        self._engine.journal.exchange(record)

    def _note_end(self, end: End) -> None:
        record, answer = self._record, self._answer
        if answer is not None and answer.watcher is not None:
            watcher = answer.watcher
            record.events, record.usage = watcher.events, watcher.usage
            record.finish_reason = watcher.finish_reason
        if end is COMPLETE or end in BLAMED:
            self._end("provider", end)
        else:
            self._end("client" if end in BY_CLIENT else "relayd", end)

    def _end(self, by: str, end: End) -> None:
        self._record.ended_by = by
        self._record.end_reason = end
