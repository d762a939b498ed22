"""Start Locust: hand this process to Locust, with a locustfile of this package by default."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from locust_llm.commands import imports_uncollected
from locust_llm.exit_status import (
    ENDING_SIGNALS,
    ExitStatus,
    end_before_load,
    leave_before_load,
)

LOCUSTFILES: Final = Path(__file__).parents[1] / "locustfiles"
WEB_UI: Final = "locust.web"


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
    with imports_uncollected(), entry_points_read_once(), web_ui_on_demand():
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


@contextmanager
def web_ui_on_demand() -> Iterator[None]:
    """Import Locust's web UI, with Flask, when the UI is made. Most runs of the command have none."""
    sys.modules[WEB_UI] = WebUIOnDemand(WEB_UI)
    try:
        yield
    finally:
        if isinstance(sys.modules[WEB_UI], WebUIOnDemand):
            del sys.modules[WEB_UI]


class WebUIOnDemand(ModuleType):
    """Stands in for Locust's module while Locust takes the class of the UI from it. If Locust takes
    anything else, it gets the module itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "WebUI":
            return make_web_ui
        del sys.modules[WEB_UI]
        return getattr(import_module(WEB_UI), name)


def make_web_ui(*args: Any, **kw: Any) -> Any:
    """Make Locust's web UI."""
    from locust.web import WebUI  # late: it is what takes long

    return WebUI(*args, **kw)
