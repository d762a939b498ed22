"""Which rules the records leave open so far: asked in a process of its own while a run is on."""

from pathlib import Path
from random import Random

import pytest
from support.records import UNIX, a_run, answered

from locust_llm.controller import phases
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.report_result import RuleAtLook
from locust_llm.records.run_facts import RECORDS, Run
from locust_llm.report.interim_analysis import list_rules_at_look
from locust_llm.slo.rules import INCONCLUSIVE, PASS

RULES = ("ttft p50 < 100ms", "ttft p99 < 90ms", "warn: ttft p99 < 90ms")


def records(count: int) -> list[Record]:
    draw = Random(1)
    return [
        answered(draw.uniform(20, 80), 200, id=f"{i}", sent_at=UNIX + i / 10) for i in range(count)
    ]


def fill(folder: Path, records: list[Record]) -> None:
    (folder / RECORDS).write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )


def open_rules(folder: Path, run: Run) -> list[RuleAtLook]:
    return [rule for rule in list_rules_at_look(folder, run) if rule.status == INCONCLUSIVE]


def test_what_is_too_few_for_a_rule_that_decides_is_named(tmp_path: Path) -> None:
    fill(tmp_path, records(100))
    decided, open_ = list_rules_at_look(tmp_path, a_run(slo=RULES))
    assert (decided.rule, decided.status) == ("ttft p50 < 100ms", PASS)
    assert " to " in decided.interval
    assert (open_.rule, open_.status) == ("ttft p99 < 90ms", INCONCLUSIVE)
    assert "crosses the limit" in open_.reason
    fill(tmp_path, records(600))
    assert open_rules(tmp_path, a_run(slo=RULES)) == []


def test_a_process_of_its_own_says_the_same_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, records(100))
    run = a_run(slo=RULES)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert phases.find_rules_at_look(tmp_path, run) == list_rules_at_look(tmp_path, run)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert phases.find_rules_at_look(tmp_path, run) is None


def test_each_of_many_looks_is_held_to_more(tmp_path: Path) -> None:
    """p99 of 400: a limit just above all values is decided by one look in 2.5 % of the tail, not
    by one of eight."""
    fill(tmp_path, records(400))
    rules = ("ttft p99 < 80.3ms",)
    assert open_rules(tmp_path, a_run(slo=rules, run_time_s=60.0)) == []
    assert open_rules(tmp_path, a_run(slo=rules, run_time_s=60.0, until_decided_s=900.0))
