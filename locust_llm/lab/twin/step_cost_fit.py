"""Step cost fit: finds the seconds of a step by least squares with factors of at least 0.

The least squares are exact: the best subset of the columns with positive factors wins.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.lab.twin.server_observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.lab.twin.twin_model import FrontendDelay, ServerModel, StepCosts
from locust_llm.lab.twin.virtual_replay import Replay, as_replayed, replay_episodes, replay_stage

Array = NDArray[np.float64]
NEVER = 1e-12
"""Two columns are equal if less than this share of a column's square is independent."""
NOTHING = 1e-12
"""Two solutions are equal if their explained squares differ by less than this share of the target's
square."""


def least_squares(columns: Array, target: Array) -> Array:
    """Returns the x >= 0 with the least |columns x - target|. ``columns`` has up to about ten
    columns, and a column of zeros gets 0. The minimum of a convex problem is the ordinary solution
    on the columns where it is above 0 (Lawson & Hanson, Solving Least Squares Problems, 1974, ch.
    23), so trying each subset finds it. Of equal solutions, as with fewer rows than columns, the
    one with the fewest and the first columns wins."""
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
        independent = np.linalg.cond(inner) <= 1 / NEVER
        subsets = subsets[independent]
        inner = inner[independent]
        found = np.linalg.solve(inner, right[subsets][:, :, None])[:, :, 0]
        # the square error is lower than for 0 by this value
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
# The least squares find the seconds of a step from the work that a replay assigns to each measured
# time. A replay needs costs, and costs need a replay: both alternate until they agree.

Indices = NDArray[np.int_]
TURNS: Final = 8
ENOUGH: Final = 0.002
"""The turns end when the time of a step changes by at most this share."""
REQUEST_SHARE: Final = 0.03
"""Times of one request have this relative error."""
REQUEST_S: Final = 0.0003
"""Times of one request have this error in seconds besides."""
STAGE_SHARE: Final = 0.01
"""The mean over a stage has this relative error."""
MAX_RESIDUAL: Final = 2.5
"""Residuals beyond this many usual errors count less (Huber)."""
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
"""The fit tries these values, then values between the best and its neighbours."""
HALVINGS: Final = 4
STEP_COSTS: Final = 7
"""``Replay.parts`` has this many columns."""
OWN_PAIRS: Final = 5
"""This column of ``Replay.parts`` has the own pairs."""
MOST_EACH: Final = 500
"""At most this many requests of the load of one user have their own equations."""
BLOCK: Final = 10
"""This many neighbouring requests of a stage are drawn together, as they share steps."""


class ReplayGroup(NamedTuple):
    """Holds requests that were replayed together, and their equations."""

    replay: Replay
    ttft_s: Array
    decode_s: Array
    prompt_tokens: Array
    shares: Array
    """Each equation has the shares of its requests: (equations, requests)."""
    share: float
    """An equation has this relative error, plus ``least_s`` in seconds."""
    least_s: float
    blocks: tuple[Indices, ...]
    """Each block has the indices of requests that are drawn together."""


class Terms(NamedTuple):
    """Selects optional costs. Unselected ones are 0."""

    reading: bool = True
    """The front may take time per prompt token."""
    own_pairs: bool = False
    """Own pairs may take more time: ``StepCosts.own_pair_s``."""


USUAL: Final = Terms()


class Rows(NamedTuple):
    """Holds weighted equations: columns x (fixed, token, stream, context, pair, own pair,
    admission, request, prompt token) = seconds."""

    columns: Array
    seconds: Array
    errors: Array


def group_replays(
    model: ServerModel, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage]
) -> list[ReplayGroup]:
    """Replays the probe request by request, and each stage by its means, since single requests of a
    closed loop drift away from a replay."""
    noise = model.noise
    found = list[ReplayGroup]()
    requests = list(chain.from_iterable(episode.requests for episode in episodes))
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
        if stage.users == 1:  # a single user does not drift away
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
    prompts = np.array([float(request.prompt_tokens) for request in requests])
    ttft_s = select_times(requests, "ttft_s") / paused
    decode_s = select_times(requests, "decode_s") / paused
    return ReplayGroup(replay, ttft_s, decode_s, prompts, shares, share, least_s, blocks)


def select_times(requests: Sequence[ObservedRequest], name: str) -> Array:
    return np.array([getattr(request, name) for request in requests], dtype=float)


def make_equations(
    among: Sequence[ReplayGroup],
    free_tokens: float,
    drawn: Sequence[Array] | None = None,
    terms: Terms = USUAL,
) -> Rows:
    """``drawn`` has for each group how often each of its requests counts. None: once."""
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
        parts = group.replay.parts(free_tokens)
        measured_s = (group.ttft_s, group.decode_s)
        for part, times_s, begins in zip(parts, measured_s, (1.0, 0.0), strict=True):
            mean_s = shares @ times_s
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
    """Each equation has its residual in units of its error."""

    @property
    def loss(self) -> float:
        size = np.abs(self.residuals)
        far = MAX_RESIDUAL * (size - MAX_RESIDUAL / 2)
        return float(np.where(size < MAX_RESIDUAL, size**2 / 2, far).mean())


def solve_costs(
    among: Sequence[ReplayGroup], free_tokens: Sequence[float] = FREE_TOKENS, terms: Terms = USUAL
) -> Solved:
    """Returns the costs that explain the measurements best."""

    def solved(free: float) -> Solved:
        return solve_rows(make_equations(among, free, terms=terms), free)

    best = min(map(solved, free_tokens), key=lambda one: one.loss)
    tried = sorted(free_tokens)
    for _ in range(HALVINGS if len(tried) > 1 else 0):
        at = tried.index(best.cost.free_tokens)
        neighbours = (tried[max(0, at - 1)], tried[min(len(tried) - 1, at + 1)])
        around = {(best.cost.free_tokens + neighbour) / 2 for neighbour in neighbours}
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
        errors = np.abs(columns @ found - target)
        usual = max(1.0, float(np.median(errors[known])) * 1.4826)
        weights = known * np.sqrt(np.minimum(1.0, MAX_RESIDUAL * usual / np.maximum(errors, 1e-9)))
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
    """``model`` gives settings, noise and initial costs. The turn whose own replay is closest to
    the measurements wins. If a turn leads away, the next one goes half as far."""
    best = model
    best_loss = math.inf
    towards = model
    for _ in range(TURNS):
        among = group_replays(model, episodes, stages)
        loss = _evaluate(model, among).loss
        if loss < best_loss:
            solved = solve_costs(among, free_tokens, terms)
            change = abs(math.log(_typical_step_s(solved.cost) / _typical_step_s(model.cost)))
            best = model
            best_loss = loss
            best_groups = among
            towards = msgspec.structs.replace(model, cost=solved.cost, front=solved.front)
            model = towards
        else:
            change = abs(math.log(_typical_step_s(model.cost) / _typical_step_s(best.cost)))
            towards = model = _between(best, towards)
        if change < ENOUGH:
            best = towards  # its replay would be the same
            break
    return Fitted(best, _evaluate(best, best_groups), best_groups, terms)


def _evaluate(model: ServerModel, among: Sequence[ReplayGroup]) -> Solved:
    """Evaluates a model on its own replay."""
    cost = model.cost
    front = model.front
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
    """Returns the residuals in units of each row's error, and large ones for rows without a
    replay."""
    known = np.array([bool(np.isfinite(row).all()) for row in given.columns])
    errors_s = np.where(known[:, None], given.columns, 0.0) @ factors - given.seconds
    return np.asarray(np.where(known, errors_s / given.errors, 4 * MAX_RESIDUAL))


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


def _typical_step_s(cost: StepCosts) -> float:
    """Returns the time of a step with a thousand prompt tokens and sixteen streams."""
    return max(
        cost.fixed_s + cost.token_s * max(0.0, 1000 - cost.free_tokens) + 16 * cost.stream_s, 1e-9
    )


def draw_costs(fitted: Fitted, count: int, seed: int) -> Iterator[Solved]:
    """Fits again, each time to requests drawn with replacement in blocks. The replay stays the same
    (the bootstrap of Efron & Tibshirani, 1993, ch. 9, by cases)."""
    random = np.random.default_rng(seed)
    free = fitted.model.cost.free_tokens
    near = sorted({0.0, free / 2, 0.75 * free, free, 1.25 * free, 1.5 * free + 16})
    for _ in range(count):
        drawn = [_draw_requests(group, random) for group in fitted.groups]
        solutions = (
            solve_rows(make_equations(fitted.groups, tokens, drawn, fitted.terms), tokens)
            for tokens in near
        )
        yield min(solutions, key=lambda solution: solution.loss)


def _draw_requests(group: ReplayGroup, random: np.random.Generator) -> Array:
    times_drawn = np.zeros(len(group.ttft_s))
    for number in random.integers(len(group.blocks), size=len(group.blocks)):
        times_drawn[group.blocks[number]] += 1
    return times_drawn
