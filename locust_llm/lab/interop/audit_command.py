"""Command ``locust-llm audit FILE...`` checks results of load tests."""

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from locust_llm.exit_status import ExitStatus, fail, worst_exit_status
from locust_llm.lab.interop import read_foreign_results
from locust_llm.lab.interop.audit import AuditOutcome, Finding, audit_figures
from locust_llm.lab.interop.load_metrics import Figures
from locust_llm.text.format import clean_line, print_json, print_safely

OUTCOME: Final = {
    AuditOutcome.IMPOSSIBLE: "cannot be true",
    AuditOutcome.DOUBTFUL: "can be true, with doubts",
    AuditOutcome.HOLDS: "is consistent",
}
NOTHING_CHECKED: Final = "not checked: no two of its values depend on each other"


class AuditedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The findings about one load of a result file."""

    file: str
    """The path as it was given."""
    tool: str
    """The tool that wrote the result, and the load where the file has several."""
    verdict: AuditOutcome
    """The worst verdict of the findings; ``holds`` without findings."""
    findings: tuple[Finding, ...]
    """The result of each check that could be applied. Empty: no two values depend on each other."""


def run_audit(words: list[str]) -> int:
    """Returns 3 if a result cannot be true, 4 with ``--strict`` for a doubtful one, 5 if no file is
    readable, 6 if some are not."""
    parser = argparse.ArgumentParser(
        prog="locust-llm audit",
        description=(
            "Find numbers in the result of a load test that contradict each other. Works with the "
            "results of all supported tools."
        ),
    )
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="result file (JSON or text), or a run folder",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 4 if a number is doubtful"
    )
    parser.add_argument("--verbose", action="store_true", help="also show the checks that pass")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(words)
    statuses = list[int]()
    results = list[AuditedLoad]()
    unread = 0
    for path in options.files:
        try:
            loads = read_foreign_results.read_figures(path)
        except (OSError, read_foreign_results.UnknownFormat) as error:
            fail(f"{path}: {getattr(error, 'strerror', None) or error}")
            unread += 1
            continue
        if cut := loads[-1].cut:
            print(
                f"locust-llm: {path} ends in the middle of {cut}, which was not read",
                file=sys.stderr,
            )
            statuses.append(ExitStatus.INCOMPLETE)
        for figures in loads:
            audit_findings = audit_figures(figures)
            statuses.append(_choose_exit_status(audit_findings, options.strict))
            results.append(
                AuditedLoad(
                    file=str(path),
                    tool=figures.title,
                    verdict=_worst_outcome(audit_findings),
                    findings=tuple(audit_findings),
                )
            )
            if not options.json:
                print_safely(_format_audit(path, figures, audit_findings, options.verbose))
    if options.json:
        print_json(results)
    if unread:
        statuses.append(ExitStatus.INCOMPLETE if results else ExitStatus.REFUSED)
    return worst_exit_status(statuses)


def _worst_outcome(findings: list[Finding]) -> AuditOutcome:
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in AuditOutcome if verdict in verdicts), AuditOutcome.HOLDS)


def _choose_exit_status(findings: list[Finding], strict: bool) -> int:
    verdict = _worst_outcome(findings)
    if verdict is AuditOutcome.IMPOSSIBLE:
        return ExitStatus.RULE_FAILED
    return ExitStatus.INCONCLUSIVE if strict and verdict is AuditOutcome.DOUBTFUL else ExitStatus.OK


def _format_audit(path: Path, figures: Figures, findings: list[Finding], verbose: bool) -> str:
    shown = [
        finding for finding in findings if verbose or finding.verdict is not AuditOutcome.HOLDS
    ]
    held = sum(finding.verdict is AuditOutcome.HOLDS for finding in findings)
    outcome = (
        f"{OUTCOME[_worst_outcome(findings)]} ({held} of {len(findings)} checks hold)"
        if findings
        else NOTHING_CHECKED
    )
    lines = [f"{clean_line(str(path))}, {clean_line(figures.title)}: {outcome}"]
    lines += [
        f"  {finding.verdict:<10}  {finding.rule}: {clean_line(finding.arithmetic)}"
        for finding in shown
    ]
    return "\n".join(lines) + "\n"
