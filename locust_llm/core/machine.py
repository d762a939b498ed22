"""Machine: what a process of the load generator runs on, from /proc and /sys; what cannot be read is left out."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """At the start of a run."""

    cpu: str = ""
    cores: int | None = None
    """Those that this process may use."""
    governor: str = ""
    """Of the frequency (scaling_governor); most virtual machines have none."""
    mhz: float | None = None
    """Of the fastest core at that moment."""
    virtual: bool | None = None
    """It runs under a hypervisor; None: unknown."""
    kernel: str = ""
    load: float | None = None
    """Mean number of programs that ran or waited for a core, over the minute before."""


def machine_of(proc: Path = PROC, sys: Path = SYS) -> Machine:
    """The one that this is."""
    cores = [dict(map(_pair, block.splitlines())) for block in _read(proc / "cpuinfo").split("\n\n") if block.strip()]
    first = cores[0] if cores else {}
    mhz = [_number(core.get("cpu MHz", "")) for core in cores]
    flags = first.get("flags")
    load = _read(proc / "loadavg").split()
    return Machine(
        cpu=first.get("model name", "") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        governor=_read(sys / "devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        mhz=max((one for one in mhz if one is not None), default=None),
        virtual=None if flags is None else "hypervisor" in flags.split(),
        kernel=_read(proc / "sys/kernel/osrelease").strip(),
        load=_number(load[0]) if load else None,
    )


def machine_line(machine: Machine) -> str:
    """In one line, without the load."""
    kind = {True: "virtual", False: "not virtual", None: ""}[machine.virtual]
    parts = (
        machine.cpu,
        f"{machine.cores} cores" if machine.cores else "",
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


def versions() -> str:
    """For ``--version``."""
    return f"locust-llm {version('locust-llm')} (Locust {version('locust')}, Python {platform.python_version()})"
