"""Cancelled work: the tokens that the server generated for requests after they were cancelled, by its
own counters.

The interval comes from windows of the run: clients who left in one window share its tokens, and the
server may work for them in the next one. So windows are long, and each begins with a client who left.
The counters lag behind, so windows vary more than clients do. The sum of all tokens bounds the interval,
too: it varies most if few clients have all of them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np

from locust_llm.records.outcomes import CANCELLED, OK
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.array_types import Floats
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.measurement_window import describe_used_up_load
from locust_llm.report.request_selection import mean_of_known
from locust_llm.slo.binomial_intervals import TAIL
from locust_llm.slo.student_t import find_student_t

MOST_WINDOWS: Final = 20
LEAST_WINDOWS: Final = 5
"""Fewer windows with cancellations give no interval, nor do clients who left at fewer moments."""
MOMENT_S: Final = 1.0
"""Clients who left within it left together."""
ANSWERS_IN_A_WINDOW: Final = 2.0
"""A window is so many times as long as an answer: the work for those who left ends in it or in
the next one."""
LONG_ANSWER: Final = 95.0
"""The percentile of the time of complete answers."""


class CancelledWork(msgspec.Struct, frozen=True, kw_only=True):
    """The server's work for cancelled requests. It is only known if nobody else used the server."""

    cancelled: int
    """So many requests were cancelled on purpose."""
    generated: float | None = None
    """The tokens that the server generated for all requests of the run."""
    received: float | None = None
    """The tokens that the run received. Without a count each chunk of an answer has as many as in
    complete answers."""
    estimated: float = 0.0
    """So many of the received tokens are known from chunks alone."""
    ghost_tokens: float | None = None
    """(generated - received) / cancelled, at least 0. null: unknown."""
    interval: tuple[float, float] | None = None
    """Its 95% interval. null: clients left at too few moments."""
    still_running: float = 0.0
    """So many requests ran in the server at the last reading, so it generated more."""
    needed: str = "a longer run"
    """What may have an interval, where there is none."""
    problem: str = ""
    """Why the ghost tokens are unknown."""


def measure_cancelled_work(
    history: EngineHistory, columns: RequestColumns, run: Run
) -> CancelledWork | None:
    """None: the run does not check cancellations."""
    if not run.settings.check_cancellations:
        return None
    requests = columns.requests
    cancelled = int(requests.has("outcome", CANCELLED).sum())
    if not cancelled:
        return CancelledWork(cancelled=0, problem="no request was cancelled")
    tokens = _count_received(columns)
    if tokens is None:
        problem = "the server counts no tokens of its answers"
        return CancelledWork(cancelled=cancelled, problem=problem)
    received = float(tokens.sum())
    estimated = float(tokens[requests.has("tokens_from", "chunks")].sum())
    curves = list[_TokenCurve]()
    still_running = 0.0
    for name in history.engines:
        samples = [sample for sample in history.by_name[name] if not sample.failure]
        curve = _draw_curve(samples, requests.earliest("sent_at"))
        if curve is None:
            curves.clear()
            break
        curves.append(curve)
        still_running += samples[-1].running or 0.0
    if not curves:
        problem = "no metrics of the server count its tokens from before the first request on"
        return CancelledWork(
            cancelled=cancelled, received=received, estimated=estimated, problem=problem
        )
    generated = sum(float(curve.tokens[-1]) for curve in curves)
    return CancelledWork(
        cancelled=cancelled,
        generated=generated,
        received=received,
        estimated=estimated,
        ghost_tokens=max(generated - received, 0.0) / cancelled,
        interval=_find_interval(curves, columns, tokens, generated - received),
        still_running=still_running,
        needed=describe_used_up_load(run) or "a longer run",
    )


# -- tokens ----------------------------------------------------------------------------------------


class _TokenCurve(NamedTuple):
    """The tokens that an engine generated since the first reading, at each reading (Unix s)."""

    at: Floats
    tokens: Floats


def _draw_curve(samples: Sequence[EngineSample], sent_at: float) -> _TokenCurve | None:
    """A counter that falls restarted with the server. None: no reading is from before the first send."""
    counted = [
        (sample.at, tokens) for sample in samples if (tokens := sample.generated_tokens) is not None
    ]
    if len(counted) < 2 or counted[0][0] > sent_at:
        return None
    steps = [
        after - before if after >= before else after
        for (_, before), (_, after) in pairwise(counted)
    ]
    at = np.array([moment for moment, _ in counted])
    return _TokenCurve(at, np.concatenate(([0.0], np.cumsum(steps))))


def _count_received(columns: RequestColumns) -> Floats | None:
    """The tokens of each request. None: complete answers have no count of the server."""
    requests = columns.requests
    complete = requests.has("outcome", OK)
    if (complete & ~requests.has("tokens_from", "usage")).any():
        return None
    each = mean_of_known(requests.floats("tokens_per_chunk")[complete]) or 1.0
    by_chunks = ~complete & requests.has("tokens_from", "chunks")
    tokens = np.nan_to_num(requests.floats("output_tokens"))
    return np.where(by_chunks, tokens * max(each, 1.0), tokens)


# -- interval --------------------------------------------------------------------------------------


def _find_interval(
    curves: Sequence[_TokenCurve], columns: RequestColumns, tokens: Floats, surplus: float
) -> tuple[float, float] | None:
    """``surplus``: the tokens generated beyond those received. None: clients left at too few moments."""
    requests = columns.requests
    left_at = requests.floats("closed_at")[requests.has("outcome", CANCELLED)]
    _, left = np.unique(np.floor(left_at / MOMENT_S), return_counts=True)
    counted = requests.floats("output_tokens")
    lengths = np.concatenate((counted, requests.floats("asked_output_tokens"), [0.0]))
    by_total = bound_by_total(
        surplus,
        left.astype(np.float64),
        uncertain=float(tokens.sum() - np.nansum(counted)),
        most=float(np.nanmax(lengths)),
    )
    by_windows = _find_interval_of_windows(curves, columns, tokens)
    if by_total is None or by_windows is None:
        return by_total or by_windows
    return max(by_total[0], by_windows[0]), min(by_total[1], by_windows[1])


def bound_by_total(
    surplus: float, left: Floats, *, uncertain: float, most: float
) -> tuple[float, float] | None:
    """The widest 95% interval of the ghost tokens of a client that their sum allows, whoever has them.
    ``left``: the clients of each moment at which any left. ``uncertain``: so many of the received
    tokens are estimated. ``most``: no request has more. None: clients left at too few moments."""
    clients = float(left.sum())
    independent = clients**2 / float((left**2).sum())
    if independent < LEAST_WINDOWS:
        return None
    total = max(surplus, 0.0)
    mean = total / clients
    largest = min(total, most) if mean <= most else total
    # the variance is largest if each client has none or the most
    variance = mean * (largest - mean) / (independent - 1)
    half = find_student_t(independent - 1, TAIL) * math.sqrt(variance)
    half += max(uncertain, -surplus) / clients
    return max(mean - half, 0.0), mean + half


def _find_interval_of_windows(
    curves: Sequence[_TokenCurve], columns: RequestColumns, tokens: Floats
) -> tuple[float, float] | None:
    """None: too few windows have cancellations."""
    requests = columns.requests
    began = requests.earliest("sent_at")
    ended = max(float(curve.at[-1]) for curve in curves)
    took_s = requests.floats("latency_s")[requests.has("outcome", OK)]
    took_s = took_s[~np.isnan(took_s)]
    if not len(took_s):
        return None
    window_s = ANSWERS_IN_A_WINDOW * float(np.percentile(took_s, LONG_ANSWER))
    count = int(min((ended - began) / window_s, MOST_WINDOWS)) if window_s > 0 else MOST_WINDOWS
    if count < LEAST_WINDOWS:
        return None
    bounds = np.linspace(began, ended, count + 1)
    received = np.array([_count_until(bound, columns, tokens) for bound in bounds])
    bounds[0] = min(float(curve.at[0]) for curve in curves)
    generated = np.sum([np.interp(bounds, curve.at, curve.tokens) for curve in curves], axis=0)
    left_at = requests.floats("closed_at")[requests.has("outcome", CANCELLED)]
    left, _ = np.histogram(left_at, bounds)
    return find_ratio_interval(np.diff(generated - received), left.astype(np.float64))


def _count_until(moment: float, columns: RequestColumns, tokens: Floats) -> float:
    """The tokens received until then. Those of an answer came evenly between its first and its last chunk."""
    first = columns.requests.floats("first_chunk_at")
    last = columns.requests.floats("last_chunk_at")
    share = np.clip((moment - first) / np.maximum(last - first, 1e-9), 0.0, 1.0)
    return float(np.nansum(share * tokens))


def find_ratio_interval(ghosts: Floats, left: Floats) -> tuple[float, float] | None:
    """The 95% interval of sum(ghosts) / sum(left), from windows (delete-one jackknife). A window without
    cancellations belongs to the one before. None: there are fewer than LEAST_WINDOWS."""
    group = np.maximum(np.cumsum(left > 0) - 1, 0)
    ghosts = np.bincount(group, ghosts).astype(np.float64)
    left = np.bincount(group, left).astype(np.float64)
    count = len(left)
    if count < LEAST_WINDOWS:
        return None
    without = (ghosts.sum() - ghosts) / (left.sum() - left)
    variance = (count - 1) / count * float(((without - without.mean()) ** 2).sum())
    half = find_student_t(count - 1, TAIL) * math.sqrt(variance)
    mean = float(ghosts.sum() / left.sum())
    return max(mean - half, 0.0), max(mean + half, 0.0)
