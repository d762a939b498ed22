"""Load result: the schedule of an open loop and what became of it, as frozen data; report/sections/delivery/analysis.py makes it."""

import msgspec


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """Of an open loop: less was completed than offered, and the number in flight grew until the run was stopped. Counts of
    requests that were due and had not ended."""

    in_flight_middle: int
    """At half of the time."""
    in_flight_end: int
    """At the stop."""
    all_busy_s: float | None = None
    """When all users were busy, in seconds from the start: from then on some of these waited for one. None: they never
    were."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The arrivals of an open loop in the ``duration_s`` seconds of profiling until the run was stopped."""

    duration_s: float
    due: int
    sent: int
    """Those that were tried: sent, or failed on the way (a refused connection is an answer of a kind)."""
    completed: int
    """Those that were answered without a failure by then; what was answered during the drain is not among them. Of a stage
    all that were answered in its measured time, whenever they were due."""
    never_started: int
    """Those that had found no free user by then."""
    at_gate: int = 0
    """Those that waited at the prefill gate when the run was stopped, and were not sent."""
    offered_per_s: float
    sent_per_s: float
    completed_per_s: float
    share: float
    """sent / due."""
    cause: str = ""
    """Why less than 98 % was sent: ``gate``, ``users``, ``server``, ``client`` or ``end``; empty when it was not less."""
    in_prefill_needed: float | None = None
    """Requests offered a second x mean TTFT (Little's law): the requests in prefill that the rate needs; None
    without a gate."""
    prefill_limit: float | None = None
    """Its mean over the time."""
    ttft_s: float | None = None
    users_needed: float | None = None
    """Arrivals offered a second x mean time that one takes a user, waiting at the gate included (Little's law)."""
    users: int
    """The most there were."""
    busy_s: float | None = None
    """That mean time."""
    gate_wait_s: float | None = None
    """Of it, the mean wait at the gate."""
    out_of_users: bool = False
    """``--max-users`` was reached while arrivals waited."""
    completed_share: float | None = None
    """completed / expected, at most 1; None: requests last as long as half of the run, which is too short to tell."""
    expected: float | None = None
    """Of those due, without those in flight at the stop as in any server that keeps up: it answered them in the grace
    period, and they are at most as many as were due within the time that the first ten requests took. All where the server
    fell behind, and of a stage. None: of an older version."""
    overload: Overload | None = None
    """None: it did not grow by more than chance, or what was offered was not sent for another reason."""
