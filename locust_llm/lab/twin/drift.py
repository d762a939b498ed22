"""Drift: whether a server is still the one of its twin, and which change explains what moved.

A change is another model of the server.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from locust_llm.lab.twin.folders import Folder
from locust_llm.lab.twin.model import Origin, Reference, ServerModel, Twin
from locust_llm.lab.twin.observations import ObservedStage
from locust_llm.lab.twin.replay import resend_stage
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.slo.intervals import NORMAL_REACH
from locust_llm.text.format import format_count

MORE: Final = 1.1
"""Costs are moved by this factor; how far they did move is measured in it."""
FRONT_S: Final = 0.02
SIGMA: Final = 0.1
SLOWED: Final = 1.3
BURST_S: Final = 0.7
"""Mean time for which another program slows the server; twice that is between two such times."""


class ServerChange(NamedTuple):
    """One that may have happened."""

    name: str
    """Of the parameter, by the twin's names."""
    words: str
    model: ServerModel
    slowed: float = 1.0
    both_ways: bool = True
    """The opposite of it is looked for with it: costs fall as well as rise."""
    size: float = 0.0
    """By what share it moved here, where it is linear; 0: it is a step from one value to
    another."""


class Bursts:
    """The factor by which steps take longer now: a burst a third of the time."""

    def __init__(self, factor: float, clock: VirtualClock, random: Random) -> None:
        self.factor, self.clock, self.random = factor, clock, random
        self.slow, self.until = False, 0.0

    def __call__(self) -> float:
        while self.factor != 1.0 and self.clock.now >= self.until:
            self.slow = not self.slow
            self.until += self.random.expovariate(1 / (BURST_S if self.slow else 2 * BURST_S))
        return self.factor if self.slow else 1.0


def possible_changes(model: ServerModel, users: int) -> list[ServerChange]:
    """``users``: the most that are sent; no limit above them would show."""
    return [*_costs(model), *_limits(model, users), *_noise(model)]


def _costs(model: ServerModel) -> Iterator[ServerChange]:
    cost, front = model.cost, model.front

    def scaled(*names: str) -> ServerModel:
        more: dict[str, Any] = {name: getattr(cost, name) * MORE for name in names}
        return msgspec.structs.replace(model, cost=msgspec.structs.replace(cost, **more))

    share = MORE - 1
    every = (name for name in cost.__struct_fields__ if name != "free_tokens")
    yield ServerChange("step", "every step", scaled(*every), size=share)
    yield ServerChange("fixed", "the fixed cost of a step", scaled("fixed_s"), size=share)
    yield ServerChange("token", "the cost of a prompt's token", scaled("token_s"), size=share)
    if cost.stream_s:
        yield ServerChange("stream", "the cost of a stream", scaled("stream_s"), size=share)
    if any((cost.context_s, cost.pair_s, cost.own_pair_s)):
        yield ServerChange(
            "attention",
            "the cost of attention",
            scaled("context_s", "pair_s", "own_pair_s"),
            size=share,
        )
    later = msgspec.structs.replace(front, request_s=front.request_s + FRONT_S)
    both = front.request_s > FRONT_S  # else there is nothing to become less
    yield ServerChange(
        "front",
        "the time before the scheduler",
        msgspec.structs.replace(model, front=later),
        both_ways=both,
    )


def _limits(model: ServerModel, users: int) -> Iterator[ServerChange]:
    settings = model.settings

    def other(**more: int) -> ServerModel:
        return model.with_settings(msgspec.structs.replace(settings, **more))

    budget, threshold = settings.max_num_batched_tokens, settings.long_prefill_token_threshold
    for factor, words in ((0.25, "a quarter"), (0.5, "half"), (2.0, "twice"), (4.0, "four times")):
        if budget * factor >= 16:
            more = {"max_num_batched_tokens": int(budget * factor)}
            if threshold:
                more["long_prefill_token_threshold"] = int(threshold * factor)
            yield ServerChange(
                "budget", f"the tokens of a step, about {words}", other(**more), both_ways=False
            )
    seqs = settings.max_num_seqs
    for most, words in (
        (users // 4, "a quarter of the users"), (users // 2, "half of the users"),
    ) if seqs is None else ((seqs // 2, "about half"), (seqs * 2, "about twice")):  # fmt: skip
        if most >= 1 and (seqs is None or most < users or seqs < users):
            yield ServerChange(
                "max_num_seqs",
                f"the requests at a time, {words}",
                other(max_num_seqs=most),
                both_ways=False,
            )
    if settings.kv_tokens is not None:
        yield ServerChange(
            "kv_tokens",
            "the tokens in the KV cache, about half",
            other(kv_tokens=settings.kv_tokens // 2),
            both_ways=False,
        )


def _noise(model: ServerModel) -> Iterator[ServerChange]:
    noise = msgspec.structs.replace(model.noise, step_sigma=model.noise.step_sigma + SIGMA)
    yield ServerChange(
        "noise", "the noise of steps", msgspec.structs.replace(model, noise=noise), both_ways=False
    )
    yield ServerChange(
        "neighbour",
        "steps are slower in bursts, as beside a noisy neighbour",
        model,
        slowed=SLOWED,
        both_ways=False,
    )
    held = msgspec.structs.replace(
        model.noise, chunk_s=2 * model.noise.chunk_s + 0.1 * model.cost.fixed_s
    )
    yield ServerChange(
        "noise",
        "the lateness of chunks",
        msgspec.structs.replace(model, noise=held),
        both_ways=False,
    )


# -- load features ---------------------------------------------------------------------------------
# Some figures of a load, as logarithms, that move where a parameter of the server moves.

Array = NDArray[np.float64]
TRAITS: Final = (
    "gap p20", "gap mean", "gap p99", "gap spread", "stall", "ttft short", "ttft long", "running",
    "throughput",
)  # fmt: skip
"""Of the gaps between two chunks: steps that only decode, all, and steps full of prompts; ``gap
spread``: from their 10th percentile to the 40th, as a share of the 20th; ``stall``: the longest of
each request, on average. ``ttft short`` and ``ttft long``: the mean over the requests with prompts
up to the median, and above it. ``running``: sequences that decode, on average. Percentiles between
these jump where steps with and without prompts are about as frequent."""
LEAST_SIGMA: Final = 0.02
"""Of the steps of a replay: without any noise its order of steps would be one of many that are as
likely."""
LEAST_SPREAD: Final = 0.05
LEAST_S: Final = 1e-5
"""Below these, differences mean nothing."""


def measure_traits(stage: ObservedStage) -> Array:
    """In the order of TRAITS."""
    requests = stage.requests
    gaps = np.concatenate([np.diff(one.token_at) for one in requests])
    gaps = np.maximum(gaps if gaps.size else [0.0], LEAST_S)
    ttft_s = np.maximum(np.array([one.ttft_s for one in requests]), LEAST_S)
    prompts = np.array([one.prompt_tokens for one in requests])
    long = prompts > np.median(prompts)
    # not the end of the last in the list: of those sent at one moment any may be the last
    span_s = max(max(one.token_at[-1] for one in requests) - requests[0].sent_at, LEAST_S)
    low, usual, high, most = np.percentile(gaps, (10, 20, 40, 99))
    values = [
        np.log(usual),
        np.log(gaps.mean()),
        np.log(most),
        np.log((high - low) / usual + LEAST_SPREAD),
        np.log(np.maximum([one.stall_s for one in requests], LEAST_S)).mean(),
        np.log(ttft_s[~long]).mean(),
        np.log(ttft_s[long]).mean() if long.any() else 0.0,
        np.log(sum(one.decode_s for one in requests) / span_s + LEAST_S),
        np.log(sum(one.output_tokens for one in requests) / span_s),
    ]
    return np.array(values)


def measure_all_traits(stages: Sequence[ObservedStage]) -> Array:
    """Of one after the other."""
    return np.concatenate([measure_traits(stage) for stage in stages])


def replay_change(change: ServerChange, stage: ObservedStage, seed: int) -> ObservedStage:
    """The same requests once more, with the noise of the changed model."""
    noise = change.model.noise
    least = msgspec.structs.replace(noise, step_sigma=max(noise.step_sigma, LEAST_SIGMA))
    model = msgspec.structs.replace(change.model, noise=least)
    return resend_stage(
        model, stage, seed, lambda clock: Bursts(change.slowed, clock, Random(seed))
    )


# -- check -----------------------------------------------------------------------------------------
# How far the traits of some loads are from what the twin's server had, and which change explains
# it. Both are held against a replay of the same requests on the twin, with its noise: the twin's
# own error is in both, and cancels, as far as it does not hang on the requests; by how much it does
# is in the covariance. What is left is compared with what replays of an unchanged server scatter
# by. Each change gives a direction in which the traits would move; the shift along it, by
# generalised least squares, is divided by its standard error (the matched filter). The largest of
# these decides, against the bound of a normal distribution for all of them together (Bonferroni),
# or what replays of an unchanged server themselves reach, whichever is larger.

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
MOVES_OTHERWISE: Final = {"throughput": -1.0, "gap spread": 0.0, "running": 0.0}
TIMES: Final = tuple(MOVES_OTHERWISE.get(name, 1.0) for name in TRAITS)
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


def measure_reference(
    model: ServerModel, stages: Sequence[ObservedStage], replays: int = REPLAYS_OF_REFERENCE
) -> tuple[Reference, ...]:
    """Of the closed loops among these stages."""
    found = list[Reference]()
    still = ServerChange("", "", model)
    for stage in stages:
        if stage.users:
            drawn = [replay_change(still, stage, SEED - 1 - i) for i in range(replays)]
            said = np.array([measure_traits(one) for one in drawn])
            off = measure_traits(stage) - said.mean(axis=0)
            error = np.maximum(said.std(axis=0, ddof=1), error_by_requests(stage, drawn))
            found += [
                Reference(users=stage.users, figure=name, off=float(off[i]), error=float(error[i]))
                for i, name in enumerate(TRAITS)
            ]
    return tuple(found)


def error_by_requests(stage: ObservedStage, drawn: Sequence[ObservedStage]) -> Array:
    """Standard error of what a twin is off by, from block to block of the requests (batch
    means)."""
    said = np.mean([_traits_of_blocks(replay) for replay in drawn], axis=0)
    off = _traits_of_blocks(stage) - said
    spread: Array = off.std(axis=0, ddof=min(1, len(off) - 1))
    return spread / math.sqrt(len(off))


def _traits_of_blocks(stage: ObservedStage) -> Array:
    return np.array([measure_traits(block) for block in _blocks(stage)])


def _blocks(stage: ObservedStage) -> list[ObservedStage]:
    """Requests that were sent one after the other."""
    number = min(BLOCKS, len(stage.requests))
    ends = [len(stage.requests) * i // number for i in range(number + 1)]
    return [stage._replace(requests=stage.requests[begin:end]) for begin, end in pairwise(ends)]


def choose_reference_loads(twin: Twin) -> list[int]:
    """Users of three loads of the reference: the least, the middle one and the most. Raises
    ValueError."""
    users = sorted({one.users for one in twin.reference})
    if not users:
        raise ValueError(
            "this twin has no load with a number of users to hold a server against: fit it again"
        )
    return sorted({users[0], users[len(users) // 2], users[-1]})


class UnchangedServer(NamedTuple):
    """Of an unchanged server at some loads: the mean of its traits, their covariance, and what each
    change does to them."""

    mean: Array
    covariance: Array
    moves: tuple[tuple[ServerChange, Array], ...]
    bound: float


def simulate_unchanged_server(
    twin: Twin, stages: Sequence[ObservedStage], replays: int = REPLAYS
) -> UnchangedServer:
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
    between = np.tile([error_variance(twin.reference, name) for name in TRAITS], len(stages))
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
    unbounded = UnchangedServer(mean + still, covariance, tuple(found), 0.0)
    reached = [abs_most(unbounded, one - mean) for one in drawn]
    bound = max(
        bonferroni_bound([change for change, _ in found]),
        float(np.quantile(reached, 1 - FALSE_ALARM)),
    )
    return unbounded._replace(bound=bound)


def bonferroni_bound(looked_for: Sequence[ServerChange]) -> float:
    """Of a normal deviate: each change is a test, or two where its opposite is looked for, and the
    rest is one."""
    tests = 1 + sum(2 if change.both_ways else 1 for change in looked_for)
    return NormalDist().inv_cdf(1 - FALSE_ALARM / tests)


def _own(stage: ObservedStage) -> Array:
    return np.array(
        [OWN_SPREAD[stage.users > 1] if name == "gap spread" else OWN for name in TRAITS]
    )


def error_variance(reference: Sequence[Reference], figure: str) -> float:
    """By how much the twin's own error differs from load to load, a variance of logarithms: the
    mean square from a load of the sweep to the next, over the whole sweep, as the two loads beside
    one can agree by chance. An estimate from n differences is uncertain itself, so it is n / (n -
    2) times as much: the variance of Student's t."""
    ordered = sorted((one for one in reference if one.figure == figure), key=lambda one: one.users)
    squares = [(later.off - sooner.off) ** 2 for sooner, later in pairwise(ordered)]
    return sum(squares) / max(1, len(squares) - 2)


def _traits(change: ServerChange, stages: Sequence[ObservedStage], seed: int) -> Array:
    return measure_all_traits(
        [replay_change(change, stage, seed + 1000 * i) for i, stage in enumerate(stages)]
    )


def abs_most(known: UnchangedServer, off: Array) -> float:
    return max(
        [unexplained_deviate(known, off), *(_size(one) for one in measure_shifts(known, off))]
    )


def _size(shift: Shift) -> float:
    return abs(shift.z) if shift.change.both_ways else shift.z


def measure_shifts(known: UnchangedServer, off: Array) -> list[Shift]:
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


def unexplained_deviate(known: UnchangedServer, off: Array, explained: float = 0.0) -> float:
    """What the traits are off by as a whole, of which a shift explains so much (squared), as a
    normal deviate (Wilson & Hilferty, 1931)."""
    freedom = len(off) - (explained > 0)
    square = max(0.0, float(off @ np.linalg.solve(known.covariance, off)) - explained)
    wide = 2 / (9 * freedom)
    return float((math.cbrt(square / freedom) - 1 + wide) / math.sqrt(wide))


def check_drift(known: UnchangedServer, stages: Sequence[ObservedStage]) -> Drift:
    off = measure_all_traits(stages) - known.mean
    ordered = measure_shifts(known, off)
    largest = max(_size(ordered[0]), unexplained_deviate(known, off))
    drifted = largest > known.bound
    best = _size(ordered[0])
    named = [one for one in ordered if _size(one) > 0 and best**2 - _size(one) ** 2 < ALIKE]
    if not drifted or best <= known.bound:
        named = []
    return Drift(drifted, largest, known.bound, tuple(ordered), tuple(named))


# -- drift report ----------------------------------------------------------------------------------
# What a check came to, for the console.

MOST_ROWS: Final = 8
"""Of the table: the traits that are furthest off."""


def describe_other_server(origin: Origin, folder: Folder) -> list[str]:
    """In what the server that answered differs by name from the one that was fitted, a sentence
    each."""
    run = folder.run
    return [
        f"another {what}: {there or 'none'}, and the twin is of {here or 'none'}"
        for what, here, there in (
            ("model", origin.model, run.model),
            ("server", origin.server, run.server),
        )
        if here != there
    ]


def format_drift_lines(
    found: Drift, known: UnchangedServer, stages: Sequence[ObservedStage], names: Sequence[str]
) -> Iterator[str]:
    """``names``: of ``describe_other_server``."""
    yield from (f"{name[0].upper()}{name[1:]}." for name in names)
    sure = f"false alarms: {FALSE_ALARM:.0%} of all checks"
    if not found.drifted:
        yield (
            f"The same server, as far as a minute tells: off by {max(0.0, found.largest):.1f} "
            f"standard errors at most, "
            f"and above {found.bound:.1f} it would have drifted ({sure})."
        )
        return
    yield (
        f"DRIFTED: off by {found.largest:.1f} standard errors, and {found.bound:.1f} is the "
        f"bound ({sure})."
    )
    if found.named:
        yield f"What moved: {format_shift(found.named[0])}."
        yield from (f"It may as well be: {format_shift(one)}." for one in found.named[1:])
    else:
        yield "What moved is none of the twin's parameters."
    yield ""
    yield format_trait_table(known, stages)


def format_shift(shift: Shift) -> str:
    """With its size where it has one: ``every step, +9.8% (+7.1% to +12.6%)``."""
    change = shift.change
    ends = [shift.times + wide * shift.error for wide in (0.0, -NORMAL_REACH, NORMAL_REACH)]
    if change.size:
        about, low, high = [f"{math.expm1(end * math.log(MORE)):+.1%}" for end in ends]
        return f"{change.words}, {about} ({low} to {high})"
    if change.name == "front":
        about, low, high = (f"{end * FRONT_S * 1e3:+.1f}" for end in ends)
        return f"{change.words}, {about} ms ({low} to {high})"
    return change.words


def format_trait_table(known: UnchangedServer, stages: Sequence[ObservedStage]) -> str:
    """The traits that are furthest off, in standard errors."""
    off = measure_all_traits(stages) - known.mean
    errors = np.sqrt(np.diag(known.covariance))
    labels = [(format_count(stage.users, "user"), name) for stage in stages for name in TRAITS]
    worst = sorted(range(len(off)), key=lambda i: -abs(off[i] / errors[i]))[:MOST_ROWS]
    rows = [
        [*labels[i], f"{math.expm1(off[i]):+.1%}", f"{off[i] / errors[i]:+.1f}"]
        for i in sorted(worst)
    ]
    return tabulate(
        rows, headers=["load", "figure", "off", "standard errors"], disable_numparse=True,
        colalign=("left", "left", "right", "right"),
    )  # fmt: skip
