"""Dataset: the sessions of a file, one by one, in the requested order.

A pass in the file's order is a stream. Other orders, and files whose rows belong to sessions, are
indexed first. The index has 12 bytes a row, 20 with sessions, and for agent traces also each
session's name.
"""

import os
import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, islice
from typing import Final, Literal

from . import access_log as logs
from . import dataset_formats, images_and_audio
from .access_log import TABLES, LogColumns
from .conversation import list_turn_parents
from .dataset_formats import JSON_KINDS, DatasetError, DatasetSession, RowError, Turn
from .dataset_rows import FileRow, RowFile, RowIndex
from .model_and_tenant_mix import explain_bad_tenant_name
from .traces import trace_formats as kinds

DATASET_KINDS: Final = (*JSON_KINDS, *kinds.KINDS, *TABLES, "access_log")
Order = Literal["sequential", "shuffled", "random"]
MAX_SEEN: Final = 100_000
MAX_SEEN_CHARS: Final = 4096
"""The characters of media names that need no second check."""
_MAX_REASONS: Final = 5


class Dataset:
    """Sessions of a file. Iterating gives them; that it ends (StopIteration) says that a pass is
    over.

    ``kind``: one of DATASET_KINDS, None to recognise it. ``columns``: of an access log, our names
    to the file's. ``order``: ``sequential`` and ``shuffled`` give each session once (with ``wrap``
    again and again, shuffled anew each time), ``random`` draws with replacement and never ends.
    ``share``: (k, n) gives every n-th session from the k-th on, so that n processes with one seed
    share a file. ``timed``: each session must have a time, and none may lie before the one in front
    of it (sequential only). ``skip_broken``: sessions with a broken row are left out and counted in
    ``broken``.

    Raises DatasetError: here for what the first row and the index show, for a broken row when its
    turn has come.
    """

    def __init__(
        self,
        path: str,
        *,
        kind: str | None = None,
        columns: Mapping[str, str] | None = None,
        order: Order = "sequential",
        seed: int = 0,
        wrap: bool = False,
        share: tuple[int, int] = (0, 1),
        timed: bool = False,
        skip_broken: bool = False,
    ) -> None:
        if timed and order != "sequential":
            raise DatasetError(f"{path}: a file with times cannot be read {order}")
        self.order, self.seed, self.wrap, self.share = order, seed, wrap, share
        self.timed, self.skip_broken = timed, skip_broken
        self.passes = 0
        """Whole passes so far."""
        self.rows = 0
        """Rows read so far, also the ones left out and the broken ones."""
        self.left_out = 0
        """Rows so far without anything to send: no human turn, or a failed request."""
        self.broken = 0
        """Broken rows so far, each counted once."""
        self.first_broken: list[str] = []
        self.read_bytes = 0
        """The bytes of these rows."""
        self._broken_lines: set[int] = set()
        self._seen: set[str] = set()
        """Images and audio that can be read."""
        self.about: Counter[str] = Counter()
        """The assumptions where a format has two meanings, with the number of their sessions."""
        self.file = RowFile(path)
        self.kind, self.table = recognise_dataset(self.file, kind, columns or {})
        self._tenants = (
            "tenant" in self.table.columns if self.table else self.file.mentions(b'"tenant"')
        )
        self._index: RowIndex | None = None
        self._heads: array[int] = array("I")
        """The first row of each session, in the order of the file."""
        self._next: array[int] = array("I")
        """The next row of the same session; 0: there is none. Empty: sessions are rows."""
        self._traces: list[tuple[str, array[int]]] = []
        """Name and rows of each session of agent traces. Empty: sessions are rows."""
        self._read: tuple[int, FileRow] | None = None
        """The last row that was read by its number, as it may hold many sessions."""
        if self.kind in kinds.KINDS and self.kind not in kinds.BY_ROW:
            self._make_index(False)
            return
        named = (
            "session_id" in self.table.columns
            if self.table
            else self.file.mentions(b'"session_id"')
        )
        by_session = named and self.kind != "multi_turn"
        if by_session or order != "sequential":
            self._make_index(by_session)

    @property
    def sessions(self) -> int | None:
        """The number of sessions, with the ones left out. None: not known, as the file is read as a
        stream."""
        return None if self._index is None else len(self._heads)

    @property
    def indexed_rows(self) -> int:
        """0: the file is read as a stream."""
        return 0 if self._index is None else len(self._index.lines)

    def __iter__(self) -> Iterator[DatasetSession]:
        while True:
            given = misses = 0
            last: Turn | None = None
            for name, rows in self._pass():
                item = self._item(name, rows)
                if item is None:
                    misses += 1
                    if self.order == "random" and misses > 1000 + 10 * len(self._heads):
                        break  # else it would draw for ever
                    continue
                if self.timed:
                    self._check_times(item, last)
                    last = item.turns[0]
                given += 1
                misses = 0
                yield item
            self.passes += 1
            if not given and (self.rows or self.share[0] == 0):
                raise DatasetError(
                    f"{self.file.path}: nothing to send in {self.rows} rows of "
                    f"{self.kind}{self._losses()}"
                )
            if not given or not self.wrap:
                return

    @cached_property
    def _head(self) -> bytes:
        """The first row. A trace's first row may describe all of them."""
        return next(iter(self.file)).data

    def _rows(self) -> Iterator[FileRow]:
        return islice(self.file, 1 if self.table is not None and self.table.header else 0, None)

    def _pass(self) -> Iterator[tuple[str, list[FileRow]]]:
        """(name, rows) of one session after the other. Only agent traces have names."""
        k, n = self.share
        if self._index is None:
            yield from (("", [row]) for row in islice(self._rows(), k, None, n))
            return
        count = len(self._heads)
        if self.order == "random":
            draw = random.Random(f"{self.seed}/{k}")
            while count:
                yield self._session(self._index, self._heads[draw.randrange(count)])
        order = array("I", range(count))
        if self.order == "shuffled":
            random.Random(f"{self.seed}/{self.passes}").shuffle(order)
        yield from (self._session(self._index, self._heads[at]) for at in order[k::n])

    def _session(self, index: RowIndex, head: int) -> tuple[str, list[FileRow]]:
        if self._traces:
            name, numbers = self._traces[head]
            return name, [self._row(index, number) for number in numbers]
        rows = [self.file.at(index, head)]
        while self._next and (head := self._next[head]):
            rows.append(self.file.at(index, head))
        return "", rows

    def _row(self, index: RowIndex, number: int) -> FileRow:
        if self._read is None or self._read[0] != number:
            self._read = number, self.file.at(index, number)
        return self._read[1]

    def _make_index(self, by_session: bool) -> None:
        index = self._index = RowIndex(array("Q"), array("I"))
        latest: dict[str, int] = {}
        members: dict[str, array[int]] = {}
        traces = self.kind in kinds.KINDS and self.kind not in kinds.BY_ROW
        end = 0
        for row in self._rows():
            number = len(index.lines)
            if traces:
                try:
                    for name in dict.fromkeys(kinds.read_trace_names(self.kind, row.data)):
                        members.setdefault(name, array("I")).append(number)
                except RowError as wrong:
                    self._lose(row, wrong)
            if by_session:
                name = ""
                try:
                    name = (
                        logs.read_log_session(self.table, row.data)
                        if self.table
                        else dataset_formats.read_row_session(row.data)
                    )
                except RowError as wrong:
                    self._lose(row, wrong)
                self._next.append(0)
                if name in latest:
                    self._next[latest[name]] = number
                else:
                    self._heads.append(number)
                if name:
                    latest[name] = number
            index.offsets.append(row.offset)
            index.lines.append(row.line)
            end = row.offset + len(row.data)
        index.offsets.append(end)
        self._traces = kinds.group_trace_rows(self.kind, members)
        if not by_session:
            self._heads = array("I", range(len(self._traces if traces else index.lines)))

    def _traced(self, name: str, rows: list[FileRow]) -> DatasetSession | None:
        """Reads the next session of an agent trace."""
        self.rows += len(rows)
        self.read_bytes += sum(len(row.data) for row in rows)
        try:
            session = kinds.read_trace_session(
                self.kind, name, [(row.data, row.line) for row in rows], self._head
            )
            self._look(session.turns)
        except RowError as wrong:
            self._lose(next((row for row in rows if row.line == wrong.line), rows[0]), wrong)
            return None
        self.about[session.about] += 1
        self.left_out += not session.turns
        first = rows[0].line
        return (
            DatasetSession(id=session.name or str(first), turns=tuple(session.turns), row=first)
            if session.turns
            else None
        )

    def _item(self, name: str, rows: list[FileRow]) -> DatasetSession | None:
        """The session of these rows. None: there is nothing to send, which is counted."""
        if self.kind in kinds.KINDS:
            return self._traced(name, rows)
        turns: list[Turn] = []
        for row in rows:
            self.rows += 1
            self.read_bytes += len(row.data)
            try:
                if self.table is None:
                    name, new = dataset_formats.parse_json_row(self.kind, row.data, row.line)
                    self._look(new)
                else:
                    name, new = logs.parse_log_row(self.table, row.data, row.line)
            except RowError as wrong:
                self._lose(row, wrong)
                return None
            turns += new
            self.left_out += not new
        first = rows[0]
        tenant = self._tenant(first) if self._tenants and turns else ""
        return (
            DatasetSession(
                id=name or str(first.line), turns=tuple(turns), row=first.line, tenant=tenant
            )
            if turns
            else None
        )

    def _tenant(self, row: FileRow) -> str:
        """The tenant of a row. A name that no header can carry makes the row broken."""
        if self.table:
            name = logs.read_log_tenant(self.table, row.data)
        else:
            name = dataset_formats.read_row_id(dataset_formats.decode_row(row.data).get("tenant"))
        if name and (why := explain_bad_tenant_name(name)):
            self._lose(row, RowError(f"tenant: {why}", field="tenant"))
            return ""
        return name

    def _look(self, turns: list[Turn]) -> None:
        """Check that the images and audio can be read. Raises RowError."""
        for column, ref in chain.from_iterable(turn.media for turn in turns):
            if ref in self._seen:
                continue
            try:
                images_and_audio.check_media_file(os.path.dirname(self.file.path), column, ref)
            except images_and_audio.MediaError as wrong:
                raise RowError(str(wrong), field=wrong.field) from None
            if len(ref) < MAX_SEEN_CHARS and len(self._seen) < MAX_SEEN:
                self._seen.add(ref)

    def _lose(self, row: FileRow, wrong: RowError) -> None:
        """Raise the fault of a row, or count it."""
        byte = wrong.byte
        if byte is None and wrong.field:
            byte = (
                logs.find_column_byte(self.table, row.data, wrong.field)
                if self.table
                else dataset_formats.find_field_byte(row.data, wrong.field)
            )
        error = self.file.error(row, wrong, byte or 0)
        if not self.skip_broken:
            raise error from None
        if row.line not in self._broken_lines:
            self._broken_lines.add(row.line)
            self.broken += 1
            if self.broken <= _MAX_REASONS:
                self.first_broken.append(str(error))

    def _check_times(self, item: DatasetSession, last: Turn | None) -> None:
        """``last`` is the turn before, whose time the first turn's must not precede."""
        turns = item.turns
        pairs = [(turns[0], last)]
        for turn, parents in zip(turns[1:], list_turn_parents(turns)[1:], strict=True):
            pairs += [(turn, turns[parent]) for parent in parents or (0,)]
        for turn, before in pairs:
            where = f"{self.file.path}, line {turn.row}"
            if turn.at_s is None:
                if turn is item.turns[0] or turn.delay_s is None:
                    raise DatasetError(f"{where}: the time is missing")
            elif before is not None and before.at_s is not None and turn.at_s < before.at_s:
                late = f"{turn.at_s:.3f} s comes after {before.at_s:.3f} s of line {before.row}"
                raise DatasetError(f"{where}: the times are not in order, {late}")

    def _losses(self) -> str:
        parts = [f"{self.left_out} without a request"] if self.left_out else []
        parts += [f"{self.broken} broken, the first: {self.first_broken[0]}"] if self.broken else []
        return f" ({'; '.join(parts)})" if parts else ""


def recognise_dataset(
    file: RowFile, kind: str | None, columns: Mapping[str, str]
) -> tuple[str, LogColumns | None]:
    """(kind, how to read its columns; None for the JSON kinds), from the first row. Raises
    DatasetError."""
    if kind is not None and kind not in DATASET_KINDS:
        raise DatasetError(
            f"--custom-dataset-type must be one of {', '.join(DATASET_KINDS)}, got {kind!r}"
        )
    if columns and kind not in (None, "access_log"):
        raise DatasetError(f"--dataset-columns works with access_log only: {kind} has fixed names")
    if kind == "access_log" and not columns:
        raise DatasetError(
            "access_log needs --dataset-columns, such as timestamp=ts,input_tokens=prompt_tokens"
        )
    first = next(iter(file), None)
    if first is None:
        raise DatasetError(f"{file.path}: an empty list")
    try:
        if columns or kind in TABLES:
            kind = kind or "access_log"
            return kind, logs.map_log_columns(
                kind, columns or TABLES[kind], None if file.is_json else first.data
            )
        if file.is_json:
            return kind or kinds.recognise_trace(first.data) or dataset_formats.recognise_row(
                first.data
            ), None
        if kind is not None:
            raise RowError(f"not JSON, which {kind} requires")
        return logs.recognise_csv(first.data)
    except RowError as wrong:
        raise file.error(first, wrong, wrong.byte or 0) from None
