"""The client verdict: which figure makes it what, and that the worst of all processes counts."""

import pytest

from locust_llm.health import Watch
from locust_llm.verdict import DEGRADED, INVALID, OK, Evidence, judge

FINE = {
    "ttft_p99_ms": 200.0, "ttft_p99_least_ms": 200.0, "merged_share": 0.0, "read_lag_p99_ms": 3.0,
    "send_lag_p99_ms": 0.05, "loop_lag_p99_ms": 2.0, "cpu_share": 0.3,
}  # fmt: skip


def evidence(worker: str = "local", **figures: float | None) -> Evidence:
    return Evidence(worker=worker, requests=100, **(FINE | figures))


@pytest.mark.parametrize(
    ("figures", "level"),
    [
        ({}, OK),
        ({"ttft_p99_least_ms": 199.7}, OK),  # within half of the goal of 0.5 ms at 200 ms
        ({"ttft_p99_least_ms": 199.5}, DEGRADED),
        ({"ttft_p99_least_ms": 181.0}, DEGRADED),
        ({"ttft_p99_least_ms": 179.0}, INVALID),  # a tenth of it may be the client's
        ({"ttft_p99_ms": 5000.0, "ttft_p99_least_ms": 4991.0}, OK),  # 0.2 % of 5 s are 10 ms
        ({"merged_share": 0.009}, OK),
        ({"merged_share": 0.02}, DEGRADED),
        ({"merged_share": 0.11}, INVALID),
        ({"read_lag_p99_ms": 60.0}, DEGRADED),
        ({"read_lag_p99_ms": 6000.0}, DEGRADED),  # the stamps are the kernel's all the same
        ({"send_lag_p99_ms": 6.0}, DEGRADED),
        ({"send_lag_p99_ms": 101.0}, INVALID),
        ({"loop_lag_p99_ms": 51.0}, DEGRADED),
        ({"cpu_share": 0.91}, DEGRADED),
        ({"cpu_share": None, "loop_lag_p99_ms": None}, OK),
    ],
)
def test_each_figure_against_its_limits(figures: dict[str, float | None], level: str) -> None:
    verdict = judge([evidence(**figures)])
    assert verdict is not None
    assert verdict.level == level
    assert len(verdict.reasons) == (level != OK)


def test_the_worst_of_all_processes_counts_and_is_named() -> None:
    verdict = judge([evidence("a"), evidence("b", merged_share=0.02), evidence("c", merged_share=0.2, cpu_share=0.95)])
    assert verdict is not None
    assert verdict.level == INVALID
    assert verdict.reasons == ("c: chunks that came more than one to a read 20.0 % (limit 10.0 %)",)


def test_nothing_to_judge_by() -> None:
    assert judge([]) is None
    assert judge([Evidence(worker="local", requests=0)]) is None


def test_a_watch_tells_cpu_and_lateness() -> None:
    wall, cpu = iter([10.0, 20.0]), iter([1.0, 6.0])
    watch = Watch(clock=lambda: next(wall), cpu_clock=lambda: next(cpu))  # its greenlet has not run yet
    health = watch.stop("w")
    assert health.cpu_share == 0.5  # 5 s of CPU in 10 s
    assert (health.worker, health.loop_lag_p99_ms) == ("w", 0)
