"""Stages: take a run through its stages, or through its blocks. Each stage has its own folder, and
its reports as soon as it is over."""

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.records.outcomes import OK, RETRIED
from locust_llm.records.phase_plan import WARMUP
from locust_llm.records.profile_export_jsonl import EncodedRecord, encode_record
from locust_llm.records.record_writer import RecordWriter, remove_records
from locust_llm.records.report_result import ReportResult
from locust_llm.records.run_facts import (
    LimitChange,
    OpenLoopSchedule,
    ProcessHealth,
    Run,
    Stage,
    write_run,
)
from locust_llm.settings.ab_arms import PAIR
from locust_llm.settings.run_options import Settings, make_stage_settings
from locust_llm.settings.sweep_option import (
    AXES,
    COUNT,
    ENDED,
    LOADS,
    RATE,
    REPEAT,
    STOPPED,
    TIME_UP,
    RunningStage,
    Sweep,
    choose_next_stage,
    parse_duration_range,
)
from locust_llm.slo.binomial_intervals import count_needed_values
from locust_llm.slo.capacity_search import (
    CapacityEstimate,
    CapacitySearch,
    SearchStage,
    StageEvidence,
    StageTime,
    fails_at_lowest,
    plan_stage,
    plan_unbounded_stage,
    select_shown,
)
from locust_llm.slo.load_generator_health import OK as CLIENT_OK
from locust_llm.text.format import capitalise_sentence, format_duration

from .report_process import make_reports

logger = logging.getLogger("locust_llm")

MIN_REQUESTS: Final = 100
"""The successful requests of a stage where no rule needs more. The p99 of fewer is marked."""
MEASURED_SHARE: Final = 0.75
"""The measured share of a stage's time, where no earlier stage shows it. The rest is for its first
and its last wave."""
LEAST_SHARE: Final = 0.25
"""At least this share of a stage's time is measured, and either wave takes at most as much."""
LEAST_S: Final = 0.5
SHORT_S: Final = 20.0
"""With less time for a stage and its waves, its reports are made at the end of the sweep."""
TIME_USED: Final = "its time was used"
LEFT_SHARE: Final = 0.05
"""With less of its time left, the time of a search was used."""
NARROW: Final = "its interval cannot become narrower"
LOWEST_FAILS: Final = "the lowest level certainly breaks a rule"
TOO_SLOW: Final = "the load generator was too slow at the lowest level"


class StageRunner:
    """``number`` is that of the stage that is on, or was last; 0 before the first."""

    def __init__(
        self, settings: Settings, asked: Sweep, folder: Path, clock: Callable[[], float] = time.time
    ) -> None:
        """``clock``: Unix seconds."""
        self.asked, self._clock = asked, clock
        self.number = 0
        self.value = asked.values[0]
        self.settings = make_stage_settings(settings, asked.axis, self.value)
        """The settings of this stage; before the first one the first stage's."""
        self.finished: list[Stage] = []
        self.results: dict[int, ReportResult] = {}
        """The results of ended stages by number, where their reports are made."""
        self.end = ""
        """Why there are no more stages."""
        self.health: list[ProcessHealth] = []
        """The health of the processes in the ended stage."""
        self.due: tuple[int, int] = (0, 0)
        """The arrivals that had been due when the measured part began, and when it ended."""
        self._whole, self._folder = settings, folder
        self._found = StageFindings()
        self._step: SearchStage | None = None
        """The present stage of a search."""
        self._stretch: RunningStage | None = None
        self._began_at = 0.0
        self._ended_at: float | None = None
        self._file: RecordWriter | None = None
        self._lost_before = 0
        """The requests of lost workers that went with earlier stages."""

    @property
    def folder(self) -> Path:
        """The folder of this stage."""
        return self._folder / "stages" / str(self.number)

    @property
    def repeats(self) -> bool:
        """Each stage lasts as long as its settings require, and is not checked meanwhile."""
        return self.asked.axis in (REPEAT, PAIR)

    def __str__(self) -> str:
        """``stage 3 of 8, concurrency 4``"""
        which = f"{self.number} of {len(self.asked.values)}"
        if self.repeats:
            return f"repeat {which}"
        if self._whole.find_max:
            which = str(self.number)
        return f"stage {which}, {self.asked.axis} {self.value:g}"

    @property
    def capacity(self) -> CapacityEstimate | None:
        """The highest load within the rules, as the stages so far show it. None: nothing is known,
        or the run is no search."""
        return self._found.capacity

    def next(self) -> bool:
        """Choose the next stage. False: there is none."""
        step = (
            self._search() if self._whole.find_max else choose_next_stage(self.asked, self.number)
        )
        if isinstance(step, str):
            self.end = step
            return False
        self.number += 1
        self.value = step
        self.settings = make_stage_settings(self._whole, self.asked.axis, step)
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_records(self.folder)
        self._file = RecordWriter(self.folder, jsonl=self.settings.jsonl)
        return True

    def _search(self) -> float | str:
        """The value of the next stage of a search, or why there is none."""
        search, total_s = self._found, self._whole.run_time_s
        levels = [level for level in self._levels if level < search.too_slow_from]
        if not levels:
            return TOO_SLOW
        if total_s is None:
            done = [stage.level for stage in select_shown(search.times)]
            self._step = plan_unbounded_stage(
                search.capacity, done, levels, parse_duration_range(self._whole.stage_duration),
                self._whole.stage_requests or 2 * count_requests_needed(self._whole),
            )  # fmt: skip
            return NARROW if self._step is None else self._step.level
        if fails_at_lowest(search.capacity, search.evidence, levels[0]):
            return LOWEST_FAILS
        left_s = total_s
        if self.finished:
            left_s -= self._clock() - self.finished[0].began_at
        self._step = plan_stage(search.capacity, search.times, levels, left_s, total_s)
        if self._step is not None:
            return self._step.level
        if left_s < LEFT_SHARE * total_s:
            return TIME_USED
        return f"the {format_duration(left_s, 2)} left were too short for another stage"

    @property
    def _levels(self) -> tuple[float, ...]:
        return self._looked_for().levels

    def _looked_for(self) -> CapacitySearch:
        values = self.asked.values
        return CapacitySearch(
            lowest=values[0], highest=values[-1], whole=self.asked.axis != RATE,
            stages=tuple(self._found.evidence),
        )  # fmt: skip

    def begin(self, now: float) -> None:
        """Begin: its requests are sent from here on (Unix seconds)."""
        self._began_at, self._ended_at, self.due = now, None, (0, 0)
        at_least_s, at_most_s = parse_duration_range(self._whole.stage_duration)
        users = None if self.settings.open_loop else self.settings.users
        requests = self._whole.stage_requests or count_requests_needed(self._whole)
        requests = max(requests, (self._whole.stage_requests_per_user or 0) * (users or 0))
        whole_s = math.inf
        if self._step is not None:
            at_least_s, at_most_s = self._step.at_least_s, self._step.at_most_s
            requests = self._step.requests
        elif self._whole.run_time_s is not None:  # it is used up
            whole_s = self._share_s(now, self._whole.run_time_s)
            at_most_s = min(at_most_s, self._measured_s(whole_s))
            at_least_s = at_most_s
        if not self.repeats:
            self._stretch = RunningStage(
                now, users, at_least_s=at_least_s, at_most_s=at_most_s, requests=requests,
                waves=self._whole.stage_warmup_per_user, whole_s=whole_s,
            )  # fmt: skip

    def _share_s(self, now: float, total_s: float) -> float:
        """All the time of this stage where ``-t`` bounds the sweep, so that time is left for all
        requested stages."""
        began_at = self.finished[0].began_at if self.finished else now
        left = max(1, len(self.asked.values) - self.number + 1)
        return max(began_at + total_s - now, LEAST_S) / left

    def _measured_s(self, share_s: float) -> float:
        """How long a stage with so much time is measured at most."""
        measured_s = MEASURED_SHARE * share_s
        if self._found.times:
            before = self._found.times[-1]
            grown = self.value / before.level if self.asked.axis in LOADS else 1.0
            measured_s = share_s - max(grown, 1.0) * (before.whole_s - before.measured_s)
        return max(measured_s, LEAST_SHARE * share_s, LEAST_S)

    def add_record(self, encoded: EncodedRecord) -> EncodedRecord:
        """A record of this stage with the phase in which it counts. A record from the first or the
        last wave counts as warmup."""
        record = encoded.record
        if self._stretch is not None and record.outcome != RETRIED:
            offset_s = record.clock_offset_s
            measured = self._stretch.ended(
                record.due_at + offset_s,
                None if record.sent_at is None else record.sent_at + offset_s,
                record.closed_at + offset_s,
                ok=record.outcome == OK,
            )
            if not measured:
                encoded = encode_record(msgspec.structs.replace(record, phase=WARMUP))
        assert self._file is not None
        self._file.write(encoded)
        return encoded

    def look(self, now: float, inside: int, due: int) -> bool:
        """``inside``: requests that are due and not over; ``due``: arrivals so far. True: the stage
        is over."""
        stretch = self._stretch
        if stretch is None:
            return False
        over = stretch.look(now, inside)
        if stretch.measured_at == now:
            self.due = due, due
        if stretch.ended_at == now:
            self.due = self.due[0], due
        return over

    def stop(self, now: float) -> None:
        """Nothing new is sent in the stage, for whatever reason."""
        if self._ended_at is None:
            self._ended_at = now

    def stage(self) -> Stage:
        """The ended stage."""
        stretch = self._stretch
        now = self._ended_at or self._clock()
        if stretch is None:  # a repeat counts from its first request to its last
            measured_at: float | None = self._began_at
            ended_at, residual = now, None
            why = COUNT if self.settings.request_count or self.settings.num_sessions else TIME_UP
        else:
            measured_at = stretch.measured_at
            ended_at = stretch.ended_at or now
            residual = stretch.residual
            why = stretch.why or STOPPED
        return Stage(
            number=self.number,
            value=self.value,
            began_at=self._began_at,
            measured_at=measured_at,
            warmup=0 if stretch is None else stretch.warmup,
            ended_at=ended_at,
            residual=residual,
            why=why,
        )

    def facts(
        self,
        stage: Stage,
        run: Run,
        limits: tuple[LimitChange, ...],
        offer: OpenLoopSchedule | None,
        missing: int,
    ) -> Run:
        """The ended stage as a run of its own. ``run`` is the whole run. ``limits`` and ``offer``
        are the stage's. ``missing`` counts its arrivals that find no user."""
        measured_at = stage.measured_at or stage.ended_at
        if offer is not None and not self.repeats:
            due = self.due[1] - self.due[0]
            offer = msgspec.structs.replace(
                offer,
                due=due,
                never_started=min(missing, due),
                duration_s=stage.ended_at - measured_at,
            )
        return msgspec.structs.replace(
            run,
            name=f"{self._folder.name}, {self}",
            settings=self.settings,
            started_at=stage.began_at,
            profiling_at=measured_at,
            stopping_at=stage.ended_at,
            ended_at=self._clock(),
            stage=stage,
            stages=(),
            health=tuple(self.health),
            limits=limits,
            offer=offer,
            client_live=None,
            records_lost=max(0, run.records_lost - self._lost_before),
            search=self._looked_for() if self._whole.find_max else None,
        )

    def note_found(self, stage: int, found: int) -> None:
        """Lost requests of a stage have records after all. They are not lost any more before the
        present stage, so they hide no loss of its own."""
        if stage < self.number or not self.open:
            self._lost_before = max(0, self._lost_before - found)

    @property
    def open(self) -> bool:
        """A stage has begun and is not closed."""
        return self._file is not None and not self._file.closed

    def flush(self) -> None:
        if self._file is not None and self.open:
            self._file.flush()

    def pack_records(self, pause: Callable[[], object]) -> None:
        """Write the columns of the records that wait for it, if they are enough."""
        if self._file is not None and self.open:
            self._file.pack_rows(pause)

    def close(self, facts: Callable[[Stage], Run], *, report: bool) -> None:
        """Close the ended stage. ``report``: make its reports; otherwise the report of the run
        makes them."""
        if self._file is None or not self.open:
            return
        self._file.pack_rows(last=True)
        self._file.close()
        stage = self.stage()
        self.finished.append(stage)
        stage_run = facts(stage)
        self._lost_before += stage_run.records_lost
        write_run(self.folder, stage_run)
        if not report:
            return
        later = self._makes_reports_at_end()
        result = ReportResult() if later else make_reports(self.folder).result or ReportResult()
        if not later:
            self.results[stage.number] = result
        whole_s = self._clock() - stage.began_at
        measured_s = 0.0 if stage.measured_at is None else stage.ended_at - stage.measured_at
        silent = result.stage_evidence is not None and result.stage_evidence.silent
        self._found.add(StageTime(self.value, measured_s, whole_s, silent), result)
        why = ENDED.get(stage.why, stage.why)
        if self._whole.find_max:
            why = self.describe_capacity() or "capacity unknown so far"
        came_to = "its reports follow at the end" if later else str(result)
        logger.info(f"{capitalise_sentence(str(self))}: {came_to} ({why})")

    def _makes_reports_at_end(self) -> bool:
        """The stages have little time, and nothing depends on their reports, which would take as
        long as a stage."""
        total_s = self._whole.run_time_s
        if total_s is None or self._whole.find_max or self.repeats:
            return False
        return total_s < SHORT_S * len(self.asked.values)

    def describe_client_verdicts(self) -> str:
        """``DEGRADED at request-rate 20`` of the ended stages, the last of each verdict. Empty: no
        report found one that is not OK."""
        return ", ".join(
            f"{verdict} at {self.asked.axis} {level:g}"
            for verdict, level in self._found.client_verdicts.items()
        )

    def describe_capacity(self) -> str:
        """``capacity 10 to 14 users so far`` for a search. Empty: nothing is known."""
        if self.capacity is None or not self.capacity.passed:
            return ""
        return f"capacity {self.capacity.format_interval(AXES[self.asked.axis])} so far"


class StageFindings:
    """The results of ended stages, for the coming ones."""

    def __init__(self) -> None:
        self.times: list[StageTime] = []
        self.evidence: list[StageEvidence] = []
        self.capacity: CapacityEstimate | None = None
        self.client_verdicts: dict[str, float] = {}
        """The level of the last stage with this client verdict, of those that are not OK."""
        self._too_slow_at: list[float] = []

    def add(self, time_of: StageTime, result: ReportResult) -> None:
        """Add an ended stage. ``result`` is its report's."""
        self.times.append(time_of)
        if result.stage_evidence is not None:
            self.evidence.append(result.stage_evidence)
        self.capacity = result.capacity or self.capacity
        if result.client is not None and result.client.level != CLIENT_OK:
            self.client_verdicts[result.client.level] = time_of.level
        if result.is_client_too_slow:
            self._too_slow_at.append(time_of.level)

    @property
    def too_slow_from(self) -> float:
        """The level from which on the load generator was too slow, twice."""
        return sorted(self._too_slow_at)[1] if len(self._too_slow_at) > 1 else math.inf


def count_requests_needed(settings: Settings) -> int:
    """The successful requests of a stage: the percentiles of the rules need so many for both ends
    of their interval."""
    percentiles = [
        rule.percentile for rule in settings.rules.readable if rule.percentile is not None
    ]
    return max([MIN_REQUESTS, *map(count_needed_values, percentiles)])
