"""Measurement error: how far each value of a run may be off by the load generator's own doing, from
its measurements.

The value of each request has a least and a most. Merged chunks lie between the stamps around them,
and the load generator's own delays are known from its own stamps. slo/load_generator_health.py declares
which delay can be in which metric. In addition every stamp may be off as the reference streams'
stamps are (records/timing_accuracy.py): the true values are the reported ones less errors with that
distribution. The value at the least and the value at the most are the two ends.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.records.buffering import find_core_wait
from locust_llm.records.outcomes import CUT, OK
from locust_llm.records.run_facts import ProcessHealth, Run
from locust_llm.records.timing_accuracy import (
    Ends,
    ErrorBounds,
    OrderedValues,
    combine_accuracies,
    combine_sentinel_errors,
    largest_error_ms,
    percentile_error_ends,
    spread_over_tokens,
)
from locust_llm.report.array_types import Floats
from locust_llm.report.gate_occupancy import permit_lag_s
from locust_llm.report.inter_token_gaps import GapCounts, merge_gap_counts
from locust_llm.report.load_records import PROMPT_US, CoalescedGaps
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable
from locust_llm.report.summary_rows import Row
from locust_llm.report.waits_for_user import LONG_WAIT_S, measure_waits_for_user_s
from locust_llm.slo.load_generator_health import (
    BURST_SENT,
    CLOCKS,
    FROM_DUE,
    LATE_PERMIT,
    LATE_READ,
    LATE_SEND,
    LATE_USER,
    MERGED,
    RATES,
    SENT_TOGETHER,
    SENTINELS,
    TOUCHES,
    UNCERTIFIED,
    UNUSABLE_SHARE,
    FigureError,
    can_touch,
)
from locust_llm.slo.metric_definitions import (
    BY_NAME,
    BY_WORD,
    GIVEN,
    ITL,
    LATENCY,
    PER_USER,
    POOLED,
    RATE,
    TTFT,
    TTFT_FROM_DUE,
    Metric,
)
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.slo.rules import Rule
from locust_llm.text.format import name_percentile

from .censoring import (
    bound_rate_amounts,
    bound_share_hits,
    count_later_tokens,
)
from .observed_rule_values import (
    Evaluation,
    ObservedValue,
    bound_rule_values,
    collect_gaps,
    compute_rule_value,
    select_requests,
)

PROMPT_S: Final = PROMPT_US / 1e6
"""A read within this time was prompt: its chunks were sent together. A user that begins within this time
after an answer is not late: any client needs some of it."""
LEAST_OVERDUE_S: Final = 0.1
LEAST_BURST: Final = 2
"""So many overdue requests that are sent together are a burst."""
JUDGED: Final = (50.0, 95.0, 99.0)
"""The percentiles that count for the verdict beside averages, where enough values are behind
them."""
TOUCHED: Final = frozenset(
    chain.from_iterable(words for cause, words in TOUCHES.items() if cause != UNCERTIFIED)
)
ENDLESS_MS: Final = 1e15
COLUMNS: Final = (
    "ttft_s", "ttfo_s", "ttft_from_due_s", "latency_s", "itl_s", "longest_stall_s", "gate_wait_s",
    "late_s",
    "fluidity", "qoe", "reading_stall_s",
)  # fmt: skip
"""The columns of requests that a cause can touch."""
LOWERED: Final = ("fluidity", "qoe")
"""A late stamp lowers these metrics, and raises every other one."""
WORD_OF: Final = {
    measure.metric.column: word
    for word, measure in BY_WORD.items()
    if measure.metric is not None and measure.metric.column and measure.metric is not PER_USER
}

Reach = tuple[Floats, Floats]
"""How much lower, and how much higher, the value of each request may be."""
Figure = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class ErrorSources:
    """The measurements of the load generator in one run."""

    first: ErrorBounds | None = None
    """The error of times from a send to a chunk, by reference streams. None: there were none."""
    gap: ErrorBounds | None = None
    permit_s: Floats | None = None
    """The wait at the gate while a permit was free, by row of the requests."""
    clock_s: float = 0.0
    """The largest difference of its machines' clocks."""
    read_share: float = 0.0
    """The share of the time for which slots of the gate were held that lay before their return was
    read."""
    closed_loop: bool = False
    begin_delay_s: Floats | None = None
    """In an open loop without a number of users, the time from due to the user's begin while not all users
    that it may start were busy, by row of the requests: the load generator was late."""
    merging: str = MERGED
    """The cause of merged chunks."""
    bursts: tuple[tuple[float, float], ...] = ()
    """(from, to) in Unix seconds, from the end of a standstill until the last of the requests was
    over that were due in it."""


class Certificates(NamedTuple):
    """The results of the reference streams of all processes."""

    errors: tuple[ErrorBounds, ErrorBounds] | None = None
    """(error of their TTFT, error of their gaps)."""
    chunks: int = 0
    missing: str = ""
    """Why there are no results, where some were expected."""


def describe_certificates(run: Run) -> Certificates:
    found = [health.certificate for health in run.health if health.certificate is not None]
    if (errors := combine_sentinel_errors(found)) is None:
        return Certificates(missing=next((one.missing for one in found if one.missing), ""))
    return Certificates(errors, sum(one.chunks for one in found))


def find_error_sources(requests: RequestTable, run: Run) -> ErrorSources:
    """``requests`` has all of the run. An imported run has no known errors."""
    if run.imported or not len(requests):
        return ErrorSources()
    found = [health.certificate for health in run.health if health.certificate is not None]
    both = combine_accuracies(found)
    first, gap = both if both is not None else (None, None)
    every = RequestSelection(requests, np.ones(len(requests), np.bool_))
    permits = bool(run.limits) and len(requests.texts("worker").count_rows()) > 1
    held_s = np.nansum(every["ttft_s"])
    late_s = _late_frees(every).sum()
    merged = every["merged"]
    prompt = _prompt(every)
    together = (
        run.stream_was_buffered
        or (run.gathered_by_unknown and not find_core_wait(run.health))
        or (merged.sum() > 0 and merged[prompt].sum() > merged.sum() / 2)
    )
    return ErrorSources(
        first=first,
        gap=gap,
        permit_s=permit_lag_s(requests, run.limits) if permits else None,
        clock_s=max((health.clock_error_s or 0.0 for health in run.health), default=0.0),
        read_share=float(late_s / (held_s + late_s)) if run.limits and held_s > 0 else 0.0,
        closed_loop=not run.settings.open_loop,
        begin_delay_s=_measure_begin_delays(requests, run),
        merging=SENT_TOGETHER if together else MERGED,
        bursts=tuple(_list_bursts(every, run)),
    )


def find_overdue(part: RequestSelection, health: ProcessHealth) -> "np.typing.NDArray[np.bool_]":
    """Which requests were due while this process stood still, and were sent later. In a closed loop
    a request is due when its user sends it."""
    overdue = np.zeros(part.size, np.bool_)
    late = part["sent_at"] - part["due_at"] > LEAST_OVERDUE_S
    own = part.requests.has("worker", health.worker)[part.chosen]
    for since, seconds in health.standstills or ():
        overdue |= (part["due_at"] >= since) & (part["due_at"] < since + seconds) & late & own
    return overdue


def _list_bursts(every: RequestSelection, run: Run) -> Iterator[tuple[float, float]]:
    for health in run.health:
        for since, seconds in health.standstills or ():
            one = msgspec.structs.replace(health, standstills=((since, seconds),))
            overdue = find_overdue(every, one)
            if np.count_nonzero(overdue) >= LEAST_BURST:
                yield since + seconds, float(every["closed_at"][overdue].max())


def _prompt(part: RequestSelection) -> "np.typing.NDArray[np.bool_]":
    """Which answers were read at once, by the kernel's stamps."""
    kernel = part.requests.has("clock", "kernel")[part.chosen]
    lag_s = part["read_lag_us"] / 1e6
    return np.asarray((lag_s > 0) & (lag_s < PROMPT_S) & kernel)


def _late_reads(part: RequestSelection) -> Floats:
    """How much later than prompt the latest read of each answer was."""
    return np.nan_to_num(np.maximum(part["read_lag_us"] / 1e6 - PROMPT_S, 0.0))


def _late_frees(part: RequestSelection) -> Floats:
    """How much later than prompt a slot was given back after the first chunk."""
    late_s = part["freed_at"] - part["first_chunk_at"] - PROMPT_S
    return np.where(np.isnan(late_s), _late_reads(part), np.maximum(late_s, 0.0))


def late_sends_s(part: RequestSelection) -> Floats:
    """The load generator's own time from admission to send."""
    return np.nan_to_num(np.maximum(part["send_delay_s"], 0.0))


def _measure_begin_delays(requests: RequestTable, run: Run) -> Floats | None:
    """None: a fixed number of users may all be busy, or not be started yet."""
    if not run.settings.open_loop or run.settings.users is not None or run.offer is None:
        return None
    users = run.offer.most_users if run.offer.out_of_users else None
    delay_s = requests.floats("asked_at") - requests.floats("due_at")
    delay_s = delay_s - measure_waits_for_user_s(requests, users)
    # the server may be slow to accept
    delay_s = delay_s - np.nan_to_num(requests.floats("connect_s"))
    # a retry waited for its refused attempt, a turn of a trace for the answer before
    waited = requests.floats("attempt") > 1
    if run.settings.fixed_schedule:
        waited |= requests.floats("turn") > 0
    if users is not None and run.settings.has_own_code:
        waited = waited | (delay_s > LONG_WAIT_S)  # users in code of the locustfile have no request
    return np.where(waited | np.isnan(delay_s), 0.0, np.maximum(delay_s, 0.0))


def _select_rows(known_s: Floats | None, part: RequestSelection) -> Floats:
    """The values of the part's requests; zeros where nothing is known."""
    if known_s is None:
        return np.zeros(part.size)
    chosen: Floats = known_s[part.requests.numbers[part.chosen]]
    return chosen


# -- of each request -------------------------------------------------------------------------------


def find_request_errors(
    part: RequestSelection, column: str, sources: ErrorSources
) -> Iterator[tuple[str, Reach]]:
    """The error by cause, without the reference streams', in the unit of the column. Causes that
    cannot touch its metric are left out."""
    word = WORD_OF[column]
    none = np.zeros(part.size)
    below, above = _merged_reach(part, column)
    if below.any() or above.any():
        yield sources.merging, (below, above)
    if column in ("fluidity", "qoe", "reading_stall_s"):
        return
    late = late_sends_s(part)
    if word in FROM_DUE:
        late = late + _select_rows(sources.begin_delay_s, part)
    if can_touch(LATE_SEND, word) and late.any():
        # what is counted from the send is another load's, be it more or less
        yield LATE_SEND, (late, none if word in FROM_DUE else late)
    if can_touch(BURST_SENT, word) and sources.bursts:
        shorter = _find_burst_reach(part, column, sources)
        if shorter.any():
            yield BURST_SENT, (shorter, none)
    permit = _select_rows(sources.permit_s, part)
    if can_touch(LATE_PERMIT, word) and permit.any():
        yield LATE_PERMIT, (permit, none)
    if can_touch(LATE_READ, word) and sources.read_share:
        yield LATE_READ, (np.nan_to_num(part["gate_wait_s"]) * sources.read_share, none)
    if can_touch(CLOCKS, word) and sources.clock_s:
        yield CLOCKS, (none + sources.clock_s, none + sources.clock_s)


def _find_burst_reach(part: RequestSelection, column: str, sources: ErrorSources) -> Floats:
    """By how much less a request may have taken without a burst that it met: down to the least of
    those that met none."""
    first = column in (TTFT.column, TTFT_FROM_DUE.column, "ttfo_s")
    over = part["first_chunk_at" if first else "last_chunk_at"]
    met = np.zeros(part.size, np.bool_)
    for since, until in sources.bursts:
        met |= (over > since) & (part["sent_at"] < until)
    values = part[column]
    apart = values[~met & ~np.isnan(values)]
    least = float(apart.min()) if len(apart) else 0.0
    return np.where(met, np.maximum(np.nan_to_num(values) - least, 0.0), 0.0)


def _merged_reach(part: RequestSelection, column: str) -> Reach:
    """The error that the stamps around merged chunks leave open."""
    none = np.zeros(part.size)
    first = _as_prompt(part, part["ttft_s"] - part["ttft_soonest_s"])
    last = _as_prompt(part, part["latency_s"] - part["latency_soonest_s"])
    if column in (TTFT.column, TTFT_FROM_DUE.column):
        return first, none
    if column == "ttfo_s":
        return np.where(part["ttfo_s"] == part["ttft_s"], first, 0.0), none
    if column == LATENCY.column:
        return last, none
    if column == ITL.column:  # what came merged in between moves neither of its ends
        tokens = count_later_tokens(part)
        return np.nan_to_num(last / tokens), np.nan_to_num(first / tokens)
    if column == "longest_stall_s":
        stall = part[column]
        return (
            np.nan_to_num(stall - part["longest_stall_least_s"]),
            np.nan_to_num(part["longest_stall_most_s"] - stall),
        )
    if column in LOWERED:  # each of them may have met its deadline
        share = np.nan_to_num(part["merged"] / np.maximum(part["chunks"], 1))
        return none, share
    if column == "reading_stall_s":
        return np.nan_to_num(part["longest_stall_s"] - part["longest_stall_least_s"]), none
    return none, none


def _as_prompt(part: RequestSelection, early_s: Floats) -> Floats:
    """The error bounded by the time within which chunks of a prompt read came."""
    known = np.nan_to_num(np.maximum(early_s, 0.0))
    return np.where(_prompt(part), np.minimum(known, PROMPT_S), known)


def move_requests(
    requests: RequestTable,
    sources: ErrorSources,
    *,
    most: bool,
    stamps: bool = False,
    columns: Sequence[str] = COLUMNS,
) -> RequestTable:
    """The requests with every value at its least, or at its most, as far as the causes allow. A
    metric of which more is better goes the other way. ``stamps``: also by the largest error of a
    reference stream. ``columns``: those that are needed."""
    every = RequestSelection(requests, np.ones(len(requests), np.bool_))
    moved = dict[str, Floats]()
    for column in columns:
        values = every[column]
        bounds = bounds_of(WORD_OF[column], every, sources) if stamps else None
        off = np.full(len(values), 0.0 if bounds is None else bounds.max_ms / 1e3)
        for _, reach in find_request_errors(every, column, sources):
            off = off + reach[most]
        if off.any():
            moved[column] = np.maximum(values + (off if most else -off), 0.0)
    return requests.replace_columns(moved) if moved else requests


def bounds_of(word: str, part: RequestSelection, sources: ErrorSources) -> ErrorBounds | None:
    """The distribution of the reference streams' errors that is in one value of a metric."""
    if sources.first is None or sources.gap is None or word not in TOUCHES[SENTINELS]:
        return None
    if word in ("fluidity", "qoe", "reading_stall"):
        return None
    if word in ("itl", "output_tokens_per_s_per_user"):
        later = count_later_tokens(part)
        return spread_over_tokens(sources.gap, later[np.isfinite(later)].tolist())
    return sources.gap if word in ("icl", "longest_stall") else sources.first


# -- figures of a report ---------------------------------------------------------------------------


def measure_figure_errors(
    rows: Sequence[Row],
    ok: RequestSelection,
    run: Run,
    sources: ErrorSources,
    gaps: GapCounts,
    merged: CoalescedGaps | None,
) -> Iterator[FigureError]:
    """The errors of every value in these rows that the load generator can have wrong. Latencies are
    in ms, as in the tables.

    ``gaps`` are the exact gaps, ``merged`` the gaps beside merged chunks.
    """
    waits = run.settings.open_loop or bool(run.limits)
    for row in rows:
        measure = BY_NAME.get(row.tag)
        if measure is None or row.avg is None or measure.word not in TOUCHED:
            continue
        if measure.word == "late" or (measure.word in FROM_DUE and not waits):
            continue  # it is the delay of the load generator itself, or the same as another row
        if measure.word in RATES and measure.word not in GIVEN:
            yield _rate_error(row, measure.word, ok, sources)
        elif row.tag == POOLED:
            yield from _gap_errors(row, sources, gaps, merged)
        elif measure.metric is not None and measure.metric.column in WORD_OF and row.unit == "ms":
            yield from measure_latency_errors(row, measure.metric, ok, sources)


def measure_compared_ttft(ttft_s: float | None, run: Run) -> Iterator[FigureError]:
    """For an experiment, whose prompts differ in length: the least TTFT that it compares, against
    the error of one."""
    both = combine_accuracies([health.certificate for health in run.health])
    if ttft_s is not None and both is not None:
        off_ms = both[0].of_one_ms
        yield FigureError(
            word=TTFT.word, stat="min", label="least TTFT compared", unit="ms",
            value=ttft_s * 1e3, lower=off_ms, higher=off_ms, causes={SENTINELS: off_ms},
        )  # fmt: skip


def measure_latency_errors(
    row: Row, metric: Metric, ok: RequestSelection, sources: ErrorSources
) -> Iterator[FigureError]:
    """The errors of a row of these requests, of its percentiles, its ends and its mean."""
    values = ok[metric.column]
    there = ~np.isnan(values)
    reported = values[there] * 1e3
    each = {
        cause: (low[there] * 1e3, high[there] * 1e3)
        for cause, (low, high) in find_request_errors(ok, metric.column, sources)
    }
    bounds = bounds_of(metric.word, ok, sources)
    if not len(reported):
        return
    below = sum((low for low, _ in each.values()), np.zeros(len(reported)))
    above = sum((high for _, high in each.values()), np.zeros(len(reported)))
    below = np.minimum(below, reported)  # two causes may explain the same part of a value
    whole = _ordered(reported)
    ends = {cause: _moved(reported, *reach, whole) for cause, reach in each.items()}
    both = next(iter(ends.values())) if len(ends) == 1 else _moved(reported, below, above, whole)
    for shown in _list_percentiles(row):
        percentile = shown.percentile
        causes = {
            cause: max(percentile_error_ends(percentile, least, whole, most, None))
            for cause, (least, most) in ends.items()
        }
        if bounds is not None:
            causes[SENTINELS] = max(percentile_error_ends(percentile, whole, whole, whole, bounds))
        found = percentile_error_ends(percentile, both[0], whole, both[1], bounds)
        yield _percentile_of(row, metric.word, shown, found, causes)
    assert row.avg is not None
    off = 0.0 if bounds is None else largest_error_ms(bounds, average=True)
    causes = {cause: max(low.mean(), high.mean()) for cause, (low, high) in each.items()}
    causes[SENTINELS] = off
    found = float(below.mean()) + off, float(above.mean()) + off
    yield _figure_of(row, metric.word, "avg", row.avg, found, causes)


def _ordered(values_ms: Floats) -> OrderedValues:
    return OrderedValues(np.sort(values_ms).data)  # as a list it would take four times as much


def _moved(
    values: Floats, below: Floats, above: Floats, whole: OrderedValues
) -> tuple[OrderedValues, OrderedValues]:
    """``whole``: the values in order, where nothing moves them."""
    lower = np.maximum(values - below, 0.0)
    least = whole if np.array_equal(lower, values) else _ordered(lower)
    return least, _ordered(values + above) if above.any() else whole


def _gap_errors(
    row: Row, sources: ErrorSources, gaps: GapCounts, merged: CoalescedGaps | None
) -> Iterator[FigureError]:
    if not gaps.count:
        return
    least = GapCounts()
    most = GapCounts()
    for counts in (least, most):
        counts.merge(gaps)
    if merged is not None:
        least.merge(merged.least)
        most.merge(merged.most)
    low = least.ordered()
    reported = gaps.ordered()
    high = most.ordered()
    for shown in _list_percentiles(row):
        percentile = shown.percentile
        causes = dict[str, float]()
        if merged is not None:
            causes[sources.merging] = max(
                percentile_error_ends(percentile, low, reported, high, None)
            )
        if sources.gap is not None:
            causes[SENTINELS] = max(
                percentile_error_ends(percentile, reported, reported, reported, sources.gap)
            )
        found = percentile_error_ends(percentile, low, reported, high, sources.gap)
        yield _percentile_of(row, "icl", shown, found, causes)
    yield _gap_mean_error(row, sources, (least, gaps, most))


def _gap_mean_error(
    row: Row, sources: ErrorSources, counted: tuple[GapCounts, GapCounts, GapCounts]
) -> FigureError:
    """No verdict is of the mean of gaps."""
    low, mean, high = (gaps.avg_ms or 0.0 for gaps in counted)
    off = 0.0 if sources.gap is None else largest_error_ms(sources.gap, average=True)
    moved = max(mean - low, 0.0), max(high - mean, 0.0)
    causes = {sources.merging: max(moved), SENTINELS: off}
    found = _figure_of(row, "icl", "avg", mean, (moved[0] + off, moved[1] + off), causes)
    return msgspec.structs.replace(found, judged=False)


def _rate_error(row: Row, word: str, ok: RequestSelection, sources: ErrorSources) -> FigureError:
    """A late user of a closed loop sends less. In an open loop the schedule decides."""
    assert row.avg is not None
    shares = dict(lost_shares(ok, sources))
    causes = {cause: row.avg * share / (1 - share) for cause, share in shares.items()}
    lost = min(sum(shares.values()), 0.99)
    higher = row.avg * lost / (1 - lost)
    return _figure_of(row, word, "", row.avg, (0.0, higher), causes)


def lost_shares(part: RequestSelection, sources: ErrorSources) -> Iterator[tuple[str, float]]:
    """The shares of the time of a closed loop's users that the load generator added, from one
    answer to the next."""
    whole_s = float(np.nansum(part["cycle_s"]))
    if not sources.closed_loop or not whole_s > 0:
        return
    between_s = part["turnaround_s"]
    # the last read is late within the time between requests, where that is known
    late_reads_s = _late_reads(part) * float(np.isnan(between_s).mean())
    if sources.read_share > 0:
        late_reads_s = np.maximum(late_reads_s, _late_frees(part))
    for cause, late_s in (
        (LATE_SEND, late_sends_s(part)),
        (LATE_PERMIT, _select_rows(sources.permit_s, part)),
        (LATE_READ, late_reads_s),
        (LATE_USER, np.nan_to_num(np.maximum(between_s - PROMPT_S, 0.0))),
    ):
        if share := min(float(late_s.sum()) / whole_s, 0.99):
            yield cause, share


class _ShownPercentile(NamedTuple):
    """A percentile of a row by the name of its statistic."""

    stat: str
    percentile: float
    value: float


def _list_percentiles(row: Row) -> Iterator[_ShownPercentile]:
    """The percentiles of a row, and its ends, which are p0 and p100."""
    for percentile, value in row.percentiles.items():
        yield _ShownPercentile(name_percentile(percentile), percentile, value)
    for stat, percentile, end in (("min", 0.0, row.min), ("max", 100.0, row.max)):
        if end is not None:
            yield _ShownPercentile(stat, percentile, end)


def _percentile_of(
    row: Row, word: str, shown: _ShownPercentile, ends: Ends, causes: dict[str, float]
) -> FigureError:
    found = _figure_of(row, word, shown.stat, shown.value, ends, causes)
    few = has_too_few_values(row.count or 0, shown.percentile)
    return msgspec.structs.replace(found, judged=shown.percentile in JUDGED and not few)


def _figure_of(
    row: Row, word: str, stat: str, value: float, ends: Ends, causes: dict[str, float]
) -> FigureError:
    largest_first = sorted(causes.items(), key=lambda pair: -pair[1])
    return FigureError(
        word=word,
        stat=stat,
        label=f"{row.label} {stat}".strip(),
        unit="ms" if row.unit == "ms" else "/s",
        value=value,
        lower=float(ends[0]),
        higher=float(ends[1]),
        causes={cause: float(most) for cause, most in largest_first if most > 0},
    )


# -- figures of rules ------------------------------------------------------------------------------


class RuleError(NamedTuple):
    """How far the value of a rule may be off, in its base unit."""

    lower: float = 0.0
    higher: float = 0.0
    causes: tuple[str, ...] = ()

    @property
    def none(self) -> bool:
        return not self.lower and not self.higher

    def survives(self, rule: Rule, found: ObservedValue) -> bool:
        """Whether the decision stays the same with the limit nearer by the error."""
        holds = found.decides(rule)
        if holds is None or self.none:
            return True
        less = bool(rule.base) or rule.op.startswith("<")
        shift = -self.higher if less == holds else self.lower
        moved = msgspec.structs.replace(rule, number=rule.number + shift * rule.factor)
        return found.decides(moved) == holds

    def hides(self, rule: Rule, found: ObservedValue) -> bool:
        """Whether it is so large that nobody knows on which side of the limit the value is: then no
        longer run, and no likely result, follows from the interval."""
        value = found.value
        if rule.base or value is None or not math.isfinite(value):
            return False
        if max(self.lower, self.higher) <= UNUSABLE_SHARE * abs(value):
            return False
        return (
            len({rule.holds(end) for end in (value - self.lower, value, value + self.higher)}) > 1
        )


def measure_rule_error(rule: Rule, seen: Evaluation) -> RuleError:
    """The error over the requests that the rule selects. For a rule with a base: see
    combine_rule_errors."""
    measure = BY_WORD[rule.metric]
    sources = find_error_sources(seen.main.requests, seen.run)
    if seen.run.imported or rule.metric not in (*TOUCHED, *GIVEN):
        return RuleError()
    part = select_requests(rule, seen.main)
    if rule.metric in GIVEN:
        return _error_of_conditions(rule, seen, sources)
    if measure.metric is None:
        value = _rate(rule, seen)
        shares = dict(lost_shares(part.outcome(OK), sources))
        lost = min(sum(shares.values()), 0.99)
        return RuleError(0.0, value * lost / (1 - lost), tuple(shares))
    if measure.tag == POOLED:
        return _error_of_gaps(rule, part, seen, sources)
    if measure.metric is PER_USER:
        return _error_of_paces(rule, seen)
    return _error_of_values(rule, part, seen, sources)


def _error_of_paces(rule: Rule, seen: Evaluation) -> RuleError:
    """The error of the tokens a second of one user. Each is 1 / ITL, so the fastest have the least
    ITL."""
    stat = {"min": "max", "max": "min"}.get(rule.stat, rule.stat)
    if rule.percentile is not None:
        stat = f"p{100 - rule.percentile:g}"
    twin = msgspec.structs.replace(rule, metric=ITL.word, stat=stat, unit="s")
    itl_s = compute_rule_value(twin, seen).value
    error = measure_rule_error(twin, seen)
    if not itl_s or not math.isfinite(itl_s):
        return RuleError()
    fastest = 1 / (itl_s - error.lower) if error.lower < itl_s else math.inf
    return RuleError(1 / itl_s - 1 / (itl_s + error.higher), fastest - 1 / itl_s, error.causes)


def _error_of_values(
    rule: Rule, part: RequestSelection, seen: Evaluation, sources: ErrorSources
) -> RuleError:
    metric = BY_WORD[rule.metric].metric
    assert metric is not None
    bounds = bounds_of(rule.metric, part.outcome(OK), sources)
    causes = tuple(cause for cause, _ in find_request_errors(part, metric.column, sources))
    whole = bound_rule_values(rule, part, seen).low

    def move(*, most: bool) -> Floats:
        needed = (metric.column, "late_s")  # its bounds need no other
        moved = move_requests(part.requests, sources, most=most, columns=needed)
        if moved is part.requests:
            return whole
        return bound_rule_values(rule, RequestSelection(moved, part.chosen), seen).low

    low = move(most=False)
    high = move(most=True)
    if not len(whole):
        return RuleError()
    lower, higher = _ends_of(rule, low, whole, high, bounds)
    if bounds is not None:
        causes += (SENTINELS,)
    return RuleError(lower, higher, causes)


def _ends_of(
    rule: Rule, low: Floats, whole: Floats, high: Floats, bounds: ErrorBounds | None
) -> Ends:
    if rule.percentile is not None:
        reported = _order_all(whole)
        least, most = (reported if side is whole else _order_all(side) for side in (low, high))
        below, above = percentile_error_ends(rule.percentile, least, reported, most, bounds)
        return below / 1e3, above / 1e3
    if rule.stat == "avg":
        off_s = 0.0 if bounds is None else largest_error_ms(bounds, average=True) / 1e3
        return float(whole.mean() - low.mean()) + off_s, float(high.mean() - whole.mean()) + off_s
    off_s = 0.0 if bounds is None else bounds.max_ms / 1e3
    end = np.min if rule.stat == "min" else np.max
    lowest, value, highest = (float(end(side)) for side in (low, whole, high))
    if math.isinf(value):
        return 0.0, 0.0
    return value - lowest + off_s, highest - value + off_s


def _order_all(seconds: Floats) -> OrderedValues:
    """The values in order. Failures are values without end."""
    return _ordered(np.nan_to_num(np.clip(seconds * 1e3, 0.0, ENDLESS_MS)))


def _error_of_gaps(
    rule: Rule, part: RequestSelection, seen: Evaluation, sources: ErrorSources
) -> RuleError:
    answered = part.outcome(OK, CUT)
    low, high, _ = collect_gaps(answered, seen, merged=True)
    exact, _, _ = collect_gaps(answered, seen)
    least, whole, most = (merge_gap_counts(some) for some in (low, exact, high))
    if not whole.count:
        return RuleError()
    causes = (sources.merging,) * (least.count > whole.count) + (SENTINELS,) * bool(sources.gap)
    if rule.percentile is not None:
        below, above = percentile_error_ends(
            rule.percentile, least.ordered(), whole.ordered(), most.ordered(), sources.gap
        )
        return RuleError(below / 1e3, above / 1e3, causes)
    name = {"avg": "avg_ms", "min": "min_ms", "max": "max_ms"}[rule.stat]
    ends = [getattr(some, name) or 0.0 for some in (least, whole, most)]
    off = 0.0
    if sources.gap is not None:
        off = largest_error_ms(sources.gap, average=rule.stat == "avg")
    return RuleError(
        max(ends[1] - ends[0] + off, 0.0) / 1e3, max(ends[2] - ends[1] + off, 0.0) / 1e3, causes
    )


def _error_of_conditions(rule: Rule, seen: Evaluation, sources: ErrorSources) -> RuleError:
    """The error of a share or a rate of good requests: with every value at its least, and at its
    most."""
    requests = seen.main.requests
    best, worst = (
        move_requests(requests, sources, most=side, stamps=True) for side in (False, True)
    )
    causes = {
        cause
        for condition, cause in product(rule.given, TOUCHES)
        if can_touch(cause, condition.metric)
    }
    if BY_WORD[rule.metric].units is RATE:
        low, value, high = (
            _rate(rule, seen._replace(ended=RequestSelection(one, seen.ended.chosen)))
            for one in (worst, requests, best)
        )
        lost = min(sum(dict(lost_shares(seen.main.outcome(OK), sources)).values()), 0.99)
        high = high / (1 - lost)
    else:
        low, value, high = (
            _share(rule, RequestSelection(one, seen.main.chosen)) for one in (worst, requests, best)
        )
    return RuleError(max(value - low, 0.0), max(high - value, 0.0), tuple(sorted(causes)))


def _rate(rule: Rule, seen: Evaluation) -> float:
    through = bound_rate_amounts(rule, select_requests(rule, seen.ended)).low
    return float(through.sum()) / seen.time.seconds if seen.time.seconds > 0 else 0.0


def _share(rule: Rule, main: RequestSelection) -> float:
    hits = bound_share_hits(rule, select_requests(rule, main)).low
    return float(hits.mean()) if len(hits) else 0.0


def combine_rule_errors(
    rule: Rule, here: RuleError, base: RuleError, here_is: float, base_is: float
) -> RuleError:
    """The error of how much worse a value is than a base's, from the errors of both runs."""
    causes = tuple(dict.fromkeys((*here.causes, *base.causes)))
    if here.none and base.none:
        return RuleError()
    least_here = max(here_is - here.lower, 0.0)
    most_here = here_is + here.higher
    least_base = max(base_is - base.lower, 0.0)
    most_base = base_is + base.higher
    if rule.unit == "%":
        value = here_is / base_is
        low = least_here / most_base
        high = most_here / least_base if least_base > 0 else math.inf
    else:
        value = here_is - base_is
        low = least_here - most_base
        high = most_here - least_base
    lower = value - low
    higher = high - value
    if rule.less_is_better:
        return RuleError(lower, higher, causes)
    return RuleError(higher, lower, causes)
