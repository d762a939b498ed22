"""Service of tenants by pencil, and a planted unfairness of 4 : 1 read off from a server's own
tokens."""

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from recorded import recorded
from support.records import UNIX, a_run, answered, failed

from locust_llm.records.record import Record
from locust_llm.report.chart_data.time_axis import TimeAxis
from locust_llm.report.document_blocks import SCARCE_NOTE, TableBlock, TextBlock
from locust_llm.report.sections.tenant_fairness import (
    OTHERS,
    TenantsSummary,
    describe_fairness,
    jain_index,
    make_tenant_blocks,
    measure_coverage,
    measure_tenants,
    plot_tenant_service,
)
from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.clock import VirtualClock
from locust_llm.simulator.scheduling.engine import BatchEngine
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.step_cost import LLAMA_8B_H100
from locust_llm.simulator.scheduling.virtual_time import Virtual, VirtualRequest
from locust_llm.simulator.scheduling.waiting_order import Fair
from locust_llm.text.format import format_duration


def of(name: str, sent: float, first_ms: float, *later_ms: float, **fields: Any) -> Record:
    return answered(first_ms, *later_ms, sent_at=sent, tenant=name, **fields)


def computed(records: list[Record], high: float = 100.0, **settings: Any) -> TenantsSummary:
    found = measure_tenants(records, a_run(**settings), UNIX, UNIX + high)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ((5, 5, 5, 5), 1.0),
        ((4, 1), 25 / 34),
        ((1, 0, 0, 0), 0.25),
        ((1, 2, 3), 36 / 42),
        ((0, 0), None),
        ((), None),
    ],
)
def test_jain(values: tuple[float, ...], index: float | None) -> None:
    assert jain_index(values) == (None if index is None else pytest.approx(index))


def test_covered_is_the_union() -> None:
    edges = np.arange(11.0)
    began, ended = np.array([1.5, 1.0, 7.25, 3.0]), np.array([2.0, 2.5, 7.5, 3.0])
    assert measure_coverage(began, ended, edges).tolist() == [0, 1, 0.5, 0, 0, 0, 0, 0.25, 0, 0]
    random = Random(3)
    some = [(at, at + random.expovariate(2)) for at in (random.uniform(0, 10) for _ in range(30))]
    fine = np.linspace(0, 10, 100_001)[:-1]
    on = np.any([(fine >= low) & (fine < high) for low, high in some], axis=0)
    found = measure_coverage(
        np.array([low for low, _ in some]), np.array([high for _, high in some]), edges
    )
    assert found == pytest.approx(on.reshape(10, -1).mean(axis=1), abs=1e-3)


def test_service_by_pencil() -> None:
    """a: 100 + 2 * 3 and 100 + 2 * 8; b: 50 + 2 * 1 of one that was cut, nothing of one that
    failed."""
    found = computed(
        [
            of("a", 0, 50_000, 60_000, 70_000),
            of(
                "a",
                0,
                50_000,
                60_000,
                output_tokens=8,
                first_chunk_tokens=3,
                chunk_tokens=((3, 1), (5, 1)),
            ),
            of(
                "b",
                10,
                80_000,
                outcome="cut",
                input_tokens=None,
                output_tokens=None,
                asked_input_tokens=50,
            ),
            failed("reset", 10.0, tenant="b", asked_input_tokens=50, asked_output_tokens=5),
            of("a", 0, 50_000, phase="warmup"),
            of("a", 0, 50_000, outcome="retried"),
            of("", 0, 50_000),
        ]
    )
    a, b = found.rows
    assert (a.name, a.requests, a.failed, a.service, a.demand) == ("a", 2, 0, 222, 222)
    assert (b.name, b.requests, b.failed, b.failure_rate, b.service, b.demand) == (
        "b",
        2,
        1,
        1.0,
        52,
        50 + 60,
    )
    assert (a.share, a.demand_share) == (pytest.approx(222 / 274), pytest.approx(222 / 332))
    assert (a.ttft_p50_s, a.itl_p50_s) == (50.0, pytest.approx((10 + 10 / 5) / 2))
    at, service = found.service.at_s, found.service.received["a"]
    # 200 input tokens and the first chunks' 2 + 6 at 50 s, then 2 + 10 at 60 s, 2 at 70 s
    assert [service[np.searchsorted(at, t)] for t in (49, 51, 59, 61, 69, 71)] == [
        0,
        208,
        208,
        220,
        220,
        222,
    ]
    assert measure_tenants([of("", 0, 1)], a_run(), UNIX, UNIX + 1) is None


def test_only_tenants_that_wait_are_compared() -> None:
    """gold and free wait for 90 of 100 s, and get 300 and 100 in that; c asks for little."""
    records = [
        *(of("gold", 0, 1000 * at, input_tokens=98) for at in (30, 60, 90)),
        of("gold", 0, 90_000, input_tokens=0),
        of("free", 0, 45_000, input_tokens=98),
        of("free", 0, 95_000, input_tokens=0),
        of("c", 50, 100, input_tokens=10_000),
    ]
    found = computed(records)
    assert found.backlogged == ("gold", "free")
    assert found.contended_s == pytest.approx(90, abs=0.2)
    # at 90 s gold's wait ends with its token: that step is no more counted
    assert found.jain == pytest.approx((200 + 100) ** 2 / (2 * (200**2 + 100**2)))
    assert (found.gap, found.gap_of) == (100, ("gold", "free"))
    shares = {row.name: row.contended_share for row in found.rows}
    assert shares == {"gold": pytest.approx(2 / 3), "free": pytest.approx(1 / 3), "c": None}
    weighted = computed(records, tenant_weight="gold=2,free=1")
    assert weighted.jain == pytest.approx(1)
    assert {row.name: row.weight for row in weighted.rows} == {"gold": 4 / 3, "free": 2 / 3, "c": 1}
    assert "Jain's index 0.900 of service (1: equal, 0.5: one has all)" in describe_fairness(found)
    assert "gold 66.7%, free 33.3%" in describe_fairness(found)


def test_no_choice_no_index() -> None:
    alone = computed([of("a", 0, 90_000), of("b", 1, 10)])
    assert (alone.jain, alone.gap_of) == (None, None)
    assert "only a was backlogged" in describe_fairness(alone)
    apart = computed([of("a", 0, 50_000), of("b", 50, 50_000)])
    assert apart.jain is None
    assert "they never all waited throughout a step of 100 ms" in describe_fairness(apart)
    many = computed([of(f"t{n}", 0, 10_000) for n in range(103)])
    assert len(many.rows) == 101
    assert OTHERS in {row.name for row in many.rows}


def test_waits_shorter_than_a_step_count() -> None:
    """Every second a request waits for 10 ms, and one second of tokens follows: 1% of the time,
    though no step of 100 ms is waited through."""
    records = [of("a", float(at), 10, 1000) for at in range(100)]
    (row,) = computed(records).rows
    assert row.waiting == pytest.approx(0.01, abs=1e-6)
    apart = [of("b", at + 0.5, 400, 500) for at in range(100)]
    both = {row.name: row.waiting for row in computed([*records, *apart], 100.5).rows}
    assert both == {"a": pytest.approx(1 / 100), "b": pytest.approx(40 / 100)}


def test_the_tenant_that_was_alone_is_left_out() -> None:
    records = [
        of("a", 0, 1000, arm="base"),
        of("a", 10, 1000, arm="candidate"),
        of("b", 10, 1000, arm="candidate"),
    ]
    found = computed(records, isolate="a", tenant_mix="a=1,b=1")
    assert [row.requests for row in found.rows] == [1, 1]


def planted(weights: dict[str, int], seconds: float, step_s: float = 0.01) -> list[Record]:
    """A server of one request at a time that serves each token to the tenant furthest behind its
    weight (VTC's rule): all of their requests wait from the start."""
    random, served = Random(1), dict.fromkeys(weights, 0.0)
    queues = {
        name: deque((random.randint(20, 200), random.randint(5, 60)) for _ in range(4000))
        for name in weights
    }
    now, records = 0.0, list[Record]()
    while now < seconds:
        name = min(weights, key=lambda name: served[name] / weights[name])
        inputs, outputs = queues[name].popleft()
        served[name] += inputs + 2 * outputs
        first = now + inputs * step_s / 10
        chunks = [1000 * (first + n * step_s) for n in range(outputs)]
        records.append(of(name, 0.0, *chunks, input_tokens=inputs))
        now = chunks[-1] / 1000
    return records + [
        failed("cut", 0.0, tenant=name, closed_at=now)
        for name, queue in queues.items()
        for _ in range(min(3, len(queue)))
    ]


@pytest.mark.parametrize("weight", [1, 4])
def test_planted_unfairness_is_read_off(weight: int) -> None:
    found = computed(planted({"gold": weight, "free": 1}, 100.0))
    share = {row.name: row.contended_share or 0.0 for row in found.rows}
    assert share["gold"] / share["free"] == pytest.approx(weight, rel=0.02)
    assert found.jain == pytest.approx((weight + 1) ** 2 / (2 * (weight**2 + 1)), rel=0.02)
    entitled = computed(
        planted({"gold": weight, "free": 1}, 100.0), tenant_weight=f"gold={weight},free=1"
    )
    assert entitled.jain == pytest.approx(1, abs=0.001)
    gaps = found.gap or 0.0, entitled.gap or 0.0
    # VTC's bound: twice the largest request, over the least weight, 0.4
    assert 0 < gaps[1] < 2 * 2.5 * (200 + 2 * 60)
    assert weight == 1 or gaps[0] > 10 * gaps[1]


def fair(weights: dict[str, float], seconds: float) -> tuple[list[Record], dict[str, float]]:
    """(the records of two closed loops of 30 users before the simulator's scheduler with a fair
    queue; the true service)."""
    clock, random = VirtualClock(), Random(1)
    config = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=8, kv_tokens=100_000)
    scheduler = Scheduler(config, POLICIES["chunked"], waiting=Fair(weights), record=True)
    load = Virtual(clock, BatchEngine(scheduler, LLAMA_8B_H100, clock), keep_tokens=True)

    def requests(tenant: str, most: int) -> Iterator[VirtualRequest]:
        while True:
            yield VirtualRequest(random.randrange(10, most), random.randrange(5, 40), tenant=tenant)

    load.closed_loop(30, requests("gold", 100))
    load.closed_loop(30, requests("free", 300))
    rows, true = load.run(until=seconds), dict.fromkeys(weights, 0.0)
    for row in rows:
        true[row.request.tenant] += row.request.prompt_tokens + 2 * row.request.output_tokens
    return [replace(record, clock_offset_s=UNIX) for record in recorded(rows)], true


def test_the_weights_of_a_fair_queue_are_read_off() -> None:
    """As by ``--scheduling-policy fair --tenant-weight gold=4,free=1``."""
    records, true = fair({"gold": 4.0, "free": 1.0}, 60.0)
    assert len(records) > 1000
    found = computed(records, 60.0)
    assert {*found.backlogged} == {"gold", "free"}
    assert found.contended_s > 55
    share = {row.name: row.contended_share or 0.0 for row in found.rows}
    assert share["gold"] / share["free"] == pytest.approx(4, rel=0.02)
    assert share["gold"] / share["free"] == pytest.approx(true["gold"] / true["free"], rel=0.02)
    assert found.jain == pytest.approx(25 / 34, rel=0.02)
    entitled = computed(records, 60.0, tenant_weight="gold=4,free=1")
    assert entitled.jain == pytest.approx(1, abs=0.001)


def test_table_and_plots() -> None:
    found = computed(planted({"gold": 4, "free": 1}, 20.0), 20.0, tenant_weight="gold=4,free=1")
    _, table, few, index, gap_text, *_ = make_tenant_blocks(found)
    assert isinstance(table, TableBlock)
    assert [row[4].endswith("*") for row in table.rows] == [
        row.requests - row.failed < 20 for row in found.rows
    ]
    assert few == TextBlock(SCARCE_NOTE)
    assert all(len(row) == len(table.head) for row in table.rows)
    assert "service / weight" in str(index)
    assert "Service gap between gold and free: at most" in str(gap_text)
    service, gap = plot_tenant_service(found, TimeAxis(UNIX, 0.0, 20.0))
    for series in (*service.series, *gap.series):
        assert len(series.x) == len(series.y) == 201
    for series in service.series:
        assert all(a <= b for a, b in pairwise(series.y))  # type: ignore[operator]
    assert [series.name for series in service.series] == ["gold", "free"]


def test_the_caption_names_the_time_of_tokens_per_s() -> None:
    """Requests from 0 to 2 s and from 1 to 3 s, with 2 chunks each: the pauses between chunks
    count, the rest does not."""
    found = computed([of("a", 0.0, 1000, 2000), of("b", 1.0, 1000, 2000)])
    assert found.under_load_s == pytest.approx(3.0)
    assert sum(row.tokens_per_s or 0.0 for row in found.rows) == pytest.approx((102 + 102) / 3.0)
    texts = [block.text for block in make_tenant_blocks(found) if isinstance(block, TextBlock)]
    assert any(
        f"over the {format_duration(found.under_load_s)} with a request in flight" in text
        for text in texts
    )
