"""Open-loop delivery: the schedule against what was sent and completed, the cause of the
difference, and its sentences."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK
from locust_llm.records.run_facts import RateChange, Run
from locust_llm.report.array_types import Floats
from locust_llm.report.measurement_window import describe_needed_load, describe_used_up_load
from locust_llm.report.outages import describe_outages, describe_requests_without_answer
from locust_llm.report.request_selection import RequestSelection, mean_of_known
from locust_llm.report.summary_rows import SteadyState
from locust_llm.settings.run_options import Settings
from locust_llm.slo.load_generator_health import (
    DELAYS,
    FULL_CORE,
    INVALID,
    LATE_PERMIT,
    LEVELS,
    OTHERS,
    ClientVerdict,
    describe_other_programs,
    describe_standstill,
)
from locust_llm.slo.load_generator_health import OK as FINE
from locust_llm.slo.rules import FAIL
from locust_llm.text.format import (
    capitalise_sentence,
    format_brief,
    format_count,
    format_duration,
)

from .overload_detection import (
    FIRST,
    MAX_COMPLETED_SHARE,
    Overload,
    count_due_in_service,
    detect_any_overload,
    detect_overload_before_users,
    detect_overload_of_sent,
)

if TYPE_CHECKING:  # a summary contains what this file makes
    from locust_llm.report.sections.run_summary import Summary


STOP: Final = "the stop"
SCHEDULE_END: Final = "the schedule's end"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals of an open loop in the ``duration_s`` seconds of profiling until the run was
    stopped."""

    duration_s: float
    due: int
    sent: int
    """The arrivals that were tried: sent, or failed on the way (a refused connection is an answer
    of a kind)."""
    completed: int
    """The arrivals that were answered without a failure by then, and not during the drain. A stage
    counts all that were answered in its measured time, whenever they were due, so it may have
    more than were due."""
    never_started: int
    """The arrivals that had found no free user by then."""
    at_gate: int = 0
    """The arrivals that waited at the prefill gate when the run was stopped, and were not sent."""
    offered_per_s: float
    sent_per_s: float
    completed_per_s: float
    share: float
    """sent / due."""
    cause: str = ""
    """Why less than 98 % was sent: ``gate``, ``users``, ``server``, ``client`` or ``end``. Empty:
    it was not less."""
    in_prefill_needed: float | None = None
    """Offered requests a second x mean TTFT (Little's law): the requests in prefill that the rate
    needs. None: there is no gate."""
    prefill_limit: float | None = None
    """The mean of the prefill limit over the time."""
    ttft_s: float | None = None
    users_needed: float | None = None
    """Offered arrivals a second x mean time that one occupies a user, with its wait at the gate
    (Little's law)."""
    users: int
    """The largest number of users."""
    busy_s: float | None = None
    """The mean time that a request occupies a user."""
    gate_wait_s: float | None = None
    """The mean wait at the gate, which is a part of that time."""
    out_of_users: bool = False
    """``--max-users`` was reached while arrivals waited."""
    by_chance: int | None = None
    """Of a stage: so many more were due, and may be in flight at its end by chance. None: it is no
    stage."""
    completed_share: float | None = None
    """completed / expected, at most 1; of a stage (completed + by_chance) / expected. None: requests
    last as long as half of the run, which is too short, or the stage is."""
    cancelled: int = 0
    """The due arrivals that were cancelled on purpose. They are neither success nor failure, and in
    no share."""
    expected: float | None = None
    """The due arrivals without cancelled ones, and without the in-flight ones that any server that
    keeps up has.

    It answered these in the grace period. They are at most as many as were due within the time of
    the first ten requests. Where the server fell behind, and in a stage, all count. None: an older
    version.
    """
    in_flight: int = 0
    """The requests in flight at the stop, where ``expected`` leaves some of them out."""
    end: str = STOP
    """What ended ``duration_s``: nobody stopped a schedule of which all was sent."""
    overload: Overload | None = None
    """None: it grew by no more than chance, or the load was not sent for another reason."""


MIN_DELIVERED_SHARE: Final = 0.98
"""From this share of the schedule on, it counts as delivered."""
FULL_UTILISATION: Final = 0.95
"""The utilisation at which a limit delays requests: with random arrivals the queue grows below
1."""
BACKLOG_ERRORS: Final = 2.0
"""With so many standard errors more in flight than a server that keeps up has, it may fall
behind."""

AT_THE_STOP_S: Final = 0.05
"""Arrivals that are due so shortly before the stop may not be sent any more."""
MIN_EXPECTED_SHARE: Final = 0.5
"""The share of the due arrivals. Where fewer could be over by the stop, the completed share means
nothing."""

GATE: Final = "gate"
SERVER: Final = "server"
USERS: Final = "users"
LATE_LOOP_MS: Final = 250.0
"""The p99 of an event loop. A later one may have kept arrivals from being sent."""
CLIENT: Final = "client"
BURST: Final = "end"


def describe_arrivals(settings: Settings, rates: Sequence[RateChange] = ()) -> str:
    """The arrivals of an open loop in words. Empty: a closed loop. ``rates``: changes by hand."""
    if rates:
        changed = ", ".join(f"{change.per_s:g}/s" for change in rates)
        return f"{describe_arrivals(settings)}, changed by hand to {changed}"
    if settings.fixed_schedule:
        speed = f" x{settings.replay_speedup:g}" if settings.replay_speedup != 1 else ""
        return f"fixed schedule {_name(settings.input_file)}{speed}".rstrip()
    if settings.user_centric_rate:
        return f"user-centric {settings.user_centric_rate:g}/s"
    smooth = (
        f" (smoothness {settings.arrival_smoothness:g})"
        if settings.arrival_smoothness is not None
        else ""
    )
    pattern = settings.arrival_pattern + smooth
    if settings.request_rate_series:
        return f"rate series {_name(settings.request_rate_series)}, {pattern}"
    if settings.request_rate and settings.request_rate_ramp_duration:
        return f"ramp to {settings.request_rate:g}/s in {settings.request_rate_ramp_duration:g} s, {pattern}"
    return f"{settings.request_rate:g}/s {pattern}" if settings.request_rate else ""


def find_requested_rate(run: Run) -> float | None:
    """The requested rate; for a series or a trace the mean rate of what was due. None: a closed
    loop."""
    settings = run.settings
    if not settings.open_loop:
        return None
    if settings.fixed_schedule or settings.request_rate_series or run.rates:
        return run.offer.due / run.offer.duration_s if run.offer and run.offer.duration_s else None
    return settings.user_centric_rate or settings.request_rate


def measure_delivery(
    main: RequestSelection,
    run: Run,
    verdict: ClientVerdict | None,
    through: RequestSelection | None = None,
    steady: SteadyState | None = None,
) -> Delivery | None:
    """``main``: the requests of the profiling phase; ``through``: of a stage those that ended in
    its measured time, whenever they were due; ``steady``: what they show. None for a closed loop,
    and before anything was due.

    Every turn of a conversation is an arrival; of a fixed schedule only the first ones are, so only
    they are counted.
    """
    offer = run.offer
    if offer is None or not offer.due or not offer.duration_s > 0:
        return None
    tried = main.only(
        ~np.isnan(main.requests.floats("sent_at")) | main.requests.has("outcome", *FAILURES)
    )
    arrived = tried.where(tried["turn"] == 0) if run.settings.fixed_schedule else tried
    sent = min(arrived.size, offer.due - offer.never_started)
    turns = tried.size / arrived.size if arrived.size else 1.0
    later = float((tried["turn"] > 0).sum()) / arrived.size if arrived.size else 0.0
    in_time = arrived.where(arrived["closed_at"] <= run.profiling_at + offer.duration_s)
    completed = min(in_time.outcome(OK).size, sent) if through is None else through.outcome(OK).size
    if through is None:
        cancelled = min(arrived.outcome(CANCELLED).size, sent - completed)
    else:
        cancelled = min(through.outcome(CANCELLED).size, offer.due)
    counted = offer.due - cancelled
    per_s = offer.due / offer.duration_s
    ttft_s = mean_of_known(main.outcome(OK)["ttft_s"])
    request_s = mean_of_known(tried["closed_at"] - tried["asked_at"])
    think_s = run.settings.session_turn_delay_mean / 1e3 * later
    busy_s = None if request_s is None else request_s * turns + think_s
    limit = _mean_limit(run, offer.duration_s)
    delivery = Delivery(
        duration_s=offer.duration_s,
        due=offer.due,
        sent=sent,
        completed=completed,
        never_started=offer.never_started,
        at_gate=0
        if limit is None
        else _left_at_gate(main, run, offer.due - sent - offer.never_started),
        offered_per_s=per_s,
        sent_per_s=sent / offer.duration_s,
        completed_per_s=completed / offer.duration_s,
        share=sent / offer.due,
        in_prefill_needed=None if ttft_s is None or limit is None else per_s * turns * ttft_s,
        prefill_limit=limit,
        ttft_s=ttft_s,
        users_needed=None if busy_s is None else per_s * busy_s,
        users=offer.most_users,
        busy_s=busy_s,
        gate_wait_s=None if limit is None else mean_of_known(tried["gate_wait_s"]),
        out_of_users=offer.out_of_users,
        completed_share=completed / counted if counted else None,
        cancelled=cancelled,
        expected=float(counted),
        end=SCHEDULE_END if describe_used_up_load(run) else STOP,
    )
    if through is not None:
        return replace(
            delivery,
            by_chance=0 if steady is None else steady.by_chance,
            completed_share=None if steady is None else steady.completed_share,
            cause="" if delivery.share >= MIN_DELIVERED_SHARE else _cause(delivery, run, verdict),
        )
    if delivery.share >= MIN_DELIVERED_SHARE:
        due_s, over_s = (tried[name] - run.profiling_at for name in ("due_at", "closed_at"))
        delivery = replace(
            delivery,
            overload=detect_any_overload(
                due_s, due_s + tried["ttft_from_due_s"], over_s, offer.duration_s
            ),
        )
    elif (cause := _cause(delivery, run, verdict)) == USERS and (
        overload := detect_overload_before_users(tried, run, offer)
    ) is not None:
        delivery = replace(delivery, cause=SERVER, overload=overload)
    else:
        delivery = replace(
            delivery,
            cause=cause,
            overload=None if cause in (GATE, USERS) else detect_overload_of_sent(tried, run, offer),
        )
    return delivery if delivery.overload is not None else _of_expected(delivery, arrived, run)


def _left_at_gate(main: RequestSelection, run: Run, unsent: int) -> int:
    """How many of the unsent arrivals that found a user waited at the gate. The end of the run
    turned some away, without a record. It cut others, whose record has no admission."""
    requests = main.requests
    waited = (
        np.isnan(requests.floats("sent_at"))
        & np.isnan(requests.floats("admitted_at"))
        & ~requests.has("outcome", *FAILURES)
    )
    return max(0, min(unsent, run.turned_away + main.only(waited).size))


def _of_expected(delivery: Delivery, arrived: RequestSelection, run: Run) -> Delivery:
    """The completed share, without the in-flight requests of any server that keeps up. They are no
    sign that it falls behind, and in a short run much of what was due."""
    if not arrived.size:
        return delivery
    due_s, over_s = (arrived[name] - run.profiling_at for name in ("due_at", "closed_at"))
    explained = round(float(count_due_in_service(due_s, over_s, delivery.duration_s).mean()))
    in_flight = int(_in_flight_at(due_s, over_s, delivery.duration_s).sum())
    left_out = _on_their_way(arrived, due_s, over_s, delivery.duration_s)
    if delivery.end == STOP or _are_beyond_chance(in_flight, explained):
        left_out = min(explained, left_out)
    counted = delivery.due - delivery.cancelled
    expected = float(counted - left_out)
    known = counted > 0 and expected >= MIN_EXPECTED_SHARE * counted
    return replace(
        delivery,
        expected=expected,
        completed_share=min(1.0, delivery.completed / expected) if known else None,
        in_flight=in_flight,
    )


def _are_beyond_chance(in_flight: int, usual: int) -> bool:
    """Whether more requests are in flight than by chance in a server that keeps up, which has
    ``usual`` of them on average. One long answer at the end is no sign of a queue."""
    return in_flight > usual + BACKLOG_ERRORS * math.sqrt(in_flight)


def _in_flight_at(due_s: Floats, over_s: Floats, stop_s: float) -> NDArray[np.bool_]:
    return (due_s <= stop_s) & (over_s > stop_s)


def _on_their_way(
    arrived: RequestSelection, due_s: Floats, over_s: Floats, duration_s: float
) -> int:
    """The requests in flight at the stop that the server answered in the grace period. Also counted
    are requests that the grace period's end cut before they had as much time as a first answered
    one. A server that died has none of them."""
    ok = arrived.requests.has("outcome", OK)[arrived.chosen]
    cut = arrived.requests.has("outcome", CUT)[arrived.chosen]
    lasted_s = over_s - due_s
    first_s = lasted_s[ok][np.argsort(due_s[ok], kind="stable")[:FIRST]]
    young = cut & (lasted_s < (first_s.max() if len(first_s) else math.inf))
    return int((_in_flight_at(due_s, over_s, duration_s) & (ok | young)).sum())


def _cause(delivery: Delivery, run: Run, verdict: ClientVerdict | None) -> str:
    """The first cause that applies. Behind a gate that is too low users wait, and a slow load
    generator keeps users busy as well. The load generator is a cause only where it was late itself:
    merged chunks keep nobody from sending."""
    # then the gate was free for those at it
    late_permits = verdict is not None and LATE_PERMIT in verdict.signals
    if is_held_by_limit(delivery) or (
        delivery.at_gate > (delivery.due - delivery.sent) / 2 and not late_permits
    ):
        return GATE
    if _were_due_at_the_stop(delivery):
        return ""
    late = _level_of_delays(verdict)
    busiest = max((health.cpu_share for health in run.health), default=0.0)
    if busiest > FULL_CORE or late == INVALID:
        return CLIENT
    if _stood_still(delivery, run):
        return CLIENT
    needs_all_users = (
        delivery.users_needed is not None
        and delivery.users_needed >= FULL_UTILISATION * delivery.users
    )
    if needs_all_users and _enough_without_gate(delivery):
        return GATE
    if _lacked_users(delivery, run, needs_all_users=needs_all_users):
        return USERS
    if late != FINE or _was_held_up(run):
        return CLIENT
    return BURST


def _lacked_users(delivery: Delivery, run: Run, *, needs_all_users: bool) -> bool:
    """Whether arrivals found no free user, of a requested number or of the maximum. Below it there
    are as many as the arrivals need, and more users than arrivals help nobody."""
    if delivery.users >= delivery.due:
        return False
    found_none = run.settings.users is not None and delivery.never_started > 0
    return delivery.out_of_users or (needs_all_users and found_none)


def _stood_still(delivery: Delivery, run: Run) -> bool:
    """Whether as many arrivals as half of the unsent ones were due while it stood still."""
    stop_at = run.profiling_at + delivery.duration_s
    standstills = chain.from_iterable(health.standstills or () for health in run.health)
    still_s = sum(
        max(0.0, min(since + seconds, stop_at) - max(since, run.profiling_at))
        for since, seconds in standstills
    )
    mean_s = still_s / max(1, len(run.health))
    return delivery.offered_per_s * mean_s >= (delivery.due - delivery.sent) / 2


def _was_held_up(run: Run) -> bool:
    """Whether other programs used the cores, or its event loop stood still."""
    return any(
        (health.cpu_wait_share or 0.0) > OTHERS or health.loop_lag_p99_ms > LATE_LOOP_MS
        for health in run.health
    )


def _were_due_at_the_stop(delivery: Delivery) -> bool:
    """Whether no more are missing than are due in the last moment of any run, or a single one. That
    needs no cause."""
    return delivery.due - delivery.sent <= max(1.0, AT_THE_STOP_S * delivery.offered_per_s)


def _level_of_delays(verdict: ClientVerdict | None) -> str:
    """The client verdict by the load generator's delays alone."""
    if verdict is None:
        return FINE
    levels = [level for signal, level in verdict.signals.items() if signal in DELAYS]
    if not verdict.signals:  # of an older version: it does not say by what
        levels = [verdict.level]
    return max(levels, key=LEVELS.index, default=FINE)


def is_held_by_limit(delivery: Delivery) -> bool:
    """Whether the rate needs more requests in prefill than the limit allows (Little's law)."""
    return (
        delivery.in_prefill_needed is not None
        and delivery.in_prefill_needed >= FULL_UTILISATION * (delivery.prefill_limit or math.inf)
    )


def _enough_without_gate(delivery: Delivery) -> bool:
    """Whether the users would have been enough, if none of them had waited at the gate."""
    if delivery.busy_s is None or delivery.gate_wait_s is None:
        return False
    return (
        delivery.offered_per_s * (delivery.busy_s - delivery.gate_wait_s)
        < FULL_UTILISATION * delivery.users
    )


def _mean_limit(run: Run, duration_s: float) -> float | None:
    """The mean prefill limit over the profiling phase. None: there is no gate."""
    changes = [(change.at, change.limit) for change in run.limits if change.phase == "profiling"]
    known = [(at, limit) for at, limit in changes if limit is not None]
    if not known:
        return None
    end = run.profiling_at + duration_s
    at = np.clip([*(at for at, _ in known), end], run.profiling_at, end)
    return (
        float(np.average([limit for _, limit in known], weights=np.diff(at)))
        if np.ptp(at)
        else float(known[-1][1])
    )


def _name(path: str | None) -> str:
    return PurePath(path or "").name


def format_delivery_line(summary: "Summary") -> str | None:
    """The line above the tables with the numbers, when less than 98 % of the schedule was sent. It
    names a cause only where the data identify it."""
    delivery = summary.delivery
    if delivery is None or not delivery.cause:
        return None
    if delivery.cause == GATE and summary.limits is not None:
        return None  # a sweep of prefill limits has some that are too low on purpose
    if delivery.cause == GATE:
        why = _describe_full_limit(delivery)
    elif delivery.cause == SERVER and delivery.overload is not None:
        busy = "the user was" if delivery.users == 1 else f"all {delivery.users} users were"
        why = (
            f"Cause: the server. It fell behind before {busy} busy, "
            f"{format_brief(delivery.overload.all_busy_s, digits=2)} s "
            "after the start"
        )
    elif delivery.cause == CLIENT:
        figures = [
            f"process {e.worker} used {e.cpu_share:.0%} of a core"
            for e in summary.evidence
            if (e.cpu_share or 0) > FULL_CORE
        ]
        why = (
            "Cause: the load generator. "
            f"{capitalise_sentence('; '.join(figures or _list_delays(summary)))}"
        )
    elif delivery.cause == USERS and delivery.users_needed is not None:
        why = _describe_busy_users(delivery, has_cut=bool(summary.conditions.cut))
    else:
        limit = format_brief(delivery.prefill_limit, digits=3)
        gate = (
            ""
            if delivery.in_prefill_needed is None
            else f"{delivery.in_prefill_needed:.1f} of {limit} slots and "
        )
        users = "?" if delivery.users_needed is None else f"{delivery.users_needed:.1f}"
        why = (
            "Probably a burst of arrivals, or arrivals just before the end of the run. "
            f"On average {gate}{users} of {format_count(delivery.users, 'user')} were needed"
        )
    where = list[str]()
    # the load generator starts users as arrivals need them: where it is late, they are, too
    if delivery.never_started and delivery.cause != CLIENT:
        where.append(f"{delivery.never_started} found no free user")
    if delivery.prefill_limit is not None:
        where.append(f"{delivery.at_gate} waited for a prefill slot when the run ended")
    unsent = f"{delivery.due - delivery.sent} of {delivery.due} arrivals were not sent"
    unsent = ": ".join(filter(None, (unsent, ", ".join(where))))
    return (
        f"NOT DELIVERED: {delivery.share:.1%} of the scheduled requests were sent. {why}. {unsent}."
    )


def _describe_full_limit(delivery: Delivery) -> str:
    """What passed the prefill limit. Whether more would pass a higher one is unknown: where the
    server computes no more prompts at a time, TTFT grows with the limit."""
    limit = format_brief(delivery.prefill_limit, digits=3)
    on_average = " (mean)" * ((delivery.prefill_limit or 0) % 1 > 0)
    ttft = (
        ""
        if delivery.ttft_s is None
        else f", with a mean TTFT of {format_duration(delivery.ttft_s)}"
    )
    return (
        f"Of {delivery.offered_per_s:.2f}/s, {delivery.sent_per_s:.2f}/s passed the prefill limit "
        f"of {limit}{on_average}{ttft}. With a higher limit more pass only if the server computes "
        "more prompts per second: a short run with one decides"
    )


def _describe_busy_users(delivery: Delivery, *, has_cut: bool) -> str:
    """What the users sent. Whether more users would send more is unknown: on a busy server requests
    then take longer. ``has_cut``: some were cut, and would have lasted longer."""
    users = format_count(delivery.users, "user")
    reached = " (--max-users was reached)" * delivery.out_of_users
    lasted = f"{'at least ' * has_cut}{format_brief(delivery.busy_s, ' s', 3)}"
    return (
        f"Of {delivery.offered_per_s:.2f}/s, {users}{reached} sent {delivery.sent_per_s:.2f}/s, "
        f"{lasted} per request. More users send more only if requests then take no longer: a short "
        "run with more decides"
    )


def _list_delays(summary: "Summary") -> Iterator[str]:
    """What kept the load generator from sending. How far figures may be off is no such thing."""
    if standstill := describe_standstill(summary.evidence):
        yield standstill.replace("the load generator", "it")
        return
    if others := describe_other_programs(summary.evidence):
        yield others
    permit_ms = max((one.permit_lag_p99_ms or 0.0 for one in summary.evidence), default=0.0)
    if summary.client is not None and LATE_PERMIT in summary.client.signals and permit_ms:
        permits = format_duration(permit_ms / 1e3, 2)
        yield f"free permits of the prefill limit were late by {permits} (p99)"
    lag_ms = max((one.loop_lag_p99_ms or 0.0 for one in summary.evidence), default=0.0)
    yield f"its event loop was late by {format_duration(lag_ms / 1e3, 2)} (p99)"


def format_outage_line(summary: "Summary", above: str = "") -> str | None:
    """The line that nothing answered for a while, with the rates without that time. ``above``:
    what stands above it and may have this time. None: that never was, or the lines of the stages
    have it."""
    if not summary.outages or _is_named_by_stages(summary):
        return None
    silent_s = sum(outage.seconds for outage in summary.outages)
    whole_s = summary.conditions.duration_s or 0.0
    found = describe_outages(summary.outages)
    when = "" if found in above else f"{found}: "
    text = f"NO ANSWER: {when}{describe_requests_without_answer(summary.outages)}."
    if summary.limits is not None:
        blocks = ", ".join(summary.limits.silent_blocks)
        return f"{text} It counts at {blocks}." if blocks else text
    if summary.swept or not silent_s or not whole_s > silent_s:
        return text
    factor = whole_s / (whole_s - silent_s)
    rows = {row.tag: row.avg for row in summary.rows if row.avg is not None}
    tags = (("output_token_throughput", " output tokens/s"), ("request_throughput", " requests/s"))
    rates = [format_brief(rows[tag] * factor, unit, 3) for tag, unit in tags if tag in rows]
    without = f"without these {format_brief(silent_s, ' s', 3)} they are {' and '.join(rates)}"
    return f"{text} Rates are over {format_brief(whole_s, ' s', 3)}; {without}."


def _is_named_by_stages(summary: "Summary") -> bool:
    levels = () if summary.sweep is None else summary.sweep.levels
    named = "; ".join(level.silence for level in levels if not level.died)
    return all(str(outage) in named for outage in summary.outages)


def format_overload_line(summary: "Summary", run: Run) -> str | None:
    """What the headline does not mention of an open loop in which the server fell behind. None: any
    other run."""
    if summary.delivery is None or (overload := summary.delivery.overload) is None:
        return None
    waiting = "" if overload.all_busy_s is None else " or waited for a free user"
    conditions = summary.conditions
    grown = (
        f"OVERLOADED: {overload.in_flight_middle:,} requests were in flight{waiting} at half of the "
        f"time, "
        f"{overload.in_flight_end:,} at {summary.delivery.end}."
    )
    if not conditions.succeeded:
        return grown
    rate = next((row.avg for row in summary.rows if row.tag == "request_throughput"), None)
    if rate is not None and conditions.duration_s is not None:
        grown += (
            f" Completed, {_rate(summary.delivery.completed_per_s)}, is "
            f"{describe_span(summary.delivery)}; Request Throughput, "
            f"{_rate(rate)}, is over {format_brief(conditions.duration_s, ' s', 3)}, with what ended after it."
        )
    without = (
        f", and the {conditions.cut:,} that were cut are in none of them" if conditions.cut else ""
    )
    grow = "grow with the time that the run takes"
    if run.settings.request_rate_series:  # what follows may have a lower rate
        grow = "grew with the time"
    return f"{grown} Latencies {grow}{without}."


def format_backlog_line(summary: "Summary", run: Run) -> str | None:
    """That more requests were in flight at the stop than by chance in a server that keeps up, where
    the run is too short to call it overloaded. None: they were not, or another line has the
    reason."""
    backlog = None if summary.outages else describe_backlog(summary.delivery)
    if backlog is None:
        return None
    broken = [result.rule.split() for result in summary.slos if result.status == FAIL]
    if any("completed" in words for words in broken):
        return f"BACKLOG: {backlog}."  # the broken rule says that it fell behind
    more = describe_needed_load(run) or "a longer run (-t)"
    return f"BACKLOG: {backlog}. It may fall behind: use {more} to find out."


def describe_backlog(d: Delivery | None) -> str | None:
    """``30 of the 90 requests that were due were in flight at the stop``, and how many are usual.
    None: not more than that, or there is another reason."""
    if d is None or d.overload is not None or d.cause:
        return None
    if d.expected is None or d.completed_share is None:
        return None
    usual = round(d.due - d.cancelled - d.expected)
    if d.completed_share >= MAX_COMPLETED_SHARE or not _are_beyond_chance(d.in_flight, usual):
        return None
    return (
        f"{d.in_flight:,} of the {d.due:,} requests that were due were in flight at {d.end}, and "
        f"a server that keeps up has about {usual:,}"
    )


def describe_overload(delivery: Delivery | None) -> str | None:
    """``offered 30/s, completed 4.5/s in the 20 s to the stop, and requests piled
    up until the end``. None: they did not."""
    if delivery is None or delivery.overload is None:
        return None
    offered, completed = _rates(delivery)
    return f"{offered}, {completed} {describe_span(delivery)}, and requests piled up until the end"


def describe_undelivered(delivery: Delivery | None) -> str | None:
    """``offered 30/s, sent 4.6/s, completed 4.5/s in the 20 s to the stop``, where less was sent
    than offered, and the server is not the reason."""
    if delivery is None or not delivery.cause or delivery.overload is not None:
        return None
    offered, completed = _rates(delivery)
    why = {
        GATE: "arrivals waited for a prefill slot",
        CLIENT: "the load generator",
        USERS: "arrivals waited for a user",
    }.get(delivery.cause, "")
    return (
        f"{offered}, sent {format_brief(delivery.sent_per_s, '/s', 2)}, {completed} "
        f"{describe_span(delivery)}{f' ({why})' * bool(why)}"
    )


def has_rates_to_the_stop(delivery: Delivery | None) -> bool:
    """Whether the headline has the rates of the schedule. Other rates are over another time: from
    the first send to the last end."""
    return delivery is not None and (delivery.overload is not None or bool(delivery.cause))


def describe_completed(delivery: Delivery) -> str:
    """``98.3%: 3.80/s in the 60 s to the stop, 228 of 240 that were due``, with the base of the
    share where these are not all."""
    d = delivery
    share = "" if d.completed_share is None else f"{d.completed_share:.1%}: "
    rate = f"{share}{d.completed_per_s:.2f}/s {describe_span(d)}, "
    if d.by_chance is None:
        rate += f"{d.completed:,} of {d.due:,} that were due"
    else:
        rate += f"{d.completed:,} answered and {d.due:,} due in it"
    if d.cancelled:
        rate += f"; {d.cancelled:,} were cancelled on purpose, and are in no share"
    if d.by_chance is not None:
        return rate + _describe_stage_share(d)
    counted = d.due - d.cancelled
    left_out = 0 if d.expected is None else round(counted - d.expected)
    if not left_out:
        return rate
    others = counted - d.completed
    which = f"{d.in_flight:,} of the others" if d.in_flight < others else f"The other {others:,}"
    if others == 1:
        which = "The other one"
    flight = f"{rate}. {which} {'was' if d.in_flight == 1 else 'were'} in flight at {d.end}"
    if left_out < d.in_flight:
        flight += (
            f". {left_out:,} of these {'is' if left_out == 1 else 'are'} left out, because any "
            "server that keeps up has as many"
        )
    else:
        flight += ", as in any server that keeps up"
    if d.completed_share is None:
        return f"{flight}: too short a run for a share"
    return f"{flight}: the share is of the remaining {counted - left_out:,}"


def _describe_stage_share(delivery: Delivery) -> str:
    """``. 2 more may still be in flight, as in a server that keeps up, and count as completed``"""
    if delivery.completed_share is None:
        return ": too few, or too short a time, for a share"
    if not delivery.by_chance:
        return ""
    counts = "counts" if delivery.by_chance == 1 else "count"
    return (
        f". {delivery.by_chance:,} more may still be in flight, as in a server that keeps up, and "
        f"{counts} as completed"
    )


def _rates(delivery: Delivery) -> tuple[str, str]:
    return (
        f"offered {_rate(delivery.offered_per_s)}",
        f"completed {_rate(delivery.completed_per_s)}",
    )


def _rate(per_s: float) -> str:
    return format_brief(per_s, "/s", 2)


def describe_span(delivery: Delivery) -> str:
    """The span of ``completed``: ``in the 20 s to the stop``. It holds the filling of an idle
    server, and nothing that ended after the stop. So a throughput over the whole run is another
    number."""
    return f"in the {format_brief(delivery.duration_s, ' s', 3)} to {delivery.end}"
