"""The interference probe in virtual time: its timetable carried out on a simulated engine, with noise."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from locust_llm.episodes import Bounds, timetable
from locust_llm.record import OK
from locust_llm.shots import Seen
from locust_llm.simulator.clock import VirtualClock
from locust_llm.simulator.cost import GPUS, MODELS, Cost
from locust_llm.simulator.disaggregated import DisaggregatedEngine, Link
from locust_llm.simulator.engine import BatchEngine, Engine
from locust_llm.simulator.policies import POLICIES, WHOLE_PROMPTS
from locust_llm.simulator.scheduler import Config, Scheduler
from locust_llm.simulator.virtual import Request, Row, Virtual

BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class Server:
    """What is simulated."""

    policy: str = "chunked"
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


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What real servers and networks add."""

    steps: float = 0.0
    """Each step takes a log-normal factor with this sigma longer or shorter."""
    network_s: float = 0.0
    """Each chunk is later by an exponential time with this mean, never before an earlier one."""
    merged: float = 0.0
    """Each chunk comes together with the next with this probability."""
    hiccups_s: float = 0.0
    """About once in two seconds the whole server stands still for so long."""
    traffic_per_s: float = 0.0
    """Requests of somebody else: prompts of 500 to 8,000 tokens, 20 to 200 out."""


class NoisyEngine(BatchEngine):
    """Steps that take longer or shorter than they should."""

    factor: Callable[[], float] = staticmethod(lambda: 1.0)
    pause: Callable[[float], float] = staticmethod(lambda took: 0.0)

    def _begin_step(self) -> None:
        self.time_scale = self.factor()
        before = self._due
        super()._begin_step()
        if not self._idle:
            self._pause(self.pause(self._due - before))

    def _pause(self, seconds: float) -> None:
        """Not possible once the end of the step is set: the next one begins later."""
        self._due += seconds


def engine(server: Server, clock: VirtualClock, noise: Noise, random: Random) -> Engine:
    cost = Cost(model=MODELS["llama-3.1-8b"], gpu=GPUS[server.gpu])
    whole = server.policy in WHOLE_PROMPTS
    budget = server.budget or (server.max_len if whole else cost.gpu.max_num_batched_tokens)
    config = Config(
        max_num_batched_tokens=budget,
        max_num_seqs=server.num_seqs or min(cost.gpu.max_num_seqs, budget),
        kv_tokens=cost.kv_tokens,
        enable_prefix_caching=server.caching,
        long_prefill_token_threshold=server.threshold,
        max_num_partial_prefills=server.partial,
        max_long_partial_prefills=server.long_partial,
    )

    def one(policy: str) -> BatchEngine:
        made = NoisyEngine(Scheduler(config, POLICIES[policy], record=True), cost, clock)
        made.factor = lambda: random.lognormvariate(0, noise.steps) if noise.steps else 1.0
        made.pause = lambda took: noise.hiccups_s if noise.hiccups_s and random.random() < took / 2 else 0.0
        return made

    if server.policy != "disaggregated":
        return one(server.policy)
    link = Link(bytes_per_token=cost.model.kv_bytes_per_token, bytes_per_s=50e9)
    prefill = [one("chunked") for _ in range(server.prefill_engines)]
    return DisaggregatedEngine(prefill, [one("chunked") for _ in range(server.decode_engines)], link, clock)


def probed(server: Server, noise: Noise = Noise(), seed: int = 1, bounds: Bounds = Bounds()) -> list[Seen]:  # noqa: B008
    """All that the client saw."""
    random, clock = Random(seed), VirtualClock()
    run = Virtual(clock, engine(server, clock, noise, random), keep_tokens=True)
    probe, texts, everything = timetable(bounds), count(1), list[Seen]()
    traffic(run, clock, noise, random)
    seen: list[Seen] = []
    for number in count():
        try:
            episode = next(probe) if number == 0 else probe.send(seen)
        except StopIteration:
            return everything
        began, rows = clock.now, len(run.rows)
        waiting = 0
        for i, shot in enumerate(episode.shots):
            tokens = shot.input_tokens
            if tokens + shot.output_tokens > server.max_len:
                continue
            waiting += 1
            text = ("same", episode.round) if shot.text else (next(texts),)
            keys = [hash((text, block)) for block in range(tokens // BLOCK)] if server.caching else []
            clock.call_at(
                began + shot.at_s, lambda i=i, t=tokens, o=shot.output_tokens, k=keys: run.ask(Request(t, o, k, str(i)))
            )
        while sum(row.request.kind != "traffic" for row in run.rows[rows:]) < waiting:
            clock.run(clock._timers[0][0])  # to whatever comes next
        mine = [row for row in run.rows[rows:] if row.request.kind != "traffic"]
        seen = [
            look(row, number, episode.kind, episode.round, episode.shots[int(row.request.kind)].role, noise, random)
            for row in mine
        ]
        everything += seen
        clock.run(clock.now + 0.05)
    raise AssertionError


def traffic(run: Virtual, clock: VirtualClock, noise: Noise, random: Random) -> None:
    if not noise.traffic_per_s:
        return

    def another() -> None:
        run.ask(Request(random.randint(500, 8000), random.randint(20, 200), (), "traffic"))
        clock.call_at(clock.now + random.expovariate(noise.traffic_per_s), another)

    clock.call_at(random.expovariate(noise.traffic_per_s), another)


def look(row: Row, episode: int, kind: str, turn: int, role: str, noise: Noise, random: Random) -> Seen:
    """As a client sees it, late and with some chunks in one."""
    times, last = [], row.sent_at
    for at in row.token_at:
        last = max(last, at + (random.expovariate(1 / noise.network_s) if noise.network_s else 0.0))
        times.append(last)
    if noise.merged:
        times = [at for i, at in enumerate(times) if i == len(times) - 1 or i == 0 or random.random() >= noise.merged]
    return Seen(
        episode=episode, kind=kind, round=turn, role=role, outcome=OK, asked_tokens=row.request.prompt_tokens,
        input_tokens=row.request.prompt_tokens, output_tokens=row.request.output_tokens,
        asked_output_tokens=row.request.output_tokens, sent_at=row.sent_at, chunk_at=tuple(times),
        cached_tokens=row.cached_tokens or None,
    )  # fmt: skip
