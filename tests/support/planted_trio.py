"""Planted trio: a run against the simulator's fault that needs three requests at once, and what
``verify reproduce`` makes of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from locust_llm.demo_command import start_simulator

ODDS: Final = 0.5
SERVER: Final = ("--ttft-ms", "500", "--itl-ms", "10")
LOAD: Final = (
    "-u", "50", "--seq-dist", "100,20:96;1500,20:2;100,250:2", "--request-cancellation-rate", "4",
    "--request-cancellation-delay", "0.2", "--check-answers", "--no-probe", "--no-server-metrics",
    "--selftest", "off",
)  # fmt: skip


def reproduce_trio(folder: Path, seed: int, requests: int, *words: str) -> dict[str, Any]:
    """What ``verify reproduce --json`` prints of the last fault of such a run, whether the script
    shows it, and how many faults the run had (0: there is nothing else)."""
    quirks = f"cancel_leak={ODDS}"
    run = folder / f"run-{seed}"
    with start_simulator(*SERVER, "--quirks", quirks, "--seed", str(seed)) as url:
        _run_locust_llm(
            "run", "--headless", "--host", url, *LOAD, "--request-count", str(requests),
            "--random-seed", str(seed), "--report-dir", str(run),
        )  # fmt: skip
        path = run / "answer_faults.jsonl"
        faults = len(path.read_bytes().splitlines()) if path.exists() else 0
        if not faults:
            return {"faults": 0}
        ended = _run_locust_llm(
            "verify", "reproduce", str(run), "--fault", str(faults), "--json", *words
        )
        found: dict[str, Any] = json.loads(ended.stdout)
        if found["requests"]:
            script = [sys.executable, "-I", "-S", str(run / "reproduce.py"), "--tries", "20"]
            shown = subprocess.run(script, capture_output=True, text=True, cwd="/")
            found["shown"] = shown.stdout.count(": the session code of another request")
    return found | {"faults": faults}


def _run_locust_llm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust_llm", *words]
    return subprocess.run(command, capture_output=True, text=True)
