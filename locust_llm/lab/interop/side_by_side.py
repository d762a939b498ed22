"""Side by side: shows results of several tools, or without records, in one table. Only equal loads
have differences."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from tabulate import tabulate

from locust_llm.exit_status import ExitStatus, fail
from locust_llm.files.json_file import replace_file
from locust_llm.lab.interop.audit import AuditOutcome, audit_figures
from locust_llm.lab.static_page import render_page
from locust_llm.report.compare.same_workload import LengthStatistics, RunWork, find_work_differences
from locust_llm.text.format import clean_line, format_brief, format_signed, print_safely

from . import read_foreign_results
from .load_metrics import Distribution, Figures

OWN: Final = """
body { display: block; max-width: 90rem; }
td { white-space: nowrap; }
tr:first-child td { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
"""
ConditionFormatter = Callable[[Figures], str]


def compare_results(words: Sequence[str]) -> int:
    """Prints the table of the results. Returns status 5 if one is unreadable."""
    options = make_compare_parser().parse_args(words)
    files: list[tuple[Path, Figures]] = []
    for path in options.results:
        try:
            files += [(path, figures) for figures in read_foreign_results.read_figures(path)]
        except (OSError, read_foreign_results.UnknownFormat) as error:
            return fail(f"{path}: {getattr(error, 'strerror', None) or error}")
    table = build_result_table(files)
    text = format_results_markdown(table)
    try:
        if options.markdown:
            replace_file(options.markdown, text.encode())
        if options.html:
            replace_file(
                options.html,
                render_page(
                    "side_by_side.html", OWN, title="Results side by side", found=table
                ).encode(),
            )
        if options.json:
            loads = [{"file": str(path), "figures": figures} for path, figures in files]
            replace_file(
                options.json, msgspec.json.format(msgspec.json.encode(loads), indent=2) + b"\n"
            )
    except OSError as error:
        return fail(f"{error.filename} cannot be written: {error.strerror or error}")
    print_safely(text)
    return ExitStatus.OK


def make_compare_parser() -> argparse.ArgumentParser:
    """Makes a parser of the options of ``locust-llm compare`` that concern files. Its help is the
    help of runs."""
    parser = argparse.ArgumentParser(prog="locust-llm compare", add_help=False)
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--html", type=Path)
    parser.add_argument("--json", type=Path)
    return parser


def names_result_files(words: Sequence[str]) -> bool:
    """Returns whether one of the results is a file, or a folder of another tool. Other folders are
    our runs."""
    results: list[Path] = make_compare_parser().parse_known_args(words)[0].results
    return len(results) > 1 and any(
        path.is_file() or read_foreign_results.holds_foreign_result(path) for path in results
    )


class ResultTable(NamedTuple):
    """Holds the cleaned texts of the table."""

    names: list[str]
    conditions: list[list[str]]
    measures: list[list[str]]
    """Each row starts with its name."""
    differing_loads: list[str]
    """Each text explains why a column has no difference."""
    notes: list[str]
    doubts: list[str]
    """Each text is an objection of the audit to a result."""
    held: list[str]
    """Each text counts the checks that a result passes."""


def build_result_table(files: Sequence[tuple[Path, Figures]]) -> ResultTable:
    """Builds the table with the first result as the base."""
    names = number_equal_titles([figures.title for _, figures in files])
    columns = [figures for _, figures in files]
    base, *_ = columns
    whys = [find_unlike_conditions(base, figures) for figures in columns]
    conditions = [["file", *(path.name for path, _ in files)], *list_conditions(columns)]
    measures = []
    for name, value in MEASURES.items():
        cells = [
            _cell(value(figures), value(base) if place and not why else None)
            for place, (figures, why) in enumerate(zip(columns, whys, strict=True))
        ]
        measures.append([name, *cells])
    doubts, held = audit_columns([*zip(names, columns, strict=True)])
    cut = {
        f"{path.name} ends in the middle of {file.cut}, which was not read.": None
        for path, file in files
        if file.cut
    }
    return ResultTable(
        names=names,
        conditions=clean_rows(conditions),
        measures=clean_rows(measures),
        differing_loads=[
            f"{name} had another load than {names[0]}: {clean_line(why)}. So no "
            f"differences are shown."
            for name, why in zip(names, whys, strict=True)
            if why
        ],
        notes=[*map(clean_line, cut), *([] if all(whys[1:]) else [NO_INTERVALS])],
        doubts=doubts,
        held=held,
    )


def audit_columns(named: Sequence[tuple[str, Figures]]) -> tuple[list[str], list[str]]:
    """Returns the audit's objections, except for too few samples, and the number of passed checks
    per result."""

    doubts = []
    held = []
    for name, figures in named:
        findings = audit_figures(figures)
        objections = [finding for finding in findings if finding.verdict is not AuditOutcome.HOLDS]
        held.append(f"{name}: {len(findings) - len(objections)} of {len(findings)}")
        doubts += [
            clean_line(f"{name}: {finding.verdict}: {finding.rule}: {finding.arithmetic}")
            for finding in objections
            if finding.rule != "samples"
        ]
    return doubts, held


def list_conditions(columns: Sequence[Figures | None]) -> list[list[str]]:
    """Lists rows that start with their name. None: nothing is known."""
    rows = []
    for name, condition in CONDITIONS.items():
        cells = ["-" if figures is None else condition(figures) for figures in columns]
        rows.append([name, *cells])
    return rows


def clean_rows(rows: list[list[str]]) -> list[list[str]]:
    """Cleans the rows, and drops rows without content."""
    filled_rows = []
    for row in rows:
        if not {"-", ""}.issuperset(row[1:]):
            filled_rows.append([clean_line(cell) for cell in row])
    return filled_rows


def format_results_markdown(table: ResultTable) -> str:
    rows = tabulate(
        [*table.conditions, *table.measures],
        ["", *table.names],
        tablefmt="github",
        disable_numparse=True,
    )
    return "\n\n".join([*table.differing_loads, rows, *table.notes, *table.doubts]) + "\n"


def number_equal_titles(titles: Sequence[str]) -> list[str]:
    """Cleans the titles, and numbers titles that occur several times."""
    return [
        clean_line(title)
        if titles.count(title) == 1
        else f"{clean_line(title)} ({titles[: place + 1].count(title)})"
        for place, title in enumerate(titles)
    ]


NO_INTERVALS: Final = (
    "Differences are relative to the first column. They have no intervals, because these files "
    "have no request records. A difference smaller than between two runs of one tool means "
    "nothing."
)


def find_unlike_conditions(base: Figures, other: Figures) -> str:
    """Explains why two loads are not comparable: other work, or another load. Empty: they are
    comparable. Unknown values do not matter."""
    if differences := find_work_differences(_work(base), _work(other)):
        return ", ".join(map(str, differences))
    for name, base_value, value in (
        ("in flight at most", base.concurrency, other.concurrency),
        ("requested rate", base.rate_per_s, other.rate_per_s),
    ):
        if base_value and value and base_value != value:
            return f"{name} {value} instead of {base_value}"
    one_has_a_rate = (base.rate_per_s is None) != (other.rate_per_s is None)
    one_has_users = (base.concurrency is None) != (other.concurrency is None)
    if one_has_a_rate and one_has_users:
        return "one is an open loop, the other a closed one"
    return ""


def _work(figures: Figures) -> RunWork:
    """Describes the work. Tokenizers differ, so the server's own count takes precedence."""
    counted = figures.server_output_tokens
    output = _length(figures.output_tokens) if counted is None else LengthStatistics(counted)
    return RunWork(
        figures.model,
        {"input tokens": _length(figures.input_tokens), "output tokens": output},
        figures.tool,
    )


def _length(lengths: Distribution) -> LengthStatistics | None:
    if not lengths.avg:
        return None

    error = lengths.std / math.sqrt(lengths.count) if lengths.std and lengths.count else 0.0
    return LengthStatistics(lengths.avg, error)


def _cell(value: float | None, base: float | None) -> str:
    if value is None:
        return "-"
    more = f" ({format_signed((value / base - 1) * 100, 1)}%)" if base else ""
    return f"{format_brief(value)}{more}"


def _milliseconds(field: str, point: str) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        times: Distribution = getattr(figures, field)
        seconds = times.avg if point == "mean" else times.percentiles.get(float(point[1:]))
        return None if seconds is None else seconds * 1e3

    return value


def _list_measures() -> dict[str, Callable[[Figures], float | None]]:
    measures: dict[str, Callable[[Figures], float | None]] = {}
    for field, name in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL")):
        for point in ("mean", "p50", "p90", "p95", "p99"):
            measures[f"{name} {point}, ms"] = _milliseconds(field, point)
    for point in ("mean", "p50", "p99"):
        measures[f"latency {point}, ms"] = _milliseconds("latency", point)
    measures["requests/s"] = lambda figures: figures.requests_per_s
    measures["output tokens/s"] = lambda figures: figures.output_tokens_per_s
    return measures


CONDITIONS: Final[dict[str, ConditionFormatter]] = {
    "model": lambda figures: figures.model or "-",
    "in flight at most": lambda figures: f"{figures.concurrency or '-'}",
    "prefills at most": lambda figures: f"{figures.prefill_concurrency or '-'}",
    "requests/s asked for": lambda figures: (
        "-" if figures.rate_per_s is None else f"{figures.rate_per_s:g}"
    ),
    "requests": lambda figures: "-" if figures.requests is None else f"{figures.requests:,}",
    "failed": lambda figures: f"{figures.failed:,}",
    "input tokens": lambda figures: format_brief(figures.input_tokens.avg),
    "output tokens": lambda figures: format_brief(figures.output_tokens.avg),
    "output tokens by the server": lambda figures: format_brief(figures.server_output_tokens),
}
MEASURES: Final = _list_measures()
