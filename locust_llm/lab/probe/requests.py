"""Requests of the interference probe, in episodes, and their results."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from locust_llm.records.record import OK, Record

SIZED_KINDS: Final = ("alone", "stall")
"""Kinds of episodes of which a round has several, of unlike length: of a quarter, a half and all of
the longest prompt."""
OLD_KINDS: Final = {"crowd": "burst"}
"""Kinds of episodes by their names in older records."""


class ProbeRequest(NamedTuple):
    """One request."""

    role: str
    at_s: float
    """After the begin of its episode."""
    input_tokens: int
    output_tokens: int
    text: int = 0
    """Requests of one number, other than 0, have the same prompt."""


class ProbeEpisode(NamedTuple):
    kind: str
    round: int
    requests: tuple[ProbeRequest, ...]
    """The requests, in the order of ``at_s``."""
    expected_s: float = 0.0
    """Estimated time."""
    later: "tuple[ProbeEpisode, ...] | None" = None
    """The episodes that will come after it, if nothing unforeseen is measured; None: not known
    yet."""


class ProbeResult(NamedTuple):
    """The result of one request. Stamps are seconds on one clock."""

    episode: int
    """Number from 0; all requests of an episode have the same."""
    kind: str
    round: int
    role: str
    outcome: str
    asked_tokens: int
    """Of its prompt by the schedule; ``input_tokens`` were counted."""
    input_tokens: int
    output_tokens: int
    asked_output_tokens: int
    sent_at: float
    chunk_at: tuple[float, ...]
    cached_tokens: int | None = None
    early_s: float | None = None
    """After the send, of an event without content well before the first chunk."""
    rounds: int = 0
    """The rounds of the schedule; 0: unknown."""

    @property
    def ok(self) -> bool:
        return self.outcome == OK and bool(self.chunk_at)

    @property
    def whole(self) -> bool:
        """It got all tokens that it asked for, so nothing else ended it."""
        return self.ok and self.output_tokens >= self.asked_output_tokens

    @property
    def tokens_a_chunk(self) -> float:
        return max(1.0, self.output_tokens / len(self.chunk_at))

    @property
    def ttft_s(self) -> float:
        return self.chunk_at[0] - self.sent_at


def format_episode_label(number: int, episode: ProbeEpisode, rounds: int) -> str:
    """The session id in the record of a request: number, round and kind of its episode, number of
    rounds."""
    return f"probe/{number}/{episode.round}/{episode.kind}/{rounds}"


def read_probe_result(record: Record) -> ProbeResult | None:
    """From a record; None of one that is not of a probe. Its name is the role."""
    words = record.session.split("/")
    # older records do not have the number of rounds
    if words[0] != "probe" or len(words) not in (4, 5):
        return None
    sent_at = (
        record.asked_at if record.sent_at is None else record.sent_at
    ) + record.clock_offset_s
    return ProbeResult(
        episode=int(words[1]),
        round=int(words[2]),
        kind=OLD_KINDS.get(words[3], words[3]),
        role=record.name,
        outcome=record.outcome,
        asked_tokens=record.asked_input_tokens or 0,
        input_tokens=record.input_tokens or record.asked_input_tokens or 0,
        output_tokens=record.output_tokens or len(record.chunk_us),
        asked_output_tokens=record.asked_output_tokens or 0,
        sent_at=sent_at,
        chunk_at=tuple(sent_at + us / 1e6 for us in record.chunk_us),
        cached_tokens=record.cached_tokens,
        early_s=None if record.early_us is None else record.early_us / 1e6,
        rounds=int(words[4]) if len(words) > 4 else 0,
    )


def read_probe_results(records: Iterable[Record]) -> list[ProbeResult]:
    """Of all requests of a probe; of another run only the first record is read. ``records`` can be
    read again."""
    first = next(iter(records), None)
    if first is None or read_probe_result(first) is None:
        return []
    return [result for record in records if (result := read_probe_result(record)) is not None]
