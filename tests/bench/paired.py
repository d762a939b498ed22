"""Paired: measures how often A/B in pairs calls equal variants different, and variants that differ
by 5 %. It compares two successive runs, too.

    tests/bench/paired.py methods [--runs 1000]     five ways to the interval, on synthetic blocks
    tests/bench/paired.py weathers [--runs 300]     servers that change over time, periodic ones too, by two plans
    tests/bench/paired.py server [--runs 100]       whole runs against the simulator in virtual time, and compare

Nothing here takes real time: what the machine does beside it does not count.
"""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from random import Random
from statistics import NormalDist
from typing import Final

import numpy as np

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.array_types import Floats
from locust_llm.report.compare.metric_differences import measure_change
from locust_llm.report.load_records import collect_columns
from locust_llm.report.measurement_window import RateWindow
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.sections.ab_comparison import (
    CHANCE,
    compare_arms,
    compute_arm_difference,
    familywise_p_value,
    list_compared_figures,
)
from locust_llm.report.slo_evidence.observed_rule_values import Evaluation
from locust_llm.settings.ab_arms import BASE, CANDIDATE, TrialBlock, opposite_arm, order_blocks
from locust_llm.settings.run_options import Settings
from locust_llm.settings.sweep_option import TIME_UP
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest, VirtualResult
from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.slo.student_t import find_student_t

PAIRS: Final = 12
BLOCK_S: Final = 10.0
WASHOUT_S: Final = 2.0
WEATHER_BLOCK_S: Final = 15.0
WEATHER_WASHOUT_S: Final = 3.0

# -- methods ---------------------------------------------------------------------------------------

Blocks = Floats
"""The shape is (pairs, 2, requests): base and candidate of each pair."""
STATS: Final = ("mean", "p50", "p95", "p99")


def stats(values: Floats) -> Floats:
    """Computes the statistics of the last axis."""
    return np.stack([values.mean(axis=-1), *np.percentile(values, (50, 95, 99), axis=-1)], axis=-1)


def whole(blocks: Blocks) -> Floats:
    """Returns the difference between all values of the candidate and all of the base."""
    base, candidate = stats(blocks.transpose(1, 0, 2).reshape(2, -1))
    difference: Floats = candidate - base
    return difference


def log_ratios(blocks: Blocks) -> Floats:
    each = stats(blocks)
    return (
        np.array(
            [compute_arm_difference(each[:, :, i], relative=True).ratio for i in range(len(STATS))]
        )[:, 1:]
        - 1
    )


def differences(blocks: Blocks) -> Floats:
    each = stats(blocks)
    return np.array(
        [
            compute_arm_difference(each[:, :, i], relative=False).difference[1:]
            for i in range(len(STATS))
        ]
    )


def sectioning(blocks: Blocks) -> Floats:
    """Returns the interval around the difference of all values together."""
    each = stats(blocks)
    n = len(blocks)
    middle = whole(blocks)
    reach = np.sqrt(
        ((each[:, 1] - each[:, 0] - middle) ** 2).sum(axis=0) / (n - 1) / n
    ) * find_student_t(n - 1, TAIL)
    return np.column_stack([middle - reach, middle + reach])


def pooled_bootstrap(blocks: Blocks) -> Floats:
    """Draws pairs with replacement, and takes the differences of all their values. The interval is
    widened for few pairs."""
    n = len(blocks)
    random = np.random.default_rng(1)
    middle = whole(blocks)
    draws = np.array([whole(blocks[random.integers(0, n, n)]) for _ in range(400)])
    spread = middle + (draws - middle) * (
        find_student_t(n - 1, TAIL) / NormalDist().inv_cdf(0.975) * math.sqrt(n / (n - 1))
    )
    return np.percentile(spread, (2.5, 97.5), axis=0).T


def signed_ranks(blocks: Blocks) -> Floats:
    """Returns intervals of the logarithms of the ratios: Walsh averages (Hodges and Lehmann, Annals
    of Mathematical Statistics 34, 1963)."""
    each = np.log(stats(blocks))
    delta = each[:, 1] - each[:, 0]
    i, j = np.triu_indices(len(delta))
    walsh = np.sort((delta[i] + delta[j]) / 2, axis=0)
    cut = {10: 8, 12: 13, 14: 21, 20: 52}[len(delta)]  # two-sided 5 % of Wilcoxon's statistic
    found: Floats = np.expm1(walsh[[cut, -1 - cut]]).T
    return found


METHODS: Final = {
    "log ratios, t": log_ratios, "differences, t": differences, "sectioning": sectioning,
    "pooled bootstrap": pooled_bootstrap, "signed ranks": signed_ranks,
}  # fmt: skip


def blocks_of(
    random: np.random.Generator, *, size: int, memory: float, weather: float, slower: float
) -> Blocks:
    """Draws lognormal latencies, AR(1) within a block. The level of each block is a random walk of
    its logarithm."""
    shape = (PAIRS, 2, size)
    noise = random.standard_normal(shape)
    drawn = np.empty(shape)
    drawn[..., 0] = noise[..., 0]
    for i in range(1, size):
        drawn[..., i] = memory * drawn[..., i - 1] + math.sqrt(1 - memory**2) * noise[..., i]
    walk = np.cumsum(random.standard_normal(2 * PAIRS) * weather).reshape(PAIRS, 2)
    first = np.tile([random.permutation([0, 1]), [0, 1]], (PAIRS // 2, 1))
    for pair in range(0, PAIRS, 2):
        ahead = int(random.integers(2))
        first[pair], first[pair + 1] = (ahead, 1 - ahead), (1 - ahead, ahead)
    walk = np.take_along_axis(walk, first, axis=1)
    latency: Floats = np.exp(0.4 * drawn + walk[..., None])
    latency[:, 1] *= slower
    return latency


def methods(runs: int) -> None:
    print(f"{'cell':44}{'method':18}" + "".join(f"{name:>8}" for name in STATS))
    for size, memory, weather in (
        (80, 0.0, 0.0), (80, 0.5, 0.02), (80, 0.9, 0.02), (80, 0.5, 0.1), (80, 0.5, 0.3),
        (300, 0.9, 0.1),
    ):  # fmt: skip
        for slower in (1.0, 1.05, 1.2):
            found = {method: np.zeros(len(STATS)) for method in METHODS}
            random = np.random.default_rng(7)
            for _ in range(runs):
                blocks = blocks_of(random, size=size, memory=memory, weather=weather, slower=slower)
                for method, interval in METHODS.items():
                    low, high = interval(blocks).T
                    found[method] += (low > 0) | (high < 0)
            for method, called in found.items():
                cell = f"n {size}, AR {memory}, weather {weather}, {slower - 1:.0%} slower"
                print(
                    f"{cell:44}{method:18}{''.join(f'{share:8.1%}' for share in called / runs)}",
                    flush=True,
                )


# -- servers that change over time -----------------------------------------------------------------

PERIODS_S: Final = (10, 15, 20, 25, 30, 36, 45, 50, 60, 63, 66, 80, 100, 120, 150, 200, 300)
WEATHERS: Final = ("none", "linear", "step", "warm-up", "wander", "bursts")
STEP_S: Final = 0.25
PAUSE_S: Final = 0.5
"""This time passes between two blocks."""


def draw_weather(kind: str, seconds: float, random: np.random.Generator) -> Floats:
    """Draws the logarithm of the server's slowdown at each ``STEP_S``. ``kind`` is a name, or the
    period of a wave of 20 %."""
    at: Floats = np.arange(0, seconds, STEP_S)
    calm: Floats = np.zeros(len(at))
    if kind == "none":
        return calm
    if kind == "linear":
        return calm + 0.3 * at / seconds
    if kind == "step":
        return np.where(at > random.uniform(0.1, 0.9) * seconds, 0.2, calm)
    if kind == "warm-up":
        return calm + 0.3 * np.exp(-8 * at / seconds)
    if kind == "wander":  # Ornstein and Uhlenbeck's, of 10 %, over a minute
        stay = math.exp(-STEP_S / 60)
        steps = math.sqrt(1 - stay**2) * 0.1 * random.standard_normal(len(at))
        steps[0] = 0.1 * random.standard_normal()
        for i in range(1, len(at)):
            steps[i] += stay * steps[i - 1]
        return calm + steps
    if kind == "bursts":  # another program, for 20 to 60 s
        began = 0.0
        while (began := began + random.exponential(90)) < seconds:
            over = began + random.uniform(20, 60)
            calm[(at >= began) & (at < over)] = math.log(1.3)
            began = over
        return calm
    phase = random.uniform(0, 2 * math.pi)
    return np.log1p(0.2 * np.sin(2 * math.pi * at / float(kind) + phase))


def order_in_turn(pairs: int, seed: int, *, block_s: float) -> tuple[TrialBlock, ...]:
    """Returns the earlier plan: blocks of one duration, and of two neighbouring pairs each variant
    comes first once."""
    random = Random(f"{seed}/arms")
    blocks = list[TrialBlock]()
    first = CANDIDATE
    for pair in range(pairs + 1):
        first = random.choice((BASE, CANDIDATE)) if pair % 2 else opposite_arm(first)
        blocks.append(TrialBlock(pair, first, block_s))
        blocks.append(TrialBlock(pair, opposite_arm(first), block_s))
    return tuple(blocks)


def measure_blocks(
    blocks: Sequence[TrialBlock], kind: str, slower: float, random: np.random.Generator
) -> Floats:
    """Draws (pairs, arms, figures) of lognormal latencies, six per second, correlated only by the
    slowdown."""
    seconds = sum(block.load_s + PAUSE_S for block in blocks)
    weather = draw_weather(kind, seconds + STEP_S, random)
    found = np.empty((blocks[-1].pair, 2, len(STATS)))
    began = 0.0
    for block in blocks:
        if block.pair:
            count = max(2, random.poisson(6 * (block.load_s - WEATHER_WASHOUT_S)))
            at = random.uniform(began + WEATHER_WASHOUT_S, began + block.load_s, count)
            drawn = 0.4 * random.standard_normal(count) + weather[(at / STEP_S).astype(int)]
            if block.arm == CANDIDATE:
                drawn += math.log(slower)
            found[block.pair - 1, int(block.arm == CANDIDATE)] = stats(np.exp(drawn))
        began += block.load_s + PAUSE_S
    return found


def weathers(runs: int) -> None:
    """Measures how often equal variants, and variants that differ by 10 %, are called different: by
    the interval of each figure, and by the common verdict."""
    plans = {"in turn, equal": False, "drawn": True}
    shown = "".join(f"{name:>8}" for name in (*STATS, "verdict"))
    print(f"{'weather':10}{'pairs':>6}{'slower':>8}  {'plan':16}{shown}")
    for kind in (*WEATHERS, *map(str, PERIODS_S)):
        for slower in (1.0, 1.1):
            for plan, drawn in plans.items():
                random = np.random.default_rng(7)
                called = np.zeros(len(STATS) + 1)
                for seed in range(runs):
                    if drawn:
                        blocks = order_blocks(
                            PAIRS, seed, block_s=WEATHER_BLOCK_S, washout_s=WEATHER_WASHOUT_S
                        )
                    else:
                        blocks = order_in_turn(PAIRS, seed, block_s=WEATHER_BLOCK_S)
                    values = measure_blocks(blocks, kind, slower, random)
                    for i in range(len(STATS)):
                        ratio = compute_arm_difference(values[:, :, i], relative=True).ratio
                        assert ratio is not None
                        called[i] += not ratio[1] <= 1 <= ratio[2]
                    deltas = np.diff(np.log(values), axis=1)[:, 0]
                    called[-1] += familywise_p_value(deltas) <= CHANCE
                shares = "".join(f"{share:8.1%}" for share in called / runs)
                print(f"{kind:10}{PAIRS:6}{slower - 1:8.0%}  {plan:16}{shares}", flush=True)


# -- whole runs against the simulator --------------------------------------------------------------


class Weather:
    """Returns the machine's slowdown at a moment: an Ornstein-Uhlenbeck process of the logarithm,
    and stretches in which another program takes a part of it."""

    def __init__(
        self, seed: int, *, spread: float = 0.1, minutes: float = 1.0, burner: float = 1.3
    ) -> None:
        random = Random(seed)
        self._at = list[float]()
        stay = math.exp(-1 / (60 * minutes))
        value = random.gauss(0, spread)
        burns = 0
        for _ in range(2000):
            value = stay * value + math.sqrt(1 - stay**2) * random.gauss(0, spread)
            if burns > 0:
                burns -= 1
            elif random.random() < 1 / 150:
                burns = random.randint(20, 60)
            self._at.append(math.exp(value) * (burner if burns else 1.0))

    def at(self, second: float) -> float:
        return self._at[int(second)]


class World:
    """Runs two servers on one clock, under one slowdown."""

    def __init__(self, seed: int, slower: float) -> None:
        self.clock = VirtualClock()
        self.random = Random(seed)
        self.weather = Weather(seed)
        self.loads = {BASE: self._server(), CANDIDATE: self._server()}
        self._slower = {BASE: 1.0, CANDIDATE: slower}

    def _server(self) -> Virtual:
        config = SchedulerConfig(
            max_num_batched_tokens=8192,
            max_num_seqs=8,
            kv_tokens=200_000,
            enable_prefix_caching=False,
        )
        return Virtual(
            self.clock,
            BatchEngine(
                Scheduler(config, POLICIES["chunked"], record=True), LLAMA_8B_H100, self.clock
            ),
        )

    def block(self, arm: str, lengths: str, seconds: float, rate: float) -> list[VirtualResult]:
        """Sends arrivals for so many seconds, and collects the results."""
        load = self.loads[arm]
        began = self.clock.now
        random = Random(lengths)
        load.rows = []
        engine = load.engine
        assert isinstance(engine, BatchEngine)

        def blow() -> None:
            engine.time_scale = self.weather.at(self.clock.now) * self._slower[arm]
            if self.clock.now < began + seconds:
                self.clock.call_at(self.clock.now + 0.5, blow)

        blow()
        arrivals = list[tuple[float, VirtualRequest]]()
        at = began
        while (at := at + random.expovariate(rate)) < began + seconds:
            prompt, output = (
                max(1, round(random.gauss(mean, spread)))
                for mean, spread in ((550, 200), (100, 30))
            )
            arrivals.append((at, VirtualRequest(prompt, max(2, output))))
        load.open_loop(arrivals)
        self.clock.run()
        self.clock.now = max(self.clock.now, began + seconds)
        return list(load.rows)


def record(row: VirtualResult, **labels: object) -> Record:
    us = tuple(round((at - row.sent_at) * 1e6) for at in (row.first_at, row.done_at))
    fields = {
        "id": "a", "clock_offset_s": 0.0, "due_at": row.asked_at, "asked_at": row.asked_at,
        "sent_at": row.sent_at,
        "closed_at": row.done_at, "chunk_us": us, "first_output": 0,
        "input_tokens": row.request.prompt_tokens,
        "output_tokens": row.request.output_tokens, "tokens_from": "usage", "status": 200,
    }  # fmt: skip
    return Record(**(fields | labels))  # type: ignore[arg-type]


def in_pairs(seed: int, slower: float, rate: float) -> dict[str, str]:
    """Returns the calls for each figure, and for all together."""
    world = World(seed, slower)
    records = list[Record]()
    stages = list[Stage]()
    for number, block in enumerate(
        order_blocks(PAIRS, seed, block_s=BLOCK_S, washout_s=WASHOUT_S), 1
    ):
        began = world.clock.now
        for row in world.block(block.arm, f"{seed}/{block.pair}", block.load_s, rate):
            phase = "profiling" if block.pair and row.asked_at >= began + WASHOUT_S else "warmup"
            records.append(record(row, arm=block.arm, pair=block.pair, stage=number, phase=phase))
        stages.append(
            Stage(
                number=number, value=number, began_at=began, measured_at=began + WASHOUT_S,
                ended_at=began + block.load_s,
                why=TIME_UP, arm=block.arm, pair=block.pair,
            )
        )  # fmt: skip
    settings = Settings(aa=True, request_rate=rate, block_duration=BLOCK_S, washout=WASHOUT_S)
    run = Run(name="a", settings=settings, started_at=0.0, profiling_at=0.0, stages=tuple(stages))
    requests = collect_columns(sorted(records, key=lambda one: one.closed_at)).requests
    found, _ = compare_arms(RequestSelection(requests, np.ones(len(requests), np.bool_)), run, None)
    return {figure.label: figure.word for figure in found.figures} | {"verdict": found.verdict}


def one_after_the_other(seed: int, slower: float, rate: float) -> dict[str, str]:
    """Runs both variants one after the other for the same total time, and compares them."""
    world = World(seed, slower)
    sides = list[Evaluation]()
    settings = Settings(request_rate=rate, aa=True)
    run = Run(name="a", settings=settings, started_at=0.0, profiling_at=0.0)
    for arm in (BASE, CANDIDATE):
        began = world.clock.now
        seconds = (PAIRS + 1) * BLOCK_S
        rows = world.block(arm, f"{seed}/{arm}", seconds, rate)
        records = [record(row) for row in rows if row.asked_at >= began + WASHOUT_S]
        requests = collect_columns(records).requests
        main = RequestSelection(requests, np.ones(len(requests), np.bool_))
        sides.append(Evaluation(main, run, None, None, records, main, RateWindow(main.span())))
    found = {}
    for rule in list_compared_figures(run):
        word = measure_change(rule, *sides).word(rule)
        found[f"{rule.metric} {rule.stat}".strip()] = word.removeprefix("hardly ")
    return found


def server(runs: int, rate: float) -> None:
    for slower in (1.0, 1.05):
        for way in (in_pairs, one_after_the_other):
            words: dict[str, Counter[str]] = {}
            for seed in range(runs):
                for label, word in way(seed, slower, rate).items():
                    words.setdefault(label, Counter())[word] += 1
            print(
                f"\n{way.__name__}, {slower - 1:.0%} slower, {rate:g} requests/s, {runs} runs",
                flush=True,
            )
            for label, counts in words.items():
                print(
                    f"  {label:28}{', '.join(f'{word} {count}' for word, count in counts.most_common())}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("methods", "weathers", "server"))
    parser.add_argument("--runs", type=int)
    parser.add_argument("--rate", type=float, default=6.0)
    options = parser.parse_args()
    if options.what == "methods":
        methods(options.runs or 1000)
    elif options.what == "weathers":
        weathers(options.runs or 300)
    else:
        server(options.runs or 100, options.rate)


if __name__ == "__main__":
    main()
