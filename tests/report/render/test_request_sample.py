"""The requests that the report page embeds: all of a short run, a stratified sample of a long one,
whose weights add up."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from support.levels import level
from support.records import UNIX, a_run, answered, failed
from support.request_cases import FILE, make_cases, make_records, the_run

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Stage
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render import request_sample
from locust_llm.report.render.html_report import find_stage_rates
from locust_llm.report.render.request_sample import (
    RequestSample,
    describe_sample,
    divide_by_dimensions,
    make_request_sample,
)
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SweepSummary


def sample_of(records: list[Record], most: int = 3000, **settings: Any) -> RequestSample:
    sample = make_request_sample(collect_columns(records), a_run(**settings), records, 10.0, most)
    assert sample is not None
    return sample


def test_the_cases_of_the_scripts_are_those_of_pandas() -> None:
    """``python -m support.request_cases`` in tests/ writes the file."""
    assert json.loads(FILE.read_text()) == make_cases()


def test_nothing_to_embed() -> None:
    assert make_request_sample(collect_columns([]), a_run()) is None


def test_a_short_run_is_embedded_as_it_is() -> None:
    records = make_records()
    sample = make_request_sample(collect_columns(records), the_run(), records, 50.0)
    assert sample is not None
    assert sample.ids == [record.id for record in records]
    assert sample.weights == []
    assert describe_sample(sample) == ""
    assert sample.columns["ttft"][0] == pytest.approx((records[0].ttft_s or 0) * 1e3)
    assert {dimension.key for dimension in sample.dimensions} == {
        "phase", "input", "turn", "name", "outcome",
    }  # fmt: skip
    phase = sample.dimensions[0]
    assert phase.labels[phase.start] == "profiling"


def test_a_property_with_one_value_is_no_filter() -> None:
    sample = sample_of([answered(5, 6), answered(7, 8)])
    assert [dimension.key for dimension in sample.dimensions] == ["outcome"]
    assert sample.dimensions[0].labels == ("ok",)


def many(count: int) -> list[Record]:
    """One in a hundred of a rare name, one in two hundred failed; the slowest is number 7."""
    records = []
    for i in range(count):
        name = "rare" if i % 100 == 50 else "chat"
        if i % 200 == 199:
            records.append(failed(sent_at=0.01 * i, id=str(i), name=name, error="gone"))
        else:
            first = 90_000 if i == 7 else 10 + i % 50
            records.append(answered(first, first + 10, sent_at=0.01 * i, id=str(i), name=name))
    return records


def test_a_long_run_has_every_slow_and_failed_request_and_the_others_by_strata() -> None:
    count = 20_000
    sample = sample_of(many(count), most=2000)
    assert len(sample.ids) < 2500
    assert sum(sample.weights) == count == sample.total
    at = {key: place for place, key in enumerate(sample.ids)}
    assert sample.weights[at["7"]] == 1
    failures = [str(i) for i in range(count) if i % 200 == 199]
    assert all(sample.weights[at[key]] == 1 for key in failures)
    names = next(one for one in sample.dimensions if one.key == "name")
    codes, weights = np.array(names.codes), np.array(sample.weights)
    assert weights[codes == names.labels.index("rare")].sum() == count // 100
    assert describe_sample(sample).startswith(
        f"This page holds {len(sample.ids):,} of 20,000 requests: the slowest and all failed ones"
    )


def test_of_very_many_failures_there_is_a_sample_too() -> None:
    records = [failed(sent_at=0.01 * i, id=str(i)) for i in range(5000)]
    sample = sample_of([*records, *some_answered(100)], most=1000)
    assert len(sample.ids) < 1300
    assert sum(sample.weights) == 5100
    assert "all failed" not in describe_sample(sample)


def some_answered(count: int) -> list[Record]:
    return [answered(5, 6, sent_at=0.1 * i, id=f"ok{i}") for i in range(count)]


def test_a_filter_of_a_sample_estimates_what_all_requests_have() -> None:
    """TTFT is 10 to 59 ms, evenly: its median is 34.5 ms, its p95 57 ms."""
    sample = sample_of(many(20_000), most=2000)
    values = np.array([np.nan if v is None else v for v in sample.columns["ttft"]])
    known = ~np.isnan(values)
    repeated = np.repeat(values[known], np.array(sample.weights)[known])
    assert np.percentile(repeated, 50) == pytest.approx(34.5, abs=0.6)
    assert np.percentile(repeated, 95) == pytest.approx(57, abs=1)


def test_figures_of_whole_groups_come_with_a_sample() -> None:
    sample = sample_of(many(20_000), most=2000)
    names = next(one for one in sample.dimensions if one.key == "name")
    figures = dict(
        zip(request_sample.FIGURES, names.whole[names.labels.index("rare")], strict=True)
    )
    assert figures["requests"] == 200
    assert figures["failed"] == 0
    assert figures["ttft50"] == 10


def test_labels_from_outside_stay_apart() -> None:
    long = "x" * 60
    records = [answered(5, 6, name=f"{long}{end}", sent_at=10.0 + i) for i, end in enumerate("ab")]
    names = next(one for one in sample_of(records).dimensions if one.key == "name")
    assert len(set(names.labels)) == 2


def test_a_filter_offers_each_block_with_a_counted_request() -> None:
    """28 blocks of 10 s with a request each: the base's count, the candidate's do not."""
    stages, records = [], []
    for number in range(1, 29):
        at = 10.0 * number
        is_base = number % 2 == 0
        stages.append(
            Stage(
                number=number, value=number, began_at=UNIX + at, ended_at=UNIX + at + 10,
                arm="base" if is_base else "candidate", pair=(number + 1) // 2,
            )
        )  # fmt: skip
        phase = "profiling" if is_base else "warmup"
        records.append(answered(5, 6, sent_at=at + 1, phase=phase))
    run = msgspec.structs.replace(a_run(), stages=tuple(stages))
    divisions = divide_by_dimensions(collect_columns(records).requests, run)
    blocks = next(one for one in divisions if one.key == "stage")
    assert blocks.labels == tuple(f"base ({number})" for number in range(2, 29, 2))
    assert blocks.codes[1] == 0
    assert blocks.codes[27] == 13
    assert blocks.codes[26] == -1


def test_a_request_without_a_send_stands_where_it_was_asked_for() -> None:
    records = [answered(5, 6), failed("refused", sent_at=None, asked_at=12.0, closed_at=13.0)]
    sample = sample_of(records)
    assert sample.columns["at"] == [10.0, 12.0]
    assert sample.columns["took"][1] == 1000
    assert msgspec.json.encode(sample)


def test_a_stage_has_the_rates_of_its_table_and_a_warmup_none() -> None:
    """Stage 2 was measured for 4 of its 10 s; stage 1 has no row in the table."""
    stages = tuple(
        Stage(number=n, value=2.0**n, began_at=UNIX + 10 * n, ended_at=UNIX + 10 * n + 10)
        for n in (1, 2)
    )
    records = [answered(5, 6, sent_at=10.0 * n + 1) for n in (1, 2)]
    run = msgspec.structs.replace(a_run(), stages=stages)
    columns = collect_columns(records)
    rates = {2: (4.0, 7.2, 953.4, 4000.0)}
    sample = make_request_sample(columns, run, records, 20.0, stage_rates=rates)
    assert sample is not None
    (stage,) = (one for one in sample.dimensions if one.key == "stage")
    assert (stage.labels, stage.rates) == (("2", "4"), ((None,) * 4, (4.0, 7.2, 953.4, 4000.0)))
    assert all(not one.rates for one in sample.dimensions if one.key != "stage")


def test_the_page_of_a_sweep_has_the_rates_of_its_stages() -> None:
    levels = (level(1.0, number=1), level(2.0, number=2, duration_s=4.0))
    sweep = SweepSummary(axis="concurrency", unit="users", levels=levels, ended="", knees=())
    summary = msgspec.structs.replace(summarise_run(collect_columns([]), a_run()), sweep=sweep)
    assert find_stage_rates(summary) == {1: (10.0, 1, 100, 1000), 2: (4.0, 2, 200, 2000)}
