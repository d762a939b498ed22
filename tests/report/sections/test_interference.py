"""Disturbed and undisturbed gaps: by pencil, against a slow exact twin, and of policies in virtual
time."""

import math
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import recorded
from support.engine_truth import TruthEngine
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import write_run
from locust_llm.report import write_report_files as report
from locust_llm.report.document_blocks import TextBlock
from locust_llm.report.gate_occupancy import compute_occupancy
from locust_llm.report.load_records import collect_columns
from locust_llm.report.render.text_report import render_plain_block
from locust_llm.report.sections.interference import (
    MIN_BASE_SHARE,
    MIN_COMPARED,
    MIN_COMPARED_SHARE,
    LabelledGaps,
    PrefillInterference,
    PrefillSlope,
    count_prefills_ahead,
    estimate_usual_gaps_s,
    fit_prefill_slope,
    label_gaps,
    make_interference_blocks,
    measure_interference,
)
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest


def found(*records: Record) -> PrefillInterference:
    columns = collect_columns(records)
    said = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert said is not None
    return said


def labels(*records: Record) -> list[int]:
    return label_gaps(compute_occupancy(collect_columns(records).requests, ()), records)[
        0
    ].prefills.tolist()


def steady(count: int, gap_ms: float, first_ms: float = 100.0) -> list[float]:
    return [first_ms + gap_ms * i for i in range(count + 1)]


# -- by pencil -------------------------------------------------------------------------------------


def test_three_requests() -> None:
    """
    ms      0     100   110   120 ... 400   600   610 ... 900
    one     prefill|  gaps of 10 ms, 30 of them | 200 | 30 gaps of 10
    two                                     sent 400, first chunk 600, one gap of 300 to 900
    three                                   sent 400, failed at 580
    """
    one = answered(*steady(30, 10.0), *steady(30, 10.0, 600.0), id="one")
    two = answered(200, 500, sent_at=10.4, id="two", input_tokens=1000)
    three = failed(sent_at=10.4, closed_at=10.58)
    said = found(one, two, three)
    # one's gap of 200 ms: two in prefill all of it, three for 180 ms of it: 1.9, so 2
    assert [(row.label, row.gaps) for row in said.rows] == [("0", 61), ("2", 1)]
    assert said.decode_s == pytest.approx(0.3 + 0.2 + 0.3 + 0.3)
    assert said.rows[1].share == pytest.approx(0.2 / 1.1)
    assert said.rows[1].icl_ms == pytest.approx({50: 200, 90: 200, 99: 200})
    assert said.rows[0].longest_ms == pytest.approx(300)
    assert said.rows[0].requests == 2
    # one request had 60 gaps of 10 ms, the other one of 300: the mean of each, and the median of
    # the two
    assert said.rows[0].itl_ms[50] == pytest.approx((10 + 300) / 2)
    assert said.disturbed is not None
    assert said.disturbed.slowdown is None  # one gap is too few to be compared
    assert said.lost_s is None


def test_slower_and_lost() -> None:
    """One stream: 40 gaps of 10 ms by itself, then 40 of 40 ms beside a prefill: 4 times, and 40 x
    30 ms are lost."""
    one = answered(*steady(40, 10.0), *steady(39, 40.0, 540.0))
    other = failed(sent_at=10.5, closed_at=12.1)
    said = found(one, other)
    assert [(row.label, row.gaps) for row in said.rows] == [("0", 40), ("1", 40)]
    assert said.rows[0].slowdown == pytest.approx(1)
    assert said.rows[1].slowdown == pytest.approx(4)
    assert said.rows[1].streams == pytest.approx(1)
    assert (said.lost_s, said.lost_share) == (pytest.approx(1.2), pytest.approx(1.2 / 2.0))


def test_a_gap_across_a_standstill_of_the_server_is_no_loss_to_prefill() -> None:
    """As above, but the last of the 40 gaps beside the prefill takes 6 s, of which the server
    stood still for 5.9 s. Without it 39 x 30 ms of 1.96 s are lost, and with it 7.15 s were. A
    standstill of less than half of a gap leaves none out."""
    one = answered(*steady(40, 10.0), *steady(38, 40.0, 540.0), 8060.0)
    columns = collect_columns((one, failed(sent_at=10.5, closed_at=18.1)))
    levels = compute_occupancy(columns.requests, ())

    def lost_s(*standstills: tuple[float, float]) -> tuple[float | None, object]:
        measured = measure_interference(columns, levels, [one], standstills)
        assert measured is not None
        text = "".join(map(render_plain_block, make_interference_blocks(measured)))
        assert ("1 gap across a standstill" in text.replace("\n  ", " ")) == bool(
            measured.standstill_gaps
        )
        return measured.lost_s, measured.standstill_gaps

    assert lost_s((UNIX + 12.1, UNIX + 18.0)) == (pytest.approx(39 * 0.03), 1)
    assert lost_s((UNIX + 12.1, UNIX + 12.2)) == (
        pytest.approx(39 * 0.03 + 5.99),
        msgspec.UNSET,
    )


def test_ttft_by_the_prefills_ahead_is_without_a_standstill_of_the_server() -> None:
    """Four requests one after the other with first tokens after 100 ms, and two at once after 6.1 s:
    the server stood still for 6 s of that."""
    records = [answered(100, 120, sent_at=10.0 + second) for second in range(4)]
    records += [answered(6100, 6120, sent_at=20.0 + ms / 1e3) for ms in (0, 1)]
    columns = collect_columns(records)
    levels = compute_occupancy(columns.requests, ())

    def count(*standstills: tuple[float, float]) -> tuple[list[tuple[str, int]], object]:
        measured = measure_interference(columns, levels, records, standstills)
        assert measured is not None
        rows = [(row.label, row.count) for row in measured.ahead]
        return rows, measured.standstill_requests

    assert count() == ([("0", 5), ("1", 1)], msgspec.UNSET)
    assert count((UNIX + 20.05, UNIX + 26.05)) == ([("0", 4)], 2)


def test_compared_at_as_many_streams_only() -> None:
    """Two streams take 20 ms a gap, one takes 10: by itself 10, beside a prefill 20 with two
    streams. Nothing is slower."""
    long = answered(*steady(40, 10.0, 0.0), *steady(79, 20.0, 420.0), id="long")
    beside = answered(*steady(80, 20.0, 400.0), id="beside", sent_at=10.0)
    prefill = failed(sent_at=11.2, closed_at=12.0)
    # beside waits for its first token while long has its first 40 gaps: a prefill; so an
    # undisturbed stream goes before
    alone = answered(*steady(40, 10.0, 0.0), sent_at=5.0, id="alone")
    said = found(long, beside, prefill, alone)
    by_label = {row.label: row for row in said.rows}
    assert by_label["0"].gaps == 40 + 2 * 40
    assert by_label["1"].gaps == 40 + 2 * 40
    assert by_label["1"].slowdown == pytest.approx(1)
    assert said.lost_s == pytest.approx(0, abs=1e-5)


def test_failing_as_many_streams_more_of_them() -> None:
    """Two users who ask again at once: both decode, 20 ms a gap, or one does and the other is in
    prefill, 60 ms a gap. One alone is never seen, so one is compared with two."""
    one = answered(*steady(39, 20.0), *steady(19, 60.0, 940.0), id="one")
    two = answered(*steady(39, 20.0), id="two")
    again = failed(sent_at=10.88, closed_at=12.1)
    by_label = {row.label: row for row in found(one, two, again).rows}
    assert (by_label["0"].gaps, by_label["0"].streams) == (78, pytest.approx(2))
    assert by_label["1"].streams == pytest.approx(1)
    assert by_label["1"].slowdown is None  # of 20 gaps nothing is said
    more = answered(*steady(39, 20.0), *steady(39, 60.0, 940.0), id="one")
    again = failed(sent_at=10.88, closed_at=13.5)
    assert {row.label: row.slowdown for row in found(more, two, again).rows} == pytest.approx(
        {"0": 1, "1": 3}
    )


@pytest.mark.parametrize(("short_gap_ms", "usual_ms"), [(2.0, 20.0), (4.0, 4.0)])
def test_moments_with_one_stream_less_are_no_base(short_gap_ms: float, usual_ms: float) -> None:
    """Two streams for 1 s with 50 gaps of 20 ms each, 2 s in total. Then one alone, with 60 gaps of
    2 ms: 0.12 of 2.12 s are 6 %, too few, so 40 gaps of 80 ms beside a prefill took 4 times as long
    as 20 ms, not 40 times as long as 2 ms. With gaps of 4 ms it is 0.24 of 2.24 s, 11 %."""
    alone_ms = 60 * short_gap_ms
    two = answered(*steady(50, 20.0, 0.0), id="two")
    one = answered(
        *steady(50, 20.0, 0.0),
        *steady(59, short_gap_ms, 1000.0 + short_gap_ms),
        *steady(39, 80.0, 1080.0 + alone_ms),
        id="one",
    )
    began = 11.0001 + alone_ms / 1e3
    said = found(one, two, failed(sent_at=began, closed_at=began + 4.0))
    by_label = {row.label: row for row in said.rows}
    assert (by_label["0"].gaps, by_label["1"].gaps) == (160, 40)
    assert by_label["1"].usual_ms == pytest.approx(usual_ms)
    assert by_label["1"].slowdown == pytest.approx(80 / usual_ms)
    assert said.lost_s == pytest.approx(40 * (0.08 - usual_ms / 1e3))


def test_fewer_streams_are_nothing_to_compare_with() -> None:
    """By itself 10 ms; with another stream and a prefill 40 ms: which of the two it was cannot be
    told. Only the ten gaps beside the other one's own prefill were at one stream."""
    one = answered(*steady(40, 10.0), *steady(39, 40.0, 540.0))
    other = answered(*steady(40, 40.0), sent_at=10.4, id="other")
    prefill = failed(sent_at=10.5, closed_at=13.0)
    said = found(one, other, prefill)
    assert said.disturbed is not None
    assert (said.disturbed.compared, said.disturbed.slowdown, said.lost_s) == (10, None, None)


def test_no_undisturbed_gap() -> None:
    said = found(answered(*steady(50, 10.0)), failed(sent_at=10.0, closed_at=12.0))
    assert [(row.label, row.gaps, row.slowdown) for row in said.rows] == [("1", 50, None)]
    assert said.lost_s is None


@pytest.mark.parametrize(("overlap_ms", "label"), [(0.001, 0), (4.9, 0), (5.0, 1), (9.9, 1)])
def test_half_of_a_gap_and_more_is_one(overlap_ms: float, label: int) -> None:
    assert labels(answered(100, 110), failed(sent_at=10.0, closed_at=10.1 + overlap_ms / 1e3)) == [
        label
    ]


def test_a_gap_of_no_time_has_the_level_of_its_moment() -> None:
    assert labels(answered(100, 100), failed(sent_at=10.05, closed_at=10.15)) == [1]


def test_gaps_of_no_time_divide_by_nothing() -> None:
    """All chunks of a stream came at one moment, while another request was in prefill."""
    with np.errstate(all="raise"):
        measured = found(answered(100, 100, 100, sent_at=10.0), answered(500, sent_at=9.9))
    assert measured.gaps == 2


def test_only_sharp_gaps_of_successful_requests_of_the_profiling_phase_and_all_prefills() -> None:
    # only the first gap has two exact ends
    blurred = answered(100, 110, 120, 130, merged=((2, 111_000),))
    warm = answered(2000, 3000, phase="warmup")
    lost = answered(100, 110, outcome="reset")
    said = found(blurred, warm, lost)
    assert said.gaps == 1
    assert [(row.label, row.gaps) for row in said.rows] == [("1", 1)]  # the warmup's prefill
    assert (said.requests, said.of_requests) == (1, 1)


def test_stamps_of_several_workers_are_of_one_time() -> None:
    here = answered(100, 110)
    there = failed(
        sent_at=1010.0, closed_at=1012.0, clock_offset_s=UNIX - 1000, worker="two", asked_at=1010.0
    )
    assert labels(here, there) == [1]


def test_nobody_decoded() -> None:
    columns = collect_columns([failed()])
    assert (
        measure_interference(columns, compute_occupancy(columns.requests, ()), [failed()]) is None
    )
    assert (
        measure_interference(
            collect_columns([]), compute_occupancy(collect_columns([]).requests, ()), []
        )
        is None
    )


def test_what_was_ahead() -> None:
    first = answered(1000, sent_at=10.0, input_tokens=4000)
    second = answered(1000, sent_at=10.2, input_tokens=500)
    third = failed(sent_at=10.4, asked_input_tokens=300)  # not counted by a server: as asked
    fourth = answered(1000, sent_at=10.6, input_tokens=100)
    after = answered(1000, sent_at=13.0)
    count, tokens = count_prefills_ahead(
        collect_columns([first, second, third, fourth, after]).requests
    )
    assert count.tolist() == [0, 1, 2, 3, 0]
    assert tokens.tolist() == [0, 4000, 4500, 4800, 0]


def test_unknown_tokens_ahead() -> None:
    count, tokens = count_prefills_ahead(
        collect_columns([answered(1000, input_tokens=None), answered(1000, sent_at=10.5)]).requests
    )
    assert count.tolist() == [0, 1]
    assert tokens[0] == 0
    assert math.isnan(tokens[1])


def test_slope() -> None:
    """TTFT of 50 ms, 10 ms for 1,000 own tokens and 7 for 1,000 ahead, exactly."""
    random = np.random.default_rng(1)
    own, ahead = random.integers(100, 4000, (2, 400)).astype(float)
    ttft_s = 0.05 + own * 10e-6 + ahead * 7e-6
    fit = fit_prefill_slope(ttft_s, own, ahead, np.arange(400.0))
    assert fit is not None
    assert (fit.ms_per_1k, fit.low, fit.high, fit.r2) == pytest.approx((7, 7, 7, 1))
    alike = fit_prefill_slope(ttft_s - own * 10e-6, np.full(400, 100.0), ahead, np.arange(400.0))
    assert alike is not None
    assert alike.ms_per_1k == pytest.approx(7)


def test_no_slope_of_few_of_noise_of_unknown_lengths_and_of_what_is_ahead_of_nobody() -> None:
    random = np.random.default_rng(1)
    own, ahead = random.integers(100, 4000, (2, 400)).astype(float)
    ttft_s, at = 0.05 + ahead * 7e-6, np.arange(400.0)
    assert fit_prefill_slope(ttft_s[:199], own[:199], ahead[:199], at[:199]) is None
    assert fit_prefill_slope(random.random(400), own, ahead, at) is None
    assert fit_prefill_slope(ttft_s, own, np.where(ahead > 1000, np.nan, ahead), at) is None
    assert fit_prefill_slope(0.05 + own * 1e-5, own, np.zeros(400), at) is None
    # which of the two it is cannot be told
    assert fit_prefill_slope(ttft_s, ahead, ahead, at) is None


# -- a slow twin -----------------------------------------------------------------------------------


@st.composite
def loads(draw: st.DrawFn) -> list[Record]:
    """A few requests on a grid of 64 ms / 64: dyadic moments, so that doubles are exact and ties
    are ties."""
    records = []
    for number in range(draw(st.integers(1, 6))):
        sent = draw(st.integers(0, 40))
        chunks = sorted(draw(st.lists(st.integers(1, 60), max_size=6)))
        outcome = draw(st.sampled_from(["ok", "ok", "ok", "reset"]))
        closed = sent + (chunks[-1] if chunks else 0) + draw(st.integers(0, 5))
        record = answered(
            *(tick * 15.625 for tick in chunks),
            sent_at=sent / 64,
            closed_at=closed / 64,
            clock_offset_s=0.0,
        )
        records.append(replace_of(record, id=str(number), outcome=outcome))
    return records


def replace_of(record: Record, **changes: object) -> Record:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return Record(**{**fields, **changes})


@given(loads())
def test_labels_as_a_slow_twin_has_them(records: list[Record]) -> None:
    prefills = []
    for record in records:
        sent = Fraction(record.sent_at or 0)
        first = sent + Fraction(record.chunk_us[0], 10**6) if record.chunk_us else None
        end = Fraction(record.closed_at)
        prefills.append((sent, end if first is None else min(first, end)))
    expected = []
    for record in records:
        stamps = [Fraction(record.sent_at or 0) + Fraction(us, 10**6) for us in record.chunk_us]
        for begin, end in pairwise(stamps):
            if record.outcome == "ok" and end > begin:
                overlap = sum(max(Fraction(0), min(end, b) - max(begin, a)) for a, b in prefills)
                expected.append(math.floor(overlap / (end - begin) + Fraction(1, 2)))
            elif record.outcome == "ok":
                expected.append(sum(a <= begin < b for a, b in prefills))
    assert labels(*records) == expected


@given(loads())
def test_ahead_as_a_slow_twin_has_it(records: list[Record]) -> None:
    requests = collect_columns(records).requests
    sent = requests.floats("sent_at")
    end = np.fmin(requests.floats("first_chunk_at"), requests.floats("closed_at"))
    expected = [int(((sent < at) & (end > at)).sum()) for at in sent]
    assert count_prefills_ahead(requests)[0].tolist() == expected


@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 1.9, 2.0, 3.0, 50.0]), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_the_usual_gap_as_a_slow_twin_has_it(
    kinds: list[tuple[float, bool]], data: st.DataObject
) -> None:
    """Groups of gaps of some streams, disturbed or not, each group below, at or above the number
    that it takes."""
    gaps = []
    for number, (streams, calm) in enumerate(kinds):
        gaps += [(streams, calm, 0.01 + 0.001 * number)] * data.draw(
            st.sampled_from([1, MIN_COMPARED // 2, MIN_COMPARED])
        )

    def step(streams: float) -> int:
        return round(4 * math.log2(streams))

    expected = []
    for streams, _, _ in gaps:
        for candidate in sorted({step(s) for s, _, _ in gaps if step(s) >= step(streams)}):
            undisturbed = [gap_s for s, calm, gap_s in gaps if calm and step(s) == candidate]
            at_least = [gap_s for s, calm, gap_s in gaps if calm and step(s) >= candidate]
            rare = sum(undisturbed) < MIN_BASE_SHARE * sum(at_least)
            if len(undisturbed) >= MIN_COMPARED and not rare:
                expected.append(sum(undisturbed) / len(undisturbed))
                break
        else:
            expected.append(math.nan)
    streams, calm, gap_s = (np.array(column) for column in zip(*gaps, strict=True))
    beside = np.where(calm, 0, 1)
    still = np.zeros(len(gaps), np.bool_)
    told = LabelledGaps(np.zeros(len(gaps), np.int64), gap_s, beside, streams, beside * 1.0, still)
    assert estimate_usual_gaps_s(told, calm).tolist() == pytest.approx(expected, nan_ok=True)


# -- policies in virtual time ----------------------------------------------------------------------


def of_policy(policy: str) -> PrefillInterference:
    """Eight short requests that decode, and a prompt of 8,000 tokens now and then."""
    clock = VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=8192 if policy == "prefill-first" else 512,
        max_num_seqs=64,
        kv_tokens=2**19,
    )
    engine = BatchEngine(Scheduler(config, POLICIES[policy], record=True), LLAMA_8B_H100, clock)
    load = Virtual(clock, engine, keep_tokens=True)
    short = ((0.01 * i, VirtualRequest(100, 400)) for i in range(8))
    long = ((1.0 + 0.7 * i, VirtualRequest(8000, 2)) for i in range(3))
    load.open_loop((*short, *long))
    rows = load.run()
    records = [
        answered(*((at - row.sent_at) * 1e3 for at in row.token_at), sent_at=row.sent_at, id=str(i))
        for i, row in enumerate(rows)
    ]
    return found(*records)


def test_prefill_first_stalls_and_chunks_slow() -> None:
    """A prompt of 8,000 tokens in one step stops every decode once for all of it. In pieces of 512
    it makes some fifteen steps of theirs longer, each by a piece."""
    first, pieces = of_policy("prefill-first"), of_policy("chunked")
    assert first.disturbed is not None
    assert pieces.disturbed is not None
    assert first.disturbed.longest_ms > 5 * pieces.disturbed.longest_ms
    assert pieces.disturbed.gaps > 5 * first.disturbed.gaps
    for said in (first, pieces):
        calm = said.rows[0]
        assert calm.label == "0"
        assert calm.longest_ms < 2 * calm.icl_ms[50]  # no stall is left among the undisturbed


BUDGETS = {"chunked": 2048, "prefill-first": 131_072, "mixed": 131_072}
Sizes = tuple[int, int]


def measured(
    policy: str, users: int, tokens_in: Sizes, tokens_out: Sizes, count: int = 150
) -> tuple[PrefillInterference, float]:
    """(what the report says, the true loss in seconds) of a closed loop."""
    random, clock, cost = Random(users), VirtualClock(), LLAMA_8B_H100
    config = SchedulerConfig(
        max_num_batched_tokens=BUDGETS[policy], max_num_seqs=256, kv_tokens=cost.kv_tokens
    )
    engine = TruthEngine(Scheduler(config, POLICIES[policy], record=True), cost, clock)
    run = Virtual(clock, engine, keep_tokens=True)
    requests = [
        VirtualRequest(random.randint(*tokens_in), random.randint(*tokens_out))
        for _ in range(count)
    ]
    run.closed_loop(users, iter(requests), stagger_s=0.05)
    records = recorded(run.run())
    columns = collect_columns(records)
    found = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert found is not None
    assert found.decode_s == pytest.approx(engine.decode_true_s, rel=0.02)
    return found, engine.lost_true_s


LIGHT = [
    (policy, users, sizes)
    for policy in BUDGETS
    for users in (4, 16)
    for sizes in (((1000, 5000), (20, 300)), ((6000, 9000), (100, 200)))
]


SHORT = [("prefill-first", 4, ((100, 400), (20, 300)))]
"""A prompt takes less than half of a gap."""


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "users", "sizes"), LIGHT + SHORT)
def test_what_is_given_is_within_ten_percent(
    policy: str, users: int, sizes: tuple[Sizes, Sizes]
) -> None:
    found, true_s = measured(policy, users, *sizes)
    assert found.disturbed is not None
    assert found.disturbed.compared_share >= MIN_COMPARED_SHARE
    assert found.lost_s == pytest.approx(true_s, rel=0.1)


@pytest.mark.parametrize(
    ("policy", "users"), [("mixed", 64), ("prefill-first", 64), ("chunked", 128)]
)
def test_where_hardly_a_gap_has_a_comparison_none_is_given(policy: str, users: int) -> None:
    """Users of long prompts and short answers: some prompt is computed nearly all the time."""
    found, true_s = measured(policy, users, (2000, 12_000), (50, 50))
    assert found.disturbed is not None
    assert found.disturbed.compared_share < MIN_COMPARED_SHARE
    assert found.disturbed.compared > 0
    assert (found.lost_s, found.lost_share, found.disturbed.slowdown) == (None, None, None)
    assert true_s > 0.5 * found.decode_s


LONG = PrefillSlope(ms_per_1k=25.34, low=23.2, high=27.41, r2=0.751, count=300)


def said(*records: Record, client: str = "OK", **changes: object) -> str:
    columns = collect_columns(records)
    found = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert found is not None
    text = "\n".join(
        map(
            render_plain_block,
            make_interference_blocks(msgspec.structs.replace(found, **changes), client),
        )
    )
    return text.replace("\n  ", " ")


def stream(undisturbed: int, disturbed: int, ms: float = 40.0) -> Record:
    """Gaps of 10 ms, then longer ones from second 12 on."""
    us = np.cumsum([2000 - 10 * undisturbed, *[10] * undisturbed, *[ms] * disturbed])
    return answered(*us.tolist(), sent_at=10.0)


PREFILL = failed(sent_at=12.0, closed_at=20.0)


def test_slower() -> None:
    text = said(stream(40, 40), PREFILL)
    assert (
        "took 4.0 times as long as one without (40 ms against 10 ms with at least as many streams)"
        in text
    )
    assert "decode time lost to prefill: 60.0% (1.2 of 2.0 s)." in text
    assert "sample" not in text


def test_no_slower() -> None:
    assert "took no longer than one without (10 ms against 10 ms" in said(
        stream(40, 40, 10.0), PREFILL
    )


def test_nothing_to_compare_with() -> None:
    assert "No gap was undisturbed" in said(stream(0, 40), PREFILL)
    assert "29 disturbed gaps: too few" in said(stream(40, 29), PREFILL)
    assert "29 undisturbed gaps: too few" in said(stream(29, 40), PREFILL)


def test_gaps_without_a_counterpart_are_said() -> None:
    """Another request decodes from 14.1 to 14.4 s: its gap, and those beside it, are at two
    streams."""
    text = said(stream(40, 190), PREFILL, answered(100, 400, sent_at=14.0, id="other"))
    assert "of the disturbed gaps, by number or by time, with fewer than 30 undisturbed" in text
    assert "times as long as one without" in text


def test_where_too_few_gaps_have_a_counterpart_nothing_is_concluded() -> None:
    """Three others decode from 14.1 s on: of 12.6 s of disturbed gaps 2.1 have a comparison."""
    others = [answered(100, 3000, sent_at=14.0, id=str(i)) for i in range(3)]
    text = said(stream(40, 100), PREFILL, *others)
    assert (
        "The effect of prefills on other requests is not reported. Only 16% of the disturbed gaps"
        in text
    )
    assert "At least 90%" in text
    assert "times as long as one without" not in text
    assert "of the decode time" not in text


def test_nothing_was_disturbed() -> None:
    assert said(stream(40, 0)) == ""


def test_the_client_was_not_up_to_it() -> None:
    text = said(stream(40, 40), PREFILL, answered(100, sent_at=13.0), client="DEGRADED", slope=LONG)
    assert "No conclusion: the client verdict is DEGRADED" in text
    assert "times as long as one" not in text
    assert "Each 1,000" not in text


def test_slope_in_a_sentence() -> None:
    text = said(stream(40, 40), PREFILL, answered(100, sent_at=13.0), slope=LONG)
    assert (
        "Each 1,000 tokens ahead add 25.3 ms to TTFT at the same own length (95% interval 23.2 to "
        "27.4;" in text
    )


def test_a_sample_says_so() -> None:
    assert "A sample: the gaps of 1 of 7 requests" in said(stream(40, 40), PREFILL, of_requests=7)


def test_texts_are_short() -> None:
    """Of the console: two tables, a sentence and a legend each."""
    columns = collect_columns(records := [stream(40, 40), PREFILL, answered(100, sent_at=13.0)])
    found = measure_interference(columns, compute_occupancy(columns.requests, ()), records)
    assert found is not None
    assert sum(isinstance(block, TextBlock) for block in make_interference_blocks(found)) == 3


# -- in a folder -----------------------------------------------------------------------------------


def written(path: Path, records: list[Record]) -> Path:
    write_run(path, a_run())
    (path / "profile_export.jsonl").write_bytes(
        b"".join(format_record_line(record) + b"\n" for record in records)
    )
    return path


def test_every_file_of_a_report_has_it(tmp_path: Path) -> None:
    report.remake_reports(written(tmp_path, [stream(40, 40), PREFILL]))
    run = msgspec.json.decode((tmp_path / "run.json").read_bytes())
    assert [row["label"] for row in run["interference"]["rows"]] == ["0", "1"]
    assert run["interference"]["disturbed"]["slowdown"] == pytest.approx(4)
    assert "Disturbed Gaps" in run["definitions"]
    for name in ("summary.md", "report.html"):
        assert "Gaps while other requests await their first token" in (tmp_path / name).read_text()


def test_a_share_of_the_records_in_even_stretches(tmp_path: Path) -> None:
    records = [answered(100, 110, id=f"{i:04}") for i in range(1000)]
    file = RecordFile(written(tmp_path, records) / "profile_export.jsonl")
    assert list(file.evenly(1.0)) == records
    some = [int(record.id) for record in file.evenly(0.2, stretches=10)]
    assert some == list(chain.from_iterable(range(a, a + 20) for a in range(0, 1000, 100)))
