"""Hidden failures: each fault of the upstream as a client sees it, directly and through the gateway.
Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from locust_llm.records.outcomes import OK
from locust_llm.text.format import format_count

KEPT: Final = "kept"
CHANGED: Final = "changed"
RETRIED: Final = "retried"
"""The gateway sent the request again, and the client got a good answer of the upstream."""
HIDDEN: Final = "hidden"
VERDICTS: Final = (KEPT, RETRIED, CHANGED, HIDDEN)
"""From the best to the worst."""
STREAMED: Final = "streamed"
WHOLE: Final = "whole"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What one client saw of one answer."""

    outcome: str
    """OK, or a class of records/outcomes.py."""
    status: int | None = None
    error: str = ""
    words: int = 0
    """So many different words of the upstream came."""
    finish_reason: str = ""
    output_tokens: int | None = None
    model: str = ""
    id_count: int = 1
    """So many different ids were in the answer."""
    done: bool = True
    """The last event of the API came."""
    requests: int = 1
    """So many requests with its id reached the upstream."""

    @property
    def failed(self) -> bool:
        return self.outcome != OK


class FaultVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, streamed or not, through one gateway."""

    fault: str
    mode: str
    """STREAMED or WHOLE."""
    verdict: str
    direct: str
    """What a client sees without the gateway."""
    through: str
    """What it sees with it; empty where nothing changed."""
    trials: int
    agreed: int
    """So many trials had this verdict, the worst of all."""
    requests: int
    """The upstream got at most so many requests for one of the client."""
    heals: bool = False
    """The fault came at the first arrival only: a request that is sent again succeeds."""
    blocked_s: float | None = 0.0
    """So long afterwards the gateway failed good requests. None: it did not recover, and no further
    fault was tried."""


def judge_fault(
    fault: str,
    mode: str,
    direct: Sequence[Sighting],
    through: Sequence[Sighting],
    *,
    heals: bool = False,
    blocked_s: float | None = 0.0,
) -> FaultVerdict:
    """Compares the trials through the gateway with the most frequent of the direct ones. Both have
    one trial at least."""
    usual = _find_most_frequent(direct)
    verdicts = [compare_sightings(usual, seen) for seen in through]
    verdict = max(verdicts, key=VERDICTS.index)
    of_verdict = [seen for seen, found in zip(through, verdicts, strict=True) if found == verdict]
    shown = _find_most_frequent(of_verdict)
    return FaultVerdict(
        fault=fault,
        mode=mode,
        verdict=verdict,
        direct=describe_sighting(usual),
        through="" if verdict == KEPT else describe_change(usual, shown),
        trials=len(through),
        agreed=len(of_verdict),
        requests=max(seen.requests for seen in through),
        heals=heals,
        blocked_s=blocked_s,
    )


def compare_sightings(direct: Sighting, through: Sighting) -> str:
    """The verdict about one answer through the gateway. A good answer after a second request is no
    hidden failure: all of it came from the upstream."""
    if direct.failed and not through.failed:
        return RETRIED if through.requests > 1 and through.words else HIDDEN
    if _facts(direct) == _facts(through):
        return KEPT
    return CHANGED


def _facts(seen: Sighting) -> tuple[object, ...]:
    """What a program sees of an answer; the words of an error are for people."""
    return (
        seen.outcome,
        seen.status,
        seen.words,
        seen.finish_reason,
        seen.output_tokens,
        seen.model,
        seen.id_count > 1,
        seen.done,
    )


def _find_most_frequent(sightings: Sequence[Sighting]) -> Sighting:
    """The first one of those that were seen most often."""
    counts = Counter(map(_facts, sightings))
    return max(sightings, key=lambda seen: counts[_facts(seen)])


OUTCOME_WORDS: Final = {
    "stream_error": "an error in the response",
    "truncated": "a response without its end",
    "malformed": "a response that cannot be read",
    "empty": "a response without content",
    "timeout": "no end of the response in time",
    "first_token_timeout": "no first token in time",
    "gap_timeout": "silence after the first tokens",
    "refused": "connection refused",
    "reset": "connection reset",
    "closed": "connection closed",
}


def describe_sighting(seen: Sighting) -> str:
    """One line: ``HTTP 502``, ``connection closed after 3 tokens``, ``success: 8 tokens, stop``."""
    after = f" after {format_count(seen.words, 'token')}" if seen.words else ""
    if not seen.failed:
        parts = [format_count(seen.words, "token"), seen.finish_reason or "no finish_reason"]
        return f"success: {', '.join(parts)}"
    if seen.status is not None and seen.status != 200:
        return f"HTTP {seen.status}{after}"
    return OUTCOME_WORDS.get(seen.outcome, seen.outcome) + after


def describe_change(direct: Sighting, through: Sighting) -> str:
    """What came instead; what differs in detail where both read the same."""
    told = describe_sighting(through)
    if told != describe_sighting(direct):
        return told
    differences = []
    if direct.output_tokens != through.output_tokens:
        differences.append(_describe_usage(through.output_tokens))
    if direct.model != through.model:
        differences.append(f"model {through.model or 'missing'}")
    if direct.done != through.done:
        differences.append("its last event added" if through.done else "its last event missing")
    if (direct.id_count > 1) != (through.id_count > 1):
        differences.append("several ids" if through.id_count > 1 else "one id")
    if direct.outcome != through.outcome:
        differences.append(through.outcome)
    return f"{told}, {', '.join(differences)}" if differences else told


def _describe_usage(tokens: int | None) -> str:
    return "no usage" if tokens is None else f"usage of {format_count(tokens, 'token')}"


def count_hidden(verdicts: Sequence[FaultVerdict]) -> int:
    """The faults that came as a success."""
    return sum(verdict.verdict == HIDDEN for verdict in verdicts)
