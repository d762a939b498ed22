"""The phases of a run and the stages of a sweep, one after the other; when each begins, and what ends it."""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import gevent

from locust_llm.core.phases import BETWEEN, OVER, PROFILING, WARMUP, label_of
from locust_llm.core.run import Health, Run, Stage
from locust_llm.core.sweep import CONCURRENCY, INPUT
from locust_llm.run.guarded import guarded
from locust_llm.run.protocol import AskAgain, PhaseOver, StageBegin, Status
from locust_llm.run.schedule import Due
from locust_llm.slo.grammar import Rule

from .allocator import Allocator
from .context import RunContext
from .early_stop import EarlyStop
from .gate_limit import GateLimit
from .in_flight import Sends
from .run_store import known_limits
from .shutdown import Shutdown
from .stage_runner import BlockRunner, StageRunner
from .users import UserPool

logger = logging.getLogger("locust_llm")

LEAD_S: Final = 0.5
"""How long after its users are there a schedule begins: they make their first requests ready, and connect."""
RULES_S: Final = 1.0
"""How often the rules are looked at that may end the run."""
LOOK_S: Final = 0.25
"""How often a stage is looked at: whether it has lasted long enough."""
HEALTH_S: Final = 2.0
"""How long the processes have to tell how they were in a stage."""


class PhaseRunner:
    """``facts()``: the run as it is known now."""

    def __init__(
        self,
        context: RunContext,
        users: UserPool,
        shutdown: Shutdown,
        facts: Callable[[], Run],
        fails: Callable[[str], object] = lambda why: None,
    ) -> None:
        """``fails(why)``: something broke that would leave the run without an end."""
        self._settings, self._store, self._active = context.settings, context.store, context.workers.active
        self._users, self._shutdown, self._send, self._facts = users, shutdown, context.send, facts
        self._spawn = partial(guarded, fails)
        settings, stages = context.settings, context.settings.staged
        self.sends = Sends()
        first_wave = 0 if settings.open_loop or stages else settings.users or 0
        self.abort = EarlyStop(self.rules(), first_wave, self.sends, overdue=stages is None)
        """The rules of the run; in a sweep those of its stage, of which only what is measured counts."""
        kind = BlockRunner if settings.compares else StageRunner
        self.stages = None if stages is None else kind(settings, stages, context.folder)
        """None: the run has no stages."""
        self.asked = settings if self.stages is None else self.stages.settings
        """The settings of this phase: in a sweep those of its stage."""
        self.allocator = Allocator(context, users, self._next_phase, self._sessions_over)
        self.plan = self.allocator.plan
        self.limit = GateLimit(context, lambda: self.plan.phase)
        self._jobs: list[gevent.Greenlet] = []
        """Of this phase: the schedule, the clock."""
        self._dealing: gevent.Greenlet | None = None
        self._stepping: gevent.Greenlet | None = None
        """Between two stages."""
        self._stage_limits = 0
        """How many changes of the limit there had been before this stage."""

    # -- phases --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The phase that the plan is in."""
        if self.plan.phase == BETWEEN:
            self.allocator.paused = True
            self._stepping = self._spawn(0.0, self._step)
            return
        s, phase = self.asked, self.plan.phase
        self._limit_of(phase == WARMUP)
        if s.warmup_concurrency:
            self.allocator.paused = True
            users = s.warmup_concurrency if phase == WARMUP else s.users or 1
            self._jobs.append(self._spawn(0.0, self._begin_with, users, phase))
        else:
            self._begin_sending(phase)

    def _begin_with(self, users: int, phase: str) -> None:
        """When there are just as many users."""
        self._users.become(users)
        self.allocator.paused = False
        self._begin_sending(phase)
        self._send(AskAgain(self.plan.phase))

    def _begin_sending(self, phase: str) -> None:
        dues = self.allocator.begin(phase, self.asked)
        if dues is not None:
            logger.info("Open loop: requests come by a schedule, whatever the server does")
            self._dealing = self._spawn(0.0, self._deal_out, dues, phase)
            self._jobs.append(self._dealing)
        else:
            self._begin_clock(phase)

    def _begin_clock(self, phase: str, lead_s: float = 0.0) -> None:
        """Bound the phase, which begins in ``lead_s``, in time."""
        s, stages = self._settings, self.stages
        if stages is not None and label_of(phase) == PROFILING:
            stages.begin(time.time() + lead_s)
            self._jobs.append(self._spawn(0.0, self._look, phase))
            if s.lasts_s and stages.repeats:
                self._jobs.append(self._spawn(lead_s + s.lasts_s, self._close_phase, phase))
            elif s.run_time_s and stages.number == 1:
                self._spawn(s.run_time_s, self._time_is_up)
        elif phase == PROFILING:
            if lead_s:
                self._store.profiling_at = time.time() + lead_s
            if s.run_time_s:
                logger.info(f"Profiling for {s.run_time_s:g} s")
                self._jobs.append(self._spawn(lead_s + s.run_time_s, self._time_is_up))
        elif s.warmup_duration:
            self._jobs.append(self._spawn(lead_s + s.warmup_duration, self._close_phase, phase))

    def _time_is_up(self) -> None:
        if self._shutdown.begun:
            return
        logger.info(f"Time is up after {self._settings.run_time_s:g} s")
        self._shutdown.begin()

    def _limit_of(self, warm: bool) -> None:
        users = self.asked.users or ("as many as needed" if self._users.grows else "from the form")
        self.limit.begin(self.asked, warm=warm, users=str(users))

    def _deal_out(self, dues: Iterator[Due], phase: str) -> None:
        """The schedule of an open loop, from its first arrival to its last."""
        self._users.wait()
        self._begin_clock(phase, LEAD_S)
        self.allocator.deal_out(dues, phase, LEAD_S, self._lasts_s(phase))

    def _lasts_s(self, phase: str) -> float | None:
        """How long a schedule lasts that ends in time; None: it ends with its last arrival."""
        s = self.asked
        return None if phase == WARMUP or s.fixed_schedule or s.request_count else s.lasts_s

    def _close_phase(self, phase: str) -> None:
        """Its time is over, or there are no sessions any more: nothing new starts in it, and when all is back it ends."""
        if self.plan.phase != phase:
            return
        if self._dealing is not None and self._dealing is not gevent.getcurrent():
            self._dealing.kill(block=False)
        if self.stages is not None and phase != WARMUP:
            self.stages.stop(time.time())
        self.allocator.count_due(sent=self.allocator.exhausted)
        if self.plan.close():
            self._next_phase()
        else:
            self._send(PhaseOver(phase))

    def _sessions_over(self) -> None:
        """The last one has ended."""
        self._close_phase(self.plan.phase)

    def _kill_jobs(self) -> None:
        """All that this phase has begun, but for the greenlet that asks for it."""
        self.limit.stop()
        for job in self._jobs:
            if job is not gevent.getcurrent():
                job.kill(block=False)
        self._jobs.clear()

    def _next_phase(self) -> None:
        self._kill_jobs()
        if self.plan.phase == OVER or self._shutdown.begun:
            self._shutdown.begin()
            return
        if self.stages is None or not self.stages.number:
            logger.info("Warmup is over, profiling begins")
            self._store.profiling_at = time.time()
        self.begin()
        self._send(AskAgain(self.plan.phase))

    def stop(self) -> None:
        """The run is ending: nothing new starts."""
        self._kill_jobs()
        if self._stepping is not None and self._stepping is not gevent.getcurrent():
            self._stepping.kill()
        if self.stages is not None:
            self.stages.end = self.stages.end or "the run was stopped"
            self.stages.stop(self._store.stopping_at or time.time())
        self.allocator.count_due()

    # -- stages --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """From one stage to the next: nothing is sent meanwhile, and the reports of the one that is over are made."""
        stages = self.stages
        assert stages is not None
        try:
            if stages.number:
                self.end_stage(report=True)
            more = stages.next()
        except OSError as error:
            self._store.add_gap(f"{stages}, has no place for its files: {error}")
            self._shutdown.begin()
            return
        if not more:
            logger.info(f"The stages are over: {stages.end}")
            self.plan.end()
            self._shutdown.begin()
            return
        logger.info(str(stages).capitalize())
        self.asked = stages.settings
        self.allocator.due, self._stage_limits = None, len(self._store.limits)
        rules = [rule for rule in self.rules() if rule.at(stages.value, stages.asked.axis)]
        self.abort = EarlyStop(rules, sends=self.sends, overdue=False)  # its first wave is not measured
        self.send_stage(stages.number)
        if stages.asked.axis == CONCURRENCY:
            self._users.become(int(stages.value))
        self.plan.begin(stages.number, self.asked.request_count)
        if stages.number == 1:
            self._store.profiling_at = time.time()
        self.allocator.paused = False
        self._limit_of(False)
        self._begin_sending(self.plan.phase)
        self._send(AskAgain(self.plan.phase))

    def send_stage(self, number: int, worker: str | None = None) -> None:
        """Which one is on; 0: none. To one process, or to all."""
        stages = self.stages
        assert stages is not None
        tokens = stages.value if number and stages.asked.axis == INPUT else None
        self._send(StageBegin(number, tokens), worker)

    def _look(self, phase: str) -> None:
        """The greenlet that ends a stage when it has lasted long enough."""
        assert self.stages is not None
        while True:
            gevent.sleep(LOOK_S)
            arrived, missing = self.allocator.arrived()
            if self.stages.look(time.time(), self._store.pulse.inside + missing, arrived):
                self._close_phase(phase)
                return

    def end_stage(self, *, report: bool) -> None:
        """All of it is back: its records and what is known of it go into its folder."""
        assert self.stages is not None
        if not self.stages.open:
            return
        self.stages.health.clear()
        self.send_stage(0)
        with gevent.Timeout(HEALTH_S, False):
            while len(self.stages.health) < len(self._active()):
                gevent.sleep(0.02)
        self._store.flush()
        self.stages.flush()
        self.stages.close(self._facts_of, report=report)

    def add_health(self, health: Health) -> None:
        """Of a process, in the stage that is over."""
        if self.stages is not None:
            self.stages.health.append(health)

    def _facts_of(self, stage: Stage) -> Run:
        """Of the stage that is over, as of a run of its own."""
        assert self.stages is not None
        limits = known_limits(self._store.limits[self._stage_limits :])
        return self.stages.facts(stage, self._facts(), limits, self.allocator.offer(), self._users.missing)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def rules(self) -> tuple[Rule, ...]:
        """Of the run, those of its stages among them."""
        return self._settings.rules.readable

    def count(self, worker: str, at: float, status: Status) -> None:
        """A process reports what it has sent (in_flight.py): the rules look at its records up to then."""
        for record in self.sends.report(
            worker,
            at,
            admitted=status.admitted,
            over=status.over,
            waiting=status.gate.waiting,
            decoding=status.decoding,
        ):
            if self.stages is None or record.stage == self.stages.number:
                self.abort.add(record)

    def watch_rules(self) -> None:
        """The greenlet that ends the run, or a stage of it, as soon as an ``abort:`` rule is certainly broken."""
        while not self._shutdown.begun:
            gevent.sleep(RULES_S)
            if not (why := self.abort.broken()):
                continue
            self.abort = EarlyStop(())
            if self.stages is None:
                self._store.add_note(f"The run was ended early: {why}.")
                self._shutdown.begin()
            else:
                self._store.add_note(f"{str(self.stages).capitalize()}, was ended early: {why}.")
                self._close_phase(self.plan.phase)
