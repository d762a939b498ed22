"""Locust command: the commands that start Locust in this process, run and ab, with a locustfile of
this package by default."""

import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from locust_llm.exit_status import ENDING_SIGNALS, ExitStatus, end_in_order, fail

LOCUSTFILES: Final = Path(__file__).parents[1] / "locustfiles"


def run_load_test(words: list[str]) -> int:
    """Run Locust with synthetic prompts."""
    return start_locust("run", words, LOCUSTFILES / "run.py")


def run_ab_test(words: list[str]) -> int:
    """Run two arms, base and candidate, in pairs of blocks."""
    given = {word.partition("=")[0] for word in words}
    arms = given & {"--candidate", "--candidate-set", "--aa", "-h", "--help"}
    if not arms and not any(os.environ.get(f"LOCUST_LLM_CANDIDATE{more}") for more in ("", "_SET")):
        return fail("ab takes --candidate URL, --candidate-set KEY=VALUE, or --aa")
    return start_locust("ab", ["--headless", *replace_base_by_host(words)], LOCUSTFILES / "run.py")


def replace_base_by_host(words: list[str]) -> list[str]:
    """Replace ``--base`` by its other name."""
    return [
        "--host" + word.removeprefix("--base") if word.partition("=")[0] == "--base" else word
        for word in words
    ]


def start_locust(
    command: str, words: list[str], locustfile: Path, *more: str, users: str = "locust_llm.user"
) -> int:
    """Run Locust with this locustfile and the words ``more``, unless ``words`` name a locustfile.
    ``users`` is the module of the locustfile's user class."""
    ours = not any(
        word in ("-f", "--locustfile") or word.startswith(("--locustfile=", "-f")) for word in words
    )
    if ours:
        words = ["-f", str(locustfile), *more, *words]
    sys.argv = [f"locust-llm {command}", *words]
    for number in ENDING_SIGNALS:
        # an exception may be swallowed while modules are imported
        if signal.getsignal(number) is end_in_order:
            signal.signal(number, lambda number, frame: os._exit(128 + number))
    from locust.main import main as locust_main  # late: it patches the process

    # before the locustfile, so that --help knows the options of this package
    import_module("locust_llm.plugin")
    if ours:
        import_module(users)  # and those that its users have
    locust_main()
    return ExitStatus.OK
