"""Upstream log: one line of JSON for each request that reached the upstream. Standard library only,
as the upstream writes it.

Each replica writes a file of its own, ``upstream-0.jsonl`` and so on, in the folder of the run.
``read_upstream_log`` reads them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from locust_llm.text.hide_secrets import is_secret

CANARY: Final = "gwbench-canary"
"""Values of headers that hold this are the bench's own, and stay readable."""
ARRIVALS_NAME: Final = "upstream-arrivals.txt"
"""The replicas count arrivals in it. It is deleted at the end of the run."""
COMPLETE: Final = "complete"
CLIENT_GONE: Final = "client gone"
FAULT: Final = "fault"


@dataclass(slots=True, kw_only=True)
class UpstreamRequest:
    """Holds what the upstream knows of one request. Moments are ns of CLOCK_MONOTONIC."""

    id: str
    """Empty: the request had no script."""
    replica: int = 0
    connection: int = 0
    """The number of the connection at this replica, counted from 1."""
    method: str = ""
    path: str = ""
    version: str = "1.1"
    """Of HTTP."""
    received_ns: int = 0
    """The kernel's stamp of the request's last byte."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    model: str = ""
    stream: bool = False
    include_usage: bool = False
    fault: str = ""
    """The fault that the answer really got."""
    status: int = 200
    words: int = 0
    """So many words were written."""
    last_sent_ns: int = 0
    """Just before the last write."""
    end: str = ""
    """COMPLETE, CLIENT_GONE or FAULT."""
    gone_ns: int = 0
    """The upstream saw the end of the connection at this moment, while it answered or stalled. 0:
    it did not."""


def mask_secrets(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers, with a hash in place of each secret that is not the bench's own."""
    return [(name, _mask(name, value)) for name, value in headers]


def _mask(name: str, value: str) -> str:
    if CANARY in value or not is_secret(name):
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}"


def encode_log_line(request: UpstreamRequest) -> str:
    return json.dumps(asdict(request), separators=(",", ":")) + "\n"


def name_log_file(replica: int) -> str:
    return f"upstream-{replica}.jsonl"


class UpstreamLog:
    """The logs of all replicas of a run, read again and again while they grow. Each line is parsed
    once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read_bytes: dict[Path, int] = {}
        self._requests: list[UpstreamRequest] = []

    def read(self) -> Sequence[UpstreamRequest]:
        """The requests of all replicas in the order of their arrival. A last line that is not whole
        is left for the next time. Raises OSError."""
        new = list[UpstreamRequest]()
        for path in sorted(self._folder.glob(name_log_file(0).replace("0", "*"))):
            with path.open("rb") as file:
                file.seek(self._read_bytes.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_bytes[path] = self._read_bytes.get(path, 0) + len(whole)
            new += _parse_lines(whole.decode("utf-8").splitlines())
        if new:
            self._requests = sorted([*self._requests, *new], key=attrgetter("received_ns"))
        return self._requests


ReadLog = Callable[[], Sequence[UpstreamRequest]]


def read_upstream_log(folder: Path) -> Sequence[UpstreamRequest]:
    """The requests of all replicas in the order of their arrival. Raises OSError."""
    return UpstreamLog(folder).read()


def _parse_lines(lines: Iterable[str]) -> list[UpstreamRequest]:
    known = {one.name for one in fields(UpstreamRequest)}
    requests = list[UpstreamRequest]()
    for line in lines:
        try:
            values: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        values = {name: value for name, value in values.items() if name in known}
        values["headers"] = [(name, value) for name, value in values.get("headers", ())]
        requests.append(UpstreamRequest(**values))
    return requests
