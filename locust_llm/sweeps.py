"""Sweeps: the stages of a run side by side, or its repeats; and what they amount to."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from .definitions import GATE_WAIT, ITL, PER_USER, TTFT, TTFT_FROM_DUE
from .findings import findings
from .knee import knees
from .run import Run
from .stages import AXES, REPEAT
from .summary import Level, Row, Summary, SweepSummary

LATENCIES: Final = (TTFT.tag, ITL.tag, TTFT_FROM_DUE.tag, "request_latency", GATE_WAIT.tag, PER_USER.tag)
"""Those of a level."""
SPREAD: Final = (("TTFT", TTFT.tag, (50.0, 95.0, 99.0)), ("ITL", ITL.tag, (50.0, 95.0)))
"""Of repeats: these percentiles."""


def sweep_summary(run: Run, stages: Sequence[tuple[Run, Summary]], missing: Sequence[str] = ()) -> SweepSummary:
    """``run``: the whole; ``stages``: those of its stages that could be read, each as a run of its own (``Run.stage`` is
    set); ``missing``: what is to be said of the others."""
    axis = axis_of(run)
    levels = [level(stage, summary) for stage, summary in stages]
    levels.sort(key=lambda level: level.value)
    said = knees(axis, levels)
    good = next((summary.good for _, summary in stages if summary.good is not None), None)
    return SweepSummary(
        axis=axis,
        unit=AXES.get(axis, ""),
        levels=tuple(levels),
        ended=run.sweep_end,
        conditions="" if good is None else good.conditions,
        knees=said,
        findings=() if axis == REPEAT else tuple(findings(axis, levels, said, run.settings)),
        spread=spread(levels) if axis == REPEAT else (),
        missing=tuple(missing),
    )


def axis_of(run: Run) -> str:
    """What its stages differ in."""
    return (run.settings.sweep or REPEAT).partition("=")[0].strip()


def level(run: Run, summary: Summary) -> Level:
    """A stage as a row."""
    stage, c, good, steady = run.stage, summary.conditions, summary.good, summary.steady
    beside = summary.interference
    rows = {row.tag: row for row in summary.rows}

    def rate(tag: str) -> float | None:
        return rows[tag].avg if tag in rows else None

    return Level(
        number=stage.number if stage else 0,
        value=stage.value if stage else 0.0,
        users=c.users,
        duration_s=c.duration_s,
        requests=c.requests,
        succeeded=c.succeeded,
        failure_rate=c.failure_rate,
        residual=stage.residual if stage else None,
        why=stage.why if stage else "",
        client=c.client_verdict,
        client_reasons=() if summary.client is None else summary.client.reasons,
        requests_per_s=rate("request_throughput"),
        input_tokens_per_s=rate("input_token_throughput"),
        output_tokens_per_s=rate("output_token_throughput"),
        latencies={tag: rows[tag] for tag in LATENCIES if tag in rows},
        in_flight=None if steady is None else steady.in_flight,
        delivered=None if steady is None else steady.delivered,
        kept_up=None if steady is None else steady.kept_up,
        attainment=None if good is None else good.attainment,
        goodput_per_s=None if good is None else good.goodput_per_s,
        goodput_low=None if good is None else good.low,
        goodput_high=None if good is None else good.high,
        slowdown=beside.disturbed.slowdown if beside is not None and beside.disturbed is not None else None,
        lost_share=None if beside is None else beside.lost_share,
        slos=summary.slos,
        slo_status=summary.slo_status,
    )


def spread(levels: Sequence[Level]) -> tuple[Row, ...]:
    """How far the main figures of repeats lie apart: a row a figure, its values one a repeat."""
    figures: list[tuple[str, str, str, list[float | None]]] = []
    for name, tag, percentiles in SPREAD:
        rows = [level.latencies.get(tag) for level in levels]
        for p in percentiles:
            values = [None if row is None else row.percentiles.get(p) for row in rows]
            figures.append((f"{name} p{p:g}", f"{tag}_p{p:g}", "ms", values))
    figures += [
        (
            "Output Token Throughput",
            "output_token_throughput",
            "tokens/s",
            [level.output_tokens_per_s for level in levels],
        ),
        ("Request Throughput", "request_throughput", "requests/s", [level.requests_per_s for level in levels]),
        ("Goodput", "goodput", "requests/s", [level.goodput_per_s for level in levels]),
    ]
    found = (_spread(label, tag, unit, [v for v in values if v is not None]) for label, tag, unit, values in figures)
    return tuple(row for row in found if row.count)


def _spread(label: str, tag: str, unit: str, values: Sequence[float]) -> Row:
    if not values:
        return Row(label=label, tag=tag, unit=unit, count=0)
    return Row(
        label=label,
        tag=tag,
        unit=unit,
        count=len(values),
        avg=fmean(values),
        std=stdev(values) if len(values) > 1 else None,
        min=min(values),
        max=max(values),
    )
