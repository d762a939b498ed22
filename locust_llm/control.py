"""Control of a run, in the master or the only process: phases, the global limit, the records, the end, the report.

Between it and the senders go Locust's messages, in one process too (there they are plain calls). Each carries the number
of the run.
"""

import logging
import os
import platform
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import repeat
from typing import Any, Final

from locust.env import Environment
from locust.runners import LocalRunner

import gevent
import msgspec
from gevent.event import Event

from .crowd import Crowd
from .dealer import Dealer
from .folder import RECORDS, make_folder, read_status, write_run
from .formats import Item
from .gate import follow
from .jsonl import line
from .outbox import Inbox
from .plan import BETWEEN, OVER, PROFILING, WARMUP, Plan, label_of, profiling
from .quotas import Quotas
from .ramp import ramp
from .record import OK, Record
from .reporter import make_reports
from .run import Health, LimitChange, Offer, Run, Stage
from .sender import Order
from .settings import Settings
from .slo import EXIT_STATUS, INCONCLUSIVE
from .stages import CONCURRENCY, INPUT, PREFILL
from .stepper import Stepper
from .survey import Survey
from .timetable import Due, sessions, timetable

logger = logging.getLogger("locust_llm")

DRAIN_MARGIN_S: Final = 15.0
SPAWNING_S: Final = 3.0
"""How long the schedule of an open loop waits for its first users."""
LEAD_S: Final = 0.5
"""How long after its users are there a schedule begins: they make their first requests ready, and connect."""
LOOK_S: Final = 0.25
"""How often a stage is looked at: whether it has lasted long enough."""
HEALTH_S: Final = 2.0
"""How long the processes have to tell how they were in a stage."""
PACKAGES: Final = ("locust-llm", "locust", "gevent", "geventhttpclient", "sseclient-py", "msgspec", "pandas")


class Control:
    """One run. Its public fields are what the progress line reads."""

    def __init__(self, environment: Environment, settings: Settings, survey: Survey, epoch: int) -> None:
        self.environment = environment
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
        self.counts: Counter[str] = Counter()
        self.output_tokens = 0
        """Of all finished requests."""
        self.ttfts_s: list[float] = []
        """Of first chunks since the progress line last looked."""
        self.stand: dict[str, tuple[int, int, int]] = {}
        """By process, as last told: requests in prefill, waiting at the gate, decoding."""
        self.folder = make_folder(settings, survey.model)
        self._file = (self.folder / RECORDS).open("ab")
        self.stepper = None if stages is None else Stepper(settings, stages, self.folder)
        """None: the run has no stages."""
        self._asked = settings if self.stepper is None else self.stepper.settings
        """The settings of this phase: in a sweep those of its stage."""
        self._inbox = Inbox()
        self._ended: dict[str, Event] = {}
        self._workers: list[str] = []
        self._limits: list[LimitChange] = []
        self._notes = list(survey.notes)
        self._turned_away = 0
        self._health: list[Health] = []
        self._lost = 0
        self._started_at = time.time()
        self._profiling_at = self._started_at
        self._stopping_at: float | None = None
        self._jobs: list[gevent.Greenlet] = []
        """Of this phase: the ramp, the schedule, the clock."""
        self._dealing: gevent.Greenlet | None = None
        gated = settings.prefill_concurrency or settings.warmup_limit or settings.sweeps(PREFILL)
        self._quotas = Quotas(self._tell, self._senders, gated=bool(gated))
        self._crowd = Crowd(settings, environment.runner, self._say)
        self._dealer = Dealer(self._tell, self._clients)
        self._open = False
        """Arrivals come by a schedule in this phase."""
        self._held = False
        """Nothing is sent yet: the phase waits for its users."""
        self._items: Iterator[Item | None] | None = None
        """The sessions of this phase; None: users make them up, without end."""
        self._items_over = False
        self._due: tuple[int, float] | None = None
        """Arrivals of the profiling phase that were due by its end, and over how many seconds; None: a closed loop."""
        self._missed = 0
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
        for worker in self._clients():
            self.welcome(worker)
        self._begin_phase()

    def welcome(self, worker: str) -> None:
        """The order, to one process; it asks for its share by itself."""
        if worker not in self._workers:
            self._workers.append(worker)
        order = Order(epoch=self.epoch, settings=self.settings, survey=self.survey, worker=self._workers.index(worker))
        self._tell("llm_begin", worker, order=msgspec.msgpack.encode(order))
        self._quotas.tell(worker)
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
        self._items_over, self._dealer.sessions_out = False, 0
        self._items = sessions(self._asked, phase)
        dues = timetable(self._asked, phase, (item for item in self._items or () if item is not None))
        self._open = dues is not None
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
                self._profiling_at = time.time() + lead_s
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
            self._jobs.append(gevent.spawn(follow, self, ramp(limit, ramp_s)))

    def _deal_out(self, dues: Iterator[Due], phase: str) -> None:
        """The schedule of an open loop, from its first arrival to its last."""
        self._crowd.wait()
        self._begin_clock(phase, LEAD_S)
        try:
            self._dealer.deal_out(dues, phase, time.time(), LEAD_S, self.plan.deal, self._lasts_s(phase))
        except (ValueError, OSError) as error:  # a row of the dataset, far behind those that were looked at before
            self._say(f"the schedule ends early: {error}")
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
        self._count_due(sent=self._items_over)
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
            self._profiling_at = time.time()
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
        self._due, self._stage_limits = None, len(self._limits)
        self._tell_stage(stepper.number)
        if stepper.asked.axis == CONCURRENCY:
            self._crowd.become(int(stepper.value))
        self.plan.begin(stepper.number, self._asked.request_count)
        if stepper.number == 1:
            self._profiling_at = time.time()
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
            inside = sum(map(sum, self.stand.values())) + (self._crowd.missing if self._open else 0)
            if self.stepper.look(time.time(), inside, self._dealer.due()[0] if self._open else 0):
                self._close_phase(phase)
                return

    def _end_stage(self, *, report: bool) -> None:
        """All of it is back: its records and what is known of it go into its folder."""
        assert self.stepper is not None
        self._stage_health = []
        self._tell_stage(0)
        with gevent.Timeout(HEALTH_S, False):
            while len(self._stage_health) < len(self._clients()):
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
            limits=tuple(change for change in self._limits[self._stage_limits :] if change.limit is not None),
            offer=offer,
        )

    def want(self, worker: str) -> None:
        """A process asks for a share of the requests that are still to be sent."""
        count = 0 if self._open or self._held else self.plan.grant(max(1, len(self._workers)))
        self._tell("llm_grant", worker, phase=self.plan.phase, count=count)

    def put_back(self, data: dict[str, Any]) -> None:
        """A process gives back a share that it cannot use: to those that wait."""
        if self.plan.put_back(data["phase"], data["count"]):
            self._next_phase()
        else:
            self._tell("llm_again", phase=self.plan.phase)

    def want_sessions(self, worker: str) -> None:
        """A process asks for sessions of the dataset, or of a number that was asked for."""
        if self._held:
            return  # it will ask again
        if self._items is None:  # a warmup, which has no number of sessions
            self._dealer.sessions(worker, repeat(None), self.plan.phase)
            return
        try:
            more = self._dealer.sessions(worker, self._items, self.plan.phase)
        except (ValueError, OSError) as error:
            self._say(f"the dataset ends early: {error}")
            more = False
        if not more:
            self._items_over = True
            self._sessions_over()

    def session_news(self, ended: int) -> None:
        """So many sessions came to their end."""
        self._dealer.sessions_out -= ended
        self._sessions_over()

    def _sessions_over(self) -> None:
        if self._items_over and self._dealer.sessions_out <= 0:
            self._close_phase(self.plan.phase)

    # -- the global limit, and how the processes stand -----------------------------------------------------------------

    @property
    def limit(self) -> int | None:
        """Over all processes; None: no gate."""
        return self._quotas.limit

    def set_limit(self, limit: int | None) -> None:
        """The limit over all processes from now on; None: no gate."""
        self._quotas.limit = limit
        self._limits.append(LimitChange(time.time(), limit, label_of(self.plan.phase)))
        self._quotas.share_out()

    def share_out(self) -> None:
        """A process has come or gone."""
        self._quotas.share_out()

    def hears(
        self,
        worker: str,
        used: int,
        number: int,
        waiting: int = 0,
        decoding: int = 0,
        ttfts_s: Sequence[float] = (),
        unreserved: int = 0,
        sessions_ended: int = 0,
    ) -> None:
        """A process tells how it stands, and the number of the last limit that reached it."""
        self.stand[worker] = used, waiting, decoding
        self.ttfts_s += ttfts_s
        if self._open and not self._finishing:
            self._crowd.heard(worker, unreserved)
        if sessions_ended:
            self.session_news(sessions_ended)
        self._quotas.heard(worker, used, number)

    # -- records -------------------------------------------------------------------------------------------------------

    def keep(self, record: Record) -> None:
        """Onto the disk, before anything else is made of it."""
        phase = profiling(record.stage) if record.phase == PROFILING else record.phase
        if self.stepper is not None and record.stage == self.stepper.number and record.stage:
            record = self.stepper.keep(record)
        self._file.write(line(record) + b"\n")
        self.counts[record.outcome] += 1
        self._profiled += record.phase == PROFILING
        self.output_tokens += record.output_tokens or 0
        if self.settings.streaming and not record.streamed and record.outcome == OK:
            self._say(
                "the server answered a streaming request with one JSON body: such answers have no time to first token"
                + (", and their slots of the prefill gate are free only at their end" if self.limit is not None else "")
            )
        if self.plan.returned(phase, 1):
            self._next_phase()

    def batch(self, worker: str, batch: dict[str, Any]) -> None:
        """Records of a worker."""
        for record in self._inbox.take(worker, batch):
            self.keep(record)
        self._tell("llm_ack", worker, number=batch["number"])

    def _say(self, note: str) -> None:
        """Once a run, on the console and in the reports."""
        if note not in self._notes:
            self._notes.append(note)
            logger.warning(note)

    def flush(self) -> None:
        self._file.flush()
        if self.stepper is not None:
            self.stepper.flush()

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """All that was to be sent was: end the run as Locust ends it, from a greenlet that the end does not kill."""
        if self._finishing:
            return
        self._finishing = True
        runner, options = self.environment.runner, self.environment.parsed_options
        assert runner is not None
        gevent.spawn(runner.quit if options is None or options.headless else runner.stop)

    def drain(self) -> None:
        """Nothing new starts; wait until every process has ended what it had and handed over its records."""
        if self._stopping_at is not None:
            return
        self._stopping_at = time.time()
        for job in self._jobs:
            if job is not gevent.getcurrent():
                job.kill(block=False)
        self._finishing = True
        if self._stepping is not None and self._stepping is not gevent.getcurrent():
            self._stepping.kill()
        if self.stepper is not None:
            self.stepper.end = self.stepper.end or "the run was stopped"
            self.stepper.stop(self._stopping_at)
        self._count_due()
        workers = self._clients()
        self._ended = {worker: Event() for worker in workers}
        self._tell("llm_end")
        if isinstance(self.environment.runner, LocalRunner):
            return  # its users are stopped next, by Locust
        until = time.monotonic() + self.settings.stop_timeout_s + DRAIN_MARGIN_S
        for worker in workers:
            while not self._ended[worker].wait(0.2) and worker in self._clients() and time.monotonic() < until:
                continue
            if not self._ended[worker].is_set():
                logger.warning(f"{worker} did not hand over its last records: what it had is missing here")

    def ended(self, worker: str, data: dict[str, Any]) -> None:
        """A process is through: what it turned away, and what it could not deliver."""
        self._turned_away += data["turned_away"]
        self._lost += data["undelivered"]
        self._missed += data["missed"]
        if data.get("health") is not None:
            self._health.append(msgspec.convert(data["health"], Health))
        if worker in self._ended:
            self._ended[worker].set()

    def facts(self) -> Run:
        """The run as it is known now."""
        sent = [limit for limit in self._limits if limit.limit is not None]
        return Run(
            name=self.folder.name,
            settings=self.settings,
            started_at=self._started_at,
            profiling_at=self._profiling_at,
            stopping_at=self._stopping_at,
            ended_at=None if self._stopping_at is None else time.time(),
            simulated=self.survey.simulated,
            model=self.survey.model or "",
            server=self.survey.server,
            workers=tuple(self._workers),
            versions={name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
            machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            probes=self.survey.probes,
            health=tuple(self._health),
            limits=tuple(sent),
            offer=None if self.stepper is not None else self._offered(),
            stages=() if self.stepper is None else tuple(self.stepper.stages),
            sweep_end="" if self.stepper is None else self.stepper.end,
            turned_away=self._turned_away,
            records_lost=self._lost,
            notes=tuple(self._notes),
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
            never_started=self._missed,
            duration_s=self._due[1],
            most_users=self._crowd.count,
            out_of_users=self._crowd.exhausted,
        )

    def report(self) -> str:
        """Make the reports; what the console shall show."""
        if self.stepper is not None:
            self._end_stage(report=False)
        self._file.flush()
        write_run(self.folder, self.facts())
        return make_reports(self.folder)

    def exit_status(self) -> int | None:
        """What the rules say of this run, once it has its report; None without rules."""
        if not (self.settings.slo or self.settings.slo_preset):
            return None
        return EXIT_STATUS.get(read_status(self.folder), EXIT_STATUS[INCONCLUSIVE])

    def close(self) -> None:
        self._file.close()

    # -- to the senders ------------------------------------------------------------------------------------------------

    def _clients(self) -> list[str]:
        """The processes that send: ``local``, or the workers that Locust counts as there."""
        runner = self.environment.runner
        if runner is None or isinstance(runner, LocalRunner):
            return ["local"]
        clients = runner.clients  # type: ignore[attr-defined]
        return [client.id for client in clients.ready + clients.spawning + clients.running]

    def _senders(self) -> list[str]:
        """Those of them that have their orders, in the order in which they came."""
        there = set(self._clients())
        return [worker for worker in self._workers if worker in there]

    def _tell(self, kind: str, worker: str | None = None, **data: Any) -> None:
        assert self.environment.runner is not None
        self.environment.runner.send_message(kind, {"epoch": self.epoch, **data}, worker)
