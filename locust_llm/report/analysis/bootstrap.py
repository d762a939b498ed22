"""Bootstrap: how else the figures of a run could have come out, from resampling its time in blocks.

Requests that run at the same time wait in the same queue and share the same steps of the server, so they are not
independent, and resampling them one by one would promise too much. What is resampled is stretches of time, whole: the
moving block bootstrap (Künsch, The jackknife and the bootstrap for general stationary observations, Annals of Statistics
17, 1989), circular (Politis and Romano, A circular block-resampling procedure for stationary data, 1992).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from locust_llm.slo.intervals import TAIL, Ends

from .selection import Floats

Cells = NDArray[np.int64]
"""Of each value the cell that it lies in; negative: in none."""
Times = NDArray[np.float32]
"""(draws, cells): how many times each cell is in each resample."""

DRAWS: Final = 2000
FEWEST: Final = 10
MOST: Final = 30
"""Blocks of a run."""
CELLS: Final = 10
"""Of a block: it may begin at each of them."""
TURNS: Final = 4
"""A block lasts at least so many turnarounds of a request."""
NORMAL: Final = 1.959963984540054


def blocks(seconds: float, turnaround_s: float) -> int:
    """In how many blocks to cut ``seconds`` in which a request takes ``turnaround_s`` on average.

    As long as four turnarounds, so that what waits together stays together, but from FEWEST to MOST of them: with 10 to 30
    the interval is nearly as narrow as with many short ones (Schmeiser, Batch size effects, Operations Research 30, 1982),
    and sound when requests have more in common than that.
    """
    longest = TURNS * turnaround_s
    return int(min(max(seconds / longest, FEWEST), MOST)) if longest > 0 else MOST


def resamples(blocks: int, seed: int, draws: int = DRAWS) -> Times:
    """Each is ``blocks`` blocks of CELLS cells that begin at cells drawn with replacement; the last cell is followed by the
    first."""
    cells = blocks * CELLS
    begin = np.random.default_rng(seed).integers(0, cells, (draws, blocks))
    begins = np.bincount((begin + np.arange(draws)[:, None] * cells).ravel(), minlength=draws * cells)
    summed = np.cumsum(np.tile(begins.reshape(draws, cells), 2), axis=1)  # a cell is in all blocks that began CELLS ago
    times: Times = (summed[:, cells:] - summed[:, cells - CELLS : -CELLS]).astype(np.float32)
    return times


def cells(at: Floats, start: float, end: float, blocks: int) -> Cells:
    """Which cell of the time from ``start`` to ``end`` each of these moments lies in; those outside in the first or last."""
    share = (at - start) / (end - start) if end > start else np.zeros(len(at))
    return np.clip((share * blocks * CELLS).astype(np.int64), 0, blocks * CELLS - 1)


def of_sums(amounts: Floats, cell: Cells, times: Times) -> Floats:
    """The sum of these amounts in each resample."""
    sums: Floats = times.astype(np.float64) @ np.bincount(cell, amounts, times.shape[1])
    return sums


def of_means(values: Floats, cell: Cells, times: Times) -> Floats:
    """Their mean in each resample; NaN where it has none of them."""
    count = of_sums(np.ones(len(values)), cell, times)
    means: Floats = np.divide(of_sums(values, cell, times), count, out=np.full(len(count), np.nan), where=count > 0)
    return means


def of_percentile(values: Floats, cell: Cells, times: Times, percentile: float, *, nearest: bool = False) -> Floats:
    """A percentile of the values in each resample, exact, as numpy has it; ``nearest``: nearest rank instead, for values
    that may be infinite. NaN where a resample has none.

    Sorted once for all resamples, and cut into as many chunks as each has values. In which chunk a rank falls is told by
    the counts of each cell, one product of matrices; where in it, by counting. A million values take half a second.
    """
    order = np.argsort(values, kind="stable")
    ordered, cell = values[order], cell[order]
    width, size = times.shape[1], math.isqrt(len(ordered)) + 1
    chunks = math.ceil(len(ordered) / size)
    counts = np.bincount(np.arange(len(ordered)) // size * width + cell, minlength=chunks * width)
    until = np.cumsum(times @ counts.reshape(chunks, width).T.astype(np.float32), axis=1, dtype=np.float64)
    total = until[:, -1]
    padded = np.append(cell, np.full(chunks * size - len(cell), -1))

    def at_rank(rank: Floats) -> Floats:
        """The value of this rank, from 1 to the total, in each resample."""
        chunk = np.minimum((until < rank[:, None]).sum(axis=1), chunks - 1)
        rest = rank - np.where(chunk > 0, np.take_along_axis(until, chunk[:, None] - 1, 1)[:, 0], 0)
        found = np.empty(len(rank), np.int64)
        for some in np.array_split(np.arange(len(rank)), max(1, len(rank) // 256)):  # all at once would fill the memory
            inside = padded[chunk[some][:, None] * size + np.arange(size)]
            weight = np.where(inside < 0, 0, np.take_along_axis(times[some], np.maximum(inside, 0), 1))
            found[some] = (np.cumsum(weight, axis=1) < rest[some][:, None]).sum(axis=1)
        values_at: Floats = ordered[np.minimum(chunk * size + found, len(ordered) - 1)]
        return values_at

    if nearest:
        drawn = at_rank(np.maximum(np.ceil(np.round(percentile / 100 * total, 6)), 1))
    else:
        rank = np.maximum(total - 1, 0) * percentile / 100
        low, high = at_rank(np.floor(rank) + 1), at_rank(np.minimum(np.floor(rank) + 2, np.maximum(total, 1)))
        drawn = low + (rank - np.floor(rank)) * (high - low)
    drawn[total == 0] = np.nan
    return drawn


def widened(value: float, draws: Floats, blocks: int) -> Floats:
    """Draws of a figure that came out as ``value``, spread out for how few blocks they are made of.

    By sqrt(n / (n - 1)), as the variance of n blocks is about their own mean, and by Student's t over the normal
    distribution (its quantile: Abramowitz and Stegun 26.7.5).
    """
    if not math.isfinite(value):
        return draws
    z, n = NORMAL, blocks - 1
    student = (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
    spread: Floats = value + (draws - value) * (student / z * math.sqrt(blocks / n))
    return spread


def ends(draws: Floats) -> Ends:
    """Between which values 95 % of them lie; None where too many resamples have no value."""
    known = np.sort(draws[~np.isnan(draws)])
    if len(known) < (1 - TAIL) * len(draws) or not len(known):
        return None, None
    return float(known[int(TAIL * len(known))]), float(known[-1 - int(TAIL * len(known))])
