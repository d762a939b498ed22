"""How a run ends on the console: the verdict first, at most 25 lines, none wider than the
terminal."""

import re
from pathlib import Path
from typing import Final

import msgspec
import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed, mixed
from support.stages import a_level

from locust_llm.exit_status import RunOutcome, decide_exit_status
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.report_result import ReportResult
from locust_llm.records.run_facts import OpenLoopSchedule, ProcessHealth, Run, write_run
from locust_llm.records.timing_accuracy import ErrorBounds, MeasurementAccuracy
from locust_llm.report.console_summary import (
    LINES,
    MORE_RULES,
    _fitting_rules,
    _wrapped,
    format_ending,
)
from locust_llm.report.document_blocks import (
    INEXACT,
    INEXACT_NOTE,
    format_interval,
    format_interval_around,
    format_percentile,
)
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.text_report import render_console
from locust_llm.report.report_command import run_report_command
from locust_llm.report.sections.benchmark_validity import PublishedCheck, Validity
from locust_llm.report.sections.metric_tables import NOTHING
from locust_llm.report.sections.notes import make_remarks
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import FailureGroup, SweepSummary
from locust_llm.slo.load_generator_health import DEGRADED, IDLE_ADVICE, OK, ClientVerdict
from locust_llm.slo.rules import INCONCLUSIVE_POLICIES

RULES = tuple(f"ttft p{p} < {ms}ms" for p in (50, 90, 95, 99, 99.9) for ms in (1, 100, 190, 5000))
HOSTILE = "\x1b[31mred\u202e " + "long " * 300


def spread(count: int, **other: object) -> list[Record]:
    return [
        answered(ms, ms + 20, ms + 50, sent_at=10.0 + i, **other)
        for i, ms in enumerate(mixed(count))
    ]


def said(
    *records: Record, run: Run | None = None, width: int = 120, **settings: object
) -> list[str]:
    run = run or a_run(**settings)
    return format_ending(
        summarise_run(collect_columns(records), run), run, "reports/by-hand", width
    ).splitlines()


def test_a_machine_without_a_free_core_is_named_beside_the_client_verdict() -> None:
    health = ProcessHealth(
        worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, server_cores=0.1, machine_busy=0.996
    )
    run = replace(a_run(), health=(health,))
    text = " ".join(" ".join(said(*spread(199), run=run)).split())
    assert "client verdict OK on a machine that was 100% busy." in text


def test_a_sweep_on_a_machine_without_a_free_core_has_it_once() -> None:
    """The client verdict of each stage is in its own report."""
    health = ProcessHealth(
        worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, server_cores=0.1, machine_busy=0.996
    )
    levels = (a_level(1, slo="PASS"), a_level(2, slo="FAIL"))
    sweep = SweepSummary(
        axis="concurrency", unit="users", levels=levels, ended="all stages ran", searched=True
    )
    for busy, words in ((0.996, " on a machine that was 100% busy"), (0.5, "")):
        run = replace(a_run(), health=(replace(health, machine_busy=busy),))
        summary = replace(summarise_run(collect_columns(spread(199)), run), sweep=sweep)
        text = " ".join(format_ending(summary, run, "reports/by-hand").split())
        assert f"From 199 answered requests in 198 s{words}, the sweep ended: all" in text
        assert text.count("busy") == bool(words)


def test_the_verdict_is_first_and_the_report_last() -> None:
    lines = said(*spread(199), slo=("ttft p50 < 3s",))
    assert lines[0] == "SLO PASS: With 2 users p50 of TTFT is 100 ms, within 3 s."
    assert (
        lines[1]
        == "From 199 answered requests in 198 s, TTFT p95 183ms to 200.1ms (95% interval), client verdict OK."
    )
    assert lines[3].split() == ["p50", "p95", "p99", "avg", "max"]
    assert [line.split("  ")[0] for line in lines[4:9]] == [
        "TTFT (ms)", "ITL (ms)", "Longest Stall (ms)", "Request Latency (ms)",
        "Output (tokens/s)",
    ]  # fmt: skip
    assert lines[-1].startswith("Report: reports/by-hand/report.html")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_worst_run_has_no_more_lines_and_no_wider_ones(width: int) -> None:
    run = replace(
        a_run(((0.0, 2),), slo=(*RULES, f'ttft{{name="{"n" * 300}"}} p50 < 1s'), request_rate=10.0,
              percentiles=tuple(map(float, range(1, 50)))),
        notes=tuple(f"WARNING: {HOSTILE} {i}" for i in range(9)), simulated=True, records_lost=3,
        offer=OpenLoopSchedule(due=1000, never_started=5, duration_s=100.0, most_users=7),
        client_live=ClientVerdict(DEGRADED),
    )  # fmt: skip
    others = [failed("http_status", status=500, error=HOSTILE), failed("reset")]
    lines = said(*spread(400, merged=((0, 0), (1, 0))), *others, run=run, width=width)
    first = next(i for i, line in enumerate(lines) if line.startswith("NOT DELIVERED: "))
    last = next(i for i, line in enumerate(lines) if i > first and not line.startswith("  "))
    # it is there without room, too, and so are the kinds of failures
    failures = [line for line in lines if line == "2 failed: 1 http_status, 1 reset"]
    assert len(lines) <= LINES + last - first + len(failures)
    assert failures or any(line.startswith("1 failed: ") for line in lines)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("INCOMPLETE: 3 requests of lost workers have no record")
    # in full where there is room
    assert any("Not delivered: offered 10/s" in line for line in lines[:3])
    assert " and notes: summary.md" in " ".join(map(str.strip, lines[-3:]))
    assert not any("\x1b" in line or "\u202e" in line for line in lines)


def test_a_client_verdict_has_its_causes_where_its_paragraph_has_no_room() -> None:
    """A narrow one. Half of the chunks came together with others."""
    records = spread(400, merged=((0, 0), (1, 0)))
    roomy = said(*records)
    assert any(line.startswith("CLIENT ") for line in roomy)
    assert not any("(merged chunks)" in line for line in roomy)
    full = said(*records, width=40, slo=("ttft p50 < 1ms", "ttft p95 < 1ms"))
    assert not any(line.startswith("CLIENT ") for line in full)
    text = " ".join(map(str.strip, full))
    assert re.search(r"client verdict (DEGRADED|INVALID) \(merged chunks\)", text)


def test_a_rule_that_passed_by_an_assumed_end_is_named() -> None:
    """Two of 40 requests lie beyond p95, and 20 are needed. With all beyond, p50 needs no such
    assumption."""
    text = " ".join(map(str.strip, said(*spread(40), slo=("ttft p95 < 5s", "ttft p50 < 5s"))))
    sentence = "For ttft p95 < 5s, an end of the 95% interval is an assumption."
    assert text.startswith("SLO PASS: ")
    assert sentence in text
    both = ("ttft p95 < 5s", "ttft p99 < 6s")
    text = " ".join(map(str.strip, said(*spread(40), slo=both)))
    assert "For ttft p95 < 5s and 1 more rule, an end" in text


def test_a_standstill_is_named_where_no_request_succeeded() -> None:
    health = ProcessHealth(
        worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, standstills=((UNIX, 3.0),)
    )
    lines = said(failed("cut"), failed("cut"), run=replace(a_run(), health=(health,)))
    assert lines[1].startswith("CLIENT DEGRADED: The load generator stood still for 3.0 s. ")
    assert any("client verdict DEGRADED" in line for line in lines)


@pytest.mark.parametrize("width", [40, 80])
def test_a_text_is_whole_or_left_out(width: int) -> None:
    """Of two notes one has room for its forty words."""
    notes = (
        f"WARNING: {' '.join(f'w{i}' for i in range(40))}.",
        "WARNING: short.",
        f"WARNING: {'too long ' * 200}.",
    )
    lines = said(*spread(199), run=replace(a_run(slo=("ttft p50 < 3s",)), notes=notes), width=width)
    text = " ".join(line.strip() for line in lines)
    assert len(lines) <= LINES
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert notes[0] in text
    assert notes[1] in text
    assert "too long" not in text
    assert "all tables and notes: summary.md" in text


def test_figures_stand_below_each_other() -> None:
    lines = said(*spread(30))
    at = {i for line in lines[4:8] for i, c in enumerate(line) if c == "."}
    assert len(at) == 5  # the decimal points of five columns
    assert "*" in lines[4]
    assert (
        lines.count(
            "* too few values for this percentile (p90 needs 10, p95 20, p99 100: 100 / (100 - p))"
        )
        == 1
    )
    assert not any("*" in line for line in said(*spread(199)))


def test_rules_with_one_reason_share_a_line() -> None:
    rules = (
        "ttft p50 < 1ms",
        "ttft p99 < 205ms",
        "ttft{input=5k} p50 < 1s",
        "itl{input=5k} p50 < 1s",
    )
    text = "\n".join(said(*spread(199), slo=rules))
    assert "  FAIL ttft p50 < 1ms: 95% interval" in text
    assert text.count("no request has input=5000") == 1
    assert "INCONCLUSIVE ttft{input=5000} p50 < 1s, itl{input=5000} p50 < 1s: " in text.replace(
        "\n  ", " "
    )


def test_cancelled_requests_are_named() -> None:
    """2 of 10 + 2."""
    given_up = [answered(100, 200, outcome="cancelled", closed_at=12.0)] * 2
    assert "2 of 12 requests were cancelled on purpose" in " ".join(said(*spread(10), *given_up))


def test_where_all_requests_are_cancelled_rules_have_their_lines_and_no_longer_run_is_advised() -> (
    None
):
    """40 requests are cancelled before their first token, 0.2 s after they were sent."""
    given_up = [
        answered(sent_at=10.0 + i, closed_at=10.2 + i, outcome="cancelled") for i in range(40)
    ]
    text = " ".join(" ".join(said(*given_up, slo=("ttft p95 < 1s",))).split())
    assert "None of 40 requests succeeded: 40 were cancelled on purpose" in text
    assert "INCONCLUSIVE ttft p95 < 1s: 95% interval at least" in text
    assert "a longer run does not help: every request was cancelled on purpose" in text
    assert "may decide" not in text
    assert "Exit status 4; use --inconclusive warn to end with 0." in text


def test_a_simulator_is_named_where_nothing_succeeded() -> None:
    run = replace(a_run(), simulated=True)
    assert any("SIMULATED" in line for line in said(failed("timeout"), run=run))


NEAR: Final = "ttft p50 < 105ms"
"""Of 199 requests whose median is 100 ms."""
FAR: Final = "itl{input=7} p50 < 1s"
"""Of no request."""


@pytest.mark.parametrize(
    ("rules", "settings", "expected"),
    [
        ((FAR,), {}, "1 rule is INCONCLUSIVE. Exit status 4; use --inconclusive warn to end with 0."),
        ((NEAR, FAR), {}, "2 rules are INCONCLUSIVE. Exit status 4; use"),
        ((NEAR,), {}, "contains the limit 105ms. Exit status 0; use --inconclusive fail to fail."),
        ((NEAR,), {}, "WARNING: 1 rule is INCONCLUSIVE: its 95% interval (8"),
        ((NEAR, "ttft p50 < 101ms"), {}, "WARNING: 2 rules are INCONCLUSIVE: their 95% intervals"),
        ((NEAR,), {"inconclusive": "fail"}, "1 rule is INCONCLUSIVE. Exit status 4; use"),
        ((FAR,), {"inconclusive": "warn"},
            "WARNING: 1 rule is INCONCLUSIVE (--inconclusive warn). Exit status 0."),
        ((FAR,), {"inconclusive": "pass"},
            " 1 rule is INCONCLUSIVE, and counts as passed (--inconclusive pass). Exit status 0."),
        ((NEAR,), {"slo_mode": "point"}, "(--slo-mode point)"),
    ],
)  # fmt: skip
def test_what_an_inconclusive_rule_does_is_one_plain_sentence(
    rules: tuple[str, ...], settings: dict[str, object], expected: str
) -> None:
    assert expected in " ".join(" ".join(said(*spread(199), slo=rules, **settings)).split())


@pytest.mark.parametrize("policy", INCONCLUSIVE_POLICIES)
@pytest.mark.parametrize("rule", [NEAR, FAR])
def test_the_exit_status_on_the_console_is_that_of_the_run(policy: str, rule: str) -> None:
    run = a_run(slo=(rule,), inconclusive=policy)
    summary = summarise_run(collect_columns(spread(199)), run)
    outcome = RunOutcome(
        has_rules=True,
        slo_status=summary.slo_status,
        close_to_limit=summary.close_to_limit,
        inconclusive=policy,
    )
    (shown,) = re.findall(r"Exit status (\d)", format_ending(summary, run, "reports/by-hand", 120))
    assert int(shown) == decide_exit_status(outcome)


@pytest.mark.parametrize("policy", INCONCLUSIVE_POLICIES)
@pytest.mark.parametrize("rule", [NEAR, FAR])
def test_only_the_end_of_a_run_has_its_exit_status(policy: str, rule: str, tmp_path: Path) -> None:
    """``report`` and ``import`` end with 0 and have no --inconclusive, and files are read later."""
    run = a_run(slo=(rule,), inconclusive=policy)
    summary = summarise_run(collect_columns(spread(199)), run)
    again = format_ending(summary, run, tmp_path, 120, ends_run=False)
    for text in (again, render_console(summary, run, tmp_path, 120)):
        assert "1 rule is INCONCLUSIVE" in text
        assert "Exit status" not in text
        assert "use --inconclusive" not in text


@pytest.mark.parametrize("words", [(), ("--json",), ("--verbose",)])
def test_a_remade_report_has_no_exit_status(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """199 requests with TTFT of 100 ms, and a rule of no request, are INCONCLUSIVE. ``report`` ends
    with 0, and the run that calls it with 4."""
    write_run(tmp_path, a_run(slo=(FAR,)))
    lines = (format_record_line(record) + b"\n" for record in spread(199))
    (tmp_path / "profile_export.jsonl").write_bytes(b"".join(lines))
    assert run_report_command([str(tmp_path), *words]) == 0
    assert "Exit status" not in capsys.readouterr().out
    assert "Exit status" not in (tmp_path / "summary.md").read_text()
    assert run_report_command([str(tmp_path), "--json", "--ends-run"]) == 0
    ending = msgspec.json.decode(capsys.readouterr().out, type=ReportResult)
    for text in (ending.text, ending.tables):
        assert "Exit status 4; use --inconclusive warn" in " ".join(text.split())


@pytest.mark.parametrize("settings", [{}, {"inconclusive": "warn"}, {"inconclusive": "pass"}])
def test_where_records_are_missing_the_status_is_of_that_and_of_no_inconclusive_rule(
    settings: dict[str, object],
) -> None:
    whole = a_run(slo=(NEAR,), **settings)
    for run, of_the_rule in ((whole, True), (replace(whole, records_lost=3), False)):
        text = "\n".join(said(*spread(199), run=run))
        assert ("Exit status" in text) == of_the_rule
        assert text.startswith("INCOMPLETE") != of_the_rule
    none = "\n".join(said(failed("reset"), run=whole))
    assert "Exit status" not in none


@pytest.mark.parametrize(("met", "with_status_0"), [(True, True), (False, False)])
def test_a_run_that_published_rules_fail_does_not_end_with_status_0(
    met: bool, with_status_0: bool
) -> None:
    run = a_run(slo=(FAR,), inconclusive="pass", published_rules="fail")
    found = Validity(
        rules="a draft",
        curve=False,
        checks=(PublishedCheck(rule="duration", met=met, text="300 s"),),
    )
    summary = replace(summarise_run(collect_columns(spread(199)), run), validity=found)
    assert ("Exit status 0" in format_ending(summary, run, "reports/by-hand", 120)) == with_status_0


def test_a_client_verdict_that_changed_is_said() -> None:
    run = replace(
        a_run(), client_live=ClientVerdict(DEGRADED, ("late",), signals={"merged chunks": DEGRADED})
    )
    assert any(
        line.startswith(
            "The client verdict changed: DEGRADED in the last progress line (merged chunks), OK of "
            "the whole run."
        )
        for line in said(*spread(9), run=run)
    )
    assert not any(
        "changed" in line
        for line in said(*spread(9), run=replace(run, client_live=ClientVerdict("OK")))
    )
    two = {"late sends": DEGRADED, "late permits": DEGRADED}
    lines = said(
        *spread(9), run=replace(run, client_live=ClientVerdict(DEGRADED, ("late",), signals=two))
    )
    found = " ".join(" ".join(lines).split())
    assert "(late permits, late sends), OK of the whole run." in found


def test_each_failed_rule_is_named_however_many_lines_there_are() -> None:
    """Twelve rules fail, each for its own reason or value, beside one that is open: the console has
    no room for them in 25 lines, and names all twelve."""
    rules = tuple(f"ttft p{95 + number / 100:g} < {number + 1}ms" for number in range(12))
    run = a_run(slo=rules)
    summary = summarise_run(collect_columns(spread(199)), run)
    slos = tuple(
        replace(slo, status="FAIL", reason=f"reason {number} " + "long " * 30)
        for number, slo in enumerate(summary.slos)
    )
    text = format_ending(replace(summary, slos=slos), run, "reports/by-hand", 120)
    assert [rule for rule in rules if f"  FAIL {rule}: " not in text] == []


def test_fewer_cancellations_than_asked_are_explained() -> None:
    """One of 30 is cancelled where 30 % were asked for. The standard deviation of 9 is 2.5, so four
    of 30 are chance."""
    run = a_run(request_cancellation_rate=30.0, request_cancellation_delay=0.6)
    ok = [answered(5, 10, sent_at=10.0 + i) for i in range(29)]
    why = "1 of 30 requests was cancelled on purpose (30% were requested, and responses that end within"
    assert why in " ".join(" ".join(said(*ok, failed("cancelled"), run=run)).split())
    as_asked = said(*ok[:26], *[failed("cancelled")] * 4, run=run)
    assert "were requested" not in " ".join(" ".join(as_asked).split())


def test_code_that_blocks_is_looked_for_where_there_is_a_locustfile() -> None:
    for locustfile, expected in (("", False), ("run.py", False), ("mine.py", True)):
        run = a_run(locustfile=locustfile)
        summary = replace(
            summarise_run(collect_columns(spread(9)), run),
            client=ClientVerdict(DEGRADED, ("late",), IDLE_ADVICE),
        )
        text = " ".join(
            line.strip() for line in format_ending(summary, run, "reports/a").splitlines()
        )
        assert "do not help: stop other programs on its machine." in text
        assert ("Also look for blocking code in the locustfile." in text) == expected


def test_failures_on_the_console_add_up_to_all_of_them() -> None:
    """Five of the first kind, four of the second, and of the others two and one: twelve."""
    kinds = [("refused", 5), ("reset", 4), ("closed", 2), ("empty", 1)]
    records = [failed(outcome, error=outcome) for outcome, count in kinds for _ in range(count)]
    lines = said(*spread(9), *records)
    assert [line for line in lines if " failed: " in line or "more failed" in line] == [
        "5 failed: refused, refused", "4 failed: reset, reset",
        "3 more failed, with other messages: 2 closed, 1 empty",
    ]  # fmt: skip
    assert any("12 failed" in line for line in lines)


def test_failures_of_several_names_are_one_kind_on_the_console() -> None:
    """Of three names 39, 7 and 2 fail alike, but for the number in the message. One of chat is
    empty."""
    counts = {"chat": 39, "rag": 7, "code": 2}
    records = [
        failed("closed", status=200, error=f"closed after {count} bytes", name=name)
        for name, count in counts.items()
        for _ in range(count)
    ]
    lines = said(*spread(9), *records, failed("empty", error="empty", name="chat"))
    assert [line for line in lines if " failed: " in line or "more failed" in line] == [
        "48 failed: closed (HTTP 200), closed after 39 bytes", "1 failed: empty, empty",
    ]  # fmt: skip


def test_failures_of_several_names_have_the_sums_of_the_arms() -> None:
    """4 and 1 of the base, 2 of the candidate."""

    def group(name: str, **arms: int) -> FailureGroup:
        return FailureGroup(
            outcome="reset", name=name, status=None, count=sum(arms.values()), message="", arms=arms
        )

    summary = summarise_run(collect_columns([*spread(9), failed()]), a_run())
    groups = group("chat", base=4, candidate=2), group("rag", base=1)
    lines = format_ending(replace(summary, failures=groups), a_run(), "reports/a").splitlines()
    assert "7 failed (5 at the base, 2 at the candidate): reset" in lines


def test_no_kind_of_failure_falls_off_a_full_console() -> None:
    """45 refused and 6 closed, and then four more kinds with seven requests. A server's error may
    take lines of its own."""
    counts = [("refused", 45), ("closed", 6), ("empty", 3), ("reset", 2), ("timeout", 1),
              ("truncated", 1)]  # fmt: skip
    records = [
        failed(outcome, error=f"{outcome}: {'words ' * 60}")
        for outcome, count in counts
        for _ in range(count)
    ]
    rules = tuple(f"ttft p{p} < 1ms" for p in range(50, 60))
    run = replace(a_run(slo=rules), notes=tuple(f"WARNING: {i}" for i in range(20)))
    lines = said(*spread(30), *records, run=run)
    assert [line[:20] for line in lines if "failed: " in line][:2] == [
        "45 failed: refused, ", "6 failed: closed, cl",
    ]  # fmt: skip
    others = "3 empty, 2 reset, 1 timeout and 1 other kind, 1 request"
    assert f"7 more failed, with other messages: {others}" in lines
    narrow = said(*spread(30), *records, run=run, width=60)
    assert "58 failed: 45 refused, 6 closed, 3 empty and 3 other kinds," in narrow
    assert narrow[
        narrow.index("58 failed: 45 refused, 6 closed, 3 empty and 3 other kinds,") + 1
    ] == ("  4 requests")


def test_nothing_but_failures_are_told_with_their_reason() -> None:
    """Once, with what to do about it, and nothing about figures that are not there."""
    note = (
        "WARNING: each of the first 10 requests failed: 10 x http_status: HTTP 404: no path "
        "(check --endpoint)"
    )
    run = replace(a_run(slo=("ttft p95 < 1s",)), notes=(note,), client_live=ClientVerdict("OK"))
    records = [failed("http_status", status=404, error="HTTP 404: no path")] * 12
    summary = replace(
        summarise_run(collect_columns(records), run), client=ClientVerdict(DEGRADED, ("late",))
    )
    lines = format_ending(summary, run, "reports/a").splitlines()
    assert (
        lines[0] == "SLO FAIL: None of 12 requests succeeded: HTTP 404: no path (check --endpoint)."
    )
    assert lines[1:] == [
        "  FAIL ttft p95 < 1s: p95 lands on one of 12 failed requests",
        "From 12 requests without an answer in 1 s, 12 failed, client verdict DEGRADED.",
        "",
        "Report: reports/a/report.html; all tables and notes: summary.md in the same folder, or "
        "--verbose",
    ]
    page = [
        one
        for one in make_remarks(summary, run)
        if "404" in one or "DEGRADED" in one or "succeeded" in one
    ]
    assert page == []
    text = render_console(summary, run)
    assert NOTHING in text
    assert "(ms)" not in text  # no table of dashes


def test_what_all_first_requests_failed_of_is_said_once() -> None:
    note = "WARNING: each of the first 10 requests failed: 10 x reset: by the peer"
    records = [*(failed("reset", error="by the peer") for _ in range(12)), answered(5)]
    lines = said(*records, run=replace(a_run(), notes=(note,)))
    assert [line for line in lines if "reset: by the peer" in line] == [note]
    assert not any("12 failed: reset" in line for line in lines)


def test_what_was_lost_is_said_once_in_the_first_line() -> None:
    note = (
        "WARNING: worker w2 was lost (last heard 7.3 s after the start): 3 requests that it had sent have no "
        "record"
    )
    run = replace(
        a_run(),
        records_lost=3,
        gaps=("all workers were lost 9.8 s after the start: the run ended early",),
        notes=(note,),
    )
    text = " ".join(said(*spread(199), run=run, width=120))
    assert text.startswith(
        "INCOMPLETE: all workers were lost 9.8 s after the start: the run ended early; 3 requests "
        "of lost workers have no "
    )
    assert (text.count("no record"), text.count("INCOMPLETE"), "w2" in text) == (1, 1, False)


def test_a_run_that_was_stopped_says_so() -> None:
    lines = said(*spread(199), run=replace(a_run(), stopped_early="after 6.9 of 60 s"), width=120)
    assert "STOPPED EARLY: the run was stopped after 6.9 of 60 s." in lines
    run = replace(
        a_run(), stopped_early="after 6.9 of 60 s", stopping_at=UNIX + 6.9, cut_at=UNIX + 8.9
    )
    text = " ".join(said(*spread(199), failed("cut"), run=run, width=120))
    assert (
        "stopped after 6.9 of 60 s, and 2 s later a second signal (Ctrl-C) ended the open requests."
        in text
    )


def test_several_names_have_a_row_each() -> None:
    chat = [answered(50, 60, sent_at=10.0 + i) for i in range(6)]
    rag = [answered(900, 910, sent_at=10.0 + i, name="rag") for i in range(3)]
    lines = said(*chat, *rag, run=a_run(), width=120)
    begin = next(i for i, text in enumerate(lines) if text.startswith("name "))
    assert lines[begin].split() == [
        "name",
        "ok",
        "failed",
        "TTFT",
        "p50",
        "(ms)",
        "p95",
        "ITL",
        "p50",
        "(ms)",
        "p95",
    ]
    assert lines[begin + 1].split()[:5] == ["chat", "6", "0", "50.00", "50.00*"]
    assert lines[begin + 2].split()[:5] == ["rag", "3", "0", "900.0", "900.0*"]


def test_a_metric_that_no_row_has_is_no_column() -> None:
    """Answers of one chunk have no ITL."""
    records = [
        answered(50, sent_at=10.0 + i, name=name) for i in range(6) for name in ("chat", "rag")
    ]
    lines = said(*records, run=a_run(), width=120)
    begin = next(i for i, text in enumerate(lines) if text.startswith("name "))
    assert lines[begin].split() == ["name", "ok", "failed", "TTFT", "p50", "(ms)", "p95"]
    assert lines[begin + 1].split() == ["chat", "6", "0", "50.00", "50.00*"]


def test_what_voids_the_figures_has_room_before_the_rows_of_names() -> None:
    """Six names, and a line about the load generator that is long."""
    records = [
        answered(50, 60, sent_at=10.0 + i, name=f"name {i % 6}", merged=((0, 0), (1, 0)))
        for i in range(60)
    ]
    notes = tuple(f"WARNING: {'words ' * 60}{i}" for i in range(4))
    for width in (80, 120):
        lines = said(*records, run=replace(a_run(), notes=notes), width=width)
        assert len(lines) <= LINES
        assert any(line.startswith("CLIENT INVALID") for line in lines)
    assert any(line.startswith("name ") for line in lines)


def test_a_run_whose_records_were_all_lost_has_no_figures_of_nothing() -> None:
    gap = "all workers were lost 4.8 s after the start: the run ended early"
    text = " ".join(
        " ".join(said(run=replace(a_run(), records_lost=6, gaps=(gap,)), width=120)).split()
    )
    assert text.startswith(
        f"INCOMPLETE: {gap}; 6 requests of lost workers have no record, so counts and rates may "
        f"be too low."
    )
    assert "No request has a record." in text
    assert "From 0 answered" not in text
    assert "No request was sent" not in text


@pytest.mark.parametrize(
    ("value", "ends", "written"),
    [
        (500.0, (417.0, 1140.0), "420ms to 1,140ms"),
        # 420 to 1,140 would not have the value in it
        (416.97, (416.9, 1140.0), "416.9ms to 1,140ms"),
        (418.0, (417.0, 1140.0), "417ms to 1,140ms"),
        (25.2, (25.2, 25.2), "25.2ms to 25.2ms"),
    ],
)
def test_the_ends_of_an_interval_are_written_around_its_value(
    value: float, ends: tuple[float, float], written: str
) -> None:
    assert format_interval_around(value, ends) == written


@pytest.mark.parametrize(
    "looks", [{}, {"run_time_s": 60.0}, {"until_decided_s": 600.0, "run_time_s": 60.0}]
)
def test_one_figure_has_one_interval_on_the_console_and_in_its_rule(
    looks: dict[str, object],
) -> None:
    """Though the stamps may be off by half a millisecond."""
    off = ErrorBounds(
        count=1000, p50_ms=0.5, p95_ms=0.5, p99_ms=0.5, max_ms=0.5, within={0.01: 0.5}
    )
    certificate = MeasurementAccuracy(streams=100, chunks=1000, ttft=off, gap=off)
    health = ProcessHealth(
        worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, certificate=certificate
    )
    run = replace(a_run(slo=("ttft p95 < 3s",), **looks), health=(health,))
    summary = summarise_run(collect_columns(spread(199)), run)
    row = next(row for row in summary.rows if row.tag == "time_to_first_token")
    (rule,) = summary.slos
    assert min(row.plus_minus[95.0]) >= 0.5
    assert row.intervals[95.0] == pytest.approx((rule.low * 1e3, rule.high * 1e3))
    text = format_ending(summary, run, "reports/by-hand")
    assert f"TTFT p95 {format_interval(rule)} (95% interval)" in text
    # after 60, 90, 135, 202, 303, 455 and 600 s
    wider = "95% intervals are wider than without --until-decided, which judges up to 7 times"
    assert (wider in " ".join(text.split())) == ("until_decided_s" in looks)
    assert ("wider than" in text) == ("until_decided_s" in looks)
    assert "\N{PLUS-MINUS SIGN}" not in text


@pytest.mark.parametrize("slo", [(), ("ttft_from_due p95 < 500ms",), ("ttft_from_due p95 < 50ms",)])
def test_no_second_interval_leaves_out_the_arrivals_that_were_never_sent(
    slo: tuple[str, ...],
) -> None:
    """Of 398 arrivals 199 were answered, and their p95 has an interval of 183 to 200 ms. The rule
    counts the 199 others, too: at least 171 ms."""
    for due, shown in ((199, True), (398, False)):
        offer = OpenLoopSchedule(due=due, never_started=0, duration_s=198.0, most_users=2)
        asked = a_run(slo=slo, request_rate=due / 198)
        run = replace(asked, offer=offer, turned_away=due - 199)
        text = " ".join(said(*spread(199), run=run))
        assert ("TTFT from due p95 183ms to 200.1ms (95% interval)" in text) == shown


def test_no_second_interval_leaves_out_the_failures_of_a_rule() -> None:
    """7 of 206 requests failed: the upper end of p95 is a failure."""
    records = [*spread(199), *(failed(sent_at=11.0 + i) for i in range(7))]
    text = " ".join(said(*records, slo=("ttft p95 < 250ms",)))
    assert "95% interval 177ms to fail" in text
    assert "(95% interval)" not in text


def test_a_figure_that_may_be_off_has_a_mark_in_each_table() -> None:
    """Two chunks were read together at 140 ms: the first may have come at 80."""
    merged = [
        answered(140, 140, 160, sent_at=10.0 + i, merged=((0, 60_000), (1, 60_000)))
        for i in range(199)
    ]
    run = a_run()
    summary = summarise_run(collect_columns(merged), run)
    inexact = {error.label for error in summary.figure_errors if error.level != OK}
    assert inexact, summary.figure_errors
    console = said(*merged)
    tables = render_console(summary, run, "", 120)
    for row in summary.rows:
        for percentile in (50.0, 95.0, 99.0):
            # without a schedule it is the same
            name = "Time to First Token" if row.label == "TTFT from Due" else row.label
            label = f"{name} p{percentile:g}"
            marked = format_percentile(row, percentile).startswith(INEXACT)
            assert marked == (label in inexact), label
    assert any(f"  {INEXACT}" in line for line in console)
    assert INEXACT_NOTE in console
    assert INEXACT_NOTE in tables


def test_a_percentile_of_too_few_values_has_both_marks() -> None:
    """The client verdict does not count it, but it is as inexact as the others."""
    merged = [
        answered(140, 140, 160, sent_at=10.0 + i, merged=((0, 60_000), (1, 60_000)))
        for i in range(50)
    ]
    row = next(line for line in said(*merged) if line.startswith("TTFT (ms)"))
    p50, p95, p99, *_ = row.split()[2:]
    assert (p50[:1], p95[:1]) == (INEXACT, INEXACT)
    assert (p99[:1], p99[-1:]) == (INEXACT, "*")


def test_exact_figures_have_no_mark() -> None:
    text = "\n".join(said(*spread(199)))
    assert INEXACT not in text


def test_a_run_without_an_answer_has_its_verdicts_and_no_empty_conditions() -> None:
    health = ProcessHealth(worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0)
    run = replace(a_run(slo=("output_tokens_per_s >= 5",)), simulated=True, health=(health,))
    records = [failed("reset", sent_at=10.0 + i) for i in range(30)]
    lines = said(*records, run=run)
    assert lines[0].startswith("SLO FAIL: None of 30 requests succeeded")
    assert any(line.startswith("SIMULATED") for line in lines)
    assert "From 30 requests without an answer in 30 s, 30 failed, client verdict OK." in lines
    tables = render_console(summarise_run(collect_columns(records), run), run, "", 120)
    assert "merged" not in tables
    assert "- stamps" not in tables


def test_rules_without_room_are_named_as_left_out() -> None:
    """Two lines each, of which three have no room for more than one rule and the last line."""
    rules = ["  FAIL a: " + "x " * 20] * 2
    assert _fitting_rules(rules, 40, 4) == [line for rule in rules for line in _wrapped(rule, 40)]
    assert _fitting_rules(rules, 40, 3) == [*_wrapped(rules[0], 40), MORE_RULES]
    assert _fitting_rules(rules, 40, 0) == []


def test_the_first_rule_keeps_its_place_before_the_shorter_line_on_all_rules() -> None:
    rule = "  INCONCLUSIVE a: " + "x " * 20
    assert _fitting_rules([rule, "1 rule is INCONCLUSIVE"], 40, 2) == _wrapped(rule, 40)
    assert _fitting_rules([rule, "1 rule is INCONCLUSIVE", "  PASS b"], 40, 3) == [
        *_wrapped(rule, 40),
        MORE_RULES,
    ]


@pytest.mark.parametrize(
    ("sources", "unit"),
    [
        (("usage", "usage"), "tokens/s"),
        (("chunks", "chunks"), "chunks/s"),
        (("usage", "chunks"), "tokens/s, in part chunks"),
    ],
)
def test_a_rate_of_chunks_is_called_one(sources: tuple[str, str], unit: str) -> None:
    """Three chunks each, whose tokens the server counted or not."""
    records = [
        answered(10, 20, 30, sent_at=10.0 + i, tokens_from=source)
        for i, source in enumerate(sources * 10)
    ]
    lines = said(*records)
    assert f" output {unit}." in lines[0]
    (row,) = [line for line in lines if line.startswith("Output (")]
    assert row.startswith(f"Output ({unit}) ")


def test_a_mean_that_passes_without_the_failures_says_so_on_the_console() -> None:
    """Half of the requests failed: 100 ms is the mean of the others alone."""
    records = [answered(100.0, 120.0, sent_at=10.0 + i) for i in range(60)]
    records += [failed(sent_at=10.5 + i) for i in range(60)]
    lines = said(*records, slo=("ttft avg < 1s", "ttft p95 < 1s"), width=200)
    assert (
        "  PASS ttft avg < 1s: 95% interval 100ms to 100ms; 60 failures are in no average: a rule on "
        "error_rate counts them"
    ) in lines
    (first, *_) = said(*records, slo=("ttft avg < 1s",), width=200)
    assert first.startswith(
        "SLO PASS: With 2 users mean TTFT (without the failures) is 100 ms, within 1 s; 60 of 120 "
    )
    # where none failed, nothing is told of a rule that passes
    assert not any("PASS ttft" in line for line in said(*records[:60], slo=("ttft avg < 1s",))[1:])
