"""Duration option: a time on the command line of a lab command."""

import argparse
import re
from typing import Final

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def parse_duration_s(text: str) -> float:
    """Parses ``90``, ``90s`` or ``6m``, from ten seconds to a day."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
    value = float(found[1]) * UNITS[found[2] or ""] if found else 0.0
    if not 10 <= value <= 86_400:
        raise argparse.ArgumentTypeError(
            f"takes a time such as 90s or 6m, from 10s to 24h, got {text}"
        )
    return value
