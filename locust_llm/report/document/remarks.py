"""Remarks: what a reader must know before trusting the figures of a run, one sentence or two each."""

import math
from collections.abc import Iterator
from typing import Final

from locust_llm.core.engine_metrics import QUESTION
from locust_llm.core.run import Run
from locust_llm.report.analysis.delivery import CLIENT, GATE, USERS
from locust_llm.report.analysis.selection import scarce
from locust_llm.report.analysis.summary import Conditions, Counts, Summary
from locust_llm.slo.client_verdict import FULL_CORE, INVALID, OK
from locust_llm.slo.grammar import FAIL, INCONCLUSIVE, PASS
from locust_llm.slo.intervals import needed

SIMULATED: Final = "SIMULATED: these figures come from a simulator. They say nothing about a real GPU, model or server."
DEVIATION: Final = 0.05
"""From this share on, the difference of asked and delivered lengths is worth a warning."""
READS: Final = 1.0
"""ms for 1,000 tokens. No model reads so fast: one of a billion parameters takes 2e12 operations for these, and an H100 does
some 5e14 a second, which is 4 ms. To parse a long request takes a stub some tenths."""
CACHED: Final = 0.5
ALONE: Final = "A probe is of one process: give it a machine that is not busy otherwise."
UNASKED: Final = (
    "nobody asked for shared prefixes, so prompts repeat, and TTFT is that of a server which has seen them before."
)
OPEN: Final = ("goodput", "late", "requests_per_s", "ttft_from_due")
"""What a rule in a closed loop does not mean."""
COUNTED: Final = ((FAIL, "failed"), (INCONCLUSIVE, "inconclusive"), (PASS, "passed"))
FIRST: Final = 3
"""Of so many lines that cannot be read the first line of all says why; the notes of more."""
MOST: Final = 5
"""So many things that are missing stand in the first line."""
MERGED: Final = 0.01
"""From this share on, chunks that came more than one to a read are worth a remark."""


def remarks(summary: Summary, run: Run) -> Iterator[str]:
    """Those that apply, the run's own notes first."""
    probe = summary.examination is not None  # its load is none that anybody has, so that nothing is said of it
    yield from (note for note in run.notes if not (probe and note.startswith(QUESTION)))
    if not probe:
        yield loop_remark(summary.conditions)
        yield from _read_as_open(summary, run)
    yield from _missing(summary, run)
    if not probe:
        yield from _lengths(summary.conditions)
    if not (summary.swept or probe):  # of a sweep each stage has its own
        yield from _unreal(summary, run)
        yield from _few(summary, run)
    yield from _tokens(summary.counts, summary.conditions.succeeded)
    yield from _clock(summary)
    yield from _busy(summary)


def incomplete(summary: Summary, run: Run) -> tuple[str, ...]:
    """What is missing of the run, or of its reports; its status then is 6."""
    counts = summary.counts
    said = [*run.unread]
    if not summary.conditions.requests:
        said.append("no request was recorded in the profiling phase")
    if counts.records_lost:
        said.append(f"{counts.records_lost} records of workers never arrived")
    if counts.broken_lines:
        more = "" if counts.broken_lines <= FIRST else ", ..."
        first = f"{'; '.join(summary.unread[:FIRST])}{more}"
        lines = "line" if counts.broken_lines == 1 else "lines"
        said.append(f"{counts.broken_lines} {lines} of profile_export.jsonl could not be read ({first})")
    if summary.sweep is not None and summary.sweep.missing:
        said.append("stages are left out, or something of them is")
    return (*said, *summary.unmade)


def incomplete_line(summary: Summary, run: Run) -> str | None:
    """What stands before all else when something is missing; None where nothing is."""
    if not (said := incomplete(summary, run)):
        return None
    more = f"; and {len(said) - MOST} more, see the notes" if len(said) > MOST else ""
    return f"INCOMPLETE: {'; '.join(said[:MOST])}{more}."


def verdict_line(summary: Summary) -> str | None:
    """What stands above the tables when the load generator was not up to its load; None when it was."""
    if summary.client is None or summary.client.level == OK:
        return None
    so = (
        "do not use these figures: they are the client's doing"
        if summary.client.level == INVALID
        else "some of these figures are the client's doing"
    )
    return (
        f"CLIENT {summary.client.level}: {so}, not the server's. {'; '.join(summary.client.reasons)}. "
        f"{summary.client.advice if summary.examination is None else ALONE}"
    )


def delivery_line(summary: Summary) -> str | None:
    """What stands above the tables when less than 98 % of the schedule was sent: the cause, with its figures."""
    d = summary.delivery
    if d is None or not d.cause:
        return None
    offered = f"{d.offered_per_s:.2f}/s"
    if d.cause == GATE and d.in_prefill_needed is not None:
        why = (
            f"the prefill gate: {offered} x {d.ttft_s:.2f} s to the first token need {d.in_prefill_needed:.1f} requests "
            f"in prefill at a time, the limit let in {d.prefill_limit:.4g}"
        )
    elif d.cause == CLIENT:
        figures = [
            f"{e.worker} used {e.cpu_share:.0%} of a core" for e in summary.evidence if (e.cpu_share or 0) > FULL_CORE
        ]
        why = f"the load generator: {'; '.join(figures or (summary.client.reasons if summary.client else ()))}"
    elif d.cause == USERS and d.users_needed is not None:
        why = (
            f"too few users: {offered} x {d.busy_s:.2f} s that each keeps a user busy need {d.users_needed:.1f} users, "
            f"there were at most {d.users}" + (" (--max-users was reached)" if d.out_of_users else "")
        )
    else:
        gate = "" if d.in_prefill_needed is None else f"{d.in_prefill_needed:.1f} of {d.prefill_limit:.4g} slots, "
        users = "?" if d.users_needed is None else f"{d.users_needed:.1f}"
        why = f"a crowd at once, or shortly before the end: on average {gate}{users} of {d.users} users were needed"
    waited = f"{d.due - d.sent} of {d.due} arrivals were not sent, {d.never_started} of them found no free user"
    return f"NOT DELIVERED: {d.share:.1%} of the load that was asked for. The cause is {why}. {waited}."


def slo_line(summary: Summary) -> str | None:
    """What the rules came to, in one line; None without rules."""
    if summary.slo_status is None:
        return None
    said = [(what, [r for r in summary.slos if r.status == status]) for status, what in COUNTED]
    counts = ", ".join(f"{len(some)} {what}" for what, some in said if some)
    warnings = sum(not r.decides for r in summary.slos)
    return f"SLO {summary.slo_status}: {counts}" + (f" ({warnings} of them only warn)." if warnings else ".")


def loop_remark(conditions: Conditions) -> str:
    """What the latencies of such a run leave out, and what to look at or run for that (coordinated omission)."""
    gated = conditions.prefill_limit is not None
    if conditions.loop == "open":
        gate = (
            f" and at the gate (only {conditions.prefill_limit} at a time may wait for their first token)"
            if gated
            else ""
        )
        return (
            "Open loop: requests came by a schedule, however slow the server was. Time to First Token begins at the send; "
            f"what a user would have waited, the wait for a free user{gate} included, is TTFT from Due."
        )
    gate = (
        f" Only {conditions.prefill_limit} at a time may wait for their first token; the wait for that (Gate Wait) is "
        "in TTFT from Due, not in Time to First Token or Request Latency."
        if gated
        else ""
    )
    return (
        "Closed loop: a user asks again only when it has its answer, so a slow server is asked less, and the latencies "
        f"are lower than if requests kept coming (coordinated omission).{gate} For what users would see then, run an "
        "open loop: requests at a fixed rate (--request-rate), no prefill limit."
    )


def _missing(summary: Summary, run: Run) -> Iterator[str]:
    """What is not in the figures."""
    conditions, counts = summary.conditions, summary.counts
    if not conditions.requests:
        yield "No request was recorded in the profiling phase: there is nothing to report."
    elif not conditions.succeeded:
        yield "No request succeeded: there is no latency to report."
    if run.stopping_at is None:
        yield "The run did not end in order: what was still running is missing."
    if conditions.cut and counts.cut_ages_s is not None:
        low, high = counts.cut_ages_s
        ages = f"after {low:.1f} to {high:.1f} s" if f"{low:.1f}" != f"{high:.1f}" else f"after {low:.1f} s"
        none = f", {counts.cut_without_chunk} of them before the first token" * bool(counts.cut_without_chunk)
        yield (
            f"{_requests(conditions.cut)} still running when the grace period was over, and cut {ages}{none}: in no latency "
            "above. In SLO rules each counts with what is known of it, at its best and at its worst."
        )
    if conditions.cancelled:
        yield f"{_requests(conditions.cancelled)} cancelled on purpose: neither success nor failure."
    if counts.turned_away:
        yield f"{_requests(counts.turned_away)} waiting at the gate when the run ended, and never sent."
    if counts.records_lost:
        yield f"WARNING: records of workers that never arrived: {counts.records_lost}. Counts and rates are too low."
    if counts.broken_lines:
        which = "; ".join(summary.unread)
        yield (
            f"WARNING: lines of profile_export.jsonl that could not be read, and are left out: {counts.broken_lines}"
            + (f" ({which})." if which else ".")
        )
    yield from (f"WARNING: {what}." for what in run.unread)
    yield from (f"WARNING: {what}." for what in summary.unmade)
    if (asked := len(set(run.settings.percentiles))) > (shown := len(run.settings.columns)):
        yield f"Of {asked} percentiles that were asked for the tables have {shown}: the first, between 0 and 99.9."
    if counts.not_streamed:
        slots = ", and their slots came free only at the end" if conditions.prefill_limit is not None else ""
        yield f"{_requests(counts.not_streamed)} answered in one piece, not as a stream: no Time to First Token{slots}."


def _lengths(conditions: Conditions) -> Iterator[str]:
    for what, asked, deviation in (
        ("input", conditions.asked_input_tokens, conditions.input_deviation),
        ("output", conditions.asked_output_tokens, conditions.output_deviation),
    ):
        if deviation is not None and asked is not None and abs(deviation) > DEVIATION:
            yield f"WARNING: the mean {what} length is {deviation:+.1%} off the {asked:.1f} tokens asked for."


def _unreal(summary: Summary, run: Run) -> Iterator[str]:
    """Signs of an endpoint that computes less than users' requests would make it: a stub, or one that knows the prompts."""
    s, c, g = run.settings, summary.conditions, summary.growth
    if g is not None and g.high < READS:
        yield (
            f"WARNING: TTFT does not depend on the length of the prompt: {g.short_ttft_ms:.1f} ms for {g.short_tokens:.0f} "
            f"tokens and fewer, {g.long_ttft_ms:.1f} ms for {g.long_tokens:.0f} and more, which is {g.ms_per_1k:.2f} ms for "
            f"1,000 tokens (95 % interval {g.low:.2f} to {g.high:.2f}). A stub answers so, or a cache: a load test of it "
            "says nothing about a model, which must read the whole prompt."
        )
    if c.cached_share is not None and c.cached_share > CACHED:
        turns = c.turns_per_session is not None
        shared = bool(s.shared_system_prompt_length or s.num_prefix_prompts)
        why = " and ".join(["conversations that grow"] * turns + ["shared prefixes"] * shared)
        yield (
            f"{'' if why else 'WARNING: '}{c.cached_share:.0%} of the input tokens came from the server's prefix cache: "
            + (f"{why} make it so, and TTFT is that of such a load." if why else UNASKED)
        )
    sent = c.sessions or c.requests
    if run.dataset_sessions and sent > run.dataset_sessions:
        yield (
            f"WARNING: {sent} sessions were taken from a dataset of {run.dataset_sessions}: the same prompts came "
            f"{sent / run.dataset_sessions:.1f} times, and a server with a prefix cache need not read them again."
        )


def _read_as_open(summary: Summary, run: Run) -> Iterator[str]:
    """Rules about what arrives, where nothing does of itself."""
    if summary.conditions.loop == "open":
        return
    judged = {result.rule for result in summary.slos}
    said = {rule.metric for rule in run.settings.rules.readable if rule.metric in OPEN and str(rule) in judged}
    if said:
        users = "these users" if summary.conditions.users is None else f"{summary.conditions.users} users"
        yield (
            f"A rule about {' and '.join(sorted(said))} in a closed loop says what {users} got who waited for their "
            "answers, not whether the server keeps up with requests that keep coming. An open loop tells (--request-rate)."
        )


def _few(summary: Summary, run: Run) -> Iterator[str]:
    """A percentile that one or two requests decide."""
    count = summary.conditions.succeeded
    few = [p for p in sorted(run.settings.columns) if count and scarce(count, p)]
    for p in few[:1]:
        above = " and above" * (len(few) > 1)
        yield (
            f"WARNING: p{p:g}{above} of {_count(count)} is little more than the slowest of them: p{p:g} takes "
            f"{math.ceil(100 / (100 - p))}, and {needed(p)} for both ends of its interval. A longer run (-t) or more "
            "requests (--request-count) would tell."
        )


def _tokens(counts: Counts, succeeded: int) -> Iterator[str]:
    if succeeded and counts.tokens_from_usage == succeeded:
        yield "Tokens: counted by the server (usage) for every request."
    elif succeeded:
        yield (
            f"WARNING: tokens were counted by the server (usage) for {counts.tokens_from_usage} of {succeeded} "
            f"requests, taken as one a chunk for {counts.tokens_from_chunks} (an estimate), and are unknown for "
            f"{counts.tokens_unknown}: token rates and Inter Token Latency are no better than that."
        )


def _clock(summary: Summary) -> Iterator[str]:
    counts = summary.counts
    if counts.chunks and counts.merged_chunks / counts.chunks >= MERGED:
        yield (
            f"{counts.merged_chunks / counts.chunks:.1%} of the chunks came more than one to a read: the gaps next to "
            "them are not in Inter Chunk Latency, and Longest Stall may look longer than it was."
        )
    elif counts.gaps_left_out:
        yield (
            f"{counts.gaps_left_out} gaps are not in Inter Chunk Latency: something else (usage, the end of the answer) "
            "came in one read with a chunk beside them, so that chunk may have come a little sooner than its stamp."
        )
    if counts.ttft_upper_bounds:
        yield (
            f"Of {counts.ttft_upper_bounds} requests the first chunk came together with others: their Time to First "
            "Token is an upper bound."
        )
    if counts.retransmits:
        yield f"The network lost something: {counts.retransmits} TCP segments had to be sent to the server again."
    if not counts.gaps_exact:
        yield "The percentiles of Inter Chunk Latency are of values rounded to three significant digits."
    if summary.conditions.clock not in ("", "kernel"):
        yield f"Time stamps: {summary.conditions.clock} (thread: the reader's own clock, where the kernel gave none)."


def _busy(summary: Summary) -> Iterator[str]:
    for e in summary.evidence:
        if e.cpu_share is not None and e.cpu_share > FULL_CORE:
            yield (
                f"WARNING: the load generator ({e.worker}) used {e.cpu_share:.0%} of a core: it may have been late to ask "
                "again, so throughput may be its limit and not the server's. More processes (--processes) would tell."
            )


def _requests(count: int) -> str:
    return f"{_count(count)} {'was' if count == 1 else 'were'}"


def _count(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests} requests"
