"""JUnit: the rules of a run as test cases, for CI."""

from collections.abc import Iterator
from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import format_interval, format_observed
from locust_llm.report.sections.run_summary import Summary
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, PASSES, SloResult
from locust_llm.text.format import clean_line, format_count


def export_junit_xml(summary: Summary, run: Run) -> bytes:
    """junit.xml with a case for each rule. INCONCLUSIVE is skipped, or passed with ``--inconclusive
    pass``. A failed rule that only warns is skipped too."""
    open_ = () if run.settings.inconclusive == PASSES else (INCONCLUSIVE,)
    skipped = sum(r.status in open_ or _only_warns(r) for r in summary.slos)
    counts = {
        "tests": str(len(summary.slos)),
        "failures": str(sum(r.status == FAIL and r.decides for r in summary.slos)),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{summary.conditions.duration_s or 0:.3f}",
    }
    root = Element("testsuites", counts)
    at = (
        datetime.fromtimestamp(run.started_at, UTC)
        .replace(tzinfo=None)
        .isoformat(timespec="seconds")
    )
    suite = SubElement(
        root, "testsuite", {"name": clean_line(f"locust-llm {run.name}"), **counts, "timestamp": at}
    )
    properties = SubElement(suite, "properties")
    for name, value in _properties(summary, run):
        SubElement(properties, "property", {"name": clean_line(name), "value": clean_line(value)})
    for result in summary.slos:
        case = SubElement(
            suite, "testcase", {"classname": "slo", "name": clean_line(result.rule), "time": "0"}
        )
        if result.status in open_ or _only_warns(result):
            SubElement(case, "skipped", {"message": clean_line(describe_slo_result(result))})
        elif result.status == FAIL:
            SubElement(
                case, "failure", {"type": "slo", "message": clean_line(describe_slo_result(result))}
            )
        else:
            status = f"{result.status}: " if result.status != PASS else ""
            SubElement(case, "system-out").text = clean_line(status + describe_slo_result(result))
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def describe_slo_result(result: SloResult) -> str:
    """``observed 612ms (95 % interval 590ms to 640ms, 500 requests): the reason``."""
    details = [] if format_interval(result) == "-" else [f"95% interval {format_interval(result)}"]
    details += [f"of {format_count(result.count, 'value')}"] if result.count else []
    figure = f"observed {format_observed(result)}" + (f" ({', '.join(details)})" if details else "")
    parts = [figure] if result.observed is not None else []
    return ": ".join([*parts, *([result.reason] if result.reason else [])])


def _only_warns(result: SloResult) -> bool:
    return result.status == FAIL and not result.decides


def _properties(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, seed = summary.conditions, run.settings.random_seed
    yield "slo_status", summary.slo_status or ""
    yield "slo_mode", run.settings.slo_mode
    yield "inconclusive", run.settings.inconclusive
    yield "model", c.model
    yield "server", f"{c.server} {c.server_software}".strip()
    yield "simulated", str(c.simulated).lower()
    yield "client_verdict", c.client_verdict or "not judged"
    yield "random_seed", "none" if seed is None else str(seed)
    yield from ((f"version {name}", version) for name, version in run.versions.items())
