"""Metrics by group: TTFT, ITL and waits of requests of one length, limit of the ramp, turn,
replica, user class."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import FAILURES, OK
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Bools, Floats
from locust_llm.report.distribution_rows import make_distribution_row
from locust_llm.report.request_table import number_combinations
from locust_llm.slo.binomial_intervals import find_interval_ranks
from locust_llm.slo.metric_definitions import (
    GATE_WAIT,
    ITL,
    LATENCY,
    LONGEST_STALL,
    TTFT,
    TTFT_FROM_DUE,
    Metric,
)
from locust_llm.workload.model_and_tenant_mix import parse_shares

from .request_selection import RequestSelection, mean_of_known, ratio_of_sums
from .summary_rows import (
    CHANGED_LIMIT,
    LIMIT,
    ModelShare,
    RequestBreakdown,
    RequestGroup,
    Row,
    TtftGrowth,
)
from .users_and_limit_over_time import follows_ramp

_NARROW: Final = 1.25


# -- buckets ---------------------------------------------------------------------------------------


def choose_bucket_edges(lengths: Iterable[int], at_most: int = 6) -> tuple[int, ...]:
    """The ascending edges of the buckets of these lengths (tokens, at least 1): [edge i, edge i +
    1) is a bucket.

    Up to ``at_most`` different lengths have a bucket each. If more lie in as few narrow heaps (from
    1,996 to 2,004: prompts of one requested length, as a server counts them), each heap has a
    bucket. Otherwise the edges are 1, 2, 5, 10, 20, 50 and so on. Wider ranges use only every
    second or third of these, so that there are no more buckets. The buckets between heaps stay
    empty.
    """
    different = sorted({length for length in lengths if length >= 1}) or [1]
    heaps = (
        [(length, length) for length in different]
        if len(different) <= at_most
        else _heaps(different)
    )
    if len(heaps) <= at_most and all(last <= first * _NARROW for first, last in heaps):
        ends = {first for first, _ in heaps} | {last + 1 for _, last in heaps}
        return tuple(sorted(ends))
    spans = (_round_edges(different[0], different[-1], step) for step in itertools.count(1))
    return next(edges for edges in spans if len(edges) - 1 <= at_most)


def _round_edges(first: int, last: int, step: int) -> tuple[int, ...]:
    """1, 2, 5, 10 and so on, or every step-th of them: from the last that is not above ``first`` to
    the first above ``last``."""
    edges = [
        (1, 2, 5)[at % 3] * 10 ** (at // 3) for at in range(0, 3 * len(str(last)) + step, step)
    ]
    return tuple(edges[bisect_right(edges, first) - 1 : bisect_right(edges, last) + 1])


def _heaps(different: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of lengths without a gap of more than a tenth."""
    heaps = [(different[0], different[0])]
    for value in different[1:]:
        first, last = heaps[-1]
        if value > last * 1.1:
            heaps.append((value, value))
        else:
            heaps[-1] = first, value
    return heaps


def label_bucket(length: int, edges: tuple[int, ...]) -> str:
    """The bucket's label: ``550`` of a single length, ``1k-2k`` from 1,000 to 1,999, ``<200`` and
    ``5k+`` outside of all.

    k is 1,000 and stands for whole thousands only, so that no two buckets share a label.
    """
    at = bisect_right(edges, length)
    if at == 0:
        return f"<{_short(edges[0])}"
    if at == len(edges):
        return f"{_short(edges[-1])}+"
    low, high = edges[at - 1 : at + 1]
    return _short(low) if high == low + 1 else f"{_short(low)}-{_short(high)}"


def _short(tokens: int) -> str:
    for unit, letter in ((10**6, "M"), (10**3, "k")):
        if tokens >= unit and tokens % unit == 0:
            return f"{tokens // unit}{letter}"
    return str(tokens)


Mask = NDArray[np.bool_]
Groups = Iterable[tuple[str, RequestSelection]]
RowMarker = Callable[[Row, RequestSelection], Row]
"""Takes a row and the requests behind it."""

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)
MAX_RAMP_RANGES: Final = 8
"""The rows of a ramp. With more limits each row is a range."""
QUARTERS: Final = 4
KINDS: Final = (("user class", "user_class"), ("model", "model"), ("name", "name"))
MAX_KINDS: Final = 12
"""The rows of user classes, models, names and replicas."""
CLOCK_SLACK_S: Final = 1e-3
"""The clocks of requests and limits differ by at most this: a request that a new limit admitted
counts under it."""

WHOLE: Final = "whole phase"
RATE: Final = "rate of the ramp"
TURN: Final = "turn"
BACKEND: Final = "backend"
LENGTH: Final = "input length"


def divide_requests(
    main: RequestSelection, run: Run, mark: RowMarker = lambda row, part: row
) -> Iterator[RequestBreakdown]:
    """The breakdowns that divide the profiling phase. ``main`` has its requests. ``mark``: see
    ``InexactValues.mark_row``."""
    metrics = [TTFT_FROM_DUE, TTFT, ITL] if run.has_waits else [TTFT, ITL]
    if not run.settings.generates:
        metrics = [LATENCY, GATE_WAIT] if run.limits else [LATENCY]
    for by, groups in (
        (LENGTH, group_by_length(main)),
        ("images", group_by_images(main)),
        ("image size (thousands of pixels)", group_by_pixels(main)),
        (LIMIT if follows_ramp(run) else CHANGED_LIMIT, group_by_limit(main, run)),
        (RATE, group_by_rate(main, run)),
        (TURN, group_by_turn(main)),
        (BACKEND, group_by_backend(main)),
        *group_by_kind(main),
    ):
        with_tokens = by in (TURN, BACKEND)  # with input and cached tokens in place of the wait
        shown = metrics[-2:] if with_tokens and run.settings.generates else metrics
        if by in (LIMIT, CHANGED_LIMIT) and run.settings.generates:
            shown = [*metrics[:-1], LONGEST_STALL, ITL]  # a limit is there to shorten stalls
        decoding = _decoded_in_one(main, run, by)
        rows = tuple(
            _group(label, part, shown, with_tokens, decoding, mark) for label, part in groups
        )
        if sum(group.label != WHOLE for group in rows) > 1:
            yield RequestBreakdown(by=by, groups=rows)


def group_by_length(main: RequestSelection) -> Groups:
    """Group by buckets of input tokens, the shortest first."""
    yield from _divide_by_buckets(main, estimate_input_lengths(main))


def group_by_images(main: RequestSelection) -> Groups:
    """Group by the number of images, none included."""
    count = np.nan_to_num(main["images"])
    if count.any():
        for low, high, here in _ranges(count):
            yield f"{low}" if low == high else f"{low}-{high}", main.where(here)


def group_by_pixels(main: RequestSelection) -> Groups:
    """Group by buckets of the pixels of a request's images, in thousands."""
    yield from _divide_by_buckets(main, np.ceil(main["image_pixels"] / 1000))


def _divide_by_buckets(main: RequestSelection, sizes: Floats) -> Groups:
    """Group by buckets of these sizes, the smallest first. A size below 1 is in none."""
    known = np.unique(sizes[sizes >= 1])
    if not len(known):
        return
    edges = choose_bucket_edges(known.astype(np.int64).tolist())
    at = np.searchsorted(edges, sizes, side="right")  # NaN sorts behind all
    for i in range(1, len(edges)):
        if (here := at == i).any():
            yield label_bucket(edges[i - 1], edges), main.where(here)


def estimate_input_lengths(part: RequestSelection) -> Floats:
    """The input tokens as delivered. Where no server counted them (most failures), they are the
    requested ones and the excess (roles, templates) of requests with about that length. Otherwise
    failures would lie in their own buckets."""
    asked, delivered = part["asked_input_tokens"], part["input_tokens"]
    both = ~(np.isnan(asked) | np.isnan(delivered))
    if both.any():
        sizes, which = np.unique(asked[both], return_inverse=True)
        on_top = np.bincount(which, (delivered - asked)[both]) / np.bincount(which)
        asked = np.round(asked + np.interp(asked, sizes, on_top))
    return np.where(np.isnan(delivered), asked, delivered)


def group_by_limit(main: RequestSelection, run: Run) -> Groups:
    """Group by the prefill limit in force. The last limit (of a ramp the plateau) and the whole
    phase come last. Nothing if the limit never changed.

    The plateau has the requests that were sent while the last limit stood. With one process the
    records have their limit. With several, each process knows only its share, so the time of the
    admission decides.
    """
    changes = [
        change for change in run.limits if change.phase == "profiling" and change.limit is not None
    ]
    if len({change.limit for change in changes}) < 2:
        return
    last = changes[-1]
    if len(run.workers) > 1:
        # None too: the gate may be taken away
        every = [change for change in run.limits if change.phase == "profiling"]
        at = np.array([change.at for change in every]) - CLOCK_SLACK_S
        before = np.searchsorted(at, main["admitted_at"], side="right") - 1
        known = ~np.isnan(main["admitted_at"]) & (before >= 0)
        limit = np.where(
            known, np.array([change.limit for change in every], np.float64)[before], np.nan
        )
    else:
        limit = main["limit"]
    plateau = (limit == last.limit) & (main["sent_at"] >= last.at - CLOCK_SLACK_S)
    for low, high, here in _ranges(np.where(plateau, np.nan, limit)):
        yield f"{low}" if low == high else f"{low}-{high}", main.where(here)
    if plateau.any():
        name = "plateau" if follows_ramp(run) else "last"
        yield f"{last.limit} ({name})", main.where(plateau)
    yield WHOLE, main


def group_by_rate(main: RequestSelection, run: Run) -> Groups:
    """Group by the quarter of the rate's ramp in which requests were due. The plateau and the whole
    phase come last."""
    rate, ramp_s = run.settings.request_rate, run.settings.request_rate_ramp_duration
    if not rate or not ramp_s:
        return
    due = (main["due_at"] - run.profiling_at) / ramp_s * QUARTERS
    for i in range(QUARTERS):
        here = (due < i + 1) & ((due >= i) | (i == 0))
        if here.any():
            yield f"{rate * i / QUARTERS:g}-{rate * (i + 1) / QUARTERS:g}/s", main.where(here)
    if (plateau := due >= QUARTERS).any():
        yield f"{rate:g}/s (plateau)", main.where(plateau)
    yield WHOLE, main


def _decoded_in_one(main: RequestSelection, run: Run, by: str) -> Bools | None:
    """By limit or rate: whether each request ended under the limit, or in the quarter of the ramp, in
    which it began, and before the load stopped. An answer that was decoded under another load, or
    while the run ended, shows nothing of its own. None: by anything else."""
    if by in (LIMIT, CHANGED_LIMIT):
        at = np.array([change.at for change in run.limits])
        began, ended = (
            np.searchsorted(at, main.requests.floats(column))
            for column in ("admitted_at", "last_chunk_at")
        )
    elif by == RATE:
        ramp_s = run.settings.request_rate_ramp_duration or math.inf
        began, ended = (
            np.minimum(
                (main.requests.floats(column) - run.profiling_at) // (ramp_s / QUARTERS), QUARTERS
            )
            for column in ("due_at", "last_chunk_at")
        )
    else:
        return None
    stop_at = math.inf if run.stopping_at is None else run.stopping_at
    return np.asarray((began == ended) & (main.requests.floats("last_chunk_at") <= stop_at))


def group_by_turn(main: RequestSelection) -> Groups:
    """Group first turns of conversations, and all later ones."""
    first = main["turn"] == 0
    if not first.all():
        yield "first", main.where(first)
        yield "later", main.where(~first)


def group_by_turn_number(main: RequestSelection) -> Groups:
    """Group by the number of the turn, from 1 on; many turns in ranges."""
    for low, high, here in _ranges(main["turn"] + 1):
        yield f"{low}" if low == high else f"{low}-{high}", main.where(here)


def group_by_backend(main: RequestSelection) -> Groups:
    """Group by the replica that answered. ``-``: not known, mostly as the request failed before."""
    return next((groups for _, groups in group_by_kind(main, ((BACKEND, BACKEND),))), ())


def group_by_kind(
    main: RequestSelection, kinds: Sequence[tuple[str, str]] = KINDS
) -> Iterator[tuple[str, Groups]]:
    """Group by user class, model and request name together, as far as there are several. The
    commonest group is first. ``kinds``: (word, column)."""
    texts = {column: main.requests.texts(column).rows(main.chosen) for _, column in kinds}
    several = [(word, column) for word, column in kinds if len(texts[column].count_rows()) > 1]
    if not several:
        return
    columns = [texts[column] for _, column in several]
    which, first_rows = number_combinations([column.codes for column in columns])
    counts = np.bincount(which[which >= 0], minlength=len(first_rows))
    common = np.lexsort((first_rows, -counts))
    firsts = zip(*(column.rows(first_rows).tolist() for column in columns), strict=True)
    labels = [*map(_join_texts, firsts)]

    def groups() -> Groups:
        for i in common[:MAX_KINDS].tolist():
            yield labels[i], main.where(which == i)
        if len(common) > MAX_KINDS:
            yield (
                f"{len(common) - MAX_KINDS} others",
                main.where(np.isin(which, common[MAX_KINDS:])),
            )

    yield " / ".join(word for word, _ in several), groups()


def _join_texts(texts: Iterable[str | None]) -> str:
    return " / ".join(text or "-" for text in texts)


def measure_model_mix(main: RequestSelection, asked: str | None) -> tuple[ModelShare, ...]:
    """Each model's share of the requests beside its weight in the mix. Empty: there is no mix."""
    try:
        wanted = parse_shares(asked) if asked else {}
    except ValueError:  # of a run.json that was changed by hand
        wanted = {}
    return tuple(
        ModelShare(
            model=name,
            asked=share,
            sent=main.count("model", name) / main.size if main.size else None,
        )
        for name, share in wanted.items()
    )


def count_sessions(main: RequestSelection) -> tuple[int | None, float | None]:
    """(conversations that began, mean answered turns of each). None: no conversation has a second
    turn."""
    first = main["turn"] == 0
    if first.all() or not first.any():
        return None, None
    count = int(first.sum())
    return count, main.outcome(OK).size / count


def _ranges(values: Floats) -> Iterator[tuple[int, int, Mask]]:
    """(lowest, highest, mask) of at most MAX_RAMP_RANGES ranges of the values, with about equally
    many values in each."""
    different = np.unique(values[~np.isnan(values)]).astype(np.int64)
    for lengths_of_range in (
        np.array_split(different, min(MAX_RAMP_RANGES, len(different))) if len(different) else ()
    ):
        yield (
            int(lengths_of_range[0]),
            int(lengths_of_range[-1]),
            (values >= lengths_of_range[0]) & (values <= lengths_of_range[-1]),
        )


def _group(
    label: str,
    part: RequestSelection,
    metrics: Sequence[Metric],
    with_tokens: bool,
    decoding: Bools | None,
    mark: RowMarker,
) -> RequestGroup:
    """``decoding`` selects the requests for ITL and stalls; None: all."""
    ok = part.outcome(OK)
    finished = part.outcome(OK, *FAILURES)
    failed = finished.size - ok.size
    decoded = ok if decoding is None or label == WHOLE else ok.only(decoding)
    part_of = {GATE_WAIT.tag: finished, ITL.tag: decoded, LONGEST_STALL.tag: decoded}
    rows = list[Row]()
    for metric in metrics:
        counted = part_of.get(metric.tag, ok)
        row = make_distribution_row(metric, counted[metric.column], PERCENTILES)
        rows.append(mark(row, counted))
    return RequestGroup(
        label=label,
        succeeded=ok.size,
        failed=failed,
        failure_rate=failed / finished.size if finished.size else None,
        rows=tuple(rows),
        input_tokens=mean_of_known(ok["input_tokens"]) if with_tokens else None,
        cached_share=ratio_of_sums(ok["cached_tokens"], ok["input_tokens"])
        if with_tokens
        else None,
    )


# -- growth ----------------------------------------------------------------------------------------

MIN_REQUESTS: Final = 50
"""Each quarter then has enough for an interval of its median."""
MIN_LENGTH_RATIO: Final = 2.0
MIN_LENGTH_DIFFERENCE: Final = 500.0
"""The least ratio and difference (tokens) between the upper and the lower quartile of prompt
lengths."""


def fit_ttft_growth(main: RequestSelection) -> TtftGrowth | None:
    """The growth over successful requests. None: their prompts are too few, or too much alike.

    It compares the medians of TTFT in the quarters with the longest and the shortest prompts. The
    ends of its interval are the difference of opposite ends of theirs (order statistics), so it is
    rather too wide.
    """
    ok = main.outcome(OK)
    tokens = ok["input_tokens"]
    ttft_ms = ok["ttft_s"] * 1e3
    known = ~(np.isnan(tokens) | np.isnan(ttft_ms))
    tokens, ttft_ms = tokens[known], ttft_ms[known]
    if len(tokens) < MIN_REQUESTS:
        return None
    low, high = np.percentile(tokens, [25, 75])
    if high < MIN_LENGTH_RATIO * low or high - low < MIN_LENGTH_DIFFERENCE:
        return None
    short = tokens <= low
    long = tokens >= high
    (short_low, short_ms, short_high), (long_low, long_ms, long_high) = (
        _median(ttft_ms[selected]) for selected in (short, long)
    )
    thousands = float(tokens[long].mean() - tokens[short].mean()) / 1000
    return TtftGrowth(
        short_tokens=float(low),
        long_tokens=float(high),
        short_ttft_ms=short_ms,
        long_ttft_ms=long_ms,
        ms_per_1k=(long_ms - short_ms) / thousands,
        low=(long_low - short_high) / thousands,
        high=(long_high - short_low) / thousands,
        count=len(tokens),
    )


def _median(values: Floats) -> tuple[float, float, float]:
    """(low end, median, high end) of at least six values."""
    ordered = np.sort(values)
    low, high = find_interval_ranks(len(ordered), 50)
    return float(ordered[low - 1]), float(np.median(ordered)), float(ordered[high - 1])
