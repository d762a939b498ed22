"""Rows: whatever the file is, each row comes with its place, streamed and by index alike."""

import gzip
import json
import tracemalloc
from array import array
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from locust_llm.workload.dataset_formats import DatasetError
from locust_llm.workload.dataset_rows import FileRow, RowFile, RowIndex
from locust_llm.workload.dataset_summary import check_dataset


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows") / "file"


def file(place: Path, data: bytes) -> RowFile:
    place.write_bytes(data)
    return RowFile(str(place))


def by_index(rows: RowFile, found: list[FileRow]) -> list[FileRow]:
    end = found[-1].offset + len(found[-1].data)
    index = RowIndex(
        array("Q", [*(row.offset for row in found), end]), array("I", [row.line for row in found])
    )
    return [rows.at(index, number) for number in reversed(range(len(found)))][::-1]


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b'{"a": 1}\n{"a": 2}', [FileRow(0, 1, b'{"a": 1}'), FileRow(9, 2, b'{"a": 2}')]),
        (
            b'\r\n{"a": 1}\r\n \r\n{"a": 2}\r\n',
            [FileRow(2, 2, b'{"a": 1}'), FileRow(15, 4, b'{"a": 2}')],
        ),
        (b'\xef\xbb\xbf{"a": 1}\n', [FileRow(3, 1, b'{"a": 1}')]),
        (
            b'a,b\n1,\n"x\n\ny",2\n3,4\n',
            [
                FileRow(0, 1, b"a,b"),
                FileRow(4, 2, b"1,"),
                FileRow(7, 3, b'"x\n\ny",2'),
                FileRow(16, 6, b"3,4"),
            ],
        ),
        (
            b"a\tb\n1\t\n \t\n\n2\t3 \n",
            [FileRow(0, 1, b"a\tb"), FileRow(4, 2, b"1\t"), FileRow(11, 5, b"2\t3 ")],
        ),
        (
            b'[{"a": "[,\\"]"},{"b": [1, {}]}]',
            [FileRow(1, 1, b'{"a": "[,\\"]"}'), FileRow(16, 1, b'{"b": [1, {}]}')],
        ),
        (b'[\n  {\n "a": 1},\n\n  2 ]\n', [FileRow(4, 2, b'{\n "a": 1}'), FileRow(19, 5, b"2")]),
        (b"\xef\xbb\xbf\n[{}\n]", [FileRow(5, 2, b"{}")]),
        (b" [ ] ", []),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_and_their_places(place: Path, data: bytes, rows: list[FileRow], packed: bool) -> None:
    read = file(place, gzip.compress(data) if packed else data)
    assert list(read) == rows
    assert list(read) == rows  # and once more from the start
    for row in rows:
        assert data[row.offset :].startswith(row.data)
    assert not rows or by_index(read, rows) == rows


VALUES = st.recursive(
    st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@pytest.mark.slow
@examples(40)
@given(
    st.lists(st.dictionaries(st.text(), VALUES, max_size=3), min_size=1, max_size=5),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_a_list_and_lines_of_any_objects(
    place: Path, objects: list[object], indent: int | None, plain: bool
) -> None:
    texts = [
        json.dumps(objects, indent=indent, ensure_ascii=plain),
        "\n".join(map(json.dumps, objects)),
    ]
    for text in texts:
        read = file(place, text.encode("utf-8", "surrogatepass"))
        rows = list(read)
        assert [json.loads(row.data) for row in rows] == objects
        assert [row.line for row in rows] == [
            text.encode("utf-8", "surrogatepass")[: row.offset].count(b"\n") + 1 for row in rows
        ]
        assert by_index(read, rows) == rows


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b" \n\xef\xbb\xbf"[:2], "the file is empty"),
        (b"\xff\xfe{\x00", "line 1, column 1: UTF-16"),
        (
            b'[{"a": 1},\n {"b": 2}\n {"c": 3}]',
            "line 3, column 2: broken JSON: expected ',' or ']'",
        ),
        (b'[{"a": 1}', "line 1, column 10: broken JSON: Input data was truncated"),
        (b"[" * 100_000, "nested too deeply"),
        (gzip.compress(b'{"a": 1}' * 1000, mtime=0)[:-20], "cannot be read: "),
        (b"\x1f\x8bnonsense", "cannot be read: "),
    ],
)
def test_a_file_that_is_broken_as_a_whole(place: Path, data: bytes, said: str) -> None:
    with pytest.raises(DatasetError) as wrong:
        list(file(place, data))
    assert str(wrong.value).startswith(str(place))
    assert said in str(wrong.value)


def test_no_file_and_no_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match=r"not there: cannot be read: No such file"):
        RowFile(str(tmp_path / "not there"))
    with pytest.raises(DatasetError, match=r"cannot be read: Is a directory"):
        RowFile(str(tmp_path))
    monkeypatch.setattr("locust_llm.workload.dataset_rows.MAX_ROW_BYTES", 10)
    for data in (b'{"a": 1}\n{"a": "0123456789"}\n', b'a\n"\n\n\n\n\n\n\n\n\n\n\n'):
        with pytest.raises(DatasetError, match="line 2, column 1: a row of over 0 MB"):
            list(file(tmp_path / "long", data))


BOMBS: Final = {
    "one row": (b'{"prompt": "', b"x", "line 1, column 1: a row of over 1 MB"),
    "no row": (b"", b" ", "line 1, column 1: over 1 MB of white space"),
    "blank lines": (
        b'{"prompt": "a"}\n',
        b" " * 999 + b"\n",
        "column 1: more blank lines than rows, over 1 MB of them",
    ),
    "a list": (b'[{"prompt": "', b"x", ": unpacks to over 4 MB, 50 times its size"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_gzip_bomb_is_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """60 MB in 60 kB, with bounds that are as much smaller than the real ones."""
    monkeypatch.setattr("locust_llm.workload.dataset_rows.MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr("locust_llm.workload.dataset_rows.UNPACKED_BYTES", 4 << 20)
    monkeypatch.setattr("locust_llm.workload.dataset_rows.PACKED_RATIO", 50)
    begin, filling, said = BOMBS[name]
    place = tmp_path / "bomb.gz"
    with gzip.open(place, "wb") as packed:
        packed.write(begin)
        for _ in range(60):
            packed.write(filling * ((1 << 20) // len(filling)))
    tracemalloc.start()
    try:
        with pytest.raises(DatasetError) as wrong:
            check_dataset(str(place))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert place.stat().st_size < 300_000
    assert said in str(wrong.value)
    assert peak < 8e6


@pytest.mark.parametrize(
    ("data", "number", "byte", "where"),
    [
        (b'{"a": 1}\n{"\xc3\xa4": 2}\n', 1, 6, "line 2, column 6"),  # ä is one sign of two bytes
        (b'a,b\n"x\ny",z\n', 1, 5, "line 3, column 3"),
        (b'[{"a": 1}, {"b": 2}]', 1, 1, "line 1, column 13"),
        (b'[\n {"a":\n  1}]', 0, 8, "line 3, column 3"),
    ],
)
def test_line_and_column_of_a_byte(
    place: Path, data: bytes, number: int, byte: int, where: str
) -> None:
    read = file(place, data)
    assert str(read.error(list(read)[number], "wrong", byte)) == f"{place}, {where}: wrong"


def test_a_text_is_found_across_blocks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locust_llm.workload.dataset_rows._BLOCK", 7)
    for shift in range(8):
        assert file(place, b"x" * shift + b'"session_id" and more').mentions(b'"session_id"')
    assert not file(place, b'"session-id", "session_ids"').mentions(b'"session_id"')
