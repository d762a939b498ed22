"""Command ``locust-llm demo``: the simulator as a child process, and a load test of it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from locust_llm.locust_adapter.start_locust import LOCUSTFILES
from locust_llm.text.format import print_safely

from .exit_status import ENDING_SIGNALS, ExitStatus

DEMO_SERVER: Final = ("--policy", "prefill-first", "--max-num-batched-tokens", "131072")
"""The demo's simulator computes waiting prompts before it continues streams, so a limit helps."""
DEMO: Final = (
    "--headless", "--request-rate", "6", "-t", "45s", "--prefill-concurrency", "3",
    "--prefill-concurrency-ramp-duration", "30", "--seq-dist", "200,100:70;8000,100:30",
)  # fmt: skip

DEMO_HELP: Final = f"""\
usage: locust-llm demo [options of run]

Start the simulator on a free port, load-test it, and print the main figures and where the report is. Needs no GPU and no
server. The load, which options of run change (run --help-all lists them):

  {" ".join(DEMO)}
"""


def run_demo(words: list[str]) -> int:
    """Run a load test of the simulator, in a minute, without a GPU."""
    if {"-h", "--help"} & {*words}:
        print_safely(DEMO_HELP)
        return ExitStatus.OK
    locustfile = own if (own := Path("locustfiles/chat.py")).is_file() else LOCUSTFILES / "run.py"
    with start_simulator(*DEMO_SERVER) as url:
        command = ["locust", "-f", str(locustfile), "--host", url, *DEMO, *words]
        print_safely(f"$ {' '.join(command)}\n")
        return _run_with_signals([sys.executable, "-m", *command])


def _run_with_signals(command: Sequence[str]) -> int:
    """Run a child process that gets the signals of this one, and return its exit status. Two Ctrl-C
    at once count as one."""
    process = subprocess.Popen(command)
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda number, frame: process.send_signal(number))
    return process.wait()


@contextmanager
def start_simulator(*words: str) -> Iterator[str]:
    """Run the simulator in a process of its own on a free port, until the block ends. Yields its
    URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "locust_llm.simulator", "--port", "0", *words],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        if address is None:
            raise RuntimeError(
                f"the simulator did not start: {line.strip() or f'exit status {process.wait()}'}"
            )
        yield address.group()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
