"""Folders of runs that earlier versions left: records, facts and figures are still what they
were."""

import shutil
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import locust_llm
from locust_llm.report.run_comparison import compare_folders
from locust_llm.report.write_report_files import remake_reports

OLD: Final = Path(__file__).with_name("old")


class Reported(NamedTuple):
    """What the version that made the run said of it; a time is p50 in ms.

    2026-11-23 and 2026-11-24 gave an ITL of 0 to requests whose tokens were read at once. They have
    none now, so ``itl`` is the median of the others.
    """

    ttft: float
    itl: float
    latency: float
    requests: int
    rules: bool
    """It had one: undecided then, as bounds beyond the largest value (docs/reference/slo.md) came
    later."""
    users: int | None


REPORTED: Final = {
    "2026-11-20": Reported(21.5055, 3.028833, 31.1155, 12, False, 2),
    "2026-11-20-warmup": Reported(22.4795, 2.9305, 31.069, 8, True, 2),
    "2026-11-22-sweep": Reported(402.134, 2.749333, 410.565, 6, True, None),
    "2026-11-22-sessions": Reported(23.3235, 2.959833, 32.544, 8, True, 2),
    # of the day on which 1.0.0rc1 promised that its folders load
    "2026-11-23": Reported(30.222, 2.772333, 32.386, 12, True, 2),
    "2026-11-24-search": Reported(409.669, 2.697833, 410.3325, 12, True, None),
    "2026-11-25": Reported(25.565, 2.650667, 31.431, 10, True, 2),
    "2026-11-26-answers": Reported(22.0165, 3.009333, 30.2045, 10, False, 2),
}


def test_each_folder_has_its_figures() -> None:
    assert {path.name for path in OLD.iterdir()} == set(REPORTED)


@pytest.mark.parametrize("name", REPORTED)
def test_an_old_folder_loads_and_its_figures_stay(name: str, tmp_path: Path) -> None:
    said = REPORTED[name]
    run = locust_llm.read(OLD / name)
    profiling = run.requests[run.requests.phase == "profiling"]
    assert (run.broken_lines, run.run.unread, len(profiling)) == (0, (), said.requests)
    assert run.run.settings.users == said.users
    assert run.run.simulated
    median_ms = profiling[["ttft_s", "itl_s", "latency_s"]].median() * 1e3
    assert median_ms.tolist() == pytest.approx([said.ttft, said.itl, said.latency])

    shutil.copytree(OLD / name, folder := tmp_path / name)
    summary, facts = remake_reports(folder, stages=True)
    p50 = {row.tag: row.percentiles.get(50.0) for row in summary.rows}
    assert (summary.conditions.requests, facts.unread, summary.unmade) == (said.requests, (), ())
    assert summary.slo_status in (("PASS", "INCONCLUSIVE") if said.rules else (None,))
    assert p50["time_to_first_token"] == pytest.approx(said.ttft)
    assert len(facts.stages) == (1 if name.endswith(("-sweep", "-search")) else 0)
    assert len(summary.sweep.levels if summary.sweep is not None else ()) == len(facts.stages)
    (pair,) = compare_folders([OLD / name, folder]).runs
    assert {line.difference for line in pair.lines} <= {0, None}
