"""Probe experiments: the probe runs small episodes one by one, and each depends on the results
before it.

All functions are pure: ``schedule_episodes`` takes the results of one episode and yields the next.
Its caller waits: Locust users in real time (user.py), or a simulator in virtual time (the tests).

1. ``warm``: a short request, twice, shows the least TTFT.
2. ``alone``: prompts of doubling length, one at a time, show the cost of a prompt. If the next one
   would take too long, a shorter one takes about the longest time allowed.
3. ``quiet``: short prompts decode together, one more than decode beside a prompt. They show the gap
   without a prefill, and whether a slot is left for the prompt.
4. Rounds repeat each measurement: ``stall`` (a long prompt of three lengths beside decoders),
   ``pair`` (two sent together), ``again`` (a long prompt a second time: is it cached?), ``behind``
   (short requests after a long one), ``burst`` (equal prompts sent together without decoders: how
   many are computed side by side).
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median
from typing import Final, NamedTuple

from .episode_requests import ProbeEpisode, ProbeRequest, ProbeResult
from .probe_measurements import measure_stall

SHORT_TOKENS: Final = 32
WARM_OUTPUT_TOKENS: Final = 48
"""A warm request has this output length, for a first estimate of a gap."""
LEAD_GAPS: Final = 30
"""Decoders run alone for this many gaps before a prompt is sent."""
LEAD_S: Final = 0.4
OUTLAST_RATIO: Final = 1.4
"""Decoders run this many times as long as the TTFT of the prompt alone, so the prompt ends before
them."""
STAGGER_SHARE: Final = 0.15
"""Each decoder outlasts the one before by this share. The end that a prompt waits for distinguishes
slots from batches."""
LONG_OUTPUT_TOKENS: Final = 4
"""A long prompt has this output length, as its first token may have no text."""
MIN_BURST_S: Final = 4.0
"""A burst takes at least this time, if prompts of a quarter of the longest reach it. A prompt
slightly before the others must not look computed alone."""
MAX_BURST_TTFTS: Final = 4
MIN_BURST: Final = 6
"""A burst takes at most MAX_BURST_TTFTS times the longest allowed TTFT, but has at least MIN_BURST
prompts: three side by side must leave three others waiting."""
MAX_HELD_PACE: Final = 0.9
"""A prompt disturbed decoders below this pace."""
LONGEST_SHARE: Final = 0.95
"""The longest used prompt has this share of the longest answered one. Lengths are not exact, and
the context may end there."""
MIN_GROWTH: Final = 1.2
"""A prompt must be this many times as long as the longest so far."""
MIN_BURST_STEPS: Final = 2.5
"""A prompt of a burst has at least this many steps."""


@dataclass(frozen=True, kw_only=True)
class ProbeBounds:
    """Limits the requests of the probe."""

    longest_tokens: int = 32_000
    first_tokens: int = 250
    """Lengths are this times powers of two. Budgets are powers of two, so no prompt is just longer
    than a step."""
    most_ttft_s: float = 4.0
    """A prompt alone has at most this TTFT. The whole probe then takes at most about six
    minutes."""
    most_output_tokens: int = 8192
    decoders: int = 3
    burst: int = 8
    rounds: int = 3


class ProbeScale(NamedTuple):
    """Holds results of the first episodes that scale the others."""

    ttft_s: float
    """A short prompt has this TTFT."""
    gap_s: float
    """A decoder beside others has this gap between two tokens."""
    longest: int
    """The longest prompt has this many tokens."""
    alone_s: float
    """The longest prompt has this TTFT alone."""

    def takes_s(self, tokens: float) -> float:
        """Estimates the TTFT, rather too long, as shorter prompts cost at most as much per token as
        longer ones."""
        return max(self.ttft_s, self.alone_s * tokens / self.longest)

    @property
    def lead_s(self) -> float:
        """Decoders run alone for this time before the prompt."""
        return 4 * self.ttft_s + max(LEAD_S, LEAD_GAPS * self.gap_s)


Probe = Generator[ProbeEpisode, Sequence[ProbeResult], None]
Widths = dict[int, float | None]
"""The keys are prompt lengths, the values the latest results of ``_width``."""


def schedule_episodes(bounds: ProbeBounds = ProbeBounds()) -> Probe:
    """Yields episodes, and takes the results of the ended requests of each. It ends early if a
    server cannot be probed, and the diagnosis names the reason."""
    for turn in range(2):
        warm = yield ProbeEpisode(
            "warm", turn, (ProbeRequest("short", 0, SHORT_TOKENS, WARM_OUTPUT_TOKENS),), 0.5
        )
    if not (warm and warm[0].ok):
        return
    ttft_s = warm[0].ttft_s
    gap_s = _mean_gap_s(warm) or warm[0].ttft_s
    longest, alone_s = yield from _try_lengths(bounds)
    if longest < 8 * bounds.first_tokens and alone_s < bounds.most_ttft_s / 4:
        return  # refused: its context is too small for prompts of several sizes
    scale = ProbeScale(ttft_s, gap_s, int(LONGEST_SHARE * longest), alone_s)
    quiet = yield _plan_quiet(scale, bounds)
    together = _count_concurrent(quiet)
    if together < 1:
        return
    bounds = _with_decoders(bounds, together)
    longest_ttft_s = max([ttft_s, *(result.ttft_s for result in quiet if result.ok)])
    scale = scale._replace(gap_s=_mean_gap_s(quiet) or gap_s, ttft_s=longest_ttft_s)
    widths: Widths = {}
    yield from _add_later_episodes(
        _run_rounds(scale, bounds, widths), lambda: list(_run_rounds(scale, bounds, widths))
    )


def max_probe_episodes(bounds: ProbeBounds) -> int:
    """Returns the largest number of episodes, for a probe that tries every length."""
    warm = 2
    quiet = 1
    # the last length is no doubling
    lengths = 2 + max(0, int(math.log2(bounds.longest_tokens / bounds.first_tokens)))
    scale = ProbeScale(1.0, 1.0, bounds.longest_tokens, 1.0)
    return warm + lengths + quiet + len(list(_run_rounds(scale, bounds, {})))


def _run_rounds(scale: ProbeScale, bounds: ProbeBounds, widths: Widths) -> Probe:
    for turn in range(1, bounds.rounds + 1):
        yield from _run_round(turn, scale, bounds, widths)


def _add_later_episodes(probe: Probe, plan: Callable[[], Sequence[ProbeEpisode]]) -> Probe:
    """Yields each episode with the later ones as planned at that time, since its results may make
    later prompts longer."""
    episode = next(probe)
    try:
        for number in count(1):
            episode = probe.send((yield episode._replace(later=tuple(plan()[number:]))))
    except StopIteration:
        return


def _try_lengths(
    bounds: ProbeBounds,
) -> Generator[ProbeEpisode, Sequence[ProbeResult], tuple[int, float]]:
    """Returns the longest prompt answered and its TTFT."""
    longest = 0
    alone_s = 0.0
    before_s = 0.0
    next_s = 0.0
    tokens = bounds.first_tokens
    while tokens <= bounds.longest_tokens and next_s <= bounds.most_ttft_s:
        alone = yield ProbeEpisode(
            "alone", 0, (ProbeRequest("long", 0, tokens, LONG_OUTPUT_TOKENS),), next_s
        )
        if not (alone and alone[0].ok):
            return longest, alone_s
        before_s = alone_s or alone[0].ttft_s
        longest = tokens
        alone_s = alone[0].ttft_s
        # attention makes it grow faster than the length
        next_s = alone_s * max(2.0, alone_s / before_s)
        tokens *= 2
    tokens = _choose_prompt_tokens(longest, alone_s, before_s, bounds)
    if next_s > bounds.most_ttft_s and tokens > MIN_GROWTH * longest:
        alone = yield ProbeEpisode(
            "alone", 0, (ProbeRequest("long", 0, tokens, LONG_OUTPUT_TOKENS),), bounds.most_ttft_s
        )
        if alone and alone[0].ok:
            longest = tokens
            alone_s = alone[0].ttft_s
    return longest, alone_s


def _choose_prompt_tokens(
    longest: int, alone_s: float, before_s: float, bounds: ProbeBounds
) -> int:
    """Chooses a prompt that takes about the longest time allowed, if time grows as it did from half
    the length. Lengths are in quarters, so that two probes of a server try the same lengths."""
    growth = max(1.0, math.log2(alone_s / before_s)) if before_s > 0 else 1.0
    times = (bounds.most_ttft_s / alone_s) ** (1 / growth) if alone_s > 0 else 1.0
    return min(bounds.longest_tokens, int(longest * int(4 * min(2.0, times)) / 4))


def _run_round(turn: int, scale: ProbeScale, bounds: ProbeBounds, widths: Widths) -> Probe:
    """Lengths alternate between rising and falling, so that a drift does not look like an effect of
    length."""
    sizes = [scale.longest // 4, scale.longest // 2, scale.longest]
    for tokens in sizes if turn % 2 else reversed(sizes):
        yield ProbeEpisode(
            "alone",
            turn,
            (ProbeRequest("long", 0, tokens, LONG_OUTPUT_TOKENS),),
            scale.takes_s(tokens),
        )
        results = yield _plan_prompts_beside_decoders(scale, bounds, "stall", turn, (tokens,))
        if results is not None:  # else a plan is made, with the widths of the last round
            widths[tokens] = _measure_width(results, tokens)
    # Prompts much longer than a step is wide, or several would share one and look as if computed
    # side by side.
    known = [width for _, width in sorted(widths.items()) if width is not None]
    wider = math.ceil(MIN_BURST_STEPS * known[-1]) if known else scale.longest // 2
    half = scale.longest // 2
    pair = min(scale.longest, max(half, wider))
    yield _plan_prompts_beside_decoders(scale, bounds, "pair", turn, (pair, pair))
    took_s = scale.takes_s(half)
    for _ in range(2):
        yield ProbeEpisode(
            "again", turn, (ProbeRequest("long", 0, half, LONG_OUTPUT_TOKENS, text=turn),), took_s
        )
    took_s = scale.takes_s(scale.longest)
    shorts = tuple(
        ProbeRequest("short", took_s * share, SHORT_TOKENS, LONG_OUTPUT_TOKENS)
        for share in (0.2, 0.4)
    )
    yield ProbeEpisode(
        "behind",
        turn,
        (ProbeRequest("long", 0, scale.longest, LONG_OUTPUT_TOKENS), *shorts),
        took_s,
    )
    share = min(1 / 4, max(1 / 8, MIN_BURST_S / (bounds.burst * scale.alone_s)))
    burst = min(scale.longest, max(int(scale.longest * share), wider))
    most = int(MAX_BURST_TTFTS * bounds.most_ttft_s / scale.takes_s(burst))
    count = min(bounds.burst, max(MIN_BURST, most))
    yield ProbeEpisode(
        "burst",
        turn,
        (ProbeRequest("long", 0, burst, LONG_OUTPUT_TOKENS),) * count,
        count * scale.takes_s(burst),
    )


def _measure_width(results: Sequence[ProbeResult], tokens: int) -> float | None:
    """Returns the tokens of a step beside decoders. None: one step computed the prompt, or its
    steps are invisible."""
    stall = measure_stall(results)
    # these steps computed something else
    if stall is None or stall.steps <= 1 or stall.pace >= MAX_HELD_PACE:
        return None
    return tokens / (stall.steps - 1)


def _plan_quiet(scale: ProbeScale, bounds: ProbeBounds) -> ProbeEpisode:
    lasts_s = 2 * LEAD_S + LEAD_GAPS * scale.gap_s
    return ProbeEpisode(
        "quiet", 0, _plan_decoders(bounds.decoders + 1, lasts_s, scale, bounds), lasts_s
    )


def _plan_prompts_beside_decoders(
    scale: ProbeScale, bounds: ProbeBounds, kind: str, turn: int, prompts: tuple[int, ...]
) -> ProbeEpisode:
    """Plans long prompts sent together, beside decoders that outlast them."""
    took_s = sum(map(scale.takes_s, prompts))
    lasts_s = scale.lead_s + OUTLAST_RATIO * took_s + LEAD_GAPS * scale.gap_s
    longs = [ProbeRequest("long", scale.lead_s, prompt, LONG_OUTPUT_TOKENS) for prompt in prompts]
    most_s = lasts_s * (1 + STAGGER_SHARE * (bounds.decoders - 1)) + took_s
    return ProbeEpisode(
        kind, turn, (*_plan_decoders(bounds.decoders, lasts_s, scale, bounds), *longs), most_s
    )


def _plan_decoders(
    count: int, lasts_s: float, scale: ProbeScale, bounds: ProbeBounds
) -> tuple[ProbeRequest, ...]:
    """The first decoder runs for ``lasts_s``, and each further one longer than the one before."""
    most = bounds.most_output_tokens / (1 + STAGGER_SHARE * (count - 1))
    tokens = min(int(most), math.ceil(lasts_s / scale.gap_s))
    return tuple(
        ProbeRequest("decoder", 0, SHORT_TOKENS, int(tokens * (1 + STAGGER_SHARE * i)))
        for i in range(count)
    )


def _with_decoders(bounds: ProbeBounds, together: int) -> ProbeBounds:
    """Leaves a slot for the prompt."""
    return replace(bounds, decoders=max(1, together - 1))


def _count_concurrent(results: Sequence[ProbeResult]) -> int:
    """Counts the requests that had begun before the first of them ended."""
    good = [request for request in results if request.ok]
    ended = min((request.chunk_at[-1] for request in good), default=0.0)
    return sum(request.chunk_at[0] < ended for request in good)


def _mean_gap_s(results: Sequence[ProbeResult]) -> float | None:
    """Returns the mean gap of the median request, by tokens."""
    gaps_s = [
        (request.chunk_at[-1] - request.chunk_at[0]) / (request.output_tokens - 1)
        for request in results
        if request.ok and request.output_tokens > 1 and len(request.chunk_at) > 1
    ]
    return median(gaps_s) if gaps_s else None
