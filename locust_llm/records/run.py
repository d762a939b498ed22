"""Run: the facts of a run besides its records, as in run.json."""

from collections.abc import Sequence
from itertools import dropwhile
from typing import Annotated, Final

import msgspec

from locust_llm.settings.settings import Settings
from locust_llm.slo.capacity import CapacitySearch
from locust_llm.slo.client_verdict import ClientVerdict
from locust_llm.text.format import format_count

from .accuracy import MeasurementAccuracy
from .limit_blocks import LimitBlock
from .machine import Commit, Machine
from .spans.counts import SpanCounts
from .telemetry_counts import TelemetryCounts

NAMED: Final = "named"
UNDECIDED: Final = "untold"
BROKEN: Final = "broken"
"""Outcomes of a probe: it named the scheduler, it could not, or the server failed."""

LOST_WORKER: Final = "WARNING: worker"
NO_RECORD: Final = "no record"
"""How the note of a worker that was lost begins, and what is in it."""

BUFFERED: Final = "WARNING: BUFFERED STREAM"
"""How the note of a run begins whose streams came in lumps."""

DECIDED: Final = "Every rule was decided after "
"""How the note of a run begins that ended at a look at its rules."""

Unix = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970; beyond it there is no date."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class LimitChange(msgspec.Struct, frozen=True):
    """The prefill limit became ``limit`` (None: no gate) at ``at``, in Unix seconds."""

    at: Unix
    limit: Count | None
    phase: str = "profiling"


def select_known_limits(changes: Sequence[LimitChange]) -> tuple[LimitChange, ...]:
    """From the first limit on."""
    return tuple(dropwhile(lambda change: change.limit is None, changes))


class UserChange(msgspec.Struct, frozen=True):
    """From ``at`` on, in Unix seconds, there were ``users`` users, over all processes."""

    at: Unix
    users: Count


class ResponseTime(msgspec.Struct, frozen=True, kw_only=True):
    """Of a request before the load, while the server had no other."""

    seconds: float
    cut: bool = False
    """It takes longer: nobody waited for its end."""


BY_RATE: Final = "rate"
BY_RESPONSE_TIME: Final = "response_time"
BY_EARLIER_PHASE: Final = "earlier_phase"
BY_RUN_TIME: Final = "run_time"
UNMEASURED: Final = "unmeasured"
"""Why users start as fast as they do: as asked (-r); over one response time, as measured before the
load; over the mean one of the phase before; over a tenth of the time, as one response takes longer;
over a second, as no response time is known."""
_START_REASONS: Final = {
    BY_RESPONSE_TIME: ", one response time as measured before the load",
    BY_EARLIER_PHASE: ", the mean response time of the phase before",
    BY_RUN_TIME: ", a tenth of the time, as one response takes longer",
    UNMEASURED: ", as no response time is known from before the load",
}


SLOW_START: Final = 1.25
"""From so many times the planned time on, the start is described as it was."""


class UserStart(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the users of a closed loop began to send."""

    phase: str = "profiling"
    stage: Count = 0
    """0: the run has none."""
    users: Count
    over_s: float
    """From the first one to the last, as planned; 0: all at once."""
    took_s: float | None = None
    """From the first one's first request to the last one's; None: some had sent none."""
    by: str
    """rate, response_time, earlier_phase, run_time or unmeasured."""
    rate_per_s: float | None = None
    """Users a second, where that was asked for (-r)."""

    def __str__(self) -> str:
        if self.by == BY_RATE and not self.over_s:
            return f"All {self.users} users started at once, as -r {self.rate_per_s:g} asks."
        if self.by == BY_RATE:
            return f"{self.users} users started over {self.over_s:.3g} s (-r {self.rate_per_s:g})."
        took_s = self.over_s if self.took_s is None else self.took_s
        if took_s <= SLOW_START * self.over_s:
            return f"{self.users} users started over {self.over_s:.3g} s{_START_REASONS[self.by]}."
        return (
            f"{self.users} users started over {took_s:.3g} s: the next one when no request awaited "
            f"its first token. {self.over_s:.3g} s were planned{_START_REASONS[self.by]}."
        )


class CalibrationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request before the run that measures the length of prompts, or how to fix the output length
    (``kind`` begins with ``length``: ``tokens`` are of the output). Counted nowhere else."""

    kind: str
    words: int
    tokens: int


class ProcessHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one process of the load generator over the run, or over one stage."""

    worker: str
    stage: int = 0
    """Over which stage; 0: over the whole run."""
    cpu_share: float
    """CPU seconds a second: 1 is a whole core."""
    loop_lag_p99_ms: float
    """Delay of its event loop."""
    cpu_wait_share: float | None = None
    """Share of the run in which a thread (the worst one) was ready to run and had no core; None
    where the kernel does not report it."""
    other_programs: dict[str, float] = {}
    """Of its machine, how many cores each used on average, the busiest three; empty: none used
    much, or of a stage, or nobody knows."""
    certificate: MeasurementAccuracy | None = None
    """How far its reported times lie from true ones; None: of an older version, or of a process
    that was lost."""
    machine: Machine | None = None
    """What it runs on; of a whole run only."""
    proxy: str | None = None
    """As in Run, of this process; None: of a stage, or of an older version."""
    clock_error_s: float | None = None
    """How far its times may be off on the master's clock, seconds; 0: it has the same one. None: of
    an older version, or of a stage."""
    reader: str | None = None
    """What read its answers: ``native``, or ``python`` where that part was not compiled; None: of
    an older version, or of a stage."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one load level: a step of a sweep, or of the same load repeated. Times are Unix
    seconds."""

    number: Count
    """From 1; the ``stage`` of its records."""
    value: float
    """Of what the sweep changes."""
    began_at: Unix
    measured_at: Unix | None = None
    """End of the first wave: from here on its requests count; None: it never ended."""
    warmup: Count = 0
    """Requests that had ended by then."""
    ended_at: Unix
    """Nothing new was sent from here on."""
    residual: float | None = None
    """Of Little's law over the measured requests: see sweep.residual."""
    why: str = ""
    """Why it ended: stationary, time, count or stopped."""
    arm: str = ""
    pair: Count = 0
    """Of a block: see settings/ab.py."""


def find_loaded_times(
    stages: Sequence[Stage], whole: tuple[float, float], arm: str = ""
) -> list[tuple[float, float]]:
    """The stretches of time (Unix seconds) in which requests were sent: those of the stages, of
    ``arm`` alone where it is given, else ``whole``."""
    chosen = [stage for stage in stages if not arm or stage.arm == arm]
    return [(loaded_stage.began_at, loaded_stage.ended_at) for loaded_stage in chosen] or [whole]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a run that compares two."""

    name: str
    host: str
    model: str = ""
    server: str = ""
    """Name and version; where neither is known the Server header of its answers."""
    server_flags: dict[str, str] = {}
    changes: tuple[str, ...] = ()
    """In what it differs from the base, without the values of headers."""


class OpenLoopSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule of an open loop, in the profiling phase until the run was stopped."""

    due: Count
    """Arrivals that were due by then."""
    never_started: Count
    """Of these, arrivals that found no free user."""
    duration_s: float
    """From the start of the phase to then."""
    most_users: Count
    """Maximum number of users."""
    out_of_users: bool = False
    """``--max-users`` was reached while arrivals waited."""


class BrokenRule(msgspec.Struct, frozen=True, kw_only=True):
    """An ``abort:`` rule that was certainly broken, and ended the run or a stage of it."""

    rule: str
    why: str
    """What was counted."""
    stage: Count = 0
    """0: it ended the run."""

    def __str__(self) -> str:
        return f"{self.rule} is broken: {self.why}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run. Times are Unix seconds."""

    schema: int = 1
    name: str
    settings: Settings
    started_at: Unix
    """When the users were allowed to send."""
    profiling_at: Unix
    """When the profiling phase began (equal to started_at without a warmup)."""
    stopping_at: Unix | None = None
    """From here on nothing new was sent; None: the run did not end cleanly (killed, or still
    on)."""
    ended_at: Unix | None = None
    simulated: bool = False
    imported: str = ""
    """Name and version of the load tester that measured it, where that was another; empty: it was
    this one."""
    model: str = ""
    server: str = ""
    """Name and version; where neither is known (and in older runs) the Server header of the
    answers."""
    server_flags: dict[str, str] = {}
    """As the server tells them: see identity.py."""
    proxy: str = ""
    """Host and port of the proxy between the load generator and the server, without its login;
    empty: there was none."""
    workers: tuple[str, ...] = ("local",)
    versions: dict[str, str] = {}
    machine: str = ""
    commit: Commit | None = None
    """Of the working directory that the run was started in; None: not known, or not asked for."""
    probes: tuple[CalibrationRequest, ...] = ()
    words_seed: str = ""
    """Of the words of prompts, drawn for this run; empty: they follow from ``random_seed`` of the
    settings."""
    head_tokens: Count = 0
    """Of the chat template, before the text of each request; an estimate where the server has no
    /tokenize."""
    health: tuple[ProcessHealth, ...] = ()
    """Of each process that sent, where it was measured."""
    limits: tuple[LimitChange, ...] = ()
    users: tuple[UserChange, ...] = ()
    """From the first one on, as the processes reported them four times a second; empty: of an older
    version."""
    starts: tuple[UserStart, ...] = ()
    """Of each phase and stage of a closed loop; empty: an open loop, a load shape, one user, or an
    older version."""
    offer: OpenLoopSchedule | None = None
    """None: a closed loop."""
    stage: Stage | None = None
    """The stage of this folder; None: a whole run."""
    stages: tuple[Stage, ...] = ()
    """Of a sweep, or of repeats; each has a folder of its own, ``stages/<number>``. Of a run with
    arms its blocks."""
    limit_blocks: tuple[LimitBlock, ...] = ()
    """Of a run that compares prefill limits, in the order of time."""
    sweep_end: str = ""
    """Why a sweep ended."""
    search: CapacitySearch | None = None
    """Of a stage of ``--find-max``: the range, and what the stages before it say; None: of anything
    else."""
    arms: tuple[Arm, ...] = ()
    """Base and candidate, where they are compared in pairs of blocks."""
    turned_away: Count = 0
    """Requests that waited at the gate when the run ended, and were never sent."""
    records_lost: Count = 0
    """Requests that a lost worker had sent, and records that never arrived."""
    trace: str = ""
    """16 hex digits that the trace ids of its requests begin with (records/spans/trace_ids.py);
    empty: they had none."""
    spans: SpanCounts | None = None
    """Of the server, that came for it; None: none were asked for."""
    telemetry: TelemetryCounts | None = None
    """Of ``--otel``; None: none was sent."""
    dataset_sessions: int | None = None
    """Sessions of the dataset; None: no dataset, or not counted."""
    client_live: ClientVerdict | None = None
    """The client verdict as it was shown last while the run was on; None: there was none, or this
    is a stage."""
    gaps: tuple[str, ...] = ()
    """What the result lacks, beside records, a line each."""
    stopped_early: str = ""
    """How far it was when somebody stopped it before its end: ``after 6.9 of 60 s``; empty: it came
    to its end."""
    broken_rules: tuple[BrokenRule, ...] = ()
    """Those that ended the run, or its stages."""
    cut_at: Unix | None = None
    """When somebody ended the wait for what was still open, with a second Ctrl-C; None: nobody
    did."""
    unread: tuple[str, ...] = ()
    """Parts of run.json that could not be read when the report was made."""
    notes: tuple[str, ...] = ()
    """Warnings and remarks of the run, also on the console."""

    @property
    def stream_was_buffered(self) -> bool:
        """The streams were held back on the way (server/buffering.py): that merges chunks however
        fast the load generator is."""
        return any(note.startswith(BUFFERED) for note in self.notes)

    @property
    def has_waits(self) -> bool:
        """A schedule or a gate held requests: what a user waits for a first token begins when a
        request is due."""
        return self.settings.generates and (self.settings.open_loop or bool(self.limits))

    @property
    def lost_in_words(self) -> str:
        """The records that are missing."""
        if self.imported:
            return f"{format_count(self.records_lost, 'record')} not in the file"
        has = "has" if self.records_lost == 1 else "have"
        return f"{format_count(self.records_lost, 'request')} of lost workers {has} no record"
