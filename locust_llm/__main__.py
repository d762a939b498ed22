"""Main: the ``locust-llm`` command."""

import _signal  # type: ignore[import-not-found]  # of which signal is made: this is there at once
import os
import sys

if __name__ == "__main__" or os.path.basename(sys.argv[0]) == "locust-llm":
    # until main() is there, Ctrl-C ends the process without a traceback of the import that it
    # interrupts
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

# isort: split
import difflib
import signal
from collections.abc import Sequence
from typing import Final

from locust_llm.text.ci_log import guard_streams
from locust_llm.text.console import discard_if_unread, settle_output_at_exit
from locust_llm.text.format import print_safely

from .commands import (
    COMMANDS,
    LOCUST_COMMANDS,
    OF_OTHERS,
    REMOVED,
    SUBCOMMANDS,
    USAGE,
    load_command,
)
from .exit_status import (
    ENDING_SIGNALS,
    ExitStatus,
    end_before_load,
    end_in_order,
    fail,
    follow_parent,
    signal_exit_status,
)

USAGE_ERROR: Final = 2
"""The status of argparse. A run's parser does not use it, as it would mean that the load generator
broke."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: see docs/reference/exit-status.md."""
    try:
        return _main(argv)
    except BrokenPipeError:  # a reader such as head has what it wanted
        discard_if_unread()
        return signal_exit_status(signal.SIGPIPE)


def _main(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    name = words[0] if words else ""
    if " ".join(words[:2]) in SUBCOMMANDS:
        name = " ".join(words[:2])
    settle_output_at_exit()
    guard_streams(os.environ)
    if name in ("--version", "-V", "version"):
        from locust_llm.records.machine import format_versions

        print_safely(f"{format_versions()}\n")
        return ExitStatus.OK
    if name in REMOVED:
        return fail(REMOVED[name])
    if name not in (*COMMANDS, *SUBCOMMANDS):
        if not words or name in ("-h", "--help", "help"):
            print_safely(f"{USAGE}\n")
            return ExitStatus.OK if words else ExitStatus.REFUSED
        wrong = _unknown(name)
        return fail(wrong if ":" in wrong else f"{wrong}\n\n{USAGE}")
    from locust_llm.records.machine import memory_refusal

    if why := memory_refusal():
        return fail(why)
    for number in ENDING_SIGNALS if argv is None else ():
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end_before_load if name in LOCUST_COMMANDS else end_in_order)
    follow_parent(os.environ)
    try:
        return load_command(name)(words[len(name.split()) :])
    except SystemExit as ended:
        if ended.code == USAGE_ERROR and name not in LOCUST_COMMANDS:
            raise SystemExit(ExitStatus.REFUSED) from None
        raise


def _unknown(word: str) -> str:
    """The error for a word that is no command, with the likely meaning."""
    if word.startswith("-"):
        option = word.partition("=")[0]
        return (
            f"the command is missing before {option}: did you mean 'locust-llm run {option} ...'?"
        )
    here = next((here for here, names in OF_OTHERS.items() if word in names), "")
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    if here:
        return f"unknown command {word!r}: use {here}"
    meant = f": did you mean {near[0]}?" if near else ""
    return f"unknown command {word!r}{meant}"


if __name__ == "__main__":
    sys.exit(main())
