"""Command: ``locust-llm twin``, which has commands of its own."""

import difflib
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Final

from locust_llm.core.text import say
from locust_llm.exit_status import ExitStatus

USAGE: Final = """\
usage: locust-llm twin COMMAND ...

  fit        probe and sweep a server, and fit a model of it: twin fit --host URL
  predict    ask the model what a load, a budget or a limit would give: twin predict twin.toml --load concurrency=1..128
  drift      one minute on the server: is it still the one that was fitted? twin drift twin.toml
"""
COMMANDS: Final = ("fit", "predict", "drift")
"""Each a file beside this one, with a function ``command``; read when it is asked for, as numpy takes a second."""


def twin(words: list[str]) -> int:
    """The exit status."""
    if not words or words[0] in ("-h", "--help", "help"):
        say(USAGE)
        return ExitStatus.OK if words else ExitStatus.REFUSED
    if words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        meant = f": did you mean {near[0]}?" if near else f": it takes {', '.join(COMMANDS)}"
        print(f"locust-llm: error: twin has no command {words[0]!r}{meant}", file=sys.stderr)
        return ExitStatus.REFUSED
    command: Callable[[list[str]], int] = import_module(f"{__package__}.{words[0]}").command
    return command(words[1:])
