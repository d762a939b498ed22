"""Streaming smoothness: by pencil, and against the definitions, token by token."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import a_run, answered

from locust_llm.report.fluidity_and_qoe import measure_readability
from locust_llm.report.load_records import collect_columns, join_columns, make_data_frames
from locust_llm.report.render.text_report import render_markdown
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.slo.reading_pace import ReadingPace, parse_reading_pace, parse_token_deadlines
from locust_llm.slo.rules import parse_rule, resolve_rules, validate_rules

READER = ReadingPace(pace=5.0, ttft_s=1.0, tpot_s=0.1)
EVEN = [500 + 150 * i for i in range(21)]
"""Chunks at these ms: a token each 150 ms."""
BURSTS = [500 + 100 * i for i in range(11)] + [2500 + 100 * i for i in range(10)]
"""As many tokens to the same end, of which ten come after a pause of a second."""


def fluidity(at_us: list[int], due: int, step: int) -> float:
    """As Etalon counts it, a stamp a token."""
    met = missed = 0
    for at in at_us:
        if at <= due:
            met, due = met + 1, due + step
        else:
            missed, due = missed + 1 + (at - due) // step, at + step
    return met / (met + missed)


def read_at(at_us: list[int], begin: int, step: int) -> list[int]:
    found, free = [], begin
    for at in at_us:
        found.append(max(at, free))
        free = found[-1] + step
    return found


def qoe(at_us: list[int], due: int, step: int) -> float:
    """Area under the line that rises by a token in each step, until the last one is read."""
    read = read_at(at_us, due, step)
    end = read[-1] + step
    actual, expected = (
        sum(end - at - step / 2 for at in one)
        for one in (read, read_at([0] * len(read), due, step))
    )
    return actual / expected


def stall_s(at_us: list[int], step: int) -> float:
    return sum(b - a - step for a, b in pairwise(read_at(at_us, at_us[0], step))) / 1e6


answers = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 4)), max_size=12)


@given(
    st.lists(answers, min_size=1, max_size=6),
    st.sampled_from([2.0, 5.0, 8.0]),
    st.integers(1, 3000),
    st.integers(1, 500),
)
def test_of_many_at_once_as_of_each_token_by_token(
    them: list[list[tuple[int, int]]], pace: float, ttft_ms: int, tpot_ms: int
) -> None:
    whom = ReadingPace(pace, ttft_ms / 1e3, tpot_ms / 1e3)
    due, step, pace_us = ttft_ms * 1000, tpot_ms * 1000, round(1e6 / pace)
    us = [np.cumsum([gap for gap, _ in one], dtype=np.int64).tolist() for one in them]
    found = measure_readability(
        np.array([at for one in us for at in one], np.int64),
        np.array([size for one in them for _, size in one], np.float64),
        np.array([len(one) for one in them], np.int64),
        whom,
    )
    for i, (stamps, one) in enumerate(zip(us, them, strict=True)):
        at = [at for at, (_, size) in zip(stamps, one, strict=True) for _ in range(size)]
        expected = (
            (fluidity(at, due, step), qoe(at, due, pace_us), stall_s(at, pace_us))
            if at
            else (np.nan,) * 3
        )
        assert [column[i] for column in found] == pytest.approx(expected, nan_ok=True)


@given(
    st.lists(st.lists(st.integers(0, 3_000_000), max_size=12), min_size=1, max_size=6),
    st.sampled_from([2.0, 4.8, 8.0]),
)
def test_chunks_of_a_token_each_are_as_any_others(them: list[list[int]], pace: float) -> None:
    us = np.concatenate([np.cumsum([0, *gaps], dtype=np.int64)[1:] for gaps in them])
    count = np.array([len(gaps) for gaps in them], np.int64)
    reader = ReadingPace(pace)
    for found, expected in zip(
        measure_readability(us, None, count, reader),
        measure_readability(us, np.ones(len(us)), count, reader),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


def test_by_pencil() -> None:
    """Two servers of one mean ITL. Tokens are due at 1 s and each 0.1 s; the reader takes 0.2 s for
    each."""
    table = collect_columns(
        [answered(*EVEN), answered(*BURSTS), answered(1200), answered(500, 3000)], READER
    ).requests
    # even: token i comes at 0.5 + 0.15 i, due 1 + 0.1 i: in time up to i = 10; then each of ten is
    # late by 50 ms, misses one bursts: i = 11 comes at 2.5, due at 2.1: late by 0.4, misses 1 + 4
    # deadlines; the other twenty are in time late: the first and only one misses 1 + floor(0.2 /
    # 0.1); pause: due at 1.1, late by 1.9: 20 missed
    assert table.floats("fluidity").tolist() == pytest.approx([11 / 21, 20 / 25, 0.0, 1 / 21])
    # a reader from 0.5 on is at 0.5 + 0.2 i: behind all of these; but not of the last
    assert table.floats("reading_stall_s").tolist() == pytest.approx([0, 0, 0, 2.3])
    assert table.floats("qoe").tolist()[:2] == [1, 1]
    # late by 0.2: half a step of 0.2 is the area of one token, 0.1; over 0.2 + 0.1. Pause: read at
    # 1 and at 3, to the end at
    # 3.2: 2.1 + 0.1; in time it were 2.1 + 1.9
    assert table.floats("qoe").tolist()[2:] == pytest.approx([0.1 / 0.3, 2.2 / 4.0])


def test_the_example_of_the_docs() -> None:
    """docs/reference/metrics.md: the same TTFT and the same mean ITL."""
    even = answered(*(500 + 150 * i for i in range(41)))
    pause = answered(*(500 + 50 * i for i in range(11)), *(5050 + 50 * i for i in range(30)))
    table = collect_columns([even, pause]).requests
    assert table.floats("itl_s").tolist() == [0.15, 0.15]
    assert table.floats("fluidity").tolist() == pytest.approx([1, 40 / 45])
    assert table.floats("qoe").tolist() == pytest.approx([1, 0.890], abs=5e-4)
    assert table.floats("reading_stall_s").tolist() == pytest.approx([0, 2.258], abs=5e-4)


def test_what_nobody_can_tell_is_absent() -> None:
    records = [
        answered(outcome="ok", streamed=False),
        answered(100, 100, 100, merged=((1, 50_000), (2, 50_000))),
        answered(100, 200, choices=2),
        answered(100, 600, 600, merged=((1, 200_000), (2, 200_000))),
        answered(500, 900, 1300, chunk_tokens=((4, 2), (1, 1)), output_tokens=9),
        answered(500, 900, 1300, output_tokens=12),  # four in each
    ]
    tight = ReadingPace(pace=10.0, ttft_s=0.4, tpot_s=0.1)
    found = collect_columns(records, tight)
    fluidity = found.requests.floats("fluidity")
    assert np.isnan(fluidity).tolist() == [True] * 3 + [False] * 3
    # two came together, due at 0.5 and 0.6: the first is late by 0.1 and misses two
    assert fluidity.tolist()[3] == pytest.approx(2 / 4)
    # late by 0.1 at first: misses two; its other tokens are due from 0.6 on, so the next chunk is
    # in time
    assert fluidity.tolist()[4:] == pytest.approx([8 / 10, 11 / 13])
    whole, halves = (
        make_data_frames(records, tight)[0],
        join_columns(
            [collect_columns(records[:3], tight), collect_columns(records[3:], tight)]
        ).requests,
    )
    for name in ("fluidity", "qoe", "reading_stall_s"):
        for other in (whole, halves):
            assert np.array_equal(other.floats(name), found.requests.floats(name), equal_nan=True)


def test_rules_and_tables() -> None:
    records = [
        answered(*(EVEN if i % 10 else BURSTS), id=str(i), sent_at=10.0 + i) for i in range(400)
    ]
    rules = ("fluidity p5 > 0.5", "qoe p5 >= 99%", "reading_stall p95 < 10ms", "fluidity p50 > 90%",
             "attainment > 5% given fluidity > 70%")  # fmt: skip
    run = a_run(slo=rules, token_deadline="1s,100ms", reading_pace=5.0)
    summary = summarise_run(collect_columns(records, run.settings.reader), run, 0, records)
    found = [(result.status, result.observed) for result in summary.slos]
    assert [status for status, _ in found] == ["PASS", "PASS", "PASS", "FAIL", "PASS"]
    assert [observed for _, observed in found] == pytest.approx([11 / 21, 100, 0, 1100 / 21, 10])
    text = render_markdown(summary, run)
    assert "Streaming smoothness" in text
    assert "Fluidity" not in text[: text.index("Streaming smoothness")].partition("Metrics")[2]
    cut = [answered(*EVEN, outcome="cut", id=str(i), sent_at=10.0 + i) for i in range(100)]
    (undecided,) = summarise_run(
        collect_columns(cut, READER), a_run(slo=("fluidity p5 > 0.5",)), 0, cut
    ).slos
    assert undecided.status == "INCONCLUSIVE"


def test_what_is_wrong_is_said() -> None:
    assert parse_token_deadlines("450ms, 40ms") == (0.45, 0.04)
    for text in ("", "1s", "1,2", "1s,0ms", "1s,2h", "x,1s", "2h,1s", "nans,1s", "infs,1s"):
        with pytest.raises(ValueError, match="--token-deadline takes TTFT,TPOT"):
            parse_token_deadlines(text)
    with pytest.raises(ValueError, match="--reading-pace"):
        parse_reading_pace(0.0, "1s,1s")
    assert not parse_rule("fluidity p5 > 0.9").less_is_better
    assert parse_rule("reading_stall p95 < 1s").less_is_better
    assert "reading metrics are computed" in next(
        validate_rules(resolve_rules(("abort: fluidity p5 > 0.9",), None, None))
    )
    assert (
        str(resolve_rules((), None, "fluidity:0.9 reading_stall:500").good[1])
        == "reading_stall <= 500ms"
    )
