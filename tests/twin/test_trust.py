"""What is kept out of a fit, and what its errors come to."""

import pytest

from locust_llm.twin.seen import Seen, Stage
from locust_llm.twin.trust import check, held_out, trust
from locust_llm.twin.twin import Check

from .models import plain


def stage(users: int, step_s: float = 0.01, count: int = 40) -> Stage:
    """Of users with answers of 11 tokens, a step each."""
    seen = [
        Seen(at, tuple(at + step_s * (number + 1) for number in range(11)), 100, 11)
        for at in (step_s * 11 * (number // users) for number in range(count))
    ]
    return Stage(users, 0.0, tuple(seen))


def checked(*errors: float, figure: str = "ttft p50") -> list[Check]:
    return [
        Check(load="2 users", figure=figure, said=1 + error, low=0.9, high=1.1, measured=1.0, requests=40)
        for error in errors
    ]


def test_every_second_load_is_kept_out_but_never_the_first_or_the_last() -> None:
    used, out = held_out([stage(users) for users in (8, 1, 2, 4, 16)])
    assert [one.users for one in used] == [1, 4, 16]
    assert [one.users for one in out] == [2, 8]


def test_a_model_with_the_true_steps_is_off_by_nothing() -> None:
    out = [stage(2)]
    found = check([plain()], out)
    assert all(abs(one.error) < 0.03 for one in found)
    assert trust(found, out).verdict == "figures"


def test_a_model_with_other_steps_is_found_out() -> None:
    out = [stage(2, step_s=0.016)]
    found = trust(check([plain()], out), out)
    assert found.verdict == "not to be used"
    assert "off by" in found.reasons[0]


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [((0.02, -0.03), "figures"), ((0.15, -0.2), "shape"), ((0.4, -0.3), "not to be used")],
)
def test_the_median_of_the_errors_decides(errors: tuple[float, float], verdict: str) -> None:
    assert trust(checked(*errors), [stage(2)]).verdict == verdict


def test_one_figure_that_is_far_off_is_enough_against_figures() -> None:
    found = trust([*checked(0.01, 0.02, 0.01), *checked(0.4, figure="ttft p99")], [stage(2)])
    assert found.verdict == "shape"
    assert "ttft p99" in found.reasons[0]


def test_what_the_fit_does_not_explain_is_carried_on() -> None:
    found = trust(checked(0.5, 0.5), [stage(2)])
    assert found.errors["ttft p50"] == pytest.approx(0.4, abs=0.05)  # ln 1.5, less what was known
    assert trust(checked(0.0, 0.0), [stage(2)]).errors["ttft p50"] == 0


def test_a_doubt_decides_whatever_the_checks_say() -> None:
    found = trust(checked(0.0), [stage(2)], ["half of the requests failed"])
    assert found.verdict == "not to be used"
    assert found.reasons == ("half of the requests failed",)


def test_without_a_check_there_is_no_trust() -> None:
    assert trust([], []).verdict == "not to be used"
