"""Event loop: tests the prediction of an M/G/1 queue against figures of a pencil and a slow twin."""

import random

import pytest
from event_loop import Costs, predict_busy_share, predict_mean_wait_s, solve_costs


def test_costs_of_two_lengths() -> None:
    # 2 ms a request and 0.05 ms a chunk: 2.8 ms with 16 chunks, 8.4 ms with 128
    costs = solve_costs(0.0028, 16, 0.0084, 128)
    assert costs.request_s == pytest.approx(0.002)
    assert costs.chunk_s == pytest.approx(0.00005)


def test_the_wait_of_jobs_of_one_length() -> None:
    # M/D/1: a job of 2 ms, 250 of them in a second: half busy; 0.5 * 2 ms / (2 * 0.5) is 1 ms
    costs = Costs(request_s=0.002, chunk_s=0.0)
    assert predict_busy_share(costs, 250, 0) == pytest.approx(0.5)
    assert predict_mean_wait_s(costs, 250, 0) == pytest.approx(0.001)
    assert predict_mean_wait_s(costs, 500, 0) == float("inf")


def test_a_simulated_queue_of_requests_and_chunks() -> None:
    """Jobs of both kinds arrive at random moments; each waits for those before it."""
    costs = Costs(request_s=0.004, chunk_s=0.0002)
    rate, chunks = 150.0, 8
    draw = random.Random(1)
    now = free_at = waited = 0.0
    jobs = 400_000
    for _ in range(jobs):
        now += draw.expovariate(rate * (1 + chunks))
        waited += max(0.0, free_at - now)
        length = costs.request_s if draw.random() < 1 / (1 + chunks) else costs.chunk_s
        free_at = max(free_at, now) + length
    assert waited / jobs == pytest.approx(predict_mean_wait_s(costs, rate, chunks), rel=0.05)
