"""Duration option: a time on the command line of a lab command."""

import argparse
import re
from collections.abc import Callable
from typing import Final

UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|)")


def make_duration_reader(least: str, most: str) -> Callable[[str], float]:
    """A type for argparse, which parses ``90``, ``90s`` or ``6m`` into seconds. ``least`` and
    ``most`` are such times too."""

    def read(text: str) -> float:
        value = _parse_duration(text)
        if not _parse_duration(least) <= value <= _parse_duration(most):
            raise argparse.ArgumentTypeError(
                f"takes a time such as 90s or 6m, from {least} to {most}, got {text}"
            )
        return value

    return read


def _parse_duration(text: str) -> float:
    """-1: it is none."""
    found = _DURATION.fullmatch(text.strip())
    return -1.0 if found is None else float(found[1]) * UNITS[found[2]]


parse_duration_s: Final = make_duration_reader("10s", "24h")
