"""Twin drift: checks whether a server still matches its twin, and which change explains a
difference.

A change is another model of the server.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from random import Random
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from tabulate import tabulate

from locust_llm.lab.twin.measured_folders import Folder
from locust_llm.lab.twin.server_observations import ObservedStage
from locust_llm.lab.twin.twin_model import Origin, Reference, ServerModel, Twin
from locust_llm.lab.twin.virtual_replay import resend_stage
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.slo.binomial_intervals import NORMAL_REACH
from locust_llm.text.format import format_count, format_signed

MORE: Final = 1.1
"""Costs change by this factor, and shifts are measured in it."""
FRONT_S: Final = 0.02
SIGMA: Final = 0.1
SLOWED: Final = 1.3
BURST_S: Final = 0.7
"""Another program slows the server for this mean time, with pauses of twice the mean."""


class ServerChange(NamedTuple):
    """Describes a possible change of the server."""

    name: str
    """The parameter has this name in the twin."""
    words: str
    model: ServerModel
    slowed: float = 1.0
    both_ways: bool = True
    """The opposite change is possible too: costs fall as well as rise."""
    size: float = 0.0
    """The parameter moved by this share, if the change is linear. 0: it is a step between two
    values."""


class Bursts:
    """Returns the current factor of step times: a burst takes a third of the time."""

    def __init__(self, factor: float, clock: VirtualClock, random: Random) -> None:
        self.factor = factor
        self.clock = clock
        self.random = random
        self.slow = False
        self.until = 0.0

    def __call__(self) -> float:
        while self.factor != 1.0 and self.clock.now >= self.until:
            self.slow = not self.slow
            self.until += self.random.expovariate(1 / (BURST_S if self.slow else 2 * BURST_S))
        return self.factor if self.slow else 1.0


def possible_changes(model: ServerModel, users: int) -> list[ServerChange]:
    """Lists the changes. ``users`` is the largest load, and limits above it would not show."""
    return [*_costs(model), *_limits(model, users), *_noise(model)]


def _costs(model: ServerModel) -> Iterator[ServerChange]:
    cost = model.cost
    front = model.front

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
    both = front.request_s > FRONT_S  # else it cannot decrease
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

    budget = settings.max_num_batched_tokens
    threshold = settings.long_prefill_token_threshold
    for factor, words in ((0.25, "a quarter"), (0.5, "half"), (2.0, "twice"), (4.0, "four times")):
        if budget * factor >= 16:
            more = {"max_num_batched_tokens": int(budget * factor)}
            if threshold:
                more["long_prefill_token_threshold"] = int(threshold * factor)
            yield ServerChange(
                "budget", f"the tokens of a step, about {words}", other(**more), both_ways=False
            )
    seqs = settings.max_num_seqs
    if seqs is None:
        limits = ((users // 4, "a quarter of the users"), (users // 2, "half of the users"))
    else:
        limits = ((seqs // 2, "about half"), (seqs * 2, "about twice"))
    for most, words in limits:
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
        "steps are slower in bursts, as with a noisy neighbour",
        model,
        slowed=SLOWED,
        both_ways=False,
    )
    held = msgspec.structs.replace(
        model.noise, chunk_s=2 * model.noise.chunk_s + 0.1 * model.cost.fixed_s
    )
    yield ServerChange(
        "noise",
        "the delay of chunks",
        msgspec.structs.replace(model, noise=held),
        both_ways=False,
    )


# -- load features ---------------------------------------------------------------------------------
# Traits of a load are logarithms that move with a parameter of the server.

Array = NDArray[np.float64]
TRAITS: Final = (
    "gap p20", "gap mean", "gap p99", "gap spread", "stall", "ttft short", "ttft long", "running",
    "throughput",
)  # fmt: skip
"""Names of the traits. Gaps between two chunks give ``p20`` (steps that only decode), ``mean`` and
``p99`` (steps full of prompts). ``gap spread`` is the range from their 10th to the 40th percentile,
as a share of the 20th. ``stall`` is the mean over requests of the longest gap. ``ttft short`` and
``ttft long`` are means over prompts up to the median and above it. ``running`` is the mean number
of decoding sequences. Percentiles between these jump if steps with and without prompts are about
equally frequent."""
LEAST_SIGMA: Final = 0.02
"""Steps of a replay have at least this noise. Without noise, their order would be one of many
equally likely ones."""
LEAST_SPREAD: Final = 0.05
LEAST_S: Final = 1e-5
"""Differences below this value mean nothing."""


def measure_traits(stage: ObservedStage) -> Array:
    """Returns the logarithms in the order of TRAITS."""
    requests = stage.requests
    gaps = np.concatenate([np.diff(request.token_at) for request in requests])
    gaps = np.maximum(gaps if gaps.size else [0.0], LEAST_S)
    ttft_s = np.maximum(np.array([request.ttft_s for request in requests]), LEAST_S)
    prompts = np.array([request.prompt_tokens for request in requests])
    long = prompts > np.median(prompts)
    # the latest end: of requests sent at one moment, any may be the last in the list
    span_s = max(max(request.token_at[-1] for request in requests) - requests[0].sent_at, LEAST_S)
    low, usual, high, most = np.percentile(gaps, (10, 20, 40, 99))
    values = [
        np.log(usual),
        np.log(gaps.mean()),
        np.log(most),
        np.log((high - low) / usual + LEAST_SPREAD),
        np.log(np.maximum([request.stall_s for request in requests], LEAST_S)).mean(),
        np.log(ttft_s[~long]).mean(),
        np.log(ttft_s[long]).mean() if long.any() else 0.0,
        np.log(sum(request.decode_s for request in requests) / span_s + LEAST_S),
        np.log(sum(request.output_tokens for request in requests) / span_s),
    ]
    return np.array(values)


def measure_all_traits(stages: Sequence[ObservedStage]) -> Array:
    """Returns the traits of all stages in one array."""
    return np.concatenate([measure_traits(stage) for stage in stages])


def replay_change(change: ServerChange, stage: ObservedStage, seed: int) -> ObservedStage:
    """Replays the same requests with the noise of the changed model."""
    noise = change.model.noise
    least = msgspec.structs.replace(noise, step_sigma=max(noise.step_sigma, LEAST_SIGMA))
    model = msgspec.structs.replace(change.model, noise=least)
    return resend_stage(
        model, stage, seed, lambda clock: Bursts(change.slowed, clock, Random(seed))
    )


# -- check -----------------------------------------------------------------------------------------
# The check compares the traits of some loads with the traits of the twin's server, and finds the
# change that explains a difference. A replay of the same requests on the twin, with its noise, is
# subtracted from both, so the twin's own error cancels. The covariance has the part that depends on
# the requests. The rest is compared with the scatter of replays of an unchanged server. Each change
# gives a direction in which the traits would move. The shift along it, by generalised least
# squares, is divided by its standard error (the matched filter). The largest of these decides. Its
# bound is the larger of two: the normal distribution's for all of them together (Bonferroni), and
# the value that replays of an unchanged server themselves reach.

FALSE_ALARM: Final = 0.01
"""A whole check has this probability of a false alarm."""
REPLAYS: Final = 200
"""An unchanged server is replayed this many times."""
REPLAYS_OF_CHANGE: Final = 12
REPLAYS_OF_REFERENCE: Final = 40
BLOCKS: Final = 8
"""The requests of a load are split into this many blocks. The error is assumed to shrink from
blocks to the whole as for a mean."""
SHARED: Final = 0.015
OWN: Final = 0.01
OWN_SPREAD: Final = (0.1, 0.3)
"""Servers and the measuring machine normally vary by these standard deviations, as shares. SHARED
applies to all times together, OWN to each trait. OWN_SPREAD applies to the spread of gaps, with one
user and with more, as the mix of steps affects it."""
ALIKE: Final = 4.0
"""A change explains the shift equally well if its squared deviate is this close to the largest: a
likelihood ratio of e^2."""
SEED: Final = 30_000
MOVES_OTHERWISE: Final = {"throughput": -1.0, "gap spread": 0.0, "running": 0.0}
TIMES: Final = tuple(MOVES_OTHERWISE.get(name, 1.0) for name in TRAITS)
"""Each trait reacts like this if every time grows."""


class Shift(NamedTuple):
    change: ServerChange
    z: float
    """The shift in standard errors is positive in the direction of the change."""
    times: float
    """The shift is this multiple of the change."""
    error: float


class Drift(NamedTuple):
    """Holds the result of one check."""

    drifted: bool
    largest: float
    """This is the largest of the shifts and of the rest, in standard errors."""
    bound: float
    """Drift is a value above this bound, at FALSE_ALARM."""
    shifts: tuple[Shift, ...]
    """The largest shift comes first."""
    named: tuple[Shift, ...]
    """These shifts explain the drift: the largest one, and equally good ones. Empty: no shift
    explains it, or there is no drift."""


def measure_reference(
    model: ServerModel, stages: Sequence[ObservedStage], replays: int = REPLAYS_OF_REFERENCE
) -> tuple[Reference, ...]:
    """Measures the closed loops among these stages."""
    found = list[Reference]()
    still = ServerChange("", "", model)
    for stage in stages:
        if stage.users:
            drawn = [replay_change(still, stage, SEED - 1 - i) for i in range(replays)]
            replayed = np.array([measure_traits(replay) for replay in drawn])
            off = measure_traits(stage) - replayed.mean(axis=0)
            error = np.maximum(replayed.std(axis=0, ddof=1), error_by_requests(stage, drawn))
            found += [
                Reference(users=stage.users, figure=name, off=float(off[i]), error=float(error[i]))
                for i, name in enumerate(TRAITS)
            ]
    return tuple(found)


def error_by_requests(stage: ObservedStage, drawn: Sequence[ObservedStage]) -> Array:
    """Returns the standard error of a twin's deviation, from block to block of the requests (batch
    means)."""
    replayed = np.mean([_traits_of_blocks(replay) for replay in drawn], axis=0)
    off = _traits_of_blocks(stage) - replayed
    spread: Array = off.std(axis=0, ddof=min(1, len(off) - 1))
    return spread / math.sqrt(len(off))


def _traits_of_blocks(stage: ObservedStage) -> Array:
    return np.array([measure_traits(block) for block in _blocks(stage)])


def _blocks(stage: ObservedStage) -> list[ObservedStage]:
    """Splits a stage into blocks of successive requests."""
    number = min(BLOCKS, len(stage.requests))
    ends = [len(stage.requests) * i // number for i in range(number + 1)]
    return [stage._replace(requests=stage.requests[begin:end]) for begin, end in pairwise(ends)]


def choose_reference_loads(twin: Twin) -> list[int]:
    """Returns the users of three loads of the reference: the least, the middle and the most. Raises
    ValueError."""
    users = sorted({reference.users for reference in twin.reference})
    if not users:
        raise ValueError(
            "this twin has no load with a number of users to repeat on a server: fit it again"
        )
    return sorted({users[0], users[len(users) // 2], users[-1]})


class UnchangedServer(NamedTuple):
    """Describes an unchanged server at some loads: the mean of its traits, their covariance, and
    the effect of each change."""

    mean: Array
    covariance: Array
    moves: tuple[tuple[ServerChange, Array], ...]
    bound: float


def simulate_unchanged_server(
    twin: Twin, stages: Sequence[ObservedStage], replays: int = REPLAYS
) -> UnchangedServer:
    """Simulates the twin. ``stages`` have the users of the reference. Only the lengths and the
    first send times of their requests count."""
    model = twin.model
    by_name = {(one.users, one.figure): one for one in twin.reference}
    known = [by_name[stage.users, name] for stage, name in product(stages, TRAITS)]
    drawn = np.array(
        [_traits(ServerChange("", "", model), stages, SEED + i) for i in range(replays)]
    )
    still = np.array([one.off for one in known])
    error = np.array([one.error for one in known])
    shared = np.tile(TIMES, len(stages))
    between = np.tile([error_variance(twin.reference, name) for name in TRAITS], len(stages))
    own = 2 * error**2  # of the requests of the sweep, and of those of the minute
    own += between + np.concatenate([_own_variation(stage) for stage in stages]) ** 2
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
    reached = [largest_deviate(unbounded, one - mean) for one in drawn]
    bound = max(
        bonferroni_bound([change for change, _ in found]),
        float(np.quantile(reached, 1 - FALSE_ALARM)),
    )
    return unbounded._replace(bound=bound)


def bonferroni_bound(looked_for: Sequence[ServerChange]) -> float:
    """Returns the bound of a normal deviate. Each change is one test, or two with its opposite, and
    the rest is one test."""
    tests = 1 + sum(2 if change.both_ways else 1 for change in looked_for)
    return NormalDist().inv_cdf(1 - FALSE_ALARM / tests)


def _own_variation(stage: ObservedStage) -> Array:
    return np.array(
        [OWN_SPREAD[stage.users > 1] if name == "gap spread" else OWN for name in TRAITS]
    )


def error_variance(reference: Sequence[Reference], figure: str) -> float:
    """Returns the variance between loads of the twin's own error, in logarithms. It is the mean
    square from a load of the sweep to the next, over the whole sweep, as two neighbours can agree
    by chance. The estimate from n differences is itself uncertain, so it is multiplied by n / (n -
    2): the variance of Student's t."""
    ordered = sorted((one for one in reference if one.figure == figure), key=lambda one: one.users)
    squares = [(later.off - sooner.off) ** 2 for sooner, later in pairwise(ordered)]
    return sum(squares) / max(1, len(squares) - 2)


def _traits(change: ServerChange, stages: Sequence[ObservedStage], seed: int) -> Array:
    return measure_all_traits(
        [replay_change(change, stage, seed + 1000 * i) for i, stage in enumerate(stages)]
    )


def largest_deviate(known: UnchangedServer, off: Array) -> float:
    return max(
        [unexplained_deviate(known, off), *(_shift_size(one) for one in measure_shifts(known, off))]
    )


def _shift_size(shift: Shift) -> float:
    return abs(shift.z) if shift.change.both_ways else shift.z


def measure_shifts(known: UnchangedServer, off: Array) -> list[Shift]:
    """Measures the shift along each change, the largest first."""
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
    return sorted(found, key=_shift_size, reverse=True)


def unexplained_deviate(known: UnchangedServer, off: Array, explained: float = 0.0) -> float:
    """Returns the deviation of all traits as a normal deviate (Wilson & Hilferty, 1931).
    ``explained`` is the square that a shift explains."""
    freedom = len(off) - (explained > 0)
    square = max(0.0, float(off @ np.linalg.solve(known.covariance, off)) - explained)
    wide = 2 / (9 * freedom)
    return float((math.cbrt(square / freedom) - 1 + wide) / math.sqrt(wide))


def check_drift(known: UnchangedServer, stages: Sequence[ObservedStage]) -> Drift:
    off = measure_all_traits(stages) - known.mean
    ordered = measure_shifts(known, off)
    largest = max(_shift_size(ordered[0]), unexplained_deviate(known, off))
    drifted = largest > known.bound
    best = _shift_size(ordered[0])
    named = [
        one for one in ordered if _shift_size(one) > 0 and best**2 - _shift_size(one) ** 2 < ALIKE
    ]
    if not drifted or best <= known.bound:
        named = []
    return Drift(drifted, largest, known.bound, tuple(ordered), tuple(named))


# -- drift report ----------------------------------------------------------------------------------

MOST_ROWS: Final = 8
"""The table has this many traits with the largest deviations."""


def describe_other_server(origin: Origin, folder: Folder) -> list[str]:
    """Describes how the responding server differs by name from the fitted one, a sentence each."""
    run = folder.run
    return [
        f"another {what}: {there or 'none'}, but the twin was fitted to {here or 'none'}"
        for what, here, there in (
            ("model", origin.model, run.model),
            ("server", origin.server, run.server),
        )
        if here != there
    ]


class MovedParameter(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the server that explains a drift."""

    name: str
    """The name of the parameter in the twin."""
    description: str
    """The change in words, with its size and 95 % interval where it has a size."""
    standard_errors: float
    """The size of the shift, in standard errors."""


class DriftResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm twin drift --json``."""

    drifted: bool | None = None
    """The server no longer behaves like its twin. null: no load can be compared with the twin."""
    largest: float | None = None
    """The largest deviation, in standard errors. null: no load can be compared."""
    bound: float | None = None
    """The server has drifted above this deviation, in standard errors. null: no load can be
    compared."""
    moved: tuple[MovedParameter, ...] = ()
    """The changes that explain the drift equally well, the likeliest first. Empty: none does, or
    there is no drift."""
    other_server: tuple[str, ...] = ()
    """How the model or the server differs by name from the fitted one."""
    notes: tuple[str, ...] = ()
    """Omitted or doubtful parts of the run."""


def summarise_drift(found: Drift, names: Sequence[str], notes: Sequence[str]) -> DriftResult:
    """``names`` come from ``describe_other_server``."""
    moved = [
        MovedParameter(
            name=shift.change.name,
            description=format_shift(shift),
            standard_errors=float(shift.z),
        )
        for shift in found.named
    ]
    return DriftResult(
        drifted=bool(found.drifted),
        largest=float(found.largest),
        bound=float(found.bound),
        moved=tuple(moved),
        other_server=tuple(names),
        notes=tuple(notes),
    )


def format_drift_lines(
    found: Drift, known: UnchangedServer, stages: Sequence[ObservedStage], names: Sequence[str]
) -> Iterator[str]:
    """Formats the result. ``names`` come from ``describe_other_server``."""
    yield from (f"{name[0].upper()}{name[1:]}." for name in names)
    sure = f"false alarms: {FALSE_ALARM:.0%} of all checks"
    if not found.drifted:
        yield (
            f"No drift found in one minute: off by at most {max(0.0, found.largest):.1f} standard "
            f"errors. The limit is {found.bound:.1f} ({sure})."
        )
        return
    yield (
        f"DRIFTED: off by {found.largest:.1f} standard errors. The limit is {found.bound:.1f} "
        f"({sure})."
    )
    if found.named:
        yield f"Likely change: {format_shift(found.named[0])}."
        yield from (f"Alternative explanation: {format_shift(shift)}." for shift in found.named[1:])
    else:
        yield "The change matches none of the twin's parameters."
    yield ""
    yield format_trait_table(known, stages)


def format_shift(shift: Shift) -> str:
    """Formats a shift with its size, if it has one: ``every step, +9.8% (+7.1% to +12.6%)``."""
    change = shift.change
    ends = [shift.times + wide * shift.error for wide in (0.0, -NORMAL_REACH, NORMAL_REACH)]
    if change.size:
        about, low, high = [
            format_signed(100 * math.expm1(end * math.log(MORE)), 1, "%") for end in ends
        ]
        return f"{change.words}, {about} ({low} to {high})"
    if change.name == "front":
        about, low, high = (format_signed(end * FRONT_S * 1e3, 1) for end in ends)
        return f"{change.words}, {about} ms ({low} to {high})"
    return change.words


def format_trait_table(known: UnchangedServer, stages: Sequence[ObservedStage]) -> str:
    """Formats the traits with the largest deviations, in standard errors."""
    off = measure_all_traits(stages) - known.mean
    errors = np.sqrt(np.diag(known.covariance))
    labels = [(format_count(stage.users, "user"), name) for stage, name in product(stages, TRAITS)]
    worst = sorted(range(len(off)), key=lambda i: -abs(off[i] / errors[i]))[:MOST_ROWS]
    rows = [
        [
            *labels[i],
            format_signed(100 * math.expm1(off[i]), 1, "%"),
            format_signed(off[i] / errors[i], 1),
        ]
        for i in sorted(worst)
    ]
    return tabulate(
        rows, headers=["load", "metric", "off", "standard errors"], disable_numparse=True,
        colalign=("left", "left", "right", "right"),
    )  # fmt: skip
