"""Random comparisons: no two statements of ``compare`` and ``ab`` contradict each other."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.random_runs import random_run, reported
from support.records import UNIX, a_run, answered

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.load_records import collect_columns
from locust_llm.report.run_comparison import (
    ComparisonLine,
    compare_folders,
    format_line_cells,
    render_comparison_console,
)
from locust_llm.report.sections.ab_comparison import PairedFigure, describe_paired_verdict
from locust_llm.report.sections.ab_comparison import format_paired_cells as cells_of_arms
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.settings.ab_arms import BASE, CANDIDATE
from locust_llm.settings.sweep_option import TIME_UP

FEW = 8
MANY = 120
RULES = (
    "ttft p95 within 5% of base", "longest_stall p95 within 10% of base",
    "request_latency p50 within 20ms of base",
    "error_rate within 1pp of base", "requests_per_s within 5% of base",
    "itl p90 within 5% of base",
)  # fmt: skip
SAME = "no significant difference"


def wrong_in(cells: tuple[str, ...], *, less_is_better: bool) -> Iterator[str]:
    """What of a row contradicts itself: (label, base, value, difference, percent, interval,
    word)."""
    label, base, value, difference, percent, interval, word = (
        re.sub("[,*]", "", cell) for cell in cells
    )
    if difference in ("-", "fail"):
        return
    if Decimal(value) - Decimal(base) != Decimal(difference):
        yield f"{label}: {base}, {value} and {difference} do not add up"
    ends = [Decimal(end) for end in re.findall(r"[+-]?[\d.]+", interval)]
    if len(ends) == 2 and word.removeprefix("hardly ") in ("better", "worse"):
        if ends[0] <= 0 <= ends[1]:
            yield f"{label}: {word}, and {interval} holds 0"
        if (ends[0] + ends[1] > 0) == (word.removeprefix("hardly ") == "better") and less_is_better:
            yield f"{label}: {word}, and {interval} is on the other side"
    if len(ends) == 2 and word == SAME and (ends[0] > 0 or ends[1] < 0):
        yield f"{label}: {word}, and {interval} does not hold 0"
    signs = [cell[0] if cell[0] in "+-" else "" for cell in (difference, percent)]
    if percent.endswith("%") and signs[0] != signs[1]:
        yield f"{label}: {percent} and {difference}"


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(n, marks=pytest.mark.full) for n in range(FEW, MANY))]
)
def test_statements_of_a_random_comparison(seed: int, tmp_path: Path) -> None:
    folders = [tmp_path / "base", tmp_path / "here"]
    for number, folder in enumerate(folders):
        reported(random_run(seed + number * (seed % 3)), folder)
    found = compare_folders(folders)
    (pair,) = found.runs
    rates = ("requests_per_s", "output_tokens_per_s", "attainment", "goodput")
    wrong = [
        one
        for line in pair.lines
        for one in wrong_in(
            (line.label, *format_line_cells(line)), less_is_better=line.metric not in rates
        )
    ]
    assert wrong == []
    if pair.other_work:
        assert {line.word for line in pair.lines} == {"-"}
    if seed % 3 == 0:  # the same run twice
        assert pair.other_work == ""
        assert not any(line.word.endswith(("better", "worse")) for line in pair.lines)
    assert ("Not compared" in render_comparison_console(found)) == bool(pair.other_work)


SIZES = st.floats(1e-3, 1e6)
SHARES = st.just(0.0) | st.floats(1e-6, 1.0) | st.floats(-1.0, -1e-6)


@given(SIZES, SHARES, st.floats(0, 2), st.booleans())
def test_no_sign_of_a_row_contradicts_another(
    base: float, share: float, reach: float, relative: bool
) -> None:
    """A difference of ``share`` of the base, whose interval is ``reach`` times as long to either
    side: it begins at 0 at a reach of 1."""
    difference = share * base
    assume(difference == 0 or abs(difference) >= 1e-5)
    low, high = sorted((difference * (1 - reach), difference * (1 + reach)))
    assume(not any(0 < abs(end) < 1e-6 for end in (low, high)))
    word = SAME if low <= 0 <= high else "better" if difference < 0 else "worse"
    line = ComparisonLine(
        metric="ttft", stat="p50", label="TTFT p50 (ms)", unit="ms", base=base,
        value=base + difference, difference=difference, difference_percent=100 * share,
        low=low, high=high, word=word,
    )  # fmt: skip
    figure = PairedFigure(
        metric="ttft", stat="p50", label="TTFT p50 (ms)", unit="ms", relative=relative, base=base,
        candidate=base + difference, difference=difference, low=low, high=high,
        percent=100 * share, low_percent=100 * low / base, high_percent=100 * high / base,
        word=word,
    )  # fmt: skip
    assume(line.base != line.value or difference == 0)
    for cells in ((line.label, *format_line_cells(line)), cells_of_arms(figure)):
        assert list(wrong_in(cells, less_is_better=True)) == []


def two_arms(seed: int) -> tuple[Run, list[Record]]:
    """Ten to fourteen pairs, of arms that are equal or not, under weather; the stall may differ
    alone."""
    random = Random(seed)
    slower, stalls = random.choice((1.0, 1.0, 1.02, 1.3, 0.8)), random.choice((1.0, 1.0, 0.3))
    stages, records = list[Stage](), list[Record]()
    number = 0
    for pair in range(1, random.randint(10, 14) + 1):
        weather = random.uniform(0.7, 1.4)
        for arm in random.sample((BASE, CANDIDATE), 2):
            number += 1
            at, here = 20.0 * number, arm == CANDIDATE
            stages.append(
                Stage(number=number, value=number, began_at=UNIX + at, measured_at=UNIX + at + 2,
                    ended_at=UNIX + at + 20,
                      why=TIME_UP, arm=arm, pair=pair)
            )  # fmt: skip
            for i in range(16):
                ttft = 100 * weather * (slower if here else 1.0) * random.uniform(0.9, 1.1)
                stall = 50 * (stalls if here else 1.0) * random.uniform(0.8, 1.2)
                records.append(
                    answered(round(ttft), round(ttft + 10), round(ttft + 10 + stall),
                        sent_at=at + 2 + i, stage=number,
                             arm=arm, pair=pair)
                )  # fmt: skip
    run = a_run(
        candidate="http://other:8000",
        block_duration=20.0,
        washout=2.0,
        slo=tuple(random.sample(RULES, 3)),
    )
    return replace(run, stages=tuple(stages)), records


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(n, marks=pytest.mark.full) for n in range(FEW, MANY))]
)
def test_statements_of_two_random_arms(seed: int) -> None:
    run, records = two_arms(seed)
    summary = summarise_run(collect_columns(records), run)
    assert summary.paired is not None
    figures = {(one.metric, one.stat): one for one in summary.paired.figures}
    rates = ("requests_per_s", "output_tokens_per_s", "attainment", "goodput")
    wrong = [
        one
        for figure in figures.values()
        for one in wrong_in(cells_of_arms(figure), less_is_better=figure.metric not in rates)
    ]
    assert wrong == []
    said = make_headline(summary, run)
    called = re.findall(r"is [\d.,]+\S* (?:better|worse) than base", said)
    if "No significant difference between base and candidate" in said:
        assert not called
        assert summary.paired.different == 0
    open_ones = sum(figure.word == "not concluded" for figure in figures.values())
    if open_ones and summary.paired.verdict != "INCONCLUSIVE":  # one word for one state
        assert f"{open_ones} of {len(figures)} metrics " in describe_paired_verdict(summary.paired)
        assert not said.startswith("No significant") or "not concluded" in said
    for rule in map(run.settings.rules.by_text.get, (one.rule for one in summary.slos)):
        assert rule is not None
        assert (rule.metric, rule.stat) in figures  # what a rule compares is compared
    assert ("longest_stall", "p95") in figures
    assert describe_paired_verdict(summary.paired)


def test_a_wrong_row_is_found() -> None:
    assert [
        *wrong_in(("TTFT", "6", "10", "+4.13", "+3.0%", "-1 to +9", "better"), less_is_better=True)
    ] == [
        "TTFT: 6, 10 and +4.13 do not add up",
        "TTFT: better, and -1 to +9 holds 0",
        "TTFT: better, and -1 to +9 is on the other side",
    ]
