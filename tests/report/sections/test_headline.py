"""What a run came to, in one sentence."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from support.records import a_run, answered, failed, mixed

from locust_llm.records.answer_checks import AnswerChecks
from locust_llm.records.record import Record
from locust_llm.records.run_facts import OpenLoopSchedule, ProcessHealth, Run
from locust_llm.records.timing_accuracy import MeasurementAccuracy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.verdict_text import make_verdict
from locust_llm.report.sections.ab_comparison import (
    PairedComparison,
    PairedFigure,
    describe_paired_verdict,
)
from locust_llm.report.sections.headline import _name_side, make_headline
from locust_llm.report.sections.notes import format_verdict_line
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.load_generator_health import INVALID, ClientVerdict, FigureError
from locust_llm.slo.rules import INCONCLUSIVE, SloResult, parse_rule


def said(*records: Record, **settings: object) -> str:
    run = a_run(**settings)
    if run.settings.open_loop:
        run = replace(
            run,
            offer=OpenLoopSchedule(
                due=len(records), never_started=0, duration_s=100.0, most_users=9
            ),
        )
    return make_headline(summarise_run(collect_columns(records), run), run)


def spread(count: int) -> list[Record]:
    """TTFT of 1 to ``count`` ms, in an order of no correlation."""
    return [answered(ms, ms + 20) for ms in mixed(count)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"slo": ("ttft p50 < 3s",)}, "With 2 users p50 of TTFT is 100 ms, within 3 s"),
        (
            {"slo": ("ttft p50 < 50ms", "itl p50 < 1s")},
            "With 2 users p50 of TTFT is 100 ms, above 50 ms",
        ),
        (
            {"slo": ("ttft p50 < 3s", "error_rate < 5%"), "request_rate": 4.0},
            "At 4/s (arrivals: 1.99/s) p50 of TTFT is 100 ms, within 3 s; all 2 rules hold",
        ),
        (
            {"slo": ("ttft p50 < 3s", "ttft p99 < 202ms"), "request_rate": 4.0},
            "At 4/s (arrivals: 1.99/s) p50 of TTFT is 100 ms, within 3 s; ttft p99 < 202ms is INCONCLUSIVE: run roughly 10 s longer",
        ),
        (
            {"slo": ("ttft p99 < 1ms", "itl avg < 1s", "error_rate > 5%", "warn: ttft p50 < 1ms")},
            "With 2 users p99 of TTFT is 197 ms, above 1 ms; one more rule broken; 1 warn: rule "
            "broken",
        ),
        (
            {},
            "With 2 users p50 of TTFT is 100 ms and p95 189 ms, p50 of ITL 20 ms; 1,817 output "
            "tokens/s",
        ),
    ],
)
def test_of_a_load_test(settings: dict[str, object], expected: str) -> None:
    """199 arrivals in 100 s are 1.99/s."""
    assert said(*spread(199), **settings) == expected


@pytest.mark.parametrize("rules", [(), ("ttft p50 < 3s",)])
def test_an_error_that_nobody_measured_is_not_called_large(rules: tuple[str, ...]) -> None:
    """--selftest require needs a check, and the run was too short for one."""
    missing = MeasurementAccuracy(missing="the run is shorter than 5 s")
    health = ProcessHealth(worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0, certificate=missing)
    run = replace(a_run(slo=rules, selftest="require"), health=(health,))
    summary = summarise_run(collect_columns(spread(199)), run)
    assert make_headline(summary, run).startswith(
        "The load generator's own error was not measured; "
    )
    line = format_verdict_line(summary, run)
    assert line is not None
    assert line.startswith(
        "CLIENT INVALID: do not use these metrics. No measurement accuracy check"
    )
    verdict = make_verdict(summary, run)
    unchecked = "Do not use: the load generator's own error was not measured."
    assert rules or f"{verdict.word} {verdict.text}" == unchecked


@pytest.mark.parametrize(
    ("ttft_ms", "rule", "expected"),
    [
        (567.04, "ttft p50 < 567ms", "p50 of TTFT is 567.04 ms, above 567 ms"),
        (566.96, "ttft p50 < 567ms", "p50 of TTFT is 566.96 ms, within 567 ms"),
        (1236.0, "ttft p50 < 1234ms", "p50 of TTFT is 1.24 s, above 1.234 s"),
        (999.7, "ttft p50 < 1s", "p50 of TTFT is 0.9997 s, within 1 s"),
    ],
)
def test_a_figure_near_its_limit_has_the_digits_that_part_them(
    ttft_ms: float, rule: str, expected: str
) -> None:
    records = [answered(ttft_ms, ttft_ms + 20)] * 199
    assert said(*records, slo=(rule,)) == f"With 2 users {expected}"


@pytest.mark.parametrize(
    ("leaks", "expected"),
    [(0, "the number of leaks is 0, as required"), (2, "the number of leaks is 2, and must be 0")],
)
def test_a_number_that_must_be_met_exactly(leaks: int, expected: str) -> None:
    """A third of the answers has its own marker, so leaks can be seen."""
    records = [
        answered(
            100, 120,
            answer=AnswerChecks(
                marker=1, searched=True, asked=number % 3 == 0, repeated=number % 3 == 0,
                foreign=(7,) * (number < leaks),
            ),
        )
        for number in range(199)
    ]  # fmt: skip
    run = a_run(slo=("leaks == 0",), check_answers=True)
    summary = summarise_run(collect_columns(records), run, records=records)
    assert make_headline(summary, run) == f"With 2 users {expected}"


def test_undecided_rules_are_named() -> None:
    slow = ("ttft p99 < 199ms", "ttft p99 < 206ms")
    both = said(*spread(199), slo=("ttft p50 < 3s", *slow))
    assert "within 3 s; ttft p99 < 199ms and one more rule are INCONCLUSIVE: run " in both
    assert "; 2 rules are INCONCLUSIVE: run " in said(
        *spread(199), slo=slow
    )  # the first one's figure stands before


@pytest.mark.parametrize(
    ("likely", "side"),
    [(("FAIL", "FAIL"), " (likely FAIL)"), (("FAIL", "PASS"), ""), (("FAIL", ""), "")],
)
def test_the_likely_side_of_all_inconclusive_rules_is_named(
    likely: tuple[str, str], side: str
) -> None:
    texts = ("ttft p50 < 1s", "itl p50 < 1s")
    run = a_run(slo=texts)
    results = tuple(
        SloResult(rule=text, status=INCONCLUSIVE, observed=0.5, limit=1.0, unit="s", likely=word)
        for text, word in zip(texts, likely, strict=True)
    )
    summary = replace(summarise_run(collect_columns(spread(9)), run), slos=results)
    assert make_headline(summary, run).endswith(f"; 2 rules are INCONCLUSIVE{side}")


@pytest.mark.parametrize(
    ("longer_s", "exact", "expected"),
    [
        (
            (180.0, None, None),
            False,
            "3 rules are INCONCLUSIVE: run roughly 3 min longer for ttft p50 < 1s",
        ),
        (
            (None, 180.0, 60.0),
            False,
            "3 rules are INCONCLUSIVE: run roughly 3 min longer for itl p50 < 1s and one more rule",
        ),
        ((180.0, 60.0, 60.0), False, "3 rules are INCONCLUSIVE: run roughly 3 min longer"),
        (
            (None, None, 180.0),
            True,
            "3 rules are INCONCLUSIVE: run 3 min longer for error_rate < 1%",
        ),
        ((None, None, None), False, "3 rules are INCONCLUSIVE"),
    ],
)
def test_the_rules_that_a_longer_run_may_decide_are_named(
    longer_s: tuple[float | None, ...], exact: bool, expected: str
) -> None:
    texts = ("ttft p50 < 1s", "itl p50 < 1s", "error_rate < 1%")
    run = a_run(slo=texts)
    results = [
        SloResult(
            rule=text,
            status=INCONCLUSIVE,
            observed=0.5,
            limit=1.0,
            unit="s",
            longer_s=s,
            longer_is_exact=exact,
        )
        for text, s in zip(texts, longer_s, strict=True)
    ]
    found = make_headline(
        replace(summarise_run(collect_columns(spread(9)), run), slos=tuple(results)), run
    )
    assert found.endswith(f"; {expected}")


def test_a_percentile_that_is_no_number() -> None:
    found = said(*spread(20), *[failed()] * 20, slo=("ttft p95 < 5s",))
    assert found.startswith(
        "With 2 users p95 of TTFT falls on a failed request, which counts as above 5 s"
    )


def test_failures_are_in_it() -> None:
    assert said(*spread(199), failed(), slo=("ttft p50 < 3s",)).endswith(
        "; 1 of 200 requests failed"
    )
    assert said(failed(), failed()) == "None of 2 requests succeeded: reset"
    kinds = [
        failed(),
        failed("timeout", error="after 3 s"),
        failed("timeout", error="after 4 s"),
        failed("cut"),
    ]
    assert said(*kinds) == (
        "None of 4 requests succeeded: 2 x after 3 s; 1 x reset; 1 was unfinished when the run "
        "ended"
    )
    # before and after the head of the response: one reason
    late = [
        failed("first_token_timeout", status=status, error="no first token within 1 s")
        for status in (200, None, 200)
    ]
    assert said(*late) == "None of 3 requests succeeded: no first token within 1 s"
    assert said(*late, failed(), failed(), failed("closed")) == (
        "None of 6 requests succeeded: 3 x no first token within 1 s; 2 x reset; 1 other failed"
    )
    assert said() == "No request was sent"
    assert said(answered(100, phase="warmup"), answered(90, phase="warmup")) == (
        "No request was sent after the warmup, which had 2 requests"
    )
    run = a_run()
    assert (
        format_verdict_line(
            replace(
                summarise_run(collect_columns([failed()]), run),
                client=ClientVerdict(INVALID, ("late",)),
            ),
            run,
        )
        is None
    )
    cut = "2 of 3 requests were unfinished at the end: the load is too high or the run too short; "
    assert said(answered(100), failed("cut"), failed("cut")) == (
        f"{cut}of the 1 completed requests p50 of TTFT is 100 ms and p95 100 ms; 1 output tokens/s"
    )


def test_overload_is_first() -> None:
    """Ten a second for 100 s, of which half are answered: the queue grows."""
    records = [
        answered(100, sent_at=10.0 + i / 10, closed_at=10.1 + i / 5, due_at=10.0 + i / 10)
        for i in range(900)
    ]
    assert said(*records, request_rate=10.0).startswith("Overloaded: offered 9/s, completed ")
    cut = [failed("cut", sent_at=100.0, due_at=99.9, closed_at=130.0)] * 9
    assert "until the end; of the 900 completed requests p50 of TTFT from due is " in said(
        *records, *cut, request_rate=10.0
    )


def test_what_forbids_to_use_the_figures_is_first() -> None:
    run = a_run(slo=("error_rate < 5%",))
    summary = replace(
        summarise_run(collect_columns(spread(199)), run),
        client=ClientVerdict(INVALID, ("merged chunks",)),
        figure_errors=(),
    )
    held = (
        "The load generator was too inaccurate to measure this server, but the rules hold all the "
        "same: "
    )
    assert make_headline(summary, run) == f"{held}the error rate is 0%, within 5%"
    line = format_verdict_line(summary, run)
    assert line is not None
    assert ". Merged chunks. The decided rule stands: such an error cannot have changed it" in line
    summary = replace(summarise_run(collect_columns(spread(199)), a_run()), client=summary.client)
    assert make_headline(summary, a_run()).startswith(
        "The load generator was too inaccurate for some of these metrics; p50 of TTFT "
    )
    summary = replace(summary, figure_errors=())
    assert make_headline(summary, a_run()).startswith(
        "The load generator was too inaccurate to measure this server; p50 of TTFT "
    )
    run = a_run(slo=("error_rate > 5%", "ttft p50 < 3s"))
    summary = replace(
        summarise_run(collect_columns(spread(199)), run), client=summary.client, figure_errors=()
    )
    assert make_headline(summary, run).startswith(
        f"{held.partition(',')[0]}, but a rule is broken all the same: the error rate"
    )
    assert "The 2 decided rules stand: such an error cannot have changed them" in (
        format_verdict_line(summary, run) or ""
    )


def test_open_rules_of_accurate_metrics_are_not_blamed_on_the_load_generator() -> None:
    """100 ms on average of TTFT is known to 0.1 ms, 10 requests/s to 3: beyond 10%. The rule is
    open by its interval alone, unless the error reaches its limit."""
    rule = SloResult(rule="ttft p50 < 3s", status=INCONCLUSIVE, observed=0.1, limit=3.0, unit="s")
    run = a_run(slo=(rule.rule,))
    known = FigureError(
        word="ttft", stat="avg", label="Time to First Token avg", unit="ms", value=100.0, lower=0.1,
        causes={"timestamps": 0.1},
    )  # fmt: skip
    rate = FigureError(
        word="requests_per_s", label="Request Throughput", unit="/s", value=10.0, higher=3.0,
        causes={"late users": 3.0},
    )  # fmt: skip
    tokens = replace(rate, word="output_tokens_per_s", label="Output Token Throughput")
    summary = replace(
        summarise_run(collect_columns(spread(199)), run),
        client=ClientVerdict(INVALID, ("late users",)),
        figure_errors=(known, rate, tokens),
        slos=(rule,),
        slo_status=INCONCLUSIVE,
    )
    why = "he load generator was too inaccurate for Request Throughput and 1 more metric"
    found = make_headline(summary, run)
    assert found.startswith("With 2 users p50 of TTFT is 100 ms, limit 3 s; one rule is INCON")
    assert found.endswith(f"; t{why}")
    voided = replace(summary, slos=(replace(rule, voided=True),))
    assert make_headline(voided, run).startswith(f"T{why}; p50 of TTFT is 100 ms")


def test_a_buffer_on_the_way_is_not_blamed_on_the_load_generator() -> None:
    run = replace(a_run(), notes=("WARNING: BUFFERED STREAM: 9 of 9 answers arrived complete",))
    summary = replace(
        summarise_run(collect_columns(spread(199)), run),
        client=ClientVerdict(INVALID, ("merged chunks 100%",)),
    )
    assert make_headline(summary, run).startswith("The streams were buffered on the way")


def test_no_buffer_is_blamed_where_a_core_may_have_been_missing() -> None:
    """The load generator's own inaccuracy is certain, so it comes first."""
    run = replace(a_run(), notes=("WARNING: CHUNKS CAME TOGETHER: the chunks of 9 of 9",))
    measured = summarise_run(collect_columns(spread(199)), run)
    gathered = "buffer or too little CPU gathered the chunks"
    assert make_headline(replace(measured, client=None), run).startswith(f"A {gathered}, so")
    assert make_verdict(replace(measured, client=None), run).text == f"a {gathered}."
    invalid = replace(measured, client=ClientVerdict(INVALID, ("late sends",)))
    assert make_headline(invalid, run).startswith("The load generator was too inaccurate")
    assert make_verdict(invalid, run).text == "the load generator was too inaccurate."


def test_where_a_gate_held_requests_what_users_waited_comes_first() -> None:
    """A second at the gate, then 100 ms; of a ramp that all limits are in the figures."""
    times = [
        {"sent_at": 11.0 + i, "admitted_at": 11.0 + i, "asked_at": 10.0 + i, "due_at": 10.0 + i}
        for i in range(9)
    ]
    records = [answered(100, 120, limit=1 + (known["sent_at"] >= 15), **known) for known in times]
    run = a_run(((0.0, 1),), prefill_concurrency=1)
    assert "With 2 users p50 of TTFT from due is 1.1 s and p95 1.1 s, p50 of TTFT is 100 ms" in of(
        run, records
    )
    limits = ((0.0, 1), (15.0, 2))
    ramp = a_run(limits, prefill_concurrency=2, prefill_concurrency_ramp_duration=15.0)
    assert of(ramp, records).startswith(
        "With 2 users and prefill limits 1 to 2 together (a ramp) p50 of TTFT from due "
    )
    assert of(a_run(limits, prefill_concurrency=1), records).startswith(
        "With 2 users and prefill limits 1 to 2 together (changed by hand) p50 of TTFT from due "
    )


def test_requests_of_several_names_have_no_common_headline() -> None:
    chat = [answered(50, 60, sent_at=10.0 + i) for i in range(6)]
    rag = [answered(900, 910, sent_at=10.0 + i, name="rag") for i in range(3)]
    found = of(a_run(), [*chat, *rag])
    assert "p95 of TTFT is 50 ms for chat, 900 ms for rag;" in found
    assert "p50" not in found


def of(run: Run, records: list[Record]) -> str:
    return make_headline(summarise_run(collect_columns(records), run), run)


@pytest.mark.parametrize(
    ("status", "low", "high", "expected"),
    [
        (
            "INCONCLUSIVE",
            -7.55,
            42.8,
            " may be the same in a (95% interval of the difference: -7.5% to 42.8%), and the tolerance "
            "is 50%",
        ),
        (
            "PASS",
            -7.55,
            42.8,
            " may be the same in a (95% interval of the difference: -7.5% to 42.8%), within the "
            "tolerance of 50%",
        ),
        ("FAIL", 70.0, 90.0, " is 80% worse than a, beyond the tolerance of 50%"),
        ("FAIL", math.inf, math.inf, " falls on a failed request, beyond the tolerance of 50%"),
    ],
)
def test_a_difference_from_a_base_stands_beside_the_tolerance(
    status: str, low: float, high: float, expected: str
) -> None:
    rule = "ttft p50 within 50% of a"
    run = a_run(slo=(rule,))
    summary = summarise_run(collect_columns(spread(9)), run)
    result = SloResult(
        rule=rule,
        status=status,
        observed=(low + high) / 2,
        low=low,
        high=high,
        limit=50.0,
        unit="%",
        reason="few",
    )
    told = make_headline(replace(summary, slos=(result,), slo_status=status), run)
    assert f"p50 of TTFT{expected}" in told


def test_a_series_of_rates_has_no_one_rate() -> None:
    run = a_run(request_rate_series="rates.json")
    offer = OpenLoopSchedule(due=600, never_started=0, duration_s=100.0, most_users=10)
    run = replace(run, offer=offer)
    records = [answered(100, sent_at=10.0 + i / 6, due_at=10.0 + i / 6) for i in range(600)]
    headline = make_headline(summarise_run(collect_columns(records), run), run)
    assert headline.startswith("At 6/s on average p50 of TTFT from due is 100 ms")


def test_arms_without_a_difference_have_the_word_of_the_table_for_open_metrics() -> None:
    """One of two metrics is open: no significant difference holds for the other one alone."""
    common: dict[str, Any] = {"label": "x (ms)", "unit": "ms", "relative": True}
    figures = [
        PairedFigure(metric="ttft", stat="p50", word=word, pairs=((1.0, 1.0),) * 10, **common)
        for word in ("not concluded", "no significant difference")
    ]
    paired = PairedComparison(
        verdict="NO SIGNIFICANT DIFFERENCE", chance=0.5, pairs=10, figures=tuple(figures)
    )
    run = a_run()
    summary = replace(summarise_run(collect_columns([answered(1, 2)]), run), paired=paired)
    assert make_headline(summary, run).startswith(
        "No significant difference between base and candidate in 10 pairs; 1 of 2 metrics is not "
        "concluded"
    )
    assert "0 of 2 metrics are called different; 1 of 2 metrics is not concluded" in (
        describe_paired_verdict(paired)
    )


@pytest.mark.parametrize(
    ("rule", "status", "observed", "words"),
    [
        ("completed >= 95%", "PASS", 95.0, "at least"),
        ("completed > 95%", "PASS", 96.0, "above"),
        ("completed > 95%", "FAIL", 95.0, "not above"),
        ("ttft p95 < 200ms", "FAIL", 200.0, "not below"),
        ("ttft p95 < 200ms", "FAIL", 201.0, "above"),
        ("ttft p95 <= 200ms", "PASS", 200.0, "within"),
        ("completed >= 95%", "FAIL", 94.0, "below"),
        ("completed >= 95%", "INCONCLUSIVE", 95.0, "limit"),
    ],
)
def test_a_value_at_its_limit_is_on_no_side_of_it(
    rule: str, status: str, observed: float, words: str
) -> None:
    parsed = parse_rule(rule)
    result = SloResult(rule=rule, status=status, observed=observed, limit=parsed.number)
    assert _name_side(parsed, result) == words
