"""Several results in one file, as ``vllm bench --append-result`` writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.lab.interop import read_foreign_results as known
from locust_llm.lab.interop import read_foreign_results as records
from locust_llm.lab.interop import side_by_side
from locust_llm.lab.interop.audit_command import run_audit as audit
from locust_llm.lab.interop.import_command import run_import
from locust_llm.lab.interop.inference_perf import FILE
from locust_llm.lab.interop.result_file import decode_documents

DATA = Path(__file__).parents[2] / "data" / "results" / "vllm-bench-0.32.0"
OBJECTS = st.dictionaries(
    st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5), max_size=3
)


@examples(100)
@given(found=st.lists(OBJECTS, min_size=1, max_size=4), gap=st.sampled_from(["", "\n", " \r\n\t"]))
def test_each_document_is_read(found: list[dict[str, Any]], gap: str) -> None:
    assert decode_documents(gap.join(map(json.dumps, found)).encode()) == (found, "")


@examples(100)
@given(
    raw=st.binary(max_size=30) | st.sampled_from([b"{} x", b"{}[", b"", b" ", b"{} 1", b"[1] [2]"])
)
def test_whatever_else_is_there_is_an_error(raw: bytes) -> None:
    try:
        found = decode_documents(raw)
    except ValueError:
        return
    assert len(found.found) == 1 or all(isinstance(one, dict) for one in found.found)


@examples(100)
@given(found=st.lists(OBJECTS, min_size=2, max_size=4), listed=st.booleans(), data=st.data())
def test_a_last_one_that_is_cut_is_named(
    found: list[dict[str, Any]], listed: bool, data: st.DataObject
) -> None:
    *whole, last = map(json.dumps, found)
    cut = last[: data.draw(st.integers(1, len(last) - 1))]
    text = ("[" * listed) + (", " if listed else "\n").join([*whole, cut])
    read = [found[:-1]] if listed else found[:-1]
    assert decode_documents(text.encode()) == (
        read,
        f"{'entry' if listed else 'result'} {len(found)}",
    )


@pytest.mark.parametrize(
    "text",
    ['{} {"a": ]}', '{} {"a" 1} {}', "[{}, {]", "[{}, 1", "{", '{"a": 1', "[1, {", "[", "[{"],
)
def test_what_is_broken_or_has_no_whole_result_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_documents(text.encode())


def test_a_list_without_its_end_is_cut() -> None:
    assert (
        decode_documents(b'[{"a": 1}, {}')
        == decode_documents(b'[{"a": 1}, {},')
        == ([[{"a": 1}, {}]], "its list")
    )


def test_deep_ones_are_an_error_too() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_documents(b'{}{"a":' + b"[" * 100_000)


def test_figures_of_each(tmp_path: Path) -> None:
    names = "concurrency-8.json", "rate-6-detailed.json"
    (tmp_path / "all.json").write_bytes(b"\n".join((DATA / name).read_bytes() for name in names))
    first, second = known.read_figures(tmp_path / "all.json")
    assert (first.label, second.label) == ("result 1", "result 2")
    assert [first.ttft, second.ttft] == [known.read_figures(DATA / name)[0].ttft for name in names]


def test_of_several_loads_one_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = (DATA / "rate-6-detailed.json").read_bytes()
    (tmp_path / "all.json").write_bytes(one + b"\n" + one)
    assert len(records.read_imported_runs(tmp_path / "all.json")) == 2
    assert run_import([str(tmp_path / "all.json"), "--report-dir", str(tmp_path / "r")]) == 5
    assert "it has 2 loads: choose one with --load 1 to --load 2" in capsys.readouterr().err


def several(tmp_path: Path, text: str) -> Path:
    (tmp_path / "all.json").write_text(text)
    return tmp_path / "all.json"


def test_each_result_of_a_list_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (
        (DATA / name).read_text() for name in ("rate-6-detailed.json", "concurrency-8.json")
    )
    path = several(tmp_path, f"[{one}, {other}]")
    assert [load.label for load in known.read_figures(path)] == ["result 1", "result 2"]
    assert (
        known.read_figures(path)[1].ttft == known.read_figures(DATA / "concurrency-8.json")[0].ttft
    )
    path = several(tmp_path, f"[{one}, {one}]")
    assert (
        run_import([str(path), "--report-dir", str(tmp_path / "r"), "--load", "2"]) == 6
    )  # as of the file alone, which was shortened
    assert "Imported from all.json" in capsys.readouterr().out


def test_a_strange_result_is_named(tmp_path: Path) -> None:
    path = several(tmp_path, f"[{(DATA / 'concurrency-8.json').read_text()}, {{}}]")
    with pytest.raises(
        known.UnknownFormat,
        match=r"^result 2: no known tool wrote it \(known: aiperf, evalscope, genai bench",
    ):
        known.read_figures(path)


@pytest.mark.parametrize("listed", [False, True])
def test_whole_results_before_one_that_is_cut(
    listed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = (DATA / "rate-6-detailed.json").read_text().rstrip()
    path = several(tmp_path, f"[{one},{one[:-40]}" if listed else f"{one}\n{one[:-40]}")
    name = "entry 2" if listed else "result 2"
    (load,) = known.read_figures(path)
    assert (load.label, load.cut, load.ttft) == (
        "result 1",
        name,
        known.read_figures(DATA / "rate-6-detailed.json")[0].ttft,
    )
    sentence = f"all.json ends in the middle of {name}, which was not read"
    assert run_import([str(path), "--report-dir", str(tmp_path / "r")]) == 6
    assert f"WARNING: {sentence}." in (tmp_path / "r" / "summary.md").read_text()
    assert side_by_side.build_result_table([(path, load)]).notes[0] == f"{sentence}."
    capsys.readouterr()
    assert audit([str(path)]) == 6
    assert sentence in capsys.readouterr().err


def test_a_cut_list_of_requests_counts_one_as_unread(tmp_path: Path) -> None:
    source = DATA.parent / "inference-perf-0.7.0" / "rate-6"
    requests = json.loads((source / FILE).read_text())
    (tmp_path / FILE).write_text(json.dumps(requests)[:-5])
    (load,) = records.read_imported_runs(tmp_path)
    assert (len(load.records), load.unread) == (
        len(requests) - 1,
        (f"entry {len(requests)}: cut off",),
    )


def test_a_result_without_requests_is_named(tmp_path: Path) -> None:
    one = (DATA / "rate-6-detailed.json").read_text()
    path = several(tmp_path, f"{one}\n{(DATA / 'concurrency-8.json').read_text()}")
    with pytest.raises(records.UnusableResult, match=r"^result 2: it has no list of its requests"):
        records.read_imported_runs(path)
