"""How far the waterfall is off: estimated parts against those that the engine knows: ``make owners``. Prints Markdown.

Each load is run on the simulator in virtual time, and split twice: with spans as vLLM sends them, and from the client's
stamps alone. Wanted: with spans a median error of each part within 2 ms or 5 % of its median, whichever is larger; without
them nine tenths of the intervals hold the truth. What misses that is bold.
"""

import argparse
from collections.abc import Iterator
from typing import Final

from support.owners import Load, Off, alone, off, rows_of, seen
from tabulate import tabulate

PARTIAL: Final = {"max_num_partial_prefills": 4, "max_long_partial_prefills": 4, "long_prefill_token_threshold": 1000}
POLICIES: Final = {
    "chunked, 8,192 tokens": Load("chunked", budget=8192),
    "chunked, 2,048 tokens": Load("chunked", budget=2048),
    "prefill-first": Load("prefill-first"),
    "mixed": Load("mixed"),
    "partial prefills": Load("partial-prefills", budget=2048, config=PARTIAL),
    "static": Load("static"),
    "by priority": Load("chunked", budget=8192, waiting="priority"),
    "fair": Load("chunked", budget=8192, waiting="fair"),
}
RATES: Final = {"half": 5.0, "near": 9.0, "above": 14.0}
"""Requests a second; a static batch has two fifths of the capacity."""
STATIC: Final = 0.4
USERS: Final = 32
HELD: Final = 0.9


def loads() -> Iterator[tuple[str, str, Load]]:
    for name, load in POLICIES.items():
        share = STATIC if load.policy == "static" else 1.0
        for label, rate in RATES.items():
            yield name, label, load._replace(rate_per_s=rate * share)
        yield name, f"{USERS} users", load._replace(users=USERS)
    yield (
        "chunked, KV cache short", "near",
        Load("chunked", rate_per_s=8.0, budget=8192, kv_tokens=30_000, output_tokens=(200, 600)),
    )  # fmt: skip


def cell(one: Off, spans: bool) -> str:
    missed = not one.near if spans else one.held is not None and one.held < HELD
    held = "" if one.held is None or spans else f"; {one.held:.0%} in {one.wide_ms:.0f}"
    text = f"{one.error_ms:.1f} / {one.truth_ms:.0f} ({one.bias_ms:+.1f}{held})"
    return f"**{text}**" if missed else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="policies whose name has this")
    options = parser.parse_args()
    tables: dict[str, list[list[str]]] = {"With spans": [], "Without spans": [], "Without spans, after a probe": []}
    names: list[str] = []
    for name, label, load in loads():
        if options.only not in name:
            continue
        found = seen(rows_of(load._replace(seconds=options.seconds), options.seed))
        for way, table in tables.items():
            prompts = alone(load) if "probe" in way else ()
            lines = off(found.estimated(spans=way == "With spans", alone=prompts), found.truth)
            names = [line.part for line in lines]
            table.append([name, label, f"{len(found.records):,}", *(cell(line, way == "With spans") for line in lines)])
    for way, table in tables.items():
        print(f"\n{way}: median error / median truth (bias", end="")
        print(
            "), ms\n"
            if way == "With spans"
            else "; share of the intervals that hold the truth, their median width), ms\n"
        )
        print(tabulate(table, ["server", "load", "requests", *names], tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
