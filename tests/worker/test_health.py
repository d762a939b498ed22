"""How a process is, from clocks that a test sets, and from what the kernel counts of a thread."""

import threading
from pathlib import Path

import gevent
import pytest

from locust_llm.worker.health import HealthMonitor, read_cpu_waits_s


def test_a_watch_tells_cpu_waits_and_lateness() -> None:
    wall, cpu = iter([10.0, 20.0]), iter([1.0, 6.0])
    # 9 has ended, 10 is new
    waits_s = iter([{"7": 1.0, "8": 0.5, "9": 100.0}, {"7": 1.5, "8": 3.0, "10": 2.0}])
    # its greenlet has not run yet
    watch = HealthMonitor(lambda: next(wall), lambda: next(cpu), lambda: next(waits_s))
    health = watch.stop("w")
    assert health.cpu_share == 0.5  # 5 s of CPU in 10 s
    assert health.cpu_wait_share == 0.25  # thread 8 waited longest, 2.5 s of 10
    assert (health.worker, health.loop_lag_p99_ms) == ("w", 0)


def test_without_a_count_of_waits_nothing_is_said_of_them() -> None:
    watch = HealthMonitor(cpu_waits_s=dict)
    assert watch.stop("w").cpu_wait_share is None


def test_an_event_loop_that_stood_still_was_late() -> None:
    """A hundred steps of 50 ms, virtual; three of them took 80 ms longer."""
    now = [0.0]
    steps = iter([0.13 if number in (10, 50, 90) else 0.05 for number in range(100)])

    def sleep(_: float) -> None:
        step_s = next(steps, None)
        if step_s is None:
            raise gevent.GreenletExit
        now[0] += step_s

    watch = HealthMonitor(lambda: now[0], lambda: 0.0, dict, sleep)
    watch._greenlet.join()
    health = watch.stop("w")
    assert health.loop_lag_p99_ms == pytest.approx(80)


def test_the_waits_of_threads(tmp_path: Path) -> None:
    for thread, line in {
        "1": "5000 2500000000 7\n",
        "2": "1 0 1\n",
        "3": "0 0 0\n",
        "4": "what\n",
    }.items():
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(line)
    (tmp_path / "5").mkdir()  # a thread that ended meanwhile
    assert read_cpu_waits_s(tmp_path) == {"1": 2.5, "2": 0.0}
    assert read_cpu_waits_s(tmp_path / "nothing") == {}


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits"
)
def test_this_kernel_counts_the_waits_of_this_thread() -> None:
    assert read_cpu_waits_s()[str(threading.get_native_id())] >= 0
