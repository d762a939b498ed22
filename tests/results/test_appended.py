"""Several results in one file, as ``vllm bench --append-result`` writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.results.formats import known
from locust_llm.results.formats.contents import decode_documents
from locust_llm.results.records import known as records
from locust_llm.results.records.command import run

DATA = Path(__file__).parents[1] / "data" / "results" / "vllm-bench-0.32.0"
OBJECTS = st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=5), max_size=3)


@examples(100)
@given(found=st.lists(OBJECTS, min_size=1, max_size=4), gap=st.sampled_from(["", "\n", " \r\n\t"]))
def test_each_document_is_read(found: list[dict[str, Any]], gap: str) -> None:
    assert decode_documents(gap.join(map(json.dumps, found)).encode()) == found


@examples(100)
@given(raw=st.binary(max_size=30) | st.sampled_from([b"{} x", b"{}[", b"", b" ", b"{} 1", b"[1] [2]"]))
def test_whatever_else_is_there_is_an_error(raw: bytes) -> None:
    try:
        found = decode_documents(raw)
    except ValueError:
        return
    assert len(found) == 1 or all(isinstance(one, dict) for one in found)


def test_deep_ones_are_an_error_too() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        decode_documents(b'{}{"a":' + b"[" * 100_000)


def test_figures_of_each(tmp_path: Path) -> None:
    names = "concurrency-8.json", "rate-6-detailed.json"
    (tmp_path / "all.json").write_bytes(b"\n".join((DATA / name).read_bytes() for name in names))
    first, second = known.read(tmp_path / "all.json")
    assert (first.label, second.label) == ("result 1", "result 2")
    assert [first.ttft, second.ttft] == [known.read(DATA / name)[0].ttft for name in names]


def test_of_several_loads_one_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = (DATA / "rate-6-detailed.json").read_bytes()
    (tmp_path / "all.json").write_bytes(one + b"\n" + one)
    assert len(records.read(tmp_path / "all.json")) == 2
    assert run([str(tmp_path / "all.json"), "--report-dir", str(tmp_path / "r")]) == 5
    assert "it has 2 loads: choose one with --load 1 to --load 2" in capsys.readouterr().err
