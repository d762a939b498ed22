"""Other twins: fits twins to servers that share nothing with the simulator, in virtual time: ``make
other-twins``. Prints Markdown, asserts nothing.

Each server (support/other_servers.py) is probed and swept once, a twin is fitted, and what it
predicts is compared with long runs of the server: at loads of the sweep, between them and beyond,
at rates, behind a gate, with other settings, and with mixed prompts. Seeds from 300 on, and the
mixture of experts, were not looked at while the errors of predictions were chosen. With
VLLM_PYTHON, a Python that has vLLM, one kind has vLLM's own scheduler.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, product
from random import Random
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import msgspec
from support.other_servers import (
    Experts,
    Lengths,
    OtherServer,
    PaddedBatches,
    PerRequestOverhead,
    Roofline,
    VllmScheduled,
    closed_loop,
    open_loop,
    probe,
)
from tabulate import tabulate

from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import diagnose_scheduler
from locust_llm.lab.twin.server_observations import ObservedStage, collect_episodes, stage_figures
from locust_llm.lab.twin.twin_fit import fit_twin
from locust_llm.lab.twin.twin_model import FIGURES, SchedulerSettings, Twin
from locust_llm.lab.twin.twin_prediction import PredictedValue, WhatIf
from locust_llm.lab.twin.virtual_replay import OfferedLoad
from locust_llm.lab.twin.whatif.whatif_grid import Case
from locust_llm.lab.twin.whatif.whatif_rows import DEFAULT, WhatIfPredictor
from locust_llm.slo.rules import parse_rule

SWEEP: Final = (1, 2, 4, 8, 16, 32)
TRUTH_REQUESTS: Final = 4000
"""A p99 is known to about 3% by so many."""
POPULATION: Final = 2000
"""The true work has these lengths, and each is sent equally often."""
ROOFLINE, OVERHEAD, EXPERTS = "roofline", "overhead a request", "mixture of experts"
VLLM, PADDED = "vLLM's scheduler", "padded batches"
CHUNKING: Final = {
    ROOFLINE: Roofline, OVERHEAD: PerRequestOverhead, EXPERTS: Experts, VLLM: VllmScheduled,
}  # fmt: skip
RULES: Final = (parse_rule("ttft p99 < 1s"),)
"""For a figure that is not in every answer."""
FIGURES_COMPARED: Final = (*DEFAULT, "ttft p99")


class Built(NamedTuple):
    """Describes a server's settings. ``budget`` is 0 if it has none."""

    kind: str
    speed: float
    most_running: int
    budget: int = 0

    def make(self, seed: int) -> OtherServer:
        if self.kind == PADDED:
            return PaddedBatches(seed, self.most_running, self.speed)
        return CHUNKING[self.kind](seed, self.budget, self.most_running, self.speed)


def build(kind: str, seed: int) -> Built:
    random = Random(f"{kind} {seed}")
    speed = math.exp(random.uniform(-0.7, 0.7))
    if kind == PADDED:
        return Built(kind, speed, random.choice((4, 8, 16, random.randint(5, 20))))
    budget = random.choice((512, 1024, 2048, 4096, random.randint(600, 3000)))
    return Built(kind, speed, random.choice((200, random.randint(10, 24))), budget)


def chat(random: Random) -> tuple[int, int]:
    return max(20, round(random.gauss(1000, 500))), max(4, round(random.gauss(80, 40)))


def mild(random: Random) -> tuple[int, int]:
    """Answers vary by a tenth, as those of ``run`` do by default."""
    return random.choice((200, 200, 200, 2000)), round(random.gauss(80, 8))


def hard(random: Random) -> tuple[int, int]:
    """Draws prompts of which the longest exceed the sweep's."""
    return random.choice((100, 100, 100, 4000)), round(random.gauss(80, 8))


def equal(random: Random) -> tuple[int, int]:
    """Draws answers of equal length. Their users fall into step, in each run in another way: after
    a thousand requests TTFT p95 may stay at 0.15 or at 0.24 s."""
    return random.choice((200, 200, 200, 2000)), 80


class Question(NamedTuple):
    group: str
    load: OfferedLoad
    server: Built
    settings: SchedulerSettings | None = None
    work: Lengths = chat
    limit: float = math.inf


def questions(built: Built, twin: Twin, capacity: float) -> Iterator[Question]:
    """Yields questions. ``capacity`` is the most requests per second that the server completes."""
    eight = OfferedLoad(users=8)
    yield Question("as fitted", eight, built)
    yield from (Question("other users", OfferedLoad(users=users), built) for users in (6, 24))
    yield Question("twice the users of the sweep", OfferedLoad(users=2 * SWEEP[-1]), built)
    yield from (
        Question("rates", OfferedLoad(rate=share * capacity), built) for share in (0.5, 0.8)
    )
    yield Question("gate of 2", OfferedLoad(users=16), built, limit=2)
    fitted = twin.model.settings
    half = built
    half_set: SchedulerSettings | None = None
    for factor, name in ((0.5, "half"), (2.0, "twice"), (0.25, "a quarter")):
        other, settings = _scaled(built, fitted, factor)
        if factor == 0.5:
            half, half_set = other, settings
        yield Question(f"{name} of its limit", eight, other, settings)
    for group, work in (("mixed", mild), ("mixed, longer than the sweep's", hard)):
        yield Question(group, eight, built, work=work)
        yield Question(f"{group}, half of its limit", eight, half, half_set, work)
    yield Question("mixed, answers equally long", eight, built, work=equal)


def _scaled(
    built: Built, fitted: SchedulerSettings, factor: float
) -> tuple[Built, SchedulerSettings]:
    """Scales the tokens of a step, or the places of a batch."""
    if not built.budget:
        places = max(1, round(factor * built.most_running))
        return built._replace(most_running=places), msgspec.structs.replace(
            fitted, max_num_seqs=places
        )
    budget = round(factor * built.budget)
    return built._replace(budget=budget), msgspec.structs.replace(
        fitted, max_num_batched_tokens=budget
    )


def again_and_again(work: Lengths, seed: int) -> Lengths:
    """Draws from one population, each length equally often."""
    drawing = Random(12_345)
    population = [work(drawing) for _ in range(POPULATION)]

    def endless() -> Iterator[tuple[int, int]]:
        random = Random(seed)
        while True:
            yield from random.sample(population, POPULATION)

    lengths = endless()
    return lambda _: next(lengths)


def measure(one: Question, seed: int, spread_s: float) -> ObservedStage:
    server = one.server.make(seed)
    work = again_and_again(one.work, seed)
    if one.load.rate:
        return open_loop(server, one.load.rate, work, seed, TRUTH_REQUESTS)
    return closed_loop(server, one.load.users, work, seed, TRUTH_REQUESTS, one.limit, spread_s)


class Answer(NamedTuple):
    kind: str
    group: str
    figure: str
    said: PredictedValue
    true: float

    @property
    def off(self) -> float:
        return abs(self.said.about / self.true - 1)

    @property
    def holds(self) -> bool:
        return self.said.low <= self.true <= self.said.high

    @property
    def apart(self) -> float:
        """Returns the width of the interval as a share of the value."""
        return (self.said.high - self.said.low) / self.said.about


class Result(NamedTuple):
    name: str
    trusted: bool
    answers: list[Answer]


def study(kind: str, seed: int) -> Result:
    built = build(kind, seed)
    name = f"{kind} {seed}: {built}"
    results = probe(built.make, seed)
    stages = [
        closed_loop(built.make(1000 * seed + users), users, chat, 2000 * seed + users)
        for users in SWEEP
    ]
    try:
        twin = fit_twin(
            diagnose_scheduler(measure_probe(results)), collect_episodes(results), stages
        )
    except ValueError:
        return Result(name, False, [])
    most = closed_loop(built.make(3), SWEEP[-1], chat, 4, 1000)
    capacity = stage_figures(most, ["requests/s"])["requests/s"]
    spread_s = fmean(one.latency_s for one in stages[3].requests)
    answers = list[Answer]()
    for number, one in enumerate(questions(built, twin, capacity)):
        true = stage_figures(measure(one, 77 * seed + number, spread_s), FIGURES_COMPARED)
        said = predict(twin, one)
        gated = math.isfinite(one.limit)
        answers += [
            Answer(kind, one.group, figure, said[figure], true[figure])
            for figure in FIGURES_COMPARED
            if figure in true and figure in said and (gated or "due" not in figure)
        ]
    return Result(name, twin.trust.verdict == FIGURES, answers)


def predict(twin: Twin, one: Question) -> dict[str, PredictedValue]:
    random = Random(1)
    lengths: Any = twin.lengths
    if one.work is not chat:
        lengths = [one.work(random) for _ in range(4000)]
    case = Case(WhatIf(one.load, one.limit, one.settings), ())
    asker = WhatIfPredictor(twin, lengths, RULES)
    return dict(asker.rows([case], lambda done, most: None, processes=1)[0].answers)


def table(answers: Sequence[Answer], key: Callable[[Answer], str]) -> str:
    rows = []
    for name in dict.fromkeys(map(key, answers)):
        some = [one for one in answers if key(one) == name]
        rows.append([
            name, len(some), f"{median(one.off for one in some):.1%}",
            f"{fmean(one.holds for one in some):.0%}", f"{median(one.apart for one in some):.0%}",
        ])  # fmt: skip
    head = ["", "figures", "off by, median", "the interval holds", "its ends are apart"]
    return tabulate(rows, head, tablefmt="github")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2, help="servers of each kind")
    parser.add_argument("--seed", type=int, default=300)
    parser.add_argument("--processes", type=int, default=None)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    kinds = [ROOFLINE, OVERHEAD, EXPERTS, PADDED]
    if "VLLM_PYTHON" in os.environ:
        kinds.append(VLLM)
    known = [(kind, seed) for seed, kind in product(seeds, kinds)]
    results = list[Result]()
    with ProcessPoolExecutor(options.processes) as pool:
        for one in pool.map(study, *zip(*known, strict=True)):
            results.append(one)
            held = [answer.holds for answer in one.answers]
            trust = "" if one.trusted else ", not good for absolute values"
            print(f"- {one.name}: holds {sum(held)} of {len(held)}{trust}", flush=True)
    every = list(chain.from_iterable(one.answers for one in results if one.trusted))
    for kind in kinds:
        answers = [answer for answer in every if answer.kind == kind]
        print(f"\n## {kind}\n\n{table(answers, lambda one: one.group)}")
    print(f"\n## By work\n\n{table(every, lambda one: one.group)}")
    print(f"\n## By kind\n\n{table(every, lambda one: one.kind)}")
    print(f"\n## By figure\n\n{table(every, lambda one: one.figure)}", flush=True)


if __name__ == "__main__":
    main()
