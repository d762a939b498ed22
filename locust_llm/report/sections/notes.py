"""Notes: what a reader must know before trusting the figures of a run, one sentence or two each."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from locust_llm.exit_status import tolerates_inconclusive
from locust_llm.records.phase_plan import PROFILING, WARMUP
from locust_llm.records.run_facts import DECIDED, IN_WARMUP, LOST_WORKER, NO_RECORD, Run
from locust_llm.records.ttft_itl_latency import NOT_STREAMED
from locust_llm.report.document_blocks import format_interval
from locust_llm.report.measurement_window import describe_needed_load
from locust_llm.report.sections.ab_comparison import DIFFERENT
from locust_llm.report.sections.conditions import Conditions
from locust_llm.report.sections.latency_breakdown_display import QUESTION
from locust_llm.report.sections.prefix_cache import make_cache_remarks
from locust_llm.report.sections.run_summary import Summary
from locust_llm.report.sections.speculation import Speculation
from locust_llm.report.summary_rows import MIN_TOKENS_PER_MERGED_CHUNK, RunCounts
from locust_llm.report.users_and_limit_over_time import (
    describe_arm_limits,
    describe_users,
    format_limit_range,
)
from locust_llm.slo import published_rules
from locust_llm.slo.load_generator_health import (
    BLOCKS_ADVICE,
    FEW,
    FULL_CORE,
    HELD_UP_ADVICE,
    IDLE_ADVICE,
    INVALID,
    LATE_SEND,
    OK,
    STANDSTILL,
    UNCERTIFIED,
    advise_on_processes,
    describe_saturation,
    list_fine_metrics,
)
from locust_llm.slo.percentile import has_too_few_values
from locust_llm.slo.rules import CLOSE, FAIL, INCONCLUSIVE, PASS, PASSES, POINT, WARNS
from locust_llm.text.format import capitalise_sentence, format_brief, format_count, format_duration

MAX_LENGTH_DEVIATION: Final = 0.05
"""Share; a mean length further from the one asked for gets a warning."""
MIN_PREFILL_MS_PER_1K: Final = 1.0
"""No model prefills 1,000 tokens faster: with a billion parameters 2e12 operations, 4 ms of an
H100; a stub takes tenths."""
MIN_CACHED_SHARE: Final = 0.5
"""Of the input tokens; from there on the prefix cache gets a remark."""
OPEN_LOOP_METRICS: Final = ("goodput", "late", "requests_per_s", "ttft_from_due")
"""Rules about these are about arrivals, which a closed loop does not have."""
FIRST_FAILED: Final = "WARNING: each of the first "
"""How the note of a run begins whose first requests have all failed, with what to do about it."""
CHANGED: Final = "The client verdict changed:"
STATUSES: Final = ((FAIL, "failed"), (INCONCLUSIVE, "inconclusive"), (PASS, "passed"))
MAX_LINE_REASONS: Final = 3
"""Unreadable lines whose reason is in the first line of a report; the notes have more."""
NOTHING_RECORDED: Final = "no request was recorded in the profiling phase"
MAX_MISSING: Final = 5
"""Missing things that the first line of a report names."""
ESTIMATED: Final = (
    ", with the first chunk as one token. --per-chunk-usage requests the count from the server "
    "(vLLM)."
)
OLD_MEANS: Final = re.compile(
    r"(?:, (?:prefix cache \d+% of prompt tokens|(?:TTFT|queue|prefill) [\d.,]+ m?s))+\.$"
)
"""Of the server's counters and histograms, in the notes of older runs: the report has them by
itself."""
MAYBE_WARM: Final = re.compile(
    r"(--random-seed \d+ sends the same words in each run), so (?:the server's prefix cache may be "
    r"warm|an earlier run may have filled).*"
)
"""Of a note from before the load."""
LATE_MS: Final = 5.0
VERY_LATE_MS: Final = 100.0
"""Of a send after its admission; from there on a single one gets a remark, and a warning."""
MIN_MERGED_SHARE: Final = 0.01
"""Of the chunks; from there on merged ones get a remark."""


def make_remarks(summary: Summary, run: Run) -> Iterator[str]:
    """Those that apply, the run's own notes first."""
    probe = summary.examination is not None  # its load is artificial: no remarks about it
    left_out = [QUESTION]  # of an older run: the report answers it itself
    left_out += [FIRST_FAILED] * (not summary.conditions.succeeded)  # the headline has it
    notes = (
        _of_decision(note, summary) if note.startswith(DECIDED) else note
        for note in run.notes
        if not note.startswith(tuple(left_out))
    )
    yield from filter(None, (_of_cache(OLD_MEANS.sub(".", note), summary) for note in notes))
    if not probe and not run.imported:
        yield make_loop_remark(
            summary.conditions,
            generates=run.settings.generates,
            by_arm=describe_arm_limits(run),
        )
        yield from _started(summary, run)
    yield from _others(summary)
    yield from _read_as_open(summary, run)
    yield from _missing(summary, run)
    yield from _rejected(summary.counts)
    if not probe:
        yield from _lengths(summary.conditions)
    if not (summary.swept or probe):  # the stages of a sweep have their own
        yield from () if run.imported else _unrealistic(summary, run)
        yield from _too_few(summary, run)
    yield from () if run.imported else _tokens(summary.counts, summary.conditions.succeeded)
    if run.settings.generates:
        yield from _without_itl(summary.counts, summary.conditions.succeeded)
    yield from _chunks(summary.counts, summary.conditions.succeeded)
    yield from map(format_speculation, summary.speculation)
    yield from make_cache_remarks(summary.prefix_cache)
    yield from _clock(summary)
    yield from _busy(summary)
    yield from _saturated(summary)
    yield from _sent_late(summary)
    yield from _changed(summary, run)


def _of_decision(note: str, summary: Summary) -> str:
    """The note of the look that ended the run, with the rules that the requests left open which
    ended after it."""
    if not summary.inconclusive:
        return note
    rules = ", ".join(result.rule for result in summary.inconclusive)
    are = "are" if len(summary.inconclusive) > 1 else "is"
    return (
        f"{note} With the requests that ended after the decision, {rules} {are} INCONCLUSIVE again."
    )


def _of_cache(note: str, summary: Summary) -> str:
    """A note from before the load, that the prefix cache may be warm, with the share that was
    measured; empty: it was not warm. Other notes stay as they are."""
    known = MAYBE_WARM.fullmatch(note)
    if known is None:
        return note
    c, by = summary.conditions, ""
    share = c.cached_share
    if share is None:
        share, by = c.cached_share_by_metrics, ", by its metrics"
    if share is None:
        return note
    if round(share, 2) == 0:
        return ""
    cached = f"{share:.0%} of the input tokens came from the server's prefix cache{by}"
    return f"{cached}. {known[1]}; --fresh-words sends new ones."


def select_top_remarks(summary: Summary, run: Run) -> Iterator[str]:
    """Those that a reader of the console must know, what went wrong first. The first line has what
    was lost, and the log when."""
    remarks = [
        remark
        for remark in make_remarks(summary, run)
        if not (summary.counts.records_lost and _of_loss(remark))
    ]
    yield from (remark for remark in remarks if remark.startswith("ERROR"))
    yield from (remark for remark in remarks if remark.startswith(("WARNING", CHANGED)))
    yield from (
        remark
        for remark in remarks
        if (remark in run.notes and not remark.startswith(("ERROR", "WARNING")))
        or remark.startswith(DECIDED)
    )


def _of_loss(remark: str) -> bool:
    told = remark.startswith(LOST_WORKER) and NO_RECORD in remark
    return told and IN_WARMUP not in remark


def list_missing_parts(summary: Summary, run: Run) -> tuple[str, ...]:
    """What is missing of the run, or of its reports; its status then is 6."""
    counts = summary.counts
    missing = [*run.unread, *run.gaps]
    if not (summary.conditions.requests or run.gaps or counts.records_lost or run.gone_records):
        missing.append(NOTHING_RECORDED)
    if counts.records_lost:
        missing.append(f"{run.lost_in_words}, so counts and rates may be too low")
    if counts.broken_lines:
        more = "" if counts.broken_lines <= MAX_LINE_REASONS else ", ..."
        first = f"{'; '.join(summary.unread[:MAX_LINE_REASONS])}{more}"
        missing.append(
            f"{format_count(counts.broken_lines, 'line')} of profile_export.jsonl could not be "
            f"read ({first})"
        )
    if summary.sweep is not None and summary.sweep.missing:
        missing.append("stages or parts of stages are missing")
    return (*missing, *summary.unmade)


def format_incomplete_line(summary: Summary, run: Run) -> str | None:
    """The first line of a report from which something is missing; None of a complete one."""
    if not (missing := list_missing_parts(summary, run)):
        return None
    more = (
        f"; and {len(missing) - MAX_MISSING} more, see the notes"
        if len(missing) > MAX_MISSING
        else ""
    )
    return f"INCOMPLETE: {'; '.join(missing[:MAX_MISSING])}{more}."


def format_stopped_line(summary: Summary, run: Run) -> str | None:
    """That somebody stopped the run before its end."""
    if not run.stopped_early:
        return None
    after = _cut_after(run) if summary.conditions.cut else None
    cut = "" if after is None else f", and {after} a second signal (Ctrl-C) ended the open requests"
    return f"STOPPED EARLY: the run was stopped {run.stopped_early}{cut}."


def _cut_after(run: Run) -> str | None:
    """``2 s later``: how long after the stop somebody ended the wait for what was open; None:
    nobody did."""
    if run.cut_at is None or run.stopping_at is None:
        return None
    return f"{format_duration(max(0.0, run.cut_at - run.stopping_at))} later"


def _why_cut(run: Run) -> str:
    """What ended the wait for requests that were still running."""
    if (after := _cut_after(run)) is not None:
        return f"a second signal (Ctrl-C) came, {after.replace('later', 'after the stop')}"
    grace_s = run.settings.stop_timeout_s
    return (
        f"the grace period of {grace_s:g} s ended"
        if grace_s
        else "the run ended, without a grace period"
    )


def format_verdict_line(summary: Summary, run: Run) -> str | None:
    """The line above the tables when the load generator may have figures wrong; None when it may
    not."""
    if summary.client is None or summary.client.level == OK:
        return None
    if not summary.conditions.succeeded and summary.examination is None:
        if STANDSTILL not in summary.client.signals:
            return None  # there are no figures
        reasons = capitalise_sentence("; ".join(summary.client.reasons))
        advice = _for_locustfile(summary.client.advice, run)
        return f"CLIENT {summary.client.level}: {reasons}. {advice}"
    fine = ", ".join(list_fine_metrics(summary.figure_errors))
    # of an experiment the values are other ones; without a check nothing is known to be fine
    if summary.examination is not None or UNCERTIFIED in summary.client.signals:
        fine = ""
    if summary.client.level == INVALID:
        effect = f"do not use these metrics{f', except {fine}' if fine else ''}"
    else:
        effect = f"some of these metrics may be inaccurate{f', but not {fine}' if fine else ''}"
    if summary.examination is None:
        advice = _for_locustfile(summary.client.advice, run)
    else:
        advice = summary.examination.client_advice
    reasons = capitalise_sentence("; ".join(summary.client.reasons))
    if summary.paired is not None:  # the table has them apart
        reasons = f"Of base and candidate together: {reasons[:1].lower()}{reasons[1:]}"
    sentences = filter(None, [effect, reasons, *_stand(summary, run), advice])
    return f"CLIENT {summary.client.level}: {'. '.join(sentences)}"


def _for_locustfile(advice: str, run: Run) -> str:
    """Code that blocks is looked for only where there is code of the user's."""
    return (
        f"{advice} {BLOCKS_ADVICE}"
        if advice in (IDLE_ADVICE, HELD_UP_ADVICE) and run.settings.has_own_code
        else advice
    )


def _stand(summary: Summary, run: Run) -> Iterator[str]:
    """That rules and differences are decided beside a client verdict below OK."""
    decided = sum(result.decides and result.status != INCONCLUSIVE for result in summary.slos)
    by_point = (
        run.settings.slo_mode == POINT
        and summary.client is not None
        and summary.client.level != INVALID
    )
    if decided and not by_point:
        which, them = (
            ("decided rule stands", "it")
            if decided == 1
            else (f"{decided} decided rules stand", "them")
        )
        yield f"The {which}: such an error cannot have changed {them}"
    called = 0 if summary.paired is None else summary.paired.different
    if called and summary.paired is not None and summary.paired.verdict == DIFFERENT:
        one = called == 1
        yield (
            f"The {'difference that is' if one else f'{called} differences that are'} called "
            f"better or worse stand{'s' * one}: such an error cannot have changed "
            f"{'it' if one else 'them'}. Other differences within this error allow no conclusion"
        )


def format_slo_line(summary: Summary) -> str | None:
    """The results of the rules in one line; None without rules."""
    if summary.slo_status is None:
        return None
    count_of = Counter(result.status for result in summary.slos)
    counts = ", ".join(
        f"{count_of[status]} {word}" for status, word in STATUSES if count_of[status]
    )
    warnings = sum(not result.decides for result in summary.slos)
    kind = "a warn: rule" if warnings == 1 else "warn: rules"
    return f"SLO {summary.slo_status}: {counts}" + (
        f" ({warnings} of them {kind})." if warnings else "."
    )


def format_users(conditions: Conditions) -> str:
    """``6 users``; ``2 to 6 users (4.1 on average)``."""
    return describe_users(conditions.users, conditions.users_in_force)


def format_policy_lines(summary: Summary, run: Run, *, ends_run: bool = False) -> Iterator[str]:
    """Which rules are INCONCLUSIVE, and how rules were judged, where that is not the default.
    ``ends_run``: also what that does to the exit status. Only the run's own end has this one."""
    s = run.settings
    if _is_status_of_rules(summary, run):
        line, status = _describe_inconclusive(summary, s.inconclusive)
        yield f"{line} {status}" if ends_run else line
    if s.slo_mode == POINT and summary.slos:
        yield (
            "SLOs are judged by the measured value alone, without their intervals (--slo-mode "
            "point)."
        )


def format_exit_status(summary: Summary, run: Run) -> str:
    """What INCONCLUSIVE rules do to the exit status of a run. Empty: they do nothing."""
    if not _is_status_of_rules(summary, run):
        return ""
    return _describe_inconclusive(summary, run.settings.inconclusive)[1]


def _is_status_of_rules(summary: Summary, run: Run) -> bool:
    """Whether INCONCLUSIVE rules decide the exit status, and nothing else does."""
    c = summary.conditions
    whole = (c.succeeded or c.cancelled) and not list_missing_parts(summary, run)
    invalid = (
        run.settings.published_rules == published_rules.FAILS
        and summary.validity is not None
        and not summary.validity.valid
    )
    return bool(summary.slo_status == INCONCLUSIVE and whole and not invalid)


def _describe_inconclusive(summary: Summary, policy: str) -> tuple[str, str]:
    """``WARNING: 1 rule is INCONCLUSIVE: its 95% interval (95ms to 108ms) holds the limit 100ms.``,
    and ``Exit status 0; use --inconclusive fail to fail.``"""
    rules = summary.inconclusive
    which = f"{format_count(len(rules), 'rule')} {'is' if len(rules) == 1 else 'are'} INCONCLUSIVE"
    if not tolerates_inconclusive(policy, close_to_limit=summary.close_to_limit):
        return f"{which}.", "Exit status 4; use --inconclusive warn to end with 0."
    if policy != CLOSE:
        counted = "counts" if len(rules) == 1 else "count"
        effect = f", and {counted} as passed" if policy == PASSES else ""
        warning = "WARNING: " * (policy == WARNS)
        return f"{warning}{which}{effect} (--inconclusive {policy}).", "Exit status 0."
    why = "their 95% intervals contain their limits"
    if len(rules) == 1:
        limit = format_brief(rules[0].limit or 0.0, rules[0].unit)
        why = f"its 95% interval ({format_interval(rules[0])}) contains the limit {limit}"
    return f"WARNING: {which}: {why}.", "Exit status 0; use --inconclusive fail to fail."


def make_loop_remark(conditions: Conditions, *, generates: bool = True, by_arm: str = "") -> str:
    """What the latencies of this kind of loop leave out, and what to run or read instead
    (coordinated omission). ``generates``: answers have a first token; ``by_arm``: the limits of two
    arms that differ in them."""
    limit = by_arm or format_limit_range(conditions.limit_in_force) or conditions.prefill_limit
    gated = limit is not None
    if conditions.loop == "open" and not generates:
        return (
            "Open loop: requests followed a schedule, however slow the server was. Request "
            "Latency starts at the send. Schedule Delay is the wait before it, for a free user or "
            "a prefill slot."
        )
    if conditions.loop == "open":
        gate = f" and a prefill slot (limit {limit})" if gated else ""
        return (
            "Open loop: requests followed a schedule, however slow the server was. Time to First "
            "Token starts at the send. TTFT from Due starts when the request was due, so it "
            f"includes the wait for a free user{gate}."
        )
    allowed = (
        f"The prefill limit allowed {limit} {'awaiting their first token ' * generates}at a time"
    )
    if conditions.limit_in_force is not None and conditions.limit_in_force.without_s:
        allowed += f", except for {conditions.limit_in_force.without_s:.1f} s without a limit"
    if by_arm:
        allowed = f"The prefill limit differs on purpose ({by_arm})"
    gate = (
        f" {allowed}; Gate Wait is "
        + (
            "part of TTFT from Due, not of Time to First Token or Request Latency."
            if generates
            else "no part of Request Latency."
        )
        if gated
        else ""
    )
    return (
        "Closed loop: a user sends its next request only after its last response. A slow server "
        "therefore gets fewer requests, and latencies are lower than under steady arrivals "
        f"(coordinated omission).{gate} For steady arrivals, use a rate (--request-rate) instead "
        f"of the number of users (-u){' and of the prefill limit' * gated}."
    )


def _started(summary: Summary, run: Run) -> Iterator[str]:
    """How fast the users began to send what is measured here."""
    if run.warmup_went_on:
        yield from _went_on(summary.counts.in_flight_at_profiling, run)
        return
    stage = 0 if run.stage is None else run.stage.number
    yield from (
        str(start) for start in run.starts if (start.phase, start.stage) == (PROFILING, stage)
    )


def _others(summary: Summary) -> Iterator[str]:
    """The server had more requests than this run. Where the run gave some up, the server may still
    have worked on them, so nobody else is claimed."""
    if (load := summary.other_load) is None:
        return
    source = "one reading of its metrics" if load.of_one_reading else "means of its metrics"
    given_up = bool(summary.conditions.cancelled) or any(
        failure.outcome.endswith("timeout") for failure in summary.failures
    )
    if given_up:
        answered = bool(summary.conditions.succeeded)
        yield (
            f"WARNING: the server had at least {load.others:.1f} requests more than this run, of "
            f"{load.in_server:.1f} ({source}): requests that this run gave up, or other "
            f"clients'.{' The latencies reflect them too.' * answered}"
        )
        return
    yield (
        f"WARNING: other clients used the server: at least {load.others:.1f} of the {load.in_server:.1f} "
        f"requests in it were not from this run ({source}). The latencies reflect both loads."
    )


def _went_on(in_flight: int, run: Run) -> Iterator[str]:
    """Of a warmup whose load went on."""
    yield (
        f"The load of the warmup continued. {format_count(in_flight, 'request')} in flight when "
        f"profiling began {'is' if in_flight == 1 else 'are'} left out."
    )
    start = next((start for start in run.starts if start.phase == WARMUP), None)
    took_s = 0.0 if start is None else start.took_s
    if took_s is None or took_s > (run.settings.warmup_duration or 0.0):
        yield "WARNING: the warmup ended before all users had started."


def _missing(summary: Summary, run: Run) -> Iterator[str]:
    """What is not in the figures."""
    conditions, counts = summary.conditions, summary.counts
    if not conditions.requests:
        yield "No request was recorded in the profiling phase, so there is nothing to report."
    if run.stopping_at is None:
        yield (
            "WARNING: the run did not end cleanly, so requests that were still running may be "
            "missing."
        )
    if conditions.cut and counts.cut_ages_s is not None:
        low, high = counts.cut_ages_s
        ages = f"{low:.1f} to {high:.1f} s" if f"{low:.1f}" != f"{high:.1f}" else f"{low:.1f} s"
        none = f", {counts.cut_without_chunk} of them before the first token" * bool(
            counts.cut_without_chunk
        )
        yield (
            f"{_requests(conditions.cut)} unfinished when {_why_cut(run)}, at an age of "
            f"{ages}{none}: not in the latencies above. SLOs count each with its best and worst case."
        )
    if conditions.cancelled:
        yield (
            f"{_requests(conditions.cancelled)} cancelled on purpose: neither success nor failure."
        )
    if counts.turned_away:
        gated = conditions.prefill_limit is not None or conditions.limit_in_force is not None
        where = "waiting for a prefill slot" if gated else "due"
        yield f"{_requests(counts.turned_away)} {where} when the run ended and never sent."
    if counts.broken_lines:
        which = "; ".join(summary.unread)
        yield (
            f"WARNING: {format_count(counts.broken_lines, 'unreadable line')} of "
            f"profile_export.jsonl left out" + (f" ({which})." if which else ".")
        )
    yield from (f"WARNING: {what}." for what in run.unread)
    yield from (f"WARNING: {what}." for what in summary.unmade)
    if (asked := len(set(run.settings.percentiles))) > (shown := len(run.settings.columns)):
        yield (
            f"The tables show {shown} of the {asked} requested percentiles: the first ones between "
            "0 and 99.9."
        )
    if counts.not_streamed and run.settings.generates:
        slots = (
            ", and each occupied its prefill slot to the end"
            if conditions.prefill_limit is not None
            else ""
        )
        yield (
            f"{_requests(counts.not_streamed)} answered in one piece instead of a stream: no Time "
            f"to First Token{slots}."
        )


def _lengths(conditions: Conditions) -> Iterator[str]:
    for what, asked, deviation in (
        ("input", conditions.asked_input_tokens, conditions.input_deviation),
        ("output", conditions.asked_output_tokens, conditions.output_deviation),
    ):
        if deviation is not None and asked is not None and abs(deviation) > MAX_LENGTH_DEVIATION:
            side = "above" if deviation > 0 else "below"
            yield (
                f"WARNING: the mean {what} length is {abs(deviation):.1%} {side} the "
                f"{format_brief(asked)} requested tokens."
            )
    chunks, asked = conditions.output_tokens, conditions.asked_output_tokens
    if conditions.output_deviation is None and chunks is not None and asked:
        deviation = chunks / asked - 1
        if abs(deviation) > MAX_LENGTH_DEVIATION:
            side = "more" if deviation > 0 else "fewer"
            yield (
                f"WARNING: responses had {format_brief(chunks)} chunks on average, "
                f"{abs(deviation):.1%} {side} than the {format_brief(asked)} requested tokens. The "
                "server counted no tokens: chunks hold several, or responses had another length."
            )


def _unrealistic(summary: Summary, run: Run) -> Iterator[str]:
    """Signs of an endpoint that computes less than real requests would need: a stub, a cache,
    repeated prompts."""
    s, c, g = run.settings, summary.conditions, summary.growth
    if g is not None and g.high < MIN_PREFILL_MS_PER_1K:
        yield (
            f"WARNING: TTFT does not grow with the prompt: {format_duration(g.short_ttft_ms / 1e3)} up to "
            f"{g.short_tokens:,.0f} tokens, {format_duration(g.long_ttft_ms / 1e3)} from "
            f"{g.long_tokens:,.0f} tokens, {g.ms_per_1k:.2f} ms for each 1,000 tokens (95% interval {g.low:.2f} to "
            f"{g.high:.2f}). A stub or a cache behaves like this. The test does not measure a "
            "model, which must read the whole prompt."
        )
    if c.cached_share is not None and c.cached_share > MIN_CACHED_SHARE:
        turns = c.turns_per_session is not None
        shared = bool(
            s.shared_system_prompt_length or s.num_prefix_prompts or s.prefix_cache_hit_rate
        )
        why = " and ".join(["growing conversations"] * turns + ["shared prefixes"] * shared)
        cached = f"{c.cached_share:.0%} of the input tokens came from the server's prefix cache"
        if why:
            yield f"{cached}, because of {why}: TTFT is valid for such a load."
        elif s.input_file:  # a trace's hash ids, and a system prompt in each row, ask for it
            yield (
                f"{cached}: rows of the dataset begin alike, or the server cached them in an "
                "earlier run. TTFT is valid for such a load."
            )
        else:
            yield (
                f"WARNING: {cached}, although no shared prefix was requested: prompts repeat, and "
                "TTFT is lower than with new prompts."
            )
    sent = c.sessions or c.requests
    if run.dataset_sessions and sent > run.dataset_sessions:
        yield (
            f"WARNING: {sent} sessions came from a dataset of {run.dataset_sessions}: each prompt "
            f"was sent {sent / run.dataset_sessions:.1f} times, and a prefix cache avoids the "
            "prefill of a repeat."
        )


def _read_as_open(summary: Summary, run: Run) -> Iterator[str]:
    """Rules about arrivals in a closed loop, which has none."""
    if summary.conditions.loop == "open":
        return
    judged = {result.rule for result in summary.slos}
    metrics = {
        rule.metric
        for rule in run.settings.rules.readable
        if rule.metric in OPEN_LOOP_METRICS and str(rule) in judged
    }
    if metrics:
        users = (
            "these users" if summary.conditions.users is None else format_users(summary.conditions)
        )
        yield (
            f"In a closed loop, an SLO on {' and '.join(sorted(metrics))} applies to {users} that "
            "wait for their responses. To test whether the server keeps up with arrivals, use an "
            "open loop (--request-rate)."
        )


def _too_few(summary: Summary, run: Run) -> Iterator[str]:
    """A percentile that one or two requests decide."""
    count = summary.conditions.succeeded
    few = [p for p in sorted(run.settings.columns) if count and has_too_few_values(count, p)]
    # then more load is no help, nor is more time of a server that answers nothing
    overloaded = summary.delivery is not None and summary.delivery.overload is not None
    dead = any(outage.ended_s is None for outage in summary.outages)
    more = describe_needed_load(run)
    advice = f" Use {more}." if more else " Run longer (-t), or send more (--request-count)."
    advice = "" if overloaded or dead else advice
    asked = [rule.percentile for rule in run.settings.rules.by_text.values() if rule.percentile]
    # where rules ask for lower percentiles alone, nothing depends on this one
    begin = "WARNING: " if not asked or max(asked) >= min(few, default=0.0) else "The "
    for p in few[:1]:
        above = " and above" * (len(few) > 1)
        one_or_two = "one or two requests" if count > 1 else "one request"
        verb = "rest" if above else "rests"
        yield (
            f"{begin}p{p:g}{above} of {format_count(count, 'request')} {verb} on the slowest "
            f"{one_or_two}: p{p:g} needs {math.ceil(100 / (100 - p) - 1e-6)} requests.{advice}"
        )


def _tokens(counts: RunCounts, succeeded: int) -> Iterator[str]:
    if succeeded and counts.tokens_from_usage == succeeded:
        yield "Tokens: counted by the server (usage) for every answered request."
    elif succeeded:
        if counts.tokens_from_usage:
            some = (
                f"the tokens (usage) of {counts.tokens_from_usage} of {succeeded} answered requests"
            )
        else:
            some = "no tokens (usage)"
        estimated = ""
        if counts.tokens_from_chunks:
            estimated = f"; of {counts.tokens_from_chunks} each chunk counts as one"
        unknown = f"; of {counts.tokens_unknown} they are unknown" if counts.tokens_unknown else ""
        yield (
            f"WARNING: the server counted {some}{estimated}{unknown}. Token rates and Inter Token "
            "Latency are only as accurate as these counts. Gaps are times between chunks."
        )


def _rejected(counts: RunCounts) -> Iterator[str]:
    """Counts of the server's that were not taken."""
    if not counts.rejected_counts:
        return
    each = (
        f"{name} of {format_count(requests, 'request')} ({value}{', for one' * (requests > 1)})"
        for name, (requests, value) in sorted(counts.rejected_counts.items())
    )
    yield (
        "WARNING: the server's usage contradicts its responses, so these counts were not used: "
        f"{', '.join(each)}. Output tokens were computed from total_tokens (with reasoning) or "
        "counted as one per chunk."
    )


def _without_itl(counts: RunCounts, succeeded: int) -> Iterator[str]:
    """Requests of which nobody knows when their tokens came; where none was streamed at all,
    another note has it."""
    why = counts.without_itl
    if not why or why.get(NOT_STREAMED, 0) == succeeded:
        return
    reasons = ", ".join(_count_reason(number, reason) for reason, number in why.items())
    requests = format_count(succeeded, "request")
    lacking = _count_reason(sum(why.values()), f"of {requests} have no Inter Token Latency")
    yield f"{lacking}, and no token rate per user: {reasons}."


def _count_reason(number: int, reason: str) -> str:
    """``1 was read at once``, ``2 were read at once``."""
    if number == 1:
        reason = re.sub(r"\bwere\b", "was", re.sub(r"\bhave\b", "has", reason))
    return f"{number:,} {reason}"


def _chunks(counts: RunCounts, succeeded: int) -> Iterator[str]:
    """What is of chunks and what of tokens, where these differ."""
    tokens = counts.tokens_per_chunk
    if tokens is None or tokens <= MIN_TOKENS_PER_MERGED_CHUNK:
        return
    known = counts.chunks_counted == succeeded
    yield (
        f"A chunk held {tokens:.2f} tokens on average "
        f"({'counted' if known else 'all tokens over all chunks, not counted'} with each chunk). "
        "Reasons: speculative decoding, a stream interval of the server, or a busy server. Inter "
        "Chunk Latency and Longest Stall are times between chunks; Inter Token Latency is per "
        f"token{'.' if known else ESTIMATED}"
    )


def format_speculation(of: Speculation) -> str:
    """``Speculative decoding (vLLM): 61.7 % of 2,000 draft tokens were accepted, ...``."""
    where = f"{of.engine}, {of.source}" if of.source else of.engine
    if of.drafted is None:
        return (
            f"Speculative decoding ({where}): {of.share:.1%} of the draft tokens were accepted, as "
            "reported by the server."
        )
    steps = (
        ""
        if of.tokens_per_step is None
        else f", {of.tokens_per_step:.2f} tokens per step with a draft"
    )
    source = f"as {format_count(of.answers, 'answer')} reported" if of.answers else ""
    source = source or f"by its counters over {format_duration(of.window_s)} of the profiling phase"
    return (
        f"Speculative decoding ({where}): {of.share:.1%} of {of.drafted:,} draft tokens were "
        f"accepted{steps}, {source}."
    )


def _clock(summary: Summary) -> Iterator[str]:
    counts = summary.counts
    others = "another chunk, " if counts.merged_chunks else ""
    with_what = f"{others}usage, the end of the response"
    if counts.chunks and counts.merged_chunks / counts.chunks >= MIN_MERGED_SHARE:
        yield (
            f"{counts.merged_chunks / counts.chunks:.1%} of the chunks were read together with "
            "others: their gaps are not in Inter Chunk Latency, and Longest Stall may be too long."
        )
    elif counts.gaps_left_out:
        are = "gap is" if counts.gaps_left_out == 1 else "gaps are"
        yield (
            f"{counts.gaps_left_out} {are} not in Inter Chunk Latency: a chunk at one end was "
            f"read together with other data ({with_what}), so its timestamp may be late."
        )
    if counts.ttft_upper_bounds:
        yield (
            f"The first chunk of {format_count(counts.ttft_upper_bounds, 'request')} was read "
            "together with others, so it may have arrived earlier: Time to First Token is an "
            "upper bound there."
        )
    if counts.retransmits:
        yield (
            f"The network lost packets: {format_count(counts.retransmits, 'TCP segment')} to the "
            f"server retransmitted."
        )
    if not counts.gaps_exact:
        yield "Percentiles of Inter Chunk Latency are rounded to three significant digits."
    if summary.conditions.clock not in ("", "kernel", "tool"):
        yield (
            f"Timestamps: {summary.conditions.clock} (thread: the clock of the reader, if the kernel "
            "gave no timestamp)."
        )


def _busy(summary: Summary) -> Iterator[str]:
    for e in summary.evidence:
        if e.cpu_share is not None and e.cpu_share > FULL_CORE:
            yield (
                f"WARNING: the load generator ({e.worker}) used {e.cpu_share:.0%} of a core, so it "
                f"may limit throughput instead of the server. {advise_on_processes([e])}"
            )


def _saturated(summary: Summary) -> Iterator[str]:
    """That no core was free. A client verdict below OK may have it as a reason."""
    found = describe_saturation(summary.evidence)
    if not found or (summary.client is not None and found in summary.client.reasons):
        return
    local = any(e.server_cores is not None for e in summary.evidence)
    shared = " The server shares them, so other programs may have slowed it down."
    yield f"{capitalise_sentence(found)}.{shared * local}"


def _sent_late(summary: Summary) -> Iterator[str]:
    """A few requests of few, which decide nothing. Of a sweep each stage has its own verdict and note."""
    if summary.staged or summary.client is None or LATE_SEND in summary.client.signals:
        return
    for e in summary.evidence:
        latest_ms, share = e.latest_send_ms, e.late_share
        if e.requests >= FEW or latest_ms is None or share is None or latest_ms <= LATE_MS:
            continue
        begin = "WARNING: the" if latest_ms > VERY_LATE_MS else "The"
        yield (
            f"{begin} load generator ({e.worker}) sent the latest of {format_count(e.requests, 'request')} "
            f"{format_duration(latest_ms / 1e3)} after its admission. That is {share:.1%} of the requests' time, "
            f"so it does not lower the client verdict."
        )


def _changed(summary: Summary, run: Run) -> Iterator[str]:
    """The client verdict at the end, where it is not the one that was shown last while the run was
    on."""
    live, end = run.client_live, summary.client
    if (
        live is None
        or end is None
        or live.level == end.level
        or not summary.conditions.succeeded
        or summary.staged
    ):
        return
    before = _why(live.signals.keys() - end.signals.keys())
    after = _why(end.signals.keys() - live.signals.keys())
    yield (
        f"{CHANGED} {live.level} in the last progress line{before}, {end.level} of the whole "
        f"run{after}."
    )


def _why(causes: AbstractSet[str]) -> str:
    """`` (late sends, merged chunks)``"""
    return f" ({', '.join(sorted(causes))})" if causes else ""


def _requests(count: int) -> str:
    return f"{format_count(count, 'request')} {'was' if count == 1 else 'were'}"
