"""Growing old: how often a soak calls a stable server growing, and which leaks and slow-downs it
finds, on known truth in virtual time.

    tests/bench/growing_old.py stable [--runs 1000]    alarms of stable servers
    tests/bench/growing_old.py unseen [--runs 1000]    the same on families that nobody tuned on
    tests/bench/growing_old.py walks [--runs 1000]     alarms of random walks, which are not stable
    tests/bench/growing_old.py power [--runs 100]      the share of planted leaks that is found
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Final

from support.aging_server import AgingServer, Wobble, draw_stable_server, take_aging_readings
from support.unseen_server import draw_unseen_server

from locust_llm.trends.soak_judgement import judge_soak
from locust_llm.trends.steady_growth import GrowthVerdict

HOURS: Final = (1 / 3, 1.0, 4.0, 12.0)
LEAKS: Final = (1e3, 1e4, 1e5, 1e6, 3e6)
USUAL_MEMORY: Final = Wobble(
    noise=2e5, slow_noise=5e5, slow_s=60.0, saw=5e7, period_s=47.0, phase=0.3, warm=5e8, warm_s=60.0,
    grain=4096.0,
)  # fmt: skip
"""A server of 4 GB whose garbage of 50 MB is collected each 47 s."""
LATENCY_NOISE: Final = (0.005, 0.02, 0.05)


def measure_alarms(runs: int, draw: Callable[[int, float], AgingServer]) -> int:
    """Prints the alarms of stable servers, by quantity, and the verdicts. Returns the alarms."""
    alarms = Counter[str]()
    verdicts = Counter[tuple[str, str]]()
    for seed in range(runs):
        length_s = 3600 * HOURS[seed % len(HOURS)]
        server = draw(seed, length_s)
        for one in judge_soak(take_aging_readings(server, length_s, seed)):
            verdicts[one.name, one.verdict] += 1
            if one.verdict == GrowthVerdict.GROWS:
                alarms[one.name] += 1
                print(f"alarm: seed {seed}, {one.name}, {server}")
    for (name, verdict), count in sorted(verdicts.items()):
        print(f"{name:12} {verdict:16} {count / runs:6.1%}")
    print(f"alarms in {runs} stable runs: {sum(alarms.values())}")
    return sum(alarms.values())


def measure_walk_alarms(runs: int) -> None:
    """Prints how often memory that is a random walk is called growing."""
    found = 0
    for seed in range(runs):
        server = AgingServer(memory_wobble=Wobble(walk=1e8, noise=1e5))
        length_s = 3600 * HOURS[seed % len(HOURS)]
        memory = next(judge_soak(take_aging_readings(server, length_s, seed)))
        found += memory.verdict == GrowthVerdict.GROWS
    print(f"alarms in {runs} random walks: {found}")


def find_share(server: AgingServer, name: str, hours: float, runs: int) -> tuple[float, float]:
    """(the share of runs that finds the growth, the median slope per hour of those)."""
    slopes = []
    for seed in range(runs):
        for one in judge_soak(take_aging_readings(server, 3600 * hours, 10_000 + seed)):
            if one.name == name and one.verdict == GrowthVerdict.GROWS and one.per_hour:
                slopes.append(one.per_hour.value)
    return len(slopes) / runs, median(slopes) if slopes else 0.0


def measure_power(runs: int) -> None:
    print("leak       per       " + "".join(f"{hours:8.2f} h" for hours in HOURS))
    for leak in LEAKS:
        for what in ("request", "token"):
            field = {f"leak_per_{what}": leak}
            server = AgingServer(memory_wobble=USUAL_MEMORY)._replace(**field)
            found = [find_share(server, "memory", hours, runs)[0] for hours in HOURS]
            print(f"{leak:9.0f}B {what:9} " + "".join(f"{share:10.0%}" for share in found))
    for slower in (0.01, 0.02, 0.05):
        for noise in LATENCY_NOISE:
            server = AgingServer(
                latency_wobble=Wobble(noise=noise, slow_noise=noise / 4, slow_s=60.0),
                slower_per_hour=slower,
            )
            found = [find_share(server, "ttft", hours, runs)[0] for hours in HOURS]
            print(
                f"{slower:.0%}/h, TTFT noise {noise:4.1%} " + "".join(f"{s:10.0%}" for s in found)
            )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("stable", "unseen", "walks", "power"))
    parser.add_argument("--runs", type=int)
    options = parser.parse_args()
    if options.what == "stable":
        return int(measure_alarms(options.runs or 1000, draw_stable_server) > 0)
    if options.what == "unseen":
        measure_alarms(options.runs or 1000, draw_unseen_server)
        return 0
    if options.what == "walks":
        measure_walk_alarms(options.runs or 1000)
    else:
        measure_power(options.runs or 100)
    return 0


if __name__ == "__main__":
    sys.exit(main())
