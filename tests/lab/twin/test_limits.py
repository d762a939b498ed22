"""What a twin cannot tell: refused far outside of its fit, marked with the range where it is
near."""

import math

import msgspec
import pytest
from support.made_twins import made

from locust_llm.lab.twin.twin_model import NOT_TO_BE_USED
from locust_llm.lab.twin.twin_prediction import PredictedValue, WhatIf
from locust_llm.lab.twin.virtual_replay import OfferedLoad
from locust_llm.lab.twin.whatif import whatif_grid, whatif_rows
from locust_llm.slo.rules import parse_rule

TWIN = made()


def test_a_twin_that_is_not_to_be_used_is_refused_with_its_reasons():
    assert "not to be used: made for a test" in whatif_grid.refuse_extrapolation(
        made(verdict=NOT_TO_BE_USED), ((10, 10),)
    )
    assert whatif_grid.refuse_extrapolation(TWIN, ((10, 10),)) == ""


def test_prompts_five_times_as_long_are_refused():
    assert (
        "prompts of 500 tokens are 5 times as long as the longest"
        in whatif_grid.refuse_extrapolation(TWIN, ((10, 10), (500, 10)))
    )
    assert "answers of 60 tokens are 6 times" in whatif_grid.refuse_extrapolation(TWIN, ((10, 60),))
    assert whatif_grid.refuse_extrapolation(TWIN, ((499, 10),)) == ""


def test_ten_times_the_load_is_refused():
    assert (
        whatif_grid.too_much(OfferedLoad(users=160), TWIN.ranges)
        == "160 users, where the twin was fitted up to 16 users"
    )
    assert whatif_grid.too_much(OfferedLoad(users=159), TWIN.ranges) == ""


def test_longer_than_measured_is_marked_with_the_range():
    assert [*whatif_grid.beyond_lengths(TWIN.ranges, ((99, 10), (101, 10)))] == [
        "prompts of 99 to 101 tokens (10 to 100 were measured)"
    ]
    assert [*whatif_grid.beyond_lengths(TWIN.ranges, ((10, 1), (100, 10)))] == []


def test_more_users_than_measured_are_marked():
    further = whatif_grid.find_further_load(OfferedLoad(users=24), {}, TWIN.ranges)
    assert further == ("24 users (up to 16 were measured)", 1.5)
    assert whatif_grid.find_further_load(OfferedLoad(users=16), {}, TWIN.ranges) is None


def test_a_rate_is_held_against_the_users_of_the_fit_by_what_is_open():
    logs = {"in flight": [[math.log(10)], [math.log(40)]]}
    further = whatif_grid.find_further_load(OfferedLoad(rate=3.0), logs, TWIN.ranges)
    assert further is not None
    assert further.text == "20 requests open at once (up to 16 were measured)"
    assert further.times == pytest.approx(20 / 16)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_num_batched_tokens": 200}, "steps of up to 200 tokens (up to 100 were measured)"),
        ({"policy": "mixed"}, "policy mixed (the server ran chunked)"),
        ({"max_num_seqs": 16}, "max-num-seqs of 16 (the server had 8)"),
        ({"max_num_seqs": None}, "max-num-seqs of no limit (the server had 8)"),
        ({"max_num_batched_tokens": 50}, ""),
    ],
)
def test_larger_steps_than_those_of_the_fit_are_marked(change, said):
    fitted = msgspec.structs.replace(TWIN.model.settings, max_num_seqs=8)
    asked = WhatIf(OfferedLoad(users=1), settings=msgspec.structs.replace(fitted, **change))
    assert [*whatif_grid.beyond_settings(asked, fitted)] == ([said] if said else [])


def test_what_is_unknown_is_said_where_it_matters():
    twin = msgspec.structs.replace(
        TWIN, unknown={"max_num_seqs": "no limit was observed", "policy": "guessed"}
    )
    changed = WhatIf(
        OfferedLoad(users=1),
        settings=msgspec.structs.replace(TWIN.model.settings, max_num_batched_tokens=50),
    )
    assert [*whatif_grid.list_unknowns(twin, WhatIf(OfferedLoad(users=1)), (), ())] == []
    assert [*whatif_grid.list_unknowns(twin, WhatIf(OfferedLoad(users=17)), (), ("17 users",))] == [
        "max_num_seqs: no limit was observed"
    ]
    assert [*whatif_grid.list_unknowns(twin, changed, (), ())] == [
        "max_num_seqs: no limit was observed",
        "policy: guessed",
    ]
    assert [*whatif_grid.list_unknowns(twin, changed, ("max_num_seqs",), ())] == [
        "policy: guessed"
    ], "who sets it knows it"


@pytest.mark.parametrize(
    ("text", "answer", "said"),
    [
        ("ttft p95 < 1s", (0.8, 0.9, 0.99), whatif_rows.MET),
        ("ttft p95 < 1s", (0.8, 0.9, 1.1), whatif_rows.OPEN),
        ("ttft p95 < 1s", (1.1, 1.2, 1.3), whatif_rows.NOT_MET),
        ("ttft p95 > 1s", (1.1, 1.2, 1.3), whatif_rows.MET),
    ],
)
def test_a_rule_holds_at_both_ends_of_an_interval_or_is_open(text, answer, said):
    assert whatif_rows.judge_answer(parse_rule(text), {"ttft p95": PredictedValue(*answer)}) == said


def test_the_worst_of_all_rules_that_decide_counts():
    answers = {"ttft p95": PredictedValue(1, 2, 3), "itl p50": PredictedValue(0.01, 0.01, 0.01)}
    met, opened, warned = (
        parse_rule("itl med < 50ms"),
        parse_rule("ttft p95 < 2s"),
        parse_rule("warn: ttft p95 < 0.5s"),
    )
    assert whatif_rows.status_of_answers([met, opened, warned], answers) == whatif_rows.OPEN
    assert whatif_rows.status_of_answers([met, warned], answers) == whatif_rows.MET
    assert whatif_rows.status_of_answers([warned], answers) == ""


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ("tpot p90 < 50ms", "itl p90"),
        ("longest_stall med < 1s", "stall p50"),
        ("e2el avg < 5s", "request_latency avg"),
        ("output_tokens_per_s >= 100", "throughput"),
    ],
)
def test_rules_by_any_name_are_about_a_figure(text, figure):
    assert whatif_rows.figure_of_rule(whatif_rows.parse_predicted_rule(text)) == figure


@pytest.mark.parametrize(
    "text",
    ["error_rate < 1%", "ttft max < 1s", "icl p99 < 50ms", "attainment >= 99% given ttft < 1s",
        "ttft{class=a} p95 < 1s",
     "ttft p95 within 5% of reports/base"],
)  # fmt: skip
def test_what_a_twin_cannot_tell_is_refused_with_what_it_predicts(text):
    with pytest.raises(
        ValueError,
        match="predicts ttft, ttft_from_due, itl, longest_stall, request_latency with avg, med",
    ):
        whatif_rows.parse_predicted_rule(text)
