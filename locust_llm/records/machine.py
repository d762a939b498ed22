"""Machine: what a process of the load generator runs on, and the commit. What cannot be read is
left out."""

import os
import platform
import re
import resource
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.text.format import format_count

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")


MIN_MEMORY: Final = 512 << 20
"""The address space in bytes that a process needs. Below 450 MB, libraries of the reports abort."""


def usable_cores() -> int:
    """The cores that this process may use, as far as the system reports them."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # of Linux alone
        return os.cpu_count() or 1


def memory_refusal() -> str:
    """Why nothing can begin under the limit of this shell. Empty: it can."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= MIN_MEMORY:
        return ""
    return f"ulimit -v allows {limit >> 20} MB of memory, and {MIN_MEMORY >> 20} MB are needed"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine at the start of a run."""

    cpu: str = ""
    cores: int | None = None
    """The cores that this process may use."""
    machine_cores: int | None = None
    """All cores of the machine. null: unknown."""
    governor: str = ""
    """The frequency governor (scaling_governor). Most virtual machines have none."""
    mhz: float | None = None
    """The clock of the fastest core at that moment."""
    virtual: bool | None = None
    """The machine runs under a hypervisor. None: unknown."""
    kernel: str = ""
    load: float | None = None
    """The mean number of programs that ran or waited for a core, over the minute before."""


def detect_machine(proc: Path = PROC, sys: Path = SYS) -> Machine:
    cores = [
        dict(map(_pair, block.splitlines()))
        for block in _read(proc / "cpuinfo").split("\n\n")
        if block.strip()
    ]
    first = cores[0] if cores else {}
    mhz = [_number(core.get("cpu MHz", "")) for core in cores]
    flags = first.get("flags")
    load = _read(proc / "loadavg").split()
    return Machine(
        cpu=first.get("model name", "") or platform.machine(),
        cores=usable_cores(),
        machine_cores=os.cpu_count(),
        governor=_read(sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        mhz=max((core_mhz for core_mhz in mhz if core_mhz is not None), default=None),
        virtual=None if flags is None else "hypervisor" in flags.split(),
        kernel=_read(proc / "sys/kernel/osrelease").strip(),
        load=_number(load[0]) if load else None,
    )


def format_machine(machine: Machine) -> str:
    """Describes the machine in one line, without its load."""
    kind = {True: "virtual", False: "not virtual", None: ""}[machine.virtual]
    parts = (
        machine.cpu,
        format_count(machine.cores, "core") if machine.cores else "",
        f"{machine.mhz:.0f} MHz" if machine.mhz else "",
        f"governor {machine.governor}" if machine.governor else "",
        kind,
        f"Linux {machine.kernel}" if machine.kernel else "",
    )
    return ", ".join(filter(None, parts))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def format_versions() -> str:
    """The versions for ``--version``."""
    return (
        f"locust-llm {version('locust-llm')} (Locust {version('locust')}, Python "
        f"{platform.python_version()})"
    )


# -- the working directory -------------------------------------------------------------------------

PATIENCE_S: Final = 2.0
"""Git may search the working directory for so long. After that the run goes on without it."""
STATUS: Final = (
    "git", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch",
    "--untracked-files=no",
    "--ignore-submodules=all",
)  # fmt: skip
OF_CI: Final = (
    ("GITHUB_SHA", ("GITHUB_HEAD_REF", "GITHUB_REF_NAME")),
    ("CI_COMMIT_SHA", ("CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_REF_NAME")),
)
"""Variables of GitHub and GitLab for the commit and the branch (a pull request's branch first), as
their checkout has no branch."""


class Commit(msgspec.Struct, frozen=True):
    """The commit from which a run was started. None and empty: unknown."""

    hash: str
    branch: str = ""
    dirty: bool | None = None
    """Files that Git tracks were changed. Untracked files do not count."""


def find_commit(folder: Path, environment: Mapping[str, str] = os.environ) -> Commit | None:
    """The commit of the CI job, else Git's. None: neither knows one."""
    there = any((above / ".git").exists() for above in (folder, *folder.parents))
    commit = parse_git_status(_status(folder, environment)) if there else None
    for name, branches in OF_CI:
        if value := environment.get(name):
            branch = next(filter(None, map(environment.get, branches)), "")
            return Commit(
                value, branch, None if commit is None or commit.hash != value else commit.dirty
            )
    return commit


def _status(folder: Path, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            STATUS, cwd=folder, env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def parse_git_status(status: str) -> Commit | None:
    """Reads ``git status --porcelain=v2 --branch``. None: there is no commit."""
    lines = status.splitlines()
    heads = dict(
        line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and " " in line[2:]
    )
    commit = heads.get("branch.oid", "")
    branch = heads.get("branch.head", "")
    if not re.fullmatch("[0-9a-f]{40,64}", commit):  # "(initial)"
        return None
    return Commit(
        commit,
        "" if branch == "(detached)" else branch,
        any(not line.startswith("#") for line in lines),
    )
