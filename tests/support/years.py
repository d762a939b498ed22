"""Years: makes a year of run folders with run.json and metrics from the packaged example."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

EXAMPLE: Final = Path(__file__).parents[2] / "reports" / "example"
DAY_S: Final = 86_400.0
START: Final = 1_767_225_600.0
"""The year begins on 2026-01-01."""


def run_folder(
    folder: Path,
    at: float,
    factor: float,
    settings: Mapping[str, Any] = {},
    commit: str = "",
    **facts: Any,
) -> Path:
    """Writes one run with the example's times multiplied by ``factor``, and its rates divided by
    it. ``facts`` change the run."""
    document = json.loads((EXAMPLE / "run.json").read_text())
    figures = json.loads((EXAMPLE / "profile_export_aiperf.json").read_text())
    document["run"] |= {"started_at": at, "profiling_at": at, "stopping_at": at + 120, **facts}
    document["slo_status"] = "PASS"  # whatever the example's is
    document["run"]["settings"] |= {"host": "http://llm.example.com:8000", **settings}
    if commit:
        document["run"]["commit"] = {"hash": commit, "branch": "main", "dirty": False}
    for name, block in figures.items():
        if isinstance(block, dict) and block.get("unit") in ("ms", "requests/sec", "tokens/sec"):
            by = factor if block["unit"] == "ms" else 1 / factor
            figures[name] = {k: v * by if isinstance(v, float) else v for k, v in block.items()}
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(document))
    (folder / "profile_export_aiperf.json").write_text(json.dumps(figures))
    return folder


def year(root: Path, factors: Sequence[float], **more: Any) -> list[Path]:
    """Writes a run every other day, each with a commit of its own."""
    return [
        run_folder(
            root / f"run-{i:04}",
            START + i * 2 * DAY_S,
            factor,
            commit=f"{i * 2654435761 % 2**40:010x}" + "0" * 30,
            **more,
        )
        for i, factor in enumerate(factors)
    ]
