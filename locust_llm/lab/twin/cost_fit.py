"""Cost fit: the seconds of a step, by least squares whose factors are not below 0.

The least squares are exact: of all subsets of the columns the best one whose factors are positive.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.lab.twin.model import FrontendDelay, ServerModel, StepCosts
from locust_llm.lab.twin.observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.lab.twin.replay import Replay, as_replayed, replay_episodes, replay_stage

Array = NDArray[np.float64]
NEVER = 1e-12
"""Of a column's own square: below this share two columns say the same."""
NOTHING = 1e-12
"""Of the target's square: what is explained by less than this more is explained alike."""


def least_squares(columns: Array, target: Array) -> Array:
    """The x >= 0 with the least |columns x - target|. ``columns``: (rows, up to about ten); a
    column of zeros gets 0. The minimum of a convex problem is the ordinary solution on the columns
    where it is above 0 (Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23), so trying
    each subset finds it. Of those that explain the target alike, as where there are fewer rows than
    columns, the one with the fewest columns, and the foremost ones."""
    size = np.sqrt((columns**2).sum(axis=0))
    size[size == 0] = np.inf
    scaled = columns / size
    gram = scaled.T @ scaled
    right = scaled.T @ target
    count = columns.shape[1]
    least = NOTHING * float(target @ target)
    best = np.zeros(count)
    best_gain = 0.0
    for number in range(1, count + 1):
        subsets = np.array(list(combinations(range(count), number)))
        inner = gram[subsets[:, :, None], subsets[:, None, :]]
        told = np.linalg.cond(inner) <= 1 / NEVER
        subsets, inner = subsets[told], inner[told]
        found = np.linalg.solve(inner, right[subsets][:, :, None])[:, :, 0]
        # by so much the square error is below that of 0
        gains = (right[subsets] * found).sum(axis=1)
        gains[(found < 0).any(axis=1)] = 0.0
        most = float(gains.max(initial=0.0))
        if most > best_gain + least:
            first = int(np.argmax(gains >= most - least))
            best = np.zeros(count)
            best_gain = most
            best[subsets[first]] = found[first]
    return np.asarray(best / size)


# -- cost fit --------------------------------------------------------------------------------------
# Seconds of a step, by least squares over what a replay says that each measured time was made of. A
# replay needs costs, and costs need a replay: both in turn, until they agree.

Indices = NDArray[np.int_]
TURNS: Final = 8
ENOUGH: Final = 0.002
"""Largest change of a step's time, as a share, after which the turns end."""
REQUEST_SHARE: Final = 0.03
"""Error of a time of one request, as a share of it,"""
REQUEST_S: Final = 0.0003
"""and beside that in seconds."""
STAGE_SHARE: Final = 0.01
"""The same share of the mean over a stage."""
MAX_RESIDUAL: Final = 2.5
"""In usual errors: what is further off counts less (Huber)."""
FREE_TOKENS: Final[Sequence[float]] = (
    0.0,
    16.0,
    32.0,
    64.0,
    96.0,
    128.0,
    192.0,
    256.0,
    384.0,
    512.0,
    768.0,
)
"""Tried, and then between the best and its neighbours."""
HALVINGS: Final = 4
STEP_COSTS: Final = 7
"""Columns of ``Replay.parts``,"""
OWN_PAIRS: Final = 5
"""and which of them is that of own pairs."""
MOST_EACH: Final = 500
"""Requests of the load of one user that have equations of their own."""
BLOCK: Final = 10
"""Requests of a stage that are drawn together: neighbours share steps."""


class ReplayGroup(NamedTuple):
    """Requests that were replayed together, and the equations that they are in."""

    replay: Replay
    ttft_s: Array
    decode_s: Array
    prompt_tokens: Array
    shares: Array
    """Of each request in an equation: (equations, requests)."""
    share: float
    """Error of an equation: as a share, and beside that in seconds."""
    least_s: float
    blocks: tuple[Indices, ...]
    """Indices of requests that are drawn together."""


class Terms(NamedTuple):
    """Costs that a server may have or not: 0 without."""

    reading: bool = True
    """Of the front, for a prompt's tokens."""
    own_pairs: bool = False
    """``Cost.own_pair_s``."""


USUAL: Final = Terms()


class Rows(NamedTuple):
    """Weighted equations: columns x (fixed, token, stream, context, pair, own pair, admission,
    request, prompt token) = seconds."""

    columns: Array
    seconds: Array
    errors: Array


def group_replays(
    model: ServerModel, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage]
) -> list[ReplayGroup]:
    """The probe request by request; a stage by its means, as in a closed loop single requests drift
    away from a replay."""
    noise = model.noise
    found = list[ReplayGroup]()
    requests = [one for episode in episodes for one in episode.requests]
    ends = np.cumsum([len(episode.requests) for episode in episodes])
    if requests:
        by_episode = tuple(np.split(np.arange(len(requests)), ends[:-1]))
        replay = replay_episodes(model, episodes)
        requests = as_replayed(replay, episodes)
        found.append(
            _group(replay, requests, np.eye(len(requests)), REQUEST_SHARE, REQUEST_S, by_episode)
        )
    paused = 1 + (noise.pause_s / noise.pause_every_s if noise.pause_every_s else 0.0)
    for stage in stages:
        count = len(stage.requests)
        replay = replay_stage(model, stage)
        if stage.users == 1:  # nobody drifts away alone
            each = np.linspace(0, count - 1, min(count, MOST_EACH)).round().astype(int)
            shares = (each[:, None] == np.arange(count)).astype(float)
            single = tuple(np.arange(count)[:, None])
            found.append(
                _group(replay, stage.requests, shares, REQUEST_SHARE, REQUEST_S, single, paused)
            )
            continue
        blocks = tuple(np.array_split(np.arange(count), max(1, count // BLOCK)))
        shares = np.full((1, count), 1 / count)
        found.append(_group(replay, stage.requests, shares, STAGE_SHARE, 0.0, blocks, paused))
    return found


def _group(
    replay: Replay, requests: Sequence[ObservedRequest], shares: Array, share: float,
    least_s: float, blocks: tuple[Indices, ...],
    paused: float = 1.0,
) -> ReplayGroup:  # fmt: skip
    prompts = np.array([float(one.prompt_tokens) for one in requests])
    ttft_s = select_times(requests, "ttft_s") / paused
    decode_s = select_times(requests, "decode_s") / paused
    return ReplayGroup(replay, ttft_s, decode_s, prompts, shares, share, least_s, blocks)


def select_times(requests: Sequence[ObservedRequest], name: str) -> Array:
    return np.array([getattr(one, name) for one in requests], dtype=float)


def make_equations(
    among: Sequence[ReplayGroup],
    free_tokens: float,
    drawn: Sequence[Array] | None = None,
    terms: Terms = USUAL,
) -> Rows:
    """``drawn``: for each group how often each of its requests counts; None: once."""
    columns, seconds, errors = [], [], []
    of_steps = np.ones(STEP_COSTS)
    of_steps[OWN_PAIRS] = terms.own_pairs
    for number, group in enumerate(among):
        times_drawn = np.ones(len(group.ttft_s)) if drawn is None else drawn[number]
        shares = group.shares * times_drawn
        total = shares.sum(axis=1)
        shares = shares[total > 0]
        total = total[total > 0]
        shares = shares / total[:, None]
        single = len(group.shares) > 1  # an equation a request: drawn twice, it counts twice
        for part, took, begins in zip(
            group.replay.parts(free_tokens), (group.ttft_s, group.decode_s), (1.0, 0.0), strict=True
        ):
            mean_s = shares @ took
            front = begins * np.column_stack(
                [np.ones(len(shares)), terms.reading * (shares @ group.prompt_tokens)]
            )
            columns.append(np.column_stack([(shares @ part) * of_steps, front]))
            seconds.append(mean_s)
            error = np.maximum(group.share * mean_s, 1e-6) + group.least_s
            errors.append(error / np.sqrt(total) if single else error)
    return Rows(np.vstack(columns), np.concatenate(seconds), np.concatenate(errors))


class Solved(NamedTuple):
    cost: StepCosts
    front: FrontendDelay
    residuals: Array
    """Of each equation, in its errors."""

    @property
    def loss(self) -> float:
        size = np.abs(self.residuals)
        far = MAX_RESIDUAL * (size - MAX_RESIDUAL / 2)
        return float(np.where(size < MAX_RESIDUAL, size**2 / 2, far).mean())


def solve_costs(
    among: Sequence[ReplayGroup], free_tokens: Sequence[float] = FREE_TOKENS, terms: Terms = USUAL
) -> Solved:
    """The costs that explain what was measured best."""

    def solved(free: float) -> Solved:
        return solve_rows(make_equations(among, free, terms=terms), free)

    best = min(map(solved, free_tokens), key=lambda one: one.loss)
    tried = sorted(free_tokens)
    for _ in range(HALVINGS if len(tried) > 1 else 0):
        at = tried.index(best.cost.free_tokens)
        around = {
            (best.cost.free_tokens + tried[i]) / 2
            for i in (max(0, at - 1), min(len(tried) - 1, at + 1))
        }
        around -= set(tried)
        tried = sorted({*tried, *around})
        best = min([best, *map(solved, sorted(around))], key=lambda one: one.loss)
    return best


def solve_rows(given: Rows, free_tokens: float) -> Solved:
    columns = given.columns / given.errors[:, None]
    target = given.seconds / given.errors
    known = np.array([bool(np.isfinite(row).all()) for row in columns])
    columns = np.where(known[:, None], columns, 0.0)
    weights = known.astype(float)
    found = least_squares(columns * weights[:, None], target * weights)
    for _ in range(2 if known.any() else 0):
        off = np.abs(columns @ found - target)
        usual = max(1.0, float(np.median(off[known])) * 1.4826)
        weights = known * np.sqrt(np.minimum(1.0, MAX_RESIDUAL * usual / np.maximum(off, 1e-9)))
        found = least_squares(columns * weights[:, None], target * weights)
    residuals = _residuals(given, found)
    fixed, token, stream, context, pair, own_pair, admission, request, reading = map(float, found)
    return Solved(
        StepCosts(
            fixed_s=fixed,
            token_s=token,
            stream_s=stream,
            context_s=context,
            pair_s=pair,
            own_pair_s=own_pair,
            free_tokens=free_tokens,
            admission_s=admission,
        ),
        FrontendDelay(request_s=request, token_s=reading),
        residuals,
    )


class Fitted(NamedTuple):
    model: ServerModel
    solved: Solved
    groups: list[ReplayGroup]
    terms: Terms


def fit_cost(
    model: ServerModel, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage] = (), *,
    free_tokens: Sequence[float] = FREE_TOKENS, terms: Terms = USUAL,
) -> Fitted:  # fmt: skip
    """``model``: its settings and noise hold, its costs are where to begin. Of all turns the one
    whose own replay is nearest to what was measured counts; where a turn leads away, the next one
    goes half as far."""
    best, best_loss, towards = model, math.inf, model
    for _ in range(TURNS):
        among = group_replays(model, episodes, stages)
        loss = _own(model, among).loss
        if loss < best_loss:
            solved = solve_costs(among, free_tokens, terms)
            change = abs(math.log(_typical(solved.cost) / _typical(model.cost)))
            best, best_loss, best_groups = model, loss, among
            towards = msgspec.structs.replace(model, cost=solved.cost, front=solved.front)
            model = towards
        else:
            change = abs(math.log(_typical(model.cost) / _typical(best.cost)))
            towards = model = _between(best, towards)
        if change < ENOUGH:
            best = towards  # the replay of it would be the same
            break
    return Fitted(best, _own(best, best_groups), best_groups, terms)


def _own(model: ServerModel, among: Sequence[ReplayGroup]) -> Solved:
    """What a model says of its own replay."""
    cost, front = model.cost, model.front
    given = make_equations(among, cost.free_tokens, terms=Terms(own_pairs=True))
    of_step = (
        cost.fixed_s,
        cost.token_s,
        cost.stream_s,
        cost.context_s,
        cost.pair_s,
        cost.own_pair_s,
        cost.admission_s,
    )
    factors = (*of_step, front.request_s, front.token_s)
    return Solved(cost, front, _residuals(given, np.array(factors)))


def _residuals(given: Rows, factors: Array) -> Array:
    """In the errors of each row; far off where nothing was replayed."""
    known = np.array([bool(np.isfinite(row).all()) for row in given.columns])
    off = np.where(known[:, None], given.columns, 0.0) @ factors - given.seconds
    return np.asarray(np.where(known, off / given.errors, 4 * MAX_RESIDUAL))


def _between(one: ServerModel, other: ServerModel) -> ServerModel:
    cost = {
        name: (getattr(one.cost, name) + getattr(other.cost, name)) / 2
        for name in one.cost.__struct_fields__
    }
    front = {
        name: (getattr(one.front, name) + getattr(other.front, name)) / 2
        for name in one.front.__struct_fields__
    }
    return msgspec.structs.replace(one, cost=StepCosts(**cost), front=FrontendDelay(**front))


def _typical(cost: StepCosts) -> float:
    """Of a step with a thousand tokens of a prompt and sixteen streams."""
    return max(
        cost.fixed_s + cost.token_s * max(0.0, 1000 - cost.free_tokens) + 16 * cost.stream_s, 1e-9
    )


def draw_costs(fitted: Fitted, count: int, seed: int) -> Iterator[Solved]:
    """The fit again, each time on requests that were drawn with replacement, in the blocks that
    belong together; what they were made of stays (the bootstrap of Efron & Tibshirani, 1993, ch. 9,
    by cases)."""
    random = np.random.default_rng(seed)
    free = fitted.model.cost.free_tokens
    near = sorted({0.0, free / 2, 0.75 * free, free, 1.25 * free, 1.5 * free + 16})
    for _ in range(count):
        drawn = [_drawn(group, random) for group in fitted.groups]
        every = (
            solve_rows(make_equations(fitted.groups, one, drawn, fitted.terms), one) for one in near
        )
        yield min(every, key=lambda one: one.loss)


def _drawn(group: ReplayGroup, random: np.random.Generator) -> Array:
    times_drawn = np.zeros(len(group.ttft_s))
    for number in random.integers(len(group.blocks), size=len(group.blocks)):
        times_drawn[group.blocks[number]] += 1
    return times_drawn
