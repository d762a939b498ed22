"""Waterfall of a run: its requests split, slow ones beside typical ones, the slowest by themselves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from locust_llm.core.record import OK, Record
from locust_llm.core.run import Run
from locust_llm.core.server_times import ServerTimes
from locust_llm.report.analysis.columns import Columns
from locust_llm.report.analysis.occupancy import Occupancy, occupancy
from locust_llm.report.analysis.selection import Selection, scarce
from locust_llm.report.analysis.slo_figures import selected
from locust_llm.report.results.waterfall import DECODE, TO_DUE, Blame, Waterfall
from locust_llm.report.server_columns import SOURCES, Reported
from locust_llm.slo.grammar import Rule, parse

from .blame import OF, Table, blame
from .clock import server_clock
from .decode import AFTER_FIRST, DELIVERY, PACE, Decoded, decoded
from .parts import MAX_OVERTAKEN, REST, Split, overtaken, split
from .price import Price, Prompts
from .slowest import Since, slowest

Floats = NDArray[np.float64]

MAX_UNTOLD: Final = 0.05
"""Share of the requests whose prefill the server may not report where decodes are held against the prefills that it does."""
UNLIKE_PROBE: Final = (
    "the prices of the probe, as the times of this run do not go with them (another server, or a cache)"
)
PERCENTILES: Final = (99.0, 95.0, 90.0, 75.0)
"""The highest one that there are requests enough for is explained."""


def waterfall(
    columns: Columns,
    levels: Occupancy,
    sample: Iterable[Record],
    spans: Mapping[str, ServerTimes],
    run: Run,
    since: Since,
    asked: Sequence[str] = (),
) -> Waterfall | None:
    """``levels``: of all requests; ``sample``: the records whose decode is split (``sampled_share``); ``spans``: by request;
    ``since``: looks up records; ``asked``: further blames, as ``ttft{model=a} p95``. None where no request was answered."""
    table, reported = _table(columns, levels, sample, spans, run.probed)
    if not table.counted.any():
        return None
    here, cut = table.counted, table.split
    whole = float(cut.total_us[here].sum())
    blames, left_out = list[Blame](), list[str]()
    for rule in _explained(table, run, asked, left_out):
        of = selected(rule, Selection(table.requests, here.copy())).chosen
        where = str(rule).partition("}")[0].partition("{")[2]
        found = blame(table, rule.metric, rule.percentile or 50.0, f"{{{where}}}" if rule.where else "", of)
        if found is not None:
            blames.append(found)
        elif rule.where:
            left_out.append(f"too few requests for {rule.metric}{{{where}}}")
    if cut.unlike_probe:
        left_out.append(UNLIKE_PROBE)
    sources = np.bincount(reported.source[here & ~cut.impossible], minlength=len(SOURCES))
    got = table.requests["first_chunk_at"].to_numpy(np.float64)[here]
    return Waterfall(
        requests=int(here.sum()),
        reported={name: int(count) for name, count in zip(SOURCES[1:], sources[1:], strict=True) if count},
        impossible=int((cut.impossible & here).sum()),
        unattributed_share=float(cut.us[REST][here].sum()) / whole if whole else 0.0,
        price="" if cut.price is None else _in_words(cut.price),
        in_order=overtaken(table.requests["sent_at"].to_numpy(np.float64)[here], got) <= MAX_OVERTAKEN,
        decoded=int((~np.isnan(table.after[PACE])).sum()),
        means_ms=_means_ms(table),
        blames=tuple(blames),
        slowest=slowest(table, run, since),
        server_clock=server_clock(columns.requests, reported, here & ~cut.impossible),
        proxy=run.proxy,
        left_out=tuple(left_out),
    )


def _means_ms(table: Table) -> dict[str, float]:
    """Of the parts to the first token, and of the decode where it was read."""
    means = {name: float(us[table.counted].mean()) / 1e3 for name, us in table.split.us.items()}
    read = table.counted & ~np.isnan(table.after[PACE])
    if read.any():
        means[DECODE] = sum(float(ms[read].mean()) for ms in table.after.values())
    return means


def frame(
    columns: Columns,
    levels: Occupancy,
    records: Iterable[Record],
    spans: Mapping[str, ServerTimes],
    alone: Prompts = (),
) -> pd.DataFrame:
    """A row a request, in the order of ``columns.requests``: each part in seconds, ``<part>_low_s`` and ``<part>_high_s`` of
    those that may be estimated, ``total_s`` to the first token (or the end, without one), ``reported`` by what, and
    ``impossible``. Parts after the first token are NaN of requests that were not read."""
    table, reported = _table(columns, levels, records, spans, alone)
    cut = table.split
    found: dict[str, object] = {"total_s": cut.total_us / 1e6}
    for name, us in cut.us.items():
        found[f"{name}_s"] = us / 1e6
    for name in ("queue", "prefill", "others"):
        found[f"{name}_low_s"], found[f"{name}_high_s"] = cut.low_us[name] / 1e6, cut.high_us[name] / 1e6
    for name, ms in table.after.items():
        found["unattributed_decode_s" if name == REST else f"{name}_s"] = ms / 1e3
    found["reported"] = pd.Categorical.from_codes(reported.source, categories=pd.Index(SOURCES))
    found["impossible"] = cut.impossible
    return pd.DataFrame(found)


def _table(
    columns: Columns,
    levels: Occupancy,
    sample: Iterable[Record],
    spans: Mapping[str, ServerTimes],
    alone: Prompts,
) -> tuple[Table, Reported]:
    requests, reported = columns.requests, columns.server.reported(spans)
    cut: Split = split(requests, reported, _streams(requests, levels), _usual_gap_us(columns), alone)
    after = _after(columns, decoded(_in_prefill(requests, levels, reported, cut), sample), reported, cut)
    counted = (
        ((requests["phase"] == "profiling") & (requests["outcome"] == OK)).to_numpy(np.bool_)
        & ~np.isnan(requests["ttft_s"].to_numpy(np.float64))
    )  # fmt: skip
    return Table(requests, cut, after, counted), reported


def _streams(requests: pd.DataFrame, levels: Occupancy) -> Floats:
    """How many decoded in the middle of each request's prefill."""
    if not len(levels.at):
        return np.zeros(len(requests))
    middle = (requests["sent_at"].to_numpy(np.float64) + requests["first_chunk_at"].to_numpy(np.float64)) / 2
    place = np.searchsorted(levels.at, np.nan_to_num(middle, nan=-np.inf), side="right") - 1
    return np.where(place >= 0, levels.decoding[np.maximum(place, 0)], 0).astype(np.float64)


def _in_prefill(requests: pd.DataFrame, levels: Occupancy, reported: Reported, cut: Split) -> Occupancy:
    """Seen from here a request is in prefill while it queues, too. Where the server reports the prefills they count as such,
    up to the first token, by the clock of this side."""
    prefill_s = np.where(cut.impossible, np.nan, reported.prefill_us) / 1e6
    first = ~np.isnan(requests["ttft_s"].to_numpy(np.float64))
    if (first & np.isnan(prefill_s)).sum() > MAX_UNTOLD * first.sum():
        return levels
    began = requests["first_chunk_at"].to_numpy(np.float64) - prefill_s
    sent = requests["sent_at"].to_numpy(np.float64)
    return occupancy(requests.assign(sent_at=np.where(np.isnan(began), sent, np.maximum(began, sent))), ())


def _usual_gap_us(columns: Columns) -> float:
    gaps = columns.gaps.get("profiling")
    return 0.0 if gaps is None or not gaps.count else (gaps.percentiles_ms([50.0])[0] or 0.0) * 1e3


def _after(columns: Columns, found: Decoded, reported: Reported, cut: Split) -> dict[str, Floats]:
    """In ms, at the rows of their requests. What the server reports for the decode is its own; the rest was on the way."""
    after = {name: np.full(len(columns.requests), np.nan) for name in AFTER_FIRST}
    if not len(found.keys):
        return after
    order = np.argsort(columns.server.keys, kind="stable")
    place = order[np.minimum(np.searchsorted(columns.server.keys, found.keys, sorter=order), len(order) - 1)]
    here = columns.server.keys[place] == found.keys
    us = {name: values.copy() for name, values in found.us.items()}
    told = np.where(cut.impossible[place], np.nan, reported.decode_us[place])
    on_the_way = np.clip(np.nan_to_num(found.total_us - told), 0, us[PACE]).astype(np.int64)
    us[DELIVERY], us[PACE] = on_the_way, us[PACE] - on_the_way
    for name, values in us.items():
        after[name][place[here]] = values[here] / 1e3
    return after


def _explained(table: Table, run: Run, asked: Sequence[str], left_out: list[str]) -> Iterator[Rule]:
    """TTFT from due at the highest percentile that there are requests for; the percentiles of rules; what was asked for."""
    count = int(table.counted.sum())
    highest = next((p for p in PERCENTILES if not scarce(count, p)), None)
    rules = [] if highest is None else [parse(f"{TO_DUE} p{highest:g} < 1s")]
    rules += [rule for rule in run.settings.rules.by_text.values() if not rule.staged]
    for text in asked:
        try:
            rules.append(explained_by(text))
        except ValueError as error:
            left_out.append(str(error))
    seen = set[tuple[str, object, object]]()
    for rule in rules:
        key = rule.metric, rule.percentile, rule.where
        if rule.metric in OF and rule.percentile is not None and key not in seen:
            seen.add(key)
            yield rule


def explained_by(text: str) -> Rule:
    """The rule whose metric, selectors and percentile are to be explained: ``ttft{model=a} p95``. Raises ValueError."""
    no_parts = f"{text}: only percentiles of {', '.join(OF)} have parts"
    try:
        rule = parse(f"{text} < 1s")
    except ValueError as error:
        why = str(error).partition(": ")[2]
        raise ValueError(no_parts if why.startswith("unknown unit") else f"{text}: {why}") from None
    if rule.metric not in OF or rule.percentile is None:
        raise ValueError(no_parts)
    return rule


def _in_words(price: Price) -> str:
    bend = f" + {price.per_square_us * 1e3:.2g} ms per million pairs of tokens" if price.per_square_us else ""
    return f"{price.fixed_us / 1e3:.1f} ms + {price.per_token_us:.1f} \N{MICRO SIGN}s a token{bend}, {price.rule}"
