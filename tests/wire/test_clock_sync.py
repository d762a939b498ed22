"""Clocks, on made-up ones: the offset is within its stated error of the truth, whatever the
messages take."""

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import answered

from locust_llm.wire.clock_sync import DRIFT, SyncedClock, clock_id, measure_clock_offset_s

HALF = 0.5 + DRIFT
"""Of a round trip, and the drift while it lasts."""


def test_on_one_machine_nothing_is_left_to_estimate() -> None:
    clock = SyncedClock()
    assert (clock.offset_s, clock.error_at(5.0), clock.known) == (
        measure_clock_offset_s(),
        inf,
        False,
    )
    clock.same(1234.5)
    clock.measure(1.0, 99.0, 1.0)  # an answer in no time
    record = answered(100)
    assert clock.placed(record, 1e6) is record
    assert (clock.offset_s, clock.error_at(1e6), clock.stated_s, clock.known) == (
        1234.5,
        0.0,
        0.0,
        True,
    )


def test_the_offset_is_taken_in_the_middle_of_the_way_there_and_back() -> None:
    clock = SyncedClock()
    clock.measure(at=10.0, unix_s=5000.0, now=10.4)
    assert (clock.offset_s, clock.error_at(10.4)) == pytest.approx((5000.0 - 10.2, 0.4 * HALF))
    clock.measure(at=20.0, unix_s=5010.5, now=21.0)  # a worse one
    assert clock.error_at(21.0) == pytest.approx(0.4 * HALF + 10.6 * DRIFT)
    clock.measure(at=30.0, unix_s=5020.1, now=30.2)
    assert (clock.offset_s, clock.error_at(30.2)) == pytest.approx((4990.0, 0.2 * HALF))


def test_a_measurement_is_worth_less_as_it_grows_old() -> None:
    clock = SyncedClock()
    clock.measure(0.0, 100.001, 0.002)
    clock.measure(1.0, 101.002, 1.004)
    assert clock.error_at(1.004) == pytest.approx(0.002 * HALF + 1.002 * DRIFT)
    later = 0.003 / DRIFT
    clock.measure(later, later + 100.002, later + 0.004)
    assert clock.error_at(later + 0.004) == pytest.approx(0.004 * HALF)


def test_what_is_stated_covers_the_record_that_is_placed_worst() -> None:
    clock = SyncedClock()
    clock.measure(at=100.0, unix_s=5000.0, now=100.02)
    record = answered(100, due_at=99.0, asked_at=100.0, clock_offset_s=0.0)
    assert clock.placed(record, 101.02).clock_offset_s == pytest.approx(4899.99)
    worst_s = 0.02 * HALF + 1.0 * DRIFT + 2.02 * DRIFT  # of the way, the age, and its own length
    assert clock.stated_s == pytest.approx(worst_s)
    clock.measure(at=101.5, unix_s=5001.501, now=101.502)
    clock.placed(record, 101.502)
    assert clock.stated_s == pytest.approx(worst_s)  # the first one is still as far off


def test_a_clock_that_stood_still_is_compared_anew_and_the_error_is_said() -> None:
    clock = SyncedClock()
    clock.measure(at=10.0, unix_s=5010.0, now=10.002)
    clock.measure(at=11.0, unix_s=5041.5, now=12.0)  # its machine was suspended for half a minute
    assert (clock.offset_s, clock.error_at(12.0)) == pytest.approx((5030.0, 1.0 * HALF))
    assert clock.stated_s == pytest.approx(30.001 + 1.0 * HALF)


@given(
    st.floats(-1e6, 1e6),
    st.floats(-DRIFT, DRIFT),
    st.lists(
        st.tuples(st.floats(0.001, 100), st.floats(0, 0.5), st.floats(0, 0.5)),
        min_size=1,
        max_size=20,
    ),
)
def test_the_truth_lies_within_the_error(
    offset: float, drift: float, words: list[tuple[float, float, float]]
) -> None:
    """Each word takes its time there, and its answer back, and this clock drifts all the while."""
    clock, now = SyncedClock(), 0.0

    def true_offset(at: float) -> float:
        return offset + drift * at

    for pause_s, there_s, back_s in words:
        before, now = now, now + pause_s
        arrives = now + there_s
        clock.measure(now, arrives + true_offset(arrives), arrives + back_s)
        now = arrives + back_s
        assert abs(clock.offset_s - true_offset(now)) <= clock.error_at(now) + 1e-9
        placed = clock.placed(answered(100, due_at=before, asked_at=before), now)
        for at in (before, now):
            assert abs(placed.clock_offset_s - true_offset(at)) <= clock.stated_s + 1e-9


def test_a_clock_is_that_of_its_kernel_and_its_time_namespace_or_unknown(tmp_path: Path) -> None:
    """A container may have a monotonic clock of its own under the same kernel."""
    boot, space = tmp_path / "boot_id", tmp_path / "time"
    boot.write_text("4f1c-9\n")
    assert clock_id(boot, space) == "4f1c-9"
    space.symlink_to("time:[4026531834]")
    assert clock_id(boot, space) == "4f1c-9 time:[4026531834]"
    assert clock_id(tmp_path / "nothing", space) == ""
    assert clock_id() == clock_id() != ""
