"""How a process is, from clocks that a test sets, and from what the kernel counts of a thread."""

import os
import socket
import threading
from pathlib import Path

import gevent
import pytest

from locust_llm.worker.process_health import (
    HealthMonitor,
    ProgramUse,
    find_other_programs,
    find_server_processes,
    measure_server_cores,
    read_core_seconds,
    read_cpu_waits_s,
    read_programs,
)


def test_a_watch_tells_cpu_waits_and_lateness() -> None:
    wall, cpu = iter([10.0, 20.0, 20.0]), iter([1.0, 6.0])
    # 9 has ended, 10 is new
    waits_s = iter([{"7": 1.0, "8": 0.5, "9": 100.0}, {"7": 1.5, "8": 3.0, "10": 2.0}])
    # its greenlet has not run yet
    watch = HealthMonitor(
        lambda: next(wall), lambda: next(cpu), lambda: next(waits_s), programs=dict
    )
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


def test_a_loop_that_stood_still_for_seconds_is_noted_with_its_time() -> None:
    """Steps of 50 ms; the third took 2 s and the fifth 4 s longer, which ended at 2.15 and 6.25 s
    after 1000."""
    now = [0.0]
    steps = iter([0.05, 0.05, 2.05, 0.05, 4.05, 0.05])

    def sleep(_: float) -> None:
        step_s = next(steps, None)
        if step_s is None:
            raise gevent.GreenletExit
        now[0] += step_s

    watch = HealthMonitor(lambda: now[0], lambda: 0.0, dict, sleep, unix=lambda: 1000 + now[0])
    watch._greenlet.join()
    longest, other = watch.so_far("w").standstills
    assert longest == pytest.approx((1002.25, 4.0))
    assert other == pytest.approx((1000.15, 2.0))


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


# -- other programs --------------------------------------------------------------------------------


def test_other_programs_are_those_that_the_load_generator_did_not_start() -> None:
    """In ten seconds: 20 s of a compiler in two processes, 5 s of a shell, next to nothing of a
    daemon. Of ours are this worker (30), its master (20), another worker and what that started."""
    before = {
        1: ProgramUse("init", 0, 0.0), 10: ProgramUse("sh", 1, 1.0),
        20: ProgramUse("locust-llm", 10, 0.0), 30: ProgramUse("locust-llm", 20, 0.0),
        40: ProgramUse("cc1", 10, 100.0), 50: ProgramUse("daemon", 1, 7.0),
    }  # fmt: skip
    now = {
        1: ProgramUse("init", 0, 0.0), 10: ProgramUse("sh", 1, 6.0),
        20: ProgramUse("locust-llm", 10, 9.0), 30: ProgramUse("locust-llm", 20, 9.0),
        31: ProgramUse("locust-llm", 20, 9.0), 32: ProgramUse("python3", 31, 9.0),
        40: ProgramUse("cc1", 10, 110.0), 41: ProgramUse("cc1", 10, 10.0),
        50: ProgramUse("daemon", 1, 7.1),
    }  # fmt: skip
    assert find_other_programs(before, now, 30, 10.0) == {"cc1": 2.0, "sh": 0.5}


def test_what_the_server_under_test_and_its_children_use_is_counted_apart() -> None:
    """In ten seconds the server (20) uses 2 s and its engine (21) 7 s, a compiler 5 s."""
    before = {20: ProgramUse("vllm", 1, 1.0), 30: ProgramUse("locust-llm", 1, 0.0)}
    now = {
        20: ProgramUse("vllm", 1, 3.0), 21: ProgramUse("engine", 20, 7.0),
        30: ProgramUse("locust-llm", 1, 4.0), 40: ProgramUse("cc1", 1, 5.0),
    }  # fmt: skip
    assert find_other_programs(before, now, 30, 10.0, {20}) == {"cc1": 0.5}
    assert measure_server_cores(before, now, {20}, 10.0) == 0.9
    assert measure_server_cores(before, now, set(), 10.0) is None


def test_the_server_under_test_is_found_by_its_port_on_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert find_server_processes([f"http://localhost:{port}/v1"]) == {os.getpid()}
        assert find_server_processes([f"http://127.0.0.1:{port}"]) == {os.getpid()}
        assert find_server_processes([f"http://192.0.2.1:{port}"]) == set()


def test_a_process_that_a_shell_started_is_not_the_shells() -> None:
    before = {10: ProgramUse("bash", 1, 0.0), 30: ProgramUse("locust-llm", 10, 0.0)}
    now = {**before, 40: ProgramUse("python3", 10, 5.0), 41: ProgramUse("cc1", 30, 5.0)}
    assert find_other_programs(before, now, 30, 10.0) == {"python3": 0.5}


def test_programs_as_the_kernel_lists_them(tmp_path: Path) -> None:
    for number, text in (("7", "7 (a (b) c) S 3 7 7 0 -1 0 1 2 3 4 150 50 0 0"), ("8", "8 (gone")):
        (tmp_path / number).mkdir()
        (tmp_path / number / "stat").write_text(text)
    (found,) = read_programs(tmp_path).values()
    assert (found.name, found.parent) == ("a (b) c", 3)
    assert found.cpu_s == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))


def test_how_busy_the_cores_of_the_machine_were() -> None:
    """Two cores for ten seconds, of which five seconds were idle."""
    cores_s = iter([(100.0, 400.0), (105.0, 420.0)])
    watch = HealthMonitor(programs=dict, core_seconds=lambda: next(cores_s))
    assert watch.stop("w").machine_busy == 0.75


def test_core_seconds_of_this_machine_only_grow() -> None:
    idle_s, every_s = read_core_seconds()
    later_idle_s, later_s = read_core_seconds()
    assert 0 < idle_s <= later_idle_s
    assert idle_s < every_s <= later_s
