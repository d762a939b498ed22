"""What is kept out of a fit, and what its errors come to."""

import math
from collections import defaultdict
from statistics import fmean

import msgspec
import pytest

from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage, stage_figures
from locust_llm.lab.twin.twin_fit import LEAST_ERRORS, check_predictions, held_out, judge_trust
from locust_llm.lab.twin.twin_model import HeldOutCheck, Noise
from locust_llm.lab.twin.twin_prediction import WIDTH
from locust_llm.lab.twin.virtual_replay import OfferedLoad, resend_stage, simulate_load

from .models import plain


def stage(users: int, step_s: float = 0.01, count: int = 40) -> ObservedStage:
    """Of users with answers of 11 tokens, a step each."""
    seen = [
        ObservedRequest(at, tuple(at + step_s * (number + 1) for number in range(11)), 100, 11)
        for at in (step_s * 11 * (number // users) for number in range(count))
    ]
    return ObservedStage(users, 0.0, tuple(seen))


def checked(*errors: float, figure: str = "ttft p50") -> list[HeldOutCheck]:
    return [
        HeldOutCheck(
            load="2 users",
            figure=figure,
            said=1 + error,
            low=0.9,
            high=1.1,
            measured=1.0,
            requests=40,
        )
        for error in errors
    ]


def test_every_second_load_is_kept_out_but_never_the_first_or_the_last() -> None:
    used, out = held_out([stage(users) for users in (8, 1, 2, 4, 16)])
    assert [one.users for one in used] == [1, 4, 16]
    assert [one.users for one in out] == [2, 8]


def test_a_model_with_the_true_steps_is_off_by_nothing() -> None:
    out = [stage(2)]
    found = check_predictions([plain()], out)
    assert all(abs(one.error) < 0.03 for one in found)
    assert judge_trust(found).verdict == "figures"


def test_a_model_with_other_steps_is_found_out() -> None:
    out = [stage(2, step_s=0.016)]
    found = judge_trust(check_predictions([plain()], out))
    assert found.verdict == "not to be used"
    assert "off by" in found.reasons[0]


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [((0.02, -0.03), "figures"), ((0.15, -0.2), "shape"), ((0.4, -0.3), "not to be used")],
)
def test_the_median_of_the_errors_decides(errors: tuple[float, float], verdict: str) -> None:
    assert judge_trust(checked(*errors)).verdict == verdict


def test_one_figure_that_is_far_off_is_enough_against_figures() -> None:
    found = judge_trust([*checked(0.01, 0.02, 0.01), *checked(0.4, figure="ttft p99")])
    assert found.verdict == "shape"
    assert "ttft p99" in found.reasons[0]


def test_what_the_fit_does_not_explain_is_carried_on() -> None:
    found = judge_trust(checked(0.5, 0.5))
    assert found.errors["ttft p50"] == pytest.approx(0.4, abs=0.05)  # ln 1.5, less what was known


def test_a_check_without_an_error_leaves_the_least_one() -> None:
    assert judge_trust(checked(0.0, 0.0)).errors["ttft p50"] == LEAST_ERRORS["ttft"] == 0.02


def test_loads_of_the_fit_tell_of_the_error_too() -> None:
    """0.3 off where it was fitted, nothing where it was checked: 0.3^2 / 2."""
    found = judge_trust([with_error(0.0, 0.0)], fitted=[with_error(0.3, 0.0)])
    assert found.errors["ttft p50"] == pytest.approx(math.sqrt(0.045))
    assert found.verdict == "figures"


def test_a_model_that_cannot_be_fitted_is_good_for_shape_at_most() -> None:
    """As batches that are padded: right where few wait, and wrong beyond. 0.4^2 / 2."""
    found = judge_trust([with_error(0.0, 0.0)], fitted=[with_error(0.4, 0.0)])
    assert found.verdict == "shape"
    assert "ttft p50 is off by 28%" in found.reasons[-1]


def with_error(off: float, known: float, figure: str = "ttft p50") -> HeldOutCheck:
    """``off``: logarithm of said / measured; ``known``: its standard error."""
    low, high = math.exp(-WIDTH * known), math.exp(WIDTH * known)
    return HeldOutCheck(
        load="2 users",
        figure=figure,
        said=math.exp(off),
        low=low,
        high=high,
        measured=1.0,
        requests=40,
    )


def test_what_is_known_of_an_error_is_taken_from_its_square() -> None:
    """(0.3^2 + 0.4^2) / 2 - 0.1^2 = 0.115."""
    found = judge_trust([with_error(0.3, 0.1), with_error(-0.4, 0.1)])
    assert found.errors["ttft p50"] ** 2 == pytest.approx(0.115)


def test_a_check_that_is_hardly_known_hardly_counts() -> None:
    """v such that (0.01 / v + 9 / (9 + v)) / 2 = 1, a little below 0.01."""
    found = judge_trust([with_error(0.1, 0.0), with_error(3.0, 3.0)])
    assert found.errors["ttft p50"] ** 2 == pytest.approx(0.01, rel=0.01)


def test_the_figures_of_a_metric_have_one_error_and_no_other_has() -> None:
    found = judge_trust(
        [
            with_error(0.1, 0.0),
            with_error(0.2, 0.0, "ttft p99"),
            with_error(0.01, 0.0, "throughput"),
        ]
    )
    of_ttft = dict.fromkeys(("ttft p50", "ttft p95", "ttft p99"), math.sqrt(0.025))
    assert found.errors == pytest.approx(of_ttft | {"throughput": 0.01})


def test_a_throughput_that_is_off_is_carried_on() -> None:
    """Steps of 10 instead of 10.5 ms, and no noise that could have done it: ln 1.05."""
    out = [stage(2, step_s=0.0105)]
    assert judge_trust(check_predictions([plain()], out)).errors["throughput"] == pytest.approx(
        math.log(1.05), rel=0.1
    )


def test_a_run_is_where_the_check_says_it_is() -> None:
    """The model is the truth: 95% of other runs of the same 48 requests (2.2 standard errors, by
    Student's t of the eleven degrees of freedom that twelve runs have), of each figure, a p99 of
    few requests too."""
    model = msgspec.structs.replace(plain(token_s=1e-4), noise=Noise(step_sigma=0.3))
    held = defaultdict[str, list[bool]](list)
    for seed in range(40):
        sent = simulate_load(
            model, OfferedLoad(users=4), [(100, 5), (300, 20), (900, 10)], seed, count=48
        )
        runs = [stage_figures(resend_stage(model, sent, number)) for number in range(10)]
        for one in check_predictions([model] * 12, [sent]):
            held[one.figure] += [one.low <= run[one.figure] <= one.high for run in runs]
    shares = {figure: fmean(some) for figure, some in held.items()}
    assert fmean(shares.values()) == pytest.approx(0.95, abs=0.02), shares
    assert min(shares.values()) > 0.9, shares


def test_a_doubt_decides_whatever_the_checks_say() -> None:
    found = judge_trust(checked(0.0), ["half of the requests failed"])
    assert found.verdict == "not to be used"
    assert found.reasons == ("half of the requests failed",)


def test_without_a_check_there_is_no_trust() -> None:
    assert judge_trust([]).verdict == "not to be used"
