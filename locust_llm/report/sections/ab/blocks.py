"""Blocks: what each of them came to, figure by figure, base and candidate of each pair beside each other."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from locust_llm.records.run import Run, Stage
from locust_llm.report.selection import Floats, RequestSelection
from locust_llm.report.slo.censoring import bound_coalesced_metric, bound_rate_amounts, bound_share_hits, bound_values
from locust_llm.report.slo.observed import select_requests
from locust_llm.report.window import RateWindow, Span, select_ended_in
from locust_llm.settings.ab import BASE, CANDIDATE
from locust_llm.settings.sweep import TIME_UP
from locust_llm.slo.grammar import Condition, Rule
from locust_llm.slo.metrics import BY_WORD, RATE, Metric

FEW: Final = 20
"""Of so few requests a block its figures are of little use."""


class BlockRequests(NamedTuple):
    """The requests of one block."""

    counted: RequestSelection
    """Those behind the washout."""
    ended: RequestSelection
    """Those that ended while the load behind the washout was on: of these rates are."""
    seconds: float
    """How long that was."""


class PairRequests(NamedTuple):
    base: BlockRequests
    candidate: BlockRequests


def find_complete_pairs(requests: pd.DataFrame, run: Run) -> list[PairRequests]:
    """The pairs of which both blocks came to their end; where a tenant is isolated, of its requests."""
    if run.settings.isolate:
        requests = requests[requests["tenant"] == run.settings.isolate]
    windows = {(stage.pair, stage.arm): window for stage in run.stages if (window := _window(stage)) is not None}
    numbers = sorted({pair for pair, _ in windows if (pair, BASE) in windows and (pair, CANDIDATE) in windows})
    groups = dict(list(requests.groupby(["pair", "arm"], observed=True)))
    found = []
    for number in numbers:
        both = [(groups.get((number, arm)), windows[number, arm]) for arm in (BASE, CANDIDATE)]
        blocks = [_block(part, window) for part, window in both if part is not None]
        if len(blocks) == 2:
            found.append(PairRequests(*blocks))
    return found


def select_candidate_requests(
    everything: RequestSelection, run: Run
) -> tuple[RequestSelection, RequestSelection, RateWindow]:
    """(its requests that count, those of which its rates are, what these are over)."""
    requests = everything.requests
    part = everything.only(requests["arm"] == CANDIDATE).only(requests["pair"] > 0)
    stages = [stage for stage in run.stages if stage.arm == CANDIDATE]
    windows = [window for stage in stages if (window := _window(stage)) is not None]
    main = part.only(requests["phase"] == "profiling")
    if not windows:
        return main, main, RateWindow(main.span())
    over = np.fmax(part["closed_at"], part["last_chunk_at"])
    inside = np.any([(over >= low) & (over <= high) for low, high in windows], axis=0)
    pauses = tuple((before[1], after[0]) for before, after in pairwise(windows))
    return main, part.where(inside), RateWindow((windows[0][0], windows[-1][1]), pauses)


def compute_pair_values(rule: Rule, pairs: Sequence[PairRequests]) -> Floats:
    """(base, candidate) of each pair, a row each: seconds, a share of 1, a number a second; NaN where a block has none."""
    return np.array([[_figure(rule, block) for block in pair] for pair in pairs], np.float64).reshape(-1, 2)


def bound_pair_values(rule: Rule, metric: Metric, pairs: Sequence[PairRequests]) -> tuple[Floats, Floats]:
    """The same with the values of a metric at their least, and at their most, as far as merged chunks leave them open."""
    least, most = [[_moved(pair, metric, most=most) for pair in pairs] for most in (False, True)]
    return compute_pair_values(rule, least), compute_pair_values(rule, most)


def _moved(pair: PairRequests, metric: Metric, *, most: bool) -> PairRequests:
    blocks = []
    for block in pair:
        requests, chosen = block.counted.requests, block.counted.chosen
        reach = bound_coalesced_metric(RequestSelection(requests, np.ones(len(requests), np.bool_)), metric)
        moved = requests.assign(**{metric.column: reach[most] / metric.base})
        ended = RequestSelection(moved, block.ended.chosen)  # of the same requests
        blocks.append(block._replace(counted=RequestSelection(moved, chosen), ended=ended))
    return PairRequests(*blocks)


def moved_to(conditions: Iterable[Condition], pairs: Sequence[PairRequests], *, best: bool) -> Sequence[PairRequests]:
    """With the values that merged chunks leave open as they meet these conditions best, or least."""
    for condition in conditions:
        metric = BY_WORD[condition.metric].metric
        if metric is not None:
            pairs = [_moved(pair, metric, most=best != condition.op.startswith("<")) for pair in pairs]
    return pairs


def count_block_requests(rule: Rule, pairs: Sequence[PairRequests]) -> Iterator[int]:
    """How many requests each block's figure is made of."""
    for pair in pairs:
        yield from (select_requests(rule, block.counted).size for block in pair)


def _window(stage: Stage) -> Span | None:
    """None: it is not counted, or did not come to its end."""
    if not stage.pair or stage.measured_at is None or stage.why != TIME_UP:
        return None
    return stage.measured_at, stage.ended_at


def _block(requests: pd.DataFrame, window: Span) -> BlockRequests:
    everything = RequestSelection(requests, np.ones(len(requests), np.bool_))
    counted = everything.only(requests["phase"] == "profiling")
    return BlockRequests(counted, select_ended_in(everything, window), window[1] - window[0])


def _figure(rule: Rule, block: BlockRequests) -> float:
    """As the tables have it, a failure being +infinity; of what is a rate, over the block's time."""
    measure = BY_WORD[rule.metric]
    if measure.metric is not None:
        known = bound_values(rule, select_requests(rule, block.counted), measure.metric).low
        if not len(known):
            return math.nan
        if rule.percentile is None:
            return float(known.mean())
        if np.isfinite(known).all():
            return float(np.percentile(known, rule.percentile))
        return float(np.percentile(known, rule.percentile, method="inverted_cdf"))
    if measure.units is RATE:
        return float(bound_rate_amounts(rule, select_requests(rule, block.ended)).low.sum()) / block.seconds
    share = bound_share_hits(rule, select_requests(rule, block.counted)).low
    return float(share.mean()) if len(share) else math.nan
