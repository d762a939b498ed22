"""Trees: compares the cost of 1,000 session trees with as many plain sessions: CPU per chunk of one
process, in turns.

A tree is a turn, three side by side and a join; a plain session five turns in a line. Both send to
the C truth server, and so many requests that requests and chunks cause their cost. Prints a line a
pair; asserts nothing.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from bench import machine
from load import load
from truth import Program, build, server

GAP_MS, TTFT_MS, TOKENS = 250, 500, 40
"""1,700 requests under way are 6,800 chunks a second."""
HERE = Path(__file__).parent


def cpu_us(program: Program, sessions: int, seconds: int, *, trees: bool) -> tuple[float, int]:
    """Returns (CPU per chunk, most open requests at a time)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(program, folder, ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS) as sent:
            options = [
                "-u",
                str(sessions),
                "-t",
                f"{seconds}s",
                "--output-tokens-mean",
                str(TOKENS),
            ]
            if trees:
                run = load(sent.port, folder / "r", options, locustfile=HERE / "tree_user.py")
            else:
                run = load(sent.port, folder / "r", [*options, "--session-turns-mean", "5"])
        chunks = sum(len(record.chunk_us) for record in run.records())
        return run.cpu_s / chunks * 1e6, sent.most_open


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trees", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        if program is None:
            print("no C compiler (cc): nothing is measured")
            return
        found: dict[bool, list[float]] = {True: [], False: []}
        for i in range(options.pairs):
            for trees in (False, True) if i % 2 else (True, False):
                # a tree has 5 requests in three steps: 5/3 of a plain session's under way
                sessions = options.trees if trees else round(options.trees * 5 / 3)
                us, most = cpu_us(program, sessions, options.seconds, trees=trees)
                found[trees].append(us)
                print(
                    f"{sessions:,} {'trees' if trees else 'plain sessions'}: {us:.1f} µs a chunk, "
                    f"{most:,} open",
                    flush=True,
                )
        tree = float(np.median(found[True]))
        plain = float(np.median(found[False]))
        print(
            f"median: trees {tree:.1f}, plain sessions {plain:.1f} µs of CPU a chunk: "
            f"{tree / plain - 1:+.1%}"
        )


if __name__ == "__main__":
    main()
