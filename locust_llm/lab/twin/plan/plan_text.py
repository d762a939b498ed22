"""Plan text: formats a plan as a document, and as data for machines."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import msgspec

from locust_llm.lab.twin.plan.replica_plan import MONTH_H
from locust_llm.lab.twin.server_observations import IN_FLIGHT
from locust_llm.lab.twin.twin_model import VERDICTS, NamedTrust
from locust_llm.lab.twin.twin_prediction import (
    PredictedValue,
    interval_of_logarithms,
    log_ratios,
    standard_error_of,
)
from locust_llm.lab.twin.whatif.whatif_rows import THROUGHPUT, WhatIfRow, figure_of_rule
from locust_llm.lab.twin.whatif.whatif_text import (
    describe_extrapolations,
    figure_title,
    format_predicted,
)
from locust_llm.report.document_blocks import Block, Heading, Headline, TableBlock, TextBlock
from locust_llm.text.format import format_brief, format_count

from .replica_plan import SHARES, CapacityPlan, PlanCost

SCHEMA: Final = 1
USUAL: Final = ("ttft p50", "ttft p95", "itl p99")
COLUMNS: Final = 4
"""The table has these figures."""
BAR: Final = 30
"""The busiest hour has a bar of this many characters."""
ASSUMED: Final = (
    "Requests are spread evenly over the replicas and arrive at random (Poisson). A router that "
    "balances by load does slightly better, one that keeps sessions or prefixes together worse. "
    "The thresholds do not include the start time of a new replica."
)


class ArrivalRates(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals that the plan is for, in requests per second."""

    hours: tuple[float, ...]
    """The mean rate of each hour of the day, in requests per second."""
    mean: float
    """The mean rate of the day, in requests per second."""
    peak: float
    """The rate that the replicas must serve, in requests per second."""


class ReplicaThreshold(msgspec.Struct, frozen=True, kw_only=True):
    """The load of each replica at which their number changes."""

    requests_per_s: float
    """The rate of each replica, in requests per second."""
    in_flight: float
    """The mean number of open requests of each replica at that rate."""


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction for one replica at one rate."""

    load_share: float | None
    """The rate as a share of the rate at which a replica falls behind. null: the twin predicts
    figures, and ``requests_per_s`` has the rate."""
    requests_per_s: float | None
    """The rate of one replica, in requests per second. null: the plan is only a shape."""
    status: str | None
    """``met``, ``open`` or ``not met``, by the worst rule. null: no rule was judged."""
    falls_behind: bool
    """The replica completes fewer requests than arrive, so waits grow without end."""
    extrapolated: tuple[str, ...]
    """Loads and lengths outside the measured ones."""
    unknown: tuple[str, ...]
    """Properties of the server that are unknown and matter at this rate."""
    answers: dict[str, PredictedValue]
    """The low end of the 95 % interval, the value and the high end, by figure. Times are in seconds
    and rates per second; in a shape all are multiples of the first row's."""


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm plan --json``."""

    schema: int = SCHEMA
    """The version of this format."""
    twin: NamedTrust
    """The twin that predicts."""
    rules: tuple[str, ...]
    """The SLO rules that the replicas must hold."""
    arrivals: ArrivalRates
    """The arrivals that the plan is for."""
    only_shape: str | None
    """Why there is no number of replicas. null: the twin's error allows one."""
    replicas: int | None
    """The number of replicas that meet the rules at the peak when one is lost. null: no number
    does, or the twin predicts only relative changes."""
    replicas_by_middle: int | None
    """The number of replicas by the predicted values instead of their 95 % intervals."""
    requests_per_s_per_replica: float | None
    """The rate that one replica holds, in requests per second."""
    limited_by_what_was_measured: str | None
    """Why a replica gets no higher rate: it would be an extrapolation. null: the rules limit the
    rate."""
    add_above: ReplicaThreshold | None
    """Above this load of each replica, add one. null: there is no number of replicas."""
    remove_below: ReplicaThreshold | None
    """Below this load of each replica, remove one. null: there is none to remove."""
    cost: PlanCost | None
    """The costs in the currency of ``--gpu-hour``. null: no price was given."""
    rows: tuple[PlanRow, ...]
    """The predictions for one replica, with one working replica fewer, with all working ones and
    with all; for a shape, at rising loads."""


def plan_document(plan: CapacityPlan) -> Iterator[Block]:
    yield Heading(f"Plan: {plan.name}")
    yield Headline(plan_headline(plan))
    trust = plan.twin.trust
    if not plan.only_shape:
        yield TextBlock(
            f"The twin is {VERDICTS[trust.verdict]}: "
            f"{'; '.join(trust.reasons) or 'its file gives no reason'}."
        )
    yield TextBlock(
        f"Arrivals: {plan.arrivals.what}; mean {format_rate(plan.arrivals.mean)}, peak "
        f"{format_rate(plan.arrivals.peak)}. "
        f"{plan.workload[:1].upper()}{plan.workload[1:]}. SLO: {'; '.join(map(str, plan.rules))}."
    )
    if plan.only_shape:
        yield from _shape(plan)
    elif plan.rows:
        yield _replicas(plan)
        for note in plan_notes(plan):
            yield TextBlock(note)
    if plan.fleet is not None:
        yield from _thresholds(plan)
    if plan.cost is not None:
        yield from _cost(plan)
    yield from _day(plan)


def plan_headline(plan: CapacityPlan) -> str:
    if plan.only_shape:
        return plan.only_shape
    found, middle = plan.fleet, plan.by_middle
    if found is None:
        return (
            "No number of replicas is within the SLO with certainty: even a replica with almost "
            "no load is not (below)."
        )
    less = (
        " By the middle of the predictions instead of their 95% intervals, it would be "
        f"{middle.replicas}."
        if middle is not None and middle.replicas != found.replicas
        else ""
    )
    working = f"{found.working} {'holds' if found.working == 1 else 'hold'}"
    return (
        f"{format_count(found.replicas, 'replica')}: {working} the peak within the SLO when one is "
        f"lost. One holds "
        f"{format_rate(found.per_replica)}.{less}"
    )


def format_rate(per_s: float) -> str:
    return f"{format_brief(per_s, digits=3)} requests/s"


def _replicas(plan: CapacityPlan) -> TableBlock:
    """Returns the share of the peak for each of so many replicas."""
    figures = _columns(plan)
    rows = tuple(_replica_cells(plan, row, figures) for row in plan.rows)
    return TableBlock(
        (
            "Replicas",
            "requests/s each",
            *(figure_title(name, False) for name in figures),
            "in flight",
            "SLO",
        ),
        rows,
    )


def _columns(plan: CapacityPlan) -> tuple[str, ...]:
    found = dict.fromkeys((*map(figure_of_rule, plan.rules), *USUAL))
    found.pop(THROUGHPUT, None)
    return (*tuple(found)[: COLUMNS - 1], THROUGHPUT)


def plan_notes(plan: CapacityPlan) -> Iterator[str]:
    if plan.limited:
        yield (
            f"Higher loads of a replica are left out, because they were not measured: "
            f"{plan.limited}. A sweep with more load may show that fewer replicas suffice."
        )
    for what in describe_extrapolations(plan.rows, (_columns(plan)[0], THROUGHPUT)):
        yield f"Extrapolated, outside of the fitted range (the widest 95% interval): {what}."
    for what in dict.fromkeys(chain.from_iterable(row.unknown for row in plan.rows)):
        yield f"Unknown of this server, and it matters here: {what}."
    yield ASSUMED


def _replica_cells(plan: CapacityPlan, row: WhatIfRow, figures: Sequence[str]) -> tuple[str, ...]:
    rate_per_s = row.case.what_if.load.rate
    cells = [
        str(round(plan.arrivals.peak / rate_per_s)) if plan.fleet else "any",
        format_brief(rate_per_s, digits=3),
    ]
    for name in figures:
        if name not in row.answers:
            continue
        grows = row.falls_behind and name != THROUGHPUT
        cells.append("grows" if grows else format_predicted(name, row.answers[name]))
    cells.append(f"{row.answers[IN_FLIGHT].about:.1f}")
    marks = (row.status, "extrapolated" if row.beyond else "")
    cells.append(", ".join(filter(None, marks)))
    return tuple(cells)


def _shape(plan: CapacityPlan) -> Iterator[Block]:
    """Shows the shape relative to the lowest load."""
    if not plan.rows:
        return
    figures = _columns(plan)
    rows = []
    for share, row in zip(SHARES, plan.rows, strict=True):
        cells = [f"{share:.0%}"]
        for name in figures:
            times = relative_to_lowest_load(plan, row, name)
            cells.append(format_predicted(name, times, True) if times else "-")
        rows.append(tuple(cells))
    yield TextBlock(
        f"Each value relative to {SHARES[0]:.0%} of the rate at which a replica falls behind, by "
        "share of this rate:"
    )
    yield TableBlock(("Load", *(figure_title(name, True) for name in figures)), tuple(rows))


def relative_to_lowest_load(
    plan: CapacityPlan, row: WhatIfRow, figure: str
) -> PredictedValue | None:
    first = plan.rows[0]
    if figure not in row.logs or figure not in first.logs:
        return None
    return interval_of_logarithms(
        log_ratios(row.logs[figure], first.logs[figure]),
        standard_error_of(figure, plan.twin.trust.errors),
    )


def _thresholds(plan: CapacityPlan) -> Iterator[Block]:
    found = plan.fleet
    assert found is not None
    yield Heading("When to add and to remove a replica")
    lost = found.replicas - 1
    rows = [("add one above", format_brief(found.add_above, digits=3), f"{plan.add_in_flight:.1f}")]
    if found.remove_below:
        rows.append(
            (
                "remove one below",
                format_brief(found.remove_below, digits=3),
                f"{plan.remove_in_flight:.1f}",
            )
        )
    yield TableBlock(("Of each replica", "requests/s", "requests in flight"), tuple(rows))
    spare = (
        " Below the rate for removal, one replica fewer would hold it with a margin."
        if found.remove_below
        else ""
    )
    most = format_brief(found.per_replica, digits=3)
    yield TextBlock(
        f"With {found.replicas} replicas: above the rate for addition, {lost} would not hold the "
        f"SLO.{spare} With n replicas, add one above (n - 1) / n x {most}, and remove one below "
        f"0.9 x (n - 2) / n x {most} requests/s of each. Never use fewer than 2."
    )


def _cost(plan: CapacityPlan) -> Iterator[Block]:
    found = plan.cost
    assert found is not None
    yield Heading("Cost")
    rows = (
        ("GPUs", f"{found.gpus:,}"),
        (f"a month ({MONTH_H} h)", f"{found.month:,.0f}"),
        ("a month, replicas by the hour's load", f"{found.month_scaled:,.0f}"),
        ("a million output tokens", f"{found.million_output:,.2f}"),
        ("a million tokens, prompts included", f"{found.million_all:,.2f}"),
    )
    yield TableBlock(("", "in the currency of --gpu-hour"), rows, label=40)


def _day(plan: CapacityPlan) -> Iterator[Block]:
    """Shows the day hour by hour, or in one line if all hours are equal."""
    hours = plan.arrivals.hours
    if len(set(hours)) == 1:
        return
    yield Heading("The day")
    most = max(hours)
    bursts = plan.arrivals.peak / max(hours)
    rows = tuple(
        (
            f"{hour:02}", format_brief(one, digits=3),
            str(plan.fleet.needed(one * bursts)) if plan.fleet else "-",
            "#" * round(BAR * one / most),
        )
        for hour, one in enumerate(hours)
    )  # fmt: skip
    yield TableBlock(("Hour", "requests/s", "replicas", ""), rows, numbers=False)


def plan_as_json(plan: CapacityPlan) -> PlanResult:
    """Returns the plan's values. A shape has multiples of the first row's load."""
    found = plan.fleet
    shares: Sequence[float | None] = SHARES if plan.only_shape else [None] * len(plan.rows)
    rows = [_row_as_json(plan, row, share) for share, row in zip(shares, plan.rows, strict=True)]
    add_above = None
    remove_below = None
    if found is not None:
        add_above = ReplicaThreshold(requests_per_s=found.add_above, in_flight=plan.add_in_flight)
        if found.remove_below:
            remove_below = ReplicaThreshold(
                requests_per_s=found.remove_below, in_flight=plan.remove_in_flight
            )
    trust = plan.twin.trust
    return PlanResult(
        twin=NamedTrust(file=plan.name, verdict=trust.verdict, error=trust.error),
        rules=tuple(str(rule) for rule in plan.rules),
        arrivals=ArrivalRates(
            hours=tuple(float(f"{one:.5g}") for one in plan.arrivals.hours),
            mean=plan.arrivals.mean,
            peak=plan.arrivals.peak,
        ),
        only_shape=plan.only_shape or None,
        replicas=None if found is None else found.replicas,
        replicas_by_middle=None if plan.by_middle is None else plan.by_middle.replicas,
        requests_per_s_per_replica=None if found is None else found.per_replica,
        limited_by_what_was_measured=plan.limited or None,
        add_above=add_above,
        remove_below=remove_below,
        cost=plan.cost,
        rows=tuple(rows),
    )


def _row_as_json(plan: CapacityPlan, row: WhatIfRow, share: float | None) -> PlanRow:
    """``share`` is relative to the rate at which a replica falls behind. None: the answers are
    figures."""
    answers = {}
    for name in row.answers:
        answer = row.answers[name] if share is None else relative_to_lowest_load(plan, row, name)
        if answer is not None:
            answers[name] = answer
    return PlanRow(
        load_share=share,
        requests_per_s=row.case.what_if.load.rate if share is None else None,
        status=row.status or None,
        falls_behind=row.falls_behind,
        extrapolated=tuple(row.beyond),
        unknown=tuple(row.unknown),
        answers=answers,
    )
