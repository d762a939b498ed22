"""The door: the ``locust-llm`` command."""

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DEMO: Final = (
    "--headless", "-u", "30", "-t", "45s", "--prefill-concurrency", "5", "--prefill-concurrency-ramp-duration", "30",
    "--synthetic-input-tokens-mean", "16000", "--output-tokens-mean", "60",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: see the README."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(words[0]) if words else None
    if command is None:
        if words and words[0] not in ("-h", "--help"):
            print(f"locust-llm: error: there is no command {words[0]!r}\n", file=sys.stderr)
        print(USAGE, file=sys.stderr if words and words[0] not in ("-h", "--help") else sys.stdout)
        return 0 if words and words[0] in ("-h", "--help") else 5
    return command(words[1:])


def run(words: list[str]) -> int:
    """Locust with our locustfile, unless one is given."""
    if not any(word in ("-f", "--locustfile") or word.startswith(("--locustfile=", "-f")) for word in words):
        words = ["-f", str(Path(__file__).with_name("locustfile.py")), *words]
    sys.argv = ["locust", *words]
    from locust.main import main as locust_main  # patches the process: not before it is wanted

    from . import plugin  # noqa: F401  before the locustfile, so that --help knows our options too

    locust_main()
    return 0


def simulate(words: list[str]) -> int:
    """The simulator, in this process."""
    from .simulator.command import add_arguments, serve

    parser = argparse.ArgumentParser(
        prog="locust-llm simulate", description="An OpenAI-compatible server without a GPU."
    )
    add_arguments(parser)
    return serve(parser.parse_args(words))


def report(words: list[str]) -> int:
    """The reports of a run, made anew from its records."""
    from . import junit, report, tables

    parser = argparse.ArgumentParser(
        prog="locust-llm report", description="Make a run's reports anew from its records."
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args(words).folder
    if not (folder / "profile_export.jsonl").is_file():
        print(f"locust-llm: error: {folder} holds no run: there is no profile_export.jsonl in it", file=sys.stderr)
        return 5
    summary, facts = report.remake(folder)
    print(tables.console(summary, facts, folder))
    print(junit.announce(summary, facts, os.environ), end="")
    return 0


def demo(words: list[str]) -> int:
    """A load test of the simulator: what this is, in a minute, without a GPU."""
    checkout = Path("locustfiles/chat.py")
    locustfile = checkout if checkout.is_file() else Path(__file__).with_name("locustfile.py")
    with simulator() as url:
        command = ["locust", "-f", str(locustfile), "--host", url, *DEMO, *words]
        print("$", " ".join(command), flush=True)
        return subprocess.run([sys.executable, "-m", *command], check=False).returncode


@contextmanager
def simulator(*words: str) -> Iterator[str]:
    """The simulator in a process of its own, on a free port; its URL. Ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "locust_llm.simulator", "--port", "0", *words],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"the simulator did not start: {line.strip() or f'exit status {process.wait()}'}")
        yield found.group()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


COMMANDS: Final[dict[str, Callable[[list[str]], int]]] = {
    "run": run,
    "demo": demo,
    "simulate": simulate,
    "report": report,
}
USAGE: Final = """\
usage: locust-llm COMMAND ...

  run ARGS        Locust with synthetic chat prompts, with every option of Locust and of this package: run --help
  demo            start the simulator, load-test it, print the tables; needs no GPU and no server
  simulate        an OpenAI-compatible server with a model of time and none of language: simulate --help
  report DIR      make the reports of a run anew from its records"""

if __name__ == "__main__":
    sys.exit(main())
