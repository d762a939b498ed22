"""Reproductions: from how many requests to how many ``verify reproduce`` gets, with how many tries, in
which time: ``make bench-reproduce``. Prints rows of benchmarks/planted-faults.md."""

import sys
import tempfile
from pathlib import Path

from support.planted_trio import reproduce_trio

REQUESTS = 600
"""A run of so many has about 500 before its last fault."""


def main(seeds):
    print(
        "| seed | requests at first | at last | fault at first | at last | script | tries | min |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = reproduce_trio(Path(folder), seed, REQUESTS, "-t", "10m")
        if not found["faults"]:
            print(f"| {seed} | no fault in the run |", flush=True)
            continue
        first, last = found["first_odds"], found["odds"]
        print(
            f"| {seed} | {found['replayed']} | {len(found['requests'])} | "
            f"{first['hits']} of {first['tries']} | {last['hits']} of {last['tries']} | "
            f"{found.get('shown', '-')} of 20 | {found['tries']} | {found['seconds'] / 60:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or range(1, 11))
