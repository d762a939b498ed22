"""Examination: what a probe amounts to, as frozen data: its symptoms, the scheduler that they name, and advice."""

from collections.abc import Sequence

import msgspec

from locust_llm.core.run import BROKEN, NAMED, UNTOLD
from locust_llm.slo.client_verdict import OK
from locust_llm.slo.rules import Rules

from .advice import Advice, advice
from .diagnosis import CANNOT_TELL, FAILED, Diagnosis, diagnose
from .requests import ProbeResult
from .symptoms import Symptoms, symptoms


class ProbeFindings(msgspec.Struct, frozen=True, kw_only=True):
    symptoms: Symptoms
    diagnosis: Diagnosis
    advice: tuple[Advice, ...] = ()
    outcome: str = UNTOLD
    """``named``, ``untold`` or ``broken``."""


def examine(
    shots: Sequence[ProbeResult], client: str | None = None, itl_target_s: float | None = None
) -> ProbeFindings:
    """``client``: the client verdict; below OK nothing is advised, as every figure may be the client's doing."""
    found = symptoms(shots)
    named = diagnose(found, client)
    said = advice(found, named, itl_target_s) if client in (None, OK) else ()
    broken = found.failed > FAILED * found.shots
    outcome = NAMED if named.name != CANNOT_TELL else BROKEN if broken else UNTOLD
    return ProbeFindings(symptoms=found, diagnosis=named, advice=said, outcome=outcome)


def wanted_itl_s(rules: Rules) -> float | None:
    """The gap between tokens that somebody wants: the least limit that rules or ``--goodput`` give to ITL."""
    conditions = [*rules.good, *(one for rule in rules.readable for one in rule.given)]
    limits = [one.limit for one in conditions if one.metric == "itl"]
    limits += [rule.limit for rule in rules.readable if rule.metric == "itl" and rule.op[0] == "<"]
    return min(limits, default=None)
