"""C client: measures the minimum cost of the same chunks, and the TTFT error, with a client in C
that reads and drops them."""

import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from truth import Program, server

TTFT_MS, GAP_MS, TOKENS, SECONDS = 200, 20, 1000, 5


class Floor(NamedTuple):
    cpu_us: float
    """Each chunk takes this CPU time."""
    ttft_off_ms: float
    """This is its p99 of TTFT, by its own clock, minus the true one."""


def floor(program: Program, streams: int, tls: bool) -> Floor:
    with (
        tempfile.TemporaryDirectory() as name,
        server(program, Path(name), ttft_ms=TTFT_MS, gap_ms=GAP_MS, tokens=TOKENS, tls=tls) as sent,
    ):
        command = [
            str(program.client),
            str(sent.port),
            str(streams),
            str(SECONDS),
            *(["tls"] if tls else []),
        ]
        cost, *rows = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    said = dict(row.split() for row in rows)
    true = [(sent.times[name][1] - sent.times[name][0]) * 1e3 for name in said]
    off = np.percentile(np.array([*map(float, said.values())]), 99) - np.percentile(true, 99)
    return Floor(float(cost), float(off))
