"""Live growth: what the live page shows of ``--soak``: each quantity and its slope so far."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from locust_llm.controller.answer_tally import LivePageRow
from locust_llm.text.format import capitalise_sentence
from locust_llm.trends.soak_findings import SoakFindings, SoakQuantity
from locust_llm.trends.soak_judgement import make_soak_findings
from locust_llm.trends.soak_readings import SoakReading
from locust_llm.trends.soak_text import describe_need_of_soak, format_quantity, format_slope
from locust_llm.trends.steady_growth import GrowthVerdict

EVERY_S: Final = 10.0
"""A judgement takes milliseconds of the load generator's time."""


class LiveGrowth:
    """Judges the readings of the present run, at most once in ``EVERY_S``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._judged_at: float | None = None
        self._rows: list[LivePageRow] = []

    def list_rows(self, readings: Sequence[SoakReading]) -> list[LivePageRow]:
        now = self._clock()
        if self._judged_at is None or now - self._judged_at >= EVERY_S:
            self._judged_at = now
            self._rows = list(list_growth_rows(make_soak_findings(readings, searches=False)))
        return self._rows


def list_growth_rows(found: SoakFindings | None) -> Iterator[LivePageRow]:
    if found is None:
        yield LivePageRow("Verdict", "no reading yet")
        return
    yield LivePageRow(
        "Verdict",
        f"{found.verdict}.{describe_need_of_soak(found)}",
        is_fault=found.verdict == GrowthVerdict.GROWS,
    )
    for one in found.quantities:
        is_growing = one.verdict == GrowthVerdict.GROWS
        yield LivePageRow(capitalise_sentence(one.label), _format_state(one), is_fault=is_growing)


def _format_state(one: SoakQuantity) -> str:
    """``412 MB, +1.2 MB (+1.1 MB to +1.3 MB) per hour``, with the ends of the 95 % interval."""
    last = format_quantity(one.last, one.unit)
    if one.per_hour is None:
        return last
    return f"{last}, {format_slope(one.per_hour, one.unit)} per hour"
