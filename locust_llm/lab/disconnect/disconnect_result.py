"""Disconnect result: what the rounds show together, the verdicts of rules, and their text."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from locust_llm.records.run_facts import SIMULATED
from locust_llm.slo.metric_definitions import GHOST_TOKENS
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, Rule
from locust_llm.text.format import format_brief, format_count, format_duration

from .disconnect_rounds import CROWD, DECODE, SITUATIONS, DisconnectRound
from .ghost_tokens import (
    GhostEstimate,
    WitnessSlowdown,
    find_ghosts_by_witness,
    measure_ghosts_by_counters,
    measure_witness_slowdown,
)

ON_THE_WAY: Final = 2.0
"""Each server generates a token or two until it knows that the client left."""
WELL_KNOWN: Final = 20.0
"""An interval with a higher end does not show that the server stops."""
COUNTERS: Final = "counters"
WITNESS: Final = "witness"


class SituationResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did when clients left in one situation."""

    situation: str
    """decode, before_first_token, prefill, unstreamed or crowd."""
    rounds: int
    left: int
    """So many clients left, over all rounds."""
    method: str
    """counters or witness."""
    ghosts: GhostEstimate | None
    """The work for one client. null: the method cannot tell."""
    kv_returned: bool | None
    """Whether the KV cache was as empty after each round as before it. null: unknown."""
    tokens_per_day: float | None = None
    """The ghost tokens of a day with this many cancellations. null: no number was given."""
    tokens_per_day_interval: tuple[float, float] | None = None
    """The 95 % interval. null: one round has none."""


class DisconnectVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of --slo."""

    rule: str
    verdict: str
    """PASS, FAIL or INCONCLUSIVE."""
    value: str
    """Why."""


class DisconnectResult(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``locust-llm disconnect --json``."""

    url: str
    server: str
    """The server's name and version. Empty: unknown."""
    started: str
    version: str
    """The version of locust-llm."""
    simulated: bool = False
    """The server is a simulator."""
    clients: int
    """So many clients left together; in a crowd four times as many."""
    situations: tuple[SituationResult, ...]
    rules: tuple[DisconnectVerdict, ...] = ()
    notes: tuple[str, ...] = ()


def summarise_rounds(
    rounds: Sequence[DisconnectRound], cancellations_per_day: float | None
) -> tuple[SituationResult, ...]:
    """The situations in the order of the rounds."""
    results = list[SituationResult]()
    for situation in SITUATIONS:
        own = [one for one in rounds if one.situation == situation]
        if not own:
            continue
        ghosts = _estimate_by_counters(own)
        method = COUNTERS
        if ghosts is None:
            method = WITNESS
            ghosts = _estimate_by_witness(own, rounds)
        a_day, ends = None, None
        if cancellations_per_day is not None and ghosts is not None:
            a_day = ghosts.tokens * cancellations_per_day
            if ghosts.tokens_interval is not None:
                low, high = ghosts.tokens_interval
                ends = low * cancellations_per_day, high * cancellations_per_day
        back = [one.kv_returned for one in own]
        results.append(
            SituationResult(
                situation=situation,
                rounds=len(own),
                left=sum(one.clients for one in own),
                method=method,
                ghosts=ghosts,
                kv_returned=None if None in back else all(back),
                tokens_per_day=a_day,
                tokens_per_day_interval=ends,
            )
        )
    return tuple(results)


def _estimate_by_counters(rounds: Sequence[DisconnectRound]) -> GhostEstimate | None:
    counted = [one.counters for one in rounds if one.counters is not None]
    return measure_ghosts_by_counters(counted) if counted else None


def _estimate_by_witness(
    rounds: Sequence[DisconnectRound], session: Sequence[DisconnectRound]
) -> GhostEstimate | None:
    """None: the witness cannot tell."""
    seen = [one.witness for one in rounds if one.witness is not None]
    slowdown = _measure_slowdown(session, CROWD if rounds[0].situation == CROWD else DECODE)
    if not seen or slowdown is None:
        return None
    return find_ghosts_by_witness(seen, slowdown)


def _measure_slowdown(session: Sequence[DisconnectRound], situation: str) -> WitnessSlowdown | None:
    """The slow-down of the witness by as many clients as in this situation."""
    decoding = [
        one.witness
        for one in session
        if one.situation == situation
        and one.witness is not None
        and one.witness.decoding < one.witness.left
    ]
    return measure_witness_slowdown(decoding) if decoding else None


# -- rules -----------------------------------------------------------------------------------------


def judge_ghost_rules(
    rules: Sequence[Rule], situations: Sequence[SituationResult]
) -> tuple[DisconnectVerdict, ...]:
    return tuple(judge_ghost_rule(rule, situations) for rule in rules)


def judge_ghost_rule(rule: Rule, situations: Sequence[SituationResult]) -> DisconnectVerdict:
    """A rule holds where it holds in each situation: for the whole interval."""
    assert rule.metric == GHOST_TOKENS
    judged = [(_judge_situation(rule, one.ghosts), one) for one in situations]
    order = (PASS, INCONCLUSIVE, FAIL)
    verdict, worst = max(
        judged, key=lambda one: (order.index(one[0]), _find_worst_end(rule, one[1].ghosts))
    )
    value = f"{describe_ghosts(worst.ghosts)} {SITUATIONS[worst.situation]}"
    return DisconnectVerdict(rule=str(rule), verdict=verdict, value=value)


def _find_worst_end(rule: Rule, ghosts: GhostEstimate | None) -> float:
    """The end of the interval that is the worst for the rule, larger where it is worse."""
    if ghosts is None or ghosts.tokens_interval is None:
        return math.inf
    low, high = ghosts.tokens_interval
    return high if rule.op.startswith("<") else -low


def _judge_situation(rule: Rule, ghosts: GhostEstimate | None) -> str:
    if ghosts is None or ghosts.tokens_interval is None:
        return INCONCLUSIVE
    held = {rule.holds(end) for end in ghosts.tokens_interval}
    if len(held) > 1:
        return INCONCLUSIVE
    return PASS if True in held else FAIL


# -- text ------------------------------------------------------------------------------------------


def format_disconnect_result(result: DisconnectResult) -> str:
    """A line for each situation, then notes and rules. That the server is a simulator comes first."""
    lines = [SIMULATED] * result.simulated
    lines += _list_rows(result.situations)
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"SLO {one.verdict}: {one.rule} ({one.value})" for one in result.rules]
    return "".join(f"{line}\n" for line in lines)


def _list_rows(situations: Sequence[SituationResult]) -> Iterator[str]:
    daily = any(one.tokens_per_day is not None for one in situations)
    head = ["clients leave", "clients", "ghost tokens each", "for", "by", "KV cache"]
    rows = [head + ["tokens a day"] * daily]
    for one in situations:
        back = {True: "free again", False: "still in use", None: "unknown"}[one.kv_returned]
        seconds = None if one.ghosts is None else one.ghosts.seconds
        row = [
            SITUATIONS[one.situation],
            str(one.left),
            describe_ghosts(one.ghosts),
            "-" if seconds is None else format_duration(seconds),
            one.method,
            back,
        ]
        rows.append(row + [_format_tokens_per_day(one)] * daily)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _format_tokens_per_day(one: SituationResult) -> str:
    """``at most 63,200`` where no ghosts were found: those of the upper end."""
    if one.tokens_per_day is None or one.ghosts is None:
        return "-"
    if _shows_none(one.ghosts) and one.tokens_per_day_interval is not None:
        return f"at most {one.tokens_per_day_interval[1]:,.0f}"
    return f"{one.tokens_per_day:,.0f}"


def _shows_none(ghosts: GhostEstimate) -> bool:
    """Whether no more was found than is on the way."""
    ends = ghosts.tokens_interval
    return ends is not None and ends[0] <= 0 and ghosts.tokens <= ON_THE_WAY


def describe_ghosts(ghosts: GhostEstimate | None) -> str:
    """Such as ``80 (79 to 81)``, or ``none above 2.5``."""
    if ghosts is None:
        return "cannot tell"
    ends = ghosts.tokens_interval
    value = format_brief(ghosts.tokens, digits=3)
    if ends is None:
        return f"{value} (one round)"
    low, high = (format_brief(end, digits=3) for end in ends)
    if _shows_none(ghosts):
        return f"none above {high}"
    return f"{value} ({low} to {high})"


def summarise_ghosts(situations: Sequence[SituationResult]) -> str:
    """One sentence about all situations."""
    known = [(one.ghosts, one) for one in situations if one.ghosts is not None]
    found = [
        (ghosts.tokens, ghosts, one)
        for ghosts, one in known
        if ghosts.tokens_interval is not None and ghosts.tokens_interval[0] > ON_THE_WAY
    ]
    if found:
        _, ghosts, worst = max(found, key=lambda one: one[0])
        return (
            f"The server works on for clients who left: {describe_ghosts(ghosts)} tokens for each "
            f"client who left {SITUATIONS[worst.situation]}."
        )
    if len(known) < len(situations):
        unknown = format_count(len(situations) - len(known), "situation")
        return f"Ghost tokens cannot be measured in {unknown}."
    ends = [
        (ghosts.tokens_interval[1], one)
        for ghosts, one in known
        if ghosts.tokens_interval is not None
    ]
    if len(ends) < len(situations):
        return "One round of a situation has no interval."
    end, widest = max(ends, key=lambda found: found[0])
    most = format_brief(end, digits=3)
    if end > WELL_KNOWN:
        return (
            f"Ghost tokens are not known well: up to {most} for each client who left "
            f"{SITUATIONS[widest.situation]}. A longer test (-t) narrows it."
        )
    return f"The server stops when clients leave: at most {most} tokens each."
