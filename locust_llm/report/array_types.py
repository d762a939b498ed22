"""Array types: the types of numpy's arrays in the reports."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .stored_columns import NumberColumn, read_column

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def share_constant(values: NDArray[Any]) -> NDArray[Any]:
    """The same values. Where all are equal, or none is a number, they take the memory of one."""
    if not len(values) or not ((values == values[0]) | (values != values)).all():
        return values
    if (values != values).any() and not (values != values).all():
        return values
    return np.broadcast_to(values[:1].copy(), values.shape)


class SharedArrays:
    """Of columns that are equal bit for bit, one is kept for all. Nobody may write to it."""

    def __init__(self) -> None:
        self._known: defaultdict[tuple[str, bytes], list[NumberColumn]] = defaultdict(list)

    def share(self, column: NumberColumn) -> NumberColumn:
        column = share_constant(column) if isinstance(column, np.ndarray) else column
        values = read_column(column)
        if not values.flags.c_contiguous:  # it takes the memory of one value
            return column
        middle = len(values) // 2
        alike = self._known[values.dtype.str, values[middle : middle + 8].tobytes()]
        for known in alike:
            if np.array_equal(read_column(known).view(np.uint8), values.view(np.uint8)):
                return known
        alike.append(column)
        return column
