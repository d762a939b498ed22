"""Measurements: what an interference probe measured: cost of prompts, stalls, waits, steps.

Everything is a difference of stamps of one process or a count of chunks, so it is as exact as the
stamps.

A *step* of the server gives each decoder one token, so the gaps of the decoders beside a prompt
count its steps. The count does not depend on the length of a step, and noise in time hardly changes
it. While the server receives and tokenizes a prompt, decoders go on: so where gaps are much longer
than those before, only the long ones count.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from statistics import fmean, median
from typing import Final

import msgspec

from locust_llm.lab.probe.requests import ProbeResult
from locust_llm.records.record import CUT

LONG_STEP_RATIO: Final = 9.0
"""Typical gap beside a prompt / gap before it, above which a step is at least two gaps long."""
DISTINCT_STEP_RATIO: Final = 30.0
"""The same ratio, above which the geometric mean of both separates steps from other gaps."""
MIN_HOLE_RATIO: Final = 3.0
"""Between neighbours in order of length, a hole that separates steps from other gaps too,"""
MAX_QUIET_RATIO: Final = 2.5
"""if all gaps below it are quiet: at most this many times the usual gap."""
MIN_SLOWDOWN: Final = 1.1
"""Typical gap beside a prompt / quiet gap, above which the begin of the prefill can be found."""
MIN_FIRST_STEP_RATIO: Final = 1.15
"""Gap / quiet gap of a first step, which is shorter than the later ones, as those attend to all
tokens before them."""
MIN_CLEAR_STEP_RATIO: Final = 1.5
"""Typical step / quiet gap, above which steps differ clearly from quiet gaps."""
MIN_FULL_SHARE: Final = 0.5
"""Tokens computed in a gap / those of a usual step, below which it is no full step."""
MAX_PAUSE_SHARE: Final = 1 / 3
"""A gap / the first step, below which it is no step: a first step is a third of the second one or
more, even where all of their time is attention."""
MERGED_GAP_RATIO: Final = 0.05
"""Gap / usual gap, below which two chunks came together, on the network or in this client."""


def split_coalesced_gaps(gaps: Sequence[float], quiet_s: float) -> list[float]:
    """Chunks that came together had one step each, so the time since the one before is divided
    evenly."""
    shared: list[list[float]] = []
    for gap in gaps:
        if gap < MERGED_GAP_RATIO * quiet_s and shared:
            shared[-1].append(gap)
        else:
            shared.append([gap])
    return [fmean(group) for group in shared for _ in group]


def find_step_threshold(
    gaps: Sequence[float], quiet_s: float, heavy_s: float
) -> tuple[float, bool]:
    """(seconds above which a gap beside a prompt is a step, 0 if unknown; whether steps are
    distinct). ``gaps``: of all decoders; ``heavy_s``: a gap that is a step, if most of the time
    went into steps."""
    for below, above in pairwise(sorted([quiet_s, *(gap for gap in gaps if gap > quiet_s)])):
        if (
            above > MIN_HOLE_RATIO * below
            and below < MAX_QUIET_RATIO * quiet_s
            and above <= heavy_s
        ):
            return math.sqrt(below * above), True
    if heavy_s > DISTINCT_STEP_RATIO * quiet_s:
        return math.sqrt(heavy_s * quiet_s), True
    return (2 * quiet_s if heavy_s > LONG_STEP_RATIO * quiet_s else 0.0), False


def select_step_gaps(gaps: Sequence[float], quiet_s: float, least_s: float) -> list[float]:
    """The gaps of a decoder in which the server computed the prompt: those longer than ``least_s``;
    where that is 0, all from the first one on that is not quiet."""
    usual_s = median(gaps) if gaps else 0.0
    first_s = max(least_s, MIN_FIRST_STEP_RATIO * quiet_s)
    slowed = usual_s > MIN_SLOWDOWN * quiet_s or least_s
    begin = next((i for i, gap in enumerate(gaps) if gap > first_s), 0) if slowed else 0
    return [gap for gap in gaps[begin:] if gap > least_s]


def count_certain_steps(steps: Sequence[float], quiet_s: float) -> int:
    """Steps that are none by mistake: while a server tokenizes a long prompt, decoders keep their
    pace, and noise hides where that ends. Two quiet gaps in a row are no steps, unless steps are
    hardly longer."""
    if not steps or median(steps) < MIN_CLEAR_STEP_RATIO * quiet_s:
        return len(steps)
    quietly = [gap <= MIN_FIRST_STEP_RATIO * quiet_s for gap in steps]
    last = max((i for i, both in enumerate(pairwise(quietly), 2) if all(both)), default=0)
    return len(steps) - last


def drop_steps_before_pause(steps: Sequence[float], sent_in_s: float) -> Sequence[float]:
    """Steps without a pause before them: without the gap of ``sent_in_s`` in which the prompt was
    sent, if it is far shorter than the next one. It began before the prompt was sent, so the server
    was still busy with what it had before."""
    paused = len(steps) > 1 and steps[0] == sent_in_s and steps[0] < MAX_PAUSE_SHARE * steps[1]
    return steps[1:] if paused else steps


def count_doubtful_steps(
    steps: Sequence[float], sent_in_s: float, curve: Sequence[tuple[float, float]]
) -> int:
    """Gaps that were counted as steps, and may be pauses: the one in which the prompt was sent;
    and, apart from the last, those in which too few tokens of the prompt can have been computed, as
    a scheduler fills each step but the last. ``curve``: (tokens, seconds) of prompts alone, up to
    this one, both rising from (0, 0)."""
    stretch = curve[-1][1] / sum(steps)
    done = [0.0, *(_computed(stretch * end_s, curve) for end_s in accumulate(steps))]
    each = [after - before for before, after in pairwise(done)]
    usual = time_weighted_median(each)
    return sum(
        tokens < MIN_FULL_SHARE * usual or (i == 0 and steps[0] == sent_in_s)
        for i, tokens in enumerate(each[:-1])
    )


def _computed(seconds: float, curve: Sequence[tuple[float, float]]) -> float:
    """Tokens of a prompt after so much of its time, linear between those known."""
    for (few, soon_s), (many, late_s) in pairwise(curve):
        if seconds < late_s:
            return few + (many - few) * (seconds - soon_s) / (late_s - soon_s)
    return curve[-1][0]


def time_weighted_median(gaps: Sequence[float]) -> float:
    """The median gap weighted by time: gaps of this length and above make half of the time."""
    left = sum(gaps) / 2
    for gap in sorted(gaps, reverse=True):
        left -= gap
        if left <= 0:
            return gap
    return 0.0


# -- measurements ----------------------------------------------------------------------------------
# The cost of prompts, the stalls of decoders beside them, and the waits behind them.

MAX_SERIAL_SHARES: Final = 1.5
"""First token of the first of equal prompts, in shares of the time of all: 1 if it is computed
alone, 2 beside another."""
MIN_GROUP_DISTANCE: Final = 1.5
"""In shares: 2 or more between two groups, 1 between prompts computed one by one."""
MAX_GROUP_SPREAD: Final = 0.75
"""In shares, between the second and the last of a group; prompts computed one by one are 1
apart."""
MIN_GROUP_DELAY: Final = 0.6
"""In shares for each member: a group of k has its first tokens after k shares; the first member has
less, as it was alone for a moment."""
SAME_LENGTH_SHARE: Final = 0.1
"""Lengths that differ by less are the same."""
STALL_RATIO: Final = 3.0
"""Gap / median gap, above which it is a stall."""


class PromptCost(msgspec.Struct, frozen=True):
    """What a prompt takes alone."""

    asked_tokens: int
    input_tokens: int
    ttft_s: tuple[float, ...]
    """One for each attempt."""

    @property
    def typical_s(self) -> float:
        return median(self.ttft_s)


class DecoderStall(msgspec.Struct, frozen=True):
    """Long prompts that came at one moment, and the decoders beside them."""

    kind: str
    """``stall``: one prompt; ``pair``: two."""
    round: int
    asked_tokens: int
    input_tokens: int
    """The input tokens of one of the prompts."""
    ttft_s: float
    """Until the last of the prompts had its first token."""
    meanwhile: float
    """Tokens of the median decoder in that time."""
    steps: float
    """In which the prompts were computed: gaps of the median decoder."""
    surely: float
    """Of these, those after the last two neighbours that look like quiet gaps, if most do not."""
    plain: bool
    """Steps are distinct: no other gap is counted; else some from before the begin of the prefill
    are."""
    rest: float
    """Largest share of a step that the last one may be and still look like a quiet gap, where steps
    are distinct."""
    longest_s: float
    """Of the median decoder, the longest gap that overlaps that time; the median, as two tokens may
    be in one chunk."""
    usual_s: float
    """Median gap of the decoders in that time (where steps are distinct, of the steps); and before
    it."""
    quiet_s: float
    decoders: int
    ended: int
    """Decoders that had had their last token by then."""
    after_s: float
    """From the last token of the last decoder to that first token; below 0 where it went on."""
    apart_s: float = 0.0
    """Between the first tokens of the prompts of a pair."""
    uneven: float = 1.0
    """How many times as long the gaps of the most disturbed decoder are as those of the least
    disturbed."""
    doubtful: int = 0
    """Of the steps, where they are distinct: those that may be pauses."""

    @property
    def pace(self) -> float:
        """Of the decoders in that time, as a share of before: about 0 stopped, 1 undisturbed."""
        return self.quiet_s / self.usual_s

    @property
    def share(self) -> float:
        """Returns the share of the time in prefill that was one gap."""
        return self.longest_s / self.ttft_s


class QueuedShortRequest(msgspec.Struct, frozen=True):
    """A short request that came while a long prompt was in prefill."""

    round: int
    ttft_s: float
    left_s: float
    """Remaining prefill of the long one when the short one was sent."""

    @property
    def waited(self) -> float:
        """The share of that time that the short one waited."""
        return self.ttft_s / self.left_s


class BurstResult(msgspec.Struct, frozen=True):
    """Equal prompts sent at one moment, and the TTFT of each in rising order."""

    round: int
    input_tokens: int
    ttft_s: tuple[float, ...]

    @property
    def side_by_side(self) -> int:
        """Prompts computed side by side: the size of the first group of first tokens, if it came as
        late as that many prompts take; 1 where they came one by one; 0 where neither fits."""
        share_s = self.ttft_s[-1] / len(self.ttft_s)
        if share_s <= 0:
            return 0
        first = self.ttft_s[0] / share_s
        apart = [
            i
            for i, (earlier, later) in enumerate(pairwise(self.ttft_s), 1)
            if later - earlier > MIN_GROUP_DISTANCE * share_s
        ]
        for group in (apart[0],) if apart else (len(self.ttft_s), len(self.ttft_s) - 1):
            together = (
                self.ttft_s[group - 1] - self.ttft_s[min(1, group - 1)] < MAX_GROUP_SPREAD * share_s
            )
            if group > 1 and first > MIN_GROUP_DELAY * group and together:
                return group
        most = MAX_SERIAL_SHARES if apart else 2
        return 1 if first < most else 0


class CachedPrompt(msgspec.Struct, frozen=True):
    """The same prompt, sent twice."""

    input_tokens: int
    first_s: float
    again_s: float
    cached_tokens: int | None = None


class ProbeMeasurements(msgspec.Struct, frozen=True):
    """All measurements of a probe."""

    requests: int = msgspec.field(name="shots")  # their name in run.json
    failed: int
    episodes: int
    short_s: float | None
    """TTFT of a short prompt alone."""
    costs: tuple[PromptCost, ...] = ()
    quiet_s: float | None = None
    """Mean gap of the decoders without a prefill."""
    lost: float | None = None
    """Share of that quiet time in gaps of more than STALL_RATIO times the median of their episode:
    other load."""
    decoders: int = 0
    stalls: tuple[DecoderStall, ...] = ()
    behind: tuple[QueuedShortRequest, ...] = ()
    # their name in run.json
    bursts: tuple[BurstResult, ...] = msgspec.field(default=(), name="crowds")
    cached: tuple[CachedPrompt, ...] = ()
    tokens_a_chunk: float | None = None
    """The tokens a chunk of the decoders."""
    shared: float | None = None
    """Share of the decoders' quiet chunks that came together with the one before."""
    early_s: float | None = None
    """Longest time of an event without content before the first chunk; None: there was none."""
    cut: tuple[int, int] | None = None
    """(round, rounds) in which it was stopped early, 0 for before the first; None: its schedule was
    complete, or it ended because requests failed."""

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt beside decoders."""
        return max(
            (stall.asked_tokens for stall in self.stalls if stall.kind == "stall"), default=0
        )

    def of(
        self, kind: str, asked_tokens: int | None = None, turn: int | None = None
    ) -> list[DecoderStall]:
        return [
            stall
            for stall in self.stalls
            if stall.kind == kind
            and turn in (None, stall.round)
            and asked_tokens in (None, stall.asked_tokens)
        ]

    def alone_s(self, asked_tokens: int) -> float | None:
        """TTFT of a prompt of that length alone, interpolated linearly between the lengths
        measured."""
        known = [(cost.asked_tokens, cost.typical_s) for cost in self.costs]
        for (few, soon), (many, late) in pairwise(known):
            if few <= asked_tokens <= many:
                return (
                    soon + (late - soon) * (asked_tokens - few) / (many - few)
                    if many > few
                    else soon
                )
        return None

    @property
    def token_s(self) -> float | None:
        """Seconds per prefilled token, from the second half of the longest prompt."""
        if len(self.costs) < 2:
            return None
        half, whole = self.costs[-2:]
        more = whole.input_tokens - half.input_tokens
        return (whole.typical_s - half.typical_s) / more if more > 0 else None


def measure_probe(everything: Sequence[ProbeResult]) -> ProbeMeasurements:
    """``everything``: all results of a probe, in any order."""
    episodes: defaultdict[int, list[ProbeResult]] = defaultdict(list)
    for request in everything:
        episodes[request.episode].append(request)
    by_kind: defaultdict[str, list[list[ProbeResult]]] = defaultdict(list)
    for _, results in sorted(episodes.items()):
        by_kind[results[0].kind].append(sorted(results, key=lambda request: request.sent_at))
    costs = _alone(by_kind["alone"])
    beside_prompts = [*by_kind["stall"], *by_kind["pair"]]
    measured = (measure_stall(results, costs) for results in beside_prompts)
    stalls = [stall for stall in measured if stall is not None]
    quiet_gaps = [_before(results) for results in [*by_kind["quiet"], *beside_prompts]]
    before = list(chain.from_iterable(quiet_gaps))
    streams = chain.from_iterable([*by_kind["quiet"], *by_kind["stall"]])
    decoders = [result for result in streams if result.role == "decoder" and result.ok]
    return ProbeMeasurements(
        requests=len(everything),
        failed=sum(not request.ok for request in everything),
        episodes=len(episodes),
        short_s=min(
            (result.ttft_s for results in by_kind["warm"] for result in results if result.ok),
            default=None,
        ),
        costs=costs,
        quiet_s=fmean(before) if before else None,
        lost=_lost(quiet_gaps),
        decoders=max((stall.decoders for stall in stalls), default=0),
        stalls=tuple(stalls),
        behind=tuple(
            result for results in by_kind["behind"] for result in _list_queued_requests(results)
        ),
        bursts=tuple(burst for results in by_kind["burst"] for burst in _burst(results)),
        cached=tuple(pair for pair in map(_cached, _twice(by_kind["again"])) if pair is not None),
        shared=fmean(gap <= MERGED_GAP_RATIO * fmean(before) for gap in before) if before else None,
        tokens_a_chunk=fmean(decoder.tokens_a_chunk for decoder in decoders) if decoders else None,
        early_s=max(
            (
                request.ttft_s - request.early_s
                for request in everything
                if request.ok and request.early_s is not None
            ),
            default=None,
        ),
        cut=_cut([results for _, results in sorted(episodes.items())]),
    )


def _cut(episodes: Sequence[Sequence[ProbeResult]]) -> tuple[int, int] | None:
    """A schedule ends with the burst of its last round, or with an episode that failed
    (experiments.py)."""
    last = episodes[-1] if episodes else ()
    rounds = max((request.rounds for request in last), default=0)
    if not rounds:
        return None
    over = (last[0].kind, last[0].round) == ("burst", rounds) or not all(
        request.ok for request in last
    )
    if over and not any(request.outcome == CUT for request in last):
        return None
    return 0 if last[0].kind == "warm" else last[0].round, rounds


def _alone(episodes: Iterable[list[ProbeResult]]) -> tuple[PromptCost, ...]:
    """By length. A length measured once is left out where a similar one was measured more often."""
    by_length: defaultdict[int, list[ProbeResult]] = defaultdict(list)
    for results in episodes:
        for result in results:
            if result.ok:
                by_length[result.asked_tokens].append(result)
    often = [asked for asked, results in by_length.items() if len(results) > 1]
    costs = []
    for asked, results in sorted(by_length.items()):
        similar = any(abs(asked - other) < SAME_LENGTH_SHARE * other for other in often)
        if len(results) == 1 and similar:
            continue
        tokens = round(median(result.input_tokens for result in results))
        costs.append(PromptCost(asked, tokens, tuple(result.ttft_s for result in results)))
    return tuple(costs)


def _tokens_within(decoder: ProbeResult, begin: float, end: float) -> float:
    """The tokens of its chunks after ``begin``, up to ``end``."""
    chunks = sum(begin < at <= end for at in decoder.chunk_at)
    return decoder.tokens_a_chunk * chunks


def measure_stall(
    results: Sequence[ProbeResult], costs: Sequence[PromptCost] = ()
) -> DecoderStall | None:
    """Of one episode; None unless all prompts succeeded and a decoder was decoding by then.
    ``costs``: of prompts alone, by length, if they are known by then."""
    longs = [result for result in results if result.role == "long"]
    if not longs or not all(long.ok for long in longs):
        return None
    sent_at = min(long.sent_at for long in longs)
    first_at = max(long.chunk_at[0] for long in longs)
    decoders = [
        result
        for result in results
        if result.role == "decoder"
        and result.ok
        and result.chunk_at[0] < sent_at < result.chunk_at[-1]
        and (result.whole or result.chunk_at[-1] > first_at)
    ]
    before = _before(results)
    if not decoders or not before:
        return None
    quiet_s = median(before)
    # most chunks came together with others: gaps are useless
    if not (quiet_s > 0 and first_at > sent_at):
        return None
    # a gap that begins with the last step's token, or is mostly after it, is no step of the prompt
    last_s = first_at - quiet_s / 2
    meanwhile = []
    inside = []
    for decoder in decoders:
        spans = [
            (begin, end)
            for begin, end in pairwise(decoder.chunk_at)
            if end > sent_at and begin < first_at
        ]
        meanwhile.append([end - begin for begin, end in spans])
        inside.append(
            [end - begin for begin, end in spans if begin < last_s and begin + end < 2 * first_at]
        )
    longest_s = median(max(gaps, default=0.0) for gaps in meanwhile)
    heavy = [time_weighted_median(gaps) for gaps in meanwhile]
    each = [split_coalesced_gaps(gaps, quiet_s) for gaps in inside]
    least_s, plain = find_step_threshold(
        [gap for gaps in each for gap in gaps], quiet_s, median(heavy)
    )
    sent_in_s = [gaps[0] if gaps else 0.0 for gaps in each]
    step_gaps = [select_step_gaps(gaps, quiet_s, least_s) for gaps in each]
    if plain:
        step_gaps = [
            list(drop_steps_before_pause(gaps, first_s))
            for gaps, first_s in zip(step_gaps, sent_in_s, strict=True)
        ]
    steps = [gap for gaps in step_gaps for gap in gaps]
    usual_s = median(steps) if steps else first_at - sent_at
    typical, first_s = sorted(
        zip(step_gaps, sent_in_s, strict=True), key=lambda pair: len(pair[0])
    )[(len(step_gaps) - 1) // 2]
    return DecoderStall(
        kind=longs[0].kind,
        round=longs[0].round,
        asked_tokens=longs[0].asked_tokens,
        input_tokens=longs[0].input_tokens,
        ttft_s=first_at - sent_at,
        meanwhile=median(_tokens_within(decoder, sent_at, first_at) for decoder in decoders),
        steps=median(map(len, step_gaps)),
        surely=median(count_certain_steps(gaps, quiet_s) for gaps in step_gaps),
        uneven=max(heavy) / max(min(heavy), quiet_s / 2),
        plain=plain,
        longest_s=longest_s,
        rest=max(0.0, least_s - quiet_s) / (usual_s - quiet_s) if usual_s > quiet_s else 0.0,
        usual_s=usual_s,
        quiet_s=quiet_s,
        decoders=len(decoders),
        ended=sum(decoder.chunk_at[-1] < first_at for decoder in decoders),
        after_s=first_at - max(decoder.chunk_at[-1] for decoder in decoders),
        apart_s=first_at - min(long.chunk_at[0] for long in longs),
        doubtful=count_doubtful_steps(typical, first_s, _curve(costs, longs[0].asked_tokens))
        if plain and typical
        else 0,
    )


def _curve(costs: Sequence[PromptCost], tokens: int) -> list[tuple[float, float]]:
    """(tokens, seconds) of prompts alone up to that length, both rising: noise may have made a
    longer one faster."""
    known = [cost for cost in costs if cost.asked_tokens <= tokens]
    seconds = accumulate((cost.typical_s for cost in known), max)
    return [(0.0, 0.0), *zip((cost.asked_tokens for cost in known), seconds, strict=True)]


def _before(results: Sequence[ProbeResult]) -> list[float]:
    """The gaps of decoders while all of them decode and no long prompt has come."""
    decoders = [result for result in results if result.role == "decoder" and result.ok]
    if not decoders:
        return []
    begin = max(decoder.chunk_at[0] for decoder in decoders)
    end = min(
        (result.sent_at for result in results if result.role == "long"),
        default=min(decoder.chunk_at[-1] for decoder in decoders),
    )
    return [
        b - a
        for decoder in decoders
        for a, b in pairwise(decoder.chunk_at)
        if begin <= a and b <= end
    ]


def _lost(episodes: Sequence[Sequence[float]]) -> float | None:
    """Each by its own median: a server whose speed changes between episodes loses nothing."""
    whole_s = sum(map(sum, episodes))
    if not whole_s > 0:
        return None
    lost_s = 0.0
    for gaps in episodes:
        usual_s = median(gaps) if gaps else 0.0
        lost_s += sum(gap - usual_s for gap in gaps if gap > STALL_RATIO * usual_s)
    return lost_s / whole_s


def _list_queued_requests(results: Sequence[ProbeResult]) -> Iterable[QueuedShortRequest]:
    long = next((result for result in results if result.role == "long" and result.ok), None)
    for result in results:
        if (
            long is not None
            and result.role == "short"
            and result.ok
            and result.sent_at < long.chunk_at[0]
        ):
            yield QueuedShortRequest(result.round, result.ttft_s, long.chunk_at[0] - result.sent_at)


def _burst(results: Sequence[ProbeResult]) -> Iterable[BurstResult]:
    if len(results) > 1 and all(result.ok for result in results):
        began = min(result.sent_at for result in results)
        yield BurstResult(
            results[0].round,
            results[0].asked_tokens,
            tuple(sorted(result.chunk_at[0] - began for result in results)),
        )


def _twice(episodes: Sequence[list[ProbeResult]]) -> Iterable[tuple[ProbeResult, ProbeResult]]:
    """Pairs the first and the second time of each round."""
    for first, second in pairwise(episodes):
        if first and second and first[0].round == second[0].round:
            yield first[0], second[0]


def _cached(pair: tuple[ProbeResult, ProbeResult]) -> CachedPrompt | None:
    first, again = pair
    if not (first.ok and again.ok):
        return None
    return CachedPrompt(first.asked_tokens, first.ttft_s, again.ttft_s, again.cached_tokens)
