"""Readings of a soak: what happened in each interval, in virtual time."""

from pathlib import Path
from random import Random

import pytest

from locust_llm.lab.soak.server_memory import ProcessReading
from locust_llm.lab.soak.soak_readings import (
    QUANTITIES,
    SoakReading,
    is_restart,
    list_points,
    read_readings,
    select_last_process,
)
from locust_llm.lab.soak.soak_sampler import ServerLook, SoakSampler
from locust_llm.records.record import Record


def make_record(ttft_us: int = 100_000, tokens: int = 5, **more: object) -> Record:
    """A request with one chunk each 10 ms."""
    known: dict[str, object] = {
        "id": "r", "clock_offset_s": 0.0, "due_at": 0.0, "asked_at": 0.0, "admitted_at": 0.0,
        "sent_at": 0.0, "closed_at": 1.0,
        "chunk_us": tuple(ttft_us + 10_000 * place for place in range(tokens)),
        "first_output": 0, "output_tokens": tokens,
    }  # fmt: skip
    return Record(**(known | more))  # type: ignore[arg-type]


class Bench:
    """A server and a clock that the test moves."""

    def __init__(self, folder: Path, before: SoakReading | None = None) -> None:
        self.now = 1000.0
        self.looks: list[ServerLook] = []
        self.records: list[Record] = []
        self.sampler = SoakSampler(
            folder, 10.0, self.look, self.take, lambda: self.now, before=before, unix_offset_s=5e8
        )

    def look(self) -> ServerLook:
        return self.looks.pop(0) if self.looks else ServerLook()

    def take(self) -> list[Record]:
        taken, self.records = self.records, []
        return taken

    def step(self, after_s: float, *records: Record) -> SoakReading | None:
        self.now += after_s
        self.records = list(records)
        return self.sampler.step()


def look(memory: float, free: float, waiting: float) -> ServerLook:
    return ServerLook(ProcessReading(memory, memory / 10, 7.0), free, waiting)


def test_a_reading_of_an_interval(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.looks = [look(300, 0.5, 0), look(100, 0.7, 3), look(200, 0.6, 0)]
    assert bench.step(60.0) is None  # the load has not begun
    assert bench.step(0.0, make_record()) is None
    assert bench.step(4.0, make_record(300_000), make_record(200_000, outcome="timeout")) is None
    reading = bench.step(6.0)
    assert reading == SoakReading(
        at=5e8 + 1070, hours=10 / 3600, part=1, requests=3, tokens=15, ended=3, failed=1,
        ttft_s=0.2, itl_s=0.01, memory_bytes=100, open_files=10, kv_free=0.7, waiting=1,
        server_started=7.0,
    )  # fmt: skip
    assert reading.error_rate == pytest.approx(1 / 3)
    assert read_readings(tmp_path) == [reading]


def test_an_idle_interval_counts_only_if_the_load_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.step(0.0, make_record())
    bench.step(10.0)
    bench.step(10.0)
    assert len(read_readings(tmp_path)) == 1
    bench.step(10.0, make_record())
    bench.step(10.0)
    assert [one.ended for one in read_readings(tmp_path)] == [1, 0, 1]
    assert [one.ended for one in bench.sampler.readings] == [1, 0, 1]


def test_a_later_part_goes_on_where_the_earlier_one_ended(tmp_path: Path) -> None:
    before = SoakReading(at=1.0, hours=2.0, part=3, requests=50, tokens=500)
    bench = Bench(tmp_path, before)
    bench.step(0.0, make_record())
    reading = bench.step(10.0)
    assert reading is not None
    assert (reading.part, reading.requests, reading.tokens) == (4, 51, 505)
    assert reading.hours == pytest.approx(2.0 + 10 / 3600)


def test_looks_are_at_random_moments(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    waits = [bench.sampler.wait_s(Random(seed)) for seed in range(100)]
    assert 0.5 <= min(waits) < 0.6
    assert 1.4 < max(waits) <= 1.5


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
