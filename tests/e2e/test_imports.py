"""What commands import: a load test and its report no part of the lab and no pandas, and
``--version`` nothing that takes long."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.runs import Server, server  # noqa: F401

LAB: Final = (
    "locust_llm.lab.twin", "locust_llm.lab.probe", "locust_llm.lab.interop",
    "locust_llm.lab.probe.probe_user", "locust_llm.lab.probe.probe_command",
    "locust_llm.lab.canary", "locust_llm.lab.probe.probe_report_kind", "locust_llm.lab.probe.probe_report",
    "locust_llm.lab.probe.probe_report", "locust_llm.lab.pareto.pareto_command", "locust_llm.lab.pareto.pareto_curve",
    "locust_llm.lab.pareto.pareto_command", "locust_llm.lab.pareto.pareto_chart",
)  # fmt: skip


SCRIPT: Final = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, sep="\\n", file=sys.__stderr__))
from locust_llm.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def modules_of(*words: str) -> set[str]:
    """Those that a command has imported when it ends. ``-X importtime`` would not do: it leaves out
    what a table names."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stderr.splitlines())


def of_the_lab(modules: set[str]) -> set[str]:
    return {
        module
        for module in modules
        if any(module == one or module.startswith(f"{one}.") for one in LAB)
    }


def test_the_lab_is_seen_where_it_is() -> None:
    assert "locust_llm.lab.interop.audit_command" in of_the_lab(modules_of("audit", "--help"))
    assert of_the_lab({"locust_llm.probes", "locust_llm.report.write_report_files"}) == set()


@pytest.mark.slow
def test_a_run_and_its_report_import_neither_the_lab_nor_the_simulator(
    server: Server,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "r")
    run = modules_of(
        "run", "--headless", "--host", server.url, "-u", "2", "--request-count", "10", "--no-probe",
        "--report-dir", folder,
        "--synthetic-input-tokens-mean", "60", "--output-tokens-mean", "5",
    )  # fmt: skip
    report = modules_of("report", "--json", folder)
    assert "locust_llm.plugin" in run
    assert not {"numpy", "pandas", "tabulate", "flask", "locust.web", "prometheus_client"} & run
    assert not any(module.startswith("locust_llm.web.") for module in run)
    assert "locust_llm.report.write_report_files" in report
    assert not {"locust", "gevent", "pandas"} & report
    assert of_the_lab(run | report) == set()
    assert not any(module.startswith("locust_llm.simulator") for module in run | report)


def test_the_version_needs_neither_locust_nor_numpy() -> None:
    modules = modules_of("--version")
    assert not {"locust", "gevent", "flask", "requests", "numpy", "pandas"} & modules
    assert of_the_lab(modules) == set()
