"""What a reader sees of a sweep and of repeats."""

import re

import pytest
from msgspec.structs import replace
from support.records import a_run, answered
from support.stages import a_level, a_stage

from locust_llm.records.run_facts import Run
from locust_llm.report.console_summary import format_ending
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.text_report import render_console, render_markdown
from locust_llm.report.sections.conditions_table import make_conditions_rows
from locust_llm.report.sections.headline import make_headline
from locust_llm.report.sections.sweep.knee import (
    describe_client_verdicts,
    find_knees,
    select_top_knees,
)
from locust_llm.report.sections.sweep.sweep_chart import plot_stages
from locust_llm.report.sections.sweep.sweep_findings import describe_sweep_findings
from locust_llm.report.sections.sweep.sweep_text import format_stage_status, make_sweep_warnings
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Knee, LoadLevel, Row, SweepSummary
from locust_llm.settings.sweep_option import AXES
from locust_llm.slo.load_generator_health import ClientVerdict
from locust_llm.slo.rules import SloResult


def a_sweep(axis: str, *levels: LoadLevel, **other: object) -> SweepSummary:
    found = find_knees(axis, levels)
    fields: dict[str, object] = {
        "axis": axis, "unit": AXES.get(axis, ""), "levels": levels, "ended": "all stages ran",
        "knees": found,
        "findings": tuple(describe_sweep_findings(axis, levels, found, a_run().settings)),
    }  # fmt: skip
    return SweepSummary(**{**fields, **other})  # type: ignore[arg-type]


def shown(sweep: SweepSummary, run: Run | None = None) -> str:
    asked = {"repeats": 2} if sweep.repeats else {"sweep": f"{sweep.axis}=1,2,4", "users": None}
    run = run or a_run(**asked)
    return render_console(
        summarise_run(collect_columns([answered(200, 220, simulated=True)]), run, sweep=sweep),
        run,
        "reports/by-hand",
    )


def cells(text: str, label: str) -> list[list[str]]:
    """Of each line that begins with this label."""
    return [
        re.split(r"\s{2,}", line.strip())
        for line in text.splitlines()
        if line.startswith(f"{label} ")
    ]


def rows(latency_ms: float, wait_ms: float = 0.0) -> dict[str, Row]:
    def row(ms: float, **other: object) -> Row:
        said = {"percentiles": {50.0: ms, 95.0: ms + 0.5, 99.0: ms + 1}, **other}
        return Row(label="", tag="", unit="ms", count=100, max=ms, **said)  # type: ignore[arg-type]

    return {
        "time_to_first_token": row(latency_ms / 10), "inter_token_latency": row(latency_ms / 100),
        "request_latency": row(latency_ms, avg=latency_ms),
        "prefill_gate_wait": row(wait_ms, percentiles={50.0: wait_ms, 99.0: wait_ms}),
        "time_to_first_token_from_due": row(latency_ms / 10 + wait_ms),
        "output_token_throughput_per_user": row(50.0),
    }  # fmt: skip


def test_throughput_that_is_flat_at_capacity_has_no_peak_anywhere() -> None:
    """A closed M/M/4 queue with a think time of four services: the fit alone would have a peak at
    43."""
    rates = (0.2, 0.4, 0.8, 1.597, 3.054, 3.998, 4.0)
    levels = [a_level(2.0**i, x, requests_per_s_error=0.0) for i, x in enumerate(rates)]
    sweep = a_sweep("concurrency", *levels)
    text = " ".join(shown(sweep).split())
    assert "USL: none." in text
    assert "throughput levels off at 4/s, no peak within the measured range" in text
    assert not [
        mark.text for plot in plot_stages(sweep, {}) for mark in plot.marks if "USL" in mark.text
    ]


def test_with_rules_the_headline_is_about_them_even_if_another_knee_was_found() -> None:
    sweep = SweepSummary(
        axis="concurrency", unit="users", ended="",
        levels=(a_level(1, 1.0, slo_status="INCONCLUSIVE"),),
        knees=(Knee(rule="SLO", value=None, text="Undecided."),
            Knee(rule="asymptotic", value=2.8, text="2.8.")),
    )  # fmt: skip
    assert [knee.rule for knee in select_top_knees(sweep)] == ["SLO", "asymptotic"]
    without = replace(sweep, levels=(a_level(1, 1.0),))
    assert [knee.rule for knee in select_top_knees(without)] == ["asymptotic", "SLO"]


def test_a_table_of_stages_then_knees_then_what_follows() -> None:
    levels = [
        a_level(
            n,
            x,
            latencies=rows(1000 * n / x),
            slo="PASS" if n < 4 else "FAIL",
            output_tokens_per_s=60 * x,
            in_flight=n,
        )
        for n, x in ((1, 1.0), (2, 2.0), (4, 2.0))
    ]
    text = shown(a_sweep("concurrency", *levels))
    first, second = cells(text, "2")
    assert first == [
        "2",
        "100",
        "0.0%",
        "100.0",
        "100.5",
        "101.0",
        "10.00",
        "10.50",
        "11.00",
        "1000",
        "1001",
    ]
    assert second == ["2", "120.0", "50.00", "2.00", "2.00", "PASS", "stationary"]
    assert cells(text, "load") == [
        ["load", "closed loop, a sweep of concurrency: 1, 2, 4 users, 1 process"]
    ]
    order = ["Stages by concurrency", "the sweep ended: all stages ran", "Knees",
             "SLO: concurrency 2. Within the SLO up to concurrency 2",
             "asymptotic: concurrency 2. Below 2",
             "USL: none.", "Findings", "Limits for a gateway", "Notes", "Conditions"]  # fmt: skip
    places = [" ".join(text.split()).index(said) for said in order]
    assert places == sorted(places)


def test_what_all_loads_have_together_is_not_shown() -> None:
    sweep = shown(a_sweep("concurrency", a_level(1), a_level(2)))
    for heading in ("Metrics\n", "By ", "awaiting"):
        assert f"\n{heading}" not in sweep
    repeats = shown(a_sweep("repeat", a_level(1), a_level(2), spread=()))
    assert "\nMetrics\n" in repeats
    assert cells(repeats, "load") == [["load", "closed loop, 2 users, 2 repeats, 1 process"]]
    assert repeats.index("\nMetrics\n") < repeats.index("\nRepeats\n")


def test_a_repeat_with_a_worse_client_verdict_than_all_together_is_named() -> None:
    bad = a_level(2, client="INVALID", client_reasons=("read lag p99 300 ms",))
    named = (
        "CLIENT: at repeat 2 the client verdict is INVALID (read lag p99 300 ms). Of all "
        "repeats together it is OK."
    )
    assert named in " ".join(shown(a_sweep("repeat", a_level(1), bad, spread=())).split())
    assert "CLIENT" not in shown(a_sweep("repeat", a_level(1), a_level(2), spread=()))
    assert not list(make_sweep_warnings(a_sweep("repeat", a_level(1), bad, spread=()), "INVALID"))


def test_a_load_that_was_visited_again_is_explained_once() -> None:
    """A search was at 4 users three times; of its reasons the worst verdict's stands there."""
    visits = [
        a_level(4, number=1, client="DEGRADED", client_reasons=("read lag p99 20 ms",)),
        a_level(2, number=2),
        a_level(4, number=3, client="INVALID", client_reasons=("read lag p99 300 ms",)),
        a_level(4, number=4, client="INVALID", client_reasons=("read lag p99 200 ms",)),
    ]
    (line,) = [
        block.text
        for block in make_sweep_warnings(a_sweep("concurrency", *visits), "OK")
        if "distorted" in block.text
    ]
    assert line.count("the client verdict is") == 1
    assert line.endswith(
        "at concurrency 4 the client verdict is INVALID (read lag p99 300 ms), in 2 visits."
    )


def test_columns_that_would_say_nothing_are_left_out() -> None:
    def heads(*levels: LoadLevel, axis: str = "concurrency") -> str:
        text = shown(a_sweep(axis, *levels))
        return " ".join(
            line for line in text.splitlines() if line.startswith(("users", "limit", "rate/s"))
        )

    plain = heads(a_level(1, latencies=rows(5)))
    assert not re.search("good|SLO|client|wait|from due", plain)
    assert "wait p50" in heads(a_level(1, latencies=rows(5, wait_ms=2)), axis="prefill-concurrency")
    assert "from due p50" in heads(a_level(1, latencies=rows(5)), axis="request-rate")
    assert "client" in heads(a_level(1, client="DEGRADED"))
    good = {"attainment": 0.5, "goodput_per_s": 2.0, "goodput_low": 1.0, "goodput_high": 3.0}
    assert "goodput" in heads(a_level(1, **good))
    assert "95% interval" in heads(a_level(1, **good), axis="prefill-concurrency")


def test_stages_that_found_nothing_stand_above_everything() -> None:
    burnt = a_level(2, client="INVALID", client_reasons=("read lag p99 60 ms",))
    text = shown(
        a_sweep(
            "concurrency", a_level(1), burnt, missing=("stage 3 (concurrency 4) is left out: no.",)
        )
    )
    above = text[: text.index("Stages by")]
    assert "WARNING: stage 3 (concurrency 4) is left out: no." in above
    assert (
        "CLIENT: the load generator distorted 1 of 2 stages. Only SLOs that its error cannot"
        in above
    )
    assert "read lag p99 60 ms" in above
    assert cells(text, "2")[1][-2:] == ["INVALID", "stationary"]


def test_stages_that_were_not_stationary_are_named() -> None:
    text = shown(
        a_sweep(
            "concurrency",
            a_level(1),
            a_level(2, residual=0.06, why="time"),
            a_level(4, residual=None),
        )
    )
    assert " by 5% or more): concurrency 2." in " ".join(text.split())


def test_the_spread_of_repeats() -> None:
    spread = (
        Row(
            label="TTFT p50", tag="", unit="ms", count=3, avg=200.0, std=10.0, min=190.0, max=210.0
        ),
    )
    text = shown(a_sweep("repeat", a_level(1), a_level(2), spread=spread))
    assert cells(text, "TTFT p50") == [
        ["TTFT p50 (ms)", "200.00", "10.00", "5.0%", "190.00", "210.00", "3"]
    ]
    assert "Knees" not in text


def test_what_a_stage_was_stands_in_its_conditions() -> None:
    run = a_stage(a_run(sweep="concurrency=1,2"), 2, 2.0, "concurrency")
    text = render_console(
        summarise_run(collect_columns([answered(200, phase="warmup"), answered(200, 220)]), run),
        run,
    )
    # both end in it, and were in flight in it alone: 0.02 in flight are 2 in 20 s x 0.2 s, whatever
    # the controller saw
    assert (
        "2, measured for 20.00 s without its first and last wave; off Little's law by 0.0%; ended: "
        "stat" in text
    )
    assert cells(text, "duration") == [["duration", "20.00 s, during the load"]]
    assert "First and last wave (1 request, not in the latencies above)" in text


@pytest.mark.parametrize("axis", [*AXES, "repeat"])
def test_fits_120_columns(axis: str) -> None:
    good = {
        "attainment": 1.0,
        "goodput_per_s": 12345.0,
        "goodput_low": 12345.0,
        "goodput_high": 12345.0,
    }
    wide = [
        a_level(
            value, 12345.6, latencies=rows(1_234_567.0, wait_ms=12_345.0), slo="INCONCLUSIVE",
            client="DEGRADED",
            why="stationary", output_tokens_per_s=123_456.0, in_flight=1234.5, failure_rate=1.0,
            **good,
        )
        for value in (1, 131_072)
    ]  # fmt: skip
    spread = (
        Row(
            label="Output Token Throughput",
            tag="",
            unit="tokens/s",
            count=3,
            avg=1e5,
            std=1e5,
            min=1e5,
            max=1e5,
        ),
    )
    assert max(map(len, shown(a_sweep(axis, *wide, spread=spread)).splitlines())) <= 120


def test_markdown_says_the_same() -> None:
    sweep = a_sweep("concurrency", a_level(1, slo="PASS"), a_level(2, slo="FAIL"))
    run = replace(a_run(sweep="concurrency=1,2"), name="by-hand")
    summary = summarise_run(collect_columns([]), run, sweep=sweep)
    text = render_markdown(summary, run)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        assert heading.replace("\\", "") in render_console(summary, run)
    assert "stages/&lt;number" in text


def test_a_stage_whose_rule_the_load_generator_may_have_turned_is_not_called_ok() -> None:
    """Its client verdict is OK: an error of 3 ms is small, and reaches the limit all the same."""
    rule = SloResult(rule="ttft p50 < 106ms", status="INCONCLUSIVE", voided=True)
    (line,) = make_sweep_warnings(a_sweep("concurrency", a_level(4, slos=(rule,))), None)
    assert (
        "at concurrency 4 the error of the load generator reaches the limit of ttft p50 < 106ms"
        in line.text
    )
    assert "verdict is OK" not in line.text


def test_a_stage_with_some_figures_off_is_named_above_the_tables() -> None:
    why = "merged chunks: Inter Token Latency avg 264 ms may be off by up to 6.08 ms"
    degraded = a_level(20, client="DEGRADED", client_reasons=(why,), uncertain=("itl",))
    (line,) = make_sweep_warnings(a_sweep("request-rate", a_level(2), degraded), "DEGRADED")
    assert line.text == (
        "CLIENT: some metrics of 1 of 2 stages may be inaccurate, but no SLO result is affected: "
        f"at request-rate 20 the client verdict is DEGRADED ({why})."
    )
    dead = a_level(20, client="DEGRADED", succeeded=0)
    assert not list(make_sweep_warnings(a_sweep("request-rate", a_level(2), dead), "DEGRADED"))


def test_headline_and_client_line_name_the_same_stages() -> None:
    """In the second stage the server died: its 4 answers have a client verdict all the same."""
    whole = a_level(1, client="DEGRADED", client_reasons=("merged chunks",), uncertain=("itl",))
    sweep = a_sweep("concurrency", whole, replace(whole, value=2, died=True), a_level(4))
    assert describe_client_verdicts(sweep) == "DEGRADED at concurrency 1 and 2 (merged chunks)"
    *_, line = (block.text for block in make_sweep_warnings(sweep, "DEGRADED"))
    assert line.startswith("CLIENT: some metrics of 2 of 3 stages may be inaccurate, but no SLO")
    for value in (1, 2):
        assert f"at concurrency {value} the client verdict is DEGRADED" in line


def test_the_client_verdict_of_a_sweep_is_the_worst_of_its_stages() -> None:
    """As history, CI and others read it. A stage without an answer has none."""
    stages = (
        a_level(1, client="OK"),
        a_level(2, client="DEGRADED", client_reasons=("late",)),
        a_level(16, client="INVALID", succeeded=0),
    )
    run = a_run(sweep="concurrency=1,2,16", users=None)
    summary = summarise_run(collect_columns([]), run, sweep=a_sweep("concurrency", *stages))
    assert summary.client == ClientVerdict("DEGRADED", ("late",))
    assert summary.conditions.client_verdict == "DEGRADED"


def test_headline_and_conditions_name_the_client_verdicts_of_the_stages() -> None:
    """A stage without an answer has none."""
    stages = (
        a_level(1, client="OK"),
        a_level(2, client="DEGRADED", client_reasons=("merged chunks: TTFT p99 3 ms may be off",)),
        a_level(4, client="INVALID", client_reasons=("2 of 2 cores", "late sends: TTFT p50 3 ms")),
        a_level(8, client="DEGRADED", client_reasons=("merged chunks: ITL p99 4 ms may be off",)),
        a_level(16, client="INVALID", succeeded=0),
    )
    verdicts = (
        "INVALID at concurrency 4 (late sends), DEGRADED at concurrency 2 and 8 (merged chunks)"
    )
    text = shown(a_sweep("concurrency", *stages))
    assert f"; the client verdict is {verdicts}." in " ".join(text.split())
    assert cells(text, "client verdict") == [["client verdict", verdicts]]
    fine = shown(a_sweep("concurrency", a_level(1), a_level(2, client="OK")))
    assert "the client verdict is" not in fine
    assert cells(fine, "client verdict") == [["client verdict", "OK in each stage with responses"]]


@pytest.mark.parametrize(
    ("low", "high", "voided", "cell"),
    [
        (None, None, False, "too few requests"),
        (0.8, None, False, "too few requests"),
        (0.8, 1.2, False, "INCONCLUSIVE"),
        (None, None, True, "INCONCLUSIVE"),
    ],
)
def test_a_stage_with_too_few_requests_says_so(
    low: float | None, high: float | None, voided: bool, cell: str
) -> None:
    result = SloResult(
        rule="ttft p95 < 1s", status="INCONCLUSIVE", observed=0.9, count=7, low=low, high=high,
        voided=voided,
    )  # fmt: skip
    assert format_stage_status(a_level(1, slo_status="INCONCLUSIVE", slos=(result,))) == cell


@pytest.mark.parametrize(("client", "count"), [("DEGRADED", 1), ("OK", 0)])
def test_a_repeat_with_a_worse_client_verdict_is_in_the_headline(client: str, count: int) -> None:
    """Over all repeats the verdict may be OK."""
    repeats = a_sweep("repeat", a_level(1), replace(a_level(2), client=client), spread=())
    run = a_run(repeats=2)
    summary = summarise_run(collect_columns([answered(20, sent_at=10.0)]), run)
    summary = replace(summary, sweep=repeats, client=ClientVerdict("OK"))
    told = "the client verdict is OK over all repeats, DEGRADED at repeat 2"
    assert make_headline(summary, run).count(told) == count
    console = " ".join(format_ending(summary, run, "reports/x").split())
    over = " over all repeats" * count
    assert f", client verdict OK{over}." in console
    (row,) = (text for name, text in make_conditions_rows(summary, run) if name == "client verdict")
    assert row == ("OK over all repeats, DEGRADED at repeat 2" if count else "OK")
