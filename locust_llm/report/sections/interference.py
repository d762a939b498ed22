"""Interference: gaps by the number of other requests in prefill, TTFT by the prefills ahead, and
their tables.

A request is in prefill, seen from here, from its send to its first chunk, or to its end if it had
none: ``used`` of report/gate_occupancy.py. It may lie in the server's queue all the while. All
requests count as prefills, those of the warmup too, but for attempts that were tried again (the
server refused those). Only our own are known: other traffic of a server is not.

A gap is labelled with the mean over its time of how many requests were in prefill, rounded to the
nearest whole number, half up. A request that decodes is not in prefill itself, so all of them are
others. Rounded, as a prefill that merely touches a gap, by a microsecond or a quarter of it, is not
what the gap is about. The price: a stall shorter than the step that it lengthens is missing from
the rows.

The loss misses none: it is of all gaps that a prefill touched, against those that none did. Only
where these are too few, or where gaps vary so much by themselves that a request which comes at some
moment meets a long one, is it of the gaps labelled 1 and more, against those labelled 0; and not
given where prefills lie in these (MAX_HIDDEN_SHARE).

What is a gap slower than? More requests in prefill may mean more that decode, and a larger batch
slows decodes without any prefill. So each disturbed gap is compared with the undisturbed gaps at as
many decoding streams (within 9 %: steps of a quarter of an octave), of which there must be
MIN_COMPARED, in MIN_BASE_SHARE of the undisturbed time at as many streams or more; failing these,
at the next larger number that has them. That is no rare case: of eight users who ask again at once,
seven decode while one is in prefill, and seven alone for a moment at most. Only short gaps fit into
such a moment, or chunks that came together. More streams make no gap shorter, so with the next
larger number the factor is rather too small. A gap without either has no
comparison, and where too many have none (MIN_COMPARED_SHARE) there is no factor and no loss. Not
controlled: how long the contexts of these streams are.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.report.array_types import Floats, Ints
from locust_llm.report.document_blocks import Block, Heading, TableBlock, TextBlock, mark_scarce
from locust_llm.report.gate_occupancy import Occupancy, integrate_level
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.metrics_by_group import estimate_input_lengths
from locust_llm.report.outages import measure_standstill_s
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable
from locust_llm.report.slo_evidence.confidence_intervals import estimate_ratio_interval
from locust_llm.report.stored_columns import read_column, store_column
from locust_llm.slo.load_generator_health import OK as FINE
from locust_llm.text.format import (
    format_brief,
    format_count,
    format_duration,
    format_number,
    name_percentile,
)


class DisturbedGaps(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps with a given number of other requests in prefill. Times are in ms; None: there are
    no values."""

    label: str
    """``1``, ``4-7``, ``16+``."""
    gaps: int
    share: float
    """The share of all decode time (the sum of all gaps)."""
    streams: float
    """How many requests were decoding meanwhile, this one included: the mean over the gaps'
    time."""
    requests: int
    """How many requests have such a gap."""
    itl_ms: dict[float, float]
    """The percentiles of one number for each request: the mean of its gaps in this row."""
    icl_ms: dict[float, float]
    """Percentiles of the gaps themselves."""
    longest_ms: float
    compared: int
    """The number of gaps with enough undisturbed ones at as many decoding streams, or at more."""
    compared_share: float = 1.0
    """The share of these gaps, by number or by time, whichever is smaller."""
    mean_ms: float | None = None
    """The mean of the compared gaps."""
    usual_ms: float | None = None
    """The mean of undisturbed gaps at as many decoding streams as the compared ones, or at more."""
    slowdown: float | None = None
    """mean / usual. None: too few compared gaps, or too small a share of them."""


class RequestsAhead(msgspec.Struct, frozen=True, kw_only=True):
    """The successful requests sent with a given number of others in prefill."""

    label: str
    count: int
    ttft_ms: dict[float, float]
    tokens: float | None
    """The median of the input tokens that were ahead. None: more than half are unknown."""
    own_tokens: float | None
    """The median of their own input tokens."""


class PrefillSlope(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer TTFT is for each 1,000 input tokens in prefill at the send, for the same own
    length."""

    ms_per_1k: float
    low: float
    high: float
    """The ends of its 95 % interval."""
    r2: float
    """The R2 of the fit of TTFT by own input tokens and tokens ahead."""
    count: int


class PrefillInterference(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of prefills on decodes, and on later prefills."""

    gaps: int
    requests: int
    """The requests with these gaps."""
    of_requests: int
    """All requests with gaps. If it is above ``requests``, these are a sample in stretches evenly
    over the run."""
    decode_s: float
    """The sum of the gaps."""
    rows: tuple[DisturbedGaps, ...]
    """The rows by number of prefills, without empty ones."""
    disturbed: DisturbedGaps | None
    """All gaps with one prefill and more."""
    lost_s: float | None = None
    """How much longer the gaps that a prefill touched took than others did, not below 0. None:
    nothing to compare, or too small a share."""
    lost_share: float | None = None
    """The lost share of ``decode_s``."""
    hidden_share: float | None = None
    """The share of the time in prefill beside gaps that count as undisturbed, where this is why
    there is no loss."""
    ahead: tuple[RequestsAhead, ...] = ()
    slope: PrefillSlope | None = None
    standstill_gaps: int | msgspec.UnsetType = msgspec.UNSET
    """The number of gaps that are left out, as the server stood still in them. Unset: none."""
    standstill_requests: int | msgspec.UnsetType = msgspec.UNSET
    """The number of requests that ``ahead`` and ``slope`` leave out, as the server stood still while
    they awaited their first token. Unset: none."""


PREFILL_EDGES: Final = (0, 1, 2, 3, 4, 8, 16)
AHEAD_EDGES: Final = (0, 1, 2, 4, 8, 16)
"""The first value of each row: for gaps the prefills beside them, for requests the prefills ahead.
The last row is open."""
ITL: Final = (50.0, 99.0)
ICL: Final = (50.0, 90.0, 99.0)
TTFT: Final = (50.0, 95.0)
MIN_COMPARED: Final = 30
"""So many undisturbed gaps give a usual mean, and so many compared gaps give a factor."""
MIN_BASE_SHARE: Final = 0.1
"""The least share of the undisturbed time at as many streams or more, for a usual mean. In closed
loops of 3 and 4 on real servers, moments with one stream less had 0.5 to 3 % of it, and gaps of a
fifth to a tenth of the usual ones."""
MIN_COMPARED_SHARE: Final = 0.9
"""The least share of the disturbed gaps, by number and by time, for their factor and loss. In 183
simulated loads with it, the loss was 0.97 to 1.01 of the engine's own. In 7 with less, it would be
0.40 to 0.90."""
MAX_VARYING_SHARE: Final = 0.1
"""The largest share of the loss that may come from gaps which vary by themselves."""
MAX_HIDDEN_SHARE: Final = 0.02
"""The largest share of the time in prefill beside gaps labelled 0. With more, the loss by labels
was 0.24 to 0.90 of the engine's own, for prompts of 100 to 400 tokens under prefill-first."""
MAX_CHUNKS: Final = 2_000_000
"""At most so many chunks are read again (about a second). Longer runs are sampled."""
BLOCK_CHUNKS: Final = 2**13
"""So many chunks are labelled at once."""
TOLERANCE: Final = 1e-6
"""A value this much below half counts as half, as stamps in Unix time are doubles."""
MIN_FITTED: Final = 200
"""A slope needs so many requests."""
MIN_R2: Final = 0.5
"""A slope needs this R2."""
MIN_BESIDES: Final = 1e-9
"""The variance share of the tokens ahead that goes with more than the own length. A smaller one is
a rounding error."""


NEEDED: Final = ("sent_at", "phase", "outcome", "chunk_us", "merged", "lacks")
"""The fields of records that ``label_gaps`` reads."""


class LabelledGaps(NamedTuple):
    """The sharp gaps of successful requests of the profiling phase, one value each."""

    request: Ints
    """The number of the request among the read ones, from 0."""
    gap_s: Floats
    prefills: Ints
    """``beside``, rounded."""
    streams: Floats
    """The mean number of decoding requests, this one included."""
    mean: Floats
    """The mean number of other requests in prefill."""
    stood_still: NDArray[np.bool_]
    """The server stood still for more than half of the gap: no prefill explains that."""


def choose_sampled_share(columns: RequestColumns) -> float:
    """The share of the records for ``measure_interference``."""
    chunks = float(columns.requests.floats("chunks").sum())
    return MAX_CHUNKS / chunks if chunks > MAX_CHUNKS else 1.0


def measure_interference(
    columns: RequestColumns,
    levels: Occupancy,
    records: Iterable[Record],
    standstills: Sequence[tuple[float, float]] = (),
) -> PrefillInterference | None:
    """``levels`` has all requests. ``records`` has all of them or a sample
    (``choose_sampled_share``), and is read once. ``standstills`` of the server, (from, to): gaps
    and waits for a first token across them are left out. None: nobody decoded."""
    ok = _profiling(columns.requests).outcome(OK)
    # before the gaps, of which there are millions
    stood_still = _select_stood_still(ok, standstills)
    ahead, slope = _queue(columns.requests, ok.where(~stood_still))
    every_gap, read = label_gaps(levels, records, standstills)
    gaps = _leave_out_standstills(every_gap)
    if not len(gaps.gap_s):
        return None
    touched = gaps.mean > TOLERANCE
    disturbing = gaps.prefills > 0
    usual = estimate_usual_gaps_s(gaps, ~touched)
    lost_s = _lost(gaps, touched, usual)
    hidden = 0.0
    if lost_s is None:
        usual = estimate_usual_gaps_s(gaps, ~disturbing)
        request_s = gaps.mean * gaps.gap_s
        all_s = float(request_s.sum())
        hidden = float(request_s[~disturbing].sum()) / all_s if all_s > 0 else 0.0
        if hidden > MAX_HIDDEN_SHARE:
            usual = np.full(len(usual), np.nan)
        lost_s = _lost(gaps, disturbing, usual, sure=True)
    row_of = np.searchsorted(PREFILL_EDGES, gaps.prefills, side="right") - 1
    rows = [
        _row(_label(PREFILL_EDGES, i), gaps, row_of == i, usual) for i in range(len(PREFILL_EDGES))
    ]
    disturbed = _row("1+", gaps, disturbing, usual)
    decode_s = float(gaps.gap_s.sum())
    return PrefillInterference(
        gaps=len(gaps.gap_s),
        requests=read,
        of_requests=int((ok["chunks"] > 1).sum()),
        decode_s=decode_s,
        rows=tuple(row for row in rows if row is not None),
        disturbed=disturbed,
        lost_s=lost_s,
        lost_share=lost_s / decode_s if lost_s is not None and decode_s else None,
        hidden_share=hidden if hidden > MAX_HIDDEN_SHARE else None,
        ahead=ahead,
        slope=slope,
        standstill_gaps=int(every_gap.stood_still.sum()) or msgspec.UNSET,
        standstill_requests=int(stood_still.sum()) or msgspec.UNSET,
    )


def label_gaps(
    levels: Occupancy,
    records: Iterable[Record],
    standstills: Sequence[tuple[float, float]] = (),
) -> tuple[LabelledGaps, int]:
    """(the gaps of these records with the prefills and decodes beside them, number of requests), by
    the levels' integral over time, as in ``thin_occupancy``."""
    read = 0
    parts = [
        LabelledGaps(
            request=np.empty(0, np.int64),
            gap_s=np.empty(0),
            prefills=np.empty(0, np.int64),
            streams=np.empty(0),
            mean=np.empty(0),
            stood_still=np.empty(0, np.bool_),
        )
    ]
    if len(levels.at):
        origin = float(levels.at[0])
        clock = read_column(store_column(levels.at - origin))
        prefills = integrate_level(levels.used, clock)
        streams = integrate_level(levels.decoding, clock)
        for block in batch_records(records):
            which, at, gap_s, sharp = collect_stamps(block, origin)
            near = _find_steps_near(clock, at)
            mean = np.diff(np.interp(at, clock[near], prefills[near]))
            mean /= np.maximum(gap_s, TOLERANCE)
            beside = np.diff(np.interp(at, clock[near], streams[near]))
            beside /= np.maximum(gap_s, TOLERANCE)
            # of no time there is no mean: what holds at that moment
            if (none := sharp & (gap_s == 0)).any():
                moment = np.searchsorted(clock, at[:-1][none], side="right") - 1
                mean[none], beside[none] = levels.used[moment], levels.decoding[moment]
            label = np.floor(mean[sharp] + 0.5 + TOLERANCE).astype(np.int64)
            stood_s = measure_standstill_s(at[:-1] + origin, at[1:] + origin, standstills)
            stood_still = (stood_s > gap_s / 2)[sharp]
            parts.append(
                LabelledGaps(
                    which[:-1][sharp] + read, gap_s[sharp], label, beside[sharp], mean[sharp],
                    stood_still,
                )
            )  # fmt: skip
            read += len(block)
    columns = [[*column] for column in zip(*parts, strict=True)]
    parts.clear()
    joined = []
    while columns:  # one after the other, as each has a value for millions of gaps
        joined.append(np.concatenate(columns.pop(0)))
    return LabelledGaps(*joined), read


def _find_steps_near(clock: Floats, at: Floats) -> slice:
    """The steps of the clock from before the first moment to after the last. A search among these
    few stays in the processor's cache: among millions it takes five times as long."""
    first = int(np.searchsorted(clock, at.min(), side="right")) - 1
    last = int(np.searchsorted(clock, at.max(), side="left"))
    return slice(max(first, 0), last + 1)


def _leave_out_standstills(gaps: LabelledGaps) -> LabelledGaps:
    if not gaps.stood_still.any():
        return gaps
    kept = ~gaps.stood_still
    return LabelledGaps(
        request=gaps.request[kept],
        gap_s=gaps.gap_s[kept],
        prefills=gaps.prefills[kept],
        streams=gaps.streams[kept],
        mean=gaps.mean[kept],
        stood_still=gaps.stood_still[kept],
    )


def _lost(
    gaps: LabelledGaps, selected: NDArray[np.bool_], usual: Floats, *, sure: bool = False
) -> float | None:
    """How much longer the selected gaps are than usual ones, in total; not below 0. None: too few
    of them have a comparison. Unless ``sure``, it is also None where a tenth of it may come from
    gaps that vary by themselves.

    A request that comes at any moment meets a gap of E[g^2] / E[g], not of E[g]: longer by the
    variance over the mean. So much may be wrong where the first of several gaps that a prefill
    touches follows on one that none did.
    """
    known = selected & ~np.isnan(usual)
    gap_s = gaps.gap_s[known]
    whole_s = float(gaps.gap_s[selected].sum())
    if (
        len(gap_s) < max(MIN_COMPARED, MIN_COMPARED_SHARE * selected.sum())
        or gap_s.sum() < MIN_COMPARED_SHARE * whole_s
    ):
        return None
    lost_s = max(0.0, float((gap_s - usual[known]).sum()))
    others = ~selected & ~np.isnan(usual) & (usual > 0)
    if sure or not others.any():
        return lost_s
    variance = float(((gaps.gap_s[others] / usual[others] - 1) ** 2).mean())
    first = known & ~np.append(False, selected[:-1] & (gaps.request[1:] == gaps.request[:-1]))
    return None if variance * usual[first].sum() > MAX_VARYING_SHARE * lost_s else lost_s


def estimate_usual_gaps_s(gaps: LabelledGaps, calm: NDArray[np.bool_]) -> Floats:
    """For each gap, the mean of ``calm`` ones at as many decoding streams, or at the next larger
    number with MIN_COMPARED and MIN_BASE_SHARE of them. NaN: there is none."""
    stratum = np.round(4 * np.log2(np.maximum(gaps.streams, 1.0))).astype(np.int64)
    size = int(stratum.max(initial=0)) + 1
    count = np.bincount(stratum[calm], minlength=size)
    total = np.bincount(stratum[calm], gaps.gap_s[calm], minlength=size)
    mean = np.append(total / np.maximum(count, 1), np.nan)
    at_least = np.cumsum(total[::-1])[::-1]
    enough = np.flatnonzero((count >= MIN_COMPARED) & (total >= MIN_BASE_SHARE * at_least))
    following = np.append(enough, size)[np.searchsorted(enough, np.arange(size))]
    return np.asarray(mean[following][stratum])


def _row(
    label: str, gaps: LabelledGaps, here: NDArray[np.bool_], usual: Floats
) -> DisturbedGaps | None:
    gap_s = gaps.gap_s[here]
    if not len(gap_s):
        return None
    whole_s = float(gap_s.sum())
    request = gaps.request[here]
    count = np.bincount(request)
    per_request = np.bincount(request, gap_s)[count > 0] / count[count > 0]
    known = ~np.isnan(usual[here])
    compared = int(known.sum())
    share = min(compared / len(gap_s), float(gap_s[known].sum()) / whole_s if whole_s else 1.0)
    mean_s = usual_mean_s = slowdown = None
    if compared >= MIN_COMPARED:
        mean_s = float(gap_s[known].mean())
        usual_mean_s = float(usual[here][known].mean())
        slowdown = mean_s / usual_mean_s if usual_mean_s and share >= MIN_COMPARED_SHARE else None
    return DisturbedGaps(
        label=label,
        gaps=len(gap_s),
        share=whole_s / float(gaps.gap_s.sum()) if whole_s else 0.0,
        streams=float(gaps.streams[here] @ gap_s) / whole_s
        if whole_s
        else float(gaps.streams[here].mean()),
        requests=len(per_request),
        itl_ms=_percentiles_ms(per_request, ITL),
        icl_ms=_percentiles_ms(gap_s, ICL),
        longest_ms=float(gap_s.max()) * 1e3,
        compared=compared,
        compared_share=share,
        mean_ms=None if mean_s is None else mean_s * 1e3,
        usual_ms=None if usual_mean_s is None else usual_mean_s * 1e3,
        slowdown=slowdown,
    )


# -- TTFT by what was ahead ------------------------------------------------------------------------


def count_prefills_ahead(requests: RequestTable) -> tuple[Floats, Floats]:
    """(how many others were in prefill when each request was sent, their input tokens).

    NaN: it was not sent. The tokens are NaN also where the length of one of the others is unknown.
    Whole prompts count, however much of them was done. Of two requests sent in the same microsecond
    none is ahead.
    """
    sent, freed, first, closed = (
        requests.floats(name) for name in ("sent_at", "freed_at", "first_chunk_at", "closed_at")
    )
    end = np.fmin(np.fmin(first, freed), closed)
    tokens = estimate_input_lengths(RequestSelection(requests, np.ones(len(requests), np.bool_)))
    real = np.flatnonzero(end > sent).astype(np.int32)  # False where either is NaN
    # they are nearly in order, for which this kind is fast
    begun, ended = (real[np.argsort(at[real], kind="stable")] for at in (sent, end))
    to_begin = np.searchsorted(sent[begun], sent, side="left").astype(np.int32)
    to_end = np.searchsorted(end[ended], sent, side="right").astype(np.int32)

    def summed(values: Floats) -> Floats:
        sent_so_far, done_so_far = (
            np.append(0.0, np.cumsum(values[order])) for order in (begun, ended)
        )
        return np.asarray(sent_so_far[to_begin] - done_so_far[to_end])

    count = summed(np.ones(len(sent)))
    unknown = summed(np.isnan(tokens).astype(np.float64))
    never = np.isnan(sent)
    return np.where(never, np.nan, count), np.where(
        never | (unknown > 0), np.nan, summed(np.nan_to_num(tokens))
    )


def _select_stood_still(
    ok: RequestSelection, standstills: Sequence[tuple[float, float]]
) -> NDArray[np.bool_]:
    """Which requests awaited their first token while the server stood still."""
    return measure_standstill_s(ok["sent_at"], ok["first_chunk_at"], standstills) > 0


def _queue(
    requests: RequestTable, ok: RequestSelection
) -> tuple[tuple[RequestsAhead, ...], PrefillSlope | None]:
    """``ok``: the requests of the rows. Others may be ahead of them."""
    ttft = ok["ttft_s"]
    count, tokens = (values[ok.chosen] for values in count_prefills_ahead(requests))
    known = ~(np.isnan(ttft) | np.isnan(count))
    ttft, count, tokens, own, sent = (
        values[known] for values in (ttft, count, tokens, estimate_input_lengths(ok), ok["sent_at"])
    )
    row_of = np.searchsorted(AHEAD_EDGES, count, side="right") - 1
    rows = []
    for i in range(len(AHEAD_EDGES)):
        if (here := row_of == i).any():
            rows.append(
                RequestsAhead(
                    label=_label(AHEAD_EDGES, i),
                    count=int(here.sum()),
                    ttft_ms=_percentiles_ms(ttft[here], TTFT),
                    tokens=_median(tokens[here]),
                    own_tokens=_median(own[here]),
                )
            )
    return tuple(rows), fit_prefill_slope(ttft, own, tokens, sent)


def fit_prefill_slope(
    ttft_s: Floats, own: Floats, ahead: Floats, sent: Floats
) -> PrefillSlope | None:
    """Least squares of TTFT by own input tokens and tokens ahead. The interval widens by
    correlation.

    None: few requests, a poor fit, tokens ahead that do not vary by themselves, or an interval with
    0 in it.
    """
    known = ~(np.isnan(own) | np.isnan(ahead))
    if known.sum() < max(MIN_FITTED, len(known) / 2):
        return None
    order = np.flatnonzero(known)[np.argsort(sent[known], kind="stable")]
    ttft_s, own, ahead = (values[order] - values[order].mean() for values in (ttft_s, own, ahead))
    # Frisch, Waugh and Lovell: the same slope
    beside = _besides(ahead, own)
    rest = _besides(ttft_s, own)
    if not beside @ beside > MIN_BESIDES * (ahead @ ahead) or not ttft_s.any():
        return None
    ratio = estimate_ratio_interval(rest * beside, beside**2)
    by_ahead = float(rest @ beside / (beside @ beside))
    left = rest - by_ahead * beside
    r2 = 1 - float(left @ left) / float(ttft_s @ ttft_s)
    if r2 < MIN_R2 or ratio.low is None or ratio.high is None or ratio.low <= 0:
        return None
    return PrefillSlope(
        ms_per_1k=by_ahead * 1e6,
        low=ratio.low * 1e6,
        high=ratio.high * 1e6,
        r2=r2,
        count=len(order),
    )


def _besides(values: Floats, own: Floats) -> Floats:
    """The values without the part that goes with the own length. Both have a mean of 0."""
    return values - own * float(values @ own / (own @ own)) if own.any() else values


# -- pieces ----------------------------------------------------------------------------------------


def _profiling(requests: RequestTable) -> RequestSelection:
    return RequestSelection(requests, requests.has("phase", "profiling"))


def batch_records(records: Iterable[Record]) -> Iterator[list[Record]]:
    """The records whose gaps count, BLOCK_CHUNKS chunks at a time or a little more."""
    block = list[Record]()
    size = 0
    for record in records:
        if record.outcome == OK and record.phase == "profiling" and len(record.known_us) > 1:
            block.append(record)
            size += len(record.chunk_us)
            if size >= BLOCK_CHUNKS:
                yield block
                block, size = [], 0
    if block:
        yield block


def collect_stamps(
    block: Sequence[Record], origin: float
) -> tuple[Ints, Floats, Floats, NDArray[np.bool_]]:
    """The chunks of all these requests end to end: (request, seconds after ``origin``). The spaces
    between two neighbours: (seconds, whether it is a sharp gap of one request)."""
    count = np.array([len(record.chunk_us) for record in block], np.int64)
    us = np.fromiter(
        chain.from_iterable(record.chunk_us for record in block), np.int64, int(count.sum())
    )
    began = np.array([(record.sent_at or 0.0) + record.clock_offset_s - origin for record in block])
    first = np.cumsum(count) - count
    blurred = np.zeros(len(us), np.bool_)
    begins = np.zeros(len(us), np.bool_)
    begins[first] = True
    for start, record in zip(first.tolist(), block, strict=True):
        for index, _ in record.merged:
            blurred[start + index] = True
    sharp = ~(begins[1:] | blurred[1:] | blurred[:-1])
    return (
        np.repeat(np.arange(len(block)), count),
        np.repeat(began, count) + us / 1e6,
        np.diff(us) / 1e6,
        sharp,
    )


def _median(values: Floats) -> float | None:
    """None: more than half are unknown."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) and 2 * len(known) >= len(values) else None


def _percentiles_ms(seconds: Floats, percentiles: Sequence[float]) -> dict[float, float]:
    return dict(zip(percentiles, (np.percentile(seconds, percentiles) * 1e3).tolist(), strict=True))


def _label(edges: Sequence[int], i: int) -> str:
    """``3``, ``4-7``, ``16+``."""
    if i + 1 == len(edges):
        return f"{edges[i]}+"
    return f"{edges[i]}" if edges[i + 1] - edges[i] == 1 else f"{edges[i]}-{edges[i + 1] - 1}"


MIN_LOST_SHARE: Final = 0.01
"""A loss of this share of the decode time, or more, is reported whatever the difference."""
MIN_DIFFERENCE: Final = 0.05
"""A difference with a smaller share is reported as none."""


def make_interference_blocks(
    interference: PrefillInterference, client: str = FINE
) -> Iterator[Block]:
    """There are no blocks where no request had another one in prefill beside it or ahead of it.
    ``client`` is the client verdict; below OK the rows have no conclusion."""
    if interference.disturbed is not None:
        yield Heading("Gaps while other requests await their first token (ms)")
        yield _gaps(interference.rows)
        conclusion = f"{_compared(interference, interference.disturbed)}{_uncompared(interference, interference.disturbed)}{_describe_standstill_gaps(interference)}"
        yield TextBlock(conclusion if client == FINE else _no_conclusion(client))
        yield TextBlock(_legend(interference))
    if len(interference.ahead) > 1:
        yield Heading("TTFT by the prefills ahead (ms)")
        yield _table_of_queue(interference.ahead)
        slope = interference.slope if client == FINE else None
        yield TextBlock(
            "ahead: other requests that awaited their first token when a request was sent; tokens "
            "ahead: median sum of their input tokens; own tokens: median input tokens of the "
            f"requests.{'' if slope is None else f' {_slope(slope)}'}{_describe_standstill_requests(interference)}"
            f"{'' if client == FINE else f' The client verdict is {client}, so these values may be off.'}"
        )


def _gaps(rows: tuple[DisturbedGaps, ...]) -> TableBlock:
    def cells(row: DisturbedGaps) -> tuple[str, ...]:
        itl = (_marked(row.itl_ms, p, row.requests) for p in ITL)
        icl = (_marked(row.icl_ms, p, row.gaps) for p in ICL)
        undisturbed = row.label == _label(PREFILL_EDGES, 0)  # it is what the others compare with
        slower = "-" if undisturbed or row.slowdown is None else f"{row.slowdown:.2f}"
        return (
            row.label, str(row.gaps), f"{row.share:.1%}", format_number(row.streams, 4), *itl, *icl,
            format_number(row.longest_ms, 4),
            slower,
        )  # fmt: skip

    head = (
        "awaiting", "gaps", "of time", "streams", f"ITL {name_percentile(ITL[0])}",
        *map(name_percentile, ITL[1:]),
        f"ICL {name_percentile(ICL[0])}", *map(name_percentile, ICL[1:]), "longest", "slower",
    )  # fmt: skip
    return TableBlock(head, tuple(map(cells, rows)))


def _compared(interference: PrefillInterference, disturbed: DisturbedGaps) -> str:
    calm = interference.gaps - disturbed.gaps
    lost = ""
    if interference.lost_share is not None and interference.lost_s is not None:
        lost = (
            f"ecode time lost to prefill: {interference.lost_share:.1%} ({interference.lost_s:.1f} of "
            f"{interference.decode_s:.1f} s)"
        )
        if disturbed.slowdown is None:
            return f"D{lost}."
    if disturbed.slowdown is None or disturbed.mean_ms is None or disturbed.usual_ms is None:
        if interference.hidden_share is not None:
            return (
                "The effect of prefills on other requests is not reported. "
                f"{interference.hidden_share:.0%} of the time before first tokens overlaps gaps "
                "that count as undisturbed, because a prefill covers less than half of each such "
                "gap. The gaps vary too much to separate its effect."
            )
        if not calm:
            return (
                "No gap was undisturbed, so there is nothing to compare with: at any time another "
                "request awaited its first token."
            )
        if disturbed.gaps < MIN_COMPARED:
            return (
                f"{format_count(disturbed.gaps, 'disturbed gap')}: too few to compare "
                f"({MIN_COMPARED} are needed)."
            )
        if disturbed.mean_ms is not None:
            return (
                "The effect of prefills on other requests is not reported. Only "
                f"{disturbed.compared_share:.0%} of the disturbed gaps, by number or by time, can "
                f"be compared ({MIN_COMPARED} undisturbed gaps with at least as many streams). At "
                f"least {MIN_COMPARED_SHARE:.0%} are needed: with fewer, the value was off by more "
                "than 10% on most simulated servers."
            )
        return (
            f"{format_count(calm, 'undisturbed gap')}: too few to compare with, or with fewer "
            f"decoding streams ({MIN_COMPARED} are needed)."
        )
    times = (
        f"({format_duration(disturbed.mean_ms / 1e3)} against "
        f"{format_duration(disturbed.usual_ms / 1e3)} with at least as many streams)"
    )
    if (
        abs(disturbed.slowdown - 1) < MIN_DIFFERENCE
        and (interference.lost_share or 0.0) < MIN_LOST_SHARE
    ):
        return (
            f"A gap while another request awaited its first token took no longer than one "
            f"without {times}."
        )
    more = f"; d{lost}" if interference.lost_share else ""
    return (
        f"A gap while another request awaited its first token took {disturbed.slowdown:.1f} times "
        f"as long as one without "
        f"{times}{more}."
    )


def _no_conclusion(client: str) -> str:
    return (
        f"No conclusion: the client verdict is {client}, so the load generator may have caused "
        f"these gaps."
    )


def _uncompared(interference: PrefillInterference, disturbed: DisturbedGaps) -> str:
    left = 1 - disturbed.compared_share
    if disturbed.slowdown is None or left < MIN_DIFFERENCE:
        return ""
    return (
        f" Left out: {left:.0%} of the disturbed gaps, by number or by time, with fewer than "
        f"{MIN_COMPARED} undisturbed gaps to compare with."
    )


def _describe_standstill_gaps(interference: PrefillInterference) -> str:
    if not interference.standstill_gaps:
        return ""
    gaps = format_count(interference.standstill_gaps, "gap")
    return f" Left out: {gaps} across a standstill."


def _describe_standstill_requests(interference: PrefillInterference) -> str:
    if not interference.standstill_requests:
        return ""
    requests = format_count(interference.standstill_requests, "request")
    return f" Left out: {requests} that awaited the first token as none came for a while."


def _legend(interference: PrefillInterference) -> str:
    sample = ""
    if interference.requests < interference.of_requests:
        which = f"{interference.requests} of {interference.of_requests} requests"
        sample = f" A sample: the gaps of {which}, evenly over the run."
    return (
        "awaiting: other requests that awaited their first token during the gap; streams: "
        "requests that decoded at that time; ITL: mean of the gaps of a request in this row; "
        "slower: mean gap / mean undisturbed gap with at least as many streams, - if under "
        f"{MIN_COMPARED_SHARE:.0%} of the gaps can be compared; * too few values.{sample}"
    )


def _table_of_queue(rows: tuple[RequestsAhead, ...]) -> TableBlock:
    def cells(row: RequestsAhead) -> tuple[str, ...]:
        ttft = (_marked(row.ttft_ms, p, row.count) for p in TTFT)
        tokens = (
            "-" if value is None else f"{value:.0f}" for value in (row.tokens, row.own_tokens)
        )
        return row.label, str(row.count), *ttft, *tokens

    head = (
        "ahead",
        "requests",
        f"TTFT {name_percentile(TTFT[0])}",
        *map(name_percentile, TTFT[1:]),
        "tokens ahead",
        "own tokens",
    )
    return TableBlock(head, tuple(map(cells, rows)))


def _slope(slope: PrefillSlope) -> str:
    return (
        f"Each 1,000 tokens ahead add {format_brief(slope.ms_per_1k, digits=3)} ms to TTFT at the "
        f"same own length (95% interval "
        f"{format_brief(slope.low, digits=3)} to {format_brief(slope.high, digits=3)}; least "
        f"squares, R2 {slope.r2:.2f})."
    )


def _marked(percentiles: dict[float, float], p: float, count: int) -> str:
    return format_number(percentiles[p], 4) + mark_scarce(count, p)
