"""The declared columns of a record: each is of the record, and no number of a record is
forgotten."""

from collections import Counter

import msgspec

from locust_llm.records.record import Record
from locust_llm.records.record_columns import RECORD_COLUMNS
from locust_llm.slo.metric_definitions import METRICS

NO_COLUMNS = {
    "clock_offset_s", "turns", "after", "unsent", "chunk_us", "merged", "first_output",
    "chunk_tokens", "early_us", "sample", "turnaround_us", "paused_us",
    "retry_after_s", "hidden_tokens", "rejected_counts", "server", "lacks", "answer",
}  # fmt: skip
"""Fields that tables have not as they are: lists, nested values, and numbers that only the
arithmetic of a record needs."""
FELT = {"fluidity", "qoe", "reading_stall_s"}
"""Columns that depend on a reader's pace, so that no record has them."""


def test_each_field_of_a_record_is_a_column_or_named_here() -> None:
    declared = {column.name for column in RECORD_COLUMNS}
    fields = {field.name for field in msgspec.structs.fields(Record)}
    assert fields - declared == NO_COLUMNS
    assert all(hasattr(Record, name) for name in declared)
    assert max(Counter(column.name for column in RECORD_COLUMNS).values()) == 1


def test_each_metric_has_a_column() -> None:
    declared = {column.name for column in RECORD_COLUMNS} | FELT | {""}
    assert {metric.column for metric in METRICS} <= declared
