"""JUnit: the SLO rules of a run as test cases, and what GitHub's workflow page shows of them."""

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from .blocks import clean, interval, observed
from .run import Run
from .slo import FAIL, INCONCLUSIVE, PASS
from .summary import SloResult, Summary
from .tables import markdown


def xml(summary: Summary, run: Run) -> bytes:
    """junit.xml: a case a rule. INCONCLUSIVE is skipped, and so is a rule that failed but only warns."""
    skipped = sum(r.status == INCONCLUSIVE or _only_warns(r) for r in summary.slos)
    counts = {
        "tests": str(len(summary.slos)),
        "failures": str(sum(r.status == FAIL and r.decides for r in summary.slos)),
        "errors": "0",
        "skipped": str(skipped),
        "time": f"{summary.conditions.duration_s or 0:.3f}",
    }
    root = Element("testsuites", counts)
    at = datetime.fromtimestamp(run.started_at, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    suite = SubElement(root, "testsuite", {"name": clean(f"locust-llm {run.name}"), **counts, "timestamp": at})
    properties = SubElement(suite, "properties")
    for name, value in _properties(summary, run):
        SubElement(properties, "property", {"name": clean(name), "value": clean(value)})
    for result in summary.slos:
        case = SubElement(suite, "testcase", {"classname": "slo", "name": clean(result.rule), "time": "0"})
        if result.status == INCONCLUSIVE or _only_warns(result):
            SubElement(case, "skipped", {"message": clean(sentence(result))})
        elif result.status == FAIL:
            SubElement(case, "failure", {"type": "slo", "message": clean(sentence(result))})
        else:
            SubElement(case, "system-out").text = clean(sentence(result))
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def append(summary: Summary, run: Run, environ: Mapping[str, str]) -> None:
    """In a workflow of GitHub: the report appended to its summary page. Raises OSError, ValueError."""
    if page := environ.get("GITHUB_STEP_SUMMARY"):
        data = (markdown(summary, run) + "\n").encode("utf-8", "replace")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that nobody reads
        with open(os.open(page, flags, 0o666), "wb") as file:
            file.write(data)


def announce(summary: Summary, environ: Mapping[str, str]) -> str:
    """In a workflow of GitHub: what to print so that each rule that did not pass is an annotation; nothing elsewhere."""
    return "".join(annotations(summary)) if environ.get("GITHUB_ACTIONS") == "true" else ""


def annotations(summary: Summary) -> Iterator[str]:
    """A line each (GitHub, Workflow commands for GitHub Actions): an error for what fails the build, else a warning."""
    for result in summary.slos:
        if result.status != PASS:
            level = "error" if result.status == FAIL and result.decides else "warning"
            title = _escaped(f"SLO {result.status}: {clean(result.rule)}").replace(":", "%3A").replace(",", "%2C")
            yield f"::{level} title={title}::{_escaped(clean(sentence(result)))}\n"


def sentence(result: SloResult) -> str:
    """``observed 612ms (95 % interval 590ms to 640ms, 500 requests): the reason``."""
    said = [] if interval(result) == "-" else [f"95 % interval {interval(result)}"]
    said += [f"of {result.count} values"] if result.count else []
    figure = f"observed {observed(result)}" + (f" ({', '.join(said)})" if said else "")
    parts = [figure] if result.observed is not None else []
    return ": ".join([*parts, *([result.reason] if result.reason else [])])


def _only_warns(result: SloResult) -> bool:
    return result.status == FAIL and not result.decides


def _properties(summary: Summary, run: Run) -> Iterator[tuple[str, str]]:
    c, seed = summary.conditions, run.settings.random_seed
    yield "slo_status", summary.slo_status or ""
    yield "model", c.model
    yield "server", f"{c.server} {c.server_software}".strip()
    yield "simulated", str(c.simulated).lower()
    yield "client_verdict", c.client_verdict or "not judged"
    yield "random_seed", "none" if seed is None else str(seed)
    yield from ((f"version {name}", version) for name, version in run.versions.items())


def _escaped(text: str) -> str:
    return text.replace("%", "%25")
