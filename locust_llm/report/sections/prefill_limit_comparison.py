"""Prefill limit comparison: what a run that compares prefill limits found: the answer in a
sentence, each limit against the best one, and its figures by length of the prompt; table and chart.

How they are compared: locust_llm/slo/best_prefill_limit.py; what counts: records/limit_blocks.py.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from locust_llm.records.limit_blocks import (
    CountedRequest,
    LimitBlock,
    LimitBlockRecords,
    find_median_length,
)
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.chart_data.plot_data import (
    Plot,
    PlotAxis,
    PlotSeries,
    detect_doubling,
    round_values,
)
from locust_llm.report.document_blocks import (
    INEXACT,
    Block,
    Heading,
    TableBlock,
    TextBlock,
    explain_marks,
    mark_scarce,
)
from locust_llm.report.measurement_window import RateWindow
from locust_llm.report.metrics_by_group import estimate_input_lengths
from locust_llm.report.outages import (
    Outage,
    find_run_outages,
    list_metric_readings,
    select_spans_within,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation
from locust_llm.slo.best_prefill_limit import (
    GOODPUT,
    LEAST_ROUNDS,
    LEAST_VALUES,
    OBJECTIVES,
    SHORT_TTFT,
    STALL,
    TOKENS,
    TOLERANCE,
    Limit,
    LimitRegret,
    compare_two,
    compare_with_best,
    find_likely_best,
    format_limit,
)
from locust_llm.slo.limit_block_lengths import (
    UNKNOWN_TIME,
    advise_run_time,
    find_advised_run_time,
)
from locust_llm.slo.metric_definitions import GATE_WAIT, LONGEST_STALL, TTFT_FROM_DUE, Metric
from locust_llm.slo.percentile import find_percentile
from locust_llm.slo.rules import define_good_request
from locust_llm.text.format import (
    capitalise_sentence,
    format_brief,
    format_count,
    format_duration,
    format_duration_rounded_up,
    format_number,
    format_signed,
)

from .section import ReportMaterial, ReportSection

PREFILL_LIMITS: Final = "prefill_limits"
"""The key of the finding in run.json."""
SHORT: Final = "short"
LONG: Final = "long"
ALL: Final = "all"
BEST: Final = "best"
AS_GOOD: Final = "as good"
UNKNOWN: Final = "not distinguished"
LIKELY_BEST: Final = "likely best"
LIKELY_WORSE: Final = "likely worse"
WORSE: Final = "worse"
LONGEST_S: Final = 8 * 3600.0
"""More than so much more time is not worth naming."""
VALUES_MARGIN: Final = 1.5
"""How much longer than on average a run takes to have enough values at each limit."""


class ObjectiveWords(NamedTuple):
    """How an objective is named."""

    label: str
    """In heads of tables."""
    unit: str
    scale: float
    """From seconds."""
    without: str
    """What is so many times as long (or as many) without a limit."""


WORDS: Final = {
    GOODPUT: ObjectiveWords("goodput", "/s", 1.0, "goodput is"),
    SHORT_TTFT: ObjectiveWords("TTFT from due p95, short", "ms", 1e3, "short prompts wait"),
    STALL: ObjectiveWords("longest stall p95", "ms", 1e3, "the longest stall (p95) is"),
    TOKENS: ObjectiveWords("output tokens", "/s", 1.0, "the output is"),
}


class LimitLengthRow(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one limit with short or with long prompts. Times are in seconds."""

    limit: int | None
    prompts: str
    """short, long or all."""
    requests: int
    failed: int
    ttft_from_due_p50_s: float | None
    ttft_from_due_p95_s: float | None
    """None: it lies on a failure, or there are no requests."""
    gate_wait_p50_s: float | None
    gate_wait_p95_s: float | None
    longest_stall_p95_s: float | None
    output_tokens_per_s: float | None
    goodput_per_s: float | None
    """None: nothing defines a good request."""
    inexact: tuple[str, ...] = ()
    """``ttft_from_due p95``: its values that the load generator may have too wrong."""


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """One limit compared with the best one. A regret of 0.1 is 10 % worse."""

    limit: int | None
    """The prefill limit. None: no limit."""
    rounds: int
    figure: float | None
    """Of the objective: seconds, or a number a second."""
    regret: float | None
    """None: nothing is known of it, as it has no interval."""
    regret_low: float
    regret_high: float | None
    """None: nothing bounds it."""
    verdict: str
    """best, as good, likely best, not distinguished, likely worse or worse."""
    left_open: int
    """Requests that count, and had not ended when the limit changed."""
    inexact: bool = False
    """The load generator may have the figure too wrong."""


class LimitComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of the prefill limits of one load."""

    objective: str
    answer: str
    """In one sentence or two."""
    best: int | None = None
    """The limit to use; None: none is needed, or none is known to be better."""
    advises: bool = False
    """``best`` is certainly better than no limit."""
    rows: tuple[LimitRow, ...] = ()
    lengths: tuple[LimitLengthRow, ...] = ()
    longest_short: int = 0
    """Input tokens of the longest short prompt."""
    rounds: int = 0
    left_out: int = 0
    """Requests that were in flight when the limit changed, and count nowhere."""
    block_s: tuple[float, float] = (0.0, 0.0)
    """The shortest and the longest block."""
    conditions: str = ""
    """Of a good request."""
    same_arrivals: bool = False
    """Each block of a round had the same arrivals and lengths."""
    ended: str = ""
    silent_blocks: tuple[str, ...] = ()
    """``limit 2 in round 3``: the blocks that count a time without answers."""


def compare_limits(run: Run, records: Iterable[Record]) -> LimitComparison | None:
    """None: the run compares none."""
    blocks = run.limit_blocks
    if not blocks:
        return None
    good, _ = define_good_request(run.settings.rules)
    found = LimitBlockRecords(good)
    whole = _drop_unfinished(blocks, run)
    for record in records:
        found.add(record, whole)
    limits = list(dict.fromkeys([None, *run.settings.swept_limits]))
    objective = run.settings.chosen_objective
    samples = found.samples(objective, limits, whole)
    regrets = compare_with_best(samples, OBJECTIVES[objective])
    rounds = max((block.round for block in whole), default=0)
    without = None
    best = _find_best(regrets)
    likely_best = find_likely_best(regrets)
    if best is not None and best.limit is not None:
        without = compare_two(samples, OBJECTIVES[objective], None, best.limit)
    # a run that was stopped needs no less than it was to have
    seconds = max(_run_seconds(run), run.settings.run_time_s or 0.0)
    advised = _advise(regrets, best, without)
    lengths = tuple(_length_rows(found, whole, limits, has_goodput=bool(good)))
    counted = [block.ended_at - block.began_at for block in whole if block.round]
    return LimitComparison(
        objective=objective,
        answer=describe_answer(
            regrets, objective, without, seconds=seconds, advised=find_advised_run_time(run.notes)
        ),
        best=advised,
        advises=advised is not None,
        rows=tuple(_limit_row(one, best, likely_best, found.requests) for one in regrets),
        lengths=lengths,
        longest_short=int(find_median_length(found.requests)),
        rounds=rounds,
        left_out=found.left_out,
        block_s=(min(counted), max(counted)) if counted else (0.0, 0.0),
        conditions=" and ".join(map(str, good)),
        same_arrivals=run.settings.open_loop and not run.settings.input_file,
        ended=run.sweep_end,
    )


def select_limit_requests(seen: Evaluation, limit: Limit) -> Evaluation | None:
    """The part of a run that is of one limit, its rates over the time that counts; None: there is
    none."""
    blocks = [block for block in seen.run.limit_blocks if block.round and block.limit == limit]
    whole = _drop_unfinished(blocks, seen.run)
    spans = [(block.settled_at, block.counted_until) for block in whole]
    if not spans:
        return None
    part = seen.main.only(seen.main.requests.has("arm", format_limit(limit)))
    for block in blocks:
        if block not in whole:
            part = part.only(part.requests.floats("due_at") < block.began_at)
    pauses = tuple((before[1], after[0]) for before, after in pairwise(spans))
    window = RateWindow((spans[0][0], spans[-1][1]), pauses)
    return seen._replace(main=part, ended=part, time=window, settled=None)


def _find_best(regrets: Sequence[LimitRegret]) -> LimitRegret | None:
    contenders = [one for one in regrets if not one.is_worse and one.regret is not None]
    return min(contenders, key=lambda one: one.regret or 0.0, default=None)


def _drop_unfinished(blocks: Sequence[LimitBlock], run: Run) -> list[LimitBlock]:
    """Without those that the end of the run cut short."""
    until = run.stopping_at or math.inf
    return [block for block in blocks if block.counted_until <= until]


def _run_seconds(run: Run) -> float:
    return run.limit_blocks[-1].ended_at - run.limit_blocks[0].began_at


def _limit_row(
    one: LimitRegret,
    best: LimitRegret | None,
    likely_best: LimitRegret | None,
    requests: Sequence[CountedRequest],
) -> LimitRow:
    if one.is_worse:
        verdict = WORSE
    elif one.is_likely_worse:
        verdict = LIKELY_WORSE
    elif one == likely_best:
        verdict = LIKELY_BEST
    elif not one.is_as_good:
        verdict = UNKNOWN
    else:
        verdict = BEST if one == best else AS_GOOD
    return LimitRow(
        limit=one.limit,
        rounds=one.rounds,
        figure=_finite(one.figure),
        regret=_finite(one.regret) if one.is_worse or math.isfinite(one.high) else None,
        regret_low=min(one.low, 1e9),
        regret_high=_finite(one.high),
        verdict=verdict,
        left_open=sum(request.limit == one.limit and request.in_flight for request in requests),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _length_rows(
    found: LimitBlockRecords,
    blocks: Sequence[LimitBlock],
    limits: Sequence[Limit],
    *,
    has_goodput: bool,
) -> Iterator[LimitLengthRow]:
    longest = find_median_length(found.requests)
    of_one_length = all(request.input_tokens <= longest for request in found.requests)
    classes: dict[str, Callable[[int], bool]] = {
        SHORT: lambda tokens: tokens <= longest,
        LONG: lambda tokens: tokens > longest,
    }
    if of_one_length:
        classes = {ALL: lambda tokens: True}
    for limit in limits:
        seconds = sum(block.seconds for block in blocks if block.round and block.limit == limit)
        for prompts, belongs in classes.items():
            some = [
                request
                for request in found.requests
                if request.limit == limit and belongs(request.input_tokens)
            ]
            tokens = sum(request.output_tokens for request in some)
            yield LimitLengthRow(
                limit=limit,
                prompts=prompts,
                requests=len(some),
                failed=sum(request.failed for request in some),
                ttft_from_due_p50_s=_percentile((one.ttft_s for one in some), 50.0),
                ttft_from_due_p95_s=_percentile((one.ttft_s for one in some), 95.0),
                gate_wait_p50_s=_percentile((one.gate_wait_s for one in some), 50.0),
                gate_wait_p95_s=_percentile((one.gate_wait_s for one in some), 95.0),
                longest_stall_p95_s=_percentile(
                    (one.stall_s for one in some if not one.in_flight), 95.0
                ),
                output_tokens_per_s=tokens / seconds if seconds else None,
                goodput_per_s=sum(one.good for one in some) / seconds
                if has_goodput and seconds
                else None,
            )


def _percentile(values: Iterable[float], percentile: float) -> float | None:
    known = sorted(value for value in values if not math.isnan(value))
    return _finite(find_percentile(known, percentile)) if known else None


# -- the answer ------------------------------------------------------------------------------------


def _advise(
    regrets: Sequence[LimitRegret],
    best: LimitRegret | None,
    without: tuple[float, float, float] | None,
) -> int | None:
    """A limit that is among the best, where having none is worse for certain."""
    none = next((one for one in regrets if one.limit is None), None)
    if best is None or best.limit is None or none is None:
        return None
    return best.limit if none.is_worse or (without is not None and without[1] > 1.0) else None


def describe_answer(
    regrets: Sequence[LimitRegret],
    objective: str,
    without: tuple[float, float, float] | None,
    *,
    seconds: float,
    advised: str = "",
) -> str:
    """Which limits are best, what it is without one, and what to use. ``without``: how many times
    as bad it is without a limit as with the best one, and the ends of its interval. ``advised``:
    the time that the run itself found to be needed, as its log has it."""
    known = [one for one in regrets if one.rounds >= LEAST_ROUNDS and math.isfinite(one.high)]
    if not known:
        return _describe_too_few(regrets, objective, seconds=seconds, advised=advised)
    good = [one.limit for one in regrets if one.is_as_good]
    likely_worse = [one.limit for one in regrets if one.is_likely_worse]
    doubtful = [one for one in regrets if not one.is_worse and not one.is_as_good]
    open_ = [one.limit for one in doubtful if not one.is_likely_worse]
    within = f"within {TOLERANCE:.0%}"
    if len(good) == len(regrets):
        return f"All prefill limits are as good as no limit ({within}), so no limit is needed."
    parts = []
    if len(good) == 1:
        parts.append(f"{name_limits(good)} is the best ({within})")
    elif good:
        parts.append(f"{name_limits(good)} are equally good ({within})")
    if open_ and good:
        parts.append(f"{name_limits(open_)} {_be(open_)} not distinguished from that")
    elif len(open_) == 1:
        parts.append(f"{name_limits(open_)} is likely the best")
    elif open_:
        parts.append(f"{name_limits(open_)} are not distinguished")
    if likely_worse:
        parts.append(f"{name_limits(likely_worse)} {_be(likely_worse)} likely worse")
    if (clause := _describe_no_limit(regrets, objective, without)) is not None:
        parts.append(clause)
    may_have_none = any(one.limit is None and not one.is_worse for one in regrets)
    text = f"{capitalise_sentence('; '.join(parts))}."
    if may_have_none and not (without is not None and without[1] > 1.0):
        text += " There is no evidence that a limit helps."
    if doubtful and not good:
        text += _describe_need(regrets, seconds)
    return text


def _describe_too_few(
    regrets: Sequence[LimitRegret], objective: str, *, seconds: float, advised: str
) -> str:
    """What is missing for any interval, and how long a run has it."""
    fewest = min(
        (one for one in regrets if not one.left_out), key=lambda one: one.values, default=None
    )
    least = min(
        (one for one in regrets if not one.left_out), key=lambda one: one.rounds, default=None
    )
    whole = 0 if least is None else least.rounds
    start = "The prefill limits are not distinguished:"
    if whole < LEAST_ROUNDS:
        missing = f"{LEAST_ROUNDS} rounds at each limit are needed"
        count = {0: "none was", 1: "one was"}.get(whole, f"{whole} were")
        if len({one.rounds for one in regrets if not one.left_out}) == 1:
            missing = f"{missing}, {count} done"
        elif least is not None:
            where = "without a limit" if least.limit is None else f"at limit {least.limit}"
            missing = f"{missing}, but only {count} done {where}"
        # how long a round takes is not known without a whole one
        times = LEAST_ROUNDS / whole if whole else None
    elif OBJECTIVES[objective].percentile is not None and fewest and fewest.values < LEAST_VALUES:
        requests = "requests with short prompts" if objective == SHORT_TTFT else "requests"
        where = "without a limit" if fewest.limit is None else f"at limit {fewest.limit}"
        missing = (
            f"a p95 needs {LEAST_VALUES} {requests} at each limit, but {where} there "
            f"{'was' if fewest.values == 1 else 'were'} {fewest.values} in {format_count(fewest.rounds, 'round')}"
        )
        times = VALUES_MARGIN * LEAST_VALUES / max(fewest.values, 1)
    else:
        return f"{start} too many requests failed, or none was good. Compare fewer limits."
    if not advised:
        advised = UNKNOWN_TIME if times is None else advise_run_time(seconds * times, seconds)
    return f"{start} {missing}. {capitalise_sentence(advised)}."


def _describe_no_limit(
    regrets: Sequence[LimitRegret], objective: str, without: tuple[float, float, float] | None
) -> str | None:
    """``without a limit short prompts wait 2.3 times as long as with limit 2 (95% interval 1.9 to
    2.8 times)``"""
    best = _find_best(regrets)
    none = next((one for one in regrets if one.limit is None), None)
    if without is None or none is None or best is None:
        return None
    times, low, high = without
    words = WORDS[objective]
    if OBJECTIVES[objective].less_is_better:
        ends = f"95% interval {_times(low)} to {_times(high)} times"
        long = "about as long" if _times(times) == "1" else f"{_times(times)} times as long"
        return f"without a limit {words.without} {long} as with limit {best.limit} ({ends})"
    least = format_signed(100 / high - 100, 1, "%")
    most = format_signed(100 / low - 100, 1, "%")
    changes = f"95% interval {least} to {most}"
    lower = f"{abs(1 - 1 / times):.1%} {'lower' if times >= 1 else 'higher'} than"
    if lower.startswith("0.0%"):
        lower = "about the same as"
    return f"without a limit {words.without} {lower} with limit {best.limit} ({changes})"


def _times(value: float) -> str:
    return format_brief(value, digits=2 if value < 10 else 3)


def _describe_need(regrets: Sequence[LimitRegret], seconds: float) -> str:
    """What looks best, and how much longer would tell, if all spread as they did."""
    best = min(
        (one for one in regrets if one.regret is not None),
        key=lambda one: one.regret or 0.0,
        default=None,
    )
    if best is None or not math.isfinite(best.surely_high):
        return " A longer run may decide it."
    name = "Having no limit" if best.limit is None else f"Limit {best.limit}"
    reach = f"{best.high:.0%}" if best.high >= 0.01 else f"{best.high:.1%}"
    if find_likely_best(regrets) is not None:  # it is named already
        looks = ""
        decide = "make it certain"
    elif sum(one.regret == best.regret for one in regrets) > 1:
        looks = " The values of the best ones are equal."
        decide = "decide it"
    else:
        looks = f" {name} looks best, and is at most {reach} worse than the best one (95%)."
        decide = "decide it"
    factor = (math.log1p(best.surely_high) / math.log1p(TOLERANCE)) ** 2
    more_s = seconds * (factor - 1)
    if more_s > LONGEST_S:
        return f"{looks} More than {format_duration_rounded_up(LONGEST_S)} more would be needed to {decide}."
    return f"{looks} About {format_duration_rounded_up(more_s)} more would {decide}."


def name_limits(limits: Sequence[Limit]) -> str:
    """``limits 2 to 4``, ``limit 2 and no limit``: whole numbers that follow one another are
    joined."""
    known = [limit for limit in limits if limit is not None]
    runs: list[list[int]] = []
    for limit in known:
        if runs and limit == runs[-1][-1] + 1:
            runs[-1].append(limit)
        else:
            runs.append([limit])
    texts = []
    for run in runs:
        if len(run) > 2:
            texts.append(f"{run[0]} to {run[-1]}")
        else:
            texts += map(str, run)
    word = "limit" if len(known) == 1 else "limits"
    named = f"{word} {_join(texts)}" if known else ""
    if None not in limits:
        return named
    if not known:
        return "no limit"
    return f"{named}, and no limit" if len(texts) > 1 else f"{named} and no limit"


def _be(limits: Sequence[Limit]) -> str:
    return "is" if len(limits) == 1 else "are"


def _join(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


# -- tables ----------------------------------------------------------------------------------------


def make_limit_blocks(found: LimitComparison) -> Iterator[Block]:
    """The answer, each limit against the best one, and the figures by length."""
    yield Heading("Prefill limits")
    yield TextBlock(found.answer)
    if found.ended:
        yield TextBlock(f"The comparison ended: {found.ended}.")
    yield TableBlock(make_limit_head(found), tuple(map(_row_maker(found), found.rows)))
    yield TextBlock(describe_method(found))
    rows = tuple(_length_cells(row, found) for row in found.lengths)
    yield TableBlock(make_length_head(found), rows)
    yield from explain_marks(rows)
    if any(row.prompts == SHORT for row in found.lengths):
        yield TextBlock(
            f"Short: prompts of at most {found.longest_short:,} tokens, at least half of all "
            "requests. TTFT from due and gate wait include all requests that count; a failure "
            "counts as +infinity."
        )


def make_limit_head(found: LimitComparison) -> tuple[str, ...]:
    """Of the table of limits."""
    words = WORDS[found.objective]
    return (
        "Limit", "rounds", f"{words.label} ({words.unit})", "regret", "95% interval", "",
    )  # fmt: skip


def _row_maker(found: LimitComparison) -> Callable[[LimitRow], tuple[str, ...]]:
    return lambda row: make_limit_cells(row, found)


def make_limit_cells(row: LimitRow, found: LimitComparison) -> tuple[str, ...]:
    """Under the head of the table of limits."""
    words = WORDS[found.objective]
    figure = None if row.figure is None else row.figure * words.scale
    high = "-" if row.regret_high is None else _percent(row.regret_high)
    return (
        format_limit(row.limit),
        str(row.rounds),
        f"{INEXACT * row.inexact}{format_number(figure, 4)}{_mark_scarce_figure(row, found)}",
        "-" if row.regret is None else f"+{_percent(row.regret)}",
        "-" if row.regret_high is None else f"{_percent(row.regret_low)} to {high}",
        row.verdict,
    )


def _mark_scarce_figure(row: LimitRow, found: LimitComparison) -> str:
    """The mark of a percentile of too few requests, as in the table by limit and length."""
    if row.figure is None or found.objective not in (SHORT_TTFT, STALL):
        return ""
    of_limit = [length for length in found.lengths if length.limit == row.limit]
    if found.objective == SHORT_TTFT:
        of_limit = [length for length in of_limit if length.prompts != LONG]
    return mark_scarce(sum(length.requests for length in of_limit), 95.0) if of_limit else ""


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 1 else f"{share:.0%}"


def make_length_head(found: LimitComparison) -> tuple[str, ...]:
    """Of the table by limit and length."""
    good = ("goodput/s",) if found.conditions else ()
    return (
        "Limit, prompts", "requests", "failed", "from due p50 (ms)", "p95", "gate wait p50 (ms)",
        "p95", "stall p95 (ms)", "tokens/s", *good,
    )  # fmt: skip


def _length_cells(row: LimitLengthRow, found: LimitComparison) -> tuple[str, ...]:
    def ms(seconds: float | None, metric: Metric, percentile: float) -> str:
        if seconds is None:
            return "-" if not row.requests else "fail"
        inexact = INEXACT * (f"{metric.word} p{percentile:g}" in row.inexact)
        few = mark_scarce(row.requests, percentile)
        return f"{inexact}{format_number(seconds * 1e3, 4)}{few}"

    good = (format_number(row.goodput_per_s, 4),) if found.conditions else ()
    return (
        f"{format_limit(row.limit)}, {row.prompts}",
        str(row.requests),
        str(row.failed),
        ms(row.ttft_from_due_p50_s, TTFT_FROM_DUE, 50),
        ms(row.ttft_from_due_p95_s, TTFT_FROM_DUE, 95),
        ms(row.gate_wait_p50_s, GATE_WAIT, 50),
        ms(row.gate_wait_p95_s, GATE_WAIT, 95),
        "-" if row.longest_stall_p95_s is None else ms(row.longest_stall_p95_s, LONGEST_STALL, 95),
        f"{INEXACT * (TOKENS in row.inexact)}{format_number(row.output_tokens_per_s, 4)}",
        *good,
    )


def describe_method(found: LimitComparison) -> str:
    """What the table rests on."""
    low, high = (f"{seconds:.1f}" for seconds in found.block_s)
    blocks = f"{low} s" if low == high else f"{low} to {high} s"
    which = "The round" if found.rounds == 1 else f"Each of the {found.rounds:,} rounds"
    if not found.rounds:
        which = "A round"
    same = (
        "with the same arrivals and lengths"
        if found.same_arrivals
        else "in a closed loop, where only the time of the blocks is the same"
    )
    left_open = sum(row.left_open for row in found.rows)
    text = (
        "Regret: how much worse a limit is than the best one. "
        f"{which} has a block at each limit, in random order, "
        f"{same}{f'; blocks last {blocks}' if found.rounds else ''}. {format_count(found.left_out, 'request')} "
        "in flight at a change of the limit are not counted"
    )
    if left_open:
        text += (
            f"; {left_open} that were due long before count with their wait so far, but not in "
            "stalls"
        )
    return (
        f"{text}. Best, as good ({TOLERANCE:.0%}) and worse are right for all limits together in "
        "95% of runs, whenever a run ends. Likely: by the interval of that limit alone. Not "
        "distinguished: not decided."
    )


# -- chart -----------------------------------------------------------------------------------------


def plot_limits(found: LimitComparison) -> Iterator[Plot]:
    """Regret by limit with its interval, and TTFT from due by length."""
    rising = [row.limit for row in found.rows if row.limit is not None]
    places: dict[Limit, float] = {limit: float(limit) for limit in rising}
    base = detect_doubling([float(limit) for limit in rising])
    last = float(rising[-1]) if rising else 1.0
    places[None] = last * 2 if base else last + 1
    axis = PlotAxis(
        label="prefill limit",
        log=base,
        low=min(places.values()) / 1.15 if base else min(places.values()) - 0.3,
        high=places[None] * 1.15 if base else places[None] + 0.3,
        ticks=tuple((places[limit], format_limit(limit)) for limit in (*rising, None)),
    )
    ordered = sorted(found.rows, key=lambda row: places[row.limit])
    if sum(row.figure is not None for row in ordered) > 1:
        yield _plot_objective(found, ordered, places, axis)
    lines = []
    for prompts, hue in ((SHORT, "p50"), (LONG, "p99"), (ALL, "p50")):
        rows = [
            row
            for row in found.lengths
            if row.prompts == prompts and row.ttft_from_due_p95_s is not None
        ]
        rows.sort(key=lambda row: places[row.limit])
        if rows:
            values = np.array([(row.ttft_from_due_p95_s or 0.0) * 1e3 for row in rows])
            name = f"p95, {prompts} prompts"
            lines.append(
                PlotSeries(name, hue, [places[row.limit] for row in rows], round_values(values))
            )
    if lines:
        yield Plot(
            title="TTFT from due by limit",
            caption=(
                "p95 of all requests that count at a limit, including their wait for a prefill "
                "slot."
            ),
            label="; ".join(map(_describe_least_value, lines)),
            x=axis,
            y=PlotAxis(label="TTFT from due", unit="ms", low=0.0),
            series=tuple(lines),
        )


def _plot_objective(
    found: LimitComparison,
    rows: Sequence[LimitRow],
    places: Mapping[Limit, float],
    axis: PlotAxis,
) -> Plot:
    """The objective at each limit, with how far it may be from that of the best limit."""
    words = WORDS[found.objective]
    known = [row for row in rows if row.figure is not None]
    figures = [row.figure * words.scale for row in known if row.figure is not None]
    less_is_better = OBJECTIVES[found.objective].less_is_better
    best = min(figures) if less_is_better else max(figures)

    def at(regret: float) -> float:
        return best * (1 + regret) if less_is_better else best / (1 + regret)

    ends = list[tuple[float | None, float | None]]()
    for row in known:
        if row.regret_high is None:
            ends.append((None, None))
        else:
            low, high = sorted((at(row.regret_low), at(row.regret_high)))
            ends.append((low, high))
    good = [format_limit(row.limit) for row in known if row.verdict in (BEST, AS_GOOD)]
    bars = " Bars: 95% intervals of the distance from the best limit." * any(
        high is not None for _, high in ends
    )
    each = ", ".join(
        f"{format_brief(figure, words.unit, 3)} at {format_limit(row.limit)}"
        for row, figure in zip(known, figures, strict=True)
    )
    return Plot(
        title=f"{words.label[:1].upper()}{words.label[1:]} by limit",
        caption=f"{'Less' if less_is_better else 'More'} is better; none: without a limit.{bars}",
        label=f"{each}; best or as good: {', '.join(good) or 'not known'}",
        x=axis,
        y=PlotAxis(label=words.label, unit=words.unit, low=0.0),
        series=(
            PlotSeries(
                words.label,
                "p95",
                [places[row.limit] for row in known],
                round_values(np.array(figures)),
                low=[low for low, _ in ends],
                high=[high for _, high in ends],
            ),
        ),
    )


def _describe_least_value(line: PlotSeries) -> str:
    least = min(value for value in line.y if value is not None)
    return f"{line.name}: {format_duration(least / 1e3)} at least"


# -- section ---------------------------------------------------------------------------------------


def _find(material: ReportMaterial) -> LimitComparison | None:
    found = compare_limits(material.run, material.records)
    if found is None:
        return None
    readings = list_metric_readings(material.history)
    outages = find_run_outages(material.columns, material.run, readings)
    found = replace(found, silent_blocks=tuple(_list_silent_blocks(material.run, outages)))
    if material.inexact.sources is None:
        return found
    return replace(
        found,
        rows=tuple(_mark_figure(row, found, material) for row in found.rows),
        lengths=tuple(_mark_lengths(row, found, material) for row in found.lengths),
    )


def _mark_figure(row: LimitRow, found: LimitComparison, material: ReportMaterial) -> LimitRow:
    """The objective of a limit, marked as the same value is in the table by limit and length."""
    stats = {SHORT_TTFT: f"{TTFT_FROM_DUE.word} p95", STALL: f"{LONGEST_STALL.word} p95"}
    prompts = SHORT if found.objective == SHORT_TTFT else ALL
    if all(length.prompts == ALL for length in found.lengths):
        prompts = ALL
    wrong = _find_inexact(row.limit, prompts, found, material)
    return replace(row, inexact=stats.get(found.objective, found.objective) in wrong)


def _mark_lengths(
    row: LimitLengthRow, found: LimitComparison, material: ReportMaterial
) -> LimitLengthRow:
    return replace(row, inexact=_find_inexact(row.limit, row.prompts, found, material))


def _find_inexact(
    limit: Limit, prompts: str, found: LimitComparison, material: ReportMaterial
) -> tuple[str, ...]:
    """The values of a limit, or of its short or long prompts, that may be too wrong."""
    requests = material.columns.requests
    of_limit = requests.has("arm", format_limit(limit)) & requests.has("phase", PROFILING)
    part = RequestSelection(requests, of_limit)
    if prompts != ALL:
        is_short = estimate_input_lengths(part) <= found.longest_short
        part = part.where(is_short if prompts == SHORT else ~is_short)
    wrong = [TOKENS] * material.inexact.is_rate_inexact(part)
    for metric in (TTFT_FROM_DUE, GATE_WAIT, LONGEST_STALL):
        stats = material.inexact.find_stats(metric, part, (50.0, 95.0))
        wrong += [f"{metric.word} {stat}" for stat in stats]
    return tuple(wrong)


def _list_silent_blocks(run: Run, outages: Sequence[Outage]) -> Iterator[str]:
    for block in run.limit_blocks:
        counted = block.settled_at, block.counted_until
        if block.round and select_spans_within(outages, run, counted):
            yield f"limit {format_limit(block.limit)} in round {block.round}"


def _draw(found: LimitComparison, material: ReportMaterial) -> Iterator[Plot]:
    return plot_limits(found)


BEST_LIMIT: Final = ReportSection(
    name=PREFILL_LIMITS,
    subject="the comparison of prefill limits",
    finding=LimitComparison,
    find=_find,
    make_blocks=make_limit_blocks,
    chart_heading="Prefill limits compared",
    draw=_draw,
    shows_arms=True,
)
