"""Run labels: a user's own words for a run, by which it is found among others."""

import re
from collections.abc import Iterable
from typing import Final

KEY: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}")
MAX_VALUE: Final = 200
MAX_LABELS: Final = 50


def parse_labels(given: Iterable[str]) -> dict[str, str]:
    """Reads ``key=value`` texts; the last value of a key counts. Raises ValueError of one
    sentence."""
    labels = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not KEY.fullmatch(key):
            raise ValueError(
                f"--label takes KEY=VALUE, the key of letters, digits and _.-, got "
                f"{text[:MAX_VALUE]!r}"
            )
        if len(value) > MAX_VALUE or not value.isprintable():
            raise ValueError(
                f"--label {key}: its value is longer than {MAX_VALUE} characters, or not printable"
            )
        labels[key] = value
    if len(labels) > MAX_LABELS:
        raise ValueError(f"--label can be given {MAX_LABELS} times at most")
    return labels
