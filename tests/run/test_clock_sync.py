"""Clocks, on made-up ones: the offset is within its stated error of the truth, whatever the messages take."""

from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from locust_llm.run.clock_sync import DRIFT, Clock, boot_id, offset_s


def test_on_one_machine_nothing_is_left_to_estimate() -> None:
    clock = Clock()
    assert (clock.offset_s, clock.error_s) == (offset_s(), inf)
    clock.same(1234.5)
    clock.measure(1.0, 99.0, 1.0)  # an answer in no time
    assert (clock.offset_s, clock.error_s) == (1234.5, 0.0)


def test_the_offset_is_taken_in_the_middle_of_the_way_there_and_back() -> None:
    clock = Clock()
    clock.measure(at=10.0, unix_s=5000.0, now=10.4)
    assert (clock.offset_s, clock.error_s) == pytest.approx((5000.0 - 10.2, 0.2))
    clock.measure(at=20.0, unix_s=5011.0, now=21.0)  # a worse one
    assert clock.error_s == pytest.approx(0.2)
    clock.measure(at=30.0, unix_s=5020.1, now=30.2)
    assert (clock.offset_s, clock.error_s) == pytest.approx((4990.0, 0.1))


def test_a_measurement_is_worth_less_as_it_grows_old() -> None:
    clock = Clock()
    clock.measure(0.0, 100.0, 0.002)
    clock.measure(10.0, 110.0, 10.004)
    assert clock.error_s == pytest.approx(0.001)
    later = 10 + 0.002 / DRIFT
    clock.measure(later, later + 101.0, later + 0.004)
    assert clock.error_s == pytest.approx(0.002)


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 0.5), st.floats(0, 0.5)), min_size=1, max_size=20),
)
def test_the_truth_lies_within_the_error(offset: float, words: list[tuple[float, float, float]]) -> None:
    """Each word takes its time there, and its answer back."""
    clock, now = Clock(), 0.0
    for pause_s, there_s, back_s in words:
        now += pause_s
        clock.measure(now, now + there_s + offset, now + there_s + back_s)
        now += there_s + back_s
        assert abs(clock.offset_s - offset) <= clock.error_s + 1e-9


def test_the_boot_is_that_of_the_kernel_or_unknown(tmp_path: Path) -> None:
    (tmp_path / "boot_id").write_text("4f1c-9\n")
    assert boot_id(tmp_path / "boot_id") == "4f1c-9"
    assert boot_id(tmp_path / "nothing") == ""
