"""Twin fit: makes a twin from a server's measurements, rates its accuracy, and reports both.

The twin holds the model, its uncertainty, and unknown properties of the server.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Final

import msgspec
from tabulate import tabulate

from locust_llm.lab.probe.scheduler_diagnosis import Diagnosis
from locust_llm.lab.twin.scheduler_fit import ModelFit, Progress, fit_model
from locust_llm.lab.twin.server_observations import FIGURES as NAMES
from locust_llm.lab.twin.server_observations import (
    IdleEpisode,
    ObservedRequest,
    ObservedStage,
    measure_throughput,
    stage_figures,
    steady_requests,
)
from locust_llm.lab.twin.twin_model import (
    FIGURES,
    NOT_TO_BE_USED,
    SHAPE,
    UNKNOWN_ORIGIN,
    VERDICTS,
    HeldOutCheck,
    Origin,
    Ranges,
    SchedulerSettings,
    ServerModel,
    StepCosts,
    Trust,
    Twin,
    apply_draw,
)
from locust_llm.lab.twin.twin_prediction import (
    SEED,
    WIDTH,
    cost_interval,
    interval_of_run,
    logarithms_by_stage,
)
from locust_llm.lab.twin.virtual_replay import Lengths, resend_stage
from locust_llm.text.format import format_brief, format_count, format_duration, format_signed

NUM_LENGTHS: Final = 1000
MAX_FAILED_SHARE: Final = 0.05
"""At most this share of a sweep's requests may fail."""
MIN_GROWTH: Final = 1.1
"""The throughput must grow by this share at the last load of a sweep. Less growth is saturation."""


def fit_twin(
    diagnosis: Diagnosis, episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage],
    origin: Origin = UNKNOWN_ORIGIN,
    *, on_progress: Progress = lambda done, most: None,
) -> Twin:  # fmt: skip
    """``diagnosis`` and ``episodes`` come from the probe, ``stages`` from a sweep on the same
    server. Raises ValueError if no twin is possible."""
    if not stages:
        raise ValueError(
            "a twin needs a sweep in addition to the probe, from one user to as many as the "
            "server may have"
        )
    used, out = held_out(stages)
    measured = measure_ranges(episodes, stages)
    found = fit_model(diagnosis, episodes, used, origin, on_progress=on_progress)
    models = [apply_draw(found.model, draw) for draw in found.draws]
    checks = check_predictions(models, out)
    fitted = check_predictions(models, used)
    return Twin(
        model=found.model,
        trust=judge_trust(checks, list(_doubts(stages)), fitted),
        ranges=measured,
        origin=msgspec.structs.replace(origin, requests=len(_requests(episodes, stages))),
        intervals=cost_intervals(found),
        unknown=dict(_unknown(found.model.settings, measured)),
        lengths=tuple(sample_lengths(stages)),
        draws=found.draws,
        checks=tuple(checks),
    )


def _doubts(stages: Sequence[ObservedStage]) -> Iterator[str]:
    sent = sum(len(one.requests) + one.failed for one in stages)
    failed = sum(one.failed for one in stages)
    if failed > MAX_FAILED_SHARE * sent:
        yield (
            f"{failed:,} of {sent:,} requests of the sweep failed: the server without failures "
            f"was not measured"
        )


def _requests(
    episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage]
) -> list[ObservedRequest]:
    of_probe = chain.from_iterable(episode.requests for episode in episodes)
    of_sweep = chain.from_iterable(stage.requests for stage in stages)
    return [*of_probe, *of_sweep]


def measure_ranges(episodes: Sequence[IdleEpisode], stages: Sequence[ObservedStage]) -> Ranges:
    requests = _requests(episodes, stages)
    of_sweep = list(chain.from_iterable(stage.requests for stage in stages))
    users = [one.users for one in stages if one.users]
    rates = [one.rate for one in stages if one.rate]
    return Ranges(
        users=(min(users), max(users)) if users else (0, 0),
        rate=(min(rates), max(rates)) if rates else (0.0, 0.0),
        prompt_tokens=(
            min(one.prompt_tokens for one in requests),
            max(one.prompt_tokens for one in requests),
        ),
        output_tokens=(
            min(one.output_tokens for one in of_sweep),
            max(one.output_tokens for one in of_sweep),
        ),
        saturated=_saturated(stages),
    )


def _saturated(stages: Sequence[ObservedStage]) -> bool:
    ordered = sorted(stages, key=lambda one: (one.rate, one.users))[-2:]
    speeds = [measure_throughput(stage) for stage in ordered]
    if len(speeds) < 2 or not speeds[0] or not speeds[1]:
        return False
    return speeds[1] < MIN_GROWTH * speeds[0]


def cost_intervals(found: ModelFit) -> dict[str, tuple[float, float]]:
    """Returns the 95% interval of each cost, from the draws."""
    intervals: dict[str, tuple[float, float]] = {}
    if found.draws:
        for name in found.draws[0].__struct_fields__:
            intervals[name] = cost_interval([getattr(draw, name) for draw in found.draws])
    return intervals


def _unknown(settings: SchedulerSettings, measured: Ranges) -> Iterator[tuple[str, str]]:
    most = (
        f"up to {measured.users[1]} users"
        if measured.users[1]
        else f"up to {measured.rate[1]:g} requests/s"
    )
    if settings.max_num_seqs is None:
        yield "max_num_seqs", f"no limit was observed {most}, so none is assumed"
    if settings.kv_tokens is None:
        yield "kv_tokens", f"no limit was observed {most}, so none is assumed"
    if settings.policy in ("static", "prefill-first", "mixed"):
        yield (
            "max_num_batched_tokens",
            "wider than every prompt of the probe: a wider one would look the same",
        )
    if not measured.saturated:
        yield "capacity", f"the throughput still grew {most}: beyond that nothing was measured"


def sample_lengths(stages: Sequence[ObservedStage]) -> Lengths:
    """Returns at most NUM_LENGTHS lengths, evenly over the sweep."""
    requests = chain.from_iterable(stage.requests for stage in stages)
    lengths = [(request.prompt_tokens, request.output_tokens) for request in requests]
    return lengths[:: max(1, -(-len(lengths) // NUM_LENGTHS))]


# -- trust -----------------------------------------------------------------------------------------
# What a twin says of loads that were kept out of its fit, beside what was measured there.

MAX_ERROR: Final = 0.1
"""Up to this median error a twin is good for figures."""
MAX_SHAPE_ERROR: Final = 0.25
"""Up to this median error a twin is good for shape."""
LEAST_ERRORS: Final = {"ttft": 0.02, "itl": 0.015, "stall": 0.02, "throughput": 0.01}
"""Every model has at least these standard errors, as shares, since a check of few loads may find
none by chance."""
HALVINGS: Final = 60


def held_out(stages: Sequence[ObservedStage]) -> tuple[list[ObservedStage], list[ObservedStage]]:
    """Splits the stages for the fit and for the check: every second one between the first and the
    last, so that a check is never an extrapolation."""
    ordered = sorted(stages, key=lambda one: (one.rate, one.users))
    out = [stage for number, stage in enumerate(ordered[:-1]) if number % 2]
    return [stage for stage in ordered if stage not in out], out


def check_predictions(
    models: Sequence[ServerModel], stages: Sequence[ObservedStage]
) -> list[HeldOutCheck]:
    """Compares each figure of each stage with the models' figures for the same requests, so
    percentiles of few requests are compared with percentiles of as few. ``low`` and ``high`` bound
    such a run, if only the costs are uncertain. The requests are equal, so only the noise is
    random."""
    found = list[HeldOutCheck]()
    for stage in stages:
        replays = [resend_stage(model, stage, SEED + number) for number, model in enumerate(models)]
        logs_by_figure = logarithms_by_stage(replays, NAMES)
        predicted = {figure: interval_of_run(logs) for figure, logs in logs_by_figure.items()}
        for figure, measured in stage_figures(stage).items():
            if figure in predicted:
                low, about, high = predicted[figure]
                found.append(
                    HeldOutCheck(
                        load=stage.label,
                        figure=figure,
                        said=about,
                        low=low,
                        high=high,
                        measured=measured,
                        requests=len(steady_requests(stage)),
                    )
                )
    return found


def judge_trust(
    checks: Sequence[HeldOutCheck],
    doubts: Sequence[str] = (),
    fitted: Sequence[HeldOutCheck] = (),
) -> Trust:
    """Rates the twin. ``doubts`` rule it out, whatever the checks show. ``fitted`` has checks of
    the fitted loads. Medians of the errors decide, since a single p99 of few requests is chance."""
    typical = {}
    for figure in NAMES:
        offs = [abs(check.error) for check in checks if check.figure == figure]
        if offs:
            typical[figure] = median(offs)
    errors = model_errors([*checks, *fitted])
    if doubts or not typical:
        why = tuple(doubts) or (
            "no stage of the sweep was left to check the twin with: measure three loads or more",
        )
        return Trust(verdict=NOT_TO_BE_USED, error=None, reasons=why, errors=errors)
    error = median(abs(one.error) for one in checks)
    worst = max(typical, key=lambda figure: typical[figure])
    reason = (
        f"on loads that were kept out of the fit, {worst} was off by {typical[worst]:.0%} "
        f"(median), "
        f"all metrics by {error:.0%}"
    )
    if error <= MAX_ERROR and typical[worst] <= MAX_SHAPE_ERROR:
        verdict = FIGURES
    else:
        verdict = (
            SHAPE
            if error <= MAX_SHAPE_ERROR and typical[worst] <= 2 * MAX_SHAPE_ERROR
            else NOT_TO_BE_USED
        )
    reasons = [reason]
    doubtful = max(errors, key=lambda figure: errors[figure])
    if verdict == FIGURES and errors[doubtful] > MAX_SHAPE_ERROR:
        verdict = SHAPE
        reasons.append(
            f"over all loads of the sweep, {doubtful} is off by {errors[doubtful]:.0%} for a reason "
            f"that the model does not include"
        )
    return Trust(verdict=verdict, error=error, reasons=tuple(reasons), errors=errors)


def model_errors(checks: Sequence[HeldOutCheck]) -> dict[str, float]:
    """Returns the errors by figure, as shares, that neither the fit's uncertainty nor chance
    explains, at least LEAST_ERRORS. A figure has few checks, so all figures of a metric share one
    error. Fitted loads count like held-out ones, as a wrong form of the costs affects both."""
    offs: dict[str, list[tuple[float, float]]] = {}
    for one in checks:
        if one.measured > 0 and one.low > 0:
            known = (math.log(one.high / one.low) / (2 * WIDTH)) ** 2
            offs.setdefault(_metric(one.figure), []).append(
                (math.log(one.said / one.measured), known)
            )
    errors = {
        metric: max(LEAST_ERRORS[metric], math.sqrt(_variance_beyond(some)))
        for metric, some in offs.items()
    }
    return {figure: errors[_metric(figure)] for figure in NAMES if _metric(figure) in errors}


def _metric(figure: str) -> str:
    return figure.partition(" ")[0]


def _variance_beyond(offs: Sequence[tuple[float, float]]) -> float:
    """Returns the variance that must be added to the known variances of ``offs``, so that the
    squares have their expected mean of 1. Uncertain values then hardly count (Paule & Mandel,
    "Consensus Values and Weighting Factors", 1982; their mean is 0 here)."""
    least = 0.0
    most = max(off * off for off, _ in offs)
    for _ in range(HALVINGS if most else 0):
        middle = (least + most) / 2
        if fmean(off * off / (known + middle) for off, known in offs) > 1:
            least = middle
        else:
            most = middle
    return least


# -- fit report ------------------------------------------------------------------------------------
# What a fit came to, for the console: scheduler, cost of a step in words, what is unknown, checks.

THROUGHPUT: Final = "throughput"
CONTEXT: Final = 1000
"""The report shows the attention time of this many tokens."""


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm twin fit --json``."""

    file: str | None = None
    """The path of the twin. null: the probe does not name a scheduler, so there is no twin."""
    why_no_twin: str | None = None
    """Why there is no twin. null: there is one."""
    verdict: str | None = None
    """``figures``, ``shape`` or ``not to be used``. null: there is no twin."""
    error: float | None = None
    """The median error of all checks, as a share of 1. null: there were no checks."""
    reasons: tuple[str, ...] = ()
    """The reasons for the verdict."""
    scheduler: SchedulerSettings | None = None
    """The fitted settings of the scheduler. null: there is no twin."""
    costs: StepCosts | None = None
    """The fitted costs of a step, in seconds. null: there is no twin."""
    intervals: dict[str, tuple[float, float]] = {}
    """The 95 % interval of each fitted parameter, in the unit of the parameter."""
    unknown: dict[str, str] = {}
    """The parameters that could not be identified, each with the assumption made instead."""
    notes: tuple[str, ...] = ()
    """Omitted or doubtful parts of the runs."""
    checks: tuple[HeldOutCheck, ...] = ()
    """Predictions for loads that were kept out of the fit, beside the measured values."""


def summarise_fit(twin: Twin, file: Path) -> FitResult:
    return FitResult(
        file=str(file),
        verdict=twin.trust.verdict,
        error=twin.trust.error,
        reasons=twin.trust.reasons,
        scheduler=twin.model.settings,
        costs=twin.model.cost,
        intervals=twin.intervals,
        unknown=twin.unknown,
        notes=twin.origin.notes,
        checks=twin.checks,
    )


def format_fit_report(twin: Twin, diagnosis: Diagnosis) -> str:
    return "\n".join(_lines(twin, diagnosis)) + "\n"


def _lines(twin: Twin, diagnosis: Diagnosis) -> Iterator[str]:
    origin = twin.origin
    server = f" ({origin.server})" if origin.server else ""
    yield (
        f"Twin of {origin.model or 'the model'} on {origin.host}{server}: "
        f"{VERDICTS[twin.trust.verdict]}."
    )
    yield from (f"Why: {why}." for why in twin.trust.reasons)
    yield ""
    yield f"Scheduler: {format_scheduler_settings(twin.model.settings)}."
    yield from (f"Because: {why}." for why in diagnosis.reasons)
    yield ""
    yield from describe_costs(twin)
    if twin.unknown:
        yield ""
        yield from (
            f"Not known: {name.replace('_', '-')}: {why}." for name, why in twin.unknown.items()
        )
    yield from (f"Note: {note}." for note in origin.notes)
    if twin.checks:
        yield ""
        yield ("Held-out loads, predicted by the twin and measured:")
        yield format_check_table(twin.checks)


def format_scheduler_settings(settings: SchedulerSettings) -> str:
    """Formats the settings as one sentence without its end."""
    whole = settings.policy in ("static", "prefill-first", "mixed")
    words = [
        settings.policy,
        f"{'at least ' if whole else ''}{settings.max_num_batched_tokens:,} tokens per step",
    ]
    if settings.long_prefill_token_threshold:
        words.append(f"at most {settings.long_prefill_token_threshold:,} of one prompt")
    if settings.max_num_partial_prefills > 1:
        words.append(f"{settings.max_num_partial_prefills} prompts at a time")
    words += (
        [f"at most {settings.max_num_seqs:,} requests at a time"] if settings.max_num_seqs else []
    )
    words += [f"{settings.kv_tokens:,} tokens in the KV cache"] if settings.kv_tokens else []
    return ", ".join(words)


# -- the cost of a step ----------------------------------------------------------------------------


def predict_step_s(model: ServerModel, tokens: int, streams: int) -> float:
    """Returns the time of a step with so many prompt tokens beside so many streams, without
    attention."""
    cost = model.cost
    every = tokens + streams
    sequences = streams + (tokens > 0)
    return (
        cost.fixed_s + cost.token_s * max(0.0, every - cost.free_tokens) + cost.stream_s * sequences
    )


def describe_costs(twin: Twin) -> Iterator[str]:
    """Describes the costs of a step, a line each, with 95% intervals."""
    budget = twin.model.settings.max_num_batched_tokens
    whole = twin.model.settings.policy in ("static", "prefill-first", "mixed")
    most = twin.ranges.prompt_tokens[1] if whole else budget
    many_streams = max(2, min(64, twin.ranges.users[1] or 16))

    def line(what: str, of: Callable[[ServerModel], float]) -> str:
        return f"{what}: {format_time(of(twin.model), [of(model) for model in twin.models()])}"

    yield line("A step of one stream takes", lambda model: predict_step_s(model, 0, 1))
    yield line(
        f"A step of {many_streams} streams", lambda model: predict_step_s(model, 0, many_streams)
    )
    yield line("Each token of a prompt", lambda model: model.cost.token_s)
    if twin.model.cost.free_tokens:
        yield (
            f"The first {twin.model.cost.free_tokens:,.0f} tokens of a step cost no extra "
            f"time, because weights are read meanwhile"
        )
    step = (
        f"A step with a whole prompt of {most:,} tokens"
        if whole
        else f"A full step of {most:,} tokens"
    )
    yield line(step, lambda model: predict_step_s(model, most, 0))
    yield line(
        f"Reading {CONTEXT:,} tokens of context", lambda model: CONTEXT * model.cost.context_s
    )
    yield line(
        f"Attention within a prompt of {CONTEXT:,} tokens",
        lambda model: CONTEXT**2 / 2 * (model.cost.pair_s + model.cost.own_pair_s),
    )
    if twin.model.cost.admission_s:
        yield line(
            "Each admitted request delays all others by",
            lambda model: model.cost.admission_s,
        )
    yield line("Before the scheduler has a request", lambda model: model.front.request_s)
    yield line(
        f"and for each {CONTEXT:,} tokens of its prompt",
        lambda model: CONTEXT * model.front.token_s,
    )
    noise = twin.model.noise
    beside = f" and {format_time(noise.step_s)}" if noise.step_s else ""
    yield (
        f"Equal steps differ by {noise.step_sigma:.1%}{beside}; a chunk comes "
        f"{format_time(noise.chunk_s)} late on average"
    )
    if noise.pause_every_s:
        yield (
            f"The server pauses for {format_time(noise.pause_s)}, about every "
            f"{noise.pause_every_s:.1f} s"
        )


def format_time(seconds: float, drawn: Sequence[float] = ()) -> str:
    """Formats a time, such as ``12.3 ms (12.1 to 12.5)``."""
    scale = 1.0
    unit = "s"
    if seconds < 1e-3:
        scale = 1e6
        unit = "µs"
    elif seconds < 1:
        scale = 1e3
        unit = "ms"
    text = f"{format_brief(seconds * scale, digits=3)} {unit}"
    if len(drawn) < 2:
        return text
    low, high = cost_interval(drawn)
    return (
        f"{text} ({format_brief(low * scale, digits=3)} to {format_brief(high * scale, digits=3)})"
    )


# -- the checks ------------------------------------------------------------------------------------


def format_check_table(checks: Sequence[HeldOutCheck]) -> str:
    rows = []
    shown = ""
    for check in checks:
        label = f"{check.load} ({format_count(check.requests, 'request')})"
        low = format_checked_value(check, check.low)
        high = format_checked_value(check, check.high)
        rows.append(
            [
                "" if label == shown else label,
                check.figure,
                format_checked_value(check, check.said),
                f"{low} to {high}",
                format_checked_value(check, check.measured),
                format_signed(100 * check.error, 0, "%"),
            ]
        )
        shown = label
    return tabulate(
        rows, headers=["load", "metric", "predicted", "95%", "measured", "error"], disable_numparse=True,
        colalign=("left", "left", "right", "right", "right", "right"),
    )  # fmt: skip


def format_checked_value(check: HeldOutCheck, value: float) -> str:
    """Formats milliseconds, or tokens per second."""
    if check.figure == THROUGHPUT:
        return f"{format_brief(value, digits=3)}/s"
    return format_duration(value)
