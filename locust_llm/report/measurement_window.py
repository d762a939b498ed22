"""Measurement window: the time that rates are over, of a stage the part with the load on, and the
throughput in it.

A stage of a sweep is measured while its load is on: before and after, requests of the first and the
last wave keep the server as busy. Over its measured requests alone, from the first send to the last
end, a rate would be too low by the time in which the last ones come back and no new ones go out; so
rates are those of what ended within the measured time. So are those of a run whose load went on
from the warmup.

A rate of any other run is over all of it, its start and its end too. How far that rate may be off
is seen from the part between them (``find_settled_window``): that a load begins and ends is no
change of the server.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import CANCELLED, FAILURES, OK
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Floats
from locust_llm.settings.sweep_option import littles_law_residual

from .request_selection import RequestSelection
from .summary_rows import SteadyState

MIN_ANSWERED_SHARE: Final = 0.95
"""Above this share of the arrivals the server kept up."""
MIN_SEEN_SHARE: Final = 0.5
"""Below this share of the arrivals nothing shows that the server kept up."""
MIN_DUE: Final = 10
"""So few arrivals need not have come at the rate of the stage."""
CHANCE_FACTOR: Final = 3.0
"""The number in flight varies by the root of its mean, if arrivals are random and independent
(M/G/infinity). So many roots more at the end of a stretch than at its begin show no queue."""

STRETCHES: Final = 10
"""The stretches of a stage's measured time, for the error of its rate."""

ANSWERED: Final = 90
"""The percentile of the time for an answer, after which an evenly sent load is answered evenly."""
TIME_UP_S: Final = 1.0
"""A run that ended so shortly before its time was up may have ended by it."""
LONGER_SERIES: Final = "a rate series that holds its rates for longer"
MIN_SETTLED: Final = 0.25
"""The share of the loaded time. If less is left without its start, the start is not left out."""

Span = tuple[float, float]
"""Unix seconds."""


class RateWindow(NamedTuple):
    """The time that rates are over."""

    span: Span
    pauses: tuple[Span, ...] = ()
    """The pauses between repeats, when nothing was sent. They do not count."""

    @property
    def seconds(self) -> float:
        return self.span[1] - self.span[0] - sum(end - start for start, end in self.pauses)

    def of(self, at: Floats) -> Floats:
        """The seconds of the window that are over at these moments."""
        pauses = [np.clip(at, *pause) - pause[0] for pause in self.pauses]
        seconds: Floats = at - self.span[0] - sum(pauses)
        return seconds

    @property
    def stretches(self) -> list[Span]:
        """The span without its pauses."""
        begins = [self.span[0], *(end for _, end in self.pauses)]
        ends = [*(start for start, _ in self.pauses), self.span[1]]
        return list(zip(begins, ends, strict=True))

    def holds(self, at: Floats) -> NDArray[np.bool_]:
        """Which of these moments lie in the window."""
        return (at >= self.span[0]) & (at <= self.span[1]) & ~self.pauses_at(at)

    def pauses_at(self, at: Floats) -> NDArray[np.bool_]:
        """Which of these moments lie in a pause."""
        paused = np.zeros(len(at), np.bool_)
        for start, end in self.pauses:
            paused |= (at > start) & (at < end)
        return paused


def find_measured_span(run: Run) -> Span | None:
    """The measured time of a stage of a sweep. None: anything else, as a repeat is measured like
    any run."""
    stage = run.stage
    if stage is None or stage.measured_at is None or stage.measured_at <= stage.began_at:
        return None
    return stage.measured_at, stage.ended_at


def find_loaded_span(main: RequestSelection, run: Run) -> Span | None:
    """The loaded time of a run whose load went on from the warmup: as many requests end in it as
    are sent. None: any other run."""
    if not run.warmup_went_on or run.stopping_at is None or not main.size:
        return None
    end = run.stopping_at
    if run.settings.request_count:  # the stop comes when the last answer is back
        end = float(np.nanmax(np.fmax(main["asked_at"], main["sent_at"])))
    return (run.profiling_at, end) if end > run.profiling_at else None


def describe_used_up_load(run: Run) -> str:
    """What a run needs more of that ended because all of it was sent, and not as its time was up:
    ``a longer trace (all of it was sent)``. Empty: more time gives it more requests."""
    settings = run.settings
    in_parts = run.stage is not None or run.stages or run.limit_blocks or settings.compares
    if run.imported or in_parts or run.stopping_at is None:
        return ""
    ended_by_others = run.stopped_early or run.broken_rules or run.decided_rules
    most_s = settings.longest_s
    took_s = run.stopping_at - run.profiling_at
    if ended_by_others or (most_s is not None and took_s > most_s - TIME_UP_S):
        return ""
    if settings.fixed_schedule:
        return "a longer trace (all of it was sent)"
    if settings.request_count:
        return "more requests (--request-count)"
    if settings.num_sessions:
        return "more sessions (--num-sessions)"
    sent_once = settings.input_file and most_s is None
    return "more requests" if sent_once else ""


def describe_needed_load(run: Run) -> str:
    """What a run needs for more requests of the same load, where more time alone does not give them:
    after its points a rate series goes on with its last rate. Empty: more time gives them."""
    return LONGER_SERIES if run.settings.request_rate_series else describe_used_up_load(run)


def select_ended_in(part: RequestSelection, span: Span) -> RequestSelection:
    """Selects the requests whose end lies in the window. Whole ones: where a server cannot keep up,
    the wait of a request is no work that it has done. Blocks of two arms are too short for that:
    they count the share of each request's time."""
    over = np.fmax(part["closed_at"], part["last_chunk_at"])
    return part.where((over >= span[0]) & (over <= span[1]))


def find_pauses(main: RequestSelection, run: Run) -> Iterator[Span]:
    """The time from the last end in one stage of the run to the first send in the next."""
    tried = np.where(np.isnan(main["sent_at"]), main["asked_at"], main["sent_at"])
    over = np.fmax(main["closed_at"], main["last_chunk_at"])
    for stage in run.stages:
        before, after = over[tried < stage.began_at], tried[tried >= stage.began_at]
        if len(before) and len(after) and after.min() > before.max():
            yield float(before.max()), float(after.min())


def find_settled_window(main: RequestSelection, time: RateWindow, run: Run) -> RateWindow | None:
    """The part of ``time`` in which as many requests end as are sent: without the start of the
    load, until all users have started and have had time for an answer, and without its end, when
    nothing is sent any more. None: too little is left."""
    tried = np.where(np.isnan(main["sent_at"]), main["asked_at"], main["sent_at"])
    answered = main.outcome(OK)
    if not answered.size:
        return None
    over = np.fmax(answered["closed_at"], answered["last_chunk_at"])
    answer_s = float(np.percentile(over - answered["asked_at"], ANSWERED))
    settled = list[Span]()
    for begin, end in time.stretches:
        sent = tried[(tried >= begin) & (tried <= end)]
        if not len(sent):
            continue
        last = float(sent.max())
        first = find_users_started(run, begin) + answer_s
        if last - first < MIN_SETTLED * (last - begin):
            return None
        settled.append((first, last))
    if not settled:
        return None
    pauses = tuple((before[1], after[0]) for before, after in pairwise(settled))
    return RateWindow((settled[0][0], settled[-1][1]), pauses)


def find_users_started(run: Run, begin: float) -> float:
    """When the last user sent its first request, for a load that began at ``begin``. If it is not
    known, ``begin``."""
    begun = sum(stage.began_at <= begin for stage in run.stages)
    stage = begun if run.stage is None else run.stage.number
    own = [start for start in run.starts if (start.phase, start.stage) == (PROFILING, stage)]
    if not own:
        return begin
    return begin + (own[-1].over_s if own[-1].took_s is None else own[-1].took_s)


def measure_steady_state(
    everything: RequestSelection, ended: RequestSelection, span: Span, run: Run
) -> SteadyState | None:
    """The steady state of a stage. ``everything`` has its requests, with the first and the last
    wave. ``ended`` has the ones that ended in ``span``."""
    seconds = span[1] - span[0]
    if run.stage is None or not seconds > 0:
        return None
    began = everything["asked_at"]
    over = np.fmax(everything["closed_at"], everything["last_chunk_at"])
    in_flight = float(np.nansum(np.clip(over, *span) - np.clip(began, *span))) / seconds
    residual = None
    if run.stage.residual is not None and ended.size:
        inside_s = np.fmax(ended["closed_at"], ended["last_chunk_at"]) - ended["asked_at"]
        residual = littles_law_residual(in_flight, ended.size, seconds, float(np.nanmean(inside_s)))
    # what was cancelled on purpose is neither success nor failure
    due = run.offer.due - ended.outcome(CANCELLED).size if run.offer is not None else 0
    error = estimate_rate_error(ended.outcome(OK), span)
    if due <= 0:
        return SteadyState(in_flight=in_flight, residual=residual, per_s_error=error)
    answered, finished = ended.outcome(OK).size, ended.outcome(OK, *FAILURES).size
    by_chance = min(max(0, due - finished), int(CHANCE_FACTOR * (2 * in_flight) ** 0.5))
    completed = min(1.0, (answered + by_chance) / due)
    kept_up = completed >= MIN_ANSWERED_SHARE
    # else the time is too short for its rate, or for its requests
    known = not kept_up or (due >= MIN_DUE and answered >= MIN_SEEN_SHARE * due)
    return SteadyState(
        in_flight=in_flight,
        residual=residual,
        per_s_error=error,
        answered_share=answered / due,
        by_chance=by_chance,
        completed_share=completed if known else None,
        kept_up=kept_up if known else None,
    )


def estimate_rate_error(ok: RequestSelection, span: Span) -> float | None:
    """The standard error of the requests a second that ended in ``span``, from the differences of
    STRETCHES equal stretches."""
    over = np.fmax(ok["closed_at"], ok["last_chunk_at"])
    if len(over) < STRETCHES:
        return None
    counts, _ = np.histogram(over, STRETCHES, span)
    return float(counts.std(ddof=1)) * STRETCHES**0.5 / (span[1] - span[0])
