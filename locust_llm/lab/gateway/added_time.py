"""Added time: what a gateway adds to an answer, from the moments of both sides on one clock.

The upstream knows when it had the request and when it wrote each word; the client knows when it
sent and when each word came. So every part of the way has its own time: the request's **way**
(client to upstream), and each word's **transit** (upstream to client). The same parts without the
gateway are measured in blocks between, and their median is subtracted:

- ``ttft``: way and transit of the first word;
- ``token``: the transit of each further word;
- ``itl``: how much longer a gap between two words is for the client than it was for the upstream;
- ``latency``: way and transit of the end;
- ``setup``: a new connection, and a short answer on it;
- ``embeddings``: an answer without words, from its request to its end. The upstream's own time is
  in it, and in the median that is subtracted.

The spread of the times without the gateway is the **measurement error** of one value: p99 less the
median. Nothing smaller can be told of a single request.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from locust_llm.slo.percentile import find_percentile, has_too_few_values
from locust_llm.slo.student_t import find_student_t

from .gateway_result import (
    EMBEDDINGS,
    FIRST_TOKEN,
    FURTHER_TOKEN,
    GAP,
    SETUP,
    WHOLE_ANSWER,
    AddedTime,
)
from .raw_answer import AnswerTimes

TAIL: Final = 0.025
RESAMPLES: Final = 400
MIN_PAIRS: Final = 4
"""An interval needs at least so many pairs of blocks."""
MS: Final = 1e6


class AnswerParts(NamedTuple):
    """The parts of one answer's way, in ns."""

    ttft: int
    tokens: tuple[int, ...]
    gaps: tuple[int, ...]
    answer: int
    setup: int | None = None
    """None: the connection was there."""

    def values(self, quantity: str) -> Sequence[int]:
        known: dict[str, Sequence[int]] = {
            FIRST_TOKEN: (self.ttft,),
            FURTHER_TOKEN: self.tokens,
            GAP: self.gaps,
            WHOLE_ANSWER: (self.answer,),
            EMBEDDINGS: (self.answer,),
            SETUP: () if self.setup is None else (self.setup,),
        }
        return known[quantity]


def measure_parts(
    times: AnswerTimes, sent_ns: int, connect_s: float | None = None
) -> AnswerParts | None:
    """The parts of an answer. None: it has no first word, so its moments are unknown."""
    if times.received_ns is None or times.end_ns is None or not times.words:
        return None
    words = sorted(times.words)
    way = times.received_ns - sent_ns
    transits = [word.at_ns - word.sent_ns for word in words]
    gaps = [after - before for before, after in pairwise(transits)]
    answer = way + times.end_ns - words[-1].sent_ns
    setup = None if connect_s is None else int(connect_s * 1e9) + answer
    return AnswerParts(way + transits[0], tuple(transits[1:]), tuple(gaps), answer, setup)


def measure_whole(times: AnswerTimes, sent_ns: int) -> AnswerParts | None:
    """The time of an answer that holds no words, from its request to its end. None: no byte
    came."""
    if times.end_ns is None:
        return None
    taken = times.end_ns - sent_ns
    return AnswerParts(taken, (), (), taken)


class TimedBlock(NamedTuple):
    """The answers of one block. Blocks with and without the gateway come in pairs."""

    pair: int
    through: bool
    answers: tuple[AnswerParts, ...]


def estimate_added_time(
    blocks: Sequence[TimedBlock], quantity: str, random: np.random.Generator
) -> AddedTime | None:
    """Estimates one quantity over blocks of the same load. None: it has no value with, or none
    without the gateway."""
    through = [block for block in blocks if block.through]
    direct = [block for block in blocks if not block.through]
    values, pairs = _collect(through, quantity)
    direct_values, direct_pairs = _collect(direct, quantity)
    if not len(values) or not len(direct_values):
        return None
    ordered = np.sort(values)
    direct_ordered = np.sort(direct_values)
    direct_p50 = find_percentile(direct_ordered, 50)
    weights = _draw_weights(sorted({block.pair for block in blocks}), random)
    direct_p50s = _resample((direct_values, direct_pairs), 50.0, weights)
    p50, p99 = (find_percentile(ordered, percentile) - direct_p50 for percentile in (50, 99))
    ends = list[tuple[float, float] | None]()
    for percentile, point in ((50.0, p50), (99.0, p99)):
        few = has_too_few_values(len(values), percentile)
        drawn = _resample((values, pairs), percentile, weights) - direct_p50s
        ends.append(None if few else _find_interval(point, drawn, weights))
    return AddedTime(
        quantity=quantity,
        samples=len(values),
        p50_ms=p50 / MS,
        p99_ms=p99 / MS,
        p50_interval_ms=ends[0],
        p99_interval_ms=ends[1],
        error_ms=(find_percentile(direct_ordered, 99) - direct_p50) / MS,
        direct_p50_ms=direct_p50 / MS,
        direct_p99_ms=find_percentile(direct_ordered, 99) / MS,
    )


def _collect(blocks: Sequence[TimedBlock], quantity: str) -> tuple[Any, Any]:
    """(values, the number of the pair of each)."""
    values = list[int]()
    pairs = list[int]()
    for block in blocks:
        for answer in block.answers:
            own = answer.values(quantity)
            values += own
            pairs += [block.pair] * len(own)
    return np.array(values, dtype=np.int64), np.array(pairs, dtype=np.int64)


def _draw_weights(pairs: Sequence[int], random: np.random.Generator) -> Any:
    """For each resample, how often each pair is drawn. Columns are the numbers of pairs."""
    count = len(pairs)
    drawn = random.multinomial(count, [1 / count] * count, size=RESAMPLES)
    weights = np.zeros((RESAMPLES, max(pairs) + 1))
    weights[:, list(pairs)] = drawn
    return weights


def _find_interval(point: float, drawn: Any, weights: Any) -> tuple[float, float] | None:
    """The 95 % interval in ms over pairs of blocks. None: they are too few."""
    pairs = int(np.count_nonzero(weights.sum(axis=0)))
    if pairs < MIN_PAIRS:
        return None
    # the bootstrap of few clusters is too narrow by this factor, and Student's t is wider than
    # the normal distribution
    error = float(np.std(drawn)) * math.sqrt(pairs / (pairs - 1))
    half = find_student_t(pairs - 1, TAIL) * error
    return (point - half) / MS, (point + half) / MS


def _resample(values_and_pairs: tuple[Any, Any], percentile: float, weights: Any) -> Any:
    """The percentile (nearest rank) of each resample of pairs."""
    values, pairs = values_and_pairs
    order = np.argsort(values, kind="stable")
    ordered, of_pair = values[order], pairs[order]
    found = np.empty(len(weights))
    for number, weight in enumerate(weights):
        total = np.cumsum(weight[of_pair])
        rank = percentile / 100 * total[-1]
        place = min(int(np.searchsorted(total, rank)), len(ordered) - 1)
        found[number] = ordered[place]
    return found
