"""What of an open loop was not sent, or not completed, in sentences."""

from locust_llm.report.sections.delivery.analysis import CLIENT, GATE, SERVER, USERS, is_held_by_limit
from locust_llm.report.sections.delivery.model import Delivery
from locust_llm.report.sections.outages import describe_outages
from locust_llm.report.summary import Summary
from locust_llm.slo.client_verdict import FULL_CORE
from locust_llm.slo.measurement_bias import DELAYS
from locust_llm.text.format import (
    capitalise_sentence,
    digits_to_tell_apart,
    format_brief,
    format_count,
    format_duration,
)


def format_delivery_line(summary: Summary) -> str | None:
    """The line above the tables when less than 98 % of the schedule was sent: the cause, with its figures."""
    d = summary.delivery
    if d is None or not d.cause:
        return None
    offered = f"{d.offered_per_s:.2f}/s"
    if d.cause == GATE:
        why = f"the prefill gate. {_by_gate(d)}"
    elif d.cause == SERVER and d.overload is not None:
        why = (
            f"the server. It fell behind before all {d.users} users were busy, {format_brief(d.overload.all_busy_s, digits=2)} s "
            "after the start"
        )
    elif d.cause == CLIENT:
        figures = [
            f"process {e.worker} used {e.cpu_share:.0%} of a core"
            for e in summary.evidence
            if (e.cpu_share or 0) > FULL_CORE
        ]
        why = f"the load generator. {capitalise_sentence('; '.join(figures or _of_delays(summary)))}"
    elif d.cause == USERS and d.users_needed is not None:
        rate = format_brief(d.users / d.busy_s, "/s", 2) if d.busy_s else "-"
        more, less = ("at least ", "at most ") if summary.conditions.cut else ("", "")  # what was cut took longer
        why = (
            f"too few users. {offered} x {more}{format_brief(d.busy_s, ' s', 3)} per request needs "
            f"{more}{_beside(d.users_needed, d.users)} users, and "
            f"there were at most {d.users}{' (--max-users was reached)' * d.out_of_users}, which complete {less}{rate}: "
            "more of them help if requests then take no longer"
        )
    else:
        limit = format_brief(d.prefill_limit, digits=3)
        gate = "" if d.in_prefill_needed is None else f"{d.in_prefill_needed:.1f} of {limit} slots and "
        users = "?" if d.users_needed is None else f"{d.users_needed:.1f}"
        why = (
            "a burst of arrivals, or arrivals just before the end of the run. "
            f"On average {gate}{users} of {d.users} users were needed"
        )
    at_gate = "" if d.prefill_limit is None else f", {d.at_gate} waited at the gate when the run ended"
    unsent = f"{d.due - d.sent} of {d.due} arrivals were not sent: {d.never_started} found no free user{at_gate}"
    return f"NOT DELIVERED: {d.share:.1%} of the scheduled requests were sent. Cause: {why}. {unsent}."


def _by_gate(d: Delivery) -> str:
    """Why the gate is the cause: the rate needs more than its limit, or users, or the last arrivals, waited at it."""
    limit = format_brief(d.prefill_limit, digits=3) + " on average" * ((d.prefill_limit or 0) % 1 > 0)
    if d.in_prefill_needed is not None and d.prefill_limit and d.ttft_s and is_held_by_limit(d):
        rate, needed = d.in_prefill_needed / d.ttft_s, _beside(d.in_prefill_needed, d.prefill_limit)
        need = f"{rate:.2f}/s x {format_duration(d.ttft_s)} TTFT needs a prefill limit of {needed}, and it was {limit}"
        if d.in_prefill_needed > d.prefill_limit:
            return need
        return f"{need}: at {d.in_prefill_needed / d.prefill_limit:.0%} of the limit, arrivals at random times queue up"
    if d.at_gate > (d.due - d.sent) / 2:
        return f"The limit was {limit}, and requests came faster at the end than it lets them in"
    waited, busy = format_duration(d.gate_wait_s or 0.0), format_duration(d.busy_s or 0.0)
    return f"The limit was {limit}. A user was busy with a request for {busy} on average, {waited} of it at the gate"


def _of_delays(summary: Summary) -> list[str]:
    """The reasons of the client verdict that are delays of the load generator."""
    reasons = () if summary.client is None else summary.client.reasons
    return [reason for reason in reasons if any(signal in reason for signal in DELAYS)] or list(reasons)


def _beside(value: float, limit: float) -> str:
    """With as many digits as show on which side of the limit it is."""
    return format_brief(value, digits=digits_to_tell_apart(value, limit, digits=2))


def format_outage_line(summary: Summary) -> str | None:
    """That nothing answered for a while, and what the rates are without that time."""
    if not summary.outages:
        return None
    silent_s, unanswered = sum(one.seconds for one in summary.outages), sum(one.unanswered for one in summary.outages)
    whole_s = summary.conditions.duration_s or 0.0
    text = (
        f"NO ANSWER: {describe_outages(summary.outages)}: {format_count(unanswered, 'request')} had no answer at all."
    )
    if not whole_s > silent_s:
        return text
    factor = whole_s / (whole_s - silent_s)
    rows = {row.tag: row.avg for row in summary.rows if row.avg is not None}
    tags = (("output_token_throughput", " output tokens/s"), ("request_throughput", " requests/s"))
    rates = [format_brief(rows[tag] * factor, unit, 3) for tag, unit in tags if tag in rows]
    without = f"without these {format_brief(silent_s, ' s', 3)} they are {' and '.join(rates)}"
    return f"{text} Rates are over {format_brief(whole_s, ' s', 3)}; {without}."


def format_overload_line(summary: Summary) -> str | None:
    """Of an open loop that the server fell behind what the headline does not say; None of any other."""
    if summary.delivery is None or (found := summary.delivery.overload) is None:
        return None
    waiting = "" if found.all_busy_s is None else " or waited for a free user"
    c = summary.conditions
    grown = (
        f"OVERLOADED: {found.in_flight_middle:,} requests were in flight{waiting} at half of the time, "
        f"{found.in_flight_end:,} at the stop."
    )
    if not c.succeeded:
        return grown
    rate = next((row.avg for row in summary.rows if row.tag == "request_throughput"), None)
    if rate is not None and c.duration_s is not None:
        grown += (
            f" Completed, {_rate(summary.delivery.completed_per_s)}, is {describe_span(summary.delivery)}; Request Throughput, "
            f"{_rate(rate)}, is over {format_brief(c.duration_s, ' s', 3)}, with what ended after it."
        )
    without = f", and the {c.cut:,} that were cut, which took longer still, are in none of them" if c.cut else ""
    return f"{grown} Latencies are those of a growing queue: a longer run has longer ones{without}."


def describe_overload(delivery: Delivery | None) -> str | None:
    """``offered 30/s, completed 4.5/s in the 20 s to the stop, and the queue grew until the end``; None where it
    did not."""
    if delivery is None or delivery.overload is None:
        return None
    offered, completed = _rates(delivery)
    return f"{offered}, {completed} {describe_span(delivery)}, and the queue grew until the end"


def describe_undelivered(delivery: Delivery | None) -> str | None:
    """``offered 30/s, sent 4.6/s, completed 4.5/s by the stop``, where less was sent than offered, and
    not because of the server."""
    if delivery is None or not delivery.cause or delivery.overload is not None:
        return None
    offered, completed = _rates(delivery)
    why = {GATE: "the prefill gate", CLIENT: "the load generator", USERS: "too few users"}.get(delivery.cause, "")
    return f"{offered}, sent {format_brief(delivery.sent_per_s, '/s', 2)}, {completed} by the stop{f' ({why})' * bool(why)}"


def describe_completed(delivery: Delivery) -> str:
    """``98.3%: 3.80/s in the 60 s to the stop, 228 of 240 that were due``, and what the share is of, where these
    are not all."""
    d = delivery
    share = "" if d.completed_share is None else f"{d.completed_share:.1%}: "
    said = f"{share}{d.completed_per_s:.2f}/s {describe_span(d)}, {d.completed:,} of {d.due:,} that were due"
    left_out = 0 if d.expected is None else round(d.due - d.expected)
    if not left_out:
        return said
    flight = f"{said}. {left_out:,} of the others were in flight at the stop, as in any server that keeps up"
    if d.completed_share is None:
        return f"{flight}: too short a run for a share"
    return f"{flight}: the share is of the remaining {d.due - left_out:,}"


def _rates(d: Delivery) -> tuple[str, str]:
    return f"offered {_rate(d.offered_per_s)}", f"completed {_rate(d.completed_per_s)}"


def _rate(per_s: float) -> str:
    return format_brief(per_s, "/s", 2)


def describe_span(d: Delivery) -> str:
    """What ``completed`` is of: ``in the 20 s to the stop``. It has the filling of an idle server, and not what ended after
    the stop, so a throughput over the whole run is another figure."""
    return f"in the {format_brief(d.duration_s, ' s', 3)} to the stop"
