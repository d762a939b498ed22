"""Knees by their named rules, on stages whose knee can be worked out with a pencil."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.records import a_run
from support.stages import a_level

from locust_llm.report.sections.sweep.knee import (
    find_knees,
    find_passing_stages,
    limit_to_slots,
)
from locust_llm.report.sections.sweep.sweep_findings import summarise_levels
from locust_llm.report.summary_rows import Knee, LoadLevel
from locust_llm.settings.sweep_option import CONCURRENCY, INPUT, PREFILL, RATE, REPEAT

BURNT = {"client": "INVALID", "client_reasons": ("read lag",)}


def knee(rule: str, axis: str, *levels: LoadLevel) -> Knee:
    return next(found for found in find_knees(axis, levels) if found.rule == rule)


def levels(*statuses: str, **other: object) -> list[LoadLevel]:
    """Stages 1, 2, 4, ... with these results of their rules; ``?`` for one whose client was
    burnt."""
    return [
        a_level(2.0**i, slo=status.strip("?"), **(BURNT if "?" in status else {}), **other)
        for i, status in enumerate(statuses)
    ]


@pytest.mark.parametrize("axis", [CONCURRENCY, RATE, PREFILL, INPUT])
def test_each_axis_has_its_rules(axis: str) -> None:
    own = {
        CONCURRENCY: ["asymptotic", "USL"],
        RATE: ["saturation"],
        PREFILL: ["best limit"],
        INPUT: [],
    }[axis]
    assert [found.rule for found in find_knees(axis, levels("PASS"))] == ["SLO", *own]
    assert find_knees(REPEAT, levels("PASS")) == ()


# -- SLO -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "value", "high", "said"),
    [
        (["PASS", "PASS", "FAIL", "FAIL"], 2, 4,
            "up to concurrency 2; broken at 4. ttft p50 < 1s: FAIL at 4."),
        (["PASS", "PASS"], 2, None, "up to concurrency 2; no higher stage was run."),
        (["PASS", "INCONCLUSIVE"], 1, None,
            "INCONCLUSIVE at 2, so the true maximum may be higher. ttft p50 < 1s: INC"),
        (["PASS", "INCONCLUSIVE", "FAIL"], 1, 4,
            "INCONCLUSIVE at 2, so the true maximum may be higher; broken at 4. ttft"),
        (["PASS", "INCONCLUSIVE", "PASS", "FAIL"], 4, 8,
            "to concurrency 4; broken at 8; INCONCLUSIVE at concurrency 2 too."),
        (["INCONCLUSIVE", "INCONCLUSIVE", "PASS", "FAIL"], 4, 8,
            "; broken at 8; INCONCLUSIVE at concurrency 1 and 2 too."),
        (["PASS", "PASS?", "FAIL"], 2, 4,
            "up to concurrency 2; broken at 4. ttft p50 < 1s: FAIL at 4."),
        (["PASS", "INCONCLUSIVE?", "FAIL"], 1, 4,
            "at 2 the load generator was too slow: the true maximum may be higher; broken at 4."),
        (["PASS", "PASS", "INCONCLUSIVE?"], 2, None, "at 4 the load generator was too slow"),
        (["INCONCLUSIVE", "PASS?", "PASS", "FAIL"], 4, 8,
            "; broken at 8; INCONCLUSIVE at concurrency 1 too."),
        (["FAIL", "PASS", "PASS", "FAIL"], 4, 8,
            "up to concurrency 4; broken at 8; broken at concurrency 1 below."),
        (["PASS", "FAIL", "PASS", "PASS"], 1, 2,
            "broken at 2; passed again at concurrency 4 and 8 above"),
        (["FAIL", "FAIL"], None, 1,
            "it fails at concurrency 1, the lowest. ttft p50 < 1s: FAIL at 1."),
        (["INCONCLUSIVE", "FAIL"], None, 2,
            "be within the SLO; INCONCLUSIVE at concurrency 1; broken at 2. ttft p50 < 1s: I"),
        (["FAIL?", "FAIL"], None, 1,
            "it fails at concurrency 1, the lowest. ttft p50 < 1s: FAIL at 1."),
    ],
)  # fmt: skip
def test_the_highest_stage_within_the_slo(
    statuses: list[str], value: float | None, high: float | None, said: str
) -> None:
    found = knee("SLO", CONCURRENCY, *levels(*statuses))
    assert (found.value, found.low, found.high) == (value, value, high)
    assert said in found.text
    assert "Left out" not in found.text


def test_without_rules_there_is_no_stage_within_them() -> None:
    found = knee("SLO", CONCURRENCY, a_level(1), a_level(2))
    assert found.value is None
    assert "No SLO is given" in found.text


def test_a_stage_that_the_rules_are_not_about_bounds_nothing() -> None:
    found = knee(
        "SLO",
        CONCURRENCY,
        a_level(1),
        *[replace(level, value=level.value + 1) for level in levels("PASS", "FAIL")],
    )
    assert (found.value, found.high) == (2, 3)


def test_a_stage_in_which_nothing_succeeded_breaks_the_slo() -> None:
    dead = a_level(2, None, slo="FAIL", succeeded=0)
    found = knee("SLO", CONCURRENCY, *levels("PASS"), dead)
    assert (found.value, found.high) == (1, 2)
    assert "broken at 2" in found.text


@given(st.lists(st.sampled_from(["PASS", "FAIL", "INCONCLUSIVE", "PASS?"]), min_size=1, max_size=8))
def test_from_the_first_stage_that_holds_none_breaks_up_to_the_highest(statuses: list[str]) -> None:
    stages = levels(*statuses)
    found = find_passing_stages(stages, lambda level: level.slo_status)
    holds = [{"PASS": True, "FAIL": False}.get(status) for status in statuses]
    if found.highest is None:
        assert True not in holds
        return
    at, first = stages.index(found.highest), holds.index(True)
    end = stages.index(found.broken) if found.broken is not None else len(stages)
    assert False not in holds[first:end]
    assert holds[at]
    assert True not in holds[at + 1 : end]
    assert found.beyond is (stages[at + 1] if at + 1 < len(stages) else None)
    assert [stages.index(level) for level in found.before] == [
        i for i in range(first) if holds[i] is False
    ]
    undecided = {stages.index(level) for level in found.undecided}
    assert undecided == {i for i in range(end) if holds[i] is None and i != at + 1}


# -- operational laws and USL ----------------------------------------------------------------------


def saturating(*users: int, most: float = 10.0, alone_s: float = 0.8) -> list[LoadLevel]:
    """A server that answers one user each 0.8 s and 10 requests/s at most: X = min(N / 0.8, 10), R
    = N / X."""
    rates = [min(n / alone_s, most) for n in users]
    return [a_level(n, x, 1000 * n / x) for n, x in zip(users, rates, strict=True)]


def test_the_asymptotic_knee_is_where_both_bounds_meet() -> None:
    found = knee("asymptotic", CONCURRENCY, *saturating(1, 2, 4, 8, 16, 32))
    assert found.value == pytest.approx(8)
    assert (found.low, found.high) == (None, None)
    assert found.text.startswith(
        "Below 8 requests in flight the server has spare capacity, above it requests wait: "
    )
    assert found.text.endswith(
        ": 10 requests/s, the highest (at concurrency 8), x 0.8 s per request at concurrency 1."
    )


def test_a_lowest_stage_that_may_wait_already_is_said() -> None:
    """Latencies of 0.8 s at 4 users, and 10 requests/s at most."""
    found = knee("asymptotic", CONCURRENCY, *saturating(4, 8, 16))
    assert found.value == pytest.approx(8)
    assert "the lowest stage has 4 users instead of 1" in found.text.lower()


@pytest.mark.parametrize("users", [(16, 32, 64), (8, 16)])
def test_where_the_lowest_stage_has_the_highest_throughput_there_is_no_knee(
    users: tuple[int, ...],
) -> None:
    """10 requests/s at each: times the latency of the lowest stage they are its own users."""
    found = knee("asymptotic", CONCURRENCY, *saturating(*users))
    assert (found.value, found.low) == (None, None)
    assert found.text == (
        f"No valid stage has 5% more throughput than concurrency {users[0]}, the lowest of them, so "
        "the measured range has no knee."
    )


def test_where_throughput_still_rises_the_knee_may_lie_above() -> None:
    """4 users have 5 requests/s, x 0.8 s = 4."""
    found = knee("asymptotic", CONCURRENCY, *saturating(1, 2, 4))
    assert (found.value, found.low) == (None, pytest.approx(4))
    assert found.text == (
        "Throughput still rose at the highest stage, so the knee may be higher than 4 requests in "
        "flight: 5 requests/s (at concurrency 4), x 0.8 s per request at concurrency 1."
    )


def test_a_higher_throughput_of_a_stage_that_is_left_out_is_said() -> None:
    """10 requests/s x 0.8 s = 8 of the valid stages; the last one has 12 a second."""
    burnt = a_level(32, 12.0, 100.0, **BURNT)
    found = knee("asymptotic", CONCURRENCY, *saturating(1, 2, 4, 8, 16), burnt)
    assert (found.value, found.low) == (pytest.approx(8), pytest.approx(8))
    assert found.text.startswith(
        "Throughput was higher at concurrency 32, but may be off, so the knee may be higher than 8 "
        "requests in flight: 10 requests/s (at concurrency 8), x"
    )
    assert "spare capacity" not in found.text


@pytest.mark.parametrize(
    ("slots", "value", "text"),
    [
        (4, 4, "The server has 4 slots, so above 4 in flight requests wait."),
        (8, 8, "Below 8 requests in flight the server has spare capacity"),
        (None, 8, "Below 8 requests in flight the server has spare capacity"),
    ],
)
def test_no_knee_is_above_the_slots(slots: int | None, value: float, text: str) -> None:
    knees = find_knees(CONCURRENCY, saturating(1, 2, 4, 8, 16))
    (found,) = (k for k in limit_to_slots(CONCURRENCY, knees, slots) if k.rule == "asymptotic")
    assert found.value == pytest.approx(value)
    assert found.text.startswith(text)


def test_a_sweep_beyond_the_slots_says_so() -> None:
    run = replace(a_run(sweep="concurrency=1..8", users=None), server_flags={"total_slots": "4"})
    stages = saturating(1, 2, 4, 8)
    waiting = "4 slots: of 8 users 4 wait for a slot, and TTFT includes that wait."
    assert waiting in summarise_levels(run, stages).findings
    within = summarise_levels(run, stages[:3]).findings
    unknown = summarise_levels(replace(run, server_flags={}), stages).findings
    assert not any("slot" in text for text in (*within, *unknown))


def test_one_valid_stage_has_no_knee() -> None:
    """By Little's law its throughput times its latency is its own number of users, on whatever
    server."""
    first, *others = saturating(1, 2, 4)
    burnt = [replace(level, client="INVALID") for level in others]
    found = knee("asymptotic", CONCURRENCY, first, *burnt)
    assert (found.value, found.low) == (None, None)
    assert (
        found.text == "A knee needs 2 valid levels, but there is 1. Left out: concurrency 2 and 4."
    )
    assert knee("USL", CONCURRENCY, first).text == "A fit needs 5 valid levels, but there is 1."


def test_no_throughput_no_knee() -> None:
    for rule in ("asymptotic", "USL"):
        found = knee(rule, CONCURRENCY, a_level(1, None), a_level(2, None))
        assert found.value is None
        assert found.text.startswith(("A knee needs", "A fit needs"))
    found = knee("asymptotic", CONCURRENCY, a_level(1, latencies={}), a_level(2, latencies={}))
    assert (found.value, found.text) == (None, "No request latency is known.")


def by_law(*users: int, lam: float = 2.0, sigma: float, kappa: float) -> list[LoadLevel]:
    return [a_level(n, lam * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))) for n in users]


def test_the_peak_of_the_scalability_law() -> None:
    found = knee("USL", CONCURRENCY, *by_law(1, 2, 4, 8, 16, sigma=0.19, kappa=0.01))
    assert found.value == pytest.approx(9)
    assert (
        "X(N) = 2 N / (1 + 0.19 (N - 1) + 0.01 N (N - 1)) requests/s, R2 1.000 over 5 stages"
        in found.text
    )


def test_a_peak_beyond_the_highest_stage_is_none() -> None:
    near = knee("USL", CONCURRENCY, *by_law(1, 2, 3, 4, 5, sigma=0.19, kappa=0.01))
    assert (near.value, near.low) == (None, 5)
    assert near.text.endswith(
        "throughput still rises at concurrency 5, no peak within the measured range."
    )
    flat = knee("USL", CONCURRENCY, *by_law(1, 2, 4, 6, 8, 9, 10, sigma=0.19, kappa=0.01))
    assert flat.value is None
    assert flat.text.endswith("throughput levels off at 5.56/s, no peak within the measured range.")


def test_a_fall_that_may_be_chance_is_no_peak() -> None:
    stages = by_law(1, 2, 4, 8, 16, sigma=0.19, kappa=0.01)
    assert knee("USL", CONCURRENCY, *stages).value == pytest.approx(9)
    vague = [
        replace(level, requests_per_s_error=0.1 * (level.requests_per_s or 0.0)) for level in stages
    ]
    found = knee("USL", CONCURRENCY, *vague)
    assert found.value is None
    assert "levels off at" in found.text


def test_a_fall_that_the_law_does_not_explain_is_said() -> None:
    """It falls at the last stage alone."""
    found = knee(
        "USL",
        CONCURRENCY,
        *[a_level(n, x) for n, x in ((1, 1.0), (2, 1.9), (4, 3.4), (8, 5.4), (16, 5.1))],
    )
    assert found.value is None or found.value < 16


def test_a_law_that_does_not_fit_finds_nothing() -> None:
    found = knee(
        "USL", CONCURRENCY, *[a_level(n, x) for n, x in ((1, 5), (2, 1), (4, 9), (8, 2), (16, 9))]
    )
    assert found.value is None
    assert "does not fit the measured throughput (R2 below 0.95)" in found.text


def test_visits_to_one_level_are_no_knee() -> None:
    """Four of one user: nothing shows what a second one does."""
    visits = saturating(1) * 4
    assert knee("asymptotic", CONCURRENCY, *visits).text == (
        "A knee needs 2 valid levels, but there is 1."
    )
    assert knee("USL", CONCURRENCY, *visits).text == "A fit needs 5 valid levels, but there is 1."


def test_visits_to_the_highest_level_are_no_flat_throughput() -> None:
    """8 users come to 10/s, three visits to 16 to 15, 15 and 12: 14 together, so it still rises, and
    a visit that was disturbed is no fall."""
    base = saturating(1, 8, 16)
    rates = {1: (1.25,), 8: (10.0,), 16: (15.0, 15.0, 12.0)}
    visits = [
        replace(level, requests_per_s=rate, duration_s=20.0)
        for level in base
        for rate in rates[int(level.value)]
    ]
    found = knee("asymptotic", CONCURRENCY, *visits)
    assert (found.value, found.low) == (None, pytest.approx(14.0 * 0.8))
    assert found.text.startswith("Throughput still rose at the highest stage")


def test_five_stages_make_a_fit() -> None:
    found = knee("USL", CONCURRENCY, *by_law(1, 2, 4, 8, sigma=0.1, kappa=0.01))
    assert (found.value, found.text) == (None, "A fit needs 5 valid levels, but there are 4.")


# -- other axes ------------------------------------------------------------------------------------


def test_the_rate_that_the_server_keeps_up_with() -> None:
    offered = ((2, 1.0, True), (4, 0.9, True), (8, 0.94, False), (16, 0.4, False))
    stages = [a_level(rate, answered_share=share, kept_up=kept) for rate, share, kept in offered]
    found = knee("saturation", RATE, *stages)
    assert (found.value, found.low, found.high) == (4, 4, 8)
    assert found.text == (
        "The server keeps up to request-rate 4: it answered 90.0% of the due requests, the rest "
        "may happen to be in flight; at 8 94.0% of the due requests."
    )
    assert knee("saturation", RATE, stages[0]).high is None
    more = knee("saturation", RATE, a_level(2, answered_share=1.03, kept_up=True))
    assert (
        "it answered more requests than were due (103.0%), because some were due before the "
        "measured time; " in more.text
    )
    assert "no higher stage was run" in knee("saturation", RATE, stages[0]).text
    none = knee("saturation", RATE, *stages[2:])
    assert (none.value, none.high) == (None, 8)
    assert "keeps up with none of the rates: at request-rate 8 it answered 94.0%" in none.text
    assert "due requests is unknown" in knee("saturation", RATE, a_level(2)).text


def test_the_best_limit_and_those_that_are_as_good() -> None:
    def limits(*goodputs: tuple[float | None, float | None, float | None]) -> Knee:
        values = zip((1, 2, 4, 8), goodputs, strict=False)
        found = [
            a_level(k, goodput_low=low, goodput_per_s=x, goodput_high=high)
            for k, (low, x, high) in values
        ]
        return knee("best limit", PREFILL, *found)

    alone = limits((1, 2, 3), (4, 5, 6), (2, 3, 3.9))
    assert (alone.value, alone.low, alone.high) == (2, 2, 2)
    assert (
        alone.text
        == "The best goodput, 5 requests/s (95% interval 4 to 6), is at prefill-concurrency 2."
    )
    alike = limits((1, 2, 3), (4, 5, 6), (3, 4.9, 7), (3, 4, 4.1))
    assert (alike.value, alike.low, alike.high) == (2, 2, 8)
    assert "its interval overlaps with the interval at prefill-concurrency 4 and 8" in alike.text
    unknown = limits((None, 2, None), (4, 5, 6))
    assert (unknown.value, unknown.low) == (2, 1)
    assert "needs a definition" in limits((None, None, None)).text
    assert limits((0, 0, 0), (0, 0, 0)).text == "No request was good under any limit."
    only = limits((4, 5, 6))
    assert (only.value, only.text) == (None, "A comparison needs 2 valid limits, but there is 1.")


# -- the load generator ----------------------------------------------------------------------------


def test_nothing_rests_on_a_stage_to_which_the_client_was_not_up() -> None:
    """The last stage, were it to count, would double Xmax and fit no law."""
    whole = saturating(1, 2, 4, 8, 16)
    burnt = a_level(
        32, 20.0, 100.0, slo="PASS", goodput_per_s=99.0, answered_share=1.0, kept_up=True, **BURNT
    )
    for axis in (CONCURRENCY, RATE, PREFILL, INPUT):
        sound = find_knees(axis, whole)[1:]
        slo, *with_it = find_knees(axis, [*whole, burnt])
        assert (
            slo.value == 32
        )  # the rule is decided there: it is void only where the error of the client reaches its limit
        assert [(k.rule, k.value) for k in with_it] == [(k.rule, k.value) for k in sound]
        assert all(k.text.endswith(f"Left out: {axis} 32.") for k in with_it)


@pytest.mark.parametrize("axis", [CONCURRENCY, RATE, PREFILL, INPUT])
def test_where_every_stage_is_burnt_all_is_inconclusive(axis: str) -> None:
    slo, *found = find_knees(
        axis, levels("PASS?", "FAIL?", goodput_per_s=1.0, answered_share=1.0, kept_up=True)
    )
    assert (slo.value, slo.high) == (1, 2)
    found += find_knees(
        axis,
        levels(
            "INCONCLUSIVE?", "INCONCLUSIVE?", goodput_per_s=1.0, answered_share=1.0, kept_up=True
        ),
    )
    assert all(k.value is None and k.low is None and k.high is None for k in found)
    assert {k.text for k in found} == {
        f"INCONCLUSIVE: no stage is valid; at {axis} 1 the client verdict is INVALID (read lag)."
    }
    assert all(k.value is None for k in find_knees(axis, []))
    assert "no request succeeded" in find_knees(axis, [a_level(1, None, succeeded=0)])[0].text


def test_a_stage_that_a_standstill_leaves_open_is_open_for_that_whatever_the_client_did() -> None:
    stage = levels("INCONCLUSIVE?")[0]
    still = replace(stage, slos=(replace(stage.slos[0], status_without_silence="PASS"),))
    unknown, known = (find_knees(CONCURRENCY, [one])[0].text for one in (stage, still))
    assert unknown.startswith("INCONCLUSIVE: no stage is valid")
    assert known.startswith("INCONCLUSIVE: no stage is known to be within the SLO, and longer")


def test_a_stage_with_too_few_requests_is_open_for_that_whatever_the_client_did() -> None:
    """The error of an INVALID client cannot reach the limit: its rules are not void."""
    few = levels("INCONCLUSIVE?", "INCONCLUSIVE?")
    few = [
        replace(
            level, slos=tuple(replace(result, reason="too few samples: 3") for result in level.slos)
        )
        for level in few
    ]
    slo = find_knees(CONCURRENCY, few)[0]
    assert slo.text == (
        "INCONCLUSIVE: no stage is known to be within the SLO, and longer stages may decide it; "
        "INCONCLUSIVE at concurrency 1 and 2. ttft p50 < 1s: INCONCLUSIVE at 1, too few samples: "
        "3."
    )
    between = find_knees(CONCURRENCY, [*levels("PASS"), few[1]])[0]
    assert between.text.startswith("Within the SLO up to concurrency 1; INCONCLUSIVE at 2, so the")


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.01, 1e4), st.floats(1, 1e6)), min_size=1,
    max_size=9,
                unique_by=lambda stage: stage[0]))  # fmt: skip
def test_whatever_was_measured_there_is_an_answer(measured: list[tuple[int, float, float]]) -> None:
    stages = [a_level(n, x, ms) for n, x, ms in sorted(measured)]
    for found in find_knees(CONCURRENCY, stages):
        assert found.value is None or (math.isfinite(found.value) and found.value > 0)
        assert found.text
