"""Gateway result: everything that one run found out about one gateway, as frozen data that
gateway.json holds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from .cancel_delay import CancelDelay
from .headers_and_routing import HeaderPassage, ReplicaDeath, SessionSpread
from .hidden_failures import FaultVerdict

CHANGES: Final = "changes"
FAULTS: Final = "faults"
CANCELS: Final = "cancels"
ROUTING: Final = "routing"
TIMES: Final = "times"
PARTS: Final = (CHANGES, FAULTS, CANCELS, ROUTING, TIMES)
RESULT_NAME: Final = "gateway.json"
FIRST_TOKEN: Final = "ttft"
FURTHER_TOKEN: Final = "token"
GAP: Final = "itl"
WHOLE_ANSWER: Final = "latency"
SETUP: Final = "setup"
EMBEDDINGS: Final = "embeddings"
QUANTITIES: Final = {
    FIRST_TOKEN: "first token",
    FURTHER_TOKEN: "further token",
    GAP: "gap between tokens",
    WHOLE_ANSWER: "whole answer",
    SETUP: "connection set-up",
    EMBEDDINGS: "embeddings",
}
"""What a gateway adds time to."""


class AddedTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the gateway adds to one quantity at one load, in ms."""

    quantity: str
    """One of QUANTITIES."""
    samples: int
    p50_ms: float
    p99_ms: float
    p50_interval_ms: tuple[float, float] | None = None
    p99_interval_ms: tuple[float, float] | None = None
    """95 % intervals over blocks. None: there were too few."""
    error_ms: float = 0.0
    """The measurement error: how far direct values of the same blocks are apart."""
    direct_p50_ms: float = 0.0
    direct_p99_ms: float = 0.0


class AddedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One load: so many streams at once, or so many short requests per second."""

    streams: int = 0
    requests_per_s: float = 0.0
    """0: this level is of streams."""
    added: tuple[AddedTime, ...] = ()
    failed: int = 0
    """So many requests failed through the gateway."""
    cpu_ms_per_request: float | None = None
    cpu_us_per_token: float | None = None
    cpu_is_most: bool = False
    """The kernel counted too few ticks of CPU: it was at most so much."""
    memory_mb: float | None = None
    """CPU and memory of the gateway's process. None: it is unknown."""

    def find(self, quantity: str) -> AddedTime | None:
        return find_quantity(self.added, quantity)


class StreamChange(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of change of answers, and how often it was seen."""

    kind: str
    what: str
    """In words, for tables."""
    seen: int
    of: int
    """So many answers could have had it."""
    example: str = ""
    noticed: str = ""
    """What a client library makes of it; empty: it does not notice."""


class RuleVerdict(msgspec.Struct, frozen=True, kw_only=True):
    rule: str
    verdict: str
    """PASS, FAIL or INCONCLUSIVE."""
    value: str = ""


class GatewayResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run against one gateway."""

    name: str
    url: str
    started: str
    """ISO 8601, UTC."""
    version: str
    """Of this package."""
    machine: str = ""
    server: str = ""
    """The gateway's Server header, if it has one of its own."""
    limit_ms: float = 5.0
    parts: tuple[str, ...] = ()
    """The parts of the test that were run: changes, faults, cancels, routing, times."""
    notes: tuple[str, ...] = ()
    """What a reader must know: a busy machine, a part that was left out."""
    levels: tuple[AddedLevel, ...] = ()
    without_load: tuple[AddedTime, ...] = ()
    """What was measured with one request after the other: connection set-up, and embeddings."""
    lost_chunks: int | None = None
    """So many chunks did not come, of answers that ended well. None: not measured."""
    changes: tuple[StreamChange, ...] = ()
    direct_changes: tuple[StreamChange, ...] = ()
    """Changes that were found without the gateway: there must be none."""
    faults: tuple[FaultVerdict, ...] = ()
    cancels: tuple[CancelDelay, ...] = ()
    headers: tuple[HeaderPassage, ...] = ()
    spread: tuple[SessionSpread, ...] = ()
    death: ReplicaDeath | None = None
    rules: tuple[RuleVerdict, ...] = ()


def find_quantity(added: Iterable[AddedTime], quantity: str) -> AddedTime | None:
    return next((one for one in added if one.quantity == quantity), None)


def read_gateway_result(path: Path) -> GatewayResult:
    """``path``: the file, or its folder. Raises OSError, and ValueError with a sentence."""
    file = path / RESULT_NAME if path.is_dir() else path
    try:
        return msgspec.json.decode(file.read_bytes(), type=GatewayResult)
    except msgspec.DecodeError as error:
        raise ValueError(f"{file} is no result of locust-llm gateway: {error}") from None


def encode_gateway_result(result: GatewayResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1)
