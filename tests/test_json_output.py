"""What commands print with --json fits the schema of that command in docs/schemas."""

import json
from pathlib import Path
from typing import Any, Final

import jsonschema
import msgspec
import pytest
from support.made_twins import QUEUE, draws, made
from support.years import year

from locust_llm.__main__ import main
from locust_llm.exit_status import ExitStatus
from locust_llm.lab.twin import twin_file
from locust_llm.lab.twin.twin_fit import summarise_fit
from locust_llm.settings.scenario_file import list_scenario_names, read_packaged_scenario

ROOT: Final = Path(__file__).parents[1]
EXAMPLE: Final = str(ROOT / "reports" / "example")


def schema_of(command: str) -> dict[str, Any]:
    name = f"{command.replace(' ', '-')}-output.schema.json"
    found: dict[str, Any] = json.loads((ROOT / "docs" / "schemas" / name).read_text("utf-8"))
    return found


def printed(capsys: pytest.CaptureFixture[str], command: str) -> Any:
    """Returns the printed value after it fitted the schema."""
    value = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema_of(command)).validate(value)
    return value


@pytest.fixture
def twin(tmp_path: Path) -> str:
    twin_file.write_twin(made(QUEUE, draws=draws(1.0, 1.0, cost=QUEUE)), tmp_path / "twin.toml")
    return str(tmp_path / "twin.toml")


def test_audit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", EXAMPLE, "--json"]) == ExitStatus.OK
    (load,) = printed(capsys, "audit")
    assert list(load) == ["file", "tool", "verdict", "findings"]
    assert load["file"] == EXAMPLE
    assert list(load["findings"][0]) == ["rule", "verdict", "arithmetic"]


def test_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", str(ROOT / "reports"), "--json"]) == ExitStatus.OK
    found = printed(capsys, "history")
    assert list(found) == ["schema", "workloads", "unread"]
    runs = [run["folder"] for workload in found["workloads"] for run in workload["runs"]]
    assert "example" in runs


def test_history_with_a_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fifteen runs, then fifteen whose times are twice as long: they double from run 15 on."""
    year(tmp_path, [1.0] * 15 + [2.0] * 15)
    assert main(["history", str(tmp_path), "--json"]) == ExitStatus.OK
    (workload,) = printed(capsys, "history")["workloads"]
    change = next(one for one in workload["changes"] if one["metric"] == "ttft_p50")
    assert list(change) == [
        "metric", "from", "better", "relative", "at", "before", "after", "shift", "low", "high",
        "beside",
    ]  # fmt: skip
    assert (change["from"], change["better"], change["at"]) == ("run-0015", False, 15)
    assert change["relative"] == pytest.approx(1.0)
    assert change["after"] == pytest.approx(2 * change["before"])
    assert change["shift"] == pytest.approx(change["before"])


def test_plan(twin: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "plan", twin, "--arrivals", "20/s", "--slo", "ttft avg < 200ms", "--gpu-hour", "2.5",
        "--synthetic-input-tokens-mean", "100", "--output-tokens-mean", "1", "--json",
    ]  # fmt: skip
    assert main(words) == ExitStatus.OK
    found = printed(capsys, "plan")
    assert found["replicas"] == 5
    assert list(found["twin"]) == ["file", "verdict", "error"]
    assert list(found["cost"]) == ["gpus", "month", "month_scaled", "million_output", "million_all"]
    assert found["arrivals"]["hours"] == [20.0] * 24
    assert found["add_above"]["requests_per_s"] > found["remove_below"]["requests_per_s"] > 0


def test_twin_predict(twin: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "twin", "predict", twin, "--load", "concurrency=1,2", "--load", "request-rate=2",
        "--slo", "ttft p95 < 10s", "--json",
    ]  # fmt: skip
    assert main(words) == ExitStatus.OK
    found = printed(capsys, "twin predict")
    loads = [one["load"] for one in found["what_ifs"]]
    assert loads == [{"concurrency": 1}, {"concurrency": 2}, {"request-rate": 2.0}]
    assert [one["rules"] for one in found["what_ifs"]] == [{"ttft p95 < 10s": "met"}] * 3
    low, about, high = found["what_ifs"][0]["answers"]["ttft p50"]
    assert low <= about <= high


def test_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "--json"]) == ExitStatus.OK
    found = printed(capsys, "scenario")
    assert [one["name"] for one in found] == list_scenario_names()
    assert all(one["description"] for one in found)
    assert main(["scenario", "--json", "show", "rag"]) == ExitStatus.OK
    assert capsys.readouterr().out == read_packaged_scenario("rag")


def test_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["export", EXAMPLE, "--format", "vllm-bench", "--out", str(out), "--json"]
    assert main(words) == ExitStatus.OK
    assert printed(capsys, "export") == {"file": str(out), "format": "vllm-bench"}
    assert out.exists()


def test_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file counts 100 requests, and five of them were kept for the tests."""
    folder = tmp_path / "run"
    source = ROOT / "tests" / "data" / "results" / "aiperf-0.13.0" / "rate-6"
    words = ["import", str(source), "--report-dir", str(folder), "--json"]
    assert main(words) == ExitStatus.INCOMPLETE
    found = printed(capsys, "import")
    assert found["folder"] == str(folder)
    lines = (folder / "profile_export.jsonl").read_text("utf-8").splitlines()
    assert found["requests"] == len(lines) == 5
    assert found["missing"] == ["95 records not in the file, so counts and rates may be too low"]
    assert found["notes"][0].startswith(f"Imported from {source.name}: ")


def test_a_fitted_twin(tmp_path: Path) -> None:
    result = summarise_fit(made(QUEUE), tmp_path / "twin.toml")
    value = json.loads(msgspec.json.encode(result))
    jsonschema.Draft202012Validator(schema_of("twin fit")).validate(value)
    assert value["file"] == str(tmp_path / "twin.toml")
    assert value["costs"]["token_s"] == 0.001
    assert value["scheduler"]["max_num_batched_tokens"] == 100


@pytest.mark.parametrize(
    "command",
    ["twin drift", "audit", "export", "history", "import", "plan", "scenario", "twin predict"],
)
def test_each_field_of_an_output_has_a_description(command: str) -> None:
    definitions = schema_of(command)["$defs"]
    bare = [
        f"{kind}.{name}"
        for kind, definition in definitions.items()
        for name, field in definition.get("properties", {}).items()
        if "description" not in field
    ]
    assert not [name for name in bare if not name.startswith("HistoryEntry.")]
