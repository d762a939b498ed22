"""Buffering: whether answers came as they were made, or were held back on the way and let go in lumps; the likely cause.

It takes the first answers of a run and no more: what is between server and client does not change from one to the next.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from locust_llm.core.record import OK, Record

ANSWERS: Final = 200
"""Answers that are looked at."""
WARN_AFTER: Final = 20
"""Answers after which there is a warning during the run."""
MIN_ANSWERS: Final = 3
"""Below this number of a kind there is no conclusion."""
MIN_TOKENS: Final = 8
"""Of an answer that is long enough."""
AT_ONCE_US: Final = 1_000
"""No model writes eight tokens in a millisecond."""
WAITED_US: Final = 100_000
"""A whole answer that took less may have been made so fast, or cached."""
LUMP: Final = 4.0
"""Chunks that came together on average, where they are held back until a buffer is full."""
DELAYED_ACK_US: Final = (38_000, 45_000)
"""Linux acknowledges what came after 40 ms, if nothing else is to be sent (TCP_DELACK_MIN); a server without TCP_NODELAY
waits for that before it sends a further small segment (RFC 896)."""
TOGETHER: Final = 1.3
"""Chunks to a read from which on something is held back for the next one."""
DELAYED_SHARE: Final = 0.8
"""Of the gaps, at least, that are as long as a delayed acknowledgement."""
TOKENS_A_CHUNK: Final = 1.2

WHOLE: Final = "whole"
DELAYED: Final = "delayed"
LUMPS: Final = "lumps"


class Buffering:
    """Of one server, over the answers it was given."""

    def __init__(self) -> None:
        self.answers = 0
        """Successful streams that are long enough."""
        self.ways: Counter[str] = Counter()
        """How many of them came in which way, where it was not as they were made."""
        self.chunks = self.tokens = 0
        """Of those whose tokens the server counted."""
        self._longest_us = 0

    def add(self, record: Record) -> bool:
        """Only successful streams of some length count. True once: when there are enough for a warning."""
        us = record.chunk_us
        tokens = record.output_tokens or 0
        if self.answers >= ANSWERS or record.outcome != OK or not us or max(tokens, len(us)) < MIN_TOKENS:
            return False
        self.answers += 1
        if record.tokens_from == "usage" and record.choices == 1:
            self.chunks += len(us)
            self.tokens += tokens
        way = way_of(record)
        self.ways[way] += bool(way)
        if way == WHOLE:
            self._longest_us = max(self._longest_us, us[-1])
        return self.answers == WARN_AFTER

    @property
    def way(self) -> str:
        """In which most of them came; empty: as they were made, or too few."""
        way, count = max(self.ways.items(), key=lambda item: item[1], default=("", 0))
        return way if way and count >= max(MIN_ANSWERS, self.answers / 2) else ""

    @property
    def tokens_a_chunk(self) -> float | None:
        """As the server counted them; None where it did not."""
        return self.tokens / self.chunks if self.chunks else None

    def remarks(self) -> Iterator[str]:
        """What a reader of TTFT and gaps must know."""
        of = f"{self.ways[self.way]} of {self.answers} answers" if self.way else ""
        if self.way == WHOLE:
            yield (
                f"WARNING: BUFFERED STREAM: {of} came whole, every chunk within a millisecond, after up to "
                f"{self._longest_us / 1e6:.1f} s. Something on the way collects them, most likely a proxy (nginx: "
                "proxy_buffering off, or the header X-Accel-Buffering: no; compression does it too). Time to First Token "
                "and all gaps are those of the buffer, not of the server."
            )
        elif self.way == DELAYED:
            yield (
                f"WARNING: BUFFERED STREAM: the chunks of {of} came in steps of 40 ms: the server waits for delayed "
                "acknowledgements before it sends the next (Nagle's algorithm). Set TCP_NODELAY in the server, or in the "
                "proxy before it. Gaps are those of TCP, not of the model."
            )
        elif self.way == LUMPS:
            yield (
                f"WARNING: BUFFERED STREAM: the chunks of {of} came together, {LUMP:g} or more at a time on average: a "
                "buffer on the way lets them go when it is full (a proxy, compression, a server that flushes seldom). "
                "Gaps and Longest Stall are those of the buffer; Inter Token Latency, a mean, is nearly right."
            )


def way_of(record: Record) -> str:
    """In which way one answer came that was held back: WHOLE, DELAYED or LUMPS; empty where it was not, or where it was
    this machine that read late."""
    us = record.chunk_us
    span_us = us[-1] - us[0]
    if (record.read_lag_us or 0) > max(span_us, us[-1] / 2, AT_ONCE_US) / 2:
        return ""
    if len(us) > 1 and span_us <= AT_ONCE_US:
        return WHOLE if us[-1] >= WAITED_US else ""
    reads = sorted(set(us))
    together = len(us) / len(reads)
    gaps_us = [after - before for before, after in pairwise(reads)]
    low, high = DELAYED_ACK_US
    if together >= TOGETHER and len(gaps_us) >= MIN_ANSWERS and share(gaps_us, low, high) >= DELAYED_SHARE:
        return DELAYED
    return LUMPS if together >= LUMP else ""


def share(values: list[int], low: int, high: int) -> float:
    return sum(low <= value <= high for value in values) / len(values)
