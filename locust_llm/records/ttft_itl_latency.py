"""TTFT, ITL, latency, and also the waits and gaps of one request, computed from its
stamps and token counts.

``Record`` is made of it, and so has all of these as properties. Their percentiles over many
requests are the report's.
"""

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from .outcomes import OK

# Why a request has no ITL.
NOT_STREAMED: Final = "had no chunk"
NO_COUNT: Final = "have no count of tokens"
ONE_CHUNK: Final = "came in one chunk"
ONE_TOKEN: Final = "have fewer than two tokens"
AT_ONCE: Final = "were read at once"
HIDDEN_REASONING: Final = "have hidden reasoning without a count"
TOKENS_A_MS: Final = 8
"""No model writes so many tokens in a millisecond."""
DUE: Final = "due"
GAPS: Final = "gaps"
"""What an imported record may lack: when it was due, and the stamps between its first and last
chunk."""


class RequestLatency:
    """The durations of a request. The fields that they need are declared in ``Record``."""

    __slots__ = ()
    due_at: float
    asked_at: float
    admitted_at: float | None
    sent_at: float | None
    closed_at: float
    reconnect_s: float | None
    turnaround_us: int | None
    paused_us: int | None
    attempt: int
    resent: int
    chunk_us: tuple[int, ...]
    merged: tuple[tuple[int, int], ...]
    first_output: int | None
    first_chunk_tokens: int
    outcome: str
    streamed: bool
    choices: int
    output_tokens: int | None
    hidden_tokens: int | None
    lacks: tuple[str, ...]

    @property
    def ttft_s(self) -> float | None:
        """chunk_at[0] - sent_at; None without a chunk."""
        return self.chunk_us[0] / 1e6 if self.chunk_us else None

    @property
    def ttft_is_upper_bound(self) -> bool:
        """The first chunk was read together with others: it may have arrived sooner."""
        return bool(self.merged) and self.merged[0][0] == 0

    @property
    def ttft_soonest_s(self) -> float | None:
        """The soonest that the first chunk can have come; equal to TTFT unless that is an upper
        bound."""
        return self.merged[0][1] / 1e6 if self.ttft_is_upper_bound else self.ttft_s

    @property
    def ttfo_s(self) -> float | None:
        """The time to the first chunk that is no reasoning."""
        return None if self.first_output is None else self.chunk_us[self.first_output] / 1e6

    @property
    def ttft_from_due_s(self) -> float | None:
        """chunk_at[0] - due_at: what a user would have waited."""
        if self.sent_at is None or not self.chunk_us or DUE in self.lacks:
            return None
        return self.sent_at - self.due_at + self.chunk_us[0] / 1e6

    @property
    def latency_s(self) -> float | None:
        """chunk_at[-1] - sent_at, or closed_at - sent_at for an answer that was not streamed. None:
        there is neither."""
        if self.chunk_us:
            return self.chunk_us[-1] / 1e6
        if self.sent_at is None or self.streamed or self.outcome != OK:
            return None
        return self.closed_at - self.sent_at

    @property
    def latency_soonest_s(self) -> float | None:
        """The soonest that the last chunk can have come; equal to the latency unless it came in one
        read with others."""
        if self.merged and self.merged[-1][0] == len(self.chunk_us) - 1:
            return self.merged[-1][1] / 1e6
        return self.latency_s

    @property
    def itl_s(self) -> float | None:
        """(latency - TTFT) / (output tokens - tokens of the first chunk): AIPerf's
        inter_token_latency, which many tools call TPOT.

        Several choices come side by side, so the average tokens of one count. None where two
        stamps, or the tokens between them, are unknown: see ``no_itl``.
        """
        if self.no_itl:
            return None
        return self._span_us / 1e6 / self._tokens_later

    @property
    def no_itl(self) -> str:
        """Why the request has no ITL. Empty: it has one."""
        us = self.chunk_us
        if not us:
            return NOT_STREAMED
        if self.output_tokens is None:
            return NO_COUNT
        if len(us) == 1:
            return ONE_CHUNK
        if self.hidden_tokens is None or (self.hidden_tokens and self.first_output is None):
            return HIDDEN_REASONING
        if self._first == len(us) - 1:
            return ONE_CHUNK
        later = self._tokens_later
        if self._came_at_once(later):
            return AT_ONCE
        return "" if later > 0 else ONE_TOKEN

    @property
    def _first(self) -> int:
        """The index of the chunk from which on the tokens are known: a summary of hidden reasoning
        has other tokens."""
        return self.first_output or 0 if self.hidden_tokens else 0

    @property
    def _span_us(self) -> int:
        return self.chunk_us[-1] - self.chunk_us[self._first]

    @property
    def _tokens_later(self) -> float:
        """The tokens after the first chunk."""
        return (
            (self.output_tokens or 0) - (self.hidden_tokens or 0)
        ) / self.choices - self.first_chunk_tokens

    def _came_at_once(self, later: float) -> bool:
        """Whether the answer was gathered on the way: most of it came in the first read, or
        together with others, faster than any model writes."""
        us = self.chunk_us
        chunks = len(self.chunk_us)
        if us[-1] == us[self._first]:
            return True
        if not self.merged:
            return False
        if self.choices == 1 and 2 * bisect_right(us, us[0]) > chunks:
            return True
        return 2 * len(self.merged) > chunks and self._span_us * TOKENS_A_MS < later * 1000

    @property
    def gate_wait_s(self) -> float | None:
        """admitted_at - asked_at."""
        return None if self.admitted_at is None else self.admitted_at - self.asked_at

    @property
    def send_delay_s(self) -> float | None:
        """sent_at - admitted_at, without a new connection in between: the load generator's own
        time.

        None for a request that was sent again as the server was closing its connection.
        """
        if self.sent_at is None or self.admitted_at is None or self.resent:
            return None
        return max(0.0, self.sent_at - self.admitted_at - (self.reconnect_s or 0.0))

    @property
    def turnaround_s(self) -> float | None:
        """The load generator's own time from the user's previous answer to this request."""
        return None if self.turnaround_us is None else self.turnaround_us / 1e6

    @property
    def cycle_s(self) -> float:
        """The time of a closed loop for this request: from the user's previous answer, where it
        is known, to the end of this one, without connecting. It has all attempts: they were due
        when the first one was."""
        before_us = (self.turnaround_us or 0) + (self.paused_us or 0)
        began_at = self.due_at if self.attempt > 1 else self.asked_at
        return self.closed_at - began_at + before_us / 1e6

    @property
    def late_s(self) -> float | None:
        """sent_at - due_at: what coordinated omission hides."""
        return None if self.sent_at is None or DUE in self.lacks else self.sent_at - self.due_at

    @property
    def close_lag_s(self) -> float | None:
        """closed_at - chunk_at[-1]."""
        if self.sent_at is None or not self.chunk_us:
            return None
        return self.closed_at - self.sent_at - self.chunk_us[-1] / 1e6

    @property
    def known_us(self) -> tuple[int, ...]:
        """The stamps of the chunks where all of them are known, else none."""
        return () if GAPS in self.lacks else self.chunk_us

    @property
    def gaps_us(self) -> tuple[int, ...]:
        """Gaps between neighbouring chunks, in microseconds, merged ones included."""
        return tuple(b - a for a, b in pairwise(self.known_us))

    @property
    def shared(self) -> int:
        """Merged chunks that share their stamp with a neighbour."""
        return sum(self._has_equal_neighbour(index) for index, _ in self.merged)

    def _has_equal_neighbour(self, index: int) -> bool:
        us = self.chunk_us
        before = us[index - 1 : index]
        after = us[index + 1 : index + 2]
        return us[index] in (*before, *after)

    @property
    def sharp_gaps_us(self) -> tuple[int, ...]:
        """The gaps whose two ends are exact. The gap percentiles use them."""
        if not self.merged:
            return self.gaps_us
        blurred = {index for index, _ in self.merged}
        return tuple(
            gap for i, gap in enumerate(self.gaps_us) if i not in blurred and i + 1 not in blurred
        )

    @property
    def blurred_gaps_us(self) -> tuple[tuple[int, int], ...]:
        """(least, most) of each other gap."""
        us = self.chunk_us
        earliest = dict(self.merged)
        return tuple(
            (max(earliest.get(i + 1, us[i + 1]) - us[i], 0), us[i + 1] - earliest.get(i, us[i]))
            for i in range(len(us) - 1 if earliest else 0)
            if i in earliest or i + 1 in earliest
        )

    @property
    def longest_stall_s(self) -> float | None:
        """The largest gap of the request; None below two chunks. Merging can only make it look
        longer."""
        gaps = self.gaps_us
        return max(gaps) / 1e6 if gaps else None
