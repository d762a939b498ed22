"""Measurement bias: which metrics each signal of the client verdict makes uncertain, and in which
direction they may be wrong.

What a signal does not touch is judged as if it were not there. Where an error could only move a
figure further to the side of the limit on which it is, the rule stays decided: a TTFT that may be
reported too high cannot void a PASS of ``ttft < 1s``. Nor does an error that is too small to reach
the limit (report/slo/client_error.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from .client_verdict import (
    CPU_WAIT,
    GAPS_OFF,
    INVALID,
    LOOP_LAG,
    MERGED,
    OK,
    PERMIT_LAG,
    READ_LAG,
    SEND_LAG,
    TTFT_HIGH,
    TTFT_OFF,
    UNCERTIFIED,
    ClientVerdict,
)
from .grammar import Rule
from .metrics import BY_WORD, GIVEN, MEASURES, RATE

Error = Literal["high", "low", "either"]
"""Of a figure, if it is wrong: reported higher than it was, lower, or nobody knows."""
HIGH: Final = "high"
LOW: Final = "low"
EITHER: Final = "either"
OPPOSITE: Final[dict[Error, Error]] = {HIGH: LOW, LOW: HIGH, EITHER: EITHER}

FIRST: Final = ("ttft", "ttfo", "ttft_from_due")
LAST: Final = ("request_latency", "longest_stall")
SHARES: Final = ("fluidity", "qoe")
GAPS: Final = ("itl", "icl", "output_tokens_per_s_per_user")
TIMED: Final = tuple(measure.word for measure in MEASURES if measure.metric is not None)
RATES: Final = tuple(
    measure.word for measure in MEASURES if measure.metric is None and measure.units is RATE
)


class MeasurementBias(NamedTuple):
    """What a signal makes uncertain."""

    why: str
    """In some words."""
    errors: Mapping[str, Error]
    """By the word of each metric that it touches."""


def _each(words: Iterable[str], error: Error) -> dict[str, Error]:
    return dict.fromkeys(words, error)


_LATE: Final = _each(TIMED, EITHER) | _each(RATES, LOW)
"""A load generator that sends late gives the server another load than was asked for."""
DOUBTS: Final = {
    # a chunk that came with others has the stamp of the last of them
    TTFT_HIGH: MeasurementBias("TTFT may be too high",
        _each(FIRST, HIGH) | _each((*SHARES, "reading_stall"), LOW)),
    # gaps beside merged chunks are left out of ICL; ITL is the difference of two stamps that may
    # both be too late
    MERGED: MeasurementBias(
        "chunks came merged", _each((*FIRST, *LAST), HIGH) | _each((*GAPS, "reading_stall"), EITHER)
        | _each((*SHARES, *RATES), LOW),
    ),
    READ_LAG: MeasurementBias("answers were read late", _LATE),
    SEND_LAG: MeasurementBias("requests were sent late", _LATE),
    PERMIT_LAG: MeasurementBias("permits of the prefill limit were late", _LATE),
    LOOP_LAG: MeasurementBias("the event loop was late", _LATE),
    CPU_WAIT: MeasurementBias("there was no free core", _LATE),
    TTFT_OFF: MeasurementBias("TTFT of sentinel streams is off",
        _each((*FIRST, "request_latency", *SHARES, "reading_stall"), EITHER)),
    GAPS_OFF: MeasurementBias("gaps of sentinel streams are off",
        _each((*GAPS, *LAST, *SHARES, "reading_stall"), EITHER)),
    UNCERTIFIED: MeasurementBias("there is no certificate", _each((*TIMED, *RATES), EITHER)),
}  # fmt: skip
"""By signal. Failures, and how much of a schedule was sent, are what they are: no signal touches
them."""
BOUNDED: Final = ("ttft", "ttft_from_due", "request_latency", "itl", "icl")
BOUNDING: Final = (TTFT_HIGH, MERGED, TTFT_OFF, GAPS_OFF)
"""How far values of BOUNDED can be off by these signals is known: from the stamps around merged
chunks, and from the sentinels."""
OF_RECORDS: Final = (TTFT_HIGH, MERGED)
"""Of these, what the stamps around merged chunks bound."""
DELAYS: Final = (READ_LAG, SEND_LAG, PERMIT_LAG, LOOP_LAG, CPU_WAIT)
"""No latency is off by more than the delays of the load generator were: in a closed loop a request
that is sent later by so much makes the others shorter by that much at most, in a queue that is
served in order likewise."""
MAIN: Final = {
    "TTFT": "ttft", "ITL": "itl", "Request Latency": "request_latency",
    "throughput": "output_tokens_per_s",
}  # fmt: skip
UNKNOWN: Final = MeasurementBias("", _each((*TIMED, *RATES), EITHER))


def find_rule_error(verdict: ClientVerdict | None, rule: Rule) -> Error | None:
    """In which direction the figure of a rule may be wrong; None: no signal touches it. Of a rule
    with a base the figure is by how much this run is worse."""
    if verdict is None or verdict.level == OK:
        return None
    errors = {error for _, _, error in _touching(verdict, rule)}
    if len(errors) > 1:
        return EITHER
    return errors.pop() if errors else None


def find_touching_signals(verdict: ClientVerdict, rule: Rule) -> set[str]:
    """The signals that touch a rule; an empty name: the verdict does not tell."""
    return {signal for signal, _, _ in _touching(verdict, rule)}


def decision_survives_error(rule: Rule, holds: bool | None, error: Error) -> bool:
    """Whether such an error leaves a rule decided as it is, or undecided for another reason
    (``holds`` None)."""
    if holds is None:
        return error != EITHER
    less = bool(rule.base) or rule.op.startswith("<")
    return error == (HIGH if holds == less else LOW)


def explain_void_rule(verdict: ClientVerdict, rule: Rule) -> str:
    """Why the client verdict voids a rule: ``the client verdict is DEGRADED: chunks came
    merged``."""
    why = dict.fromkeys(doubt.why for _, doubt, _ in _touching(verdict, rule))
    return (
        f"the client verdict is {verdict.level}: "
        f"{', '.join(filter(None, why)) or '; '.join(verdict.reasons)}"
    )


def list_unaffected_metrics(verdict: ClientVerdict) -> list[str]:
    """The main figures that are not in doubt, in words."""
    rules = {name: Rule(word, "<", 0.0, "") for name, word in MAIN.items()}
    return [name for name, rule in rules.items() if find_rule_error(verdict, rule) is None]


def _touching(verdict: ClientVerdict, rule: Rule) -> Iterator[tuple[str, MeasurementBias, Error]]:
    """Each doubt of this rule, with its signal and the direction of its figure."""
    signals = verdict.signals or {"": verdict.level}
    for signal, level in signals.items():
        doubt = DOUBTS.get(signal, UNKNOWN)
        for word, turned in _words(rule):
            error = doubt.errors.get(word)
            # a rate is of the whole run
            if error is not None and (word not in RATES or level == INVALID):
                yield signal, doubt, OPPOSITE[error] if turned else error


def _words(rule: Rule) -> Iterator[tuple[str, bool]]:
    """The metrics that its figure is made of; True: it falls as the metric rises."""
    worse = bool(rule.base) and not rule.less_is_better
    if rule.metric in GIVEN:
        for condition in rule.given:
            yield condition.metric, condition.op.startswith("<") != worse
    if rule.metric not in GIVEN or BY_WORD[rule.metric].units is RATE:
        yield rule.metric, worse
