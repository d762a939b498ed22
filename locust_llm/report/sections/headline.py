"""Headline: a run's result in one sentence, the first line of the console, of the page and of
summary.md."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from locust_llm.records.run_facts import Run
from locust_llm.report.document_blocks import choose_value_digits, format_interval
from locust_llm.report.open_loop_delivery import (
    describe_overload,
    describe_undelivered,
    has_rates_to_the_stop,
)
from locust_llm.report.outages import describe_outages, refer_to_outages
from locust_llm.report.sections.ab_comparison import DIFFERENT, INCONCLUSIVE, PairedComparison
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.sweep.knee import (
    NO_RULES,
    SATURATION,
    SLO,
    describe_client_verdicts,
    describe_repeat_verdicts,
    is_ruled,
    select_top_knees,
)
from locust_llm.report.summary_rows import (
    CHUNKS_AS_TOKENS,
    IN_NO_AVERAGE,
    RequestBreakdown,
    RequestGroup,
    Row,
    SweepSummary,
)
from locust_llm.report.users_and_limit_over_time import describe_users, format_limit_range
from locust_llm.slo.load_generator_health import (
    INVALID,
    UNCERTIFIED,
    list_fine_metrics,
    list_unusable_metrics,
)
from locust_llm.slo.metric_definitions import BY_WORD, ITL, LATENCY, RATE, TIME, TTFT, TTFT_FROM_DUE
from locust_llm.slo.rules import EQUALS, FAIL, PASS, Rule, SloResult
from locust_llm.text.format import (
    MOST_DIGITS,
    capitalise_sentence,
    count_distinguishing_digits,
    format_brief,
    format_count,
    format_duration,
    format_duration_rounded_up,
    format_plain_number,
    truncate_text,
)

from .ab_comparison import format_paired_difference, select_main_figures
from .benchmark_validity import format_broken_rules
from .metric_tables import has_lost_many
from .notes import FIRST_FAILED

STATS: Final = {"avg": "mean", "min": "least", "max": "greatest"}
OPEN: Final = f"{INCONCLUSIVE}: "
"""A knee that no stage may find has a text that begins so."""
TOO_INEXACT: Final = "The load generator was too inaccurate to measure this server"
INEXACT_FOR: Final = "The load generator was too inaccurate for"
"""The warning where some of the main values are fine begins so."""
NOT_CHECKED: Final = "The load generator's own error was not measured"
BUFFERED_STREAMS: Final = (
    "The streams were buffered on the way, so these metrics describe the buffer"
)
GATHERED_CHUNKS: Final = (
    "A buffer or too little CPU gathered the chunks, so these metrics may not describe the model"
)
ALL_THE_SAME: Final = {PASS: "the rules hold", FAIL: "a rule is broken"}
"""The text where no error of the load generator can have changed the result
(report/slo_evidence/measurement_error.py)."""
MAX_KINDS: Final = 2
MAX_RULE: Final = 60
"""The characters of a rule that is INCONCLUSIVE."""
"""Of failures, where all failed."""
OF_TAGS: Final = {
    TTFT_FROM_DUE.tag: "TTFT from due",
    TTFT.tag: "TTFT",
    LATENCY.tag: "request latency",
}
MAX_NAMES: Final = 4
MAX_NAME: Final = 30
"""The names of requests in the sentence, and the characters of one."""
FEW_BY_CHANCE: Final = 0.05
"""Arrivals whose rate differs by a smaller share from the requested one need no word."""


def make_headline(summary: Summary, run: Run) -> str:
    """Plain text without a period. It names what forbids to use the values, overload or unsent
    requests, and what the rules found with how much longer would decide them. Then come failures,
    and without rules the main values."""
    if summary.examination is not None:
        return summary.examination.headline()
    if summary.paired is not None:
        found = [_arms(summary.paired, run), *_rules(summary, run)]
    elif summary.limits is not None:
        found = [summary.limits.answer.removesuffix("."), *_rules(summary, run)]
        if summary.client is not None and summary.client.level == INVALID:
            answer, *others = found
            answer = f"{answer[:1].lower()}{answer[1:]}"
            found = [_describe_inexactness(summary), answer, *others]
    elif summary.sweep is not None and summary.swept:
        found = [_stages(summary.sweep)]
        if verdicts := describe_client_verdicts(summary.sweep):
            found.append(f"the client verdict is {verdicts}")
        if summary.outages:
            found.insert(_place_outages(summary.sweep, found), describe_outages(summary.outages))
            found[0] = capitalise_sentence(found[0])
    else:
        found = list(_load_test(summary, run))
        level = "" if summary.client is None else summary.client.level
        if verdicts := describe_repeat_verdicts(summary.sweep, level):
            found.append(f"the client verdict is {verdicts}")
    return "; ".join((*found, *filter(None, [format_broken_rules(summary.validity)])))


def _describe_inexactness(summary: Summary) -> str:
    """Why an INVALID client verdict forbids to use the values."""
    if summary.client is not None and UNCERTIFIED in summary.client.signals:
        return NOT_CHECKED
    if not list_fine_metrics(summary.figure_errors):
        return TOO_INEXACT
    first, *others = list_unusable_metrics(summary.figure_errors) or ["some of these metrics"]
    more = f" and {format_count(len(others), 'more metric')}" if others else ""
    return f"{INEXACT_FOR} {first}{more}"


def _load_test(summary: Summary, run: Run) -> Iterator[str]:
    conditions = summary.conditions
    if not conditions.requests:
        lost = run.records_lost or run.gone_records
        yield "No request has a record" if lost else _describe_nothing_sent(summary)
        return
    overload = describe_overload(summary.delivery)
    if not conditions.succeeded:
        none = (
            f"one of {format_count(conditions.requests, 'request')} succeeded: "
            f"{'; '.join(_reasons(summary, run))}"
        )
        yield f"N{none}" if overload is None else f"Overloaded: {overload}; n{none}"
        return
    less = describe_undelivered(summary.delivery)
    trouble = ""
    rules = _rules(summary, run, steady=overload is None)
    first, *others = rules or _figures(summary, run)
    if overload is not None:
        trouble = f"Overloaded: {overload}"
    elif less is not None:
        trouble = f"Not delivered: {less}"
    elif conditions.cut > conditions.requests / 2:
        trouble = (
            f"{conditions.cut:,} of {conditions.requests:,} requests were unfinished at the end: "
            "the load is too high or the run too short"
        )
    invalid = summary.client is not None and summary.client.level == INVALID
    beside = invalid and _leaves_rules_open_by_themselves(summary)
    invalid = invalid and not beside
    load = (
        ""
        if trouble or (invalid and not _find_changed_load(summary))
        else _load(conditions, run, summary)
    )
    if trouble:
        yield trouble
    if not rules and ((trouble and conditions.cut) or has_lost_many(conditions)):
        load = f"{load}{', ' * bool(load)}of the {conditions.succeeded:,} completed requests"
    if invalid or run.stream_was_buffered or run.gathered_by_unknown:
        why = _describe_inexactness(summary) if invalid else GATHERED_CHUNKS
        why = BUFFERED_STREAMS if run.stream_was_buffered else why
        why = f"{why[0].lower()}{why[1:]}" if trouble else why
        if same := ALL_THE_SAME.get(summary.slo_status or "", ""):
            load = f"{why}, but {same} all the same:"
        else:
            yield why
            load = f"{load[:1].lower()}{load[1:]}"
    yield f"{load} {first}".strip()
    yield from others
    if beside:
        why = _describe_inexactness(summary)
        yield f"{why[0].lower()}{why[1:]}"
    if summary.outages:
        silent = describe_outages(summary.outages)
        yield f"{silent}, and rates include {refer_to_outages(summary.outages)}"
    if conditions.failed:
        yield f"{conditions.failed:,} of {conditions.succeeded + conditions.failed:,} requests failed"


def _leaves_rules_open_by_themselves(summary: Summary) -> bool:
    """Whether rules are open, and none of them because the load generator was inaccurate: it was so
    for other metrics."""
    if summary.client is not None and UNCERTIFIED in summary.client.signals:
        return False
    is_open = bool(summary.inconclusive) and not any(result.voided for result in summary.slos)
    return is_open and bool(list_fine_metrics(summary.figure_errors))


def _describe_nothing_sent(summary: Summary) -> str:
    """``No request was sent after the warmup, which had 38 requests``"""
    if not (sent := summary.counts.warmup):
        return "No request was sent"
    return f"No request was sent after the warmup, which had {format_count(sent, 'request')}"


def _reasons(summary: Summary, run: Run) -> Iterator[str]:
    """Why no request succeeded, in full: the kinds of failures, the most frequent first, and the
    advice where the run had one."""
    conditions = summary.conditions
    note = next((note for note in run.notes if note.startswith(FIRST_FAILED)), "")
    counts = Counter[str]()  # one reason may come with several HTTP statuses
    for failure in summary.failures:
        counts[failure.message or failure.outcome] += failure.count
    reasons = counts.most_common()
    for reason, count in reasons[:MAX_KINDS]:
        several = f"{count} x " * (count < conditions.requests)
        todo = re.search(rf"{re.escape(reason)} \((.+?)\)(?:; \d+ x |$)", note)
        yield f"{several}{reason.rstrip('.')}{f' ({todo[1]})' if todo else ''}"
    if rest := sum(count for _, count in reasons[MAX_KINDS:]):
        yield f"{format_count(rest, 'other')} failed"
    if conditions.cut:
        yield (
            "all were unfinished when the run ended"
            if conditions.cut == conditions.requests
            else f"{_were(conditions.cut)} unfinished when the run ended"
        )
    if conditions.cancelled:
        yield f"{_were(conditions.cancelled)} cancelled on purpose"


def _were(count: int) -> str:
    return "1 was" if count == 1 else f"{count} were"


def _find_changed_load(summary: Summary) -> RequestBreakdown | None:
    """The requests by the limit or the rate, where it changed during the run."""
    return next((found for found in summary.breakdowns if found.of_ramp or found.of_limit), None)


def _load(conditions: Conditions, run: Run, summary: Summary) -> str:
    """``With 30 users,``. A load that changed has all of its values, as the results are of all of
    it."""
    changed = _find_changed_load(summary)
    limit = format_limit_range(conditions.limit_in_force)
    if conditions.loop == "open":
        of_ramp = (
            f"rates from 0 to {format_brief(conditions.rate_per_s, '/s', 3)} together, a ramp:"
        )
        if conditions.rate_per_s is None:
            load = ""
        elif changed is not None and not changed.of_limit:
            load = of_ramp
        else:
            rate = format_brief(conditions.rate_per_s, "/s", 3)
            load = f"At {rate}{_on_average(run) or _describe_arrival_rate(summary)}"
    else:
        load = (
            ""
            if conditions.users is None
            else f"With {describe_users(conditions.users, conditions.users_in_force)}"
        )
    if changed is not None and changed.of_limit and limit:
        how = "a ramp" if changed.of_ramp else "changed by hand"
        load = f"{load or 'With'}{' and' * bool(load)} prefill limits {limit} together ({how})"
    return f"{load[:1].upper()}{load[1:]}"


def _describe_arrival_rate(summary: Summary) -> str:
    """`` (arrivals: 1.36/s)``, where chance made them differ from the requested rate. Empty: they
    hardly do."""
    delivery, rate = summary.delivery, summary.conditions.rate_per_s
    if delivery is None or not rate or abs(delivery.offered_per_s / rate - 1) < FEW_BY_CHANCE:
        return ""
    return f" (arrivals: {format_brief(delivery.offered_per_s, '/s', 3)})"


def _on_average(run: Run) -> str:
    """A series or a trace has no single rate."""
    varies = run.settings.request_rate_series or run.settings.fixed_schedule
    return " on average" if varies else ""


# -- rules -----------------------------------------------------------------------------------------


def _rules(summary: Summary, run: Run, *, steady: bool = True) -> list[str]:
    """The first failed rule, else the first that passed, with its value, and then the results of
    the others. ``steady``: a longer run would have the same load."""
    deciding, rules = (
        [result for result in summary.slos if result.decides],
        run.settings.rules.by_text,
    )
    failed = [result for result in deciding if result.status == FAIL]
    passed = [result for result in deciding if result.status == PASS]
    inconclusive = summary.inconclusive
    shown = next(
        (
            r
            for r in (*failed, *passed, *inconclusive)
            if r.observed is not None and r.rule in rules
        ),
        None,
    )
    found = [] if shown is None else [_judged(rules[shown.rule], shown, summary.conditions)]
    others = len(failed) - (shown in failed)
    if others:
        found.append(f"{_count(others, ' more' * (shown in failed))} broken")
    elif not failed and not inconclusive and len(passed) > 1:
        found.append(f"all {len(passed)} rules hold")
    if inconclusive:
        are = "is" if len(inconclusive) == 1 else "are"
        advice = _advice(inconclusive) if steady else ""
        likely = {result.likely for result in inconclusive}
        side = f" (likely {likely.pop()})" if len(likely) == 1 and "" not in likely else ""
        found.append(f"{_named(inconclusive, shown)} {are} {INCONCLUSIVE}{side}{advice}")
    if warned := sum(result.status == FAIL for result in summary.slos if not result.decides):
        found.append(f"{warned} warn: {'rule' if warned == 1 else 'rules'} broken")
    return found


def _count(rules: int, more: str = "") -> str:
    return f"one{more} rule" if rules == 1 else f"{rules}{more} rules"


def _named(inconclusive: Sequence[SloResult], shown: SloResult | None) -> str:
    """The first inconclusive rule by its text, unless its value stands before, and the number of
    others."""
    first = next((result for result in inconclusive if result is not shown), None)
    if first is None or shown in inconclusive:
        return _count(len(inconclusive))
    others = len(inconclusive) - 1
    more = f" and {_count(others, ' more')}" if others else ""
    return f"{truncate_text(first.rule, MAX_RULE)}{more}"


def _advice(inconclusive: Sequence[SloResult]) -> str:
    """How much longer a run may decide these rules, and which of them if not all. Empty: nobody
    knows."""
    known = [(result.longer_s, result) for result in inconclusive if result.longer_s is not None]
    if not known:
        return ""
    longest_s, last = max(known, key=lambda pair: pair[0])
    roughly = "" if last.longer_is_exact else "roughly "
    which = ""
    if len(known) < len(inconclusive):
        which = f" for {truncate_text(last.rule, MAX_RULE)}"
        which += f" and {_count(len(known) - 1, ' more')}" if len(known) > 1 else ""
    return f": run {roughly}{format_duration_rounded_up(longest_s)} longer{which}"


def _judged(rule: Rule, result: SloResult, conditions: Conditions) -> str:
    """``p95 of TTFT is 810 ms, within 3 s``"""
    name = BY_WORD[rule.metric].spoken_name
    what = f"{STATS.get(rule.stat, 'the')} {name}"
    if rule.percentile is not None:
        what = f"{rule.stat} of {name}"
    if rule.where:
        what += f" ({', '.join(f'{key}={value}' for key, value in rule.where)})"
    if rule.base:
        side = {PASS: "within the tolerance of", FAIL: "beyond the tolerance of"}.get(
            result.status, "and the tolerance is"
        )
        tolerance = f"{side} {format_plain_number(rule.number)}{rule.unit}"
        if result.low is not None and result.high is not None and result.low <= 0 <= result.high:
            return (
                f"{what} may be the same in {rule.base} (95% interval of the difference: "
                f"{format_interval(result)}), {tolerance}"
            )
        if result.observed == math.inf:
            return f"{what} falls on a failed request, {tolerance}"
        side = "worse" if (result.observed or 0) > 0 else "better"
        by = format_brief(abs(result.observed or 0), rule.unit, choose_value_digits(result))
        return f"{what} is {by} {side} than {rule.base}, {tolerance}"
    if rule.op == EQUALS:
        side = {PASS: "as required", FAIL: f"and must be {_limit(rule)}"}.get(
            result.status, f"limit {_limit(rule)}"
        )
        return f"{what} is {_value(rule, result)}, {side}"
    side = _name_side(rule, result)
    if math.isinf(result.observed or 0):
        lands_on = "failed" if result.worst is None else "cut"
        counts = "" if side == "limit" else "which counts as "
        return f"{what} falls on a {lands_on} request, {counts}{side} {_limit(rule)}"
    if rule.percentile is not None:
        what += _beside_answers(rule, conditions)
    elif IN_NO_AVERAGE in result.reason:
        what += " (without the failures)"
    what += f" ({CHUNKS_AS_TOKENS})" * (CHUNKS_AS_TOKENS in result.reason)
    if (
        BY_WORD[rule.metric].units is RATE
        and conditions.loop == "open"
        and conditions.duration_s is not None
    ):
        # what completed by the stop is over less
        what += f" over {format_brief(conditions.duration_s, ' s', 3)}"
    return f"{what} is {_value(rule, result)}, {side} {_limit(rule)}"


def _name_side(rule: Rule, result: SloResult) -> str:
    """On which side of the limit the value is. A value that equals the limit is on none."""
    less = rule.op.startswith("<")
    if result.status == PASS:
        at_limit = "at least" if rule.op == ">=" else "above"
        return "within" if less else at_limit
    if result.status == FAIL and result.observed == result.limit:
        return "not below" if less else "not above"
    if result.status == FAIL:
        return "above" if less else "below"
    return "limit"


def _beside_answers(rule: Rule, conditions: Conditions) -> str:
    """What a percentile covers besides the answered requests of the tables."""
    metric = BY_WORD[rule.metric].metric
    if metric is None or not metric.censored:
        return ""
    more = ["failures as the slowest"] * bool(conditions.failed)
    more += ["cancelled requests included"] * bool(conditions.cancelled)
    return f" ({' and '.join(more)})" if more else ""


def _value(rule: Rule, result: SloResult) -> str:
    """The value with as many digits as keep it on its side of the limit."""
    if result.worst is None:
        return _written(rule, result.observed, choose_value_digits(result))
    low, high = sorted((result.observed or 0.0, result.worst))
    least, most = (
        _written(rule, end, count_distinguishing_digits(end, result.limit)) for end in (low, high)
    )
    return f"at least {least}" if math.isinf(high) else f"{least} to {most}"


def _limit(rule: Rule) -> str:
    """The limit with all its given digits."""
    return _written(rule, rule.number, MOST_DIGITS)


def _written(rule: Rule, value: float | None, digits: int) -> str:
    """``value`` is in the unit of the rule."""
    if BY_WORD[rule.metric].units is TIME and value is not None:
        return format_duration(value / rule.factor, digits)
    return format_brief(value, rule.unit, digits)


# -- without rules ---------------------------------------------------------------------------------


def _figures(summary: Summary, run: Run) -> list[str]:
    """``p50 of TTFT is 420 ms and p95 810 ms, p50 of ITL 21 ms``, then the throughput.

    Where requests had waits, TTFT from due comes first. Requests with several names have TTFT by
    name, as their work may differ. Answers without a stream have the latency of requests.
    """
    by_tag = {row.tag: row for row in summary.rows if row.count or row.avg is not None}
    names = next((found.groups for found in summary.breakdowns if found.of_names), ())
    tags = [
        tag
        for tag in (TTFT_FROM_DUE.tag, TTFT.tag)
        if tag in by_tag and (run.has_waits or tag == TTFT.tag)
    ]
    found = []
    if by_name := _by_name(names, (tags or [LATENCY.tag])[0]):
        found.append(by_name)
    else:
        for tag in tags or [LATENCY.tag]:
            if (row := by_tag.get(tag)) is not None and 50.0 in row.percentiles:
                found.append(_median_and_p95(row))
        if (row := by_tag.get(ITL.tag)) is not None and 50.0 in row.percentiles:
            found.append(f"p50 of ITL {_ms(row, 50.0)}")
    if (row := by_tag.get("output_token_throughput")) is not None and row.avg is not None:
        unit = summary.counts.token_rate_unit
        rate = f"{format_brief(row.avg, digits=3)} output {unit}"
        return [", ".join(found), f"{rate}{_over_all_its_time(summary)}"]
    if (row := by_tag.get("input_throughput")) is not None and row.avg is not None:
        tokens = by_tag.get("input_token_throughput")
        more = (
            ""
            if tokens is None or tokens.avg is None
            else f", {format_brief(tokens.avg, digits=3)} input tokens/s"
        )
        rate = f"{format_brief(row.avg, digits=3)} inputs/s{more}"
        return [", ".join(found), f"{rate}{_over_all_its_time(summary)}"]
    return [", ".join(found) or "requests succeeded"]


def _over_all_its_time(summary: Summary) -> str:
    """`` over all 26 s``, beside rates to the stop. Empty: there are none beside it."""
    duration_s = summary.conditions.duration_s
    if duration_s is None or not has_rates_to_the_stop(summary.delivery):
        return ""
    return f" over all {format_brief(duration_s, ' s', 3)}"


def _median_and_p95(row: Row) -> str:
    """``p50 of TTFT is 420 ms and p95 810 ms``."""
    more = f" and p95 {_ms(row, 95.0)}" if 95.0 in row.percentiles else ""
    return f"p50 of {OF_TAGS[row.tag]} is {_ms(row, 50.0)}{more}"


def _by_name(groups: Sequence[RequestGroup], tag: str) -> str:
    """``p95 of TTFT is 80 ms for chat, 1.2 s for agent``. Empty: there are no names, or no
    values."""
    rows = list[tuple[str, Row]]()
    for group in groups:
        of_tag = [row for row in group.rows if row.tag == tag and 95.0 in row.percentiles]
        rows += [(group.label, row) for row in of_tag]
    if not rows:
        return ""
    shown = ", ".join(
        f"{_ms(row, 95.0)} for {truncate_text(name, MAX_NAME)}" for name, row in rows[:MAX_NAMES]
    )
    more = (
        f", and {format_count(len(rows) - MAX_NAMES, 'more name')}" if len(rows) > MAX_NAMES else ""
    )
    return f"p95 of {OF_TAGS[tag]} is {shown}{more}"


def _ms(row: Row, percentile: float) -> str:
    return format_duration(row.percentiles[percentile] / 1e3)


# -- stages and arms -------------------------------------------------------------------------------


def _stages(sweep: SweepSummary) -> str:
    """The first sentence of the first knee. If no rule was judged and no knee found, the number of
    stages."""
    knees = [knee for knee in select_top_knees(sweep) if knee.text not in ("", NO_RULES)]
    telling = (
        knee.text for knee in knees if knee.value is not None or knee.rule in (SLO, SATURATION)
    )
    text = next(telling, f"Measured {format_count(len(sweep.levels), 'stage')}")
    if text.startswith(OPEN):  # the reasons are said below it
        text = text.removeprefix(OPEN).partition(";")[0]
        text = text[:1].upper() + text[1:]
    return text.split(". ")[0].rstrip(".")


def _place_outages(sweep: SweepSummary, found: Sequence[str]) -> int:
    """The place of the outages in the sentence: first, unless a rule or the server's death is the
    news."""
    dead = any(knee.rule == SLO and knee.text != NO_RULES for knee in sweep.knees)
    return len(found) if dead or is_ruled(sweep) else 0


def _slower(found: PairedComparison) -> str:
    """``: TTFT p95 2.3 times as long beside the others``"""
    one = next(
        (
            f
            for f in found.figures
            if (f.metric, f.stat) == ("ttft", "p95") and f.percent is not None
        ),
        None,
    )
    if one is None or one.percent is None:
        return ""
    return f": TTFT p95 {1 + one.percent / 100:.3g} times as long with the others"


def _arms(found: PairedComparison, run: Run) -> str:
    """The verdict, after what is missing of an arm."""
    answer = _describe_arms(found, run)
    if not found.uncounted:
        return answer
    missing, _, why = found.uncounted.partition(":")
    reason = ": its blocks are too short" * bool(why)
    return f"{missing}{reason}; {answer[:1].lower()}{answer[1:]}"


def _describe_arms(found: PairedComparison, run: Run) -> str:
    if found.verdict == INCONCLUSIVE:
        return f"No conclusion: {found.reason.partition(':')[0]}"
    if found.isolated:
        return f"Isolation of {found.isolated} {found.isolation.lower()}{_slower(found)}"
    if found.aa:
        expected = f"{0.05 * found.known:.2g} expected"
        return (
            f"Base against itself: {found.different} of {found.known} metrics called different, "
            f"{expected}"
        )
    if found.verdict != DIFFERENT and found.different:
        differ = "differs" if found.different == 1 else "differ"
        by_chance = (
            f"{found.different} of {found.known} metrics {differ}, {0.05 * found.known:.2g} would at "
            "random"
        )
        return (
            f"Base and candidate may differ at random only, in {format_count(found.pairs, 'pair')} "
            f"({by_chance})"
        )
    if found.verdict != DIFFERENT:
        open_ones = found.describe_not_concluded()
        return (
            "No significant difference between base and candidate in "
            f"{format_count(found.pairs, 'pair')}{f'; {open_ones}' if open_ones else ''}"
        )
    main = select_main_figures(found, run.settings.rules.readable)
    named = list(map(format_paired_difference, main.named))
    rest = found.different - len(named)
    more = f", {rest} more" if rest else ""
    waits = found.describe_waits()
    also = f"; {waits}" if waits else ""
    if 2 * found.known < len(found.figures):
        also = f"{also}; {found.describe_unknown()}"
    return f"The candidate differs: {', '.join(named)}{more}{also}"
