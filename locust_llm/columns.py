"""Columns: a stream of records turned into numpy columns, a row a request, without ever holding the records."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
import pandas as pd

from .gaps import Gaps, Ints
from .record import OK, Record

STAMPS: Final = ("due_at", "asked_at", "admitted_at", "sent_at", "freed_at", "headers_at", "closed_at")
DURATIONS: Final = (
    "ttft_s", "ttfo_s", "ttft_from_due_s", "itl_s", "latency_s", "longest_stall_s", "gate_wait_s", "late_s",
    "close_lag_s", "connect_s",
)  # fmt: skip
TOKENS: Final = (
    "input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens", "asked_input_tokens", "asked_output_tokens",
)  # fmt: skip
FLAGS: Final = ("ttft_is_upper_bound", "streamed", "simulated")
OTHERS: Final = (
    "status", "limit", "user", "stage", "turn", "first_chunk_tokens", "read_lag_us", "bad_stamps", "reads",
    "request_bytes", "response_bytes",
)  # fmt: skip
TEXTS: Final = (
    "id", "outcome", "phase", "name", "model", "tokens_from", "clock", "finish_reason", "session", "user_class",
    "worker", "message",
)  # fmt: skip

# What the tables and plots need: the narrower, the more requests fit into memory (350 bytes each).
SUMMARY_NUMBERS: Final = (
    "clock_offset_s", *STAMPS, *DURATIONS, *TOKENS, *FLAGS, "status", "read_lag_us",
)  # fmt: skip
SUMMARY_TEXTS: Final = ("outcome", "phase", "name", "model", "tokens_from", "clock", "message")

BLOCK: Final = 2**12
KINDS: Final = 1000
"""How many kinds of error messages are told apart."""


@dataclass(frozen=True)
class Columns:
    """What the arithmetic needs of a run's records."""

    requests: pd.DataFrame
    """A row a request: stamps ``_at`` in Unix seconds, durations ``_s``, token counts, flags; NaN where there is none.
    ``message`` is the first message of its kind (``kind_of``)."""
    gaps: dict[str, Gaps]
    """By phase: the sharp gaps of the successful requests."""


def collect(records: Iterable[Record]) -> Columns:
    """Read the stream once. Costs about 10 µs a request and 0.15 µs a chunk."""
    table = _Table(SUMMARY_NUMBERS, SUMMARY_TEXTS, {"message": kind_of})
    streams: dict[str, _Streams] = {}
    for record in records:
        table.add(record)
        if record.outcome == OK and record.chunk_us:
            streams.setdefault(record.phase, _Streams()).add(record)
    return Columns(requests=table.frame(), gaps={phase: stream.gaps() for phase, stream in streams.items()})


def frames(records: Iterable[Record]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Everything, for people: ``requests`` (a row a request) and ``gaps`` (a row a gap between two chunks).

    requests: the columns of this file's lists, stamps in Unix seconds, with ``chunks`` and ``merged`` as counts.
    gaps: ``id`` of the request, ``index`` (0 between the first two chunks), ``gap_s``, and ``merged``: one of the two
    chunks came together with others, so this gap is not sharp and stays out of the percentiles.
    """
    table = _Table(("clock_offset_s", *STAMPS, *DURATIONS, *TOKENS, *FLAGS, *OTHERS), TEXTS)
    ids: list[str] = []
    nothing = np.empty(0, np.int64)
    parts: list[tuple[Ints, Ints, Ints]] = [(nothing, nothing, nothing)]
    for record in records:
        table.add(record)
        gap_us = np.array(record.gaps_us, np.int64)
        merged = np.zeros(len(gap_us) + 1, np.int64)
        merged[[index for index, _ in record.merged]] = 1
        ids.append(record.id)
        parts.append((gap_us, np.arange(len(gap_us)), merged[1:] | merged[:-1]))
    gap_us, index, merged = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes, known = pd.factorize(np.array(ids, np.object_))
    which = np.repeat(codes, [len(part[0]) for part in parts[1:]])
    return table.frame(), pd.DataFrame(
        {
            "id": pd.Categorical.from_codes(which, categories=pd.Index(known)),
            "index": index,
            "gap_s": gap_us / 1e6,
            "merged": merged > 0,
        }
    )


def kind_of(message: str) -> str:
    """The message without what differs from one request to the next: every word with a digit in it becomes ``#``."""
    return re.sub(r"[\w-]*\d[\w-]*", "#", message[:300])


class _Text:
    """The codes of one column of text; texts of one key share the first that came."""

    def __init__(self, key: Callable[[str], str] | None) -> None:
        self._key = key
        self._codes: dict[str, int] = {}
        self._labels: list[str] = []

    def code(self, text: str | None) -> int:
        if text is None:
            return -1
        key = self._key(text) if self._key and text else text
        if self._key and len(self._codes) >= KINDS and key not in self._codes:
            key = text = "(messages of other kinds)"
        code = self._codes.setdefault(key, len(self._labels))
        if code == len(self._labels):
            self._labels.append(text)
        return code

    def column(self, codes: Ints) -> "pd.Categorical[str]":
        return pd.Categorical.from_codes(codes, categories=pd.Index(self._labels))


class _Table:
    """Rows gathered as tuples, kept as blocks of float64."""

    def __init__(
        self, numbers: tuple[str, ...], texts: tuple[str, ...], keys: dict[str, Callable[[str], str]] | None = None
    ) -> None:
        self._numbers = numbers
        self._numbers_of = attrgetter(*numbers)
        self._texts_of = attrgetter(*texts)
        self._texts = {name: _Text((keys or {}).get(name)) for name in texts}
        self._coders = [text.code for text in self._texts.values()]
        self._rows: list[tuple[float | None, ...]] = []
        self._blocks: list[np.ndarray[tuple[int, int], np.dtype[np.float64]]] = []

    def add(self, record: Record) -> None:
        codes = [code(text) for code, text in zip(self._coders, self._texts_of(record), strict=True)]
        self._rows.append((*self._numbers_of(record), *codes, len(record.chunk_us), len(record.merged)))
        if len(self._rows) >= BLOCK:
            self._settle()

    def frame(self) -> pd.DataFrame:
        """The rows as a DataFrame, stamps moved to Unix time; the table is empty after it."""
        self._settle()
        columns = dict(self._columns())
        offset = columns.pop("clock_offset_s")
        for name in STAMPS:
            columns[name] += offset
        columns["first_chunk_at"] = columns["sent_at"] + columns["ttft_s"]
        streamed = columns["chunks"] > 0
        columns["last_chunk_at"] = np.where(streamed, columns["sent_at"] + columns["latency_s"], np.nan)
        typed: dict[str, object] = {}
        for name, column in columns.items():
            if name in FLAGS:
                typed[name] = column > 0
            elif name in self._texts:
                typed[name] = self._texts[name].column(column.astype(np.int64))
            else:
                typed[name] = column
        return pd.DataFrame(typed, copy=False)

    def _settle(self) -> None:
        if self._rows:
            self._blocks.append(np.array(self._rows, np.float64))  # None becomes NaN
            self._rows = []

    def _columns(self) -> Iterator[tuple[str, np.ndarray[tuple[int], np.dtype[np.float64]]]]:
        names = (*self._numbers, *self._texts, "chunks", "merged")
        blocks, self._blocks = self._blocks or [np.empty((0, len(names)))], []
        for i, name in enumerate(names):
            yield name, np.concatenate([block[:, i] for block in blocks])


class _Streams:
    """The chunks of many requests end to end, from which their sharp gaps are taken block by block."""

    def __init__(self) -> None:
        self._gaps = Gaps()
        self._us: list[int] = []
        self._firsts: list[int] = []
        self._blurred: list[int] = []

    def add(self, record: Record) -> None:
        here = len(self._us)
        self._firsts.append(here)
        self._us.extend(record.chunk_us)
        if record.merged:
            self._blurred.extend(here + index for index, _ in record.merged)
        if len(self._us) >= 2**16:
            self._settle()

    def gaps(self) -> Gaps:
        self._settle()
        return self._gaps

    def _settle(self) -> None:
        """As Record.sharp_gaps_us, for many requests at a time: a gap needs two exact chunks of one request."""
        us = np.array(self._us, np.int64)
        blurred = np.zeros(len(us), np.bool_)
        blurred[self._blurred] = True
        first = np.zeros(len(us), np.bool_)
        first[self._firsts] = True
        self._gaps.add(np.diff(us)[~(first[1:] | blurred[1:] | blurred[:-1])])
        self._us, self._firsts, self._blurred = [], [], []
