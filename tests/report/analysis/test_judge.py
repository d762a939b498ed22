"""PASS, FAIL or INCONCLUSIVE, and why, from records small enough for a pencil."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.handmade import UNIX, a_run, answered, failed
from support.staged import a_level, a_stage

from locust_llm.core.record import Record
from locust_llm.core.run import Offer, Run
from locust_llm.report.analysis.columns import collect
from locust_llm.report.analysis.judge import overall
from locust_llm.report.analysis.selection import scarce
from locust_llm.report.analysis.summarise import summarise
from locust_llm.report.analysis.summary import SloResult, SweepSummary
from locust_llm.slo.client_verdict import DEGRADED, INVALID
from locust_llm.slo.grammar import parse
from locust_llm.slo.intervals import STUDENT


def judged(rule: str, records: Sequence[Record], run: Run | None = None, **settings: object) -> SloResult:
    run = run or a_run(slo=(rule,), **settings)
    return summarise(collect(records), run, 0, records).slos[0]


def steps(count: int, **other: object) -> list[Record]:
    """TTFT 1, 2, 3, ... ms, a second apart, two more chunks 10 and 30 ms later."""
    return [answered(i, i + 10, i + 30, sent_at=10.0 + i, **other) for i in range(1, count + 1)]


@pytest.mark.parametrize(
    ("rule", "status", "observed", "low", "high"),
    [
        ("ttft p50 < 16ms", "PASS", 10.5, 6, 15),  # 20 values: ranks 6 and 15
        ("ttft p50 <= 15ms", "PASS", 10.5, 6, 15),
        ("ttft p50 < 15ms", "INCONCLUSIVE", 10.5, 6, 15),
        ("ttft p50 < 6ms", "FAIL", 10.5, 6, 15),
        ("ttft p50 > 5ms", "PASS", 10.5, 6, 15),
        ("ttft med < 0.016s", "PASS", 0.0105, 0.006, 0.015),
        ("ttft min <= 1ms", "PASS", 1, None, None),
        ("ttft max < 20ms", "FAIL", 20, None, None),
        ("longest_stall max <= 20ms", "PASS", 20, None, None),
        ("itl p50 <= 15ms", "PASS", 15, 15, 15),  # 30 ms for two tokens after the first
        ("request_latency p50 < 46ms", "PASS", 40.5, 36, 45),
        ("error_rate < 17%", "PASS", 0, 0, 100 * (1 - 0.025**0.05)),
        ("error_rate < 16%", "INCONCLUSIVE", 0, 0, 100 * (1 - 0.025**0.05)),
        ("attainment > 27% given ttft <= 10ms", "PASS", 50, 27.2, 72.8),
        ("attainment > 0.73 given ttft <= 10ms and itl < 16ms", "FAIL", 0.5, 0.272, 0.728),
        ("attainment > 50% given ttft <= 10ms and itl < 15ms", "FAIL", 0, 0, 100 * (1 - 0.025**0.05)),
        ("ttft{input=100} p50 < 16ms", "PASS", 10.5, 6, 15),
        ("ttft avg < 20ms", "PASS", 10.5, 10.5 - STUDENT * (330 / 9 / 10) ** 0.5, 10.5 + STUDENT * (330 / 9 / 10) ** 0.5),
    ],
)  # fmt: skip
def test_twenty_requests(rule: str, status: str, observed: float, low: float | None, high: float | None) -> None:
    """Averages of pairs in ten stretches are 1.5, 3.5 ... 19.5: 2 x (1 + 9 + 25 + 49 + 81) = 330 off 10.5, squared."""
    found = judged(rule, steps(20))
    assert (found.status, found.count) == (status, 20)
    assert found.observed == pytest.approx(observed, rel=1e-3)
    for end, expected in ((found.low, low), (found.high, high)):
        assert end == (None if expected is None else pytest.approx(expected, rel=1e-3))
    assert bool(found.reason) == (status == "INCONCLUSIVE")


def test_rates() -> None:
    """Request i is over at 10 + i and 30 ms, the first sent at 11: 3 tokens a request, 20 in 19.05 s, 2 a stretch."""
    duration = 20 + 0.05 - 1
    for rule, per_request in (
        ("requests_per_s > 0.5", 1), ("output_tokens_per_s > 1", 3), ("input_tokens_per_s > 1", 100),
        ("total_tokens_per_s > 1", 103), ("goodput > 0.5 given itl < 1s", 1),
    ):  # fmt: skip
        found = judged(rule, steps(20))
        assert (found.status, found.unit, found.count) == ("PASS", "/s", 20)
        assert found.observed == pytest.approx(20 * per_request / duration)
        assert (found.low, found.high) == pytest.approx((found.observed, found.observed))
    assert judged("requests_per_s >= 2", steps(20)).status == "FAIL"


def test_the_stretches_of_a_rate() -> None:
    """From second 10 to 20, answers after 10 ms but the last: nine in the first second, one at the end: 0.9 to 1 a second
    on average, in stretches 9, 0, 0, ..., 1: 64 + 8 x 1 + 0 = 72 off 1, squared, so 2.262 x (72 / 9 / 10)^0.5."""
    records = [answered(10, sent_at=10.0 + i / 10) for i in range(9)] + [answered(1000, sent_at=19.0)]
    found = judged("requests_per_s > 0", records)
    assert found.observed == pytest.approx(1)
    assert (found.low, found.high) == pytest.approx((0, 1 + STUDENT * 0.8**0.5))
    assert found.status == "INCONCLUSIVE"


def test_a_percentile_fails_when_more_requests_failed_than_it_allows() -> None:
    """200 requests, all fast: with 30 failures p95 is one of them; with 1 not even the end of its interval."""
    fast = [answered(100, 110, sent_at=10.0 + i) for i in range(200)]
    many = judged("ttft p95 < 1s", [*fast[30:], *[failed()] * 30])
    assert (many.status, many.count, many.observed) == ("FAIL", 200, float("inf"))
    assert many.reason == "30 of 200 requests failed, and p95 lands on one"
    assert judged("ttft p95 < 1s", [*fast[1:], failed()]).status == "PASS"
    assert judged("ttft p95 > 50ms", [*fast[30:], *[failed()] * 30]).status == "PASS"  # the slow end is no help there
    assert judged("ttft p5 > 50ms", [*fast[30:], *[failed()] * 30]).status == "FAIL"
    assert judged("output_tokens_per_s_per_user p5 > 10", [*fast[30:], *[failed()] * 30]).status == "FAIL"
    average = judged("ttft avg < 1s", [*fast[30:], *[failed()] * 30])
    assert (average.status, average.count) == ("PASS", 170)
    assert "30 failures are in no average" in average.reason


def test_failures_are_in_the_denominator_of_attainment_and_what_was_cut_too() -> None:
    """15 good ones of 20; one that was cut after a second, without a token: of 21 where a good one has it by then, else it
    may be the 16th."""
    records = [*steps(15), *[failed()] * 5, failed("cut")]
    broken = judged("attainment > 40% given ttft < 1s", records)
    assert (broken.observed, broken.worst, broken.count, broken.status) == (pytest.approx(1500 / 21), None, 21, "PASS")
    perhaps = judged("attainment > 40% given ttft < 2s", records)
    assert (perhaps.observed, perhaps.worst, perhaps.status) == (
        pytest.approx(1600 / 21),
        pytest.approx(1500 / 21),
        "PASS",
    )
    rate = judged("error_rate < 60%", records)
    assert (rate.observed, rate.worst, rate.status) == (pytest.approx(500 / 21), pytest.approx(600 / 21), "PASS")


def test_waits_of_failed_requests_count_as_they_are() -> None:
    records = [answered(1, asked_at=9.0, admitted_at=10.0)] * 10 + [failed(asked_at=7.0, admitted_at=10.0)] * 10
    assert judged("gate_wait max < 4s", records).observed == 3


def test_too_few_samples() -> None:
    found = judged("ttft p99 < 1000ms", steps(300))
    assert (found.status, found.low, found.high) == ("INCONCLUSIVE", pytest.approx(293), None)
    assert found.reason == "too few samples: the interval of p99 takes 368 requests, there are 300"
    assert judged("ttft p99 < 1s", steps(368)).status == "PASS"
    assert judged("ttft p99 < 10ms", steps(50)).status == "FAIL"  # 46 of 50 and more are above: that is decided
    assert "takes 10 requests, there are 9" in judged("ttft avg < 1s", steps(9)).reason
    assert "takes 10 requests, there are 9" in judged("requests_per_s > 0.1", steps(9)).reason
    assert judged("requests_per_s > 0.1", [failed()] * 10).status == "FAIL"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("ttft p50 < 1s", "it is absent: no request has a value of ttft"),
        ("icl p50 < 1s", "no request has two chunks"),
        ("attainment > 1% given ttft < 1s", "no request has a value of ttft"),
        ("goodput > 0.1 given longest_stall < 1s", "no request has a value of longest_stall"),
        ("gate_wait p50 < 1s", "no request has a value of gate_wait"),
        ("output_tokens_per_s > 0.1", "no request has a count of its tokens"),
        ("delivered > 1%", "a closed loop has no schedule"),
        ("request_latency{class=Short} p50 < 1s", "no request has class=Short; the class is one of -, Long"),
        ("request_latency{turn=later} p50 < 1s", "no request has turn=later"),
        ("ttft p95 < 1", "has no unit"),
    ],
)
def test_what_is_absent_never_passes(rule: str, why: str) -> None:
    records = [answered(streamed=False, output_tokens=None, tokens_from="", closed_at=11.0)] * 30
    records += [answered(streamed=False, output_tokens=None, closed_at=11.0, user_class="Long")] * 30
    found = judged(rule, records)
    assert (found.status, found.observed) == ("INCONCLUSIVE", None)
    assert why in found.reason


def test_nothing_at_all() -> None:
    for rule in ("ttft p50 < 1s", "error_rate < 1%", "requests_per_s > 1", "attainment > 1% given ttft < 1s"):
        assert judged(rule, []).reason == "no request succeeded or failed"
    assert judged("ttft p50 < 1s", [failed()] * 20).status == "FAIL"


def test_an_answer_of_one_token_has_no_itl_to_be_too_slow() -> None:
    records = [*[answered(100)] * 10, *[answered(100, 150)] * 10, *[answered(100, 900)] * 10]
    assert judged("attainment > 1% given itl <= 50ms", records).observed == pytest.approx(200 / 3)


def test_selectors() -> None:
    records = [
        *[answered(1, user_class="A", name="x", model="m", input_tokens=100)] * 10,
        *[answered(2, user_class="A", name="y", model="n", input_tokens=999)] * 10,
        *[answered(3, user_class="B", name="x", model="m", input_tokens=1000, turn=1)] * 10,
    ]
    for braces, slowest in (
        ("class=A", 2), ("name=x", 3), ("model=n", 2), ("input=100", 1), ("input=..1k", 2), ("input=1k-2k", 3),
        ("turn=first", 2), ("turn=later", 3), ("class=A, name=x", 1),
    ):  # fmt: skip
        assert judged(f"ttft{{{braces}}} max < 1000ms", records).observed == slowest
    assert judged("requests_per_s{class=B} > 0", [*steps(10), answered(1, sent_at=19.99, user_class="B")]).count == 1
    assert judged("error_rate{class=B} < 1", records).status == "INCONCLUSIVE"  # it cannot be read


def test_a_rate_of_some_is_over_the_time_of_all() -> None:
    """10 of class B within the first second of ten."""
    records = [answered(100, sent_at=10 + i / 10, user_class="B") for i in range(10)] + [answered(1000, sent_at=19.0)]
    assert judged("requests_per_s{class=B} > 0.1", records).observed == pytest.approx(1)


def test_pooled_gaps() -> None:
    """Twenty of two gaps each, 10 and 20 ms; of those of class B 30 and 40, in every tenth."""
    records = [*steps(20), *(answered(1, 31, 71, sent_at=10.5 + i, user_class="B") for i in range(20))]
    every = judged("icl p50 < 1000ms", records)
    assert (every.observed, every.low, every.high, every.count) == (25, 25, 25, 80)
    assert judged("icl{class=B} max < 1000ms", records).observed == 40
    assert judged("icl{class=B} avg <= 35ms", records).status == "PASS"
    assert judged("icl avg < 24ms", records).status == "FAIL"
    assert judged("icl p99 < 1s", records).status == "INCONCLUSIVE"  # 80 gaps
    assert "takes 10 requests, there are 9" in judged("icl avg < 1s", steps(9)).reason


def test_a_stretch_with_a_stall_widens_the_interval_of_pooled_gaps() -> None:
    """Nine stretches with gaps of 10 and 20 ms, the last with 110 and 120: 25 on average, 9 x 100 + 8100 off it."""
    records = [*steps(18), *(answered(1, 111, 231, sent_at=50.0 + i) for i in range(2))]
    found = judged("icl avg < 30ms", records)
    assert (found.observed, found.status) == (25, "INCONCLUSIVE")
    assert found.high == pytest.approx(25 + STUDENT * (9000 / 9 / 10) ** 0.5)


def late(share: float) -> Record:
    """Chunks of which ``share`` came merged."""
    many = answered(*range(1, 101), sent_at=10.0)
    return replace(many, merged=tuple((i, 0) for i in range(round(100 * share))), chunk_us=(1000,) * 100)


@pytest.mark.parametrize(("share", "level"), [(0.1, DEGRADED), (1.0, INVALID)])
def test_a_client_that_was_too_slow(share: float, level: str) -> None:
    records = [replace(late(share), clock_offset_s=UNIX + i) for i in range(100)]
    rules = (
        "request_latency p50 < 1000ms",
        "attainment > 1% given ttft < 1s",
        "requests_per_s > 0.1",
        "error_rate < 50%",
    )
    summary = summarise(collect(records), a_run(slo=rules), 0, records)
    assert summary.client is not None
    assert summary.client.level == level
    statuses = [result.status for result in summary.slos]
    assert statuses == ["INCONCLUSIVE", "INCONCLUSIVE", "PASS" if level == DEGRADED else "INCONCLUSIVE", "PASS"]
    assert summary.slos[0].reason.startswith(f"the client verdict is {level}: ")
    assert summary.slos[0].observed == pytest.approx(1)


def test_what_was_delivered_of_a_schedule() -> None:
    offer = Offer(due=200, never_started=0, duration_s=100.0, most_users=2)
    run = replace(a_run(slo=("delivered >= 98%",), request_rate=2.0), offer=offer)
    short = judged("", steps(100), run)
    assert (short.status, short.observed, short.count) == ("FAIL", 50, 200)
    assert judged("", steps(200), run).status == "PASS"
    busy = replace(run, health=())
    records = [replace(late(1.0), id=str(i)) for i in range(100)]
    held = judged("", records, busy)
    assert (held.status, held.reason) == ("INCONCLUSIVE", "the load generator held the load back, not the server")


def test_lost_records_could_be_the_slow_ones() -> None:
    run = replace(a_run(slo=("ttft p50 < 16ms",)), records_lost=3)
    assert judged("", steps(20), run).status == "INCONCLUSIVE"
    assert judged("", steps(20), replace(run, settings=replace(run.settings, slo=("ttft p50 < 6ms",)))).status == "FAIL"


def results(*statuses: str) -> list[SloResult]:
    """``warn PASS`` is a rule that only warns."""
    return [SloResult(rule="r", status=s.split()[-1], decides=not s.startswith("warn")) for s in statuses]


@pytest.mark.parametrize(
    ("statuses", "whole"),
    [
        ((), None),
        (("PASS",), "PASS"),
        (("PASS", "INCONCLUSIVE"), "INCONCLUSIVE"),
        (("INCONCLUSIVE", "FAIL", "PASS"), "FAIL"),
        (("warn FAIL", "PASS"), "PASS"),
        (("warn FAIL", "INCONCLUSIVE"), "INCONCLUSIVE"),
        (("warn FAIL",), "PASS"),
    ],
)
def test_all_rules_together(statuses: tuple[str, ...], whole: str | None) -> None:
    assert overall(results(*statuses)) == whole


def test_presets_and_conditions_of_a_run() -> None:
    run = a_run(slo=("goodput > 0.1",), slo_preset="chat", goodput="time_to_first_token:10")
    summary = summarise(collect(steps(20)), run)
    assert [r.rule for r in summary.slos] == [
        "goodput > 0.1/s given ttft <= 10ms",
        "ttft p95 <= 3s",
        "ttft p99 <= 5s",
        "itl p95 <= 300ms",
        "warn: itl p95 <= 100ms",
    ]
    assert [r.decides for r in summary.slos] == [True, True, True, True, False]
    unknown = summarise(collect(steps(20)), a_run(slo=("ttft p50 < 1s",), slo_preset="of another version"))
    assert [r.status for r in unknown.slos] == ["PASS", "INCONCLUSIVE"]


def test_goodput_as_aiperf_counts_it() -> None:
    """Ten of twenty within 10 ms, five failures: 10 in the 19.05 s (the failures end within them), 10 of 25."""
    records = [*steps(20), *[failed(sent_at=12.0)] * 5]
    summary = summarise(collect(records), a_run(goodput="time_to_first_token:10 inter_token_latency:20"))
    rows = {row.tag: row for row in summary.rows}
    assert rows["goodput"].avg == pytest.approx(10 / 19.05)
    assert rows["good_request_count"].avg == 10
    assert rows["good_request_fraction"].avg == 0.4
    assert summary.slos == ()
    for nothing in (None, "", "of:another version"):
        assert "goodput" not in {row.tag for row in summarise(collect(records), a_run(goodput=nothing)).rows}


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(0, 5), st.sampled_from([50, 90, 95, 99]),
       st.integers(1, 1000))  # fmt: skip
def test_a_decision_needs_the_figure_and_its_interval_on_one_side(
    ttfts: list[int], failures: int, percentile: int, limit: int
) -> None:
    records = [answered(ttft) for ttft in ttfts] + [failed()] * failures
    found = judged(f"ttft p{percentile} < {limit}ms", records)
    sides = {value < limit for value in (found.low, found.observed, found.high) if value is not None}
    if found.status == "INCONCLUSIVE":
        assert len(sides) == 2 or None in (found.low, found.high)
    else:
        assert sides == {found.status == "PASS"}
    if found.status == "PASS":
        assert not scarce(len(records), percentile)
        assert failures <= len(records) * (1 - percentile / 100)


# -- rules in a sweep --------------------------------------------------------------------------------------------------


def test_a_rule_about_stages_has_none_in_a_run_without_them() -> None:
    for run in (None, a_run(repeats=3, slo=("ttft{stage=2} p50 < 1s",))):
        found = judged("ttft{stage=2} p50 < 1s", steps(20), run)
        assert (found.status, found.reason) == ("INCONCLUSIVE", "it names stages, and this is no sweep")
        assert (found.limit, found.unit) == (1, "s")


def test_a_stage_is_judged_by_the_rules_that_are_about_it() -> None:
    rules = (
        "ttft p50 < 16ms",
        "ttft{stage=4} p50 < 15ms",
        "ttft{concurrency=2..4} p50 < 6ms",
        "ttft{stage=8..} p50 < 1s",
    )
    run = a_stage(a_run(sweep="concurrency=1,4,8", slo=rules), 2, 4.0, "concurrency")
    records = steps(20)
    found = summarise(collect(records), run, 0, records).slos
    assert [(r.rule, r.status) for r in found] == [
        ("ttft p50 < 16ms", "PASS"),
        ("ttft{stage=4} p50 < 15ms", "INCONCLUSIVE"),
        ("ttft{concurrency=2..4} p50 < 6ms", "FAIL"),
    ]
    assert found[0].observed == pytest.approx(10.5)


def swept(
    rules: tuple[str, ...], *stages: Sequence[str], sweep: str = "concurrency=1,2,4,8", **other: object
) -> list[SloResult]:
    """The results of a sweep whose stages, 1, 2, 4, ..., came to these: one for each rule, ``-`` for none; ``FAIL?`` of a
    stage whose client was burnt."""
    run = replace(a_run(sweep=sweep, slo=rules, users=None), sweep_end="all stages ran")
    levels = []
    for i, statuses in enumerate(stages):
        results = [
            SloResult(
                rule=str(parse(rule)),
                status=status.strip("?"),
                observed=10.0 * 2**i,
                unit="ms",
                reason="",
                decides="warn" not in rule,
            )
            for rule, status in zip(rules, statuses, strict=True)
            if status != "-"
        ]
        burnt = {"client": "INVALID"} if any("?" in status for status in statuses) else {}
        levels.append(a_level(2.0**i, slos=tuple(results), **burnt))
    found = SweepSummary(axis=sweep.partition("=")[0], unit="users", levels=tuple(levels), ended=run.sweep_end)
    return list(summarise(collect([]), replace(run, **other), sweep=found).slos)


@pytest.mark.parametrize(
    ("statuses", "status", "observed", "reason"),
    [
        (["PASS", "PASS", "FAIL", "FAIL"], "PASS", 20, "holds up to concurrency 2; broken at 4"),
        (["PASS"] * 4, "PASS", 80, "holds up to concurrency 8; no higher stage was run"),
        (["FAIL", "FAIL"], "FAIL", 10, "at concurrency 1, the lowest"),
        (["FAIL", "PASS", "PASS"], "PASS", 40, "holds up to concurrency 4; no higher stage was run; not held at conc"),
        (["INCONCLUSIVE", "FAIL"], "INCONCLUSIVE", 10, "at concurrency 1, the lowest"),
        (["PASS", "PASS?"], "PASS", 10, "holds up to concurrency 1; at 2 the load generator was too slow"),
        (["INCONCLUSIVE?", "FAIL"], "FAIL", 20, "at concurrency 2, the lowest"),
        (["PASS?", "INCONCLUSIVE?"], "INCONCLUSIVE", None, "no stage may found a conclusion; at concurrency 1 the client"),
        ([], "INCONCLUSIVE", None, "no stage may found a conclusion; there is none"),
    ],
)  # fmt: skip
def test_a_sweep_passes_up_to_the_highest_stage_that_does(
    statuses: list[str], status: str, observed: float | None, reason: str
) -> None:
    (found,) = swept(("ttft p50 < 1s",), *[[status] for status in statuses])
    assert (found.status, found.observed) == (status, observed)
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("rule", "statuses", "status", "reason"),
    [
        ("ttft{stage=2..4} p50 < 1s", "- PASS PASS -", "PASS", "at concurrency 2"),
        ("ttft{concurrency=2..4} p50 < 1s", "- PASS FAIL -", "FAIL", "at concurrency 4"),
        ("ttft{stage=..2} p50 < 1s", "INCONCLUSIVE PASS - -", "INCONCLUSIVE", "at concurrency 1"),
        ("ttft{stage=8} p50 < 1s", "- -", "INCONCLUSIVE", "there is no stage of concurrency 8: all stages ran"),
        ("ttft{stage=2..} p50 < 1s", "- PASS", "INCONCLUSIVE", "there is no stage of concurrency 4, 8: all stages ran"),
        ("ttft{stage=2..} p50 < 1s", "- FAIL", "FAIL", "at concurrency 2"),
        ("ttft{stage=3} p50 < 1s", "- -", "INCONCLUSIVE", "this sweep has no such stage: it is of concurrency 1, 2, 4, 8"),
        ("ttft{request-rate=2} p50 < 1s", "- -", "INCONCLUSIVE", "this sweep has no such stage"),
    ],
)  # fmt: skip
def test_a_rule_must_hold_at_each_stage_that_it_names(rule: str, statuses: str, status: str, reason: str) -> None:
    (found,) = swept((rule,), *[[status] for status in statuses.split()])
    assert found.status == status
    assert found.reason.startswith(reason)


def test_rules_that_hold_at_no_stage_together_do_not_hold() -> None:
    rules = ("ttft p50 < 1s", "requests_per_s > 5")
    apart = swept(rules, ["PASS", "FAIL"], ["PASS", "FAIL"], ["FAIL", "PASS"])
    assert [r.status for r in apart] == ["PASS", "PASS", "FAIL"]
    assert apart[-1].rule == "all of these at one stage"
    assert [r.status for r in swept(rules, ["PASS", "FAIL"], ["PASS", "PASS"])] == ["PASS", "PASS"]
    maybe = swept(rules, ["PASS", "FAIL"], ["INCONCLUSIVE", "PASS"])
    assert [r.status for r in maybe] == ["PASS", "PASS", "INCONCLUSIVE"]
    warned = swept(("ttft p50 < 1s", "warn: requests_per_s > 5"), ["PASS", "FAIL"], ["FAIL", "PASS"])
    assert [r.status for r in warned] == ["PASS", "PASS"]
    named = swept(
        ("ttft p50 < 1s", "requests_per_s{stage=2} > 5"), ["PASS", "-"], ["FAIL", "PASS"], sweep="concurrency=1,2"
    )
    assert [r.status for r in named] == ["PASS", "PASS"]


def test_a_rule_that_cannot_be_read_is_inconclusive_in_a_sweep_too() -> None:
    run = a_run(sweep="concurrency=1", slo=("of another version",), slo_preset="lost")
    found = SweepSummary(axis="concurrency", unit="users", levels=(), ended="")
    assert [r.status for r in summarise(collect([]), run, sweep=found).slos] == ["INCONCLUSIVE"] * 2


def test_repeats_are_judged_together() -> None:
    run = a_run(repeats=2, slo=("ttft p50 < 16ms",))
    both = SweepSummary(axis="repeat", unit="", levels=(a_level(1, slo="FAIL"), a_level(2, slo="FAIL")), ended="")
    records = steps(20)
    assert [r.status for r in summarise(collect(records), run, 0, records, both).slos] == ["PASS"]
