"""The figure of a rule is that of a table of the same report: of the successful requests where
every request succeeded, else of the table that counts what failed, was cut or was cancelled."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import pytest
from msgspec.structs import replace
from support.random_runs import Made, random_run

from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK
from locust_llm.records.record import Record
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Row
from locust_llm.slo.metric_definitions import BY_WORD, LATE, MEASURES, TTFT, TTFT_FROM_DUE
from locust_llm.slo.rules import Rule, SloResult

STATS: Final = ("p50", "p95", "avg")
FEW: Final = 12
MANY: Final = 500


def given_up(record: Record, number: int) -> Record:
    """The answer as it was when it was cancelled: before its first chunk, or after some."""
    kept = len(record.chunk_us) // 2 if number % 2 else 0
    age_s = (record.chunk_us[kept - 1] / 1e6 if kept else 0.0) + 0.001
    return replace(
        record,
        outcome=CANCELLED,
        chunk_us=record.chunk_us[:kept],
        merged=(),
        first_output=0 if kept else None,
        output_tokens=None,
        tokens_from="",
        closed_at=record.sent_at + age_s,
    )


def with_cancelled(made: Made) -> Made:
    """Of every second run each fifth answer was cancelled."""
    if made.seed % 2:
        return made
    numbered = enumerate(made.records)
    made.records = [
        given_up(record, number) if record.outcome == OK and number % 5 == 0 else record
        for number, record in numbered
    ]
    return made


RATES: Final = tuple(measure.word for measure in MEASURES if measure.sums is not None)
"""Those whose row is always there."""


def every_rule() -> tuple[str, ...]:
    """On each metric that a request has a value of, by each kind of statistic; and on rates."""
    latencies = [
        str(Rule(measure.word, "<", 1.0, next(iter(measure.units)), stat))
        for measure in MEASURES
        if measure.metric is not None
        for stat in STATS
    ]
    return ("error_rate < 1%", *(f"{word} > 1/s" for word in RATES), *latencies)


def row_of(rows: Sequence[Row], tag: str) -> Row | None:
    return next((row for row in rows if row.tag == tag), None)


def figure_of(row: Row | None, stat: str) -> float | None:
    if row is None:
        return None
    return row.avg if stat in ("avg", "") else row.percentiles.get(float(stat[1:]))


def contradictions(made: Made) -> Iterator[str]:
    """Rules whose figure is in no table, and whose reason does not name what it counts more."""
    run = replace(made.run, settings=replace(made.run.settings, slo=every_rule()))
    summary = summarise_run(collect_columns(made.records), run, 0, made.records)
    results = {result.rule: result for result in summary.slos}
    share = results["error_rate < 1%"]
    failed = summary.conditions.failed, summary.conditions.succeeded
    if "cut" not in share.reason and not same(share.observed, 100 * failed[0] / (sum(failed) or 1)):
        yield f"error rate {share.observed}, of {failed}"
    for text, rule in run.settings.rules.by_text.items():
        yield from _contradiction(made, summary, rule, results[text])


def _contradiction(made: Made, summary: Summary, rule: Rule, result: SloResult) -> Iterator[str]:
    if rule.metric == "error_rate":
        return
    measure = BY_WORD[rule.metric]
    factor = 1e3 if rule.unit == "s" else 1.0  # tables are in milliseconds
    seen = None if result.observed is None else result.observed * factor
    worst = None if result.worst is None else result.worst * factor
    tag = measure.tag
    first = row_of((*summary.rows, *summary.reading), tag)
    if tag == "time_to_first_output_token" and first is None:  # it is TTFT again
        tag = TTFT.tag
        first = row_of(summary.rows, tag)
    if same(seen, figure_of(first, rule.stat)):
        return
    second = row_of(summary.adjusted, f"adj_{tag}")
    if second is not None and rule.percentile is not None:
        most = figure_of(second, rule.stat)
        least = second.at_least.get(rule.percentile, most)
        if same(seen, least) and same(seen if worst is None else worst, most):
            return
    if not summary.conditions.succeeded and not seen and rule.metric in RATES:
        return  # nothing a second, and no table of it
    beside = named_beside(made, rule)
    unsent = "never sent" in result.reason and tag in (LATE.tag, TTFT_FROM_DUE.tag)
    if not unsent and (not beside or any(word not in result.reason for word in beside)):
        yield f"{rule}: {seen} to {worst}, and no table has it, because {result.reason!r}"


def named_beside(made: Made, rule: Rule) -> list[str]:
    """What a reason must name of requests beside the successful ones; no average has failed
    ones."""
    outcomes = {record.outcome for record in made.profiling}
    if rule.metric == "icl":  # gaps that were: of answers, and of those that were cut
        outcomes &= {CUT}
    failed = bool(outcomes & set(FAILURES)) and rule.stat != "avg"
    return (
        ["failed"] * failed + ["cancelled"] * (CANCELLED in outcomes) + ["cut"] * (CUT in outcomes)
    )


def same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize("seed", range(FEW))
def test_the_figure_of_a_rule_is_in_a_table(seed: int) -> None:
    assert list(contradictions(with_cancelled(random_run(seed)))) == []


@pytest.mark.full
@pytest.mark.parametrize("first", range(FEW, MANY, 22))
def test_the_figures_of_many_rules_are_in_a_table(first: int) -> None:
    found = {}
    for seed in range(first, min(first + 22, MANY)):
        if wrong := list(contradictions(with_cancelled(random_run(seed)))):
            found[seed] = wrong
    assert found == {}
