"""Users that arrivals need: what Locust would log of each step is left out, of nothing else."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from locust_llm.controller.user_count import UserPool
from locust_llm.settings.run_options import Settings


def pool(**settings: Any) -> UserPool:
    context: Any = SimpleNamespace(
        settings=Settings(**settings), runner=None, store=None, time=None, spawn=None
    )
    return UserPool(context)


def test_steps_of_an_open_loop_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    runners = logging.getLogger("locust.runners")
    lines = [
        "Ramping to 5 users at a rate of 100.00 per second",
        'All users spawned: {"U": 5} (5 total users)',
    ]
    with caplog.at_level(logging.INFO):
        assert pool(request_rate=20.0).grows
        for line in [*lines, "a worker was lost"]:
            runners.info(line)
        assert caplog.messages == ["a worker was lost"]
        assert not pool(users=5).grows
        runners.info(lines[0])
    assert caplog.messages == ["a worker was lost", lines[0]]
