"""Cancel trials: clients leave before the first token, in mid-stream and without a stream, and the
upstream's log tells when it saw that."""

import math
import time
from collections.abc import Sequence, Set
from itertools import product
from typing import Final

import gevent

from locust_llm.records.outcomes import CANCELLED

from .cancel_delay import (
    BEFORE_FIRST,
    MOMENTS,
    NOT_STREAMED,
    CancelDelay,
    measure_cancel_delay,
)
from .gateway_client import GatewayAddress
from .trial_request import LOG_WAIT_S, Trial, send_trials
from .upstream_log import ReadLog, UpstreamRequest
from .upstream_script import UpstreamScript

TRIALS: Final = 5
LOG_LIMIT_S: Final = 10.0
WAITED_S: Final = 3.0
LEAVES_AFTER_S: Final = 0.3
APART_S: Final = 0.013
GAP_MS: Final = 50.0
WORDS_BEHIND: Final = 4
"""The answer to a client that left before its first word has so many words."""


def make_cancel_trial(
    moment: str, identity: str, number: int = 0, waited_s: float = WAITED_S
) -> Trial:
    """A request whose answer goes on for a second longer than ``waited_s`` after its client left.
    ``number`` keeps the clients from leaving all at once."""
    leaves_after_s = LEAVES_AFTER_S + number * APART_S
    rest_ms = (leaves_after_s + waited_s + 1.0) * 1e3
    ttft_ms = rest_ms if moment == BEFORE_FIRST else 10.0
    tokens = WORDS_BEHIND if moment == BEFORE_FIRST else math.ceil(rest_ms / GAP_MS)
    script = UpstreamScript(id=identity, ttft_ms=ttft_ms, gap_ms=GAP_MS, tokens=tokens)
    return Trial(script, streamed=moment != NOT_STREAMED, cancel_after_s=leaves_after_s)


def run_cancel_trials(
    address: GatewayAddress,
    read_log: ReadLog,
    run: str,
    trials: int = TRIALS,
    waited_s: float = WAITED_S,
) -> tuple[CancelDelay, ...]:
    """The delays of each moment."""
    planned = [
        make_cancel_trial(moment, f"{run}-{moment}-{number}", number, waited_s)
        for moment, number in product(MOMENTS, range(trials))
    ]
    answers = send_trials(address, planned, at_once=len(planned))
    gevent.sleep(waited_s + 1.0 + WORDS_BEHIND * GAP_MS / 1e3 + LOG_WAIT_S)
    log = read_complete_log(read_log, {trial.script.id for trial in planned})
    closed_ns = {
        answer.record.id: answer.closed_ns
        for answer in answers
        if answer.record.outcome == CANCELLED and answer.closed_ns is not None
    }
    found = []
    for moment in MOMENTS:
        begin = f"{run}-{moment}-"
        own = {
            identity: closed for identity, closed in closed_ns.items() if identity.startswith(begin)
        }
        found.append(measure_cancel_delay(moment, own, log, waited_s))
    return tuple(found)


def read_complete_log(read_log: ReadLog, expected: Set[str]) -> Sequence[UpstreamRequest]:
    """The upstream's log when it has all of these requests, or after LOG_LIMIT_S: a slow gateway may
    still hold some."""
    until = time.monotonic() + LOG_LIMIT_S
    while True:
        log = read_log()
        if expected <= {request.id for request in log} or time.monotonic() > until:
            return log
        gevent.sleep(LOG_WAIT_S)
