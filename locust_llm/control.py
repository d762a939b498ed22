"""Control of a run, in the master or the only process: phases, the global limit, the records, the end, the report.

Between it and the senders go Locust's messages, in one process too (there they are plain calls). Each carries the number
of the run.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from locust.env import Environment

import gevent
import msgspec
from gevent.event import Event

from .abort import Abort
from .book import Book, known_limits
from .clocks import boot_id, offset_s
from .crowd import Crowd
from .dealer import Dealer, Packed, SessionDealer
from .folder import write_run
from .gate import follow
from .plan import BETWEEN, OVER, PROFILING, WARMUP, Plan, label_of, profiling
from .quotas import Quota, Quotas, Stand
from .ramp import ramp
from .record import Record
from .roster import Loss, Roster
from .run import Health, LimitChange, Offer, Run, Stage
from .sender import Order
from .settings import Settings, mistakes
from .slo import ABORT, Rule, ready, texts
from .stages import CONCURRENCY, INPUT, PREFILL
from .stepper import Stepper
from .survey import Survey
from .timetable import Due, sessions, timetable

logger = logging.getLogger("locust_llm")

DRAIN_MARGIN_S: Final = 15.0
HURRY_S: Final = 5.0
"""How long processes have to hand over their records when the end is not waited for."""
SPAWNING_S: Final = 3.0
"""How long the schedule of an open loop waits for its first users."""
LEAD_S: Final = 0.5
"""How long after its users are there a schedule begins: they make their first requests ready, and connect."""
RULES_S: Final = 1.0
"""How often the rules are looked at that may end the run."""
LOOK_S: Final = 0.25
"""How often a stage is looked at: whether it has lasted long enough."""
WORKERS_S: Final = 0.25
"""How often it is looked at whether processes are lost."""
HEALTH_S: Final = 2.0
"""How long the processes have to tell how they were in a stage."""


class Control:
    """One run. Its public fields are what the progress line reads."""

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        survey: Survey,
        epoch: int,
        greeted: Callable[[str], bool] = lambda worker: True,
    ) -> None:
        """``greeted``: whether a worker said who it is, and may take part."""
        self.environment = environment
        self._greeted = greeted
        if (
            settings.random_seed is None
        ):  # what processes share follows from it, and the next run must not find it cached
            settings = msgspec.structs.replace(settings, random_seed=random.SystemRandom().randrange(2**31))
        self.settings = settings
        self.survey = survey
        self.epoch = epoch
        stages = settings.staged
        self.plan = Plan(
            settings.warmup_request_count, settings.request_count, warms_up=settings.warms_up, staged=stages is not None
        )
        self.book = Book(settings, survey)
        self.folder, self.pulse, self.totals = self.book.folder, self.book.pulse, self.book.totals
        self.abort = Abort(self._rules(), 0 if settings.open_loop or stages else settings.users or 0)
        """The rules of the run; in a sweep those of its stage, of which only what is measured counts."""
        self.stepper = None if stages is None else Stepper(settings, stages, self.folder)
        """None: the run has no stages."""
        self._asked = settings if self.stepper is None else self.stepper.settings
        """The settings of this phase: in a sweep those of its stage."""
        self._roster = Roster(environment.runner, self.folder)
        self._ended: dict[str, Event] = {}
        self._ramp: gevent.Greenlet | None = None
        self.watch: Callable[[Record], None] = lambda record: None
        """Hears of every record too: of the web page."""
        self._flushing: gevent.Greenlet | None = None
        self._watching: gevent.Greenlet | None = None
        self._drained = Event()
        self._drained_by = math.inf
        """When the drain ends at the latest (monotonic seconds)."""
        self._jobs: list[gevent.Greenlet] = []
        """Of this phase: the ramp, the schedule, the clock."""
        self._dealing: gevent.Greenlet | None = None
        gated = settings.prefill_concurrency or settings.warmup_limit or settings.sweeps(PREFILL)
        self._quotas = Quotas(self._tell_quota, gated=bool(gated))
        self._crowd = Crowd(settings, environment.runner, self.book.say)
        self._dealer = Dealer(self._tell, self._users, self._deal)
        self._sessions = SessionDealer(
            self._tell, lambda: len(self._roster.there()), self._sessions_over, self.book.say
        )
        self._open = False
        """Arrivals come by a schedule in this phase."""
        self._held = False
        """Nothing is sent yet: the phase waits for its users."""
        self._due: tuple[int, float] | None = None
        """Arrivals of the profiling phase that were due by its end, and over how many seconds; None: a closed loop."""
        self._profiled = 0
        """Records of the profiling phase."""
        self._finishing = False
        self._stage_health: list[Health] = []
        self._stage_limits = 0
        """How many changes of the limit there had been before this stage."""
        self._stepping: gevent.Greenlet | None = None
        """Between two stages."""

    # -- start and phases ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Give the order to every process, and start the first phase."""
        write_run(self.folder, self.facts())  # in case nothing comes after it
        for worker in filter(self._greeted, self._roster.clients()):
            self.welcome(worker)
        self._begin_phase()
        if not self._roster.alone:
            self._watching = gevent.spawn(self._watch_workers)
        if any(rule.kind == ABORT for rule in self._rules()):
            gevent.spawn(self._watch_rules)
        self._flushing = gevent.spawn(self._flush_each_second)

    def welcome(self, worker: str) -> None:
        """The order, to one process; it asks for its share by itself."""
        order = Order(
            epoch=self.epoch, settings=self.settings, survey=self.survey, worker=self._roster.welcome(worker).place,
            folder=str(self.folder.resolve()), boot=boot_id(), clock_offset_s=offset_s(),
        )  # fmt: skip
        self._tell("llm_begin", worker, order=msgspec.msgpack.encode(order))
        self._quotas.join(worker, time.monotonic())
        if self.stepper is not None and self.plan.phase not in (WARMUP, BETWEEN):
            self._tell_stage(self.stepper.number, worker)

    def _begin_phase(self) -> None:
        if self.plan.phase == BETWEEN:
            self._held = True
            self._stepping = gevent.spawn(self._step)
            return
        s, phase = self._asked, self.plan.phase
        self._limit_of(phase == WARMUP)
        if s.warmup_concurrency:
            self._held = True
            users = s.warmup_concurrency if phase == WARMUP else s.users or 1
            self._jobs.append(gevent.spawn(self._begin_with, users, phase))
        else:
            self._begin_sending(phase)

    def _begin_with(self, users: int, phase: str) -> None:
        """When there are just as many users."""
        self._crowd.become(users)
        self._held = False
        self._begin_sending(phase)
        self._tell("llm_again", phase=self.plan.phase)

    def _begin_sending(self, phase: str) -> None:
        items = sessions(self._asked, phase)
        dues = timetable(self._asked, phase, (item for item in items or () if item is not None))
        self._open = dues is not None
        self._sessions.begin(phase, items)
        if dues is not None:
            logger.info("Open loop: requests come by a schedule, whatever the server does")
            self._dealing = gevent.spawn(self._deal_out, dues, phase)
            self._jobs.append(self._dealing)
        else:
            self._begin_clock(phase)

    def _begin_clock(self, phase: str, lead_s: float = 0.0) -> None:
        """Bound the phase, which begins in ``lead_s``, in time."""
        s, stepper = self.settings, self.stepper
        if stepper is not None and label_of(phase) == PROFILING:
            stepper.begin(time.time() + lead_s)
            self._jobs.append(gevent.spawn(self._look, phase))
            if s.run_time_s and stepper.repeats:
                self._jobs.append(gevent.spawn_later(lead_s + s.run_time_s, self._close_phase, phase))
            elif s.run_time_s and stepper.number == 1:
                gevent.spawn_later(s.run_time_s, self._time_is_up)
        elif phase == PROFILING:
            if lead_s:
                self.book.profiling_at = time.time() + lead_s
            if s.run_time_s:
                logger.info(f"Profiling for {s.run_time_s:g} s")
                self._jobs.append(gevent.spawn_later(lead_s + s.run_time_s, self._time_is_up))
        elif s.warmup_duration:
            self._jobs.append(gevent.spawn_later(lead_s + s.warmup_duration, self._close_phase, phase))

    def _time_is_up(self) -> None:
        if self._finishing:
            return
        logger.info(f"Time is up after {self.settings.run_time_s:g} s")
        self.finish()

    def _limit_of(self, warm: bool) -> None:
        s = self._asked
        limit = s.warmup_limit if warm else s.prefill_concurrency
        ramp_s = s.warmup_ramp_s if warm else s.prefill_concurrency_ramp_duration
        name = "Warmup prefill" if warm else "Prefill"
        if limit is None:
            self.set_limit(None)
        elif ramp_s is None or limit == 1:
            users = s.users or ("as many as needed" if self._crowd.grows else "from the form")
            logger.info(f"{name} concurrency limited to {limit} (session concurrency: {users})")
            self.set_limit(limit)
        else:
            logger.info(f"{name} concurrency ramping from 1 to {limit} over {ramp_s:g} seconds")
            self._follow(ramp(limit, ramp_s))

    def _deal_out(self, dues: Iterator[Due], phase: str) -> None:
        """The schedule of an open loop, from its first arrival to its last."""
        self._crowd.wait()
        self._begin_clock(phase, LEAD_S)
        try:
            self._dealer.deal_out(dues, phase, time.monotonic() + offset_s(), LEAD_S, self._lasts_s(phase))
        except (ValueError, OSError) as error:  # a row of the dataset, far behind those that were looked at before
            self.book.say(f"the schedule ends early: {error}")
        if self.plan.phase == phase and self.plan.close():
            self._next_phase()

    def _lasts_s(self, phase: str) -> float | None:
        """How long a schedule lasts that ends in time; None: it ends with its last arrival."""
        s = self._asked
        return None if phase == WARMUP or s.fixed_schedule or s.request_count else s.run_time_s

    def _close_phase(self, phase: str) -> None:
        """Its time is over, or there are no sessions any more: nothing new starts in it, and when all is back it ends."""
        if self.plan.phase != phase:
            return
        if self._dealing is not None and self._dealing is not gevent.getcurrent():
            self._dealing.kill(block=False)
        if self.stepper is not None and phase != WARMUP:
            self.stepper.stop(time.time())
        self._count_due(sent=self._sessions.over)
        if self.plan.close():
            self._next_phase()
        else:
            self._tell("llm_over", phase=phase)

    def _next_phase(self) -> None:
        for job in self._jobs:
            if job is not gevent.getcurrent():
                job.kill(block=False)
        self._jobs.clear()
        if self.plan.phase == OVER or self._finishing:
            self.finish()
            return
        if self.stepper is None or not self.stepper.number:
            logger.info("Warmup is over, profiling begins")
            self.book.profiling_at = time.time()
        self._begin_phase()
        self._tell("llm_again", phase=self.plan.phase)

    # -- stages --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """From one stage to the next: nothing is sent meanwhile, and the reports of the one that is over are made."""
        stepper = self.stepper
        assert stepper is not None
        if stepper.number:
            self._end_stage(report=True)
        if not stepper.next():
            logger.info(f"The stages are over: {stepper.end}")
            self.plan.end()
            self.finish()
            return
        logger.info(str(stepper).capitalize())
        self._asked = stepper.settings
        self._due, self._stage_limits = None, len(self.book.limits)
        self.abort = Abort(rule for rule in self._rules() if rule.at(stepper.value, stepper.asked.axis))
        self._tell_stage(stepper.number)
        if stepper.asked.axis == CONCURRENCY:
            self._crowd.become(int(stepper.value))
        self.plan.begin(stepper.number, self._asked.request_count)
        if stepper.number == 1:
            self.book.profiling_at = time.time()
        self._held = False
        self._limit_of(False)
        self._begin_sending(self.plan.phase)
        self._tell("llm_again", phase=self.plan.phase)

    def _tell_stage(self, number: int, worker: str | None = None) -> None:
        stepper = self.stepper
        assert stepper is not None
        tokens = stepper.value if number and stepper.asked.axis == INPUT else None
        self._tell("llm_stage", worker, number=number, input_tokens=tokens)

    def _look(self, phase: str) -> None:
        """The greenlet that ends a stage when it has lasted long enough."""
        assert self.stepper is not None
        while True:
            gevent.sleep(LOOK_S)
            inside = self.pulse.inside + (self._crowd.missing if self._open else 0)
            if self.stepper.look(time.time(), inside, self._dealer.due()[0] if self._open else 0):
                self._close_phase(phase)
                return

    def _rules(self) -> list[Rule]:
        s = self.settings
        return [ready(text, s.goodput) for text in texts(s.slo, s.slo_preset)]

    def _watch_rules(self) -> None:
        """The greenlet that ends the run, or a stage of it, as soon as an ``abort:`` rule is certainly broken."""
        while not self._finishing:
            gevent.sleep(RULES_S)
            if not (why := self.abort.broken()):
                continue
            self.abort = Abort(())
            if self.stepper is None:
                self.book.say(f"The run was ended early: {why}.")
                self.finish()
            else:
                self.book.say(f"{str(self.stepper).capitalize()}, was ended early: {why}.")
                self._close_phase(self.plan.phase)

    def _end_stage(self, *, report: bool) -> None:
        """All of it is back: its records and what is known of it go into its folder."""
        assert self.stepper is not None
        self._stage_health = []
        self._tell_stage(0)
        with gevent.Timeout(HEALTH_S, False):
            while len(self._stage_health) < len(self._roster.there()):
                gevent.sleep(0.02)
        self.flush()
        self.stepper.close(self._facts_of, report=report)

    def healthy(self, health: dict[str, Any]) -> None:
        """How a process was in the stage that is over."""
        self._stage_health.append(msgspec.convert(health, Health))

    def _facts_of(self, stage: Stage) -> Run:
        """Of the stage that is over, as of a run of its own."""
        assert self.stepper is not None
        measured_at, offer = stage.measured_at or stage.ended_at, self._offered()
        if offer is not None and not self.stepper.repeats:
            due = self.stepper.due[1] - self.stepper.due[0]
            offer = msgspec.structs.replace(
                offer,
                due=due,
                never_started=min(self._crowd.missing, due),
                duration_s=stage.ended_at - measured_at,
            )
        return msgspec.structs.replace(
            self.facts(),
            name=f"{self.folder.name}, {self.stepper}",
            settings=self._asked,
            started_at=stage.began_at,
            profiling_at=measured_at,
            stopping_at=stage.ended_at,
            ended_at=time.time(),
            stage=stage,
            stages=(),
            health=tuple(self._stage_health),
            limits=known_limits(self.book.limits[self._stage_limits :]),
            offer=offer,
        )

    def want(self, worker: str) -> None:
        """A process asks for a share of the requests that are still to be sent."""
        count, phase = 0, self.plan.phase
        if not (self._open or self._held):
            count = self.plan.grant(max(1, len(self._roster.there())))
            self._roster.give(worker, phase, count)
            for other in () if count else self._roster.there():
                if other != worker:
                    self._tell("llm_spare", other, phase=phase)
        self._tell("llm_grant", worker, phase=phase, count=count)

    def put_back(self, worker: str, phase: str, count: int) -> None:
        """A process gives back a share that it cannot use: to those that wait."""
        self._roster.back(worker, phase, count)
        if self.plan.put_back(phase, count):
            self._next_phase()
        else:
            self._tell("llm_again", phase=self.plan.phase)

    def arrive_again(self, worker: str, phase: str, due: Sequence[Any]) -> None:
        """A process gives back arrivals that it has no users for."""
        count = self._dealer.again(phase, due)
        self._roster.back(worker, phase, count)
        self.plan.returned(phase, count)  # they went out again just before

    def _deal(self, worker: str, count: int) -> None:
        self._roster.give(worker, self.plan.phase, count)
        self.plan.deal(count)

    def _users(self) -> dict[str, int]:
        """How many each process has; alike while their number follows the arrivals."""
        return dict.fromkeys(self._roster.talking(), 1) if self._crowd.grows else self._roster.users()

    def want_sessions(self, worker: str) -> None:
        """A process asks for sessions of the dataset, or of a number that was asked for."""
        if not self._held:  # else it will ask again
            self._sessions.ask(worker)

    def spared(self, worker: str, phase: str, items: Sequence[Packed], begun: int, ended: int) -> None:
        """Sessions that a process was asked for, as others wait for them."""
        self._sessions.told(worker, phase, begun, ended)
        self._sessions.back(worker, items)

    def _sessions_over(self) -> None:
        """The last one has ended."""
        self._close_phase(self.plan.phase)

    # -- the global limit, and how the processes stand -----------------------------------------------------------------

    @property
    def limit(self) -> int | None:
        """Over all processes; None: no gate."""
        return self._quotas.limit

    def set_limit(self, limit: int | None) -> None:
        """The limit over all processes from now on; None: no gate."""
        self.book.limits.append(LimitChange(time.time(), limit, label_of(self.plan.phase)))
        self._quotas.set_limit(limit)

    def turn(self, limit: int | None, ramp_s: float | None = None) -> str:
        """By hand, while requests are sent: the limit, at once or from where it is in so many seconds. What was done;
        raises ValueError of one sentence."""
        if self._finishing or self.draining or self._held or self.plan.phase in (BETWEEN, OVER):
            raise ValueError("nothing is sent at this moment, so there is no gate to turn")
        if self.settings.sweeps(PREFILL):
            raise ValueError("this sweep turns the gate itself, from stage to stage")
        before, runner = self.limit, self.environment.runner
        assert runner is not None
        users = None if self._crowd.grows else max(runner.target_user_count, self._asked.users or 0)
        changed = {"prefill_concurrency": limit, "prefill_concurrency_ramp_duration": ramp_s}
        asked = msgspec.structs.replace(
            self._asked, users=users, processes=max(1, len(self._roster.there())), **changed
        )
        for mistake in mistakes(asked):
            raise ValueError(mistake)
        if self._ramp is not None:
            self._ramp.kill(block=False)
        from_, to = ("no gate" if value is None else str(value) for value in (before, limit))
        over = "" if ramp_s is None else f" over {ramp_s:g} s"
        done = f"prefill limit turned by hand from {from_} to {to}{over}"
        self.book.say(
            f"{done}, {time.time() - self.book.started_at:.1f} s after the start, in {label_of(self.plan.phase)}"
        )
        if limit is None or ramp_s is None:
            self.set_limit(limit)
        else:
            start = max(limit, self.pulse.used) if before is None else before
            self._follow(ramp(limit, ramp_s, start))
        return done

    def change_users(self, users: int) -> bool:
        """By hand, while requests are sent; False: how many there are follows from the load. Raises ValueError."""
        if self._crowd.grows or self.stepper is not None or self._held:
            return False
        limit = self.limit
        for mistake in mistakes(msgspec.structs.replace(self._asked, users=users, prefill_concurrency=limit)):
            raise ValueError(mistake)
        self.book.say(f"users changed by hand from {self._crowd.count} to {users}, {self.book.since_start()}")
        self._crowd.count = users
        return True

    def _follow(self, steps: Iterator[tuple[float, int]]) -> None:
        self._ramp = gevent.spawn(follow, self, steps)
        self._jobs.append(self._ramp)

    def hears(
        self,
        worker: str,
        used: int,
        number: int,
        waiting: int = 0,
        decoding: int = 0,
        ttfts_s: Sequence[float] = (),
        reads: int = 0,
        health: dict[str, Any] | None = None,
        unreserved: int = 0,
        sessions: Sequence[Any] = ("", 0, 0),
        spent: bool = False,
        waited_s: float = 0.0,
        users: int = 0,
        admitted: int = 0,
        clock_error_s: float | None = None,
    ) -> None:
        """A process tells how it stands, and the number of the last quota that reached it. ``sessions``: supply.Sessions."""
        known = self._roster.heard(worker)
        if known is None:
            return
        known.phase, begun, ended = sessions
        if health is not None:
            known.health = msgspec.convert(health, Health)
        known.users, known.admitted, known.reads = users, admitted, reads
        known.clock_error_s = clock_error_s
        self.pulse.hear(
            worker, used=used, waiting=waiting, decoding=decoding, ttfts_s=ttfts_s, reads=reads,
            health=None if health is None else known.health,
        )  # fmt: skip
        self._quotas.prefill_s = max(self._quotas.prefill_s, *ttfts_s, 0.0)
        if self._open and not self._finishing:
            self._crowd.heard(worker, unreserved)
        self._sessions.told(worker, known.phase, begun, ended)
        self.stands(worker, used=used, waiting=waiting, number=number, spent=spent, waited_s=waited_s)

    def stands(self, worker: str, **stand: Any) -> None:
        """A process tells how its gate stands."""
        if self._roster.heard(worker) is not None:
            self._quotas.heard(worker, Stand(**stand), time.monotonic())

    def answer(self, worker: str, at: float) -> None:
        """To its word of that moment of its own clock: for so long it may use what it has."""
        if worker in self._roster.there():
            self._tell_quota(worker, self._quotas.quota(worker), at=at, unix_s=time.monotonic() + offset_s())

    def _tell_quota(self, worker: str, quota: Quota, **more: Any) -> None:
        self._tell("llm_limit", worker, **quota._asdict(), **more)

    # -- lost processes ------------------------------------------------------------------------------------------------

    def _watch_workers(self) -> None:
        """The greenlet that takes back what silent and dead processes have."""
        while True:
            gevent.sleep(WORKERS_S)
            for worker in self._quotas.look(time.monotonic()):
                self.book.say(
                    f"WARNING: worker {worker} was silent {self.book.since_start()}: its slots went to the others"
                )
            for worker in self._roster.lost():
                self._lose(worker)

    def _lose(self, worker: str, how: str = "was lost") -> None:
        """What it had made is recovered, what it had to send goes to the others, and what cannot is counted as lost."""
        recovered = self._roster.recover(worker)
        for record in recovered:
            self.keep(record)
        loss = self._roster.drop(worker)
        sessions, never = self._forget(worker, loss), 0
        self.book.lost += loss.sent
        for phase, count in loss.done.items():
            unsent = loss.unsent[phase]
            over = self.plan.returned(phase, count - unsent)
            if self._open and phase == self.plan.phase:  # arrivals: the others have theirs
                never += unsent
                over = self.plan.returned(phase, unsent) or over
            else:
                over = self.plan.put_back(phase, unsent) or over
            if over:
                self._next_phase()
        self.book.missed += never
        self.book.say(
            f"WARNING: worker {worker} {how} {self.book.since_start()}: "
            f"{loss.sent} requests that it had sent have no record, {len(recovered)} records were recovered from its disk"
            + (f", {never} arrivals were never sent" if never else "")
            + (f", {sessions} sessions ended with it" if sessions else "")
        )
        if not self.draining:
            self._tell("llm_again", phase=self.plan.phase)

    def _forget(self, worker: str, loss: Loss) -> int:
        """It is in no count of what is under way any more. How many sessions ended with it."""
        self._quotas.leave(worker)
        self._crowd.heard(worker, 0)
        self.pulse.hear(worker, used=0, waiting=0, decoding=0, reads=loss.reads)
        if loss.health is not None:
            self.book.health.append(loss.health)
        return self._sessions.lost(worker, loss.phase, loss.sessions)

    # -- records -------------------------------------------------------------------------------------------------------

    def keep(self, record: Record) -> None:
        """Onto the disk, before anything else is made of it."""
        phase = profiling(record.stage) if record.phase == PROFILING else record.phase
        if self.stepper is not None and record.stage == self.stepper.number and record.stage:
            record = self.stepper.keep(record)
        if not self.book.write(record, gated=self.limit is not None):
            return  # the request is not over
        self.abort.add(record)
        self.watch(record)
        self._profiled += record.phase == PROFILING
        if not self._roster.back(record.worker, phase, 1):
            self.book.lost -= 1  # of a process that was given up
        elif self.plan.returned(phase, 1):
            self._next_phase()

    def batch(self, worker: str, batch: dict[str, Any]) -> None:
        """Records of a worker."""
        self._roster.heard(worker)
        for record in self._roster.take(worker, batch):
            self.keep(record)
        self.flush()  # what is acknowledged outlives this process
        self._tell("llm_ack", worker, number=batch["number"])

    def _flush_each_second(self) -> None:
        while True:
            gevent.sleep(1.0)
            self.flush()

    def flush(self) -> None:
        """Each second, and at the end."""
        self.book.flush()
        if self.stepper is not None:
            self.stepper.flush()

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All that was to be sent was: end the run as Locust ends it, from a greenlet that the end does not kill."""
        if self._finishing:
            return
        self._finishing = True
        gevent.spawn(self._end_run)

    def _end_run(self) -> None:
        """As Locust does when a time that it knows of is up."""
        runner, options = self.environment.runner, self.environment.parsed_options
        assert runner is not None
        if options is None or options.headless:
            runner.quit()
            return
        runner.stop()
        if getattr(options, "autostart", False) and options.autoquit != -1:
            gevent.sleep(options.autoquit)
            runner.quit()
            if self.environment.web_ui is not None:
                self.environment.web_ui.stop()

    @property
    def draining(self) -> bool:
        """The end of the run has begun: what is still on may come back."""
        return self.book.stopping_at is not None

    def drain(self) -> None:
        """Nothing new starts; wait until every process has ended what it had and handed over its records."""
        if self.book.stopping_at is not None:
            self._drained.wait()
            return
        self.book.stopping_at = time.time()
        for job in self._jobs:
            if job is not gevent.getcurrent():
                job.kill(block=False)
        self._finishing = True
        if self._stepping is not None and self._stepping is not gevent.getcurrent():
            self._stepping.kill()
        if self.stepper is not None:
            self.stepper.end = self.stepper.end or "the run was stopped"
            self.stepper.stop(self.book.stopping_at)
        self._count_due()
        workers = self._roster.there()
        self._ended = {worker: Event() for worker in workers}
        if clocks := self._roster.clocks():
            self.book.say(clocks)
        self._tell("llm_end")
        if self._roster.alone:
            self._drained.set()
            return  # its users are stopped next, by Locust
        self._drained_by = min(self._drained_by, time.monotonic() + self.settings.stop_timeout_s + DRAIN_MARGIN_S)
        for worker in workers:
            while (
                not self._ended[worker].wait(0.2)
                and worker in self._roster.there()
                and time.monotonic() < self._drained_by
            ):
                continue
        self._drained.set()
        for worker in workers:
            if not self._ended[worker].is_set() and worker in self._roster.there():
                self._lose(worker, "did not hand over its last records, and was given up")

    def hurry(self) -> None:
        """The drain does not wait for what is still open: that is cut."""
        self._drained_by = min(self._drained_by, time.monotonic() + HURRY_S)
        if not self._roster.alone:
            self._tell("llm_hurry")

    def ended(self, worker: str, data: dict[str, Any]) -> None:
        """A process is through: what it turned away, and what it could not deliver."""
        self.book.turned_away += data["turned_away"]
        if data["undelivered"]:
            recovered = self._roster.recover(worker)
            for record in recovered:
                self.keep(record)
            self.book.lost += max(0, data["undelivered"] - len(recovered))
        self.book.missed += data["missed"]
        if data.get("health") is not None:
            self.book.health.append(msgspec.convert(data["health"], Health))
        if (known := self._roster.heard(worker)) is not None:
            known.through = True
            if not self.draining:
                self._lose(worker, "left")
        if worker in self._ended:
            self._ended[worker].set()

    def facts(self) -> Run:
        """The run as it is known now."""
        stepper = self.stepper
        return self.book.facts(
            workers=tuple(self._roster.names),
            offer=None if stepper is not None else self._offered(),
            stages=() if stepper is None else tuple(stepper.stages),
            sweep_end="" if stepper is None else stepper.end,
        )

    def _count_due(self, *, sent: bool = False) -> None:
        """``sent``: there was nothing to send in the arrivals that are left."""
        if self._open and self.plan.phase != WARMUP and self._due is None:  # the run may be over by now
            count, span_s = self._dealer.due()
            self._due = (self._profiled if sent else count), span_s

    def _offered(self) -> Offer | None:
        if self._due is None:
            return None
        return Offer(
            due=self._due[0],
            never_started=self.book.missed,
            duration_s=self._due[1],
            most_users=self._crowd.count,
            out_of_users=self._crowd.exhausted,
        )

    def report(self) -> str:
        """Make the reports; what the console shall show."""
        if self.stepper is not None:
            self._end_stage(report=False)
        return self.book.report(self.facts())

    def exit_status(self) -> int | None:
        """What the rules say of this run, once it has its report; None without rules."""
        return self.book.exit_status()

    def close(self) -> None:
        if self._flushing is not None:
            self._flushing.kill(block=False)
        if self._watching is not None:
            self._watching.kill(block=False)
        self.book.close()

    # -- to the senders ------------------------------------------------------------------------------------------------

    def _tell(self, kind: str, worker: str | None = None, **data: Any) -> None:
        assert self.environment.runner is not None
        self.environment.runner.send_message(kind, {"epoch": self.epoch, **data}, worker)
