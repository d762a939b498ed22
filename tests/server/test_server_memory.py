"""Memory of a server's process: from /proc, from its metrics page, from a command."""

import os
import sys
from pathlib import Path

import pytest

from locust_llm.access.operator_command import CommandFailed, OperatorCommand
from locust_llm.server.server_memory import (
    ProcessReading,
    parse_process_metrics,
    read_command_memory,
    read_machine_memory,
    read_process,
)

PAGE = """\
# HELP process_resident_memory_bytes Resident memory size in bytes.
process_resident_memory_bytes 1.5e+08
process_open_fds 31.0
process_start_time_seconds{pid="7"} 1795394839.5
my_process_open_fds 99
"""


def test_the_metrics_page_of_a_process() -> None:
    assert parse_process_metrics(PAGE) == ProcessReading(1.5e8, 31.0, 1795394839.5)
    assert parse_process_metrics("vllm:num_requests_running 1\n") == ProcessReading()


def write_process(proc: Path, pid: int, parent: int, resident_kib: int, swap_kib: int) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number in range(3):
        (folder / "fd" / str(number)).touch()
    fields = ["S", str(parent), *["0"] * 17, f"{pid}00"]
    (folder / "stat").write_text(f"{pid} (a b) {' '.join(fields)}")
    (folder / "status").write_text(f"Name:\tx\nVmRSS:\t{resident_kib} kB\nVmSwap:\t{swap_kib} kB\n")


def test_a_process_and_its_children_count_with_what_is_swapped_out(tmp_path: Path) -> None:
    write_process(tmp_path, 5, 1, 1000, 24)
    write_process(tmp_path, 6, 5, 500, 0)
    write_process(tmp_path, 7, 1, 9000, 0)
    assert read_process(5, tmp_path) == ProcessReading(1524 * 1024, 6, 500)
    assert read_process(8, tmp_path) == ProcessReading()


def test_this_process_has_memory() -> None:
    reading = read_process(os.getpid())
    assert reading.memory_bytes is not None
    assert reading.memory_bytes > 1e6
    assert reading.open_files is not None
    assert reading.open_files >= 3
    machine = read_machine_memory()
    assert machine is not None
    assert machine > reading.memory_bytes


def run_python(code: str) -> OperatorCommand:
    return OperatorCommand("--memory-command", f'{sys.executable} -c "{code}"')


def test_a_command_prints_memory() -> None:
    assert read_command_memory(run_python("print('2 MB')"), 120.0) == 2e6


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('no')", "--memory-command must print the bytes in use"),
        ("import sys; sys.exit('gone')", "--memory-command ended with status 1: gone"),
    ],
)
def test_a_command_that_gives_no_memory(code: str, why: str) -> None:
    with pytest.raises(CommandFailed, match=why):
        read_command_memory(run_python(code), 120.0)
