"""Readings of a soak: what happened in each interval, in virtual time."""

from support import unpatched_locust  # noqa: F401  before anything of Locust

# isort: split
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from locust_llm.controller.run_context import TimeSource
from locust_llm.controller.soak_sampler import SoakSampler, choose_interval_s
from locust_llm.records.record import Record
from locust_llm.server.server_looks import ServerLook, ServerLooks
from locust_llm.server.server_memory import ProcessReading
from locust_llm.settings.run_options import Settings
from locust_llm.trends.soak_readings import (
    QUANTITIES,
    SoakReading,
    is_restart,
    join_parts,
    list_points,
    read_readings,
    select_last_process,
)


def make_record(ttft_us: int = 100_000, tokens: int = 5, **more: object) -> Record:
    """A request with one chunk each 10 ms."""
    known: dict[str, object] = {
        "id": "r", "clock_offset_s": 0.0, "due_at": 0.0, "asked_at": 0.0, "admitted_at": 0.0,
        "sent_at": 0.0, "closed_at": 1.0,
        "chunk_us": tuple(ttft_us + 10_000 * place for place in range(tokens)),
        "first_output": 0, "output_tokens": tokens,
    }  # fmt: skip
    return Record(**(known | more))  # type: ignore[arg-type]


class StubLooks:
    """Looks that the test plants."""

    source = "process 7 with its children"
    memory_limit_bytes = 64e9

    def __init__(self) -> None:
        self.planted: list[ServerLook] = []
        self.on_look: Callable[[], None] = lambda: None

    def look(self) -> ServerLook:
        self.on_look()
        return self.planted.pop(0) if self.planted else ServerLook()

    def close(self) -> None:
        pass


class Bench:
    """A server and a clock that the test moves."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now = 1000.0
        self.looks = StubLooks()
        time = TimeSource(now=lambda: self.now + 5e8, monotonic=lambda: self.now)
        known = Settings(soak=True, **{"soak_interval": 10.0, **settings})
        self.sampler = SoakSampler(known, folder, cast(ServerLooks, self.looks), time)

    def step(self, after_s: float, *records: Record) -> None:
        self.now += after_s
        for record in records:
            self.sampler.add(record)
        self.sampler.step()


def look(memory: float, free: float, waiting: float) -> ServerLook:
    return ServerLook(ProcessReading(memory, memory / 10, 7.0), free, waiting)


def test_a_reading_of_an_interval(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    blind = ServerLook(failure="it is gone")
    bench.looks.planted = [look(300, 0.5, 0), look(100, 0.7, 3), blind, look(200, 0.6, 0)]
    bench.step(60.0)  # the load has not begun
    bench.step(0.0, make_record())
    bench.step(2.0, make_record(outcome="cancelled"), make_record(outcome="cut"))
    bench.step(2.0, make_record(300_000), make_record(200_000, outcome="timeout"))
    assert bench.sampler.readings == []
    bench.step(6.0)
    reading = SoakReading(
        at=5e8 + 1070, hours=10 / 3600, requests=3, tokens=15, ended=3, failed=1,
        ttft_s=0.2, itl_s=0.01, memory_bytes=100, open_files=10, kv_free=0.7, waiting=1,
        server_started=7.0, memory_source="process 7 with its children", memory_limit_bytes=64e9,
        failed_looks=1, failure="it is gone",
    )  # fmt: skip
    assert bench.sampler.readings == [reading]
    assert reading.error_rate == pytest.approx(1 / 3)
    assert read_readings(tmp_path) == [reading]
    bench.step(10.0, make_record())
    second = read_readings(tmp_path)[1]
    assert (second.requests, second.tokens, second.ended) == (4, 20, 1)
    bench.sampler.close()


def test_no_reading_comes_while_the_report_is_made(tmp_path: Path) -> None:
    """Its interval ends after the end of the run, and a look may begin before and end after it."""
    bench = Bench(tmp_path)
    bench.step(0.0, make_record())
    bench.step(10.0)
    assert len(read_readings(tmp_path)) == 1
    bench.looks.on_look = bench.sampler.end
    bench.step(10.0, make_record())
    bench.step(10.0, make_record())
    assert len(read_readings(tmp_path)) == 1


def test_the_given_limit_of_memory_counts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_limit="16GB")
    bench.step(0.0, make_record())
    bench.step(10.0)
    assert bench.sampler.readings[0].memory_limit_bytes == 16e9


def test_an_idle_interval_counts_only_if_the_load_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step(0.0, make_record())
    bench.step(10.0)
    bench.step(10.0)
    assert len(read_readings(tmp_path)) == 1
    bench.step(10.0, make_record())
    assert [one.ended for one in read_readings(tmp_path)] == [1, 0, 1]
    assert [one.ended for one in bench.sampler.readings] == [1, 0, 1]
    assert read_readings(tmp_path / "none") == []


def test_a_later_part_goes_on_where_the_earlier_one_ended() -> None:
    first = [SoakReading(at=1.0, hours=2.0, requests=50, tokens=500)]
    second = [SoakReading(at=9.0, hours=0.5, requests=3, tokens=30)]
    joined = join_parts([first, [], second, second])
    assert [(one.part, one.hours, one.requests, one.tokens) for one in joined] == [
        (1, 2.0, 50, 500),
        (3, 2.5, 53, 530),
        (4, 3.0, 56, 560),
    ]
    assert joined[1].at == 9.0


@pytest.mark.parametrize(
    ("settings", "interval_s"),
    [
        ({"run_time_s": 60.0}, 1.0),
        ({"run_time_s": 3600.0}, 15.0),
        ({"run_time_s": 1e6}, 60.0),
        ({"run_time_s": 60.0, "soak_interval": 5.0}, 5.0),
        ({}, 10.0),
    ],
)
def test_the_time_between_two_readings(settings: dict[str, float], interval_s: float) -> None:
    assert choose_interval_s(Settings(soak=True, **settings)) == interval_s  # type: ignore[arg-type]


def test_looks_are_at_random_moments_and_not_too_often(tmp_path: Path) -> None:
    sampler = Bench(tmp_path).sampler
    waits = [sampler.choose_wait_s(Random(seed).uniform) for seed in range(100)]
    assert 0.5 <= min(waits) < 0.6
    assert 1.4 < max(waits) <= 1.5
    often = Bench(tmp_path, soak_interval=1.0).sampler
    assert often.choose_wait_s(lambda low, high: low) == 0.25


def test_intervals_are_equally_long_whenever_the_looks_are(tmp_path: Path) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        sampler.add(make_record())
        if now > 30.5:
            raise StopIteration

    time = TimeSource(now=lambda: now, monotonic=lambda: now, sleep=sleep)
    settings = Settings(soak=True, soak_interval=1.0)
    sampler = SoakSampler(settings, tmp_path, cast(ServerLooks, StubLooks()), time)
    sampler.add(make_record())
    with pytest.raises(StopIteration):
        sampler.take_readings()
    assert [one.hours * 3600 for one in sampler.readings] == pytest.approx(range(1, 31), abs=0.001)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "soak.jsonl").write_text('{"at":1.0,"hours":1.0}\n{"at":2.0,"hou')
    assert read_readings(tmp_path) == [SoakReading(at=1.0, hours=1.0)]


def test_memory_begins_anew_with_the_process() -> None:
    first, second = (SoakReading(at=1.0, hours=1.0, server_started=at) for at in (1.0, 2.0))
    unknown = SoakReading(at=1.0, hours=1.0)
    assert is_restart(first, second)
    assert not is_restart(first, unknown)
    assert select_last_process([first, first, second]) == [second]
    assert select_last_process([first, first]) == [first, first]


def test_many_readings_become_few_points() -> None:
    readings = [
        SoakReading(at=0.0, hours=hour, memory_bytes=100.0 + hour % 3, ttft_s=hour, kv_free=hour)
        for hour in range(480)
    ]
    memory, _, free, ttft, *_ = QUANTITIES
    assert [point.value for point in list_points(readings, memory)][:3] == [100, 100, 101]
    assert [point.value for point in list_points(readings, free)][:2] == [1, 3]
    assert [point.value for point in list_points(readings, ttft)][:2] == [0.5, 2.5]
    assert len(list_points(readings, ttft)) == 240
    assert list_points([], ttft) == []
