"""``locust-llm report --json``: what it prints beside the result that the run itself reads."""

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import pytest
from support.records import UNIX, a_run, answered

from locust_llm.records.outcomes import CANCELLED
from locust_llm.records.profile_export_jsonl import format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import RECORDS, Disruption, Run, write_run
from locust_llm.records.server_metrics_history import SERVER_METRICS
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.report.report_command import run_report_command

SCHEMAS: Final = Path(__file__).parents[2] / "docs" / "schemas"


def complete(number: int, **other: Any) -> Record:
    return answered(100, 200, sent_at=10.0 + number / 2, id=f"a-{number}", **other)


def write_folder(folder: Path, run: Run, records: list[Record], tokens: tuple[float, ...]) -> None:
    """``tokens``: the server's counter at each second from 9 on."""
    write_run(folder, run)
    lines = [format_record_line(record) + b"\n" for record in records]
    (folder / RECORDS).write_bytes(b"".join(lines))
    samples = [
        EngineSample(at=UNIX + 9 + second, engine="vLLM", generated=count)
        for second, count in enumerate(tokens)
    ]
    metrics = b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples)
    (folder / SERVER_METRICS).write_bytes(metrics)


def print_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run_report_command([str(folder), "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((SCHEMAS / "report-output.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(printed)
    return printed


def test_disruptions_and_cancelled_work_are_in_it_and_in_run_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """40 requests of two tokens each half second; one of 40 left with one token. The server generated
    90 tokens, 11 more than the run received."""
    records = [complete(number) for number in range(40)]
    records[4] = answered(
        100, sent_at=12.0, id="a-4", outcome=CANCELLED, tokens_from="chunks"
    )  # fmt: skip
    made = Disruption(
        schedule="at 10s", command="kill 7", began_at=UNIX + 20, ended_at=UNIX + 20.1, status=0
    )
    run = msgspec.structs.replace(
        a_run(check_cancellations=True, request_cancellation_rate=10.0),
        disruptions=(made,),
        stopping_at=UNIX + 30,
    )
    write_folder(tmp_path, run, records, (0.0, *[90.0] * 22))
    printed = print_report(tmp_path, capsys)
    (effect,) = printed["disruptions"]["effects"]
    assert (effect["command"], effect["status"]) == ("kill 7", 0)
    work = printed["cancelled_work"]
    assert (work["generated"], work["received"], work["ghost_tokens"]) == (90.0, 79.0, 11.0)
    assert work["interval"] is None
    kept = json.loads((tmp_path / "run.json").read_text())
    assert kept["disruptions"] == printed["disruptions"]
    assert kept["cancelled_work"] == work
    jsonschema.Draft202012Validator(json.loads((SCHEMAS / "run.schema.json").read_text())).validate(
        kept
    )


def test_a_run_without_them_has_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path, a_run(), [complete(number) for number in range(4)], (0.0,))
    printed = print_report(tmp_path, capsys)
    assert (printed["disruptions"], printed["cancelled_work"]) == (None, None)
