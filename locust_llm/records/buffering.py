"""Buffering: whether answers came as they were made, or were held back on the way and released in
lumps. It names the likely cause.

What is between server and client holds back all answers, at any time of a run. A stall of the
server or of this process holds back some of them, for a while. So there is an alarm only when most
answers came so, early and late, over some time. It is taken back when it turns out to be wrong. The
end of the run is judged by the same criterion. Want of CPU has the same effect as a buffer: a
buffer is named only where the processes' health excludes it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.records.run_facts import BUFFERED, TOGETHER_UNEXPLAINED, ProcessHealth
from locust_llm.settings.run_options import Settings
from locust_llm.settings.sweep_option import PREFILL
from locust_llm.slo.metric_definitions import BY_WORD
from locust_llm.slo.rules import Rule

SLOT_S: Final = 5.0
SLOT_ANSWERS: Final = 50
"""So many answers are examined in so many seconds, as each costs some microseconds."""
WARN_AFTER: Final = 20
WARN_AFTER_S: Final = 10.0
"""The answers, and the seconds from the first to the last, that an alarm during the run needs."""
MIN_ANSWERS: Final = 3
"""With fewer of a kind there is no conclusion, unless every answer came whole."""
CHUNKS: Final = 10_000
"""So many first chunks of an answer are examined, which takes 5 ms."""
MIN_TOKENS: Final = 8
"""The shortest answer that is examined."""
AT_ONCE_US: Final = 1_000
"""No model writes eight tokens in a millisecond."""
WAITED_US: Final = 100_000
"""A whole answer that took less may have been made so fast, or cached."""
LUMP: Final = 4.0
"""So many chunks come together on average where they wait until a buffer is full."""
USUAL_LUMP: Final = 3
"""So many chunks come together at least half of the times. A stall makes a few large lumps among
single chunks."""
DELAYED_ACK_US: Final = (38_000, 45_000)
"""Linux acknowledges what came after 40 ms, if nothing else is to be sent (TCP_DELACK_MIN); a
server without TCP_NODELAY waits for that before it sends a further small segment (RFC 896)."""
TOGETHER: Final = 1.3
"""From so many chunks in a read on, something is held back for the next read."""
DELAYED_SHARE: Final = 0.8
"""At least this share of the gaps is as long as a delayed acknowledgement."""
TOKENS_A_CHUNK: Final = 1.2
WAITED_FOR_CORE: Final = 0.25
"""The share of the run without a free core from which on a wait may have merged the chunks. For
lumps of ``LUMP`` chunks a process must have missed three of four."""
BUSY_CORES: Final = 0.9
"""The share of all cores' time from which on some process waits for a core."""
TAKEN_BACK: Final = "The warning about a buffer no longer holds"
LATER_KNOWN: Final = "; at its end the run may know which"
DECIDED_LATER: Final = (
    "The warning during the run did not know the cause; there were free cores, so it is no lack of "
    "CPU."
)
"""Where the alarm left open what the end of the run knows."""

WHOLE: Final = "whole"
DELAYED: Final = "delayed"
LUMPS: Final = "lumps"


class Buffering:
    """Finds out whether one server gathers its answers before it sends them."""

    def __init__(self, arm: str = "", parts: str = "") -> None:
        """``arm``: the server's, of two that are compared. ``parts``: of stages or repeats, whose own
        reports have this note too."""
        self._arm = arm
        self._parts = parts
        self.answers = 0
        """Successful streams that are long enough."""
        self.ways: Counter[str] = Counter()
        """How many of them came in each way, where it was not as they were made."""
        self.chunks = self.tokens = 0
        """Chunks of answers whose tokens the server counted."""
        self._slots: dict[int, Counter[str]] = defaultdict(Counter)
        """The ways by time slot, the empty way too."""
        self._first_at = self._last_at = 0.0
        self._longest_us = 0
        self._alarm_s: float | None = None
        """When there was an alarm, in seconds after the first answer."""
        self._retracted = False

    def add(self, record: Record) -> str:
        """Add a successful stream of some length; others do not count. Returns a line for the
        console: the alarm, or its withdrawal; else empty."""
        us = record.chunk_us
        tokens = (record.output_tokens or 0) - (record.hidden_tokens or 0)
        if record.outcome != OK or not us or max(tokens, len(us)) < MIN_TOKENS:
            return ""
        at = record.closed_unix_s
        self._first_at = self._first_at or at
        slot = self._slots[int((at - self._first_at) // SLOT_S)]
        if slot.total() >= SLOT_ANSWERS or read_too_late(record):
            return ""
        self._last_at = max(self._last_at, at)
        self.answers += 1
        if record.tokens_from == "usage" and record.choices == 1:
            self.chunks += len(us)
            self.tokens += tokens
        way = classify_buffering(record)
        slot[way] += 1
        self.ways[way] += bool(way)
        if way == WHOLE:
            self._longest_us = max(self._longest_us, us[-1])
        return self._news()

    def _news(self) -> str:
        seconds = self._last_at - self._first_at
        if self._alarm_s is None:
            if self.answers < WARN_AFTER or seconds < WARN_AFTER_S or not self.way:
                return ""
            self._alarm_s = seconds
            return next(self.remarks(goes_on=True))
        if self._retracted or self.way:
            return ""
        self._retracted = True
        return self._retraction()

    def _retraction(self) -> str:
        return (
            f"{TAKEN_BACK}: of {self.answers} responses {self.ways.total()} were held back. A "
            "buffer would hold back most responses, early and late in the run."
        )

    @property
    def way(self) -> str:
        """The way in which most answers came, in both halves of the time. Empty: as they were made,
        or there are too few."""
        way, count = max(self.ways.items(), key=lambda item: item[1], default=("", 0))
        every = way == WHOLE and count == self.answers
        if not way or (count < MIN_ANSWERS and not every):
            return ""
        slots = sorted(slot for slot, ways in self._slots.items() if ways)
        middle = (slots[0] + slots[-1] + 1) // 2 if len(slots) > 1 else slots[0]
        earlier = [self._slots[slot] for slot in slots if slot < middle]
        later = [self._slots[slot] for slot in slots if slot >= middle]
        most = _is_usual_way(way, earlier) and _is_usual_way(way, later)
        return way if most and 2 * count >= self.answers else ""

    @property
    def tokens_a_chunk(self) -> float | None:
        """The tokens in a chunk, as the server counted them. None: it did not count."""
        return self.tokens / self.chunks if self.chunks else None

    def remarks(self, shortage: str | None = None, *, goes_on: bool = False) -> Iterator[str]:
        """What TTFT and gaps need as a remark, by all answers so far. ``shortage``: see
        describe_cpu_shortage. ``goes_on``: whether a core was free is known at the end alone."""
        if self._alarm_s is not None and not self.way:
            yield self._retraction()
        if not self.way:
            return
        of = f"{self.ways[self.way]} of {self.answers} responses examined"
        of += f" of the {self._arm}" * bool(self._arm)
        of += f" in all {self._parts}" * (bool(self._parts) and not goes_on)
        took = f"{self._longest_us / 1e6:.1f} s"
        pattern, cause, effect, blurred = _WORDS[self.way]
        pattern = pattern.format(of=of, took=took)
        if self.answers < MIN_ANSWERS:  # a single wait of the server may look the same
            shortage = shortage or None
        if shortage:
            yield (
                f"{TOGETHER_UNEXPLAINED}: {pattern} {shortage}. So the cause is not known: a buffer "
                f"on the way, or too little CPU. Repeat the run with free cores. {blurred}"
            )
        elif shortage is None:
            either = f"{cause[0].lower()}{cause[1:].removesuffix('.')}"
            yield (
                f"{TOGETHER_UNEXPLAINED}: {pattern} Either {either}, or a process had too little "
                f"CPU{LATER_KNOWN * goes_on}. {blurred}"
            )
        else:
            decided = f"{DECIDED_LATER} " if self._alarm_s is not None else ""
            yield f"{BUFFERED}: {pattern} {decided}{cause} {effect}"


class BufferingByArm:
    """The buffering of each server that is compared; of one server alone where none is."""

    def __init__(self, settings: Settings) -> None:
        """The arms of an A/A test, and prefill limits that are compared, have one server."""
        self._has_arms = settings.compares and not settings.same_server
        self._parts = "repeats" if settings.repeats > 1 else ""
        if settings.sweep and not settings.sweeps(PREFILL):
            self._parts = "stages"
        self._of_arm: dict[str, Buffering] = {}

    def add(self, record: Record) -> str:
        """As ``Buffering.add``."""
        arm = record.arm if self._has_arms else ""
        if arm not in self._of_arm:
            self._of_arm[arm] = Buffering(arm, self._parts)
        return self._of_arm[arm].add(record)

    def remarks(self, shortage: str | None = None) -> Iterator[str]:
        """As ``Buffering.remarks``, of each server."""
        for buffering in self._of_arm.values():
            yield from buffering.remarks(shortage)


_WORDS: Final = {
    WHOLE: (
        "{of} arrived complete, all chunks within a millisecond, after up to {took}.",
        "The server or a proxy buffers them (nginx: set proxy_buffering off, or the header "
        "X-Accel-Buffering: no; compression also buffers).",
        "Time to First Token and all gaps describe the buffer, not the server.",
        "Time to First Token and all gaps do not describe the model.",
    ),
    DELAYED: (
        "the chunks of {of} arrived in steps of 40 ms.",
        "The server waits for delayed acknowledgements before it sends the next chunk (Nagle's "
        "algorithm: set TCP_NODELAY in the server or its proxy).",
        "Gaps describe TCP, not the model.",
        "Gaps do not describe the model.",
    ),
    LUMPS: (
        f"the chunks of {{of}} arrived in groups of {LUMP:g} or more on average.",
        "A buffer releases them when it is full (a proxy, compression, or a server that writes "
        "several tokens at a time).",
        "Time to First Token, gaps and Longest Stall describe the buffer; Inter Token Latency, a mean, "
        "is nearly right.",
        "Time to First Token, gaps and Longest Stall do not describe the model; Inter Token Latency, a "
        "mean, is nearly right.",
    ),
}
"""(what was seen, its cause where nothing else explains it, what the buffer did to the metrics,
what is known of them where the cause may be another)."""


_OF_FIRST_CHUNK: Final = ("ttft", "ttft_from_due", "ttfo")
_OF_GAPS: Final = ("icl", "longest_stall", "fluidity", "qoe", "reading_stall")
_OF_TOKEN_TIMES: Final = ("itl", "output_tokens_per_s_per_user")
_GATHERED_METRICS: Final = {
    WHOLE: frozenset((*_OF_FIRST_CHUNK, *_OF_GAPS, *_OF_TOKEN_TIMES)),
    DELAYED: frozenset(_OF_GAPS),
    LUMPS: frozenset((*_OF_FIRST_CHUNK, *_OF_GAPS)),
}
"""The metrics, by their names in rules, that do not describe the model."""


def find_gathered_metrics(notes: Iterable[str]) -> frozenset[str]:
    """The metrics that do not describe the model, by the notes of a run. Empty: its chunks came as
    they were made."""
    gathered = set[str]()
    for note in notes:
        if note.startswith((BUFFERED, TOGETHER_UNEXPLAINED)):
            gathered |= _find_metrics_of_note(note)
    return frozenset(gathered)


def _find_metrics_of_note(note: str) -> frozenset[str]:
    for way, (_, _, effect, blurred) in _WORDS.items():
        if note.endswith((effect, blurred)):
            return _GATHERED_METRICS[way]
    return _GATHERED_METRICS[WHOLE]  # of an older version, in other words


def is_gathered(rule: Rule, notes: Iterable[str]) -> bool:
    """Whether the metric of a rule, or of its conditions on each request, does not describe the
    model."""
    metrics = {rule.metric, *(condition.metric for condition in rule.given)}
    return bool(metrics & find_gathered_metrics(notes))


def describe_gathering(notes: Iterable[str]) -> str:
    """Why the metrics of ``find_gathered_metrics`` do not describe the model."""
    if any(note.startswith(BUFFERED) for note in notes):
        return "the streams were buffered on the way"
    return "a buffer or too little CPU gathered the chunks"


def describe_metrics_left_out(notes: Iterable[str]) -> str:
    """Which metrics are not compared with another run's or server's, and why. Empty: all are."""
    notes = list(notes)
    metrics = find_gathered_metrics(notes)
    if not metrics:
        return ""
    labels = [BY_WORD[word].spoken_name for word in ("ttft", "itl", "icl") if word in metrics]
    return f"{describe_gathering(notes)}, so {', '.join(labels)} and Longest Stall are not compared"


def find_core_wait(healths: Sequence[ProcessHealth]) -> float:
    """The share of the run in which a thread of the load generator waited for a core. 0: too small
    to merge the chunks, or not known."""
    longest = max((health.cpu_wait_share or 0.0 for health in healths), default=0.0)
    return longest if longest >= WAITED_FOR_CORE else 0.0


def describe_cpu_shortage(healths: Sequence[ProcessHealth]) -> str | None:
    """Why chunks may have come together for want of CPU, in a sentence without a period. Empty: the
    load generator and a server on its machine had free cores. None: the server's machine is another
    one, or nobody measured."""
    if wait := find_core_wait(healths):
        return f"A thread of the load generator waited for a core for {wait:.0%} of the run"
    busy = [health.machine_busy for health in healths if health.server_cores is not None]
    if not busy or None in busy:
        return None
    most = max(share or 0.0 for share in busy)
    if most >= BUSY_CORES:
        return f"The cores of the server's machine were busy for {most:.0%} of the time"
    return ""


def _is_usual_way(way: str, part: Sequence[Counter[str]]) -> bool:
    """Whether at least half of all answers in some time slots came in this way."""
    of_way = sum(ways[way] for ways in part)
    every = sum(ways.total() for ways in part)
    return bool(2 * of_way >= every)


def classify_buffering(record: Record) -> str:
    """The way in which an answer was held back: WHOLE, DELAYED or LUMPS. Empty: it was not, or this
    machine read late."""
    us = record.chunk_us
    span_us = us[-1] - us[0]
    first = us[:CHUNKS]
    if read_too_late(record):
        return ""
    if len(us) > 1 and span_us <= AT_ONCE_US:
        return WHOLE if us[-1] >= WAITED_US else ""
    reads = sorted(set(first))
    together = len(first) / len(reads)
    gaps_us = [after - before for before, after in pairwise(reads)]
    low, high = DELAYED_ACK_US
    if (
        together >= TOGETHER
        and len(gaps_us) >= MIN_ANSWERS
        and fraction_in_range(gaps_us, low, high) >= DELAYED_SHARE
    ):
        return DELAYED
    usual = median(Counter(first).values())
    return LUMPS if together >= LUMP and usual >= USUAL_LUMP else ""


def read_too_late(record: Record) -> bool:
    """Whether this machine read so late that it may have merged the chunks itself: later than the
    average gap. Where all came at once, later than half of what they took."""
    us = record.chunk_us
    span_us = us[-1] - us[0]
    lag_us = record.read_lag_us or 0
    if span_us <= AT_ONCE_US:
        return lag_us > max(us[-1] / 2, AT_ONCE_US) / 2
    return lag_us >= max(span_us / (len(us) - 1), AT_ONCE_US)


def fraction_in_range(values: list[int], low: int, high: int) -> float:
    return sum(low <= value <= high for value in values) / len(values)
