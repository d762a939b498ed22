"""Pareto curve: builds the points of runs, tokens per second per GPU over tokens per second per
user, and marks the best."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import msgspec

from locust_llm.records.run_facts import Run
from locust_llm.report.compare.same_workload import LengthStatistics, RunWork, find_work_differences
from locust_llm.report.outages import describe_outages
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.best_points import (
    CurvePoint,
    PaceLimit,
    find_pace_limits,
    mark_best_points,
)
from locust_llm.report.summary_rows import LoadLevel, Row
from locust_llm.settings.sweep_option import CONCURRENCY, RATE
from locust_llm.slo.metric_definitions import ITL, PER_USER

MEDIAN: Final = 50.0


class CurveWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """The workload that curves must share to be comparable."""

    model: str
    input_tokens: float | None
    output_tokens: float | None
    """The mean lengths over the requests: requested, or observed if none was requested."""

    @property
    def work(self) -> RunWork:
        lengths = {"input tokens": self.input_tokens, "output tokens": self.output_tokens}
        return RunWork(
            self.model,
            {
                what: None if mean is None else LengthStatistics(mean)
                for what, mean in lengths.items()
            },
        )

    def __str__(self) -> str:
        lengths = (self.input_tokens, self.output_tokens)
        return (
            f"{self.model or 'a model'}, "
            f"{' / '.join('?' if mean is None else f'{mean:,.0f}' for mean in lengths)} tokens"
        )


class ParetoCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The points of one sweep, or of several single runs."""

    name: str
    axis: str
    gpus: int | None
    """The number of GPUs. None: unknown."""
    points: tuple[CurvePoint, ...]
    """The points, sorted by load."""
    knee: float | None = None
    """The load of the sweep's first knee. None: there is no knee."""
    knee_rule: str = ""
    limits: tuple[PaceLimit, ...] = ()
    workloads: tuple[CurveWorkload, ...] = ()
    """The workloads: one of a sweep, one of each single run."""
    simulated: bool = False
    not_valid: str = ""
    """The published rules that the run breaks. Empty: none."""

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """Returns the best points by rising pace, as a step function: up to each ``per_user`` the
        server reaches ``per_gpu``. Between points nothing was measured, so nothing is drawn."""
        rising = sorted(self.best, key=lambda point: point.per_user)
        return tuple((point.per_user, point.per_gpu) for point in rising)

    @property
    def best(self) -> tuple[CurvePoint, ...]:
        return tuple(point for point in self.points if point.best)


def describe_curve_differences(curves: Sequence[ParetoCurve]) -> str:
    """Describes in one sentence how the workloads of the curves differ. Empty: no difference is
    known."""
    named = list[tuple[str, CurveWorkload]]()
    for curve in curves:
        named += [(curve.name, workload) for workload in curve.workloads]
    what = dict[str, None]()
    for base, here in combinations([workload.work for _, workload in named], 2):
        what |= dict.fromkeys(difference.what for difference in find_work_differences(base, here))
    if not what:
        return ""
    each = dict.fromkeys(f"{name}: {workload}" for name, workload in named)
    return (
        f"These runs cannot be compared, as they differ in {' and '.join(what)} ({'; '.join(each)})"
    )


def make_level_point(
    level: LoadLevel,
    gpus: int | None,
    percentile: float = MEDIAN,
    joules_per_output_token: float | None = None,
) -> CurvePoint | None:
    """Builds the point of a stage. Returns None without TPOT or output tokens."""
    itl = _percentile_of_row(level.latencies.get(ITL.tag), percentile)
    per_user = (
        _percentile_of_row(level.latencies.get(PER_USER.tag), percentile)
        if percentile == MEDIAN
        else None
    )
    per_user = 1000 / itl if itl else per_user
    if per_user is None or level.output_tokens_per_s is None:
        return None
    return CurvePoint(
        value=level.value, per_user=per_user, per_gpu=level.output_tokens_per_s / (gpus or 1),
        ttft_ms=_percentile_of_row(level.latencies.get("time_to_first_token"), percentile),
        requests=level.succeeded,
        slo_status=level.slo_status, client=level.client, silence=level.silence,
        joules_per_output_token=joules_per_output_token,
    )  # fmt: skip


def make_run_point(
    summary: Summary, gpus: int | None, percentile: float = MEDIAN
) -> CurvePoint | None:
    """Builds the point of a run with one load. Returns None without TPOT or output tokens."""
    rows = {row.tag: row for row in summary.rows}
    conditions = summary.conditions
    itl = _percentile_of_row(rows.get(ITL.tag), percentile)
    tokens = rows["output_token_throughput"].avg if "output_token_throughput" in rows else None
    if not itl or tokens is None:
        return None
    return CurvePoint(
        value=float(conditions.users or conditions.rate_per_s or 0), per_user=1000 / itl,
        per_gpu=tokens / (gpus or 1),
        ttft_ms=_percentile_of_row(rows.get("time_to_first_token"), percentile), requests=conditions.succeeded,
        slo_status=summary.slo_status,
        client=conditions.client_verdict, silence=describe_outages(summary.outages),
        joules_per_output_token=None if summary.energy is None else summary.energy.joules_per_output_token,
    )  # fmt: skip


def _workload(summary: Summary) -> CurveWorkload:
    conditions = summary.conditions
    return CurveWorkload(
        model=conditions.model,
        input_tokens=conditions.input_tokens
        if conditions.asked_input_tokens is None
        else conditions.asked_input_tokens,
        output_tokens=conditions.output_tokens
        if conditions.asked_output_tokens is None
        else conditions.asked_output_tokens,
    )


def _percentile_of_row(row: Row | None, percentile: float) -> float | None:
    return None if row is None else row.percentiles.get(percentile)


def make_sweep_curve(
    run: Run,
    summary: Summary,
    gpus: int | None,
    percentile: float,
    joules: Sequence[float | None],
    name: str,
) -> ParetoCurve:
    """Builds the curve of a sweep. ``joules`` has the energy per output token of each stage, in the
    order of the levels. Raises ValueError without a point."""
    assert summary.sweep is not None
    sweep = summary.sweep
    points_found = [
        make_level_point(level, gpus, percentile, each)
        for level, each in zip(sweep.levels, joules, strict=True)
    ]
    points = [point for point in points_found if point is not None]
    if not points:
        raise ValueError(
            f"{name} has no stage with TPOT p{percentile:g} and output tokens per second"
        )
    drawn = {point.value for point in points}
    knee = next((knee for knee in sweep.knees if knee.value in drawn), None)
    return ParetoCurve(
        name=name, axis=sweep.axis, gpus=gpus, points=mark_best_points(points),
        limits=find_pace_limits(run.settings.rules.readable),
        knee=None if knee is None else knee.value, knee_rule="" if knee is None else knee.rule,
        workloads=(_workload(summary),),
        simulated=summary.conditions.simulated,
        not_valid=_explain_breach(summary),
    )  # fmt: skip


def _explain_breach(summary: Summary) -> str:
    if summary.validity is None or not summary.validity.broken:
        return ""
    return f"{summary.validity.rules}: {summary.validity.broken[0].text}"


def make_curve_of_runs(
    runs: Sequence[tuple[Run, Summary]], gpus: int | None, percentile: float, name: str
) -> ParetoCurve:
    """Builds one curve of runs with one load each. Raises ValueError without a point, or if closed
    and open loops are mixed."""
    points_found = [
        (point, summary)
        for _, summary in runs
        if (point := make_run_point(summary, gpus, percentile)) is not None
    ]
    if not points_found:
        raise ValueError(f"{name}: no run has TPOT p{percentile:g} and output tokens per second")
    loops = {summary.conditions.loop for _, summary in runs}
    if len(loops) > 1:
        raise ValueError(f"{name}: closed and open loops make no curve together")
    points = sorted((point for point, _ in points_found), key=lambda point: point.value)
    limits = dict[PaceLimit, None]()
    for run, _ in runs:
        limits |= dict.fromkeys(find_pace_limits(run.settings.rules.readable))
    return ParetoCurve(
        name=name, axis=CONCURRENCY if loops == {"closed"} else RATE, gpus=gpus,
        points=mark_best_points(points),
        limits=tuple(limits),
        workloads=tuple(_workload(summary) for _, summary in points_found),
        simulated=any(summary.conditions.simulated for _, summary in points_found),
    )  # fmt: skip
