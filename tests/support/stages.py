"""Stages: makes levels for knee rules, and folders of sweeps for reports."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run, Stage, write_run
from locust_llm.report.summary_rows import LoadLevel, Row
from locust_llm.settings.run_options import make_stage_settings
from locust_llm.slo.rules import SloResult
from support.records import UNIX, a_run, answered, mixed


def a_level(
    value: float, requests_per_s: float | None = 1.0, latency_ms: float = 1000.0, **other: object
) -> LoadLevel:
    """Makes a level of 100 requests with ``latency_ms`` each. ``slo`` is the result of the only
    rule."""
    slo = other.pop("slo", None)
    if slo is not None:
        other |= {"slo_status": slo, "slos": (SloResult(rule="ttft p50 < 1s", status=str(slo)),)}
    row = Row(
        label="",
        tag="",
        unit="ms",
        count=100,
        avg=latency_ms,
        max=latency_ms,
        percentiles={50.0: latency_ms, 99.0: latency_ms},
    )
    fields: dict[str, object] = {
        "number": 1,
        "users": 1,
        "duration_s": 100.0,
        "requests": 100,
        "succeeded": 100,
        "failure_rate": 0.0,
        "residual": 0.01,
        "why": "stationary",
        "client": "OK",
        "input_tokens_per_s": None,
        "output_tokens_per_s": None,
        "latencies": {"request_latency": row},
    }
    return LoadLevel(value=value, requests_per_s=requests_per_s, **{**fields, **other})  # type: ignore[arg-type]


def a_stage(run: Run, number: int, value: float, axis: str, **other: object) -> Run:
    """Makes a stage from second 0 whose seconds 10 to 30 were measured."""
    fields: dict[str, object] = {
        "began_at": UNIX, "measured_at": UNIX + 10, "ended_at": UNIX + 30, "residual": 0.01,
        "why": "stationary",
    }  # fmt: skip
    stage = Stage(number=number, value=value, **{**fields, **other})  # type: ignore[arg-type]
    settings = make_stage_settings(run.settings, axis, value)
    return replace(
        run, name=f"{run.name}, stage {number}", settings=settings, stage=stage, stages=()
    )


def steps(slowest_ms: float, count: int = 40) -> list[Record]:
    """Makes requests every half second from second 10 on. Their TTFTs rise in equal steps up to
    ``slowest_ms``, in an order without correlation. Two more tokens come after 10 and 30 ms."""
    ttfts = [slowest_ms * rank / count for rank in mixed(count)]
    return [
        answered(ttft, ttft + 10, ttft + 30, sent_at=10.0 + i / 2) for i, ttft in enumerate(ttfts)
    ]


def fill_sweep(
    folder: Path,
    stages: Mapping[float, Iterable[Record]],
    sweep: str = "concurrency=1,2,4",
    **settings: object,
) -> Run:
    """Writes a folder of a sweep whose stages have these records, and returns its run."""
    axis = sweep.partition("=")[0] or "repeat"
    asked = {"sweep": sweep or None, "users": None if axis == "concurrency" else 2} | settings
    run = replace(a_run(**asked), name="by-hand", sweep_end="all stages ran")
    runs = [a_stage(run, number, value, axis) for number, value in enumerate(stages, 1)]
    everything = b""
    for one, records in zip(runs, stages.values(), strict=True):
        assert one.stage is not None
        place = folder / "stages" / str(one.stage.number)
        place.mkdir(parents=True)
        lines = b"".join(
            format_record_line(replace(record, stage=one.stage.number)) + b"\n"
            for record in records
        )
        (place / "profile_export.jsonl").write_bytes(lines)
        write_run(place, one)
        everything += lines
    (folder / "profile_export.jsonl").write_bytes(everything)
    run = replace(run, stages=tuple(one.stage for one in runs if one.stage))
    write_run(folder, run)
    return run
