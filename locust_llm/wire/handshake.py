"""Handshake: the greeting of a worker. The master refuses a worker of another version, with another
locustfile or without its secrets."""

import hashlib
import inspect
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Final

from .worker_messages import Hello

NAME_LENGTH: Final = 200
"""The longest name of a worker. Locust takes the host's name and 33 characters more."""


def make_hello(user_classes: Iterable[type], secrets: tuple[str, ...] = ()) -> Hello:
    return Hello(
        version("locust-llm"),
        " and ".join(sorted({_file_of(kind) for kind in user_classes})),
        secrets,
    )


def _contents(theirs: Hello) -> list[str]:
    """The hashes alone: a file that the master sent has a name of its own."""
    return sorted(file.rpartition(" (")[2] for file in theirs.locustfile.split(" and "))


def _file_of(kind: type) -> str:
    try:
        path = Path(inspect.getfile(kind))
        return f"{path.name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:8]})"
    except (OSError, TypeError):
        return kind.__name__


def explain_worker_refusal(worker: str, theirs: Hello, ours: Hello) -> str:
    """Why a worker with this greeting cannot take part; empty if it can."""
    if (
        not worker.isprintable()
        or not 0 < len(worker) <= NAME_LENGTH
        or worker[0] == "."
        or set(worker) & set("/\\")
    ):
        return (
            "its name is not valid: it must not contain a path or begin with a dot, because files "
            "are named after workers"
        )
    if theirs.version != ours.version:
        return f"its locust-llm is {theirs.version}, the master's is {ours.version}"
    if _contents(theirs) != _contents(ours):
        return f"its locustfile is {theirs.locustfile}, the master's is {ours.locustfile}"
    if lacking := sorted(set(ours.secrets) - set(theirs.secrets)):
        return (
            f"it has no {' and no '.join(lacking)}, but the master has: secrets are not sent over "
            f"the network, so start the worker with {_ways(lacking)} too"
        )
    if strange := sorted(set(theirs.secrets) - set(ours.secrets)):
        return (
            f"it has {' and '.join(strange)}, but the master does not: remove it, or start the "
            "master with it too"
        )
    return ""


def _ways(names: Iterable[str]) -> str:
    ways = []
    for name in names:
        if name == "Authorization":
            ways.append("OPENAI_API_KEY in its environment (or --api-key-file, or --header)")
        else:
            ways.append(
                name if name.startswith("--") else f"--header '{name}: ...' (or LOCUST_LLM_HEADERS)"
            )
    return " and ".join(ways)
