"""Figures of a stage, by hand."""

import pytest

from locust_llm.lab.twin.server_observations import (
    ObservedRequest,
    ObservedStage,
    measure_throughput,
    stage_figures,
    steady_requests,
)


def one(
    sent_at: float, ttft_s: float = 0.5, gaps: tuple[float, ...] = (0.1, 0.3)
) -> ObservedRequest:
    times = [sent_at + ttft_s]
    for gap in gaps:
        times.append(times[-1] + gap)
    return ObservedRequest(sent_at, tuple(times), 100, len(times))


def test_a_request_has_a_ttft_a_mean_itl_and_a_longest_gap() -> None:
    found = stage_figures(ObservedStage(0, 1.0, (one(0.0), one(10.0))))
    assert found["ttft p50"] == pytest.approx(0.5)
    assert found["itl p99"] == pytest.approx(0.2)
    assert found["stall p95"] == pytest.approx(0.3)


def test_the_begin_and_the_last_of_a_closed_loop_do_not_count() -> None:
    requests = tuple(one(float(at)) for at in range(12))
    assert [seen.sent_at for seen in steady_requests(ObservedStage(2, 0.0, requests))] == [
        3,
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    assert steady_requests(ObservedStage(5, 0.0, requests)) == requests  # too few to leave some out


def test_tokens_a_second_between_two_sends() -> None:
    """Three tokens each, all after the first send and two of them before the last one."""
    stage = ObservedStage(0, 1.0, (one(0.0), one(10.0)))
    assert measure_throughput(stage) == pytest.approx(3 / 10)


def test_a_chunk_of_two_tokens_counts_twice() -> None:
    two = ObservedRequest(0.0, (0.5, 0.6), 100, 4)
    assert measure_throughput(ObservedStage(0, 1.0, (two, one(10.0)))) == pytest.approx(4 / 10)


def test_of_a_single_request_there_is_no_throughput() -> None:
    assert "throughput" not in stage_figures(ObservedStage(0, 1.0, (one(0.0),)))


def test_an_open_loop_counts_from_when_it_has_its_load() -> None:
    """A request each second, ten tokens each, one a second: ten tokens a second from the tenth
    second on. The server was empty before, and its load counts from a fifth of the requests on."""
    requests = tuple(one(float(at), 1.0, (1.0,) * 9) for at in range(100))
    stage = ObservedStage(0, 1.0, requests)
    assert steady_requests(stage)[0].sent_at == 20.0
    assert stage_figures(stage, ["throughput", "in flight", "served"]) == pytest.approx(
        {"throughput": 10.0, "in flight": 10.0, "served": 1.0}, rel=1e-3
    )


def test_what_is_not_served_is_what_the_queue_grows_by() -> None:
    """A request each second, and one completed in two seconds: half is served."""
    requests = tuple(one(float(at), 1.0 + at, ()) for at in range(100))
    stage = ObservedStage(0, 1.0, requests)
    assert stage_figures(stage, ["served"])["served"] == pytest.approx(0.5, abs=0.01)
