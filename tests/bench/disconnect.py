"""Disconnect: ghost tokens that a witness stream finds without counters, in virtual time, for
benchmarks/disconnect.md: PYTHONPATH=tests python tests/bench/disconnect.py [--sessions 100] [--first-seed 0]"""

import argparse
from itertools import product
from statistics import median
from typing import Final

from support.ghost_runs import MOST_GHOSTS, simulate_ghost_rounds
from tabulate import tabulate

from locust_llm.lab.disconnect.ghost_tokens import (
    find_ghosts_by_witness,
    measure_witness_slowdown,
)

ROUNDS: Final = 8
"""A session of two minutes has about so many rounds of each situation at 7.5 ms a token."""
CLIENTS: Final = (1, 2, 8, 32)
NOISES: Final = ((0.01, 0.0), (0.02, 0.0), (0.05, 0.0), (0.02, 0.001))
"""(share of a step, jitter of the network in seconds)"""
GHOSTS: Final = (0, 50, MOST_GHOSTS)
NEAR: Final = 0.3


def judge_sessions(
    clients: int, noise: tuple[float, float], ghosts: int, seeds: range
) -> list[object]:
    """A row: found, found within NEAR, interval holds the truth, smallest that is stated."""
    found = near = held = blind = 0
    smallest = list[float]()
    for seed in seeds:
        # the slow-down comes from these rounds, as a session measures it in mid-decode
        rounds = simulate_ghost_rounds(seed, ROUNDS, clients, ghosts, *noise)
        estimate = find_ghosts_by_witness(rounds, measure_witness_slowdown(rounds))
        if estimate is None or estimate.smallest is None:
            blind += 1
            continue
        smallest.append(estimate.smallest)
        found += estimate.tokens > 0
        near += abs(estimate.tokens - ghosts) <= NEAR * ghosts
        low, high = estimate.tokens_interval or (0.0, 0.0)
        held += low - 1 <= ghosts <= high + 1
    least = f"{median(smallest):.0f}" if smallest else "-"
    described = f"{noise[0]:.0%}, {noise[1] * 1e3:g} ms"
    return [clients, described, ghosts, found, near if ghosts else "", held, blind, least]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.sessions)
    head = ["clients", "noise of a step, jitter", "ghost tokens", "found", "within 30%", "in the interval",
        "cannot tell", "smallest stated (median)"]  # fmt: skip
    rows = [
        judge_sessions(clients, noise, ghosts, seeds)
        for clients, noise, ghosts in product(CLIENTS, NOISES, GHOSTS)
    ]
    print(f"of {len(seeds)} sessions of {ROUNDS} rounds each:\n")
    print(tabulate(rows, head, tablefmt="github"))


if __name__ == "__main__":
    main()
