"""The experiments of the seed documents, in the simulator's virtual time: one function each, which
gives rows of figures.

Where a seed names a load it is that one; where it does not, the load is in the function's
docstring. Llama-3.1-8B on an H100 with vLLM's defaults unless said otherwise. Times are in seconds.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, repeat
from random import Random
from typing import NamedTuple

import numpy as np

from locust_llm.simulator.scheduling.batching_policies import POLICIES, WHOLE_PROMPTS
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.disaggregated import DisaggregatedEngine, Link
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import (
    GPUS,
    LLAMA_8B_H100,
    MODELS,
    V0_LLAMA_8B_H100,
    StepCostConstants,
)
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult

A40 = StepCostConstants(model=MODELS["llama-3.1-8b"], gpu=GPUS["a40"])
Arrivals = Iterator[tuple[float, VirtualRequest]]


def load(
    policy: str = "chunked",
    *,
    cost: StepCostConstants = LLAMA_8B_H100,
    limit: float = float("inf"),
    **flags: int,
) -> Virtual:
    """A load to be put on one GPU. ``limit``: the client's prefill limit. ``flags``: vLLM's."""
    budget = 131_072 if policy in WHOLE_PROMPTS else cost.gpu.max_num_batched_tokens
    defaults = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": cost.gpu.max_num_seqs,
        "kv_tokens": cost.kv_tokens,
    }
    clock = VirtualClock()
    scheduler = Scheduler(SchedulerConfig(**(defaults | flags)), POLICIES[policy], record=True)  # type: ignore[arg-type]
    return Virtual(clock, BatchEngine(scheduler, cost, clock), prefill_limit=limit)


def disaggregated(limit: float = float("inf")) -> Virtual:
    """One prefill and one decode H100, 400 Gbit/s between them."""
    cost, clock = LLAMA_8B_H100, VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=8192, max_num_seqs=1024, kv_tokens=cost.kv_tokens
    )
    engines = [
        BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), cost, clock)
        for _ in range(2)
    ]
    link = Link(bytes_per_token=cost.model.kv_bytes_per_token, bytes_per_s=50e9)
    return Virtual(
        clock, DisaggregatedEngine(engines[:1], engines[1:], link, clock), prefill_limit=limit
    )


def server(name: str) -> Virtual:
    """An H100 by name: a policy, ``chunked 512`` with its tokens a step, or ``disaggregated`` (two
    of them)."""
    if name == "disaggregated":
        return disaggregated()
    policy, _, budget = name.partition(" ")
    return (
        load(policy, max_num_batched_tokens=int(budget), max_num_seqs=256)
        if budget
        else load(policy)
    )


def poisson(
    rate: float, seconds: float, request: Callable[[Random], VirtualRequest], seed: int = 1
) -> Arrivals:
    random, at = Random(seed), 0.0
    while (at := at + random.expovariate(rate)) < seconds:
        yield at, request(random)


def percentile(values: Sequence[float], q: float) -> float:
    return float(np.percentile(values, q))


class Level(NamedTuple):
    prompt_tokens: int
    users: int
    output_per_s: float
    requests_per_s: float


def throughput(prompts: Sequence[int], users: Sequence[int], seconds: float = 60.0) -> list[Level]:
    """Closed loops of so many users, 100 tokens out; the first third of the time does not count."""
    levels = []
    for prompt in prompts:
        for count in users:
            run = load()
            run.closed_loop(count, repeat(VirtualRequest(prompt, 100)), stagger_s=0.05)
            done = [row.done_at for row in run.run(until=seconds)]
            rate = sum(at > seconds / 3 for at in done) / (seconds * 2 / 3)
            levels.append(Level(prompt, count, rate * 100, rate))
    return levels


class Order(NamedTuple):
    policy: str
    ttft_p50: float
    ttft_p99: float
    itl_mean: float
    stall_p99: float


def policies(rate: float = 3.0, seconds: float = 120.0) -> list[Order]:
    """One Poisson load for all: prompts of 1,000 to 5,000 tokens, 20 to 300 out."""
    found = []
    for policy in ("static", "prefill-first", "mixed", "chunked"):
        run = load(policy, max_num_batched_tokens=2048) if policy == "chunked" else load(policy)
        run.open_loop(
            poisson(
                rate,
                seconds,
                lambda r: VirtualRequest(r.randrange(1000, 5000), r.randrange(20, 300)),
            )
        )
        rows = run.run()
        ttft, stalls = [row.ttft_s for row in rows], [row.longest_stall_s for row in rows]
        itl = float(np.mean([row.itl_s for row in rows]))
        found.append(
            Order(policy, percentile(ttft, 50), percentile(ttft, 99), itl, percentile(stalls, 99))
        )
    return found


class Burst(NamedTuple):
    name: str
    longest_stall: float
    ttft_first: float
    ttft_mean: float
    tokens_meanwhile: int
    """What each of those who decode got until the last prompt was computed."""


def beside_decoders(
    name: str, run: Virtual, prompts: Sequence[int], decoders: int = 32, at: float = 2.0
) -> Burst:
    """Prompts that arrive together while others decode: 64 tokens in, 3,000 out."""
    run.keep_tokens = True
    run.open_loop(
        [(0.0, VirtualRequest(64, 3000, kind="decoder"))] * decoders
        + [(at, VirtualRequest(n, 1)) for n in prompts]
    )
    rows = run.run()
    prompt_rows = [row for row in rows if row.request.kind != "decoder"]
    others = [row for row in rows if row.request.kind == "decoder"]
    ttft = sorted(row.ttft_s for row in prompt_rows)
    until = at + ttft[-1]
    meanwhile = [sum(at < token < until for token in row.token_at) for row in others]
    stall = max(row.longest_stall_s for row in others)
    return Burst(name, stall, ttft[0], float(np.mean(ttft)), min(meanwhile))


CHUNKS = (512, 1024, 2048, 4096, 8192)


def bursts(prompts: int = 32, tokens: int = 3000) -> list[Burst]:
    """32 prompts at once beside 32 that decode."""
    whole = [
        beside_decoders(policy, load(policy), [tokens] * prompts)
        for policy in ("prefill-first", "mixed")
    ]
    return whole + [
        beside_decoders(
            f"chunked {chunk}",
            load(max_num_batched_tokens=chunk, max_num_seqs=256),
            [tokens] * prompts,
        )
        for chunk in CHUNKS
    ]


def chunk_sizes(tokens: int = 10_000) -> list[Burst]:
    """One long prompt beside 32 that decode."""
    return [
        beside_decoders(str(chunk), load(max_num_batched_tokens=chunk, max_num_seqs=256), [tokens])
        for chunk in CHUNKS
    ]


class Gain(NamedTuple):
    prompt_tokens: int
    output_tokens: int
    users: int
    overheads: str
    static: float
    prefill_first: float
    chunked: float
    """Requests a second."""


def chunking_gain(loads: Sequence[tuple[int, int, int]], seconds: float = 200.0) -> list[Gain]:
    """Closed loops that start staggered; (tokens in, tokens out, users). Prefill-first also with
    V0's own overheads. Long enough for many rounds: with prefill-first the users soon go in
    step."""

    def rate(policy: str, cost: StepCostConstants, prompt: int, output: int, users: int) -> float:
        run = load(policy, cost=cost)
        run.closed_loop(users, repeat(VirtualRequest(prompt, output)), stagger_s=0.02)
        return sum(row.done_at > seconds / 3 for row in run.run(until=seconds)) / (seconds * 2 / 3)

    found = []
    for shape in loads:
        static, chunked = (rate(policy, LLAMA_8B_H100, *shape) for policy in ("static", "chunked"))
        found.append(
            Gain(*shape, "same", static, rate("prefill-first", LLAMA_8B_H100, *shape), chunked)
        )
        found.append(
            Gain(*shape, "V0's", static, rate("prefill-first", V0_LLAMA_8B_H100, *shape), chunked)
        )
    return found


class Tail(NamedTuple):
    users: int
    p50: float
    p99: float


def synchronised(users: Sequence[int] = (8, 32, 64), tokens: int = 256) -> list[Tail]:
    """TTFT of so many equal prompts that arrive at the same moment."""
    tails = []
    for count in users:
        run = load()
        run.open_loop([(0.0, VirtualRequest(tokens, 32))] * count)
        ttft = [row.ttft_s for row in run.run()]
        tails.append(Tail(count, percentile(ttft, 50), percentile(ttft, 99)))
    return tails


def closed(
    users: Sequence[int],
    requests: Callable[[], Iterator[VirtualRequest]],
    seconds: float,
    **flags: int,
) -> list[Tail]:
    """TTFT in closed loops; the first fifth of the time does not count."""
    tails = []
    for count in users:
        run = load(**flags)
        run.closed_loop(count, requests(), stagger_s=0.03)
        ttft = [row.ttft_s for row in run.run(until=seconds) if row.sent_at > seconds / 5]
        tails.append(Tail(count, percentile(ttft, 50), percentile(ttft, 99)))
    return tails


def steady(users: Sequence[int] = (8, 32, 64), tokens: int = 256) -> list[Tail]:
    """The same prompts one after the other, each user on its own."""
    return closed(users, lambda: repeat(VirtualRequest(tokens, 32)), 60.0)


def near_saturation(
    users: Sequence[int] = (8, 16, 32, 64, 96, 128), seconds: float = 120.0
) -> list[Tail]:
    """Of ten prompts nine have 500 tokens and one 12,000; 100 out; places for 64 sequences
    (max_num_seqs)."""

    def mix() -> Iterator[VirtualRequest]:
        random = Random(5)
        while True:
            yield VirtualRequest(12_000 if random.random() < 0.1 else 500, 100)

    return closed(users, mix, seconds, max_num_seqs=64)


class Limited(NamedTuple):
    limit: int
    ttft_mean: float
    from_asked_mean: float
    """TTFT with the wait at the client's gate."""
    itl_mean: float
    stall_p99: float
    peak_kv: float
    """Share of the KV cache in use at the most."""
    preemptions: int
    requests_per_s: float


def limits(
    make: Callable[[float], Virtual], counts: Sequence[int] = (1, 2, 3, 5, 10, 30)
) -> list[Limited]:
    """AIPerf's example with shorter answers: 30 users, 16,000 tokens in, 100 out, and a prefill
    limit at the client."""
    found = []
    for limit in counts:
        run = make(limit)
        run.closed_loop(30, iter([VirtualRequest(16_000, 100)] * 120))
        rows = run.run()
        state = run.engine.state()
        found.append(
            Limited(
                limit,
                float(np.mean([row.ttft_s for row in rows])),
                float(np.mean([row.first_at - row.asked_at for row in rows])),
                float(np.mean([row.itl_s for row in rows])),
                percentile([row.longest_stall_s for row in rows], 99),
                state["max_used_blocks"] / state["num_blocks"],
                int(state["preemptions"]),
                len(rows) / max(row.done_at for row in rows),
            )
        )
    return found


class Goodput(NamedTuple):
    rate: float
    utilisation: float
    completed_per_s: float
    attainment: float
    goodput_per_s: float


def goodput(
    rates: Sequence[float], seconds: float = 120.0, ttft_s: float = 3.0, itl_s: float = 0.1
) -> list[Goodput]:
    """Poisson arrivals of 3,000 tokens in, 100 out, for two minutes; the targets are a TTFT of 3 s
    and 100 ms a token. The share of the requests that meet both, of all that came, and the share of
    the time in which the GPU worked."""
    found = []
    for rate in rates:
        run = load()
        run.open_loop(
            poisson(rate, seconds, lambda r: VirtualRequest(r.randrange(2000, 4000), 100))
        )
        run.run(until=seconds)
        busy = run.engine.state()["busy_s"]
        completed = len(run.rows) / seconds
        rows: list[VirtualResult] = run.run()
        good = sum(row.ttft_s <= ttft_s and row.itl_s <= itl_s for row in rows)
        found.append(
            Goodput(rate, min(1.0, busy / seconds), completed, good / len(rows), good / seconds)
        )
    return found


class Contention(NamedTuple):
    flags: str
    long_ttft: float
    short_ttft: float
    gap_mean: float
    gap_max: float
    """What those who decode saw until the long prompt was computed."""


FLAG_SETS = {  # as tests/real/contention.py puts them to a real vLLM
    "2048": ("chunked", {"max_num_batched_tokens": 2048}),
    "512": ("chunked", {"max_num_batched_tokens": 512}),
    "512, threshold 128": (
        "chunked",
        {"max_num_batched_tokens": 512, "long_prefill_token_threshold": 128},
    ),
    "16384, not chunked": ("mixed", {"max_num_batched_tokens": 16_384}),
}


def contention() -> list[Contention]:
    """Four decode; a prompt of 10,000 tokens arrives, and 50 ms later four of 30."""
    found = []
    for name, (policy, flags) in FLAG_SETS.items():
        run = load(policy, max_num_seqs=128, **flags)
        run.keep_tokens = True
        late = [(2.0, VirtualRequest(10_000, 1, kind="long"))] + [
            (2.05, VirtualRequest(30, 8, kind="short"))
        ] * 4
        run.open_loop([(0.0, VirtualRequest(40, 3000, kind="decoder"))] * 4 + late)
        rows: dict[str, list[VirtualResult]] = {}
        for row in run.run():
            rows.setdefault(row.request.kind, []).append(row)
        (long,) = rows["long"]
        gaps = [
            later - earlier
            for row in rows["decoder"]
            for earlier, later in pairwise(row.token_at)
            if 2.0 < later <= long.first_at
        ]
        short = percentile([row.ttft_s for row in rows["short"]], 50)
        found.append(Contention(name, long.ttft_s, short, float(np.mean(gaps)), max(gaps)))
    return found


class EarlySlope(NamedTuple):
    prompt_tokens: int
    output_tokens: int
    p50_s: tuple[float, ...]
    """Request latency at 1, 2, 4 and 8 users."""
    slope: float
    """Of its logarithm over that of the users, as the report of a sweep has it."""


def early_slopes(
    loads: Sequence[tuple[int, int]], seconds: float = 60.0, **flags: int
) -> list[EarlySlope]:
    """Closed loops of (tokens in, tokens out); the first fifth of the time does not count."""
    users, found = (1, 2, 4, 8), []
    for prompt, output in loads:
        p50_s = []
        for count in users:
            run = load(**flags)
            run.closed_loop(count, repeat(VirtualRequest(prompt, output)), stagger_s=0.05)
            rows = [row for row in run.run(until=seconds) if row.sent_at > seconds / 5]
            p50_s.append(percentile([row.done_at - row.sent_at for row in rows], 50))
        slope = float(np.polyfit(np.log(users), np.log(p50_s), 1)[0])
        found.append(EarlySlope(prompt, output, tuple(p50_s), slope))
    return found
