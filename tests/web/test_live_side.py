"""The side of the live page: growth and ghost tokens so far, from planted readings, in virtual time."""

from support import unpatched_locust  # noqa: F401  before the rest

# isort: split
from support.records import UNIX, answered

from locust_llm.records.outcomes import CANCELLED
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.trends.soak_readings import SoakReading
from locust_llm.web.live_ghost_tokens import LiveGhostTokens
from locust_llm.web.live_growth import LiveGrowth


class Second:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def read_memory(count: int) -> list[SoakReading]:
    """A reading each minute; memory grows by 1 MB."""
    return [
        SoakReading(
            at=60.0 * number, hours=number / 60, requests=10 * number, tokens=50 * number,
            memory_bytes=1e9 + 1e6 * number,
        )
        for number in range(1, count + 1)
    ]  # fmt: skip


def test_growth_so_far_is_judged_every_ten_seconds() -> None:
    clock = Second()
    growth = LiveGrowth(clock)
    assert [row.value for row in growth.list_rows([])] == ["no reading yet"]
    clock.now = 9.9
    assert [row.value for row in growth.list_rows(read_memory(120))] == ["no reading yet"]
    clock.now = 10.0
    verdict, memory = growth.list_rows(read_memory(120))
    assert (verdict.value, verdict.is_fault) == ("grows.", True)
    # the median of the last 12 of 1,000 MB and 1 to 120 MB
    assert (memory.label, memory.is_fault) == ("Memory", True)
    assert memory.value == "1.11 GB, +60 MB (+60 MB to +60 MB) per hour"


def test_an_early_soak_names_the_length_that_may_decide() -> None:
    verdict, memory = LiveGrowth().list_rows(read_memory(12))
    assert verdict.value == "cannot tell yet. A soak of 44 min may decide it."
    assert (memory.value, memory.is_fault) == ("1.01 GB", False)


def read_counters(*tokens: float) -> EngineHistory:
    """A reading each second."""
    history = EngineHistory()
    for number, count in enumerate(tokens):
        history.add(EngineSample(at=UNIX + number, engine="vLLM", generated=count))
    return history


def test_ghost_tokens_so_far_are_an_upper_bound() -> None:
    """Three tokens of a whole answer and two of a cancelled one were received. The server generated
    25 until the second reading: 20 are ghosts, or of answers that still run."""
    ghosts = LiveGhostTokens()
    ghosts.look(UNIX, read_counters(100.0))
    assert ghosts.find_most(UNIX) is None  # nothing was cancelled
    ghosts.add(answered(100, 200, 300))
    ghosts.add(answered(100, 200, outcome=CANCELLED))
    ghosts.look(UNIX + 0.9, read_counters(100.0))
    # a record that comes after the reading says nothing of it
    ghosts.add(answered(100, 200, 300))
    ghosts.look(UNIX + 1.9, read_counters(100.0, 125.0))
    assert ghosts.find_most(UNIX) == 20.0
    assert [row.value for row in ghosts.list_rows(UNIX)] == ["1 request", "at most 20 each"]
    # the server counts anew after a restart
    ghosts.look(UNIX + 2.9, read_counters(100.0, 125.0, 4.0))
    assert ghosts.find_most(UNIX) == 29.0 - 8.0


def test_ghost_tokens_are_unknown_if_the_first_reading_came_too_late() -> None:
    ghosts = LiveGhostTokens()
    ghosts.add(answered(100, outcome=CANCELLED))
    ghosts.look(UNIX, read_counters(100.0))
    assert ghosts.find_most(UNIX - 1.0) is None
    assert [row.value for row in ghosts.list_rows(UNIX - 1.0)] == ["1 request", "unknown yet"]
