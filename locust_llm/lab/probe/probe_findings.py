"""Probe findings: holds a probe's measurements, diagnosis and advice as frozen data."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median

import msgspec

from locust_llm.records.run_facts import BROKEN, NAMED, UNDECIDED
from locust_llm.slo.load_generator_health import OK
from locust_llm.slo.rules import Rules

from .episode_requests import SIZED_KINDS, ProbeResult
from .operator_advice import Advice, derive_advice
from .probe_measurements import ProbeMeasurements, measure_probe
from .scheduler_diagnosis import CANNOT_TELL, MAX_FAILED_SHARE, Diagnosis, diagnose_scheduler


class ProbeFindings(msgspec.Struct, frozen=True, kw_only=True):
    symptoms: ProbeMeasurements
    diagnosis: Diagnosis
    advice: tuple[Advice, ...] = ()
    outcome: str = UNDECIDED
    """The value is ``named``, ``untold`` or ``broken``."""


def examine_probe(
    results: Sequence[ProbeResult], client: str | None = None, itl_target_s: float | None = None
) -> ProbeFindings:
    """Examines the results of a probe. ``client`` is the client verdict: below OK there is no
    advice, as the load generator may have distorted the measurements."""
    measurements = measure_probe(results)
    named = diagnose_scheduler(measurements, client)
    advised = derive_advice(measurements, named, itl_target_s) if client in (None, OK) else ()
    broken = measurements.failed > MAX_FAILED_SHARE * measurements.requests
    outcome = BROKEN if broken else UNDECIDED
    if named.name != CANNOT_TELL:
        outcome = NAMED
    return ProbeFindings(symptoms=measurements, diagnosis=named, advice=advised, outcome=outcome)


def shortest_ttft_s(results: Iterable[ProbeResult]) -> float | None:
    """Returns the least TTFT that the diagnosis compares, which bounds the relative measurement
    error. It is the median of the rounds' shortest prompts, a quarter of the longest. None: no such
    prompt was answered."""
    ttfts_s = defaultdict[int, list[float]](list)
    for result in results:
        if result.ok and result.round and result.role == "long" and result.kind in SIZED_KINDS:
            ttfts_s[result.asked_tokens].append(result.ttft_s)
    return median(ttfts_s[min(ttfts_s)]) if ttfts_s else None


def itl_limit_s(rules: Rules) -> float | None:
    """Returns the ITL target in seconds: the lowest limit of the rules and of ``--goodput``, or
    None."""
    conditions = [*rules.good, *chain.from_iterable(rule.given for rule in rules.readable)]
    limits = [condition.limit for condition in conditions if condition.metric == "itl"]
    limits += [rule.limit for rule in rules.readable if rule.metric == "itl" and rule.op[0] == "<"]
    return min(limits, default=None)
