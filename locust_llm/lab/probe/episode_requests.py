"""Episode requests: describes the probe's requests, in episodes, and their results."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record

SIZED_KINDS: Final = ("alone", "stall")
"""A round has several episodes of these kinds, of a quarter, a half and all of the longest
prompt."""
OLD_KINDS: Final = {"crowd": "burst"}
"""Older records have these names for kinds of episodes."""


class ProbeRequest(NamedTuple):
    role: str
    at_s: float
    """The request is sent this many seconds after the begin of its episode."""
    input_tokens: int
    output_tokens: int
    text: int = 0
    """Requests with the same number, other than 0, have the same prompt."""


class ProbeEpisode(NamedTuple):
    kind: str
    round: int
    requests: tuple[ProbeRequest, ...]
    """The requests are sorted by ``at_s``."""
    expected_s: float = 0.0
    """The episode takes about this time."""
    later: "tuple[ProbeEpisode, ...] | None" = None
    """These episodes follow if the results are as expected. None: not known yet."""


class ProbeResult(NamedTuple):
    """Holds the result of one request. Stamps are seconds on one clock."""

    episode: int
    """Episodes count from 0. All requests of an episode share the number."""
    kind: str
    round: int
    role: str
    outcome: str
    asked_tokens: int
    """The schedule requested this length of the prompt. ``input_tokens`` were counted."""
    input_tokens: int
    output_tokens: int
    asked_output_tokens: int
    sent_at: float
    chunk_at: tuple[float, ...]
    cached_tokens: int | None = None
    early_s: float | None = None
    """An event without content came this many seconds after the send, well before the first
    chunk."""
    rounds: int = 0
    """The schedule has this many rounds. 0: unknown."""

    @property
    def ok(self) -> bool:
        return self.outcome == OK and bool(self.chunk_at)

    @property
    def whole(self) -> bool:
        """Returns whether all requested tokens came, so nothing else ended the response."""
        return self.ok and self.output_tokens >= self.asked_output_tokens

    @property
    def tokens_a_chunk(self) -> float:
        return max(1.0, self.output_tokens / len(self.chunk_at))

    @property
    def ttft_s(self) -> float:
        return self.chunk_at[0] - self.sent_at


def format_episode_label(number: int, episode: ProbeEpisode, rounds: int) -> str:
    """Formats the session id of a record: number, round and kind of its episode, and the number of
    rounds."""
    return f"probe/{number}/{episode.round}/{episode.kind}/{rounds}"


def read_probe_result(record: Record) -> ProbeResult | None:
    """Reads a result. Returns None if the record is not of a probe. Its name is the role."""
    words = record.session.split("/")
    # older records do not have the number of rounds
    if words[0] != "probe" or len(words) not in (4, 5):
        return None
    tried_at = record.asked_at if record.sent_at is None else record.sent_at
    sent_at = tried_at + record.clock_offset_s
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
    """Reads the results of all requests of a probe. Of another run only the first record is read.
    ``records`` are iterated twice."""
    first = next(iter(records), None)
    if first is None or read_probe_result(first) is None:
        return []
    return [result for record in records if (result := read_probe_result(record)) is not None]
