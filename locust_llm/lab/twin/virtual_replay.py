"""Virtual replay: sends the measured requests to a model in virtual time, and simulates new
loads."""

from collections.abc import Callable, Iterator, Sequence
from math import nan
from random import Random
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.lab.twin.server_observations import IdleEpisode, ObservedRequest, ObservedStage
from locust_llm.lab.twin.twin_engine import Slower, Step, make_twin_engine
from locust_llm.lab.twin.twin_model import Noise, ServerModel, step_work
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult
from locust_llm.text.format import format_count

Array = NDArray[np.float64]
BEFORE_S = 1e-11
"""An admission that takes no time comes after the ends and arrivals of its moment."""
PAUSE_S = 0.05
"""The engine is idle for this time between two episodes."""


class Replay(NamedTuple):
    """Holds requests in the given order, and all steps. Requests that never ended have nan."""

    arrived_at: Array
    """The requests arrived at the scheduler at these times."""
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
        """Returns the longest gap of each request."""
        return np.array(
            [np.diff(times).max() if len(times) > 1 else 0.0 for times in self.token_at]
        )

    def parts(self, free_tokens: float) -> tuple[Array, Array]:
        """Returns the work of each request until its first token, and from there to its last. Both
        arrays have the shape (requests, 7), in the order of `StepCosts`: fixed, token, stream,
        context, pair, own pair, admission. A step that ran at an end of the time counts in part."""
        table = np.array(self.steps)
        at = table[:, 0]
        took = table[:, 1]
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
    """Sends each request as before to an idle engine."""
    clock = VirtualClock()
    steps = list[Step]()
    rows = list[VirtualResult]()
    virtual = Virtual(clock, make_twin_engine(model, clock, log=steps), keep_tokens=True)
    requests = list[VirtualRequest]()
    for episode in episodes:
        begin = clock.now + PAUSE_S
        first = episode.requests[0].sent_at
        for observed in episode.requests:
            request = _make_request(observed)
            requests.append(request)
            clock.call_at(begin + observed.sent_at - first, _make_sender(virtual, request))
        clock.run()
    rows = virtual.rows
    return _make_replay(model, requests, rows, steps)


def as_replayed(replay: Replay, episodes: Sequence[IdleEpisode]) -> list[ObservedRequest]:
    """Returns the requests of the episodes in the order of the replay. Equal prompts sent together
    are exchanged until their first tokens have the replay's order. The server's choice among them
    does not affect its costs."""
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
    """Replays a stage: see `send_again`."""
    clock = VirtualClock()
    steps = list[Step]()
    virtual = Virtual(clock, make_twin_engine(model, clock, log=steps), keep_tokens=True)
    requests = send_again(stage, virtual)
    clock.run()
    return _make_replay(model, requests, virtual.rows, steps)


def send_again(stage: ObservedStage, virtual: Virtual) -> list[VirtualRequest]:
    """Sends the requests of a stage. In a closed loop the first request of each user has its own
    send time, and the others follow in order as requests end. Otherwise each request has its own
    send time."""
    requests = [_make_request(one) for one in stage.requests]
    begin = stage.requests[0].sent_at
    pinned = stage.users or len(requests)
    others = iter(requests[pinned:])

    def following() -> None:
        if (request := next(others, None)) is not None:
            virtual.ask(request, following)

    for one, request in zip(stage.requests[:pinned], requests, strict=False):
        virtual.clock.call_at(one.sent_at - begin, _make_sender(virtual, request, following))
    return requests


def _make_sender(
    virtual: Virtual, request: VirtualRequest, on_done: Callable[[], None] | None = None
) -> Callable[[], None]:
    return lambda: virtual.ask(request, on_done)


def _make_request(one: ObservedRequest) -> VirtualRequest:
    return VirtualRequest(one.prompt_tokens, one.output_tokens)


def _make_replay(
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

ROUNDS: Final = 12
FEWEST: Final = 240
"""A load has ROUNDS requests per user, and at least this many."""


class OfferedLoad(NamedTuple):
    """Is a load. One of the two fields is not 0."""

    users: int = 0
    rate: float = 0.0

    @property
    def label(self) -> str:
        return format_count(self.users, "user") if self.users else f"{self.rate:g} requests/s"


Lengths = Sequence[tuple[int, int]]
"""Each pair has (prompt tokens, output tokens) to draw from."""


def simulate_load(
    model: ServerModel,
    load: OfferedLoad,
    lengths: Lengths,
    seed: int,
    *,
    prefill_limit: float = float("inf"),
    count: int = 0,
) -> ObservedStage:
    """``count`` is the number of requests. 0: it suits the load. ``prefill_limit`` is the limit of
    the load generator's gate. Equal seeds give equal requests for any model and settings, as they
    are drawn before the noise. Users begin one after the other, over one response time."""
    random = Random(seed)
    clock = VirtualClock()
    count = count or max(FEWEST, ROUNDS * load.users)
    requests = [VirtualRequest(*one) for one in draw_lengths(lengths, count, random)]
    arrivals = list(_arrivals(load.rate, requests, random)) if load.rate else []
    virtual = Virtual(
        clock, make_twin_engine(model, clock, random), prefill_limit=prefill_limit, keep_tokens=True
    )
    if load.users:
        # users that start together would meet again and again if their answers are equally long
        apart_s = estimate_response_s(model, load.users, lengths) / load.users
        virtual.closed_loop(load.users, iter(requests), stagger_s=apart_s)
    else:
        virtual.open_loop(arrivals)
    return _make_stage(virtual, model.noise, seed, load)


def estimate_response_s(model: ServerModel, users: int, lengths: Lengths) -> float:
    """Estimates the response time of a closed loop: the prompts of all users, and a step of all of
    them for each output token."""
    prompt = round(fmean(prompt for prompt, _ in lengths))
    output = fmean(output for _, output in lengths)
    decoding = step_work((), users, round(users * (prompt + output / 2)))
    prefill_s = model.cost.step_s(step_work([(0, prompt)]))
    return users * prefill_s + output * model.cost.step_s(decoding)


def draw_lengths(lengths: Lengths, count: int, random: Random) -> list[tuple[int, int]]:
    """Draws ``count`` lengths in random order, one from each of ``count`` equal parts of
    ``lengths``, sorted by prompt (stratified sampling). A few long prompts more or less would
    change the metrics of few requests."""
    ordered = sorted(lengths)
    found = [ordered[int((part + random.random()) * len(ordered) / count)] for part in range(count)]
    random.shuffle(found)
    return found


def resample_lengths(lengths: Lengths, seed: int) -> Lengths:
    """Returns as many lengths, drawn with replacement."""
    return Random(seed).choices(lengths, k=len(lengths))


def resend_stage(
    model: ServerModel,
    stage: ObservedStage,
    seed: int,
    slower: Callable[[VirtualClock], Slower] | None = None,
) -> ObservedStage:
    """Resends exactly the requests of a stage, with the noise of the model. ``slower`` extends its
    steps further."""
    clock = VirtualClock()
    behind = make_twin_engine(model, clock, Random(seed), slower=slower(clock) if slower else None)
    virtual = Virtual(clock, behind, keep_tokens=True)
    send_again(stage, virtual)
    return _make_stage(virtual, model.noise, seed, OfferedLoad(stage.users, stage.rate))


def _make_stage(virtual: Virtual, noise: Noise, seed: int, load: OfferedLoad) -> ObservedStage:
    rows = sorted(virtual.run(), key=lambda row: row.asked_at)
    late = np.random.default_rng(seed)
    return ObservedStage(
        users=load.users, rate=load.rate, requests=tuple(_observe(row, noise, late) for row in rows)
    )


def _arrivals(
    rate: float, requests: Sequence[VirtualRequest], random: Random
) -> Iterator[tuple[float, VirtualRequest]]:
    """Draws Poisson arrivals with a fixed number in their mean time. A random number would add the
    chance of a single simulation."""
    lasts_s = len(requests) / rate
    moments = sorted(random.random() * lasts_s for _ in requests)
    yield from zip(moments, requests, strict=True)


def _observe(row: VirtualResult, noise: Noise, random: np.random.Generator) -> ObservedRequest:
    """Returns a request as a client observes it, with late chunks in order, and some merged."""
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
