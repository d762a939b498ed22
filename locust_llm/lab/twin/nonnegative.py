"""Least squares whose factors are not below 0, exact: of all subsets of the columns the best whose
factors are positive."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
NEVER = 1e-12
"""Of a column's own square: below this share two columns say the same."""
NOTHING = 1e-12
"""Of the target's square: what is explained by less than this more is explained alike."""


def least_squares(columns: Array, target: Array) -> Array:
    """The x >= 0 with the least |columns x - target|. ``columns``: (rows, up to about ten); a
    column of zeros gets 0. The minimum of a convex problem is the ordinary solution on the columns
    where it is above 0 (Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23), so trying
    each subset finds it. Of those that explain the target alike, as where there are fewer rows than
    columns, the one with the fewest columns, and the foremost ones."""
    size = np.sqrt((columns**2).sum(axis=0))
    size[size == 0] = np.inf
    scaled = columns / size
    gram, right = scaled.T @ scaled, scaled.T @ target
    count = columns.shape[1]
    least = NOTHING * float(target @ target)
    best = np.zeros(count)
    best_gain = 0.0
    for number in range(1, count + 1):
        subsets = np.array(list(combinations(range(count), number)))
        inner = gram[subsets[:, :, None], subsets[:, None, :]]
        told = np.linalg.cond(inner) <= 1 / NEVER
        subsets, inner = subsets[told], inner[told]
        found = np.linalg.solve(inner, right[subsets][:, :, None])[:, :, 0]
        # by so much the square error is below that of 0
        gains = (right[subsets] * found).sum(axis=1)
        gains[(found < 0).any(axis=1)] = 0.0
        most = float(gains.max(initial=0.0))
        if most > best_gain + least:
            first = int(np.argmax(gains >= most - least))
            best = np.zeros(count)
            best_gain = most
            best[subsets[first]] = found[first]
    return np.asarray(best / size)
