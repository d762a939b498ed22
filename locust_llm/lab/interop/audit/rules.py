"""Rules: all of them, in the order in which a reader asks."""

from collections.abc import Callable, Iterator
from typing import Final

from locust_llm.lab.interop.load_metrics import Figures

from . import flow, shape
from .finding import AuditOutcome, Finding

Rule = Callable[[Figures], Iterator[Finding]]
RULES: Final[tuple[Rule, ...]] = (
    shape.real, flow.check_request_count, flow.check_littles_law,
    flow.check_littles_law_of_prefills, flow.check_decode_time, flow.check_token_throughput,
    flow.check_token_counts, flow.check_stream_speed,
    flow.check_latency_within_run, shape.check_ttft_within_latency, shape.check_percentile_order,
    shape.check_mean, shape.check_variance, flow.check_schedule, flow.check_goodput, flow.failures,
    flow.client, shape.check_chunks_apart, shape.check_sample_count,
)  # fmt: skip


def audit(figures: Figures) -> list[Finding]:
    """What can be checked, in the order of RULES. Where a figure is no number nothing else is."""
    (first, *rest) = RULES
    found = list(first(figures))
    if any(one.verdict is AuditOutcome.IMPOSSIBLE for one in found):
        return found
    return [*found, *(one for rule in rest for one in rule(figures))]
