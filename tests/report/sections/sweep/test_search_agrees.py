"""What a search prints never contradicts what its single stages show for certain: several hundred
sets of random stages, with a pencil beside each."""

import math
import re

import numpy as np
import pytest
from msgspec.structs import replace
from support.records import a_run
from support.stages import a_level

from locust_llm.records.run_facts import Run
from locust_llm.report.judge_slo import combine_results, judge_sweep
from locust_llm.report.sections.sweep.knee import SLO
from locust_llm.report.sections.sweep.sweep_findings import summarise_levels
from locust_llm.report.slo_evidence.confidence_intervals import estimate_percentile_interval
from locust_llm.report.slo_evidence.rule_evidence import make_share_evidence
from locust_llm.report.summary_rows import LoadLevel, SweepSummary
from locust_llm.slo.capacity_search import RuleEvidence, StageEvidence
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, SloResult

RULES = ("itl p95 < 1s", "ttft p95 < 1s")
DOUBTS = ("get worse", "differ by more than their errors")
"""What the report says where a stage that passes is no proof."""


def measure_stage(
    rng: np.random.Generator, rule: str, at_limit: float, level: float
) -> tuple[RuleEvidence, SloResult]:
    """Random times in seconds, whose p95 grows with the load and is 1 s at ``at_limit``. One stage
    of ten is disturbed, so that a stage may contradict another one."""
    disturbed = rng.choice([1.0, 1.4, 0.6], p=[0.9, 0.05, 0.05])
    deviation = rng.choice([0.02, 0.2, 0.6])
    times = np.exp(rng.normal(-1.645 * deviation, deviation, int(rng.integers(8, 250))))
    times *= disturbed * (level / at_limit) ** rng.choice([0.3, 1.0])
    found = estimate_percentile_interval(times, 95)
    low, high = found.ends
    status = INCONCLUSIVE
    if high is not None and high < 1:
        status = PASS
    if low is not None and low >= 1:
        status = FAIL
    value = float(np.quantile(times, 0.95))
    evidence = make_share_evidence(rule, (times >= 1).astype(float), 0.05, times)
    known = None if low is None or high is None else (low, max(low, min(value, high)), high)
    result = SloResult(
        rule=rule, status=status, observed=value, low=low, high=high, limit=1.0, unit="s"
    )
    return replace(evidence, passes=status == PASS, fails=status == FAIL, figure=known), result


def make_search(seed: int) -> tuple[list[LoadLevel], Run]:
    """One to seven stages of 1 to 16 users, some of them at one level."""
    rng = np.random.default_rng(seed)
    rules = RULES[: int(rng.integers(1, 3))]
    run = a_run(sweep="concurrency=1..16", slo=rules, users=None, find_max=True)
    limits = [float(rng.uniform(0.5, 24)) for _ in rules]
    levels = list[LoadLevel]()
    for number in range(1, int(rng.integers(2, 9))):
        value = float(rng.integers(1, 17))
        pairs = [
            measure_stage(rng, rule, limit, value)
            for rule, limit in zip(rules, limits, strict=True)
        ]
        results = tuple(result for _, result in pairs)
        evidence = StageEvidence(
            level=value, number=number, measured_s=float(rng.uniform(2, 20)),
            rules=tuple(evidence for evidence, _ in pairs),
        )  # fmt: skip
        levels.append(
            a_level(value, number=number, slos=results, slo_status=combine_results(results),
                evidence=evidence)
        )  # fmt: skip
    return sorted(levels, key=lambda level: level.value), replace(
        run, sweep_end="its time was used"
    )


def read_interval(text: str) -> tuple[float, float]:
    """The ends of a printed interval."""
    number = r"(\d+)"
    if match := re.search(f"at least {number}", text):
        return float(match[1]), math.inf
    if match := re.search(f"interval: at most {number}", text):
        return 0.0, float(match[1])
    if match := re.search(f"95% interval {number} to {number}( or more)?", text):
        return float(match[1]), math.inf if match[3] else float(match[2])
    if match := re.search(f"Capacity: {number} users? .no other level", text):
        return float(match[1]), float(match[1])
    assert "below 1 user" in text, text
    return 0.0, 0.0


def check_interval(
    text: str, interval: tuple[float, float], failing: list[float], passing: list[float]
) -> None:
    """A stage that fails is above the interval, one that passes is not; what contradicts another
    stage, or may be worse later, is named."""
    low, high = interval
    for level in failing:
        if any(other >= level for other in passing):
            assert "Stages contradict each other" in text
        else:
            assert high < level, text
    for level in passing:
        known = any(other <= level for other in failing) or any(doubt in text for doubt in DOUBTS)
        assert known or low >= level, text


def check_row(row: SloResult, levels: list[LoadLevel], sweep: SweepSummary) -> None:
    """The figure of a rule that passes is never of a stage that breaks it. It is of the highest
    stage that passes, where none breaks it up to there."""
    if row.status != PASS or "value is at" not in row.reason:
        return
    own = [(level, result) for level in levels for result in level.slos if result.rule == row.rule]
    failing = [level.value for level, result in own if result.status == FAIL]
    passing = [
        (level, result)
        for level, result in own
        if result.status == PASS and level.value < min(failing, default=math.inf)
    ]
    at = float(row.reason.split("value is at concurrency ")[1].split(",")[0].split(";")[0])
    assert any(
        (level.value, result.observed) == (at, row.observed) and result.status != FAIL
        for level, result in own
    )
    text = next(knee.text for knee in sweep.knees if knee.rule == SLO)
    if passing and not any(doubt in text for doubt in DOUBTS):
        assert (at, row.observed) == (passing[-1][0].value, passing[-1][1].observed)


@pytest.mark.parametrize(
    "first",
    [0, 50, *(pytest.param(first, marks=pytest.mark.full) for first in range(100, 400, 50))],
)
def test_no_interval_contradicts_a_stage_that_is_certain(first: int) -> None:
    unknown = 0
    for seed in range(first, first + 50):
        levels, run = make_search(seed)
        sweep = summarise_levels(run, levels)
        rows = list(judge_sweep(sweep, run))
        failing = [level.value for level in levels if level.slo_status == FAIL]
        passing = [level.value for level in levels if level.slo_status == PASS]
        found = sweep.capacity
        unknown += found is None and bool(failing or passing)
        if found is None:
            assert not any("Capacity" in knee.text for knee in sweep.knees), seed
            continue
        text = next(knee.text for knee in sweep.knees if knee.rule == SLO)
        low, high = read_interval(text)
        check_interval(text, (low, high), failing, passing)
        assert "more" not in found.format_interval("users") or high == math.inf
        if found.value is not None:
            assert low <= found.value <= high
            assert (found.safe or 0.0) <= low or (found.safe or 0.0) < found.value
        for row in rows:
            check_row(row, levels, sweep)
        if any(row.status == FAIL for row in rows):
            assert found.value is None
    assert unknown < 5
