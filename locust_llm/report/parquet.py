"""Parquet: the records of a run as a table, a row a request; each column has its unit in the
schema. Needs pyarrow."""

from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from locust_llm.records.record import Record
from locust_llm.records.record_columns import RECORD_COLUMNS, RecordColumn
from locust_llm.records.run_facts import Run
from locust_llm.records.ttft_itl_latency import DUE

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 20_000
"""The rows of a row group."""
UNIX: Final = "s since 1970-01-01 UTC"


class PyarrowMissing(ValueError):
    """Parquet files need the extra ``parquet``."""


class Column(NamedTuple):
    """A column of the table."""

    name: str
    kind: str
    """float64, int64, string, bool, or a list of int64."""
    unit: str
    value: Callable[[Record], Any]


def _column_of(column: RecordColumn) -> Column:
    """The Parquet column for a column of records. Stamps become Unix time."""
    name = column.name
    if column.kind != "stamp":
        return Column(name, KINDS[column.kind], column.unit, attrgetter(name))

    def unix(record: Record) -> float | None:
        at: float | None = getattr(record, name)
        known = at is not None and not (name in ("due_at", "asked_at") and DUE in record.lacks)
        return at + record.clock_offset_s if known and at is not None else None

    return Column(name, "float64", UNIX, unix)


KINDS: Final = {
    "number": "float64",
    "whole": "int64",
    "flag": "bool",
    "maybe": "bool",
    "text": "string",
}
COLUMNS: Final = (
    *map(_column_of, RECORD_COLUMNS),
    Column("chunk_us", "list", "us after sent_at", lambda record: list(record.chunk_us)),
    Column(
        "merged_index",
        "list",
        "index into chunk_us",
        lambda record: [index for index, _ in record.merged],
    ),
    Column(
        "merged_earliest_us",
        "list",
        "us after sent_at",
        lambda record: [us for _, us in record.merged],
    ),
    Column(
        "chunk_tokens",
        "list",
        "tokens",
        lambda record: record.tokens_of_chunks,
    ),
    Column("lacks", "string", "", lambda record: " ".join(record.lacks)),
)


def write_parquet(path: Path, records: Iterable[Record], run: Run) -> int:
    """Write all phases and attempts. Returns the number of rows. Raises OSError and
    PyarrowMissing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PyarrowMissing("Parquet needs pyarrow: pip install 'locust-llm[parquet]'") from None
    schema = _schema(run)
    rows = 0
    source = iter(records)
    with pq.ParquetWriter(path, schema) as out:
        while block := list(islice(source, ROWS)):
            arrays = []
            for column in COLUMNS:
                values = [column.value(record) for record in block]
                arrays.append(pa.array(values, schema.field(column.name).type))
            out.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows += len(block)
    return rows


def _schema(run: Run) -> "pa.Schema":
    import pyarrow as pa

    kinds = {"float64": pa.float64(), "int64": pa.int64(), "string": pa.string(),
        "bool": pa.bool_(),
             "list": pa.list_(pa.int64())}  # fmt: skip
    fields = [
        pa.field(
            column.name, kinds[column.kind], metadata={"unit": column.unit} if column.unit else None
        )
        for column in COLUMNS
    ]
    about = {"run": run.name, "tool": run.imported or "locust-llm", "model": run.model}
    if run.simulated:
        about["simulated"] = "true"
    return pa.schema(fields, metadata=about)
