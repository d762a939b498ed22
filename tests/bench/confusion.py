"""Confusion: makes the confusion matrix of the scheduler's diagnosis, in virtual time: ``make
confusion``. Prints Markdown, asserts nothing.

A cell is a simulated server, a level of noise and a seed; the probe is carried out on it, and the
diagnosis is compared with the scheduler of the server. The seeds were never used while the rule was
made. A cell is *right* when the scheduler has its name, with its number of slots where there is
one; a chunked one whose budget is wider than the longest prompt that was tried is also right as
prefill-first, whose text says that such a budget looks the same. Whether the interval of the budget
holds the true one is counted apart.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, combinations, product
from statistics import median
from typing import Final, NamedTuple

from support.probing import FIXED, Noise, Server, probed
from tabulate import tabulate

from locust_llm.lab.probe.probe_experiments import ProbeBounds
from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import (
    CANNOT_TELL,
    CHUNKED,
    DISAGGREGATED,
    PARTIAL,
    PREFILL_FIRST,
    STATIC,
    Diagnosis,
    diagnose_scheduler,
)

GPUS: Final = ("h100", "a100-40", "a40")
NOISES: Final = {
    "0": Noise(),
    "1": Noise(steps=0.05, network_s=0.0002),
    "2": Noise(steps=0.1, network_s=0.001, merged=0.02),
    "3": Noise(steps=0.2, network_s=0.002, merged=0.05, hiccups_s=0.03),
}
"""The levels are none, a quiet machine, a network, and a bad day. On a bad day steps take 0.82 to
1.22 times their time (one sigma), and chunks are 2 ms late on average. One chunk in twenty is
merged, and the server stops for 30 ms about every two seconds."""
SEED: Final = 70000
"""Seeds begin here. Lower ones were not used here."""
RIGHT, WRONG = "right", "wrong"
NAMES: Final = (STATIC, PREFILL_FIRST, CHUNKED, PARTIAL, DISAGGREGATED, CANNOT_TELL)


class Kind(NamedTuple):
    """Is a server and its expected name."""

    truth: str
    server: Server
    budget: int | None = None
    slots: int | None = None
    about: str = ""
    bounds: ProbeBounds = ProbeBounds()
    more: Noise = Noise()
    """This noise adds to the level of noise."""

    @property
    def label(self) -> str:
        s = self.server
        words = [s.gpu, s.policy]
        words += [f"budget {s.budget}"] if s.budget else []
        words += [f"threshold {s.threshold}"] if s.threshold else []
        words += [f"slots {s.partial}, long ones {s.long_partial}"] if s.partial > 1 else []
        words += [f"{s.prefill_engines}+{s.decode_engines}"] if s.policy == "disaggregated" else []
        return ", ".join([*words, self.about] if self.about else words)


class Cell(NamedTuple):
    kind: Kind
    noise: str
    seed: int

    @property
    def where(self) -> str:
        return f"noise {self.noise}, seed {self.seed}"

    @property
    def label(self) -> str:
        return f"{self.kind.label}, {self.where}"


class Said(NamedTuple):
    cell: Cell
    diagnosis: Diagnosis
    longest: int
    """The longest prompt beside decoders had this many tokens."""
    burst: int
    """This many prompts came together."""

    @property
    def verdict(self) -> str:
        kind, said = self.cell.kind, self.diagnosis
        if said.name == CANNOT_TELL:
            return RIGHT if kind.truth == CANNOT_TELL else CANNOT_TELL
        if (
            said.name == PREFILL_FIRST
            and kind.truth == CHUNKED
            and (kind.budget or 0) > self.longest
        ):
            return RIGHT
        if said.name != kind.truth:
            return WRONG
        # Where all that came were computed side by side, it says "at least".
        least = (
            said.slots is not None and said.slots == self.burst and (kind.slots or 0) >= said.slots
        )
        return RIGHT if said.slots in (None, kind.slots) or least else WRONG

    @property
    def budget_held(self) -> bool | None:
        """None: there is no budget, or none was reported."""
        said, true = self.diagnosis, self.cell.kind.budget
        if true is None or said.budget is None or said.name == CANNOT_TELL:
            return None
        return said.budget[0] <= true <= said.budget[2]

    @property
    def text(self) -> str:
        said = self.diagnosis
        low, about, high = said.budget or (0.0, 0.0, 0.0)
        budget = f", budget {about:.0f} ({low:.0f} to {high:.0f})" if said.budget else ""
        slots = "" if said.slots is None else f", slots {said.slots}"
        return f"{said.name}{budget}{slots}"


def schedulers(gpu: str) -> Iterator[Kind]:
    """Yields the schedulers of the goal."""
    yield Kind(STATIC, Server(policy="static", gpu=gpu))
    yield Kind(PREFILL_FIRST, Server(policy="prefill-first", gpu=gpu))
    yield Kind(PREFILL_FIRST, Server(policy="mixed", gpu=gpu))
    for engines in (1, 2):
        server = Server(
            policy="disaggregated", gpu=gpu, prefill_engines=engines, decode_engines=engines
        )
        yield Kind(DISAGGREGATED, server)
    for budget in (256, 512, 1024, 2048, 4096, 8192):
        yield Kind(CHUNKED, Server(budget=budget, gpu=gpu), budget, 1)
    for budget, slots, long in (
        (512, 2, 2), (1024, 4, 4), (2048, 2, 2), (2048, 3, 3), (2048, 4, 4), (2048, 6, 6),
        (4096, 2, 2),
        (1024, 3, 2), (2048, 4, 2), (2048, 6, 3),
    ):  # fmt: skip
        yield Kind(PARTIAL, partial(gpu, budget, slots, long), budget, long)
    for budget, threshold in ((512, 128), (1024, 256), (2048, 512)):
        yield Kind(
            PARTIAL,
            Server(budget=budget, threshold=threshold, gpu=gpu),
            threshold,
            budget // threshold,
        )


def partial(gpu: str, budget: int, slots: int, long: int) -> Server:
    """Makes partial prefills. A prompt is long from 1,310 tokens: vLLM V0's 4 % of a context of
    32,768."""
    return Server(
        policy="partial-prefills",
        budget=budget,
        partial=slots,
        long_partial=long,
        threshold=1310,
        gpu=gpu,
    )


def busy() -> Iterator[Kind]:
    """Yields servers with other clients' requests. The name or "cannot tell" is right, but no other
    name."""
    for rate in (0.3, 1.0, 3.0):
        more = Noise(traffic_per_s=rate)
        about = f"{rate:g} other requests a second"
        yield Kind(STATIC, Server(policy="static"), about=about, more=more)
        yield Kind(PREFILL_FIRST, Server(policy="prefill-first"), about=about, more=more)
        yield Kind(DISAGGREGATED, Server(policy="disaggregated"), about=about, more=more)
        for budget in (512, 2048, 8192):
            yield Kind(CHUNKED, Server(budget=budget), budget, 1, about, more=more)
        yield Kind(PARTIAL, partial("h100", 2048, 4, 4), 2048, 4, about, more=more)


def programs() -> Iterator[Kind]:
    """Yields servers beside other programs: steps are slower at times, and the only thread also
    tokenizes prompts, which takes time per token."""
    for slowed, held_us in ((1.0, 0.5), (1.0, 1.5), (1.5, 0.5), (3.0, 1.5)):
        more = Noise(slowed=slowed, held_s=held_us * 1e-6)
        about = f"{slowed:g} times slower in bursts, {held_us:g} us a token without answers"
        yield Kind(STATIC, Server(policy="static"), about=about, more=more)
        yield Kind(PREFILL_FIRST, Server(policy="prefill-first"), about=about, more=more)
        yield Kind(DISAGGREGATED, Server(policy="disaggregated"), about=about, more=more)
        for budget in (512, 2048, 4096, 8192):
            yield Kind(CHUNKED, Server(budget=budget), budget, 1, about, more=more)
        yield Kind(PARTIAL, partial("h100", 2048, 4, 4), 2048, 4, about, more=more)


def untellable() -> Iterator[Kind]:
    """Yields servers whose scheduler cannot be identified, which the diagnosis must report."""
    for tokens in (1000, 2000):
        for budget in (512, 8192):
            bounds = ProbeBounds(longest_tokens=tokens)
            about = f"prompts of at most {tokens:,} tokens"
            yield Kind(CANNOT_TELL, Server(budget=budget), about=about, bounds=bounds)
    for tokens in (2, 4, 8):
        for server in (
            Server(budget=512),
            Server(policy="prefill-first"),
            Server(policy="disaggregated"),
        ):
            more = Noise(tokens_a_chunk=tokens)
            about = f"{tokens} tokens a chunk"
            yield Kind(CANNOT_TELL, server, about=about, more=more)
    yield Kind(CANNOT_TELL, Server(policy=FIXED))


def unusual() -> Iterator[Kind]:
    """Yields settings that the rule was not made for."""
    for budget in (1024, 2048):
        yield Kind(PARTIAL, partial("h100", budget, 4, 1), budget, 1, "one long prompt at a time")
    some = (
        Kind(STATIC, Server(policy="static")), Kind(PREFILL_FIRST, Server(policy="prefill-first")),
        Kind(CHUNKED, Server(budget=512), 512, 1), Kind(CHUNKED, Server(budget=2048), 2048, 1),
        Kind(PARTIAL, partial("h100", 2048, 4, 4), 2048, 4),
        Kind(DISAGGREGATED, Server(policy="disaggregated")),
    )  # fmt: skip
    for kind in some:
        for places in (1, 2, 3, 4):
            slots = kind.slots and min(kind.slots, places)
            yield changed(kind, f"max_num_seqs {places}", num_seqs=places)._replace(slots=slots)
        for tokens in (4096, 8192):
            yield changed(kind, f"context of {tokens}", max_len=tokens)
        yield changed(kind, "no prefix caching", caching=False)
        for decoders in (1, 2, 6):
            yield kind._replace(about=f"{decoders} decoders", bounds=ProbeBounds(decoders=decoders))
        for micros in (0.5, 3.0):
            yield kind._replace(
                about=f"tokenized at {micros:g} us a token", more=Noise(reading_s=micros * 1e-6)
            )
        yield kind._replace(about="1.3 tokens a step", more=Noise(guessed=0.3))


def several() -> Iterator[Kind]:
    """Yields equal servers behind one address that get the requests in turn. No scheduler has a
    name for that."""
    for server in (
        Server(policy="static"), Server(policy="prefill-first"), Server(budget=512),
        Server(budget=2048),
        partial("h100", 2048, 4, 4),
    ):  # fmt: skip
        for replicas in (2, 3, 4):
            yield changed(
                Kind(CANNOT_TELL, server), f"{replicas} of them in turn", replicas=replicas
            )


def changed(kind: Kind, about: str, **settings: object) -> Kind:
    return kind._replace(about=about, server=Server(**(vars(kind.server) | settings)))  # type: ignore[arg-type]


def matrix(seeds: int = 1) -> list[Cell]:
    return cells(chain.from_iterable(map(schedulers, GPUS)), seeds)


def cells(kinds: Iterable[Kind], seeds: int = 1) -> list[Cell]:
    """Makes a cell for each server at each level of noise, with a seed of its own."""
    every = [(kind, noise) for kind, noise, _ in product(kinds, NOISES, range(seeds))]
    return [Cell(kind, noise, SEED + i) for i, (kind, noise) in enumerate(every)]


def probe(cell: Cell) -> Said:
    kind = cell.kind
    noise = vars(NOISES[cell.noise])
    both = Noise(
        **(
            noise
            | {
                name: value
                for name, value in vars(kind.more).items()
                if value != getattr(Noise(), name)
            }
        )
    )
    found = measure_probe(probed(kind.server, both, cell.seed, kind.bounds))
    burst = len(found.bursts[-1].ttft_s) if found.bursts else 0
    return Said(cell, diagnose_scheduler(found), found.longest, burst)


def shares(said: Iterable[Said]) -> str:
    """Formats shares, such as '270 of 276 right (97.8 %), 6 cannot tell, 0 wrong'."""
    count = Counter(one.verdict for one in said)
    total = max(1, count.total())
    return (
        f"{count[RIGHT]} of {count.total()} right ({count[RIGHT] / total:.1%}), "
        f"{count[CANNOT_TELL]} cannot tell, {count[WRONG]} wrong"
    )


def report(title: str, said: list[Said]) -> str:
    """Formats Markdown: truth by name, the shares, and every cell that is not right."""
    count = Counter((one.cell.kind.truth, one.diagnosis.name) for one in said)
    found = {truth for truth, _ in count}
    truths = [name for name in NAMES if name in found]
    rows = []
    for truth in truths:
        rows.append([truth, *(count[truth, name] or "" for name in NAMES)])
    lines = [
        f"## {title}",
        "",
        tabulate(rows, ["truth \\ named", *NAMES], tablefmt="github"),
        "",
        shares(said) + ".",
        "",
    ]
    for noise in NOISES:
        of_noise = (one for one in said if one.cell.noise == noise)
        lines.append(f"- noise {noise}: {shares(of_noise)}")
    held = [one.budget_held for one in said if one.budget_held is not None]
    if held:
        lines.append(
            f"- budgets: {held.count(False)} of {len(held)} intervals do not hold the true one"
        )
    alike: dict[tuple[str, str, str], list[Said]] = {}
    for one in said:
        if one.verdict != RIGHT:
            alike.setdefault((one.verdict, one.cell.kind.label, one.diagnosis.name), []).append(one)
        if one.budget_held is False:
            lines.append(f"- budget {one.cell.kind.budget} missed: {one.cell.label}: {one.text}")
    for (verdict, _, _), some in sorted(alike.items(), key=lambda item: item[0][0] != WRONG):
        words = some[0].diagnosis.missing or some[0].diagnosis.reasons
        also = (
            f" (and {len(some) - 1} like it: {', '.join(one.cell.where for one in some[1:])})"
            if some[1:]
            else ""
        )
        lines.append(
            f"- **{verdict}**: {some[0].cell.label}: {some[0].text}: {'; '.join(words)}{also}"
        )
    return "\n".join(lines) + "\n"


TWICE: Final = (
    Kind(PREFILL_FIRST, Server(policy="prefill-first")), Kind(CHUNKED, Server(budget=512), 512, 1),
    Kind(CHUNKED, Server(budget=2048), 2048, 1),
    Kind(CHUNKED, Server(budget=512, gpu="a40"), 512, 1, bounds=ProbeBounds(longest_tokens=8000)),
    Kind(PARTIAL, partial("h100", 2048, 4, 4), 2048, 4),
    Kind(DISAGGREGATED, Server(policy="disaggregated")),
)  # fmt: skip
TRIED: Final = 7600
"""Each run tries a prompt of this many tokens, whatever its longest one."""
FIGURES: Final = {
    "alone": "TTFT of 7,600 tokens alone",
    "stall": "longest gap beside it",
    "token": "time a prefilled token",
    "budget": "budget",
}


def again(noise: str, runs: int) -> Iterator[tuple[Kind, dict[str, list[float]]]]:
    """Yields each figure of each of so many runs. The names must be equal."""
    for kind in TWICE:
        said = [figures(kind, NOISES[noise], 2 * SEED + i) for i in range(runs)]
        assert len({name for name, _ in said if name != CANNOT_TELL}) <= 1
        figures_found = [some for _, some in said]
        values = {}
        for name in FIGURES:
            measured = [some[name] for some in figures_found if name in some]
            if 2 * len(measured) >= max(runs, 4):  # much noise hides a gap or a budget at times
                values[name] = measured
        yield kind, values


def apart(values: list[float]) -> list[float]:
    """Returns the ratios of pairs, from the least to the most."""
    return sorted(max(pair) / min(pair) - 1 for pair in combinations(values, 2))


def figures(kind: Kind, noise: Noise, seed: int) -> tuple[str, dict[str, float]]:
    """Returns the name, and the figures that exist."""
    found = measure_probe(probed(kind.server, noise, seed, kind.bounds))
    said = diagnose_scheduler(found)
    stalls = found.of("stall", TRIED)
    alone_s = found.alone_s(TRIED)
    budget = said.budget and said.budget[1]
    stall_s = (
        median(stall.longest_s for stall in stalls)
        if stalls and said.name in (PREFILL_FIRST, CHUNKED, PARTIAL)
        else None
    )
    some = {"alone": alone_s, "stall": stall_s, "token": found.token_s, "budget": budget}
    return said.name, {name: value for name, value in some.items() if value is not None}


def twice(runs: int) -> str:
    """Formats Markdown with a row per level of noise, for the server that agrees least with
    itself."""
    rows = []
    for noise in NOISES:
        each = []
        for _, some in again(noise, runs):
            each.append({name: apart(values) for name, values in some.items()})
        cells = []
        for name in FIGURES:
            differences = (some[name] for some in each if name in some)
            cells.append(max(differences, key=lambda values: values[-1]))
        rows.append(
            [noise, *(f"{values[len(values) * 9 // 10]:.0%}, {values[-1]:.0%}" for values in cells)]
        )
    table = tabulate(rows, ["noise", *FIGURES.values()], tablefmt="github")
    return (
        f"## Twice\n\n{table}\n\nBy how much the larger of two runs is above the smaller one: in "
        f"nine of ten pairs at most, "
        f"and at most, of {runs} runs of each of {len(TWICE)} servers, of which the one that "
        f"agrees least stands here.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="the part with this word in its title")
    parser.add_argument(
        "--seeds", type=int, default=1, help="of each server and level of noise (default: 1)"
    )
    options = parser.parse_args()
    seeds = options.seeds
    began = time.process_time()
    parts = {
        "Schedulers": matrix(seeds),
        "Other traffic": cells(busy(), seeds),
        "Other programs": cells(programs(), seeds),
        "Nothing can be known": cells(untellable(), seeds),
        "Unusual settings": cells(unusual(), seeds),
        "Several servers behind one address": cells(several(), seeds),
    }
    parts = {
        title: some
        for title, some in parts.items()
        if (options.only or "").lower() in title.lower()
    }
    for title, some in parts.items():
        print(report(title, [probe(cell) for cell in some]), flush=True)
    if (options.only or "").lower() in "twice":
        print(twice(10))
    print(f"{sum(map(len, parts.values()))} probes, {time.process_time() - began:.0f} s of CPU")


if __name__ == "__main__":
    main()
