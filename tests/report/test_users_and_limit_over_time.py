"""Time course: users and limits over a run, by hand."""

import pytest
from msgspec.structs import replace
from support.records import UNIX, a_run, answered

from locust_llm.records.run_facts import LimitChange, UserChange
from locust_llm.report.load_records import collect_columns
from locust_llm.report.sections.notes import format_users, make_loop_remark
from locust_llm.report.summarise_metrics import summarise_run
from locust_llm.report.users_and_limit_over_time import (
    StepSeries,
    describe_limit,
    describe_users,
    make_step_series,
)

SPAN = (10.0, 20.0)


def test_a_number_over_a_stretch_of_time() -> None:
    """Two until second 14, six until 19, then three: (2 x 4 + 6 x 5 + 3 x 1) / 10; before and after
    are none of it."""
    found = make_step_series(
        [(0.0, 9), (8.0, 2), (14.0, 6), (15.0, 6), (19.0, 3), (25.0, 50)], SPAN
    )
    assert found == StepSeries(
        least=2, most=6, mean=4.1, changes=2, steps=((0.0, 2), (4.0, 6), (9.0, 3))
    )


def test_before_the_first_change_its_value_held() -> None:
    assert make_step_series([(11.0, 5)], SPAN) == StepSeries(
        least=5, most=5, mean=5, changes=0, steps=((0.0, 5),)
    )


def test_a_gate_that_was_off_for_some_time() -> None:
    found = make_step_series([(10.0, 4), (12.0, None), (18.0, 2)], SPAN)
    assert found is not None
    assert (found.least, found.most, found.mean, found.without_s) == (2, 4, 3, 6)
    assert make_step_series([(0.0, None)], SPAN) is None
    assert make_step_series([], SPAN) is None


def test_of_many_steps_only_the_range_is_kept() -> None:
    found = make_step_series([(10.0 + i, i + 1) for i in range(10)], SPAN)
    assert found is not None
    assert (found.least, found.most, found.mean, found.changes, found.steps) == (1, 10, 5.5, 9, ())


@pytest.mark.parametrize(
    ("users", "words"),
    [
        # the last ones leave as all is sent, or one after the other
        (((0.0, 3), (100.0, 0)), "3 users"),
        (((0.0, 3), (50.0, 1), (99.9, 0)), "1 to 3 users (2 on average)"),
        (((0.0, 3), (99.0, 0)), "3 users"),
        # a load shape has none for a while
        (((0.0, 4), (50.0, 0), (75.0, 4)), "0 to 4 users (3 on average)"),
    ],
)
def test_the_end_of_the_load_is_no_number_of_users(
    users: tuple[tuple[float, int], ...], words: str
) -> None:
    run = replace(
        a_run(users=max(count for _, count in users)),
        users=tuple(UserChange(UNIX + at, count) for at, count in users),
    )
    summary = summarise_run(collect_columns([answered(100, 200)]), run)
    assert format_users(summary.conditions) == words


def limits(*changes: tuple[float, int | None]) -> StepSeries | None:
    return make_step_series(changes, SPAN)


@pytest.mark.parametrize(
    ("asked", "ramp_s", "found", "words"),
    [
        (None, None, None, ""),
        (3, None, None, "3"),
        (3, None, limits((9.0, 3)), "3"),
        (3, 4.0, limits((10.0, 1), (12.0, 2), (14.0, 3)), "3, ramp from 1 over 4 s"),
        (9, 8.0, limits(*((10.0 + i, i + 1) for i in range(9))), "9, ramp from 1 over 8 s"),
        (3, 40.0, limits((10.0, 1), (19.0, 2)), "1, 2 from 9.0 s on"),
        (1, None, limits((0.0, 1), (12.5, 3)), "1, 3 from 2.5 s on"),
        (1, None, limits((0.0, 1), (12.5, None)), "1, no limit from 2.5 s on"),
        (2, 1.0, limits((10.0, 1), (11.0, 2), (15.0, 1)), "1, 2 from 1.0 s on, 1 from 5.0 s on"),
        (
            1,
            None,
            limits(*((10.0 + i, 1 + i % 2) for i in range(10))),
            "1 to 2 (1.5 on average, 9 changes)",
        ),
    ],
)
def test_the_limit_in_words(
    asked: int | None, ramp_s: float | None, found: StepSeries | None, words: str
) -> None:
    assert describe_limit(asked, ramp_s, found) == words


def test_users_in_words() -> None:
    assert describe_users(6, None) == "6 users"
    assert (
        describe_users(6, make_step_series([(10.0, 2), (10.25, 6)], SPAN)) == "6 users"
    )  # they take a moment to be there
    assert (
        describe_users(2, make_step_series([(0.0, 2), (15.0, 6)], SPAN))
        == "2 to 6 users (4 on average)"
    )
    assert describe_users(2, make_step_series([(0.0, 1)], SPAN)) == "1 user"


def test_conditions_are_what_was_in_force() -> None:
    """Asked for: two users and a limit of 1. A load shape and a person made more of both."""
    run = a_run(((0.0, 1), (40.0, 3)), prefill_concurrency=1)
    run = replace(run, users=(UserChange(UNIX, 2), UserChange(UNIX + 50, 6)))
    run = replace(run, limits=(LimitChange(UNIX - 5, 9, "warmup"), *run.limits))
    conditions = summarise_run(collect_columns([answered(1)]), run).conditions
    assert (conditions.users, conditions.prefill_limit) == (2, 1)
    assert format_users(conditions) == "2 to 6 users (4 on average)"
    assert (
        "The prefill limit allowed 1 to 3 awaiting their first token at a time"
        in make_loop_remark(conditions)
    )
    assert conditions.limit_in_force is not None
    assert conditions.limit_in_force.mean == pytest.approx(1 * 0.4 + 3 * 0.6)


def test_a_limit_set_on_the_live_page_did_not_hold_from_the_start() -> None:
    """No gate, a limit of 1 from second 20 to second 50 of 100, and none again."""
    turned = tuple(
        LimitChange(at=UNIX + at, limit=limit, phase="profiling")
        for at, limit in ((20, 1), (50, None))
    )
    run = replace(a_run(), limits=turned)
    conditions = summarise_run(collect_columns([answered(100)]), run).conditions
    found = conditions.limit_in_force
    assert (
        describe_limit(None, None, found) == "no limit, 1 from 20.0 s on, no limit from 50.0 s on"
    )
    assert found is not None
    assert found.without_s == 70
    assert (
        "The prefill limit allowed 1 awaiting their first token at a time, except for 70.0 s "
        "without a limit;"
    ) in make_loop_remark(conditions)
