"""Trial request: sends one scripted request to an address, and returns what the client saw of the
answer."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import gevent
import msgspec
from gevent.pool import Pool
from msgspec.structs import replace

from locust_llm.client.request_bytes import Request
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.response_chunks import Response
from locust_llm.gate.gate import Gate
from locust_llm.records.record import Record

from .gateway_client import GatewayAddress, write_request
from .hidden_failures import Sighting
from .raw_answer import FIRST_WORD, find_words
from .upstream_log import ReadLog
from .upstream_script import UpstreamScript

ENDPOINT: Final = "chat"
AT_ONCE: Final = 16
"""So many trials are under way together."""
LOG_WAIT_S: Final = 0.5
"""The upstream's log is complete so long after the last answer."""
Headers = tuple[tuple[str, str], ...]


class Trial(NamedTuple):
    """One request of a trial."""

    script: UpstreamScript
    streamed: bool = True
    headers: Mapping[str, str] = {}
    """These replace the address's of the same name."""
    cancel_after_s: float | None = None
    silence_s: float = 2.0
    """The client gives up when so long nothing came."""


class TrialConnection(UserConnection):
    """Writes down when it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed_ns: int | None = None
        """Just before its socket was closed (monotonic ns). None: it was not."""

    def close(self) -> None:
        if self.connection is not None:
            self.closed_ns = time.monotonic_ns()
        super().close()


class TrialAnswer(NamedTuple):
    """What the client saw."""

    sighting: Sighting
    record: Record
    headers: Headers
    """Of the response; empty: it had none."""
    replica: int | None
    """The replica that wrote the first word. None: it did not come."""
    closed_ns: int | None
    """When the client closed the connection because the answer had not ended in order. None: it did
    not."""


def send_trial(
    address: GatewayAddress, trial: Trial, line: TrialConnection | None = None
) -> TrialAnswer:
    """Sends it on ``line``, or on a connection of its own."""
    connection = TrialConnection() if line is None else line
    connection.closed_ns = None
    try:
        record = exchange_request(connection, Gate(), make_trial_request(address, trial), 0.0)
        return _read_answer(record, connection.stream, connection.closed_ns)
    finally:
        if line is None:
            connection.close()


def send_trials(
    address: GatewayAddress, trials: Sequence[Trial], at_once: int = AT_ONCE
) -> list[TrialAnswer]:
    """The answers in the order of the trials, of which some are under way together."""
    pool = Pool(at_once)

    def send(trial: Trial) -> TrialAnswer:
        return send_trial(address, trial)

    return list(pool.map(send, trials))


def make_trial_request(address: GatewayAddress, trial: Trial) -> Request:
    script = trial.script
    longest_s = (script.ttft_ms + script.tokens * script.gap_ms * (1 + script.jitter)) / 1e3
    return Request(
        target=address.target,
        data=write_request(address, ENDPOINT, script, stream=trial.streamed, headers=trial.headers),
        labels={"id": script.id},
        timeout_s=longest_s + 2 * trial.silence_s,
        first_token_timeout_s=script.ttft_ms / 1e3 + trial.silence_s if trial.streamed else None,
        gap_timeout_s=script.gap_ms / 1e3 + trial.silence_s,
        cancel_after_s=trial.cancel_after_s,
        keep_text=True,
        checked=True,
        kind=ENDPOINT,
    )


def _read_answer(record: Record, stream: Response | None, closed_ns: int | None) -> TrialAnswer:
    """``stream`` None: nothing was sent."""
    if stream is None:
        return TrialAnswer(_describe(record, "", (), done=False), record, (), None, closed_ns)
    answer = stream.answer
    text = " ".join(_list_texts(msgspec.to_builtins(answer.deltas or [])))
    events = answer.events
    assert events is not None
    seen = _describe(record, text, (*events.ids,), done=answer.done_read is not None)
    origin = FIRST_WORD.search(text.encode())
    return TrialAnswer(
        replace(seen, model=", ".join(events.models)),
        record,
        tuple(stream.frame.items()) if stream.frame.has_headers else (),
        int(origin[2]) if origin else None,
        closed_ns,
    )


def _describe(record: Record, text: str, ids: Sequence[str], *, done: bool) -> Sighting:
    return Sighting(
        outcome=record.outcome,
        status=record.status,
        error=record.error,
        words=len({word.number for word in find_words([(0, text.encode())])}),
        finish_reason=record.finish_reason or "",
        output_tokens=record.output_tokens if record.tokens_from == "usage" else None,
        id_count=len(ids),
        done=done or not record.streamed,
    )


def _list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _list_texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_texts(inner)


def add_requests(answers: Sequence[TrialAnswer], read_log: ReadLog) -> list[Sighting]:
    """What the clients saw, each with the number of requests that reached the upstream for it."""
    gevent.sleep(LOG_WAIT_S)
    counts = dict[str, int]()
    for request in read_log():
        counts[request.id] = counts.get(request.id, 0) + 1
    return [
        replace(answer.sighting, requests=counts.get(answer.record.id, 0)) for answer in answers
    ]
