"""Energy: what the GPUs of the server drew while a run was measured, and for each output token."""

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.measurement_window import find_measured_span
from locust_llm.report.summary_rows import SweepSummary

if TYPE_CHECKING:  # a summary contains what this file makes
    from locust_llm.report.sections.run_summary import Summary


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """The power of the GPUs with metrics (DCGM), whatever else ran on them."""

    gpus: int
    watts: float
    """The time-weighted mean power of all GPUs together."""
    joules_per_output_token: float | None
    """None: there are no output tokens."""


MIN_COVERED: Final = 0.8
"""The least share of the measured time between the first and the last reading of a GPU."""

Span = tuple[float, float]
"""Unix seconds."""


def measure_energy(
    history: EngineHistory, span: Span, output_tokens_per_s: float | None
) -> Energy | None:
    """The energy over ``span``. None: there are no readings of power, or too few.

    Joules a token are the mean watts over the output tokens a second of the same time, with the
    prefills' share.
    """
    powers = list[float]()
    for name, samples in history.by_name.items():
        if any(sample.gpu_power_w is not None for sample in samples):
            watts = _mean_w(history.between(name, *span), span)
            if watts is not None:
                powers.append(watts)
    if not powers:
        return None
    total = sum(powers)
    each = total / output_tokens_per_s if output_tokens_per_s else None
    return Energy(gpus=len(powers), watts=total, joules_per_output_token=each)


def measure_run_energy(summary: "Summary", run: Run, history: EngineHistory) -> Energy | None:
    """The energy of a run with one load: over its measured time, or over the profiling phase until
    nothing new was sent."""
    ended_at = run.stopping_at or run.ended_at
    span = find_measured_span(run) or (None if ended_at is None else (run.profiling_at, ended_at))
    if summary.swept or span is None or span[1] <= span[0]:
        return None
    tokens = next((row.avg for row in summary.rows if row.tag == "output_token_throughput"), None)
    return measure_energy(history, span, tokens)


def measure_stage_energies(
    sweep: SweepSummary, run: Run, history: EngineHistory
) -> list[float | None]:
    """Joules for each output token of each stage, in the order of the levels."""
    spans = {stage.number: (stage.measured_at, stage.ended_at) for stage in run.stages}
    energies: list[float | None] = []
    for level in sweep.levels:
        began_at, ended_at = spans.get(level.number, (None, 0.0))
        drawn = (
            None
            if began_at is None
            else measure_energy(history, (began_at, ended_at), level.output_tokens_per_s)
        )
        energies.append(None if drawn is None else drawn.joules_per_output_token)
    return energies


def _mean_w(samples: list[EngineSample], span: Span) -> float | None:
    """The mean power of one GPU between its readings in the span. Each pair counts with its
    mean."""
    known = [
        (s.at, s.gpu_power_w)
        for s in samples
        if s.gpu_power_w is not None and span[0] <= s.at <= span[1]
    ]
    if len(known) < 2 or known[-1][0] - known[0][0] < MIN_COVERED * (span[1] - span[0]):
        return None
    joules = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(known))
    return joules / (known[-1][0] - known[0][0])
