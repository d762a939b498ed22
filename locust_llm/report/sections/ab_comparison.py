"""A/B comparison: two arms compared by the differences of their pairs of blocks, with 95 %
intervals; the verdict and its table.

A pair's two blocks see the same weather, so what the server, the machine and the network do over
minutes cancels in their ratio. The pairs' logarithms of ratios (of shares, and of what may be 0,
the differences) are averaged, and Student's t says how far that mean may be off (Student, The
probable error of a mean, Biometrika 6, 1908). Within a block requests may depend on each other as
they like, as a block counts as one value. What is called better or worse has 0 outside of its
interval.

The verdict is of all figures together: in each pair either arm could as well have been the other,
were they equal, so the signs of the pairs' differences are exchanged, of all figures alike, and the
largest t counts (Westfall and Young, Resampling-based multiple testing, 1993; Nichols and Holmes,
Human Brain Mapping 15, 2002).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise, product
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from locust_llm.records.buffering import (
    describe_gathering,
    describe_metrics_left_out,
    is_gathered,
)
from locust_llm.records.outcomes import OK as SUCCEEDED
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.array_types import Floats
from locust_llm.report.compare.forest_plot import Difference
from locust_llm.report.compare.metric_differences import possible_ends
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock, format_flags
from locust_llm.report.measurement_window import RateWindow, Span
from locust_llm.report.outages import (
    MIN_REQUESTS,
    Outage,
    are_answered,
    count_statuses,
    describe_outages,
    describe_statuses,
    select_held_up,
    select_unanswered_since,
)
from locust_llm.report.request_selection import RequestSelection, mean_of_known
from locust_llm.report.request_table import RequestTable
from locust_llm.report.slo_evidence.censoring import (
    IN_WINDOW,
    bound_rate_amounts,
    bound_share_hits,
    bound_values,
    value_of_failure,
)
from locust_llm.report.slo_evidence.measurement_error import (
    ErrorSources,
    bounds_of,
    find_error_sources,
    lost_shares,
    move_requests,
)
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation, select_requests
from locust_llm.settings.ab_arms import BASE, CANDIDATE, LEAST, find_long_enough_block
from locust_llm.settings.sweep_option import TIME_UP
from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.slo.load_generator_health import OK, UNCERTIFIED, ClientVerdict
from locust_llm.slo.metric_definitions import BY_WORD, GIVEN, POOLED, RATE, SHARE, TIME
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.slo.rules import FAIL, PASS, POINT, Condition, Rule, SloResult, define_good_request
from locust_llm.slo.rules import INCONCLUSIVE as RULE_INCONCLUSIVE
from locust_llm.slo.student_t import find_student_t
from locust_llm.text.format import (
    ComparedTexts,
    format_comparison,
    format_count,
    format_duration,
    format_signed,
)

Bools = NDArray[np.bool_]
DIFFERENT: Final = "DIFFERENT"
SAME: Final = "NO SIGNIFICANT DIFFERENCE"
INCONCLUSIVE: Final = "INCONCLUSIVE"
"""The verdicts over all values together."""
HOLDS: Final = "HOLDS"
BROKEN: Final = "DOES NOT HOLD"
INSTANT_S: Final = 1e-9
ISOLATION_ROOM: Final = 10.0
"""Latencies beside others may be longer than alone by so many percent."""


class PairedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One value of both arms, in ``unit``. Base and candidate are the mean over the blocks,
    geometric where the difference is a ratio."""

    metric: str
    stat: str
    label: str
    unit: str
    relative: bool
    """The ratios of the pairs are averaged, and the interval is of their percentage. False:
    differences, in the unit."""
    base: float | None = None
    candidate: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    """The ends of the 95 % interval of the difference."""
    percent: float | None = None
    low_percent: float | None = None
    high_percent: float | None = None
    """The ends of the same interval in percent of the base's value. None: the base is 0."""
    word: str = "-"
    """better, worse, no significant difference, not concluded, or - for nothing to compare."""
    note: str = ""
    pairs: tuple[tuple[float, float], ...] = ()
    """(base, candidate) of each pair that has the value in both blocks."""
    left_out: str = ""
    """Which pairs are missing, and why. Empty: none is."""

    @property
    def few(self) -> bool:
        """The percentile has too few requests in a block. The note has their number."""
        return bool(self.note and self.pairs)

    @property
    def different(self) -> bool:
        return self.word in ("better", "worse")

    @property
    def distance(self) -> float:
        """How far the difference is from 0, as a part of its interval's width. Of ratios, their
        logarithms."""
        ends = [self.low, self.difference, self.high]
        percents = [self.low_percent, self.percent, self.high_percent]
        if self.relative and all(end is not None and end > -100 for end in percents):
            ends = [math.log1p((end or 0.0) / 100) for end in percents]
        low, middle, high = ends
        if low is None or middle is None or high is None:
            return 0.0
        return abs(middle) / (high - low) if high > low else math.inf


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two arms."""

    schema: int = 1
    verdict: str
    """DIFFERENT, NO SIGNIFICANT DIFFERENCE or INCONCLUSIVE."""
    reason: str = ""
    """Why the verdict is inconclusive."""
    chance: float | None = None
    """How often equal arms would show so large a difference in some value: the p of the verdict."""
    warning: str = ""
    """The arms did not get the same load, one of them answered no more, or chunks were gathered."""
    uncounted: str = ""
    """No request of an arm counts, and why. Its rates are known all the same."""
    aa: bool = False
    """Both arms are the base."""
    isolated: str = ""
    """This tenant is alone in the base, and beside the others in the candidate. The values are of
    its requests."""
    isolation: str = ""
    """HOLDS, DOES NOT HOLD or INCONCLUSIVE: whether none of its latencies is longer by more than
    ``ISOLATION_ROOM`` percent."""
    limits_differ: bool = False
    """The arms have different prefill limits. What counts from the send leaves out the wait at the
    limit, so a lower limit makes it shorter by itself."""
    pairs: int = 0
    """The whole pairs that count."""
    planned: int = 0
    figures: tuple[PairedFigure, ...] = ()

    @property
    def known(self) -> int:
        """The number of known values."""
        return sum(bool(figure.pairs) for figure in self.figures)

    def describe_unknown(self) -> str:
        """``17 of 19 metrics have no result``. Empty: all have one."""
        return describe_unknown_metrics(self.figures)

    def describe_not_concluded(self) -> str:
        """``3 of 19 metrics are not concluded``. Empty: the load generator's error leaves none
        open."""
        count = sum(figure.word == UNSURE for figure in self.figures)
        are = "is" if count == 1 else "are"
        return f"{count} of {len(self.figures)} metrics {are} {UNSURE}" if count else ""

    @property
    def lacks_pairs(self) -> bool:
        """Some value is not of all pairs."""
        return any(figure.left_out for figure in self.figures)

    @property
    def different(self) -> int:
        """The number of values that are better or worse."""
        return sum(figure.different for figure in self.figures)

    def list_main_differences(self, most: int) -> list[PairedFigure]:
        """The weightiest values that are better or worse: failures first, then those furthest from
        0 for their intervals. With different limits TTFT from due is next to failures, and what
        leaves out the wait at the limit is named only where nothing else differs."""
        different = [figure for figure in self.figures if figure.different]
        if self.limits_differ:
            whole = [figure for figure in different if figure.metric not in WITHOUT_WAIT]
            different = whole or different
        return sorted(different, key=self._rank)[:most]

    def _rank(self, figure: PairedFigure) -> tuple[int, float]:
        group = 1 if self.limits_differ and figure.metric == FROM_DUE else 2
        # differences of one strength stay in the order of the table
        return 0 if figure.metric == FAILURE_RATE else group, -float(f"{figure.distance:.3g}")

    def describe_waits(self) -> str:
        """What holds for TTFT from due, where limits differ and no value of it does. Empty: nothing
        has to be added."""
        from_due = [figure for figure in self.figures if figure.metric == FROM_DUE and figure.pairs]
        if not self.limits_differ or not from_due or any(figure.different for figure in from_due):
            return ""
        if any(figure.word == UNSURE for figure in from_due):
            return f"TTFT from due, with the wait at the limit, is {UNSURE}"
        return f"TTFT from due, with the wait at the limit, shows {EQUAL}"


FAILURE_RATE: Final = "error_rate"
FROM_DUE: Final = "ttft_from_due"
FAILURE_KEY: Final = (FAILURE_RATE, "")
FROM_DUE_KEYS: Final = ((FROM_DUE, "p50"), (FROM_DUE, "p95"))
MAIN_KEYS: Final = (
    ("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("longest_stall", "p95"),
    ("request_latency", "p95"),
    ("output_tokens_per_s", ""),
)  # fmt: skip
"""(metric, statistic) of the main values of two arms or runs, in the order of tables."""
MAX_DIFFERENCES: Final = 3
"""The most differences of two arms in the first sentence."""
WITHOUT_WAIT: Final = ("ttft", "request_latency")
"""The times that count from the send."""
LONGER_BLOCKS: Final = "use longer blocks (--block-duration) for more requests per block"
LEAST_KNOWN: Final = 0.8
"""A metric needs such a share of the pairs, as a block that a standstill emptied hides no difference
of all others. Of ten pairs eight are enough."""
FEW: Final = 20
"""With so few requests in a block, its values are of little use."""


class BlockRequests(NamedTuple):
    """The requests of one block."""

    counted: RequestSelection
    """The requests after the washout."""
    whole: RequestSelection
    """All requests of the block, with the share of each that lies in the loaded time after the
    washout (``IN_WINDOW``). Rates use these shares. Whole requests would be too coarse: where users
    go in step, each block would have too few or too many."""
    seconds: float
    """The length of that time."""


class PairRequests(NamedTuple):
    base: BlockRequests
    candidate: BlockRequests


def _find_windows(run: Run) -> dict[tuple[int, str], Span]:
    """The windows of the blocks that came to their end, by pair and arm."""
    return {
        (stage.pair, stage.arm): window
        for stage in run.stages
        if (window := _window(stage)) is not None
    }


def _find_ended_pairs(run: Run) -> list[int]:
    windows = _find_windows(run)
    return sorted(
        {pair for pair, _ in windows if (pair, BASE) in windows and (pair, CANDIDATE) in windows}
    )


def find_complete_pairs(requests: RequestTable, run: Run) -> list[PairRequests]:
    """The pairs whose two blocks came to their end. If a tenant is isolated, they have its
    requests."""
    if run.settings.isolate:
        requests = requests.rows(requests.has("tenant", run.settings.isolate))
    windows = _find_windows(run)
    numbers = _find_ended_pairs(run)
    pair = requests.floats("pair")
    of_arms = [requests.has("arm", arm) for arm in (BASE, CANDIDATE)]
    pairs = []
    for number in numbers:
        both = [requests.rows((pair == number) & of_arm) for of_arm in of_arms]
        if all(map(len, both)):
            spans = [windows[number, arm] for arm in (BASE, CANDIDATE)]
            pairs.append(PairRequests(*map(_block, both, spans)))
    return pairs


def select_candidate_requests(
    everything: RequestSelection, run: Run
) -> tuple[RequestSelection, RequestSelection, RateWindow]:
    """(its requests that count, the requests of which its rates count a share, the time for the
    rates)."""
    requests = everything.requests
    part = everything.only(requests.has("arm", CANDIDATE)).only(requests.floats("pair") > 0)
    stages = [stage for stage in run.stages if stage.arm == CANDIDATE]
    windows = [window for stage in stages if (window := _window(stage)) is not None]
    main = part.only(requests.has("phase", "profiling"))
    if not windows:
        return main, main, RateWindow(main.span())
    shares = np.sum([_share_inside(requests, window) for window in windows], axis=0)
    whole = RequestSelection(requests.replace_columns({IN_WINDOW: shares}), part.chosen)
    pauses = tuple((before[1], after[0]) for before, after in pairwise(windows))
    return main, whole, RateWindow((windows[0][0], windows[-1][1]), pauses)


def compute_pair_values(rule: Rule, pairs: Sequence[PairRequests]) -> Floats:
    """(base, candidate) of each pair as a row: seconds, a share of 1, or a number a second. NaN:
    the block has no value."""
    values = [(_figure(rule, pair.base), _figure(rule, pair.candidate)) for pair in pairs]
    return np.array(values, np.float64).reshape(-1, 2)


def move_pairs(
    pairs: Sequence[PairRequests], sources: ErrorSources, *, most: bool, stamps: bool = False
) -> list[PairRequests]:
    """The pairs with every value at its least, or at its most: see move_requests."""

    def moved(block: BlockRequests) -> BlockRequests:
        requests = move_requests(block.whole.requests, sources, most=most, stamps=stamps)
        counted, whole = (
            RequestSelection(requests, part.chosen) for part in (block.counted, block.whole)
        )
        return block._replace(counted=counted, whole=whole)

    return [PairRequests(*map(moved, pair)) for pair in pairs]


class PairErrors:
    """The load generator's error in the values of some pairs. What all values share is computed
    once, when the first one needs it."""

    def __init__(self, pairs: Sequence[PairRequests], seen: Evaluation) -> None:
        self.pairs, self.seen = pairs, seen
        self._moved: dict[tuple[bool, bool], list[PairRequests]] = {}

    @cached_property
    def sources(self) -> ErrorSources:
        return find_error_sources(self.seen.main.requests, self.seen.run)

    def move(self, *, most: bool, stamps: bool) -> list[PairRequests]:
        """See move_pairs."""
        key = most, stamps
        if key not in self._moved:
            self._moved[key] = move_pairs(self.pairs, self.sources, most=most, stamps=stamps)
        return self._moved[key]


def count_block_requests(rule: Rule, pairs: Sequence[PairRequests]) -> Iterator[int]:
    """How many requests are behind each block's value."""
    for pair in pairs:
        yield from (select_requests(rule, block.counted).size for block in pair)


def _window(stage: Stage) -> Span | None:
    """None: the stage does not count, or did not come to its end."""
    if not stage.pair or stage.measured_at is None or stage.why != TIME_UP:
        return None
    return stage.measured_at, stage.ended_at


def _share_inside(requests: RequestTable, window: Span) -> Floats:
    """For each request, the share of its time that lies in the window."""
    sent = requests.floats("sent_at")
    began = np.where(np.isnan(sent), requests.floats("asked_at"), sent)
    over = np.fmax(requests.floats("closed_at"), requests.floats("last_chunk_at"))
    inside_s = np.minimum(over, window[1]) - np.maximum(began, window[0])
    shares: Floats = np.clip(inside_s / np.maximum(over - began, INSTANT_S), 0.0, 1.0)
    return shares


def _block(requests: RequestTable, window: Span) -> BlockRequests:
    requests = requests.replace_columns({IN_WINDOW: _share_inside(requests, window)})
    everything = RequestSelection(requests, np.ones(len(requests), np.bool_))
    counted = everything.only(requests.has("phase", "profiling"))
    return BlockRequests(counted, everything, window[1] - window[0])


def _figure(rule: Rule, block: BlockRequests) -> float:
    """The value as in the tables, with a failure as +infinity. A rate is over the block's time."""
    measure = BY_WORD[rule.metric]
    if measure.metric is not None:
        known = bound_values(
            select_requests(rule, block.counted), measure.metric, value_of_failure(rule)
        ).low
        if not len(known):
            return math.nan
        if rule.percentile is None:
            return float(known.mean())
        if np.isfinite(known).all():
            return float(np.percentile(known, rule.percentile))
        return float(np.percentile(known, rule.percentile, method="inverted_cdf"))
    if measure.units is RATE:
        part = select_requests(rule, block.whole)
        return float(bound_rate_amounts(rule, part).low.sum()) / block.seconds
    share = bound_share_hits(rule, select_requests(rule, block.counted)).low
    return float(share.mean()) if len(share) else math.nan


STATS: Final = ("avg", "p50", "p95", "p99")
LATENCIES: Final = ("ttft", "itl", "longest_stall", "request_latency")
FLIPS: Final = 12
"""Up to so many pairs, each exchange of their signs is tried. With more pairs a part is tried."""
CHANCE: Final = 0.05
MIN_ARRIVALS_RATIO: Final = 0.98
"""With the same arrivals, each arm gets at least this share of the other's."""
ISOLATED: Final = (
    ("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("request_latency", "p50"),
    ("request_latency", "p95"),
)  # fmt: skip
"""The latencies that show whether a tenant is isolated."""
BETTER: Final = "better"
WORSE: Final = "worse"
EQUAL: Final = "no significant difference"
UNSURE: Final = "not concluded"


class ArmDifference(NamedTuple):
    """The difference of two arms, from their pairs."""

    base: float
    candidate: float
    ratio: tuple[float, float, float] | None
    """candidate / base, and the ends of its interval. None: the base is 0."""
    difference: tuple[float, float, float]
    """candidate - base, and the ends of its interval."""


class ArmError(NamedTuple):
    """The load generator's error in the values of both arms."""

    off_s: float = 0.0
    """How far their difference may be off either way. Infinite: not known."""
    reach: tuple[Floats, Floats] | None = None
    """The blocks' values at their least and at their most, where chunks came merged."""


def compute_arm_difference(values: Floats, *, relative: bool) -> ArmDifference:
    """The difference from (base, candidate) rows, one for each pair, at least two. ``relative``: by
    their ratios, for values above 0."""
    each = np.log(values) if relative else values
    base, candidate = each.mean(axis=0)
    low, middle, high = _interval(each[:, 1] - each[:, 0])
    if relative:
        a = math.exp(base)
        b = math.exp(candidate)
        ratio = math.exp(middle), math.exp(low), math.exp(high)
        return ArmDifference(a, b, ratio, (b - a, a * (ratio[1] - 1), a * (ratio[2] - 1)))
    a = float(base)
    b = float(candidate)
    of_base = (b / a, 1 + low / a, 1 + high / a) if a > 0 else None
    return ArmDifference(a, b, of_base, (middle, low, high))


def limit_to_possible(arms: ArmDifference, rule: Rule) -> ArmDifference:
    """The same difference, with an interval that takes no value below 0, and no share above 1."""
    change, least, most = arms.difference
    low, high = possible_ends((least, most), arms.base, rule)
    if (low, high) == (least, most):
        return arms
    ratio = None
    if arms.base > 0:
        ratio = arms.candidate / arms.base, 1 + low / arms.base, 1 + high / arms.base
    return arms._replace(difference=(change, low, high), ratio=ratio)


def _interval(deltas: Floats) -> tuple[float, float, float]:
    mean = float(deltas.mean())
    n = len(deltas)
    reach = find_student_t(n - 1, TAIL) * float(deltas.std(ddof=1)) / math.sqrt(n)
    return mean - reach, mean, mean + reach


def familywise_p_value(deltas: Floats) -> float:
    """How often equal arms would show so large a t in some value. ``deltas`` has a row for each
    pair and a column for each value."""
    n = len(deltas)
    random = np.random.default_rng(1)
    if n <= FLIPS:
        signs = np.array([(1, *rest) for rest in product((1, -1), repeat=n - 1)], np.float64)
    else:
        signs = np.vstack([np.ones(n), random.choice((-1.0, 1.0), (2 ** (FLIPS - 1), n))])
    squares = (deltas**2).sum(axis=0)
    means = signs @ deltas[:, squares > 0] / n
    spread = np.sqrt(np.maximum(squares[squares > 0] / n - means**2, 1e-300))
    largest = np.abs(means / spread).max(axis=1, initial=0.0)
    return float((largest >= largest[0] * (1 - 1e-9)).mean())


# -- a run -----------------------------------------------------------------------------------------


def compare_arms(
    everything: RequestSelection,
    run: Run,
    verdict: ClientVerdict | None,
    outages: Sequence[Outage] = (),
) -> tuple[PairedComparison, list[PairRequests]]:
    """All values of the two arms of a run, and the pairs behind them."""
    pairs = find_complete_pairs(everything.requests, run)
    few = _too_few(len(pairs), run)
    blame = _blame(verdict)
    whole = Evaluation(
        everything, run, verdict, None, (), everything, RateWindow(everything.span())
    )
    errors = PairErrors(pairs, whole)
    figures = list[PairedFigure]()
    deltas = list[Floats]()
    for rule in list_compared_figures(run):
        error = ArmError(math.inf) if few else _error(rule, errors)
        figure, delta = _compared(rule, pairs, error, _find_gathered(rule, run))
        figures.append(figure)
        if delta is not None:
            deltas.append(delta)
    seen = familywise_p_value(np.column_stack(deltas)) if deltas and not few else None
    stands = seen is not None and seen <= CHANCE and any(figure.different for figure in figures)
    reason = (
        few
        or ("" if stands else blame)
        or ("" if deltas else "no metric is known at both base and candidate in enough pairs")
        or ("" if seen is not None and seen <= CHANCE else _describe_mostly_unknown(figures))
    )
    decided = DIFFERENT if seen is not None and seen <= CHANCE else SAME
    warnings = (
        _describe_silent_arms(everything, run),
        *_describe_standstills(everything, run, outages),
        _uneven(pairs) if run.settings.open_loop else "",
        describe_metrics_left_out(run.notes),
    )
    return PairedComparison(
        limits_differ=run.settings.changes.prefill_concurrency
        not in (None, run.settings.prefill_concurrency),
        verdict=INCONCLUSIVE if reason or seen is None else decided,
        reason=reason,
        chance=None if reason else seen,
        warning="; ".join(filter(None, warnings)),
        uncounted=_describe_uncounted_arm(pairs, run),
        aa=run.settings.aa,
        isolated=run.settings.isolate or "",
        isolation=_isolation(figures, decided=not few and not blame)
        if run.settings.isolate
        else "",
        pairs=len(pairs),
        planned=run.settings.pairs,
        figures=tuple(figures),
    ), pairs


class MainFigures(NamedTuple):
    """The values of the console's table, and the differences in the sentence above it."""

    shown: list[PairedFigure]
    named: list[PairedFigure]
    """The weightiest differences of those in the table."""


def select_main_figures(found: PairedComparison, rules: Iterable[Rule]) -> MainFigures:
    """The table has failures first where an arm has some, then TTFT from due where requests had
    waits, and last the values of rules. It has the weightiest differences where it would have
    none."""
    keys = [*FROM_DUE_KEYS, *MAIN_KEYS, *((rule.metric, rule.stat) for rule in rules)]
    if any(
        figure.metric == FAILURE_RATE and any(map(any, figure.pairs)) for figure in found.figures
    ):
        keys.insert(0, FAILURE_KEY)
    shown = list[PairedFigure]()
    for key in dict.fromkeys(keys):  # a rule about some requests has a value of its own
        shown += [figure for figure in found.figures if (figure.metric, figure.stat) == key]
    different = found.list_main_differences(found.known)
    named = [figure for figure in different if figure in shown][:MAX_DIFFERENCES]
    if not named:
        named = different[:MAX_DIFFERENCES]
        shown += named
    return MainFigures(shown, named)


def describe_unknown_metrics(figures: Sequence[PairedFigure]) -> str:
    """``17 of 19 metrics have no result``. Empty: all have one."""
    unknown = sum(not figure.pairs for figure in figures)
    verb = "has" if unknown == 1 else "have"
    return f"{unknown} of {len(figures)} metrics {verb} no result" if unknown else ""


def _describe_mostly_unknown(figures: Sequence[PairedFigure]) -> str:
    """The metrics without a result, where they are the most: then the others do not show that the
    arms are equal. Empty: they are not."""
    known = sum(bool(figure.pairs) for figure in figures)
    return describe_unknown_metrics(figures) if 2 * known < len(figures) else ""


def _isolation(figures: Sequence[PairedFigure], *, decided: bool) -> str:
    """Whether a tenant is isolated: each interval of its latencies must end below the tolerance."""
    ends = [
        (figure.low_percent, figure.high_percent)
        for figure in figures
        if (figure.metric, figure.stat) in ISOLATED
        if figure.low_percent is not None and figure.high_percent is not None
    ]
    if not decided or not ends:
        return INCONCLUSIVE
    if any(low > ISOLATION_ROOM for low, _ in ends):
        return BROKEN
    return HOLDS if all(high <= ISOLATION_ROOM for _, high in ends) else INCONCLUSIVE


def _too_few(count: int, run: Run) -> str:
    """Why so few pairs give no conclusion. Empty: there are enough."""
    if count >= LEAST:
        return ""
    ended = len(_find_ended_pairs(run))
    if ended == count:
        return f"too few pairs: {count} were completed, and {LEAST} are needed"
    whose = f" of {run.settings.isolate}" if run.settings.isolate else ""
    return (
        f"too few pairs: {ended} were completed, {ended - count} of them with a block without a "
        f"request{whose}, and {LEAST} with requests are needed. Use longer blocks "
        "(--block-duration) for more requests per block"
    )


def _blame(verdict: ClientVerdict | None) -> str:
    """Why differences within the load generator's error give no conclusion. Empty: it has no error
    that counts."""
    if verdict is None or verdict.level == OK:
        return ""
    why = f"the client verdict is {verdict.level}: {'; '.join(verdict.reasons)}"
    return (
        f"{why}; base and candidate are compared only if it is "
        f"OK{f': {verdict.advice}' * bool(verdict.advice)}"
    ).rstrip(".")


def _error(rule: Rule, errors: PairErrors) -> ArmError:
    """The load generator's error in this value."""
    pairs, seen = errors.pairs, errors.seen
    if seen.verdict is None or seen.verdict.level == OK:
        return ArmError()
    if UNCERTIFIED in seen.verdict.signals:
        return ArmError(math.inf)
    sources = errors.sources
    measure = BY_WORD[rule.metric]
    if measure.units is RATE:
        # what it held back came to no request: good ones are more by that share at most
        lost = min(sum(dict(lost_shares(seen.main.outcome(SUCCEEDED), sources)).values()), 0.99)
        values = compute_pair_values(rule, pairs)
        best = compute_pair_values(rule, errors.move(most=False, stamps=True))
        least = compute_pair_values(rule, errors.move(most=True, stamps=True))
        return ArmError(0.0, (np.fmin(least, values), np.fmax(best, values) / (1 - lost)))
    stamps = rule.metric in GIVEN
    reach = [
        compute_pair_values(rule, errors.move(most=side, stamps=stamps)) for side in (False, True)
    ]
    bounds = None if stamps else bounds_of(rule.metric, seen.main.outcome(SUCCEEDED), sources)
    return ArmError(
        0.0 if bounds is None else 2 * bounds.max_ms / 1e3,
        (np.fmin(*reach), np.fmax(*reach)),
    )


def ratio_errors(
    base_s: float, ratio: float, base_error_s: float, error_s: float
) -> tuple[float, float]:
    """How much lower, and how much higher, a ratio to a base's value may be, where both may be
    off."""
    here_s = ratio * base_s
    low = ratio - max(here_s - error_s, 0.0) / (base_s + base_error_s)
    if base_s <= base_error_s:
        return low, math.inf
    return low, (here_s + error_s) / (base_s - base_error_s) - ratio


def _widened(
    arms: ArmDifference, values: Floats, reach: tuple[Floats, Floats] | None
) -> ArmDifference:
    """The difference with each end further out by the mean error over the pairs: with the candidate
    at its least and the base at its most, and the other way round. The spread of the pairs stays as
    measured."""
    if reach is None:
        return arms
    least, most = reach
    if np.array_equal(least, values) and np.array_equal(most, values):
        return arms
    lowest = np.column_stack((most[:, 0], least[:, 1]))
    highest = np.column_stack((least[:, 0], most[:, 1]))
    if arms.ratio is not None and all((each > 0).all() for each in (values, lowest, highest)):
        middle, low, high = (
            float(np.diff(np.log(each)).mean()) for each in (values, lowest, highest)
        )
        ratio = (
            arms.ratio[0],
            arms.ratio[1] * math.exp(low - middle),
            arms.ratio[2] * math.exp(high - middle),
        )
        change = (
            arms.difference[0],
            arms.base * (ratio[1] - 1),
            arms.base * (ratio[2] - 1),
        )
        return ArmDifference(arms.base, arms.candidate, ratio, change)
    middle, low, high = (float(np.diff(each).mean()) for each in (values, lowest, highest))
    change = (
        arms.difference[0],
        arms.difference[1] + low - middle,
        arms.difference[2] + high - middle,
    )
    of_base = (
        (
            arms.candidate / arms.base,
            1 + change[1] / arms.base,
            1 + change[2] / arms.base,
        )
        if arms.base > 0
        else None
    )
    return ArmDifference(arms.base, arms.candidate, of_base, change)


def _describe_uncounted_arm(pairs: Sequence[PairRequests], run: Run) -> str:
    """Where requests last as long as blocks, all of an arm may begin in the washout. Empty: each
    arm has some that count."""
    of_base = [pair.base for pair in pairs]
    of_candidate = [pair.candidate for pair in pairs]
    blocks = {BASE: of_base, CANDIDATE: of_candidate}
    silent = []
    for arm, of_arm in blocks.items():
        if not any(block.counted.size for block in of_arm):
            silent.append(arm)
    if not pairs or not silent:
        return ""
    whose = f"the {silent[0]}" if len(silent) == 1 else "base or candidate"
    found = f"No request of {run.settings.isolate or whose} counts"
    took_s = []
    for arm in silent:
        took_s += [block.whole["closed_at"] - block.whole["sent_at"] for block in blocks[arm]]
    request_s = mean_of_known(np.concatenate(took_s)) or math.nan
    block_s, washout_s = run.settings.block_s, run.settings.washout_s
    enough_s = None
    if math.isfinite(request_s):
        enough_s = find_long_enough_block(request_s, block_s=block_s, washout_s=washout_s)
    if enough_s is None:
        return found
    return (
        f"{found}: a request takes {format_duration(request_s)}, but only "
        f"{format_duration(block_s - washout_s)} of a block count. Use --block-duration {enough_s}"
    )


def _uneven(pairs: Sequence[PairRequests]) -> str:
    """The warning that one arm of an open loop got fewer of the same arrivals."""
    sizes = {
        BASE: sum(pair.base.counted.size for pair in pairs),
        CANDIDATE: sum(pair.candidate.counted.size for pair in pairs),
    }
    fewer, more = sorted(sizes, key=lambda arm: sizes[arm])
    if sizes[fewer] >= MIN_ARRIVALS_RATIO * sizes[more]:
        return ""
    return (
        f"the {fewer} got {sizes[fewer]} of the {sizes[more]} requests that the {more} got. "
        "Arrivals found no free user before their block ended, so the requests with the longest "
        "waits are missing in every latency"
    )


def list_compared_figures(run: Run) -> Iterator[Rule]:
    """A rule about each value that is shown. Their limits have no meaning."""
    settings = run.settings
    latencies = (*LATENCIES, FROM_DUE) if settings.open_loop or run.limits else LATENCIES
    shown = [_rule(word, stat) for word, stat in product(latencies, STATS)]
    shown += [_rule(word) for word in ("requests_per_s", "output_tokens_per_s", "error_rate")]
    good, _ = define_good_request(settings.rules)
    if good:
        shown += [_rule(word, given=good) for word in ("attainment", "goodput")]
    # what a rule compares is compared: else the rule could call better what the arms do not differ
    # in
    known = {(rule.metric, rule.stat, rule.where, rule.given) for rule in shown}
    compared = (
        rule
        for rule in settings.rules.by_text.values()
        if rule.base == BASE and BY_WORD[rule.metric].tag != POOLED
    )
    for rule in compared:
        if (rule.metric, rule.stat, rule.where, rule.given) not in known:
            shown.append(replace(_rule(rule.metric, rule.stat, rule.given), where=rule.where))
    yield from shown


def _rule(word: str, stat: str = "", given: tuple[Condition, ...] = ()) -> Rule:
    unit = "ms" if BY_WORD[word].units is TIME else next(iter(BY_WORD[word].units))
    rule = Rule(word, "<=", 0.0, unit, stat, given=given)
    return replace(rule, op="<=" if rule.less_is_better else ">=")


def _find_gathered(rule: Rule, run: Run) -> str:
    """Why a value does not describe the model. Empty: it does, for both arms."""
    return describe_gathering(run.notes) if is_gathered(rule, run.notes) else ""


def _compared(
    rule: Rule, pairs: Sequence[PairRequests], error: ArmError, gathered: str
) -> tuple[PairedFigure, Floats | None]:
    """The value, and the differences of the pairs. ``gathered``: see ``_find_gathered``."""
    measure = BY_WORD[rule.metric]
    values = compute_pair_values(rule, pairs)
    label = _label(rule)
    figure = PairedFigure(
        metric=rule.metric, stat=rule.stat, label=label, unit=rule.unit, relative=False
    )
    if why := gathered or _absent(values):
        return replace(figure, note=why), None
    left_out = _describe_pairs_left_out(values)
    known = has_both_blocks(values)
    values = values[known]
    used = [pair for pair, is_known in zip(pairs, known, strict=True) if is_known]
    relative = measure.units is not SHARE and bool((values > 0).all())
    arms = compute_arm_difference(values, relative=relative)
    factor = rule.factor
    widened = _widened(arms, values, _select_reach(error.reach, known))
    _, least, most = (end * factor for end in widened.difference)
    ends = arms.difference[1] * factor, arms.difference[2] * factor
    possible = limit_to_possible(arms, rule)
    change, low, high = (end * factor for end in possible.difference)
    percent, low_percent, high_percent = (
        (None, None, None)
        if possible.ratio is None or measure.units is SHARE
        else [(r - 1) * 100 for r in possible.ratio]
    )
    each = np.log(values) if relative else values
    # a pair without the figure changes no sum: its signs can be exchanged like those of the others
    deltas = np.zeros(len(known))
    deltas[known] = each[:, 1] - each[:, 0]
    # Student's t of differences that are all 0 is no bound: a failure in a thousand may be there
    bounded = bool(deltas.any())
    figure = replace(
        figure,
        relative=relative,
        base=arms.base * factor,
        candidate=arms.candidate * factor,
        difference=change,
        low=low if bounded else None,
        high=high if bounded else None,
        percent=percent,
        low_percent=low_percent if bounded else None,
        high_percent=high_percent if bounded else None,
        word=_word(rule, ends, (least - error.off_s * factor, most + error.off_s * factor)),
        note=_few(rule, used),
        pairs=tuple((float(a) * factor, float(b) * factor) for a, b in values),
        left_out=left_out,
    )
    return figure, deltas


def _label(rule: Rule) -> str:
    measure = BY_WORD[rule.metric]
    if measure.metric is None:
        label = measure.short or measure.word
    else:
        name = measure.metric.short or measure.metric.label
        label = f"{name} {rule.stat} ({rule.unit})"
    where = ", ".join(f"{key}={value}" for key, value in rule.where)
    return f"{label}, {where}" if where else label


def has_both_blocks(values: Floats) -> Bools:
    """Whether each pair has the value in both of its blocks."""
    return np.asarray(~np.isnan(values).any(axis=1))


def _count_needed_pairs(values: Floats) -> int:
    """How many pairs must have the value in both blocks."""
    return min(LEAST, math.ceil(LEAST_KNOWN * len(values)))


def _absent(values: Floats) -> str:
    """Why there is nothing to compare."""
    if len(values) < 2:
        return "fewer than two pairs"
    known = values[has_both_blocks(values)]
    if len(known) < (needed := _count_needed_pairs(values)):
        return (
            f"{_count_empty_blocks(values)}, and {needed} pairs need one in both: {LONGER_BLOCKS}"
        )
    if np.isinf(known).any():
        return (
            f"it falls on a failed request in {int(np.isinf(known).sum())} of {known.size} blocks"
        )
    return ""


def _explain_infinitely_worse(values: Floats) -> str:
    """Why no tolerance holds: the candidate's value lands on a failure, and the base's does not, in
    most pairs. Empty: it does not, or there are too few pairs."""
    known = values[has_both_blocks(values)]
    worse = int((np.isfinite(known[:, 0]) & np.isinf(known[:, 1])).sum())
    if len(values) < LEAST or len(known) < _count_needed_pairs(values) or worse <= len(known) / 2:
        return ""
    return f"it falls on a failed request at the candidate alone in {worse} of {len(known)} pairs"


def _describe_silent_arms(everything: RequestSelection, run: Run) -> str:
    """``the candidate answered no request from 26.1 s on``, where several requests came after its last
    answer. Empty: both arms answered to the end."""
    texts = list[str]()
    for arm in (BASE, CANDIDATE):
        part = everything.only(everything.requests.has("arm", arm))
        answered = part.where(are_answered(part))
        if not answered.size:
            continue
        last = answered["last_chunk_at"]
        since = float(np.where(np.isnan(last), answered["closed_at"], last).max())
        unanswered = select_unanswered_since(part, since)
        if unanswered.size >= MIN_REQUESTS:
            statuses = describe_statuses(count_statuses(unanswered))
            from_s = since - run.started_at
            texts.append(f"the {arm} answered no request from {from_s:.1f} s on{statuses}")
    return "; ".join(texts)


def _describe_standstills(
    everything: RequestSelection, run: Run, outages: Sequence[Outage]
) -> Iterator[str]:
    """``no token came from 16.1 to 22.1 s, which pair 4 counts at the candidate``, for each time in
    which a server stood still."""
    for outage in outages:
        held = select_held_up(everything, [outage], run)
        counted = held.where(held["pair"] > 0)
        if not counted.size:
            continue
        numbers = sorted({int(pair) for pair in counted["pair"]})
        pairs = f"pair{'s' * (len(numbers) > 1)} {' and '.join(map(str, numbers))}"
        verb = "counts" if len(numbers) == 1 else "count"
        arms = " and ".join(f"the {arm}" for arm in (BASE, CANDIDATE) if counted.count("arm", arm))
        yield f"{describe_outages([outage])}, which {pairs} {verb} at {arms}"


def _describe_pairs_left_out(values: Floats) -> str:
    """The pairs that lack a value. Empty: there are none."""
    used = int(has_both_blocks(values).sum())
    if used == len(values):
        return ""
    return f"from {used} of {len(values)} pairs: {_count_empty_blocks(values)}. {LONGER_BLOCKS.capitalize()}"


def _count_empty_blocks(values: Floats) -> str:
    empty = int((~has_both_blocks(values)).sum())
    return f"in {format_count(empty, 'pair')} a block has no counted request with a value"


def _select_reach(
    reach: tuple[Floats, Floats] | None, known: Bools
) -> tuple[Floats, Floats] | None:
    return None if reach is None else (reach[0][known], reach[1][known])


def _few(rule: Rule, pairs: Sequence[PairRequests]) -> str:
    least = min(count_block_requests(rule, pairs), default=0)
    if rule.percentile is None or not has_too_few_values(least, rule.percentile):
        return ""
    takes = math.ceil(100 / (100 - rule.percentile) - 1e-6)
    return (
        f"a block has {format_count(least, 'request')} at least, but {rule.stat} needs {takes}: it depends on "
        f"the slowest one or two"
    )


def _word(rule: Rule, ends: tuple[float, float], widest: tuple[float, float]) -> str:
    """``widest`` are the ends with the load generator's error."""
    low, high = ends
    if widest != ends and widest[0] <= 0 <= widest[1]:
        return UNSURE
    if low <= 0 <= high:
        return EQUAL
    return WORSE if (low > 0) == rule.less_is_better else BETTER


def list_paired_differences(comparison: PairedComparison) -> list[Difference]:
    """The values with a ratio."""
    return [
        Difference(
            figure.metric,
            figure.stat,
            f"{figure.label.removesuffix(' (ms)')}{'*' * figure.few}",
            figure.percent,
            figure.low_percent,
            figure.high_percent,
            figure.word,
        )
        for figure in comparison.figures
        if figure.percent is not None
    ]


# -- rules against the base ------------------------------------------------------------------------


def judge_paired_rules(
    results: Iterable[SloResult],
    seen: Evaluation,
    compared: PairedComparison,
    pairs: Sequence[PairRequests],
) -> tuple[SloResult, ...]:
    """The results, with rules against the base judged anew from the pairs."""
    settings = seen.run.settings
    few = _too_few(compared.pairs, seen.run)
    rules = {text: rule for text, rule in settings.rules.by_text.items() if rule.base == BASE}
    errors = PairErrors(pairs, seen)
    judged_anew = []
    for result in results:
        rule = rules.get(result.rule)
        if rule is not None:
            error = ArmError(math.inf) if few else _error(rule, errors)
            blame = few or _blame(seen.verdict)
            gathered = _find_gathered(rule, seen.run)
            result = (
                replace(result, status=RULE_INCONCLUSIVE, count=len(pairs), reason=gathered)
                if gathered
                else _judged(rule, result, blame, error, pairs, by_point=settings.slo_mode == POINT)
            )
        judged_anew.append(result)
    return tuple(judged_anew)


def _judged(
    rule: Rule,
    result: SloResult,
    blame: str,
    error: ArmError,
    pairs: Sequence[PairRequests],
    *,
    by_point: bool,
) -> SloResult:
    """``blame`` is the reason for no decision where an error reaches the limit."""
    rule = replace(rule, op="<=" if rule.less_is_better else ">=")
    values = compute_pair_values(rule, pairs)
    if why := _explain_infinitely_worse(values):
        return replace(result, status=FAIL, observed=math.inf, count=len(pairs), reason=why)
    if why := _absent(values):
        return replace(result, status=RULE_INCONCLUSIVE, count=len(pairs), reason=why)
    left_out = _describe_pairs_left_out(values)
    known = has_both_blocks(values)
    values = values[known]
    relative = BY_WORD[rule.metric].units is not SHARE and bool((values > 0).all())
    arms = compute_arm_difference(values, relative=relative)
    if rule.unit == "%" and arms.ratio is None:
        why = (
            "it is 0 at the base, and a percentage of 0 has no meaning: use another unit for the "
            "tolerance"
        )
        return replace(result, status=RULE_INCONCLUSIVE, count=len(values), reason=why)
    value, low, high = _worse(rule, arms)
    _, shown_low, shown_high = _worse(rule, limit_to_possible(arms, rule))
    ends = (value, value) if by_point else (low, high)
    _, least, most = _worse(rule, _widened(arms, values, _select_reach(error.reach, known)))
    widest = (value + least - low, value + most - high) if by_point else (least, most)
    off = (error.off_s, error.off_s)
    if rule.unit == "%" and arms.ratio is not None and math.isfinite(error.off_s):
        off = ratio_errors(arms.base, arms.ratio[0], error.off_s / 2, error.off_s / 2)
    furthest = widest[0] - off[0], widest[1] + off[1]
    held = {end <= rule.limit for end in ends}
    stands = len({*held, *(end <= rule.limit for end in furthest)}) == len(held)
    if len(held) > 1 or not stands:
        status = RULE_INCONCLUSIVE
        reason = "its 95% interval contains the limit; more pairs may decide it"
    else:
        status = PASS if held.pop() else FAIL
        reason = ""
    crossed = stands and status == RULE_INCONCLUSIVE and low <= rule.limit <= high
    return replace(
        result,
        status=status,
        close_to_limit=crossed and not by_point and rule.decides_around(*furthest),
        observed=value * rule.factor,
        low=shown_low * rule.factor,
        high=shown_high * rule.factor,
        worst=None,
        count=len(values),
        # the verdict of the arms has it in full
        reason="; ".join(
            filter(
                None, (reason if stands else blame.partition(":")[0], left_out.partition(". ")[0])
            )
        ),
    )


def _worse(rule: Rule, difference: ArmDifference) -> tuple[float, float, float]:
    """How much worse the candidate is, and the ends of the interval: as a share of the base, or in
    the rule's unit."""
    value, low, high = difference.difference
    if rule.unit == "%":
        value, low, high = [
            ratio - 1 for ratio in difference.ratio or (math.nan, math.nan, math.nan)
        ]
    return (value, low, high) if rule.less_is_better else (-value, -high, -low)


FIRST: Final = 5
"""The sentence names so many different values."""
NOTE: Final = (
    "Base and candidate: mean of the values of all blocks (the geometric mean if the interval is "
    "a percentage). Difference: from base to candidate, averaged over the pairs. 95% interval: "
    "Student's t over the pairs, limited so that no value falls below 0 and no share exceeds "
    "100%. No significant difference: the interval contains 0. Not concluded: too few pairs, or the "
    "load generator's error, leave it open. Percentiles count each failure as "
    "+infinity; averages and rates use successful requests only. If base and candidate are equal, "
    "about one metric of 20 is called better or worse at random."
)


def describe_paired_verdict(comparison: PairedComparison) -> str:
    """The verdict in one sentence or two."""
    if comparison.isolated:
        return describe_isolation(comparison)
    name = "A/A" if comparison.aa else "A/B"
    if comparison.verdict == INCONCLUSIVE:
        return f"{name} {comparison.verdict}: {comparison.reason}."
    together = (
        f"all metrics together: p = {comparison.chance:.2g}"
        if comparison.chance is not None
        else ""
    )
    verdict = f"{name} {comparison.verdict} ({format_count(comparison.pairs, 'pair')}; {together})."
    are = "is" if comparison.different == 1 else "are"
    called = f"{comparison.different} of {comparison.known} metrics {are} called different"
    if unknown := comparison.describe_unknown():
        called = f"{called} ({unknown})"
    if open_ones := comparison.describe_not_concluded():
        called = f"{called}; {open_ones}"
    if comparison.aa:
        return (
            f"{verdict} {called}, where {0.05 * comparison.known:.2g} are expected if base and "
            "candidate are equal (5%)."
        )
    if comparison.verdict != DIFFERENT:
        return (
            f"{verdict} {called}; if base and candidate were equal, {0.05 * comparison.known:.2g} "
            "would be."
        )
    named = list(map(format_paired_difference, comparison.list_main_differences(FIRST)))
    rest = comparison.different - len(named)
    more = f"; and {rest} more" if rest else ""
    waits = comparison.describe_waits()
    return f"{verdict} {called}: {'; '.join(named)}{more}.{f' {waits}.' if waits else ''}"


def describe_isolation(comparison: PairedComparison) -> str:
    """The others' cost for the tenant, in one sentence or two."""
    who = f"Isolation of {comparison.isolated} {comparison.isolation}"
    if comparison.reason:
        return f"{who}: {comparison.reason}."
    named = [
        f"{figure.label.removesuffix(' (ms)')} {1 + figure.percent / 100:.3g} times "
        f"({_times(figure)})"
        for figure in comparison.figures
        if (figure.metric, figure.stat) in ISOLATED and figure.percent is not None
    ]
    return (
        f"{who} ({format_count(comparison.pairs, 'pair')}; at most {ISOLATION_ROOM:g}% longer with "
        "the others counts as isolated). With the others, compared with alone: "
        f"{'; '.join(named) or 'no latency is known in enough blocks'}."
    )


def _times(figure: PairedFigure) -> str:
    if figure.low_percent is None or figure.high_percent is None:
        return "-"
    return f"{1 + figure.low_percent / 100:.3g} to {1 + figure.high_percent / 100:.3g}"


def make_paired_head(comparison: PairedComparison) -> tuple[str, ...]:
    """The head of the table of its values."""
    arms = ("alone", "with the others") if comparison.isolated else (BASE, CANDIDATE)
    pairs = ("pairs",) if comparison.lacks_pairs else ()
    return ("Metric", *arms, "difference", "%", "95% interval", *pairs, "")


def make_paired_table(comparison: PairedComparison) -> Iterator[Block]:
    """The table of each value of both arms."""
    if comparison.isolated:
        yield Heading(f"Isolation: {comparison.isolated} with the others, compared with alone")
    else:
        yield Heading(
            "A/A: base against itself" if comparison.aa else "A/B: candidate against base"
        )
    rows = tuple(
        format_paired_cells(figure, with_pairs=comparison.lacks_pairs)
        for figure in comparison.figures
        if figure.pairs
    )
    if rows:
        yield TableBlock(make_paired_head(comparison), rows)
    if unbounded := [
        figure.label
        for figure in comparison.figures
        if figure.pairs and figure.low is figure.high is None
    ]:
        yield TextBlock(
            f"{', '.join(unbounded)}: without an interval, because both blocks of each pair have "
            "the same value."
        )
    for note in dict.fromkeys(figure.note for figure in comparison.figures if figure.note):
        labels = ", ".join(figure.label for figure in comparison.figures if figure.note == note)
        few = any(figure.few for figure in comparison.figures if figure.note == note)
        yield TextBlock(f"{'* ' * few}{labels}: {note}.")
    yield from map(TextBlock, describe_pairs_left_out(comparison.figures))
    alone = f"Base and candidate: {comparison.isolated} alone, and with the others. "
    yield TextBlock(alone * bool(comparison.isolated) + NOTE)


def describe_pairs_left_out(figures: Sequence[PairedFigure]) -> Iterator[str]:
    """A sentence for the values that lack some pairs."""
    for why in dict.fromkeys(figure.left_out for figure in figures if figure.left_out):
        labels = ", ".join(figure.label for figure in figures if figure.left_out == why)
        yield f"{labels}: {why}."


def describe_gaps_of_figures(figures: Sequence[PairedFigure]) -> Iterator[str]:
    """A sentence for the values that cannot be compared, and for the values that lack some
    pairs."""
    for why in dict.fromkeys(figure.note for figure in figures if not figure.pairs):
        labels = ", ".join(figure.label for figure in figures if figure.note == why)
        yield f"{labels}: {why}."
    yield from describe_pairs_left_out(figures)


def describe_arms(run: Run) -> Iterator[tuple[str, str]]:
    """The arms as conditions of the run."""
    settings = run.settings
    for arm in run.arms:
        server = arm.host + (f" ({arm.server})" if arm.server else "")
        yield arm.name, ", ".join((server, arm.model or "-", *arm.changes))
        if arm.server_flags:
            yield f"{arm.name} flags", format_flags(arm.server_flags)
    counted = [stage for stage in run.stages if stage.pair]
    done = len({stage.pair for stage in counted})
    ended_s = [stage.ended_at - stage.began_at for stage in counted if stage.why == TIME_UP]
    lengths = f" of {min(ended_s):.3g} to {max(ended_s):.3g} s" if ended_s else ""
    yield (
        "pairs",
        f"{done} of {settings.pairs}, of two blocks{lengths} in random order. Not counted: the "
        f"first pair, and the first {settings.washout_s:g} s of each block (washout)",
    )


def format_paired_difference(figure: PairedFigure) -> str:
    """``TTFT p95 (ms) -12.3% (better)``"""
    by = _digits(figure).difference
    if figure.percent is not None:
        by = format_signed(figure.percent, 1, "%")
    return f"{figure.label} {by} ({figure.word})"


def format_paired_cells(figure: PairedFigure, *, with_pairs: bool = False) -> tuple[str, ...]:
    """The cells under ``make_paired_head``."""
    shown = _digits(figure)
    percent = "-" if figure.percent is None else format_signed(figure.percent, 1, "%")
    few = "*" * figure.few
    return (
        figure.label,
        shown.base + few,
        shown.value + few,
        shown.difference,
        percent,
        _reach(figure),
        *[str(len(figure.pairs))] * with_pairs,
        figure.word,
    )


def _digits(figure: PairedFigure) -> ComparedTexts:
    return format_comparison(figure.base, figure.candidate, figure.low, figure.high)


def _reach(figure: PairedFigure) -> str:
    if figure.relative and figure.low_percent is not None and figure.high_percent is not None:
        low, high = (
            format_signed(end, 1, "%") for end in (figure.low_percent, figure.high_percent)
        )
        return f"{low} to {high}"
    if figure.low is None or figure.high is None:
        return "-"
    shown = _digits(figure)
    return f"{shown.low} to {shown.high}"
