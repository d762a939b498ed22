"""Evaluate rules: those of an SLO against predicted figures: met, not met, or open where the
interval holds the limit."""

from collections.abc import Mapping, Sequence
from typing import Final

from locust_llm.lab.twin.observations import REQUESTS_PER_S, SERVED
from locust_llm.lab.twin.predict import PredictedValue
from locust_llm.slo.grammar import Rule, parse_rule

MET, NOT_MET, OPEN = "met", "not met", "open"
METRICS: Final = {
    "ttft": "ttft",
    "ttft_from_due": "ttft_from_due",
    "itl": "itl",
    "longest_stall": "stall",
    "request_latency": "request_latency",
}
"""Of the grammar, as the figures call them."""
RATES: Final = {"output_tokens_per_s": "throughput", "requests_per_s": REQUESTS_PER_S}
PREDICTED: Final = f"{', '.join(METRICS)} with avg, med or pNN, and {' and '.join(RATES)}"
MIN_SERVED: Final = 0.97
"""Of what comes, the share that a server completes that keeps up."""


def rule(text: str) -> Rule:
    """Raises ValueError of one sentence, also for a rule that no twin can tell."""
    found = parse_rule(text)
    figure_of(found)
    return found


def figure_of(rule: Rule) -> str:
    """The name of the figure that a rule is about. Raises ValueError of one sentence."""
    if rule.base or rule.given or rule.where:
        what = (
            "of another run"
            if rule.base
            else "with conditions"
            if rule.given
            else "for some of the requests"
        )
        raise ValueError(
            f"SLO {str(rule)!r}: a twin cannot tell a rule {what}; it predicts {PREDICTED}"
        )
    if rule.metric in RATES:
        return RATES[rule.metric]
    statistic = "p50" if rule.stat == "med" else rule.stat
    if rule.metric not in METRICS or not (
        statistic == "avg" or rule.percentile is not None or rule.stat == "med"
    ):
        raise ValueError(f"SLO {str(rule)!r}: a twin predicts {PREDICTED}")
    return f"{METRICS[rule.metric]} {statistic}"


def judge_answer(rule: Rule, answers: Mapping[str, PredictedValue]) -> str:
    """By both ends of the interval."""
    answer = answers.get(figure_of(rule))
    if answer is None:
        return OPEN
    if falls_behind(answers) and rule.less_is_better:
        return NOT_MET
    holds = {rule.holds(answer.low), rule.holds(answer.high)}
    if len(holds) > 1:
        return OPEN
    return MET if holds == {True} else NOT_MET


def status(rules: Sequence[Rule], answers: Mapping[str, PredictedValue]) -> str:
    """Of all rules that decide; empty without any."""
    found = {judge_answer(one, answers) for one in rules if one.decides}
    return next((one for one in (NOT_MET, OPEN, MET) if one in found), "")


def falls_behind(answers: Mapping[str, PredictedValue]) -> bool:
    """Of a load at a rate: more comes than is completed, so waits grow as long as it lasts, and
    have no percentile."""
    return SERVED in answers and answers[SERVED].about < MIN_SERVED
