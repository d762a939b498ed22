"""Judge SLO: the SLO rules of a run against its requests; PASS, FAIL or INCONCLUSIVE, each with its
reason.

A rule is decided where its figure and both ends of that figure's 95 % interval lie on one side of
the limit; the interval is as wide as the correlation of the run's own requests makes it
(slo_evidence/confidence_intervals.py). A figure that got worse over the run passes only if it could not
reach the limit in as much time again. The smallest and the largest value, and what was delivered
and completed of a schedule, are facts of the run and have no interval; with ``--slo-mode point`` no
figure has. What was cut counts at its best and at its worst (censoring.py), and the rule is decided
where both are. A failure counts as a value that breaks the rule, whichever way that points (a
latency of +infinity, as in the ``adj_`` rows), but in averages: there it is left out, and the
reason says so. By how much the load generator may have the figure wrong (measurement_error.py)
moves the limit nearer: a decision that this could turn is void.

Each stage of a sweep is judged as a run of its own. The sweep passes a rule if some stage does: up
to the highest one, which is found. A rule that names stages must hold at each of them, one with a
base at each that the base has too.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from locust_llm.records.buffering import describe_gathering, is_gathered
from locust_llm.records.outcomes import CUT, OK
from locust_llm.records.run_facts import NO_END, DecidedRule, Run
from locust_llm.report.compare.condition_differences import load_matching_base
from locust_llm.report.compare.metric_differences import measure_worsening
from locust_llm.report.measurement_window import (
    RateWindow,
    describe_needed_load,
    find_settled_window,
)
from locust_llm.report.open_loop_delivery import CLIENT
from locust_llm.report.outages import (
    SERVER_FAILURES,
    Outage,
    count_statuses,
    describe_lost_requests,
    describe_outages,
    describe_requests_without_answer,
    describe_silence,
    describe_statuses,
    select_held_up,
    select_lost,
    select_spans_within,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.sections.sweep.knee import (
    describe_levels,
    describe_neighbours,
    explain_unsound,
    find_passing_stages,
    is_client_distorted,
    list_dead_stages,
)
from locust_llm.report.slo_evidence.capacity_evidence import find_capacity
from locust_llm.report.slo_evidence.censoring import COUNTED, find_send_times
from locust_llm.report.slo_evidence.confidence_intervals import (
    MIN_VALUES,
    RISES,
    TAIL_VALUES,
    EndBasis,
    find_most_times_largest,
)
from locust_llm.report.slo_evidence.disruption_rule_values import BEFORE_NEXT, WHEN_NEXT_BEGAN
from locust_llm.report.slo_evidence.load_start_burst import (
    describe_decided_rest,
    describe_start_burst,
)
from locust_llm.report.slo_evidence.measurement_error import (
    RuleError,
    combine_rule_errors,
    measure_rule_error,
)
from locust_llm.report.slo_evidence.observed_rule_values import (
    TOO_FEW,
    Evaluation,
    ObservedValue,
    compute_rule_value,
    explain_missing_end,
    select_requests,
    shows_correlation,
)
from locust_llm.report.summary_rows import CHUNKS_AS_TOKENS, LoadLevel, SweepSummary
from locust_llm.settings.run_options import Settings
from locust_llm.settings.sweep_option import RATE
from locust_llm.slo.binomial_intervals import count_needed_values
from locust_llm.slo.capacity_search import CapacitySearch, format_load
from locust_llm.slo.load_generator_health import INVALID, UNCERTIFIED
from locust_llm.slo.metric_definitions import (
    BY_WORD,
    OF_ANSWERS,
    OF_OUTPUT_TOKENS,
    OF_SCHEDULE,
    SHARE,
    TIME,
)
from locust_llm.slo.percentile import count_beyond, find_share_beyond
from locust_llm.slo.rules import (
    ABORT,
    AT_EDGE,
    FAIL,
    INCONCLUSIVE,
    PASS,
    POINT,
    Rule,
    RuleEntry,
    SloResult,
)
from locust_llm.text.format import (
    format_brief,
    format_count,
    format_duration_rounded_up,
    format_plain_number,
)

WORSE: Final = (PASS, INCONCLUSIVE, FAIL)
"""How bad statuses are, the worst last."""
ANSWERS_IN_EACH_STAGE: Final = "the server answers to the end of each stage"
"""What every sweep with rules requires beside them."""
ICL: Final = "icl"
ITL: Final = "itl"
INTERVAL_CROSSES: Final = "its 95% interval crosses the limit"
ASSUMED_END: Final = "end is an assumption"
"""In a reason: an end of the interval goes by how values are taken to fall off."""
MAY_BE_OFF: Final = "the error of the load generator may be up to"
MAX_LONGER: Final = 100.0
"""So many times as long a run is the most that is advised."""
LEAST_LONGER: Final = 1.25
"""And the least: an interval of a little more time may as well be wider by chance."""
MIN_BURST: Final = 3
"""Fewer failures in a row are no burst: they may follow each other by chance."""
LIKELY: Final = 0.65
"""Of the way from the figure to the end of its interval: a limit further out is on that side of the
true figure in nine of ten cases."""


def judge_rules(seen: Evaluation) -> tuple[SloResult, ...]:
    """A result for each rule of the run, and for each that cannot be read (by another version,
    say). Of a stage: those that name no stage, or this one."""
    judged = list[SloResult]()
    for entry in seen.run.settings.rules.entries:
        result = _judged(entry, seen)
        # a stage alone may have too few answers: all stages are judged together
        waits = (
            result is not None
            and result.status == INCONCLUSIVE
            and seen.run.stage is not None
            and entry.rule is not None
            and _is_of_all_stages(entry.rule)
        )
        if result is not None and not waits:
            judged.append(result)
    return tuple(judged)


def judge_without_silence(results: Sequence[SloResult], seen: Evaluation) -> tuple[SloResult, ...]:
    """The results, with a better status that they have without the requests in flight while nothing
    answered for a while. The users waited all the same, so the status stays."""
    if not seen.outages or seen.last_silence is not None:
        return tuple(results)
    held = select_held_up(seen.main, seen.outages, seen.run)
    without = _leave_silence_out(seen)
    calm = {result.rule: result.status for result in judge_rules(without)}
    return tuple(_add_calm_status(result, calm, seen.outages, held.size) for result in results)


def _leave_silence_out(seen: Evaluation) -> Evaluation:
    """Without the time in which no request was answered, and the requests in flight then."""
    held = select_held_up(seen.main, seen.outages, seen.run)
    silences = select_spans_within(seen.outages, seen.run, seen.time.span)
    time = RateWindow(seen.time.span, tuple(sorted((*seen.time.pauses, *silences))))
    main = _without(held, seen.main)
    return seen._replace(
        # what was decided while it ran counted these requests
        run=replace(seen.run, broken_rules=(), decided_rules=()),
        main=main,
        ended=_without(held, seen.ended),
        time=time,
        settled=find_settled_window(main, time, seen.run) if seen.settled else None,
        outages=(),
    )


def _add_calm_status(
    result: SloResult, calm: Mapping[str, str], outages: Sequence[Outage], held: int
) -> SloResult:
    status = calm.get(result.rule, result.status)
    if WORSE.index(status) >= WORSE.index(result.status):
        return result
    what = describe_silence(outages)
    without = f"{status} without the {format_count(held, 'request')} in flight while {what}"
    if not held:
        without = f"{status} without the time in which {what}"
    return replace(
        result,
        status_without_silence=status,
        reason="; ".join(filter(None, (result.reason, without))),
    )


def judge_first_wave(
    results: Sequence[SloResult], wave: RequestSelection, seen: Evaluation
) -> tuple[SloResult, ...]:
    """The results of a stage of an open loop of which no request was measured, with the latencies
    that its first wave breaks for certain. The wave began with an idle server, so later requests
    would have waited as long or longer. What it holds says nothing."""
    window = RateWindow(wave.span())
    early = {
        result.rule: result
        for result in judge_rules(seen._replace(main=wave, ended=wave, time=window, settled=None))
    }
    rules = seen.run.settings.rules.by_text
    judged = list[SloResult]()
    for result in results:
        own = early.get(result.rule)
        rule = rules.get(result.rule)
        broken = own is not None and own.status == FAIL
        if own is None or rule is None or not (broken and _grows_with_queue(rule)):
            judged.append(result)
            continue
        requests = format_count(own.count, "request")
        reason = f"by the {requests} of the stage's first wave, as none was measured"
        judged.append(replace(own, reason="; ".join(filter(None, (reason, own.reason)))))
    return tuple(judged)


def _grows_with_queue(rule: Rule) -> bool:
    """Whether it is an upper limit of a latency."""
    measure = BY_WORD[rule.metric]
    return measure.metric is not None and measure.units is TIME and rule.op.startswith("<")


def judge_sweep(
    sweep: SweepSummary, run: Run, whole: Evaluation | None = None
) -> tuple[SloResult, ...]:
    """Judges the rules of a sweep, from the results of its stages."""
    entries = run.settings.rules.entries
    results = [_judged_by_stages(entry, sweep, run, whole) for entry in entries]
    together = _together([entry.rule for entry in entries], results, sweep)
    return (*results, *together, *_judge_death(results, sweep))


def _judge_death(results: Sequence[SloResult], sweep: SweepSummary) -> Iterator[SloResult]:
    """Fails a sweep in which the server died, whatever it held before: rules are judged by the
    stages in which it answered to the end."""
    dead = list_dead_stages(sweep.levels)
    if dead and any(result.decides for result in results):
        yield SloResult(
            rule=ANSWERS_IN_EACH_STAGE,
            status=FAIL,
            reason=f"the server died at {describe_levels(sweep.axis, dead[0])}: {dead[0].silence}",
        )


def combine_results(results: Sequence[SloResult]) -> str | None:
    """FAIL if a deciding rule failed, else INCONCLUSIVE if one was, else PASS. None: there are no
    rules."""
    if not results:
        return None
    found = {result.status for result in results if result.decides}
    for status in (FAIL, INCONCLUSIVE):
        if status in found:
            return status
    return PASS


# -- a rule ----------------------------------------------------------------------------------------


def _judged(entry: RuleEntry, seen: Evaluation) -> SloResult | None:
    """None: it is about other stages, or about those of a base that has none like this."""
    rule, stage = entry.rule, seen.run.stage
    if rule is None:
        return SloResult(rule=entry.text, status=INCONCLUSIVE, reason=entry.why)
    if rule.staged and stage is None:
        return _open(rule, "it selects stages, but this run is not a sweep")
    if stage is not None and not rule.at(stage.value):
        return None
    base, found = _base_of(rule, seen) if rule.base else (None, compute_rule_value(rule, seen))
    if found is None:
        return None
    by_point = seen.run.settings.slo_mode == POINT
    if _gets_worse(rule, found) and not rule.base and _went_on_after_silence(seen):
        found = _take_calm_trend(rule, found, seen)
    # what cut requests leave open stays open
    tested = replaced(found, ends=None, trend="") if by_point else found
    error = _find_error(rule, base, seen)
    blame = _blame(rule, tested, error, seen, by_point=by_point)
    status, reason, longer = _decided(rule, tested, seen, blame)
    # what is not known for another reason than chance is not known to be close
    by_chance = not (blame or _describe_lacking_records(seen) or seen.last_silence)
    if status == INCONCLUSIVE and not blame and (ended := _ended_by(rule, found, seen.run)):
        status, reason, longer = FAIL, f"it ended the {ended}", None
    ends = found.ends or (None, None)
    if status == INCONCLUSIVE and not blame and (look := _find_decision(rule, found, seen.run)):
        status = look.status
        reason = _describe_decision(look)
        longer = None
        ends = None, None  # the decision rests on another
    if status == INCONCLUSIVE and not blame and (silence := _broken_by_silence(rule, found, seen)):
        status = FAIL
        reason = "; ".join(filter(None, (found.note, silence)))
        longer = None
        ends = None, None  # that the server is down is no chance
    beside = (
        _describe_counted_beside(found, reason),
        _describe_counted_chunks(rule, seen),
        _describe_silent_base(rule, base),
    )
    reason = "; ".join(filter(None, (reason, *beside)))
    factor = rule.factor

    def shown(value: float | None) -> float | None:
        return None if value is None else value * factor

    low, high = ends
    return SloResult(
        rule=str(rule),
        status=status,
        decides=rule.decides,
        abort=rule.kind == ABORT,
        observed=shown(found.value),
        limit=rule.number,
        unit=rule.unit,
        worst=shown(found.worst),
        low=shown(low),
        high=shown(high),
        count=found.count,
        effective=found.size if shows_correlation(found) else None,
        longer_s=longer,
        longer_is_exact=longer is not None and is_pure_share(rule, tested),
        voided=bool(blame),
        likely=_foretell(rule, tested, seen) if status == INCONCLUSIVE and not blame else "",
        close_to_limit=by_chance
        and status == INCONCLUSIVE
        and _is_close_to_limit(rule, tested, error, seen),
        reason=reason,
    )


def _describe_counted_beside(found: ObservedValue, reason: str) -> str:
    """Which requests are in the figure, and not in the table of the successful ones; a percentile
    that lands on a failed one has that as its ``reason`` already."""
    counted = list[str]()
    named = bool(found.note) and found.note in reason and math.isinf(found.value or 0.0)
    if found.infinite and not named:
        counted.append(f"{format_count(found.infinite, 'failed request')} as +infinity")
    if found.cancelled:
        counted.append(
            f"{format_count(found.cancelled, 'cancelled request')}, their missing part estimated"
        )
    beside = f"with {' and '.join(counted)}, unlike the table of successful ones" if counted else ""
    cut = _cut(found)
    return "; ".join(filter(None, ("" if cut in reason else cut, beside)))


def _describe_counted_chunks(rule: Rule, seen: Evaluation) -> str:
    """Where the server counted no tokens; empty: it did, or the rule is not about them."""
    if rule.metric not in OF_OUTPUT_TOKENS:
        return ""
    ok = seen.main.outcome(OK)
    of_chunks = int(ok.requests.has("tokens_from", "chunks")[ok.chosen].sum())
    if not of_chunks:
        return ""
    of_all = "" if of_chunks == ok.size else f" in {of_chunks:,} of {ok.size:,} requests"
    return f"{CHUNKS_AS_TOKENS}{of_all}"


def _ended_by(rule: Rule, found: ObservedValue, run: Run) -> str:
    """What the rule ended as certainly broken, and what was counted by then; empty: nothing. It
    was looked at each second, in another way than here, and the seconds that an interval lacks are
    those that it cut off."""
    if rule.kind != ABORT or found.value is None or rule.holds(found.value):
        return ""
    number, what = (run.stage.number, "stage") if run.stage is not None else (0, "run")
    for broken in run.broken_rules:
        if (broken.rule, broken.stage) == (str(rule), number):
            return f"{what} early: {broken.why}"
    return ""


def _find_decision(rule: Rule, found: ObservedValue, run: Run) -> DecidedRule | None:
    """The decision of the look that ended the run. Requests that ended after it may widen an
    interval, and leave the decision as it is. None: there is none, or the final value is on the
    other side of the limit."""
    if found.value is None or found.undecided:
        return None
    for look in run.decided_rules:
        if look.rule == str(rule):
            return look if rule.holds(found.value) == (look.status == PASS) else None
    return None


def _describe_decision(look: DecidedRule) -> str:
    """``decided at the look after 22 s, with a 95% interval of 202ms to 206ms``"""
    interval = f", with a 95% interval of {look.interval}" if look.interval else ""
    return f"decided at the interim analysis after {look.after_s:.0f} s{interval}"


def _broken_by_silence(rule: Rule, found: ObservedValue, seen: Evaluation) -> str:
    """Why a rule is broken for good, as no request was answered at the end of the run: a longer run would
    have more such requests. Empty: it is not, or not by them. A look at a run that goes on
    (``--until-decided``) does not know whether the server comes back."""
    silence = seen.last_silence
    goes_on = seen.run.settings.until_decided_s is not None
    if silence is None or found.value is None or rule.base or goes_on:
        return ""
    since = seen.run.started_at + silence.began_s
    held = any(rule.holds(value) for value in (found.value, found.worst) if value is not None)
    if held or found.count < MIN_VALUES:
        return ""
    part = select_requests(rule, seen.main)
    if silence.in_flight:
        silent = select_held_up(part, [silence], seen.run)
    else:
        silent = select_lost(part, since)
    if not silent.size:
        return ""
    answering = seen._replace(
        main=_without(silent, seen.main),
        ended=_without(silent, seen.ended),
        time=RateWindow((seen.time.span[0], since), seen.time.pauses),
        settled=None,
    )
    before = compute_rule_value(rule, answering).value
    held_before = before is not None and rule.holds(before)
    if not held_before and not _is_broken_by(silent.size / max(found.count, 1), rule):
        return ""
    from_then = f"{describe_silence([silence])} from {silence.began_s:.1f} s on"
    if silence.in_flight:
        return f"{from_then}: {describe_requests_without_answer([silence])}"
    cut = silent.outcome(CUT).size
    lost = " and ".join(describe_lost_requests(silent.size - cut, cut))
    return f"{from_then}{describe_statuses(count_statuses(silent))}: {lost}"


def _without(these: RequestSelection, part: RequestSelection) -> RequestSelection:
    return RequestSelection(part.requests, part.chosen & ~these.chosen)


def _is_broken_by(failed: float, rule: Rule) -> bool:
    """Whether such a share of failed requests breaks a rule alone, whatever all others have."""
    if rule.metric == "error_rate":
        return not rule.holds(failed)
    if rule.metric == "attainment":
        return not rule.holds(1 - failed)
    metric = BY_WORD[rule.metric].metric
    if rule.percentile is None or metric is None or not metric.censored:
        return False
    beyond = 100 - rule.percentile if rule.op.startswith("<") else rule.percentile
    return failed > beyond / 100


def _base_of(rule: Rule, seen: Evaluation) -> tuple[Evaluation | None, ObservedValue | None]:
    """(the base, by how much the figure is worse); no figure: the base has no such stage."""
    try:
        base = load_matching_base(Path(rule.base), seen.run)
    except (OSError, ValueError) as error:
        return None, ObservedValue(None, note=f"it cannot be compared: {error}")
    return (None, None) if base is None else (base.seen, measure_worsening(rule, base.seen, seen))


def _describe_silent_base(rule: Rule, base: Evaluation | None) -> str:
    """``in rep/base no token came from 20.0 to 26.0 s``. Empty: there is no base, or it answered
    all the time."""
    if base is None or not base.outages:
        return ""
    return f"in {rule.base} {describe_outages(base.outages)}"


def _find_error(rule: Rule, base: Evaluation | None, seen: Evaluation) -> RuleError:
    """By how much the load generator may have the figure of a rule wrong."""
    own = measure_rule_error(rule, seen)
    if base is None:
        return own
    here, before = compute_rule_value(rule, seen).value, compute_rule_value(rule, base).value
    if here is None or before is None or (rule.unit == "%" and not before):
        return RuleError()
    return combine_rule_errors(rule, own, measure_rule_error(rule, base), here, before)


def _decided(
    rule: Rule, found: ObservedValue, seen: Evaluation, blame: str
) -> tuple[str, str, float | None]:
    """(status, reason, how many seconds more may decide it)."""
    if found.value is None:
        return INCONCLUSIVE, found.note, None
    holds = found.decides(rule)
    note = found.note
    if note.startswith(TOO_FEW):
        note = f"each of {format_count(found.count, 'request')} is far from the limit"
    reasons = "; ".join(filter(None, (note, _cut(found), _assumed(rule, found, seen))))
    if blame:
        return INCONCLUSIVE, blame, None
    if holds is None:
        return INCONCLUSIVE, *_explain_open_rule(rule, found, seen)
    if not holds:
        if (
            rule.metric in OF_SCHEDULE
            and seen.delivery is not None
            and seen.delivery.cause == CLIENT
        ):
            return INCONCLUSIVE, "the load generator limited the load, not the server", None
        return FAIL, "; ".join(filter(None, (reasons, describe_start_burst(rule, seen)))), None
    if lacking := _describe_lacking_records(seen):
        return INCONCLUSIVE, lacking, None
    if _could_reach_limit(rule, found, seen):
        return INCONCLUSIVE, _unsettled(found, seen), None
    return PASS, reasons, None


def _describe_lacking_records(seen: Evaluation) -> str:
    """Which records are, or may be, missing. Empty: none are. Where some are, a rule may fail, but
    it does not pass."""
    if lost := seen.run.records_lost:
        return f"records of workers that never arrived: {lost}"
    if seen.broken_lines:
        return f"unreadable lines of profile_export.jsonl: {seen.broken_lines}"
    return NO_END if seen.run.has_no_end else seen.run.gone_records


def _is_close_to_limit(
    rule: Rule, found: ObservedValue, error: RuleError, seen: Evaluation
) -> bool:
    """Whether the interval of an INCONCLUSIVE rule shows its figure to be close to the limit,
    whatever the load generator may have wrong, with no other reason not to decide."""
    low, high = found.ends or (None, None)
    settled = not _could_reach_limit(rule, found, seen)
    known = not (found.undecided or found.never_sent)
    return (
        low is not None
        and high is not None
        and settled
        and known
        and low <= rule.limit <= high
        and rule.decides_around(low - error.lower, high + error.higher)
    )


def _unsettled(found: ObservedValue, seen: Evaluation) -> str:
    """A server that answers nothing at the end has not settled, and does not."""
    if seen.last_silence is not None:
        silent = describe_silence([seen.last_silence])
        return f"it {found.trend} over the run, and {silent} at the end of it"
    return f"it {found.trend} over the run, and could reach the limit in as much time again"


def _could_reach_limit(rule: Rule, found: ObservedValue, seen: Evaluation) -> bool:
    """Whether a figure that got worse over the run could break the rule in as much time again: the
    end of its interval is then as far from it as now."""
    if not _gets_worse(rule, found):
        return False
    if seen.last_silence or found.later is None or found.value is None:
        return True
    now = _find_worst(found, found.value)
    low, high = (now, now) if found.ends is None else found.ends
    end = high if rule.op.startswith("<") else low
    return end is None or not rule.holds(found.later + (end - now))


def _gets_worse(rule: Rule, found: ObservedValue) -> bool:
    return bool(found.trend) and (found.trend == RISES) == rule.op.startswith("<")


def _went_on_after_silence(seen: Evaluation) -> bool:
    """Whether the server was silent once, and as many requests were sent after that time as were
    held up in it. Silences that come again may come longer and longer."""
    if len(seen.outages) != 1 or seen.run.settings.compares:
        return False
    ended_s = seen.outages[0].ended_s
    if ended_s is None:
        return False
    held = select_held_up(seen.main, seen.outages, seen.run)
    after = seen.main.where(find_send_times(seen.main) > seen.run.started_at + ended_s)
    return after.size >= max(held.size, MIN_VALUES)


def _take_calm_trend(rule: Rule, found: ObservedValue, seen: Evaluation) -> ObservedValue:
    """With the trend of the requests that were not held up: one silence is no trend. Those that
    were held up stay in the figure and its interval, and what the others rise by is added."""
    calm = compute_rule_value(rule, _leave_silence_out(seen))
    if calm.value is None or found.value is None:
        return found
    later = None
    if calm.later is not None:
        later = _find_worst(found, found.value) + calm.later - _find_worst(calm, calm.value)
    return replaced(found, trend=calm.trend, later=later)


def _find_worst(found: ObservedValue, value: float) -> float:
    """Its ``value``, or what it is if cut requests come out at their worst."""
    return value if found.worst is None else found.worst


def _assumed(rule: Rule, found: ObservedValue, seen: Evaluation) -> str:
    """What the decision, or the printed end of the interval, rests on beside the values; empty: the
    values show that end."""
    up = _is_upper_assumed(rule)
    if found.value is None:
        return ""
    if (rule.limit > found.value) != up and not found.extrapolated:
        return ""
    return _describe_assumption(rule, found, seen)


def _is_upper_assumed(rule: Rule) -> bool:
    """Of a percentile below the median it is the lower end that values may not show."""
    return rule.percentile is None or rule.percentile >= 50


def _describe_assumption(rule: Rule, found: ObservedValue, seen: Evaluation) -> str:
    """Of a percentile ``fewer than 20 independent values lie beyond p95, so the upper end is an
    assumption: rarer values are taken to follow the trend of the largest ones``; of a mean ``the
    values vary too much, so the upper end is an assumption: it is computed from the mean of the largest 50%``; of either that the largest values may
    all be of one burst. Empty: the values show that end."""
    up = _is_upper_assumed(rule)
    end = None if found.ends is None else found.ends[1 if up else 0]
    if not (found.extrapolated or found.basis) or end is None:
        return ""
    which, side = ("largest", "upper") if up else ("smallest", "lower")
    slowest = f"the {which} {100 * found.slowest:.3g}%"
    few = found.extrapolated
    if rule.percentile is not None and found.size is not None:
        share = rule.percentile / 100
        outside = find_share_beyond(share) if up else share
        few = few or count_beyond(found.size, outside) < TAIL_VALUES
    why = "the values vary too much"
    if few:
        where = "beyond" if up else "below"
        why = f"fewer than {TAIL_VALUES:.0f} independent values lie {where} {rule.stat}"
    if found.basis == EndBasis.ERROR:
        basis = f"rarer values are taken to follow the trend of the {which} ones"
    elif found.basis == EndBasis.MEAN:
        basis = f"it is computed from the mean of {slowest}"
    elif found.basis == EndBasis.MEAN_OF_BURST:
        why = f"{slowest} of the values may all be of one burst"
        basis = "it is computed from their mean"
    elif up:
        times = find_most_times_largest(found.count, len(seen.run.settings.looks) or 1)
        basis = f"it is {times:.3g} times the largest value"
    else:
        basis = "it is computed from the smallest value"
    return f"{why}, so the {side} {ASSUMED_END}: {basis}"


def _cut(found: ObservedValue) -> str:
    """How many requests were cut, and of how many it is not known whether they meet the rule."""
    if not found.cut:
        return ""
    cut = f"{found.cut} of the requests {'was' if found.cut == 1 else 'were'} cut"
    if not found.undecided:
        return cut
    return f"{cut}, and {found.undecided} of them might have met the limit or missed it"


def _explain_open_rule(
    rule: Rule, found: ObservedValue, seen: Evaluation
) -> tuple[str, float | None]:
    """Why a figure that is there does not decide, and how much longer a run may."""
    few = found.note.startswith(TOO_FEW)
    if found.note and (found.ends == (None, None) or few):
        return found.note, None
    if found.cancelled and not seen.main.outcome(*COUNTED).size:
        return "a longer run does not help: every request was cancelled on purpose", None
    if (
        found.value is not None
        and rule.holds(found.value)
        and _could_reach_limit(rule, found, seen)
    ):
        return _unsettled(found, seen), None
    if rule.is_at_edge and rule.holds(found.value or 0.0):
        edge = format_brief(rule.limit * rule.factor, rule.unit)
        return f"no number of requests shows exactly {edge}: {AT_EDGE}", None
    burst = ""
    if not (found.never_sent or found.undecided or seen.last_silence):
        burst = describe_start_burst(rule, seen) or describe_decided_rest(rule, found, seen)
    longer = (
        None
        if found.never_sent or found.undecided or rule.base or burst
        else estimate_longer_s(rule, found, seen.time.seconds)
    )
    note = found.note
    more = burst or "a longer run may decide it"
    if rule.base:  # the interval of the base does not narrow with this run
        more = "a longer run and a longer base may decide it"
    if longer is not None:
        roughly = "" if is_pure_share(rule, found) else "roughly "
        more = f"{roughly}{format_duration_rounded_up(longer)} more may decide it"
    if found.never_sent:  # no request is open that a longer run or grace period would close
        more = "a run that sends all arrivals may decide it"
        note = (
            f"{format_count(found.never_sent, 'arrival')} that were never sent could have any value"
        )
    if found.undecided:
        more = "a longer grace period (-s) may decide it"
        if seen.run.cut_at is not None:
            more = "a run without a second Ctrl-C may decide it"
    if hopeless := _explain_useless_time(rule, found, seen, burst):
        more, longer = hopeless, None
    if rule.percentile is not None and found.ends is not None and None in found.ends:
        return f"{explain_missing_end(found)}; {more}", longer
    likely = _foretell(rule, found, seen)
    why = f"{INTERVAL_CROSSES} (likely {likely})" if likely else INTERVAL_CROSSES
    if found.ends is None:
        why = "its ends lie on both sides of the limit"
    why = f"{why}; {more}" if burst else f"{why}, {more}"
    beyond = ""
    if found.extrapolated and not burst:  # the end goes by the requests of the start
        beyond = _describe_assumption(rule, found, seen)
    return "; ".join(filter(None, (why, beyond, note, _cut(found)))), longer


def _explain_useless_time(rule: Rule, found: ObservedValue, seen: Evaluation, burst: str) -> str:
    """Why a longer run cannot decide a rule. Empty: it may, or ``burst`` has another reason."""
    if seen.last_silence is not None:  # more time of a dead server adds no figure of it
        return f"{describe_silence([seen.last_silence])} at the end of the run"
    if is_gathered(rule, seen.run.notes):
        return f"{describe_gathering(seen.run.notes)}, so a longer run does not help"
    if burst or rule.base or found.never_sent or found.undecided:
        return ""
    if WHEN_NEXT_BEGAN in found.note or BEFORE_NEXT in found.note:
        return "disruptions further apart may decide it"
    if failures := _describe_failure_burst(rule, found, seen):
        return failures
    if _keeps_without_silence(rule, seen):
        if any(outage.ended_s is None for outage in seen.outages):
            return f"{describe_silence(seen.outages)} at the end of the run"
        return "only a longer run shows how often the server is silent"
    load = describe_needed_load(seen.run)
    return f"{load} may decide it" if load else ""


def _keeps_without_silence(rule: Rule, seen: Evaluation) -> bool:
    """Whether the rule is open only by the requests that were in flight in an outage. As
    their times and those of the others have nothing in common, the interval does not narrow with
    the root of the time. How often a disruption comes, its schedule says."""
    if not seen.outages or seen.disruptions is not None or seen.run.settings.compares:
        return False
    return compute_rule_value(rule, _leave_silence_out(seen)).decides(rule) is True


def _describe_failure_burst(rule: Rule, found: ObservedValue, seen: Evaluation) -> str:
    """``all 38 failures are one burst``, where they alone break the rule: each second without more
    of them moves the figure towards the limit. No answer ended between the first and the last of
    them. Empty: they are not, or do not."""
    if found.value is None or rule.holds(found.value):
        return ""
    part = select_requests(rule, seen.main)
    failed = part.outcome(*SERVER_FAILURES)
    if failed.size < MIN_BURST:
        return ""
    ok_ended = part.outcome(OK)["closed_at"]
    failed_at = failed["closed_at"]
    if ((ok_ended > failed_at.min()) & (ok_ended < failed_at.max())).any():
        return ""
    others = seen._replace(
        main=_without(failed, seen.main), ended=_without(failed, seen.ended), settled=None
    )
    rest = compute_rule_value(rule, others).value
    if rest is None or not rule.holds(rest):
        return ""
    return f"all {failed.size:,} failures are one burst"


def _foretell(rule: Rule, found: ObservedValue, seen: Evaluation) -> str:
    """PASS or FAIL where the limit is near the end of the interval; empty: it is open. Nobody
    foretells a PASS of a server that answered nothing at the end or was overloaded, or of a figure
    that got worse over the run."""
    if found.value is None or found.ends is None or found.undecided or found.never_sent:
        return ""
    holds = rule.holds(found.value)
    beyond = [end for end in found.ends if end is not None and rule.holds(end) != holds]
    room = abs(rule.limit - found.value)
    if not beyond or any(room < LIKELY * abs(end - found.value) for end in beyond):
        return ""
    if not holds:
        return FAIL
    overloaded = seen.delivery is not None and seen.delivery.overload is not None
    worsens = _could_reach_limit(rule, found, seen)
    return "" if seen.last_silence or overloaded or worsens else PASS


def estimate_longer_s(rule: Rule, found: ObservedValue, seconds: float) -> float | None:
    """How many more seconds would decide, if the figure stays what it is: an interval narrows with
    the root of the time. None: nobody knows, or more than MAX_LONGER times.

    The figure does not stay: of simulated runs half to four fifths were decided by then, and some
    need ten times as much. Only of a pure share it is exact."""
    if found.value is None or found.ends is None or not seconds > 0:
        return None
    if is_pure_share(rule, found):
        times = _times_of_a_pure_share(rule, found)
        return (times - 1) * seconds if 1 < times <= MAX_LONGER else None
    times = 1.0
    room = abs(rule.limit - found.value)
    for end in found.ends:
        if (
            end is not None
            and math.isfinite(end)
            and room > 0
            and rule.holds(end) != rule.holds(found.value)
        ):
            times = max(times, (abs(end - found.value) / room) ** 2)
    if rule.percentile is not None and None in found.ends and found.size:
        # an end that is not there takes as many independent requests as its percentile needs
        times = max(times, count_needed_values(rule.percentile) / found.size)
    return (max(times, LEAST_LONGER) - 1) * seconds if 1 < times <= MAX_LONGER else None


def is_pure_share(rule: Rule, found: ObservedValue) -> bool:
    """None of the requests counts, or each does: how many more decide, if that stays so, is
    exact."""
    measure = BY_WORD[rule.metric]
    return found.value in (0.0, 1.0) and measure.units is SHARE and measure.metric is None


def _times_of_a_pure_share(rule: Rule, found: ObservedValue) -> float:
    """So many times as many requests decide, if again none of them, or each, counts. The far end is
    then a root of what may lie outside: tail^(1 / size), or 1 - tail^(1 / size). 1: it is decided,
    or no number decides."""
    none = found.value == 0.0
    end = (found.ends or (None, None))[1 if none else 0]
    limit = rule.limit
    if end is None or found.size is None or not 0 < limit < 1:
        return 1.0
    left, needed_left = (1 - end, 1 - limit) if none else (end, limit)
    if not 0 < left < needed_left:
        return 1.0
    return math.ceil(found.size * math.log(left) / math.log(needed_left)) / found.size


def _blame(
    rule: Rule, found: ObservedValue, error: RuleError, seen: Evaluation, *, by_point: bool
) -> str:
    """Why the load generator forbids this judgement: its figure may be off so far that the limit
    lies within that. Empty if it does not. ``by_point``: only an INVALID one forbids."""
    if seen.verdict is not None and UNCERTIFIED in seen.verdict.signals:
        return seen.verdict.reasons[0]
    hidden = found.decides(rule) is None and error.hides(rule, found)
    if error.survives(rule, found) and not hidden:
        return ""
    if by_point and (seen.verdict is None or seen.verdict.level != INVALID):
        return ""
    off = format_brief(max(error.lower, error.higher) * rule.factor, rule.unit, 2)
    return f"{MAY_BE_OFF} {off}, which reaches the limit: {', '.join(error.causes)}"


# -- a rule in a sweep -----------------------------------------------------------------------------


def _judged_by_stages(
    entry: RuleEntry, sweep: SweepSummary, run: Run, whole: Evaluation | None
) -> SloResult:
    if (rule := entry.rule) is None:
        return SloResult(rule=entry.text, status=INCONCLUSIVE, reason=entry.why)
    if rule.base:
        return _at_partners(rule, sweep)
    if rule.staged:
        return _at_stages(rule, sweep, run)
    if _is_of_all_stages(rule):
        return _over_all_stages(entry, rule, sweep, whole)

    if sweep.capacity is not None and (searched := _judge_searched(rule, sweep)) is not None:
        return searched

    def status_of(level: LoadLevel) -> str | None:
        result = _result(level, rule)
        return None if result is None else result.status

    # what the load generator may have turned is no decision of a stage
    found = find_passing_stages(sweep.levels, status_of, distorted_too=True)
    if (level := found.highest) is not None and (result := _result(level, rule)) is not None:
        reason = (
            f"holds up to {describe_levels(sweep.axis, level)}; "
            f"{describe_neighbours(sweep.axis, found, status_of)}"
        )
        reason = "; ".join(filter(None, [reason, result.reason]))
        return replace(result, status=PASS, of_stage=level.value, reason=reason)
    answered = [level for level in sweep.levels if level.succeeded and status_of(level)]
    counted = [level for level in sweep.levels if _counts_for_rule(level, status_of(level))]
    lowest = next(iter(counted or answered), None)
    if lowest is not None:  # of several visits to a level one without an answer shows least
        visits = (level for level in answered if level.value == lowest.value)
        lowest = lowest if lowest.succeeded else next(visits, lowest)
    if lowest is not None and (result := _result(lowest, rule)) is not None:
        is_first = all(level.value >= lowest.value for level in sweep.levels)
        which = "the lowest" if is_first else "the lowest that counts"
        reason = (
            f"at {describe_levels(sweep.axis, lowest)}, {which}"
            f"{'; ' * bool(result.reason)}{result.reason}"
        )
        status = FAIL if result.status == FAIL else INCONCLUSIVE
        return replace(result, status=status, of_stage=lowest.value, reason=reason)
    why = explain_unsound(sweep.axis, sweep.levels[0]) if sweep.levels else "there is none"
    return _open(rule, f"no stage is valid; {why}")


def _judge_searched(rule: Rule, sweep: SweepSummary) -> SloResult | None:
    """By its own capacity, of all stages of a search together; None: they say nothing of it."""
    assert sweep.capacity is not None

    def level_status(level: LoadLevel) -> str | None:
        own = _result(level, rule)
        return None if own is None else own.status

    levels = sweep.capacity.levels
    search = CapacitySearch(
        lowest=levels[0], highest=levels[-1], whole=sweep.axis != RATE,
        stages=tuple(level.evidence for level in sweep.levels if level.evidence is not None),
    )  # fmt: skip
    found = find_capacity(search, [rule])
    shown = [level for level in sweep.levels if _result(level, rule) is not None]
    if found is None or not found.passed or not shown:
        return None
    within = [level for level in shown if found.low is not None and level.value <= found.low]
    # a figure whose own interval crosses the limit would contradict what all stages show together
    passing = [level for level in within if level_status(level) == PASS]
    unbroken = [level for level in within if level_status(level) != FAIL]
    of_lowest = [level for level in shown if level.value == shown[0].value]
    telling = max(of_lowest, key=lambda level: (level_status(level) == FAIL, level.succeeded))
    at = (passing or unbroken or [telling])[-1]
    result = _result(at, rule)
    assert result is not None
    rules = chain.from_iterable(stage.rules for stage in search.stages)
    names = {one.rule for one in rules}
    alone = " by this rule alone" if len(names) > 1 else ""
    status, reason = INCONCLUSIVE, f"capacity {found.format_interval(sweep.unit)}{alone}"
    if found.low is not None:
        interval = "" if found.is_open else " (95% interval)"
        reason = f"{reason}{interval}; the value is at {describe_levels(sweep.axis, at)}"
        if at in passing and at.value < found.low:
            reason = f"{reason}, the highest passing stage up to {format_load(found.low)}"
        if at in unbroken:
            status = PASS
        else:
            reason = f"{reason}: no stage passes the rule"
        if at in unbroken and not passing:
            reason = f"{reason}, INCONCLUSIVE by itself: all stages together decide"
            result = replace(result, low=None, high=None)
    elif found.high is None:
        lowest = format_load(found.levels[0], sweep.unit)
        breaks = "break" if found.levels[0] != 1 else "breaks"
        status, reason = FAIL, f"no level within the rule: {lowest} {breaks} it"
    if status != PASS and at in passing + [one for one in shown if level_status(one) == PASS]:
        # the stage's own interval, inside the limit, is no evidence for this
        result = replace(result, low=None, high=None)
        reason = f"{reason}, by all stages together"
    close = status == INCONCLUSIVE and result.close_to_limit
    return replace(
        result, status=status, of_stage=at.value, reason=reason, longer_s=None, close_to_limit=close
    )


def _counts_for_rule(level: LoadLevel, status: str | None) -> bool:
    """Whether a stage says something about a rule, be it that it is not decided."""
    known = status is not None and level.requests > 0 and not is_client_distorted(level)
    return status == FAIL or known


def _at_stages(rule: Rule, sweep: SweepSummary, run: Run) -> SloResult:
    """The worst of the stages that it names; each of them must have been."""
    asked = _asked(run.settings)
    values = (*asked, *(level.value for level in sweep.levels))
    if not any(rule.at(value, sweep.axis) for value in values):
        return _open(
            rule,
            f"this sweep has no such stage: its stages are {sweep.axis} "
            f"{', '.join(map(format_plain_number, asked))}",
        )
    named = [
        (level, result) for level in sweep.levels if (result := _result(level, rule)) is not None
    ]
    there = {level.value for level, _ in named}
    absent = [value for value in asked if rule.at(value, sweep.axis) and value not in there]
    level, worst = max(named, key=_rank_of_stage) if named else (None, None)
    if level is not None and worst is not None and (worst.status == FAIL or not absent):
        return replace(
            worst,
            of_stage=level.value,
            reason=f"at {describe_levels(sweep.axis, level)}{'; ' * bool(worst.reason)}{worst.reason}",
        )
    dead = [one for one in list_dead_stages(sweep.levels) if rule.at(one.value, sweep.axis)]
    if dead:
        why = f"the server died at {describe_levels(sweep.axis, dead[0])}: {dead[0].silence}"
        return replace(_open(rule, why), status=FAIL)
    missing = f"{sweep.axis} {', '.join(map(format_plain_number, absent))}"
    return _open(
        rule, f"there is no stage of {missing}: {sweep.ended or 'the run did not end in order'}"
    )


def _is_of_all_stages(rule: Rule) -> bool:
    return rule.metric in OF_ANSWERS and not rule.staged


def _over_all_stages(
    entry: RuleEntry, rule: Rule, sweep: SweepSummary, whole: Evaluation | None
) -> SloResult:
    """By the answers of all stages together. A stage that fails fails the sweep: a wrong answer is
    wrong at any load."""
    held = [
        (level, result) for level in sweep.levels if (result := _result(level, rule)) is not None
    ]
    together = None if whole is None else _judged(entry, whole)
    level, worst = max(held, key=_rank_of_stage, default=(None, None))
    if together is not None and (together.status == FAIL or worst is None or worst.status != FAIL):
        return together
    if level is None or worst is None:
        return _open(rule, "no stage was measured")
    reason = "; ".join(filter(None, (f"at {describe_levels(sweep.axis, level)}", worst.reason)))
    return replace(worst, of_stage=level.value, reason=reason)


def _at_partners(rule: Rule, sweep: SweepSummary) -> SloResult:
    """The worst of the stages that the base has too."""
    held = [
        (level, result) for level in sweep.levels if (result := _result(level, rule)) is not None
    ]
    if not held:
        return _open(rule, f"{rule.base} has none of the measured stages")
    level, worst = max(held, key=_rank_of_stage)
    alone = [
        format_plain_number(level.value)
        for level in sweep.levels
        if _result(level, rule) is None and rule.at(level.value)
    ]
    reasons = [
        f"at {describe_levels(sweep.axis, level)}",
        worst.reason,
        f"not compared: {', '.join(alone)}" if alone else "",
    ]
    return replace(worst, of_stage=level.value, reason="; ".join(filter(None, reasons)))


def _rank_of_stage(pair: tuple[LoadLevel, SloResult]) -> tuple[int, bool]:
    """How bad the result of a stage is: an INCONCLUSIVE one is worse where its figure is not even
    known to be close to the limit."""
    _, result = pair
    return WORSE.index(result.status), not result.close_to_limit


def _together(
    rules: Sequence[Rule | None], results: Sequence[SloResult], sweep: SweepSummary
) -> Iterator[SloResult]:
    """Where each rule holds somewhere, and no stage holds all of them."""
    if any(result.decides and result.status != PASS for result in results):
        return
    if sweep.capacity is not None and sweep.capacity.value is not None:
        return
    common = {
        str(rule)
        for rule in rules
        if rule is not None
        and rule.decides
        and not (rule.staged or rule.base or rule.metric in OF_ANSWERS)
    }
    statuses: set[str | None] = set()
    for level in sweep.levels:
        own = [result for result in level.slos if result.rule in common]
        if own and level.succeeded:
            statuses.add(combine_results(own))
    if len(common) > 1 and PASS not in statuses:
        status = INCONCLUSIVE if INCONCLUSIVE in statuses else FAIL
        reason = "each rule holds at some stage, but no stage holds all of them"
        yield SloResult(rule="all rules at one stage", status=status, reason=reason)


def _result(level: LoadLevel, rule: Rule) -> SloResult | None:
    return next((result for result in level.slos if result.rule == str(rule)), None)


def _asked(settings: Settings) -> tuple[float, ...]:
    """The values of the stages that were asked for."""
    try:
        return settings.staged.values if settings.staged else ()
    except ValueError:
        return ()


def _open(rule: Rule, reason: str) -> SloResult:
    return SloResult(
        rule=str(rule),
        status=INCONCLUSIVE,
        decides=rule.decides,
        abort=rule.kind == ABORT,
        limit=rule.number,
        unit=rule.unit,
        reason=reason,
    )
