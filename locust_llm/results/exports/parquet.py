"""Parquet: the records of a run as a table, a row a request; each column has its unit in the schema. Needs pyarrow."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from locust_llm.core.record import Record
from locust_llm.core.run import Run

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 20_000
"""In a row group."""
UNIX: Final = "s since 1970-01-01 UTC"


class PyarrowMissing(ValueError):
    """Parquet files need the extra ``parquet``."""


class Column(NamedTuple):
    """One of the table."""

    name: str
    kind: str
    """float64, int64, string, bool, or a list of int64."""
    unit: str
    value: Callable[[Record], Any]


def _stamp(name: str) -> Column:
    def unix(one: Record) -> float | None:
        at: float | None = getattr(one, name)
        known = at is not None and not (name in ("due_at", "asked_at") and "due" in one.lacks)
        return at + one.clock_offset_s if known and at is not None else None

    return Column(name, "float64", UNIX, unix)


def _plain(kind: str, unit: str, *names: str) -> Iterator[Column]:
    for name in names:
        yield Column(name, kind, unit, attrgetter(name))


COLUMNS: Final = (
    *_plain("string", "", "id", "worker", "user_class", "name", "model", "phase", "tenant", "arm", "backend", "session",
            "outcome", "error", "finish_reason", "tokens_from", "clock"),
    *_plain("int64", "", "user", "stage", "pair", "turn", "attempt", "status", "limit", "choices"),
    *map(_stamp, ("due_at", "asked_at", "admitted_at", "sent_at", "freed_at", "headers_at", "closed_at")),
    *_plain("float64", "s", "ttft_s", "ttfo_s", "ttft_from_due_s", "latency_s", "late_s", "gate_wait_s", "longest_stall_s",
            "connect_s", "tool_s"),
    *_plain("float64", "s/token", "itl_s"),
    *_plain("int64", "tokens", "input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "asked_input_tokens",
            "asked_output_tokens", "draft_steps", "drafted_tokens", "accepted_tokens"),
    *_plain("int64", "us", "read_lag_us", "rtt_us", "written_us"),
    *_plain("int64", "bytes", "request_bytes", "response_bytes"),
    *_plain("bool", "", "streamed", "simulated", "schema_valid"),
    Column("chunk_us", "list", "us after sent_at", lambda one: list(one.chunk_us)),
    Column("merged_index", "list", "index into chunk_us", lambda one: [index for index, _ in one.merged]),
    Column("merged_earliest_us", "list", "us after sent_at", lambda one: [us for _, us in one.merged]),
    Column("chunk_tokens", "list", "tokens",
           lambda one: [tokens for tokens, chunks in one.chunk_tokens for _ in range(chunks)]),
    Column("lacks", "string", "", lambda one: " ".join(one.lacks)),
)  # fmt: skip


def write(path: Path, records: Iterable[Record], run: Run) -> int:
    """All phases and attempts; how many rows. Raises OSError, and PyarrowMissing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise PyarrowMissing("Parquet needs pyarrow: pip install 'locust-llm[parquet]'") from None
    schema, rows, source = _schema(run), 0, iter(records)
    with pq.ParquetWriter(path, schema) as out:
        while block := list(islice(source, ROWS)):
            columns = [
                pa.array([column.value(one) for one in block], schema.field(column.name).type) for column in COLUMNS
            ]
            out.write_table(pa.Table.from_arrays(columns, schema=schema))
            rows += len(block)
    return rows


def _schema(run: Run) -> "pa.Schema":
    import pyarrow as pa

    kinds = {"float64": pa.float64(), "int64": pa.int64(), "string": pa.string(), "bool": pa.bool_(),
             "list": pa.list_(pa.int64())}  # fmt: skip
    fields = [pa.field(one.name, kinds[one.kind], metadata={"unit": one.unit} if one.unit else None) for one in COLUMNS]
    return pa.schema(fields, metadata={"run": run.name, "tool": run.imported or "locust-llm", "model": run.model})
