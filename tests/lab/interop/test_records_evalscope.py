"""evalscope's database: what its versions have, what was really written, and files that are cut, of
others or no SQLite."""

import json
import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.evalscope import TYPES, a_database

from locust_llm.files import sqlite_file as database_module
from locust_llm.lab.interop import import_command
from locust_llm.lab.interop import read_foreign_results as figures
from locust_llm.lab.interop import read_foreign_results as known
from locust_llm.lab.interop.evalscope import FILE, MAX_GAPS_CHARS, NO_WORDS
from locust_llm.lab.interop.imported_records import ImportedRun, UnusableResult
from locust_llm.records.record import MOST_CHUNKS, Record
from locust_llm.records.ttft_itl_latency import DUE, GAPS

REAL: Final = (
    Path(__file__).parents[2] / "data" / "results" / "vllm-server" / "evalscope-1.14.1-requests"
)
BODY: Final = json.dumps({"model": "tiny", "stream_options": {"include_usage": True}})
ROW: Final[Mapping[str, object]] = {
    "request": BODY, "start_time": 70.0, "completed_time": 70.5, "success": 1, "latency": 0.5,
    "first_chunk_latency": 0.25,
    "inter_token_latencies": "[0.125, 0.125]", "prompt_tokens": 10, "completion_tokens": 3,
    "is_stream": 1,
}  # fmt: skip


def of(path: Path, *rows: Mapping[str, object], without: tuple[str, ...] = ()) -> ImportedRun:
    (found,) = known.read_imported_runs(a_database(path / FILE, rows, without))
    return found


def only(path: Path, **values: object) -> Record:
    """The record of a row with these values instead."""
    (record,) = of(path, {**ROW, **values}).records
    return record


def test_what_a_row_becomes(tmp_path: Path) -> None:
    record = only(tmp_path)
    assert record.chunk_us == (250_000, 375_000, 500_000)
    assert (record.model, record.input_tokens, record.output_tokens, record.tokens_from) == (
        "tiny",
        10,
        3,
        "usage",
    )
    assert record.lacks == (DUE,)
    # up to the event with the usage, behind the last chunk
    later = only(tmp_path, latency=0.6, completed_time=70.6)
    assert (later.chunk_us, later.lacks, later.closed_at) == (record.chunk_us, (DUE,), 70.6)
    # it did not ask the server to count
    assert only(tmp_path, request="{}").tokens_from == "tokenizer"
    assert only(tmp_path, request_id="r7").id == "r7"
    whole = only(tmp_path, is_stream=0, inter_token_latencies="[]", first_chunk_latency=0.5)
    assert (whole.streamed, whole.ttft_s, whole.latency_s) == (False, None, 0.5)
    assert only(tmp_path, completion_tokens=1, inter_token_latencies="[]").chunk_us == (250_000,)


@pytest.mark.parametrize("gaps", ["[0.125, 0.5]", "[0.125, NaN]", "[0.125, -1]", "{", "7", None])
def test_gaps_that_contradict_the_latency_are_not_known(tmp_path: Path, gaps: str | None) -> None:
    record = only(tmp_path, inter_token_latencies=gaps)
    assert (record.chunk_us, record.lacks) == ((250_000, 500_000), (DUE, GAPS))


def test_older_versions_have_fewer_columns(tmp_path: Path) -> None:
    of_1_4 = of(tmp_path, ROW, without=("request_id", "is_stream"))
    assert [one.chunk_us for one in of_1_4.records] == [(250_000, 375_000, 500_000)]
    of_0_17 = of(
        tmp_path,
        {**ROW, "request": "gASV"},
        without=("request_id", "is_stream", "inter_token_latencies"),
    )
    assert [(one.chunk_us, one.lacks) for one in of_0_17.records] == [
        ((250_000, 500_000), (DUE, GAPS))
    ]
    assert of_0_17.model == ""


def test_its_load_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "benchmark_args.json").write_text(
        json.dumps({"model": "m", "parallel": 4, "rate": -1, "open_loop": False})
    )
    (tmp_path / "benchmark_summary.json").write_text(json.dumps({"Total Requests": 9}))
    found = of(tmp_path, ROW, {**ROW, "success": 0, "latency": None, "first_chunk_latency": None})
    assert (found.model, found.users, found.rate_per_s, found.asked) == ("m", 4, None, 9)
    assert NO_WORDS in found.lacks
    (tmp_path / "benchmark_args.json").write_text(
        json.dumps({"parallel": -1, "rate": 6.0, "open_loop": True})
    )
    found = of(tmp_path, ROW)
    assert (found.model, found.users, found.rate_per_s, found.arrivals) == (
        "tiny",
        None,
        6.0,
        "poisson",
    )


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / FILE

    def why() -> str:
        with pytest.raises(UnusableResult) as caught:
            known.read_imported_runs(path)
        return str(caught.value)

    path.write_bytes(b"")
    assert why().startswith("it is empty")
    path.write_bytes(b"no database, but a text that is longer than the head of one")
    assert why() == "SQLite cannot read it (file is not a database)"
    path.write_bytes(a_database(tmp_path / "x", [ROW] * 200).read_bytes()[:9000])
    assert why() == "SQLite cannot read it (database disk image is malformed)"
    a_database(path, [ROW], table="results")
    assert why() == "it is a SQLite file without a table 'result': evalscope did not write it"
    a_database(path, [ROW], without=("latency", "success"))
    assert why().startswith("its table 'result' has no success, latency, ")
    a_database(path, [])
    assert why() == "none of its requests can be read"
    a_database(path, [{**ROW, "first_chunk_latency": math.nan}])  # SQLite keeps it as NULL
    assert why() == "none of its requests can be read (request 1: its TTFT is missing)"
    found = of(tmp_path, ROW, {**ROW, "completed_time": 69.0}, {**ROW, "start_time": "?"})
    assert [*found.unread] == [
        "request 2: its end is before its start",
        "request 3: its start time is '?'",
    ]
    with pytest.raises(
        figures.UnknownFormat,
        match=r"^it has requests but no summary: use benchmark_summary\.json in the same folder, or "
        r"import it first$",
    ):
        figures.read_figures(path)


SCALARS: Final = (
    st.none() | st.integers(-(2**63),
        2**63 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.just("[" * 9999) | st.just("[1e999, 1" + "0" * 400 + "]") | st.just("{}")
)  # fmt: skip


@given(st.data())
def test_no_row_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    changed = st.dictionaries(st.sampled_from(sorted(TYPES)), SCALARS, max_size=3)
    rows = [{**ROW, **one} for one in data.draw(st.lists(changed, max_size=3))]
    used(a_database(tmp_path_factory.mktemp("any") / FILE, rows))


@given(st.integers(0, 2**13), st.integers(0, 255), st.none() | st.integers(0, 2**13))
def test_no_damage_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, end: int | None
) -> None:
    path = a_database(tmp_path_factory.mktemp("any") / FILE, [ROW] * 3)
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] = byte
    path.write_bytes(raw[:end])
    used(path)


def used(path: Path) -> None:
    try:
        (found,) = known.read_imported_runs(path)
    except UnusableResult:  # a sentence
        return
    import_command.write_imported_run(found, path, path.parent)


@pytest.mark.skipif(not REAL.is_dir(), reason="there are no results of real tools")
def test_the_records_of_a_real_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = known.read_imported_runs(REAL)
    assert not found.unread
    assert (found.model, found.users, found.asked) == ("tiny", 4, 400)
    with closing(sqlite3.connect(f"{(REAL / FILE).as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT first_chunk_latency, inter_token_latencies, latency FROM result ORDER BY "
            "start_time"
        ).fetchall()
    for one, (first, gaps, latency) in zip(found.records, rows, strict=True):
        stamps = [*accumulate([first, *json.loads(gaps)])]
        assert [us / 1e6 for us in one.chunk_us] == pytest.approx(stamps, abs=1e-6)
        assert one.latency_s is not None
        assert 0 <= latency - one.latency_s < 0.01
        assert one.output_tokens == len(stamps) == 64
    assert import_command.run_import([str(REAL), "--report-dir", str(tmp_path / "run")]) == 6
    assert "395 records not in the file" in " ".join(capsys.readouterr().out.split())


ENDLESS: Final = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"


def test_a_view_without_end_is_no_table_of_requests(tmp_path: Path) -> None:
    path = tmp_path / FILE
    columns = ", ".join(f"i AS {name}" for name in TYPES)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"CREATE VIEW result AS {ENDLESS.format(columns)}")
    with pytest.raises(UnusableResult, match="without a table 'result'"):
        known.read_imported_runs(path)


def test_what_takes_sqlite_too_long_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "TIMEOUT_S", 0.05)
    a_database(tmp_path / FILE, [ROW], ())
    with (
        database_module.read_database(tmp_path / FILE) as database,
        pytest.raises(sqlite3.OperationalError, match="interrupted"),
    ):
        database.execute(f"SELECT max(i) FROM ({ENDLESS.format('i')})").fetchall()


def test_a_huge_value_is_refused(tmp_path: Path) -> None:
    path = a_database(tmp_path / FILE, [ROW], ())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE result SET inter_token_latencies = zeroblob(200000000)")
    with pytest.raises(UnusableResult, match=r"SQLite cannot read it .*too big"):
        known.read_imported_runs(path)


def test_gaps_that_would_fill_the_memory_are_not_read(tmp_path: Path) -> None:
    """As long as an answer may be they are; JSON of a longer text may become sixty times as many
    bytes."""
    for gaps, chunks in (
        ("[" + "0," * (MOST_CHUNKS - 2) + "0.25]", MOST_CHUNKS),
        ("[" + "0," * (MOST_CHUNKS - 1) + "0.25]", 2),
        ("[" + "0," * MAX_GAPS_CHARS + "0.25]", 2),
        ("[" * (1 << 25), 2),
    ):
        row = {**ROW, "inter_token_latencies": gaps}
        (record,) = of(tmp_path, row).records
        assert len(record.chunk_us) == chunks
        assert (record.chunk_us[0], record.chunk_us[-1]) == (250_000, 500_000)
        assert (GAPS in record.lacks) == (chunks == 2)


def test_rows_come_in_the_order_of_their_starts(tmp_path: Path) -> None:
    rows = [
        {**ROW, "start_time": at, "completed_time": at + 0.5, "request_id": str(at)}
        for at in (72.0, 70.0, 71.0)
    ]
    assert [one.id for one in of(tmp_path, *rows).records] == ["70.0", "71.0", "72.0"]


def test_a_file_that_takes_too_long_is_refused_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_database(tmp_path / FILE, [ROW] * 20_000, ())
    monkeypatch.setattr(database_module, "TIMEOUT_S", 0.0)
    with pytest.raises(
        UnusableResult, match=r"SQLite cannot read it \(it takes longer than 60 s\)"
    ):
        known.read_imported_runs(path)
