"""Verdict text: the first line of report.html, in at most twelve words; and the SLO rules as
bullets, each with its value, interval and limit on one scale."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from locust_llm.records.run_facts import Run
from locust_llm.report.compare.forest_plot import BETTER, WORSE, describe_ratio, name_open_word
from locust_llm.report.document_blocks import format_interval, format_observed
from locust_llm.report.metrics_by_group import WHOLE
from locust_llm.report.open_loop_delivery import Delivery, describe_undelivered
from locust_llm.report.outages import NOT_ANSWERED, describe_outages, describe_silence
from locust_llm.report.sections.ab_comparison import (
    DIFFERENT,
    FROM_DUE,
    PairedComparison,
    list_paired_differences,
)
from locust_llm.report.sections.headline import OF_TAGS, make_headline
from locust_llm.report.sections.metric_tables import has_lost_many
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.knee import SLO, list_dead_stages
from locust_llm.report.summary_rows import LoadLevel, SweepSummary
from locust_llm.settings.sweep_option import AXES, PREFILL
from locust_llm.slo.capacity_search import format_load
from locust_llm.slo.load_generator_health import INVALID, UNCERTIFIED
from locust_llm.slo.metric_definitions import BY_WORD, ITL, LATENCY, TTFT, TTFT_FROM_DUE
from locust_llm.slo.rule_name import (
    format_rule_limit,
    format_rule_name,
    format_rule_subject,
    space_unit,
)
from locust_llm.slo.rules import FAIL, INCONCLUSIVE, PASS, Rule, SloResult
from locust_llm.text.format import (
    capitalise_sentence,
    format_duration,
    format_duration_rounded_up,
    format_plain_number,
    format_signed,
    truncate_text,
)

ADVICE: Final = re.compile(r"(?:^|[;,] )([^;,]* may decide it)")
"""The part of the reason of an open rule that names the way out (judge_slo.py)."""
MAX_WORDS: Final = 12
MAX_RULE: Final = 40
LIMIT_AT: Final = 70.0
"""The limit of each rule is at this share (%) of its scale's width."""
ZERO_AT: Final = 35.0
"""The place of no difference, for a rule about the difference from another run."""
RESULT_CLASSES: Final = {PASS: "pass", FAIL: "loud", INCONCLUSIVE: "open"}
RESULT_MARKS: Final = {PASS: "\N{CHECK MARK}", FAIL: "\N{BALLOT X}", INCONCLUSIVE: "?"}
LIKELY: Final = {PASS: "probably passes", FAIL: "probably fails"}
RESULT_WORDS: Final = {PASS: "passed", FAIL: "failed", INCONCLUSIVE: "not decided"}


class Verdict(NamedTuple):
    """``word`` is coloured, and what follows is plain."""

    word: str
    text: str
    kind: str = ""
    """pass, loud or open."""


def make_verdict(summary: Summary, run: Run) -> Verdict:
    """What the run came to. What forbids to use its figures comes first, then its rules. Without
    rules it has the main figures."""
    if summary.sweep is not None and (answer := _answer_sweep(summary.sweep)) is not None:
        return answer
    paired = summary.paired
    if paired is not None and paired.uncounted:
        missing, _, why = paired.uncounted.partition(":")
        return Verdict(
            f"{missing}{':' if why else '.'}", "its blocks are too short." * bool(why), "loud"
        )
    if paired is not None and paired.verdict == DIFFERENT and not paired.isolated and not paired.aa:
        return _answer_arms(paired)
    if summary.swept and summary.outages and not _has_knee(summary.sweep):
        return Verdict("No knee:", f"{describe_outages(summary.outages[:1])}.", "loud")
    if summary.examination is not None or summary.swept:
        first, _, _ = make_headline(summary, run).partition("; ")
        return Verdict("", f"{first.rstrip('.')}.")
    conditions = summary.conditions
    if not conditions.requests:
        return Verdict("No result:", "no request was measured.", "open")
    if not conditions.succeeded and summary.failures:
        return Verdict("Failed:", _describe_reason(summary), "loud")
    if not conditions.succeeded and summary.slo_status != FAIL:
        return Verdict("No result:", _describe_unfinished(summary), "open")
    delivery = summary.delivery
    if delivery is not None and delivery.overload is not None:
        return Verdict("Overloaded:", _describe_late_answers(delivery), "loud")
    if summary.client is not None and summary.client.level == INVALID and not summary.slo_status:
        unknown = UNCERTIFIED in summary.client.signals
        why = "'s own error was not measured" if unknown else " was too inaccurate"
        return Verdict("Do not use:", f"the load generator{why}.", "loud")
    if why := _describe_gathered_chunks(run):
        return Verdict("Do not use:", why, "loud")
    if summary.slo_status:
        return _add_outage(_judge(summary, run), summary)
    return _name_losses(summary, run)


def _name_losses(summary: Summary, run: Run) -> Verdict:
    """What is missing of the load, else the main figures."""
    if summary.outages:
        return _name_outage(summary)
    if describe_undelivered(summary.delivery) is not None:
        return Verdict("Not delivered:", "fewer requests were sent than planned.", "open")
    if has_lost_many(summary.conditions):
        lost = _count_unanswered(summary)
        requests = summary.conditions.requests
        return Verdict("Many lost:", f"{lost:,} of {requests:,} had no response.", "loud")
    return Verdict("", _describe_figures(summary, run))


def _name_outage(summary: Summary) -> Verdict:
    """``No request was answered: from 62.0 to 71.1 s; 40 of 800 requests failed.``: the longest one."""
    longest = max(summary.outages, key=lambda outage: outage.seconds)
    conditions = summary.conditions
    of = f"{conditions.failed:,} of {conditions.succeeded + conditions.failed:,}"
    failed = f"; {of} requests failed" * bool(conditions.failed)
    return Verdict(
        f"{capitalise_sentence(describe_silence([longest]))}:", f"{longest}{failed}.", "loud"
    )


def _add_outage(verdict: Verdict, summary: Summary) -> Verdict:
    """The verdict of the rules, and when nothing answered, where there is room for it."""
    if not summary.outages:
        return verdict
    longest = max(summary.outages, key=lambda outage: outage.seconds)
    what = "no token came" if longest.in_flight else "no answer"
    text = f"{verdict.text.removesuffix('.')}; {what} {longest}."
    is_short = len(f"{verdict.word} {text}".split()) <= MAX_WORDS
    return verdict._replace(text=text) if is_short else verdict


def _describe_gathered_chunks(run: Run) -> str:
    """Why most chunks came together. Empty: they did not."""
    if run.stream_was_buffered:
        return "the streams were buffered on the way."
    return "a buffer or too little CPU gathered the chunks." * run.gathered_by_unknown


def _answer_arms(paired: PairedComparison) -> Verdict:
    """``Candidate: ITL p50 3.2 times as long; TTFT: no significant difference.``: the main differences, one
    for each metric."""
    ratios = {(one.metric, one.stat): one for one in list_paired_differences(paired)}
    differing = paired.list_main_differences(paired.known)
    parts = dict[str, str]()
    for figure in differing:
        of_metric = [one for one in differing if one.metric == figure.metric]
        shown = next((one for one in of_metric if one.stat in ("p50", "p95")), figure)
        one = ratios.get((shown.metric, shown.stat))
        if one is not None:
            parts.setdefault(figure.metric, describe_ratio(one))
        elif shown.difference is not None:
            parts.setdefault(figure.metric, f"{shown.label} {format_signed(shown.difference, 1)}")
    for metric in (FROM_DUE if paired.limits_differ else TTFT.word, ITL.word):
        known = [one for (of, _), one in ratios.items() if of == metric]
        if known and metric not in parts:
            parts[metric] = f"{BY_WORD[metric].spoken_name}: {name_open_word(known)}"
    texts = list(parts.values())
    while len(texts) > 1 and len(" ".join(texts).split()) >= MAX_WORDS:
        texts.pop()
    sides = frozenset(figure.word for figure in differing)
    kind = {frozenset([BETTER]): "pass", frozenset([WORSE]): "loud"}.get(sides, "open")
    return Verdict("Candidate:", f"{'; '.join(texts)}.", kind)


def _answer_sweep(sweep: SweepSummary) -> Verdict | None:
    """``3 users: 95% interval 3 to 4; 8 fails.``: the highest load within all rules. None: there
    are no rules, or the headline has the reason why there is no load."""
    judged = [
        level
        for level in sweep.levels
        if level.slo_status == FAIL or (level.slo_status and level.succeeded)
    ]
    knee = next((knee for knee in sweep.knees if knee.rule == SLO), None)
    if sweep.axis == PREFILL:
        return None
    dead = list_dead_stages(sweep.levels)
    if knee is None or not judged:
        died = _name_death(sweep, dead)
        return Verdict("Failed:", f"{died}.", "loud") if died else None
    failing = min((level.value for level in judged if level.slo_status == FAIL), default=None)
    if knee.value is None:
        return _answer_without_load(sweep, judged, failing)
    above = [level for level in judged if level.value > knee.value]
    fails = "no higher load failed" if above else "no higher load ran"
    if open_ones := [level.value for level in above if level.slo_status == INCONCLUSIVE]:
        fails = f"{min(open_ones):g} is {INCONCLUSIVE}"
    beyond = [level for level in judged if _fails_above(level, knee.value)]
    if beyond:
        lowest = min(beyond, key=lambda level: level.value)
        fails = f"{lowest.value:g} fails{_describe_silent_failure(lowest)}"
    capacity = sweep.capacity
    if capacity is not None and capacity.probably_fails is not None:
        fails = f"{format_load(capacity.probably_fails)} probably fails"
    if dead:
        fails = f"the server died at {dead[0].value:g}"
    load = format_load(knee.value, sweep.unit)
    kind = "loud" if dead else "pass"
    if capacity is None:
        return Verdict(f"{load}:", f"within the SLO; {fails}.", kind)
    if capacity.is_open:
        low = knee.value if capacity.low is None else capacity.low
        return Verdict(f"At least {format_load(low, sweep.unit)}:", f"{fails}.", kind)
    low_text = "less" if capacity.low is None else format_load(capacity.low)
    high_text = "more" if capacity.high is None else format_load(capacity.high)
    or_more = " or more" * capacity.reaches_top
    return Verdict(f"{load}:", f"95% interval {low_text} to {high_text}{or_more}; {fails}.", kind)


def _has_knee(sweep: SweepSummary | None) -> bool:
    return sweep is not None and any(knee.value is not None for knee in sweep.knees)


def _name_death(sweep: SweepSummary, dead: Sequence[LoadLevel]) -> str:
    """``the server died at 2 users``. Empty: it lived."""
    return f"the server died at {format_load(dead[0].value, sweep.unit)}" if dead else ""


def _fails_above(level: LoadLevel, load: float) -> bool:
    return level.slo_status == FAIL and level.value > load


def _describe_silent_failure(level: LoadLevel) -> str:
    """That a stage fails by requests that waited while nothing answered alone. Empty: it does
    not."""
    failed = [result for result in level.slos if result.decides and result.status == FAIL]
    by_silence = all(result.status_without_silence for result in failed)
    return f", where {NOT_ANSWERED} for a while" if failed and by_silence else ""


def _is_within_limits(level: LoadLevel) -> bool:
    """No rule fails, as far as is known."""
    likely = (result.likely for result in level.slos if result.decides)
    return level.slo_status != FAIL and FAIL not in likely


def _answer_without_load(
    sweep: SweepSummary, judged: Sequence[LoadLevel], failing: float | None
) -> Verdict | None:
    """The best guess: the highest stage whose values are within the limits, if none below fails."""
    lowest = min(level.value for level in judged)
    died = _name_death(sweep, list_dead_stages(sweep.levels))
    if died and failing is not None:
        return Verdict("Failed:", f"{died}; {failing:g} fails.", "loud")
    if failing == lowest:
        at = next(one for one in judged if one.value == lowest and one.slo_status == FAIL)
        load = format_load(lowest, sweep.unit)
        text = f"{load}, the lowest load{_describe_silent_failure(at)}."
        return Verdict("Failed:", text, "loud")
    below = [level for level in judged if failing is None or level.value < failing]
    within = [level.value for level in below if _is_within_limits(level)]
    fails = "none fails" if failing is None else f"{failing:g} fails"
    if died:
        guess = f"; {format_load(max(within))} may pass" if within else ""
        return Verdict("Failed:", f"{died}{guess}.", "loud")
    if not within:
        return Verdict("Not decided:", f"{fails}.", "open")
    guess = format_load(max(within), sweep.unit)
    return Verdict("Not decided:", f"{guess} may be within the SLO; {fails}.", "open")


def _count_unanswered(summary: Summary) -> int:
    return summary.conditions.failed + summary.conditions.cut


def _describe_late_answers(delivery: Delivery) -> str:
    """``534 of 612 requests had no answer by the stop.``: what came while the queue drained came
    late."""
    counted = delivery.due - delivery.cancelled
    return (
        f"{counted - delivery.completed:,} of {counted:,} requests had no answer by {delivery.end}."
    )


def _name_all_requests(summary: Summary) -> str:
    count = summary.conditions.requests
    return "the request" if count == 1 else f"all {count:,} requests"


def _describe_unfinished(summary: Summary) -> str:
    """``all 6 requests were cut when the run ended.``: none failed, and none succeeded."""
    conditions = summary.conditions
    were = "was" if conditions.requests == 1 else "were"
    how = "cut when the run ended"
    if conditions.cancelled:
        how = "cut or cancelled" if conditions.cut else "cancelled on purpose"
    return f"{_name_all_requests(summary)} {were} {how}."


def _describe_reason(summary: Summary) -> str:
    """``all 30 requests failed: connection refused.``"""
    conditions = summary.conditions
    result = f"{_name_all_requests(summary)} failed"
    if conditions.failed < conditions.requests:
        result = f"none of {conditions.requests:,} requests succeeded"
    reason = summary.failures[0].message or summary.failures[0].outcome
    words = reason.rstrip(".").split()[: MAX_WORDS - len(result.split()) - 1]
    return f"{result}: {truncate_text(' '.join(words), 2 * MAX_RULE)}."


def _judge(summary: Summary, run: Run) -> Verdict:
    """Of the rules that decide: the first that failed, else the first that is not decided."""
    deciding = [result for result in summary.slos if result.decides]
    failed = [result for result in deciding if result.status == FAIL]
    passed = [result for result in deciding if result.status == PASS]
    rules = run.settings.rules.by_text
    if failed:
        return Verdict("Failed:", _describe_failed(failed, rules), "loud")
    if summary.slo_status == PASS:
        which = "the rule holds" if len(passed) == 1 else f"all {len(passed)} rules hold"
        return Verdict("Passed:", f"{which}{_describe_warning_rules(summary.slos)}.", "pass")
    open_ones = [result for result in deciding if result.status == INCONCLUSIVE]
    if not open_ones:
        return Verdict("Not decided:", "no SLO could be judged.", "open")
    return Verdict("Not decided:", _describe_open(open_ones, rules), "open")


def _describe_warning_rules(results: Sequence[SloResult]) -> str:
    """``, and 1 warn: rule``: what the list of rules has beside those that decide."""
    statuses = [result.status for result in results if not result.decides]
    if broken := statuses.count(FAIL):
        return f"; {broken} warn: {'rule' if broken == 1 else 'rules'} broken"
    held = statuses.count(PASS)
    return f", and {held} warn: {'rule' if held == 1 else 'rules'}" if held else ""


def _describe_open(open_ones: Sequence[SloResult], rules: Mapping[str, Rule]) -> str:
    """``2 rules open; run about 2 min longer.``: the time that may decide all of them. Where some
    have no time: ``1 of 2 open rules needs about 8 s more.``"""
    timed = [result for result in open_ones if result.longer_s]
    if timed and len(open_ones) > 1:
        longest = format_duration_rounded_up(max(result.longer_s or 0.0 for result in timed))
        if len(timed) == len(open_ones):
            return f"{len(timed)} rules open; run about {longest} longer."
        need = "needs" if len(timed) == 1 else "need"
        return f"{len(timed)} of {len(open_ones)} open rules {need} about {longest} more."
    first = timed[0] if timed else open_ones[0]
    rule = rules.get(first.rule)
    named = rule is None or rule.where or rule.base
    name = _name_rule(first, rule) if named or rule is None else format_rule_subject(rule)
    text = f"{name} {LIKELY.get(first.likely, 'is open')}"
    if first.longer_s:
        text = f"{name} needs about {format_duration_rounded_up(first.longer_s)} more"
    count = f"{len(open_ones)} rules open; " if len(open_ones) > 1 else ""
    is_short = len(f"{count}{text}".split()) <= MAX_WORDS - 2
    return f"{count if is_short else ''}{text}."


def _describe_failed(failed: Sequence[SloResult], rules: Mapping[str, Rule]) -> str:
    """``TTFT p95 is 810 ms, limit 500 ms; 2 more failed.``"""
    text = _describe_broken(failed[0], rules.get(failed[0].rule))
    more = f"; {len(failed) - 1} more failed" if len(failed) > 1 else ""
    is_short = len(f"{text}{more}".split()) < MAX_WORDS
    return f"{text}{more if is_short else ''}."


def _describe_broken(result: SloResult, rule: Rule | None) -> str:
    """``TTFT p95 falls on a failed request, limit 1 s``; against a base ``ITL p95 is 64% worse than
    reports/base, tolerance 5%``."""
    if rule is None:
        return f"{_name_rule(result, rule)} is {format_value(result)}"
    subject = truncate_text(format_rule_subject(rule), MAX_RULE)
    is_value = f"is {format_value(result)}"
    if result.observed is not None and math.isinf(result.observed):
        is_value = f"falls on a {'failed' if result.worst is None else 'cut'} request"
    if not rule.base:
        return f"{subject} {is_value}, limit {format_rule_limit(rule)}"
    tolerance = space_unit(f"{format_plain_number(rule.number)}{rule.unit}")
    if result.observed is None or math.isinf(result.observed):
        return f"{subject} {is_value}, tolerance {tolerance}"
    base = truncate_text(rule.base, MAX_RULE)
    return f"{subject} {is_value} worse than {base}, tolerance {tolerance}"


def _describe_figures(summary: Summary, run: Run) -> str:
    """``TTFT p95 607 ms, ITL p95 30.4 ms.``; where requests had waits, TTFT from due."""
    if by_limit := _describe_ramp(summary):
        return by_limit
    by_tag = {row.tag: row for row in summary.rows if row.count}
    first = TTFT_FROM_DUE.tag if run.has_waits and TTFT_FROM_DUE.tag in by_tag else TTFT.tag
    tags = ((OF_TAGS[first], first), ("ITL", ITL.tag))
    rows = [(name, by_tag[tag]) for name, tag in tags if tag in by_tag]
    rows = rows or [("Latency", by_tag[LATENCY.tag])] if LATENCY.tag in by_tag else rows
    figures = [
        f"{name} p95 {format_duration(row.percentiles[95.0] / 1e3)}"
        for name, row in rows
        if 95.0 in row.percentiles
    ]
    return f"{', '.join(figures) or 'Requests succeeded'}."


def _describe_ramp(summary: Summary) -> str:
    """``TTFT p50 650 ms at limit 1, 3.4 s at limit 5.``: what a ramp of the gate did. Empty: there
    is none."""
    breakdown = next((found for found in summary.breakdowns if found.of_limit), None)
    if breakdown is None:
        return ""
    medians = list[tuple[str, float]]()
    for group in breakdown.groups:
        if group.label == WHOLE:
            continue
        limit = group.label.partition(" ")[0]
        medians += [
            (limit, row.percentiles[50.0])
            for row in group.rows
            if row.tag == TTFT.tag and 50.0 in row.percentiles
        ]
    if len(medians) < 2:
        return ""
    (low, first_ms), (high, last_ms) = medians[0], medians[-1]
    return (
        f"TTFT p50 {format_duration(first_ms / 1e3)} at limit {low}, "
        f"{format_duration(last_ms / 1e3)} at limit {high}."
    )


# -- the rules -------------------------------------------------------------------------------------


class RuleBullet(NamedTuple):
    """A rule with its value on a scale of 100 % width."""

    name: str
    value: str
    interval: str
    """In words. Empty: there is none."""
    result: str
    mark: str
    kind: str
    """pass, loud or open."""
    decides: bool
    dot: float | None
    """The place of the value. None: it has none that could be drawn."""
    low: float | None
    high: float | None
    """The ends of the interval; None: it has none. An end beyond the scale is at its edge."""
    limit: float | None
    rises: bool
    advice: str
    """What may decide an open rule. Empty: it is decided, or nobody knows."""
    """The good side is the upper one."""

    @property
    def label(self) -> str:
        """For screen readers."""
        interval = f", 95% interval {self.interval}" if self.interval else ""
        return f"{self.name}: {self.result}, {self.value}{interval}"


def make_rule_bullets(results: Sequence[SloResult], run: Run) -> Iterator[RuleBullet]:
    """In a sweep each value has the load of its stage: rules may have theirs of several."""
    rules = run.settings.rules.by_text
    unit = "" if run.settings.staged is None else AXES.get(run.settings.staged.axis, "")
    for result in results:
        rule = rules.get(result.rule)
        interval = format_interval(result)
        low, high = _place_interval(result, rule)
        yield RuleBullet(
            name=_name_rule(result, rule),
            value=f"{format_value(result)}{_name_stage(result, run, unit)}",
            interval="" if interval == "-" else interval,
            result=RESULT_WORDS.get(result.status, result.status),
            mark=RESULT_MARKS.get(result.status, "?"),
            kind=RESULT_CLASSES.get(result.status, "open"),
            decides=result.decides,
            dot=_place(result.observed, result, rule),
            low=low,
            high=high,
            limit=None if result.limit is None else LIMIT_AT,
            rises=rule is not None and not rule.base and rule.op.startswith(">"),
            advice=_find_advice(result),
        )


def _find_advice(result: SloResult) -> str:
    found = ADVICE.search(result.reason) if result.status == INCONCLUSIVE else None
    return "" if found is None else found[1]


def _name_stage(result: SloResult, run: Run, unit: str) -> str:
    """`` at 3 users``. Empty: the value is of the run. A search has its value at the highest load
    that certainly fits, which may be below the capacity."""
    if result.of_stage is None or result.observed is None:
        return ""
    certain = ", the highest load that certainly keeps it" * (
        run.settings.find_max and result.status == PASS
    )
    return f" at {format_load(result.of_stage, unit)}{certain}"


def _name_rule(result: SloResult, rule: Rule | None) -> str:
    """The conditions of good requests are in the table of rules."""
    if rule is None:
        text = result.rule.removeprefix("warn:").removeprefix("abort:").strip()
        warns = "" if result.decides else "warn: "
        return f"{warns}{truncate_text(text, MAX_RULE)}"
    name = format_rule_name(rule, conditions=False)
    return truncate_text(name, MAX_RULE) if rule.where or rule.base else name


def format_value(result: SloResult) -> str:
    """``607 ms``; a percentile that falls on a failed request has no value."""
    if result.observed is not None and math.isinf(result.observed):
        return "a failure" if result.worst is None else "a cut request"
    return space_unit(format_observed(result))


def _place(value: float | None, result: SloResult, rule: Rule | None) -> float | None:
    """Where a value is on the scale, in % of its width."""
    limit = result.limit
    if value is None or limit is None or math.isnan(value):
        return None
    if math.isinf(value):
        return 100.0
    if rule is not None and rule.base:
        at = ZERO_AT + (LIMIT_AT - ZERO_AT) * value / limit if limit else LIMIT_AT
    elif limit:
        at = LIMIT_AT * value / limit
    else:
        at = LIMIT_AT if value == 0 else 100.0
    return round(min(max(at, 0.0), 100.0), 1)


def _place_interval(result: SloResult, rule: Rule | None) -> tuple[float | None, float | None]:
    """An end that is not known is that of the scale."""
    if result.low is None and result.high is None:
        return None, None
    low = 0.0 if result.low is None else _place(result.low, result, rule)
    high = 100.0 if result.high is None else _place(result.high, result, rule)
    return low, high
