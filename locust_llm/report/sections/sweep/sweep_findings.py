"""Findings of a sweep for the operator of the server or a gateway; one sentence or two each."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import Final

import numpy as np
from msgspec.structs import replace

from locust_llm.records.run_facts import Run, Stage
from locust_llm.report.document_blocks import format_observed
from locust_llm.report.outages import (
    Outage,
    describe_outages,
    describe_requests_without_answer,
    is_dead_at,
    list_stage_outages,
    overlaps_any,
    select_outages_between,
    select_spans_within,
)
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.slo_evidence.capacity_evidence import find_capacity
from locust_llm.report.slo_evidence.server_disturbance import find_disturbance
from locust_llm.report.slo_evidence.stage_settling import find_rise, weigh_rises
from locust_llm.report.summary_rows import Knee, LoadLevel, Row, SweepSummary
from locust_llm.settings.run_options import Settings
from locust_llm.settings.sweep_option import (
    AXES,
    CONCURRENCY,
    ENDED,
    RATE,
    REPEAT,
    RUN_STOPPED,
    STOPPED,
    TIME_UP,
)
from locust_llm.slo.binomial_intervals import NORMAL_REACH
from locust_llm.slo.capacity_search import (
    CapacityEstimate,
    CapacitySearch,
    StageEvidence,
    find_single_silences,
    format_load,
    leave_out_silences,
)
from locust_llm.slo.load_generator_health import find_uncertain_metrics
from locust_llm.slo.metric_definitions import GATE_WAIT, ITL, PER_USER, TTFT, TTFT_FROM_DUE
from locust_llm.slo.rules import PASS, Rule
from locust_llm.text.format import (
    add_noun,
    capitalise_sentence,
    format_brief,
    format_count,
    format_plain_number,
    format_supported,
    format_supported_rounded_down,
)

from .knee import SLO, UNMEASURED, describe_levels, find_knees, limit_to_slots

MIN_AFTER_LOAD: Final = 0.2
"""From this share of the time of a stage on, the time after its load is named."""
MAX_EARLY: Final = 8.0
"""The early slope covers the stages up to so many times the lowest one."""
MAX_LOWEST: Final = 2.0
"""From a higher lowest stage (users) no early slope is reported, as a busy server is slower
whatever the prompts."""
MIN_STEEP: Final = 0.25
MAX_FLAT: Final = 0.1
"""Of the slope of log request latency (p50) over log concurrency. In the simulator (Llama-3.1-8B on
an H100, from 1 to 8) it is 0.78 for prompts of 16,000 tokens with 60 out, 0.52 for 8,000 / 100,
0.29 for 3,000 / 100, 0.17 for 1,500 / 100, 0.05 for 550 / 128, 0.02 for 200 / 64. TTFT shows less
of it: a prefill is as fast as alone, and the decoding requests get slower."""
MIN_KEPT: Final = 0.9
"""The share of the best. A goodput below it has fallen; a throughput above it has not."""


def describe_sweep_findings(
    axis: str,
    levels: Sequence[LoadLevel],
    knees: Sequence[Knee],
    settings: Settings,
    safe: float | None = None,
) -> Iterator[str]:
    """``levels`` are in rising order of their values; only valid ones are used. ``safe`` is of a
    search, and limits the load instead of the knee."""
    sound = [level for level in levels if level.sound]
    if axis == CONCURRENCY:
        yield from describe_latency_slope(sound)
    yield from _wasted(axis, sound)
    limit = next((knee for knee in knees if knee.rule == SLO), None)
    highest = limit.value if limit is not None and safe is None else safe
    within = [
        level
        for level in sound
        if highest is not None
        and level.value <= highest
        and level.stationary
        and (level.slo_status == PASS or safe is not None)
    ]
    if within:
        # of several visits to a level the one with the most requests is known best
        best = max(within, key=lambda level: (level.value, level.succeeded))
        where = f"at the SLO ({describe_levels(axis, best)})"
        next_value = min(
            (level.value for level in levels if level.value > best.value), default=None
        )
        if limit is not None and (limit.high is None or limit.high != next_value):
            where = (
                f"at {describe_levels(axis, best)}, the highest stage known to be within the SLO"
            )
        higher = [
            level for level in levels if highest is not None and best.value < level.value <= highest
        ]
        if any(level.distorted or not level.stationary for level in higher):
            where = f"at {describe_levels(axis, best)}, the highest stage whose rates are accurate"
        if any(level.silence for level in higher):
            where = f"at {describe_levels(axis, best)}, the highest stage in which answers never stopped"
        if safe is not None:
            load = format_load(safe, AXES[axis])
            where = f"at {describe_levels(axis, best)}, the highest stage within the safe {load}"
        yield from _gateway(axis, best, where)
        yield from _cost(best, where, settings)


def describe_latency_slope(sound: Sequence[LoadLevel]) -> Iterator[str]:
    """How fast the median latency grows with the first users. The longer the prompts, the more each
    prefill delays the other requests. There is nothing where that was not measured."""
    early = [
        (level, p50)
        for level in sound
        if level.value <= MAX_EARLY * sound[0].value
        and (p50 := _p50(level, "request_latency")) is not None
        and p50 > 0
    ]
    # visits of a search to one level alone have no slope
    if len({level.value for level, _ in early}) < 3 or early[0][0].value > MAX_LOWEST:
        return
    (first, low), (last, high) = early[0], early[-1]
    users, latency = np.log([[level.value, p50] for level, p50 in early]).T
    steepness = float(np.polyfit(users, latency, 1)[0])
    others = (
        f"{name} x{format_brief(after / before, digits=2)}"
        for name, tag in (("TTFT", "time_to_first_token"), ("ITL", "inter_token_latency"))
        if (before := _p50(first, tag)) and (after := _p50(last, tag)) is not None
    )
    grown = ", ".join((f"request latency x{format_brief(high / low, digits=2)}", *others))
    if steepness >= MIN_STEEP:
        what = (
            f"steep (from {MIN_STEEP:g}): the prompts are long for this server, or it computes few "
            f"at a time. Each request "
            "delays the others, so set limits close to the knee"
        )
    elif steepness < MAX_FLAT:
        what = (
            f"flat (below {MAX_FLAT:g}): the prompts are short for this server, which has spare "
            "capacity"
        )
    else:
        what = f"moderate ({MAX_FLAT:g} to {MIN_STEEP:g})"
    yield (
        f"Early slope: from {describe_levels(CONCURRENCY, first)} to "
        f"{format_plain_number(last.value)} the medians change: {grown}. The slope of log "
        f"request latency over log concurrency is {steepness:.2f}, {what}."
    )


def _wasted(axis: str, sound: Sequence[LoadLevel]) -> Iterator[str]:
    """The levels at which more load keeps the throughput and costs goodput."""
    known = [(level, good) for level in sound if (good := level.goodput_per_s) is not None]
    if not known:
        return
    best, most = max(known, key=lambda pair: pair[1])
    last, least = known[-1]
    before = _throughput(best)
    after = _throughput(last)
    if (
        last.value > best.value
        and least < MIN_KEPT * most
        and before
        and after
        and after >= MIN_KEPT * before
    ):
        yield (
            f"Beyond {describe_levels(axis, best)} goodput falls, from {_known(most, best)} to "
            f"{_known(least, last)} good requests/s "
            f"at {format_plain_number(last.value)}, while throughput {_change(before, after)}."
        )


def _change(before: float, after: float) -> str:
    """``stays at 98% of what it was there``."""
    share = after / before
    what = "rises to" if share > 1 / MIN_KEPT else "stays at"
    return f"{what} {share:.0%} of the value there"


def _gateway(axis: str, level: LoadLevel, where: str) -> Iterator[str]:
    """The rates of the highest stage within the SLO, rounded down, which a gateway may let through. By chance
    more may arrive in the measured time than the rate of the stage, and no limit is above that."""
    if not level.requests_per_s:  # no answer ended in the measured time
        return
    above = level.requests_per_s / level.value if axis == RATE else 1.0
    share = 1 / max(1.0, above)
    tokens = [
        add_noun(_round_limit_down(60 * share * per_s, level), f"{what} token")
        for what, per_s in (
            ("input", level.input_tokens_per_s),
            ("output", level.output_tokens_per_s),
        )
        if per_s is not None
    ]
    # at the lower rate fewer are in flight, as each takes as long (Little's law)
    parallel = (
        f", {add_noun(_known(share * level.in_flight, level), 'request')} in flight on average"
        if level.in_flight is not None
        else ""
    )
    a_minute = _round_limit_down(60 * share * level.requests_per_s, level)
    amounts = ", ".join([add_noun(a_minute, "request"), *tokens])
    yield f"Limits for a gateway, {where}: {amounts} per minute{parallel}."


def _cost(level: LoadLevel, where: str, settings: Settings) -> Iterator[str]:
    per_s, gpus = level.output_tokens_per_s, settings.gpus
    if not gpus or not per_s:
        return
    cost = ""
    if settings.gpu_hour is not None:
        million = gpus * settings.gpu_hour / 3600 / per_s * 1e6
        cost = (
            f"; a million output tokens cost {_known(million, level)} (at {settings.gpu_hour:g} "
            f"per GPU hour)"
        )
    count = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    yield (
        f"{capitalise_sentence(where)}, on {count}: {_known(per_s / gpus, level)} "
        f"output tokens/s per GPU{cost}."
    )


def _known(value: float, level: LoadLevel) -> str:
    """A rate of a stage, or a value that follows from one, with the precision of its requests a
    second."""
    rate, error = level.requests_per_s, level.requests_per_s_error
    return format_supported(
        value, None if error is None or not rate else NORMAL_REACH * error / rate * value, digits=3
    )


def _round_limit_down(value: float, level: LoadLevel) -> str:
    """A limit that follows from a rate of a stage. Where the error of the rate is not known, it is
    that of the count of requests."""
    rate, error = level.requests_per_s, level.requests_per_s_error
    relative = level.succeeded**-0.5 if error is None or not rate else error / rate
    return format_supported_rounded_down(value, NORMAL_REACH * relative * value)


def _throughput(level: LoadLevel) -> float | None:
    """Output tokens a second, else requests a second."""
    return level.requests_per_s if level.output_tokens_per_s is None else level.output_tokens_per_s


def _p50(level: LoadLevel, tag: str) -> float | None:
    row = level.latencies.get(tag)
    return None if row is None else row.percentiles.get(50.0)


# -- sweeps ----------------------------------------------------------------------------------------

LATENCIES: Final = (
    TTFT.tag,
    ITL.tag,
    TTFT_FROM_DUE.tag,
    "request_latency",
    GATE_WAIT.tag,
    PER_USER.tag,
)
"""The latency rows of a stage."""
RATES: Final = ("request_throughput", "output_token_throughput")
"""The rows of rates that the tables of stages have."""
SPREAD: Final = (("TTFT", TTFT.tag, (50.0, 95.0, 99.0)), ("ITL", ITL.tag, (50.0, 95.0)))
"""The percentiles whose spread over repeats is shown."""


def summarise_sweep(
    run: Run,
    stages: Sequence[tuple[Run, Summary]],
    missing: Sequence[str] = (),
    outages: Sequence[Outage] = (),
) -> SweepSummary:
    """``run`` is the whole run, with its ``outages``. ``stages`` are the readable stages, each as a
    run of its own (``Run.stage`` is set). ``missing`` has a sentence for each other stage."""
    levels = [make_load_level(stage, summary) for stage, summary in stages]
    if find_sweep_axis(run) != REPEAT:
        levels = [
            _add_outages(level, run, outages, list_stage_outages(run, stage, summary.outages))
            for level, (stage, summary) in zip(levels, stages, strict=True)
        ]
    good = next((summary.good for _, summary in stages if summary.good is not None), None)
    found = summarise_levels(run, sorted(levels, key=lambda level: level.value))
    return replace(
        found, conditions="" if good is None else good.conditions, missing=tuple(missing)
    )


def _add_outages(
    level: LoadLevel, run: Run, outages: Sequence[Outage], own: Sequence[Outage]
) -> LoadLevel:
    """The level with what is known of the server's silence as its requests were measured. A stage
    to whose end no request was answered is judged by no rule: a crash is no load that is too high.
    ``own``: the outages that the stage shows by itself, its last wave included."""
    stage = next((stage for stage in run.stages if stage.number == level.number), None)
    if stage is None:
        return level
    measured = (stage.began_at if stage.measured_at is None else stage.measured_at, stage.ended_at)
    inside = select_outages_between(outages, run, *measured)
    beside = [outage for outage in outages if outage not in inside and overlaps_any(outage, own)]
    if not (inside or beside):
        return level
    ordered = sorted((*inside, *beside), key=lambda outage: outage.began_s)
    silent = replace(
        level,
        silence=describe_outages(ordered),
        unanswered=describe_requests_without_answer(ordered),
        silent_s=sum(end - start for start, end in select_spans_within(inside, run, measured)),
    )
    if is_dead_at(inside, run, stage.ended_at):
        return replace(silent, died=True, slos=(), slo_status=None, evidence=None)
    if level.evidence is None:
        return silent
    return replace(silent, evidence=replace(level.evidence, silent=True))


def summarise_levels(run: Run, levels: Sequence[LoadLevel]) -> SweepSummary:
    """``levels`` are in rising order of their values."""
    axis = find_sweep_axis(run)
    searched = run.settings.find_max
    capacity = _find_capacity(run, levels) if searched else None
    safe = None if capacity is None or capacity.is_open else capacity.safe
    slots = _count_slots(run)
    knees = limit_to_slots(axis, find_knees(axis, levels, capacity, run.settings.run_time_s), slots)
    if capacity is not None:
        doubts = describe_doubts(axis, levels, run.settings)
        knees = tuple(
            replace(knee, text=knee.text + doubts) if knee.rule == SLO else knee for knee in knees
        )
    findings = list[str]()
    if axis != REPEAT:
        findings += describe_slots(axis, levels, slots)
        findings += describe_sweep_findings(axis, levels, knees, run.settings, safe)
    return SweepSummary(
        axis=axis,
        unit=AXES.get(axis, ""),
        levels=tuple(levels),
        ended=_ended(run, levels),
        unreached=describe_unreached_stages(run),
        knees=knees,
        findings=tuple(findings),
        spread=compute_repeat_spread(levels) if axis == REPEAT else (),
        searched=searched,
        capacity=capacity,
    )


def _count_slots(run: Run) -> int | None:
    """How many requests the server computes at a time: the slots of llama.cpp. None: unknown."""
    slots = run.server_flags.get("total_slots", "")
    return int(slots) if slots.isdecimal() and int(slots) else None


def describe_slots(axis: str, levels: Sequence[LoadLevel], slots: int | None) -> Iterator[str]:
    """``4 slots: of 8 users 4 wait for a slot, and TTFT includes that wait.``"""
    if axis != CONCURRENCY or slots is None or not levels:
        return
    users = int(levels[-1].value)
    if users > slots:
        waiting = "1 waits" if users - slots == 1 else f"{users - slots} wait"
        yield (
            f"{format_count(slots, 'slot')}: of {users} users {waiting} for a slot, and TTFT "
            "includes that wait."
        )


def _find_capacity(run: Run, levels: Sequence[LoadLevel]) -> CapacityEstimate | None:
    asked = run.settings.staged
    if asked is None:
        return None
    search = CapacitySearch(
        lowest=asked.values[0], highest=asked.values[-1], whole=asked.axis != RATE,
        stages=tuple(_list_evidence(levels)),
    )  # fmt: skip
    found = find_capacity(search, run.settings.rules.readable)
    return found if found is not None and found.passed else None


def _list_evidence(levels: Sequence[LoadLevel]) -> Iterator[StageEvidence]:
    for level in levels:
        if level.evidence is not None:
            yield level.evidence


def describe_doubts(axis: str, levels: Sequence[LoadLevel], settings: Settings) -> str:
    """A sentence for each silent visit, and for each rule whose values rise within the stages, or
    differ between visits to a level."""
    stages = leave_out_silences(list(_list_evidence(levels)))
    sentences = list(_describe_silent_visits(axis, levels))
    for rule in settings.rules.readable:
        rise = find_rise(str(rule), stages)
        if rise is not None:
            sentences.append(
                f" Within a stage the values of {rule} get worse until they settle, "
                f"x{format_brief(rise.factor, digits=2)}. So requests sent before that do not count, and stages of less "
                f"than {rise.long_s:.0f} s count little unless they break the rule."
            )
        found = find_disturbance(rule, weigh_rises(stages))
        if found is None:
            continue
        low, high = (_format_figure(rule, visit.number, levels) for visit in found.extremes)
        sentences.append(
            f" The {len(found.visits)} visits to {format_load(found.level, AXES[axis])} differ by "
            f"more than their errors ({rule}: {low} to {high})"
            f"{', and each is worse than the one before' * found.worsens}: the server or the "
            f"machine was disturbed."
        )
    return "".join(sentences)


def _describe_silent_visits(axis: str, levels: Sequence[LoadLevel]) -> Iterator[str]:
    """Which visits to a level do not count, as nothing answered for a while, and which ones do."""
    evidence = list(_list_evidence(levels))
    single = find_single_silences((stage.level, stage.silent) for stage in evidence)
    of_level = defaultdict[float, list[LoadLevel]](list)
    for level in levels:
        if level.evidence is not None and level.evidence.silent:
            of_level[level.value].append(level)
    for value, visits in of_level.items():
        load = format_load(value, AXES[axis])
        if value in single:
            yield f" One visit to {load} does not count: {visits[0].silence}."
        else:
            yield (
                f" In {len(visits)} visits to {load} nothing came for a while. All of them count, "
                f"as that may belong to the load."
            )


def _format_figure(rule: Rule, number: int, levels: Sequence[LoadLevel]) -> str:
    """The value as written for this stage."""
    (level,) = (level for level in levels if level.number == number)
    (result,) = (result for result in level.slos if result.rule == str(rule))
    return format_observed(result)


def is_too_short(run: Run, stage: Stage) -> bool:
    """Whether the sweep's time (-t) was too short for a measurement of this stage."""
    timed = find_sweep_axis(run) != REPEAT and run.settings.run_time_s is not None
    unmeasured = stage.why == TIME_UP and stage.measured_at is None
    return (timed and unmeasured) or is_ended_by_time(run, stage)


def is_ended_by_time(run: Run, stage: Stage) -> bool:
    """Whether the sweep's time (-t) was up in this stage, before the stage was over by itself, or
    before anything of it was measured."""
    timed = find_sweep_axis(run) != REPEAT and run.sweep_end.startswith(ENDED[TIME_UP])
    cut_short = stage.why == STOPPED or stage.measured_at is None
    return timed and cut_short and stage.number == run.stages[-1].number


def _ended(run: Run, levels: Sequence[LoadLevel]) -> str:
    """Why the sweep ended, and in which stage where its time was too short for it."""
    last = next((stage for stage in run.stages if is_ended_by_time(run, stage)), None)
    if last is None:
        return run.sweep_end
    measured = any(level.number == last.number and level.requests for level in levels)
    nothing = "" if measured else f", {UNMEASURED}"
    return (
        f"{run.sweep_end} (-t), in stage {last.number} ({find_sweep_axis(run)} "
        f"{last.value:g}){nothing}"
    )


def describe_unreached_stages(run: Run) -> str:
    """``request-rate 80 and 160 were not reached: the stage at 40 took 31 of 40 s``. Empty: all
    were, or the run is a search."""
    asked = run.settings.staged
    if asked is None or not run.stages or run.settings.find_max or asked.axis == REPEAT:
        return ""
    reached = {stage.value for stage in run.stages}
    absent = [format_plain_number(value) for value in asked.values if value not in reached]
    if not absent:
        return ""
    named = " and ".join(filter(None, [", ".join(absent[:-1]), absent[-1]]))
    were = "was" if len(absent) == 1 else "were"
    if run.sweep_end == RUN_STOPPED:
        return f"{asked.axis} {named} {were} not reached, as {RUN_STOPPED}"
    ends = [*(stage.began_at for stage in run.stages[1:]), run.stopping_at]
    longest_s, longest = 0.0, run.stages[0]
    for stage, end in zip(run.stages, ends, strict=True):
        took_s = (end or stage.ended_at) - stage.began_at
        if took_s > longest_s:
            longest_s, longest = took_s, stage
    total_s = run.settings.run_time_s
    of_total = "" if total_s is None else f" of {total_s:g}"
    after_s = longest_s - (longest.ended_at - longest.began_at)
    after = ""
    if after_s >= MIN_AFTER_LOAD * longest_s:
        after = f", {after_s:.0f} s of it after its load, for open requests and its report"
    return (
        f"{asked.axis} {named} {were} not reached: the stage at "
        f"{format_plain_number(longest.value)} took {longest_s:.0f}{of_total} s{after}"
    )


def find_sweep_axis(run: Run) -> str:
    """The axis of its stages."""
    return (run.settings.sweep or REPEAT).partition("=")[0].strip()


def make_load_level(run: Run, summary: Summary) -> LoadLevel:
    """A stage as a row."""
    stage, c, good, steady = run.stage, summary.conditions, summary.good, summary.steady
    beside = summary.interference
    rows = {row.tag: row for row in summary.rows}

    def rate(tag: str) -> float | None:
        return rows[tag].avg if tag in rows else None

    return LoadLevel(
        number=stage.number if stage else 0,
        value=stage.value if stage else 0.0,
        users=c.users,
        duration_s=c.duration_s,
        requests=c.requests,
        succeeded=c.succeeded,
        warmup=stage.warmup if stage else 0,
        first_wave={} if c.requests else {row.tag: row for row in summary.warmup},
        failure_rate=c.failure_rate,
        residual=None if steady is None else steady.residual,
        why=stage.why if stage else "",
        client=c.client_verdict,
        client_reasons=() if summary.client is None else summary.client.reasons,
        uncertain=find_uncertain_metrics(summary.figure_errors),
        requests_per_s=rate("request_throughput"),
        input_tokens_per_s=rate("input_token_throughput"),
        output_tokens_per_s=rate("output_token_throughput"),
        requests_per_s_error=None if steady is None else steady.per_s_error,
        latencies={tag: rows[tag] for tag in LATENCIES if tag in rows},
        arrivals_per_s=_measure_arrivals(run, c.duration_s),
        inexact_rates=tuple(tag for tag in RATES if tag in rows and "" in rows[tag].inexact),
        in_flight=None if steady is None else steady.in_flight,
        answered_share=None if steady is None else steady.answered_share,
        delivered=None if summary.delivery is None else summary.delivery.share,
        completed=None if summary.delivery is None else summary.delivery.completed_share,
        kept_up=None if steady is None else steady.kept_up,
        attainment=None if good is None else good.attainment,
        goodput_per_s=None if good is None else good.goodput_per_s,
        goodput_low=None if good is None else good.low,
        goodput_high=None if good is None else good.high,
        slowdown=beside.disturbed.slowdown
        if beside is not None and beside.disturbed is not None
        else None,
        lost_share=None if beside is None else beside.lost_share,
        slos=summary.slos,
        slo_status=summary.slo_status,
        evidence=summary.stage_evidence,
    )


def _measure_arrivals(run: Run, measured_s: float | None) -> float | None:
    """The requests that were due a second in the measured time. None: nothing was due."""
    return run.offer.due / measured_s if run.offer is not None and measured_s else None


def compute_repeat_spread(levels: Sequence[LoadLevel]) -> tuple[Row, ...]:
    """The spread of the main values over the repeats: a row for each value, a value for each
    repeat."""
    figures: list[tuple[str, str, str, list[float | None]]] = []
    for name, tag, percentiles in SPREAD:
        latencies = [level.latencies.get(tag) for level in levels]
        for p in percentiles:
            values = [None if row is None else row.percentiles.get(p) for row in latencies]
            figures.append((f"{name} p{p:g}", f"{tag}_p{p:g}", "ms", values))
    figures += [
        (
            "Output Token Throughput",
            "output_token_throughput",
            "tokens/s",
            [level.output_tokens_per_s for level in levels],
        ),
        (
            "Request Throughput",
            "request_throughput",
            "requests/s",
            [level.requests_per_s for level in levels],
        ),
        ("Goodput", "goodput", "requests/s", [level.goodput_per_s for level in levels]),
    ]
    rows = [_spread(*figure) for figure in figures]
    return tuple(row for row in rows if row.count)


def _spread(label: str, tag: str, unit: str, values: Sequence[float | None]) -> Row:
    known = [value for value in values if value is not None]
    if not known:
        return Row(label=label, tag=tag, unit=unit, count=0)
    return Row(
        label=label,
        tag=tag,
        unit=unit,
        count=len(known),
        avg=fmean(known),
        std=stdev(known) if len(known) > 1 else None,
        min=min(known),
        max=max(known),
    )
