"""Request sample: the requests that report.html embeds, so that a reader can filter, sort and open
them in the browser (static/requests.js reads them).

A run of up to MAX_SAMPLE requests has all of them in its page. Of a longer one the page has every
failed and every slow request, and the others by strata, each with the number of requests that it
stands for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from locust_llm.records.breakdown_labels import AFTER_FIRST, TO_FIRST
from locust_llm.records.outcomes import CANCELLED, CUT, FAILURES, OK, RETRIED
from locust_llm.records.profile_export_jsonl import RecordFile
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.array_types import Floats, Ints
from locust_llm.report.chart_data.plot_data import Value, round_values
from locust_llm.report.load_records import RequestColumns
from locust_llm.report.metrics_by_group import (
    BACKEND,
    RATE,
    TURN,
    WHOLE,
    Groups,
    group_by_backend,
    group_by_images,
    group_by_kind,
    group_by_length,
    group_by_limit,
    group_by_pixels,
    group_by_rate,
    group_by_turn_number,
)
from locust_llm.report.request_selection import RequestSelection
from locust_llm.report.request_table import RequestTable
from locust_llm.text.format import clean_line, format_plain_number, truncate_text

MAX_SAMPLE: Final = 3000
"""A page has at most about so many requests."""
MAX_FAILED: Final = 1500
"""So many failed and cut requests are all in the sample. Of more there is a sample of them, too."""
MAX_SLOWEST: Final = 200
"""The slowest requests by each of SLOW are all in the sample."""
SLOW: Final = ("ttft_s", "itl_s", "longest_stall_s", "latency_s")
MIN_STRATUM: Final = 5
"""The fewest requests of a stratum in the sample, if it has so many."""
MAX_STRATA: Final = 200
"""With more strata, later dimensions make none."""
MAX_VALUES: Final = 24
"""The values of a dimension that a filter offers."""
MAX_STAGES: Final = 1000
"""A filter offers so many stages or blocks: the last ones are as much of a run as the first."""
MAX_LABEL: Final = 40
PART_DIGITS: Final = 3
NO_VALUE: Final = -1
"""The code of a request that has no value of a dimension."""
MAX_ID: Final = 36
MAX_ERROR: Final = 160
PERCENTS: Final = (50.0, 95.0, 99.0)

Mask = NDArray[np.bool_]
Codes = NDArray[np.int16]


class RequestDimension(msgspec.Struct, frozen=True):
    """A property by which requests are filtered and grouped."""

    key: str
    """Its name in the address of the page."""
    title: str
    labels: tuple[str, ...]
    codes: list[int]
    """For each request the place of its label; -1: it has none."""
    start: int = NO_VALUE
    """The value that is selected at the start; -1: all."""
    whole: tuple[tuple[Value, ...], ...] = ()
    """For a sample: of each label the figures of all requests of the profiling phase, in the order
    of FIGURES. Empty: the page has all requests and computes them."""
    rates: tuple[tuple[Value, ...], ...] = ()
    """For stages: of each label STAGE_RATES, as in the table of the stages. Empty: unknown."""


FIGURES: Final = (
    "requests", "failed", "ttft50", "ttft95", "ttft99", "itl50", "itl95", "stall90", "latency50",
    "latency95", "wait95", "input", "cached",
)  # fmt: skip
"""The figures of a group of requests, as static/requests.js names them."""


STAGE_RATES: Final = ("seconds", "requestsPerS", "tokensPerS", "inputPerS")
"""The measured time of a stage and its rates, as static/requests.js names them."""


class RequestSample(msgspec.Struct, frozen=True):
    """Columns of equal length, a value for each request of the sample. Times are in ms, moments in
    s after the start of the run."""

    total: int
    """The requests of the run."""
    seconds: float | None
    """The measured time, by which rates without a selected time are divided."""
    ok: int
    failed: list[int]
    """The codes of the outcome ``ok`` and of the failures."""
    columns: dict[str, list[Value]]
    ids: list[str]
    errors: dict[str, str]
    """The message of each failed request, by its place."""
    dimensions: tuple[RequestDimension, ...]
    parts: dict[str, list[Value]] = {}
    """The parts of the time from due to the first token and to the end, in ms and in their order.
    Empty: they are not known."""
    part_names: dict[str, str] = {}
    weights: list[int] = []
    """How many requests each one stands for. Empty: each is itself alone."""


class Division(NamedTuple):
    """All requests by one property: a dimension before the sample is drawn."""

    key: str
    title: str
    labels: tuple[str, ...]
    codes: Codes
    start: int = NO_VALUE
    stages: tuple[int, ...] = ()
    """The number of the stage of each label."""


class Stratum(NamedTuple):
    """Requests that have the same values of some dimensions."""

    places: Ints
    """In the order of their times to the first token."""
    share: int
    """So many of them are in the sample."""


def make_request_sample(
    columns: RequestColumns,
    run: Run,
    records: Iterable[Record] = (),
    seconds: float | None = None,
    most: int | None = None,
    parts: RequestTable | None = None,
    part_names: Mapping[str, str] = MappingProxyType({}),
    stage_rates: Mapping[int, tuple[Value, ...]] = MappingProxyType({}),
) -> RequestSample | None:
    """The sample. ``records`` are those of the columns, for their ids; ``parts`` are of the same
    requests (``make_parts_table``); ``stage_rates``: STAGE_RATES by the number of the stage. None:
    there are no requests."""
    requests = columns.requests
    if not len(requests):
        return None
    at = find_moments(requests, run)
    divisions = list(divide_by_dimensions(requests, run))
    chosen, weights = choose_sample(requests, divisions, most or MAX_SAMPLE)
    whole = len(chosen) == len(requests)
    outcome = next(division for division in divisions if division.key == "outcome")
    shown = tuple(
        _sampled(division, chosen, requests, whole, stage_rates)
        for division in divisions
        if len(division.labels) > 1 or division is outcome
    )
    return RequestSample(
        total=len(requests),
        seconds=seconds,
        ok=outcome.labels.index(OK) if OK in outcome.labels else NO_VALUE,
        failed=[place for place, label in enumerate(outcome.labels) if label in FAILURES],
        columns=dict(_columns(requests.rows(chosen), at[chosen], run)),
        ids=list(_ids(records, chosen)),
        errors=_errors(requests, chosen),
        dimensions=shown,
        parts={} if parts is None else dict(_parts(parts.rows(chosen))),
        part_names=dict(part_names),
        weights=[] if whole else weights.tolist(),
    )


def describe_sample(sample: RequestSample) -> str:
    """One sentence on what the page holds. Empty: it holds every request."""
    if not sample.weights:
        return ""
    outcome = next(one for one in sample.dimensions if one.key == "outcome")
    failed = (
        weight
        for code, weight in zip(outcome.codes, sample.weights, strict=True)
        if code in sample.failed
    )
    which = "the slowest and all failed ones" if all(one == 1 for one in failed) else "the slowest"
    return (
        f"This page holds {len(sample.ids):,} of {sample.total:,} requests: {which}, and a "
        "stratified sample of the others. Filtered values are estimates from this sample."
    )


# -- the columns -----------------------------------------------------------------------------------


def find_moments(requests: RequestTable, run: Run) -> Floats:
    """When each request was sent, else asked for, in seconds after the start."""
    sent, asked = (requests.floats(name) for name in ("sent_at", "asked_at"))
    return np.where(np.isnan(sent), asked, sent) - run.started_at


def _columns(part: RequestTable, at: Floats, run: Run) -> Iterator[tuple[str, list[Value]]]:
    """(name, values) of the columns that have any."""

    def stamp(name: str) -> Floats:
        return part.floats(name) - run.started_at

    yield "at", np.round(at, 3).tolist()
    times_ms: dict[str, Floats] = {
        "due": (at - stamp("due_at")) * 1e3,
        "gate": part.floats("gate_wait_s") * 1e3,
        "ttft": part.floats("ttft_s") * 1e3,
        "fromdue": part.floats("ttft_from_due_s") * 1e3,
        "itl": part.floats("itl_s") * 1e3,
        "stall": part.floats("longest_stall_s") * 1e3,
        "latency": part.floats("latency_s") * 1e3,
        "took": (stamp("closed_at") - at) * 1e3,
    }
    if not run.has_waits:
        del times_ms["fromdue"]
    for name, values in times_ms.items():
        if not np.isnan(values).all():
            yield name, _without_nan(round_values(values))
    for name, column in (
        ("input", "input_tokens"),
        ("output", "output_tokens"),
        ("cached", "cached_tokens"),
    ):
        values = part.floats(column)
        if np.nansum(values):
            yield name, _without_nan([int(value) if value == value else None for value in values])


def _parts(table: RequestTable) -> Iterator[tuple[str, list[Value]]]:
    """The parts that some request has."""
    for name in (*TO_FIRST, *AFTER_FIRST):
        values = table.floats(f"{name}_s") * 1e3
        if np.nansum(values) > 0:
            yield name, _without_nan(round_values(values, PART_DIGITS))


def _without_nan(values: Sequence[Value]) -> list[Value]:
    return [None if value is None or value != value else value for value in values]


def _ids(records: Iterable[Record], chosen: Ints) -> Iterator[str]:
    """The ids of the chosen requests; their numbers where no records are there."""
    wanted = iter(chosen.tolist())
    place = next(wanted, None)
    of_records = (record.id for record in records if record.outcome != RETRIED)
    names = records.read_ids() if isinstance(records, RecordFile) else of_records
    for number, name in enumerate(names):
        if place is None:
            return
        if number == place:
            yield truncate_text(name or str(number), MAX_ID)
            place = next(wanted, None)
    while place is not None:
        yield str(place)
        place = next(wanted, None)


def _errors(requests: RequestTable, chosen: Ints) -> dict[str, str]:
    errors = requests.texts("error").rows(chosen).tolist()
    return {
        str(place): truncate_text(clean_line(error), MAX_ERROR)
        for place, error in enumerate(errors)
        if error
    }


# -- dimensions ------------------------------------------------------------------------------------


def divide_by_dimensions(requests: RequestTable, run: Run) -> Iterator[Division]:
    """All of them, those with a single value too."""
    everything = RequestSelection(requests, np.ones(len(requests), np.bool_))
    main = everything.only(requests.has("phase", "profiling"))
    yield _of_phase(requests)
    if run.stages:
        yield _of_stages(requests, run)
    kinds = (("tenant", "tenant"), ("name", "name"), ("class", "user_class"), ("model", "model"))
    of_kind = list[tuple[str, str, Groups]]()
    for key, column in kinds:
        label = "User class" if key == "class" else key.capitalize()
        of_kind += [
            (key, label, groups) for _, groups in group_by_kind(everything, ((key, column),))
        ]
    divisions: list[tuple[str, str, Groups]] = [
        ("input", "Input length", group_by_length(everything)),
        ("turn", TURN.capitalize(), group_by_turn_number(everything)),
        *of_kind,
        ("images", "Images", group_by_images(everything)),
        ("pixels", "Thousands of pixels", group_by_pixels(everything)),
        ("limit", "Prefill limit", group_by_limit(main, run)),
        ("rate", RATE.capitalize(), group_by_rate(main, run)),
        (BACKEND, "Replica", group_by_backend(everything)),
    ]
    for key, title, groups in divisions:
        yield _of_groups(key, title, groups, len(requests))
    yield _of_outcome(requests)


def _of_groups(key: str, title: str, groups: Groups, size: int) -> Division:
    labels = list[str]()
    codes = np.full(size, NO_VALUE, np.int16)
    for label, part in islice(groups, MAX_VALUES):
        if label != WHOLE:
            codes[part.chosen] = len(labels)
            labels.append(_unique(clean_line(label), labels))
    return Division(key, title, tuple(labels), codes)


def _unique(label: str, before: Sequence[str]) -> str:
    """The label, cut to its room; two labels never become one."""
    short = truncate_text(label, MAX_LABEL) or "-"
    return short if short not in before else f"{short} ({len(before) + 1})"


def _of_phase(requests: RequestTable) -> Division:
    phases = [name for name in ("warmup", "profiling") if requests.has("phase", name).any()]
    codes = np.full(len(requests), NO_VALUE, np.int16)
    for place, name in enumerate(phases):
        codes[requests.has("phase", name)] = place
    start = phases.index("profiling") if "profiling" in phases else NO_VALUE
    return Division("phase", "Phase", tuple(phases), codes, start)


def _of_outcome(requests: RequestTable) -> Division:
    known = requests.texts("outcome").count_rows()
    first = [name for name in (OK, *FAILURES, CUT, CANCELLED) if name in known]
    codes = np.full(len(requests), NO_VALUE, np.int16)
    for place, name in enumerate(first):
        codes[requests.has("outcome", name)] = place
    return Division("outcome", "Outcome", tuple(first), codes)


def _of_stages(requests: RequestTable, run: Run) -> Division:
    """By the time of the send: a stage has the requests that were asked for in it. A block without
    a request that counts is none to choose."""
    asked = requests.floats("asked_at")
    labels = list[str]()
    numbers = list[int]()
    codes = np.full(len(requests), NO_VALUE, np.int16)
    profiling = requests.has("phase", "profiling")
    for stage in run.stages[:MAX_STAGES]:
        is_in_stage = (asked >= stage.began_at) & (asked < stage.ended_at)
        if stage.arm and not (is_in_stage & profiling).any():
            continue
        name = stage.arm or format_plain_number(stage.value)
        codes[is_in_stage] = len(labels)
        labels.append(f"{name} ({stage.number})" if stage.arm else _unique(name, labels))
        numbers.append(stage.number)
    title = "Block" if run.arms else "Stage"
    return Division("stage", title, tuple(labels), codes, stages=tuple(numbers))


def _sampled(
    division: Division,
    chosen: Ints,
    requests: RequestTable,
    whole: bool,
    stage_rates: Mapping[int, tuple[Value, ...]],
) -> RequestDimension:
    unknown: tuple[Value, ...] = (None,) * len(STAGE_RATES)
    rates = tuple(stage_rates.get(number, unknown) for number in division.stages)
    return RequestDimension(
        key=division.key,
        title=division.title,
        labels=division.labels,
        codes=division.codes[chosen].tolist(),
        start=division.start,
        whole=() if whole else tuple(_figures_of_groups(division, requests)),
        rates=rates if stage_rates else (),
    )


def _figures_of_groups(division: Division, requests: RequestTable) -> Iterator[tuple[Value, ...]]:
    main = requests.has("phase", "profiling")
    for place in range(len(division.labels)):
        here = (division.codes == place) & (main | (division.key == "phase"))
        yield compute_figures(RequestSelection(requests, here))


def compute_figures(part: RequestSelection) -> tuple[Value, ...]:
    """FIGURES of these requests: latencies are of the successful ones."""
    ok = part.outcome(OK)
    failed = part.outcome(*FAILURES).size

    def percentiles(column: str, *percents: float) -> Sequence[Value]:
        values = (part if column == "gate_wait_s" else ok)[column]
        values = values[~np.isnan(values)]
        if not len(values):
            return [None] * len(percents)
        found: list[Value] = (np.percentile(values, percents) * 1e3).tolist()
        return found

    def mean(column: str) -> Value:
        values = ok[column]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else None

    finished = ok.size + failed
    inputs = mean("input_tokens")
    cached = mean("cached_tokens")
    figures: tuple[Value, ...] = (
        part.size,
        100 * failed / finished if finished else None,
        *percentiles("ttft_s", *PERCENTS),
        *percentiles("itl_s", 50, 95),
        *percentiles("longest_stall_s", 90),
        *percentiles("latency_s", 50, 95),
        *percentiles("gate_wait_s", 95),
        inputs,
        100 * cached / inputs if cached is not None and inputs else None,
    )
    return tuple(None if value is None else round_values(np.array([value]))[0] for value in figures)


# -- the sample ------------------------------------------------------------------------------------


def choose_sample(
    requests: RequestTable, divisions: Sequence[Division], most: int
) -> tuple[Ints, Ints]:
    """(the places of the chosen requests in the order of the records, how many requests each stands
    for). The weights sum up to the number of requests."""
    size = len(requests)
    if size <= most:
        return np.arange(size), np.ones(size, np.int64)
    certain = _find_certain(requests)
    rest = np.flatnonzero(~certain)
    places = [np.flatnonzero(certain)]
    weights = [np.ones(int(certain.sum()), np.int64)]
    ttft, latency = (requests.floats(name) for name in ("ttft_s", "latency_s"))
    slowness = np.where(np.isnan(ttft), latency, ttft)
    for stratum in _divide_strata(rest, slowness, divisions, max(most - int(certain.sum()), 1)):
        edges = np.linspace(0, len(stratum.places), stratum.share + 1).astype(np.int64)
        places.append(stratum.places[(edges[1:] + edges[:-1]) // 2])
        weights.append(np.diff(edges))
    chosen = np.concatenate(places)
    weight = np.concatenate(weights)
    order = np.argsort(chosen)
    return chosen[order], weight[order]


def _find_certain(requests: RequestTable) -> Mask:
    """Which requests are in the sample in any case: the slowest, and few enough failed ones."""
    certain = np.zeros(len(requests), np.bool_)
    ok = requests.has("outcome", OK)
    for column in SLOW:
        values = np.where(ok, requests.floats(column), np.nan)
        known = values[~np.isnan(values)]
        if len(known) > MAX_SLOWEST:
            known = np.partition(known, -MAX_SLOWEST)[-MAX_SLOWEST:]
        if len(known):
            slow = np.flatnonzero(values >= known.min())  # of equal ones the last
            certain[slow[np.argsort(values[slow], kind="stable")[-MAX_SLOWEST:]]] = True
    unanswered = requests.has("outcome", *FAILURES, CUT)
    if unanswered.sum() <= MAX_FAILED:
        certain |= unanswered
    return certain


def _divide_strata(
    places: Ints, slowness: Floats, divisions: Sequence[Division], most: int
) -> Iterator[Stratum]:
    """The strata by as many properties as give no more than MAX_STRATA of them. A small stratum has
    MIN_STRATUM requests, the others share the rest by their sizes. As each is in the order of the
    times to the first token, those that stand for others are of all quantiles."""
    if not len(places):
        return
    key = np.zeros(len(places), np.int64)
    for division in sorted(divisions, key=lambda one: one.key not in ("outcome", "phase")):
        finer = key * (len(division.labels) + 1) + division.codes[places] + 1
        there = np.bincount(finer) > 0  # they are few: nothing is sorted
        if there.sum() <= MAX_STRATA:
            key = (np.cumsum(there) - 1)[finer]
    order = np.lexsort((slowness[places], key))
    parts = np.split(places[order], np.flatnonzero(np.diff(key[order])) + 1)
    for part in parts:
        share = max(round(most * len(part) / len(places)), MIN_STRATUM)
        yield Stratum(part, min(share, len(part)))
