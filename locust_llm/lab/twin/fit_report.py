"""Fit report: what a fit came to, for the console: scheduler, cost of a step in words, what is
unknown, checks."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from tabulate import tabulate

from locust_llm.lab.probe.diagnosis import Diagnosis
from locust_llm.text.format import format_brief, format_count

from .model import SchedulerSettings, ServerModel
from .predict import of_cost
from .twin import VERDICTS, HeldOutCheck, Twin

THROUGHPUT: Final = "throughput"
CONTEXT: Final = 1000
"""Tokens, of which the time that their attention takes is told."""


def format_fit_report(twin: Twin, said: Diagnosis) -> str:
    return "\n".join(_lines(twin, said)) + "\n"


def _lines(twin: Twin, said: Diagnosis) -> Iterator[str]:
    origin = twin.origin
    server = f" ({origin.server})" if origin.server else ""
    yield (
        f"Twin of {origin.model or 'the model'} on {origin.host}{server}: "
        f"{VERDICTS[twin.trust.verdict]}."
    )
    yield from (f"Why: {why}." for why in twin.trust.reasons)
    yield ""
    yield f"Scheduler: {format_scheduler_settings(twin.model.settings)}."
    yield from (f"Because: {why}." for why in said.reasons)
    yield ""
    yield from costs(twin)
    if twin.unknown:
        yield ""
        yield from (
            f"Not known: {name.replace('_', '-')}: {why}." for name, why in twin.unknown.items()
        )
    yield from (f"Note: {note}." for note in origin.notes)
    if twin.checks:
        yield ""
        yield (
            "Loads that were kept out of the fit, as the twin says them and as they were measured:"
        )
        yield format_check_table(twin.checks)


def format_scheduler_settings(s: SchedulerSettings) -> str:
    """In one sentence, without its end."""
    whole = s.policy in ("static", "prefill-first", "mixed")
    words = [s.policy, f"{'at least ' if whole else ''}{s.max_num_batched_tokens:,} tokens a step"]
    if s.long_prefill_token_threshold:
        words.append(f"at most {s.long_prefill_token_threshold:,} of one prompt")
    if s.max_num_partial_prefills > 1:
        words.append(f"{s.max_num_partial_prefills} prompts at a time")
    words += [f"at most {s.max_num_seqs:,} requests at a time"] if s.max_num_seqs else []
    words += [f"{s.kv_tokens:,} tokens in the KV cache"] if s.kv_tokens else []
    return ", ".join(words)


# -- the cost of a step ----------------------------------------------------------------------------


def predict_step_s(model: ServerModel, tokens: int, streams: int) -> float:
    """Of a step with so many tokens of a prompt beside so many streams, without attention."""
    cost = model.cost
    every = tokens + streams
    sequences = streams + (tokens > 0)
    return (
        cost.fixed_s + cost.token_s * max(0.0, every - cost.free_tokens) + cost.stream_s * sequences
    )


def costs(twin: Twin) -> Iterator[str]:
    """What a step takes, a line each, with 95% intervals."""
    budget = twin.model.settings.max_num_batched_tokens
    whole = twin.model.settings.policy in ("static", "prefill-first", "mixed")
    most = twin.ranges.prompt_tokens[1] if whole else budget
    many_streams = max(2, min(64, twin.ranges.users[1] or 16))

    def told(what: str, of: Callable[[ServerModel], float]) -> str:
        return f"{what}: {timed(of(twin.model), [of(model) for model in twin.models()])}"

    yield told("A step of one stream takes", lambda model: predict_step_s(model, 0, 1))
    yield told(
        f"A step of {many_streams} streams", lambda model: predict_step_s(model, 0, many_streams)
    )
    yield told("Each token of a prompt", lambda model: model.cost.token_s)
    if twin.model.cost.free_tokens:
        yield (
            f"The first {twin.model.cost.free_tokens:,.0f} tokens of a step cost nothing more: "
            f"weights are read meanwhile"
        )
    step = (
        f"A step with a whole prompt of {most:,} tokens"
        if whole
        else f"A full step of {most:,} tokens"
    )
    yield told(step, lambda model: predict_step_s(model, most, 0))
    yield told(
        f"Reading {CONTEXT:,} tokens of context", lambda model: CONTEXT * model.cost.context_s
    )
    yield told(
        f"Attention within a prompt of {CONTEXT:,} tokens",
        lambda model: CONTEXT**2 / 2 * (model.cost.pair_s + model.cost.own_pair_s),
    )
    if twin.model.cost.admission_s:
        yield told(
            "Each request holds up all others, when it is taken, by",
            lambda model: model.cost.admission_s,
        )
    yield told("Before the scheduler has a request", lambda model: model.front.request_s)
    yield told(
        f"and for each {CONTEXT:,} tokens of its prompt",
        lambda model: CONTEXT * model.front.token_s,
    )
    noise = twin.model.noise
    beside = f" and {timed(noise.step_s)}" if noise.step_s else ""
    yield (
        f"Equal steps differ by {noise.step_sigma:.1%}{beside}; a chunk comes "
        f"{timed(noise.chunk_s)} late on average"
    )
    if noise.pause_every_s:
        yield (
            f"The server pauses for {timed(noise.pause_s)}, about every {noise.pause_every_s:.1f} s"
        )


def timed(seconds: float, drawn: Sequence[float] = ()) -> str:
    """``12.3 ms (12.1 to 12.5)``"""
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1.0, "s")
    text = f"{format_brief(seconds * scale, digits=3)} {unit}"
    if len(drawn) < 2:
        return text
    low, high = of_cost(drawn)
    return (
        f"{text} ({format_brief(low * scale, digits=3)} to {format_brief(high * scale, digits=3)})"
    )


# -- the checks ------------------------------------------------------------------------------------


def format_check_table(checks: Sequence[HeldOutCheck]) -> str:
    rows = [
        [label if number == 0 else "", one.figure, format_checked_value(one, one.said),
            f"{format_checked_value(one, one.low)} to {format_checked_value(one, one.high)}",
         format_checked_value(one, one.measured), f"{one.error:+.0%}"]
        for label, some in groupby(checks,
            key=lambda one: f"{one.load} ({format_count(one.requests, 'request')})")
        for number, one in enumerate(some)
    ]  # fmt: skip
    return tabulate(
        rows, headers=["load", "figure", "said", "95%", "measured", "error"], disable_numparse=True,
        colalign=("left", "left", "right", "right", "right", "right"),
    )  # fmt: skip


def format_checked_value(check: HeldOutCheck, value: float) -> str:
    """Milliseconds, or tokens a second."""
    if check.figure == THROUGHPUT:
        return f"{format_brief(value, digits=3)}/s"
    return f"{format_brief(value * 1e3, digits=3)} ms"
