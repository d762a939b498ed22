"""Made twins: makes twins without a fit, whose predictions can be computed by hand."""

from typing import Any

from locust_llm.lab.twin.twin_model import (
    FIGURES,
    Draw,
    Ranges,
    SchedulerSettings,
    ServerModel,
    StepCosts,
    Trust,
    Twin,
)

STEP_S = 0.01
STEPS = StepCosts(fixed_s=STEP_S, token_s=0.0)
"""Every step takes 10 ms, whatever its work."""
QUEUE = StepCosts(fixed_s=1e-9, token_s=0.001)
"""A prompt of 100 tokens takes 0.1 s."""


def made(
    cost: StepCosts = STEPS, verdict: str = FIGURES, error: float | None = 0.0, **more: Any
) -> Twin:
    """Makes a twin with a budget of 100 tokens, fitted with up to 16 users, prompts of 100 tokens
    and answers of 10."""
    settings = SchedulerSettings(policy="chunked", max_num_batched_tokens=more.pop("budget", 100))
    fields = {
        "ranges": Ranges(
            users=(1, 16), prompt_tokens=(10, 100), output_tokens=(1, 10), saturated=True
        ),
        "lengths": ((100, 10),),
        "trust": Trust(verdict=verdict, error=error, reasons=("made for a test",)),
    }
    return Twin(model=ServerModel(settings=settings, cost=cost), **(fields | more))


def draws(*factors: float, cost: StepCosts = STEPS) -> tuple[Draw, ...]:
    """Makes draws whose costs are these multiples."""
    return tuple(
        Draw(cost.fixed_s * one, cost.token_s * one, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        for one in factors
    )
