"""Disruptions: what the commands of ``--disrupt`` did to the requests, in sentences and tables. The
numbers are in report/disruption_effects.py."""

from collections.abc import Iterator
from typing import Final

from locust_llm.report.disruption_results import DisruptionEffect, DisruptionEffects, RequestFates
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock
from locust_llm.report.slo_evidence.disruption_rule_values import explain_failed_command
from locust_llm.text.format import (
    capitalise_sentence,
    clean_line,
    format_brief,
    format_count,
    format_duration,
    truncate_text,
)

from .section import ReportSection

DISRUPTIONS: Final = "disruptions"
"""The name of the finding in run.json."""
COMMAND_CHARS: Final = 60
FATES: Final = (
    ("finished", "finished"),
    ("failed", "failed"),
    ("truncated", "ended early but looked complete"),
    ("hung", "hung"),
    ("still_open", "were still open at the end"),
    ("cancelled", "were cancelled on purpose"),
)
FORMER_RANGE: Final = (
    "Windows of 5 s are in the former range if their failed requests and TTFT p95 are at most 1.5 "
    "times the highest before the first disruption. The recovery time goes from the start of "
    "the command to the send of the first request in such a window. The table has the highest "
    "failures and TTFT p95 of a window before the first disruption, and from each disruption until "
    "its recovery. Windows that leave the range later than 60 s after the "
    "command do not count, nor does a later second of slow first tokens."
)


# -- sentences -------------------------------------------------------------------------------------


def describe_fates(fates: RequestFates) -> str:
    """``of 20 requests in flight 17 finished, 2 failed and 1 hung``"""
    if not fates.total:
        return "no request was in flight"
    counts = [(getattr(fates, name), what) for name, what in FATES]
    parts = [f"{count} {_singular(count, what)}" for count, what in counts if count]
    if counts[0][0] == fates.total:
        return f"{format_count(fates.total, 'request')} in flight finished"
    *most, last = parts
    listed = f"{', '.join(most)} and {last}" if most else last
    return f"of {format_count(fates.total, 'request')} in flight {listed}"


def _singular(count: int, what: str) -> str:
    return what.replace("were ", "was ", 1) if count == 1 else what


def describe_recovery(effect: DisruptionEffect) -> str:
    if effect.recovery_s is None:
        return f"there is no recovery time: {effect.unknown}"
    if not effect.recovery_s:
        return "failures and TTFT p95 stayed in their former range"
    after = format_duration(effect.recovery_s)
    return f"failures and TTFT p95 were back in their former range after {after}"


def describe_disruption(effect: DisruptionEffect) -> str:
    """What became of the requests, in one or two sentences."""
    # the times of outages and charts have the same origin
    text = (
        f"Disruption {effect.number} ({effect.schedule}), {effect.at_s:.1f} s after the first "
        f"request: {describe_fates(effect.in_flight)}"
    )
    if lost := effect.sent.lost:
        later = format_count(effect.sent.total, "request")
        until = "afterwards" if effect.recovery_s is None else "until the recovery"
        text += f"; {lost} of {later} sent {until} {'was' if lost == 1 else 'were'} lost"
    text += f"; {describe_recovery(effect)}."
    if effect.status != 0:
        text += f" {capitalise_sentence(explain_failed_command(effect))}."
    elif not (effect.in_flight.lost or effect.sent.lost):
        text += " Nothing was lost."
    return text


def format_disruptions_line(found: DisruptionEffects) -> str:
    """The result of the worst disruption, for the console."""
    worst = max(found.effects, key=_rank_effect)
    others = len(found.effects) - 1
    more = f" {format_count(others, 'other disruption')} in the report." if others else ""
    return f"{describe_disruption(worst)}{more}"


def _rank_effect(effect: DisruptionEffect) -> tuple[bool, bool, int, float]:
    lost = effect.in_flight.lost + effect.sent.lost
    return effect.status != 0, effect.recovery_s is None, lost, effect.recovery_s or 0.0


# -- blocks ----------------------------------------------------------------------------------------


def make_disruption_blocks(found: DisruptionEffects) -> Iterator[Block]:
    yield Heading("Disruptions")
    for effect in found.effects:
        yield TextBlock(describe_disruption(effect))
    yield TableBlock(
        ("Disruption", "Command", "Status", "Ran for"),
        tuple(map(_make_command_row, found.effects)),
        numbers=False,
    )
    fate_rows = list[tuple[str, ...]]()
    budget_rows = list[tuple[str, ...]]()
    for effect in found.effects:
        fate_rows += _make_fate_rows(effect)
        budget_rows += _make_budget_rows(effect)
    yield TableBlock(
        (
            "Requests", "All", "Finished", "Failed", "Ended early", "Hung", "Still open",
            "Cancelled",
        ),
        tuple(fate_rows),
    )  # fmt: skip
    yield TextBlock(
        "Ended early: fewer tokens than requested, without an error and without a finish reason that "
        "explains it. Hung: a time limit, or cut at the end of the run after 5 s without a token."
    )
    yield TableBlock(
        (
            "Disruption", "Recovery, at a send", "First success, at its first token",
            "No answer for", "Failures before", "until recovery", "TTFT p95 before",
            "until recovery", "Sent again",
        ),
        tuple(map(_make_recovery_row, found.effects)),
    )  # fmt: skip
    yield TextBlock(FORMER_RANGE)
    if budget_rows:
        head = ("SLO budget", "Disruption", "Broke it", "Allowed", "Spent")
        yield TableBlock(head, tuple(budget_rows))
        yield TextBlock(
            "Broke it: requests in flight, or sent until the recovery, that broke the rule. Allowed: "
            "how many requests of the whole run may break it."
        )


def _make_command_row(effect: DisruptionEffect) -> tuple[str, ...]:
    killed = "failed" if effect.why else "killed"
    status = killed if effect.status is None else str(effect.status)
    return (
        f"{effect.number}: {effect.schedule}",
        truncate_text(clean_line(effect.command), COMMAND_CHARS),
        status,
        format_duration(effect.command_s),
    )


def _make_fate_rows(effect: DisruptionEffect) -> Iterator[tuple[str, ...]]:
    for fates, whose in ((effect.in_flight, "in flight"), (effect.sent, "sent until recovery")):
        counts = tuple(f"{getattr(fates, name):,}" for name, _ in FATES)
        yield (f"{effect.number}, {whose}", f"{fates.total:,}", *counts)


def _make_recovery_row(effect: DisruptionEffect) -> tuple[str, ...]:
    return (
        str(effect.number),
        "-" if effect.recovery_s is None else format_brief(effect.recovery_s, " s", 3),
        format_duration(effect.first_success_s),
        format_brief(effect.silent_s, " s", 3),
        _percent(effect.failures_before),
        _percent(effect.failures_most),
        format_duration(effect.ttft_p95_before_s),
        format_duration(effect.ttft_p95_most_s),
        f"{effect.sent_again:,}",
    )


def _make_budget_rows(effect: DisruptionEffect) -> Iterator[tuple[str, ...]]:
    for budget in effect.budgets:
        spent = _percent(budget.broken / budget.allowed) if budget.allowed else "-"
        allowed = format_brief(budget.allowed, digits=3)
        yield budget.rule, str(effect.number), f"{budget.broken:,}", allowed, spent


def _percent(share: float | None) -> str:
    return "-" if share is None else format_brief(100 * share, "%", 3)


# -- section ---------------------------------------------------------------------------------------


DISRUPTION_SECTION: Final = ReportSection(
    name=DISRUPTIONS,
    subject="the effects of disruptions",
    finding=DisruptionEffects,
    find=lambda material: material.disruptions,
    make_blocks=make_disruption_blocks,
)
