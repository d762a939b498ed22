"""Command line help: the options that most people need (--help), all of them (--help-all), and how
a command is written down in the files of its run."""

import argparse
import copy
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
    "verify": "locust-llm verify (--host URL | reproduce DIR) [options]",
    "probe": "locust-llm probe --host URL [options]",
}
ALL_OPTIONS: Final = "--help-all"
LOAD: Final = (
    "-u", "-t", "--request-rate", "--request-count", "--prefill-concurrency",
)  # fmt: skip
REQUESTS: Final = (
    "--scenario", "--synthetic-input-tokens-mean", "--output-tokens-mean", "--input-file",
)  # fmt: skip
MAIN_OPTIONS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "run": {
        "Server": ("--host", "--model", "--api-key-file"),
        "Load": LOAD,
        "Requests": (*REQUESTS, "-f"),
        "SLO": ("--slo", "--until-decided"),
        "Maximum load": ("--sweep", "--find-max"),
        "Run and report": ("--headless", "--processes", "--report-dir"),
    },
    "ab": {
        "Servers": (
            "--host",
            "--candidate",
            "--candidate-set",
            "--aa",
            "--model",
            "--api-key-file",
        ),
        "Load": LOAD,
        "Requests": (*REQUESTS, "-f"),
        "Comparison": ("--block-duration", "--slo"),
        "Run and report": ("--processes", "--report-dir"),
    },
    "verify": {
        "Server": ("--host", "--model", "--api-key-file"),
        "Load": (*LOAD, "--sweep"),
        "Requests": (*REQUESTS, "-f"),
        "Checks": ("--reference-file", "--keep-text", "--slo"),
        "Report": ("--report-dir",),
    },
    "probe": {
        "Server": ("--host", "--model", "--api-key-file"),
        "Measurement": ("--longest", "--decoders", "--rounds", "--goodput"),
        "Report": ("--report-dir",),
    },
}
"""The options that --help shows, by job and in the order of use."""
TEXTS_FOR_LOCUST: Final = {
    "--host": ("-H", "URL", "Server, such as localhost:8000 or https://llm.example.com"),
    "-u": ("--users", "N", "Concurrent users (default: 1)"),
    "-t": ("--run-time", "TIME", "Length of the run, such as 60s or 10m (default: until Ctrl-C)"),
    "-f": ("--locustfile", "FILE", "Locustfile of your own, in place of synthetic prompts"),
    "--headless": ("", None, "Start at once, without a web page; end with a report and a status"),
    "--processes": ("", "N|auto", "Worker processes on this machine (default: 1)"),
}
"""The other name, the value and the text of Locust's options among them."""
HELP_EPILOG: Final = """\
{all_options} shows every option. Each option that takes a value can also be set in the environment
(LOCUST_LLM_REQUEST_RATE=4 is --request-rate 4) or in a configuration file."""
HELP_ALL_EPILOG: Final = """\
Each option that takes a value can also be set in the environment (LOCUST_LLM_REQUEST_RATE=4 is --request-rate 4) or in a
configuration file. This text has the options of this package and of Locust, also with -f FILE; 'locust -f FILE --help'
has Locust's alone, as it ends before it reads the file."""


class ShowAllOptions(argparse.Action):
    """Prints every option, and ends the program."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(parser.format_help(), end="")
        parser.exit()


def introduce_program(parser: LocustArgumentParser, program: str) -> None:
    """Set --help, --help-all and --version of Locust's parser, where ``program`` is a command of
    this package."""
    command = program.removeprefix(COMMAND_PREFIX)
    if command not in USAGES:
        return
    parser.prog = program
    parser.description = f"Usage: {USAGES[command]}\n"
    parser.epilog = HELP_ALL_EPILOG
    parser.add_argument(
        ALL_OPTIONS,
        action=ShowAllOptions,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="Show every option",
        include_in_web_ui=False,
    )

    def print_main_options(file: Any = None) -> None:
        print(format_main_options(parser, command), end="", file=file)

    parser.print_help = print_main_options  # --help calls it
    for action in parser._actions:
        if "--version" in action.option_strings:
            shows: Any = action
            shows.version = format_versions()


def format_main_options(parser: argparse.ArgumentParser, command: str) -> str:
    """The text of --help: the options that most people need, by job."""
    by_flag = parser._option_string_actions
    formatter = parser._get_formatter()
    formatter.add_text(f"Usage: {USAGES[command]}")
    for title, flags in MAIN_OPTIONS[command].items():
        formatter.start_section(title)
        formatter.add_arguments(
            _shown_option(by_flag[flag], flag, command) for flag in flags if flag in by_flag
        )
        formatter.end_section()
    formatter.add_text(HELP_EPILOG.format(all_options=ALL_OPTIONS))
    return formatter.format_help()


def _shown_option(action: argparse.Action, flag: str, command: str) -> argparse.Action:
    """The option as --help shows it, with a shorter text where it is Locust's."""
    shown = copy.copy(action)
    if flag in TEXTS_FOR_LOCUST:
        other, shown.metavar, shown.help = TEXTS_FOR_LOCUST[flag]
        shown.option_strings = sorted(filter(None, (flag, other)), key=len)
    if command == "ab" and flag == "--host":
        shown.option_strings = ["--base"]
    return shown


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
