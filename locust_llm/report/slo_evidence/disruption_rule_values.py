"""Disruption rule values: what a rule on disruptions is about (``recovery_time``,
``truncated_silently``)."""

import math
from typing import Final

from locust_llm.report.disruption_results import DisruptionEffect, DisruptionEffects
from locust_llm.slo.metric_definitions import RECOVERY_TIME
from locust_llm.text.format import format_duration

from .observed_value import ObservedValue

BEFORE_NEXT: Final = "s were left before disruption"
WHEN_NEXT_BEGAN: Final = "when disruption"
"""In the note on a recovery that was not seen, as the next disruption came."""


def observe_disruptions(word: str, found: DisruptionEffects | None) -> ObservedValue:
    """The value of a measure of disruptions; where there is none, its note says why. A command that
    failed may have disrupted nothing, so no rule passes by it."""
    if found is None:
        return ObservedValue(None, note="no command of --disrupt was run")
    for effect in found.effects:
        if effect.status != 0:
            return ObservedValue(None, note=explain_failed_command(effect))
    if word == RECOVERY_TIME:
        return _observe_recovery(found)
    return ObservedValue(float(found.truncated_silently), None, found.concerned)


def explain_failed_command(effect: DisruptionEffect) -> str:
    """``the command of disruption 1 ended with status 1: No such process``. What it printed last may
    end with a full stop, which the sentence has itself."""
    why = effect.why.rstrip(". ")
    ended = "still ran at the end of the run, which killed it"
    if effect.status is not None:
        ended = f"ended with status {effect.status}{f': {why}' * bool(why)}"
    elif why:
        ended = f"failed: {why}"
    return f"the command of disruption {effect.number} {ended}"


def _observe_recovery(found: DisruptionEffects) -> ObservedValue:
    """The longest one. A recovery that was not seen took longer than the time after its
    disruption, where the time before shows what the server was like."""
    known = [effect.recovery_s for effect in found.effects if effect.recovery_s is not None]
    open_ = [effect for effect in found.effects if effect.recovery_s is None]
    longest_s = max(known, default=0.0)
    requests = found.concerned
    if not open_:
        return ObservedValue(longest_s, None, requests)
    if any(effect.ttft_p95_before_s is None for effect in open_):
        return ObservedValue(None, note=open_[0].unknown)
    latest = max(open_, key=lambda effect: effect.least_recovery_s)
    least_s = max(longest_s, latest.least_recovery_s)
    after = format_duration(latest.least_recovery_s)
    note = f"disruption {latest.number} was not over {after} after its start"
    if latest.least_recovery_s < latest.watched_s:
        note = f"disruption {latest.number} has no recovery time: {latest.unknown}"
        return ObservedValue(least_s, None, requests, note=note, worst=math.inf)
    if latest.number < len(found.effects):
        note = f"{note}, {WHEN_NEXT_BEGAN} {latest.number + 1} began"
    return ObservedValue(least_s, None, requests, note=note, worst=math.inf)
