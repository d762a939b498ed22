"""Twins: fits twins to hidden servers, in virtual time: ``make twins``. Prints Markdown, asserts
nothing.

Servers of random policy, limits and costs, with the noise of ``make confusion``: each is probed and
swept, a twin is fitted, and its predictions of loads that nobody measured are compared with long
runs of the server. Some more have what is outside of every model: their twins must say that they
are not to be trusted.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain, count
from random import Random
from statistics import median
from typing import Final, NamedTuple

from support.predictions import predict_figures
from support.probing import FIXED, Noise, Server, probed
from support.sweeping import chat, stage, swept
from tabulate import tabulate

from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import diagnose_scheduler
from locust_llm.lab.twin.server_observations import collect_episodes, stage_figures
from locust_llm.lab.twin.twin_fit import fit_twin
from locust_llm.lab.twin.twin_model import FIGURES, Twin, step_work
from locust_llm.lab.twin.twin_prediction import PredictedValue, WhatIf
from locust_llm.lab.twin.virtual_replay import OfferedLoad
from locust_llm.simulator.scheduling.batching_policies import WHOLE_PROMPTS
from locust_llm.simulator.scheduling.step_cost import GPUS, MODELS, StepCostConstants

NOISES: Final = (
    Noise(),
    Noise(steps=0.05, network_s=0.0002),
    Noise(steps=0.1, network_s=0.001, merged=0.02),
    Noise(steps=0.2, network_s=0.002, merged=0.05, hiccups_s=0.03),
)
SWEEP: Final = (1, 2, 4, 8, 16, 32, 64, 128)
UNSEEN: Final = (3, 6, 12, 24, 48, 96)
TRUTH_REQUESTS: Final = 10_000
"""A long run has this many requests, and at least 40 of each user."""
CLOSE: Final = 0.1
"""A parameter is right within this share."""


SHOWN: Final = ("ttft p50", "ttft p99", "itl p50", "stall p95", "throughput")
STEPS: Final = {
    "a stream": ((), 1, 1000),
    "32 streams": ((), 32, 32_000),
    "a prompt's 1,000 tokens": (((0, 1000),), 0, 0),
    "400 tokens beside 16 streams": (((400, 400),), 16, 16_000),
}
"""Each entry has segments, streams and tokens in their contexts. A server has the part of a segment
that its budget permits."""
APART: Final = ("static", "prefill-first")
"""These policies have no step with both prompts and streams."""


class Hidden(NamedTuple):
    server: Server
    noise: int
    more: Noise = Noise()
    about: str = ""

    @property
    def seen_noise(self) -> Noise:
        plain = vars(Noise())
        more = {name: value for name, value in vars(self.more).items() if value != plain[name]}
        return Noise(**(vars(NOISES[self.noise]) | more))

    @property
    def label(self) -> str:
        server = self.server
        limits = [f"budget {server.budget}"] if server.budget else []
        limits += (
            [f"threshold {server.threshold}"] if server.threshold and server.partial == 1 else []
        )
        limits += [f"places {server.partial}"] if server.partial > 1 else []
        limits += [f"seqs {server.num_seqs}"] if server.num_seqs else []
        return ", ".join([self.about or server.policy, *limits, f"noise {self.noise}"])


def hidden(seed: int, count: int) -> Iterator[Hidden]:
    """Yields servers of each policy in turn, at each noise in turn."""
    random = Random(seed)
    kinds = (
        "chunked",
        "chunked",
        "threshold",
        "partial-prefills",
        "prefill-first",
        "mixed",
        "chunked",
        "static",
    )
    for number in range(count):
        kind = kinds[number % len(kinds)]
        noise = (number // 2) % len(NOISES)
        seqs = random.choice((None, random.randint(12, 100)))
        budget = random.choice((random.choice((512, 1024, 2048, 4096)), random.randint(400, 4000)))
        shared = {"cost": costs(random), "num_seqs": seqs}
        if kind in WHOLE_PROMPTS:
            server = Server(policy=kind, **shared)
        elif kind == "threshold":
            places = random.randint(2, 5)
            threshold = random.randint(250, 800)
            server = Server(budget=places * threshold, threshold=threshold, **shared)
        elif kind == "partial-prefills":
            places = random.randint(2, 5)
            server = Server(
                policy=kind,
                budget=max(budget, 900),
                partial=places,
                long_partial=places,
                threshold=1310,
                **shared,
            )
        else:
            server = Server(budget=budget, **shared)
        yield Hidden(server, noise)


def costs(random: Random) -> StepCostConstants:
    """Draws costs between half and twice of what the parts of a GPU take."""
    gpu = GPUS[random.choice(("h100", "a100-40", "a40"))]

    def about(value: float) -> float:
        return value * math.exp(random.uniform(-0.5, 0.5))

    return StepCostConstants(
        model=MODELS["llama-3.1-8b"], gpu=replace(gpu, memory_bytes=80e9),
        bandwidth_efficiency=min(1.0, about(0.7)),
        mfu=min(0.9, about(0.5)), attention_mfu=about(0.4), step_overhead_s=about(2.55e-3),
        seq_overhead_s=about(2e-5),
    )  # fmt: skip


def outside() -> Iterator[Hidden]:
    """Yields servers with properties that no model has."""
    server = Server(budget=1024, num_seqs=64)
    yield Hidden(server, 1, Noise(guessed=0.5), "speculative decoding, 1.5 tokens a step")
    yield Hidden(replace(server, replicas=2), 1, about="two replicas behind one address")
    yield Hidden(server, 1, Noise(traffic_per_s=2.0), "two other requests a second")
    yield Hidden(Server(policy=FIXED), 1, about="fixed latency")
    yield Hidden(Server(policy="disaggregated"), 1, about="disaggregated")
    yield Hidden(server, 1, Noise(slowed=3.0), "three times slower in bursts")


class Result(NamedTuple):
    hidden: Hidden
    twin: Twin | None
    why: str
    took_s: float
    answers: list[tuple[str, PredictedValue, float]]
    """Each entry has figure, prediction, truth."""

    @property
    def trusted(self) -> bool:
        return self.twin is not None and self.twin.trust.verdict == FIGURES

    @property
    def wrong(self) -> list[str]:
        """These parameters are predicted wrongly."""
        if self.twin is None:
            return []
        said, true = self.twin.model.settings, self.hidden.server
        found = []
        if said.policy != true.policy:
            found.append(f"policy {said.policy}")
        threshold = said.long_prefill_token_threshold
        if (
            true.budget
            and threshold
            and abs(threshold / (true.threshold or true.budget) - 1) > CLOSE
        ):
            found.append(f"threshold {threshold}")
        if true.budget and abs(said.max_num_batched_tokens / true.budget - 1) > CLOSE:
            found.append(f"budget {said.max_num_batched_tokens}")
        if said.max_num_partial_prefills != true.partial:
            found.append(f"places {said.max_num_partial_prefills}")
        if (said.max_num_seqs or 0) and abs(
            (said.max_num_seqs or 0) / (true.num_seqs or 1e9) - 1
        ) > CLOSE:
            found.append(f"seqs {said.max_num_seqs}")
        if said.kv_tokens:
            found.append(f"KV tokens {said.kv_tokens}")
        return [
            *found,
            *(f"step of {name} {off:+.0%}" for name, off in self.steps.items() if abs(off) > CLOSE),
        ]

    @property
    def steps(self) -> dict[str, float]:
        """Returns the relative error of step times that the server can have. It never has steps
        beyond its budget, and they stay unobserved."""
        if self.twin is None:
            return {}
        said = self.twin.model
        true = self.hidden.server.costs.step_time()
        noise = self.hidden.seen_noise
        times = math.exp(noise.steps**2 / 2)  # the mean of its factor
        off = {}
        for name, (segments, decodes, tokens) in STEPS.items():
            if self.hidden.server.policy in APART and segments and decodes:
                continue
            room = (self.hidden.server.budget or sys.maxsize) - decodes
            here = tuple((before, min(new, room)) for before, new in segments)
            off[name] = (
                said.cost.step_s(step_work(here, decodes, tokens))
                / (times * true(here, decodes, tokens))
                - 1
            )
        return off

    @property
    def missing(self) -> list[str]:
        if self.twin is None:
            return ["twin"]
        here = self.hidden.server.num_seqs
        return (
            ["seqs"]
            if here and here < SWEEP[-1] / 1.2 and self.twin.model.settings.max_num_seqs is None
            else []
        )

    def off(self, figure: str) -> float:
        return median(
            abs(said.about / true - 1) for name, said, true in self.answers if name == figure
        )


def study(one: Hidden, seed: int) -> Result:
    began = time.process_time()
    noise = one.seen_noise
    results = probed(one.server, noise, seed)
    stages = swept(one.server, noise, seed + 1000, SWEEP)
    try:
        twin = fit_twin(
            diagnose_scheduler(measure_probe(results)), collect_episodes(results), stages
        )
    except ValueError as error:
        return Result(one, None, str(error), time.process_time() - began, [])
    took_s = time.process_time() - began
    answers = []
    random = Random(seed)
    lengths = [chat(random) for _ in range(2000)]
    for users in UNSEEN:
        rounds = max(40, TRUTH_REQUESTS // users)
        mix = again_and_again(lengths, Random(seed + users))
        true = stage_figures(
            stage(
                one.server, noise, seed + 5000 + users, users, lambda _, mix=mix: next(mix), rounds
            )
        )
        asked = WhatIf(OfferedLoad(users=users))
        said = predict_figures(twin.models(), asked, lengths, twin.trust.errors)
        answers += [(figure, said[figure], true[figure]) for figure in true if figure in said]
    return Result(one, twin, "; ".join(twin.trust.reasons), took_s, answers)


def again_and_again(
    lengths: Sequence[tuple[int, int]], random: Random
) -> Iterator[tuple[int, int]]:
    """Draws all of them, each time in another order, so long prompts are as frequent as in the
    workload, not by chance more."""
    while True:
        yield from random.sample(lengths, len(lengths))


def report(title: str, results: Sequence[Result]) -> str:
    rows = []
    for one in results:
        trust = one.twin.trust if one.twin else None
        rows.append([
            one.hidden.label, trust.verdict if trust else "no twin",
            f"{trust.error:.1%}" if trust and trust.error else "",
            ", ".join([*one.wrong, *(f"no {name}" for name in one.missing)]) or "right",
            *(f"{one.off(figure):.1%}" if one.answers else "" for figure in SHOWN),
            f"{one.took_s:.0f}",
        ])  # fmt: skip
    head = ["server", "verdict", "held out", "parameters", *SHOWN, "CPU s"]
    return f"## {title}\n\n{tabulate(rows, head, tablefmt='github')}\n"


def summary(results: Sequence[Result]) -> str:
    every = list(chain.from_iterable(one.answers for one in results if one.trusted))
    right = sum(not one.wrong and not one.missing for one in results)
    lines = [
        f"right: {right} of {len(results)}; wrong: {sum(bool(one.wrong) for one in results)}; "
        f"trusted: {sum(one.trusted for one in results)}"
    ]
    for figure in sorted({name for name, _, _ in every}):
        some = [(said, true) for name, said, true in every if name == figure]
        off = sorted(abs(said.about / true - 1) for said, true in some)
        held = sum(said.low <= true <= said.high for said, true in some) / len(some)
        wide = median(said.high / said.low - 1 for said, _ in some)
        lines.append(
            f"- {figure}: off by {median(off):.1%} (median), {off[len(off) * 9 // 10]:.1%} in nine "
            f"of ten; "
            f"the interval holds {held:.0%} of {len(some)}, its ends are {wide:.0%} apart"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=90_000)
    parser.add_argument("--only", help="servers with this in their label")
    options = parser.parse_args()
    known = [
        one for one in hidden(options.seed, options.count) if (options.only or "") in one.label
    ]
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(study, known, count(options.seed)))
        print(report("Hidden servers", results), flush=True)
        print(summary(results), flush=True)
        print(
            report(
                "Outside of the model", list(pool.map(study, outside(), count(options.seed + 500)))
            )
        )


if __name__ == "__main__":
    main()
