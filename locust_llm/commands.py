"""Commands of ``locust-llm``: a table from the name to the function, which is imported when the
command is used.

Nothing here imports a command. So the core needs no part of the lab, and ``--version`` loads none
of them.
"""

import pkgutil
from collections.abc import Callable
from typing import Final

Command = Callable[[list[str]], int]
"""Takes the words after its name and returns the exit status."""

COMMANDS: Final = {
    "run": "locust_llm.locust_adapter.run_command:run_load_test",
    "ab": "locust_llm.locust_adapter.ab_command:run_ab_test",
    "probe": "locust_llm.lab.probe.probe_command:run_probe",
    "demo": "locust_llm.demo_command:run_demo",
    "simulate": "locust_llm.simulator.simulate_command:run_simulate",
    "check": "locust_llm.check_command:run_check",
    "canary": "locust_llm.lab.canary.canary_command:run_canary",
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
LOCUST_COMMANDS: Final = ("run", "ab", "probe", "demo")
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
    "audit": ("verify", "validate", "lint"),
    "scenario": ("scenarios", "preset", "presets", "workload", "workloads"),
    "report": ("html", "summary", "analyze"),
}
"""Other programs' names for a command."""
USAGE: Final = """\
usage: locust-llm COMMAND ...

  run ARGS        Locust with synthetic chat prompts, with every option of Locust and of this package: run --help
  ab ARGS         compare two servers, or two settings of one, in pairs of short blocks: ab --base URL --candidate URL,
                  and any option of run: ab --help
  probe ARGS      measure what long prompts do to other requests, and name the scheduler of the server, in some
                  minutes: probe --host URL, and any option of run: probe --help
  demo            start the simulator and load-test it for 45 seconds; needs no GPU and no server
  simulate        an OpenAI-compatible server without a GPU, with simulated times: simulate --help
  check HOST      check a server before a run, in ten seconds: check --help
  canary HOST     watch a shared server by one slow stream: how much prefill load do others cause? canary --help
  selftest        check this machine: the load generator against a server whose send times are known: selftest --help
  report DIR      make the reports of a run again from its records
  figure DIR      draw a timeline of a run as SVG or PNG: figure --help
  compare A B     compare runs: differences with their intervals, and different conditions
  pareto DIR...   tokens/s per GPU against tokens/s per user, of sweeps and runs, as a table and a figure: pareto --help
  history [DIR]   the runs below a folder with their conditions and key figures, and where these changed: history --help
  audit FILE...   say which figures of a result cannot be true together, whichever tool wrote it: audit --help
  twin COMMAND    a twin of a server: fit it, ask it what if, see whether the server still is the same: twin --help
  plan TWIN       the fewest replicas that hold an SLO with one lost, and what they cost, by a twin: plan --help
  import FILE     make a run folder of another load tester's result, where it has its requests: import --help
  export DIR      write a run in the format of another tool: vllm-bench, benchmark-report, parquet: export --help
  comment DIR     what a run came to as Markdown, for a comment on a pull request: comment --help
  scenario        list the workloads that run --scenario takes by name; scenario show NAME prints one, to change
  upload DIR URL  copy the folder of a run to a store, such as s3://bucket/prefix, as run --upload does
  --version       of this package, of Locust and of Python"""


def load_command(name: str) -> Command:
    """Import the command of this name."""
    command: Command = pkgutil.resolve_name(COMMANDS[name])
    return command
