"""Inexact values: which values of any table the load generator may have too wrong. Each value is
judged by the requests behind it, in the same way as the ones that the client verdict is of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from locust_llm.records.outcomes import OK
from locust_llm.records.run_facts import Run
from locust_llm.report.distribution_rows import make_distribution_row
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable
from locust_llm.report.summary_rows import Row
from locust_llm.slo.load_generator_health import OK as FINE
from locust_llm.slo.load_generator_health import FigureError, is_rate_inexact
from locust_llm.slo.metric_definitions import BY_NAME, Metric

from .measurement_error import (
    WORD_OF,
    ErrorSources,
    find_error_sources,
    lost_shares,
    measure_latency_errors,
)


@dataclass(frozen=True)
class InexactValues:
    """Decides about the mark of each value. Without ``sources`` none has one."""

    sources: ErrorSources | None = None

    def mark_row(self, row: Row, part: RequestSelection) -> Row:
        """The row of a metric of these requests, with its values that may be too wrong."""
        measure = BY_NAME.get(row.tag.removeprefix("adj_"))
        metric = None if measure is None else measure.metric
        is_time = metric is not None and metric.column in WORD_OF and row.unit == "ms"
        if self.sources is None or metric is None or row.avg is None or not is_time:
            return row
        errors = measure_latency_errors(row, metric, part, self.sources)
        wrong = (error.stat for error in errors if error.level != FINE)
        return replace(row, inexact=tuple(wrong))

    def find_stats(
        self, metric: Metric, part: RequestSelection, percentiles: Sequence[float]
    ) -> tuple[str, ...]:
        """``p95``: the statistics of these requests that may be too wrong."""
        if self.sources is None:
            return ()
        ok = part.outcome(OK)
        row = make_distribution_row(metric, ok[metric.column], percentiles)
        return self.mark_row(row, ok).inexact

    def is_rate_inexact(self, part: RequestSelection) -> bool:
        """Whether a rate of these requests may be too wrong: a late user of a closed loop sends
        less."""
        if self.sources is None:
            return False
        return is_rate_inexact(
            sum(share for _, share in lost_shares(part.outcome(OK), self.sources))
        )


NONE_INEXACT: Final = InexactValues()


def find_inexact_values(
    requests: RequestTable, run: Run, judged: Sequence[FigureError]
) -> InexactValues:
    """``judged``: the values that the client verdict is of. Where all of them are exact enough, no
    part of the requests has a mark."""
    if all(error.level == FINE for error in judged):
        return NONE_INEXACT
    return InexactValues(find_error_sources(requests, run))
