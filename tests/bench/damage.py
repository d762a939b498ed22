"""Damage at stride 1: cuts every byte and replaces every field of a run, and makes a report of each
of 19,000 folders. It can resume.

    python tests/bench/damage.py STATE [--seconds N]

STATE is a file with what is done: after an interruption, or N seconds, the next call goes on there.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from support import damaged
from support.damaged import Way, check_reports

PIECE: Final = 50
"""The state is saved after this many folders."""
WAYS: Final[dict[str, Callable[[Path], Iterator[Way]]]] = {
    "records cut": lambda path: damaged.cut_records(*damaged.whole(path, 5)),
    "run.json cut": lambda path: damaged.cut_run(*damaged.whole(path)),
    "fields of run.json": lambda path: damaged.run_fields(*damaged.whole(path)),
    "fields of records": lambda path: damaged.record_fields(*damaged.whole(path)),
    "random bytes": lambda path: damaged.flipped(*damaged.whole(path), 2000, 7),
    "pieces of records": lambda path: damaged.spliced(*damaged.whole(path), 2000, 8),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("state", type=Path)
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="stop after so long; the next call goes on",
    )
    options = parser.parse_args()
    done: dict[str, int] = json.loads(options.state.read_text()) if options.state.exists() else {}
    began = time.monotonic()
    for name, ways_of in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            ways = islice(ways_of(path), done.get(name, 0), None)
            while piece := list(islice(ways, PIECE)):
                if time.monotonic() - began > options.seconds:
                    print(f"to be continued: {sum(done.values())} folders so far")
                    return 1
                check_reports(path, piece)
                done[name] = done.get(name, 0) + len(piece)
                options.state.write_text(json.dumps(done))
        print(
            f"{name}: {done.get(name, 0)} folders, {time.monotonic() - began:.0f} s so far",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
