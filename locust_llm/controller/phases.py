"""The phases of a run and the stages of a sweep, one after the other; when each begins, and what
ends it.

One greenlet goes through them (``_run``). A phase ends when all its requests are back
(``Allocator.phase_over``). A warmup whose load goes on ends when its time is over. The other
greenlets of a phase only close it: then nothing new starts in it.
"""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import gevent
import msgspec

from locust_llm.controller.schedule import DueArrival
from locust_llm.records.limit_blocks import LimitBlock, find_block
from locust_llm.records.phase_plan import (
    BETWEEN,
    OVER,
    PROFILING,
    WARMUP,
    label_phase,
    stage_of_phase,
)
from locust_llm.records.record import Record
from locust_llm.records.report_result import RuleAtLook
from locust_llm.records.run_facts import (
    BY_RATE,
    DECIDED,
    DecidedRule,
    ProcessHealth,
    Run,
    Stage,
    select_known_limits,
)
from locust_llm.settings.request_rate_option import parse_request_rate
from locust_llm.settings.sweep_option import CONCURRENCY, ENDED, INPUT, RUN_STOPPED, TIME_UP
from locust_llm.slo.rules import ABORT, INCONCLUSIVE, Rule
from locust_llm.text.format import capitalise_sentence, format_count
from locust_llm.wire.worker_messages import AskAgain, StageBegin, StartSpread, Status
from locust_llm.workload.arrivals import draw_arrivals

from .arrival_dispatcher import AHEAD_S
from .block_runner import BlockRunner
from .early_stop import UNKNOWN_LEFT, EarlyStop, LoadLeft
from .gate_limit import GateLimit
from .prefill_limit_sweep import make_limit_sweep
from .requests_in_flight import RequestsInFlight
from .run_context import RunContext
from .shutdown import Shutdown
from .stage_runner import StageRunner
from .user_count import UserPool
from .user_start import (
    FirstRequestTimes,
    ResponseTimes,
    find_longest_start_s,
    plan_user_start,
)
from .work_allocator import Allocator

logger = logging.getLogger("locust_llm")

LEAD_S: Final = 0.5
"""The time from the users' start to the start of a schedule, for preparing their first requests and
connecting."""
RULES_S: Final = 1.0
"""The interval of checks of the rules that may end the run."""
LOOK_S: Final = 0.25
"""The interval of checks whether a stage has lasted long enough."""
NEARLY_S: Final = 0.5
"""A run that is stopped so soon before its end counts as complete."""
HEALTH_S: Final = 2.0
"""The longest wait for the processes' health in an ended stage."""


class PhaseRunner:
    def __init__(self, context: RunContext, users: UserPool, shutdown: Shutdown) -> None:
        self._context, self._users, self._shutdown = context, users, shutdown
        self._settings, self._store, self._time = context.settings, context.store, context.time
        settings, stages = context.settings, context.settings.staged
        self.sends = RequestsInFlight(context.time.now)
        starts_anew = not (settings.open_loop or stages or settings.warmup_goes_on)
        first_wave = (settings.users or 0) if starts_anew else 0
        self.abort = EarlyStop(
            self.rules(), first_wave, self.sends, overdue=stages is None,
            find_left=self.find_left, find_silent_s=context.store.run_progress.silent_s,
        )  # fmt: skip
        """The rules of the run. In a sweep they are the stage's, and only its measured part
        counts."""
        kind = BlockRunner if settings.compares else StageRunner
        self.stages = (
            None if stages is None else kind(settings, stages, context.folder, context.time.now)
        )
        """None: the run has no stages."""
        idle = context.survey.response_time
        self.limit_sweep = make_limit_sweep(settings, None if idle is None else idle.seconds)
        """None: the run compares no prefill limits."""
        self.asked = settings if self.stages is None else self.stages.settings
        """The settings of this phase. In a sweep they are the stage's."""
        self.allocator = Allocator(context, users)
        self.plan = self.allocator.plan
        self.limit = GateLimit(context, self.plan)
        self.before_load: Callable[[], object] | None = None
        """What the run does with the idle server, before it sends anything. None: nothing."""
        self.beside_load: Callable[[], object] = lambda: None
        """Called when the load begins."""
        self.beside_profiling: Callable[[float], object] = lambda lead_s: None
        """Called with the seconds until the profiling phase begins."""
        self._running: gevent.Greenlet | None = None
        self._jobs: list[gevent.Greenlet] = []
        """The greenlets of this phase: the schedule, the clock."""
        self._phase_begun = "", 0.0
        """The phase whose clock runs, and when it began or begins (monotonic seconds)."""
        self._start: StartSpread | None = None
        """The start of this load's users. None: they start as they come."""
        self._warm_until = 0.0
        """When the warmup is over whose load goes on (monotonic seconds)."""
        self._responses = ResponseTimes()
        self._first_requests = FirstRequestTimes(0)
        self._stage_limits = 0
        """The number of limit changes before this stage."""

    # -- phases ------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._running = self._context.spawn(self._run)
        if any(rule.kind == ABORT for rule in self.rules()):
            self._context.spawn(self._watch_rules)

    def _run(self) -> None:
        """Run the phases in a greenlet, from the first to the last, unless the run ends before."""
        if self.before_load is not None:
            self.before_load()
            self._store.note_load_start()
        self.beside_load()
        while self.plan.phase != OVER and not self._shutdown.begun:
            if self.plan.phase == BETWEEN and not self._next_stage():
                break
            phase = self.plan.phase
            self._begin(phase)
            self.allocator.phase_over.wait()
            self._end(phase)
        self._shutdown.begin()

    def _begin(self, phase: str) -> None:
        """Begin the users of this phase, its limit, then its requests."""
        self._phase_begun = phase, self._time.monotonic()
        goes_on = phase == PROFILING and self._settings.warmup_goes_on
        if goes_on:
            self.limit.go_on(phase)
        else:
            self._begin_load(phase)
        dues = self.allocator.begin(phase, self.asked, goes_on=goes_on)
        sweeps = self.limit_sweep is not None and phase == PROFILING
        if dues is None:
            if not goes_on:
                self._spread_start(phase)
            self._begin_clock(phase)
            if sweeps:
                self._job(self._turn_limits, phase)
        else:
            logger.info("Open loop: requests follow a schedule")
            if sweeps:
                dues = self._due_in_blocks()
                self._job(self._turn_limits, phase)
            self._job(self._deal_out, dues, phase)
        self._context.send(AskAgain(phase))

    def _begin_load(self, phase: str) -> None:
        """Begin the users of this phase, and its limit."""
        if (users := self._users_of(phase)) is not None:
            self._users.become(users)
        known = self.asked.users or ("as many as needed" if self._users.grows else "from the form")
        self.limit.begin(self.asked, warm=phase == WARMUP, users=str(known))
        self._start = None

    def _spread_start(self, phase: str) -> None:
        """Set how fast the users of a closed loop begin to send. In its first phase Locust follows
        the options."""
        users = self._users_of(phase) or self.asked.users or 0
        earlier_s = self._responses.end_phase()
        if users < 2 or self._users.shaped:
            return
        start = plan_user_start(
            self._settings, phase, users, self._context.survey.response_time, earlier_s
        )
        self._store.starts.append(start)
        self._first_requests = FirstRequestTimes(start.users)
        if not self._settings.compares or len(self._store.starts) == 1:
            logger.info(start.describe_plan())  # all blocks of a comparison start much alike
        if start.by != BY_RATE:
            longest_s = find_longest_start_s(self._settings, start)
            self._start = StartSpread(phase, start.over_s / users, longest_s / users)
            self.send_start()

    def send_start(self, worker: str | None = None) -> None:
        """Send the start to one process, or to all."""
        if self._start is not None:
            self._context.send(self._start, worker)

    def add_response(self, record: Record) -> None:
        """Add a finished request."""
        self._responses.add(record)
        start_s = self._first_requests.add(record)
        if start_s is not None and self._store.starts:
            last = msgspec.structs.replace(self._store.starts[-1], took_s=start_s)
            self._store.starts[-1] = last

    def _users_of(self, phase: str) -> int | None:
        """The number of users for this phase. None: it stays."""
        s, stages = self.asked, self.stages
        if phase == WARMUP:
            return s.warmup_concurrency
        if stages is not None:
            return int(stages.value) if stages.asked.axis == CONCURRENCY else None
        return (s.users or 1) if s.warmup_concurrency else None

    def _begin_clock(self, phase: str, lead_s: float = 0.0) -> None:
        """Bound the phase, which begins in ``lead_s``, in time."""
        self._phase_begun = phase, self._time.monotonic() + lead_s
        s, stages = self._settings, self.stages
        if stages is not None and label_phase(phase) == PROFILING:
            stages.begin(self._time.now() + lead_s)
            self._job(self._watch_stage, phase)
            stage_s = s.stage_s(stages.number)
            if stage_s and stages.repeats:
                self._job(self.allocator.close, phase, after_s=lead_s + stage_s)
            elif s.run_time_s and stages.number == 1:
                self._context.spawn(self._time_is_up, after_s=lead_s + s.run_time_s)
        elif phase == PROFILING:
            self.beside_profiling(lead_s)
            if lead_s:
                self._store.began_profiling_at = self._time.now() + lead_s
            if s.run_time_s:
                until = (
                    ""
                    if len(s.looks) == 1
                    else f", until every SLO is decided, but at most {s.longest_s:g} s"
                )
                logger.info(f"Profiling for {s.run_time_s:g} s{until}")
                self._job(self._watch_time, after_s=lead_s)
        elif s.warmup_goes_on:
            assert s.warmup_duration is not None
            lasts_s = lead_s + s.warmup_duration
            self._warm_until = self._time.monotonic() + lasts_s
            if not self.allocator.open:  # else its schedule ends it
                self._job(self.allocator.go_on, phase, after_s=lasts_s)
        elif s.warmup_duration:
            self._job(self.allocator.close, phase, after_s=lead_s + s.warmup_duration)

    def _due_in_blocks(self) -> Iterator[DueArrival]:
        """The arrivals of blocks at different prefill limits."""
        assert self.limit_sweep is not None
        s = self.asked
        rate = parse_request_rate(s)
        assert rate is not None

        def draw(name: str) -> Iterator[float]:
            random = Random(f"{s.random_seed}/{name}/arrivals")
            return draw_arrivals(rate, s.arrival_pattern, random, s.arrival_smoothness or 1.0)

        # the first one is asked for when the schedule begins
        start = self._time.now() + LEAD_S
        for at_s, draws in self.limit_sweep.arrivals(start, draw, self._time.now):
            yield DueArrival(at_s, draws=draws)

    def _turn_limits(self, phase: str) -> None:
        """Set the prefill limit of each block when it begins, in a greenlet."""
        sweep, time = self.limit_sweep, self._time
        assert sweep is not None
        turned = 0
        told = False
        while True:
            if sweep.warning and not told:
                self._store.add_note(f"WARNING: {sweep.warning}")
                told = True
            if turned == len(sweep.blocks):
                if sweep.end:
                    break
                if not self.allocator.open:
                    sweep.next_block(time.now())
                else:  # those of a schedule are drawn with its arrivals
                    time.sleep(LOOK_S)
                continue
            block = sweep.blocks[turned]
            time.sleep(max(0.0, block.began_at - time.now()))
            if block.limit != self.limit.now:
                self.limit.set_limit(block.limit)
            if block.round and block.round != sweep.blocks[turned - 1].round:
                logger.info(sweep.describe_round(block.round))
            turned += 1
            if not self.allocator.open:
                time.sleep(max(0.0, block.ended_at - time.now()))
        time.sleep(max(0.0, sweep.blocks[-1].ended_at - time.now()))
        self.allocator.close(phase)

    def _watch_time(self) -> None:
        """End the profiling phase, in a greenlet: when its time is up, or as soon as every rule is
        decided."""
        time, looks = self._time, self._settings.looks
        began = time.monotonic()
        self._job(self._time_is_up, after_s=looks[-1])  # a look may take longer than is left
        for number, at_s in enumerate(looks[:-1], 1):
            time.sleep(max(0.0, began + at_s - time.monotonic()))
            looked_s = time.monotonic() - began
            self._store.flush()
            rules = find_rules_at_look(self._store.folder, self.facts())
            if self._shutdown.begun:
                return
            undecided = [rule for rule in rules or () if rule.status == INCONCLUSIVE]
            if rules is not None and not undecided:
                self._store.decided_rules = tuple(
                    DecidedRule(
                        rule=rule.rule,
                        status=rule.status,
                        interval=rule.interval,
                        after_s=looked_s,
                    )
                    for rule in rules
                )
                look = f"at interim analysis {number} of at most {len(looks)}"
                self._store.add_note(f"{DECIDED}{looked_s:.0f} s, {look}.")
                self._shutdown.begin()
                return
            why = (
                "the records could not be judged"
                if rules is None
                else "; ".join(map(str, undecided))
            )
            logger.info(
                f"INCONCLUSIVE after {looked_s:.0f} s, judged again at {looks[number]:.0f} s: {why}"
            )

    def _deal_out(self, dues: Iterator[DueArrival], phase: str) -> None:
        """Deal out the schedule of an open loop, from its first arrival to its last. The schedule
        of a load that goes on begins when the warmup is over, and is dealt out before."""
        time, goes_on = self._time, self._settings.warmup_goes_on
        self._users.wait()
        lead_s = LEAD_S
        if goes_on and phase == PROFILING:
            lead_s = max(0.0, self._warm_until - time.monotonic())
        self._begin_clock(phase, lead_s)
        self.allocator.deal_out(dues, phase, lead_s, self._lasts_s(phase))
        if goes_on and phase == WARMUP:
            time.sleep(max(0.0, self._warm_until - AHEAD_S - time.monotonic()))
            self.allocator.go_on(phase)
        else:
            self.allocator.end_schedule(phase)

    def _lasts_s(self, phase: str) -> float | None:
        """The length of a schedule that ends in time. None: it ends with its last arrival."""
        s = self.asked
        if phase == WARMUP or s.fixed_schedule or s.request_count or self.limit_sweep is not None:
            return None
        return s.stage_s(stage_of_phase(phase))

    def _time_is_up(self) -> None:
        if self._shutdown.begun:
            return
        time_up = f"{ENDED[TIME_UP]} after {self._settings.longest_s:g} s"
        if self.stages is not None:
            self.stages.end = self.stages.end or time_up
        if self.limit_sweep is not None:
            self.limit_sweep.end = self.limit_sweep.end or time_up
        logger.info(f"Time limit reached after {self._settings.longest_s:g} s")
        self._shutdown.begin()

    def _job(self, run: Callable[..., object], *args: Any, after_s: float = 0.0) -> None:
        self._jobs.append(self._context.spawn(run, *args, after_s=after_s))

    def _end(self, phase: str) -> None:
        """End the phase: all its requests are back, or its load goes on."""
        goes_on = phase == WARMUP and self._settings.warmup_goes_on
        if not goes_on:
            self.limit.stop()
        self._kill_jobs()
        if self.limit_sweep is not None and phase == PROFILING:
            logger.info(f"Comparison of prefill limits finished: {self._sweep_end()}")
        if self.stages is not None and self.allocator.closed_at is not None:
            self.stages.stop(self.allocator.closed_at)
        if phase == WARMUP and not self._shutdown.begun:
            on = ", and the load continues" if goes_on else ""
            logger.info(f"Warmup finished, profiling starts{on}")
            self._store.began_profiling_at = self._time.now()

    def _kill_jobs(self) -> None:
        """Kill the phase's greenlets. When this returns, none acts in the next phase."""
        gevent.killall(self._jobs)
        self._jobs.clear()

    def stop(self, ago_s: float = 0.0) -> None:
        """Start nothing new, as the run ends. ``ago_s``: how long ago it was stopped."""
        if self._running is not None:
            self._running.kill()
        self.limit.stop()
        self._kill_jobs()
        if self.limit_sweep is not None:
            self.limit_sweep.end = self.limit_sweep.end or RUN_STOPPED
        if self.stages is not None:
            self.stages.end = self.stages.end or RUN_STOPPED
            self.stages.stop(
                self.allocator.closed_at or self._store.stopping_at or self._time.now()
            )
        self.allocator.count_due(ago_s=ago_s)

    @property
    def phase_s(self) -> float:
        """The seconds since this phase began; 0 until it does."""
        phase, began_at = self._phase_begun
        return max(0.0, self._time.monotonic() - began_at) if phase == self.plan.phase else 0.0

    @property
    def limit_block(self) -> LimitBlock | None:
        """The present block of a comparison of prefill limits. None: there is none."""
        if self.limit_sweep is None:
            return None
        return find_block(self.limit_sweep.blocks, self._time.now())

    def progress_when_stopped(self, stopped_at: float) -> str:
        """How far a run is that somebody stops at this moment, before its end. Empty: it is at its
        end, or has none."""
        s, stages = self._settings, self.stages
        if stages is not None:
            if stages.number:
                return f"in {stages}"
            return "in the first block" if s.compares else "in the first stage"
        elapsed_s = stopped_at - self._store.profiling_at
        if self.plan.phase == WARMUP:
            return "in the warmup"
        if s.request_count and not s.fixed_schedule:
            done = self._store.run_progress.profiled.total()
            return (
                f"after {done:,} of {format_count(s.request_count, 'request')}"
                if done < s.request_count
                else ""
            )
        if s.longest_s is not None:
            return (
                f"after {elapsed_s:.1f} of {s.longest_s:g} s"
                if elapsed_s < s.longest_s - NEARLY_S
                else ""
            )
        bounded = s.fixed_schedule or s.num_sessions
        return f"after {elapsed_s:.1f} s, before its end" if bounded else ""

    # -- stages ------------------------------------------------------------------------------------

    def _next_stage(self) -> bool:
        """Make the reports of the stage before, while nothing is sent, and begin the next one.
        False: there is none."""
        stages = self.stages
        assert stages is not None
        try:
            if stages.number:
                self.end_stage(report=True)
            more = stages.next()
        except OSError as error:
            self._store.add_gap(f"{stages}: its files could not be written: {error}")
            return False
        if not more:
            what = "A/B test" if self._settings.compares else "Sweep"
            logger.info(f"{what} finished: {stages.end}")
            self.plan.end()
            return False
        logger.info(capitalise_sentence(str(stages)))
        if not stages.repeats:
            self._store.run_progress.begin_stage()
        self.asked = stages.settings
        self.allocator.due = None
        self._stage_limits = len(self._store.limits)
        rules = [rule for rule in self.rules() if rule.at(stages.value, stages.asked.axis)]
        # its first wave is not measured
        self.abort = EarlyStop(rules, sends=self.sends, overdue=False)
        self.send_stage(stages.number)
        self.plan.begin(stages.number, self.asked.request_count)
        if stages.number == 1:
            self._store.began_profiling_at = self._time.now()
        return True

    def send_stage(self, number: int, worker: str | None = None) -> None:
        """Send the present stage (0: none) to one process, or to all."""
        stages = self.stages
        assert stages is not None
        tokens = stages.value if number and stages.asked.axis == INPUT else None
        self._context.send(StageBegin(number, tokens), worker)

    def _watch_stage(self, phase: str) -> None:
        """Close a stage in a greenlet when it has lasted long enough."""
        assert self.stages is not None
        while True:
            self._time.sleep(LOOK_S)
            arrived, missing = self.allocator.arrived()
            if self.stages.look(
                self._time.now(), self._store.run_progress.inside + missing, arrived
            ):
                self.allocator.close(phase)
                return

    def end_stage(self, *, report: bool) -> None:
        """End the stage when all of it is back: write its records and facts into its folder."""
        assert self.stages is not None
        if not self.stages.open:
            return
        self.stages.health.clear()
        self.send_stage(0)
        until = self._time.monotonic() + HEALTH_S
        while (
            len(self.stages.health) < len(self._context.workers.active())
            and self._time.monotonic() < until
        ):
            self._time.sleep(0.02)
        self._store.flush()
        self.stages.flush()
        self.stages.close(self._facts_of, report=report)

    def add_health(self, health: ProcessHealth) -> None:
        """Add the health of a process in the ended stage."""
        if self.stages is not None:
            self.stages.health.append(health)

    # -- what is known -----------------------------------------------------------------------------

    def facts(self) -> Run:
        """The run as it is known now."""
        stages = self.stages
        return self._store.facts(
            workers=tuple(self._context.workers.names),
            proxy=self._context.survey.proxy,
            offer=None if stages is not None else self.allocator.offer(),
            stages=() if stages is None else tuple(stages.finished),
            limit_blocks=() if self.limit_sweep is None else tuple(self.limit_sweep.blocks),
            sweep_end=self._sweep_end(),
        )

    def _sweep_end(self) -> str:
        if self.limit_sweep is not None:
            return self.limit_sweep.end
        return "" if self.stages is None else self.stages.end

    def _facts_of(self, stage: Stage) -> Run:
        """The ended stage as a run of its own."""
        assert self.stages is not None
        limits = select_known_limits(self._store.limits[self._stage_limits :])
        return self.stages.facts(
            stage, self.facts(), limits, self.allocator.offer(), self._users.missing
        )

    # -- rules -------------------------------------------------------------------------------------

    def find_left(self) -> LoadLeft:
        """What is left of the profiling phase. It is not known of a stage, nor where rules are about
        one of several prefill limits."""
        settings = self._settings
        if self.limit_block is not None:
            return UNKNOWN_LEFT
        if self._store.draining:
            return LoadLeft(requests=0)
        if self.stages is not None or self.plan.phase != PROFILING:
            return UNKNOWN_LEFT
        if settings.request_count:
            done = self._store.run_progress.profiled.total()
            return LoadLeft(requests=max(0, settings.request_count - done))
        if settings.longest_s is None:
            return UNKNOWN_LEFT
        return LoadLeft(max(0.0, settings.longest_s - self.phase_s))

    def rules(self) -> tuple[Rule, ...]:
        """The rules of the run, with the rules of its stages."""
        return self._settings.rules.readable

    def count(self, worker: str, at: float, status: Status) -> None:
        """Count what a process has sent (requests_in_flight.py). The rules check its records up to then."""
        for record in self.sends.report(
            worker,
            at,
            admitted=status.admitted,
            over=status.over,
            waiting=status.gate.waiting,
            decoding=status.decoding,
        ):
            self._hold_rules_against(record)
        self._judge_first_requests()

    def end_count(self, worker: str) -> None:
        """A process has ended, and has nothing under way."""
        for record in self.sends.end(worker):
            self._hold_rules_against(record)
        self._judge_first_requests()

    def _judge_first_requests(self) -> None:
        workers = self._context.workers.active()
        self._store.judge_first_requests(self.sends.settled_unix_s(workers))

    def _hold_rules_against(self, record: Record) -> None:
        if self.stages is None or record.stage == self.stages.number:
            self.abort.add(record)

    def _watch_rules(self) -> None:
        """End the run, or a stage of it, in a greenlet as soon as an ``abort:`` rule is certainly
        broken."""
        while not self._shutdown.begun:
            self._time.sleep(RULES_S)
            if (broken := self.abort.broken()) is None:
                continue
            self.abort = EarlyStop(())
            if self.stages is None:
                self._store.broken_rules.append(broken)
                self._store.add_note(f"The run was ended early: {broken}.")
                self._shutdown.begin()
            else:
                self._store.broken_rules.append(
                    msgspec.structs.replace(broken, stage=self.stages.number)
                )
                self._store.add_note(
                    f"{capitalise_sentence(str(self.stages))}, was ended early: {broken}."
                )
                self.allocator.close(self.plan.phase)


def find_rules_at_look(folder: Path, run: Run) -> list[RuleAtLook] | None:
    """The results of the deciding rules by the records so far (--until-decided). None: it could not
    be found out.

    A process of its own judges them, as numpy and all the records would weigh on the load
    generator.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm.report.interim_analysis", str(folder)],
            input=msgspec.json.encode(run),
            capture_output=True,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=list[RuleAtLook])
    except (OSError, subprocess.CalledProcessError, msgspec.DecodeError):
        return None
