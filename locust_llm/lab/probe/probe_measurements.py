"""Probe measurements: computes the cost of prompts, stalls, waits and steps from a probe's results.

All values are differences of one process's stamps, or counts of chunks, so they are as exact as the
stamps.

A *step* of the server gives each decoder one token, so the gaps of the decoders beside a prompt
count its steps. The count does not depend on the length of a step, and noise in time hardly changes
it. Decoders go on while the server receives and tokenizes a prompt. So if gaps are much longer than
the gaps before, only the long ones count.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from statistics import fmean, median
from typing import Final

import msgspec

from locust_llm.lab.probe.episode_requests import ProbeResult
from locust_llm.records.outcomes import CUT

LONG_STEP_RATIO: Final = 9.0
"""A step is at least two gaps long above this ratio: the typical gap beside a prompt over the gap
before it."""
DISTINCT_STEP_RATIO: Final = 30.0
"""Above this ratio, the geometric mean of both separates steps from other gaps."""
MIN_HOLE_RATIO: Final = 3.0
"""A hole of this ratio between neighbours in order of length separates steps from other gaps. All
gaps below it must be quiet."""
MAX_QUIET_RATIO: Final = 2.5
"""Gaps below the hole are at most this many times the quiet gap."""
MIN_SLOWDOWN: Final = 1.1
"""The begin of the prefill can be found above this ratio of the typical gap beside a prompt to the
quiet gap."""
MIN_FIRST_STEP_RATIO: Final = 1.15
"""A first step exceeds the quiet gap by this ratio. It is shorter than the later ones, as they
attend to all tokens before them."""
MIN_CLEAR_STEP_RATIO: Final = 1.5
"""Steps differ clearly from quiet gaps above this ratio of the typical step to the quiet gap."""
MIN_FULL_SHARE: Final = 0.5
"""A full step computes at least this share of a usual step's tokens."""
MAX_PAUSE_SHARE: Final = 1 / 3
"""A gap below this share of the next one is a pause. A first step takes at least a third of the
second one, even if attention takes all of their time."""
MERGED_GAP_RATIO: Final = 0.05
"""Two chunks came together below this ratio of their gap to the usual one, on the network or in
this client."""


def split_coalesced_gaps(gaps: Sequence[float], quiet_s: float) -> list[float]:
    """Divides the time of chunks that came together evenly, since each had a step."""
    shared: list[list[float]] = []
    for gap in gaps:
        if gap < MERGED_GAP_RATIO * quiet_s and shared:
            shared[-1].append(gap)
        else:
            shared.append([gap])
    split: list[float] = []
    for group in shared:
        split += [fmean(group)] * len(group)
    return split


def find_step_threshold(
    gaps: Sequence[float], quiet_s: float, heavy_s: float
) -> tuple[float, bool]:
    """Returns the threshold in seconds above which a gap beside a prompt is a step, 0 if unknown,
    and whether steps are distinct. ``gaps`` come from all decoders. ``heavy_s`` is a gap that is a
    step if most of the time went into steps."""
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
    """Returns the gaps of a decoder in which the server computed the prompt: all gaps above
    ``least_s``. If that is 0, all gaps from the first slow one on count."""
    usual_s = median(gaps) if gaps else 0.0
    first_s = max(least_s, MIN_FIRST_STEP_RATIO * quiet_s)
    slowed = usual_s > MIN_SLOWDOWN * quiet_s or least_s
    begin = next((i for i, gap in enumerate(gaps) if gap > first_s), 0) if slowed else 0
    return [gap for gap in gaps[begin:] if gap > least_s]


def count_certain_steps(steps: Sequence[float], quiet_s: float) -> int:
    """Counts steps that are certain. Decoders keep their pace while a server tokenizes a long
    prompt, and noise hides the end of this time. Two successive quiet gaps are no steps, unless
    steps are hardly longer."""
    if not steps or median(steps) < MIN_CLEAR_STEP_RATIO * quiet_s:
        return len(steps)
    quietly = [gap <= MIN_FIRST_STEP_RATIO * quiet_s for gap in steps]
    last = max((i for i, both in enumerate(pairwise(quietly), 2) if all(both)), default=0)
    return len(steps) - last


def drop_steps_before_pause(steps: Sequence[float], sent_in_s: float) -> Sequence[float]:
    """Drops the gap of ``sent_in_s``, in which the prompt was sent, if it is far shorter than the
    next one. It began before the prompt was sent, so the server was still busy with earlier
    work."""
    paused = len(steps) > 1 and steps[0] == sent_in_s and steps[0] < MAX_PAUSE_SHARE * steps[1]
    return steps[1:] if paused else steps


def count_doubtful_steps(
    steps: Sequence[float], sent_in_s: float, curve: Sequence[tuple[float, float]]
) -> int:
    """Counts steps that may be pauses: the gap in which the prompt was sent, and gaps before the
    last with too few tokens, as a scheduler fills each step but the last. ``curve`` has (tokens,
    seconds) of prompts alone up to this one, both rising from (0, 0)."""
    stretch = curve[-1][1] / sum(steps)
    done = [0.0, *(_interpolate_tokens(stretch * end_s, curve) for end_s in accumulate(steps))]
    each = [after - before for before, after in pairwise(done)]
    usual = time_weighted_median(each)
    return sum(
        tokens < MIN_FULL_SHARE * usual or (i == 0 and steps[0] == sent_in_s)
        for i, tokens in enumerate(each[:-1])
    )


def _interpolate_tokens(seconds: float, curve: Sequence[tuple[float, float]]) -> float:
    """Returns the computed tokens of a prompt after this time, by linear interpolation."""
    for (few, soon_s), (many, late_s) in pairwise(curve):
        if seconds < late_s:
            return few + (many - few) * (seconds - soon_s) / (late_s - soon_s)
    return curve[-1][0]


def time_weighted_median(gaps: Sequence[float]) -> float:
    """Returns the time-weighted median: gaps of at least this length make half of the time."""
    left = sum(gaps) / 2
    for gap in sorted(gaps, reverse=True):
        left -= gap
        if left <= 0:
            return gap
    return 0.0


# -- measurements ----------------------------------------------------------------------------------

MAX_SERIAL_SHARES: Final = 1.5
"""In shares of the common time, the first token of equal prompts comes at 1 if computed alone, at 2
beside another."""
MIN_GROUP_DISTANCE: Final = 1.5
"""Two groups are 2 or more shares apart, prompts computed one by one are 1 apart."""
MAX_GROUP_SPREAD: Final = 0.75
"""The second and the last of a group are at most this many shares apart, prompts computed one by
one are 1 apart."""
MIN_GROUP_DELAY: Final = 0.6
"""A group of k has its first tokens after k shares, in shares per member. The first member has
less, as it was alone for a moment."""
SAME_LENGTH_SHARE: Final = 0.1
"""Lengths with a smaller relative difference count as equal."""
STALL_RATIO: Final = 3.0
"""A gap above this multiple of the median gap is a stall."""


class PromptCost(msgspec.Struct, frozen=True):
    """The time of one prompt length alone."""

    asked_tokens: int
    input_tokens: int
    ttft_s: tuple[float, ...]
    """Each attempt has one value."""

    @property
    def typical_s(self) -> float:
        return median(self.ttft_s)


class DecoderStall(msgspec.Struct, frozen=True):
    """Long prompts that were sent together, and the requests that decoded meanwhile."""

    kind: str
    """``stall`` has one prompt, ``pair`` two."""
    round: int
    asked_tokens: int
    input_tokens: int
    """One of the prompts has this many tokens."""
    ttft_s: float
    """The last of the prompts had its first token after this time."""
    meanwhile: float
    """The median decoder got this many tokens in that time."""
    steps: float
    """The prompts took this many steps, counted as gaps of the median decoder."""
    surely: float
    """These steps come after the last two neighbours that look like quiet gaps, if most do not."""
    plain: bool
    """True: steps are distinct, so no other gap counts. False: some gaps before the prefill count
    too."""
    rest: float
    """With distinct steps, the last one may have this share of a step and still look like a quiet
    gap."""
    longest_s: float
    """The median decoder's longest gap that overlaps this time has this length. The median is used
    since two tokens may share a chunk."""
    usual_s: float
    """``usual_s`` is the decoders' median gap in that time, or median step if steps are distinct.
    ``quiet_s`` is the median gap before it."""
    quiet_s: float
    decoders: int
    ended: int
    """This many decoders had got their last token by then."""
    after_s: float
    """This time passed from the last decoder's last token to that first token. Negative: the
    decoder went on."""
    apart_s: float = 0.0
    """The first tokens of a pair differ by this time."""
    uneven: float = 1.0
    """The most disturbed decoder's gaps are this many times as long as the least disturbed
    one's."""
    doubtful: int = 0
    """This many of the distinct steps may be pauses."""

    @property
    def pace(self) -> float:
        """Returns the decoders' pace as a share of the pace before: about 0 if stopped, 1 if
        undisturbed."""
        return self.quiet_s / self.usual_s

    @property
    def share(self) -> float:
        """Returns the share of the time in prefill that was one gap."""
        return self.longest_s / self.ttft_s


class QueuedShortRequest(msgspec.Struct, frozen=True):
    """A short request that was sent while a long prompt was in prefill."""

    round: int
    ttft_s: float
    left_s: float
    """The long request had this remaining prefill when the short one was sent."""

    @property
    def waited(self) -> float:
        """Returns the wait of the short request as a share of that time."""
        return self.ttft_s / self.left_s


class BurstResult(msgspec.Struct, frozen=True):
    """Equal prompts that were sent together, with their TTFTs in rising order."""

    round: int
    input_tokens: int
    ttft_s: tuple[float, ...]

    @property
    def side_by_side(self) -> int:
        """Returns the number of prompts computed side by side: the size of the first group of first
        tokens, if its time fits. 1: they came one by one. 0: neither fits."""
        share_s = self.ttft_s[-1] / len(self.ttft_s)
        if share_s <= 0:
            return 0
        first = self.ttft_s[0] / share_s
        group_starts = [
            i
            for i, (earlier, later) in enumerate(pairwise(self.ttft_s), 1)
            if later - earlier > MIN_GROUP_DISTANCE * share_s
        ]
        groups = (group_starts[0],) if group_starts else (len(self.ttft_s), len(self.ttft_s) - 1)
        for group in groups:
            spread_s = self.ttft_s[group - 1] - self.ttft_s[min(1, group - 1)]
            together = spread_s < MAX_GROUP_SPREAD * share_s
            if group > 1 and first > MIN_GROUP_DELAY * group and together:
                return group
        most = MAX_SERIAL_SHARES if group_starts else 2
        return 1 if first < most else 0


class CachedPrompt(msgspec.Struct, frozen=True):
    """A prompt that was sent twice."""

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
    """A short prompt has this TTFT alone."""
    costs: tuple[PromptCost, ...] = ()
    quiet_s: float | None = None
    """Decoders have this mean gap without a prefill."""
    lost: float | None = None
    """Gaps above STALL_RATIO times their episode's median take this share of the quiet time. They
    show other load."""
    decoders: int = 0
    stalls: tuple[DecoderStall, ...] = ()
    behind: tuple[QueuedShortRequest, ...] = ()
    # their name in run.json
    bursts: tuple[BurstResult, ...] = msgspec.field(default=(), name="crowds")
    cached: tuple[CachedPrompt, ...] = ()
    tokens_a_chunk: float | None = None
    """A decoder's chunk has this many tokens."""
    shared: float | None = None
    """This share of the decoders' quiet chunks came together with the one before."""
    early_s: float | None = None
    """An event without content came at most this time before the first chunk. None: there was
    none."""
    cut: tuple[int, int] | None = None
    """The probe was stopped early in this round, of that many. Round 0 is before the first. None:
    its schedule was complete, or ended because requests failed."""

    @property
    def longest(self) -> int:
        """Returns the tokens of the longest prompt beside decoders."""
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
        """Returns the TTFT of such a prompt alone, by linear interpolation between measured
        lengths."""
        known = [(cost.asked_tokens, cost.typical_s) for cost in self.costs]
        for (few, soon_s), (many, late_s) in pairwise(known):
            if not few <= asked_tokens <= many:
                continue
            if many == few:
                return soon_s
            return soon_s + (late_s - soon_s) * (asked_tokens - few) / (many - few)
        return None

    @property
    def token_s(self) -> float | None:
        """Returns the seconds per prefilled token, from the second half of the longest prompt."""
        if len(self.costs) < 2:
            return None
        half, whole = self.costs[-2:]
        more = whole.input_tokens - half.input_tokens
        return (whole.typical_s - half.typical_s) / more if more > 0 else None


def measure_probe(everything: Sequence[ProbeResult]) -> ProbeMeasurements:
    """Computes all measurements. ``everything`` has all results of a probe in any order."""
    episodes: defaultdict[int, list[ProbeResult]] = defaultdict(list)
    for request in everything:
        episodes[request.episode].append(request)
    by_kind: defaultdict[str, list[list[ProbeResult]]] = defaultdict(list)
    for _, results in sorted(episodes.items()):
        by_kind[results[0].kind].append(sorted(results, key=lambda request: request.sent_at))
    costs = _list_costs(by_kind["alone"])
    beside_prompts = [*by_kind["stall"], *by_kind["pair"]]
    measured = (measure_stall(results, costs) for results in beside_prompts)
    stalls = [stall for stall in measured if stall is not None]
    quiet_gaps = [_list_quiet_gaps(results) for results in [*by_kind["quiet"], *beside_prompts]]
    before = list(chain.from_iterable(quiet_gaps))
    streams = chain.from_iterable([*by_kind["quiet"], *by_kind["stall"]])
    decoders = [result for result in streams if result.role == "decoder" and result.ok]
    warm = chain.from_iterable(by_kind["warm"])
    early_times_s = (
        request.ttft_s - request.early_s
        for request in everything
        if request.ok and request.early_s is not None
    )
    return ProbeMeasurements(
        requests=len(everything),
        failed=sum(not request.ok for request in everything),
        episodes=len(episodes),
        short_s=min((result.ttft_s for result in warm if result.ok), default=None),
        costs=costs,
        quiet_s=fmean(before) if before else None,
        lost=_stalled_share(quiet_gaps),
        decoders=max((stall.decoders for stall in stalls), default=0),
        stalls=tuple(stalls),
        behind=tuple(chain.from_iterable(map(_list_queued_requests, by_kind["behind"]))),
        bursts=tuple(chain.from_iterable(map(_make_bursts, by_kind["burst"]))),
        cached=tuple(
            pair
            for pair in map(_compare_repeats, _pair_repeats(by_kind["again"]))
            if pair is not None
        ),
        shared=fmean(gap <= MERGED_GAP_RATIO * fmean(before) for gap in before) if before else None,
        tokens_a_chunk=fmean(decoder.tokens_a_chunk for decoder in decoders) if decoders else None,
        early_s=max(early_times_s, default=None),
        cut=_find_early_stop([results for _, results in sorted(episodes.items())]),
    )


def _find_early_stop(episodes: Sequence[Sequence[ProbeResult]]) -> tuple[int, int] | None:
    """Returns (round, rounds) of an early stop, else None. A schedule ends with the burst of its
    last round, or with an episode that failed (probe_experiments.py)."""
    last = episodes[-1] if episodes else ()
    rounds = max((request.rounds for request in last), default=0)
    if not rounds:
        return None
    complete = last[0].kind == "burst" and last[0].round == rounds
    failed = not all(request.ok for request in last)
    if (complete or failed) and not any(request.outcome == CUT for request in last):
        return None
    return 0 if last[0].kind == "warm" else last[0].round, rounds


def _list_costs(episodes: Iterable[list[ProbeResult]]) -> tuple[PromptCost, ...]:
    """Returns the costs by length. A length measured once is omitted if a similar one was measured
    more often."""
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
    """Returns the tokens of its chunks after ``begin`` and up to ``end``."""
    chunks = sum(begin < at <= end for at in decoder.chunk_at)
    return decoder.tokens_a_chunk * chunks


def measure_stall(
    results: Sequence[ProbeResult], costs: Sequence[PromptCost] = ()
) -> DecoderStall | None:
    """Measures one episode. Returns None unless all prompts succeeded and a decoder was decoding
    then. ``costs`` of prompts alone, by length, are optional."""
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
    before = _list_quiet_gaps(results)
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
    split_gaps = [split_coalesced_gaps(gaps, quiet_s) for gaps in inside]
    all_gaps = list(chain.from_iterable(split_gaps))
    least_s, plain = find_step_threshold(all_gaps, quiet_s, median(heavy))
    sent_in_s = [gaps[0] if gaps else 0.0 for gaps in split_gaps]
    step_gaps = [select_step_gaps(gaps, quiet_s, least_s) for gaps in split_gaps]
    if plain:
        step_gaps = [
            list(drop_steps_before_pause(gaps, first_s))
            for gaps, first_s in zip(step_gaps, sent_in_s, strict=True)
        ]
    steps = list(chain.from_iterable(step_gaps))
    usual_s = median(steps) if steps else first_at - sent_at
    by_steps = sorted(zip(step_gaps, sent_in_s, strict=True), key=lambda pair: len(pair[0]))
    typical, first_s = by_steps[(len(by_steps) - 1) // 2]
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
        doubtful=count_doubtful_steps(
            typical, first_s, _make_cost_curve(costs, longs[0].asked_tokens)
        )
        if plain and typical
        else 0,
    )


def _make_cost_curve(costs: Sequence[PromptCost], tokens: int) -> list[tuple[float, float]]:
    """Returns (tokens, seconds) of prompts alone up to that length, both rising, since noise may
    have made a longer one faster."""
    known = [cost for cost in costs if cost.asked_tokens <= tokens]
    seconds = accumulate((cost.typical_s for cost in known), max)
    return [(0.0, 0.0), *zip((cost.asked_tokens for cost in known), seconds, strict=True)]


def _list_quiet_gaps(results: Sequence[ProbeResult]) -> list[float]:
    """Returns the decoders' gaps while all of them decode and no long prompt has come."""
    decoders = [result for result in results if result.role == "decoder" and result.ok]
    if not decoders:
        return []
    begin = max(decoder.chunk_at[0] for decoder in decoders)
    end = min(
        (result.sent_at for result in results if result.role == "long"),
        default=min(decoder.chunk_at[-1] for decoder in decoders),
    )
    gaps: list[float] = []
    for decoder in decoders:
        chunks = [at for at in decoder.chunk_at if begin <= at <= end]
        gaps += [after - before for before, after in pairwise(chunks)]
    return gaps


def _stalled_share(episodes: Sequence[Sequence[float]]) -> float | None:
    """Returns the share of time in stalls, each by its episode's median: a server whose speed
    changes between episodes loses nothing."""
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


def _make_bursts(results: Sequence[ProbeResult]) -> Iterable[BurstResult]:
    if len(results) > 1 and all(result.ok for result in results):
        began = min(result.sent_at for result in results)
        yield BurstResult(
            results[0].round,
            results[0].asked_tokens,
            tuple(sorted(result.chunk_at[0] - began for result in results)),
        )


def _pair_repeats(
    episodes: Sequence[list[ProbeResult]],
) -> Iterable[tuple[ProbeResult, ProbeResult]]:
    """Pairs the first and the second time of each round."""
    for first, second in pairwise(episodes):
        if first and second and first[0].round == second[0].round:
            yield first[0], second[0]


def _compare_repeats(pair: tuple[ProbeResult, ProbeResult]) -> CachedPrompt | None:
    first, again = pair
    if not (first.ok and again.ok):
        return None
    return CachedPrompt(first.asked_tokens, first.ttft_s, again.ttft_s, again.cached_tokens)
