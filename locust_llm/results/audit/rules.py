"""Rules: all of them, in the order in which a reader asks."""

from collections.abc import Callable, Iterator
from typing import Final

from locust_llm.results.figures import Figures

from . import flow, shape
from .finding import Finding, Verdict

Rule = Callable[[Figures], Iterator[Finding]]
RULES: Final[tuple[Rule, ...]] = (
    shape.real, flow.counted, flow.in_flight, flow.in_prefill, flow.decode, flow.tokens, flow.same_tokens, flow.speed,
    flow.within, shape.parts, shape.order, shape.mean, shape.spread, flow.schedule, flow.goodput, flow.failures,
    flow.client, shape.merged, shape.samples,
)  # fmt: skip


def audit(figures: Figures) -> list[Finding]:
    """What can be checked, in the order of RULES. Where a figure is no number nothing else is."""
    (first, *rest) = RULES
    found = list(first(figures))
    if any(one.verdict is Verdict.IMPOSSIBLE for one in found):
        return found
    return [*found, *(one for rule in rest for one in rule(figures))]
