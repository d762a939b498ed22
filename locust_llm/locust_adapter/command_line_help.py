"""Command line help: the begin and the end of --help, and how a command is written down in the
files of its run."""

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from locust.argument_parser import LocustArgumentParser

from locust_llm.records.machine import format_versions
from locust_llm.text.hide_secrets import hide_url_secrets

# -- help ------------------------------------------------------------------------------------------

COMMAND_PREFIX: Final = "locust-llm "
USAGES: Final = {
    "run": "locust-llm run --host URL [-u USERS] [-t TIME] [options] [UserClass ...]",
    "ab": "locust-llm ab --base URL (--candidate URL | --candidate-set KEY=VALUE | --aa) [-u "
    "USERS] [-t TIME] [options]",
    "probe": "locust-llm probe --host URL [options]",
}
HELP_INTRODUCTION: Final = """\
Usage: {usage}

Most runs need these options of Locust:
  --host URL            the server, such as localhost:8000 or https://llm.example.com
  -u N                  concurrent users
  -t TIME               length of the run, such as 60s or 10m
  --headless            no web page: begin at once, and end with a report and an exit status
  -f FILE               a locustfile of your own

Behind the options of this package, which come in groups, are all of Locust's.
"""
OMITTED_INTRODUCTION_LINES: Final = {
    "ab": ("  --headless",),
    "probe": ("  -u ", "  -t ", "  --headless"),
}
"""The lines of the introduction that a command does not need begin so."""
HELP_EPILOG: Final = """\
Each option that takes a value can also be set in the environment (LOCUST_LLM_REQUEST_RATE=4 is --request-rate 4) or in a
configuration file. This text has the options of both, also with -f FILE; 'locust -f FILE --help' has Locust's alone, as
it ends before it reads the file."""


def introduce_program(parser: LocustArgumentParser, program: str) -> None:
    """Set the begin and the end of --help and --version of Locust's parser, where ``program`` is a
    command of this package."""
    command = program.removeprefix(COMMAND_PREFIX)
    if command not in USAGES:
        return
    parser.prog = program
    lines = HELP_INTRODUCTION.format(usage=USAGES[command]).splitlines(keepends=True)
    parser.description = "".join(
        line for line in lines if not line.startswith(OMITTED_INTRODUCTION_LINES.get(command, ()))
    )
    parser.epilog = HELP_EPILOG
    for action in parser._actions:
        if "--version" in action.option_strings:
            shows: Any = action
            shows.version = format_versions()


# -- the command, to be written down ---------------------------------------------------------------

INSERTED_WORDS: Final = {
    "locust-llm ab": ("run.py", "--headless"),
    "locust-llm probe": ("probe.py", "--headless"),
}
"""The words that a command puts before the given ones. For any other command it is the locustfile
of a run."""


def format_command_line(
    headers: list[str], secrets: Iterable[Any], shown_as: Mapping[str, str] | None = None
) -> str:
    """The command line without the values of headers and of the locustfile's secret flags, and
    without the path of this package. ``shown_as`` replaces other words with values of headers."""
    words = sys.argv[1:]
    name = os.path.basename(sys.argv[0]).replace("__main__.py", "locust")
    file, *more = INSERTED_WORDS.get(name, ("run.py",))
    put = ["-f", str(Path(__file__).parents[1] / "locustfiles" / file), *more]
    if words[: len(put)] == put:
        name = name if name in INSERTED_WORDS else "locust-llm run"
        words = words[len(put) :]
    for header in headers:  # by their text, however the flag was written
        words = [word.replace(header, "***") if header else word for word in words]
    for text, instead in (shown_as or {}).items():
        words = [word.replace(text, instead) for word in words]
    for secret in filter(None, map(str, secrets)):  # whole: a short one is in many words
        words = [
            word.removesuffix(secret) + "***"
            if word == secret or word.endswith("=" + secret)
            else word
            for word in words
        ]
    return " ".join([name, *(shlex.quote(hide_url_secrets(word)) for word in words)])
