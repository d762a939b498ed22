"""Plans: arrivals over a day, the most of one replica, replicas with one lost, costs; on a queue
that M/D/1 describes."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from support.made_twins import QUEUE, draws, made

from locust_llm.lab.twin.plan import plan_text, replica_plan
from locust_llm.lab.twin.plan.replica_plan import (
    Fleet,
    arrivals_of_times,
    find_highest_rate,
    parse_day_factors,
    parse_planned_arrivals,
    price_fleet,
    size_fleet,
)
from locust_llm.lab.twin.twin_model import SHAPE
from locust_llm.lab.twin.whatif.whatif_rows import WhatIfPredictor
from locust_llm.slo.rules import parse_rule

SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "plan-output.schema.json"
SINGLE = ((100, 1),)
SAME = draws(*[1.0] * 6, cost=QUEUE)


def test_a_rate_by_any_unit():
    for written in ("2/s", "120/min", "7200 / h", "172800/day"):
        found = parse_planned_arrivals(written)
        assert found.mean == found.peak == pytest.approx(2)
        assert found.hours == pytest.approx((2.0,) * 24)


def test_a_day_by_its_shape():
    found = parse_planned_arrivals("86400/day", "diurnal")
    assert found.mean == 1
    assert sum(found.hours) / 24 == pytest.approx(1)
    assert found.hours.index(max(found.hours)) == 14, "from 14 to 16 o'clock it is the most"
    assert found.peak == pytest.approx(1.793, abs=1e-3)
    assert "0.8 cos" in found.what
    hours = [0] * 22 + [3, 1]
    assert parse_planned_arrivals("1/s", ",".join(map(str, hours))).hours[-2:] == (18, 6)


@pytest.mark.parametrize("shape", ["round", "1,2,3", ",".join(["0"] * 24), ",".join(["-1"] * 24)])
def test_another_shape_is_refused(shape):
    why = "write flat, diurnal, or 24 comma-separated numbers, one per hour$"
    with pytest.raises(ValueError, match=why):
        parse_day_factors(shape)


def test_a_trace_is_counted_by_hours_with_its_busiest_minutes_as_the_peak():
    first_hour = [float(at) for at in range(0, 3600, 36)]  # 100 requests
    burst = [5000 + at / 10 for at in range(300)]  # 300 within 30 s
    found = arrivals_of_times([*first_hour, *burst, 7200.0], "a trace")
    assert found.hours == pytest.approx((100 / 3600, 300 / 3600))
    assert found.peak == pytest.approx(1.0)
    assert found.mean == pytest.approx(401 / 7200)


def test_a_trace_from_a_file_brings_its_lengths(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1000 * at, "input_length": 90, "output_length": 5} for at in range(11)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = parse_planned_arrivals(str(path))
    assert found.mean == pytest.approx(1.1)
    assert set(found.lengths) == {(90, 5)}
    path.write_text('{"input_length": 90, "output_length": 5}\n')
    with pytest.raises(ValueError, match="has no time"):
        parse_planned_arrivals(str(path))
    with pytest.raises(ValueError, match="for a rate write"):
        parse_planned_arrivals(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("limit", [0.02, 0.3, 1.0, 3.7, 7.9])
def test_the_most_that_holds_is_found_within_three_percent(limit):
    found = find_highest_rate(lambda rates: [rate <= limit for rate in rates], 1.0)
    assert limit / 1.03 <= found <= limit
    assert find_highest_rate(lambda rates: [False for _ in rates], 1.0) == 0.0
    assert find_highest_rate(lambda rates: [True for _ in rates], 1.0) == pytest.approx(8.0)


def test_one_more_replica_than_hold_the_peak():
    assert size_fleet(2.0, 6.0) == Fleet(2.0, 3)
    found = size_fleet(2.0, 6.1)
    assert (found.working, found.replicas) == (4, 5)
    assert found.add_above == pytest.approx(2 * 4 / 5)
    assert found.remove_below == pytest.approx(0.9 * 2 * 3 / 5)
    assert [found.needed(rate) for rate in (0.1, 2.0, 2.1, 6.1)] == [2, 2, 3, 5]


def test_costs_with_a_pencil():
    """Three replicas of two GPUs at 2.5 are 15 an hour; 3,600 requests an hour of 10 tokens each
    are 36,000 tokens."""
    found = price_fleet(Fleet(0.5, 2), parse_planned_arrivals("1/s"), ((90, 10),), 2, 2.5)
    assert (found.gpus, found.month, found.month_scaled) == (6, 10_950, 10_950)
    assert found.million_output == pytest.approx(15 / 36_000 * 1e6)
    assert found.million_all == pytest.approx(15 / 360_000 * 1e6)


def planned_for(twin, peak, rule="ttft avg < 200ms", **more):
    asker = WhatIfPredictor(twin, SINGLE, (parse_rule(rule),))
    return replica_plan.plan_capacity(
        asker, "t", "w", parse_planned_arrivals(f"{peak}/s"), processes=1, **more
    )


def test_replicas_of_a_queue():
    """A service of 0.1 s and a mean wait of at most 0.1 s: M/D/1 allows a load of 2 / 3, so 6.67/s
    a replica; 20/s need four (5/s each), as three would be just at the limit; and one more."""
    found = planned_for(made(QUEUE, draws=SAME), 20, gpu_hour=2.5)
    assert found.fleet is not None
    assert 5.5 < found.fleet.per_replica < 6.67
    assert (found.fleet.working, found.fleet.replicas) == (4, 5)
    assert [row.status for row in found.rows] == ["open", "met", "met"]
    assert found.cost is not None
    assert found.cost.month == pytest.approx(5 * 2.5 * 730)
    assert found.add_in_flight > found.remove_in_flight > 0
    assert plan_text.plan_headline(found).startswith(
        "5 replicas: 4 hold the peak within the SLO when one is lost."
    )
    assert plan_text.plan_as_json(found).replicas == 5


def test_no_number_of_replicas_holds_what_an_idle_one_does_not():
    found = planned_for(made(QUEUE, draws=SAME), 20, "ttft avg < 50ms")
    assert found.fleet is None
    assert "No number of replicas" in plan_text.plan_headline(found)


@pytest.mark.parametrize(
    ("twin", "why"),
    [
        (made(QUEUE, SHAPE), "good for relative changes"),
        (made(QUEUE, error=0.11), "kept out of its fit is 11%"),
        (made(QUEUE, error=None), "was not measured"),
        (made(QUEUE, error=0.1), ""),
    ],
)
def test_a_number_of_replicas_needs_an_error_of_a_tenth_or_less(twin, why):
    assert why in replica_plan.only_shape(twin)
    assert bool(replica_plan.only_shape(twin)) == bool(why)


def test_a_shape_is_relative_to_its_first_row_and_has_no_number():
    found = planned_for(made(QUEUE, error=0.11, draws=SAME), 20)
    assert found.fleet is None
    data = json.loads(msgspec.json.encode(plan_text.plan_as_json(found)))
    jsonschema.validate(data, json.loads(SCHEMA.read_text("utf-8")))
    assert data["replicas"] is None
    first, *_, last = data["rows"]
    assert first["answers"]["ttft p50"] == pytest.approx([1, 1, 1])
    assert first["requests_per_s"] is None
    assert last["answers"]["ttft p95"][1] > 2


def test_a_replica_gets_no_more_than_was_measured():
    """With one user measured, a replica is given what keeps one request open, though the rule
    allows more."""
    twin = made(QUEUE, draws=SAME)
    twin = msgspec.structs.replace(twin, ranges=msgspec.structs.replace(twin.ranges, users=(1, 1)))
    found = planned_for(twin, 20, "ttft avg < 10s")
    assert found.fleet is not None
    assert found.fleet.per_replica < 6.5
    assert "open at once (up to 1 were measured)" in found.limited
