"""Levels over several gateways: blocks in turn, and gateways that leave when a load is their last."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import cast

import pytest

from locust_llm.lab.gateway.added_levels import (
    BlockAnswers,
    GatewayWay,
    LevelRun,
    LevelRunner,
    judge_level,
    measure_overtime,
)
from locust_llm.lab.gateway.added_series import measure_series
from locust_llm.lab.gateway.gateway_client import DIRECT, Exchange, make_address
from locust_llm.lab.gateway.gateway_result import EMBEDDINGS, SETUP, AddedLevel, AddedTime
from locust_llm.lab.gateway.process_cost import TICKS_PER_S, ProcessUse, UseOfBlocks
from locust_llm.lab.gateway.upstream_process import UpstreamReplicas
from locust_llm.lab.gateway.upstream_script import UpstreamScript


def test_a_round_has_a_block_of_each_way_in_a_drawn_order() -> None:
    direct = make_address(DIRECT, "http://127.0.0.1:1")
    runner = LevelRunner(direct, [], "r", 5.0, Random(1))
    ways = (DIRECT, "a", "b")
    drawn = list(runner._order_blocks(ways, 50))
    rounds = [tuple(drawn[at : at + 3]) for at in range(0, len(drawn), 3)]
    assert [sorted(one) for one in rounds] == [sorted(ways)] * 50
    assert len({*rounds}) == 6


def test_levels_of_two_gateways(tmp_path: Path) -> None:
    """Both are the upstream itself. The client's process stands for the gateway's."""
    with UpstreamReplicas(tmp_path) as replicas:
        direct = make_address(DIRECT, replicas.urls[0])
        used = iter(range(1000))
        ways = [
            GatewayWay(make_address(name, replicas.urls[0]), lambda: ProcessUse(next(used), 7.0))
            for name in ("a", "b")
        ]
        runner = LevelRunner(direct, ways, "r", 1e6, Random(1))
        try:
            runs = runner.measure_streams(2, 1.0, ("a", "b"))
            alone = runner.measure_without_load(("b",))
            rates = runner.measure_rate(20, 3.0, ("a",))
        finally:
            runner.close()
    for name in ("a", "b"):
        run = runs[name]
        assert [one.quantity for one in run.level.added] == ["ttft", "token", "itl", "latency"]
        assert (run.lost, run.direct_failed, run.stop, run.beyond) == (0, 0, "", False)
        # 1 s of CPU in each of five blocks, over all of its answers
        requests = run.level.added[0].samples
        assert run.level.cpu_ms_per_request == pytest.approx(5000 / requests)
        assert run.level.cpu_us_per_token == pytest.approx(5e6 / (32 * requests))
        assert run.level.memory_mb == 7.0
    first, second = (runs[name].level.added[0] for name in ("a", "b"))
    assert first.direct_p50_ms == second.direct_p50_ms
    assert [(one.quantity, one.samples) for one in alone["b"]] == [(SETUP, 100), (EMBEDDINGS, 100)]
    assert [one.quantity for one in rates["a"].level.added] == ["latency"]


def test_use_of_blocks_is_unknown_if_it_is_unknown_of_one() -> None:
    use = UseOfBlocks()
    use.add(ProcessUse(1.0, 5.0), ProcessUse(1.5, 9.0))
    use.add(ProcessUse(4.0, 9.0), ProcessUse(4.25, 6.0))
    assert (use.cpu_s, use.memory_mb) == (0.75, 9.0)
    use.add(None, ProcessUse(9.0, 1.0))
    use.add(ProcessUse(9.0, 1.0), ProcessUse(9.5, 1.0))
    assert (use.cpu_s, use.memory_mb) == (None, 9.0)


def test_of_few_ticks_of_cpu_only_the_most_is_known() -> None:
    """Two blocks, in which 4 and 5 ticks of 10 ms were counted in two processes. Each has two
    counters, and each counter may lack a tick of each block: 9 + 8 ticks at most."""
    use = UseOfBlocks()
    use.add(ProcessUse(1.0, 5.0, 2), ProcessUse(1.0 + 4 / TICKS_PER_S, 5.0, 2))
    use.add(ProcessUse(2.0, 5.0, 2), ProcessUse(2.0 + 5 / TICKS_PER_S, 5.0, 2))
    assert use.most_cpu_s == pytest.approx(17 / TICKS_PER_S)
    use.add(ProcessUse(2.0, 5.0, 2), ProcessUse(2.0 + 1 / TICKS_PER_S, 5.0, 2))
    assert (use.cpu_s, use.most_cpu_s) == (pytest.approx(10 / TICKS_PER_S), None)
    use.add(None, ProcessUse(9.0, 1.0))
    assert (use.cpu_s, use.most_cpu_s) == (None, None)


def block(requests: int, failed: int = 0, overtime: float = 0.0) -> BlockAnswers:
    return BlockAnswers((), requests, 0, failed, 0, overtime)


def level(p99_ms: float, **load: int) -> AddedLevel:
    quantity = "ttft" if "streams" in load else "latency"
    added = AddedTime(quantity=quantity, samples=9, p50_ms=1.0, p99_ms=p99_ms)
    return AddedLevel(added=(added,), **load)


def test_why_a_level_is_the_last() -> None:
    within = judge_level(level(5.0, streams=4), [block(9)], [block(9)], 5.0)
    assert (within.stop, within.beyond) == ("", False)
    beyond = judge_level(level(5.1, streams=4), [block(9, failed=2)], [block(9)], 5.0)
    assert (beyond.beyond, beyond.direct_failed) == (True, 2)
    assert beyond.stop == "p99 added to the first token is 5.1 ms, above --limit 5 ms"
    rate = level(1.0, requests_per_s=20)
    slow = judge_level(rate, [block(9)], [block(9, overtime=0.5), block(9, overtime=0.1)], 5.0)
    # 1.3 times the planned time: 20 / 1.3
    assert (slow.stop, slow.beyond) == ("only 15 of 20 requests/s were possible", False)
    few = judge_level(rate, [block(0)], [block(0), block(1, overtime=0.2)], 5.0)
    assert few.stop == ""
    most = AddedLevel(streams=4, failed=2)
    fails = judge_level(most, [block(9)], [block(10, failed=2)], 5.0)
    assert fails.stop == "2 of 10 requests failed through the gateway"


def test_overtime_counts_from_the_planned_end_of_a_block() -> None:
    script = UpstreamScript(id="a")
    sent = [
        Exchange(
            script=script, kind="chat", sent_ns=sent_ns, ended_ns=0, connect_s=None, reads=(),
            closed=False, outcome="ok", message="",
        )
        for sent_ns in (9_000_000_000, 8_000_000_000)
    ]  # fmt: skip
    assert measure_overtime(sent, began_s=7.0, block_s=1.6) == pytest.approx(0.25)
    assert measure_overtime(sent, began_s=7.0, block_s=2.5) == 0.0
    assert measure_overtime([], began_s=7.0, block_s=2.5) == 0.0


class PlannedRunner:
    """Measures nothing: ``b`` passes its limit from 4 streams on, ``a`` at 16, and ``a`` loses a chunk in
    each run."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def measure_without_load(self, names: Sequence[str]) -> dict[str, tuple[AddedTime, ...]]:
        return dict.fromkeys(names, ())

    def measure_streams(
        self, streams: int, seconds: float, names: Sequence[str]
    ) -> dict[str, LevelRun]:
        self.seconds.append(seconds)
        found = AddedLevel(streams=streams)
        runs = dict[str, LevelRun]()
        for name in names:
            stop = "is slow" if streams >= {"a": 16, "b": 4}[name] else ""
            runs[name] = LevelRun(found, int(name == "a"), 0, stop, beyond=bool(stop))
        return runs

    def measure_rate(
        self, requests_per_s: float, seconds: float, names: Sequence[str]
    ) -> dict[str, LevelRun]:
        self.seconds.append(seconds)
        found = AddedLevel(requests_per_s=requests_per_s)
        return {name: LevelRun(found, 0, 0, "is full") for name in names}


def test_a_gateway_takes_part_until_a_load_is_its_last() -> None:
    runner = PlannedRunner()
    told = list[str]()
    found = measure_series(
        cast(LevelRunner, runner), ("a", "b"), (1, 4, 16), (5.0, 9.0), 80.0, told.append
    )
    assert told == [
        "time added to new connections and to embeddings",
        "time added at 1 stream: a, b",
        "time added at 4 streams: a, b",
        "time added at 16 streams: a",
        "time added at 5 requests/s: a, b",
    ]
    # three quarters for three levels of streams, a quarter for two of requests
    assert runner.seconds == [20.0, 20.0, 20.0, 10.0]
    assert [one.streams for one in found["a"].levels] == [1, 4, 16, 0]
    assert [one.streams for one in found["b"].levels] == [1, 4, 0]
    assert (found["a"].lost_chunks, found["b"].lost_chunks) == (3, 0)
    full = "at 5 requests/s is full; not tried: 9 requests/s"
    assert found["b"].notes == [
        "at 4 streams is slow; not tried: 16 streams",
        full,
    ]
    assert "is slow" not in "".join(found["a"].notes)  # it was its last level anyway
    assert found["a"].notes[-1] == full


def test_the_last_load_names_why_it_failed_without_others_that_were_left_out() -> None:
    found = measure_series(
        cast(LevelRunner, PlannedRunner()), ("a",), (), (5.0,), 80.0, lambda what: None
    )
    assert found["a"].notes == ["at 5 requests/s is full"]
