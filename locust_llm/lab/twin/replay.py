"""Replay: the measured requests once more on a model in virtual time, and loads that it has never
seen."""

from collections.abc import Callable, Iterator, Sequence
from math import nan
from random import Random
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.lab.twin.engine import Slower, Step, make_twin_engine
from locust_llm.lab.twin.model import Noise, ServerModel, step_work
from locust_llm.lab.twin.observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual import Virtual, VirtualRequest, VirtualResult

Array = NDArray[np.float64]
BEFORE_S = 1e-11
"""An admission that takes no time comes after what ended, and who came, at its moment."""
PAUSE_S = 0.05
"""Between two episodes, when the engine is idle."""


class Replay(NamedTuple):
    """Requests in the order in which they were given, and all steps. Those that never ended have
    nan."""

    arrived_at: Array
    """At the scheduler."""
    first_at: Array
    last_at: Array
    sent_at: Array
    token_at: tuple[Sequence[float], ...]
    steps: tuple[Step, ...]

    @property
    def ttft_s(self) -> Array:
        return self.first_at - self.sent_at

    @property
    def decode_s(self) -> Array:
        return self.last_at - self.first_at

    @property
    def stall_s(self) -> Array:
        """The longest gap of each."""
        return np.array(
            [np.diff(times).max() if len(times) > 1 else 0.0 for times in self.token_at]
        )

    def parts(self, free_tokens: float) -> tuple[Array, Array]:
        """What each request was made of until its first token, and from there to its last: two
        arrays (requests, 7), the factors of `Cost`: fixed, token, stream, context, pair, own pair,
        admission. A step that ran at an end of the time counts in part."""
        table = np.array(self.steps)
        at, took = table[:, 0], table[:, 1]
        each = np.column_stack(
            [table[:, 7] == 0, np.maximum(0, table[:, 2] - free_tokens), *table[:, 3:].T]
        )
        until = np.vstack([np.zeros(7), each.cumsum(axis=0)])
        moments = np.column_stack([at, at + took]).ravel()
        reached = np.repeat(until, 2, axis=0)[1:-1]  # as a step begins, and as it ends

        def by(moment: Array) -> Array:
            moment = moment - BEFORE_S
            return np.column_stack([np.interp(moment, moments, reached[:, i]) for i in range(7)])

        first = by(self.first_at)
        return first - by(self.arrived_at), by(self.last_at) - first


def replay_episodes(model: ServerModel, episodes: Sequence[IdleEpisode]) -> Replay:
    """Each sent as it was, to an idle engine."""
    clock = VirtualClock()
    steps = list[Step]()
    rows = list[VirtualResult]()
    virtual = Virtual(clock, make_twin_engine(model, clock, log=steps), keep_tokens=True)
    requests = list[VirtualRequest]()
    for episode in episodes:
        begin = clock.now + PAUSE_S
        first = episode.requests[0].sent_at
        for one in episode.requests:
            request = _request(one)
            requests.append(request)
            clock.call_at(begin + one.sent_at - first, _asking(virtual, request))
        clock.run()
    rows = virtual.rows
    return _replay(model, requests, rows, steps)


def as_replayed(replay: Replay, episodes: Sequence[IdleEpisode]) -> list[ObservedRequest]:
    """The requests of the episodes, in the order of the replay. Equal prompts that were sent
    together are exchanged until they have their first tokens in the order in which the replay has
    them: which of them a server takes first says nothing of what it costs."""
    found = list[ObservedRequest]()
    at = 0
    for episode in episodes:
        requests = list(episode.requests)
        begin = len(episode.requests) - episode.together
        first_at = replay.first_at[at + begin : at + len(requests)]
        order = np.argsort(np.argsort(first_at, kind="stable"), kind="stable")
        ranked = sorted(requests[begin:], key=lambda one: one.token_at[0])
        found += [*requests[:begin], *(ranked[rank] for rank in order)]
        at += len(requests)
    return found


def replay_stage(model: ServerModel, stage: ObservedStage) -> Replay:
    """See `send_again`."""
    clock = VirtualClock()
    steps = list[Step]()
    virtual = Virtual(clock, make_twin_engine(model, clock, log=steps), keep_tokens=True)
    requests = send_again(stage, virtual)
    clock.run()
    return _replay(model, requests, virtual.rows, steps)


def send_again(stage: ObservedStage, virtual: Virtual) -> list[VirtualRequest]:
    """A closed loop: the first request of each user as it was sent, each other one, in the same
    order, when one has ended. Else each as it was sent."""
    requests = [_request(one) for one in stage.requests]
    begin = stage.requests[0].sent_at
    pinned = stage.users or len(requests)
    others = iter(requests[pinned:])

    def following() -> None:
        if (request := next(others, None)) is not None:
            virtual.ask(request, following)

    for one, request in zip(stage.requests[:pinned], requests, strict=False):
        virtual.clock.call_at(one.sent_at - begin, _asking(virtual, request, following))
    return requests


def _asking(
    virtual: Virtual, request: VirtualRequest, on_done: Callable[[], None] | None = None
) -> Callable[[], None]:
    return lambda: virtual.ask(request, on_done)


def _request(one: ObservedRequest) -> VirtualRequest:
    return VirtualRequest(one.prompt_tokens, one.output_tokens)


def _replay(
    model: ServerModel,
    requests: Sequence[VirtualRequest],
    rows: Sequence[VirtualResult],
    steps: Sequence[Step],
) -> Replay:
    by_request = {id(row.request): row for row in rows}
    ordered = [
        by_request.get(id(request), VirtualResult(request, nan, nan)) for request in requests
    ]
    sent_at = np.array([row.sent_at for row in ordered])
    late_s = np.array(
        [model.front.request_s + model.front.token_s * one.prompt_tokens for one in requests]
    )
    return Replay(
        arrived_at=sent_at + late_s,
        first_at=np.array([row.first_at for row in ordered]),
        last_at=np.array([row.done_at for row in ordered]),
        sent_at=sent_at,
        token_at=tuple(row.token_at for row in ordered),
        steps=tuple(steps),
    )


# -- loads in virtual time -------------------------------------------------------------------------
# What a client would see of a model at so many users, or so many requests a second.

ROUNDS: Final = 12
FEWEST: Final = 240
"""Requests of a load: so many of each user, and at least so many."""


class OfferedLoad(NamedTuple):
    """One of the two is not 0."""

    users: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.users} users" if self.users else f"{self.rate:g} requests/s"


Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, output tokens) to draw from."""


def simulate_load(
    model: ServerModel,
    load: OfferedLoad,
    lengths: Lengths,
    seed: int,
    *,
    prefill_limit: float = float("inf"),
    count: int = 0,
) -> ObservedStage:
    """``count``: of requests; 0: as many as suit the load. ``prefill_limit``: of the load
    generator's gate. Of one seed the requests are the same, whatever the model and its settings:
    they are drawn before its noise. Users begin one after the other, over one response time."""
    random = Random(seed)
    clock = VirtualClock()
    count = count or max(FEWEST, ROUNDS * load.users)
    requests = [VirtualRequest(*one) for one in draw_lengths(lengths, count, random)]
    arrivals = list(_arrivals(load.rate, requests, random)) if load.rate else []
    virtual = Virtual(
        clock, make_twin_engine(model, clock, random), prefill_limit=prefill_limit, keep_tokens=True
    )
    if load.users:
        # all at once they would meet again and again, where their answers are equally long
        apart_s = estimate_response_s(model, load.users, lengths) / load.users
        virtual.closed_loop(load.users, iter(requests), stagger_s=apart_s)
    else:
        virtual.open_loop(arrivals)
    return _stage(virtual, model.noise, seed, load)


def estimate_response_s(model: ServerModel, users: int, lengths: Lengths) -> float:
    """Of a closed loop, roughly: the prompts of all users, and a step of all of them for each token
    of an answer."""
    prompt = round(fmean(prompt for prompt, _ in lengths))
    output = fmean(output for _, output in lengths)
    decoding = step_work((), users, round(users * (prompt + output / 2)))
    prefill_s = model.cost.step_s(step_work([(0, prompt)]))
    return users * prefill_s + output * model.cost.step_s(decoding)


def draw_lengths(lengths: Lengths, count: int, random: Random) -> list[tuple[int, int]]:
    """So many, in any order: one of each of ``count`` equal parts of ``lengths`` from the shortest
    prompt to the longest (stratified sampling), as a few long prompts more or less would move the
    figures of few requests."""
    ordered = sorted(lengths)
    found = [ordered[int((part + random.random()) * len(ordered) / count)] for part in range(count)]
    random.shuffle(found)
    return found


def resample_lengths(lengths: Lengths, seed: int) -> Lengths:
    """As many of them, drawn with replacement."""
    return Random(seed).choices(lengths, k=len(lengths))


def resend_stage(
    model: ServerModel,
    stage: ObservedStage,
    seed: int,
    slower: Callable[[VirtualClock], Slower] | None = None,
) -> ObservedStage:
    """The very requests of a stage, with the noise of the model. ``slower``: what makes its steps
    longer beside that."""
    clock = VirtualClock()
    behind = make_twin_engine(model, clock, Random(seed), slower=slower(clock) if slower else None)
    virtual = Virtual(clock, behind, keep_tokens=True)
    send_again(stage, virtual)
    return _stage(virtual, model.noise, seed, OfferedLoad(stage.users, stage.rate))


def _stage(virtual: Virtual, noise: Noise, seed: int, load: OfferedLoad) -> ObservedStage:
    rows = sorted(virtual.run(), key=lambda row: row.asked_at)
    late = np.random.default_rng(seed)
    return ObservedStage(
        users=load.users, rate=load.rate, requests=tuple(_seen(row, noise, late) for row in rows)
    )


def _arrivals(
    rate: float, requests: Sequence[VirtualRequest], random: Random
) -> Iterator[tuple[float, VirtualRequest]]:
    """Poisson, given that so many come in the time that they take on average: any number more or
    less would be the chance of this one simulation."""
    lasts_s = len(requests) / rate
    moments = sorted(random.random() * lasts_s for _ in requests)
    yield from zip(moments, requests, strict=True)


def _seen(row: VirtualResult, noise: Noise, random: np.random.Generator) -> ObservedRequest:
    """As a client sees it, with late chunks, of which none comes before an earlier one, and some in
    one."""
    times = np.array(row.token_at)
    if noise.chunk_s:
        times = np.maximum.accumulate(times + random.exponential(noise.chunk_s, len(times)))
    if noise.merged:
        kept = random.random(len(times)) >= noise.merged
        kept[0] = kept[-1] = True
        times = times[kept]
    held_s = row.sent_at - row.asked_at
    return ObservedRequest(
        row.sent_at,
        tuple(times.tolist()),
        row.request.prompt_tokens,
        row.request.output_tokens,
        held_s,
    )
