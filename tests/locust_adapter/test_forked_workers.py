"""Forked workers: until they are connected they end with their master, however it ends."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

from locust.runners import STATE_INIT

import psutil
import pytest

from locust_llm.locust_adapter.forked_workers import _await

SLEEPS = """
import os, subprocess, sys, time
from locust_llm.locust_adapter import forked_workers
forked_workers.tie_forks_to_this_process()
if {worker}:
    child = os.fork()
else:
    forked_workers._awaits_forks = False  # as where the forks are over
    child = os.fork()
if not child:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")


def is_gone(pid: int, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("worker", [True, False])
def test_a_worker_ends_with_the_master_that_forked_it_and_other_children_do_not(
    worker: bool,
) -> None:
    master = subprocess.Popen(
        [sys.executable, "-c", SLEEPS.format(worker=worker)], stdout=subprocess.PIPE, text=True
    )
    assert master.stdout is not None
    child = int(master.stdout.readline())
    try:
        master.kill()
        master.wait()
        assert is_gone(child, 10.0 if worker else 0.3) is worker
    finally:
        if psutil.pid_exists(child):
            os.kill(child, 9)
        master.stdout.close()


@pytest.mark.parametrize(("needs_all", "left"), [(True, 1), (False, 0)])
def test_a_worker_that_had_ended_before_anybody_looked_counts(
    needs_all: bool, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was reaped, and is no child any more: of two forked workers one or none is left."""
    runner = SimpleNamespace(state=STATE_INIT, clients={})
    gave_up: list[bool] = []
    _await(runner, [psutil.Process()] * left, 2, lambda: gave_up.append(True), needs_all)
    assert gave_up == [True]
    assert f"{2 - left} of 2 worker processes ended before" in caplog.text
