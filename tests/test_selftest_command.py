"""Selftest: what it decides and prints, by streams of known times."""

import pytest
from support.records import answered

from locust_llm.records.machine import Machine
from locust_llm.records.timing_accuracy import ReferenceTimes
from locust_llm.selftest_command import SelftestResult, SelftestTally, _result, format_selftest

MS = 1_000_000
"""In ns."""


def result_of(*late_ms: float, merged: bool = False) -> SelftestResult:
    """200 streams of three chunks, sent 10, 30 and 50 ms after the request arrived. ``late_ms``: by
    as much the first chunks are reported too late, in turn. ``merged``: in each tenth stream the
    last chunk came with the one before, and the two chunks are read at 50 ms."""
    tally = SelftestTally()
    sends = tuple((ms * MS, ms * MS) for ms in (10, 30, 50))
    for i in range(200):
        first = 10 + late_ms[i % len(late_ms)]
        record = answered(first, 30, 50)
        if merged and i % 10 == 0:
            record = answered(first, 50, 50, merged=((1, 30_000), (2, 50_000)))
        tally.add(record, ReferenceTimes(0, sends))
    return _result(1, False, 10.0, 0.1, 0.1, tally, Machine(cpu="x"))


@pytest.mark.parametrize(
    ("late_ms", "level", "reason"),
    [
        ((0.0,), "OK", ""),
        # each stamp 0.5 ms late: less than one, whatever a run could state of it
        ((0.5,), "OK", ""),
        # of 13 ms 3 are not true: a fifth of a median is not usable
        ((3.0,), "INVALID", "reported against true times: TTFT p50 13.0 ms may be off by up to 3.00"),
        # one in fifty: p99 alone is 15 ms, and should be 10
        ((5.0, *[0.0] * 49), "DEGRADED", "TTFT p99 15.0 ms may be off by up to 5.00 ms"),
    ],
)  # fmt: skip
def test_the_verdict_is_by_the_true_times(
    late_ms: tuple[float, ...], level: str, reason: str
) -> None:
    verdict = result_of(*late_ms).verdict
    assert verdict.level == level
    assert reason in "; ".join(verdict.reasons)


def test_what_the_tables_leave_out_is_named() -> None:
    """20 of 600 chunks are merged with another: of 400 gaps 40 are beside one."""
    found = result_of(0.0, merged=True)
    assert found.gap is not None
    assert found.gap.count == 360
    text = format_selftest(found)
    assert "in no reported gap and in no difference" in text
    assert "360" in text
    assert "in no difference" not in format_selftest(result_of(0.0))


def test_few_streams_leave_no_verdict_but_invalid() -> None:
    tally = SelftestTally()
    found = _result(1, False, 1.0, 0.1, 0.1, tally, Machine(cpu="x"))
    assert found.verdict.level == "INVALID"
    assert "too few reference streams" in format_selftest(found)
