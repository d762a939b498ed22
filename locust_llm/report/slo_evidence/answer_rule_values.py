"""Answer rule values: what a rule on answers is about (``leaks``, ``mismatch_rate``,
``broken_text``), with its interval."""

from locust_llm.answers.fault_names import BROKEN_TEXT
from locust_llm.answers.mismatch_rates import LOADED_SERVER, find_rate
from locust_llm.report.answer_results import (
    LEAST_SENSITIVITY,
    AnswerIsolation,
    AnswersUnderLoad,
    ReferenceComparison,
    describe_foreign_markers,
)
from locust_llm.slo.binomial_intervals import TAIL, binomial_shares
from locust_llm.slo.metric_definitions import LEAKS, MISMATCH_RATE
from locust_llm.text.format import format_brief, format_count

from .observed_value import ObservedValue


def observe_answers(word: str, found: AnswersUnderLoad | None) -> ObservedValue:
    """The value of a measure of answers; where there is none, its note says why."""
    if found is None:
        return ObservedValue(None, note="answers were not checked")
    if word == LEAKS:
        return _observe_leaks(found.isolation)
    if word == MISMATCH_RATE:
        return _observe_mismatches(found.references)
    return _observe_broken_text(found.isolation)


def _observe_leaks(isolation: AnswerIsolation) -> ObservedValue:
    answers = format_count(isolation.answers, "answer")
    if isolation.all_leaks:
        note = describe_foreign_markers(isolation)
        return ObservedValue(float(isolation.all_leaks), None, isolation.answers, note=note)
    if not isolation.answers:
        return ObservedValue(None, note="no answer was searched for session markers")
    if not isolation.marked:
        return ObservedValue(None, note="no prompt has a session marker")
    if isolation.sensitivity < LEAST_SENSITIVITY or isolation.most_swapped is None:
        note = (
            f"{isolation.repeated:,} of {answers} repeat their own session marker, so leaks could "
            "hardly be seen"
        )
        return ObservedValue(None, count=isolation.answers, note=note)
    most = format_brief(100 * isolation.most_swapped, "%", 2)
    note = f"at most {most} of {answers} were swapped (95%)"
    return ObservedValue(0.0, None, isolation.answers, note=note)


def _observe_mismatches(references: ReferenceComparison | None) -> ObservedValue:
    """Mismatches whose margin is not known are possible ones: the value is without them, and the
    worst value is with them."""
    load = None if references is None else find_rate(references.rates, LOADED_SERVER)
    if load is None:
        return ObservedValue(None, note="no reference prompt was answered under load")
    low, _ = binomial_shares(load.wide, load.answers, TAIL, TAIL)
    _, high = binomial_shares(load.mismatches, load.answers, TAIL, TAIL)
    value = load.wide / load.answers
    return ObservedValue(
        value,
        (low, high),
        load.answers,
        note=""
        if not load.unknown
        else "the server gives no margins, so rounding may be the reason",
        worst=load.rate if load.unknown else None,
    )


def _observe_broken_text(isolation: AnswerIsolation) -> ObservedValue:
    if not isolation.answers:
        return ObservedValue(None, note="no answer was searched")
    broken = isolation.faults.get(BROKEN_TEXT, 0)
    ends = binomial_shares(broken, isolation.answers, TAIL, TAIL)
    return ObservedValue(broken / isolation.answers, ends, isolation.answers)
