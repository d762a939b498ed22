"""The simulator's scheduler against vLLM's own `Scheduler`, step by step, on random workloads.

``make test-real`` runs it. VLLM_PYTHON names a Python that has vLLM 0.32; without it the one that
`tests/real/start_vllm.sh` installs is taken, where it is there.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.vllm_steps import KINDS, Real, ours, workloads

HERE: Final = Path(__file__).parents[1]
HOME: Final = Path(os.environ.get("REAL_SERVERS_HOME", HERE.parent / ".real-servers"))
PYTHON: Final = Path(os.environ.get("VLLM_PYTHON", HOME / "vllm/bin/python"))
COUNT: Final = 100
"""Workloads of each kind."""
QUIET: Final = {
    "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1", "VLLM_TARGET_DEVICE": "cpu",
}  # fmt: skip
pytestmark = [pytest.mark.real, pytest.mark.full]


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    if not PYTHON.is_file():
        pytest.skip(f"no vLLM at {PYTHON}: make test-real installs it, VLLM_PYTHON names another")
    made = Real(str(PYTHON), str(HERE / "real" / "vllm_scheduler.py"), os.environ | QUIET)
    yield made
    made.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_that_of_vllm(real: Real, kind: str) -> None:
    steps = preemptions = equal = 0
    first = None
    for number, workload in enumerate(workloads(kind, COUNT)):
        theirs, mine = real.steps(workload), ours(workload)
        steps, preemptions = steps + len(theirs), preemptions + theirs[-1][1]
        equal += mine == theirs
        if mine != theirs and first is None:
            pairs = zip(mine, theirs, strict=False)
            step = next(
                (n for n, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs))
            )
            first = (
                f"workload {number}, step {step}: ours {mine[step : step + 1]}, vLLM's "
                f"{theirs[step : step + 1]}"
            )
    print(f"{kind}: {equal} of {COUNT} workloads equal, {steps} steps, {preemptions} preemptions")
    assert not first, first
