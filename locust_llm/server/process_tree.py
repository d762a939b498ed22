"""Process tree: a process of this machine and all its descendants, from /proc."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def list_process_tree(pid: int, proc: Path = PROC) -> list[int]:
    """The process, its children, their children and so on."""
    children = dict[int, list[int]]()
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(read_process_stat(folder)[1])
            children.setdefault(parent, []).append(int(folder.name))
    tree = [pid]
    for each in tree:
        tree += children.get(each, [])
    return tree


def read_process_stat(folder: Path) -> Sequence[str]:
    """The fields of proc(5) from the state on. The name before them may hold blanks."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
