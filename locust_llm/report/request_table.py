"""Request table: columns of numpy with a row for each request. The reports of a run compute with it
and do not load pandas, whose import takes longer and more memory than the report of a short run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from locust_llm.report.array_types import Bools, Floats, Ints
from locust_llm.report.stored_columns import NumberColumn, read_column

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TextColumn:
    """The texts of a column, each once."""

    codes: NDArray[np.signedinteger[Any]]
    """The place of each row's text in ``labels``. -1: the row has no text."""
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, chosen: Bools | Ints) -> "TextColumn":
        return TextColumn(self.codes[chosen], self.labels)

    def tolist(self) -> list[str | None]:
        texts = [*self.labels, None]
        return [texts[code] for code in self.codes.tolist()]

    def select(self, holds: Callable[[str | None], bool]) -> Bools:
        """For which rows ``holds`` is true."""
        wanted = np.array([*map(holds, self.labels), holds(None)], np.bool_)
        found: Bools = wanted[self.codes]  # -1, the last one, is that of no text
        return found

    def count_rows(self) -> dict[str, int]:
        """How many rows have each text, in the order of the labels. Only texts of some row."""
        counts = np.bincount(self.codes[self.codes >= 0], minlength=len(self.labels)).tolist()
        return {text: count for text, count in zip(self.labels, counts, strict=True) if count}


Column: TypeAlias = NumberColumn | TextColumn


class RequestTable:
    """A row for each request, or for some of them. Columns are not changed once they are in it."""

    def __init__(self, columns: Mapping[str, Column], numbers: Ints | None = None) -> None:
        self.columns = dict(columns)
        self._numbers = numbers

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def numbers(self) -> Ints:
        """The row of each request in the table of all of them."""
        return np.arange(len(self)) if self._numbers is None else self._numbers

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def values(self, name: str) -> NDArray[Any]:
        """The values of a column of numbers or flags, as they are kept."""
        column = self.columns[name]
        assert not isinstance(column, TextColumn), f"{name} is a column of texts"
        return read_column(column)

    def texts(self, name: str) -> TextColumn:
        column = self.columns[name]
        assert isinstance(column, TextColumn), f"{name} is a column of numbers"
        return column

    def floats(self, name: str) -> Floats:
        """The values of a column of numbers or flags; NaN where a request has none."""
        return self.values(name).astype(np.float64, copy=False)

    def has(self, name: str, *texts: str) -> Bools:
        """Which requests have one of these texts in a column."""
        return self.texts(name).select(texts.__contains__)

    def earliest(self, name: str) -> float:
        """The least value of a column; NaN where no request has one."""
        return float(np.fmin.reduce(self.floats(name), initial=np.nan))

    def latest(self, name: str) -> float:
        """The largest value of a column; NaN where no request has one."""
        return float(np.fmax.reduce(self.floats(name), initial=np.nan))

    def rows(self, chosen: Bools | Ints) -> "RequestTable":
        """The table of some rows, by a mask or by their places. It copies all columns: of a large
        part, a RequestSelection takes less memory."""
        # few places are taken much faster than by a mask of a million
        places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        columns = {
            name: column.rows(places)
            if isinstance(column, TextColumn)
            else read_column(column)[places]
            for name, column in self.columns.items()
        }
        return RequestTable(columns, self.numbers[places])

    def stretch(self, rows: slice) -> "RequestTable":
        """The table of neighbours in the table of all requests. It copies nothing."""
        columns: dict[str, Column] = {
            name: TextColumn(column.codes[rows], column.labels)
            if isinstance(column, TextColumn)
            else read_column(column)[rows]
            for name, column in self.columns.items()
        }
        return RequestTable(columns, np.arange(*rows.indices(len(self))))

    def replace_columns(self, columns: Mapping[str, Column]) -> "RequestTable":
        """The same rows, with these columns as further ones or in place of the old ones."""
        return RequestTable(self.columns | dict(columns), self._numbers)

    def to_frame(self) -> "pd.DataFrame":
        """The table for those who compute with pandas."""
        import pandas as pd

        def convert(column: Column) -> object:
            if not isinstance(column, TextColumn):
                return read_column(column)
            labels = pd.Index([*column.labels], dtype="object")
            return pd.Categorical.from_codes(column.codes, categories=labels)

        columns = {name: convert(column) for name, column in self.columns.items()}
        return pd.DataFrame(columns, copy=False)


def number_combinations(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """(the number of each row's combination of codes; the first row of each combination). They are
    numbered in the order of their codes. Where a row has the code -1, its number is -1."""
    key = np.zeros(len(columns[0]), np.int64)
    known = np.ones(len(key), np.bool_)
    for codes in columns:
        key = key * (int(codes.max(initial=0)) + 1) + codes
        known &= codes >= 0
    which = np.full(len(key), -1, np.int64)
    _, first_rows, which[known] = np.unique(key[known], return_index=True, return_inverse=True)
    return which, np.flatnonzero(known)[first_rows]
