"""The rules of a run: its own, those of its preset and the conditions of --goodput, each parsed
once."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from .grammar import ABORT, STAGES, Condition, Rule, expand_preset, parse_goodput, parse_rule
from .metrics import BY_WORD, GIVEN, POOLED, TIME

MAX_RULES: Final = 1_000
INTERVAL: Final = "interval"
POINT: Final = "point"
MODES: Final = (INTERVAL, POINT)
"""What is held against a limit: the 95 % interval of a figure, or its point estimate alone."""
AT_EDGE: Final = "allow 0.1% beyond it, or use --slo-mode point"
"""What to do about a rule that no interval meets."""
FAILS: Final = "fail"
CLOSE: Final = "close"
WARNS: Final = "warn"
PASSES: Final = "pass"
INCONCLUSIVE_POLICIES: Final = (FAILS, CLOSE, WARNS, PASSES)
"""What an INCONCLUSIVE rule does to a run: ``close`` warns where its figure is close to the limit,
and fails elsewhere."""
UNSET_SWITCHES: Final = ("", "0", "false")
"""Of the variable ``CI``: no pipeline."""
MIN_PERCENTILE: Final = 90.0
"""A limit on a higher percentile is meant for nearly every request; one on the median is not."""


class RuleEntry(msgspec.Struct, frozen=True):
    """A rule as written, and parsed."""

    text: str
    rule: Rule | None = None
    """With its conditions, by default those of ``--goodput``. None: it cannot be judged."""
    why: str = ""
    """Why it cannot, in one sentence."""


class Rules(msgspec.Struct, frozen=True):
    """All rules of a run."""

    entries: tuple[RuleEntry, ...] = ()
    """The run's own, then those of the preset; an unknown preset is an entry without a rule."""
    good: tuple[Condition, ...] = ()
    """The conditions of ``--goodput``."""
    good_mistake: str = ""
    """Why ``--goodput`` cannot be read, in one sentence."""

    @property
    def readable(self) -> tuple[Rule, ...]:
        return tuple(entry.rule for entry in self.entries if entry.rule is not None)

    @property
    def by_text(self) -> dict[str, Rule]:
        """By canonical form, as results name them."""
        return {str(rule): rule for rule in self.readable}


def choose_inconclusive_policy(ci: str, rules_file: str | None) -> str:
    """The default of ``--inconclusive``. ``ci``: the variable of that name, which pipelines set:
    there, and with rules from a file, nobody reads a warning."""
    in_pipeline = ci.strip().lower() not in UNSET_SWITCHES
    return FAILS if in_pipeline or rules_file else CLOSE


def resolve_rules(slo: Iterable[str], slo_preset: str | None, good: str | None) -> Rules:
    """The rules of these settings. Mistakes are kept beside what can be read: records of another
    version may hold some."""
    conditions: tuple[Condition, ...] = ()
    mistake = unknown = ""
    texts = tuple(slo)
    try:
        conditions = parse_goodput(good) if good else ()
    except ValueError as error:
        mistake = str(error)
    try:
        texts += expand_preset(slo_preset) if slo_preset else ()
    except ValueError as error:
        unknown = str(error)
    entries = tuple(_entry(text, conditions, mistake) for text in texts[:MAX_RULES])
    unread = _too_many(len(texts))
    entries += tuple(RuleEntry(text, why=unread) for text in texts[MAX_RULES:])
    lost = (RuleEntry(slo_preset or "", why=unknown),) if unknown else ()
    return Rules((*entries, *lost), conditions, mistake)


def validate_rules(rules: Rules, axis: str = "") -> Iterator[str]:
    """Each reason why these rules cannot be judged, one sentence each. ``axis``: what the sweep
    changes, if there is one."""
    if len(rules.entries) > MAX_RULES:
        yield _too_many(len(rules.entries))
        return
    mistakes = [entry.why or _misplaced(entry, axis) for entry in rules.entries]
    mistakes += [_too_early(entry) for entry in rules.entries]
    yield from dict.fromkeys(filter(None, (*mistakes, rules.good_mistake)))


def _too_many(count: int) -> str:
    return f"there are {count:,} SLO rules, and at most {MAX_RULES:,} are possible"


def _entry(text: str, good: tuple[Condition, ...], good_mistake: str) -> RuleEntry:
    try:
        rule = parse_rule(text)
    except ValueError as error:
        return RuleEntry(text, why=str(error))
    if rule.metric not in GIVEN or rule.given:
        return RuleEntry(text, rule)
    if good:
        return RuleEntry(text, msgspec.structs.replace(rule, given=good))
    why = f"{rule.metric} needs the conditions of a good request: "
    why += "add 'given ttft < 1s and itl < 50ms', or set --goodput"
    return RuleEntry(text, why=good_mistake or _named(text, why))


def _misplaced(entry: RuleEntry, axis: str) -> str:
    """Why it cannot be judged in this sweep."""
    for key, _ in entry.rule.where if entry.rule is not None and axis else ():
        if key in STAGES and key not in ("stage", axis):
            return _named(entry.text, f"this sweep changes {axis}, so its stages have no {key}")
    return ""


def _too_early(entry: RuleEntry) -> str:
    """Why it cannot be an ``abort:``."""
    rule = entry.rule
    if rule is None or rule.kind != ABORT or rule.early:
        return ""
    if rule.base:
        return _named(entry.text, "runs are compared after their end: leave out abort:")
    if rule.felt:
        return _named(
            entry.text, "what a reader feels is worked out after the end: leave out abort:"
        )
    what = f"{rule.metric} {rule.stat}".strip()
    why = (
        f"{what} can still meet the limit until the end of the run: leave out abort:, the rule "
        f"is judged then"
    )
    return _named(entry.text, why)


def _named(text: str, why: str) -> str:
    return f"SLO {text.strip()[:200]!r}: {why}"


def define_good_request(rules: Rules) -> tuple[tuple[Condition, ...], str]:
    """(conditions of a good request, their source); empty without a definition.

    From ``--goodput``; else from the first rule with conditions; else the upper limits on latencies
    of nearly every request (p90 and above, or max), the lowest for each latency.
    """
    if rules.good:
        return rules.good, "--goodput"
    if rules.good_mistake or any(entry.rule is None for entry in rules.entries):
        return (), ""
    given = next((rule.given for rule in rules.readable if rule.given), ())
    if given:
        return given, "the first rule with conditions"
    lowest: dict[str, Condition] = {}
    for rule in filter(_for_each, rules.readable):
        condition = Condition(rule.metric, rule.op, rule.number, rule.unit)
        if rule.metric not in lowest or condition.limit < lowest[rule.metric].limit:
            lowest[rule.metric] = condition
    return tuple(lowest.values()), "the rules on latencies, for each request" if lowest else ""


def _for_each(rule: Rule) -> bool:
    measure, percentile = BY_WORD[rule.metric], rule.percentile
    at_most = (
        measure.metric is not None
        and measure.units is TIME
        and measure.tag != POOLED
        and rule.op.startswith("<")
    )
    most = rule.stat == "max" or (percentile is not None and percentile >= MIN_PERCENTILE)
    return at_most and most and rule.decides and not rule.where
