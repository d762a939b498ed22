"""Stages in which the server died or stood still: what does not use them, from folders."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support.records import UNIX, answered, failed
from support.stages import fill_sweep

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Stage, read_run, write_run
from locust_llm.report.console_summary import format_ending
from locust_llm.report.judge_slo import ANSWERS_IN_EACH_STAGE
from locust_llm.report.open_loop_delivery import format_outage_line
from locust_llm.report.render.text_report import render_markdown_blocks
from locust_llm.report.render.verdict_text import make_verdict
from locust_llm.report.run_comparison import compare_folders
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.sweep_text import make_sweep_tables
from locust_llm.report.write_report_files import summarise_folder
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS


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
        moved = at_its_time(stage)
        own = replace(
            read_run(place),
            stage=moved,
            started_at=moved.began_at,
            profiling_at=moved.began_at + 1,
            stopping_at=moved.ended_at,
        )
        write_run(place, own)
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
        "the server died at concurrency 2: no request was answered from 29.8 s on"
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
    run = read_run(tmp_path)
    verdict = make_verdict(summary, run)
    assert verdict == ("Failed:", "the server died at 2 users.", "loud")
    assert make_headline(summary, run) == (
        "The server died at concurrency 2, and no stage was judged; no request was answered from 29.8 s on"
    )


@pytest.mark.parametrize("end", ["all stages ran", "it was stopped"])
def test_where_the_server_died_no_longer_stage_decides(tmp_path: Path, end: str) -> None:
    """One of 12 requests of the lowest stage is beyond the limit, and 5 % may be: open."""
    slow = answered(1500, 1600, sent_at=18.0)
    first = [slow, *(answered(100, 200, sent_at=1 + 1.5 * step) for step in range(11))]
    make_sweep(tmp_path, {**dying(), 1: first}, slo=("ttft p95 < 1s",))
    write_run(tmp_path, replace(read_run(tmp_path), sweep_end=end))
    summary, _ = summarise_folder(tmp_path)
    run = read_run(tmp_path)
    assert summary.sweep is not None
    assert [level.slo_status for level in summary.sweep.levels] == [INCONCLUSIVE, None, None]
    assert summary.slo_status == FAIL
    verdict = make_verdict(summary, run)
    assert verdict == ("Failed:", "the server died at 2 users; 1 may pass.", "loud")
    assert make_headline(summary, run) == (
        "No stage is known to be within the SLO, and the server died at concurrency 2; "
        "no request was answered from 29.8 s on"
    )
    assert "longer stages" not in format_ending(summary, run, tmp_path, 500)


@pytest.mark.parametrize("slo", [(), ("ttft p95 < 1s",)])
def test_a_server_that_died_in_the_first_or_the_last_stage(
    tmp_path: Path, slo: tuple[str, ...]
) -> None:
    first = {
        1: [*answers(0, 10), *refusals(10, 20)],
        2: refusals(20, 40),
        4: refusals(40, 60),
    }
    summary = make_sweep(tmp_path / "first", first, slo=slo)
    verdict = make_verdict(summary, read_run(tmp_path / "first"))
    assert verdict == ("Failed:", "the server died at 1 user.", "loud")
    last = {
        1: answers(0, 20),
        2: answers(20, 40, users=2),
        4: [*answers(40, 50, users=4), *refusals(50, 60)],
    }
    summary = make_sweep(tmp_path / "last", last, slo=slo)
    verdict = make_verdict(summary, read_run(tmp_path / "last"))
    assert "the server died at 4" in verdict.text
    assert verdict.kind == "loud"


def test_a_frozen_server_is_why_a_sweep_without_rules_has_no_knee(tmp_path: Path) -> None:
    """It freezes at second 30: two requests in flight were cut at the end."""
    hung = [answered(100, sent_at=30.0, outcome="cut", closed_at=40.0) for _ in range(2)]
    stages = {1.0: answers(0, 20), 2.0: [*answers(20, 30, users=2), *hung]}
    summary = make_sweep(tmp_path, stages)
    verdict = make_verdict(summary, read_run(tmp_path))
    assert verdict == ("No knee:", "no token came from 30.1 s on.", "loud")


def freezing() -> dict[float, list[Record]]:
    """Two requests that were sent at second 26 got their second token 6 s later."""
    return {
        1: answers(0, 20),
        2: [
            *answers(20, 26, users=2),
            *[answered(100, 6100, 6200, sent_at=26.0) for _ in range(2)],
            *answers(33, 40, users=2),
        ],
        4: answers(40, 60, users=4),
    }


def test_a_stage_with_a_standstill_is_left_out_of_knees_and_named(tmp_path: Path) -> None:
    """In its 19 s, from 21 to 40 s, 20 + 2 + 28 requests of three tokens ended: 2.63/s, and 3.85/s
    in the other 13 s."""
    summary = make_sweep(tmp_path, freezing(), slo=("ttft p95 < 1s",))
    assert summary.sweep is not None
    level = summary.sweep.levels[1]
    assert (level.silence, level.died, level.sound) == (
        "no token came from 26.1 to 32.1 s",
        False,
        False,
    )
    assert round(level.silent_s, 6) == 6.0
    assert summary.slo_status == PASS
    run = read_run(tmp_path)
    text = format_ending(summary, run, tmp_path, 500)
    assert (
        "NO ANSWER at concurrency 2: no token came from 26.1 to 32.1 s: 2 requests were in flight "
        "all the while. Its rates count these 6 s: without them they are 11.5 tokens/s and 3.85 "
        "requests/s. Knees and limits leave this stage out." in text
    )
    assert text.count("NO ANSWER") == 1
    left_out = "Left out: concurrency 2, where no token came from 26.1 to 32.1 s."
    assert any(left_out in knee.text for knee in summary.sweep.knees)
    table = render_markdown_blocks(make_sweep_tables(summary.sweep))
    assert table.count("no answer") == 1
    assert table.count(" 6 s ") == 1


def test_a_stage_has_its_own_rates_without_the_standstill(tmp_path: Path) -> None:
    """Its clock begins with its first wave, at second 20."""
    make_sweep(tmp_path, freezing())
    own, _ = summarise_folder(tmp_path / "stages" / "2")
    assert format_outage_line(own) == (
        "NO ANSWER: no token came from 6.1 to 12.1 s: 2 requests were in flight all the while. "
        "Rates are over 19 s; without these 6 s they are 11.5 output tokens/s and 3.85 requests/s."
    )


def test_without_rules_the_headline_of_a_sweep_begins_with_its_standstill(tmp_path: Path) -> None:
    """Three stages of other loads, too few for a fit of the throughput."""
    summary = make_sweep(tmp_path, freezing())
    line = make_headline(summary, read_run(tmp_path))
    assert line.startswith("No token came from 26.1 to 32.1 s; ")
    assert "No SLO is given" not in line
    judged = make_sweep(tmp_path / "judged", freezing(), slo=("ttft p95 < 1s",))
    line = make_headline(judged, read_run(tmp_path / "judged"))
    assert line.startswith("Within the SLO up to concurrency 4; ")
    assert line.endswith("; no token came from 26.1 to 32.1 s")


def test_a_stage_that_fails_by_a_standstill_alone_says_so(tmp_path: Path) -> None:
    summary = make_sweep(tmp_path, freezing(), slo=("request_latency max < 1s",))
    assert summary.sweep is not None
    assert [level.slo_status for level in summary.sweep.levels] == [PASS, FAIL, PASS]
    (knee, *_) = summary.sweep.knees
    assert "broken at 2" in knee.text
    assert "PASS without the 2 requests in flight while no token came" in knee.text
    verdict = make_verdict(summary, read_run(tmp_path))
    assert (verdict.word, verdict.text) == (
        "1 user:",
        "within the SLO; 2 fails, where no request was answered for a while.",
    )


def test_a_standstill_of_the_only_user_of_a_stage_is_named(tmp_path: Path) -> None:
    """The stages with more users answer after up to 400 ms, so that only the stage itself, with
    100 ms for each token, shows that 6 s are no wait of a user."""
    alone = [
        *answers(0, 6),
        answered(100, 6100, 6200, sent_at=6.0),
        *answers(13, 20),
    ]
    busy = [answered(400, 900, 950, sent_at=20 + step / 2) for step in range(40) for _ in range(2)]
    summary = make_sweep(tmp_path, {1.0: alone, 2.0: busy})
    assert summary.sweep is not None
    assert [level.silence for level in summary.sweep.levels] == [
        "no token came from 6.1 to 12.1 s",
        "",
    ]
    assert summary.sweep.levels[0].unanswered == (
        "the server, or the only request in flight, stood still"
    )
    assert len(summary.outages) == 1
    assert format_outage_line(summary) is None  # the line of the stage has it


def test_a_standstill_in_the_last_wave_of_a_stage_holds_up_its_requests_and_no_rate(
    tmp_path: Path,
) -> None:
    """The stage with 2 users is measured to second 40, and its last two requests, sent at 39.5 s,
    go on to 46 s. The next stage has waited for them."""
    stages: dict[float, list[Record]] = {
        1: answers(0, 20),
        2: [
            *answers(20, 39, users=2),
            *[answered(100, 6500, sent_at=39.5) for _ in range(2)],
        ],
        4: answers(47, 60, users=4),
    }
    summary = make_sweep(tmp_path, stages, slo=("request_latency max < 1s",))
    assert summary.sweep is not None
    level = summary.sweep.levels[1]
    assert level.silence.startswith("no token came from 39.6 to 46.0 s")
    assert round(level.silent_s, 6) == 0.4
    assert level.slos[0].status_without_silence == PASS


def test_a_comparison_names_the_stage_with_a_standstill(tmp_path: Path) -> None:
    make_sweep(tmp_path / "calm", {1.0: answers(0, 20), 2.0: answers(20, 40, users=2)})
    make_sweep(tmp_path / "froze", freezing())
    compared = compare_folders([tmp_path / "calm", tmp_path / "froze"])
    assert compared.warnings == ()
    named = f"{tmp_path / 'froze'}: no token came from 26.1 to 32.1 s, at concurrency 2."
    assert named in compared.runs[0].warnings


def test_one_silent_visit_of_a_search_counts_for_no_capacity(tmp_path: Path) -> None:
    summary = make_sweep(
        tmp_path, freezing(), sweep="concurrency=1..4", find_max=True,
        slo=("request_latency p95 < 1s",),
    )  # fmt: skip
    assert summary.sweep is not None
    evidence = [level.evidence for level in summary.sweep.levels]
    assert [one.silent for one in evidence if one is not None] == [False, True, False]
    capacity = summary.sweep.capacity
    assert capacity is not None
    assert capacity.low == 4
    (knee, *_) = summary.sweep.knees
    assert knee.text.endswith(
        " One visit to 2 users does not count: no token came from 26.1 to 32.1 s."
    )
