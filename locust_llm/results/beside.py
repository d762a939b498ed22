"""Beside: results of several tools, or without records, as one table; a difference only where the loads are alike."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from tabulate import tabulate

from locust_llm.core.storage import replace
from locust_llm.core.text import clean, say
from locust_llm.exit_status import ExitStatus

from .audit.finding import Verdict
from .audit.rules import audit
from .figures import Distribution, Figures
from .formats import known
from .page import page

OWN: Final = """
body { display: block; max-width: 90rem; }
td { white-space: nowrap; }
tr:first-child td { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
"""
ALIKE: Final = 0.05
"""Mean lengths that differ by no more are the same load."""
Said = Callable[[Figures], str]


def compare(words: Sequence[str]) -> int:
    """Print the table of the results that ``words`` name. 5 where one cannot be read."""
    options = parser().parse_args(words)
    files: list[tuple[Path, Figures]] = []
    for path in options.results:
        try:
            files += [(path, figures) for figures in known.read(path)]
        except (OSError, known.UnknownFormat) as error:
            return _refused(f"{path}: {getattr(error, 'strerror', None) or error}")
    found = table(files)
    text = markdown(found)
    try:
        if options.markdown:
            replace(options.markdown, text.encode())
        if options.html:
            replace(options.html, page("beside.html", OWN, title="Results beside each other", found=found).encode())
        if options.json:
            loads = [{"file": str(path), "figures": figures} for path, figures in files]
            replace(options.json, msgspec.json.format(msgspec.json.encode(loads), indent=2) + b"\n")
    except OSError as error:
        return _refused(f"{error.filename} cannot be written: {error.strerror or error}")
    say(text)
    return ExitStatus.OK


def parser() -> argparse.ArgumentParser:
    """Of the words of ``locust-llm compare``, as far as they are about files; its help is that of runs."""
    parser = argparse.ArgumentParser(prog="locust-llm compare", add_help=False)
    parser.add_argument("results", type=Path, nargs="*")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--html", type=Path)
    parser.add_argument("--json", type=Path)
    return parser


def of_files(words: Sequence[str]) -> bool:
    """Whether one of the results is a file: folders alone are runs of ours, unless they are evalscope's."""
    results: list[Path] = parser().parse_known_args(words)[0].results
    return len(results) > 1 and any(path.is_file() or (path / known.IN_FOLDERS[1]).is_file() for path in results)


def _refused(why: str) -> int:
    print(f"locust-llm: error: {why}", file=sys.stderr)
    return ExitStatus.REFUSED


class Table(NamedTuple):
    """Clean text."""

    names: list[str]
    """Of the columns."""
    conditions: list[list[str]]
    measures: list[list[str]]
    """Rows, each with its name first."""
    apart: list[str]
    """Why columns have no difference."""
    notes: list[str]
    doubts: list[str]
    """What stands against single results (audit/)."""
    held: list[str]
    """Of each result, how many checks hold."""


def table(files: Sequence[tuple[Path, Figures]]) -> Table:
    """With the first as the base."""
    names = _names([figures.title for _, figures in files])
    columns = [figures for _, figures in files]
    base, *_ = columns
    whys = [unlike(base, figures) for figures in columns]
    conditions = [["file", *(path.name for path, _ in files)]]
    conditions += [[name, *(said(figures) for figures in columns)] for name, said in CONDITIONS.items()]
    measures = []
    for name, value in MEASURES.items():
        cells = [
            _cell(value(figures), value(base) if place and not why else None)
            for place, (figures, why) in enumerate(zip(columns, whys, strict=True))
        ]
        measures.append([name, *cells])
    audited = [(name, audit(figures)) for name, figures in zip(names, columns, strict=True)]
    return Table(
        names=names,
        conditions=_said(conditions),
        measures=_said(measures),
        apart=[
            f"{name} had another load than {names[0]}: {clean(why)}. So there are no differences."
            for name, why in zip(names, whys, strict=True)
            if why
        ],
        notes=[] if all(whys[1:]) else [NO_INTERVALS],
        doubts=[
            clean(f"{name}: {one.verdict}: {one.rule}: {one.arithmetic}")
            for name, found in audited
            for one in found
            if one.verdict is not Verdict.HOLDS and one.rule != "samples"
        ],
        held=[
            f"{name}: {sum(one.verdict is Verdict.HOLDS for one in found)} of {len(found)}" for name, found in audited
        ],
    )


def _said(rows: list[list[str]]) -> list[list[str]]:
    """Without those in which no column has anything."""
    return [[*map(clean, row)] for row in rows if any(cell not in ("-", "") for cell in row[1:])]


def markdown(found: Table) -> str:
    rows = tabulate([*found.conditions, *found.measures], ["", *found.names], tablefmt="github", disable_numparse=True)
    return "\n\n".join([*found.apart, rows, *found.notes, *found.doubts]) + "\n"


def _names(titles: Sequence[str]) -> list[str]:
    """Each once."""
    return [
        clean(title) if titles.count(title) == 1 else f"{clean(title)} ({titles[: place + 1].count(title)})"
        for place, title in enumerate(titles)
    ]


NO_INTERVALS: Final = (
    "Differences are from the first column. They have no intervals, as these files have no records: what differs by less "
    "than two runs of one tool do is no difference."
)


def unlike(base: Figures, other: Figures) -> str:
    """Why both cannot be compared; empty: they can. What one of them does not say is no reason."""
    for name, a, b in (
        ("model", base.model, other.model),
        ("in flight at most", base.concurrency, other.concurrency),
        ("requests a second asked for", base.rate_per_s, other.rate_per_s),
    ):
        if a and b and a != b:
            return f"{name} {b} for {a}"
    if (base.rate_per_s is None) != (other.rate_per_s is None) and (base.concurrency is None) != (
        other.concurrency is None
    ):
        return "one is an open loop, the other a closed one"
    for name, x, y in (
        ("input tokens", base.input_tokens.avg, other.input_tokens.avg),
        ("output tokens", _output(base), _output(other)),
    ):
        if x and y and abs(x - y) > ALIKE * max(x, y):
            return f"{y:,.4g} {name} a request for {x:,.4g}"
    return ""


def _output(figures: Figures) -> float | None:
    """Tokenizers differ; the server's own count is the same for all."""
    return figures.server_output_tokens or figures.output_tokens.avg


def _cell(value: float | None, base: float | None) -> str:
    if value is None:
        return "-"
    more = f" ({(value / base - 1) * 100:+.1f}%)" if base else ""
    return f"{value:,.4g}{more}"


def _of(field: str, point: str) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        of: Distribution = getattr(figures, field)
        found = of.avg if point == "mean" else of.percentiles.get(float(point[1:]))
        return None if found is None else found * 1e3

    return value


CONDITIONS: Final[dict[str, Said]] = {
    "model": lambda one: one.model or "-",
    "in flight at most": lambda one: f"{one.concurrency or '-'}",
    "prefills at most": lambda one: f"{one.prefill_concurrency or '-'}",
    "requests/s asked for": lambda one: "-" if one.rate_per_s is None else f"{one.rate_per_s:g}",
    "requests": lambda one: "-" if one.requests is None else f"{one.requests:,}",
    "failed": lambda one: f"{one.failed:,}",
    "input tokens": lambda one: "-" if one.input_tokens.avg is None else f"{one.input_tokens.avg:,.4g}",
    "output tokens": lambda one: "-" if one.output_tokens.avg is None else f"{one.output_tokens.avg:,.4g}",
    "output tokens by the server": lambda one: (
        "-" if one.server_output_tokens is None else f"{one.server_output_tokens:,.4g}"
    ),
}
MEASURES: Final[dict[str, Callable[[Figures], float | None]]] = {
    **{f"{name} {point}, ms": _of(field, point) for field, name in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"))
       for point in ("mean", "p50", "p90", "p95", "p99")},
    **{f"latency {point}, ms": _of("latency", point) for point in ("mean", "p50", "p99")},
    "requests/s": lambda one: one.requests_per_s,
    "output tokens/s": lambda one: one.output_tokens_per_s,
}  # fmt: skip
