"""Load generator health: how far each value may be off by the load generator's own doing, and why.

A cause counts only for the values that it can touch. A permit that comes late delays a send. So it
is in the wait at the gate and in what is counted from the due time, and in no gap between chunks. A
value is fine where it may be off by at most 2 % of itself, or 1 ms.

The verdict follows from the main values of a report, here and nowhere else. OK: all are fine.
INVALID: a median or a rate may be off by a fifth. Otherwise it is DEGRADED. Gaps, stalls and waits
have their own bounds beside it. Other programs of the machine are no cause: they explain one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from locust_llm.text.format import format_count

from .metric_definitions import MEASURES, RATE

OK: Final = "OK"
DEGRADED: Final = "DEGRADED"
INVALID: Final = "INVALID"
LEVELS: Final = (OK, DEGRADED, INVALID)
FINE_SHARE: Final = 0.02
FINE_MS: Final = 1.0
"""A value is fine if it may be off by at most this share of itself, or by so little."""
UNUSABLE_SHARE: Final = 0.2
"""A median or a rate that may be off by more than this share of itself is unusable."""
FULL_CORE: Final = 0.9
"""The share of a core above which a process may limit the load."""
FEW: Final = 100
"""Fewer values have no p99. The second largest takes its place, as one value of few decides
nothing."""
BUSY_CORE: Final = 0.7
"""The share of a core below which other processes beside it do not make a process faster."""
WAITS: Final = 0.05
"""The share of time spent waiting for a core, from which on more processes would wait too."""
SERVER_SHOWN: Final = 0.05
"""Cores. A server that used fewer is not named: it would read 0.0."""
OTHERS: Final = 0.25
"""Other programs that use more than this share of the machine's cores are named."""
SATURATED: Final = 0.9
"""The share of all cores' time from which on some process waits for a core."""

# -- causes ----------------------------------------------------------------------------------------

MERGED: Final = "merged chunks"
"""Several chunks came in one late read. Nobody knows when each of them came."""
SENT_TOGETHER: Final = "chunks sent together"
"""The server, or a proxy, sent several chunks together: the read was prompt. It is not the load
generator's doing."""
SENTINELS: Final = "timestamps (reference streams)"
LATE_SEND: Final = "late sends"
LATE_PERMIT: Final = "late permits"
"""A permit of the prefill limit was on its way between several processes."""
LATE_READ: Final = "late reads"
"""A slot of the gate was returned too late by so much, and so was a user of a closed loop."""
LATE_USER: Final = "late users"
"""From an answer to the next request of its user, the load generator itself took so long."""
CLOCKS: Final = "clocks of several machines"
UNCERTIFIED: Final = "no measurement accuracy check"
BURST_SENT: Final = "a burst after a standstill"
"""Requests of an open loop that were due while the load generator stood still, and were sent together
afterwards: a load that nobody asked for."""
STANDSTILL: Final = "standstills"
"""Where no figure shows what a standstill did: no request succeeded."""

FROM_SEND: Final = ("ttft", "ttfo", "request_latency")
FROM_DUE: Final = ("ttft_from_due", "late")
FELT: Final = ("fluidity", "qoe", "reading_stall")
RATES: Final = tuple(
    measure.word for measure in MEASURES if measure.metric is None and measure.units is RATE
)
TIMED: Final = tuple(measure.word for measure in MEASURES if measure.metric is not None)
TOUCHES: Final[Mapping[str, tuple[str, ...]]] = {
    MERGED: (*FROM_SEND, "ttft_from_due", "itl", "icl", "longest_stall",
             "output_tokens_per_s_per_user", *FELT),
    SENTINELS: (*FROM_SEND, "ttft_from_due", "itl", "icl", "longest_stall",
                "output_tokens_per_s_per_user", *FELT),
    LATE_SEND: (*FROM_SEND, *FROM_DUE, *RATES),
    BURST_SENT: (*FROM_SEND, "ttft_from_due", "itl", "longest_stall"),
    LATE_PERMIT: ("gate_wait", *FROM_DUE, *RATES),
    LATE_READ: ("gate_wait", *FROM_DUE, *RATES),
    LATE_USER: RATES,
    CLOCKS: FROM_DUE,
    UNCERTIFIED: (*TIMED, *RATES),
}  # fmt: skip
"""The metrics that each cause can touch. Failures, and how much of a schedule was sent, cannot be
wrong."""
DELAYS: Final = (LATE_SEND, LATE_PERMIT, LATE_READ, LATE_USER)
"""The load generator held the load back."""
MAIN: Final = ("ttft", "ttft_from_due", "itl", "request_latency", *RATES)
NAMES: Final = {
    "TTFT": "ttft", "ITL": "itl", "Request Latency": "request_latency",
    "throughput": "requests_per_s",
}  # fmt: skip
"""The main metrics, as the first lines of a report name them."""
CENTRAL: Final = ("", "avg", "p50")
"""The statistics that show what is usual. Empty: a rate's."""


def find_named_causes(reasons: Iterable[str]) -> list[str]:
    """The causes that the reasons of client verdicts begin with, each once."""
    found = set[str]()
    for reason in reasons:
        found.update(cause for cause in TOUCHES if reason.startswith(cause))
    return [cause for cause in TOUCHES if cause in found]


def is_rate_inexact(lost: float) -> bool:
    """Whether a rate may be too low by more than it should, as the load generator added this share
    of its requests' time."""
    return lost >= 1 or lost / (1 - lost) > FINE_SHARE


def can_touch(cause: str, word: str) -> bool:
    """Whether an error of this kind can be in a value of this metric."""
    return word in TOUCHES[MERGED if cause == SENT_TOGETHER else cause]


class FigureError(msgspec.Struct, frozen=True, kw_only=True):
    """The measurement error of one value, in its unit, and the cause."""

    word: str
    """The name of its metric, as in rules."""
    stat: str = ""
    """``p95``. Empty: it is a rate."""
    label: str
    unit: str
    value: float
    lower: float = 0.0
    """How much lower the true value may be."""
    higher: float = 0.0
    causes: dict[str, float] = {}
    """The effect of each cause alone, the largest first."""
    judged: bool = True
    """It is shown, and has enough values to count for the verdict."""

    @property
    def most(self) -> float:
        return max(self.lower, self.higher)

    @property
    def own(self) -> float:
        """The part that is the load generator's doing."""
        return max(0.0, self.most - self.causes.get(SENT_TOGETHER, 0.0))

    @property
    def level(self) -> str:
        share = self.own / abs(self.value) if self.value else float("inf")
        if share <= FINE_SHARE or self.own <= (FINE_MS if self.unit == "ms" else 0.0):
            return OK
        if share > UNUSABLE_SHARE and self.stat in CENTRAL and self.word in MAIN:
            return INVALID
        return DEGRADED

    @property
    def cause(self) -> str:
        """The largest cause. Empty: there is none."""
        return next(iter(self.causes), "")


class ProcessEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one process. None: it could not be measured. Times are in ms."""

    worker: str
    requests: int
    merged_share: float | None = None
    read_lag_p99_ms: float | None = None
    send_lag_p99_ms: float | None = None
    """The time from admission to send."""
    latest_send_ms: float | None = None
    """The largest time from admission to send."""
    late_share: float | None = None
    """The share of the time from admission to the end of all requests that was before their
    sends."""
    permit_lag_p99_ms: float | None = None
    """The wait at the gate while a permit was free."""
    loop_lag_p99_ms: float | None = None
    cpu_share: float | None = None
    """The mean share of one core over the run."""
    cpu_wait_share: float | None = None
    """The share of the run in which one of its threads was ready to run while others had every
    core."""
    standstill_s: float | None = None
    """The longest time for which its event loop stood still, of at least a second."""
    overdue: int = 0
    """The requests of an open loop that were due in such times, and were sent after them."""
    cores: int | None = None
    """The cores of its machine that it may use."""
    machine_cores: int | None = None
    """All cores of its machine."""
    beside: int = 1
    """The processes of the load generator on its machine, this one included."""
    other_programs: dict[str, float] = {}
    """The average cores of other programs on its machine, the busiest first."""
    server_cores: float | None = None
    """The cores that the server under test used on the same machine; None: it ran elsewhere, or
    nobody knows."""
    machine_busy: float | None = None
    """The share of their time for which the cores of its machine were not idle. None: not known."""
    ttft_off_ms: float | None = None
    """99 of 100 reported times to first token of reference streams lie no further from the true
    ones."""
    gap_off_ms: float | None = None
    """The error of gaps between chunks."""
    required: bool = False
    """The run requires an accuracy check (--selftest require). Without a good one it is INVALID."""
    uncertified: str = ""
    """Why there is no accuracy check."""


class ClientVerdict(msgspec.Struct, frozen=True):
    """The level and its reasons, one sentence each."""

    level: str
    reasons: tuple[str, ...] = ()
    advice: str = ""
    """What the user should change."""
    signals: dict[str, str] = {}
    """The level of each cause that lowers it."""


def find_uncertain_metrics(figures: Iterable[FigureError]) -> tuple[str, ...]:
    """The metrics whose median, mean or rate may be too far off."""
    words = (figure.word for figure in figures if figure.level != OK and figure.stat in CENTRAL)
    return tuple(dict.fromkeys(words))


def list_fine_metrics(figures: Iterable[FigureError]) -> list[str]:
    """The main metrics of which every value is fine, in words."""
    levels = dict[str, set[str]]()
    for figure in figures:
        levels.setdefault(figure.word, set()).add(figure.level)
    return [name for name, word in NAMES.items() if levels.get(word) == {OK}]


def list_unusable_metrics(figures: Iterable[FigureError]) -> list[str]:
    """The labels of the metrics with a value that is too wrong to use."""
    labels = [
        figure.label.removesuffix(f" {figure.stat}")
        for figure in figures
        if figure.judged and figure.level == INVALID
    ]
    return list(dict.fromkeys(labels))


def highest_known_percent(count: int) -> float:
    """Where to look for the p99 of so many values, from 0 to 100. Below ``FEW`` it is the second
    largest."""
    if count >= FEW:
        return 99.0
    return 100.0 if count < 2 else 100.0 * (count - 2) / (count - 1)


def judge_figures(
    figures: Iterable[FigureError],
    evidence: Sequence[ProcessEvidence],
    words: Sequence[str] = MAIN,
) -> ClientVerdict | None:
    """The verdict from the values of these metrics and the processes' measurements of themselves.
    None: there is neither."""
    if missing := [e.uncertified for e in evidence if e.required and e.uncertified]:
        why = f"{UNCERTIFIED}, although --selftest require is set: {missing[0]}"
        return ClientVerdict(INVALID, (why,), signals={UNCERTIFIED: INVALID})
    known = [figure for figure in figures if figure.word in words]
    if not known and not any(map(_has_measured, evidence)):
        return None
    bad = sorted(
        (figure for figure in known if figure.level != OK),
        key=lambda figure: -LEVELS.index(figure.level),
    )
    standstill = describe_standstill(evidence)
    if standstill and not any(figure.value for figure in known):
        signals = {STANDSTILL: DEGRADED}
        return ClientVerdict(DEGRADED, (standstill,), advise(evidence, signals), signals)
    if not bad:
        return ClientVerdict(OK)
    signals = {}
    for figure in bad:
        signals.setdefault(_own_cause(figure), figure.level)
    level = bad[0].level
    if any(e.required for e in evidence) and SENTINELS in signals:
        level = signals[SENTINELS] = INVALID
    beside = (standstill, describe_other_programs(evidence))
    reasons = [*filter(None, beside), *_describe(bad)]
    return ClientVerdict(level, tuple(reasons), advise(evidence, signals), signals)


def _has_measured(evidence: ProcessEvidence) -> bool:
    return (
        evidence.merged_share is not None
        or evidence.send_lag_p99_ms is not None
        or evidence.cpu_share is not None
    )


def _own_cause(figure: FigureError) -> str:
    return next((cause for cause in figure.causes if cause != SENT_TOGETHER), figure.cause)


def _describe(bad: Sequence[FigureError]) -> list[str]:
    """A sentence for each cause, with the value that may be off by most of itself, and the number
    of others."""
    by_cause = dict[str, list[FigureError]]()
    for figure in bad:
        by_cause.setdefault(_own_cause(figure), []).append(figure)
    return [
        _describe_cause(cause, figures_of_cause) for cause, figures_of_cause in by_cause.items()
    ]


def _describe_cause(cause: str, figures_of_cause: Sequence[FigureError]) -> str:
    worst = max(
        figures_of_cause,
        key=lambda figure: figure.own / abs(figure.value) if figure.value else float("inf"),
    )
    more = len(figures_of_cause) - 1
    others = f", and {more} more value{'s' * (more > 1)}" if more else ""
    return f"{cause}: {format_figure_error(worst)}{others}"


def format_figure_error(figure: FigureError) -> str:
    """``TTFT p99 213 ms may be off by up to 38 ms``"""
    value, most = (_written(number, figure.unit) for number in (figure.value, figure.most))
    return f"{figure.label} {value} may be off by up to {most}"


def _written(number: float, unit: str) -> str:
    if abs(number) >= 100:
        digits = 0
    elif abs(number) >= 10:
        digits = 1
    else:
        digits = 2
    return f"{number:,.{digits}f}{'' if unit in ('%', '/s') else ' '}{unit}"


# -- explanations and advice -----------------------------------------------------------------------

BUSY_ADVICE: Final = "Use more processes (--processes), less load, or a dedicated machine."
NO_CORE_ADVICE: Final = (
    "Each core already has a process of the load generator: use less load, or another machine."
)
IDLE_ADVICE: Final = (
    "The load generator used little CPU, so more processes do not help: stop other programs on "
    "its machine."
)
HELD_UP_ADVICE: Final = (
    "The load generator used little CPU, so more processes do not help: a hypervisor, power "
    "saving or another program may delay it."
)
"""Replaces IDLE_ADVICE, where no other program is known that used much."""
LOCAL_SERVER_ADVICE: Final = (
    "The load generator shares its machine with the server under test: run it on a separate "
    "machine."
)
BLOCKS_ADVICE: Final = "Also look for blocking code in the locustfile."
"""Follows these two, where the locustfile is the user's."""
PERMIT_ADVICE: Final = (
    "Use fewer processes (--processes), or a machine with more CPU: permits "
    "take too long between them."
)
CPU_WAIT_ADVICE: Final = (
    "Use a dedicated machine, or stop the other programs: more processes (--processes) would "
    "only wait too."
)
SENTINEL_ADVICE: Final = (
    "Run longer, or on a quieter machine: more reference streams give tighter bounds."
)


def describe_standstill(evidence: Sequence[ProcessEvidence]) -> str:
    """``the load generator stood still for 5.1 s, and then sent 24 overdue requests together``.
    Empty: it did not."""
    longest_s = max((e.standstill_s or 0.0 for e in evidence), default=0.0)
    if not longest_s:
        return ""
    overdue = sum(e.overdue for e in evidence)
    burst = f", and then sent {overdue} overdue requests together" if overdue > 1 else ""
    return f"the load generator stood still for {longest_s:.1f} s{burst}"


def describe_other_programs(evidence: Sequence[ProcessEvidence]) -> str:
    """``other programs used 1.9 of 2 cores: python3 1.2, pytest 0.7``. Empty: they used few, or it
    is not known."""
    if saturated := describe_saturation(evidence):
        return saturated
    for e in evidence:
        others = sum(e.other_programs.values())
        server = e.server_cores or 0.0
        if server < SERVER_SHOWN:
            server = 0.0
        cores = _find_machine_cores(e)
        if not cores or others + server <= OTHERS * cores:
            continue
        named = ", ".join(f"{name} {cores:.1f}" for name, cores in e.other_programs.items())
        if not server:
            return f"other programs used {others:.1f} of {_count_cores(e)}: {named}"
        beside = f", other programs {others:.1f}: {named}" if others else ""
        used = f"the server under test used {server:.1f} of {_count_cores(e)}"
        return f"{used} of this machine{beside}"
    waits = max((e.cpu_wait_share or 0.0 for e in evidence), default=0.0)
    if waits > OTHERS:
        return f"the load generator waited for a core for {waits:.0%} of the time"
    return ""


def describe_saturation(evidence: Sequence[ProcessEvidence]) -> str:
    """``the cores of the load generator's machine were busy for 100% of the time: of 2 cores the
    server under test used 0.1, other programs at least 0.5 (python 0.4, mypy 0.1)``. Empty: some
    were free, or it is not known."""
    for e in evidence:
        if e.machine_busy is None or e.machine_busy < SATURATED:
            continue
        others = sum(e.other_programs.values())
        named = ", ".join(f"{name} {cores:.1f}" for name, cores in e.other_programs.items())
        server = e.server_cores or 0.0
        users = [f"the server under test used {server:.1f}"] * (server >= SERVER_SHOWN)
        users += [f"other programs at least {others:.1f} ({named})"] * bool(others)
        text = (
            f"the cores of the load generator's machine were busy for {e.machine_busy:.0%} of the "
            "time"
        )
        cores = _find_machine_cores(e)
        if not cores:
            return text
        text += f": of {_count_cores(e)} {', '.join(users)}" * bool(users)
        own = (e.cpu_share or 0.0) * e.beside
        if e.machine_busy * cores - own - server - others > OTHERS * cores:
            text += "; programs that ended before the run did are not counted"
        return text
    return ""


def _find_machine_cores(evidence: ProcessEvidence) -> int | None:
    """The cores that other programs and the server use, too. An older version knows only those
    that the process may use."""
    return evidence.machine_cores or evidence.cores


def _count_cores(evidence: ProcessEvidence) -> str:
    """``2 cores``; ``2 cores (1 for the load generator)``, as taskset or a cpuset allows it."""
    text = format_count(_find_machine_cores(evidence), "core")
    if evidence.machine_cores is None or evidence.cores in (None, evidence.machine_cores):
        return text
    return f"{text} ({evidence.cores} for the load generator)"


def advise(evidence: Sequence[ProcessEvidence], signals: Iterable[str]) -> str:
    """The advice against these causes."""
    causes = set(signals)
    if any((e.cpu_wait_share or 0.0) >= WAITS for e in evidence):
        return LOCAL_SERVER_ADVICE if _is_server_beside(evidence) else CPU_WAIT_ADVICE
    if causes == {LATE_PERMIT}:
        return PERMIT_ADVICE
    if causes == {SENTINELS} and all((e.cpu_share or 0.0) < BUSY_CORE for e in evidence):
        return SENTINEL_ADVICE
    return advise_on_processes(evidence)


def advise_on_processes(slow: Sequence[ProcessEvidence]) -> str:
    """The advice for these processes: more of them only where they lack their own core, and one is
    free."""
    server_beside = _is_server_beside(slow)
    if any((e.cpu_wait_share or 0.0) >= WAITS for e in slow):
        return LOCAL_SERVER_ADVICE if server_beside else CPU_WAIT_ADVICE
    busy = [e for e in slow if e.cpu_share is None or e.cpu_share >= BUSY_CORE]
    if not busy:
        if server_beside:
            return LOCAL_SERVER_ADVICE
        return IDLE_ADVICE if describe_other_programs(slow) else HELD_UP_ADVICE
    if any(e.cores is not None and e.beside >= e.cores for e in busy):
        return NO_CORE_ADVICE
    return BUSY_ADVICE


def _is_server_beside(evidence: Sequence[ProcessEvidence]) -> bool:
    """Whether the server under test used more of the load generator's machine than all other
    programs did."""
    return any((e.server_cores or 0.0) > sum(e.other_programs.values()) for e in evidence)
