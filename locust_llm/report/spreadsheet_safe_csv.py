"""Spreadsheet-safe CSV: rows of a table that somebody may open as a spreadsheet."""

import csv
import io
import math
from collections.abc import Callable, Iterable


def make_csv_writer(out: io.StringIO) -> Callable[[Iterable[object]], object]:
    """Writes a row; a text that a spreadsheet would take for a formula is a text there too."""
    row = csv.writer(out).writerow
    return lambda cells: row(
        [f"'{cell}" if isinstance(cell, str) and _formula(cell) else cell for cell in cells]
    )


def _formula(cell: str) -> bool:
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return False
    try:
        return not math.isfinite(float(cell))
    except ValueError:
        return True
