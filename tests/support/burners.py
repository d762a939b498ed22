"""Burners: run programs that take CPU time away from a run, and a run beside them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHAT = str(Path(__file__).parents[2] / "locustfiles" / "chat.py")


def a_run_against(url: str, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Runs the real locust command, with its console in the folder beside."""
    command = [
        sys.executable, "-m", "locust", "-f", CHAT, "--headless", "--host", url, "--no-probe",
        "--report-dir", str(folder),
        "--synthetic-input-tokens-mean", "50", *words,
    ]  # fmt: skip
    with folder.with_suffix(".out").open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)


@contextmanager
def burners(count: int) -> Iterator[None]:
    """Runs programs that compute without end (at most 60 s)."""
    code = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    programs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
        for program in programs:
            program.wait()
