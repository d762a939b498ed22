"""Open files and ports against the number of users; each sentence has the figure, and what it
advises is enough."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.server.open_files_and_ports import (
    SPARE_FILES,
    WIDEST_PORTS,
    explain_shortage,
    read_local_ports,
)

PORTS = (32_768, 60_999)
"""Linux's default: 28,232 of them."""


@pytest.mark.parametrize(
    ("users", "processes", "files", "ports"),
    [
        (984, 1, 1024, PORTS),
        (1968, 2, 1024, PORTS),
        (28_232, 4, 20_000, PORTS),
        (64_512, 1, 100_000, WIDEST_PORTS),
        (1_000_000, 1, None, None),
    ],
)
def test_there_is_enough(
    users: int, processes: int, files: int | None, ports: tuple[int, int] | None
) -> None:
    assert explain_shortage(users, processes, files, ports) is None


def test_too_few_files() -> None:
    assert explain_shortage(985, 1, 1024, PORTS) == (
        "with -u 985 a process needs 1025 open files, but the system allows 1024: run ulimit -Hn 1025 "
        "(as root; for a container: --ulimit nofile=1025), --processes 2, or at most 984 users"
    )
    said = explain_shortage(1969, 2, 1024, PORTS)  # one of the two has 925
    assert said is not None
    assert said.startswith("with -u 1969 over 2 processes a process needs 1025 open files")
    assert said.endswith("--processes 3, or at most 1968 users")
    assert (explain_shortage(1, 1, 40, None) or "").endswith(
        "nofile=41), or fewer users"
    )  # no number of processes would do


def test_too_few_ports() -> None:
    """However many processes: they share them."""
    for processes in (1, 8):
        assert explain_shortage(28_233, processes, 100_000, PORTS) == (
            "28233 users (-u) need as many ports to the server, but this machine has 28232 (32768 "
            "to 60999): sysctl -w net.ipv4.ip_local_port_range='1024 65535' (as root), 2 source "
            "addresses (--source-ip), or workers on more machines (--master, "
            "--worker), or at most 28232 users"
        )
    beyond = explain_shortage(64_513, 8, 100_000, WIDEST_PORTS)
    assert beyond is not None
    assert "sysctl" not in beyond
    # no range is wide enough
    assert "sysctl" not in (explain_shortage(70_000, 8, 100_000, PORTS) or "")


def test_at_most_keeps_every_limit() -> None:
    """20,000 open files are less than 28,232 ports: 19,960 users have both."""
    said = explain_shortage(30_000, 1, 20_000, PORTS) or ""
    assert "(--master, --worker); and with -u 30000 a process needs 30040 open files" in said
    assert said.endswith("--processes 2, or at most 19960 users")
    assert explain_shortage(19_960, 1, 20_000, PORTS) is None
    assert explain_shortage(19_961, 1, 20_000, PORTS) is not None
    files_alone = explain_shortage(28_000, 1, 20_000, PORTS) or ""
    assert files_alone.endswith("--processes 2, or at most 19960 users")
    ports_alone = explain_shortage(30_000, 2, 20_000, PORTS) or ""
    assert "open files" not in ports_alone
    assert ports_alone.endswith("or at most 28232 users")


def test_a_user_has_a_connection_to_each_of_several_addresses() -> None:
    """984 files beside the 40 spare ones are 492 users of two addresses."""
    assert explain_shortage(492, 1, 1024, PORTS, addresses=2) is None
    said = explain_shortage(493, 1, 1024, PORTS, addresses=2) or ""
    assert said.startswith(
        "with -u 493 and 2 addresses a process needs 1026 open files, but the system allows 1024: "
        "run ulimit -Hn 1026 "
    )
    assert said.endswith("--processes 2, or at most 492 users")
    assert explain_shortage(493, 2, 1024, PORTS, addresses=2) is None
    assert explain_shortage(493, 1, 1026, PORTS, addresses=2) is None


def test_ports_are_those_of_each_source_address() -> None:
    assert explain_shortage(3 * 28_232, 8, 100_000, PORTS, 3) is None
    assert (explain_shortage(3 * 28_232 + 1, 8, 100_000, PORTS, 3) or "").startswith(
        "84697 users (-u) need as many ports to the server, but this machine has 84696 (32768 to "
        "60999 at each of 3 addresses): sysctl -w net.ipv4.ip_local_port_range='1024 65535' (as "
        "root), 4 source addresses (--source-ip), "
    )


@given(st.integers(1, 70_000), st.integers(1, 16), st.integers(SPARE_FILES + 1, 100_000))
def test_what_it_advises_is_enough_and_no_more_than_that(
    users: int, processes: int, files: int
) -> None:
    said = explain_shortage(users, processes, files, None)
    if said is None:
        return
    more, fewer, higher = (
        int(found[1])
        for found in (
            re.search(rf"{what} (\d+)", said) for what in ("--processes", "at most", "-Hn")
        )
        if found
    )
    assert (
        explain_shortage(users, more, files, None)
        is explain_shortage(fewer, processes, files, None)
        is None
    )
    assert explain_shortage(users, processes, higher, None) is None
    assert explain_shortage(users, more - 1, files, None) is not None
    assert explain_shortage(fewer + 1, processes, files, None) is not None
    assert explain_shortage(users, processes, higher - 1, None) is not None


def test_the_soft_limit_rises_to_the_hard_one_and_stays_there() -> None:
    """In a process of its own: this one keeps its limits."""
    code = (
        "from resource import *; setrlimit(RLIMIT_NOFILE, (64, 300))\n"
        "import locust\n"  # first, as always: it patches the process
        "from locust_llm.server.open_files_and_ports import raise_open_files\n"
        "print(raise_open_files(), *getrlimit(RLIMIT_NOFILE))\n"
        "print(raise_open_files(), *getrlimit(RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["300 300 300"] * 2


def test_the_ports_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "ip_local_port_range"
    assert read_local_ports(file) is None
    file.write_text("32768\t60999\n")
    assert read_local_ports(file) == PORTS
    file.write_text("unknown\n")
    assert read_local_ports(file) is None
