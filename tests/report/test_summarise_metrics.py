"""A run's summary, figure by figure, from records small enough for a pencil."""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.records.ttft_itl_latency import AT_ONCE, ONE_CHUNK
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.tiles import make_tiles
from locust_llm.report.sections import notes
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.summary_rows import Row
from locust_llm.slo.metric_definitions import EXPORTED


def summary_of(*records: Record, run: Run | None = None, **settings: object) -> Summary:
    return summarise_run(collect_columns(records), run or a_run(**settings))


def row(summary: Summary, tag: str) -> Row:
    return next(row for row in (*summary.rows, *summary.adjusted) if row.tag == tag)


def test_two_requests() -> None:
    """Second 10 to second 10.3, and second 11 to 11.5: 1.5 s from first send to last end."""
    one = answered(200, 220, 240, 300, admitted_at=9.9, asked_at=9.8, due_at=9.8, cached_tokens=25)
    two = answered(
        100,
        500,
        sent_at=11.0,
        due_at=10.0,
        connect_s=0.002,
        input_tokens=300,
        read_lag_us=250,
        rtt_us=40,
    )
    summary = summary_of(one, two)
    expected = {
        "request_latency": (2, 400.0, 300.0, 500.0),
        "time_to_first_token": (2, 150.0, 100.0, 200.0),
        "inter_token_latency": (2, (100 / 3 + 400) / 2, 100 / 3, 400.0),
        "inter_chunk_latency": (4, 125.0, 20.0, 400.0),
        "longest_stall": (2, 230.0, 60.0, 400.0),
        "prefill_gate_wait": (1, 100.0, 100.0, 100.0),
        "schedule_delay": (2, 600.0, 200.0, 1000.0),
        "time_to_first_token_from_due": (2, 750.0, 400.0, 1100.0),
        "http_req_connecting": (1, 2.0, 2.0, 2.0),
        "read_lag": (2, 0.125, 0.0, 0.25),
        "tcp_round_trip": (1, 0.04, 0.04, 0.04),
        "output_token_throughput_per_user": (2, (30 + 2.5) / 2, 2.5, 30.0),
        "input_sequence_length": (2, 200.0, 100.0, 300.0),
        "output_sequence_length": (2, 3.0, 2.0, 4.0),
        "usage_prompt_cache_read_tokens": (1, 25.0, 25.0, 25.0),
    }
    for tag, (count, *figures) in expected.items():
        said = row(summary, tag)
        assert (said.count, said.avg, said.min, said.max) == pytest.approx((count, *figures)), tag
    throughputs = {row.tag: row.avg for row in summary.rows if row.count is None}
    assert throughputs == pytest.approx(
        {
            "request_throughput": 2 / 1.5,
            "output_token_throughput": 6 / 1.5,
            "input_token_throughput": 400 / 1.5,
            "total_token_throughput": 406 / 1.5,
        }
    )
    assert {row.tag for row in summary.rows} == expected.keys() | throughputs.keys()
    assert row(summary, "request_latency").std == pytest.approx(math.sqrt(2 * 100**2))  # ddof=1
    assert row(summary, "request_latency").percentiles[50] == pytest.approx(400)
    # linear: 300 + 0.9 * 200
    assert row(summary, "request_latency").percentiles[90] == pytest.approx(480)
    assert summary.conditions.duration_s == pytest.approx(1.5)
    assert summary.conditions.cached_share == 0.25  # of the 100 tokens of the one request that told


def test_latency_is_ttft_and_the_sum_of_the_gaps() -> None:
    summary = summary_of(answered(200, 220, 300), answered(150, 171, 171), answered(7))
    latency, ttft, gap = (
        row(summary, tag).sum
        for tag in ("request_latency", "time_to_first_token", "inter_chunk_latency")
    )
    assert latency == pytest.approx(ttft + gap)  # type: ignore[operator]


def test_reasoning_brings_its_rows() -> None:
    plain = summary_of(answered(100, 200))
    thinking = summary_of(answered(100, 200, first_output=1, reasoning_tokens=1), answered(100))
    assert not {"time_to_first_output_token", "reasoning_token_count"} & {
        row.tag for row in plain.rows
    }
    assert row(thinking, "time_to_first_output_token").avg == pytest.approx(150)
    assert row(thinking, "reasoning_token_count").count == 1


def test_warmup_is_apart() -> None:
    summary = summary_of(answered(900, phase="warmup", sent_at=1.0), answered(200, 220))
    assert row(summary, "request_latency").count == 1
    assert summary.conditions.duration_s == pytest.approx(0.22)
    assert summary.counts.warmup == 1
    warm = {row.tag: row for row in summary.warmup}
    assert warm["request_latency"].avg == pytest.approx(900)
    assert warm["inter_chunk_latency"].count == 0


def test_failures_are_infinite() -> None:
    """Eight of 100, 200 ... 800 ms and two failures: of ten, the 8th is 800 ms (p80), the 9th a
    failure."""
    records = [answered(100.0 * (i + 1)) for i in range(8)] + [
        failed(),
        failed("timeout", due_at=8.0),
    ]
    summary = summary_of(*records, percentiles=(10.0, 50.0, 80.0, 81.0, 90.0))
    said = row(summary, "adj_request_latency")
    assert said.count == 10
    assert {p: said.percentiles[p] for p in (10, 50, 80, 81, 90, 99)} == pytest.approx(
        {10: 100, 50: 500, 80: 800, 81: math.inf, 90: math.inf, 99: math.inf}
    )
    assert row(summary, "request_latency").count == 8
    assert row(summary, "schedule_delay").count == 10  # a failed request was late all the same
    assert row(summary, "schedule_delay").max == pytest.approx(2000)
    assert summary.conditions.failure_rate == 0.2
    # the failures ended at second 11
    assert row(summary, "request_throughput").avg == pytest.approx(8 / 1.0)
    assert summary_of(*records[:8]).adjusted == ()


def test_a_figure_that_no_answer_has_is_no_failure_either() -> None:
    """Of an imported result without due times: nothing has a TTFT from due, a failure neither."""
    lacks = {"lacks": ("due",)}
    summary = summary_of(*[answered(100, 150, **lacks)] * 8, *[failed(**lacks)] * 4)
    tags = [row.tag for row in summary.adjusted]
    assert "adj_time_to_first_token" in tags
    assert "adj_time_to_first_token_from_due" not in tags
    one_chunk = summary_of(*[answered(100)] * 8, *[failed()] * 4)
    tags = [row.tag for row in one_chunk.adjusted]
    assert tags == [
        "adj_request_latency",
        "adj_time_to_first_token",
        "adj_time_to_first_token_from_due",
    ]


def test_partial_answers_of_failures_are_no_successes() -> None:
    summary = summary_of(answered(200, 300), failed("truncated", chunk_us=(5, 7), first_output=0))
    assert row(summary, "time_to_first_token").count == 1
    assert row(summary, "inter_chunk_latency").count == 1
    assert row(summary, "adj_time_to_first_token").count == 2


def test_cut_and_cancelled_are_neither() -> None:
    summary = summary_of(
        answered(100, 200),
        failed("cut", chunk_us=(3,)),
        failed("cancelled"),
        failed("cut", sent_at=None),
    )
    conditions = summary.conditions
    assert (conditions.requests, conditions.succeeded, conditions.failed) == (4, 1, 0)
    assert (conditions.cut, conditions.cancelled, conditions.failure_rate) == (2, 1, 0.0)
    assert summary.counts.never_sent == 1
    # 0.003 and 100 ms, one of which nothing is known, and one that was cancelled after a second
    first = row(summary, "adj_time_to_first_token")
    assert (first.count, first.percentiles[90.0]) == (4, math.inf)
    assert first.percentiles[25.0] == pytest.approx(0.003 + 0.75 * (100 - 0.003))
    least = (first.at_least[25.0], first.at_least[50.0], first.at_least[90.0])
    # places 0.75, 1.5 and 2.7 of 0, 0.003, 100, 1000
    assert least == pytest.approx((0.00225, 50.0015, 730.0))
    assert summary.counts.cut_ages_s == (1, 1)
    assert summary.counts.cut_without_chunk == 1
    assert conditions.duration_s == pytest.approx(1.0)  # the cut request ended at second 11


def test_failures_of_one_kind_share_a_line() -> None:
    summary = summary_of(
        failed("http_status", status=400, error="request ab12 has 4096 tokens"),
        failed("http_status", status=400, error="request cd34 has 512 tokens"),
        failed("http_status", status=500, error="request ef56 has 1 tokens"),
        failed("reset", name="other", error=""),
    )
    lines = [(f.outcome, f.name, f.status, f.count, f.message) for f in summary.failures]
    assert lines[0] == ("http_status", "chat", 400, 2, "request ab12 has 4096 tokens")
    assert sorted(lines[1:]) == [
        ("http_status", "chat", 500, 1, "request ab12 has 4096 tokens"),
        ("reset", "other", None, 1, ""),
    ]


def test_nothing_at_all() -> None:
    summary = summary_of()
    assert all(
        row.avg is None and not row.count for row in summary.rows if row.tag != "request_throughput"
    )
    assert summary.conditions.duration_s is None
    assert summary.conditions.failure_rate is None
    assert any("nothing to report" in remark for remark in notes.make_remarks(summary, a_run()))


def test_only_failures() -> None:
    summary = summary_of(failed(), failed("refused", sent_at=None))
    assert summary.conditions.failure_rate == 1.0
    assert row(summary, "request_latency").count == 0
    assert row(summary, "request_throughput").avg == 0
    assert set(row(summary, "adj_request_latency").percentiles.values()) == {math.inf}
    assert row(summary, "adj_request_latency").min == math.inf


def test_one_request_of_one_token() -> None:
    summary = summary_of(answered(200))
    latency = row(summary, "request_latency")
    assert (latency.avg, latency.std, latency.percentiles[99]) == (
        pytest.approx(200),
        None,
        pytest.approx(200),
    )
    assert row(summary, "inter_token_latency").count == 0
    assert row(summary, "inter_chunk_latency").count == 0
    assert row(summary, "request_throughput").avg == pytest.approx(5)


def test_lengths_asked_and_delivered() -> None:
    summary = summary_of(
        answered(1, 2, asked_input_tokens=90, asked_output_tokens=4),
        answered(1, 2, input_tokens=None, asked_input_tokens=1000),
        answered(1, 2, input_tokens=500),
    )
    conditions = summary.conditions
    assert conditions.input_deviation == pytest.approx(100 / 90 - 1)  # only of the pair
    assert conditions.output_deviation == -0.5
    # delivered: to those that asked
    assert (conditions.input_tokens, conditions.asked_input_tokens) == (100, 545)
    said = [
        remark for remark in notes.make_remarks(summary, a_run()) if "requested tokens" in remark
    ]
    assert ["11.1% above" in said[0], "50.0% below" in said[1]] == [True, True]


def test_where_the_tokens_come_from() -> None:
    summary = summary_of(
        answered(1),
        answered(1),
        answered(1, tokens_from="chunks"),
        answered(1, output_tokens=None, tokens_from=""),
    )
    counts = summary.counts
    assert (counts.tokens_from_usage, counts.tokens_from_chunks, counts.tokens_unknown) == (2, 1, 1)
    assert any(
        "2 of 4" in remark and "of 1 each chunk counts as one" in remark
        for remark in notes.make_remarks(summary, a_run())
    )


def test_merged_chunks_are_counted_and_kept_out() -> None:
    merged = answered(100, 120, 140, 140, merged=((2, 125_000), (3, 125_000)))
    summary = summary_of(merged, answered(5, merged=((0, 1),)))
    counts = summary.counts
    # one came with no other chunk
    assert (counts.chunks, counts.merged_chunks, counts.ttft_upper_bounds) == (5, 2, 1)
    assert row(summary, "inter_chunk_latency").count == 1
    said = " ".join(notes.make_remarks(summary, a_run()))
    assert "40.0% of the chunks" in said
    assert "upper bound" in said


def test_processes_have_clocks_of_their_own() -> None:
    other = answered(500, sent_at=1.0, clock_offset_s=UNIX + 10)  # the same moment as second 11
    assert summary_of(answered(100), other).conditions.duration_s == pytest.approx(1.5)


def test_clock_and_simulated() -> None:
    summary = summary_of(answered(1), answered(1, clock="thread", simulated=True))
    assert summary.conditions.clock == "kernel 50.0%, thread 50.0%"
    assert summary.conditions.simulated
    assert summary_of(answered(1)).conditions.clock == "kernel"


def test_gate_use_is_of_the_benchmark() -> None:
    """One slot, from second 10 on; the first holds it for 200 ms, the second waits from 10.1 and
    sends at 10.25."""
    one = answered(200, 400, admitted_at=10.0)
    two = answered(150, asked_at=10.1, due_at=10.1, admitted_at=10.25, sent_at=10.25)
    gate = summary_of(one, two, run=a_run(((0.0, 1),), prefill_concurrency=1)).gate
    assert gate is not None
    assert (gate.max_used, gate.waited_s) == (1, pytest.approx(0.15))
    assert gate.utilisation == pytest.approx(0.1 / 0.15)
    assert gate.mean_used == pytest.approx(0.35 / 0.4)
    assert summary_of(one).gate is None


def test_an_answer_in_one_read_or_one_chunk_has_no_itl_and_no_token_rate() -> None:
    merged = ((0, 1), (1, 1), (2, 1))
    one_read, one_chunk = answered(5, 5, 5, merged=merged), answered(5, output_tokens=50)
    summary = summary_of(one_read, one_chunk, one_chunk, answered(5, 10, 15))
    assert (
        row(summary, "inter_token_latency").count
        == row(summary, "output_token_throughput_per_user").count
        == 1
    )
    assert row(summary, "inter_token_latency").avg == 5
    assert summary.counts.without_itl == {ONE_CHUNK: 2, AT_ONCE: 1}


def test_counts_that_were_not_taken_are_counted_by_their_names() -> None:
    zero, left_out = (("output_tokens", "0"),), (("input_tokens", "0"), ("output_tokens", "-1"))
    records = [answered(1, 2, rejected_counts=rejected) for rejected in (zero, zero, left_out, ())]
    assert summary_of(*records).counts.rejected_counts == {
        "output_tokens": (3, "0"),
        "input_tokens": (1, "0"),
    }


def test_a_chunk_stamped_after_the_close_ends_the_run() -> None:
    assert summary_of(answered(700, closed_at=10.5)).conditions.duration_s == pytest.approx(0.7)


def test_exported_percentiles_are_always_there() -> None:
    assert set(
        row(summary_of(answered(1), percentiles=(99.9,)), "request_latency").percentiles
    ) == {*EXPORTED, 99.9}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, ["Closed loop", "--request-rate"]),
        ({"prefill_concurrency": 3}, ["3 awaiting their first token at a time", "TTFT from Due"]),
    ],
)
def test_what_the_latencies_leave_out(settings: dict[str, object], words: list[str]) -> None:
    said = notes.make_loop_remark(summary_of(answered(1), **settings).conditions)
    assert all(word in said for word in words)
    assert "\n" not in said


def test_what_is_missing_is_said() -> None:
    summary = summary_of(answered(1), failed("cut"), failed("cancelled"), answered(streamed=False))
    run = Run(
        name="r",
        settings=a_run().settings,
        started_at=0,
        profiling_at=0,
        turned_away=2,
        records_lost=3,
    )
    of_cut = summarise_run(collect_columns([failed("cut")]), run, broken_lines=1)
    said = " ".join((*notes.list_missing_parts(of_cut, run), *notes.make_remarks(of_cut, run)))
    for words in ("1 request was unfinished", "2 requests were due when the run ended and never sent",
                  "3 requests of lost workers have no record", "1 unreadable line",
                  "did not end cleanly"):  # fmt: skip
        assert words in said
    gated = replace(run, settings=a_run(prefill_concurrency=1).settings)
    of_gate = " ".join(
        notes.make_remarks(summarise_run(collect_columns([answered(1)]), gated), gated)
    )
    assert "2 requests were waiting for a prefill slot when the run ended and never sent" in of_gate
    assert "answered in one piece" in " ".join(notes.make_remarks(summary, a_run()))


def test_embeddings_have_no_rows_of_output() -> None:
    """Two requests of 4 and 8 inputs, of 300 and 500 ms, from second 10 to second 11.5."""
    whole: dict[str, Any] = {"streamed": False, "output_tokens": None, "asked_output_tokens": None}
    one = answered(inputs=4, closed_at=10.3, input_tokens=40, **whole)
    two = answered(inputs=8, sent_at=11.0, closed_at=11.5, input_tokens=80, **whole)
    summary = summary_of(one, two, failed(), endpoint_type="embeddings", streaming=False)
    assert [row.tag for row in summary.adjusted] == ["adj_request_latency"]
    tags = {row.tag for row in summary.rows}
    assert not tags & {
        "time_to_first_token",
        "inter_token_latency",
        "output_token_throughput",
        "output_sequence_length",
    }
    assert row(summary, "request_latency").avg == pytest.approx(400)
    assert row(summary, "input_throughput").avg == pytest.approx(12 / 1.5)
    assert row(summary, "input_token_throughput").avg == pytest.approx(120 / 1.5)
    assert row(summary, "inputs").avg == 6
    assert [name for name, *_ in make_tiles(summary, a_run())] == [
        "Latency, p95",
        "Inputs",
        "Input tokens",
        "Requests",
        "Failed",
    ]


def test_tiles_are_of_what_users_waited_and_of_each_name() -> None:
    """A second at a gate, then 100 ms; and two names, which have no common tile."""
    waited = [answered(100, 120, sent_at=11.0, admitted_at=11.0, asked_at=10.0, due_at=10.0)] * 3
    run = a_run(((0.0, 1),), prefill_concurrency=1)
    found = [
        (tile.name, tile.value, tile.more)
        for tile in make_tiles(summarise_run(collect_columns(waited), run), run)
    ]
    assert found[:2] == [
        ("TTFT from due, p95", "1.1 s*", "from the send 100 ms*; p50 1.1 s, p99 1.1 s*"),
        ("ITL, p95", "20 ms*", "p50 20 ms, p99 20 ms*"),
    ]
    records = [*[answered(50, 60)] * 6, *[answered(900, 910, name="rag")] * 3]
    named = [
        (tile.name, tile.value)
        for tile in make_tiles(summarise_run(collect_columns(records), a_run()), a_run())
    ]
    assert named[:3] == [
        ("TTFT, chat, p95", "50 ms*"),
        ("TTFT, rag, p95", "900 ms*"),
        ("Output tokens", named[2][1]),
    ]


def test_permits_that_are_late_between_processes_are_the_load_generators_delay() -> None:
    """The limit is one. b waits a second for a permit that nobody has, which is half of its TTFT
    from due."""
    run = a_run(limits=((0.0, 1),))
    here = [answered(1000, 1010, worker="a", sent_at=10.0, admitted_at=10.0)]
    there = [
        answered(1000, 1010, worker="b", sent_at=13.0, due_at=12.0, asked_at=12.0, admitted_at=13.0)
    ]
    found = {
        one.worker: one for one in summarise_run(collect_columns([*here, *there]), run).evidence
    }
    assert (found["a"].permit_lag_p99_ms, found["b"].permit_lag_p99_ms) == pytest.approx(
        (0.0, 1000.0), abs=1e-3
    )
    one_process = [answered(1000, 1010, sent_at=13.0, due_at=12.0, asked_at=12.0, admitted_at=13.0)]
    assert summarise_run(collect_columns(one_process), run).evidence[0].permit_lag_p99_ms is None


def test_a_length_is_of_each_choice_and_chunks_are_no_tokens() -> None:
    both = [answered(10, 20, choices=2, output_tokens=60, asked_output_tokens=30)] * 4
    conditions = summary_of(*both).conditions
    assert (conditions.asked_output_tokens, conditions.output_deviation) == (60, 0)
    chunks = [answered(10, 20, asked_output_tokens=40, tokens_from="chunks")] * 4
    assert summary_of(*chunks).conditions.output_deviation is None
