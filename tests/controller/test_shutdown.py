"""The end of a run: how long it waits for processes that still hand over records."""

from support import unpatched_locust  # noqa: F401  before the rest

# isort: split
from locust.env import Environment

import gevent.event
import pytest

from locust_llm.controller.shutdown import MAX_HAND_OVER_S, QUIET_END_S, Shutdown


class HandsOver(gevent.event.Event):
    """A process that hands over records each second, ``batches`` times, and then ends if
    ``ends``. A wait takes a second."""

    now, batches, ends = 0.0, 0, True
    shutdown: Shutdown

    def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        self.now += 1.0
        if self.now <= self.batches:
            self.shutdown.note_records()
        elif self.ends:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(
    ("batches", "ends", "over_at", "left"),
    [
        (0, True, 1.0, []),
        (0, False, 10.0, ["w"]),
        (8, False, 8.0 + QUIET_END_S, ["w"]),
        (60, True, 61.0, []),
        (9999, True, 10.0 + MAX_HAND_OVER_S, ["w"]),
    ],
)
def test_the_end_waits_ten_seconds_and_longer_while_records_come(
    monkeypatch: pytest.MonkeyPatch, batches: int, ends: bool, over_at: float, left: list[str]
) -> None:
    worker = HandsOver()
    worker.batches, worker.ends = batches, ends
    monkeypatch.setattr("locust_llm.controller.shutdown.Event", lambda: worker)
    shutdown = Shutdown(Environment(), lambda: ["w"], lambda: worker.now)
    shutdown.over = gevent.event.Event()
    worker.shutdown = shutdown
    shutdown.expect(["w"])
    assert shutdown.wait(10.0) == left
    assert worker.now == over_at
