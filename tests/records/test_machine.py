"""What a machine says of itself, from files made by hand."""

from pathlib import Path

from locust_llm.records.machine import Machine, detect_machine, format_machine

CPUINFO = """\
processor\t: 0
model name\t: Abacus 3
cpu MHz\t\t: 1200.5
flags\t\t: fpu sse hypervisor lm

processor\t: 1
model name\t: Abacus 3
cpu MHz\t\t: 3100.0
flags\t\t: fpu sse hypervisor lm
"""


def test_a_virtual_machine(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    (tmp_path / "loadavg").write_text("0.52 0.60 0.70 1/100 4242\n")
    (tmp_path / "sys/kernel/osrelease").write_text("6.1.0\n")
    frequency = tmp_path / "devices/system/cpu/cpu0/cpufreq"
    frequency.mkdir(parents=True)
    (frequency / "scaling_governor").write_text("powersave\n")
    found = detect_machine(tmp_path, tmp_path)
    assert (found.cpu, found.mhz, found.virtual, found.load) == ("Abacus 3", 3100.0, True, 0.52)
    line = format_machine(found)
    assert (
        line == f"Abacus 3, {found.cores} cores, 3100 MHz, governor powersave, virtual, Linux 6.1.0"
    )


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    found = detect_machine(tmp_path, tmp_path)
    assert (found.mhz, found.virtual, found.governor, found.load) == (None, None, "", None)
    assert format_machine(Machine(cpu="x")) == "x"


def test_damaged_files_are_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_bytes(b"\xff\xfe: \n\n\ncpu MHz : fast\n")
    (tmp_path / "loadavg").write_text("\n")
    assert detect_machine(tmp_path, tmp_path).mhz is None


def test_this_machine() -> None:
    assert detect_machine().kernel
