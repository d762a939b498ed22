"""Import: the same three requests as each tool writes them become the same records; what a tool
lacks is in no report."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.evalscope import a_database
from support.records import answered

from locust_llm.__main__ import main
from locust_llm.lab.interop import import_command, read_foreign_results
from locust_llm.lab.interop.imported_records import UnusableResult
from locust_llm.records.profile_export_jsonl import RecordFile, format_record_line
from locust_llm.records.record import Record
from locust_llm.records.run_facts import read_run
from locust_llm.report import write_report_files
from locust_llm.report.run_comparison import compare_folders

STAMPS_S = ([0.1, 0.2, 0.3], [0.2, 0.25], [0.3, 0.4, 0.5, 0.6])
"""After the sends at 0, 0.5 and 1: TTFT 100, 200, 300 ms, latency 300, 250, 600, ITL (of n - 1
tokens) 100, 50, 100."""
SENDS_S = (0.0, 0.5, 1.0)
UNIX = 1_795_400_000


def vllm() -> dict[str, Any]:
    return {
        "date": "20261123-022325", "model_id": "tiny", "request_rate": 2.0, "burstiness": 1.0,
        "max_concurrency": None,
        "completed": 3, "failed": 1, "mean_ttft_ms": 200.0, "request_throughput": 1.9,
        "input_lens": [10, 20, 30, 40], "output_lens": [3, 2, 4, 0], "ttfts": [0.1, 0.2, 0.3, 0.0],
        "itls": [[0.1, 0.1], [0.05], [0.1, 0.1, 0.1], []], "latencies": [0.3, 0.25, 0.6, 0.5],
        "start_times": [500.0, 500.5, 501.0, 501.1], "errors": ["", "", "", "Traceback:\nboom\n"],
    }  # fmt: skip


def aiperf() -> list[dict[str, Any]]:
    def one(at: int) -> dict[str, Any]:
        stamps, start = STAMPS_S[at], round((UNIX + SENDS_S[at]) * 1e9)
        gaps = [(b - a) * 1e3 for a, b in pairwise(stamps)]
        values = {"time_to_first_token": (stamps[0] * 1e3, "ms"),
            "request_latency": (stamps[-1] * 1e3, "ms"),
                  "inter_chunk_latency": (gaps, "ms"), "output_sequence_length": (9, "tokens"),
                  "usage_completion_tokens": (len(stamps), "tokens"),
                  "input_sequence_length": (10 * (at + 1), "tokens")}  # fmt: skip
        return {
            "metadata": {"session_num": at, "x_request_id": f"r{at}", "request_start_ns": start,
                         "request_end_ns": start + round(stamps[-1] * 1e9),
                         "benchmark_phase": "profiling"},
            "metrics": {name: {"value": value, "unit": unit} for name,
                (value, unit) in values.items()},
        }  # fmt: skip

    failed = one(0)
    failed["metadata"] |= {"x_request_id": "r3"}
    return [
        *map(one, range(3)),
        failed | {"metrics": {}, "error": {"code": 503, "message": "busy"}},
    ]


def guidellm() -> dict[str, Any]:
    def one(at: int) -> dict[str, Any]:
        stamps, start = STAMPS_S[at], UNIX + SENDS_S[at]
        timings = {"targeted_start": start - 0.05, "request_start": start,
            "first_token_iteration": start + stamps[0],
                   "last_token_iteration": start + stamps[-1], "request_end": start + stamps[-1],
                   "token_iterations": len(stamps)}  # fmt: skip
        return {
            "request_id": f"r{at}",
            "info": {"timings": timings},
            "prompt_tokens": 10 * (at + 1),
            "output_tokens": len(stamps),
        }

    failed = one(0)
    failed["info"] |= {"error": "boom"}
    failed["info"]["timings"] |= {"first_token_iteration": None}
    return {
        "metadata": {"guidellm_version": "0.8.1"},
        "benchmarks": [{
            "config": {"strategy": {"type_": "poisson", "rate": 2.0}, "backend": {"model": "tiny"}},
            "metrics": {"time_to_first_token_ms": {}, "request_totals": {"total": 4}},
            "requests": {"successful": [one(at) for at in range(3)], "errored": [failed],
                "incomplete": []},
        }],
    }  # fmt: skip


def inference_perf() -> list[dict[str, Any]]:
    def one(at: int) -> dict[str, Any]:
        start = 70.0 + SENDS_S[at]
        times = [start + s for s in STAMPS_S[at]]
        answer = {
            "output_tokens": len(times),
            "output_token_times": [times[0], *times],
        }  # two tokens in the first chunk
        return {"start_time": start, "end_time": times[-1],
            "request": '{"model": "tiny", "prompt": "cut',
                "info": {"input_tokens": 10 * (at + 1), "response_metrics": answer}, "error": None}  # fmt: skip

    return [
        *map(one, range(3)),
        one(0)
        | {
            "info": {"input_tokens": 1, "response_metrics": {}},
            "error": {"error_type": "TimeoutError"},
        },
    ]


def evalscope() -> list[dict[str, Any]]:
    body = json.dumps(
        {"model": "tiny", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
    )

    def one(at: int) -> dict[str, Any]:
        stamps, start = STAMPS_S[at], 70.0 + SENDS_S[at]
        return {
            "request": body, "start_time": start, "completed_time": start + stamps[-1],
            "success": 1,
            "latency": stamps[-1], "first_chunk_latency": stamps[0], "is_stream": 1,
            "inter_token_latencies": json.dumps([b - a for a, b in pairwise(stamps)]),
            "prompt_tokens": 10 * (at + 1), "completion_tokens": len(stamps),
            "response_messages": "a pickle",
        }  # fmt: skip

    failed = {
        "request": body,
        "start_time": 70.0,
        "completed_time": 70.5,
        "success": 0,
        "inter_token_latencies": "[]",
    }
    return [*map(one, range(3)), failed]


def files(tmp_path: Path) -> dict[str, Path]:
    made = {
        "vllm bench": json.dumps(vllm()), "AIPerf": "\n".join(map(json.dumps, aiperf())),
        "guidellm": json.dumps(guidellm()),
        "inference-perf": json.dumps(inference_perf()),
    }  # fmt: skip
    for tool, words in made.items():
        (tmp_path / f"{tool}.json").write_text(words)
    database = a_database(tmp_path / "any.db", evalscope())
    return {tool: tmp_path / f"{tool}.json" for tool in made} | {"evalscope": database}


def test_each_tool_has_the_same_requests(tmp_path: Path) -> None:
    failures = {"vllm bench": ("unnamed", "boom"), "AIPerf": ("unavailable", "busy"),
        "guidellm": ("unnamed", "boom"),
                "inference-perf": ("timeout", "TimeoutError"), "evalscope": ("unnamed", "failed")}  # fmt: skip
    for tool, path in files(tmp_path).items():
        (found,) = read_foreign_results.read_imported_runs(path)
        ok = sorted(
            (one for one in found.records if one.outcome == "ok"), key=lambda one: one.sent_at or 0
        )
        assert found.tool == tool
        assert [one.ttft_s for one in ok] == [0.1, 0.2, 0.3]
        assert [one.latency_s for one in ok] == [0.3, 0.25, 0.6]
        assert [one.itl_s for one in ok] == pytest.approx([0.1, 0.05, 0.1])
        assert [one.input_tokens for one in ok] == [10, 20, 30]
        assert [one.output_tokens for one in ok] == [3, 2, 4]
        assert [(one.sent_at or 0) - (ok[0].sent_at or 0) for one in ok] == pytest.approx(SENDS_S)
        (failed,) = (one for one in found.records if one.failed)
        assert (failed.outcome, failed.error) == failures[tool]
        if tool == "guidellm":  # has no stamps between, and the schedule
            assert {one.lacks for one in ok} == {("gaps",)}
            assert [one.late_s for one in ok] == pytest.approx([0.05] * 3)
            assert all(one.gaps_us == () and one.longest_stall_s is None for one in ok)
        else:
            assert {one.lacks for one in ok} == {("due",)}
            assert [one.gaps_us for one in ok] == [(100_000,) * 2, (50_000,), (100_000,) * 3]
            assert all(one.late_s is None and one.ttft_from_due_s is None for one in ok)


def test_the_report_has_no_figure_that_the_tool_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for tool, path in files(tmp_path).items():
        folder = tmp_path / f"run of {tool}"
        assert import_command.run_import([str(path), "--report-dir", str(folder)]) == 0, (
            capsys.readouterr()
        )
        run, made = (
            read_run(folder),
            json.loads((folder / "profile_export_aiperf.json").read_bytes()),
        )
        text = (folder / "summary.md").read_text()
        gaps, due = tool != "guidellm", tool == "guidellm"
        assert ("inter_chunk_latency" in made, "longest_stall" in made) == (gaps, gaps)
        assert ("schedule_delay" in made, "time_to_first_token_from_due" in made) == (due, due)
        assert "prefill_gate_wait" not in made
        assert "read_lag" not in made
        assert made["time_to_first_token"]["p50"] == 200
        assert made["inter_token_latency"]["avg"] == pytest.approx(250 / 3, abs=1e-5)
        # first send at 0, last end at 1.6
        assert made["request_throughput"]["avg"] == pytest.approx(3 / 1.6, abs=1e-5)
        assert made["output_token_throughput"]["avg"] == pytest.approx(9 / 1.6, abs=1e-5)
        assert ("between the first and the last" in text, "due times of requests" in text) == (
            not gaps,
            not due,
        )
        assert "not judged" in text
        assert run.imported.startswith(tool)
        assert json.loads((folder / "run.json").read_bytes())["client"] is None
    summary, _ = write_report_files.remake_reports(folder)  # as locust-llm report does
    assert not summary.unmade
    assert summary.client is None
    (pair,) = compare_folders([tmp_path / "run of AIPerf", tmp_path / "run of guidellm"]).runs
    assert [warning for warning in pair.warnings if "different" in warning] == [
        "different load tester: AIPerf in the base; guidellm 0.8.1 here."
    ]  # not its prompts, its machine, its version: these are not known
    assert (
        main(["compare", str(tmp_path / "run of AIPerf"), str(files(tmp_path)["vllm bench"])]) == 0
    )


def test_what_has_no_requests_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = vllm()
    whole = {
        name: value for name, value in bench.items() if name not in ("ttfts", "itls", "start_times")
    }
    ours = format_record_line(answered(100, 200))
    for content, why in (
        (
            json.dumps(whole),
            "no list of its requests (vllm bench serve writes one with --save-detailed); "
            "locust-llm compare",
        ),
        (json.dumps(bench | {"start_times": None}), "no start times"),
        (
            json.dumps({"aggregated_metrics": {}, "individual_request_metrics": []}),
            "genai-bench keeps no start time",
        ),
        (ours.decode(), "it is a run of locust-llm"),
        ("{", "import takes AIPerf"),
        ("[]", "import takes AIPerf"),
        (
            json.dumps(bench | {"ttfts": [], "itls": [], "start_times": []}),
            "none of its requests can be read",
        ),
        (
            json.dumps(guidellm() | {"benchmarks": guidellm()["benchmarks"] * 2}),
            "choose one with --load 1 to --load 2",
        ),
    ):
        (tmp_path / "x").write_text(content)
        assert (
            import_command.run_import([str(tmp_path / "x"), "--report-dir", str(tmp_path / "no")])
            == 5
        )
        assert why in capsys.readouterr().err
        assert not (tmp_path / "no").exists()


def test_a_cut_file_is_used_as_far_as_it_goes_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps(one) for one in aiperf()]
    lines[1] = lines[1].replace("200.0", "NaN")
    (tmp_path / "profile_export.jsonl").write_text("\n".join([*lines[:3], lines[3][:80]]))
    assert import_command.run_import([str(tmp_path), "--report-dir", str(tmp_path / "run")]) == 6
    text = (tmp_path / "run" / "summary.md").read_text()
    assert "2 records not in the file" in text
    assert (
        "2 requests of the file could not be read (line 2: it is not JSON, or cut; line 4" in text
    )
    assert len(list(RecordFile(tmp_path / "run" / "profile_export.jsonl"))) == 2
    bench = vllm() | {
        "ttfts": [0.1, math.nan, 0.3, 0.0],
        "itls": [[0.1, 0.1], [0.05], [0.1, 9.0], []],
    }
    (tmp_path / "x.json").write_text(json.dumps(bench))
    (found,) = read_foreign_results.read_imported_runs(tmp_path / "x.json")
    assert found.unread == ("request 2: its TTFT is nan",)
    assert [one.lacks for one in found.records if one.outcome == "ok"] == [
        ("due",),
        ("due", "gaps"),
    ]  # 9.3 s are not 0.6


DATA = Path(__file__).parents[2] / "data" / "results"


def each_said(tool: str) -> list[tuple[float, float, float]]:
    """TTFT, latency and TPOT in ms as the tool itself wrote them for each request of its file."""
    if tool == "aiperf-0.13.0":
        lines = (DATA / tool / "rate-6" / "profile_export.jsonl").read_bytes().splitlines()
        names = ("time_to_first_token", "request_latency", "inter_token_latency")
        return [
            tuple(msgspec.json.decode(one)["metrics"][name]["value"] for name in names)
            for one in lines
        ]  # type: ignore[misc]
    if tool == "guidellm-0.8.1":
        (load,) = msgspec.json.decode((DATA / tool / "rate-6.json").read_bytes())["benchmarks"]
        return [
            (one["time_to_first_token_ms"],
             (one["info"]["timings"]["last_token_iteration"] - one["request_start_time"]) * 1e3,
             one["inter_token_latency_ms"])
            for one in load["requests"]["successful"]
        ]  # fmt: skip
    bench = msgspec.json.decode((DATA / tool / "rate-6-detailed.json").read_bytes())
    rows = zip(bench["ttfts"], bench["latencies"], bench["output_lens"], strict=True)
    return [
        (first * 1e3, last * 1e3, (last - first) * 1e3 / (count - 1)) for first, last, count in rows
    ]


@pytest.mark.skipif(not DATA.is_dir(), reason="there are no results of real tools")
@pytest.mark.parametrize("tool", ["aiperf-0.13.0", "guidellm-0.8.1", "vllm-bench-0.32.0"])
def test_records_of_real_results_say_what_the_tools_said(tool: str) -> None:
    file = {"guidellm-0.8.1": "rate-6.json", "vllm-bench-0.32.0": "rate-6-detailed.json"}.get(
        tool, "rate-6"
    )
    (found,) = read_foreign_results.read_imported_runs(DATA / tool / file)
    assert not found.unread
    assert found.rate_per_s == 6
    assert found.arrivals == "poisson"
    for one, said in zip(found.records, each_said(tool), strict=True):
        ours = [one.ttft_s, one.latency_s, one.itl_s]
        assert [value and value * 1e3 for value in ours] == pytest.approx(
            said, abs=2e-3
        )  # stamps are whole microseconds


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just([])
    | st.just({})
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


@given(st.sampled_from(["vllm", "aiperf", "guidellm", "inference_perf"]), st.data())
def test_no_value_anywhere_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, tool: str, data: st.DataObject
) -> None:
    document = {
        "vllm": vllm,
        "aiperf": aiperf,
        "guidellm": guidellm,
        "inference_perf": inference_perf,
    }[tool]()
    for _ in range(data.draw(st.integers(1, 3))):
        *above, last = data.draw(st.sampled_from([place for place in places(document) if place]))
        inner: Any = document
        for key in above:
            inner = inner[key]
        inner[last] = data.draw(SCALARS | st.just(10**400))
    words = (
        "\n".join(map(json.dumps, document))
        if isinstance(document, list) and tool == "aiperf"
        else json.dumps(document)
    )
    path = tmp_path_factory.mktemp("any") / "x.json"
    path.write_bytes(words.encode()[: data.draw(st.none() | st.integers(0, len(words)))])
    try:
        loads = read_foreign_results.read_imported_runs(path)
    except UnusableResult:  # a sentence
        return
    for found in loads:
        run = import_command.write_imported_run(found, path, path.parent)
        assert msgspec.convert(msgspec.to_builtins(run), type(run)) == run
        read = list(RecordFile(path.parent / "profile_export.jsonl"))
        assert len(read) == len(found.records)
        assert all(isinstance(one, Record) for one in read)
