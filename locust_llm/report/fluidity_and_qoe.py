"""What a reader feels, from the stamps and tokens of chunks: fluidity, quality of experience, and
seconds without text.

**Fluidity** is the fluidity index of Etalon (arXiv 2407.07000; metric_utils.py of
  project-etalon/etalon), the share of token
deadlines that were met. Token i is due D_p + i x D_d after the send, whatever came before it, so
what came early is a room for later. A token that is late by L missed 1 + floor(L / D_d) deadlines,
and the deadlines of those behind it begin anew at its arrival. Met deadlines count once for each
token that was in time.

**Quality of experience** is that of Andes (arXiv 2404.16283, section 3): the area under what the
  reader has read, over the
area under what somebody who gets all in time has read, until the reader has read the last token;
reading begins D_p after the send at the earliest, and goes at ``pace``. 1 is perfect.

**Reading stall** is how long a reader who begins with the first token, and reads at ``pace``, waits
  for text after it.

All three are one running maximum: with e_i = arrival - i x step, a token is late where e_i is above
all before it (and above D_p), and it is read at i x step + that maximum. The tokens of a chunk come
together, so only its first one can be late.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from locust_llm.records.record import Record
from locust_llm.records.run_facts import read_run
from locust_llm.report.array_types import Floats, Ints
from locust_llm.slo.reading_pace import ReadingPace

FAR_US: Final = 1e13
"""No deadline is further away than stamps reach."""
SEVERAL: Final = 1.05
"""From so many tokens a chunk on average, a chunk counts as several tokens."""


class Readability(NamedTuple):
    """The values of each request; NaN where it has none."""

    fluidity: Floats
    qoe: Floats
    reading_stall_s: Floats


def measure_readability(
    us: Ints, tokens: Floats | None, count: Ints, reader: ReadingPace
) -> Readability:
    """``us``: stamps of many requests' chunks end to end, in microseconds after the send, rising in
    each. ``tokens``: of each chunk, at least one; None: one of each. ``count``: chunks of each
    request."""
    measured = Readability(*(np.full(len(count), np.nan) for _ in Readability._fields))
    streamed = count > 0
    length = count[streamed]
    if not len(length):
        return measured
    if tokens is not None:
        found = _measure_token_times(us, tokens, length, reader)
    else:
        found = _measure_even_tokens(us, length, reader)
    for column, values in zip(measured, found, strict=True):
        column[streamed] = values
    return measured


def _measure_even_tokens(us: Ints, length: Ints, reader: ReadingPace) -> Readability:
    """Of chunks of a token each. Most answers are never late, which two sums of each chunk show:
    theirs are 1. The others are measured as those of any tokens."""
    starts = np.cumsum(length) - length
    index = np.arange(len(us)) - np.repeat(starts, length)
    places = np.arange(int(length.max()), dtype=np.float64)
    due, step, pace_us = _find_steps(reader)
    latest = np.maximum.reduceat(us - _round_far(places * step)[index], starts)
    last_read = np.maximum.reduceat(us - _round_far(places * pace_us)[index], starts)
    found = Readability(np.ones(len(length)), np.ones(len(length)), (last_read - us[starts]) / 1e6)
    late = np.maximum(latest, last_read) > due
    if late.any():
        of_late = us[np.repeat(late, length)]
        measured = _measure_token_times(of_late, np.ones(len(of_late)), length[late], reader)
        for column, values in zip(found, measured, strict=True):
            column[late] = values
    return found


def _measure_token_times(
    us: Ints, tokens: Floats, length: Ints, reader: ReadingPace
) -> Readability:
    starts = np.cumsum(length) - length
    ends = starts + length - 1
    before = np.cumsum(tokens) - tokens
    before -= np.repeat(before[starts], length)
    total = before[ends] + tokens[ends]
    due, step, pace_us = _find_steps(reader)

    shifted = us - _round_far(before * step)
    limit = np.roll(_running_max(shifted, length, due), 1)
    limit[starts] = due
    late = shifted - limit
    missed = np.add.reduceat(np.where(late > 0, 1 + late // step, 0), starts)
    met = total - np.add.reduceat((late > 0).astype(np.int64), starts)
    fluidity = met / (met + missed)

    shifted = us - _round_far(before * pace_us)
    reading_stall_s = (np.maximum.reduceat(shifted, starts) - us[starts]) / 1e6
    behind = (_running_max(shifted, length, due) - due).astype(np.float64)
    whole = total * behind[ends] + total**2 * pace_us / 2
    qoe = (whole - np.add.reduceat(tokens * behind, starts)) / whole
    return Readability(fluidity, qoe, reading_stall_s)


def _find_steps(reader: ReadingPace) -> tuple[int, int, float]:
    """(when the first token is due, the time to each further one, the time to read one), in
    microseconds."""
    return round(reader.ttft_s * 1e6), max(round(reader.tpot_s * 1e6), 1), 1e6 / reader.pace


def _round_far(us: Floats) -> Ints:
    return np.rint(np.minimum(us, FAR_US)).astype(np.int64)


def _running_max(values: Ints, length: Ints, least: int) -> Ints:
    """The largest value so far within each request, at least ``least``."""
    values = np.maximum(values, least)
    lift = np.repeat(np.arange(len(length)) * (int(values.max()) - least + 1), length)
    highest: Ints = np.maximum.accumulate(values + lift) - lift
    return highest


def has_token_times(record: Record) -> bool:
    """Whether the stamps show when the tokens came.

    Several choices come side by side, and some streams were gathered whole on their way: their
    stamps do not. Other merged chunks count when they were read, as late as a user can have had
    them. Leaving such answers out would leave out the ones that a pause of the network held up.
    """
    us = record.known_us
    return record.choices == 1 and not (len(us) > 1 and us[0] == us[-1])


def list_token_runs(record: Record) -> Sequence[tuple[float, int]]:
    """The tokens of its chunks as runs, as in ``Record.chunk_tokens``. Where only their sum is
    known, each chunk has as many. Empty: each has one."""
    chunks = len(record.known_us)
    if not chunks or record.chunk_tokens:
        return record.chunk_tokens if chunks else ()
    if record.tokens_from != "usage" or (record.output_tokens or 0) <= SEVERAL * chunks:
        return ()
    mean = record.tokens_per_chunk or 1.0
    return ((mean, chunks),) if mean > SEVERAL else ()


def load_reading_pace(folder: Path) -> ReadingPace:
    """The reading pace of a run. Where its run.json cannot be read, it is the default."""
    try:
        return read_run(folder).settings.reader
    except (OSError, ValueError):
        return ReadingPace()
