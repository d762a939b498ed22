"""Verdicts of whole soaks, in virtual time: planted leaks are found, stable servers raise no alarm."""

import pytest
from support.aging_server import AgingServer, Wobble, draw_stable_server, take_aging_readings

from locust_llm.trends.soak_findings import SoakQuantity
from locust_llm.trends.soak_judgement import find_worst_verdict, judge_soak, make_soak_findings
from locust_llm.trends.soak_readings import SoakReading

HOUR_S = 3600.0
USUAL = Wobble(noise=2e5, saw=5e7, period_s=47.0, warm=5e8, warm_s=60.0, grain=4096.0)


def judge(
    server: AgingServer, hours: float = 1.0, limit: float | None = None
) -> dict[str, SoakQuantity]:
    readings = take_aging_readings(server, hours * HOUR_S, seed=3)
    return {one.name: one for one in judge_soak(readings, limit)}


@pytest.mark.parametrize("leak", [1e5, 1e6, 3e6])
def test_a_leak_per_request_is_found_and_measured(leak: float) -> None:
    memory = judge(AgingServer(memory_wobble=USUAL, leak_per_request=leak), limit=64e9)["memory"]
    assert memory.verdict == "grows"
    assert memory.per_request is not None
    assert memory.per_request.value == pytest.approx(leak, rel=0.1)
    assert memory.per_token is not None
    assert memory.per_token.value == pytest.approx(leak / 100, rel=0.1)
    assert memory.per_hour is not None
    # 2 requests/s
    assert memory.per_hour.low <= leak * 7200 <= memory.per_hour.high * 1.05
    assert memory.last is not None
    assert memory.full_in_hours == pytest.approx((64e9 - memory.last) / memory.per_hour.value)
    assert memory.full_at_earliest_hours is not None
    assert memory.full_at_earliest_hours <= memory.full_in_hours
    assert memory.changes == ()


def test_a_leak_per_request_is_found_while_the_load_varies() -> None:
    """In the second half of the time requests come at half the rate."""
    done = 0
    readings = []
    for place in range(240):
        done += 4 if place < 120 else 2
        readings.append(
            SoakReading(
                at=place, hours=place / 240, requests=done, tokens=8 * done,
                memory_bytes=1e9 + 1e5 * done + 1e6 * (place % 5),
            )
        )  # fmt: skip
    (memory,) = judge_soak(readings)
    assert memory.verdict == "grows"
    assert memory.per_request is not None
    assert memory.per_request.value == pytest.approx(1e5, rel=0.05)
    # the load from the begin of the slope on: 24 points of 4 requests are left out of 720 requests
    assert memory.per_hour is not None
    assert memory.per_hour.value == pytest.approx(1e5 * 624 / 0.9, rel=0.06)


def test_a_leak_per_token_is_found() -> None:
    memory = judge(AgingServer(memory_wobble=USUAL, leak_per_token=1e4))["memory"]
    assert memory.verdict == "grows"
    assert memory.per_token is not None
    assert memory.per_token.value == pytest.approx(1e4, rel=0.1)
    assert memory.full_in_hours is None  # of an unknown limit


def test_a_slow_down_of_a_percent_an_hour_is_found() -> None:
    ttft = judge(AgingServer(latency_wobble=Wobble(noise=0.005), slower_per_hour=0.01), 8.0)["ttft"]
    assert ttft.verdict == "grows"
    assert ttft.per_hour is not None
    assert ttft.per_hour.value == pytest.approx(0.2 * 0.01, rel=0.3)
    assert ttft.per_request is None


def test_kv_blocks_that_do_not_come_back_are_found() -> None:
    server = AgingServer(
        kv_wobble=Wobble(noise=0.003, saw=0.3, period_s=100.0), kv_leak_per_hour=0.05
    )
    free = judge(server, 4.0)["kv_free"]
    assert free.verdict == "grows"
    assert free.per_hour is not None
    assert free.per_hour.value == pytest.approx(-0.05, rel=0.1)
    assert free.per_hour.low <= free.per_hour.value <= free.per_hour.high
    assert free.full_in_hours == pytest.approx((free.last or 0.0) / -free.per_hour.value)


def test_a_server_that_does_not_age_is_stable() -> None:
    found = judge(AgingServer(memory_wobble=USUAL, latency_wobble=Wobble(noise=0.01)), 4.0)
    assert {name for name, one in found.items() if one.verdict == "grows"} == set()
    assert found["memory"].verdict == "stable"
    assert found["queue"].verdict == "stable"
    assert found["error_rate"].verdict == "stable"


def test_the_smallest_visible_slope_is_called_growth_once_it_is_planted() -> None:
    server = AgingServer(memory_wobble=USUAL._replace(warm=0.0), kv_wobble=Wobble())
    findings = make_soak_findings(take_aging_readings(server, HOUR_S, seed=3))
    assert findings is not None
    visible = {one.name: one.visible_per_hour for one in findings.quantities}
    assert visible["kv_free"] is None  # it does not vary at all
    memory = visible["memory"]
    assert memory is not None
    assert 8e6 <= memory < 1e9  # from 0.2% of 4 GB on
    leak = memory / 7200  # of 2 requests/s
    for factor, verdict in ((1.1, True), (0.5, False)):
        planted = judge(server._replace(leak_per_request=leak * factor))["memory"]
        assert (planted.verdict == "grows") is verdict


def test_a_buffer_that_is_loaded_once_is_a_change_and_no_growth() -> None:
    wobble = Wobble(noise=1e6, step=1e9, step_s=0.3 * HOUR_S)
    memory = judge(AgingServer(memory_wobble=wobble))["memory"]
    assert memory.verdict == "stable"
    (change,) = memory.changes
    assert change.hours == pytest.approx(0.3, abs=0.05)
    assert change.after - change.before == pytest.approx(1e9, rel=0.01)


def test_a_restart_ends_what_was_before() -> None:
    leaking = take_aging_readings(AgingServer(leak_per_request=1e6), HOUR_S, seed=3)
    fresh = take_aging_readings(AgingServer(memory_wobble=Wobble(noise=1e4)), HOUR_S, seed=4)
    readings = [
        SoakReading(
            at=one.at, hours=one.hours + shift, requests=one.requests, tokens=one.tokens,
            memory_bytes=one.memory_bytes, server_started=shift,
        )
        for shift, part in ((0.0, leaking), (1.0, fresh))
        for one in part
    ]  # fmt: skip
    (memory,) = judge_soak(readings)
    assert memory.verdict == "stable"
    assert memory.first == pytest.approx(4e9, rel=0.01)


def test_growth_is_the_worst() -> None:
    found = judge(AgingServer(memory_wobble=USUAL, leak_per_request=1e6))
    assert find_worst_verdict(list(found.values())) == "grows"
    assert find_worst_verdict([]) == "cannot tell yet"


def test_stable_servers_raise_no_alarm() -> None:
    for seed in range(16):
        length_s = HOUR_S * (1 / 3, 1.0, 4.0, 12.0)[seed % 4]
        readings = take_aging_readings(draw_stable_server(seed, length_s), length_s, seed)
        assert [one.name for one in judge_soak(readings) if one.verdict == "grows"] == []
