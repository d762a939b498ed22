"""Start Locust: hand this process to Locust, with a locustfile of this package by default."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from typing import Final

from locust_llm.commands import imports_uncollected
from locust_llm.exit_status import (
    ENDING_SIGNALS,
    ExitStatus,
    end_before_load,
    leave_before_load,
)

LOCUSTFILES: Final = Path(__file__).parents[1] / "locustfiles"


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
        if signal.getsignal(number) is end_before_load:
            signal.signal(number, leave_before_load)
    with imports_uncollected(), entry_points_read_once():
        from locust.main import main as locust_main  # late: it patches the process

        # before the locustfile, so that --help knows the options of this package
        import_module("locust_llm.plugin")
        if ours:
            import_module(users)  # and those that its users have
    locust_main()
    return ExitStatus.OK


@contextmanager
def entry_points_read_once() -> Iterator[None]:
    """Look into the files of all installed packages once. gevent looks for plugins at each of its
    patches, some 45 times, which takes a tenth of the time of all imports."""
    look = metadata.entry_points
    found = look()
    metadata.entry_points = found.select
    try:
        yield
    finally:
        metadata.entry_points = look
