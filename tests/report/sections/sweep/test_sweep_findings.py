"""What follows from a sweep: the early slope on mixes of the simulator, limits of a gateway,
cost."""

from random import Random
from statistics import median

import pytest
from support.records import a_run
from support.stages import a_level

from locust_llm.report.sections.sweep.knee import find_knees
from locust_llm.report.sections.sweep.sweep_findings import (
    MAX_FLAT,
    MIN_STEEP,
    describe_latency_slope,
    describe_sweep_findings,
)
from locust_llm.report.summary_rows import Knee, LoadLevel, Row
from locust_llm.settings.sweep_option import CONCURRENCY, INPUT
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100 as H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest


def simulated(users: int, prompt: int, out: int) -> LoadLevel:
    """A closed loop in virtual time, without its first and its last wave; lengths vary by a fifth,
    else users would ask in lockstep."""
    random, clock = Random(users), VirtualClock()
    config = SchedulerConfig(
        max_num_batched_tokens=8192, max_num_seqs=1024, kv_tokens=H100.kv_tokens
    )
    load = Virtual(
        clock, BatchEngine(Scheduler(config, POLICIES["chunked"], record=True), H100, clock)
    )

    def around(length: int) -> int:
        return round(random.uniform(0.8, 1.2) * length)

    load.closed_loop(
        users,
        iter([VirtualRequest(around(prompt), around(out)) for _ in range(60 + 2 * users)]),
        stagger_s=1e-3,
    )
    rows = sorted(load.run(), key=lambda row: row.sent_at)[users:-users]
    values = {
        "time_to_first_token": [row.ttft_s for row in rows],
        "request_latency": [row.done_at - row.sent_at for row in rows],
        "inter_token_latency": [row.itl_s for row in rows],
    }
    latencies = {
        tag: Row(label="", tag=tag, unit="ms", percentiles={50.0: 1000 * median(seconds)})
        for tag, seconds in values.items()
    }
    return a_level(users, latencies=latencies)


@pytest.mark.parametrize(("prompt", "out", "shape"), [(8000, 100, "steep"), (550, 128, "flat")])
def test_the_early_slope_tells_long_prompts_from_short_ones(
    prompt: int, out: int, shape: str
) -> None:
    (said,) = describe_latency_slope([simulated(users, prompt, out) for users in (1, 2, 4, 8)])
    assert "from concurrency 1 to 8 the medians change: request latency x" in said
    assert f", {shape} (" in said


def growing(*latencies_ms: float, first: float = 1) -> list[LoadLevel]:
    return [a_level(first * 2**i, latency_ms=ms) for i, ms in enumerate(latencies_ms)]


def test_the_slope_is_of_logarithms() -> None:
    """Latency as the root of concurrency: 0.5; what comes after 8 is not early."""
    (said,) = describe_latency_slope(growing(100, 100 * 2**0.5, 200, 200 * 2**0.5, 99_999))
    assert (
        "change: request latency x2.8. The slope of log request latency over log concurrency is "
        "0.50, steep" in said
    )
    assert MAX_FLAT < 0.2 < MIN_STEEP
    (between,) = describe_latency_slope(growing(100, 100 * 2**0.2, 100 * 4**0.2))
    assert "is 0.20, moderate (0.1 to 0.25)" in between


def test_visits_of_a_search_to_few_levels_have_no_slope() -> None:
    """Four visits to one level, or to two, are no three levels."""
    assert not list(describe_latency_slope([a_level(1, latency_ms=100) for _ in range(4)]))
    assert not list(
        describe_latency_slope([a_level(users, latency_ms=100) for users in (1, 1, 2, 2)])
    )


def test_what_is_not_early_or_too_little_has_no_slope() -> None:
    assert (
        list(describe_latency_slope(growing(100, 200, 400, first=4))) == []
    )  # a server that is full already is slower with any prompts
    assert list(describe_latency_slope(growing(100, 200))) == []
    assert list(describe_latency_slope([a_level(n, latencies={}) for n in (1, 2, 4, 8)])) == []
    assert list(describe_latency_slope([])) == []


def told(levels: list[LoadLevel], axis: str = CONCURRENCY, **settings: object) -> list[str]:
    return list(
        describe_sweep_findings(axis, levels, find_knees(axis, levels), a_run(**settings).settings)
    )


RATES = {"input_tokens_per_s": 3000.0, "output_tokens_per_s": 250.0, "in_flight": 15.96}


def test_limits_for_a_gateway_are_within_the_safe_load_of_a_search() -> None:
    """Capacity 44, safe 39: of stages at 32, 40 and 44 the one at 32."""
    levels = [a_level(32, 2.0), a_level(40, 3.0), a_level(44, 4.0)]
    knee = Knee(rule="SLO", value=44.0, text="")
    (limits,) = describe_sweep_findings("concurrency", levels, [knee], a_run().settings, 39.0)
    assert limits == (
        "Limits for a gateway, at concurrency 32, the highest stage within the safe 39 users: 120 "
        "requests per minute."
    )


def test_limits_for_a_gateway_are_all_of_the_rate_of_the_stage() -> None:
    """By chance 7.5/s arrived where 6/s were asked for, with 12.5 in flight: 10 at 6/s."""
    level = a_level(6, 7.5, slo="PASS", **{**RATES, "in_flight": 12.5})
    (limits,) = told([level], "request-rate")
    assert limits.endswith(
        ": 360 requests, 144,000 input tokens, 12,000 output tokens per minute, 10 requests in "
        "flight on average."
    )


def test_limits_for_a_gateway_are_those_at_the_slo() -> None:
    levels = [
        a_level(8, 2.5, slo="PASS"),
        a_level(16, 5.0, slo="PASS", **RATES),
        a_level(32, 6.0, slo="FAIL"),
    ]
    assert told(levels) == [
        "Limits for a gateway, at the SLO (concurrency 16): 300 requests, 180,000 input tokens, "
        "15,000 output tokens "
        "per minute, 16 requests in flight on average."
    ]
    assert told([a_level(8, 2.5, slo="FAIL")]) == []
    assert told([a_level(8, 2.5)]) == []
    burnt = a_level(8, 2.5, slo="PASS", uncertain=("request_latency",))
    assert told([burnt]) == []


def test_limits_for_a_gateway_round_down_to_the_digits_that_the_requests_support() -> None:
    """1.42 requests a second, known to within 0.6: 85,185 input tokens a minute become
    80,000."""
    level = a_level(8, 1.42, slo="PASS", requests_per_s_error=0.3, input_tokens_per_s=85_185 / 60)
    assert told([level])[0].endswith(": 80 requests, 80,000 input tokens per minute.")
    few = a_level(1, 0.83, slo="PASS", succeeded=10, output_tokens_per_s=6_411 / 60)
    assert told([few])[0].endswith(": 40 requests, 6,000 output tokens per minute.")


def test_a_stage_without_an_answer_gives_no_limits_for_a_gateway() -> None:
    """Its answers took longer than its measured time. Answers without a token have a limit of 0."""
    assert told([a_level(8, 0.0, slo="PASS", succeeded=0, **RATES)]) == []
    assert told([a_level(8, 0.0, slo="PASS", requests_per_s_error=0.5)]) == []
    mute = a_level(8, 1.0, slo="PASS", output_tokens_per_s=0.0)
    assert told([mute])[0].endswith(": 60 requests, 0 output tokens per minute.")


def test_a_stage_that_is_not_decided_gives_no_limits_for_a_gateway() -> None:
    """A search puts the capacity at 2 users, and its stage there has no verdict."""
    levels = [a_level(1, 1.0, slo="PASS"), a_level(2, 2.0, slo="INCONCLUSIVE")]
    knee = Knee(rule="SLO", value=2.0, text="")
    (limits,) = describe_sweep_findings("concurrency", levels, [knee], a_run().settings)
    assert limits.endswith(
        "at concurrency 1, the highest stage known to be within the SLO: 60 requests per minute."
    )
    assert not list(describe_sweep_findings("concurrency", levels[1:], [knee], a_run().settings))


def test_limits_for_a_gateway_do_not_rest_on_rates_off_littles_law() -> None:
    levels = [
        a_level(8, 2.5, slo="PASS"),
        a_level(16, 3.0, slo="PASS", residual=0.28),
    ]
    assert told(levels) == [
        "Limits for a gateway, at concurrency 8, the highest stage whose rates are accurate: 150 "
        "requests per minute."
    ]
    assert told(levels[1:]) == []


def test_a_higher_stage_within_the_slo_whose_rates_may_be_off_is_not_denied() -> None:
    """16 users hold the rules, and the load generator distorted their rate."""
    levels = [
        a_level(8, 2.5, slo="PASS"),
        a_level(16, 5.0, slo="PASS", client="DEGRADED", uncertain=("requests_per_s",)),
    ]
    assert told(levels) == [
        "Limits for a gateway, at concurrency 8, the highest stage whose rates are accurate: 150 "
        "requests per minute."
    ]


def test_cost_is_told_at_the_slo() -> None:
    """Two GPUs at 1.80 an hour, 250 tokens/s: 3.60 / 900,000 tokens, 4 for a million."""
    levels = [
        a_level(16, 5.0, slo="PASS", **RATES),
        a_level(32, 9.0, slo="FAIL", output_tokens_per_s=900.0),
    ]
    assert told(levels, gpus=2, gpu_hour=1.8)[-1] == (
        "At the SLO (concurrency 16), on 2 GPUs: 125 output tokens/s per GPU; a million output "
        "tokens cost 4 (at 1.8 per "
        "GPU hour)."
    )
    assert (
        told(levels, gpus=1)[-1]
        == "At the SLO (concurrency 16), on 1 GPU: 250 output tokens/s per GPU."
    )
    assert len(told(levels)) == 1


def test_goodput_that_falls_while_throughput_stays() -> None:
    levels = [
        a_level(n, output_tokens_per_s=tokens, goodput_per_s=good)
        for n, tokens, good in ((1, 50, 1), (2, 100, 2), (4, 99, 0.2))
    ]
    assert told(levels, INPUT) == [
        "Beyond input-tokens 2 goodput falls, from 2 to 0.2 good requests/s at 4, while "
        "throughput stays at 99% of the value there."
    ]
    tripled = [*levels[:2], a_level(4, output_tokens_per_s=311.0, goodput_per_s=0.2)]
    assert told(tripled, INPUT)[0].endswith("while throughput rises to 311% of the value there.")
    assert told(levels[:2], INPUT) == []
    assert told([*levels[:2], a_level(4, output_tokens_per_s=50.0, goodput_per_s=0.2)], INPUT) == []
