"""Commands of ``locust-llm``: a table from the name to the function, which is imported when the
command is used.

Nothing here imports a command. So the core needs no part of the lab, and ``--version`` loads none
of them.
"""

import gc
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

Command = Callable[[list[str]], int]
"""Takes the words after its name and returns the exit status."""

COMMANDS: Final = {
    "run": "locust_llm.locust_adapter.run_command:run_load_test",
    "ab": "locust_llm.locust_adapter.ab_command:run_ab_test",
    "verify": "locust_llm.locust_adapter.verify_command:run_verify",
    "probe": "locust_llm.lab.probe.probe_command:run_probe",
    "demo": "locust_llm.demo_command:run_demo",
    "simulate": "locust_llm.simulator.simulate_command:run_simulate",
    "check": "locust_llm.check_command:run_check",
    "quick": "locust_llm.lab.quick.quick_command:run_quick",
    "canary": "locust_llm.lab.canary.canary_command:run_canary",
    "disconnect": "locust_llm.lab.disconnect.disconnect_command:run_disconnect",
    "gateway": "locust_llm.lab.gateway.gateway_command:run_gateway",
    "soak": "locust_llm.lab.soak.soak_command:run_soak",
    "selftest": "locust_llm.selftest_command:run_selftest",
    "report": "locust_llm.report.report_command:run_report_command",
    "figure": "locust_llm.report.figure_command:run_figure_command",
    "compare": "locust_llm.lab.compare_command:run_compare",
    "pareto": "locust_llm.lab.pareto.pareto_command:run_pareto_command",
    "history": "locust_llm.lab.history.history_command:run_history",
    "audit": "locust_llm.lab.interop.audit_command:run_audit",
    "twin": "locust_llm.lab.twin.twin_command:run_twin",
    "plan": "locust_llm.lab.twin.plan.plan_command:run_plan",
    "import": "locust_llm.lab.interop.import_command:run_import",
    "export": "locust_llm.lab.interop.export_command:run_export",
    "comment": "locust_llm.report.comment_command:run_comment_command",
    "scenario": "locust_llm.settings.scenario_command:run_scenario_command",
    "upload": "locust_llm.integrations.upload_command:run_upload",
}
SUBCOMMANDS: Final = {
    "verify reproduce": "locust_llm.lab.reproduce.verify_reproduce:run_verify_reproduce",
}
"""Commands of two words whose first word is a command of another part of the package."""
LOCUST_COMMANDS: Final = ("run", "ab", "verify", "probe", "demo")
"""Locust parses the words of these commands."""
REMOVED: Final = {
    "manifest": "manifest was removed: change deploy/kubernetes by the patch in "
    "docs/how-to/kubernetes.md",
}
"""Commands of earlier versions, and their replacements."""
OF_OTHERS: Final = {
    "run": ("bench", "benchmark", "load", "loadtest", "load-test", "test", "start", "profile"),
    "run --sweep": ("sweep",),
    "simulate": ("serve", "server", "mock", "simulator"),
    "check": ("doctor", "ping", "preflight", "health"),
    "figure": ("plot", "draw", "timeline"),
    "compare": ("diff",),
    "history": ("trend", "trends", "list", "runs", "log"),
    "audit": ("validate", "lint"),
    "scenario": ("scenarios", "preset", "presets", "workload", "workloads"),
    "report": ("html", "summary", "analyze"),
}
"""Other programs' names for a command."""
USAGE: Final = """\
usage: locust-llm COMMAND ...

Test a server:
  run             send load to a server, report the result and judge the SLOs
  quick HOST      find in a minute how fast a server is and how many users fit
  check HOST      check a server before a run, in ten seconds
  ab              compare two servers, or two settings of one server, in alternating blocks
  verify          check in five minutes whether answers stay right under load
  probe           identify the scheduler of a server, in one to six minutes
  canary HOST     watch a shared server for the prefill load of other users
  disconnect      measure the work of a server for clients who left
  soak            find what grows while a server works for hours
  gateway         measure what a proxy, router or gateway adds, changes and hides

Read results:
  report DIR      make the reports of a run again from its records
  compare A B     compare runs, with the interval of each difference
  history         list past runs and the changes of their values
  figure DIR      draw a timeline of a run as SVG or PNG
  pareto DIR...   compare tokens/s per GPU with tokens/s per user
  comment DIR     print the result of a run as Markdown for a pull request

Plan capacity:
  twin COMMAND    fit a performance model to a server, predict loads, and check for drift
  plan TWIN       compute how many replicas hold an SLO, and their cost

Other tools:
  audit FILE...   find values of a result that cannot be true together
  import FILE     make a run folder of another load tester's result
  export DIR      write a run in the format of another tool
  upload DIR URL  copy the folder of a run to a store, such as s3://bucket/prefix

Without a server:
  demo            start the simulator and test it for 45 seconds
  simulate        start a server with simulated times, without a GPU
  selftest        measure the timing error of this machine
  scenario        list the workloads for run --scenario

  --version       print the versions of this package, Locust and Python

locust-llm COMMAND --help shows the options of a command."""


def load_command(name: str) -> Command:
    """Import the command of this name, of one word or two."""
    with imports_uncollected():
        command: Command = pkgutil.resolve_name((COMMANDS | SUBCOMMANDS)[name])
    return command


@contextmanager
def imports_uncollected() -> Iterator[None]:
    """Import modules without garbage collections, which would take a sixth of the time and find
    nothing. Later collections pass over what was imported."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
