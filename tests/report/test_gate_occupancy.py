"""Levels over time: a drawing by hand, and a slow twin that asks every request at every moment."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import UNIX, answered, failed

from locust_llm.records.record import Record
from locust_llm.records.run_facts import LimitChange
from locust_llm.report.gate_occupancy import (
    Occupancy,
    compute_occupancy,
    measure_gate_use,
    thin_occupancy,
    unused_permit_s,
)
from locust_llm.report.load_records import collect_columns


def swept(
    *records: Record, limits: tuple[tuple[float, int | None], ...] = ((0.0, 1),)
) -> Occupancy:
    return compute_occupancy(
        collect_columns(records).requests, [LimitChange(UNIX + at, limit) for at, limit in limits]
    )


def steps(levels: Occupancy) -> list[tuple[float, float, int, int, int]]:
    columns = (
        levels.limit.tolist(),
        levels.used.tolist(),
        levels.waiting.tolist(),
        levels.decoding.tolist(),
    )
    return list(zip(np.round(levels.at - UNIX, 3).tolist(), *columns, strict=True))


def test_two_requests_and_one_slot() -> None:
    """
    second    10 ..... 11 ..... 12 ..... 13 ..... 14
    one       |prefill          |decode           |
    two                |waits   |prefill |decode  |    and the limit becomes 2 at second 13
    """
    one = answered(2000, 4000, asked_at=10.0, admitted_at=10.0)
    two = answered(1000, 2000, asked_at=11.0, admitted_at=12.0, sent_at=12.0)
    levels = swept(one, two, limits=((0.0, 1), (13.0, 2)))
    assert steps(levels) == [
        (0.0, 1, 0, 0, 0),
        (10.0, 1, 1, 0, 0),
        (11.0, 1, 1, 1, 0),
        (12.0, 1, 1, 0, 1),
        (13.0, 2, 0, 0, 2),
        (14.0, 2, 0, 0, 0),
    ]
    use = measure_gate_use(levels, UNIX + 10, UNIX + 14)
    assert use is not None
    assert (use.mean_used, use.max_used, use.waited_s, use.utilisation) == (0.75, 1, 1.0, 1.0)


def test_an_idle_slot_that_somebody_wanted() -> None:
    """The slot is free from second 11 on; the next waits from 10.5 and leaves at 11.5: half of that
    second is lost."""
    one = answered(1000, admitted_at=10.0)
    two = answered(500, asked_at=10.5, admitted_at=11.5, sent_at=11.5)
    use = measure_gate_use(swept(one, two), UNIX + 10, UNIX + 12)
    assert use is not None
    assert (use.waited_s, use.utilisation) == (1.0, 0.5)
    assert use.mean_used == 0.75


def test_a_slot_ends_with_the_first_chunk_the_error_or_the_return() -> None:
    chunk = answered(300, 900)
    error = failed("reset", closed_at=10.4)
    returned = failed("cancelled", freed_at=10.5, closed_at=11.0)
    unsent = failed("send_failed", sent_at=None, admitted_at=10.0, closed_at=10.6)
    levels = swept(chunk, error, returned, unsent)
    used = dict(zip(np.round(levels.at - UNIX, 3).tolist(), levels.used.tolist(), strict=True))
    assert [used[at] for at in (10.0, 10.3, 10.4, 10.5, 10.6)] == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(("overlap_us", "most"), [(2, 1), (20, 2)])
def test_an_overlap_of_microseconds_is_none(overlap_us: float, most: int) -> None:
    use = measure_gate_use(
        swept(answered(1000), answered(1000, sent_at=11.0 - overlap_us / 1e6)), UNIX + 10, UNIX + 12
    )
    assert use is not None
    assert use.max_used == most


def test_whoever_gives_up_waiting_has_waited() -> None:
    given_up = failed("cut", sent_at=None, closed_at=12.0)
    assert steps(swept(given_up)) == [(0.0, 1, 0, 0, 0), (10.0, 1, 0, 1, 0), (12.0, 1, 0, 0, 0)]
    assert steps(swept(given_up, limits=())) == []  # without a gate nobody waits at it


def test_no_limit_is_no_number() -> None:
    levels = swept(answered(1000, admitted_at=10.0), limits=((10.5, 2), (10.75, None)))
    assert [None if math.isnan(limit) else limit for limit in levels.limit.tolist()] == [
        None,
        2,
        None,
        None,
    ]


def test_nothing() -> None:
    levels = swept(limits=())
    assert steps(levels) == []
    assert measure_gate_use(levels, 0.0, 1.0) is None
    assert measure_gate_use(levels, math.nan, math.nan) is None
    assert not len(thin_occupancy(levels, 10)["at"])


def test_thinned_keeps_the_time_weighted_mean() -> None:
    """1 in prefill for a quarter of the first half: 0.25, and 1 in all of the second half."""
    one = answered(250, sent_at=10.0)
    two = answered(1000, sent_at=11.0)
    thin = thin_occupancy(swept(one, two, limits=((10.0, 3), (11.0, 4))), 2)
    assert thin["used"].tolist() == pytest.approx([0.25, 1.0])
    assert (thin["at"] - UNIX).tolist() == [10.5, 11.5]
    assert thin["limit"].tolist() == [3, 4]


MOMENT = st.integers(0, 40).map(lambda quarter: quarter / 4)


@st.composite
def a_request(draw: st.DrawFn) -> Record:
    """Any sequence of stamps, complete or broken off anywhere."""
    asked, admitted, sent, first, closed = sorted(draw(st.lists(MOMENT, min_size=5, max_size=5)))
    reached = draw(st.integers(0, 3))
    freed = draw(st.sampled_from([None, first, closed]))
    return answered(
        asked_at=asked,
        due_at=asked,
        admitted_at=admitted if reached > 0 else None,
        sent_at=sent if reached > 1 else None,
        chunk_us=(round((first - sent) * 1e6),) if reached > 2 else (),
        freed_at=freed if reached > 0 else None,
        closed_at=closed,
        clock_offset_s=0.0,
    )


@given(
    st.lists(a_request(), max_size=8), st.lists(st.tuples(MOMENT, st.integers(1, 3)), max_size=3)
)
def test_against_a_slow_twin(records: list[Record], limits: list[tuple[float, int]]) -> None:
    changes = [LimitChange(at, limit) for at, limit in sorted(limits)]
    levels = compute_occupancy(collect_columns(records).requests, changes)
    for i in range(len(levels.at) - 1):
        middle = (levels.at[i] + levels.at[i + 1]) / 2
        expected = at_moment(records, middle, bool(changes))
        assert (levels.used[i], levels.waiting[i], levels.decoding[i]) == expected
        before = [change.limit for change in changes if change.at <= middle]
        assert levels.limit[i] == before[-1] if before else math.isnan(levels.limit[i])
    use = measure_gate_use(levels, 2.0, 8.0)
    if use:
        moments = [(i + 0.5) / 4 for i in range(8, 32)]  # all stamps are quarters of a second
        assert use.mean_used == pytest.approx(
            np.mean([at_moment(records, m, bool(changes))[0] for m in moments])
        )


def at_moment(records: list[Record], moment: float, gated: bool) -> tuple[int, int, int]:
    used = waiting = decoding = 0
    for r in records:
        first = r.sent_at + r.chunk_us[0] / 1e6 if r.sent_at is not None and r.chunk_us else None
        start = r.admitted_at if r.sent_at is None else r.sent_at
        end = min(stamp for stamp in (first, r.freed_at, r.closed_at) if stamp is not None)
        used += start is not None and start <= moment < end
        admitted = (
            r.admitted_at
            if r.admitted_at is not None
            else r.closed_at
            if gated and r.sent_at is None
            else None
        )
        waiting += admitted is not None and r.asked_at <= moment < admitted
        decoding += first is not None and first <= moment < r.closed_at
    return used, waiting, decoding


def test_the_wait_for_a_permit_that_was_free() -> None:
    """Limit 2. One permit is held from 10 to 12. Two requests wait from 10.5 to 11.5: of the one
    that is free each would have half, 0.5 s. The third waits alone from 12 to 13, when both are
    free."""
    records = [
        answered(2000, sent_at=10.0, admitted_at=10.0),
        *[answered(100, sent_at=11.5, asked_at=10.5, admitted_at=11.5)] * 2,
        answered(100, sent_at=13.0, asked_at=12.0, admitted_at=13.0),
    ]
    requests = collect_columns(records).requests
    found = unused_permit_s(requests, [LimitChange(UNIX, 2)])
    assert found.tolist() == pytest.approx([0.0, 0.5, 0.5, 1.0], abs=1e-6)
    assert unused_permit_s(requests, [LimitChange(UNIX, 1)]).tolist() == pytest.approx(
        [0, 0, 0, 1.0], abs=1e-6
    )
    assert unused_permit_s(requests, []).tolist() == [0.0] * 4
