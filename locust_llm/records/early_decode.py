"""Early decode: what of an answer was decoded before its first chunk arrived, as where a proxy sends
whole answers, or a server whole tool calls."""

from locust_llm.records.buffering import AT_ONCE_US, MIN_TOKENS, WAITED_US
from locust_llm.records.record import Record
from locust_llm.records.server_times import SLACK_US


def arrived_whole(record: Record) -> bool:
    """Whether the answer came at once, so late and so long that it was decoded before."""
    us = record.chunk_us
    return (
        us[-1] - us[0] <= AT_ONCE_US
        and us[0] >= WAITED_US
        and max(record.output_tokens or 0, len(us)) >= MIN_TOKENS
    )


def measure_early_decode(record: Record, decode_us: int, read_late_us: int) -> int:
    """How much of the reported decode was over before the first chunk arrived, in µs: at least what
    does not fit between the first chunk and the last.

    It counts where the first chunk came together with others, or after most of the decode. A first
    chunk alone may be late by itself, on its way through a busy front end. ``read_late_us``: the
    first chunk may have been there for so long before it was read.
    """
    before = decode_us - (record.chunk_us[-1] - record.chunk_us[0])
    early = before - read_late_us
    if early <= SLACK_US or not (record.ttft_is_upper_bound or 2 * before >= decode_us):
        return 0
    return early
