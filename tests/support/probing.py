"""Probing: runs the interference probe in virtual time on a simulated engine, with noise."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, cycle
from random import Random
from typing import Final

from locust_llm.lab.probe.episode_requests import ProbeEpisode, ProbeRequest, ProbeResult
from locust_llm.lab.probe.probe_experiments import ProbeBounds, schedule_episodes
from locust_llm.lab.twin.twin_drift import Bursts
from locust_llm.records.outcomes import OK
from locust_llm.simulator.scheduling.batching_policies import POLICIES, WHOLE_PROMPTS
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.disaggregated import DisaggregatedEngine, Link
from locust_llm.simulator.scheduling.engine import BatchEngine, Engine, FixedEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.step_cost import GPUS, MODELS, StepCostConstants
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult

BLOCK: Final = 16
REFUSED: Final = "http_400"
FIXED: Final = "fixed latency"
TTFT_S: Final = 0.2
ITL_S: Final = 0.02
"""The server with a fixed latency has these times."""
PATIENCE_S: Final = 30.0
PATIENCE: Final = 10.0
"""An episode is awaited for this multiple of its expected time. Later results do not count, as a
server with too much other traffic never finishes."""
MOST_HELD: Final = 3.0
MOST_S: Final = 1800.0
"""The whole probe is cancelled after this time, as people would not wait longer."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Describes the simulated server. Its longest sequence is the given one, or the capacity of its
    KV cache."""

    policy: str = "chunked"
    """The value is a policy of the simulator, ``disaggregated``, or ``fixed latency``."""
    budget: int | None = None
    gpu: str = "h100"
    num_seqs: int | None = None
    threshold: int = 0
    partial: int = 1
    long_partial: int = 1
    caching: bool = True
    max_len: int = 131_072
    prefill_engines: int = 1
    decode_engines: int = 1
    replicas: int = 1
    """Replicas behind one address have a scheduler each, and get requests in turn."""
    cost: StepCostConstants | None = None
    """None: the server has the cost of its GPU."""

    @property
    def costs(self) -> StepCostConstants:
        return self.cost or StepCostConstants(model=MODELS["llama-3.1-8b"], gpu=GPUS[self.gpu])


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Describes the noise of real servers and networks."""

    steps: float = 0.0
    """Each step takes a log-normal factor with this sigma longer or shorter."""
    network_s: float = 0.0
    """Each chunk is late by an exponential time with this mean, but stays in order."""
    merged: float = 0.0
    """Each chunk arrives with the next one with this probability."""
    hiccups_s: float = 0.0
    """The whole server stops for this time about every two seconds."""
    traffic_per_s: float = 0.0
    """Another client sends requests at this rate: prompts of 500 to 8,000 tokens, 20 to 200 out."""
    reading_s: float = 0.0
    """Each prompt token takes this time before the scheduler, as the server tokenizes the text."""
    tokens_a_chunk: int = 1
    """Chunks after the first one have this many tokens (vLLM's --stream-interval)."""
    slowed: float = 1.0
    """Steps take this factor longer in bursts (`Bursts`), a third of the time, as beside other
    programs."""
    slower: float = 1.0
    """All steps take this factor longer."""
    held_s: float = 0.0
    """Each arriving prompt token blocks the server for this time, as it tokenizes the text. Chunks
    of that time arrive at its end. Waiting for a core extends the time by up to MOST_HELD."""
    guessed: float = 0.0
    """A step gives a decoder this many extra tokens in the same chunk (speculative decoding)."""


class NoisyEngine(BatchEngine):
    """Runs steps that take longer or shorter than computed."""

    factor: Callable[[], float] = staticmethod(lambda: 1.0)
    pause: Callable[[float], float] = staticmethod(lambda took: 0.0)

    def _begin_step(self) -> None:
        self.time_scale = self.factor()
        before = self._due
        super()._begin_step()
        if not self._idle:
            self._pause(self.pause(self._due - before))

    def _pause(self, seconds: float) -> None:
        """Delays the next step, as the end of this one is already set."""
        self._due += seconds


class InTurn:
    """Serves several engines behind one address."""

    def __init__(self, engines: list[BatchEngine]) -> None:
        self.turns = cycle(engines)

    def add(self, sequence: Sequence, on_token: Callable[[], None], *, each: bool = True) -> None:
        next(self.turns).add(sequence, on_token, each=each)


def engine(server: Server, clock: VirtualClock, noise: Noise, random: Random) -> Engine | InTurn:
    if server.policy == FIXED:
        return FixedEngine(
            TTFT_S, ITL_S, clock, jitter_s=noise.steps * ITL_S, seed=random.randrange(1 << 30)
        )
    cost = server.costs
    whole = server.policy in WHOLE_PROMPTS
    budget = server.budget or (server.max_len if whole else cost.gpu.max_num_batched_tokens)
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=server.num_seqs or min(cost.gpu.max_num_seqs, budget),
        kv_tokens=cost.kv_tokens,
        enable_prefix_caching=server.caching,
        long_prefill_token_threshold=server.threshold,
        max_num_partial_prefills=server.partial,
        max_long_partial_prefills=server.long_partial,
    )

    bursts = Bursts(noise.slowed, clock, random)

    def one(policy: str) -> BatchEngine:
        made = NoisyEngine(Scheduler(config, POLICIES[policy], record=True), cost, clock)
        made.factor = lambda: (
            noise.slower
            * bursts()
            * (random.lognormvariate(0, noise.steps) if noise.steps else 1.0)
        )
        made.pause = lambda took: (
            noise.hiccups_s if noise.hiccups_s and random.random() < took / 2 else 0.0
        )
        return made

    if server.policy != "disaggregated":
        return InTurn([one(server.policy) for _ in range(server.replicas)])
    link = Link(bytes_per_token=cost.model.kv_bytes_per_token, bytes_per_s=50e9)
    prefill = [one("chunked") for _ in range(server.prefill_engines)]
    return DisaggregatedEngine(
        prefill, [one("chunked") for _ in range(server.decode_engines)], link, clock
    )


def longest(server: Server) -> int:
    """Returns the longest accepted sequence in tokens."""
    return min(server.max_len, server.costs.kv_tokens)


USUAL_BOUNDS = ProbeBounds()


def probed(
    server: Server, noise: Noise = Noise(), seed: int = 1, bounds: ProbeBounds = USUAL_BOUNDS
) -> list[ProbeResult]:
    """Returns all results that the client observed."""
    random = Random(seed)
    clock = VirtualClock()
    run = Virtual(clock, engine(server, clock, noise, random), keep_tokens=True)
    probe = schedule_episodes(bounds)
    texts = count(1)
    everything = list[ProbeResult]()
    traffic(run, clock, noise, random)
    episode = next(probe)
    for number in count():
        came = carried_out(episode, number, run, server, noise, random, texts)
        everything += came
        clock.run(clock.now + 0.05)
        if clock.now > MOST_S:
            return everything
        try:
            episode = probe.send(came)
        except StopIteration:
            return everything
    raise AssertionError


def carried_out(
    episode: ProbeEpisode,
    number: int,
    run: Virtual,
    server: Server,
    noise: Noise,
    random: Random,
    texts: "count[int]",
) -> list[ProbeResult]:
    """Returns the results of an episode's requests in the order of their ends, refused ones
    first."""
    clock = run.clock
    began = run.clock.now
    came = list[ProbeResult]()
    done = list[tuple[ProbeRequest, VirtualResult]]()
    held = list[tuple[float, float]]()
    until = began
    for shot in episode.requests:
        if shot.input_tokens + shot.output_tokens > longest(server):
            came.append(look(shot, None, began + shot.at_s, number, episode, noise, random))
            continue
        if noise.held_s:
            at = max(began + shot.at_s, until)
            until = at + noise.held_s * shot.input_tokens * random.uniform(1, MOST_HELD)
            held.append((at, until))
        text = ("same", episode.round) if shot.text else (next(texts),)
        keys = (
            [hash((text, block)) for block in range(shot.input_tokens // BLOCK)]
            if server.caching
            else []
        )
        request = VirtualRequest(
            shot.input_tokens, max(1, round(shot.output_tokens / (1 + noise.guessed))), keys
        )

        def ask(shot: ProbeRequest = shot, request: VirtualRequest = request) -> None:
            run.ask(request, on_done=lambda: done.append((shot, run.rows[-1])))

        clock.call_at(began + shot.at_s + noise.reading_s * shot.input_tokens, ask)
    waiting = len(episode.requests) - len(came)
    patience = began + episode.requests[-1].at_s + PATIENCE_S + PATIENCE * episode.expected_s
    while len(done) < waiting and clock._timers and clock._timers[0][0] <= patience:
        clock.run(clock._timers[0][0])  # to whatever comes next
    mine = list(done)  # what comes later was not seen
    return came + [
        look(shot, row, began + shot.at_s, number, episode, noise, random, held)
        for shot, row in mine
    ]


def traffic(run: Virtual, clock: VirtualClock, noise: Noise, random: Random) -> None:
    if not noise.traffic_per_s:
        return

    def another() -> None:
        run.ask(VirtualRequest(random.randint(500, 8000), random.randint(20, 200)))
        clock.call_at(clock.now + random.expovariate(noise.traffic_per_s), another)

    clock.call_at(random.expovariate(noise.traffic_per_s), another)


def look(
    shot: ProbeRequest,
    row: VirtualResult | None,
    sent_at: float,
    number: int,
    episode: ProbeEpisode,
    noise: Noise,
    random: Random,
    held: Iterable[tuple[float, float]] = (),
) -> ProbeResult:
    """Returns a result as a client observes it, with late and merged chunks. Without a row it was
    refused. ``held`` has the intervals in which the server sent nothing."""
    times, last = [], sent_at
    for at in (row and (row.token_at or evenly(row))) or ():
        at = next((end for begin, end in held if begin <= at < end), at)
        last = max(last, at + (random.expovariate(1 / noise.network_s) if noise.network_s else 0.0))
        times.append(last)
    end = len(times) - 1
    if noise.tokens_a_chunk > 1:
        times = [at for i, at in enumerate(times) if i in (0, end) or i % noise.tokens_a_chunk == 0]
    if noise.merged:
        end = len(times) - 1
        times = [
            at for i, at in enumerate(times) if i in (0, end) or random.random() >= noise.merged
        ]
    return ProbeResult(
        episode=number, kind=episode.kind, round=episode.round, role=shot.role,
        outcome=OK if row else REFUSED, asked_tokens=shot.input_tokens,
        input_tokens=shot.input_tokens,
        output_tokens=shot.output_tokens if row else 0, asked_output_tokens=shot.output_tokens,
        sent_at=sent_at,
        chunk_at=tuple(times), cached_tokens=(row and row.cached_tokens) or None,
    )  # fmt: skip


def evenly(row: VirtualResult) -> list[float]:
    """Spaces the tokens evenly, as an engine with a fixed latency keeps none."""
    tokens = row.request.output_tokens
    return [
        row.first_at + (row.done_at - row.first_at) * i / max(1, tokens - 1) for i in range(tokens)
    ]
