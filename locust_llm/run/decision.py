"""Decision: whether the rules of a run are decided by the records so far, or it shall go on (``--until-decided``)."""

import subprocess
import sys
from pathlib import Path

import msgspec

from locust_llm.core.report_result import OpenRule
from locust_llm.core.run import Run


def undecided(folder: Path, run: Run) -> list[OpenRule] | None:
    """In a process of its own, as pandas and all the records would weigh on the load generator. None: nobody could tell."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "locust_llm.report.undecided", str(folder)],
            input=msgspec.json.encode(run),
            capture_output=True,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=list[OpenRule])
    except (OSError, subprocess.CalledProcessError, msgspec.DecodeError):
        return None
