"""Overload detection: whether more requests arrived than the server could answer, from when they
were due and when they were over."""

import math
from typing import Final

import msgspec
import numpy as np

from locust_llm.records.run_facts import OpenLoopSchedule, Run
from locust_llm.report.array_types import Floats
from locust_llm.report.request_selection import RequestSelection


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    """In an open loop, less was completed than offered, and the number in flight grew until the run
    was stopped. The fields count requests that were due and had not ended."""

    in_flight_middle: int
    """The number at half of the time."""
    in_flight_end: int
    """The number at the stop."""
    all_busy_s: float | None = None
    """When all users were busy, in seconds from the start. From then on some of these requests
    waited for a user. None: they never were."""


MAX_COMPLETED_SHARE: Final = 0.9
"""The share of what is due in the second half of a run. With more the server is not called
overloaded."""
CHANCE_ERRORS: Final = 3.0
"""The number in flight may grow by so many standard errors by chance."""
FIRST: Final = 10
"""So many requests show how long one lasts on an idle server."""
EARLY: Final = 0.25
"""The largest mean place of requests that end in a queue, from 0 for the one that was due first to
1."""
ENDED: Final = 100
"""So many ended requests are examined, spread over the run."""
CHANCE: Final = 0.001
"""The probability below which a result is no chance."""


def detect_overload_before_users(
    tried: RequestSelection, run: Run, offer: OpenLoopSchedule
) -> Overload | None:
    """Whether the server fell behind before all users were busy. After that, no more requests can
    be in flight than there are users. If it did, a lack of users is not the reason. A request that
    waits for a user counts as in flight."""
    due_s, asked_s, over_s = (
        tried[name] - run.profiling_at for name in ("due_at", "asked_at", "closed_at")
    )
    busy = np.searchsorted(np.sort(asked_s), asked_s, side="right") - np.searchsorted(
        np.sort(over_s), asked_s, side="right"
    )
    all_busy = asked_s[busy >= offer.most_users]
    busy_s = float(min(all_busy, default=math.inf))
    first_s = due_s + tried["ttft_from_due_s"]
    if not busy_s < offer.duration_s:
        return None
    if detect_any_overload(
        due_s, first_s, over_s, busy_s
    ) is None and not has_queue_of_first_tokens(
        asked_s, np.where(np.isnan(first_s), over_s, first_s), busy_s, offer.duration_s
    ):
        return None
    schedule_s = run.profiling_at - run.started_at
    last_s = float(due_s.max())  # what found no user is what was due last
    unsent_s = last_s + (offer.duration_s - last_s) * (np.arange(offer.never_started) + 1.0) / (
        offer.never_started + 1
    )
    due_s = np.concatenate([due_s, unsent_s])
    over_s = np.concatenate([over_s, np.full(len(unsent_s), np.inf)])
    middle, end = (
        count_in_flight(due_s, over_s, moment)
        for moment in (offer.duration_s / 2, offer.duration_s)
    )
    return Overload(in_flight_middle=middle, in_flight_end=end, all_busy_s=busy_s + schedule_s)


def has_queue_of_first_tokens(
    asked_s: Floats, first_s: Floats, busy_s: float, duration_s: float
) -> bool:
    """Whether the server queued what came before all users were busy, too short a time for the
    other test. Most of them still awaited their first token then. The last ones waited over twice
    as long as the first ones, in the order in which they came."""
    early = asked_s <= busy_s
    order = np.argsort(asked_s[early], kind="stable")
    asked_s, first_s = asked_s[early][order], first_s[early][order]
    waited_s = first_s - asked_s
    if len(asked_s) < 2 * FIRST or (first_s > busy_s).mean() < 0.5:
        return False
    longer = np.median(waited_s[-FIRST:]) > 2 * np.median(waited_s[:FIRST])
    return bool(longer) and has_queued_requests(asked_s, first_s, duration_s)


def detect_overload_of_sent(
    tried: RequestSelection, run: Run, offer: OpenLoopSchedule
) -> Overload | None:
    """Whether the server fell behind what was sent, though less was sent than offered, and late."""
    sent_s = tried["sent_at"] - run.profiling_at
    was_sent = ~np.isnan(sent_s)
    over_s = tried["closed_at"] - run.profiling_at
    ttft_s = tried["ttft_s"]
    return detect_any_overload(
        sent_s[was_sent], (sent_s + ttft_s)[was_sent], over_s[was_sent], offer.duration_s
    )


def detect_any_overload(
    due_s: Floats, first_s: Floats, over_s: Floats, duration_s: float
) -> Overload | None:
    """Whether the server fell behind with whole requests, or with first tokens, which shows where
    requests last as long as the run. ``first_s``: NaN if there was no first token."""
    waited_s = np.where(np.isnan(first_s), over_s, first_s)
    if (overload := detect_overload(due_s, over_s, duration_s)) is None and detect_overload(
        due_s, waited_s, duration_s
    ) is not None:
        middle, end = (
            count_in_flight(due_s, over_s, moment) for moment in (duration_s / 2, duration_s)
        )
        overload = Overload(in_flight_middle=middle, in_flight_end=end)
    return overload


def count_in_flight(due_s: Floats, over_s: Floats, moment: float) -> int:
    return int((due_s <= moment).sum() - (over_s <= moment).sum())


def detect_overload(due_s: Floats, over_s: Floats, duration_s: float) -> Overload | None:
    """Whether the server fell behind the schedule. ``due_s``, ``over_s``: when each request was due
    and when it ended, after the stop too, in seconds from the start; ``duration_s``: from there to
    the stop.

    In the second half of the time under 90 % of what was due ended, and the number in flight grew
    by more than

    - it does in any run, which begins with none in flight: as many more as requests make that last
      as long as the first ones
      that were due, which found the server idle;
    - and chance: three standard errors of this difference, with Poisson counts of what was due and
      what ended.

    So there is none where the first requests last nearly as long as the run: it is too short to
    tell. But where requests last the longer the later they were due, the first ones waited for each
    other, and the least that one of them explains is taken.
    """
    if len(due_s) < FIRST:
        return None
    middle, end = (
        count_in_flight(due_s, over_s, moment) for moment in (duration_s / 2, duration_s)
    )
    due = int(((due_s > duration_s / 2) & (due_s <= duration_s)).sum())
    ended = due - (end - middle)
    filling = count_due_in_service(due_s, over_s, duration_s) - count_due_in_service(
        due_s, over_s, duration_s / 2
    )
    if has_queued_requests(due_s, over_s, duration_s):
        filling = filling.min(keepdims=True)
    error = math.sqrt(due + ended + float(filling.var()) / FIRST)
    if (
        ended >= MAX_COMPLETED_SHARE * due
        or end - middle - float(filling.mean()) <= CHANCE_ERRORS * error
    ):
        return None
    return Overload(in_flight_middle=middle, in_flight_end=end)


def count_due_in_service(due_s: Floats, over_s: Floats, moment: float) -> Floats:
    """For each of the first requests, how many were due within its duration before ``moment``. A
    server that keeps up has so many in flight (Little's law, for any schedule)."""
    order = np.argsort(due_s, kind="stable")
    at, first_s = due_s[order], (over_s - due_s)[order[:FIRST]]
    before = np.searchsorted(at, moment - first_s, side="right").astype(np.float64)
    return np.asarray(np.searchsorted(at, moment, side="right") - before)


def has_queued_requests(due_s: Floats, over_s: Floats, duration_s: float) -> bool:
    """Whether requests that ended by the stop were due early among those which lasted as long or
    longer, so far at least: so it is in a queue, and not where the lengths of answers decide how
    long one lasts.

    Each one's place among these, as a share of them, is a p-value; they are combined by Fisher's
    method (Statistical Methods for Research Workers, 1932): the sum of their negative logarithms is
    gamma distributed where chance decides.
    """
    lasted_s = np.minimum(over_s, duration_s) - due_s
    ended = np.flatnonzero(over_s <= duration_s)
    if not len(ended):
        return False
    sample = ended[:: math.ceil(len(ended) / ENDED)]
    places = [float((due_s[lasted_s >= lasted_s[i]] <= due_s[i]).mean()) for i in sample]
    low = -sum(map(math.log, places))
    chance = math.exp(-low) * sum(low**k / math.factorial(k) for k in range(len(places)))
    return sum(places) < EARLY * len(places) and chance < CHANCE
