"""Experiments: the episodes of the interference probe, small experiments one by one, each sized by
the results of the last.

All of it is pure: ``timetable`` takes the results of one episode and yields the next. The sender
does the waiting: Locust users in real time (user.py), or a simulator in virtual time (the tests).

1. ``warm``: a short request, twice: the least TTFT.
2. ``alone``: prompts of doubling length, one at a time: the cost of a prompt. Where the next one
  would take too
   long, one that should take about the longest time allowed.
3. ``quiet``: short prompts that decode together, one more than will decode beside a prompt: the gap
  without a prefill, and
   whether a slot is left for the prompt.
4. In rounds, so that each figure is measured several times: ``stall`` (a long prompt, of three
  lengths, beside decoders),
   ``pair`` (two sent together), ``again`` (a long prompt a second time: is it cached?), ``behind``
   (short requests after a
   long one), ``burst`` (equal prompts sent together, without decoders: how many are computed side
   by side).
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median
from typing import Final, NamedTuple

from .measurements import measure_stall
from .requests import ProbeEpisode, ProbeRequest, ProbeResult

SHORT_TOKENS: Final = 32
WARM_OUTPUT_TOKENS: Final = 48
"""Output of a warm request, for a first estimate of a gap."""
LEAD_GAPS: Final = 30
"""Gaps of the decoders alone before a prompt is sent."""
LEAD_S: Final = 0.4
OUTLAST_RATIO: Final = 1.4
"""Time of the decoders / TTFT of the prompt alone: the prompt is done before them."""
STAGGER_SHARE: Final = 0.15
"""Each decoder outlasts the one before by this share: the end that a prompt waits for separates
slots from batches."""
LONG_OUTPUT_TOKENS: Final = 4
"""Output of a long prompt: its first token may have no text, so it takes another one."""
MIN_BURST_S: Final = 4.0
"""Least time of a burst, if prompts of a quarter of the longest reach it: a prompt that is a little
earlier than the others must not look computed alone."""
MAX_BURST_TTFTS: Final = 4
MIN_BURST: Final = 6
"""A burst takes at most MAX_BURST_TTFTS times the longest TTFT allowed, but has at least MIN_BURST
prompts: three side by side must leave three others waiting."""
MAX_HELD_PACE: Final = 0.9
"""Pace of decoders that a prompt disturbed."""
LONGEST_SHARE: Final = 0.95
"""Of the longest prompt answered: lengths are not exact, and the context may end there."""
MIN_GROWTH: Final = 1.2
"""A prompt must be this much longer than the longest so far."""
MIN_BURST_STEPS: Final = 2.5
"""Prompt of a burst / tokens of a step."""


@dataclass(frozen=True, kw_only=True)
class ProbeBounds:
    """What the probe may ask of a server."""

    longest_tokens: int = 32_000
    first_tokens: int = 250
    """Tried lengths are this times powers of two: budgets are powers of two, so no prompt is just
    longer than a step."""
    most_ttft_s: float = 4.0
    """Longest TTFT alone; with it the whole probe takes about six minutes at most."""
    most_output_tokens: int = 8192
    decoders: int = 3
    burst: int = 8
    rounds: int = 3


class ProbeScale(NamedTuple):
    """Results of the first episodes, which size the others."""

    ttft_s: float
    """The TTFT of a short prompt."""
    gap_s: float
    """Between two tokens of a decoder beside the others."""
    longest: int
    """The longest prompt, tokens."""
    alone_s: float
    """Its TTFT alone."""

    def takes_s(self, tokens: float) -> float:
        """Estimated TTFT, rather too long: shorter prompts cost no more per token than longer
        ones."""
        return max(self.ttft_s, self.alone_s * tokens / self.longest)

    @property
    def lead_s(self) -> float:
        """Time of the decoders alone before the prompt."""
        return 4 * self.ttft_s + max(LEAD_S, LEAD_GAPS * self.gap_s)


Probe = Generator[ProbeEpisode, Sequence[ProbeResult], None]
Widths = dict[int, float | None]
"""By the length of a prompt, as it was last measured: see ``_width``."""


def schedule_episodes(bounds: ProbeBounds = ProbeBounds()) -> Probe:
    """Yields an episode, takes the results of its requests (those that ended), and so on. Ends
    early where a server cannot be probed; the diagnosis names the reason."""
    for turn in range(2):
        warm = yield ProbeEpisode(
            "warm", turn, (ProbeRequest("short", 0, SHORT_TOKENS, WARM_OUTPUT_TOKENS),), 0.5
        )
    if not (warm and warm[0].ok):
        return
    ttft_s = warm[0].ttft_s
    gap_s = _gap_s(warm) or warm[0].ttft_s
    longest, alone_s = yield from _lengths(bounds)
    if longest < 8 * bounds.first_tokens and alone_s < bounds.most_ttft_s / 4:
        return  # refused: its context is too small for prompts of several sizes
    scale = ProbeScale(ttft_s, gap_s, int(LONGEST_SHARE * longest), alone_s)
    quiet = yield _quiet(scale, bounds)
    together = _together(quiet)
    if together < 1:
        return
    bounds = _with_decoders(bounds, together)
    scale = scale._replace(
        gap_s=_gap_s(quiet) or gap_s, ttft_s=max([ttft_s, *(s.ttft_s for s in quiet if s.ok)])
    )
    widths: Widths = {}
    yield from _with_later(
        _rounds(scale, bounds, widths), lambda: list(_rounds(scale, bounds, widths))
    )


def max_probe_episodes(bounds: ProbeBounds) -> int:
    """Of a probe whose schedule is not known yet: of one that tries every length."""
    # the last one is no doubling
    lengths = 2 + max(0, int(math.log2(bounds.longest_tokens / bounds.first_tokens)))
    return (
        2
        + lengths
        + 1
        + len(list(_rounds(ProbeScale(1.0, 1.0, bounds.longest_tokens, 1.0), bounds, {})))
    )


def _rounds(scale: ProbeScale, bounds: ProbeBounds, widths: Widths) -> Probe:
    for turn in range(1, bounds.rounds + 1):
        yield from _round(turn, scale, bounds, widths)


def _with_later(probe: Probe, plan: Callable[[], Sequence[ProbeEpisode]]) -> Probe:
    """Each with those after it, as they are planned by then: its results may make prompts of later
    ones longer."""
    episode = next(probe)
    try:
        for number in count(1):
            episode = probe.send((yield episode._replace(later=tuple(plan()[number:]))))
    except StopIteration:
        return


def _lengths(
    bounds: ProbeBounds,
) -> Generator[ProbeEpisode, Sequence[ProbeResult], tuple[int, float]]:
    """(longest prompt answered, its TTFT)."""
    longest, alone_s, before_s, next_s = 0, 0.0, 0.0, 0.0
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
            longest, alone_s = tokens, alone[0].ttft_s
    return longest, alone_s


def _choose_prompt_tokens(
    longest: int, alone_s: float, before_s: float, bounds: ProbeBounds
) -> int:
    """Tokens of a prompt that should take about the longest time allowed, if time grows as it did
    from half the length; in quarters, so that two probes of a server try the same lengths."""
    growth = max(1.0, math.log2(alone_s / before_s)) if before_s > 0 else 1.0
    times = (bounds.most_ttft_s / alone_s) ** (1 / growth) if alone_s > 0 else 1.0
    return min(bounds.longest_tokens, int(longest * int(4 * min(2.0, times)) / 4))


def _round(turn: int, scale: ProbeScale, bounds: ProbeBounds, widths: Widths) -> Probe:
    """Lengths from short to long and back, in turn: a drift must not look like an effect of
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
            widths[tokens] = _width(results, tokens)
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


def _width(results: Sequence[ProbeResult], tokens: int) -> float | None:
    """Tokens of a step beside decoders; None where the prompt was computed in one, or its steps are
    not seen."""
    stall = measure_stall(results)
    # these steps computed something else
    if stall is None or stall.steps <= 1 or stall.pace >= MAX_HELD_PACE:
        return None
    return tokens / (stall.steps - 1)


def _quiet(scale: ProbeScale, bounds: ProbeBounds) -> ProbeEpisode:
    lasts_s = 2 * LEAD_S + LEAD_GAPS * scale.gap_s
    return ProbeEpisode("quiet", 0, _decoders(bounds.decoders + 1, lasts_s, scale, bounds), lasts_s)


def _plan_prompts_beside_decoders(
    scale: ProbeScale, bounds: ProbeBounds, kind: str, turn: int, prompts: tuple[int, ...]
) -> ProbeEpisode:
    """Long prompts sent together, beside decoders that outlast them."""
    took_s = sum(map(scale.takes_s, prompts))
    lasts_s = scale.lead_s + OUTLAST_RATIO * took_s + LEAD_GAPS * scale.gap_s
    longs = [ProbeRequest("long", scale.lead_s, prompt, LONG_OUTPUT_TOKENS) for prompt in prompts]
    most_s = lasts_s * (1 + STAGGER_SHARE * (bounds.decoders - 1)) + took_s
    return ProbeEpisode(
        kind, turn, (*_decoders(bounds.decoders, lasts_s, scale, bounds), *longs), most_s
    )


def _decoders(
    count: int, lasts_s: float, scale: ProbeScale, bounds: ProbeBounds
) -> tuple[ProbeRequest, ...]:
    """The first decodes for ``lasts_s``, each other one longer than the one before."""
    most = bounds.most_output_tokens / (1 + STAGGER_SHARE * (count - 1))
    tokens = min(int(most), math.ceil(lasts_s / scale.gap_s))
    return tuple(
        ProbeRequest("decoder", 0, SHORT_TOKENS, int(tokens * (1 + STAGGER_SHARE * i)))
        for i in range(count)
    )


def _with_decoders(bounds: ProbeBounds, together: int) -> ProbeBounds:
    """A slot must be left for the prompt."""
    return replace(bounds, decoders=max(1, together - 1))


def _together(came: Sequence[ProbeResult]) -> int:
    """Requests that had begun before the first of them ended."""
    good = [request for request in came if request.ok]
    ended = min((request.chunk_at[-1] for request in good), default=0.0)
    return sum(request.chunk_at[0] < ended for request in good)


def _gap_s(came: Sequence[ProbeResult]) -> float | None:
    """The mean gap of the median request, by tokens."""
    each = [
        (request.chunk_at[-1] - request.chunk_at[0]) / (request.output_tokens - 1)
        for request in came
        if request.ok and request.output_tokens > 1 and len(request.chunk_at) > 1
    ]
    return median(each) if each else None
