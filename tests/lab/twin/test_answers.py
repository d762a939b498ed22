"""Answers of a twin, by hand: steps that all take 10 ms."""

import math
from random import Random
from statistics import stdev

import msgspec
import pytest
from support.predictions import predict_figures

from locust_llm.lab.twin.server_observations import ObservedRequest, ObservedStage
from locust_llm.lab.twin.twin_model import Noise, SchedulerSettings
from locust_llm.lab.twin.twin_prediction import (
    ERROR_WIDTH,
    WIDTH,
    WhatIf,
    interval_of_run,
    simulate_logarithms,
    variance_of_logarithms,
)
from locust_llm.lab.twin.virtual_replay import (
    OfferedLoad,
    draw_lengths,
    estimate_response_s,
    resend_stage,
    simulate_load,
)

from .models import plain

LENGTHS = [(100, 11)]


def test_a_user_alone_waits_a_step_for_each_token() -> None:
    said = predict_figures([plain()], WhatIf(OfferedLoad(users=1)), LENGTHS, {})
    assert said["ttft p50"].about == pytest.approx(0.01)
    assert said["itl p99"].about == pytest.approx(0.01)
    assert said["throughput"].about == pytest.approx(100, rel=0.02)
    assert said["ttft p50"].low == said["ttft p50"].high  # a single draw, no noise


def test_costs_that_differ_by_ten_percent_are_the_width() -> None:
    """Draws of 10 and 11 ms, three of each: the variance of the six is 6 / 5 of the square of half
    the difference of their logarithms; beside it their mean has a sixth of that."""
    said = predict_figures(
        [plain(0.010), plain(0.011)] * 3, WhatIf(OfferedLoad(users=1)), LENGTHS, {}
    )
    assert math.log(said["itl p50"].high / said["itl p50"].about) == pytest.approx(
        WIDTH * math.log(1.1) / 2 * math.sqrt(6 / 5 * 7 / 6), rel=0.01
    )


def test_chance_is_not_taken_for_costs_that_are_not_known() -> None:
    """Three models, each -0.3 and 0.3 in its two simulations, whose variance is 0.18: their means
    are alike, so all of it is chance, of which the mean of the six has a sixth."""
    assert variance_of_logarithms([[-0.3, 0.3]] * 3) == pytest.approx(0.18 / 6)


def test_costs_that_are_not_known_stay_however_often_they_are_simulated() -> None:
    """Means of 0 and 0.4, variance 0.08; chance of 0.02, half of which is in the means."""
    one, other = [-0.1, 0.1], [0.3, 0.5]
    assert variance_of_logarithms([one, other]) == pytest.approx(0.07 * 1.5 + 0.02 / 4)


def test_of_single_simulations_all_counts_as_the_costs() -> None:
    assert variance_of_logarithms([[0.0], [0.4]]) == pytest.approx(0.08 * 1.5)
    assert variance_of_logarithms([[0.0, 0.4]]) == pytest.approx(0.08 / 2)  # one model: chance


def test_the_error_of_the_model_is_carried() -> None:
    said = predict_figures([plain()], WhatIf(OfferedLoad(users=1)), LENGTHS, {"itl p50": 0.1})
    assert math.log(said["itl p50"].high / said["itl p50"].about) == pytest.approx(
        ERROR_WIDTH * 0.1
    )


def test_one_more_run_has_its_own_chance() -> None:
    """Two runs, 0.2 apart: the variance of a run is 0.04 / 2, and their mean has half of it."""
    low, about, high = interval_of_run([0.0, 0.2])
    assert about == pytest.approx(math.exp(0.1))
    assert math.log(high / about) == pytest.approx(WIDTH * math.sqrt(0.02 * 1.5))
    assert low * high == pytest.approx(about**2)


def test_short_and_long_prompts_are_as_frequent_as_they_were() -> None:
    """Of ten lengths twenty requests have each twice, five one of each two neighbours."""
    lengths = [(100 * number, 10) for number in range(10)]
    assert sorted(draw_lengths(lengths, 20, Random(1))) == sorted(2 * lengths)
    assert [prompt // 200 for prompt, _ in sorted(draw_lengths(lengths, 5, Random(1)))] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert draw_lengths(lengths, 20, Random(1)) != draw_lengths(lengths, 20, Random(2))


def test_a_budget_makes_more_steps() -> None:
    """2,000 tokens: two steps of 1,000, four of 500."""
    half = SchedulerSettings(policy="chunked", max_num_batched_tokens=500)
    lengths = [(2000, 5)]
    assert predict_figures([plain()], WhatIf(OfferedLoad(users=1)), lengths, {})[
        "ttft p50"
    ].about == pytest.approx(0.02)
    assert predict_figures([plain()], WhatIf(OfferedLoad(users=1), settings=half), lengths, {})[
        "ttft p50"
    ].about == pytest.approx(0.04)


def test_a_prefill_limit_is_waited_for_before_the_send() -> None:
    """Eight users whose prompts fill a step each: with one prompt at a time each waits at most for
    the step that runs, and has its own; without a limit seven are before it."""
    lengths = [(1000, 2)]
    said = predict_figures([plain()], WhatIf(OfferedLoad(users=8), prefill_limit=1), lengths, {})
    assert said["ttft p50"].about == pytest.approx(0.02)
    assert predict_figures([plain()], WhatIf(OfferedLoad(users=8)), lengths, {})[
        "ttft p50"
    ].about == pytest.approx(0.07)


def test_requests_at_a_rate_come_as_poisson() -> None:
    stage = simulate_load(plain(), OfferedLoad(rate=10.0), LENGTHS, seed=1)
    gaps = [b.sent_at - a.sent_at for a, b in zip(stage.requests, stage.requests[1:], strict=False)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.1, rel=0.2)
    assert stage.rate == 10.0


def test_users_with_equal_answers_do_not_stay_together() -> None:
    """A prompt takes 0.11 s, an answer four seconds. Of users that begin at once, all but the first
    have their prompts in one step of 0.3 s, in each round, as their answers end together."""
    model = plain(token_s=0.0001, budget=10_000)
    stage = simulate_load(model, OfferedLoad(users=4), [(1000, 400)], seed=1)
    assert max(one.ttft_s for one in stage.requests) < 0.15


def test_users_begin_over_one_response_time() -> None:
    """Four prompts of 0.11 s, and 400 steps of 10.4 ms."""
    model = plain(token_s=0.0001, budget=10_000)
    assert estimate_response_s(model, 4, [(1000, 400)]) == pytest.approx(4 * 0.11 + 400 * 0.0104)


def test_a_rate_is_what_it_says_in_each_simulation() -> None:
    stage = simulate_load(plain(), OfferedLoad(rate=10.0), LENGTHS, seed=1, count=200)
    sent_at = [one.sent_at for one in stage.requests]
    assert len(sent_at) == 200
    assert min(sent_at) > 0
    assert max(sent_at) < 200 / 10.0


def test_an_open_loop_makes_as_many_tokens_as_come() -> None:
    """15 answers a second of 100 tokens each, of which 15 are open at once: of 240 requests these
    are 6%, which no interval would hold."""
    asked = WhatIf(OfferedLoad(rate=15.0))
    said = predict_figures([plain()] * 12, asked, [(10, 100)], {})["throughput"]
    assert said.about == pytest.approx(1500, rel=0.02)
    assert said.low <= 1500 <= said.high


def test_lengths_that_happened_to_come_are_uncertain_themselves() -> None:
    """Answers of 10 and 20 steps of 10 ms, thirty of each: 15 on the mean, with a standard
    deviation of 5, so that other sixty have a mean that is 5 / 15 / sqrt(60) = 4.3% off."""
    lengths = [(100, 10), (100, 20)] * 30
    wanted = ["request_latency avg"]
    asked = WhatIf(OfferedLoad(users=1))
    models = [plain()] * 80
    same = simulate_logarithms(models, asked, lengths, wanted, runs=1)[wanted[0]]
    others = simulate_logarithms(models, asked, lengths, wanted, runs=1, sampled=True)[wanted[0]]
    of_chance, of_both = (stdev(one for (one,) in logs) for logs in (same, others))
    of_lengths = math.sqrt(of_both**2 - of_chance**2)
    assert of_lengths == pytest.approx(5 / 15 / math.sqrt(60), rel=0.25)


def test_noise_is_seen_at_the_client() -> None:
    noisy = msgspec.structs.replace(plain(), noise=Noise(step_sigma=0.2, chunk_s=0.002, merged=0.1))
    stage = simulate_load(noisy, OfferedLoad(users=2), [(100, 50)], seed=1)
    tokens, chunks = (
        sum(one.output_tokens for one in stage.requests),
        sum(len(one.token_at) for one in stage.requests),
    )
    assert 1 - chunks / tokens == pytest.approx(0.1, abs=0.02)
    times = [one.decode_s / 49 for one in stage.requests]
    assert sum(times) / len(times) == pytest.approx(0.01, rel=0.03)  # the mean of a step stays


def test_the_requests_of_a_stage_are_sent_again() -> None:
    lengths = [(100, 2), (200, 3), (300, 4)]
    requests = tuple(
        ObservedRequest(float(at), (at + 0.01,), *one) for at, one in enumerate(lengths)
    )
    stage = resend_stage(plain(), ObservedStage(1, 0.0, requests), seed=1)
    assert [(one.prompt_tokens, one.output_tokens) for one in stage.requests] == lengths
    assert stage.requests[1].sent_at == pytest.approx(stage.requests[0].token_at[-1])
