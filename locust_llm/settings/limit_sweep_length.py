"""Limit sweep length: whether a comparison of prefill limits has the time for enough rounds."""

from locust_llm.slo.limit_block_lengths import explain_short_comparison, find_block_lengths

from .run_options import Settings


def explain_short_limit_sweep(settings: Settings, response_s: float | None) -> str:
    """Why the comparison cannot name the best limit, if a request takes so long. Empty: it may, or
    nothing is known."""
    if not settings.swept_limits or not settings.run_time_s or response_s is None:
        return ""
    lengths = find_block_lengths(
        response_s, objective=settings.chosen_objective, rate_per_s=settings.request_rate or 0.0
    )
    return explain_short_comparison(
        len(settings.swept_limits), settings.run_time_s, response_s, lengths
    )
