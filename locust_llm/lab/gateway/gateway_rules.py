"""Gateway rules: the rules of ``--slo`` about a gateway, in the grammar of SLO rules.

    added_ttft p99 < 5ms                     at each load that was measured
    added_token{streams=16..64} p99 < 1ms    only at these numbers of streams
    hidden_failures == 0                     a count: a fault of the upstream that came as a success

An added time PASSES where its whole 95 % interval meets the limit, and FAILS where none of it does.
"""

import re
from collections.abc import Sequence
from operator import eq, ge, gt, le, lt
from typing import Final, NamedTuple

from locust_llm.slo.rules import EQUALS, FAIL, INCONCLUSIVE, PASS, parse_stage_range
from locust_llm.text.format import find_nearest_names, format_duration

from .gateway_result import (
    CHANGES,
    EMBEDDINGS,
    FIRST_TOKEN,
    FURTHER_TOKEN,
    GAP,
    SETUP,
    WHOLE_ANSWER,
    AddedLevel,
    AddedTime,
    GatewayResult,
    RuleVerdict,
    find_quantity,
)
from .gateway_text import name_load
from .hidden_failures import count_hidden

TIMES: Final = {
    "added_ttft": FIRST_TOKEN,
    "added_token": FURTHER_TOKEN,
    "added_itl": GAP,
    "added_latency": WHOLE_ANSWER,
    "added_setup": SETUP,
    "added_embeddings": EMBEDDINGS,
}
WITHOUT_LOAD: Final = ("added_setup", "added_embeddings")
COUNTS: Final = ("hidden_failures", "lost_chunks", "changed_streams", "unseen_cancellations")
STATISTICS: Final = ("p50", "p99")
VALUES_NEEDED: Final = {"p50": 2, "p99": 100}
"""For an interval: 100 / (100 - p)."""
OPERATORS: Final = {"<": lt, "<=": le, ">": gt, ">=": ge, EQUALS: eq}
MS: Final = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_RULE: Final = re.compile(
    r"\s*(?P<word>\w+)\s*(?:\{\s*streams\s*=\s*(?P<range>[\d.]+)\s*\})?\s*(?P<stat>[a-z]\w*)?"
    r"\s*(?P<op>[<>=]+)\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zµ]*)\s*"
)


class GatewayRule(NamedTuple):
    """One rule. ``limit`` is in ms for times."""

    text: str
    word: str
    op: str
    limit: float
    stat: str = ""
    streams: tuple[float, float] | None = None
    """The loads that it is for. None: each."""

    def holds(self, value: float) -> bool:
        return bool(OPERATORS[self.op](value, self.limit))


def parse_gateway_rule(text: str) -> GatewayRule:
    """Raises ValueError with a sentence: the mistake, and what is possible."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise ValueError(
            f"SLO {text.strip()[:80]!r} is no rule: write 'added_ttft p99 < 5ms' or "
            f"'hidden_failures == 0'"
        )
    word, stat, op, unit = match.group("word", "stat", "op", "unit")
    stat = stat or ""
    names = (*TIMES, *COUNTS)
    if word not in names:
        raise ValueError(
            f"SLO {text.strip()[:80]!r}: unknown metric {word}{find_nearest_names(word, names)}; "
            f"there are: {', '.join(names)}"
        )
    if op not in OPERATORS or (op == EQUALS and word in TIMES):
        raise ValueError(f"SLO {text.strip()[:80]!r}: {word} cannot be compared with {op}")
    streams = None if match["range"] is None else parse_stage_range(match["range"])
    number = float(match["number"])
    if word in COUNTS:
        if stat or unit or streams:
            raise ValueError(f"SLO {text.strip()[:80]!r}: {word} is a count, such as {word} == 0")
        return GatewayRule(text.strip(), word, op, number)
    if stat not in STATISTICS or unit not in MS:
        raise ValueError(
            f"SLO {text.strip()[:80]!r}: {word} needs {' or '.join(STATISTICS)} and a time: write "
            f"'{word} p99 < 5ms'"
        )
    if streams is not None and word in WITHOUT_LOAD:
        raise ValueError(
            f"SLO {text.strip()[:80]!r}: {word} is measured with one request after the other, so "
            f"it takes no number of streams"
        )
    return GatewayRule(text.strip(), word, op, number * MS[unit], stat, streams)


def judge_gateway_rules(
    rules: Sequence[GatewayRule], result: GatewayResult
) -> tuple[RuleVerdict, ...]:
    return tuple(_judge(rule, result) for rule in rules)


def _judge(rule: GatewayRule, result: GatewayResult) -> RuleVerdict:
    if rule.word in COUNTS:
        count = _count(rule.word, result)
        if count is None:
            return RuleVerdict(rule=rule.text, verdict=INCONCLUSIVE, value="not measured")
        verdict = PASS if rule.holds(count) else FAIL
        return RuleVerdict(rule=rule.text, verdict=verdict, value=str(count))
    judged = list[tuple[str, str]]()
    for level in result.levels:
        added = level.find(TIMES[rule.word])
        if added is not None and _is_for(rule, level):
            judged.append(_judge_time(rule, added, f"at {name_load(level)}"))
    alone = find_quantity(result.without_load, TIMES[rule.word])
    if alone is not None:
        judged.append(_judge_time(rule, alone, "without load"))
    if not judged:
        return RuleVerdict(rule=rule.text, verdict=INCONCLUSIVE, value="not measured")
    worst = max(judged, key=lambda one: (PASS, INCONCLUSIVE, FAIL).index(one[0]))
    return RuleVerdict(rule=rule.text, verdict=worst[0], value=worst[1])


def _count(word: str, result: GatewayResult) -> int | None:
    match word:
        case "hidden_failures":
            return _count_hidden_of_all(result)
        case "lost_chunks":
            return result.lost_chunks
        case "changed_streams":
            return len(result.changes) if CHANGES in result.parts else None
    if not result.cancels or any(one.never == len(one.delays_ms) == 0 for one in result.cancels):
        return None  # of one moment nothing is known
    return sum(one.never for one in result.cancels)


def _count_hidden_of_all(result: GatewayResult) -> int | None:
    """None: none is known to be hidden, but some faults were left out."""
    hidden = count_hidden(result.faults)
    if not result.faults or (not hidden and any(one.blocked_s is None for one in result.faults)):
        return None
    return hidden


def _is_for(rule: GatewayRule, level: AddedLevel) -> bool:
    if rule.streams is None:
        return True
    return rule.streams[0] <= level.streams <= rule.streams[1]


def _judge_time(rule: GatewayRule, added: AddedTime, where: str) -> tuple[str, str]:
    """(verdict, value with advice) at one load. As p99 is not below p50, a p50 beyond the limit
    breaks a rule on p99."""
    value = added.p50_ms if rule.stat == "p50" else added.p99_ms
    ends = added.p50_interval_ms if rule.stat == "p50" else added.p99_interval_ms
    written = format_duration(value / 1e3)
    # what is measured without load has a fixed number of requests
    advice = "" if rule.word in WITHOUT_LOAD else "; run longer (-t)"
    if ends is not None:
        written = f"{written} ({_format_ends(ends)})"
        held = {rule.holds(end) for end in ends}
        if len(held) == 1:
            return PASS if True in held else FAIL, f"{written} {where}"
    middle = added.p50_interval_ms
    if middle is not None and rule.op.startswith("<") and not rule.holds(middle[0]):
        return FAIL, f"{written} {where}; p50 alone is {_format_ends(middle)}"
    if ends is not None:
        return INCONCLUSIVE, f"{written} {where}{advice}"
    needed = VALUES_NEEDED[rule.stat]
    reason = ""
    if added.samples < needed:
        reason = f": {rule.stat} needs {needed} values, there are {added.samples}{advice}"
    return INCONCLUSIVE, f"{written} {where}, without an interval{reason}"


def _format_ends(ends_ms: tuple[float, float]) -> str:
    low, high = (format_duration(end / 1e3) for end in ends_ms)
    return f"{low} to {high}"
