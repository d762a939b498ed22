"""Model fit: the settings that replay what was seen of a server best, their costs, the noise."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.lab.probe.diagnosis import Diagnosis
from locust_llm.simulator.scheduling.policies import WHOLE_PROMPTS

from .candidates import candidates
from .capacity import limited
from .cost_fit import FREE_TOKENS, Array, Fitted, Solved, Terms, draws, fit_cost, times
from .model import SchedulerSettings, ServerModel, StepCosts
from .noise import noise
from .observations import IdleEpisode, ObservedStage
from .replay import as_replayed, replay_episodes
from .twin import Draw, Origin

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


def score(model: ServerModel, episodes: Sequence[IdleEpisode]) -> float:
    """0: every request of the probe is replayed as it was."""
    replay = replay_episodes(model, episodes)
    requests = as_replayed(replay, episodes)
    seconds = [
        _distance(said, times(requests, name))
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
    best few exactly, with a front that reads the prompts' tokens before the scheduler has them, and
    with one that takes no time for them. Times of single prompts hardly tell the two apart; what
    decoders got meanwhile does."""
    rough = list[Scored]()
    cost = begin
    free: Sequence[float] = FREE_TOKENS
    most = len(among) + 2 * min(len(among), FINALISTS)
    for number, settings in enumerate(among):
        rough.append(
            _scored(ServerModel(settings=settings, cost=cost), episodes, free, reading=False)
        )
        best = min(rough, key=lambda one: one.score).model.cost
        cost, free = best, (best.free_tokens,)  # hardly another for the next one
        on_progress(number + 1, most)
    found = list[Scored]()
    for one in sorted(rough, key=_unlikely)[:FINALISTS]:
        for reading in (False, True):
            found.append(_scored(one.model, episodes, FREE_TOKENS, reading=reading))
            on_progress(len(among) + len(found), most)
    return sorted(found, key=_unlikely)


def _unlikely(one: Scored) -> float:
    """Its score, higher where it needs what servers seldom have."""
    settings = one.model.settings
    tokens = settings.long_prefill_token_threshold or settings.max_num_batched_tokens
    odd = tokens & (tokens - 1) and settings.policy not in WHOLE_PROMPTS
    return one.score / (READING_GAIN if one.reading else 1.0) / (ODD_GAIN if odd else 1.0)


def _scored(
    model: ServerModel,
    episodes: Sequence[IdleEpisode],
    free_tokens: Sequence[float],
    *,
    reading: bool,
) -> Scored:
    fitted = fit_cost(model, episodes, free_tokens=free_tokens, terms=Terms(reading))
    return Scored(score(fitted.model, episodes), fitted.model, reading)


class ModelFit(NamedTuple):
    model: ServerModel
    draws: tuple[Draw, ...]
    scores: tuple[Scored, ...]
    """Of the candidates that were looked at closely, the best first."""
    loss: float


def fit_model(
    said: Diagnosis, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage],
    origin: Origin = Origin(),  # noqa: B008
    *, num_draws: int = NUM_DRAWS, seed: int = SEED, on_progress: Progress = lambda done,
    most: None,
) -> ModelFit:  # fmt: skip
    """Raises ValueError of one sentence where the simulator has no such scheduler."""
    longest = max(
        (one.prompt_tokens for episode in episodes for one in episode.requests), default=0
    )
    among = candidates(said, longest, origin)
    if not among:
        raise ValueError(
            f"the simulator has no scheduler for a server that the probe calls {said.name!r}"
        )
    scores = choose_settings(among, _begin(episodes), episodes, on_progress)
    model = msgspec.structs.replace(scores[0].model, noise=noise(episodes, scores[0].model))
    model = model.with_settings(limited(model, stages))
    reading = scores[0].reading
    fitted = _best(model, episodes, stages, reading=reading)
    model = fitted.model.with_settings(
        limited(fitted.model.with_settings(scores[0].model.settings), stages)
    )
    if model.settings != fitted.model.settings:
        fitted = _best(model, episodes, stages, reading=reading)
    drawn = tuple(_draw(one) for one in draws(fitted, num_draws, seed))
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
    return more if more.solved.loss < OWN_PAIRS_GAIN * best.solved.loss else best


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
