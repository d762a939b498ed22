"""The client verdict: can these figures be attributed to the server? From the load generator's own
delays.

Each signal has two limits: above the first the verdict is DEGRADED (some figures are worse than the
server was), above the second INVALID (do not use them). The worst signal of the worst process
counts. ``make bench`` checks the limits against true times.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

OK: Final = "OK"
DEGRADED: Final = "DEGRADED"
INVALID: Final = "INVALID"
LEVELS: Final = (OK, DEGRADED, INVALID)
OFF_MS: Final = (1.0, 20.0)
"""Below these a difference is no reason for DEGRADED, or INVALID, however short the latency."""
FULL_CORE: Final = 0.9
"""Share of a core; a process above it may be what limits the load."""
TTFT_HIGH: Final = "TTFT p99 may be too high by"
MERGED: Final = "merged chunks"
READ_LAG: Final = "read lag p99"
SEND_LAG: Final = "send after admission p99"
LOOP_LAG: Final = "event loop lag p99"
PERMIT_LAG: Final = "wait for a free permit p99"
"""Of the prefill limit, of several processes: it was on its way between them."""
TTFT_OFF: Final = "TTFT error of sentinel streams, p99"
GAPS_OFF: Final = "gap error of sentinel streams, p99"
UNCERTIFIED: Final = "no certificate"
FEW: Final = 100
"""Fewer values have no p99: the second largest takes its place, as one value of few decides
nothing."""
LATE_SHARE: Final = 0.02
"""Of the time of few requests; where late sends took more, the latest of them decides, even if it
is the only one."""
LATE_MS: Final = (5.0, 100.0)
"""Of a send after its admission."""
CPU_WAIT: Final = "time without a free core"
"""Share of the run in which a thread was ready to run while other programs, or own processes, had
every core."""
BUSY_CORE: Final = 0.7
"""Share of a core; a process below it does not get faster by others beside it."""
WAITS: Final = 0.05
"""Time without a free core from which on more processes would wait too."""
BUSY_ADVICE: Final = "Use more processes (--processes), less load, or a machine of its own."
NO_CORE_ADVICE: Final = (
    "Each core has a process of the load generator already: use less load, or a further machine."
)
IDLE_ADVICE: Final = (
    "The load generator used little CPU, so more processes do not help: end other "
    "programs on its machine."
)
BLOCKS_ADVICE: Final = "Look for code in the locustfile that blocks, too."
"""After IDLE_ADVICE, where the locustfile is the user's."""
PERMIT_ADVICE: Final = (
    "Use fewer processes (--processes), or a machine with more CPU: permits "
    "take too long between them."
)
CPU_WAIT_ADVICE: Final = (
    "Use a machine of its own, or end the other programs: more processes "
    "(--processes) would only wait too."
)


class ProcessEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of one process; None where it could not be measured. Times in ms."""

    worker: str
    requests: int
    answered: int | None = None
    """Of the requests, as many have a TTFT; None: all."""
    ttft_p99_ms: float | None = None
    ttft_p99_least_ms: float | None = None
    """The same percentile if every first chunk that came merged had come as early as it can
    have."""
    ttft_compared_ms: float | None = None
    """What an error of TTFT is held against in place of p99: of a probe, the least TTFT that its
    diagnosis compares."""
    merged_share: float | None = None
    read_lag_p99_ms: float | None = None
    send_lag_p99_ms: float | None = None
    """From admission to send."""
    latest_send_ms: float | None = None
    """The largest from admission to send."""
    late_share: float | None = None
    """Of the time from admission to the end of all requests: how much of it was before their
    sends."""
    permit_lag_p99_ms: float | None = None
    """At the gate, while a permit was free."""
    due_p99_ms: float | None = None
    """Of TTFT from due."""
    loop_lag_p99_ms: float | None = None
    cpu_share: float | None = None
    """Of one core, mean over the run."""
    cpu_wait_share: float | None = None
    """Of the run: how long one of its threads was ready to run while others had every core."""
    cores: int | None = None
    """Of its machine, that it may use."""
    beside: int = 1
    """Processes of the load generator on its machine, with it."""
    ttft_off_ms: float | None = None
    """99 of 100 reported times to first token of sentinel streams lie no further from the true
    ones."""
    gap_off_ms: float | None = None
    """The same of gaps between chunks."""
    ttft_off_count: int | None = None
    gap_off_count: int | None = None
    """How many differences both are of; None: enough for a p99."""
    gap_p99_ms: float | None = None
    """Of all processes together."""
    required: bool = False
    """The run asked for a certificate (--selftest require): without a good one it is INVALID."""
    uncertified: str = ""
    """Why there is none."""


class SignalLimit(msgspec.Struct, frozen=True):
    """Above it a signal lowers the verdict."""

    value: float
    share: str = ""
    """Of what it is a share, or would be: ``10% of TTFT p99``; empty: it is the same in each
    run."""
    least: bool = False
    """That share is less than the value, which is the least that a limit may be."""

    def written(self, number: str) -> str:
        """``5 ms``, ``10% of TTFT p99 = 213 ms``, ``20 ms, as 10% of TTFT p99 is less``."""
        if not self.share:
            return number
        return f"{number}, as {self.share} is less" if self.least else f"{self.share} = {number}"


NEVER: Final = SignalLimit(float("inf"))


def make_signal_limit(least: float, share: float, figure: float | None, name: str) -> SignalLimit:
    """A share of a figure of the run, but at least ``least``."""
    if figure is None:
        return SignalLimit(least)
    of, value = f"{share * 100:g}% of {name}", share * figure
    return SignalLimit(value, of) if value > least else SignalLimit(least, of, least=True)


class HealthSignal(msgspec.Struct, frozen=True):
    """One figure against its limits."""

    what: str
    value: float
    unit: str
    degraded: SignalLimit
    invalid: SignalLimit = NEVER
    explains: bool = False
    """It is a cause of the others: named with them, even if its own level is better."""
    decides: bool = True
    """It lowers the verdict by itself."""
    note: str = ""
    """What the figure is, where it is not what its name says."""
    by: str = ""
    """What it comes from, where its name does not say."""

    @property
    def level(self) -> str:
        if self.value > self.invalid.value:
            return INVALID
        return DEGRADED if self.value > self.degraded.value else OK

    def __str__(self) -> str:
        limit = self.invalid if self.level == INVALID else self.degraded
        value, most = _apart(self.value, limit.value)
        note = f"; {self.note}" if self.note else ""
        return (
            f"{self.what} {value}{self.unit} ({self.by}limit "
            f"{limit.written(most + self.unit)}{note})"
        )


class ClientVerdict(msgspec.Struct, frozen=True):
    """The level and its reasons, one sentence each."""

    level: str
    reasons: tuple[str, ...] = ()
    advice: str = ""
    """What to change."""
    signals: dict[str, str] = {}
    """Of each signal that lowers it the level: measurement_bias.py has what that means for a
    rule."""


def highest_known_percent(count: int) -> float:
    """Where to look for the p99 of so many values, from 0 to 100: of fewer than ``FEW`` at the
    second largest."""
    if count >= FEW:
        return 99.0
    return 100.0 if count < 2 else 100.0 * (count - 2) / (count - 1)


def measure_signals(e: ProcessEvidence) -> Iterator[HealthSignal]:
    """All that were measured of one process."""
    answered = e.requests if e.answered is None else e.answered
    few_answers = _note(answered)
    if e.ttft_p99_ms is not None and e.ttft_p99_least_ms is not None:
        yield HealthSignal(
            TTFT_HIGH, e.ttft_p99_ms - e.ttft_p99_least_ms, " ms",
            make_signal_limit(0.4, 0.002, e.ttft_p99_ms, "TTFT p99"),
            make_signal_limit(20.0, 0.1, e.ttft_p99_ms, "TTFT p99"),
            note=few_answers, by="merged first chunks; ",
        )  # fmt: skip
    if e.merged_share is not None:
        yield HealthSignal(MERGED, e.merged_share * 100, "%", SignalLimit(5.0), SignalLimit(25.0))
    if e.read_lag_p99_ms is not None:
        # stamps are the kernel's, but a slot of the gate was returned that much too late
        yield HealthSignal(READ_LAG, e.read_lag_p99_ms, " ms", SignalLimit(250.0), note=few_answers)
    if e.send_lag_p99_ms is not None:
        yield _sending(e, e.send_lag_p99_ms)
    if e.permit_lag_p99_ms is not None:
        # a hand-over is four messages: 4 ms on an idle machine, 40 ms where each takes 10 ms
        name = "TTFT from due p99"
        degraded = make_signal_limit(20.0, 0.1, e.due_p99_ms, name)
        invalid = make_signal_limit(100.0, 0.5, e.due_p99_ms, name)
        yield HealthSignal(
            PERMIT_LAG, e.permit_lag_p99_ms, " ms", degraded, invalid, note=_note(e.requests)
        )
    if e.loop_lag_p99_ms is not None:
        yield HealthSignal(LOOP_LAG, e.loop_lag_p99_ms, " ms", SignalLimit(250.0))
    if e.cpu_share is not None:
        # latencies stay right at 100 % (seen with 1,500 streams), but the throughput may be ours:
        # see report/sections/notes.py
        yield HealthSignal(
            "CPU (of a core)",
            e.cpu_share * 100,
            "%",
            SignalLimit(FULL_CORE * 100),
            explains=True,
            decides=False,
        )
    probed = e.ttft_compared_ms is not None
    ttft_ms, ttft = (
        (e.ttft_compared_ms, "the least TTFT compared") if probed else (e.ttft_p99_ms, "TTFT p99")
    )
    of_ttft, of_gaps = _note(e.ttft_off_count, "sentinel stream"), _note(e.gap_off_count, "gap")
    for what, off_ms, figure_ms, name, shares, note in (
        (TTFT_OFF, e.ttft_off_ms, ttft_ms, ttft, (0.02, 0.1), of_ttft),
        (GAPS_OFF, e.gap_off_ms, e.gap_p99_ms, "Inter Chunk Latency p99", (0.1, 0.5), of_gaps),
    ):
        if off_ms is not None:
            limits = [
                make_signal_limit(least, share, figure_ms, name)
                for least, share in zip(OFF_MS, shares, strict=True)
            ]
            yield HealthSignal(
                what, off_ms, " ms", limits[0], limits[0] if e.required else limits[1], note=note
            )
    if e.cpu_wait_share is not None:
        # on 2 cores, the server on them too, with 10 to 1,500 streams: 0.5 to 5 % with nothing else
        # on, 14 % with two processes of ours; with 100 streams 6 to 10 % beside two programs that
        # compute without end and 18 to 23 % beside four, when the figures were still true, 38 to 43
        # % beside eight; with 800 streams 41 % beside two, and merged
        yield HealthSignal(CPU_WAIT, e.cpu_wait_share * 100, "%", SignalLimit(25.0), explains=True)


def _sending(e: ProcessEvidence, lag_ms: float) -> HealthSignal:
    """Of few requests the second latest send decides, unless all late sends together took more than
    LATE_SHARE."""
    note = _note(e.requests)
    share = e.late_share or 0.0
    if 1 < e.requests < FEW and e.latest_send_ms is not None and share > LATE_SHARE:
        lag_ms = e.latest_send_ms
        note = f"the latest of {e.requests}, and late sends took {share:.1%} of the requests' time"
    return HealthSignal(
        SEND_LAG, lag_ms, " ms", SignalLimit(LATE_MS[0]), SignalLimit(LATE_MS[1]), note=note
    )


def _note(count: int | None, what: str = "request") -> str:
    if count is None or count >= FEW:
        return ""
    return f"of {count} {what}s the second largest" if count > 1 else f"of one {what}"


def judge_client(evidence: Sequence[ProcessEvidence]) -> ClientVerdict | None:
    """Of the worst process; None without measurements."""
    if missing := [e.uncertified for e in evidence if e.required and e.uncertified]:
        why = f"{UNCERTIFIED} of this machine, which --selftest require asks for: {missing[0]}"
        return ClientVerdict(INVALID, (why,), signals={UNCERTIFIED: INVALID})
    found = [(signal, e) for e in evidence for signal in measure_signals(e)]
    if not found:
        return None
    level = max(
        (signal.level for signal, _ in found if signal.decides), key=LEVELS.index, default=OK
    )
    if level == OK:
        return ClientVerdict(OK)
    bad = [
        (signal, e)
        for signal, e in found
        if signal.level != OK and (signal.level == level or signal.explains)
    ]
    lowering = sorted(
        ((s.what, s.level) for s, _ in found if s.decides and s.level != OK),
        key=lambda one: LEVELS.index(one[1]),
    )
    return ClientVerdict(
        level,
        tuple(
            f"process {e.worker}: {signal}" if len(evidence) > 1 else str(signal)
            for signal, e in bad
        ),
        _advice(bad),
        dict(lowering),  # of the worst process
    )


def _advice(bad: Sequence[tuple[HealthSignal, ProcessEvidence]]) -> str:
    """What can help against these signals of these processes."""
    waits = any((e.cpu_wait_share or 0.0) >= WAITS for _, e in bad)
    if not waits and all(signal.what == PERMIT_LAG for signal, _ in bad):
        return PERMIT_ADVICE
    return advise_on_processes([e for _, e in bad])


def advise_on_processes(slow: Sequence[ProcessEvidence]) -> str:
    """What can help these processes: others beside them only where they are short of their own
    core, and one is free."""
    if any((e.cpu_wait_share or 0.0) >= WAITS for e in slow):
        return CPU_WAIT_ADVICE
    busy = [e for e in slow if e.cpu_share is None or e.cpu_share >= BUSY_CORE]
    if not busy:
        return IDLE_ADVICE
    if any(e.cores is not None and e.beside >= e.cores for e in busy):
        return NO_CORE_ADVICE
    return BUSY_ADVICE


def _apart(value: float, limit: float) -> tuple[str, str]:
    """With as many digits as show which is larger."""
    for n in range(0 if min(value, limit) >= 100 else 1, 4):
        found = f"{value:.{n}f}", f"{limit:.{n}f}"
        if found[0] != found[1] or value == limit:
            return found
    return found
