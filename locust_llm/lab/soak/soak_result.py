"""Soak result: what a soak of several parts found, as frozen data that soak.json holds."""

from pathlib import Path
from typing import Final

import msgspec

from locust_llm.files.json_file import decode_json_file
from locust_llm.trends.soak_findings import SoakFindings

RESULT_NAME: Final = "soak.json"
PAGE_NAME: Final = "soak.html"


class SoakResult(SoakFindings, frozen=True, kw_only=True):
    """The output of ``locust-llm soak --json`` at its end, and soak.json."""

    folder: str
    host: str
    started: str
    """ISO 8601, UTC."""
    version: str
    """Of this package."""
    planned_hours: float
    parts: int
    """1, and one more for each ``--continue``."""


def read_soak_result(folder: Path) -> SoakResult:
    """Raises OSError and ValueError."""
    return decode_json_file(folder / RESULT_NAME, SoakResult)


def encode_soak_result(result: SoakResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1)
