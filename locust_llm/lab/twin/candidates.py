"""Candidates: the settings that a server may have by its diagnosis; which of them replays the probe
best is the fit's."""

import math
from collections.abc import Iterator
from typing import Final

from locust_llm.lab.probe.diagnosis import CHUNKED, PARTIAL, PREFILL_FIRST, STATIC, Diagnosis

from .model import SchedulerSettings
from .twin import Origin

TRIED_BUDGETS: Final = 9
"""Evenly over the range of the diagnosis, beside round ones."""
ROUND: Final = 128
"""Flags are mostly multiples of this, or powers of two."""
MOST_ROUND: Final = 12
WIDER: Final = (1, 2, 4, 8, 16)
"""Budgets of servers that compute whole prompts, in longest prompts of the probe."""


def candidates(said: Diagnosis, longest: int, origin: Origin = Origin()) -> list[SchedulerSettings]:  # noqa: B008
    """``longest``: tokens of the longest prompt seen. ``origin``: whether it is llama.cpp. Empty:
    the simulator has none, or the probe cannot tell."""
    return list(_candidates(said, longest + 1, origin))


def _candidates(said: Diagnosis, widest: int, origin: Origin) -> Iterator[SchedulerSettings]:
    if said.name == CHUNKED and said.budget is not None and origin.slots:
        for budget in budgets(said.budget[0], said.budget[2]):
            yield SchedulerSettings(
                policy="llama.cpp", max_num_batched_tokens=budget, max_num_seqs=origin.slots,
                common_prefix_tokens=origin.common_prefix_tokens,
            )  # fmt: skip
    elif said.name == STATIC:
        yield from (
            SchedulerSettings(policy="static", max_num_batched_tokens=times * widest)
            for times in WIDER
        )
    elif said.name == PREFILL_FIRST:
        for policy in ("prefill-first", "mixed"):
            for times in WIDER:
                yield SchedulerSettings(policy=policy, max_num_batched_tokens=times * widest)
    elif said.name == CHUNKED and said.budget is not None:
        for budget in budgets(said.budget[0], said.budget[2]):
            yield SchedulerSettings(policy="chunked", max_num_batched_tokens=budget)
    elif said.name == PARTIAL and said.budget is not None and said.slots:
        for tokens in budgets(said.budget[0], said.budget[2]):
            yield SchedulerSettings(
                policy="chunked",
                max_num_batched_tokens=tokens * said.slots,
                long_prefill_token_threshold=tokens,
            )
            yield SchedulerSettings(
                policy="partial-prefills",
                max_num_batched_tokens=tokens,
                max_num_partial_prefills=said.slots,
            )


def budgets(low: float, high: float) -> list[int]:
    """To be tried between these: some evenly, and the round ones."""
    first = max(1, math.ceil(low))
    last = math.floor(min(high, 4 * max(low, 1.0)))
    if last <= first:
        return [max(1, round((low + high) / 2))] if math.isfinite(high) else [first]
    even = {round(first + (last - first) * i / (TRIED_BUDGETS - 1)) for i in range(TRIED_BUDGETS)}
    step = ROUND
    while (last - first) / step > MOST_ROUND:
        step *= 2
    rounded = set(range(math.ceil(first / step) * step, last + 1, step))
    powers = {
        1 << n
        for n in range(first.bit_length() - 1, last.bit_length() + 1)
        if first <= 1 << n <= last
    }
    return sorted(even | rounded | powers)
