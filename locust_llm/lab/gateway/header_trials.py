"""Header trials: the bench's own secrets on their way through the gateway, sessions over the
replicas, and a replica that is killed."""

import time
from collections.abc import Mapping, Sequence
from typing import Final

import gevent
from msgspec.structs import replace

from .gateway_client import GatewayAddress, make_headers_of_request, merge_headers
from .headers_and_routing import (
    TO_CLIENT,
    TO_UPSTREAM,
    HeaderPassage,
    ReplicaDeath,
    SessionSpread,
    compare_headers,
    measure_spread,
    summarise_death,
)
from .hidden_failures import Sighting
from .trial_request import (
    ENDPOINT,
    LOG_WAIT_S,
    Trial,
    TrialAnswer,
    TrialConnection,
    send_trial,
    send_trials,
)
from .upstream_log import CANARY, ReadLog, mask_secrets
from .upstream_process import UpstreamReplicas
from .upstream_script import UpstreamScript

CLIENT_HEADERS: Final = {
    "Authorization": f"Bearer {CANARY}-authorization",
    "X-Api-Key": f"{CANARY}-x-api-key",
    "Cookie": f"session={CANARY}-cookie",
    "User-Agent": "gwbench",
    "X-Request-Id": "gwbench-request",
    "Traceparent": "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
    "OpenAI-Organization": "gwbench-organization",
    "X-Session-Id": "gwbench-session",
    "X-Custom-Header": "1",
}
"""What clients of LLM servers send. A header that the gateway itself needs is replaced by its
value."""
ATTEMPTS: Final = 3
SESSIONS: Final = 20
REQUESTS_OF_SESSION: Final = 4
OWN_CONNECTION: Final = "a connection of its own"
SESSION_HEADER: Final = "X-Session-Id"
STREAMS: Final = 8
STREAM_S: Final = 3.0
KILLED_AFTER_S: Final = 1.0
LATER_EACH_S: Final = 0.1
LATER_S: Final = 5.0


def run_header_trial(
    direct: GatewayAddress, through: GatewayAddress, read_log: ReadLog, run: str
) -> tuple[HeaderPassage, ...]:
    """Compares what was sent with what reached the upstream, and the response's headers direct and
    through. Empty: the gateway did not forward the request."""
    sent = merge_headers(CLIENT_HEADERS, dict(through.headers))
    answer = _send_until_answered(through, f"{run}-headers", sent)
    own = _send_until_answered(direct, f"{run}-direct", {})
    gevent.sleep(LOG_WAIT_S)
    identity = answer.record.id
    reached = next((request for request in read_log() if request.id == identity), None)
    if reached is None:
        return ()
    script = UpstreamScript(id=identity)
    written = make_headers_of_request(through, ENDPOINT, script, headers=sent)
    # secrets have hashes on both sides, so that none gets into the result
    before = mask_secrets(written.items())
    upwards = compare_headers(before, reached.headers, TO_UPSTREAM)
    downwards = compare_headers(
        _name_once(own.headers, own.record.id), _name_once(answer.headers, identity), TO_CLIENT
    )
    return (*upwards, *downwards)


def _send_until_answered(
    address: GatewayAddress, run: str, headers: Mapping[str, str]
) -> TrialAnswer:
    """The first good answer, or the last one."""
    for attempt in range(ATTEMPTS):
        answer = send_trial(address, _make_short_trial(f"{run}-{attempt}", headers))
        if not answer.sighting.failed:
            break
    return answer


def _name_once(headers: Sequence[tuple[str, str]], identity: str) -> list[tuple[str, str]]:
    """The id of a request is in a header of its response: the same text for both."""
    return [(name, value.replace(identity, "ID")) for name, value in mask_secrets(headers)]


def run_spread_trials(
    address: GatewayAddress, replicas: int, run: str, sessions: int = SESSIONS
) -> tuple[SessionSpread, ...]:
    """Sessions that have a connection of their own, then sessions that name themselves in a
    header on new connections."""
    kept = dict[str, list[int]]()
    for number in range(sessions):
        line = TrialConnection()
        try:
            kept[str(number)] = _find_replicas(
                [
                    send_trial(address, _make_short_trial(f"{run}-kept-{number}-{turn}"), line)
                    for turn in range(REQUESTS_OF_SESSION)
                ]
            )
        finally:
            line.close()
    named = dict[str, list[int]]()
    for number in range(sessions):
        headers = {SESSION_HEADER: f"{run}-{number}"}
        named[str(number)] = _find_replicas(
            send_trials(
                address,
                [
                    _make_short_trial(f"{run}-named-{number}-{turn}", headers)
                    for turn in range(REQUESTS_OF_SESSION)
                ],
                at_once=1,
            )
        )
    spreads = (
        measure_spread(OWN_CONNECTION, kept, replicas),
        measure_spread(SESSION_HEADER, named, replicas),
    )
    return tuple(spread for spread in spreads if spread is not None)


def _make_short_trial(identity: str, headers: Mapping[str, str] | None = None) -> Trial:
    script = UpstreamScript(id=identity, ttft_ms=1, gap_ms=1, tokens=1)
    return Trial(script, headers=headers or {})


def _find_replicas(answers: Sequence[TrialAnswer]) -> list[int]:
    return [answer.replica for answer in answers if answer.replica is not None]


def run_death_trial(
    address: GatewayAddress, replicas: UpstreamReplicas, read_log: ReadLog, run: str
) -> ReplicaDeath:
    """Kills the last replica while it streams, sends short requests for a while, and starts it
    again."""
    victim = len(replicas) - 1
    gap_ms = 50.0
    streams = [
        Trial(
            UpstreamScript(
                id=f"{run}-open-{number}",
                ttft_ms=10,
                gap_ms=gap_ms,
                tokens=int(STREAM_S * 1e3 / gap_ms),
            )
        )
        for number in range(STREAMS)
    ]
    open_streams = gevent.spawn(send_trials, address, streams, STREAMS)
    gevent.sleep(KILLED_AFTER_S)
    replicas.kill(victim)
    killed_at = time.monotonic()
    later = list[tuple[float, Sighting]]()
    while (since_s := time.monotonic() - killed_at) < LATER_S:
        answer = send_trial(address, _make_short_trial(f"{run}-later-{len(later)}"))
        later.append((since_s, answer.sighting))
        gevent.sleep(LATER_EACH_S)
    open_streams.join()
    replicas.restart(victim)
    answers: Sequence[TrialAnswer] = open_streams.value
    struck = [answer for answer in answers if answer.replica == victim]
    again = {request.id for request in read_log() if request.replica != victim}
    sightings = [
        _count_second_request(answer.sighting, answer.record.id in again) for answer in struck
    ]
    return summarise_death(sightings, later)


def _count_second_request(sighting: Sighting, reached_another: bool) -> Sighting:
    return replace(sighting, requests=1 + reached_another)
