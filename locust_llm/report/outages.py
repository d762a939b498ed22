"""Outages: when nothing answered, from the records alone.

A server answers from the first chunk of an answer to its last one, and at the moment of a refusal
with a status. Where it does neither, and several requests end without any answer, it is down, or
hangs.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from locust_llm.records.outcomes import CUT, OK
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Floats
from locust_llm.report.request_selection import RequestSelection
from locust_llm.text.format import format_count


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A time without any answer, in seconds after the begin of the profiling phase."""

    began_s: float
    ended_s: float | None
    """None: it lasted to the end of the run."""
    seconds: float
    """Its part of the time that rates are over."""
    unanswered: int
    """The requests that failed, or were cut, in it without an answer."""

    def __str__(self) -> str:
        """``from 9.7 s on``, ``until 3.2 s``, ``from 9.7 to 12.1 s``."""
        if self.ended_s is None:
            return f"from {self.began_s:.1f} s on"
        return (
            f"from {self.began_s:.1f} to {self.ended_s:.1f} s"
            if self.began_s > 0
            else f"until {self.ended_s:.1f} s"
        )


def describe_outages(outages: Sequence[Outage]) -> str:
    """``nothing answered from 9.7 s on``; of several outages, the longest ones."""
    longest = sorted(
        sorted(outages, key=lambda outage: -outage.seconds)[:3], key=lambda outage: outage.began_s
    )
    rest = len(outages) - len(longest)
    more = f" and {format_count(rest, 'more time')}" if rest else ""
    return f"nothing answered {', '.join(map(str, longest))}{more}"


MIN_REQUESTS: Final = 3
"""The least number of requests without an answer. Fewer may have their own cause."""
MIN_S: Final = 1.0
PATIENCE: Final = 3.0
"""So many times the longest time to a first token must pass before requests that were only cut show
anything."""
OWN: Final = ("no_socket", "client_error", "too_large", "too_long", "cancelled")
"""The ends of requests that show no silent server."""


def find_outages(main: RequestSelection, run: Run) -> tuple[Outage, ...]:
    """The outages in order. There are none where nothing was ever answered, as then nothing else is
    reported."""
    ok = main.outcome(OK)
    if not ok.size or run.imported or run.settings.compares:
        return ()
    silent = main.where(_unanswered(main))
    if silent.size < MIN_REQUESTS:
        return ()
    start, last = main.span()
    end = min(last, run.stopping_at or last)
    return tuple(_divide_outages(main, silent, ok, (start, end, last), run.profiling_at))


def find_silent_from(outages: Sequence[Outage], run: Run) -> float | None:
    """From when on, in Unix seconds, nothing answered to the end of the run. None: it did."""
    began = [outage.began_s for outage in outages if outage.ended_s is None]
    return run.profiling_at + began[0] if began else None


def select_unanswered_since(main: RequestSelection, since: float) -> RequestSelection:
    """The requests that ended later, without any answer."""
    return main.where(_unanswered(main) & (main["closed_at"] > since))


def _unanswered(main: RequestSelection) -> "np.typing.NDArray[np.bool_]":
    """Which requests have neither a status nor a chunk."""
    own = main.requests["outcome"].isin((OK, *OWN)).to_numpy(np.bool_)[main.chosen]
    return np.isnan(main["status"]) & np.isnan(main["last_chunk_at"]) & ~own


def _divide_outages(
    main: RequestSelection,
    silent: RequestSelection,
    ok: RequestSelection,
    span: tuple[float, float, float],
    profiling_at: float,
) -> Iterator[Outage]:
    start, end, last = span
    closed = np.sort(silent["closed_at"])
    cut = silent.outcome(CUT).size
    longest_s = float(np.nanmax(ok["ttft_s"])) if (~np.isnan(ok["ttft_s"])).any() else 0.0
    for began, ended in _stretches(main, start, last):
        count = int(((closed > began) & (closed <= ended)).sum())
        until = end if ended >= last else ended
        needed_s = PATIENCE * longest_s if count <= cut else MIN_S
        if count < MIN_REQUESTS or until - began < max(MIN_S, needed_s):
            continue
        yield Outage(
            began_s=max(0.0, began - profiling_at) if began > start else 0.0,
            ended_s=None if ended >= last else ended - profiling_at,
            seconds=min(ended, last) - began,
            unanswered=count,
        )


def _stretches(main: RequestSelection, start: float, last: float) -> Iterator[tuple[float, float]]:
    """(from, to) of the stretches between two answers, before the first one and after the last
    one."""
    began, ended = _answering(main)
    order = np.argsort(began, kind="stable")
    began = began[order]
    ended = np.maximum.accumulate(ended[order])
    edges = np.concatenate(([start], ended)), np.concatenate((began, [last]))
    for before, after in zip(*edges, strict=True):
        if after - before >= MIN_S:
            yield float(before), float(after)


def _answering(main: RequestSelection) -> tuple[Floats, Floats]:
    """(from, to) of each answered request: its chunks, or the end of a refusal and of an answer in
    one piece."""
    first, last, closed = main["first_chunk_at"], main["last_chunk_at"], main["closed_at"]
    streamed = ~np.isnan(last)
    whole = ~streamed & ~np.isnan(main["status"])
    return np.concatenate((first[streamed], closed[whole])), np.concatenate(
        (last[streamed], closed[whole])
    )
