"""Disruption results: what the disruptions of a run did to its requests, as numbers. They are computed
in disruption_effects.py."""

import msgspec


class BudgetSpent(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what a rule allows the requests of one disruption spent."""

    rule: str
    broken: int
    """The requests in flight and those sent until the recovery that broke the rule."""
    allowed: float
    """How many requests of the whole run may break it."""


class RequestFates(msgspec.Struct, frozen=True, kw_only=True):
    """What became of some requests. The counts add up to ``total``."""

    total: int
    finished: int
    failed: int
    """They ended with an error before a time limit."""
    truncated: int
    """They ended early, and looked complete."""
    hung: int
    """They reached a time limit, or were cut at the end of the run after 5 s without a token."""
    still_open: int
    """They were cut at the end of the run, with tokens in the last 5 s."""
    cancelled: int
    """They were cancelled on purpose."""

    @property
    def lost(self) -> int:
        return self.failed + self.truncated + self.hung


class DisruptionEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What one disruption did. Seconds count from the start of its command."""

    number: int
    at_s: float
    """When its command began, in seconds after the first request."""
    schedule: str
    command: str
    status: int | None
    """The exit status of the command. None: it was killed, or could not be started."""
    why: str
    command_s: float
    watched_s: float
    """To the next disruption, or to the end of the load."""
    least_recovery_s: float = 0.0
    """Where ``recovery_s`` is null: it took at least so long."""
    in_flight: RequestFates
    """The requests in flight when the command began."""
    sent: RequestFates
    """The requests sent from then on until the recovery."""
    sent_again: int
    """How many of both were sent more than once."""
    first_success_s: float | None
    """Until the first token of a request that was sent afterwards and succeeded. None: there is
    none."""
    recovery_s: float | None
    """Until a request was sent with which failures and TTFT p95 were back in their former range. 0: they never left it. None: see
    ``unknown``."""
    unknown: str
    """Why there is no recovery time."""
    silent_s: float
    """For so long nothing answered, or no token came (``outages``)."""
    failures_before: float | None
    """The highest share of failed requests in a window before the first disruption."""
    failures_most: float | None
    """The same after this disruption, until the recovery."""
    ttft_p95_before_s: float | None
    ttft_p95_most_s: float | None
    """The same of TTFT p95. Infinite (null in JSON): requests were cut without a token."""
    budgets: tuple[BudgetSpent, ...] = ()


class DisruptionEffects(msgspec.Struct, frozen=True, kw_only=True):
    """What all disruptions of a run did."""

    effects: tuple[DisruptionEffect, ...]
    truncated_silently: int
    """The requests that were in flight or sent until a recovery, ended early and looked complete,
    each counted once."""
    concerned: int
    """All requests that were in flight or sent until a recovery, each counted once."""
