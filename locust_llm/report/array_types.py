"""Array types: the types of numpy's arrays in the reports."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
