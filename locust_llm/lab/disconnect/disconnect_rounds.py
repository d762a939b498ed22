"""Disconnect rounds: in each, a witness stream runs alone, clients come beside it and leave, and the
witness runs on until the longest answer of a client would be over."""

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

import gevent
from gevent import GreenletExit
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.gate.gate import Gate
from locust_llm.lab.lab_request import make_lab_request
from locust_llm.records.outcomes import CANCELLED, OK
from locust_llm.records.record import Record
from locust_llm.records.server_metrics_history import counter_increase
from locust_llm.records.server_metrics_parser import EngineSample
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.server.server_counters import ServerCounters
from locust_llm.settings.run_options import Settings
from locust_llm.text.format import format_duration
from locust_llm.workload.prompt_length_model import PromptLengthModel
from locust_llm.workload.synthetic_prompts import Prompts

from .ghost_tokens import CounterRound, WitnessRound

BEFORE_FIRST_TOKEN: Final = "before_first_token"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
UNSTREAMED: Final = "unstreamed"
CROWD: Final = "crowd"
SITUATIONS: Final = {
    DECODE: "in mid-decode",
    BEFORE_FIRST_TOKEN: "before the first token",
    PREFILL: "during prefill",
    UNSTREAMED: "without a stream",
    CROWD: "in a crowd, in mid-decode",
}
"""When clients leave, in the order of the rounds."""
CROWD_FACTOR: Final = 4
"""A crowd is so many times as large as the clients of the other situations."""
INPUT_TOKENS: Final = 48
CALIBRATION_TOKENS: Final = 64
QUIET_GAPS: Final = 50
DECODE_TOKENS: Final = 40
"""Clients in mid-decode leave after about so many tokens."""
PACE_TOKENS: Final = 2 * DECODE_TOKENS
"""The later half of so many shows the pace."""
GHOST_S: Final = 2.0
"""The answers of clients would go on for about this time, within these bounds in tokens."""
LEAST_GHOSTS: Final = 64
MOST_GHOSTS: Final = 256
LONG_PROMPT_TOKENS: Final = 2000
CLIENTS_PROMPT_TOKENS: Final = 4096
"""Of the clients who come together. A step that reads a longer context takes longer, so the gaps of the
witness show fewer clients."""
MOST_PREFILL_S: Final = 1.0
"""The server may take so long for these prompts."""
MOST_CONTEXT_SHARE: Final = 0.5
MOST_HOLD_S: Final = 10.0
MOST_WITNESS_TOKENS: Final = 2000
POLL_S: Final = 0.1
SETTLED_S: Final = 10.0
"""The counters stand still within this time after the witness, or ghosts outlive it."""
KV_TOLERANCE: Final = 0.002
IDLE_LOOKS: Final = 3
"""Users who send together leave the server empty for moments."""


class DisconnectFailed(Exception):
    """The server cannot be measured. The text is a sentence for the user."""


class CrowdPace(NamedTuple):
    """The pace of so many clients beside the witness."""

    ttft_s: float
    gap_s: float


class CounterReading(NamedTuple):
    """One reading of the counters, and when it was asked for and had come (monotonic s)."""

    asked_at: float
    came_at: float
    sample: EngineSample

    @property
    def open(self) -> float | None:
        """The requests that the server runs or holds in its queue."""
        if self.sample.running is None:
            return None
        return self.sample.running + (self.sample.waiting or 0.0)


class RoundTimes(NamedTuple):
    """What happened when, in monotonic s."""

    came_at: float
    decoding_at: float
    """All clients got tokens from here on. Equal to ``left_at``: unknown, or none did."""
    left_at: float


class DisconnectRound(NamedTuple):
    """What one round showed."""

    situation: str
    clients: int
    """So many left."""
    counters: CounterRound | None
    """None: the server has no such counters, or others used it."""
    witness: WitnessRound | None
    """None: it has too few gaps."""
    kv_returned: bool | None
    others: bool
    """Requests of somebody else were certainly in the server before the round, or during it."""


class DisconnectBench:
    """Sends the rounds. ``counters`` None: the server has none, or they are not to be used."""

    def __init__(
        self,
        settings: Settings,
        headers: Mapping[str, str],
        model: str | None,
        form: RequestForm,
        counters: ServerCounters | None,
        context: int | None,
        clients: int,
    ) -> None:
        self._settings = settings
        self._headers = headers
        self._model = model
        self._form = form
        self._counters = counters
        self._clients = clients
        self._most_tokens = LONG_PROMPT_TOKENS
        if context is not None:
            self._most_tokens = int(MOST_CONTEXT_SHARE * context)
        self._long_tokens = min(LONG_PROMPT_TOKENS, self._most_tokens)
        self._texts = dict[int, Prompts]()
        self._prompt_tokens = dict[int, int]()
        self._forced = False
        self._gap_s = self._ttft_s = self._long_ttft_s = 0.0
        self._paces = dict[int, CrowdPace]()
        self._gate = Gate()
        self._one_reading = BoundedSemaphore()

    # -- before the rounds

    def calibrate(self) -> str:
        """Measures the paces on which the rounds depend, and describes them. Raises
        DisconnectFailed."""
        alone = self._ask_one(INPUT_TOKENS, CALIBRATION_TOKENS)
        if (alone.output_tokens or 0) < CALIBRATION_TOKENS:
            self._forced = True
            alone = self._ask_one(INPUT_TOKENS, CALIBRATION_TOKENS)
        if len(alone.chunk_us) < CALIBRATION_TOKENS // 2:
            raise DisconnectFailed(
                f"the server streams {CALIBRATION_TOKENS} tokens in {len(alone.chunk_us)} chunks: "
                f"the test needs a stream"
            )
        self._gap_s = find_gap_s(alone)
        self._ttft_s = alone.chunk_us[0] / 1e6
        self._long_ttft_s = self._ask_one(self._long_tokens, 1).chunk_us[0] / 1e6
        pace_per_s = self._long_tokens / self._long_ttft_s
        for clients in (self._clients, CROWD_FACTOR * self._clients):
            tokens = divide_prompt_tokens(clients, pace_per_s)
            self._prompt_tokens[clients] = min(tokens, self._most_tokens)
            self._paces[clients] = self._measure_pace(clients)
        pace = self._paces[self._clients]
        return (
            f"a token each {format_duration(self._gap_s)} alone, each "
            f"{format_duration(pace.gap_s)} next to {self._clients} clients"
        )

    def _ask_one(self, input_tokens: int, tokens: int) -> Record:
        record = self._send(input_tokens, tokens)
        if record is None or record.outcome != OK or not record.chunk_us:
            why = "no token" if record is None else f"{record.outcome}: {record.error}"
            raise DisconnectFailed(f"the server gave no stream ({why})")
        return record

    def _measure_pace(self, clients: int) -> CrowdPace:
        """Clients who stay to the end."""
        tokens = self._prompt_tokens[clients]
        jobs = [gevent.spawn(self._send, INPUT_TOKENS, PACE_TOKENS)]
        jobs += [gevent.spawn(self._send, tokens, PACE_TOKENS) for _ in range(clients)]
        records = [record for job in jobs if (record := job.get()) is not None]
        answered = [record for record in records if len(record.chunk_us) > 1]
        if len(answered) < len(jobs):
            failed = next((one.outcome for one in records if one.outcome != OK), "no token")
            raise DisconnectFailed(
                f"{len(jobs) - len(answered)} of {len(jobs)} clients got no answer ({failed}): try "
                f"fewer --clients"
            )
        ttft_s = max(record.chunk_us[0] for record in answered) / 1e6
        return CrowdPace(ttft_s, median(map(find_late_gap_s, answered)))

    # -- one round

    def run_round(self, situation: str) -> DisconnectRound:
        clients = CROWD_FACTOR * self._clients if situation == CROWD else self._clients
        pace = self._paces[clients]
        hold_s = self._find_hold_s(situation, pace)
        ghosts = round(min(max(GHOST_S / pace.gap_s, LEAST_GHOSTS), MOST_GHOSTS))
        decoded = DECODE_TOKENS if situation in (DECODE, UNSTREAMED, CROWD) else 0
        # a step has the prompts of some clients
        longest = ghosts + 2 * clients
        # a witness that ends sooner shows no tail
        held = 2 * math.ceil(hold_s / pace.gap_s)
        witness_tokens = min(2 * QUIET_GAPS + held + longest, MOST_WITNESS_TOKENS)
        looks = [self._read()]
        for _ in range(IDLE_LOOKS - 1):
            gevent.sleep(POLL_S)
            looks.append(self._read())
        idle = looks[-1]
        witness = gevent.spawn(self._send, INPUT_TOKENS, witness_tokens)
        readings = list[CounterReading]()
        stop = Event()
        poller = gevent.spawn(self._poll, readings, stop)
        gevent.sleep(self._ttft_s + QUIET_GAPS * self._gap_s)
        came_at = time.monotonic()
        at_once = situation == BEFORE_FIRST_TOKEN
        before = self._read() if at_once else None
        jobs = [
            gevent.spawn(
                self._send,
                self._long_tokens if situation == PREFILL else self._prompt_tokens[clients],
                decoded + ghosts,
                streaming=situation != UNSTREAMED,
                cancel_after_s=0.0 if at_once else None,
            )
            for _ in range(clients)
        ]
        if at_once:
            gevent.joinall(jobs)
        else:
            gevent.sleep(hold_s)
            before = self._read()
        left_at = time.monotonic()
        gevent.killall(jobs)
        records = [record for job in jobs if (record := read_record(job)) is not None]
        stayed = read_record(witness)
        last = self._wait_for_last_reading()
        stop.set()
        poller.join()
        left = sum(record.outcome == CANCELLED for record in records)
        if stayed is None or stayed.outcome != OK or not left:
            raise DisconnectFailed(
                "the server did not answer the witness stream"
                if left
                else "no client could leave: the answers were over before"
            )
        decoding_at = left_at
        if situation in (DECODE, CROWD) and all(record.chunk_us for record in records):
            decoding_at = max(find_chunk_times(record)[0] for record in records)
        others = had_other_requests(looks, readings, last, clients)
        times = RoundTimes(came_at, decoding_at, left_at)
        # work before the clients left that no chunk shows
        unseen_pace_s = pace.gap_s if situation == UNSTREAMED else math.inf
        return DisconnectRound(
            situation=situation,
            clients=left,
            counters=None
            if others
            else count_ghosts(
                left, before, last, readings, stayed, records, left_at, unseen_pace_s
            ),
            witness=cut_witness(find_chunk_times(stayed), times, longest),
            kv_returned=is_kv_back(idle, last),
            others=others,
        )

    def _find_hold_s(self, situation: str, pace: CrowdPace) -> float:
        """The time that clients stay."""
        if situation == BEFORE_FIRST_TOKEN:
            return 0.0
        if situation == PREFILL:
            return self._long_ttft_s / 2
        return min(pace.ttft_s + DECODE_TOKENS * pace.gap_s, MOST_HOLD_S)

    def _send(
        self,
        input_tokens: int,
        tokens: int,
        *,
        streaming: bool = True,
        cancel_after_s: float | None = None,
    ) -> Record | None:
        """None: it was killed before it was sent."""
        if input_tokens not in self._texts:
            size = (input_tokens, 0.0)
            self._texts[input_tokens] = Prompts(PromptLengthModel(), input_tokens=size, seed=None)
        asked = make_lab_request(
            self._settings, self._headers, self._model, self._texts[input_tokens].draw().text,
            tokens, form=self._form, forced=self._forced, streaming=streaming,
            cancel_after_s=cancel_after_s, name="disconnect",
        )  # fmt: skip
        connection = UserConnection(on_kill=lambda: CANCELLED)
        try:
            return exchange_request(connection, self._gate, asked.request, 0.0)
        except GreenletExit as killed:
            return getattr(killed, "record", None)
        finally:
            connection.close()

    # -- counters

    def _read(self) -> CounterReading | None:
        if self._counters is None:
            return None
        with self._one_reading:
            asked_at = time.monotonic()
            sample = self._counters.read()
            return None if sample is None else CounterReading(asked_at, time.monotonic(), sample)

    def _poll(self, readings: list[CounterReading], stop: Event) -> None:
        while not stop.wait(POLL_S):
            reading = self._read()
            if reading is not None:
                readings.append(reading)

    def _wait_for_last_reading(self) -> CounterReading | None:
        """The counters when they stand still."""
        until = time.monotonic() + SETTLED_S
        last = self._read()
        while last is not None and time.monotonic() < until:
            gevent.sleep(2 * POLL_S)
            reading = self._read()
            if reading is None:
                return last
            stands = reading.sample.generated_tokens == last.sample.generated_tokens
            last = reading
            if stands and not reading.open:
                break
        return last


# -- what records and readings show ----------------------------------------------------------------


def read_record(job: gevent.Greenlet) -> Record | None:
    value = job.get()
    return value if isinstance(value, Record) else getattr(value, "record", None)


def divide_prompt_tokens(clients: int, pace_per_s: float = math.inf) -> int:
    """The prompt of each client. The server reads so many tokens a second."""
    together = min(CLIENTS_PROMPT_TOKENS, MOST_PREFILL_S * pace_per_s)
    return max(round(together / clients), INPUT_TOKENS)


def find_gap_s(record: Record, first: int = 0) -> float:
    """The mean from chunk ``first`` on, as a gateway may send several chunks at once."""
    count = len(record.chunk_us) - 1 - first
    return (record.chunk_us[-1] - record.chunk_us[first]) / count / 1e6


def find_late_gap_s(record: Record) -> float:
    """Of the later half: the prompts of other clients hold up the first one."""
    return find_gap_s(record, (len(record.chunk_us) - 1) // 2)


def find_chunk_times(record: Record) -> list[float]:
    """In monotonic s."""
    sent_at = record.sent_at or 0.0
    return [sent_at + us / 1e6 for us in record.chunk_us]


def count_ghosts(
    clients: int,
    before: CounterReading | None,
    last: CounterReading | None,
    readings: Sequence[CounterReading],
    witness: Record,
    records: Sequence[Record],
    left_at: float,
    unseen_pace_s: float,
) -> CounterRound | None:
    """``before``: just before the clients left. ``unseen_pace_s``: the server generated a token for
    each client in this time, which no chunk shows."""
    if before is None or last is None:
        return None
    generated = counter_increase(
        [_with_generated(before.sample), _with_generated(last.sample)], "generated"
    )
    if generated is None:
        return None
    read_at = (before.asked_at + before.came_at) / 2
    a_chunk = (witness.output_tokens or 0) / len(witness.chunk_us)
    chunks = 0
    for record in (witness, *records):
        times = find_chunk_times(record)
        chunks += len(times) - bisect_right(times, read_at)
    unseen = clients * (left_at - read_at) / unseen_pace_s
    # the server read its counters at some moment of the request
    steps = (before.came_at - before.asked_at) / 2 / find_gap_s(witness)
    return CounterRound(
        clients=clients,
        generated=generated,
        received=chunks * a_chunk + unseen,
        doubt=(1 + clients) * a_chunk * steps,
        seconds=find_ghost_seconds(readings, left_at, find_chunk_times(witness)[-1]),
    )


def had_other_requests(
    before: Sequence[CounterReading | None],
    during: Sequence[CounterReading],
    last: CounterReading | None,
    clients: int,
) -> bool:
    """Whether the server had a request that is neither the witness's nor one of the clients': one
    before them, or when the counters stood still, more than these at a time, or more first
    tokens."""
    own = 1 + clients
    around = [reading for reading in (*before, last) if reading is not None]
    if any((reading.open or 0.0) > 0 for reading in around):
        return True
    if any((reading.open or 0.0) > own for reading in during):
        return True
    samples = [reading.sample for reading in around]
    return (counter_increase(samples, "ttft_count") or 0.0) > own


def _with_generated(sample: EngineSample) -> EngineSample:
    return EngineSample(at=sample.at, engine=sample.engine, generated=sample.generated_tokens)


def find_ghost_seconds(
    readings: Sequence[CounterReading], left_at: float, witness_end: float
) -> float | None:
    """The time until the server ran only the witness, as a reading of POLL_S showed it. None: no
    reading tells."""
    after = [
        reading
        for reading in readings
        if left_at < reading.asked_at < witness_end and reading.open is not None
    ]
    if not after:
        return None
    busy = [reading.came_at for reading in after if (reading.open or 0.0) > 1]
    return busy[-1] - left_at if busy else 0.0


def is_kv_back(idle: CounterReading | None, last: CounterReading | None) -> bool | None:
    """Whether as little of the KV cache is in use as before the round. None: unknown."""
    if idle is None or last is None:
        return None
    used = idle.sample.kv_used
    used_later = last.sample.kv_used
    if used is None or used_later is None:
        return None
    return used_later <= used + KV_TOLERANCE


def cut_witness(times: Sequence[float], at: RoundTimes, longest: int) -> WitnessRound | None:
    """``times``: of the chunks of the witness. None: it has too few gaps."""
    gaps = [after - before for before, after in pairwise(times)]
    came = max(bisect_left(times, at.came_at) - 1, 0)
    left = bisect_left(times, at.left_at)
    decoding = min(bisect_left(times, at.decoding_at), left)
    tail = left + longest
    if came < QUIET_GAPS // 2 or len(gaps) - tail < QUIET_GAPS // 2:
        return None
    return WitnessRound(gaps, came, decoding, left, tail)
