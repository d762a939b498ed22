"""GitHub annotations: annotations of the rules, the summary page, and outputs of the step that ran,
for a GitHub workflow.

Source: GitHub, Workflow commands for GitHub Actions. text/ci_log.py prevents commands in text from
outside.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import uuid4

from locust_llm.records.run_facts import Run
from locust_llm.report.junit import describe_slo_result
from locust_llm.report.render.text_report import render_markdown
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.run_summary import Summary
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, PASSES, SloResult
from locust_llm.text.format import clean_line
from locust_llm.text.sanitise import defuse_ci_commands

ERROR: Final = "error"
WARNING: Final = "warning"
NOTICE: Final = "notice"


def write_workflow_outputs(
    summary: Summary, run: Run, folder: Path, environ: Mapping[str, str]
) -> None:
    """Append the report to the workflow's summary page, and ``verdict`` and ``report-path`` to the
    step's outputs. A stage has neither. Raises OSError and ValueError."""
    if run.stage is not None:
        return
    if page := environ.get("GITHUB_STEP_SUMMARY"):
        _append(page, render_markdown(summary, run) + "\n")
    if outputs := environ.get("GITHUB_OUTPUT"):
        end = uuid4()  # nothing in a path can look like it
        _append(
            outputs,
            f"verdict={summary.slo_status or ''}\nreport-path<<{end}\n{folder.resolve()}\n{end}\n",
        )


def make_announcement(summary: Summary, run: Run, environ: Mapping[str, str]) -> str:
    """The annotations in a workflow; elsewhere nothing."""
    return (
        "".join(make_annotations(summary, run)) if environ.get("GITHUB_ACTIONS") == "true" else ""
    )


def make_annotations(summary: Summary, run: Run) -> Iterator[str]:
    """A line for each rule that did not pass, then one for the result. A stage has none."""
    if run.stage is not None:
        return
    for result in summary.slos:
        if result.status != PASS:
            title = f"SLO {result.status}: {clean_line(result.rule)}"
            yield _command(_level(result, run), title, clean_line(describe_slo_result(result)))
    status = f"SLO {summary.slo_status}" if summary.slo_status else "load test"
    yield _command(NOTICE, f"locust-llm: {status}", f"{clean_line(make_headline(summary, run))}.")


def _level(result: SloResult, run: Run) -> str:
    """An error where the rule is broken and decides; a notice where it counts as passed."""
    if result.status == FAIL and result.decides:
        return ERROR
    return (
        NOTICE if result.status == INCONCLUSIVE and run.settings.inconclusive == PASSES else WARNING
    )


def _command(level: str, title: str, text: str) -> str:
    title = _escaped(defuse_ci_commands(title)).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped(defuse_ci_commands(text))}\n"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _append(path: str, text: str) -> None:
    # a pipe that nobody reads
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "wb") as file:
        file.write(text.encode("utf-8", "replace"))
