"""The experiments of the pull request on concurrent partial prefills, in the simulator's virtual
time, on an A40."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np
from experiments import A40, Arrivals, load, percentile

from locust_llm.simulator.scheduling.virtual_time import VirtualRequest


class Partial(NamedTuple):
    output_tokens: int
    max_num_seqs: int
    max_num_partial_prefills: int
    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    output_per_s: float


def partial_prefills(
    slots: Sequence[int] = (1, 4, 16), outputs: Sequence[int] = (128, 1),
    seqs: Sequence[int] = (128, 1024),
    count: int = 500, mix: str = "small",
) -> list[Partial]:  # fmt: skip
    """A40, 12 requests a second, a budget of 2,048 and, with several slots, a threshold of 2,048,
    as the pull request has them; its figure has short, medium and long prompts, but no numbers: see
    MIXES. "uniform" is its control, 2,048 tokens all, in a closed loop of 120 users."""
    found = []
    for output in outputs:
        for most in seqs:
            for number in slots:
                flags = {"max_num_batched_tokens": 2048, "max_num_seqs": most}
                if number > 1:
                    flags |= {
                        "max_num_partial_prefills": number,
                        "long_prefill_token_threshold": 2048,
                    }
                run = load("partial-prefills" if number > 1 else "chunked", cost=A40, **flags)
                if mix == "uniform":
                    run.closed_loop(120, iter([VirtualRequest(2048, output)] * count))
                else:
                    run.open_loop(_mixed(MIXES[mix], output, count))
                rows = run.run()
                ttft = [row.ttft_s for row in rows]
                took = max(row.done_at for row in rows)
                found.append(
                    Partial(
                        output, most, number, float(np.mean(ttft)), percentile(ttft, 50),
                        percentile(ttft, 99),
                        output * len(rows) / took,
                    )
                )  # fmt: skip
    return found


MIXES = {  # of 100 prompts so many have from ... to ... tokens: short, medium and long
    "small": ((90, 20, 200), (8, 500, 2000), (2, 4000, 10_000)),
    "large": ((80, 50, 300), (15, 1500, 3000), (5, 10_000, 20_000)),
}


def _mixed(
    mix: Sequence[tuple[int, int, int]], output: int, count: int, rate: float = 12.0
) -> Arrivals:
    random, at = Random(11), 0.0
    for _ in range(count):
        at += random.expovariate(rate)
        ((_, low, high),) = random.choices(mix, weights=[share for share, _, _ in mix])
        yield at, VirtualRequest(random.randrange(low, high), output)


BUDGET = 2048
SHARING = {
    "4 slots": ("partial-prefills", {"max_num_partial_prefills": 4}),
    "threshold alone": ("chunked", {}),
}


class Threshold(NamedTuple):
    threshold: int
    ttft_mean: float
    short_ttft: float
    """Mean of prompts of up to 200 tokens."""
    long_ttft: float
    """Mean of prompts of 4,000 and more."""
    output_per_s: float


def thresholds(sharing: str, rate: float = 8.0, count: int = 500) -> list[Threshold]:
    """The small mix at a rate that leaves a queue, 128 out; thresholds from 128 to 8,192.
    ``sharing``: of SHARING."""
    policy, flags = SHARING[sharing]
    found = []
    for threshold in (128, 256, 512, 1024, 2048, 4096, 8192):
        run = load(
            policy, cost=A40, max_num_batched_tokens=BUDGET, max_num_seqs=1024,
            long_prefill_token_threshold=threshold,
            **flags,
        )  # fmt: skip
        run.open_loop(_mixed(MIXES["small"], 128, count, rate))
        rows = run.run()
        of = {
            name: float(
                np.mean([row.ttft_s for row in rows if low <= row.request.prompt_tokens <= high])
            )
            for name, low, high in (("all", 0, 10**6), ("short", 0, 200), ("long", 4000, 10**6))
        }
        output_per_s = 128 * len(rows) / max(row.done_at for row in rows)
        found.append(Threshold(threshold, of["all"], of["short"], of["long"], output_per_s))
    return found
