"""The greeting: what a worker says of itself first. One with another version or another locustfile is refused."""

import hashlib
import inspect
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.core.settings import Settings

from .discovery import Discovery

LOCAL: Final = "local"
"""The only process."""
GONE_S: Final = 15.0
"""A process that has said nothing for so long is given up, whatever has become of it."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the master tells each process at the start of a run."""

    epoch: int
    """The number of the run; messages of another one are ignored."""
    settings: Settings
    survey: Discovery
    worker: int = 0
    """The place of the process among the workers: its prompts are its own."""
    folder: str = ""
    """Of the run, on the machine of the control."""
    boot: str = ""
    """That machine: see clocks.boot_id."""
    clock_offset_s: float = 0.0
    """Of its monotonic clock to Unix time."""


NAME_LENGTH: Final = 200
"""Of a worker. Locust takes the name of the host, and 33 characters more."""


class Greeting(msgspec.Struct, frozen=True):
    """Of a worker, or what the master would say."""

    version: str = "an older one"
    locustfile: str = ""
    """The files that its users come from, each with the beginning of its SHA-256: ``chat.py (1f0c9ae4)``."""
    secrets: tuple[str, ...] = ()
    """The names of headers and flags of which it has a value. No hash of one: whoever listens could try short ones out."""


def greeting(user_classes: Iterable[type], secrets: tuple[str, ...] = ()) -> Greeting:
    return Greeting(version("locust-llm"), " and ".join(sorted({_file_of(kind) for kind in user_classes})), secrets)


def _contents(said: Greeting) -> list[str]:
    """Without the names: a file that the master sent has one of its own."""
    return sorted(file.rpartition(" (")[2] for file in said.locustfile.split(" and "))


def _file_of(kind: type) -> str:
    try:
        path = Path(inspect.getfile(kind))
        return f"{path.name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:8]})"
    except (OSError, TypeError):
        return kind.__name__


def refusal(worker: str, theirs: Any, ours: Greeting) -> str:
    """Why a worker that greets so cannot take part; empty if it can."""
    if not worker.isprintable() or not 0 < len(worker) <= NAME_LENGTH or worker[0] == "." or set(worker) & set("/\\"):
        return "its name is none of Locust's: files are named after workers, so it may be no path, nor begin with a dot"
    try:
        said = msgspec.convert(theirs, Greeting)
    except msgspec.ValidationError:
        said = Greeting()
    if said.version != ours.version:
        return f"its locust-llm is {said.version}, the master's is {ours.version}"
    if _contents(said) != _contents(ours):
        return f"its locustfile is {said.locustfile}, the master's is {ours.locustfile}"
    if lacking := sorted(set(ours.secrets) - set(said.secrets)):
        return (
            f"it has no {' and no '.join(lacking)}, which the master has: secrets do not travel, so start the worker with "
            f"{_ways(lacking)} too"
        )
    if strange := sorted(set(said.secrets) - set(ours.secrets)):
        return (
            f"it has {' and '.join(strange)}, which the master has not: take it away, or start the master with it too"
        )
    return ""


def _ways(names: Iterable[str]) -> str:
    """To give a process these secrets."""
    ways = []
    for name in names:
        if name == "Authorization":
            ways.append("OPENAI_API_KEY in its environment (or --api-key-file, or --header)")
        else:
            ways.append(name if name.startswith("--") else f"--header '{name}: ...' (or LOCUST_LLM_HEADERS)")
    return " and ".join(ways)
