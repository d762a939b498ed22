"""Run progress: values of a run from finished records and from the status of its processes.

Tokens per second are of the last seconds, with unfinished answers. These are not decoded yet, but
their reads are counted. A read counts as many tokens as the reads of finished answers had on
average. For answers in one piece nothing comes before the end, so ended answers are counted.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from locust_llm.records.early_decode import arrived_whole, measure_early_decode
from locust_llm.records.histogram import Histogram, SlidingHistogram, histogram_percentiles
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED, is_answer, is_unanswered
from locust_llm.records.phase_plan import PROFILING, WARMUP
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.records.server_times import SLACK_US, ServerTimes
from locust_llm.slo.load_generator_health import (
    LATE_SEND,
    LEVELS,
    MERGED,
    ClientVerdict,
    FigureError,
    ProcessEvidence,
    judge_figures,
)
from locust_llm.slo.load_generator_health import OK as CLIENT_OK
from locust_llm.slo.metric_definitions import TTFT, name_token_rate

SETTLED_S: Final = 5.0
"""There is no client verdict before this: a p99 of the first requests is the slowest of them, and a
start is slow."""
OPEN_ENDED: Final = 2.0
"""A run without a known end is assumed to last so many times as long as it has."""
MIN_MEDIAN: Final = 20
MIN_TAIL: Final = 100
"""So many answers of a process are needed for a p50 and a p95. With fewer, a single one may
decide."""
WINDOW_S: Final = 10
"""The seconds behind recent percentiles."""
MAX_NAMES: Final = 1000
"""The most request names. A locustfile may give each request its own."""
RATE_S: Final = 5.0
"""The seconds behind tokens per second."""
MAX_SILENCE_S: Final = 2.0
"""After so long without a status, missing reads count as none."""
SILENT_S: Final = 3.0
"""A silence of the server is shown from so long on, where requests are in flight."""
SILENT_UNKNOWN_S: Final = 10.0
"""The same before the first token of the run."""
SILENT_TTFTS: Final = 3.0
"""Where no request in flight has a token yet, a silence is so many times the longest TTFT. In the
only answer in flight it is so many times the longest pause so far."""
MIN_IN_FLIGHT: Final = 2
"""One request alone may wait for its own prompt."""
STATUS_GAP_S: Final = 1.0
"""A process whose status is older stood still itself, and its reads are not known."""
LATE_READ_US: Final = 1000
"""From so long on, bytes lay unread for a while. Chunks that came together and were read sooner
were sent together."""
PARTS_S: Final = 30
"""The whole seconds behind the recent parts of requests' time."""
PARTS: Final = (
    "late",
    "retries",
    "gate",
    "connect",
    "send",
    "network",
    "queue",
    "prefill",
    "server",
    "held",
    "with_decode",
    "client",
)
"""The parts in their order, as the report has them. ``server`` is time that no answer splits into
queue and prefill. A reported prefill holds other requests' prefills in the same steps. Without a
gate, the wait for admission is a wait for this process's event loop: ``late``."""


class ClientLateness:
    """The lateness of one process so far. The report computes the same from all records."""

    def __init__(self) -> None:
        self.requests = self.answered = 0
        self.chunks = self.merged = 0
        self.latest_s = self.late_s = self.taken_s = 0.0
        """The longest time from admission to send, the sum of these times, and the sum of the times
        from admission to the end."""
        self.ttft = Histogram()
        self.soonest = Histogram()
        self.send_lag = Histogram()
        self.health: ProcessHealth | None = None

    def add(self, record: Record) -> None:
        self.requests += 1
        if (late_s := record.send_delay_s) is not None and record.admitted_at is not None:
            self.send_lag.add(round(late_s * 1e6))
            self.latest_s = max(self.latest_s, late_s)
            self.late_s += late_s
            self.taken_s += record.closed_at - record.admitted_at
        if record.outcome != OK:
            return
        self.answered += 1
        self.chunks += len(record.chunk_us)
        self.merged += record.shared
        for histogram, ttft_s in (
            (self.ttft, record.ttft_s),
            (self.soonest, record.ttft_soonest_s),
        ):
            if ttft_s is not None:
                histogram.add(round(ttft_s * 1e6))

    def figures(self, times: float = 1.0) -> Iterator[FigureError]:
        """How far TTFT percentiles with enough values may be off. ``times``: as if the run were so
        many times as long, and its rest had no delay of the load generator."""
        undelayed = _scale(self.soonest.counts, times - 1)
        punctual = {0: self.requests * (times - 1)}
        for percentile, least in ((50.0, MIN_MEDIAN), (95.0, MIN_TAIL)):
            if self.ttft.count < least or not self.send_lag.count:
                continue
            ttft_ms, soonest_ms, late_ms = (
                _percentile_ms(histogram.counts, more, percentile)
                for histogram, more in (
                    (self.ttft, undelayed), (self.soonest, undelayed), (self.send_lag, punctual),
                )
            )  # fmt: skip
            causes = {MERGED: max(ttft_ms - soonest_ms, 0.0), LATE_SEND: late_ms}
            largest = sorted(causes.items(), key=lambda pair: -pair[1])
            yield FigureError(
                word=TTFT.word, stat=f"p{percentile:g}", label=f"TTFT p{percentile:g}", unit="ms",
                value=ttft_ms, lower=sum(causes.values()), higher=late_ms, causes=dict(largest),
            )  # fmt: skip

    def evidence(self, worker: str) -> ProcessEvidence:
        health = self.health
        return ProcessEvidence(
            worker=worker,
            requests=self.requests,
            merged_share=self.merged / self.chunks if self.chunks else None,
            latest_send_ms=self.latest_s * 1e3,
            late_share=self.late_s / self.taken_s if self.taken_s > 0 else None,
            loop_lag_p99_ms=None if health is None else health.loop_lag_p99_ms,
            cpu_share=None if health is None else health.cpu_share,
            cpu_wait_share=None if health is None else health.cpu_wait_share,
        )


def _scale(counts: Mapping[int, int], times: float) -> dict[int, float]:
    return {us: count * times for us, count in counts.items()}


def _percentile_ms(
    counts: Mapping[int, int], more: Mapping[int, float], percentile: float
) -> float:
    """A percentile of both windows together."""
    both = {us: counts.get(us, 0) + more.get(us, 0.0) for us in counts.keys() | more.keys()}
    known = {us: count for us, count in both.items() if count}
    return histogram_percentiles(known, [percentile])[0] / 1e3


class LostWorker(NamedTuple):
    """A lost process, for the people who watch the run."""

    at: float
    """Unix seconds."""
    number: int
    """Its place among the processes, from 1."""
    of: int
    missing: int
    """The requests that it had sent and that have no record."""
    recovered: int
    """The records that were on its disk."""


class ProcessState(NamedTuple):
    """An active process, for the people who watch the run."""

    number: int
    """Its place among the processes, from 1."""
    users: int
    cpu_share: float | None
    """The share of a core that it has used. None: not known."""
    silent_s: float
    """The seconds since its last message."""


class RequestCounts(NamedTuple):
    ok: int
    failed: int
    cancelled: int
    """The requests that ``--request-cancellation-rate`` cancelled."""
    cut: int
    """The requests that the end of the run cut."""

    @property
    def ended_by_us(self) -> dict[str, int]:
        """The requests that the load generator ended itself, by their word; nothing where there are
        none."""
        words = {"cancelled": self.cancelled, "cut": self.cut}
        return {word: count for word, count in words.items() if count}


def _count_outcomes(counts: Counter[str]) -> RequestCounts:
    ok, cancelled, cut = counts[OK], counts[CANCELLED], counts[CUT]
    return RequestCounts(ok, counts.total() - ok - cancelled - cut, cancelled, cut)


class TTFTParts:
    """Where the time of answered requests from due to the first token went, from their records
    alone. It uses neither spans, which come later, nor estimates, which need other requests. It
    takes at most 2 µs a record."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.by_phase: dict[str, list[float]] = {}
        """The seconds of each part in the order of PARTS, and the number of requests."""
        self._second = -1
        self._before: deque[tuple[int, list[float]]] = deque()
        """The sums at the begin of each second in which something was added."""

    def add(self, record: Record) -> None:
        sent_at, chunk_us = record.sent_at, record.chunk_us
        if sent_at is None or not chunk_us or record.outcome != OK:
            return
        if (second := int(self._clock())) != self._second:
            self._turn(second)
        if (sums := self.by_phase.get(record.phase)) is None:
            sums = self.by_phase[record.phase] = [0.0] * (len(PARTS) + 1)
        # conditions, as min() and max() would double what all this costs
        before = sent_at - record.due_at
        if (admitted_at := record.admitted_at) is not None and record.limit is not None:
            gate = admitted_at - record.asked_at
            before -= gate
            sums[2] += gate
        if (connect := record.connect_s) is not None:
            connect = connect if connect < before else before
            before -= connect
            sums[3] += connect
        if before > 0.0:
            sums[1 if record.attempt > 1 or record.resent else 0] += before
        inside = chunk_us[0]
        late = 0
        if record.merged and record.merged[0][0] == 0 and (record.read_lag_us or 0) >= LATE_READ_US:
            late = inside - record.merged[0][1]
            sums[11] += late / 1e6
            inside -= late
        if (send := record.written_us) is not None:
            send = send if send < inside else inside
            inside -= send
            sums[4] += send / 1e6
        network = record.rtt_us or 0
        network = network if network < inside else inside
        whole = arrived_whole(record)
        if (times := record.server) is not None:
            whole = whole and times.decode_us is None
            network, inside = self._reported(record, times, inside, network, sums, late, whole)
        sums[5] += network / 1e6
        sums[10 if whole else 8] += (inside - network) / 1e6
        sums[12] += 1

    def _reported(
        self,
        record: Record,
        times: ServerTimes,
        inside: int,
        network: int,
        sums: list[float],
        late: int,
        whole: bool,
    ) -> tuple[int, int]:
        """(network, network and the rest of the server) in µs. Where the server reported both, the
        rest is the network and the front end, unless the answer came ``whole``, with an unknown
        decode. Impossible values are left out. The first chunk may have been read so ``late``."""
        queue, prefill = times.queue_us, times.prefill_us
        decode = times.decode_us or 0
        split = (queue or 0) + (prefill or 0)
        if split > inside or split + decode > record.chunk_us[-1] + SLACK_US:
            return network, inside
        sums[6] += (queue or 0) / 1e6
        sums[7] += (prefill or 0) / 1e6
        inside -= split
        held = min(measure_early_decode(record, decode, late), inside) if decode else 0
        sums[9] += held / 1e6
        inside -= held
        if queue is None or prefill is None or whole:
            return min(network, inside), inside
        return inside, inside

    def recent(self) -> tuple[int, dict[str, float]]:
        """(how many requests ended in the last ``PARTS_S``, the mean of each part in seconds).
        Without requests there are no parts."""
        oldest = int(self._clock()) - PARTS_S
        while self._before and self._before[0][0] <= oldest:
            self._before.popleft()
        if not self._before:
            return 0, {}
        *sums, count = (
            now - then for now, then in zip(self._whole(), self._before[0][1], strict=True)
        )
        return round(count), {name: total / count for name, total in zip(PARTS, sums, strict=True)}

    def _turn(self, second: int) -> None:
        self._second = second
        self._before.append((second, self._whole()))
        while self._before[0][0] <= second - PARTS_S:
            self._before.popleft()

    def _whole(self) -> list[float]:
        if not self.by_phase:
            return [0.0] * (len(PARTS) + 1)
        return [sum(column) for column in zip(*self.by_phase.values(), strict=True)]


class LoadClock:
    """A clock that stands still while ``goes_on`` is false, at its last reading before: the end of
    a load changes no rate of it, however long the report takes."""

    def __init__(self, clock: Callable[[], float], goes_on: Callable[[], bool]) -> None:
        self._clock, self._goes_on = clock, goes_on
        self._last = clock()

    def __call__(self) -> float:
        if self._goes_on():
            self._last = self._clock()
        return self._last


class FirstTokenWindow:
    """The waits for the first tokens of the last ``WINDOW_S``, whether their requests have ended or
    not."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._came = SlidingHistogram(WINDOW_S, clock)

    def add(self, waits_s: Iterable[float]) -> None:
        """First tokens have come after these waits."""
        self._came.add(max(0, round(wait_s * 1e6)) for wait_s in waits_s)

    @property
    def count(self) -> int:
        """The first tokens that came."""
        return self._came.histogram().count

    def percentiles_ms(
        self, *percents: float, waiting: Mapping[int, int] | None = None
    ) -> list[float] | None:
        """``waiting``: how many requests still wait, by their wait so far in microseconds. The ones
        that wait longer than a percentile count in it, with that wait. Where no token came, these
        are the ones that waited all the window. None: there is nothing to count."""
        counts = self._came.histogram().counts
        waiting = waiting or {}
        if not counts:
            longest = {us: count for us, count in waiting.items() if us >= WINDOW_S * 1e6}
            return Histogram(longest).percentiles_ms(*percents)
        found_ms = list[float]()
        for percent in percents:
            (came_us,) = histogram_percentiles(counts, [percent])
            longer = {us: count for us, count in waiting.items() if us > came_us}
            both = Counter(counts) + Counter(longer)
            found_ms += [us / 1e3 for us in histogram_percentiles(both, [percent])]
        return found_ms


class RunProgress:
    """The live values of one run."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        longest_s: float | None = None,
        request_count: int | None = None,
        streams: bool = True,
    ) -> None:
        """``longest_s`` and ``request_count`` are of the profiling phase; None: not known.
        ``streams``: answers come in pieces."""
        self._clock = clock
        self._streams = streams
        self._longest_s, self._request_count = longest_s, request_count
        self.counts: Counter[str] = Counter()
        """Finished requests by outcome."""
        self.profiled: Counter[str] = Counter()
        """The outcomes of the profiling phase."""
        self.names: set[str] = set()
        """The names of these requests."""
        self.output_tokens = 0
        """The output tokens of these requests."""
        self.token_sources: Counter[str] = Counter()
        """What counted them: ``usage`` or ``chunks``."""
        self._reads_of_these = 0
        self._in_flight: dict[str, tuple[int, int, int]] = {}
        """(requests awaiting their first token, at the gate, decoding) of each process."""
        self.used = self.waiting = self.decoding = 0
        """Their sums: awaiting the first token, at the gate, and decoding."""
        self._request_s: dict[str, tuple[float, float, float]] = {}
        self._status_at: dict[str, float] = {}
        """The times of the last status of processes that still have something."""
        self._clients: dict[str, ClientLateness] = {}
        self._first_at: float | None = None
        """When the first request of the profiling phase was over."""
        self._reads: dict[str, int] = {}
        self._most_reads: dict[str, int] = {}
        """The reads of each process never fall. A sentinel stream that is open adds some, which its
        end takes off again: they are no answer of the server."""
        self._refused_reads = Counter[str]()
        """The reads of requests that were refused without an answer, by process."""
        self._all_reads = 0
        self._silent_since: float | None = None
        """Since when no process has read anything, though it had requests, as in the report: from
        the last answer on, or from the first send after it. None: it is not known."""
        self._heard_at: float | None = None
        """When a process last read something, or stood still. None: it is not known."""
        self._unanswered_at = -math.inf
        """When a request last failed without an answer."""
        self._longest_ttft_s: float | None = None
        self._longest_pause_s = 0.0
        """The longest time without a read while answers were coming."""
        """The reads since the first status of each process."""
        self._reads_at: deque[tuple[float, int]] = deque()
        """(when, all reads until then). For answers in one piece it has their tokens instead."""
        self.recent_ttft = FirstTokenWindow(clock)
        self.recent_due = FirstTokenWindow(clock)
        """From due, where ``recent_ttft`` is from the send."""
        self._awaited: dict[str, Mapping[int, int]] = {}
        """By process: how many requests await their first token, by hundredths of a second since
        they were due."""
        self._rate_of: int | None = None
        """The whole second that ``_rate`` belongs to."""
        self._rate = 0.0
        self.parts = TTFTParts(clock)
        self.activity = ""
        """Where the users' own schedule is, such as the probe's. Empty: there is none."""
        self.shown_client: ClientVerdict | None = None
        """The client verdict in the last progress line. None: there was none yet."""

    def add(self, record: Record) -> None:
        """Add a finished request."""
        self.counts[record.outcome] += 1
        if len(self.names) < MAX_NAMES:
            self.names.add(record.name)
        self.output_tokens += record.output_tokens or 0
        self.token_sources[record.tokens_from] += 1
        self._reads_of_these += record.reads
        self.parts.add(record)
        if record.phase == PROFILING:
            self.profiled[record.outcome] += 1
            self._first_at = self._clock() if self._first_at is None else self._first_at
            self._client(record.worker).add(record)

    def note_end(self, record: Record) -> None:
        """Note whether a request that ended was answered; of retried attempts too."""
        has_chunk = bool(record.chunk_us)
        if is_answer(record.outcome, record.status, has_chunk=has_chunk):
            if not has_chunk:
                self._silent_since = self._heard_at = self._clock()
            return
        unanswered = is_unanswered(record.outcome, record.status, has_chunk=has_chunk)
        if record.outcome == RETRIED or (record.failed and unanswered):
            self._unanswered_at = self._clock()
            # it was refused after the last answer, between two statuses
            self._silent_since = self._heard_at
            self._refused_reads[record.worker] += record.reads

    def update(
        self,
        worker: str,
        *,
        used: int,
        waiting: int,
        decoding: int,
        request_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
        ttfts_s: Iterable[float] = (),
        ttfts_from_due_s: Iterable[float] = (),
        awaited: Mapping[int, int] | None = None,
        reads: int = 0,
        health: ProcessHealth | None = None,
        activity: str = "",
    ) -> None:
        """Take the status of a process.

        ``request_s``, ``awaited``: see Status. ``ttfts_s``, ``ttfts_from_due_s``: of first chunks
        since the last status. ``reads``: so far, in all its runs. ``health``: of this run so far. ``activity``: where its users' own
        schedule is.
        """
        now = self._clock()
        self.activity = activity
        self._note_in_flight(worker, used, waiting, decoding)
        self._request_s[worker] = request_s
        stood_still = now - self._status_at.get(worker, now) > STATUS_GAP_S
        self._status_at[worker] = now
        ttfts_s = list(ttfts_s)
        self.recent_ttft.add(ttfts_s)
        self.recent_due.add(ttfts_from_due_s)
        self._awaited[worker] = awaited or {}
        if ttfts_s:
            self._longest_ttft_s = max(self._longest_ttft_s or 0.0, *ttfts_s)
        answer_reads = reads - self._refused_reads[worker]
        # a refusal is read before its record comes
        is_token = bool(ttfts_s) or self.decoding > 0 or not self._is_refused(now)
        if stood_still or (is_token and answer_reads > self._most_reads.get(worker, -1)):
            if self._silent_since is not None and self.decoding and not stood_still:
                self._longest_pause_s = max(self._longest_pause_s, now - self._silent_since)
            self._most_reads[worker] = answer_reads
            self._silent_since = self._heard_at = now
        elif not (self.used or self.decoding or self._is_refused(now)):
            self._silent_since = now
        if not self._reads_at:
            self._reads_at.append((now, 0))
        self._all_reads += reads - self._reads.get(worker, reads)
        self._reads[worker] = reads
        self._reads_at.append((now, self._all_reads if self._streams else self.output_tokens))
        while now - self._reads_at[1][0] >= RATE_S:
            self._reads_at.popleft()
        if health is not None:
            self._client(worker).health = health

    def begin_stage(self) -> None:
        """The client verdict is of the next stage alone, whose length is not known."""
        self._clients.clear()
        self._first_at = self._longest_s = self._request_count = self.shown_client = None

    def end(self, worker: str) -> None:
        """A process has ended all that it had. Its last status was earlier."""
        self._note_in_flight(worker, 0, 0, 0)
        del self._in_flight[worker]
        self._status_at.pop(worker, None)
        self._awaited.pop(worker, None)

    def lose(self, worker: str, reads: int) -> None:
        """A process is lost: nothing of it is running any more, and its totals stay. ``reads``: all
        that are known of it."""
        self._all_reads += reads - self._reads.get(worker, reads)
        self._reads[worker] = reads
        self.end(worker)

    def _client(self, worker: str) -> ClientLateness:
        if worker not in self._clients:
            self._clients[worker] = ClientLateness()
        return self._clients[worker]

    def request_seconds(self) -> tuple[tuple[float, float, float], float]:
        """(request-seconds awaiting the first token, at the gate and decoding; the seconds that
        they cover). They end at the last statuses, on the mean of the processes."""
        used_s, waiting_s, decoding_s = (
            sum(column) for column in zip((0.0,) * 3, *self._request_s.values(), strict=True)
        )
        now = self._clock()
        ages_s = [now - at for at in self._status_at.values()]
        return (used_s, waiting_s, decoding_s), sum(ages_s) / max(1, len(ages_s))

    def first_token_ms(
        self, *percents: float, from_due: bool, endless: Mapping[int, int] | None = None
    ) -> list[float] | None:
        """The waits for the first tokens of the last ``WINDOW_S``. Longer waits of requests that
        still wait count so far. ``from_due``: a schedule or a gate holds requests; else they are
        sent when they are due. ``endless``: how many waits have no end, by a time for it in
        microseconds. None: there are none."""
        window = self.recent_due if from_due else self.recent_ttft
        waiting = Counter(endless or {})
        for awaited in self._awaited.values():
            for hundredths, count in awaited.items():
                waiting[hundredths * 10_000] += count
        return window.percentiles_ms(*percents, waiting=waiting)

    def _note_in_flight(self, worker: str, used: int, waiting: int, decoding: int) -> None:
        used_before, waiting_before, decoding_before = self._in_flight.get(worker, (0, 0, 0))
        self.used += used - used_before
        self.waiting += waiting - waiting_before
        self.decoding += decoding - decoding_before
        self._in_flight[worker] = used, waiting, decoding

    @property
    def inside(self) -> int:
        return self.used + self.waiting + self.decoding

    def silent_s(self) -> float:
        """For how many seconds nothing has answered, though requests are in flight. 0: something
        does, a prompt may take as long, or the load generator stood still itself."""
        now = self._clock()
        busy = [worker for worker, counts in self._in_flight.items() if any(counts)]
        seen_at = min((self._status_at[worker] for worker in busy), default=now)
        several = self.used + self.decoding >= MIN_IN_FLIGHT
        if self._silent_since is None or now - seen_at > STATUS_GAP_S:
            return 0.0
        if not (several or self.decoding or self._is_refused(now)):
            return 0.0
        needed_s = SILENT_S
        if self.decoding and not several:
            needed_s = max(SILENT_S, SILENT_TTFTS * self._longest_pause_s)
        elif not self.decoding:
            longest_s = self._longest_ttft_s
            needed_s = (
                SILENT_UNKNOWN_S if longest_s is None else max(SILENT_S, SILENT_TTFTS * longest_s)
            )
        silent_s = now - self._silent_since
        return silent_s if silent_s >= needed_s else 0.0

    def _is_refused(self, now: float) -> bool:
        """Whether requests fail without an answer."""
        return now - self._unanswered_at < SILENT_S

    def count_phase(self, phase: str) -> RequestCounts:
        """Count the requests of the warmup, or of the profiling phase."""
        return _count_outcomes(self.counts - self.profiled if phase == WARMUP else self.profiled)

    def tokens_per_s(self) -> float:
        """Tokens per second of the last ``RATE_S``: the head of this file explains the estimate. It
        has one value for each whole second, so that the console, the page and a scraper show the
        same."""
        if (second := math.floor(self._clock())) != self._rate_of:
            self._rate_of = second
            self._rate = self._count_tokens_per_s()
        return self._rate

    @property
    def token_rate_unit(self) -> str:
        return name_token_rate(self.token_sources["usage"], self.token_sources["chunks"])

    def _count_tokens_per_s(self) -> float:
        if not self._reads_at:
            return 0.0
        since, before = self._reads_at[0]
        now = self._clock()
        if not self._streams:
            return (self.output_tokens - before) / max(now - since, 1e-9)
        last_at = self._reads_at[-1][0]
        # what was read since then is not known yet
        if since < last_at and now - last_at < MAX_SILENCE_S:
            now = last_at
        per_read = self.output_tokens / self._reads_of_these if self._reads_of_these else 1.0
        return (self._all_reads - before) * per_read / max(now - since, 1e-9)

    def client(self) -> ClientVerdict | None:
        """The client verdict, if the run were over now. It is milder where the rest of the run can
        still lift it, as a slow start is most of a young run, and nothing of a long one.

        None: the profiling phase's first request was over less than ``SETTLED_S`` ago, or the rest
        may lift all of it.
        """
        if self._first_at is None or self._clock() - self._first_at < SETTLED_S:
            return None
        verdict = self._judge()
        if verdict is None or verdict.level == CLIENT_OK:
            return verdict
        at_the_end = self._judge(self._remaining_times())
        if at_the_end is None or at_the_end.level == CLIENT_OK:
            return None
        return min(verdict, at_the_end, key=lambda process: LEVELS.index(process.level))

    def _judge(self, times: float = 1.0) -> ClientVerdict | None:
        """``times``: see ClientLateness.figures."""
        evidence = [
            client.evidence(worker) for worker, client in self._clients.items() if client.requests
        ]
        figures = list[FigureError]()
        if not self.activity:  # of a probe TTFT is not judged at the end either
            for client in self._clients.values():
                figures += client.figures(times)
        return judge_figures(figures, evidence)

    def _remaining_times(self) -> float:
        """How many times as long as now the profiling phase will be at its end."""
        ends = []
        if self._longest_s is not None and self._first_at is not None:
            ends.append(self._longest_s / (self._clock() - self._first_at))
        if self._request_count is not None:
            ends.append(self._request_count / self.profiled.total())
        return max(1.0, min(ends, default=OPEN_ENDED))
