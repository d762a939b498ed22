"""Command: ``locust-llm twin fit | predict | drift``."""

import sys
from importlib import import_module
from typing import Final

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.text.format import print_safely

COMMANDS: Final = {
    "fit": "probe and sweep a server, and fit a twin to it; or to the folders of a probe and a "
    "sweep",
    "predict": "ask a twin what if: loads and settings in virtual time, each answer with its "
    "interval",
    "drift": "one minute on the server: is it still the one that was fitted, and what has moved",
}
"""Each is a file beside this one, with a function of its name."""


def twin(words: list[str]) -> int:
    usage = "usage: locust-llm twin COMMAND ...\n\n" + "".join(
        f"  {name:9}{what}\n" for name, what in COMMANDS.items()
    )
    if words and words[0] in ("-h", "--help", "help"):
        print_safely(usage)
        return ExitStatus.OK
    if not words or words[0] not in COMMANDS:
        if words:
            return fail(f"unknown command twin {words[0]!r}\n\n{usage.rstrip()}")
        print(usage, end="", file=sys.stderr)
        return ExitStatus.REFUSED
    command = getattr(import_module(f"{__package__}.{words[0]}"), f"run_{words[0]}")
    return int(command(words[1:]))
