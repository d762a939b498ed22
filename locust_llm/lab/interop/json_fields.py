"""JSON fields: reads numbers and texts of a JSON document from any source. Missing values are
None."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from locust_llm.files.json_file import MAX_JSON_BYTES
from locust_llm.files.regular_file import read_regular
from locust_llm.lab.interop.load_metrics import Distribution

Document = Mapping[str, Any]
S_PER: Final = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9}
NAMES: Final = {"mean": "avg", "average": "avg", "median": "p50", "stddev": "std", "std_dev": "std"}


def read_json_document(path: Path) -> Document:
    """Reads a file that holds one JSON object. Empty: it is missing or unreadable."""
    try:
        document = msgspec.json.decode(read_regular(path, MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def nested_value(document: object, *path: str | int) -> Any:
    """Returns the value under these keys, or None."""
    for key in path:
        if isinstance(document, Mapping):
            document = document.get(key)
        elif (
            isinstance(document, list)
            and isinstance(key, int)
            and -len(document) <= key < len(document)
        ):
            document = document[key]
        else:
            return None
    return document


def read_finite_or_nan(value: object) -> float | None:
    """Reads a number. NaN stays NaN, so that the audit can name it. A bool is no number."""
    if isinstance(value, bool):
        return None
    try:
        return float(value.replace(",", "") if isinstance(value, str) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # a whole number may have hundreds of digits
        return None


def read_whole(value: object) -> int | None:
    number = read_finite_or_nan(value)
    return None if number is None or number != number or abs(number) > 2**53 else round(number)


def read_text(value: object) -> str:
    return value[:200].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def read_distribution(values: Iterable[tuple[str, object]], scale: float = 1.0) -> Distribution:
    """Reads statistics by names such as ``avg``, ``mean``, ``min``, ``std``, ``median``, ``p99``
    and ``p99.9``. Other names are skipped. ``scale`` converts the unit into seconds."""
    ends: dict[str, float] = {}
    percentiles: dict[float, float] = {}
    count: int | None = None
    for name, value in values:
        name = NAMES.get(name.lower(), name.lower())
        number = read_finite_or_nan(value)
        if number is None:
            continue
        if name == "count":
            count = read_whole(value)
        elif name in ("avg", "min", "max", "std"):
            ends[name] = number * scale
        elif (
            name.startswith("p")
            and (percent := read_finite_or_nan(name[1:].replace("_", "."))) is not None
            and 0 < percent < 100
        ):
            percentiles[percent] = number * scale
    return Distribution(
        avg=ends.get("avg"), min=ends.get("min"), max=ends.get("max"), std=ends.get("std"),
        count=count,
        percentiles=percentiles,
    )  # fmt: skip
