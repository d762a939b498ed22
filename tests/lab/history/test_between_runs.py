"""How much runs of one server differ from one another, by pencil, and what compare states of it."""

import math
from pathlib import Path

import msgspec
import pytest
from support.years import START, run_folder

from locust_llm.lab.history.between_runs import (
    RunSpread,
    describe_run_spread,
    measure_run_spread,
)
from locust_llm.report.run_comparison import ComparisonLine, RunPair

STEP = math.log(1.02)


def runs_beside(root: Path) -> Path:
    """Four of one workload, TTFT 1, 1, 1.02 and 1 / 1.02 of the example's, and four that are not
    like them."""
    for number, factor in enumerate((1.0, 1.0, 1.02, 1 / 1.02)):
        run_folder(root / f"run-{number}", START + number, factor)
    run_folder(root / "other-host", START, 3.0, {"host": "http://other:8000"})
    run_folder(root / "other-users", START, 3.0, {"users": 99})
    run_folder(root / "not-ended", START, 3.0, stopping_at=None)
    run_folder(root / "candidate", START, 3.0)
    return root / "run-0"


def a_pair(*lines: ComparisonLine, other_work: str = "") -> RunPair:
    return RunPair(folder="b", warnings=(), lines=lines, other_work=other_work)


def a_line(value: float, word: str) -> ComparisonLine:
    return ComparisonLine(
        metric="ttft", stat="p50", label="TTFT p50 (ms)", unit="ms", base=100.0, value=value,
        difference=None, difference_percent=None, low=None, high=None, word=word,
    )  # fmt: skip


def test_the_spread_of_four_like_runs(tmp_path: Path) -> None:
    base = runs_beside(tmp_path)
    found = measure_run_spread(base, [tmp_path / "candidate"])
    assert (found.runs, found.source) == (4, "runs of this workload on this server")
    # logarithms 0, 0, d, -d: s = d sqrt(2/3); t of 3 degrees of freedom 3.182; sqrt(2) for two runs
    reach = math.expm1(3.182 * math.sqrt(2) * STEP * math.sqrt(2 / 3))
    assert found.reach["ttft_p50"] == pytest.approx(reach, rel=0.002)
    assert found.reach["output_tokens_per_s"] == pytest.approx(reach, rel=0.002)
    assert "error_rate" not in found.reach  # none failed
    assert not (tmp_path / "history.sqlite").exists()


@pytest.mark.parametrize(
    ("runs", "not_counted", "missing", "also"),
    [
        (0, 3, "4 more runs", ", and 3 runs with another server or workload, or without metrics"),
        (1, 0, "3 more runs", ""),
        (2, 1, "2 more runs", ", and 1 run with another server or workload, or without metrics"),
        (3, 0, "1 more run", ""),
    ],
)
def test_the_sentence_has_the_number_of_missing_runs(
    runs: int, not_counted: int, missing: str, also: str
) -> None:
    spread = RunSpread(runs, "", {}, not_counted)
    assert describe_run_spread(spread, a_pair(a_line(110.0, "worse"))) == (
        f"The variation between runs of this server is unknown: it needs {missing} of this "
        f"workload in the folder of the base. Not counted: compared runs{also}. Run both again, or "
        "use locust-llm ab."
    )


def test_each_run_like_the_base_makes_one_less_missing(tmp_path: Path) -> None:
    base = runs_beside(tmp_path)
    compared = [tmp_path / "candidate"]
    found = []
    for left_out in ("run-1", "run-2", "run-3"):
        compared.append(tmp_path / left_out)
        spread = measure_run_spread(base, compared)
        assert spread.reach == {}
        found.append((spread.runs, spread.not_counted))
    # other-host, other-users and not-ended do not count, whatever is compared
    assert found == [(3, 3), (2, 3), (1, 3)]
    assert measure_run_spread(tmp_path / "nothing", []).reach == {}


def test_copies_of_one_run_show_no_variation(tmp_path: Path) -> None:
    for number in range(4):
        run_folder(tmp_path / f"run-{number}", START + number, 1.0)
    found = measure_run_spread(tmp_path / "run-0", [])
    assert describe_run_spread(found, a_pair()) == (
        "The variation between runs of this server is unknown: no metric differs between 4 runs of "
        "this workload on this server. Run both again, or use locust-llm ab."
    )


def test_repeats_stand_in_for_runs(tmp_path: Path) -> None:
    base = run_folder(tmp_path / "base", START, 1.0, {"repeats": 4})
    for number, factor in enumerate((1.0, 1.0, 1.02, 1 / 1.02), 1):
        run_folder(base / "stages" / str(number), START + number, factor)
    found = measure_run_spread(base, [])
    assert (found.runs, found.source) == (4, "repeats of the base")
    assert found.reach["itl_p50"] == pytest.approx(0.0755, abs=0.001)


@pytest.mark.parametrize(
    ("value", "word", "within"),
    [
        (107.0, "worse", True),
        (109.0, "worse", False),
        (94.0, "hardly better", True),
        (92.0, "better", False),
        (101.0, "no significant difference", False),
    ],
)
def test_a_difference_no_larger_than_that_of_like_runs_is_named(
    value: float, word: str, within: bool
) -> None:
    spread = RunSpread(5, "runs of this workload on this server", {"ttft_p50": 0.08})
    text = describe_run_spread(spread, a_pair(a_line(value, word)))
    stated = (
        "Two runs of this workload on this server differ by up to 8.0% in TTFT p50 (95%, from 5)."
    )
    advice = " Within this variation: TTFT p50 (ms). Run both again, or use locust-llm ab."
    assert text == stated + advice * within


def test_other_work_has_no_spread() -> None:
    pair = a_pair(other_work="another model")
    assert describe_run_spread(RunSpread(0, "", {}), pair) == ""
    assert msgspec.to_builtins(pair)["between_runs"] == ""
