"""Drift: measures how often ``twin drift`` raises a false alarm, and which changes of servers it
finds, in virtual time: ``make bench-drift``. Prints Markdown, asserts nothing.

Each server is probed and swept, a twin is fitted, and then it is checked again and again for about
a minute: unchanged, with noise of its own each time, and with something changed. Ten minutes in a
row have requests of the same lengths.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count
from random import Random
from typing import Final, NamedTuple

import msgspec
from support.probing import Noise, Server, probed
from support.sweeping import Lengths, chat, stage, swept
from tabulate import tabulate

from locust_llm.lab.probe.probe_measurements import measure_probe
from locust_llm.lab.probe.scheduler_diagnosis import diagnose_scheduler
from locust_llm.lab.twin.server_observations import ObservedStage, collect_episodes
from locust_llm.lab.twin.twin_drift import (
    Drift,
    check_drift,
    choose_reference_loads,
    measure_reference,
    simulate_unchanged_server,
)
from locust_llm.lab.twin.twin_fit import fit_twin
from locust_llm.lab.twin.twin_model import Twin

SWEEP: Final = (1, 2, 4, 8, 16, 32, 64)
STAGE_S: Final = 20.0
"""Each of the three loads takes this time."""
QUIET: Final = Noise(steps=0.02, network_s=0.0002)
USUAL: Final = Noise(steps=0.05, network_s=0.0005)
LOUD: Final = Noise(steps=0.1, network_s=0.001, merged=0.02)
IN_A_ROW: Final = 10
SETS: Final = 2
"""Changed servers are checked with this many sets of lengths."""
SERVERS: Final = (
    (Server(budget=2048, num_seqs=48), QUIET),
    (Server(budget=1024, num_seqs=32), USUAL),
    (Server(budget=512, gpu="a100-40", num_seqs=24), LOUD),
    (Server(budget=2048, gpu="a40", num_seqs=16), QUIET),
    (Server(budget=1500, gpu="a100-40"), USUAL),
    (
        Server(
            policy="partial-prefills",
            budget=2048,
            partial=3,
            long_partial=3,
            threshold=1310,
            num_seqs=40,
        ),
        USUAL,
    ),
)
COSTS: Final = ("step", "fixed", "token", "stream", "attention")
Changed = Callable[[Server, Noise], tuple[Server, Noise] | None]


class Kind(NamedTuple):
    what: str
    of: Changed
    """The function returns None if this server has no such change."""
    right: tuple[str, ...]
    """These names are right."""


def _seqs(server: Server, noise: Noise) -> tuple[Server, Noise] | None:
    return (replace(server, num_seqs=server.num_seqs // 2), noise) if server.num_seqs else None


KINDS: Final = (
    Kind("unchanged", lambda server, noise: (server, noise), ()),
    Kind(
        "steps take 10% longer", lambda server, noise: (server, replace(noise, slower=1.1)), COSTS
    ),
    Kind(
        "steps take 5% longer", lambda server, noise: (server, replace(noise, slower=1.05)), COSTS
    ),
    Kind(
        "half the budget",
        lambda server, noise: (replace(server, budget=server.budget // 2), noise),
        ("budget",),
    ),
    Kind(
        "twice the budget",
        lambda server, noise: (replace(server, budget=server.budget * 2), noise),
        ("budget",),
    ),
    Kind("half the max_num_seqs", _seqs, ("max_num_seqs",)),
    Kind(
        "a noisy neighbour",
        lambda server, noise: (server, replace(noise, slowed=1.3)),
        ("neighbour", "noise"),
    ),
)


def lengths_of(seed: int) -> Lengths:
    """Returns equal lengths in equal order for each seed, whatever the noise draws."""
    own = Random(seed)
    return lambda random: chat(own)


class Load(NamedTuple):
    users: int
    count: int
    """The load has this many requests."""
    lengths: int
    """Their lengths have this seed."""


def minute(server: Server, noise: Noise, seed: int, loads: Sequence[Load]) -> list[ObservedStage]:
    return [
        stage(server, noise, 100 * seed + i, one.users, lengths_of(one.lengths), count=one.count)
        for i, one in enumerate(loads)
    ]


def loads(server: Server, noise: Noise, users: Sequence[int], seed: int) -> Iterator[Load]:
    """Makes loads with as many requests as fit in STAGE_S, and some of each user in any case."""
    for number in users:
        lengths = 1000 * seed + number
        requests = stage(server, noise, 0, number, lengths_of(lengths), rounds=12).requests
        sent = sum(one.sent_at - requests[0].sent_at < STAGE_S for one in requests)
        yield Load(number, max(sent, 2 * number + 8), lengths)


def twin_of(server: Server, noise: Noise, seed: int) -> Twin:
    results = probed(server, noise, seed)
    stages = swept(server, noise, seed, SWEEP)
    twin = fit_twin(diagnose_scheduler(measure_probe(results)), collect_episodes(results), stages)
    return msgspec.structs.replace(twin, reference=measure_reference(twin.model, stages))


class Found(NamedTuple):
    what: str
    drifted: bool
    names: list[str]
    """The likeliest name comes first."""


def _found(kind: Kind, drift: Drift) -> Found:
    return Found(
        kind.what, drift.drifted, list(dict.fromkeys(one.change.name for one in drift.named))
    )


def checked(server: Server, noise: Noise, twin: Twin, still: int, changed: int) -> Iterator[Found]:
    seeds = count(1)
    users = choose_reference_loads(twin)
    for some in range(-(-still // IN_A_ROW)):
        asked = list(loads(server, noise, users, some))
        known = simulate_unchanged_server(twin, minute(server, noise, next(seeds), asked))
        for kind in KINDS:
            other = kind.of(server, noise)
            times = min(IN_A_ROW, still - some * IN_A_ROW)
            if kind.right:
                times = changed if some < SETS else 0
            for _ in range(times if other is not None else 0):
                yield _found(kind, check_drift(known, minute(*other, next(seeds), asked)))  # type: ignore[misc]


def report(found: Sequence[Found]) -> str:
    rows = []
    for kind in KINDS:
        here = [one for one in found if one.what == kind.what]
        alarms = [one for one in here if one.drifted]
        right = sum(one.names[:1] != [] and one.names[0] in kind.right for one in alarms)
        among = sum(not set(kind.right).isdisjoint(one.names) for one in alarms)
        said = Counter(one.names[0] if one.names else "none" for one in alarms).most_common(3)
        rows.append([
            kind.what, len(here), f"{len(alarms)} ({len(alarms) / max(1, len(here)):.1%})",
            right if kind.right else "-",
            among if kind.right else "-", ", ".join(f"{name} {times}" for name, times in said),
        ])  # fmt: skip
    head = ["server", "minutes", "alarms", "named first", "among the names", "names"]
    return tabulate(rows, headers=head, tablefmt="github", disable_numparse=True)


def one(number: int, still: int, changed: int) -> tuple[str, list[Found]]:
    """Checks a server. Returns a line about the fit, and all checks."""
    server, noise = SERVERS[number]
    twin = twin_of(server, noise, number + 1)
    s = twin.model.settings
    about = (
        f"{server.policy}, {server.gpu}: fitted {s.max_num_batched_tokens:,} tokens a step, "
        f"{s.max_num_seqs} requests"
    )
    return about, list(checked(server, noise, twin, still, changed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--still", type=int, default=100, help="minutes of each unchanged server (default: 100)"
    )
    parser.add_argument(
        "--changed",
        type=int,
        default=7,
        help="minutes of each change of each server (default: twice 7)",
    )
    options = parser.parse_args()
    found = list[Found]()
    began = time.monotonic()
    numbers = range(len(SERVERS))
    with ProcessPoolExecutor(2) as pool:
        for about, here in pool.map(
            one, numbers, [options.still] * len(numbers), [options.changed] * len(numbers)
        ):
            found += here
            print(f"{about}; {time.monotonic() - began:.0f} s\n\n{report(here)}\n", flush=True)
    print(f"All servers\n\n{report(found)}")


if __name__ == "__main__":
    main()
