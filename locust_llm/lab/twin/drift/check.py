"""Check: how far the traits of some loads are from what the twin's server had, and which change
explains it.

Both are held against a replay of the same requests on the twin, with its noise: the twin's own
error is in both, and cancels, as far as it does not hang on the requests; by how much it does is in
the covariance. What is left is compared with what replays of an unchanged server scatter by. Each
change gives a direction in which the traits would move; the shift along it, by generalised least
squares, is divided by its standard error (the matched filter). The largest of these decides,
against the bound of a normal distribution for all of them together (Bonferroni), or what replays of
an unchanged server themselves reach, whichever is larger.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from locust_llm.lab.twin.model import Reference, ServerModel, Twin
from locust_llm.lab.twin.observations import ObservedStage

from .changes import ServerChange, possible_changes
from .load_features import TRAITS, Array, replayed, traits, traits_of

FALSE_ALARM: Final = 0.01
"""Of a whole check."""
REPLAYS: Final = 200
"""Of an unchanged server."""
REPLAYS_OF_CHANGE: Final = 12
REPLAYS_OF_REFERENCE: Final = 40
BLOCKS: Final = 8
"""Of the requests of a load: from these to the whole an error is taken to shrink as that of a
mean."""
SHARED: Final = 0.015
OWN: Final = 0.01
OWN_SPREAD: Final = (0.1, 0.3)
"""Standard deviation of what servers, and the machine that measures, vary by anyway, as a share: of
all times together, of each trait by itself, and of the spread of gaps of one user and of more,
where it is of what steps are made of, too."""
ALIKE: Final = 4.0
"""A change whose filter squared is so close to the largest explains it as well: a likelihood ratio
of e^2."""
SEED: Final = 30_000
TIMES: Final = tuple(
    -1.0 if name == "throughput" else 0.0 if name in ("gap spread", "running") else 1.0
    for name in TRAITS
)
"""What a trait does where every time grows."""


class Shift(NamedTuple):
    change: ServerChange
    z: float
    """In standard errors; above 0 in the direction of the change."""
    times: float
    """As many times the change."""
    error: float


class Drift(NamedTuple):
    """Of one check."""

    drifted: bool
    largest: float
    """Of the shifts and of the rest, in standard errors,"""
    bound: float
    """and above what it is drift, at FALSE_ALARM."""
    shifts: tuple[Shift, ...]
    """The largest first."""
    named: tuple[Shift, ...]
    """What explains it: the largest shift, and those that explain it as well. Empty: none does, or
    there is no drift."""


def reference(
    model: ServerModel, stages: Sequence[ObservedStage], replays: int = REPLAYS_OF_REFERENCE
) -> tuple[Reference, ...]:
    """Of the closed loops among these stages."""
    found = list[Reference]()
    still = ServerChange("", "", model)
    for stage in stages:
        if stage.users:
            drawn = [replayed(still, stage, SEED - 1 - i) for i in range(replays)]
            said = np.array([traits(one) for one in drawn])
            off = traits(stage) - said.mean(axis=0)
            error = np.maximum(said.std(axis=0, ddof=1), by_requests(stage, drawn))
            found += [
                Reference(users=stage.users, figure=name, off=float(off[i]), error=float(error[i]))
                for i, name in enumerate(TRAITS)
            ]
    return tuple(found)


def by_requests(stage: ObservedStage, drawn: Sequence[ObservedStage]) -> Array:
    """Standard error of what a twin is off by, from block to block of the requests (batch
    means)."""
    said = np.mean([[traits(one) for one in _blocks(again)] for again in drawn], axis=0)
    off = np.array([traits(one) for one in _blocks(stage)]) - said
    spread: Array = off.std(axis=0, ddof=min(1, len(off) - 1))
    return spread / math.sqrt(len(off))


def _blocks(stage: ObservedStage) -> list[ObservedStage]:
    """Requests that were sent one after the other."""
    number = min(BLOCKS, len(stage.requests))
    ends = [len(stage.requests) * i // number for i in range(number + 1)]
    return [stage._replace(requests=stage.requests[begin:end]) for begin, end in pairwise(ends)]


def loads_of(twin: Twin) -> list[int]:
    """Users of three loads of the reference: the least, the middle one and the most. Raises
    ValueError."""
    users = sorted({one.users for one in twin.reference})
    if not users:
        raise ValueError(
            "this twin has no load with a number of users to hold a server against: fit it again"
        )
    return sorted({users[0], users[len(users) // 2], users[-1]})


class Null(NamedTuple):
    """Of an unchanged server at some loads: the mean of its traits, their covariance, and what each
    change does to them."""

    mean: Array
    covariance: Array
    moves: tuple[tuple[ServerChange, Array], ...]
    bound: float


def null(twin: Twin, stages: Sequence[ObservedStage], replays: int = REPLAYS) -> Null:
    """``stages``: with the users of the reference; of their requests only the lengths and the first
    sends count."""
    model = twin.model
    by_name = {(one.users, one.figure): one for one in twin.reference}
    known = [by_name[stage.users, name] for stage in stages for name in TRAITS]
    drawn = np.array(
        [_traits(ServerChange("", "", model), stages, SEED + i) for i in range(replays)]
    )
    still = np.array([one.off for one in known])
    error = np.array([one.error for one in known])
    shared = np.tile(TIMES, len(stages))
    between = np.tile([varies(twin.reference, name) for name in TRAITS], len(stages))
    own = 2 * error**2  # of the requests of the sweep, and of those of the minute
    own += between + np.concatenate([_own(stage) for stage in stages]) ** 2
    covariance = np.cov(drawn, rowvar=False) + np.diag(own) + SHARED**2 * np.outer(shared, shared)
    mean = drawn.mean(axis=0)
    found = list[tuple[ServerChange, Array]]()
    for change in possible_changes(model, max(stage.users for stage in stages)):
        some = [
            _traits(change, stages, SEED + i) - drawn[i]
            for i in range(min(replays, REPLAYS_OF_CHANGE))
        ]
        found.append((change, np.mean(some, axis=0)))
    unbounded = Null(mean + still, covariance, tuple(found), 0.0)
    reached = [abs_most(unbounded, one - mean) for one in drawn]
    bound = max(
        bonferroni([change for change, _ in found]), float(np.quantile(reached, 1 - FALSE_ALARM))
    )
    return unbounded._replace(bound=bound)


def bonferroni(looked_for: Sequence[ServerChange]) -> float:
    """Of a normal deviate: each change is a test, or two where its opposite is looked for, and the
    rest is one."""
    tests = 1 + sum(2 if change.both_ways else 1 for change in looked_for)
    return NormalDist().inv_cdf(1 - FALSE_ALARM / tests)


def _own(stage: ObservedStage) -> Array:
    return np.array(
        [OWN_SPREAD[stage.users > 1] if name == "gap spread" else OWN for name in TRAITS]
    )


def varies(reference: Sequence[Reference], figure: str) -> float:
    """By how much the twin's own error differs from load to load, a variance of logarithms: the
    mean square from a load of the sweep to the next, over the whole sweep, as the two loads beside
    one can agree by chance. An estimate from n differences is uncertain itself, so it is n / (n -
    2) times as much: the variance of Student's t."""
    ordered = sorted((one for one in reference if one.figure == figure), key=lambda one: one.users)
    squares = [(later.off - sooner.off) ** 2 for sooner, later in pairwise(ordered)]
    return sum(squares) / max(1, len(squares) - 2)


def _traits(change: ServerChange, stages: Sequence[ObservedStage], seed: int) -> Array:
    return traits_of([replayed(change, stage, seed + 1000 * i) for i, stage in enumerate(stages)])


def abs_most(known: Null, off: Array) -> float:
    return max([rest(known, off), *(_size(one) for one in shifts(known, off))])


def _size(shift: Shift) -> float:
    return abs(shift.z) if shift.change.both_ways else shift.z


def shifts(known: Null, off: Array) -> list[Shift]:
    """Of each change, the largest first."""
    found = list[Shift]()
    for change, move in known.moves:
        weighted = np.linalg.solve(known.covariance, move)
        length = float(move @ weighted)
        if length > 1e-9:
            found.append(
                Shift(
                    change,
                    float(off @ weighted) / math.sqrt(length),
                    float(off @ weighted) / length,
                    length**-0.5,
                )
            )
    return sorted(found, key=_size, reverse=True)


def rest(known: Null, off: Array, explained: float = 0.0) -> float:
    """What the traits are off by as a whole, of which a shift explains so much (squared), as a
    normal deviate (Wilson & Hilferty, 1931)."""
    freedom = len(off) - (explained > 0)
    square = max(0.0, float(off @ np.linalg.solve(known.covariance, off)) - explained)
    wide = 2 / (9 * freedom)
    return float((math.cbrt(square / freedom) - 1 + wide) / math.sqrt(wide))


def check_drift(known: Null, stages: Sequence[ObservedStage]) -> Drift:
    off = traits_of(stages) - known.mean
    ordered = shifts(known, off)
    largest = max(_size(ordered[0]), rest(known, off))
    drifted = largest > known.bound
    best = _size(ordered[0])
    named = [one for one in ordered if _size(one) > 0 and best**2 - _size(one) ** 2 < ALIKE]
    if not drifted or best <= known.bound:
        named = []
    return Drift(drifted, largest, known.bound, tuple(ordered), tuple(named))
