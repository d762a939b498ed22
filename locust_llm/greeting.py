"""The greeting: what a worker says of itself first. One with another version or another locustfile is refused."""

import hashlib
import inspect
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec


class Greeting(msgspec.Struct, frozen=True):
    """Of a worker, or what the master would say."""

    version: str = "an older one"
    locustfile: str = ""
    """The files that its users come from, each with the beginning of its SHA-256: ``chat.py (1f0c9ae4)``."""


def greeting(user_classes: Iterable[type]) -> Greeting:
    return Greeting(version("locust-llm"), " and ".join(sorted({_file_of(kind) for kind in user_classes})))


def _contents(said: Greeting) -> list[str]:
    """Without the names: a file that the master sent has one of its own."""
    return sorted(file.rpartition(" (")[2] for file in said.locustfile.split(" and "))


def _file_of(kind: type) -> str:
    try:
        path = Path(inspect.getfile(kind))
        return f"{path.name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:8]})"
    except (OSError, TypeError):
        return kind.__name__


def refusal(theirs: Any, ours: Greeting) -> str:
    """Why a worker that greets so cannot take part; empty if it can."""
    try:
        said = msgspec.convert(theirs, Greeting)
    except msgspec.ValidationError:
        said = Greeting()
    if said.version != ours.version:
        return f"its locust-llm is {said.version}, the master's is {ours.version}"
    if _contents(said) != _contents(ours):
        return f"its locustfile is {said.locustfile}, the master's is {ours.locustfile}"
    return ""
