"""Run facts: what is known of a run beside its records, its folder, and run.json there."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from locust_llm.files.json_file import decode_json_file, decode_readable_fields, replace_file
from locust_llm.settings.run_options import Settings
from locust_llm.slo.capacity_search import CapacitySearch
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.text.format import format_count

from .limit_blocks import LimitBlock
from .machine import Commit, Machine
from .spans.span_counts import SpanCounts
from .telemetry_counts import TelemetryCounts
from .timing_accuracy import MeasurementAccuracy

RECORDS: Final = "profile_export.jsonl"
RUN: Final = "run.json"
"""Files in the folder of a run."""
NAMED: Final = "named"
UNDECIDED: Final = "untold"
BROKEN: Final = "broken"
"""Outcomes of a probe: it named the scheduler, it could not, or the server failed."""

LOST_WORKER: Final = "WARNING: worker"
NO_RECORD: Final = "no record"
IN_WARMUP: Final = "in the warmup"
"""The note of a worker that was lost begins so, and has this in it."""

SIMULATED: Final = (
    "SIMULATED: these results come from a simulator. They do not predict the performance of a "
    "real GPU, model or server."
)

BUFFERED: Final = "WARNING: BUFFERED STREAM"
"""The note of a run whose streams were held back on the way begins so."""
TOGETHER_UNEXPLAINED: Final = "WARNING: CHUNKS CAME TOGETHER"
"""The note of a run whose chunks came together for a reason that is not known begins so."""

DECIDED: Final = "Every SLO was decided after "
"""The note of a run that ended at a look at its rules begins so."""

COUNTED_BEFORE: Final = " records that run.json counted"
"""The text in ``Run.unread`` of a file from which records are gone ends so."""
NOT_FINISHED: Final = "the run did not finish"
NO_END: Final = (
    f"{NOT_FINISHED}: its load generator ended before it wrote the end, and why is not known"
)
"""In ``unread``. It was killed, or failed before that."""

Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Unix seconds. Beyond these bounds there is no date."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class LimitChange(msgspec.Struct, frozen=True):
    """The prefill limit became ``limit`` (None: no gate) at ``at`` in Unix seconds."""

    at: Unix
    limit: Count | None
    phase: str = "profiling"


class RateChange(msgspec.Struct, frozen=True):
    """The request rate became ``per_s`` at ``at`` (Unix seconds)."""

    at: Unix
    per_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class Disruption(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a command of ``--disrupt``. Times are Unix seconds, as those of records."""

    schedule: str
    """``at 60s`` or ``every 2m``."""
    command: str
    """The text of the command without secrets."""
    began_at: Unix
    ended_at: Unix | None = None
    """None: the command still ran at the end of the run, which killed it."""
    status: int | None = None
    """The exit status. None: the command was killed, or could not be started."""
    why: str = ""
    """What is known of a command that did not end with status 0."""

    @property
    def command_failed(self) -> bool:
        """It ended with another status than 0, could not be started, or took too long. One that
        the end of the run killed did not fail."""
        return self.status != 0 and (self.status is not None or bool(self.why))


def select_known_limits(changes: Sequence[LimitChange]) -> tuple[LimitChange, ...]:
    """The changes from the first limit on."""
    return tuple(dropwhile(lambda change: change.limit is None, changes))


class UserChange(msgspec.Struct, frozen=True):
    """From ``at`` (Unix seconds) on there were ``users`` users, over all processes."""

    at: Unix
    users: Count


class ResponseTime(msgspec.Struct, frozen=True, kw_only=True):
    """The response time of a request before the load, while the server had no other: the shorter
    one of two."""

    seconds: float
    cut: bool = False
    """It takes longer than this: nobody waited for its end."""


BY_RATE: Final = "rate"
BY_RESPONSE_TIME: Final = "response_time"
BY_EARLIER_PHASE: Final = "earlier_phase"
BY_RUN_TIME: Final = "run_time"
BY_WARMUP: Final = "warmup"
UNMEASURED: Final = "unmeasured"
"""Why users start at their rate.

The six reasons are: as requested (-r); over one response time, measured before the load; over the
mean response time of the phase before; over a tenth of the time, or over half of a warmup whose
load goes on, as a response before it took longer; over a second, as no response time is known.
"""
_START_REASONS: Final = {
    BY_RESPONSE_TIME: ", the response time of a single request, measured before the load",
    BY_EARLIER_PHASE: ", the mean response time of the phase before",
    BY_RUN_TIME: ", a tenth of the planned time, because an earlier response took longer than that",
    BY_WARMUP: ", half of the warmup, because an earlier response took longer than that",
    UNMEASURED: ", because no response time was measured before the load",
}


SLOW_START: Final = 1.25
"""From so many times the planned time on, the start is described with its real time."""


class UserStart(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the users of a closed loop started to send."""

    phase: str = "profiling"
    stage: Count = 0
    """0: the run has no stages."""
    users: Count
    over_s: float
    """The planned seconds from the first user to the last. 0: all start at once."""
    took_s: float | None = None
    """The seconds from the first user's first request to the last user's. None: some users sent
    none."""
    by: str
    """One of rate, response_time, earlier_phase, run_time, warmup and unmeasured."""
    rate_per_s: float | None = None
    """Users a second, where -r gave it."""

    def describe_plan(self) -> str:
        """Before the start, which may take longer than planned while requests await their first
        token."""
        start = " starts" if self.users == 1 else " start"
        planned = str(self).replace(" started", start)
        if self.by == BY_RATE:
            return planned
        return planned.replace(f"{start} over ", f"{start} over at least ", 1)

    def __str__(self) -> str:
        users = format_count(self.users, "user")
        if self.by == BY_RATE and not self.over_s:
            every = "All " * (self.users > 1)
            return f"{every}{users} started at once (-r {self.rate_per_s:g})."
        if self.by == BY_RATE:
            return f"{users} started over {self.over_s:.3g} s (-r {self.rate_per_s:g})."
        took_s = self.over_s if self.took_s is None else self.took_s
        if took_s <= SLOW_START * self.over_s:
            return f"{users} started over {self.over_s:.3g} s{_START_REASONS[self.by]}."
        return (
            f"{users} started over {took_s:.3g} s, each when no request awaited its "
            f"first token. {self.over_s:.3g} s were planned{_START_REASONS[self.by]}."
        )


class WorkerLossCount(msgspec.Struct, frozen=True, kw_only=True):
    """The requests without a record that a lost worker had sent."""

    at: Unix
    """When it was lost."""
    requests: Count
    in_warmup: bool = False
    """They were of the warmup, so nothing measured is missing."""


class CalibrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request before the run that measures the length of prompts, or how to fix the output
    length. It counts nowhere else.

    If ``kind`` begins with ``length``, ``tokens`` are output tokens.
    """

    kind: str
    words: int
    tokens: int


class ProcessHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one load-generator process over the run, or over one stage."""

    worker: str
    stage: int = 0
    """The number of the stage. 0: the whole run."""
    cpu_share: float
    """CPU seconds a second: 1 is a whole core."""
    loop_lag_p99_ms: float
    """The delay of its event loop."""
    standstills: tuple[tuple[Unix, float], ...] | None = None
    """(Unix seconds, seconds) of each time for which its event loop stood still, of at least a
    second. Of many the longest ones. None: an older version."""
    cpu_wait_share: float | None = None
    """The share of the run in which a thread (the worst one) was ready to run and had no core.
    None: the kernel does not report it."""
    other_programs: dict[str, float] = {}
    """The average cores of the busiest three other programs on its machine. Empty: none used much,
    the kernel does not report it, or this is a stage."""
    server_cores: float | None = None
    """How many cores the server under test used on average on the same machine; None: it ran
    elsewhere, or of a stage, or nobody knows."""
    machine_busy: float | None = None
    """The share of their time for which the cores of its machine were not idle. None: of a stage,
    or an older version."""
    certificate: MeasurementAccuracy | None = None
    """How far its reported times lie from true ones. None: an older version, or a process that was
    lost."""
    machine: Machine | None = None
    """The machine that it runs on, for a whole run only."""
    proxy: str | None = None
    """The proxy of this process, as in Run. None: a stage, or an older version."""
    clock_error_s: float | None = None
    """How far its times may be off on the master's clock, in seconds. 0: it has the same clock.
    None: an older version, or a stage."""
    reader: str | None = None
    """The reader of its answers: ``native``, or ``python`` where the native part was not compiled.
    None: an older version, or a stage."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch with one load level: a step of a sweep, or one of several repeats. Times are Unix
    seconds."""

    number: Count
    """The number from 1, as ``stage`` in its records."""
    value: float
    """The value that the sweep changes."""
    began_at: Unix
    measured_at: Unix | None = None
    """The end of the first wave, from which on requests count. None: it never ended."""
    warmup: Count = 0
    """The requests that had ended by then."""
    ended_at: Unix
    """Nothing new was sent from here on."""
    residual: float | None = None
    """The residual of Little's law over the measured requests: see sweep.residual. None: not
    known."""
    why: str = ""
    """Why the stage ended: stationary, time, count or stopped."""
    arm: str = ""
    pair: Count = 0
    """The number of the pair of blocks: see settings/ab_arms.py."""


def find_loaded_times(
    stages: Sequence[Stage], whole: tuple[float, float], arm: str = ""
) -> list[tuple[float, float]]:
    """The stretches (Unix seconds) in which requests were sent: the stages', of ``arm`` alone where
    it is given. Without stages it is ``whole``."""
    chosen = [stage for stage in stages if not arm or stage.arm == arm]
    return [(loaded_stage.began_at, loaded_stage.ended_at) for loaded_stage in chosen] or [whole]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One variant of an A/B test."""

    name: str
    host: str
    model: str = ""
    server: str = ""
    """The server's name and version; where neither is known, the Server header of its answers."""
    server_flags: dict[str, str] = {}
    changes: tuple[str, ...] = ()
    """The differences from the base, without the values of headers."""


class OpenLoopSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of an open loop in the profiling phase, until the run was stopped."""

    due: Count
    """The arrivals that were due by then."""
    never_started: Count
    """The arrivals that found no free user."""
    duration_s: float
    """The seconds from the start of the phase until then."""
    most_users: Count
    """The maximum number of users."""
    out_of_users: bool = False
    """``--max-users`` was reached while arrivals waited."""


class BrokenRule(msgspec.Struct, frozen=True, kw_only=True):
    """An ``abort:`` rule that was certainly broken and ended the run or a stage."""

    rule: str
    why: str
    """What was counted."""
    stage: Count = 0
    """0: it ended the run."""

    def __str__(self) -> str:
        return f"{self.rule} is broken: {self.why}"


class DecidedRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that was decided at the look that ended the run (``--until-decided``)."""

    rule: str
    status: str
    """PASS or FAIL."""
    interval: str = ""
    """The 95 % interval of its value at the look. Empty: it has none."""
    after_s: float
    """The seconds from the begin of profiling to the look."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run. Times are Unix seconds."""

    schema: int = 1
    name: str
    settings: Settings
    started_at: Unix
    """The first send: all moments in texts and charts count from it. Older versions: when the users
    were allowed to send."""
    profiling_at: Unix
    """When the profiling phase began. In a closed loop without a warmup it equals started_at."""
    stopping_at: Unix | None = None
    """When the run was stopped: its time was up, all was sent, or somebody stopped it. The wait for
    open requests begins then, or a moment later where the load generator has no CPU. None: the run
    did not end cleanly (killed), or still runs."""
    ended_at: Unix | None = None
    simulated: bool = False
    imported: str = ""
    """The name and version of the load tester of an imported run. Empty: this program measured
    it."""
    model: str = ""
    server: str = ""
    """The server's name and version. Where neither is known (and in older runs) it is the Server
    header of the answers."""
    server_flags: dict[str, str] = {}
    """The flags that the server reports: see identity.py."""
    proxy: str = ""
    """Host and port of the proxy between the load generator and the server, without its login.
    Empty: there was none."""
    gateway: str = ""
    """The proxy or gateway in front of the server, as its answers name it: ``nginx/1.24.0``. Empty:
    they name none."""
    workers: tuple[str, ...] = ("local",)
    versions: dict[str, str] = {}
    machine: str = ""
    commit: Commit | None = None
    """The commit of the working directory in which the run was started. None: not known, or not
    requested."""
    probes: tuple[CalibrationRequest, ...] = ()
    words_seed: str = ""
    """The seed of the words of prompts, drawn for this run. Empty: they follow from the settings'
    ``random_seed``."""
    head_tokens: Count = 0
    """The tokens of the chat template before the text of each request. It is an estimate where the
    server has no /tokenize."""
    marker_tokens: float | None = None
    """The tokens of a session marker, as the server counts. None: not known, or answers were not
    checked."""
    health: tuple[ProcessHealth, ...] = ()
    """The health of each process that sent, where it was measured."""
    limits: tuple[LimitChange, ...] = ()
    rates: tuple[RateChange, ...] = ()
    """The changes of the request rate by hand."""
    disruptions: tuple[Disruption, ...] = ()
    """The commands of ``--disrupt`` in the order of their starts."""
    users: tuple[UserChange, ...] = ()
    """The users over time from the first one on, as the processes reported them four times a
    second. Empty: an older version."""
    warmup_went_on: bool = False
    """The load of the warmup went on into profiling. Else it ended before, or there was none."""
    starts: tuple[UserStart, ...] = ()
    """The start of users in each phase and stage of a closed loop. Empty: an open loop, a load
    shape, one user, or an older version."""
    offer: OpenLoopSchedule | None = None
    """None: a closed loop."""
    stage: Stage | None = None
    """The stage of this folder. None: it is a whole run."""
    stages: tuple[Stage, ...] = ()
    """The stages of a sweep or of repeats; each has its own folder, ``stages/<number>``. A run with
    arms has its blocks here."""
    limit_blocks: tuple[LimitBlock, ...] = ()
    """The blocks of a run that compares prefill limits, in the order of time."""
    sweep_end: str = ""
    """Why a sweep ended."""
    search: CapacitySearch | None = None
    """The range of ``--find-max`` and what the stages before show. Only a stage of ``--find-max``
    has it."""
    arms: tuple[Arm, ...] = ()
    """Base and candidate, where they are compared in pairs of blocks."""
    turned_away: Count = 0
    """Requests that waited at the gate when the run ended, and were never sent."""
    records_lost: Count = 0
    """Requests that a lost worker had sent, and records that never arrived. Those of the warmup are
    not among them."""
    worker_losses: tuple[WorkerLossCount, ...] = ()
    """The requests of lost workers by time, also those of the warmup. Empty in older runs."""
    trace: str = ""
    """The 16 hex digits with which the trace ids of its requests begin
    (records/spans/trace_ids.py). Empty: there were no trace ids."""
    spans: SpanCounts | None = None
    """The counts of the server's spans for the run. None: no spans were requested."""
    telemetry: TelemetryCounts | None = None
    """The counts of ``--otel``. None: nothing was sent."""
    dataset_sessions: int | None = None
    """The sessions of the dataset. None: there is no dataset, or it was not counted."""
    client_live: ClientVerdict | None = None
    """The client verdict as it was last shown while the run was on. None: there was none, or this
    is a stage."""
    gaps: tuple[str, ...] = ()
    """What the result lacks beside records, one line each."""
    stopped_early: str = ""
    """How far the run was when somebody stopped it before its end: ``after 6.9 of 60 s``. Empty: it
    came to its end."""
    broken_rules: tuple[BrokenRule, ...] = ()
    """The rules that ended the run or its stages."""
    decided_rules: tuple[DecidedRule, ...] = ()
    """The rules as the look decided them that ended the run. Empty: none did."""
    cut_at: Unix | None = None
    """When a second Ctrl-C ended the wait for open requests. None: there was no second one."""
    unread: tuple[str, ...] = ()
    """The parts of run.json that could not be read when the report was made."""
    notes: tuple[str, ...] = ()
    """The warnings and remarks of the run, also shown on the console."""

    @property
    def stream_was_buffered(self) -> bool:
        """The streams were held back on the way (records/buffering.py), which merges chunks however
        fast the load generator is."""
        return any(note.startswith(BUFFERED) for note in self.notes)

    @property
    def gathered_by_unknown(self) -> bool:
        """Most streams came with several chunks together, by a buffer or for want of CPU."""
        return any(note.startswith(TOGETHER_UNEXPLAINED) for note in self.notes)

    @property
    def has_waits(self) -> bool:
        """A schedule or a gate held requests: a user's wait for a first token begins when a request
        is due."""
        return self.settings.generates and (self.settings.open_loop or bool(self.limits))

    @property
    def has_no_end(self) -> bool:
        """A report found no end of the run in its run.json."""
        return any(text.startswith(NOT_FINISHED) for text in self.unread)

    @property
    def gone_records(self) -> str:
        """That the file has fewer records than an earlier report. Empty: it has them."""
        return next((text for text in self.unread if text.endswith(COUNTED_BEFORE)), "")

    @property
    def lost_in_words(self) -> str:
        if self.imported:
            return f"{format_count(self.records_lost, 'record')} not in the file"
        has = "has" if self.records_lost == 1 else "have"
        return f"{format_count(self.records_lost, 'request')} of lost workers {has} no record"


# -- its folder ------------------------------------------------------------------------------------


def write_run(folder: Path | str, run: Run, **more: Any) -> None:
    """Write run.json. It is also written before the load, in case nothing comes after it."""
    replace_file(Path(folder) / RUN, encode_run_json(run, **more))


def encode_run_json(run: Run, **more: Any) -> bytes:
    """The run under ``run``, and the fields ``more``."""
    return msgspec.json.format(msgspec.json.encode({"run": run, **more}), indent=2) + b"\n"


def read_run(folder: Path) -> Run:
    """The run in run.json. Raises OSError, or ValueError if it is not a run folder."""
    return decode_json_file(folder / RUN, _RunFile).run


def find_gone_records(folder: Path, run: Run, count: int) -> Run:
    """The run with a text in ``unread`` where the file has only ``count`` records of the profiling
    phase, and the report before had more."""
    known = 0
    with suppress(OSError, ValueError):
        known = decode_json_file(folder / RUN, _CountedFile).conditions.requests
    if before := re.search(r"of the ([\d,]+)", run.gone_records):  # a report since then had fewer
        known = max(known, int(before[1].replace(",", "")))
    unread = [text for text in run.unread if not text.endswith(COUNTED_BEFORE)]
    if count < known:
        unread.append(f"{RECORDS} has {count:,} of the {known:,}{COUNTED_BEFORE}")
    return msgspec.structs.replace(run, unread=tuple(unread))


def decode_readable_run(folder: Path, unknown: Run) -> Run:
    """The readable fields of a damaged run.json. The others have the values of ``unknown``, and
    ``unread`` names them. Raises OSError and ValueError."""
    known = {
        name: getattr(unknown, name)
        for name in ("name", "settings", "started_at", "profiling_at", "model")
    }
    run, unread = decode_readable_fields(decode_json_file(folder / RUN, _RunAlone).run, Run, known)
    return msgspec.structs.replace(
        run, unread=(*run.unread, *(f"{name} of run.json {why}" for name, why in unread))
    )


class _RunFile(msgspec.Struct):
    run: Run


class _RunAlone(msgspec.Struct):
    run: msgspec.Raw


class _CountedRequests(msgspec.Struct, frozen=True):
    requests: Count = 0


class _CountedFile(msgspec.Struct):
    conditions: _CountedRequests = _CountedRequests()


def make_run_folder(settings: Settings, model: str | None) -> Path:
    """Make a folder for one run, without records. Raises OSError."""
    if settings.report_dir:
        base = Path(settings.report_dir)
    else:
        name = "".join(
            c if c.isalnum() or c in "._-" else "_" for c in (model or "model").rpartition("/")[2]
        )
        base = Path("reports") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = base, 1
    while (folder / RECORDS).exists():
        number += 1
        folder = Path(f"{base if base.name.strip('.') else base.resolve()}-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
