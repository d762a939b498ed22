"""Scheduler fit: finds the settings whose replay matches a client's measurements best, with costs
and noise.

The settings that fit the diagnosis come first, then the limits, then the noise.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.lab.probe.scheduler_diagnosis import (
    CHUNKED,
    PARTIAL,
    PREFILL_FIRST,
    STATIC,
    Diagnosis,
)
from locust_llm.lab.twin.server_observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.lab.twin.step_cost_fit import (
    FREE_TOKENS,
    Array,
    Fitted,
    Solved,
    Terms,
    draw_costs,
    fit_cost,
    select_times,
)
from locust_llm.lab.twin.twin_model import (
    UNKNOWN_ORIGIN,
    Draw,
    Noise,
    Origin,
    SchedulerSettings,
    ServerModel,
    StepCosts,
)
from locust_llm.lab.twin.virtual_replay import as_replayed, replay_episodes, replay_stage
from locust_llm.simulator.scheduling.batching_policies import WHOLE_PROMPTS
from locust_llm.simulator.scheduling.step_cost import BLOCK_SIZE

TRIED_BUDGETS: Final = 9
"""This many values are tried, evenly over the range of the diagnosis, and round ones besides."""
ROUND: Final = 128
"""Flags are mostly multiples of this, or powers of two."""
MOST_ROUND: Final = 12
WIDER: Final = (1, 2, 4, 8, 16)
"""Servers that compute whole prompts have budgets of these multiples of the probe's longest
prompt."""


def list_candidate_settings(
    said: Diagnosis,
    longest: int,
    origin: Origin = UNKNOWN_ORIGIN,
) -> list[SchedulerSettings]:
    """``longest`` is the longest observed prompt in tokens. ``origin`` shows whether it is
    llama.cpp. Empty: the simulator has no such scheduler, or the probe cannot name it."""
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
    """Lists budgets between these: some evenly, and the round ones."""
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
"""A stage shows a limit if the users exceed the concurrent sequences by this factor."""
MORE_SEQS: Final = (0, 1, 2, 4)
MORE_TOKENS: Final = (0.95, 1.0, 1.05, 1.1, 1.2)
"""These additions to the observed running tokens are tried, as prefills are not observed."""
BETTER: Final = 0.5
"""A limit is accepted if the remaining distance is at most this share of the distance without
it."""
KV_GAIN: Final = 0.8
"""A KV cache must leave less than this share of the distance that a limit on sequences leaves.
Every server has that flag, and noise makes either look better."""
LEAST: Final = 0.05
"""The distance must exceed this, and the distance at loads below the limit. It is the mean of the
logarithms of predicted / measured TTFT. Users who wait for earlier prompts look as if they waited
for a place, and a limit would then hide another error of the model."""


def fit_limits(
    model: ServerModel, stages: Sequence[ObservedStage], longest: int = 0
) -> SchedulerSettings:
    """Returns the settings with the limit that explains the waits of the stages best. They stay
    unchanged if none is needed, or if the server reported its own. ``longest`` is the longest
    answered sequence in tokens, which the KV cache holds."""
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
    """Lists settings with limits slightly above the observed concurrency."""
    seqs = max(_running(stage)[0] for stage in loaded)
    tokens = max(_running(stage)[1] for stage in loaded)
    for more in MORE_SEQS:
        yield msgspec.structs.replace(settings, max_num_seqs=seqs + more)
    for share in MORE_TOKENS:
        if share * tokens >= longest:
            yield msgspec.structs.replace(settings, kv_tokens=int(share * tokens))


def longest_sequence(episodes: Sequence[IdleEpisode]) -> int:
    """Returns the tokens of a prompt and its answer, in whole blocks of the KV cache."""
    requests = chain.from_iterable(episode.requests for episode in episodes)
    most = max((request.prompt_tokens + request.output_tokens for request in requests), default=0)
    return -(-most // BLOCK_SIZE) * BLOCK_SIZE


def _running(stage: ObservedStage) -> tuple[int, float]:
    """Returns how many sequences decoded, and their context tokens. The counts were higher for a
    tenth of the time only."""
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
"""A single step is at most this ratio of gap to median. Above it two tokens came in one chunk, or
the server paused."""
PAUSE: Final = 3.5
"""Above this ratio a gap is a pause."""
MIN_PAUSES: Final = 3
"""Fewer pauses give no estimate."""
LONG: Final = 0.5
"""A prompt's step is at least this share of the longest gap beside it."""
MIN_LONG: Final = 8
"""The spread of prompt steps needs this many of them."""
MORE_ALIKE: Final = 1.5
"""Prompt steps must vary less than decode steps by this factor."""


def fit_noise(episodes: Sequence[IdleEpisode], model: ServerModel | None = None) -> Noise:
    """``model`` predicts the steps of prompts. None: prompt steps vary as much as decode steps. A
    gap is a step plus the difference in the lateness of its chunks: ``g_k = s_k + e_k - e_(k-1)``.
    So the variance plus twice the covariance of neighbours is the variance of the steps, and the
    difference comes from the chunks."""
    every = list(_quiet(episodes))
    streams = list(chain.from_iterable(every))
    if not any(len(gaps) > 2 for gaps in streams):
        return Noise()
    usual = median(chain.from_iterable(streams))
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
    pauses = [gap - usual for gap in chain.from_iterable(alone) if gap > PAUSE * usual]
    enough = len(pauses) >= MIN_PAUSES
    quiet_episodes = [episode for episode in episodes if episode.kind in ("quiet", "warm")]
    quiet = list(chain.from_iterable(episode.requests for episode in quiet_episodes))
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
    """Returns the standard deviation of the logarithm of a prompt's step: measured / replayed, step
    by step, by their median absolute deviation, as some include a pause. None: there are too
    few."""
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
    """Returns the gaps of a decoder that end in this time and are as long as a prompt's step."""
    gaps = [
        later - sooner
        for sooner, later in pairwise(token_at)
        if begin < later <= end + (later - sooner) / 2
    ]
    return [gap for gap in gaps if gap > LONG * max(gaps)]


def _is_single(off: float) -> bool:
    return USUAL[0] < 1 + off < USUAL[1]


def _quiet(episodes: Sequence[IdleEpisode]) -> Iterator[list[list[float]]]:
    """Returns the gaps of the decoders of each episode, while all decode and no prompt is
    computed."""
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
"""A logarithm of predicted / measured counts at most this much in the score of a candidate."""
FEW: Final = 3
"""This many tokens are added to a count of them, as one at the very end may be counted or not."""
FINALISTS: Final = 3
READING_GAIN: Final = 0.98
"""A front that reads must lower the score to this share."""
ODD_GAIN: Final = 0.9
"""A budget that is no power of two must lower the score to this share, as flags mostly are."""
OWN_PAIRS_GAIN: Final = 0.95
"""A cost of own pairs must lower the loss of the fit to this share. With some hundred equations,
any further cost explains a hundredth."""
MOST_OWN_PAIRS: Final = 1.5
"""Own pairs cost at most this multiple of a pair. A kernel that also computes the other half of the
square takes twice as long for them. A larger cost has another cause, and would grow with the square
of a step's tokens."""
NUM_DRAWS: Final = 12
SEED: Final = 10_000
Progress = Callable[[int, int], None]
"""The function gets how many are done, and of how many."""


class Scored(NamedTuple):
    score: float
    """This is the mean distance of predicted from measured values, as a share. One half covers
    TTFT, decode and longest gap of the probe's requests, the other half the decoders' steps beside
    long prompts."""
    model: ServerModel
    reading: bool


def score_model(model: ServerModel, episodes: Sequence[IdleEpisode]) -> float:
    """Returns 0 if every request of the probe is replayed exactly."""
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
    """Returns the steps of the median decoder while the prompts were computed, by its gaps: (sum of
    the gaps)^2 / sum of their squares. That is their number if they are equal, and it hardly counts
    short ones from before the scheduler had the prompt. A token half a gap after the last prompt's
    first token came with it. 0: no decoder lasted. Each request has its send, chunks, and tokens
    per chunk."""
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
    """Returns candidates with the costs that suit each best, the best first. All are scored
    roughly, then the best few exactly, with the powers of two beside them, as the rough costs of
    their neighbours may not suit. Each is tried with a front that reads prompts before the
    scheduler, and with one that takes no time. Times of single prompts hardly distinguish the two,
    but the decoders' steps meanwhile do."""
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
    """Returns its score, increased for properties that servers seldom have."""
    settings = one.model.settings
    odd = not _is_power(settings) and settings.policy not in WHOLE_PROMPTS
    return one.score / (READING_GAIN if one.reading else 1.0) / (ODD_GAIN if odd else 1.0)


def _is_power(settings: SchedulerSettings) -> bool:
    """Returns whether its policy cuts prompts and the tokens of a step are a power of two."""
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
    """The candidates with exact scores are sorted, the best first."""
    loss: float


def fit_model(
    said: Diagnosis, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage],
    origin: Origin = UNKNOWN_ORIGIN,
    *, num_draws: int = NUM_DRAWS, on_progress: Progress = lambda done, most: None,
) -> ModelFit:  # fmt: skip
    """Fits a model. Raises ValueError if the simulator has no such scheduler."""
    requests = chain.from_iterable(episode.requests for episode in episodes)
    longest = max((request.prompt_tokens for request in requests), default=0)
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
    """Fits from several initial values, as the turns of a fit may end in a local minimum: from the
    probe, and from one stream's gaps and one prompt. A cost of own pairs is used only if it
    explains more."""
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
    """Returns initial costs: a step of one stream as long as its gaps, a prompt token as long as in
    the longest prompt."""
    requests = list(chain.from_iterable(episode.requests for episode in episodes))
    undisturbed = chain.from_iterable(
        episode.requests for episode in episodes if not episode.beside
    )
    gap_s = median(request.itl_s for request in undisturbed if request.itl_s)
    longest = max(requests, key=lambda one: one.prompt_tokens)
    return StepCosts(fixed_s=gap_s, token_s=longest.ttft_s / longest.prompt_tokens)


def _draw(solved: Solved) -> Draw:
    cost, front = solved.cost, solved.front
    return Draw(
        cost.fixed_s, cost.token_s, cost.stream_s, cost.context_s, cost.pair_s, cost.free_tokens,
        front.request_s, front.token_s, cost.admission_s, cost.own_pair_s,
    )  # fmt: skip
