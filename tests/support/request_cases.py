"""Request cases: what pandas and numpy compute of a small run, for the scripts of the report page
to compute, too. ``python tests/support/request_cases.py`` writes the file that
tests/js/requests.test.js reads."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.chart_data.charts_over_time import choose_round_edges, spread_amounts
from locust_llm.report.chart_data.distribution_charts import compute_spectrum
from locust_llm.report.chart_data.plot_data import make_percentile_lines
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.request_sample import make_request_sample
from support.records import UNIX, a_run, answered, failed

FILE: Final = Path(__file__).parents[1] / "data" / "request_cases.json"
SECONDS: Final = 50.0
NAMES: Final = ("chat", "rag")


def make_records() -> list[Record]:
    """120 requests, two a second: every third is of rag, which has long prompts; the first ten are
    the warmup, every 29th failed, and the last one was cut."""
    records = []
    for i in range(120):
        at = 0.5 * i
        long = i % 3 == 0
        common: dict[str, Any] = {
            "id": f"r{i}",
            "name": NAMES[long],
            "phase": "warmup" if i < 10 else "profiling",
            "input_tokens": 4000 if long else 100,
            "asked_input_tokens": 4000 if long else 100,
            "turn": i % 4,
            "due_at": at - 0.25,
            "asked_at": at - 0.125,
            "admitted_at": at,
        }
        first = 500 + 7 * (i % 13) if long else 20 + 3 * (i % 11)
        gaps = 30 if i % 5 else 60
        if i % 29 == 28:
            records.append(
                failed(sent_at=at, error="reset by peer", **common | {"input_tokens": None})
            )
        else:
            chunks = [first + gaps * place for place in range(8)]
            outcome = {"outcome": "cut"} if i == 119 else {}
            records.append(answered(*chunks, sent_at=at, **common | outcome))
    return sorted(records, key=lambda record: record.closed_at)


def the_run() -> Run:
    return msgspec.structs.replace(
        a_run(((0.0, 4),), prefill_concurrency=4), profiling_at=UNIX + 5, started_at=UNIX
    )


def make_cases() -> dict[str, Any]:
    records, run = make_records(), the_run()
    columns = collect_columns(records)
    sample = make_request_sample(columns, run, records, SECONDS)
    frame = columns.requests.to_frame()
    table = frame.assign(
        id=[record.id for record in records],
        input=np.where(frame["asked_input_tokens"] == 4000, "4k", "100"),
        turn_label=(frame["turn"] + 1).astype(int).astype(str),
        at=frame["sent_at"] - UNIX,
    )
    cases = {
        "sample": json.loads(msgspec.json.encode(sample)),
        "percentiles": _percentiles(),
        "views": [_view(table, *view) for view in VIEWS],
        "groups": {key: _groups(table, key) for key in ("name", "input", "turn_label")},
        "lines": _lines(table),
        "edges": [
            {"low": low, "high": high, "count": count,
             "edges": choose_round_edges(low, high, count).tolist()}
            for low, high, count in ((0.0, 100.0, 500), (-1.3, 7.2, 40), (0.0, 3600.0, 10_000))
        ],
        "spread": _spread(),
        "spectrum": _spectrum(table),
    }  # fmt: skip
    rounded: dict[str, Any] = _rounded(cases)
    return rounded


Where = dict[str, str]
VIEWS: Final[tuple[tuple[str, Where, tuple[float, float] | None], ...]] = (
    ("", {}, None),
    ("name=rag", {"name": "rag"}, None),
    ("phase=warmup", {"phase": "warmup"}, None),
    ("phase=*&turn=2", {"phase": "*", "turn_label": "2"}, None),
    ("name=chat&time=20-40.25", {"name": "chat"}, (20.0, 40.25)),
    ("outcome=reset", {"outcome": "reset"}, None),
    ("input=4k&turn=1&time=0-0.1", {"input": "4k", "turn_label": "1"}, (0.0, 0.1)),
)


def _chosen(table: pd.DataFrame, where: Where, time: tuple[float, float] | None) -> pd.DataFrame:
    chosen = {"phase": "profiling", **where}
    for column, value in chosen.items():
        if value != "*":
            table = table[table[column].astype(str) == value]
    return table if time is None else table[table["at"].between(*time)]


def _view(
    table: pd.DataFrame, address: str, where: Where, time: tuple[float, float] | None
) -> dict[str, Any]:
    part = _chosen(table, where, time)
    ok = part[part["outcome"] == "ok"]
    lost = int((part["outcome"] == "reset").sum())
    seconds = SECONDS if time is None else time[1] - time[0]
    finished = len(ok) + lost
    return {
        "address": address,
        "ids": part["id"].tolist(),
        "slowest": ok.sort_values("ttft_s", ascending=False, kind="stable")["id"].tolist(),
        "failed": 100 * lost / finished if finished else None,
        "requestsPerS": len(ok) / seconds,
        "tokensPerS": float(ok["output_tokens"].sum()) / seconds,
        "ttft": {str(p): _quantile(ok["ttft_s"], p) for p in (50, 90, 95, 99)},
        "itl": {str(p): _quantile(ok["itl_s"], p) for p in (50, 95)},
    }


def _quantile(seconds: "pd.Series[float]", percent: float) -> float | None:
    return float(seconds.quantile(percent / 100)) * 1e3 if seconds.notna().any() else None


def _groups(table: pd.DataFrame, key: str) -> list[dict[str, Any]]:
    part = _chosen(table, {}, None)
    rows = []
    for label, group in part.groupby(key, observed=True):
        ok = group[group["outcome"] == "ok"]
        lost = int((group["outcome"] == "reset").sum())
        figures = {
            "requests": len(group),
            "failed": 100 * lost / (len(ok) + lost),
            "ttft95": _quantile(ok["ttft_s"], 95),
            "itl50": _quantile(ok["itl_s"], 50),
            "stall90": _quantile(ok["longest_stall_s"], 90),
            "wait95": _quantile(group["gate_wait_s"], 95),
            "input": float(ok["input_tokens"].mean()),
        }
        rows.append({"label": str(label), "figures": figures})
    return rows


def _percentiles() -> list[dict[str, Any]]:
    cases: list[tuple[list[float], list[int] | None]] = [
        ([1.0], None),
        ([3.0, 1.0, 2.0], None),
        ([1.0, 2.0], [3, 1]),
        ([5.0, 5.0, 7.0], [1, 2, 10]),
        ([float(value) for value in range(100)], None),
        ([4.0, 1.0, 9.0, 16.0], [7, 1, 2, 5]),
    ]
    return [
        {
            "values": values,
            "weights": weights,
            "percent": percent,
            "value": float(np.percentile(np.repeat(values, weights or 1), percent)),
        }
        for values, weights in cases
        for percent in (0, 25, 50, 75, 95, 99, 100)
    ]


def _lines(table: pd.DataFrame) -> list[dict[str, Any]]:
    ok = _chosen(table, {"outcome": "ok"}, None)
    lines, _ = make_percentile_lines(
        ok["at"].to_numpy(np.float64), ok["ttft_s"].to_numpy(np.float64) * 1e3
    )
    return [{"name": line.name, "x": line.x, "y": line.y} for line in lines]


def _spread() -> dict[str, Any]:
    spans = [(0.0, 10.0, 20.0), (2.5, 2.5, 3.0), (10.0, 10.0, 5.0), (4.0, 5.0, 8.0)]
    edges = np.array([0.0, 2.5, 5.0, 10.0])
    first, last, amount = (np.array(column) for column in zip(*spans, strict=True))
    return {
        "spans": spans,
        "edges": edges.tolist(),
        "sums": spread_amounts(first, last, amount, edges).tolist(),
    }


def _spectrum(table: pd.DataFrame) -> dict[str, Any]:
    values = _chosen(table, {"outcome": "ok"}, None)["ttft_s"].to_numpy(np.float64) * 1e3
    x, y = compute_spectrum(values, len(values))
    return {"x": x.tolist(), "y": y.tolist()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value


if __name__ == "__main__":
    FILE.write_text(json.dumps(make_cases(), indent=1) + "\n")
