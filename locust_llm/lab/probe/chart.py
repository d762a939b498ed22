"""Plots of a probe over prompt length: TTFT, and the longest gap of decoders."""

from collections.abc import Iterator
from statistics import median
from typing import Final

from locust_llm.lab.probe.measurements import DecoderStall, ProbeMeasurements
from locust_llm.report.charts.model import (
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    Value,
    detect_doubling,
)
from locust_llm.text.format import format_duration

MARGIN: Final = 1.15
Points = list[tuple[float, float]]
"""Tokens of a prompt, and seconds."""


def plot_probe_by_length(found: ProbeMeasurements) -> Iterator[Plot]:
    """TTFT alone and beside decoders, and the decoders' longest gap; a ring for each measurement.
    Nothing without a prompt."""
    singles = found.of("stall")
    pairs = found.of("pair")
    alone = [(float(cost.input_tokens), s) for cost in found.costs for s in cost.ttft_s]
    if alone:
        typical = [(float(cost.input_tokens), cost.typical_s) for cost in found.costs]
        yield Plot(
            "TTFT by prompt length",
            "Each ring is one measurement; the line joins the medians alone. Both scales are "
            "logarithmic.",
            label=f"TTFT of a prompt alone: {format_duration(typical[0][1])} at "
            f"{typical[0][0]:,.0f} tokens, "
            f"{format_duration(typical[-1][1])} at {typical[-1][0]:,.0f}",
            x=_tokens([cost.asked_tokens for cost in found.costs]),
            y=PlotAxis(label="TTFT", unit="ms", log=10),
            series=tuple(
                _series(name, hue, points, kind)
                for name, hue, points, kind in (
                    ("alone, median", "p50", typical, "line"),
                    ("alone", "p50", alone, "rings"),
                    ("beside decoders", "prefill", _points(singles), "rings"),
                    ("the later of two", "p99", _points(pairs), "rings"),
                )
                if points
            ),
        )
    if found.stalls:
        worst = max(stall.longest_s for stall in found.stalls)
        quiet = () if found.quiet_s is None else (
            PlotMark(f"without a prompt: {format_duration(found.quiet_s)}", y=found.quiet_s * 1e3),
        )  # fmt: skip
        yield Plot(
            "Longest gap of the decoders by prompt length",
            "Each ring is a prompt beside decoders, or two sent together: the longest gap of the "
            "median decoder until the "
            "first token. It grows with the prompt where a prompt is one step, and hardly with a "
            "token budget per step.",
            label=f"the longest gap was {format_duration(worst)}",
            x=_tokens([stall.asked_tokens for stall in found.stalls]),
            y=PlotAxis(label="longest gap", unit="ms", low=0.0),
            series=tuple(
                _series(
                    name, hue, [(stall.input_tokens, stall.longest_s) for stall in stalls], "rings"
                )
                for name, hue, stalls in _kinds(singles, pairs)
                if stalls
            ),
            marks=quiet,
        )


def _points(stalls: list[DecoderStall]) -> Points:
    return [(stall.input_tokens, stall.ttft_s) for stall in stalls]


def _kinds(
    singles: list[DecoderStall], pairs: list[DecoderStall]
) -> Iterator[tuple[str, str, list[DecoderStall]]]:
    yield "one prompt", "prefill", singles
    yield "two of this length", "p99", pairs


def _series(name: str, hue: str, points: Points, kind: str) -> PlotSeries:
    x: list[Value] = [round(tokens) for tokens, _ in sorted(points)]
    y: list[Value] = [round(seconds * 1e3, 3) for _, seconds in sorted(points)]
    return PlotSeries(name, hue, x, y, kind=kind)


def _tokens(values: list[int]) -> PlotAxis:
    sizes = sorted(set(values))
    base = (
        2
        if detect_doubling([float(size) for size in sizes]) or sizes[-1] > 4 * median(sizes)
        else 0
    )
    return PlotAxis(
        label="prompt tokens",
        unit="tokens",
        log=base,
        low=sizes[0] / MARGIN,
        high=sizes[-1] * MARGIN,
        ticks=tuple((float(size), f"{size:,}") for size in sizes),
    )
