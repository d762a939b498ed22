"""The seeds' timelines: the same few requests under each policy, a line a request and a dot a
token."""

from collections.abc import Sequence
from typing import NamedTuple

import experiments as e
import numpy as np
from recorded import recorded

from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.report.chart_data.timeline import find_scene
from locust_llm.report.load_records import collect_columns
from locust_llm.report.timeline_figure import draw_timeline_svg
from locust_llm.settings.run_options import Settings
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest

DECODERS = (70, 90, 110, 130)
"""Tokens out of the four that are there from the start, 64 tokens in."""
LONG = 8000
INTERRUPTED = [
    *((0.0, VirtualRequest(64, tokens, kind="decoder")) for tokens in DECODERS),
    (0.2, VirtualRequest(LONG, 40, kind="long")),
    (0.35, VirtualRequest(64, 40, kind="late")),
    (0.6, VirtualRequest(4000, 30, kind="late")),
    (0.65, VirtualRequest(6000, 20, kind="late")),
]
"""Four decode, a long prompt comes, then a short one and two of some length."""
QUEUED = [
    *((0.0, VirtualRequest(6000, 4, kind="long")) for _ in range(4)),
    *((0.3 + 0.5 * i, VirtualRequest(100, 6, kind="short")) for i in range(6)),
]
"""Four long prompts at once, and short ones behind them: the pull request's example, at 6,000
tokens for its 100,000."""
SLOW_MS = 100.0
"""A gap above it is red: TNG's targets for a token begin there."""
SAME_S = 1e-5
"""Tokens of one step are stamped within it: stamps are rounded to a microsecond."""
SLOTS = {
    "one at a time": ("chunked", {}),
    "threshold 512": ("chunked", {"long_prefill_token_threshold": 512}),
    "4 slots, 1 long": (
        "partial-prefills",
        {"max_num_partial_prefills": 4, "long_prefill_token_threshold": 2048},
    ),
}
"""How prompts share a budget of 2,048; the last is the pull request's."""


def interrupted(name: str) -> list[Record]:
    """``name``: of ``experiments.server``."""
    return _run(e.server(name), INTERRUPTED)


def queued(name: str) -> list[Record]:
    """On an A40; ``name``: one of SLOTS."""
    policy, flags = SLOTS[name]
    return _run(
        e.load(policy, cost=e.A40, max_num_batched_tokens=2048, max_num_seqs=128, **flags), QUEUED
    )


def _run(run: Virtual, requests: Sequence[tuple[float, VirtualRequest]]) -> list[Record]:
    run.keep_tokens = True
    run.open_loop(iter(requests))
    return recorded(run.run())


def drawn(
    title: str, about: str, records: Sequence[Record], seconds: float, *, stalls: bool = True
) -> str:
    """The SVG of the first so many ``seconds``. ``records`` in the order of their ends. ``stalls``:
    mark the longest gap, and those above SLOW_MS in red."""
    run = Run(
        name="seeds",
        settings=Settings(),
        started_at=0.0,
        profiling_at=0.0,
        simulated=True,
        model=about,
    )
    found = find_scene(
        collect_columns(records),
        run,
        lambda at: [r for r in records if r.closed_at >= at],
        (0.0, seconds),
    )
    assert found is not None
    quiet = found._replace(slow=0.0, window=found.window._replace(stall=None))
    return draw_timeline_svg(found._replace(slow=SLOW_MS) if stalls else quiet, run, title)


class Meanwhile(NamedTuple):
    long_ttft: float
    tokens: tuple[int, int]
    """What each decoder got after the long prompt's send and before its first token: the fewest,
    the most."""
    longest_gap: float
    """Of all requests."""
    late_ttft: float
    """The mean of the three that came after the long one."""
    ended: float
    """The last request."""


def meanwhile(records: Sequence[Record]) -> Meanwhile:
    (long,) = of_kind(records, "long")
    sent, first = _at(long, 0), _at(long, long.chunk_us[0])
    tokens = [
        sum(sent < _at(record, us) < first - SAME_S for us in record.chunk_us)
        for record in of_kind(records, "decoder")
    ]
    return Meanwhile(
        first - sent,
        (min(tokens), max(tokens)),
        max(record.longest_stall_s or 0.0 for record in records),
        float(np.mean(ttft_s(of_kind(records, "late")))),
        max(record.closed_at for record in records),
    )


def of_kind(records: Sequence[Record], kind: str) -> list[Record]:
    return [record for record in records if record.name == kind]


def ttft_s(records: Sequence[Record]) -> list[float]:
    return [record.chunk_us[0] / 1e6 for record in records]


def _at(record: Record, us: int) -> float:
    """So long after the send, in seconds of the run."""
    assert record.sent_at is not None
    return record.sent_at + us / 1e6
