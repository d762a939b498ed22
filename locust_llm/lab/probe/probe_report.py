"""Probe report: shows the scheduler, then the measurements with their plots, then the advice."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median
from typing import Final

from locust_llm.lab.probe.probe_findings import ProbeFindings
from locust_llm.lab.probe.probe_measurements import (
    BurstResult,
    DecoderStall,
    ProbeMeasurements,
    PromptCost,
)
from locust_llm.lab.probe.scheduler_diagnosis import CANNOT_TELL, Diagnosis
from locust_llm.report.chart_data.plot_data import (
    Plot,
    PlotAxis,
    PlotMark,
    PlotSeries,
    Value,
    detect_doubling,
)
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.text.format import format_brief, format_count, format_duration

MARGIN: Final = 1.15
Points = list[tuple[float, float]]
"""Each point has the tokens of a prompt and seconds."""


def plot_probe_by_length(measurements: ProbeMeasurements) -> Iterator[Plot]:
    """Plots TTFT alone and beside decoders, and the decoders' longest gap, with a ring per
    measurement. Without a prompt there is no plot."""
    singles = measurements.of("stall")
    pairs = measurements.of("pair")
    alone: Points = []
    for cost in measurements.costs:
        alone += [(float(cost.input_tokens), ttft_s) for ttft_s in cost.ttft_s]
    if alone:
        typical = [(float(cost.input_tokens), cost.typical_s) for cost in measurements.costs]
        yield Plot(
            "TTFT by prompt length",
            "Each ring is one measurement; the line joins the medians alone. Both scales are "
            "logarithmic.",
            label=f"TTFT of a prompt alone: {format_duration(typical[0][1])} at "
            f"{typical[0][0]:,.0f} tokens, "
            f"{format_duration(typical[-1][1])} at {typical[-1][0]:,.0f}",
            x=_make_tokens_axis([cost.asked_tokens for cost in measurements.costs]),
            y=PlotAxis(label="TTFT", unit="ms", log=10),
            series=tuple(
                _make_series(name, hue, points, kind)
                for name, hue, points, kind in (
                    ("alone, median", "p50", typical, "line"),
                    ("alone", "p50", alone, "rings"),
                    ("while decoders run", "prefill", _ttft_points(singles), "rings"),
                    ("the later of two", "p99", _ttft_points(pairs), "rings"),
                )
                if points
            ),
        )
    if measurements.stalls:
        worst = max(stall.longest_s for stall in measurements.stalls)
        quiet = () if measurements.quiet_s is None else (
            PlotMark(f"without a prompt: {format_duration(measurements.quiet_s)}", y=measurements.quiet_s * 1e3),
        )  # fmt: skip
        yield Plot(
            "Longest gap of the decoders by prompt length",
            "Each ring is a prompt sent while decoders run, or two sent together. The value is "
            "the longest gap of the median decoder until the first token. It grows with the "
            "prompt if a prompt is one step, and hardly with a token budget per step.",
            label=f"the longest gap was {format_duration(worst)}",
            x=_make_tokens_axis([stall.asked_tokens for stall in measurements.stalls]),
            y=PlotAxis(label="longest gap", unit="ms", low=0.0),
            series=tuple(
                _make_series(name, hue, _longest_gaps(stalls), "rings")
                for name, hue, stalls in _kinds(singles, pairs)
                if stalls
            ),
            marks=quiet,
        )


def _longest_gaps(stalls: list[DecoderStall]) -> Points:
    return [(stall.input_tokens, stall.longest_s) for stall in stalls]


def _ttft_points(stalls: list[DecoderStall]) -> Points:
    return [(stall.input_tokens, stall.ttft_s) for stall in stalls]


def _kinds(
    singles: list[DecoderStall], pairs: list[DecoderStall]
) -> Iterator[tuple[str, str, list[DecoderStall]]]:
    yield "one prompt", "prefill", singles
    yield "two of this length", "p99", pairs


def _make_series(name: str, hue: str, points: Points, kind: str) -> PlotSeries:
    x: list[Value] = [round(tokens) for tokens, _ in sorted(points)]
    y: list[Value] = [round(seconds * 1e3, 3) for _, seconds in sorted(points)]
    return PlotSeries(name, hue, x, y, kind=kind)


def _make_tokens_axis(values: list[int]) -> PlotAxis:
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


# -- the report of an interference probe -----------------------------------------------------------
# Every value is the median over the rounds of the probe, with the range in brackets.

BESIDE_HEADING: Final = "Prompts while decoders run"
MAX_SPREAD: Final = 1.3
"""A budget with a larger ratio of upper to lower end appears as a range without a middle value."""
MIN_STEPS: Final = 4
"""A budget from fewer steps of the longest prompt appears as a range, too."""
PROMPT_COUNTS: Final = {"stall": "one of", "pair": "two of"}
MAX_CACHED_RATIO: Final = 0.5
"""A prompt was cached below this ratio: the TTFT of the second time over the first."""


def describe_scheduler(probe: ProbeFindings) -> Iterator[TextBlock]:
    """Names the scheduler with the reasons, or the missing evidence."""
    diagnosis = probe.diagnosis
    yield TextBlock(
        f"Scheduler: {format_diagnosis(diagnosis, probe.symptoms)}.",
        loud=diagnosis.name == CANNOT_TELL,
    )
    for missing in diagnosis.missing:
        yield TextBlock(f"Reason: {missing}.")
    for i, reason in enumerate(diagnosis.reasons):
        label = "Also" if i else "Because"
        if diagnosis.name == CANNOT_TELL:
            label = "Measured"
        yield TextBlock(f"{label}: {reason}.")


def format_diagnosis(diagnosis: Diagnosis, measurements: ProbeMeasurements) -> str:
    """Formats the diagnosis, such as ``chunked, a step takes about 512 tokens (490 to 530); 1
    prompt at a time``."""
    if diagnosis.name == CANNOT_TELL:
        return CANNOT_TELL
    budget = (
        ""
        if diagnosis.budget is None
        else f", a step takes {_format_budget(diagnosis.budget, measurements)}"
    )
    most = max((len(burst.ttft_s) for burst in measurements.bursts), default=0)
    least = (
        "at least "
        if diagnosis.slots is not None and diagnosis.slots > 1 and diagnosis.slots == most
        else ""
    )
    slots = (
        ""
        if diagnosis.slots is None
        else f"; {least}{format_count(diagnosis.slots, 'prompt')} at a time"
    )
    return f"{diagnosis.name}{budget}{slots}"


def make_probe_blocks(probe: ProbeFindings) -> Iterator[Block]:
    """Yields the measurements and the advice."""
    measurements = probe.symptoms
    if measurements.costs:
        yield Heading("Prompts alone")
        yield _make_cost_table(measurements)
    if (table := make_stall_table(measurements)) is not None:
        yield Heading(BESIDE_HEADING)
        yield table
        yield TextBlock(_describe_stall_table(measurements))
    if measurements.bursts:
        yield Heading("Bursts of equal prompts, without decoders")
        yield _make_burst_table(measurements.bursts)
        yield TextBlock(
            "together: prompts in the first group of first tokens; ?: neither one by one nor in "
            "groups"
        )
    others = [
        *_describe_queued_requests(measurements),
        *_describe_caching(measurements),
        *_describe_early_events(measurements),
        *_describe_agreement(measurements),
    ]
    if others:
        yield Heading("Other measurements")
        yield from map(TextBlock, others)
    if probe.advice:
        yield Heading("Advice")
        yield from (
            TextBlock(f"{number}. {advice.what} {advice.why}")
            for number, advice in enumerate(probe.advice, 1)
        )


def group_stalls_by_length(stalls: Iterable[DecoderStall]) -> Iterator[list[DecoderStall]]:
    """Groups stalls of one kind and length, sorted by both."""

    def key(stall: DecoderStall) -> tuple[bool, int]:
        return stall.kind != "stall", stall.asked_tokens

    return (list(group) for _, group in groupby(sorted(stalls, key=key), key))


def _format_budget(budget: tuple[float, float, float], measurements: ProbeMeasurements) -> str:
    low, about, high = budget
    longest = measurements.of("stall", measurements.longest)
    few = not longest or median(stall.steps for stall in longest) < MIN_STEPS
    if high == float("inf"):
        return f"at least {_round_outward(low, up=False):,} tokens"
    if few or high > MAX_SPREAD * low:
        return f"between {_round_outward(low, up=False):,} and {_round_outward(high, up=True):,} tokens"
    return f"about {about:,.0f} tokens ({low:,.0f} to {high:,.0f})"


def _round_outward(tokens: float, *, up: bool) -> int:
    """Rounds to two significant digits, so that the interval only grows."""
    whole = max(1, int(tokens))
    unit = int(10 ** max(0, len(str(whole)) - 2))
    return -int(-tokens // unit) * unit if up else whole // unit * unit


def _make_cost_table(measurements: ProbeMeasurements) -> TableBlock:
    def cells(before: PromptCost | None, cost: PromptCost) -> tuple[str, ...]:
        rate = "-"
        if before is not None and cost.input_tokens > before.input_tokens:
            rate = f"{(cost.typical_s - before.typical_s) / (cost.input_tokens - before.input_tokens) * 1e6:.1f}"
        return f"{cost.input_tokens:,} tokens", _format_ms(cost.ttft_s), str(len(cost.ttft_s)), rate

    rows = [cells(None, cost) for cost in measurements.costs[:1]] + [
        cells(*pair) for pair in pairwise(measurements.costs)
    ]
    head = ("prompt", "TTFT (ms)", "requests", "\N{MICRO SIGN}s per further token")
    return TableBlock(head, tuple(rows))


def make_stall_table(measurements: ProbeMeasurements) -> TableBlock | None:
    """Makes the table of prompts beside decoders. None: there was none."""

    def cells(stalls: list[DecoderStall]) -> tuple[str, ...]:
        asked = stalls[0].asked_tokens
        kind = stalls[0].kind
        alone_s = measurements.alone_s(asked)
        return (
            f"{PROMPT_COUNTS.get(kind, kind)} {median(stall.input_tokens for stall in stalls):,.0f}",
            "-" if alone_s is None else _format_ms([alone_s * (2 if kind == "pair" else 1)]),
            _format_ms([stall.ttft_s for stall in stalls]),
            _format_ms([stall.longest_s for stall in stalls]),
            _format_spread([stall.steps for stall in stalls]),
            _format_spread([100 * stall.pace for stall in stalls]),
            _format_spread([stall.meanwhile for stall in stalls]),
        )

    head = (
        "prompt tokens",
        "alone (ms)",
        "TTFT (ms)",
        "longest gap (ms)",
        "steps",
        "pace (%)",
        "tokens",
    )
    return (
        TableBlock(head, tuple(map(cells, group_stalls_by_length(measurements.stalls))))
        if measurements.stalls
        else None
    )


def _describe_stall_table(measurements: ProbeMeasurements) -> str:
    quiet = (
        ""
        if measurements.quiet_s is None
        else f" Mean gap without a prompt: {format_duration(measurements.quiet_s)}."
    )
    few = {stall.decoders for stall in measurements.stalls}
    decoders = f"{min(few)} to {max(few)}" if len(few) > 1 else f"{max(few)}"
    return (
        f"While {decoders} decoders run. alone: TTFT of the prompt alone, twice this value for "
        "two; TTFT: to the first token of the prompt (of the later one of two); longest gap, "
        "tokens: of the median decoder until then; steps: gaps in which the prompt was computed; "
        "pace: speed of the decoders, in % of before. In brackets: lowest and highest "
        f"round.{quiet}"
    )


def _make_burst_table(bursts: Sequence[BurstResult]) -> TableBlock:
    def cells(burst: BurstResult) -> tuple[str, ...]:
        each = " ".join(format_brief(ttft_s * 1e3, digits=3) for ttft_s in burst.ttft_s)
        return (
            f"{burst.input_tokens:,} tokens",
            str(len(burst.ttft_s)),
            str(burst.side_by_side or "?"),
            each,
        )

    return TableBlock(
        ("prompt", "prompts", "together", "first tokens after (ms)"), tuple(map(cells, bursts))
    )


def _describe_queued_requests(measurements: ProbeMeasurements) -> Iterator[str]:
    if measurements.behind:
        waited = [queued.waited for queued in measurements.behind]
        took = [queued.ttft_s for queued in measurements.behind]
        alone = (
            ""
            if measurements.short_s is None
            else f", {format_duration(measurements.short_s)} alone"
        )
        yield (
            f"Short requests behind a prompt of {measurements.longest:,} tokens: TTFT "
            f"{_format_times(took)}{alone}, which is "
            f"{_format_spread([100 * share for share in waited], '%')} of the remaining prefill of the "
            f"long one."
        )


def _describe_caching(measurements: ProbeMeasurements) -> Iterator[str]:
    if not measurements.cached:
        return
    first = [pair.first_s for pair in measurements.cached]
    again = [pair.again_s for pair in measurements.cached]
    hits = sum(pair.again_s <= MAX_CACHED_RATIO * pair.first_s for pair in measurements.cached)
    tokens = [pair.cached_tokens for pair in measurements.cached if pair.cached_tokens]
    usage = (
        f", {_format_spread(tokens)} of its tokens cached by the server's count" if tokens else ""
    )
    name = "Prefix caching" if 2 * hits > len(measurements.cached) else "No prefix caching"
    yield (
        f"{name}: a prompt of {measurements.cached[0].input_tokens:,} tokens took "
        f"{_format_times(first)}, and {_format_times(again)} the second time{usage}."
    )


def _describe_early_events(measurements: ProbeMeasurements) -> Iterator[str]:
    if measurements.early_s is None:
        yield "No event without content came much before a first token."
    else:
        yield (
            f"An event without content came up to {format_duration(measurements.early_s)} before the "
            f"first token."
        )


def _describe_agreement(measurements: ProbeMeasurements) -> Iterator[str]:
    """Describes the largest deviation of a round."""
    ttfts_beside = []
    longest_gaps = []
    for stalls in group_stalls_by_length(measurements.stalls):
        ttfts_beside.append([stall.ttft_s for stall in stalls])
        longest_gaps.append([stall.longest_s for stall in stalls])
    largest = []
    for what, figures in (
        ("TTFT alone", [cost.ttft_s for cost in measurements.costs]),
        ("TTFT while decoders run", ttfts_beside),
        ("longest gaps", longest_gaps),
        ("gaps without a prompt", [[stall.quiet_s for stall in measurements.stalls]]),
    ):
        deviations = []
        for values in figures:
            middle = median(values) if len(values) > 1 else 0.0
            if middle > 0:
                deviations += [abs(value / middle - 1) for value in values]
        if deviations:
            largest.append(f"{what} {max(deviations):.0%}")
    if largest:
        yield f"Largest deviation of a round from the median: {', '.join(largest)}."


def _format_ms(values_s: Sequence[float]) -> str:
    return _format_spread([seconds * 1e3 for seconds in values_s], digits=3)


def _format_times(values_s: Sequence[float]) -> str:
    """Formats the median with the range, such as ``275 ms (268 ms to 280 ms)``."""
    middle, low, high = map(format_duration, (median(values_s), min(values_s), max(values_s)))
    return middle if low == middle == high else f"{middle} ({low} to {high})"


def _format_spread(values: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """Formats the median with the range, such as ``275 (268 to 280)``. Equal texts have no
    range."""
    middle = format_brief(median(values), unit, digits)
    low = format_brief(min(values), unit, digits)
    high = format_brief(max(values), unit, digits)
    return middle if low == middle == high else f"{middle} ({low} to {high})"
