"""nginx, HAProxy, Caddy and LiteLLM in one series, as deploy/gateway configures them: what they add,
change and hide.

``make bench-gateways`` starts them, runs ``locust-llm gateway`` over all four three times, and
writes the tables of benchmarks/gateways.md: the median of the runs with its range, versions,
machine, date and commit. The gateways take turns block by block, so that what drifts on the machine
meets all of them. Ports of the upstreams: ``--port`` and the next one.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

from support.gateways import GATEWAYS, Gateway, find_program, started_gateway

from locust_llm.lab.gateway.cancel_delay import MOMENTS, CancelDelay
from locust_llm.lab.gateway.gateway_result import (
    QUANTITIES,
    WHOLE_ANSWER,
    AddedLevel,
    AddedTime,
    GatewayResult,
    find_quantity,
    read_gateway_result,
)
from locust_llm.lab.gateway.gateway_text import name_load
from locust_llm.lab.gateway.headers_and_routing import DROPPED, TO_UPSTREAM
from locust_llm.lab.gateway.hidden_failures import HIDDEN, VERDICTS
from locust_llm.lab.gateway.process_cost import MIN_TICKS, TICKS_PER_S
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.text.format import format_brief

NAMES: Final = {"nginx": "nginx", "haproxy": "HAProxy", "caddy": "Caddy", "litellm": "LiteLLM"}
VERSION_WORDS: Final = {"nginx": "-v", "haproxy": "-v", "caddy": "version"}
ASK_PYTHON: Final = "from importlib.metadata import version; print(version('litellm'))"
"""LiteLLM itself takes half a minute to name its version."""
SEVERAL: Final = ("nginx", "haproxy", "caddy")
"""These get two upstreams, LiteLLM one."""
COSTS: Final[dict[str, Callable[[AddedLevel], float | None]]] = {
    "CPU per token, µs": lambda level: level.cpu_us_per_token,
    "CPU per request, ms": lambda level: level.cpu_ms_per_request,
    "memory, MB": lambda level: level.memory_mb,
}
BEGIN: Final = "<!-- made by `make bench-gateways`: begin -->"
END: Final = "<!-- made by `make bench-gateways`: end -->"
PAGE: Final = Path(__file__).parents[2] / "benchmarks" / "gateways.md"
TOO_FEW: Final = "too few values"
TICK_MS: Final = 1e3 / TICKS_PER_S
FEW: Final = 3
"""Names of fields and headers that a cell shows."""
Runs = Sequence[GatewayResult]
"""The results of one gateway, in the order of the runs."""


# -- the series ------------------------------------------------------------------------------------


def run_series(options: argparse.Namespace, folder: Path) -> dict[str, list[GatewayResult]]:
    """The results by the name of the gateway. Raises CalledProcessError for a run that failed."""
    found: dict[str, list[GatewayResult]] = {name: [] for name in GATEWAYS}
    with ExitStack() as stack:
        gateways = dict[str, Gateway]()
        for name in GATEWAYS:
            ports = [options.port, options.port + 1][: 2 if name in SEVERAL else 1]
            gateways[name] = stack.enter_context(started_gateway(name, ports, folder))
            print(f"{NAMES[name]} listens at port {gateways[name].port}", file=sys.stderr)
        for number in range(options.runs):
            out = folder / f"run-{number + 1}"
            # each gateway is the first one once
            order = [GATEWAYS[(place + number) % len(GATEWAYS)] for place in range(len(GATEWAYS))]
            command = make_command(options, {name: gateways[name] for name in order}, out)
            print(f"run {number + 1} of {options.runs}: {' '.join(command)}", file=sys.stderr)
            subprocess.run(command, stdout=sys.stderr, check=True)
            for name in GATEWAYS:
                found[name].append(read_gateway_result(out / name))
    return found


def make_command(options: argparse.Namespace, gateways: dict[str, Gateway], out: Path) -> list[str]:
    command = [sys.executable, "-m", "locust_llm", "gateway", "-o", str(out)]
    for name, gateway in gateways.items():
        command += ["--gateway", f"{name}=127.0.0.1:{gateway.port}", "--pid", str(gateway.pid)]
    command += ["--upstream", str(options.port), "--replicas", "2", "-t", options.time]
    return [*command, "--levels", options.levels, "--rates", options.rates, "--limit", "100ms"]


def read_versions() -> str:
    """``nginx 1.22.1, ...``"""
    told = list[str]()
    for name in GATEWAYS:
        program = Path(find_program(name) or name)
        command = [str(program), VERSION_WORDS.get(name, "")]
        if name == "litellm":
            command = [str(program.parent / "python"), "-c", ASK_PYTHON]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        version = re.search(r"\d+(?:\.\d+)+", done.stdout + done.stderr)
        told.append(f"{NAMES[name]} {version[0] if version else 'of unknown version'}")
    return ", ".join(told)


def read_commit() -> str:
    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = ask("status", "--porcelain", "--untracked-files=no")
    return ask("rev-parse", "--short=8", "HEAD") + (" with changes" if changed else "")


# -- tables ----------------------------------------------------------------------------------------


def format_runs(values: Iterable[float | None]) -> str:
    """The median of the runs and their range: ``0.28 (0.27 to 0.34)``."""
    every = list(values)
    known = [value for value in every if value is not None]
    if not known:
        return "not measured"
    told = format_brief(median(known), digits=2)
    if len(known) > 1:
        low, high = (format_brief(end, digits=2) for end in (min(known), max(known)))
        told += f" ({low} to {high})"
    return told if len(known) == len(every) else f"{told}, in {len(known)} of {len(every)} runs"


def make_table(
    corner: str, results: dict[str, list[GatewayResult]], rows: Iterable[tuple[str, Sequence[str]]]
) -> Iterator[str]:
    """The lines of a table in Markdown."""
    yield f"| {corner} | {' | '.join(NAMES.get(name, name) for name in results)} |"
    yield "|---" * (1 + len(results)) + "|"
    for label, cells in rows:
        yield f"| {label} | {' | '.join(cells)} |"


def list_added_rows(results: dict[str, list[GatewayResult]]) -> Iterator[tuple[str, list[str]]]:
    for load in _list_loads(results):
        for quantity, what in QUANTITIES.items():
            for percentile in ("p50", "p99"):
                cells = [_tell_added(runs, load, quantity, percentile) for runs in results.values()]
                if not {*cells} <= {"not measured", TOO_FEW}:
                    yield f"{what}, {load}, {percentile}", cells
        errors = [
            format_runs(_find_error(result, load) for result in runs) for runs in results.values()
        ]
        yield f"error of one value, {load}", errors


def _tell_added(runs: Runs, load: str, quantity: str, percentile: str) -> str:
    """A value that is not above 0 in each run, and in none above the error, is below the error."""
    found = [_find_added(result, load, quantity) for result in runs]
    added = [one for one in found if one is not None]
    if added and has_too_few_values(sum(one.samples for one in added), float(percentile[1:])):
        return TOO_FEW
    values = [one.p50_ms if percentile == "p50" else one.p99_ms for one in added]
    errors = [one.error_ms for one in added]
    small = all(abs(value) < error for value, error in zip(values, errors, strict=True))
    if values and small and min(values) <= 0:
        return "below the error"
    return format_runs(values + [None] * (len(found) - len(added)))


def list_cost_rows(results: dict[str, list[GatewayResult]]) -> Iterator[tuple[str, list[str]]]:
    for load in _list_loads(results):
        for label, read in COSTS.items():
            cells = list[str]()
            for runs in results.values():
                levels = [_find_load(result, load) for result in runs]
                told = format_runs(None if level is None else read(level) for level in levels)
                coarse = label.startswith("CPU") and told != "not measured"
                if coarse and sum(map(_count_ticks, levels)) < MIN_TICKS:
                    told = f"fewer than {MIN_TICKS} ticks"
                cells.append(told)
            if {*cells} != {"not measured"}:
                yield f"{label}, {load}", cells


def _count_ticks(level: AddedLevel | None) -> float:
    """The ticks of CPU that the kernel counted for the gateway at this load."""
    if level is None or level.cpu_ms_per_request is None or level.cpu_is_most:
        return 0.0
    answers = level.find(WHOLE_ANSWER)
    requests = level.failed + (0 if answers is None else answers.samples)
    return level.cpu_ms_per_request * requests / TICK_MS


ALONE: Final = "one after the other"


def _list_loads(results: dict[str, list[GatewayResult]]) -> list[str]:
    loads = dict[str, None]()
    for runs in results.values():
        for result in runs:
            loads |= dict.fromkeys(map(name_load, result.levels))
    return [*loads, ALONE]


def _find_load(result: GatewayResult, load: str) -> AddedLevel | None:
    return next((level for level in result.levels if name_load(level) == load), None)


def _find_added(result: GatewayResult, load: str, quantity: str) -> AddedTime | None:
    if load == ALONE:
        return find_quantity(result.without_load, quantity)
    level = _find_load(result, load)
    return None if level is None else level.find(quantity)


def _find_error(result: GatewayResult, load: str) -> float | None:
    level = _find_load(result, load)
    added = () if level is None else level.added
    if load == ALONE:
        added = result.without_load
    return max((one.error_ms for one in added), default=None)


def list_fault_rows(results: dict[str, list[GatewayResult]]) -> Iterator[tuple[str, list[str]]]:
    for verdict in VERDICTS:
        yield verdict, [_tell_alike(_count_verdict(runs, verdict)) for runs in results.values()]
    sent = [
        _tell_alike([sum(one.requests > 1 for one in result.faults) for result in runs])
        for runs in results.values()
    ]
    yield "sent to the upstream more than once", sent
    yield "the hidden ones", [_list_hidden(runs) for runs in results.values()]


def _count_verdict(runs: Runs, verdict: str) -> list[int]:
    return [Counter(one.verdict for one in result.faults)[verdict] for result in runs]


def _tell_alike(counts: Sequence[int]) -> str:
    """One number where all runs have it."""
    return ", ".join(map(str, counts if len({*counts}) > 1 else counts[:1]))


def _list_hidden(runs: Runs) -> str:
    hidden = dict[str, None]()
    for result in runs:
        for one in result.faults:
            if one.verdict == HIDDEN:
                hidden[f"{one.fault.replace('_', ' ')} ({one.mode})"] = None
    return ", ".join(hidden) or "none"


def list_change_rows(results: dict[str, list[GatewayResult]]) -> Iterator[tuple[str, list[str]]]:
    kinds = dict[str, None]()
    for runs in results.values():
        for result in runs:
            kinds |= dict.fromkeys(one.what for one in result.changes)
    for what in kinds:
        cells = list[str]()
        for runs in results.values():
            found = [one for result in runs for one in result.changes if one.what == what]
            told = ", ".join(dict.fromkeys(f"{one.seen} of {one.of}" for one in found))
            if 0 < len(found) < len(runs):
                told += f", in {len(found)} of {len(runs)} runs"
            cells.append(told or "none")
        yield what, cells


def list_cancel_rows(results: dict[str, list[GatewayResult]]) -> Iterator[tuple[str, list[str]]]:
    for moment, what in MOMENTS.items():
        cells = list[str]()
        for runs in results.values():
            found = [one for result in runs for one in result.cancels if one.moment == moment]
            cells.append(_tell_cancels(found))
        yield what, cells


def _tell_cancels(found: Sequence[CancelDelay]) -> str:
    never = sum(one.never for one in found)
    if never:
        return f"never in {never} of {sum(one.sent for one in found)}"
    return format_runs(one.median_ms for one in found)


def list_header_rows(results: dict[str, list[GatewayResult]]) -> Iterator[tuple[str, list[str]]]:
    passed = [_name_headers(runs, secret=True) for runs in results.values()]
    yield "secrets of the client that reach the upstream", passed
    yield (
        "headers of the client that do not",
        [_name_headers(runs, secret=False) for runs in results.values()],
    )
    deaths = list[str]()
    for runs in results.values():
        found = [result.death for result in runs if result.death is not None]
        told = [f"{one.after_failed} of {one.after}" for one in found if one.open_streams]
        deaths.append(", ".join(told) or "no stream was at it")
    yield "requests that failed after a replica died", deaths


def _name_headers(runs: Runs, *, secret: bool) -> str:
    names = dict[str, None]()
    for result in runs:
        for one in result.headers:
            if one.direction != TO_UPSTREAM:
                continue
            wanted = one.verdict == DROPPED
            if secret:
                wanted = one.secret and one.verdict == "passed"
            if wanted:
                names[one.name] = None
    shown = list(names)[:FEW]
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(shown) + more if names else "none"


def write_tables(results: dict[str, list[GatewayResult]]) -> str:
    parts = {
        "Added time": ("ms", list_added_rows(results)),
        "CPU and memory": ("", list_cost_rows(results)),
        "Failures": ("faults", list_fault_rows(results)),
        "Changed answers": (
            "answers with it, of all that could have it",
            list_change_rows(results),
        ),
        "Clients who left": ("seen after, ms", list_cancel_rows(results)),
        "Secrets and replicas": ("", list_header_rows(results)),
    }
    lines = list[str]()
    for title, (corner, rows) in parts.items():
        lines += [f"## {title}", "", *make_table(corner, results, rows), ""]
    return "\n".join(lines)


def write_head(
    options: argparse.Namespace, machine: str, began: datetime, loads: Sequence[float]
) -> str:
    """The table of what was measured, where and when."""
    ended = datetime.now(UTC)
    command = " ".join(make_command(options, {}, Path("DIR"))[3:])
    rows = {
        "date": f"{began:%Y-%m-%d}, {began:%H:%M} to {ended:%H:%M} UTC; values are the median of "
        f"{options.runs} runs, each over all four block by block in turn, and the range of the "
        f"runs; p99 where the runs have 100 values together; CPU where they have {MIN_TICKS} ticks "
        f"of {TICK_MS:g} ms together",
        "machine": f"{machine}; client, upstream and gateways share it; load average "
        f"{loads[0]:.1f} before and {loads[1]:.1f} behind; {read_versions()}",
        "commit that recorded it": f"`{read_commit()}`",
        "repeat it with": f"`make bench-gateways`, which runs `locust-llm {command}` with the four gateways",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows.items())])


def put_into_page(page: str, text: str) -> str:
    """The page with this text in the place of the earlier series."""
    before, begin, rest = page.partition(BEGIN)
    _, end, behind = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the series: {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{behind}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--time", default="5m", help="of each run (default: %(default)s)")
    parser.add_argument("--levels", default="1,16,64")
    parser.add_argument("--rates", default="50")
    parser.add_argument("--port", type=int, default=9000, help="of the upstream (default: 9000)")
    parser.add_argument("--out", type=Path, default=Path("reports") / "gateways")
    parser.add_argument("--page", action="store_true", help="put the tables into the page")
    parser.add_argument("--tables", action="store_true", help="of runs that --out has already")
    options = parser.parse_args()
    if options.tables:
        folders = sorted(options.out.glob("run-*"))
        found = {name: [read_gateway_result(one / name) for one in folders] for name in GATEWAYS}
        tables = write_tables(found)
        print(tables)
        if options.page:
            page = PAGE.read_text("utf-8")
            head = page.partition(f"{BEGIN}\n")[2].partition("\n## ")[0]
            PAGE.write_text(put_into_page(page, f"{head}\n{tables}"), "utf-8")
        return 0
    missing = [NAMES[name] for name in GATEWAYS if find_program(name) is None]
    if missing:
        print(f"not installed: {', '.join(missing)}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    began = datetime.now(UTC)
    before = os.getloadavg()[0]
    results = run_series(options, options.out.resolve())
    machine = results[GATEWAYS[0]][0].machine
    head = write_head(options, machine, began, (before, os.getloadavg()[0]))
    text = f"{head}\n\n{write_tables(results)}"
    (options.out / "tables.md").write_text(text, "utf-8")
    print(text)
    if options.page:
        PAGE.write_text(put_into_page(PAGE.read_text("utf-8"), text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
