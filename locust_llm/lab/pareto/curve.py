"""Curve: the points of runs, tokens a second per GPU against tokens a second per user, and which of
them are best."""

from collections.abc import Sequence
from itertools import combinations
from typing import Final

import msgspec

from locust_llm.records.run import Run
from locust_llm.report.compare.same_workload import LengthStatistics, RunWork, find_work_differences
from locust_llm.report.rows import LoadLevel, Row
from locust_llm.report.sections.summary import Summary
from locust_llm.report.sections.sweep.best_points import (
    CurvePoint,
    PaceLimit,
    find_pace_limits,
    mark_best_points,
)
from locust_llm.settings.sweep import CONCURRENCY, RATE
from locust_llm.slo.metrics import ITL, PER_USER

MEDIAN: Final = 50.0


class CurveWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What must be alike, or two curves say nothing about each other."""

    model: str
    input_tokens: float | None
    output_tokens: float | None
    """Means over the requests: asked for, or where that is not known what came."""

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
            f"{' / '.join('?' if n is None else f'{n:,.0f}' for n in lengths)} tokens"
        )


class ParetoCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a sweep, or of runs one by one."""

    name: str
    axis: str
    gpus: int | None
    """None: nobody said."""
    points: tuple[CurvePoint, ...]
    """The points, in the order of their values."""
    knee: float | None = None
    """The value of the point at the foremost knee of the sweep; None: there is none."""
    knee_rule: str = ""
    limits: tuple[PaceLimit, ...] = ()
    workloads: tuple[CurveWorkload, ...] = ()
    """The workload of its run, or of each of its runs."""
    simulated: bool = False
    not_valid: str = ""
    """Why it is not valid by the published rules of its scenario; empty: it is, or has none."""

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """The best points by rising pace: up to each ``per_user`` the server makes ``per_gpu``, a
        step function. Between points nothing was measured, so nothing is drawn."""
        return tuple(
            (point.per_user, point.per_gpu) for point in sorted(self.best, key=lambda p: p.per_user)
        )

    @property
    def best(self) -> tuple[CurvePoint, ...]:
        return tuple(point for point in self.points if point.best)


def describe_curve_differences(curves: Sequence[ParetoCurve]) -> str:
    """In what curves differ that should be alike, one sentence; empty: in nothing that is known."""
    named = [(curve.name, workload) for curve in curves for workload in curve.workloads]
    pairs = combinations([workload.work for _, workload in named], 2)
    what = dict.fromkeys(
        difference.what for base, here in pairs for difference in find_work_differences(base, here)
    )
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
    """A stage; None where it lacks one of the two."""
    itl = _percentile_of_row(level.latencies.get(ITL.tag), percentile)
    user = (
        _percentile_of_row(level.latencies.get(PER_USER.tag), percentile)
        if percentile == MEDIAN
        else None
    )
    user = 1000 / itl if itl else user
    if user is None or level.output_tokens_per_s is None:
        return None
    return CurvePoint(
        value=level.value, per_user=user, per_gpu=level.output_tokens_per_s / (gpus or 1),
        ttft_ms=_percentile_of_row(level.latencies.get("time_to_first_token"), percentile),
        requests=level.succeeded,
        slo_status=level.slo_status, client=level.client,
        joules_per_output_token=joules_per_output_token,
    )  # fmt: skip


def make_run_point(
    summary: Summary, gpus: int | None, percentile: float = MEDIAN
) -> CurvePoint | None:
    """A run of one load."""
    rows = {row.tag: row for row in summary.rows}
    c = summary.conditions
    itl = _percentile_of_row(rows.get(ITL.tag), percentile)
    tokens = rows["output_token_throughput"].avg if "output_token_throughput" in rows else None
    if not itl or tokens is None:
        return None
    return CurvePoint(
        value=float(c.users or c.rate_per_s or 0), per_user=1000 / itl,
        per_gpu=tokens / (gpus or 1),
        ttft_ms=_percentile_of_row(rows.get("time_to_first_token"), percentile), requests=c.succeeded,
        slo_status=summary.slo_status,
        client=c.client_verdict,
        joules_per_output_token=None if summary.energy is None else summary.energy.joules_per_output_token,
    )  # fmt: skip


def _workload(summary: Summary) -> CurveWorkload:
    c = summary.conditions
    return CurveWorkload(
        model=c.model,
        input_tokens=c.input_tokens if c.asked_input_tokens is None else c.asked_input_tokens,
        output_tokens=c.output_tokens if c.asked_output_tokens is None else c.asked_output_tokens,
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
    """``joules``: an output token of each stage, in the order of the levels. Raises ValueError of
    one sentence."""
    assert summary.sweep is not None
    sweep = summary.sweep
    points_found = [
        make_level_point(level, gpus, percentile, each)
        for level, each in zip(sweep.levels, joules, strict=True)
    ]
    points = [point for point in points_found if point is not None]
    if not points:
        raise ValueError(
            f"{name} has no stage with TPOT p{percentile:g} and output tokens a second"
        )
    drawn = {point.value for point in points}
    knee = next((knee for knee in sweep.knees if knee.value in drawn), None)
    broken = () if summary.validity is None else summary.validity.broken
    return ParetoCurve(
        name=name, axis=sweep.axis, gpus=gpus, points=mark_best_points(points),
        limits=find_pace_limits(run.settings.rules.readable),
        knee=None if knee is None else knee.value, knee_rule="" if knee is None else knee.rule,
        workloads=(_workload(summary),),
        simulated=summary.conditions.simulated,
        not_valid="" if not broken or summary.validity is None else f"{summary.validity.rules}: "
            f"{broken[0].text}",
    )  # fmt: skip


def make_curve_of_runs(
    runs: Sequence[tuple[Run, Summary]], gpus: int | None, percentile: float, name: str
) -> ParetoCurve:
    """Runs of one load each, all closed loops or all open ones. Raises ValueError of one
    sentence."""
    points_found = [
        (point, summary)
        for _, summary in runs
        if (point := make_run_point(summary, gpus, percentile)) is not None
    ]
    if not points_found:
        raise ValueError(f"{name}: no run has TPOT p{percentile:g} and output tokens a second")
    loops = {summary.conditions.loop for _, summary in runs}
    if len(loops) > 1:
        raise ValueError(f"{name}: closed and open loops make no curve together")
    points = sorted((point for point, _ in points_found), key=lambda point: point.value)
    every = dict.fromkeys(
        limit for run, _ in runs for limit in find_pace_limits(run.settings.rules.readable)
    )
    return ParetoCurve(
        name=name, axis=CONCURRENCY if loops == {"closed"} else RATE, gpus=gpus,
        points=mark_best_points(points),
        limits=tuple(every),
        workloads=tuple(_workload(summary) for _, summary in points_found),
        simulated=any(summary.conditions.simulated for _, summary in points_found),
    )  # fmt: skip
