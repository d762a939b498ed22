"""Answers of a grid: exact where steps are, queues by M/D/1, relative for a shape, the same over
processes."""

import math

import pytest
from support.made_twins import QUEUE, STEP_S, draws, made

from locust_llm.lab.twin.twin_model import SHAPE
from locust_llm.lab.twin.twin_prediction import ERROR_WIDTH, PER_OCTAVE, WIDTH, WhatIf
from locust_llm.lab.twin.virtual_replay import OfferedLoad
from locust_llm.lab.twin.whatif import whatif_grid
from locust_llm.lab.twin.whatif import whatif_rows as whatif_rows
from locust_llm.lab.twin.whatif.simulation_processes import SharedWork, simulate_what_ifs
from locust_llm.lab.twin.whatif.whatif_rows import WhatIfPredictor, select_frontier, top_rows
from locust_llm.lab.twin.whatif.whatif_text import describe_extrapolations
from locust_llm.slo.rules import parse_rule

DECODER = ((10, 10),)
SINGLE = ((100, 1),)


def rows_of(twin, *loads, sets=(), rules=(), lengths=None):
    choices = [whatif_grid.parse_setting_choice(one) for one in sets]
    cases = whatif_grid.make_grid(loads, choices, twin.model.settings)
    asker = WhatIfPredictor(twin, lengths or twin.lengths, tuple(map(parse_rule, rules)))
    return asker.rows(cases, lambda done, most: None, processes=1)


def test_steps_of_one_time_are_the_itl_and_ten_of_them_a_request():
    (row,) = rows_of(
        made(lengths=DECODER), OfferedLoad(users=1), rules=["request_latency p50 < 1s"]
    )
    assert row.answers["itl p50"] == pytest.approx((STEP_S,) * 3)
    assert row.answers["ttft p95"] == pytest.approx((STEP_S,) * 3)
    assert row.answers["request_latency p50"] == pytest.approx((10 * STEP_S,) * 3)
    assert row.answers["throughput"] == pytest.approx((100,) * 3, rel=0.02)
    assert row.status == whatif_rows.MET


def test_a_smaller_budget_takes_twice_the_steps_for_a_prompt():
    whole, half = rows_of(made(), OfferedLoad(users=1), sets=["max-num-batched-tokens=100,50"])[
        ::-1
    ]
    assert whole.answers["ttft p50"].about == pytest.approx(STEP_S)
    assert half.answers["ttft p50"].about == pytest.approx(2 * STEP_S)


def test_a_twin_for_shape_gives_no_seconds():
    sets, rules = ["max-num-batched-tokens=50,100"], ["ttft p95 < 1s"]
    half, same = rows_of(made(verdict=SHAPE), OfferedLoad(users=1), sets=sets, rules=rules)
    assert same.answers["ttft p50"] == pytest.approx((1, 1, 1))
    off = math.exp(ERROR_WIDTH * PER_OCTAVE["ttft"])
    assert half.answers["ttft p50"] == pytest.approx((2 / off, 2, 2 * off))
    assert half.answers["itl p50"].about == pytest.approx(1)
    assert half.status == "", "rules are about seconds"


def test_costs_that_are_not_known_make_an_interval():
    """Logarithms of 0.9 and 1.1, six of each: twelve elevenths of the square of half their
    difference, and a twelfth of that for the mean."""
    (row,) = rows_of(made(draws=draws(0.9, 1.1) * 6, lengths=DECODER), OfferedLoad(users=1))
    low, about, high = row.answers["itl p50"]
    assert about == pytest.approx(STEP_S, rel=0.01)
    assert high / about == pytest.approx(
        math.exp(WIDTH * math.log(1.1 / 0.9) / 2 * math.sqrt(12 / 11 * 13 / 12)), rel=1e-3
    )
    assert low / about == pytest.approx(about / high)


def test_a_queue_waits_as_md1_says():
    """Pollaczek and Khinchin: at half of the capacity of 10/s the mean wait is half a service, so
    TTFT 0.15 s, and by Little's law 0.75 requests are open."""
    (row,) = rows_of(made(QUEUE), OfferedLoad(rate=5.0), lengths=SINGLE, rules=["ttft avg < 1s"])
    low, about, high = row.answers["ttft avg"]
    assert low < 0.15 < high
    assert about == pytest.approx(0.15, rel=0.05)
    assert row.answers["in flight"].about == pytest.approx(0.75, rel=0.07)
    assert not row.falls_behind


def test_more_than_the_capacity_falls_behind():
    (row,) = rows_of(
        made(QUEUE), OfferedLoad(rate=12.5), lengths=SINGLE, rules=["ttft p95 < 100000s"]
    )
    assert row.answers["served"].about == pytest.approx(0.8, rel=0.03)
    assert row.falls_behind
    assert row.status == whatif_rows.NOT_MET, "a wait that grows has no percentile"


def test_the_wait_at_a_gate_is_in_ttft_from_due_alone():
    """Four users, prompts of a step each, one at a time."""
    free, held = rows_of(
        made(QUEUE), OfferedLoad(users=4), sets=["prefill-concurrency=none,1"], lengths=SINGLE
    )
    assert held.answers["ttft p50"].about == pytest.approx(0.1, rel=0.01)
    assert held.answers["ttft_from_due p50"].about == pytest.approx(0.4, rel=0.05)
    assert free.answers["ttft p50"].about == pytest.approx(0.4, rel=0.05)


def test_processes_give_the_same():
    work = SharedWork(made(QUEUE).models() * 4, ((100, 3), (60, 5)), ("ttft p95", "throughput"))
    asked = [WhatIf(OfferedLoad(users=users)) for users in range(1, 11)]
    told = []
    alone = simulate_what_ifs(work, asked, processes=1)
    assert (
        simulate_what_ifs(
            work, asked, processes=2, on_progress=lambda done, most: told.append((done, most))
        )
        == alone
    )
    assert told[-1] == (10, 10)


def test_many_are_simulated_roughly_and_the_top_ones_again():
    loads, sets = [OfferedLoad(users=n) for n in range(1, 17)], ["max-num-batched-tokens=50,60,100"]
    rows = rows_of(made(draws=draws(*[1.0] * 6)), *loads, sets=sets, rules=["ttft p95 < 1s"])
    assert len(rows) == 48
    assert sum(not row.rough for row in rows) == 20
    assert not any(row.rough for row in top_rows(rows)[:20])
    assert all(row.answers["itl p50"].about == pytest.approx(STEP_S) for row in rows)


def test_a_load_beyond_what_was_measured_is_an_octave_away_when_it_is_twice_as_much():
    """Fitted up to 16 users, without an error of its own."""
    inside, beyond = rows_of(made(lengths=DECODER), OfferedLoad(users=16), OfferedLoad(users=32))
    assert inside.answers["itl p50"] == pytest.approx((STEP_S,) * 3)
    off = math.exp(ERROR_WIDTH * PER_OCTAVE["itl"])
    assert beyond.answers["itl p50"] == pytest.approx((STEP_S / off, STEP_S, STEP_S * off))
    assert beyond.beyond == ("32 users (up to 16 were measured)",)


def test_an_extrapolation_says_how_wide_it_is():
    _, beyond = rows_of(made(lengths=DECODER), OfferedLoad(users=16), OfferedLoad(users=32))
    off = math.exp(ERROR_WIDTH * PER_OCTAVE["itl"]) - 1
    assert describe_extrapolations([beyond], ("itl p50",)) == [
        f"32 users (up to 16 were measured), ITL p50 ±{off:.0%}"
    ]


def test_a_frontier_has_what_nothing_is_better_than():
    rows = rows_of(
        made(QUEUE),
        *(OfferedLoad(users=n) for n in (1, 2, 4)),
        sets=["max-num-batched-tokens=50,100"],
        lengths=SINGLE,
    )
    found = select_frontier(rows, "ttft p95")
    assert found[0].case.what_if.load.users == 1
    waits = [row.answers["ttft p95"].about for row in found]
    assert waits == sorted(waits)
