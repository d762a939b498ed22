"""Limits: what lies outside of what a twin was fitted to: refused where it lies far outside, else
marked with the range."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from locust_llm.lab.twin.model import NOT_TO_BE_USED, Ranges, SchedulerSettings, Twin
from locust_llm.lab.twin.observations import IN_FLIGHT, REQUESTS_PER_S
from locust_llm.lab.twin.predict import PredictedValue, WhatIf
from locust_llm.lab.twin.replay import Lengths, OfferedLoad

from .grid import impossible

FAR_LOAD: Final = 10
"""Times the highest load that was measured: from there on nothing is said;"""
FAR_LENGTH: Final = 5
"""and times the longest prompt or answer."""
LARGER: Final = 1.25
"""Times the fitted budget, which is known only so well: steps above that are extrapolated."""
OF_LOAD: Final = ("max_num_seqs", "kv_tokens", "capacity")
"""What could be unknown of a twin and matters under more load than was measured."""


def refuse_extrapolation(twin: Twin, lengths: Lengths) -> str:
    """Why nothing is said of this twin and these lengths, one sentence; empty: something is."""
    if twin.trust.verdict == NOT_TO_BE_USED:
        why = "; ".join(twin.trust.reasons) or "its file gives no reason"
        return f"this twin is not to be used: {why}"
    if not lengths:
        return (
            "this twin has no lengths of requests: give --synthetic-input-tokens-mean and "
            "--output-tokens-mean"
        )
    for what, column, measured in _of_lengths(twin.ranges):
        most = max(one[column] for one in lengths)
        if measured[1] and most >= FAR_LENGTH * measured[1]:
            return (
                f"{what} of {most:,} tokens are {most / measured[1]:.0f} times as long as the "
                f"longest that the twin was "
                f"fitted to, {measured[1]:,}: fit a twin with such requests"
            )
    return ""


def unfit(twin: Twin, lengths: Lengths) -> str:
    """Why the server, as it was fitted, cannot serve these lengths, one sentence; empty: it can."""
    why = impossible(twin.model.settings, lengths)
    return f"this server cannot serve such requests: {why}" if why else ""


def too_much(load: OfferedLoad, ranges: Ranges) -> str:
    """Why nothing is said of this load, one clause; empty: something is."""
    if load.users and ranges.users[1] and load.users >= FAR_LOAD * ranges.users[1]:
        return f"{load.label}, where the twin was fitted up to {ranges.users[1]:,} users"
    if load.rate and ranges.rate[1] and load.rate >= FAR_LOAD * ranges.rate[1]:
        return f"{load.label}, where the twin was fitted up to {ranges.rate[1]:g} requests/s"
    return ""


def beyond_lengths(ranges: Ranges, lengths: Lengths) -> Iterator[str]:
    """In what the lengths lie outside: the longest one above, or their mean below what was
    measured."""
    for what, column, (least, most) in _of_lengths(ranges):
        tokens = [one[column] for one in lengths]
        if most and (max(tokens) > most or fmean(tokens) < least):
            yield (
                f"{what} of {min(tokens):,} to {max(tokens):,} tokens ({least:,} to {most:,} "
                f"were measured)"
            )


def _of_lengths(ranges: Ranges) -> tuple[tuple[str, int, tuple[int, int]], ...]:
    return ("prompts", 0, ranges.prompt_tokens), ("answers", 1, ranges.output_tokens)


def beyond_load(
    asked: WhatIf, answers: Mapping[str, PredictedValue], ranges: Ranges
) -> Iterator[str]:
    """A load by another measure than the sweep's is held against it by what comes of it: users as
    the requests that are open at once, a rate as those that are completed. Less than the sweep's
    least load is no extrapolation, as the probe measured requests alone."""
    load, users, rate = asked.load, ranges.users[1], ranges.rate[1]
    open_at_once = answers[IN_FLIGHT].about if IN_FLIGHT in answers else 0.0
    completed = answers[REQUESTS_PER_S].about if REQUESTS_PER_S in answers else 0.0
    if load.users and users and load.users > users:
        yield f"{load.label} (up to {users:,} were measured)"
    elif load.rate and rate and load.rate > rate:
        yield f"{load.label} (up to {rate:g} were measured)"
    elif load.rate and not rate and users and open_at_once > users:
        yield f"{open_at_once:.0f} requests open at once (up to {users:,} were measured)"
    elif load.users and not users and rate and completed > rate:
        yield f"{completed:.2g} requests/s (up to {rate:g} were measured)"


def beyond_settings(asked: WhatIf, fitted: SchedulerSettings) -> Iterator[str]:
    """Steps that are larger than those of the fit, or of another kind."""
    settings = asked.settings or fitted
    if settings.policy != fitted.policy:
        yield f"policy {settings.policy} (the server ran {fitted.policy})"
    if settings.max_num_batched_tokens > LARGER * fitted.max_num_batched_tokens:
        yield (
            f"steps of up to {settings.max_num_batched_tokens:,} tokens (up to "
            f"{fitted.max_num_batched_tokens:,} were "
            "measured)"
        )
    for name in ("max_num_seqs", "kv_tokens"):
        here = getattr(settings, name)
        there = getattr(fitted, name)
        if there is not None and (here is None or here > there):
            yield (
                f"{name.replace('_', '-')} of {'no limit' if here is None else f'{here:,}'} (the "
                f"server had {there:,})"
            )


def unknown(
    twin: Twin, asked: WhatIf, chosen: Sequence[str], beyond: Sequence[str]
) -> Iterator[str]:
    """What could not be identified and matters here: under more load or longer requests than were
    measured, or with other settings, which change how many run at once. ``chosen``: what the asker
    set, and so knows."""
    if not beyond and asked.settings is None:
        return
    for name, why in twin.unknown.items():
        if name not in chosen and (name in OF_LOAD or asked.settings is not None):
            yield f"{name}: {why}"
