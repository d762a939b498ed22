"""Breakdown labels: the parts of a request's time in their order, and how they are called."""

from collections.abc import Collection
from typing import Final

TO_DUE: Final = "ttft_from_due"

USER: Final = "user"
LATE: Final = "late"
RETRIES: Final = "retries"
GATE: Final = "gate"
PERMIT: Final = "permit"
CONNECT: Final = "connect"
SEND: Final = "send"
NETWORK: Final = "network"
HANDOVER: Final = "handover"
QUEUE: Final = "queue"
PREFILL: Final = "prefill"
SERVER: Final = "server"
HELD: Final = "held"
WITH_DECODE: Final = "with_decode"
CLIENT: Final = "client"
UNATTRIBUTED: Final = "unattributed"
TO_FIRST: Final = (
    USER, LATE, RETRIES, GATE, PERMIT, CONNECT, SEND, NETWORK, HANDOVER, QUEUE, PREFILL, SERVER, HELD,
    WITH_DECODE, CLIENT, UNATTRIBUTED,
)  # fmt: skip
"""The parts from due to the first token, in their order."""
IN_SERVER: Final = (QUEUE, PREFILL, SERVER, HELD, WITH_DECODE)
"""The parts of the server's time, and of a proxy's."""
DECODE: Final = "decode"
DELIVERY: Final = "delivery"
AFTER_FIRST: Final = (DECODE, DELIVERY)
"""Parts from the first token to the last."""
TTFT: Final = "ttft"
"""The time from the send to the first token."""

MEASURED: Final = "measured"
REPORTED: Final = "reported"
BETWEEN: Final = "measured less reported"
LESS_MEASURED: Final = "reported less measured"
AT_MOST: Final = "at most"
"""A first chunk that was read together with later ones came before that read."""
"""Sources of a part's value. UNATTRIBUTED is a source, too."""

NAMES: Final = {
    USER: "waiting for a free user",
    LATE: "late send (load generator)",
    RETRIES: "earlier attempts",
    GATE: "waiting for a prefill slot",
    PERMIT: "permit on its way (load generator)",
    CONNECT: "connecting",
    SEND: "sending",
    NETWORK: "network and front end",
    HANDOVER: "between front end and engine",
    QUEUE: "the server's queue",
    PREFILL: "prefill",
    SERVER: "in the server",
    HELD: "decode before the first chunk",
    WITH_DECODE: "in the server (with decode)",
    CLIENT: "possibly read late",
    UNATTRIBUTED: "unattributed",
    DECODE: "decode",
    DELIVERY: "delivery of the tokens",
}
"""The names of the parts, in their order."""
BESIDE_PREFILL: Final = "the server's queue and front end"
BESIDE_QUEUE: Final = "prefill and the server's front end"
NOT_REPORTED: Final = "in the server, not reported"
ROUND_TRIP: Final = "network (round trip)"
"""The names of SERVER and NETWORK where the server reports a part of its time, or less than both
queue and prefill."""
PROXY: Final = "proxy"
"""No part: a proxy or gateway is known to be in front of the server. What it takes cannot be told
from the server's time, or from the network's."""
WITH_PROXY: Final = {
    NAMES[SERVER]: "in the server and the proxy",
    NAMES[WITH_DECODE]: "in the server and the proxy (with decode)",
    BESIDE_PREFILL: "the server's queue and front end, and the proxy",
    BESIDE_QUEUE: "prefill, the server's front end and the proxy",
    NOT_REPORTED: "in the server and the proxy, not reported",
    NAMES[NETWORK]: "network, proxy and front end",
    ROUND_TRIP: "network (round trip to the proxy)",
}
"""These names behind a proxy."""


def name_latency_part(part: str, others: Collection[str]) -> str:
    """``others`` are all known parts of the requests, and PROXY. For a run, ``find_reported_parts``
    gives the relevant ones."""
    reported = {QUEUE, PREFILL}.intersection(others)
    name = NAMES[part]
    if part == SERVER and reported:
        rest = {frozenset({PREFILL}): BESIDE_PREFILL, frozenset({QUEUE}): BESIDE_QUEUE}
        name = rest.get(frozenset(reported), NOT_REPORTED)
    elif part == NETWORK and len(reported) < 2:
        name = ROUND_TRIP
    return WITH_PROXY.get(name, name) if PROXY in others else name
