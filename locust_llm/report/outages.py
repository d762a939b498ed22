"""Outages: when no request was answered, from the records alone.

A server answers from the first chunk of an answer to its last one, but for long gaps, and at the
moment of a refusal with a status of its own (``outcomes.is_answer``). Where it does neither, and several requests end without any
answer, it is down, or hangs. Where it does neither while several requests are in flight, and no
prefill takes so long, it stands still. So it does, or the request, where the only one in flight
waits many times longer than any other did. A load generator that stood still itself shows neither.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from locust_llm.records.outcomes import (
    CUT,
    DEAD_S,
    FAILURES,
    NO_ANSWER_ENDS,
    NO_ANSWER_STATUSES,
    OK,
    OWN_ENDS,
)
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory
from locust_llm.report.array_types import Floats
from locust_llm.report.load_records import LongGaps, RequestColumns
from locust_llm.report.measurement_window import Span, find_loaded_span, find_measured_span
from locust_llm.report.request_selection import RequestSelection
from locust_llm.text.format import format_brief, format_count


class Outage(msgspec.Struct, frozen=True, kw_only=True):
    """A time without any answer, in seconds after the first send of the run."""

    began_s: float
    ended_s: float | None
    """None: it lasted to the end of the run."""
    seconds: float
    """Its part of the time that rates are over."""
    unanswered: int
    """The requests in flight in it that failed, or were cut without an answer. 0: it stood still,
    and they were answered later."""
    in_flight: int = 0
    """Above 0: the server stood still, with so many requests in flight all the time."""
    in_flight_most: int = 0
    """The requests in flight at its end, those that were sent in it included."""
    cut: int = 0
    """The ``unanswered`` ones that were cut at the end of the run."""
    statuses: dict[str, int] = {}
    """How many of the ``unanswered`` ones got HTTP 502, 503 or 504, by the status: a proxy answered,
    but no model."""

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
    """``no request was answered from 9.7 s on (212 got HTTP 503)``, ``no token came from 9.7 to 15.7
    s``; of several outages of a kind, the longest ones."""
    kinds = (
        (NOT_ANSWERED, [outage for outage in outages if not outage.in_flight]),
        ("no token came", [outage for outage in outages if outage.in_flight]),
    )
    return "; ".join(
        f"{what} {_list_longest(of_kind)}{_describe_statuses(of_kind)}"
        for what, of_kind in kinds
        if of_kind
    )


def _describe_statuses(outages: Sequence[Outage]) -> str:
    """`` (212 got HTTP 503, 3 HTTP 502)``. Empty: no proxy reported that the model does not answer."""
    counts = Counter[str]()
    for outage in outages:
        counts.update(outage.statuses)
    return describe_statuses(counts)


def describe_statuses(counts: Mapping[str, int]) -> str:
    """`` (212 got HTTP 503, 3 HTTP 502)``"""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    if not ordered:
        return ""
    (first_status, first_count), *others = ordered
    listed = [f"{first_count:,} got HTTP {first_status}"]
    listed += [f"{count:,} HTTP {status}" for status, count in others]
    return f" ({', '.join(listed)})"


def count_statuses(lost: RequestSelection) -> dict[str, int]:
    """How many of these requests got each status that is no answer of a model."""
    status = lost["status"]
    counts = {str(one): int((status == one).sum()) for one in NO_ANSWER_STATUSES}
    return {one: count for one, count in counts.items() if count}


def describe_silence(outages: Sequence[Outage]) -> str:
    """``no token came``, or ``no request was answered`` where requests ended without an answer."""
    return "no token came" if all(outage.in_flight for outage in outages) else NOT_ANSWERED


def describe_silent_time(outages: Sequence[Outage]) -> str:
    """``no token came for 6 s``, of what rates are over. Empty: there is none."""
    seconds = sum(outage.seconds for outage in outages)
    return f"{describe_silence(outages)} for {format_brief(seconds, ' s', 2)}" if seconds else ""


def _list_longest(outages: Sequence[Outage]) -> str:
    longest = sorted(
        sorted(outages, key=lambda outage: -outage.seconds)[:3], key=lambda outage: outage.began_s
    )
    rest = len(outages) - len(longest)
    *times, last = map(str, longest)
    if rest:
        return f"{', '.join((*times, last))} and {format_count(rest, 'more time')}"
    return f"{', '.join(times)} and {last}" if times else last


def refer_to_outages(outages: Sequence[Outage]) -> str:
    """``that time``, or ``these times``, behind ``describe_outages``."""
    return "that time" if len(outages) == 1 else "these times"


def describe_requests_without_answer(outages: Sequence[Outage]) -> str:
    """``10 requests failed``, ``3 requests were in flight``."""
    silent = [outage for outage in outages if not outage.in_flight]
    cut = sum(outage.cut for outage in silent)
    failed = sum(outage.unanswered for outage in silent) - cut
    parts = list(describe_lost_requests(failed, cut))
    standing = [outage for outage in outages if outage.in_flight]
    if standing:
        least = min(outage.in_flight for outage in standing)
        most = max(max(outage.in_flight, outage.in_flight_most) for outage in standing)
        from_least = f"{least} to " * (least < most)
        parts.append(
            "the server, or the only request in flight, stood still"
            if most == 1
            else f"{from_least}{most} requests were in flight all the while"
        )
    return ", and ".join(parts)


def describe_lost_requests(failed: int, cut: int) -> Iterator[str]:
    """``10 requests failed``, ``2 requests were cut without a response``"""
    if failed:
        yield f"{format_count(failed, 'request')} failed"
    if cut:
        were = "was" if cut == 1 else "were"
        yield f"{format_count(cut, 'request')} {were} cut without a response"


NOT_ANSWERED: Final = "no request was answered"
MIN_REQUESTS: Final = 3
"""The least number of requests without an answer. Fewer may have their own cause."""
MIN_S: Final = 1.0
PATIENCE: Final = 3.0
"""So many times the longest time to a first token must pass before requests that were only cut show
anything."""
ROUNDED_S: Final = 1e-5
SENT_SOON_S: Final = 0.1
"""A user sends its next request so soon after its last answer."""
MIN_DECODING: Final = 2
"""So many requests in flight show that a server stands still, where one of them had tokens
before."""
FAR_LONGER: Final = 20.0
"""So many times the longest gap, or the longest wait for a first token, is no silence that one
request in flight explains."""
FEW_SHARE: Final = 0.05
"""So few of the requests may have such a silence. More of them are what this server does."""
OWN_SHARE: Final = 0.1
"""So few of the gaps of one answer may be such silences. More of them are what this answer does."""
MIN_CHUNKS: Final = 20
"""Fewer chunks do not show how long a gap may be."""
READING_S: Final = 2.0
"""A reading of the server's metrics takes at most so long."""
PREFILL_SHARE: Final = 10.0
"""The percentile of the prefill time of a token that shows what a prefill takes without a queue."""
SERVER_FAILURES: Final = tuple(FAILURES.keys() - {*OWN_ENDS})
NOTHING: Final[Floats] = np.empty(0)


class _WatchedTime(NamedTuple):
    """The time in which outages are looked for, in Unix seconds."""

    start: float
    end: float
    """When the load stopped."""
    last: float
    """The end of the last request."""
    rated: Span
    """What rates are over."""


def find_outages(
    everything: RequestSelection,
    main: RequestSelection,
    run: Run,
    long_gaps: LongGaps,
    readings: Floats = NOTHING,
) -> tuple[Outage, ...]:
    """The outages in order. There are none where nothing was ever answered, as then nothing else is
    reported. ``everything``: the warmup's requests have answers too. ``readings``: when the server
    reported its metrics, in Unix seconds."""
    ok = main.outcome(OK)
    if not ok.size or run.imported:
        return ()
    time = _find_watched_time(main, run)
    silences = list(_list_silences(everything, long_gaps, run, time.start, time.last))
    if not silences:
        return ()
    found = list[Outage]()
    if not run.settings.compares:  # of two servers one may answer
        found += _divide_outages(silences, main, ok, time, run.started_at)
    dead = [(outage.began_s, outage.ended_s or math.inf) for outage in found]

    def was_dead(moment_s: float) -> bool:
        return any(began_s <= moment_s < ended_s for began_s, ended_s in dead)

    if run.settings.streaming:
        standing = _find_standstills(silences, everything, run, time, long_gaps, readings)
        found += [outage for outage in standing if not was_dead(outage.began_s)]
    return tuple(sorted(found, key=lambda outage: outage.began_s))


def _find_watched_time(main: RequestSelection, run: Run) -> _WatchedTime:
    """All requests that count, and all of the time that rates are over: a stage in which the server
    stands still to the end has no request that ends there."""
    first, last = main.span()
    rated = find_measured_span(run) or find_loaded_span(main, run) or (first, last)
    last = max(last, rated[1])
    return _WatchedTime(min(first, rated[0]), min(last, run.stopping_at or last), last, rated)


def find_run_outages(
    columns: RequestColumns, run: Run, readings: Floats = NOTHING
) -> tuple[Outage, ...]:
    """The outages of the profiling phase, as ``find_outages`` has them."""
    everything = RequestSelection(columns.requests, np.ones(len(columns.requests), np.bool_))
    main = everything.only(columns.requests.has("phase", "profiling"))
    return find_outages(everything, main, run, columns.long_gaps, readings)


def list_metric_readings(history: EngineHistory) -> Floats:
    """When the server reported its metrics, in Unix seconds."""
    moments = list[float]()
    for name in history.engines:
        moments += [sample.at for sample in history.by_name[name] if not sample.failure]
    return np.array(moments)


def find_last_silence(outages: Sequence[Outage], run: Run) -> Outage | None:
    """The outage to the end of the run in which no request was answered, or for DEAD_S no token
    came. None: the server answered to the end. Of a stage, whose load may be too high, only the
    first kind counts."""
    for outage in outages:
        is_hang = run.stage is None and outage.seconds >= DEAD_S
        if outage.ended_s is None and (is_hang or not outage.in_flight):
            return outage
    return None


def list_stage_outages(run: Run, stage: Run, outages: Sequence[Outage]) -> tuple[Outage, ...]:
    """The outages of a stage by the clock of its run. One that lasted to the end of the stage lasts
    so long for certain."""
    later_s = stage.started_at - run.started_at
    end_s = (stage.stopping_at or stage.profiling_at) - run.started_at
    return tuple(
        replace(
            outage,
            began_s=outage.began_s + later_s,
            ended_s=end_s if outage.ended_s is None else outage.ended_s + later_s,
        )
        for outage in outages
        if outage.ended_s is not None or outage.began_s + later_s < end_s
    )


def overlaps_any(outage: Outage, others: Sequence[Outage]) -> bool:
    return any(
        outage.began_s < _end_s(other) and other.began_s < _end_s(outage) for other in others
    )


def merge_outages(outages: Sequence[Outage], others: Sequence[Outage]) -> tuple[Outage, ...]:
    """The outages, with those of ``others`` that lie in none of them."""
    more = [other for other in others if not overlaps_any(other, outages)]
    return tuple(sorted((*outages, *more), key=lambda outage: outage.began_s))


def select_held_up(part: RequestSelection, outages: Sequence[Outage], run: Run) -> RequestSelection:
    """The requests that were in flight in an outage, or failed in it."""
    began = np.where(np.isnan(part["sent_at"]), part["asked_at"], part["sent_at"])
    ok = part.requests.has("outcome", OK)[part.chosen]
    streamed = ok & ~np.isnan(part["last_chunk_at"])
    over = np.where(streamed, part["last_chunk_at"], part["closed_at"])
    held = np.zeros(part.size, np.bool_)
    for since, until in _list_spans(outages, run):
        # Unix seconds in double precision are right to less than a microsecond
        held |= (began < until - ROUNDED_S) & (over > since + ROUNDED_S)
    return part.where(held)


def select_outages_between(
    outages: Sequence[Outage], run: Run, began_at: float, ended_at: float
) -> tuple[Outage, ...]:
    """The outages in a part of the run, which has Unix seconds."""
    began_s = began_at - run.started_at
    ended_s = ended_at - run.started_at
    return tuple(
        outage for outage in outages if outage.began_s < ended_s and _end_s(outage) > began_s
    )


def is_dead_at(outages: Sequence[Outage], run: Run, moment: float) -> bool:
    """Whether nothing answered at this moment (Unix seconds), and requests ended without an
    answer."""
    moment_s = moment - run.started_at
    return any(
        outage.began_s < moment_s <= _end_s(outage) for outage in outages if not outage.in_flight
    )


def _end_s(outage: Outage) -> float:
    return math.inf if outage.ended_s is None else outage.ended_s


def list_standstills(outages: Sequence[Outage], run: Run) -> tuple[tuple[float, float], ...]:
    """(from, to) in Unix seconds of the times in which the server stood still."""
    return _list_spans([outage for outage in outages if outage.in_flight], run)


def select_spans_within(outages: Sequence[Outage], run: Run, within: Span) -> tuple[Span, ...]:
    """(from, to) in Unix seconds, as far as they lie in a span."""
    start, end = within
    clipped = [(max(since, start), min(until, end)) for since, until in _list_spans(outages, run)]
    return tuple((since, until) for since, until in clipped if since < until)


def _list_spans(outages: Sequence[Outage], run: Run) -> tuple[Span, ...]:
    """(from, to) in Unix seconds."""
    return tuple(
        (run.started_at + outage.began_s, run.started_at + _end_s(outage)) for outage in outages
    )


def measure_standstill_s(
    began: Floats, ended: Floats, standstills: Sequence[tuple[float, float]]
) -> Floats:
    """For how long the server stood still between each pair of moments."""
    stood_s = np.zeros(len(began))
    for since, until in standstills:
        stood_s += np.maximum(np.fmin(ended, until) - np.fmax(began, since), 0.0)
    return stood_s


def select_unanswered_since(main: RequestSelection, since: float) -> RequestSelection:
    """The requests that ended later, without any answer."""
    return main.where(are_unanswered(main) & (main["closed_at"] > since))


def select_lost(main: RequestSelection, began: float, ended: float = math.inf) -> RequestSelection:
    """The requests in flight in this time that failed, or were cut without an answer. One count for
    all texts: a stream that broke as the server died is one of them."""
    failed = main.requests.has("outcome", *SERVER_FAILURES)[main.chosen]
    since = np.where(np.isnan(main["sent_at"]), main["asked_at"], main["sent_at"])
    # a request that was refused at once may begin and end with the last moment of an outage
    inside = (main["closed_at"] > began) & ((since < ended) | (main["closed_at"] <= ended))
    return main.where((failed | are_unanswered(main)) & inside)


def are_unanswered(main: RequestSelection) -> "np.typing.NDArray[np.bool_]":
    """``outcomes.is_unanswered`` of each request."""
    other = main.requests.has("outcome", OK, *OWN_ENDS)[main.chosen]
    return ~_has_server_status(main) & np.isnan(main["last_chunk_at"]) & ~other


def are_answered(part: RequestSelection) -> "np.typing.NDArray[np.bool_]":
    """``outcomes.is_answer`` of each request."""
    unfinished = part.requests.has("outcome", *NO_ANSWER_ENDS)[part.chosen]
    return ~np.isnan(part["last_chunk_at"]) | (_has_server_status(part) & ~unfinished)


def _has_server_status(part: RequestSelection) -> "np.typing.NDArray[np.bool_]":
    status = part["status"]
    return ~np.isnan(status) & ~np.isin(status, NO_ANSWER_STATUSES)


def _divide_outages(
    silences: Sequence[tuple[float, float]],
    main: RequestSelection,
    ok: RequestSelection,
    time: _WatchedTime,
    started_at: float,
) -> Iterator[Outage]:
    """The silences in which several requests ended without an answer."""
    silent = main.where(are_unanswered(main))
    if silent.size < MIN_REQUESTS:
        return
    closed = np.sort(silent["closed_at"])
    cut = silent.outcome(CUT).size
    longest_s = float(np.nanmax(ok["ttft_s"])) if (~np.isnan(ok["ttft_s"])).any() else 0.0
    for began, ended in silences:
        count = int(((closed > began) & (closed <= ended)).sum())
        needed_s = PATIENCE * longest_s if count <= cut else MIN_S
        if count < MIN_REQUESTS or _last_s(began, ended, time) < max(MIN_S, needed_s):
            continue
        lost = select_lost(main, began, ended)
        yield _make_outage(
            began, ended, time, started_at, unanswered=lost.size, cut=lost.outcome(CUT).size,
            statuses=count_statuses(lost),
        )  # fmt: skip


def _last_s(began: float, ended: float, time: _WatchedTime) -> float:
    """How long a silence lasted; to the stop, where it lasted to the end of the run."""
    return (time.end if ended >= time.last else ended) - began


def _make_outage(
    began: float,
    ended: float,
    time: _WatchedTime,
    started_at: float,
    *,
    unanswered: int = 0,
    cut: int = 0,
    in_flight: int = 0,
    in_flight_most: int = 0,
    statuses: dict[str, int] | None = None,
) -> Outage:
    rated_from, rated_to = time.rated
    from_start = began <= time.start and time.start - started_at < MIN_S
    return Outage(
        began_s=0.0 if from_start else began - started_at,
        ended_s=None if ended >= time.last else ended - started_at,
        seconds=max(0.0, min(ended, rated_to) - max(began, rated_from)),
        unanswered=unanswered,
        cut=cut,
        in_flight=in_flight,
        in_flight_most=in_flight_most,
        statuses=statuses or {},
    )


# -- a server that stands still --------------------------------------------------------------------


class _LoneSilence(NamedTuple):
    """A silence in which too few requests were in flight to show that the server stood still, and
    not the only request."""

    began: float
    ended: float
    flying: RequestSelection
    """The requests in flight from its begin on."""
    decoding: bool
    """One of them had tokens before."""
    in_flight_most: int

    def select_beside(self, ok: RequestSelection) -> RequestSelection:
        """The requests that ended before it, or were sent after it."""
        return ok.where((ok["sent_at"] > self.ended) | (ok["closed_at"] < self.began))


def _find_standstills(
    silences: Sequence[Span],
    everything: RequestSelection,
    run: Run,
    time: _WatchedTime,
    long_gaps: LongGaps,
    readings: Floats,
) -> Iterator[Outage]:
    """The silences in which requests were in flight, and which nothing else explains."""
    ok = everything.outcome(OK)
    lone = list[_LoneSilence]()
    for began, ended in silences:
        # the end of the run cuts requests one after the other
        open_at = ended - SENT_SOON_S if ended >= time.last else ended
        staying = (everything["closed_at"] >= open_at) & (everything["sent_at"] < open_at)
        if not staying.any() or _stood_still(began, ended, run):
            continue
        stood_from = max(began, _find_waiting_since(everything, began, open_at))
        if stood_from <= began + SENT_SOON_S:
            stood_from = began
        broken = _are_broken_off(everything, began, open_at)
        flying = everything.where(staying | (broken & (everything["closed_at"] > stood_from)))
        first = flying.where(flying["sent_at"] <= stood_from + SENT_SOON_S)
        if _is_unusual_for_several(flying, ok, began, ended):
            yield _make_outage(
                stood_from, ended, time, run.started_at,
                in_flight=first.size, in_flight_most=_count_most_at_once(flying),
            )  # fmt: skip
        elif ended - stood_from >= MIN_S:
            decoding = bool((first["first_chunk_at"] <= began).any())
            most = _count_most_at_once(flying)
            lone.append(_LoneSilence(stood_from, ended, first, decoding, most))
    for silence in lone:
        if _is_unusual_for_one(silence, lone, ok, long_gaps, readings):
            yield _make_outage(
                silence.began, silence.ended, time, run.started_at,
                in_flight=silence.flying.size, in_flight_most=silence.in_flight_most,
            )  # fmt: skip


def _are_broken_off(
    everything: RequestSelection, began: float, ended: float
) -> "np.typing.NDArray[np.bool_]":
    """Which requests ended in a silence and had awaited a token until then: a proxy closes the
    connections to a server that stands still, and their users send again."""
    answered = everything.requests.has("outcome", OK)[everything.chosen]
    closed_at = everything["closed_at"]
    return ~answered & (closed_at > began) & (closed_at < ended) & (everything["sent_at"] < ended)


def _find_waiting_since(everything: RequestSelection, began: float, ended: float) -> float:
    """From when on some request awaited a token all the time to the end of a silence. The next
    request of a user may come ``SENT_SOON_S`` after the last one broke off."""
    sent_at = everything["sent_at"]
    closed_at = everything["closed_at"]
    staying = (closed_at >= ended) & (sent_at < ended)
    since = float(sent_at[staying].min())
    broken = np.flatnonzero(_are_broken_off(everything, began, ended))
    for request in broken[np.argsort(-closed_at[broken], kind="stable")]:
        if closed_at[request] < since - SENT_SOON_S:
            break
        since = min(since, float(sent_at[request]))
    return since


def _count_most_at_once(flying: RequestSelection) -> int:
    """The most requests in flight at one time."""
    sent_at = np.sort(flying["sent_at"])
    closed_at = np.sort(flying["closed_at"])
    started = np.arange(1, flying.size + 1)
    return int((started - np.searchsorted(closed_at, sent_at, side="right")).max(initial=0))


def _is_unusual_for_several(
    flying: RequestSelection, ok: RequestSelection, began: float, ended: float
) -> bool:
    """Whether several requests were in flight, and no prefill explains the silence. The time counts
    from the request on that made them several, as an open loop goes on to send."""
    decoding = flying["first_chunk_at"] <= began
    enough = MIN_DECODING if decoding.any() else MIN_REQUESTS
    if flying.size < enough:
        return False
    several_from = max(began, float(np.sort(flying["sent_at"])[enough - 1]))
    if ended - several_from < MIN_S:
        return False
    several = flying.where(flying["sent_at"] <= several_from + SENT_SOON_S)
    waiting = several.where(~(several["first_chunk_at"] <= began))
    others = ok.where((ok["sent_at"] > ended) | (ok["closed_at"] < began))
    if not others.size:
        return False
    return ended - several_from >= PATIENCE * _usual_silence_s(several, waiting, others)


def _is_unusual_for_one(
    silence: _LoneSilence,
    lone: Sequence[_LoneSilence],
    ok: RequestSelection,
    long_gaps: LongGaps,
    readings: Floats,
) -> bool:
    """Whether a silence is far longer than all that other requests had. Of the longest of them, few
    ones of the same kind do not count."""
    others = silence.select_beside(ok)
    silent = np.zeros(len(ok.chosen), np.bool_)
    for other in lone:
        silent |= other.flying.chosen
    if np.count_nonzero(silent) <= max(1, FEW_SHARE * ok.size):
        for other in lone:
            others = other.select_beside(others)
    if silence.decoding:
        if np.nansum(others["chunks"]) < MIN_CHUNKS:
            return False
        own_s = _find_own_gap_s(silence, lone, long_gaps)
        usual_s = max(_find_largest(others["longest_stall_s"]), own_s)
    else:
        usual_s = _find_longest_wait_s(silence, others, readings)
    return silence.ended - silence.began >= FAR_LONGER * usual_s


def _find_own_gap_s(
    silence: _LoneSilence, lone: Sequence[_LoneSilence], long_gaps: LongGaps
) -> float:
    """The longest known gap of the silent answers but for the silence, or their mean one: all of a
    slow answer is slow. Few other silences of an answer do not count either, as the server may
    stand still twice in it."""
    flying = silence.flying
    known = [other for other in lone if (other.flying.chosen & flying.chosen).any()]
    if len(known) > max(1, OWN_SHARE * _find_largest(flying["chunks"] - 1)):
        known = [silence]
    own = np.isin(long_gaps.request, np.flatnonzero(flying.chosen))
    gaps_s = np.sort((long_gaps.ended_s - long_gaps.began_s)[own])
    others = flying["chunks"] - 1 - len(known)
    silent_s = np.zeros(flying.size)
    for other in known:
        went_on = flying["last_chunk_at"] > other.began
        silent_s += np.where(went_on, other.ended - other.began, 0.0)
    decoded_s = flying["last_chunk_at"] - flying["first_chunk_at"] - silent_s
    means_s = decoded_s[others > 0] / others[others > 0]
    return max(_find_largest(gaps_s[: -len(known)]), _find_largest(means_s))


def _find_longest_wait_s(
    silence: _LoneSilence, others: RequestSelection, readings: Floats
) -> float:
    """The longest wait for a first token of other requests. Infinite: they do not show how long
    this one may take, as its prompt is longer, or the server reported its metrics meanwhile."""
    lengths = _count_uncached_tokens(silence.flying)
    known = others.where(~np.isnan(others["ttft_s"]))
    if models := silence.flying.texts("model"):
        known = known.only(known.requests.has("model", *models.keys()))
    if known.size < MIN_REQUESTS or not (known["closed_at"] < silence.began).any():
        return math.inf  # a server may load its model for the first request
    if _find_largest(silence.flying["images"]) or _find_largest(silence.flying["audio_s"]):
        return math.inf
    if not (lengths <= _find_largest(_count_uncached_tokens(known))).all():
        return math.inf
    answers = (readings > silence.began) & (readings < silence.ended - READING_S)
    if answers.any():
        return math.inf
    return _find_largest(known["ttft_s"])


def _count_uncached_tokens(part: RequestSelection) -> Floats:
    return _prompt_tokens(part) - np.nan_to_num(part["cached_tokens"])


def _find_largest(values: Floats) -> float:
    """0: none is known."""
    known = values[~np.isnan(values)]
    return float(known.max(initial=0.0))


def _stood_still(began: float, ended: float, run: Run) -> bool:
    """Whether a process of the load generator stood still for half of that time itself."""
    for health in run.health:
        for since, seconds in health.standstills or ():
            if min(since + seconds, ended) - max(since, began) > (ended - began) / 2:
                return True
    return False


def _usual_silence_s(
    flying: RequestSelection, waiting: RequestSelection, others: RequestSelection
) -> float:
    """How long nothing may come of such requests, by what all other requests had: the prefills of
    those that wait, one after the other, and the longest gap of an answer or the first token."""
    ttft_s = others["ttft_s"]
    first_s = float(np.nanmedian(ttft_s)) if (~np.isnan(ttft_s)).any() else 0.0
    gaps_s = others["longest_stall_least_s"]
    gap_s = float(np.nanmedian(gaps_s)) if (~np.isnan(gaps_s)).any() else 0.0
    usual_s = gap_s if waiting.size < flying.size else first_s
    return max(usual_s, _prefill_s(waiting, others))


def _prefill_s(waiting: RequestSelection, others: RequestSelection) -> float:
    """The prefill time of all prompts that wait, by the quick ones of the others."""
    known = others.where(~np.isnan(others["ttft_s"]) & (_prompt_tokens(others) > 0))
    if not (waiting.size and known.size):
        return 0.0
    lengths = _prompt_tokens(known)
    waiting_lengths = _prompt_tokens(waiting)
    waiting_lengths[np.isnan(waiting_lengths)] = np.median(lengths)
    per_token_s = float(np.percentile(known["ttft_s"] / lengths, PREFILL_SHARE))
    return per_token_s * float(waiting_lengths.sum())


def _prompt_tokens(part: RequestSelection) -> Floats:
    """The server's count, else the length asked for; NaN where neither is known."""
    counted = part["input_tokens"]
    return np.where(np.isnan(counted), part["asked_input_tokens"], counted)


# -- silences --------------------------------------------------------------------------------------


def _list_silences(
    everything: RequestSelection, long_gaps: LongGaps, run: Run, start: float, last: float
) -> Iterator[tuple[float, float]]:
    """(from, to) of the times between two answers, before the first one and after the last one."""
    # what was read late had come before; no read was later than the process stood still
    known = bool(run.health) and all(health.standstills is not None for health in run.health)
    began, ended = _list_answering_times(everything, long_gaps, read_in_time=known)
    order = np.argsort(began, kind="stable")
    began = began[order]
    ended = np.maximum.accumulate(ended[order])
    inside = (ended > start) & (began < last)
    edges = np.concatenate(([start], ended[inside])), np.concatenate((began[inside], [last]))
    before, after = edges
    silent = after - before >= MIN_S
    yield from zip(before[silent].tolist(), after[silent].tolist(), strict=True)


def _list_answering_times(
    everything: RequestSelection, long_gaps: LongGaps, *, read_in_time: bool
) -> tuple[Floats, Floats]:
    """(from, to) of each answered request: its chunks between long gaps, or the end of a refusal
    and of an answer in one piece. ``read_in_time``: stamps are right to a second, else chunks that
    were read together may have come as soon as possible."""
    ttft_s = everything["ttft_s" if read_in_time else "ttft_soonest_s"]
    gap_ended_s = long_gaps.ended_s if read_in_time else long_gaps.soonest_s
    first = everything["sent_at"] + ttft_s
    last, closed = everything["last_chunk_at"], everything["closed_at"]
    streamed = ~np.isnan(last)
    whole = are_answered(everything) & ~streamed
    sent_at = everything["sent_at"][long_gaps.request]
    # each gap ends one stretch of its answer and begins another
    requests = np.concatenate((np.flatnonzero(streamed), long_gaps.request))
    begins = np.concatenate((first[streamed], sent_at + gap_ended_s))
    ends = np.concatenate((last[streamed], sent_at + long_gaps.began_s))
    return (
        np.concatenate((begins[np.lexsort((begins, requests))], closed[whole])),
        np.concatenate((ends[np.lexsort((ends, requests))], closed[whole])),
    )
