"""Stages side by side, from the summaries of runs whose figures can be worked out with a pencil."""

from dataclasses import replace as replaced
from itertools import repeat

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, mixed
from support.stages import a_stage, steps

from locust_llm.records.run_facts import OpenLoopSchedule, ProcessHealth, Run, Stage
from locust_llm.records.timing_accuracy import ErrorBounds, MeasurementAccuracy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.sweep_findings import (
    describe_unreached_stages,
    find_sweep_axis,
    summarise_sweep,
)
from locust_llm.report.sections.sweep.sweep_text import make_sweep_warnings
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import SweepSummary
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100, CostModel
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest


def stage(
    run: Run, number: int, value: float, slowest_ms: float, **other: object
) -> tuple[Run, Summary]:
    one = a_stage(run, number, value, find_sweep_axis(run), **other)
    records = steps(slowest_ms)
    return one, summarise_run(collect_columns(records), one, 0, records)


def swept(run: Run, *slowest_ms: float, **other: object) -> SweepSummary:
    """Stages of 1, 2, 4, ..., the highest first."""
    stages = [stage(run, i + 1, 2.0**i, ms, **other) for i, ms in enumerate(slowest_ms)]
    return summarise_sweep(run, stages[::-1], ["stage 9 is left out."])


def test_a_stage_is_a_row() -> None:
    """40 requests from second 10 to 30, TTFT 10, 20, ... 400 ms and 30 ms more: all of them end in
    the measured time."""
    run = replace(
        a_run(sweep="concurrency=1,2", users=None, slo=("ttft p90 < 205ms",)),
        sweep_end="all stages ran",
    )
    found = swept(run, 180, 400)
    assert (found.axis, found.unit, found.ended) == ("concurrency", "users", "all stages ran")
    assert found.missing == ("stage 9 is left out.",)
    assert found.conditions == "ttft < 205ms (the rules on latencies, for each request)"
    low, high = found.levels  # in the order of their values
    assert (low.number, low.value, high.number, high.value) == (1, 1, 2, 2)
    assert (high.users, high.requests, high.succeeded, high.failure_rate) == (2, 40, 40, 0)
    assert high.residual == pytest.approx(0)  # 2/s x 0.235 s = 0.47 in flight
    assert (high.why, high.client, high.sound) == ("stationary", "OK", True)
    assert high.duration_s == 20
    assert high.requests_per_s == pytest.approx(2)
    assert high.output_tokens_per_s == pytest.approx(6)
    assert high.input_tokens_per_s == pytest.approx(200)
    assert high.in_flight == pytest.approx((0.205 + 0.03) * 2)
    assert high.latencies["time_to_first_token"].percentiles[50.0] == pytest.approx(205)
    assert high.latencies["request_latency"].avg == pytest.approx(235)
    assert (low.attainment, high.attainment) == (1, 0.5)
    assert high.goodput_per_s == pytest.approx(1)
    assert high.goodput_low is not None
    assert high.goodput_high is not None
    assert high.goodput_low < 1 < high.goodput_high
    assert (low.slo_status, high.slo_status) == ("PASS", "FAIL")
    assert [r.observed for r in high.slos] == [pytest.approx(361)]  # p90 of 10, 20, ... 400
    assert {knee.rule: knee.value for knee in found.knees}["SLO"] == 1
    assert found.spread == ()


def test_an_open_loop_has_what_it_delivered() -> None:
    run = a_run(sweep="request-rate=1,2", users=None)
    one, summary = stage(run, 1, 2.0, 400)
    one = replace(
        one, offer=OpenLoopSchedule(due=50, never_started=0, duration_s=20.0, most_users=9)
    )
    records = steps(400)
    found = summarise_sweep(run, [(one, summarise_run(collect_columns(records), one, 0, records))])
    assert found.levels[0].answered_share == pytest.approx(0.8)
    assert found.levels[0].kept_up is False
    assert {knee.rule: knee.value for knee in found.knees}["saturation"] is None
    assert found.levels[0].users is None
    assert summary.steady is not None
    assert summary.steady.answered_share is None


def collapsed_stage(axis: str, rule: str) -> tuple[Summary, SweepSummary]:
    """A stage of which no request was measured: 100 requests of its first wave were due within
    10 s, and their first tokens came after 0.1, 0.2, ... 10 s."""
    run = a_run(sweep=f"{axis}=2,40", users=None, slo=(rule,))
    one = a_stage(run, 2, 40.0, axis, measured_at=None, residual=None, why="time")
    records = [
        answered(100.0 * i, 100.0 * i + 30, sent_at=i / 10, phase="warmup") for i in range(1, 101)
    ]
    summary = summarise_run(collect_columns(records), one, 0, records)
    return summary, summarise_sweep(run, [stage(run, 1, 2.0, 40), (one, summary)])


def test_a_stage_that_collapsed_in_its_first_wave_breaks_the_rule() -> None:
    """p50 of 0.1, 0.2, ... 10 s is 5.05 s, and p95 9.505 s."""
    summary, found = collapsed_stage("request-rate", "ttft p95 < 300ms")
    (judged,) = summary.slos
    assert (judged.status, judged.count) == ("FAIL", 100)
    assert judged.reason.startswith("by the 100 requests of the stage's first wave, as none was")
    assert [level.slo_status for level in found.levels] == ["PASS", "FAIL"]
    slo = next(knee for knee in found.knees if knee.rule == "SLO")
    assert (slo.value, slo.high) == (2.0, 40.0)
    texts = [block.text for block in make_sweep_warnings(found, None) if hasattr(block, "text")]
    assert (
        "At request-rate 40 no request was measured. The 100 requests of its first wave had TTFT "
        "from Due p50 5.05 s, p95 9.51 s." in texts
    )


@pytest.mark.parametrize(
    ("axis", "rule"),
    [
        ("request-rate", "ttft p95 < 60s"),  # later requests may wait longer
        ("request-rate", "ttft p95 > 60s"),
        ("concurrency", "ttft p95 < 300ms"),  # all its users came at once
    ],
)
def test_a_first_wave_decides_nothing_else(axis: str, rule: str) -> None:
    summary, found = collapsed_stage(axis, rule)
    assert summary.slos[0].status == "INCONCLUSIVE"
    assert found.levels[-1].slo_status == "INCONCLUSIVE"


def test_the_values_that_a_sweep_did_not_reach_are_named() -> None:
    """-t 40: the load of the stage at 10 was from 5 to 9 s, and the stage at 40 began after 36 s."""
    run = a_run(sweep="request-rate=2,10,40,80,160", users=None, run_time_s=40.0)
    began = [(2.0, 0.0), (10.0, 5.0), (40.0, 36.0)]
    stages = [
        Stage(number=i, value=value, began_at=UNIX + at, ended_at=UNIX + at + 4)
        for i, (value, at) in enumerate(began, 1)
    ]
    run = replace(run, stages=tuple(stages), stopping_at=UNIX + 40.0)
    line = (
        "request-rate 80 and 160 were not reached: the stage at 10 took 31 of 40 s, 27 s of it after "
        "its load, for open requests and its report"
    )
    assert describe_unreached_stages(run) == line
    found = summarise_sweep(run, [])
    texts = [block.text for block in make_sweep_warnings(found, None) if hasattr(block, "text")]
    assert f"WARNING: {line}." in texts
    every = replace(run, settings=replace(run.settings, sweep="request-rate=2,10,40"))
    assert describe_unreached_stages(every) == ""


def test_repeats_have_a_spread_and_no_knees() -> None:
    """Medians of 102.5, 205 and 307.5: 205 on average, 102.5 off it."""
    run = a_run(repeats=3, goodput="time_to_first_token:205")
    stages = [stage(run, i, i, i * 200, measured_at=None) for i in (1, 2, 3)]
    found = summarise_sweep(run, stages)
    assert (found.axis, found.knees, found.findings, found.repeats) == ("repeat", (), (), True)
    spread = {row.label: row for row in found.spread}
    assert list(spread) == ["TTFT p50", "TTFT p95", "TTFT p99", "ITL p50", "ITL p95",
        "Output Token Throughput",
                            "Request Throughput", "Goodput"]  # fmt: skip
    ttft = spread["TTFT p50"]
    assert (ttft.avg, ttft.std, ttft.min, ttft.max, ttft.count) == pytest.approx(
        (205, 102.5, 102.5, 307.5, 3)
    )
    assert spread["ITL p95"].std == 0
    one = summarise_sweep(run, stages[:1]).spread[0]
    assert (one.std, one.count) == (None, 1)
    assert summarise_sweep(run, []).spread == ()


def test_what_stages_differ_in() -> None:
    assert find_sweep_axis(a_run(sweep=" input-tokens = 1..4")) == "input-tokens"
    assert find_sweep_axis(a_run(repeats=3)) == "repeat"


def test_a_sweep_without_a_stage_concludes_nothing() -> None:
    found = summarise_sweep(a_run(sweep="concurrency=1,2", slo=("ttft p90 < 1s",)), [])
    assert found.levels == ()
    assert all(knee.value is None and "INCONCLUSIVE" in knee.text for knee in found.knees)
    assert found.findings == ()


def test_a_burnt_client_makes_all_of_it_inconclusive() -> None:
    """Two of three chunks came merged with others: the stages have figures, and nothing follows
    from them."""
    run = replace(
        a_run(sweep="concurrency=1,2", users=None, slo=("itl p90 < 5ms",), gpus=1), sweep_end="over"
    )
    stages = []
    for number, value in enumerate((1.0, 2.0), 1):
        one = a_stage(run, number, value, "concurrency")
        records = [
            replace(record, merged=((1, 0), (2, 0)), chunk_us=record.chunk_us[:1] * 3)
            for record in steps(200)
        ]
        stages.append((one, summarise_run(collect_columns(records), one, 0, records)))
    found = summarise_sweep(run, stages)
    assert [level.client for level in found.levels] == ["INVALID", "INVALID"]
    assert [level.slo_status for level in found.levels] == ["INCONCLUSIVE", "INCONCLUSIVE"]
    assert all(knee.value is None and knee.text.startswith("INCONCLUSIVE") for knee in found.knees)
    assert "the client verdict is INVALID" in found.knees[0].text
    assert found.findings == ()
    assert summarise_run(collect_columns([]), run, sweep=found).slo_status == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("rule", "status"), [("ttft p90 < 5s", "PASS"), ("ttft p90 < 1ms", "FAIL")]
)
def test_a_decision_that_a_burnt_client_cannot_have_turned_stands_in_a_sweep(
    rule: str, status: str
) -> None:
    """TTFT of 100 to 299 ms, sentinels 60 ms off."""
    run = replace(a_run(sweep="concurrency=1,2", users=None, slo=(rule,)), sweep_end="over")
    off = ErrorBounds(count=100, p50_ms=60.0, p95_ms=60.0, p99_ms=60.0, max_ms=60.0)
    health = ProcessHealth(
        worker="local", cpu_share=0.1, loop_lag_p99_ms=1.0,
        certificate=MeasurementAccuracy(streams=10, chunks=100, ttft=off, gap=off),
    )  # fmt: skip
    stages = []
    for number, value in enumerate((1.0, 2.0), 1):
        one = replace(a_stage(run, number, value, "concurrency"), health=(health,))
        records = [
            answered(99 + i, 400, 420, sent_at=10.0 + at) for at, i in enumerate(mixed(200), 1)
        ]
        stages.append((one, summarise_run(collect_columns(records), one, 0, records)))
    found = summarise_sweep(run, stages)
    assert [level.client for level in found.levels] == ["INVALID", "INVALID"]
    assert summarise_run(collect_columns([]), run, sweep=found).slo_status == status


# -- a server whose knee is known ------------------------------------------------------------------

STEP_S = 0.1
SLOTS, PROMPT, OUT = 8, 10, 10
NOTHING = CostModel(
    parameters=0,
    weight_bytes=0,
    num_layers=0,
    hidden_size=0,
    kv_bytes_per_token=0,
    max_model_len=1000,
)
COST = replaced(LLAMA_8B_H100, model=NOTHING, step_overhead_s=STEP_S, seq_overhead_s=0.0)


def virtual(run: Run, number: int, users: int, burnt: bool) -> tuple[Run, Summary]:
    """A stage in virtual time: eight slots, steps of 0.1 s, a request takes ten of them; so 8
    requests/s, and one alone 1 s. Measured from second 10 to second 30."""
    clock = VirtualClock()
    config = SchedulerConfig(max_num_batched_tokens=1000, max_num_seqs=SLOTS, kv_tokens=16 * 1024)
    engine = BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), COST, clock)
    load = Virtual(clock, engine, keep_tokens=True)
    load.closed_loop(users, repeat(VirtualRequest(PROMPT, OUT)), stagger_s=STEP_S)
    records = []
    for row in load.run(until=40):
        chunks = [1000 * (at - row.sent_at) for at in row.token_at]
        phase = "profiling" if 10 <= row.sent_at <= 30 else "warmup"
        record = answered(*chunks, sent_at=row.sent_at, phase=phase)
        records.append(
            replace(record, merged=((1, 0), (2, 0)), chunk_us=record.chunk_us[:1] * 3)
            if burnt
            else record
        )
    one = a_stage(run, number, users, "concurrency")
    return one, summarise_run(collect_columns(records), one, 0, records)


def virtual_sweep(*, burnt: bool = False) -> SweepSummary:
    run = a_run(sweep="concurrency=1..32", users=None, slo=("ttft p90 < 350ms",))
    return summarise_sweep(run, [virtual(run, i + 1, 2**i, burnt) for i in range(6)])


def test_the_knee_of_a_server_is_found_where_its_parameters_say() -> None:
    found = virtual_sweep()
    assert [level.requests_per_s for level in found.levels] == pytest.approx(
        [1, 2, 4, 8, 8, 8], rel=0.1
    )
    assert [level.in_flight for level in found.levels] == pytest.approx(
        [1, 2, 4, 8, 16, 32], rel=0.02
    )
    by_rule = {knee.rule: knee for knee in found.knees}
    assert by_rule["asymptotic"].value == pytest.approx(SLOTS, rel=0.1)
    assert by_rule["asymptotic"].low is None  # throughput has stopped to rise
    assert (by_rule["SLO"].value, by_rule["SLO"].high) == (8, 16)
    assert any(
        finding.startswith("Beyond concurrency 8 goodput falls") for finding in found.findings
    )
    # 480 a minute, or nearly
    assert any("at the SLO (concurrency 8): 4" in finding for finding in found.findings)


def test_with_a_burnt_client_only_the_rule_is_decided() -> None:
    """TTFT may be reported too high by so little that the limit lies beyond it."""
    found = virtual_sweep(burnt=True)
    assert [level.client for level in found.levels] == ["INVALID"] * 6
    slo, *others = found.knees
    assert (slo.value, slo.high) == (8, 16)
    assert all(knee.value is None and knee.text.startswith("INCONCLUSIVE") for knee in others)
    assert found.findings == ()
