"""Shots: the requests of the interference probe, in episodes; what is asked, and what was seen of each."""

from typing import NamedTuple

from locust_llm.core.record import OK, Record


class ProbeRequest(NamedTuple):
    """One request."""

    role: str
    at_s: float
    """After the begin of its episode."""
    input_tokens: int
    output_tokens: int
    text: int = 0
    """Shots of one number, other than 0, have the same prompt."""


class Episode(NamedTuple):
    kind: str
    round: int
    shots: tuple[ProbeRequest, ...]
    """In the order of ``at_s``."""
    expected_s: float = 0.0
    """How long it should take: for those who wait."""


class ProbeResult(NamedTuple):
    """What the client saw of one shot. Stamps are seconds on one clock."""

    episode: int
    """Counted from 0; all shots of one have the same."""
    kind: str
    round: int
    role: str
    outcome: str
    asked_tokens: int
    """Of its prompt, as the timetable had it; ``input_tokens`` is what it came to."""
    input_tokens: int
    output_tokens: int
    asked_output_tokens: int
    sent_at: float
    chunk_at: tuple[float, ...]
    cached_tokens: int | None = None
    early_s: float | None = None
    """An event without content came so long after the send, well before the first chunk."""
    rounds: int = 0
    """That the timetable has; 0: nobody says."""

    @property
    def ok(self) -> bool:
        return self.outcome == OK and bool(self.chunk_at)

    @property
    def whole(self) -> bool:
        """It went on until it had as many tokens as it was asked for: its end is no sign of anything else."""
        return self.ok and self.output_tokens >= self.asked_output_tokens

    @property
    def tokens_a_chunk(self) -> float:
        return max(1.0, self.output_tokens / len(self.chunk_at))

    @property
    def ttft_s(self) -> float:
        return self.chunk_at[0] - self.sent_at


def label(number: int, episode: Episode, rounds: int) -> str:
    """What a shot's record has for a session: the place of its episode, its round, its kind, and of how many rounds."""
    return f"probe/{number}/{episode.round}/{episode.kind}/{rounds}"


def seen(record: Record) -> ProbeResult | None:
    """What the record of a shot says; None of any other record. Its name is the role."""
    words = record.session.split("/")
    if words[0] != "probe" or len(words) not in (4, 5):  # the first probes did not say how many rounds
        return None
    sent_at = (record.asked_at if record.sent_at is None else record.sent_at) + record.clock_offset_s
    return ProbeResult(
        episode=int(words[1]),
        round=int(words[2]),
        kind=words[3],
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
