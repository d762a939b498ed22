"""CPU and memory of a process and its children, from a /proc of the test's own."""

import os
import subprocess
from pathlib import Path

import pytest

from locust_llm.lab.gateway.process_cost import (
    ProcessUse,
    find_container_pid,
    read_process_use,
)
from locust_llm.server.process_tree import list_process_tree


def add_process(
    proc: Path, pid: int, parent: int, ticks: tuple[int, int], pss_kib: int | None, rss_kib: int
) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 9, str(ticks[0]), str(ticks[1]), *["0"] * 10]
    (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
    (folder / "status").write_text(f"Name:\ta\nVmRSS:\t  {rss_kib} kB\n")
    if pss_kib is not None:
        (folder / "smaps_rollup").write_text(f"Rss: 1 kB\nPss:   {pss_kib} kB\n")


def test_a_process_with_its_children(tmp_path: Path) -> None:
    add_process(tmp_path, 10, 1, (100, 50), 2048, 4096)
    add_process(tmp_path, 11, 10, (10, 0), 1024, 4096)
    add_process(tmp_path, 12, 11, (1, 1), None, 512)
    add_process(tmp_path, 20, 1, (999, 999), 9999, 9999)
    (tmp_path / "self").mkdir()
    assert sorted(list_process_tree(10, tmp_path)) == [10, 11, 12]
    assert read_process_use(10, tmp_path, 100.0) == ProcessUse(1.62, 3.5, 3)
    assert read_process_use(99, tmp_path, 100.0) is None


def test_this_process_uses_something() -> None:
    use = read_process_use(os.getpid())
    assert use is not None
    assert use.cpu_s > 0.05
    assert use.memory_mb > 5


def test_a_container_is_asked_for() -> None:
    asked = list[str]()

    def run(command: list[str], **how: object) -> "subprocess.CompletedProcess[str]":
        asked.append(command[0])
        if command[0] == "docker":
            raise FileNotFoundError
        return subprocess.CompletedProcess(command, 0, "4711\n", "")

    assert find_container_pid("kong", run) == 4711
    assert asked == ["docker", "podman"]

    def none(command: list[str], **how: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 1, "", "no such container")

    with pytest.raises(ValueError, match="--container kong: neither docker nor podman"):
        find_container_pid("kong", none)
