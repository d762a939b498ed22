"""evalscope: makes its database of requests, with the columns of version 1.14, or fewer."""

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

TYPES: Final = {
    "request": "TEXT", "start_time": "REAL", "inter_token_latencies": "TEXT", "success": "INTEGER",
    "response_messages": "TEXT", "completed_time": "REAL", "latency": "REAL",
    "first_chunk_latency": "REAL",
    "prompt_tokens": "INTEGER", "completion_tokens": "INTEGER", "max_gpu_memory_cost": "REAL",
    "time_per_output_token": "REAL", "request_id": "TEXT", "is_stream": "INTEGER",
}  # fmt: skip


def a_database(
    path: Path,
    rows: Sequence[Mapping[str, object]],
    without: Collection[str] = (),
    table: str = "result",
) -> Path:
    """Makes a database ``without`` some newer columns. Missing values of a row are NULL."""
    path.unlink(missing_ok=True)
    columns = {name: type_ for name, type_ in TYPES.items() if name not in without}
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            f"CREATE TABLE "
            f"{table}({', '.join(f'{name} {type_}' for name, type_ in columns.items())})"
        )
        marks = ", ".join("?" * len(columns))
        for row in rows:
            values = [row.get(name) for name in columns]
            database.execute(f"INSERT INTO {table} VALUES ({marks})", values)
    return path
