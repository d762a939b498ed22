"""The stages: stages get their folders, their records and their facts."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.records import answered

from locust_llm.controller import stage_runner as module
from locust_llm.controller.block_runner import BlockRunner
from locust_llm.controller.report_process import ReportOutcome
from locust_llm.controller.stage_runner import StageRunner, count_requests_needed
from locust_llm.records.profile_export_jsonl import RecordFile, encode_record
from locust_llm.records.report_result import MetricValue, ReportResult
from locust_llm.records.run_facts import Run, Stage, read_run
from locust_llm.settings.run_options import Settings
from locust_llm.settings.sweep_option import STOPPED, TIME_UP
from locust_llm.slo.capacity_search import CapacityEstimate, RuleEvidence, StageEvidence
from locust_llm.slo.load_generator_health import ClientVerdict

SETTINGS = Settings(sweep="concurrency=2,4", stage_duration="10..60", stage_requests=3)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of which reports were made."""
    made: list[Path] = []

    def make(folder: Path) -> ReportOutcome:
        made.append(folder)
        return ReportOutcome(
            ReportResult(slo_status="PASS", figures={"output_token_throughput": MetricValue(50.0)})
        )

    monkeypatch.setattr(module, "make_reports", make)
    return made


def begun(settings: Settings, folder: Path) -> StageRunner:
    asked = settings.staged
    assert asked is not None
    one = StageRunner(settings, asked, folder)
    assert one.next() is True
    one.begin(1000.0)
    return one


def known(capacity: float) -> CapacityEstimate:
    levels = tuple(map(float, range(2, 33)))
    chances = tuple(1.0 if level <= capacity else 0.5 * (level < 20) for level in levels)
    return CapacityEstimate(levels=levels, chances=chances)


def facts(stage: Stage) -> Run:
    return Run(name="x", settings=Settings(), started_at=0, profiling_at=0, stage=stage)


def sent(at: float, took_s: float = 1.0) -> Any:
    return answered(took_s * 1e3, sent_at=at, due_at=at, asked_at=at, clock_offset_s=0.0, stage=1)


def test_what_is_sent_in_the_first_and_the_last_wave_is_warmup(
    tmp_path: Path, reports: list[Path]
) -> None:
    one = begun(SETTINGS, tmp_path)
    phases = []
    at = 1000.0
    while True:
        phases += [one.add_record(encode_record(sent(at))).record.phase for _ in range(2)]
        at += 1
        if one.look(at, 2, 0):
            break
    # two users, a second each: one wave, ten seconds with those sent just at their end, and one
    # more wave
    assert phases == ["warmup"] * 2 + ["profiling"] * 22
    one.close(facts, report=True)
    assert [
        r.phase for r in RecordFile(tmp_path / "stages" / "1" / "profile_export.jsonl")
    ] == phases
    assert reports == [tmp_path / "stages" / "1"]
    stage = read_run(tmp_path / "stages" / "1").stage
    assert stage == Stage(
        number=1,
        value=2,
        began_at=1000,
        measured_at=1001,
        warmup=2,
        ended_at=1011,
        residual=0.0,
        why="stationary",
    )


def test_stages_follow_until_there_are_no_more(tmp_path: Path, reports: list[Path]) -> None:
    one = begun(SETTINGS, tmp_path)
    assert (str(one), one.settings.users, one.settings.sweep) == (
        "stage 1 of 2, concurrency 2",
        2,
        None,
    )
    one.close(facts, report=True)
    assert one.next() is True
    assert (str(one), one.settings.users) == ("stage 2 of 2, concurrency 4", 4)
    one.begin(2000.0)
    one.stop(2001.0)
    one.close(facts, report=False)
    assert [(stage.number, stage.value, stage.why) for stage in one.finished] == [
        (1, 2, "stopped"),
        (2, 4, "stopped"),
    ]
    assert len(reports) == 1


def test_each_stage_gets_its_share_of_the_time_whatever_the_stages_come_to(
    tmp_path: Path, reports: list[Path]
) -> None:
    """100 s for three stages: three quarters of a third at first. The first took 12 s beside its
    25 s, so the second, of twice the users, has half of the 63 s left without 24 s, and the third
    the rest but for 1.5 times the second's 5 s."""
    now = [1000.0]
    settings = replace(SETTINGS, sweep="concurrency=2,4,6", run_time_s=100.0, stage_requests=1)
    asked = settings.staged
    assert asked is not None
    one = StageRunner(settings, asked, tmp_path, lambda: now[0])

    def lasts_s(began_at: float, whole_s: float) -> float:
        one.next()
        one.begin(began_at)
        at = began_at
        while not one.look(at, 2, 0):
            for _ in range(4):
                one.add_record(encode_record(sent(at)))
            at += 0.25
        stage = one.stage()
        assert stage.measured_at is not None
        assert stage.why == TIME_UP
        measured_s = stage.ended_at - stage.measured_at
        now[0] = began_at + measured_s + whole_s
        one.close(facts, report=True)
        return measured_s

    assert lasts_s(1000.0, 12.0) == pytest.approx(25.0, abs=0.5)
    assert lasts_s(1037.0, 5.0) == pytest.approx(7.5 + 0.25, abs=0.5)
    assert lasts_s(1050.0, 5.0) == pytest.approx(50 - 7.5, abs=0.5)
    assert not one.next()
    assert one.end == "all stages ran"


@pytest.mark.parametrize(
    ("result", "next_", "end"),
    [
        (ReportResult(), 2.0, ""),
        (ReportResult(capacity=known(8)), 4.0, ""),
        (ReportResult(client=ClientVerdict("INVALID")), None,
         "the load generator was too slow at the lowest level"),
    ],
)  # fmt: skip
def test_a_search_goes_where_its_stages_say(
    result: ReportResult,
    next_: float | None,
    end: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "make_reports", lambda folder: ReportOutcome(result))
    settings = Settings(sweep="concurrency=2..32", find_max=True, stage_requests=3)
    one = begun(settings, tmp_path)
    assert one.value == 2
    for began_at in (1000.0, 2000.0):
        one.close(facts, report=True)
        more = one.next()
        if began_at == 1000.0:
            one.begin(2000.0)
    assert more is bool(next_)
    assert one.end == end
    if next_ is not None:
        assert one.value >= next_


@pytest.mark.parametrize(
    ("took_s", "end"),
    [
        (35.0, "the 20 s left were too short for another stage"),
        (54.0, "its time was used"),
    ],
)
def test_a_search_says_how_much_of_its_time_it_could_not_use(
    took_s: float, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage of 2 users took 35 of 55 s, nearly all of it beside its measured part."""
    monkeypatch.setattr(module, "make_reports", lambda folder: ReportOutcome(ReportResult()))
    settings = Settings(sweep="concurrency=2..32", find_max=True, run_time_s=55.0)
    asked = settings.staged
    assert asked is not None
    now = [1000.0]
    one = StageRunner(settings, asked, tmp_path, lambda: now[0])
    assert one.next()
    one.begin(1000.0)
    one.stop(1001.0)
    now[0] = 1000.0 + took_s
    one.close(facts, report=True)
    assert not one.next()
    assert one.end == end


def test_a_search_ends_where_its_lowest_level_certainly_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 users fail in both visits, and 50 of 55 s are left."""
    levels = tuple(map(float, range(2, 33)))
    fails = StageEvidence(level=2.0, rules=(RuleEvidence(rule="ttft p95 < 1s", fails=True),))
    below = CapacityEstimate(levels=levels, chances=(0.0,) * len(levels), fails_from=2.0)
    result = ReportResult(capacity=below, stage_evidence=fails)
    monkeypatch.setattr(module, "make_reports", lambda folder: ReportOutcome(result))
    settings = Settings(sweep="concurrency=2..32", find_max=True, run_time_s=55.0)
    asked = settings.staged
    assert asked is not None
    now = [1000.0]
    one = StageRunner(settings, asked, tmp_path, lambda: now[0])
    for _ in range(2):
        assert one.next()
        assert one.value == 2
        one.begin(now[0])
        one.stop(now[0] + 2)
        now[0] += 2.5
        one.close(facts, report=True)
    assert not one.next()
    assert one.end == "the lowest level certainly breaks a rule"


def test_the_client_verdicts_of_ended_stages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ReportResult(client=ClientVerdict("OK"))
    monkeypatch.setattr(module, "make_reports", lambda folder: ReportOutcome(result))
    one = begun(SETTINGS, tmp_path)
    one.close(facts, report=True)
    assert one.describe_client_verdicts() == ""
    assert one.next()
    one.begin(2000.0)
    result = ReportResult(client=ClientVerdict("DEGRADED"))
    one.close(facts, report=True)
    assert one.describe_client_verdicts() == "DEGRADED at concurrency 4"


def test_short_stages_have_their_reports_at_the_end(tmp_path: Path, reports: list[Path]) -> None:
    one = begun(replace(SETTINGS, run_time_s=39.0), tmp_path)
    one.close(facts, report=True)
    assert reports == []
    one = begun(replace(SETTINGS, run_time_s=40.0), tmp_path)
    one.close(facts, report=True)
    assert reports == [tmp_path / "stages" / "1"]


def test_a_repeat_counts_from_its_first_request_to_its_last(
    tmp_path: Path, reports: list[Path]
) -> None:
    one = begun(Settings(repeats=2, request_count=5), tmp_path)
    assert one.add_record(encode_record(sent(1000.0))).record.phase == "profiling"
    assert one.look(1100.0, 1, 0) is False
    one.stop(1200.0)
    assert one.stage() == Stage(
        number=1, value=1, began_at=1000, measured_at=1000, ended_at=1200, why="count"
    )
    assert str(one) == "repeat 1 of 2"


def test_arrivals_are_counted_over_what_is_measured(tmp_path: Path) -> None:
    one = begun(
        Settings(sweep="request-rate=2", stage_duration="10..60", stage_requests=1), tmp_path
    )
    due, at = 0, 1000.0
    while not one.look(at, 2, due):
        at, due = at + 1, due + 2
        for _ in range(2):
            one.add_record(encode_record(sent(at - 1)))
    assert one.stage().measured_at == 1001
    assert one.stage().ended_at == 1011
    assert one.due == (2, 22)


@pytest.mark.parametrize(
    ("slo", "count"),
    [((), 100), (("ttft p95 < 1s",), 100), (("ttft p99 < 1s", "error_rate < 1%"), 368)],
)
def test_a_stage_has_as_many_requests_as_its_rules_need(slo: tuple[str, ...], count: int) -> None:
    assert count_requests_needed(Settings(slo=slo)) == count


# -- blocks ----------------------------------------------------------------------------------------


def blocks_of(folder: Path) -> BlockRunner:
    settings = Settings(
        aa=True, run_time_s=220.0, block_duration=10.0, washout=2.0, random_seed=1, users=2
    )
    assert settings.staged is not None
    return BlockRunner(settings, settings.staged, folder)


@pytest.mark.parametrize(("took_s", "warns"), [(3.9, False), (4.1, True)])
def test_blocks_as_short_as_a_request_are_warned_of_after_the_first_pair(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, took_s: float, warns: bool
) -> None:
    """Of 10 s 8 count: two requests of 4 s."""
    one = blocks_of(tmp_path)
    for _ in range(4):
        one.next()
        at = 1000.0 + 12 * one.number
        one.begin(at)
        slow = took_s if one.block.arm == "candidate" else 1.0
        one.add_record(encode_record(sent(at + 3, slow)))
        one.close(facts, report=True)
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = (
        "A request of the candidate takes 4.1 s, but only 8 s of a block count, so many blocks "
        "may have no request. Use --block-duration 11."
    )
    assert found == [expected] * warns


def test_blocks_come_in_their_order_and_count_behind_the_washout(
    tmp_path: Path, reports: list[Path]
) -> None:
    one, counted = blocks_of(tmp_path), []
    while one.next():
        at = 1000.0 + 12 * one.number
        one.begin(at)
        counted.append(
            [
                one.add_record(encode_record(sent(at + late))).record.phase
                for late in (0.0, 1.9, 2.0, 9.9)
            ]
        )
        one.stop(at + 10.2)
        one.close(facts, report=True)
    assert one.end == "all pairs are complete"
    one.close(facts, report=False)  # the run is over: the last block was closed before
    asked = one.settings.blocks
    assert [(stage.pair, stage.arm) for stage in one.finished] == [
        (block.pair, block.arm) for block in asked
    ]
    assert [stage.ended_at - stage.began_at for stage in one.finished] == pytest.approx(
        [block.load_s for block in asked]
    )
    assert counted == [["warmup"] * 4] * 2 + [["warmup", "warmup", "profiling", "profiling"]] * 20
    first, third = one.finished[0], one.finished[2]
    assert (first.measured_at, first.why) == (None, TIME_UP)
    assert (third.began_at, third.measured_at) == (1036.0, 1038.0)
    assert reports == []
    assert list(tmp_path.iterdir()) == []


def test_a_block_in_which_the_run_was_stopped_says_so(tmp_path: Path) -> None:
    one = blocks_of(tmp_path)
    for _ in range(3):
        assert one.next()
    assert str(one).startswith("block 3 of 22: ")
    assert str(one).endswith(", pair 1 of 10")
    one.begin(1000.0)
    one.stop(1004.0)
    one.close(facts, report=False)
    (stage,) = one.finished
    assert (stage.number, stage.ended_at, stage.why) == (3, 1004.0, STOPPED)


def test_requests_of_a_lost_worker_are_missing_in_their_own_stage_only(
    tmp_path: Path, reports: list[Path]
) -> None:
    """Two of the first stage, then two of the second; one record comes after all."""
    one = begun(SETTINGS, tmp_path)
    lost = 0

    def whole(stage: Stage) -> Run:
        run = Run(name="x", settings=Settings(), started_at=0, profiling_at=0, records_lost=lost)
        return one.facts(stage, run, (), None, 0)

    missing = []
    for known_so_far in (2, 4):
        lost = known_so_far
        one.close(whole, report=False)
        missing.append(read_run(one.folder).records_lost)
        if one.next():
            one.begin(2000.0)
    assert missing == [2, 2]
    lost = 3
    assert whole(one.stage()).records_lost == 0


def test_a_late_record_of_an_earlier_stage_hides_no_loss_of_a_later_one(
    tmp_path: Path, reports: list[Path]
) -> None:
    """The first stage loses two requests. In the second one of them is found, and one is lost."""
    one = begun(SETTINGS, tmp_path)
    run = Run(name="x", settings=Settings(), started_at=0, profiling_at=0, records_lost=2)
    one.close(lambda stage: one.facts(stage, run, (), None, 0), report=False)
    assert one.next()
    one.begin(2000.0)
    one.note_found(1, 1)
    assert one.facts(one.stage(), run, (), None, 0).records_lost == 1


def test_found_records_of_a_loss_that_was_noticed_later_invent_none(
    tmp_path: Path, reports: list[Path]
) -> None:
    """A request of the first stage counts as lost in the second one, and is found: nothing is lost."""
    one = begun(SETTINGS, tmp_path)
    run = Run(name="x", settings=Settings(), started_at=0, profiling_at=0)
    one.close(lambda stage: one.facts(stage, run, (), None, 0), report=False)
    assert one.next()
    one.begin(2000.0)
    one.note_found(1, 1)
    assert one.facts(one.stage(), run, (), None, 0).records_lost == 0
