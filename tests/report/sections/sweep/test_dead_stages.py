"""Stages in which the server died or stood still: what does not use them, from folders."""

from pathlib import Path

from msgspec.structs import replace
from support.records import UNIX, answered, failed
from support.stages import fill_sweep

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Stage, read_run, write_run
from locust_llm.report.console_summary import format_ending
from locust_llm.report.judge_slo import ANSWERS_IN_EACH_STAGE
from locust_llm.report.render.verdict_text import make_verdict
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.write_report_files import summarise_folder
from locust_llm.slo.rules import FAIL, PASS


def answers(begin: int, end: int, users: int = 1) -> list[Record]:
    """Two a second for each user, 300 ms each, with the first token after 100 ms."""
    return [
        answered(100, 200, 300, sent_at=begin + step / 2)
        for step in range(2 * (end - begin))
        for _ in range(users)
    ]


def refusals(begin: int, end: int) -> list[Record]:
    return [
        failed("refused", sent_at=None, asked_at=at, due_at=at, closed_at=at + 0.01)
        for at in (begin + step / 2 for step in range(2 * (end - begin)))
    ]


def make_sweep(folder: Path, stages: dict[float, list[Record]], **settings: object) -> Summary:
    """Stages of 20 s, one after the other."""
    run = fill_sweep(folder, stages, **settings)  # type: ignore[arg-type]

    def at_its_time(stage: Stage) -> Stage:
        began_at = UNIX + 20 * (stage.number - 1)
        return replace(stage, began_at=began_at, measured_at=began_at + 1, ended_at=began_at + 20)

    for stage in run.stages:
        place = folder / "stages" / str(stage.number)
        write_run(place, replace(read_run(place), stage=at_its_time(stage)))
    write_run(folder, replace(run, stages=tuple(map(at_its_time, run.stages))))
    return summarise_folder(folder)[0]


def dying() -> dict[float, list[Record]]:
    """The server dies at second 30, in the middle of the stage with 2 users."""
    return {
        1: answers(0, 20),
        2: [*answers(20, 30, users=2), *refusals(30, 40)],
        4: refusals(40, 60),
    }


def test_a_sweep_in_which_the_server_died_fails_and_answers_by_the_stages_before(
    tmp_path: Path,
) -> None:
    """1 user has two requests a second, 120 a minute, each within the limit."""
    summary = make_sweep(tmp_path, dying(), slo=("ttft p95 < 1s",))
    assert summary.sweep is not None
    levels = summary.sweep.levels
    assert [level.died for level in levels] == [False, True, True]
    assert [level.slo_status for level in levels] == [PASS, None, None]
    by_rule = {result.rule: result for result in summary.slos}
    assert by_rule["ttft p95 < 1s"].status == PASS
    assert by_rule["ttft p95 < 1s"].reason.startswith(
        "holds up to concurrency 1; the server died at 2"
    )
    assert by_rule[ANSWERS_IN_EACH_STAGE].status == FAIL
    assert by_rule[ANSWERS_IN_EACH_STAGE].reason == (
        "the server died at concurrency 2: nothing answered from 29.8 s on"
    )
    assert summary.slo_status == FAIL
    run = read_run(tmp_path)
    verdict = make_verdict(summary, run)
    assert (verdict.word, verdict.text, verdict.kind) == (
        "1 user:",
        "within the SLO; the server died at 2.",
        "loud",
    )
    text = format_ending(summary, run, tmp_path, 500)
    assert "SLO FAIL: Within the SLO up to concurrency 1; the server died at 2; " in text
    assert "NO ANSWER at concurrency 2 and 4: the server died." in text
    assert text.count("  NO ANSWER\n") == 2  # the rows of 2 and 4 users
    assert "broken at" not in text
    assert "capacity left" not in text  # one stage has no knee
    assert "Limits for a gateway, at concurrency 1" in text
    assert ": 120 requests" in text


def test_a_search_takes_a_crash_for_no_load_that_is_too_high(tmp_path: Path) -> None:
    summary = make_sweep(
        tmp_path, dying(), sweep="concurrency=1..4", find_max=True, slo=("ttft p95 < 1s",)
    )
    assert summary.sweep is not None
    capacity = summary.sweep.capacity
    assert capacity is not None
    assert (capacity.low, capacity.reaches_top) == (1, True)
    (knee, *_) = summary.sweep.knees
    assert "the server died at concurrency 2" in knee.text
    assert "e+" not in knee.text
    assert summary.slo_status == FAIL


def test_without_rules_a_dead_server_has_failed_requests_alone(tmp_path: Path) -> None:
    summary = make_sweep(tmp_path, dying())
    assert summary.slos == ()
    assert summary.conditions.failed == 60


def test_a_stage_with_a_standstill_is_left_out_of_knees_and_named(tmp_path: Path) -> None:
    """Two requests that were sent at second 26 got their second token 6 s later."""
    stages = {
        1: answers(0, 20),
        2: [
            *answers(20, 26, users=2),
            *[answered(100, 6100, 6200, sent_at=26.0) for _ in range(2)],
            *answers(33, 40, users=2),
        ],
        4: answers(40, 60, users=4),
    }
    summary = make_sweep(tmp_path, stages, slo=("ttft p95 < 1s",))
    assert summary.sweep is not None
    level = summary.sweep.levels[1]
    assert (level.silence, level.died, level.sound) == (
        "no token came from 26.1 to 32.1 s",
        False,
        False,
    )
    assert summary.slo_status == PASS
    text = format_ending(summary, read_run(tmp_path), tmp_path, 500)
    assert (
        "NO ANSWER at concurrency 2: no token came from 26.1 to 32.1 s, which its rates count. "
        "Knees and limits leave this stage out." in text
    )
    assert "Left out: concurrency 2, where no token came from 26.1 to 32.1 s." in text
