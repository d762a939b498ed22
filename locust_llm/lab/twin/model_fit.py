"""Model fit: the settings that replay best what a client saw of a server, their costs, the noise.

The settings that a server may have by its diagnosis come first; then the limits, and the noise.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.lab.probe.diagnosis import CHUNKED, PARTIAL, PREFILL_FIRST, STATIC, Diagnosis
from locust_llm.lab.twin.cost_fit import (
    FREE_TOKENS,
    Array,
    Fitted,
    Solved,
    Terms,
    draw_costs,
    fit_cost,
    select_times,
)
from locust_llm.lab.twin.model import (
    UNKNOWN_ORIGIN,
    Draw,
    Noise,
    Origin,
    SchedulerSettings,
    ServerModel,
    StepCosts,
)
from locust_llm.lab.twin.observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.lab.twin.replay import as_replayed, replay_episodes, replay_stage
from locust_llm.simulator.scheduling.cost import BLOCK_SIZE
from locust_llm.simulator.scheduling.policies import WHOLE_PROMPTS

TRIED_BUDGETS: Final = 9
"""Evenly over the range of the diagnosis, beside round ones."""
ROUND: Final = 128
"""Flags are mostly multiples of this, or powers of two."""
MOST_ROUND: Final = 12
WIDER: Final = (1, 2, 4, 8, 16)
"""Budgets of servers that compute whole prompts, in longest prompts of the probe."""


def list_candidate_settings(
    said: Diagnosis,
    longest: int,
    origin: Origin = UNKNOWN_ORIGIN,
) -> list[SchedulerSettings]:
    """``longest``: tokens of the longest prompt seen. ``origin``: whether it is llama.cpp. Empty:
    the simulator has none, or the probe cannot tell."""
    return list(_candidates(said, longest + 1, origin))


def _candidates(said: Diagnosis, widest: int, origin: Origin) -> Iterator[SchedulerSettings]:
    if said.name == CHUNKED and said.budget is not None and origin.slots:
        for budget in list_budgets(said.budget[0], said.budget[2]):
            yield SchedulerSettings(
                policy="llama.cpp", max_num_batched_tokens=budget, max_num_seqs=origin.slots,
                common_prefix_tokens=origin.common_prefix_tokens,
            )  # fmt: skip
    elif said.name == STATIC:
        yield from (
            SchedulerSettings(policy="static", max_num_batched_tokens=times * widest)
            for times in WIDER
        )
    elif said.name == PREFILL_FIRST:
        for policy in ("prefill-first", "mixed"):
            for times in WIDER:
                yield SchedulerSettings(policy=policy, max_num_batched_tokens=times * widest)
    elif said.name == CHUNKED and said.budget is not None:
        for budget in list_budgets(said.budget[0], said.budget[2]):
            yield SchedulerSettings(policy="chunked", max_num_batched_tokens=budget)
    elif said.name == PARTIAL and said.budget is not None and said.slots:
        for tokens in list_budgets(said.budget[0], said.budget[2]):
            yield SchedulerSettings(
                policy="chunked",
                max_num_batched_tokens=tokens * said.slots,
                long_prefill_token_threshold=tokens,
            )
            yield SchedulerSettings(
                policy="partial-prefills",
                max_num_batched_tokens=tokens,
                max_num_partial_prefills=said.slots,
            )


def list_budgets(low: float, high: float) -> list[int]:
    """To be tried between these: some evenly, and the round ones."""
    first = max(1, math.ceil(low))
    last = math.floor(min(high, 4 * max(low, 1.0)))
    if last <= first:
        return [max(1, round((low + high) / 2))] if math.isfinite(high) else [first]
    even = {round(first + (last - first) * i / (TRIED_BUDGETS - 1)) for i in range(TRIED_BUDGETS)}
    step = ROUND
    while (last - first) / step > MOST_ROUND:
        step *= 2
    rounded = set(range(math.ceil(first / step) * step, last + 1, step))
    powers = {
        1 << n
        for n in range(first.bit_length() - 1, last.bit_length() + 1)
        if first <= 1 << n <= last
    }
    return sorted(even | rounded | powers)


# -- capacity --------------------------------------------------------------------------------------
# How many sequences run at once, and how many tokens the KV cache holds, where the sweep went
# beyond it.

BEYOND: Final = 1.2
"""Users / sequences that ran at once, in a stage that shows a limit."""
MORE_SEQS: Final = (0, 1, 2, 4)
MORE_TOKENS: Final = (0.95, 1.0, 1.05, 1.1, 1.2)
"""Tried, beside what was seen to run: those in prefill are not seen."""
BETTER: Final = 0.5
"""A limit is taken where it leaves at most this share of the distance that there is without."""
KV_GAIN: Final = 0.8
"""A KV cache must leave less than this share of what a limit on sequences leaves: that is a flag of
every server, and noise makes either look better."""
LEAST: Final = 0.05
"""And where that distance is more than this, and more than at the loads that no limit touches: mean
of the logarithms of said / measured TTFT. Users who wait for the prompts before theirs look as if
they waited for a place, and a limit then mends what a model is off by anyway."""


def fit_limits(
    model: ServerModel, stages: Sequence[ObservedStage], longest: int = 0
) -> SchedulerSettings:
    """The settings, with the limit that explains the waits of the stages best; as they are, where
    none is needed, or the server has told its own. ``longest``: tokens of the longest sequence that
    was answered, which its KV cache holds."""
    if model.settings.max_num_seqs:
        return model.settings
    users = [stage for stage in stages if stage.users]
    loaded = [stage for stage in users if _running(stage)[0] * BEYOND < stage.users]
    if not loaded:
        return model.settings
    without = _ttft_distance(model, loaded)
    if without < max(
        LEAST, _ttft_distance(model, [stage for stage in users if stage not in loaded])
    ):
        return model.settings
    tried = [
        (_ttft_distance(model.with_settings(settings), loaded), settings)
        for settings in list_limits(model.settings, loaded, longest)
    ]
    least, settings = min(tried, key=lambda one: one[0] / (KV_GAIN if one[1].kv_tokens else 1.0))
    return settings if least < BETTER * without else model.settings


def list_limits(
    settings: SchedulerSettings, loaded: Sequence[ObservedStage], longest: int
) -> Iterator[SchedulerSettings]:
    """Settings to be tried: limits a little above what ran at once."""
    seqs = max(_running(stage)[0] for stage in loaded)
    tokens = max(_running(stage)[1] for stage in loaded)
    for more in MORE_SEQS:
        yield msgspec.structs.replace(settings, max_num_seqs=seqs + more)
    for share in MORE_TOKENS:
        if share * tokens >= longest:
            yield msgspec.structs.replace(settings, kv_tokens=int(share * tokens))


def longest_sequence(episodes: Sequence[IdleEpisode]) -> int:
    """Tokens, of a prompt and its answer, in whole blocks of the KV cache."""
    most = max(
        (one.prompt_tokens + one.output_tokens for episode in episodes for one in episode.requests),
        default=0,
    )
    return -(-most // BLOCK_SIZE) * BLOCK_SIZE


def _running(stage: ObservedStage) -> tuple[int, float]:
    """How many decoded, and with how many tokens in all of their contexts: above it for a tenth of
    the time only."""
    moments = np.linspace(stage.requests[0].sent_at, stage.requests[-1].sent_at, 400)
    counts = np.zeros(len(moments))
    tokens = np.zeros(len(moments))
    for one in stage.requests:
        here = (moments >= one.token_at[0]) & (moments < one.token_at[-1])
        counts += here
        tokens += here * (one.prompt_tokens + _output(one, moments))
    return int(np.percentile(counts, 90)), float(np.percentile(tokens, 90))


def _output(one: ObservedRequest, moments: Array) -> Array:
    at = np.array(one.token_at)
    return np.asarray(
        np.searchsorted(at, moments, side="right") * one.tokens_a_chunk, dtype=np.float64
    )


def _ttft_distance(model: ServerModel, loaded: Sequence[ObservedStage]) -> float:
    off = []
    for stage in loaded:
        said = replay_stage(model, stage).ttft_s
        measured = np.array([one.ttft_s for one in stage.requests])
        quantiles = (25, 50, 75, 95)
        off.append(np.log(np.percentile(said, quantiles) / np.percentile(measured, quantiles)))
    return float(np.abs(np.concatenate(off)).mean()) if off else 0.0


# -- noise -----------------------------------------------------------------------------------------
# How unlike equal steps of a server are at the client, from the gaps of decoders.

USUAL: Final = (0.4, 1.6)
"""Gap / median of a single step; above it two tokens came in one chunk, or the server paused."""
PAUSE: Final = 3.5
"""The same, above which it is a pause."""
MIN_PAUSES: Final = 3
"""With fewer nothing can be said of them."""
LONG: Final = 0.5
"""Of the longest gap beside a prompt: a step of the prompt."""
MIN_LONG: Final = 8
"""Steps of prompts, to tell how unlike these are,"""
MORE_ALIKE: Final = 1.5
"""and by what factor they must be more alike than those of decoders."""


def fit_noise(episodes: Sequence[IdleEpisode], model: ServerModel | None = None) -> Noise:
    """``model``: what a step of a prompt is held against; None: all steps are taken for as unlike
    as those of decoders.

    A gap is a step, and by how much its chunk is later than the one before: ``g_k = s_k + e_k -
    e_(k-1)``. So twice the covariance of neighbours is taken from the variance to have that of the
    steps, and what was taken is the chunks'."""
    every = list(_quiet(episodes))
    streams = [gaps for stream in every for gaps in stream]
    if not any(len(gaps) > 2 for gaps in streams):
        return Noise()
    usual = median(gap for gaps in streams for gap in gaps)
    single = []
    pairs = []
    for gaps in streams:
        deviations = [gap / usual - 1 for gap in gaps]
        single += [deviation for deviation in deviations if _is_single(deviation)]
        for sooner, later in pairwise(deviations):
            if _is_single(sooner) and _is_single(later):
                pairs.append(sooner * later)
    variance = float(np.var(single))
    middle = fmean(single)
    chunks = min(max(0.0, middle**2 - fmean(pairs)), variance / 2) if pairs else 0.0
    alone = [stream[0] for stream in every]  # a pause is everybody's
    pauses = [gap - usual for gaps in alone for gap in gaps if gap > PAUSE * usual]
    enough = len(pauses) >= MIN_PAUSES
    quiet = [
        one for episode in episodes if episode.kind in ("quiet", "warm") for one in episode.requests
    ]
    short = math.sqrt(math.log1p(variance - 2 * chunks))
    long = _long(episodes, model) if model else None
    sigma = long if long is not None and long * MORE_ALIKE < short else short
    return Noise(
        step_sigma=sigma,
        step_s=math.sqrt(short**2 - sigma**2) * usual,
        chunk_s=math.sqrt(chunks) * usual,
        merged=1
        - sum(len(one.token_at) for one in quiet) / max(1, sum(one.output_tokens for one in quiet)),
        pause_s=median(pauses) if enough else 0.0,
        pause_every_s=sum(map(sum, alone)) / len(pauses) if enough else 0.0,
    )


def _long(episodes: Sequence[IdleEpisode], model: ServerModel) -> float | None:
    """Standard deviation of the logarithm of a prompt's step: measured / replayed, step by step, by
    their median absolute deviation, as some meet a pause. None: there are too few."""
    replay = replay_episodes(model, episodes)
    at = 0
    off = list[float]()
    for episode in episodes:
        prompts = range(at + len(episode.requests) - episode.beside, at + len(episode.requests))
        if episode.beside and at < prompts[0]:
            said = _long_gaps(
                replay.token_at[at], replay.sent_at[prompts[0]], replay.first_at[prompts[-1]]
            )
            first = max(one.token_at[0] for one in episode.requests[-episode.beside :])
            decoder = episode.requests[0]
            measured = _long_gaps(
                decoder.token_at, episode.requests[-episode.beside].sent_at, first
            )
            if len(said) == len(measured):
                off += [math.log(one / other) for one, other in zip(measured, said, strict=True)]
        at += len(episode.requests)
    if len(off) < MIN_LONG:
        return None
    middle = median(off)
    return 1.4826 * median(abs(one - middle) for one in off)


def _long_gaps(token_at: Sequence[float], begin: float, end: float) -> list[float]:
    """The gaps of a decoder that end in this time and are as long as a prompt's step."""
    gaps = [
        later - sooner
        for sooner, later in pairwise(token_at)
        if begin < later <= end + (later - sooner) / 2
    ]
    return [gap for gap in gaps if gap > LONG * max(gaps)]


def _is_single(off: float) -> bool:
    return USUAL[0] < 1 + off < USUAL[1]


def _quiet(episodes: Sequence[IdleEpisode]) -> Iterator[list[list[float]]]:
    """The gaps of the decoders of each episode, while all decode and no prompt is computed."""
    for episode in episodes:
        decoders = episode.requests[: len(episode.requests) - episode.beside]
        if episode.kind in ("quiet", "stall", "pair") and decoders:
            begin = max(one.token_at[0] for one in decoders)
            end = min(one.token_at[-1] for one in decoders)
            if episode.beside:
                end = min(end, episode.requests[-episode.beside].sent_at)
            yield [_gaps(one, begin, end) for one in decoders]


def _gaps(one: ObservedRequest, begin: float, end: float) -> list[float]:
    at = [moment for moment in one.token_at if begin < moment <= end]
    return [later - sooner for sooner, later in pairwise(at)]


# -- model fit -------------------------------------------------------------------------------------
# The settings that replay what was seen of a server best, their costs, the noise.

MAX_OFF: Final = 1.0
"""A logarithm of said / measured counts at most so much in the score of a candidate."""
FEW: Final = 3
"""Tokens that are added to a count of them: one that came at the very end may be counted or not."""
FINALISTS: Final = 3
READING_GAIN: Final = 0.98
"""A front that reads must lower the score to this share,"""
ODD_GAIN: Final = 0.9
"""and tokens of a step that are no power of two to this one: flags mostly are."""
OWN_PAIRS_GAIN: Final = 0.95
"""A cost of own pairs must lower the loss of the fit to this share: of some hundred equations any
cost more explains a hundredth."""
MOST_OWN_PAIRS: Final = 1.5
"""Times the cost of a pair: a kernel that computes the other half of the square too takes twice as
long for them. More is something else, and would grow with the square of the tokens of a step."""
NUM_DRAWS: Final = 12
SEED: Final = 10_000
Progress = Callable[[int, int], None]
"""Is told how many are done, and of how many."""


class Scored(NamedTuple):
    score: float
    """Mean distance of said from measured, a share: half of it over TTFT, decode and longest gap of
    the requests of the probe, half over the steps that decoders had beside long prompts."""
    model: ServerModel
    reading: bool


def score_model(model: ServerModel, episodes: Sequence[IdleEpisode]) -> float:
    """0: every request of the probe is replayed as it was."""
    replay = replay_episodes(model, episodes)
    requests = as_replayed(replay, episodes)
    seconds = [
        _distance(said, select_times(requests, name))
        for name, said in (
            ("ttft_s", replay.ttft_s),
            ("decode_s", replay.decode_s),
            ("stall_s", replay.stall_s),
        )
    ]
    counts = list[tuple[float, float]]()
    at = 0
    for episode in episodes:
        here = slice(at, at := at + len(episode.requests))
        if episode.beside:
            measured = [(one.sent_at, one.token_at, one.tokens_a_chunk) for one in episode.requests]
            said = [
                (sent, times, 1.0)
                for sent, times in zip(replay.sent_at[here], replay.token_at[here], strict=True)
            ]
            counts.append(
                (FEW + _meanwhile(said, episode.beside), FEW + _meanwhile(measured, episode.beside))
            )
    steps = [_distance(*map(np.array, zip(*counts, strict=True)))] if counts else []
    return float(
        np.mean([np.concatenate(seconds).mean(), *(one.mean() for one in steps if len(one))])
    )


def _distance(said: Array, measured: Array) -> Array:
    known = (measured > 0) & (said > 0)
    return np.minimum(MAX_OFF, np.abs(np.log(said[known] / measured[known])))


def _meanwhile(requests: Sequence[tuple[float, Sequence[float], float]], beside: int) -> float:
    """Steps that the median decoder saw while the prompts were computed, by its gaps: (sum of the
    gaps)^2 / sum of their squares, which is their number where they are equal, and hardly counts
    the short ones from before the scheduler had the prompt. A token that came half a gap after the
    last prompt's first token came with it. 0 where no decoder lasted. Each request: send, chunks,
    tokens a chunk."""
    prompts, decoders = requests[-beside:], requests[:-beside]
    begin = prompts[0][0]
    first = max((times[0] if len(times) else math.inf) for _, times, _ in prompts)
    counts = []
    for _, at, a_chunk in decoders:
        if len(at) > 1 and at[-1] > first:
            end = first + float(np.median(np.diff(at))) / 2
            gaps = np.diff(at[max(0, bisect_right(at, begin) - 1) : bisect_right(at, end)])
            counts.append(a_chunk * float(gaps.sum() ** 2 / (gaps**2).sum()) if len(gaps) else 0.0)
    return median(counts) if counts else 0.0


def choose_settings(
    among: Sequence[SchedulerSettings],
    begin: StepCosts,
    episodes: Sequence[IdleEpisode],
    on_progress: Progress = lambda done, most: None,
) -> list[Scored]:
    """Candidates with the costs that suit each best, the best first: all of them roughly, then the
    best few exactly, and beside these the powers of two, which the rough costs of their neighbours
    may not suit: with a front that reads the prompts' tokens before the scheduler has them, and with
    one that takes no time for them. Times of single prompts hardly tell the two apart; what decoders
    got meanwhile does."""
    rough = list[Scored]()
    cost = begin
    free: Sequence[float] = FREE_TOKENS
    powers = sum(map(_is_power, among))
    most = len(among) + 2 * (powers + min(len(among) - powers, FINALISTS))
    for number, settings in enumerate(among):
        rough.append(
            _scored(ServerModel(settings=settings, cost=cost), episodes, free, reading=False)
        )
        best = min(rough, key=lambda one: one.score).model.cost
        cost, free = best, (best.free_tokens,)  # hardly another for the next one
        on_progress(number + 1, most)
    found = list[Scored]()
    ranked = sorted(rough, key=_unlikely)
    others = [one for one in ranked if not _is_power(one.model.settings)]
    finalists = [one for one in ranked if _is_power(one.model.settings)] + others[:FINALISTS]
    for one in finalists:
        for reading in (False, True):
            found.append(_scored(one.model, episodes, FREE_TOKENS, reading=reading))
            on_progress(len(among) + len(found), most)
    return sorted(found, key=_unlikely)


def _unlikely(one: Scored) -> float:
    """Its score, higher where it needs what servers seldom have."""
    settings = one.model.settings
    odd = not _is_power(settings) and settings.policy not in WHOLE_PROMPTS
    return one.score / (READING_GAIN if one.reading else 1.0) / (ODD_GAIN if odd else 1.0)


def _is_power(settings: SchedulerSettings) -> bool:
    """Its policy cuts prompts, and the tokens of a step are a power of two."""
    tokens = settings.long_prefill_token_threshold or settings.max_num_batched_tokens
    return settings.policy not in WHOLE_PROMPTS and tokens.bit_count() == 1


def _scored(
    model: ServerModel,
    episodes: Sequence[IdleEpisode],
    free_tokens: Sequence[float],
    *,
    reading: bool,
) -> Scored:
    fitted = fit_cost(model, episodes, free_tokens=free_tokens, terms=Terms(reading))
    return Scored(score_model(fitted.model, episodes), fitted.model, reading)


class ModelFit(NamedTuple):
    model: ServerModel
    draws: tuple[Draw, ...]
    scores: tuple[Scored, ...]
    """Of the candidates that were looked at closely, the best first."""
    loss: float


def fit_model(
    said: Diagnosis, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage],
    origin: Origin = UNKNOWN_ORIGIN,
    *, num_draws: int = NUM_DRAWS, on_progress: Progress = lambda done, most: None,
) -> ModelFit:  # fmt: skip
    """Raises ValueError of one sentence where the simulator has no such scheduler."""
    longest = max(
        (one.prompt_tokens for episode in episodes for one in episode.requests), default=0
    )
    among = list_candidate_settings(said, longest, origin)
    if not among:
        raise ValueError(
            f"the simulator has no scheduler for a server that the probe calls {said.name!r}"
        )
    scores = choose_settings(among, _begin(episodes), episodes, on_progress)
    model = msgspec.structs.replace(scores[0].model, noise=fit_noise(episodes, scores[0].model))
    answered = longest_sequence(episodes)
    model = model.with_settings(fit_limits(model, stages, answered))
    reading = scores[0].reading
    fitted = _best(model, episodes, stages, reading=reading)
    model = fitted.model.with_settings(
        fit_limits(fitted.model.with_settings(scores[0].model.settings), stages, answered)
    )
    if model.settings != fitted.model.settings:
        fitted = _best(model, episodes, stages, reading=reading)
    drawn = tuple(_draw(one) for one in draw_costs(fitted, num_draws, SEED))
    return ModelFit(fitted.model, drawn, tuple(scores), fitted.solved.loss)


def _best(
    model: ServerModel,
    episodes: Sequence[IdleEpisode],
    stages: Sequence[ObservedStage],
    *,
    reading: bool,
) -> Fitted:
    """From several beginnings, as the turns of a fit may end at a cost that only its neighbours are
    worse than: as the probe has it, and as one stream's gaps and one prompt have it. With a cost of
    own pairs only where that explains more."""
    begin = _begin(episodes)
    costs = (
        model.cost,
        begin,
        msgspec.structs.replace(model.cost, fixed_s=begin.fixed_s, context_s=0.0),
    )
    every = [
        fit_cost(msgspec.structs.replace(model, cost=cost), episodes, stages, terms=Terms(reading))
        for cost in (costs if stages else costs[:1])
    ]
    best = min(every, key=lambda one: one.solved.loss)
    more = fit_cost(best.model, episodes, stages, terms=Terms(reading, own_pairs=True))
    likely = more.model.cost.own_pair_s <= MOST_OWN_PAIRS * more.model.cost.pair_s
    return more if likely and more.solved.loss < OWN_PAIRS_GAIN * best.solved.loss else best


def _begin(episodes: Sequence[IdleEpisode]) -> StepCosts:
    """Where to begin: a step of one stream as long as its gaps, a prompt's token as long as in the
    longest prompt."""
    requests = [one for episode in episodes for one in episode.requests]
    gap_s = median(
        one.itl_s
        for episode in episodes
        if not episode.beside
        for one in episode.requests
        if one.itl_s
    )
    longest = max(requests, key=lambda one: one.prompt_tokens)
    return StepCosts(fixed_s=gap_s, token_s=longest.ttft_s / longest.prompt_tokens)


def _draw(solved: Solved) -> Draw:
    cost, front = solved.cost, solved.front
    return Draw(
        cost.fixed_s, cost.token_s, cost.stream_s, cost.context_s, cost.pair_s, cost.free_tokens,
        front.request_s, front.token_s, cost.admission_s, cost.own_pair_s,
    )  # fmt: skip
