"""Memory source options: ``--pid`` and ``--memory-command`` of ``--soak``.

The command runs on this machine, so it comes from the command line of this process alone, as the
commands of ``--disrupt`` do.
"""

import os
import re
import sys
from argparse import ArgumentParser, Namespace

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.server.server_looks import MEMORY_FLAG, METRICS_ALONE, MemorySource
from locust_llm.server.server_memory import ProcessReading, read_command_memory, read_process
from locust_llm.settings.environment_and_config_file import name_variable
from locust_llm.settings.run_options import Settings
from locust_llm.settings.run_refusal import refuse_run
from locust_llm.text.numbers import truncate_quoted_text


def find_given_memory_command() -> str | None:
    """The value of ``--memory-command`` on the command line of this process."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument(MEMORY_FLAG)
    known, _ = parser.parse_known_args(sys.argv[1:])
    given: str | None = known.memory_command
    return given


def find_shown_memory_command() -> dict[str, str]:
    """This value, and the same without its secrets."""
    given = find_given_memory_command()
    if given is None:
        return {}
    try:
        return {given: OperatorCommand(MEMORY_FLAG, given).shown}
    except CommandFailed:
        return {given: "***"}


def _read_pid(text: str | None) -> int | None:
    """Raises Refused."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,9}", text):
        refuse_run(f"--pid takes the number of a process, got {truncate_quoted_text(text)!r}")
    return int(text)


def read_memory_source(options: Namespace, settings: Settings) -> MemorySource:
    """Raises Refused for a command from another source, and for what cannot be read. The parsed
    command is empty afterwards."""
    given = find_given_memory_command()
    parsed, options.memory_command = options.memory_command, None
    if parsed != given:
        refuse_run(f"{MEMORY_FLAG} works on the command line only, not in a configuration file")
    if os.environ.get(name_variable(MEMORY_FLAG)):
        refuse_run(
            f"{MEMORY_FLAG} works on the command line only, not in {name_variable(MEMORY_FLAG)}"
        )
    if settings.soak and hasattr(options, "decoders"):
        refuse_run("locust-llm probe has no --soak")
    source = MemorySource(_read_pid(options.pid), given)
    if source == METRICS_ALONE:
        return source
    if not settings.soak:
        refuse_run(f"--pid and {MEMORY_FLAG} need --soak")
    if None not in source:
        refuse_run(f"--pid and {MEMORY_FLAG} exclude each other: use one of them")
    if options.worker:
        refuse_run(f"--pid and {MEMORY_FLAG} belong to the process that runs the load test")
    if given is not None and not (options.headless or options.autostart):
        refuse_run(f"{MEMORY_FLAG} needs --headless or --autostart: a web page starts no commands")
    if source.pid is not None and read_process(source.pid) == ProcessReading():
        refuse_run(f"there is no process {source.pid}, or it is another user's")
    if given is not None:
        try:
            read_command_memory(OperatorCommand(MEMORY_FLAG, given))
        except CommandFailed as error:
            refuse_run(str(error))
    return source
