"""Record columns: every number and text of a record that tables, charts and exports hold, declared
once.

A new one is a field or property of ``Record`` and a row here. ``read().requests``, Parquet and the
tables then have it.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["stamp", "number", "whole", "flag", "maybe", "text"]
"""``stamp``: seconds of the monotonic clock, Unix time in tables. ``whole``: a whole number.
``flag``: true or false. ``maybe``: true, false or unknown."""


class RecordColumn(NamedTuple):
    """One column of a table with a row for each request."""

    name: str
    kind: Kind
    unit: str = ""
    in_summary: bool = True
    """The tables and charts of a report need it. With fewer columns, more requests fit into memory
    (220 bytes each)."""
    single_precision: bool = False
    """Its whole numbers stay below 2^24, so single precision holds them exactly."""


RECORD_COLUMNS: Final = (
    RecordColumn("due_at", "stamp", "s"),
    RecordColumn("asked_at", "stamp", "s"),
    RecordColumn("admitted_at", "stamp", "s"),
    RecordColumn("sent_at", "stamp", "s"),
    RecordColumn("freed_at", "stamp", "s"),
    RecordColumn("headers_at", "stamp", "s", in_summary=False),
    RecordColumn("closed_at", "stamp", "s"),
    RecordColumn("ttft_s", "number", "s"),
    RecordColumn("ttft_soonest_s", "number", "s"),
    RecordColumn("ttfo_s", "number", "s"),
    RecordColumn("ttft_from_due_s", "number", "s"),
    RecordColumn("itl_s", "number", "s/token"),
    RecordColumn("latency_s", "number", "s"),
    RecordColumn("latency_soonest_s", "number", "s"),
    RecordColumn("longest_stall_s", "number", "s", in_summary=False),
    RecordColumn("gate_wait_s", "number", "s"),
    RecordColumn("late_s", "number", "s"),
    RecordColumn("send_delay_s", "number", "s"),
    RecordColumn("turnaround_s", "number", "s"),
    RecordColumn("cycle_s", "number", "s"),
    RecordColumn("reconnect_s", "number", "s", in_summary=False),
    RecordColumn("close_lag_s", "number", "s", in_summary=False),
    RecordColumn("connect_s", "number", "s"),
    RecordColumn("input_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("output_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("reasoning_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("cached_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("asked_input_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("asked_output_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("ttft_is_upper_bound", "flag"),
    RecordColumn("streamed", "flag"),
    RecordColumn("simulated", "flag"),
    RecordColumn("status", "whole", single_precision=True),
    RecordColumn("limit", "whole", single_precision=True),
    RecordColumn("user", "whole", in_summary=False),
    RecordColumn("stage", "whole", in_summary=False),
    RecordColumn("pair", "whole", single_precision=True),
    RecordColumn("turn", "whole", single_precision=True),
    RecordColumn("first_chunk_tokens", "whole", "tokens", in_summary=False),
    RecordColumn("read_lag_us", "whole", "us"),
    RecordColumn("rtt_us", "whole", "us"),
    RecordColumn("retransmits", "whole", single_precision=True),
    RecordColumn("bad_stamps", "whole", in_summary=False),
    RecordColumn("reads", "whole", in_summary=False),
    RecordColumn("request_bytes", "whole", "bytes", in_summary=False),
    RecordColumn("response_bytes", "whole", "bytes", in_summary=False),
    RecordColumn("schema_valid", "maybe", single_precision=True),
    RecordColumn("inputs", "whole", single_precision=True),
    RecordColumn("tokens_per_chunk", "number", "tokens"),
    RecordColumn("chunks_counted", "flag"),
    RecordColumn("images", "whole", single_precision=True),
    RecordColumn("image_bytes", "whole", "bytes"),
    RecordColumn("image_pixels", "whole", "pixels"),
    RecordColumn("audio_s", "number", "s"),
    RecordColumn("prefix", "whole", in_summary=False),
    RecordColumn("prefix_tokens", "whole", "tokens", in_summary=False),
    RecordColumn("written_us", "whole", "us"),
    RecordColumn("attempt", "whole", single_precision=True),
    RecordColumn("resent", "whole", single_precision=True),
    RecordColumn("draft_steps", "whole", single_precision=True),
    RecordColumn("drafted_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("accepted_tokens", "whole", "tokens", single_precision=True),
    RecordColumn("choices", "whole"),
    RecordColumn("tool_s", "number", "s", in_summary=False),
    RecordColumn("id", "text", in_summary=False),
    RecordColumn("outcome", "text"),
    RecordColumn("phase", "text"),
    RecordColumn("name", "text"),
    RecordColumn("model", "text"),
    RecordColumn("tokens_from", "text"),
    RecordColumn("clock", "text"),
    RecordColumn("finish_reason", "text"),
    RecordColumn("session", "text", in_summary=False),
    RecordColumn("user_class", "text"),
    RecordColumn("worker", "text"),
    RecordColumn("error", "text"),
    RecordColumn("arm", "text"),
    RecordColumn("backend", "text"),
    RecordColumn("tenant", "text"),
    RecordColumn("no_itl", "text"),
    RecordColumn("rejected", "text"),
)
STAMPS: Final = tuple(column.name for column in RECORD_COLUMNS if column.kind == "stamp")
FLAGS: Final = frozenset(column.name for column in RECORD_COLUMNS if column.kind == "flag")
