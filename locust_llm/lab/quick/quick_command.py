"""Command ``locust-llm quick``: finds or takes a server, checks it, searches for a minute how many
users fit, and prints the result in three sentences. The search is ``run --find-max``."""

import argparse
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from locust_llm.check_command import (
    PROBLEM,
    add_check_options,
    read_check_target,
    show_findings,
)
from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import decode_json_file
from locust_llm.lab.twin.child_runs import (
    RunStopped,
    make_environment,
    make_session_folder,
    run_locust_llm,
    split_withheld,
)
from locust_llm.locust_adapter.command_line_parser import add_access_options
from locust_llm.locust_adapter.option_names_of_other_tools import unknown_options
from locust_llm.records.run_facts import RUN, SIMULATED
from locust_llm.report.write_report_files import HTML_FILE
from locust_llm.server.local_servers import (
    describe_local_servers,
    find_local_servers,
    is_attended,
)
from locust_llm.text.console import write_console
from locust_llm.text.format import print_safely
from locust_llm.text.sanitise import sanitise_text

from .quick_answer import LIMITS, QuickRun, QuickSearch, list_quick_sentences

MOST_USERS: Final = 128
RUN_TIME: Final = "60s"
LOG_NAME: Final = "console.txt"
LINE_CHARS: Final = 300
OWN_OPTIONS: Final = ("host", "users", "header", "help")
"""These options are not passed on as they are: headers go through the environment."""
NO_SERVER: Final = "the server's address is missing: locust-llm quick localhost:8000"


def run_quick(words: list[str]) -> int:
    parser = _make_parser()
    if refusal := unknown_options(words, parser._option_string_actions):
        return fail(refusal)
    options = parser.parse_args(words)
    if options.users < 1:
        return fail("--users must be 1 or more")
    if not (options.address or options.host):
        if not is_attended():
            return fail(NO_SERVER)
        options.host = choose_local_server()
    try:
        target = read_check_target(options)
    except (OSError, ValueError) as error:
        return fail(str(error))
    findings = list(show_findings(target))
    if any(finding.level == PROBLEM for finding in findings):
        return ExitStatus.FAILED_REQUESTS
    try:
        return _search(options, list(list_run_words(parser, options)))
    except OSError as error:
        return fail(sanitise_text(str(error), most=LINE_CHARS), ExitStatus.INCOMPLETE)


def choose_local_server() -> str | None:
    """The address of the only server on this machine. None: there is none or a choice, which is
    printed."""
    found = find_local_servers()
    if len(found) == 1:
        print_safely(f"On this machine answers {found[0]}\n\n")
        return found[0].address
    for line in describe_local_servers(found, "locust-llm quick {host}"):
        print_safely(f"{line}\n")
    return None


def list_run_words(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[str]:
    """The given options that a run has too, the server first."""
    yield f"--host={options.host}"
    for action in parser._actions:
        value = getattr(options, action.dest, None)
        if not action.option_strings or action.dest in OWN_OPTIONS or value == action.default:
            continue
        flag = action.option_strings[-1]
        if action.nargs == 0:
            yield flag
            continue
        for one in value if isinstance(value, list) else [value]:
            yield f"{flag}={one}"


def _search(options: argparse.Namespace, words: list[str]) -> int:
    """Run the search, and print what it found. Raises OSError."""
    folder = make_session_folder(Path("reports") / f"quick-{time.strftime('%Y%m%d-%H%M%S')}")
    print_safely(f"\nUp to {options.users} users for a minute; Ctrl-C ends it.\n")
    load = [
        "run", "--headless", *words, f"--sweep=concurrency=1..{options.users}", "--find-max",
        f"--run-time={RUN_TIME}", f"--report-dir={folder}", *(f"--slo={rule}" for rule in LIMITS),
    ]  # fmt: skip
    environment = make_environment(options, os.environ)
    try:
        status = run_locust_llm(load, environment, folder / LOG_NAME, _tell)
    except RunStopped as stopped:
        return stopped.status
    if status in (ExitStatus.REFUSED, ExitStatus.BROKEN):
        return status
    try:
        facts = decode_json_file(folder / RUN, QuickRun)
    except ValueError as error:
        return fail(f"{folder / RUN}: {error}", ExitStatus.INCOMPLETE)
    stored, withheld = split_withheld(words)
    shown = [shlex.quote(word) for word in stored]
    shown += [f"{flag}=..." for flag in withheld]
    shown += ['--header "..."'] * len(options.header)
    if facts.run.simulated:
        print_safely(f"\n{SIMULATED}\n")
    for sentence in list_quick_sentences(facts.sweep or QuickSearch(), shown, options.users):
        print_safely(f"\n{sentence}\n")
    print_safely(f"\nreport: {folder / HTML_FILE}\n")
    return status


def _tell(text: str) -> None:
    write_console(f"{sanitise_text(text, most=LINE_CHARS)}\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="locust-llm quick",
        description=(
            "Find in a minute how fast a server is and how many users fit. On a terminal it also "
            "finds the server."
        ),
        epilog="example: locust-llm quick localhost:8000",
    )
    add_check_options(parser, users=MOST_USERS, what="highest number of users to try")
    add_access_options(parser)
    return parser
