"""Text table: reads metrics that a tool printed as boxes, pipes, Markdown or columns of a console, with
its command line above."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from locust_llm.lab.interop.load_metrics import Distribution, Figures

from .json_fields import S_PER, read_distribution, read_finite_or_nan, read_whole

CELLS: Final = re.compile("[│|┃]")
COLUMNS: Final = re.compile(r"\s{2,}")
"""What is between the columns of a console."""
MARKS: Final = "*~\\ "
"""What our own tables have beside values: few values, or inexact."""
BORDER: Final = re.compile(r"\s*[|│┃├┼┤━─╇┡┩└┴┘┗┻┛+:=-][\s|│┃├┼┤━─╇┡┩└┴┘┗┻┛+:=-]*")
HEAD: Final = ("avg", "mean", "min", "max", "p50", "median", "p90", "p95", "p99", "std")
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "latency": ("request latency", "end-to-end latency", "e2e latency", "e2el"),
    "ttft": ("time to first token", "ttft"),
    "tpot": ("time per output token", "tpot"),
    "itl": ("inter chunk latency", "inter-chunk latency", "icl"),
    "output_tokens": ("output sequence length", "output tokens per request"),
    "input_tokens": ("input sequence length", "input tokens per request"),
}
ITL_NAMES: Final = ("inter token latency", "inter-token latency", "itl")
"""AIPerf and this tool call the time per token of a request so. A tool with TPOT in its table calls
the gaps so."""
RATES: Final[dict[str, tuple[str, ...]]] = {
    "requests_per_s": ("request throughput",),
    "output_tokens_per_s": ("output token throughput", "output throughput", "output"),
    "total_tokens_per_s": ("total token throughput",),
    "duration_s": ("benchmark duration",),
    "requests": ("request count", "successful requests"),
}
FLAGS: Final = {
    "concurrency": ("concurrency", "max-concurrency"),
    "prefill_concurrency": ("prefill-concurrency",),
    "rate_per_s": ("request-rate",),
    "asked_output_tokens": ("output-tokens-mean", "osl", "random-output-len"),
    "requests": ("request-count", "num-prompts"),
    "duration_s": ("benchmark-duration",),
}
COUNTS: Final = ("concurrency", "prefill_concurrency", "requests")
FLAG: Final = re.compile(r"--([a-z][a-z0-9-]+)[ =]+([0-9.]+)\b")
UNIT: Final = re.compile(r"\(([a-z/µ]+)\)", re.IGNORECASE)
PROGRESS_LINE: Final = re.compile(r"(\d+)/\1\b.*?\[(?:(\d+):)?(\d+):(\d+)[\]<]")
"""The last state of a progress bar has the count and the elapsed time."""


def read_tables(words: str) -> list[Figures]:
    """Reads each table with a latency or a TTFT as a load. The nearest command above it has its
    options."""
    tables = list[Figures]()
    above = list[str]()
    rows: dict[str, dict[str, object]] = {}
    head: list[str] = []
    for line in [*words.splitlines(), ""]:
        cells = _split_cells(line)
        if len(cells) > 2 and any(cell.lower() in HEAD for cell in cells[1:]):
            head = [cell.lower() for cell in cells[1:]]
        elif head and len(cells) == len(head) + 1:
            rows[cells[0].lower()] = dict(zip(head, cells[1:], strict=True))
        elif rows and len(cells) == 1 and UNIT.search(line):
            continue  # the second line of a long name
        elif rows and not BORDER.fullmatch(line):
            tables += _load(rows, "\n".join(above), len(tables) + 1)
            rows = {}
            head = []
            above = [line]
        else:
            above.append(line)
    return tables


def _split_cells(line: str) -> list[str]:
    """The cells, of which the head of a console's columns lacks the first one."""
    if CELLS.search(line):
        return [cell.strip(MARKS) for cell in CELLS.split(line)][1:-1]
    cells = [cell.strip(MARKS) for cell in COLUMNS.split(line.strip())]
    return ["", *cells] if all(cell.lower() in HEAD for cell in cells) else cells


def _load(rows: dict[str, dict[str, object]], above: str, place: int) -> Iterator[Figures]:
    values: dict[str, object] = {}
    inter_token: Distribution | None = None
    for name, row in rows.items():
        scale = S_PER.get(unit[1].lower(), 1.0) if (unit := UNIT.search(name)) else 1.0
        if _strip_unit(name) in ITL_NAMES:
            inter_token = read_distribution(row.items(), scale)
        elif field := _field(name, NAMES):
            values[field] = read_distribution(row.items(), scale)
        elif (field := _field(name, RATES)) and (mean := _read_mean(row)) is not None:
            values[field] = round(mean) if field in COUNTS else mean
    if "latency" not in values and "ttft" not in values:
        return
    values |= _name_time_per_token(values, inter_token)
    flags = dict(FLAG.findall(above))
    for field, names in FLAGS.items():
        requested = next((flags[name] for name in names if name in flags), None)
        if requested is not None:
            values.setdefault(
                field, read_whole(requested) if field in COUNTS else read_finite_or_nan(requested)
            )
    if progress := PROGRESS_LINE.search(above):
        count, hours, minutes, seconds = (int(part or 0) for part in progress.groups())
        values.setdefault("requests", count)
        values.setdefault("duration_s", float(hours * 3600 + minutes * 60 + seconds))
    tool = "AIPerf" if "aiperf" in above.lower() else "table"
    label = str(place) if tool == "table" else f"table {place}"
    yield msgspec.convert({"tool": tool, "label": label, **values}, Figures)


def _read_mean(row: Mapping[str, object]) -> float | None:
    """Of a rate, which has no percentiles."""
    return read_finite_or_nan(row.get("avg", next(iter(row.values()), None)))


def _strip_unit(name: str) -> str:
    return UNIT.sub("", name).strip()


def _name_time_per_token(
    values: Mapping[str, object], inter_token: Distribution | None
) -> dict[str, object]:
    """What the row ITL of a table is, with the names of the table."""
    if "tpot" in values:
        return {} if inter_token is None else {"itl": inter_token}
    named: dict[str, object] = {"tpot_name": "ITL", "itl_name": "ICL"}
    return named if inter_token is None else {**named, "tpot": inter_token}


def _field(name: str, fields: Mapping[str, tuple[str, ...]]) -> str:
    """Finds a field by the words before the unit."""
    words = _strip_unit(name)
    return next((field for field, names in fields.items() if words in names), "")
