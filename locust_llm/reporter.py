"""The reporter: a process of its own makes the reports of a folder; what it came to is read back from its files."""

import logging
import subprocess
import sys
from pathlib import Path

logger = logging.getLogger("locust_llm")


def make_reports(folder: Path) -> str:
    """What the console shall show. In a process of its own: pandas and all the records would weigh on the load generator,
    and a reporter that dies must not take a run with it. The loop goes on meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "locust_llm", "report", str(folder)],
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode:
        logger.error(f"The report failed; the records are safe: locust-llm report {folder}\n{done.stderr}")
    return done.stdout
