"""Breakdowns: TTFT, ITL and waits of requests of one length, one limit of the ramp, one turn, one user class."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .definitions import GATE_WAIT, ITL, TTFT, TTFT_FROM_DUE, Metric
from .parts import Floats, Part, distribution, mean, ratio
from .record import FAILURES, OK
from .run import Run
from .sizes import bucket, bucket_edges
from .summary import Breakdown, Group

Mask = NDArray[np.bool_]
Groups = Iterable[tuple[str, Part]]

PERCENTILES: Final = (50.0, 90.0, 99.0)
STEPS: Final = 8
"""A ramp over more limits is told in so many ranges of them."""
QUARTERS: Final = 4
KINDS: Final = 12
"""How many user classes, models and names are told apart."""
CLOCKS_S: Final = 1e-3
"""So far apart may the clock of a request and that of the limits be: those whom a new limit let in were sent under it."""

WHOLE: Final = "whole phase"
TURN: Final = "turn"


def breakdowns(main: Part, run: Run) -> Iterator[Breakdown]:
    """Those of the profiling phase that divide it. ``main``: its requests."""
    third = GATE_WAIT if run.limits else TTFT_FROM_DUE if run.settings.open_loop else None
    metrics = [metric for metric in (TTFT, ITL, third) if metric is not None]
    for by, groups in (
        ("input length", by_length(main)),
        ("limit of the ramp", by_limit(main, run)),
        ("rate of the ramp", by_rate(main, run)),
        (TURN, by_turn(main)),
        *by_kind(main),
    ):
        told = by == TURN  # there input tokens and what of them was cached are the story, in place of the wait
        found = tuple(_group(label, part, metrics[:2] if told else metrics, told) for label, part in groups)
        if sum(group.label != WHOLE for group in found) > 1:
            yield Breakdown(by=by, groups=found)


def by_length(main: Part) -> Groups:
    """By buckets of input tokens (``sizes.bucket_edges``), shortest first."""
    length = lengths(main)
    known = np.unique(length[length >= 1])
    edges = bucket_edges(known.astype(np.int64).tolist())
    at = np.searchsorted(edges, length, side="right")  # NaN sorts behind all
    for i in range(1, len(edges)):
        if (here := at == i).any():
            yield bucket(edges[i - 1], edges), main.where(here)


def lengths(part: Part) -> Floats:
    """Input tokens as delivered; where no server counted them (most failures), as asked, and what requests of about that
    length were found to have on top (roles, templates): else failures would lie in buckets of their own."""
    asked, delivered = part["asked_input_tokens"], part["input_tokens"]
    both = ~(np.isnan(asked) | np.isnan(delivered))
    if both.any():
        sizes, which = np.unique(asked[both], return_inverse=True)
        on_top = np.bincount(which, (delivered - asked)[both]) / np.bincount(which)
        asked = np.round(asked + np.interp(asked, sizes, on_top))
    return np.where(np.isnan(delivered), asked, delivered)


def by_limit(main: Part, run: Run) -> Groups:
    """By the prefill limit that stood, the last one (the plateau) and the whole phase behind; nothing if it never changed.

    The requests of the plateau are those sent while the last limit stood. Of one process the records say under which
    limit they were admitted; of several each knows only its own share of it, so there the time of the admission tells.
    """
    changes = [change for change in run.limits if change.phase == "profiling" and change.limit is not None]
    if len({change.limit for change in changes}) < 2:
        return
    last = changes[-1]
    if len(run.workers) > 1:
        every = [change for change in run.limits if change.phase == "profiling"]  # None too: the gate may be taken away
        at = np.array([change.at for change in every]) - CLOCKS_S
        before = np.searchsorted(at, main["admitted_at"], side="right") - 1
        known = ~np.isnan(main["admitted_at"]) & (before >= 0)
        limit = np.where(known, np.array([change.limit for change in every], np.float64)[before], np.nan)
    else:
        limit = main["limit"]
    plateau = (limit == last.limit) & (main["sent_at"] >= last.at - CLOCKS_S)
    for low, high, here in _ranges(np.where(plateau, np.nan, limit)):
        yield f"{low}" if low == high else f"{low}-{high}", main.where(here)
    if plateau.any():
        yield f"{last.limit} (plateau)", main.where(plateau)
    yield WHOLE, main


def by_rate(main: Part, run: Run) -> Groups:
    """By quarter of the ramp of the rate in which they were due, the plateau and the whole phase behind."""
    rate, ramp_s = run.settings.request_rate, run.settings.request_rate_ramp_duration
    if not rate or not ramp_s:
        return
    due = (main["due_at"] - run.profiling_at) / ramp_s * QUARTERS
    for i in range(QUARTERS):
        here = (due < i + 1) & ((due >= i) | (i == 0))
        if here.any():
            yield f"{rate * i / QUARTERS:g}-{rate * (i + 1) / QUARTERS:g}/s", main.where(here)
    if (plateau := due >= QUARTERS).any():
        yield f"{rate:g}/s (plateau)", main.where(plateau)
    yield WHOLE, main


def by_turn(main: Part) -> Groups:
    """First turns of conversations and all later ones."""
    first = main["turn"] == 0
    if not first.all():
        yield "first", main.where(first)
        yield "later", main.where(~first)


def by_kind(main: Part) -> Iterator[tuple[str, Groups]]:
    """By whichever of user class, model and request name there is more than one of, together: the commonest first."""
    kinds = (("user class", "user_class"), ("model", "model"), ("name", "name"))
    chosen = main.requests.loc[main.chosen, [column for _, column in kinds]]
    several = [(word, column) for word, column in kinds if chosen[column].nunique() > 1]
    if not several:
        return
    grouped = chosen.groupby([column for _, column in several], observed=True, sort=False)
    which = grouped.ngroup().to_numpy()
    labels: list[tuple[str, ...]] = [key if isinstance(key, tuple) else (key,) for key in grouped.size().index]
    common = np.argsort(-np.bincount(which[which >= 0], minlength=len(labels)), kind="stable")

    def groups() -> Groups:
        for i in common[:KINDS].tolist():
            yield " / ".join(text or "-" for text in labels[i]), main.where(which == i)
        if len(common) > KINDS:
            yield f"{len(common) - KINDS} others", main.where(np.isin(which, common[KINDS:]))

    yield " / ".join(word for word, _ in several), groups()


def sessions(main: Part) -> tuple[int | None, float | None]:
    """(conversations that began, answered turns of each on average); None where none has a second turn."""
    first = main["turn"] == 0
    if first.all() or not first.any():
        return None, None
    count = int(first.sum())
    return count, main.outcome(OK).size / count


def _ranges(values: Floats) -> Iterator[tuple[int, int, Mask]]:
    """(lowest, highest, which) of at most STEPS ranges of the different values, as many of them in each as can be."""
    different = np.unique(values[~np.isnan(values)]).astype(np.int64)
    for some in np.array_split(different, min(STEPS, len(different))) if len(different) else ():
        yield int(some[0]), int(some[-1]), (values >= some[0]) & (values <= some[-1])


def _group(label: str, part: Part, metrics: Sequence[Metric], told: bool) -> Group:
    ok, finished = part.outcome(OK), part.outcome(OK, *FAILURES)
    failed = finished.size - ok.size
    return Group(
        label=label,
        succeeded=ok.size,
        failed=failed,
        failure_rate=failed / finished.size if finished.size else None,
        rows=tuple(
            distribution(metric, (finished if metric is GATE_WAIT else ok)[metric.column], PERCENTILES)
            for metric in metrics
        ),
        input_tokens=mean(ok["input_tokens"]) if told else None,
        cached_share=ratio(ok["cached_tokens"], ok["input_tokens"]) if told else None,
    )
