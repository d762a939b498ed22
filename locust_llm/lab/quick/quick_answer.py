"""Quick answer: the three sentences of ``locust-llm quick``, from the run.json of its search."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from locust_llm.slo.capacity_search import CapacityEstimate, format_load
from locust_llm.slo.load_generator_health import OK
from locust_llm.slo.metric_definitions import PER_USER, TTFT
from locust_llm.text.format import format_brief, format_count, format_duration

LIMITS: Final = ("ttft p95 <= 3s", "itl p95 <= 300ms")
"""The rules of the search: those of the preset ``chat`` that a minute can decide."""
LIMITS_IN_WORDS: Final = "within 3 s (p95 of TTFT) and 300 ms (p95 of ITL)"
MEDIAN: Final = "50.0"
USERS: Final = "users"
ALONE: Final = 1.0
WIDER: Final = 8
"""Where all levels hold, the next search goes up to so many times as many users."""
NEXT_TIME: Final = "10m"


class QuickRow(msgspec.Struct):
    """A metric of one stage."""

    percentiles: Mapping[str, float | None] = {}

    @property
    def median(self) -> float | None:
        return self.percentiles.get(MEDIAN)


class QuickStage(msgspec.Struct):
    """A stage of the search."""

    value: float
    requests: int
    client: str | None = None
    latencies: Mapping[str, QuickRow] = {}

    def find_median(self, tag: str) -> float | None:
        row = self.latencies.get(tag)
        return None if row is None else row.median


class QuickSearch(msgspec.Struct):
    """What the search found."""

    levels: Sequence[QuickStage] = ()
    capacity: CapacityEstimate | None = None


class QuickRunFacts(msgspec.Struct):
    simulated: bool = False


class QuickRun(msgspec.Struct):
    """The part of run.json that the sentences need."""

    run: QuickRunFacts
    sweep: QuickSearch | None = None


def list_quick_sentences(
    found: QuickSearch, words: Sequence[str], most_users: int
) -> Iterator[str]:
    """How fast the server is, how many users fit, and what to run next. ``words``: the options that
    name the server, for the command line of the next run."""
    yield describe_speed(found.levels)
    yield describe_fit(found.capacity)
    yield describe_next_run(found.capacity, words, most_users)


def describe_speed(stages: Sequence[QuickStage]) -> str:
    """The speed that a user sees who is alone."""
    alone = [stage for stage in stages if stage.value == ALONE and stage.requests]
    if not alone:
        return "No request of a single user was measured, so the speed of the server is unknown."
    longest = max(alone, key=lambda stage: stage.requests)
    ttft_ms = longest.find_median(TTFT.tag)
    tokens_per_s = longest.find_median(PER_USER.tag)
    if ttft_ms is None:
        return "No request of a single user succeeded, so the speed of the server is unknown."
    counted = format_count(longest.requests, "request")
    basis = counted if longest.requests == 1 else f"median of {counted}"
    doubt = "" if longest.client in (None, OK) else f", client verdict {longest.client}"
    pace = "" if tokens_per_s is None else f", then {format_brief(tokens_per_s, digits=3)} tokens/s"
    return (
        f"A single user gets the first token after {format_duration(ttft_ms / 1e3)}{pace} "
        f"({basis}{doubt})."
    )


def describe_fit(capacity: CapacityEstimate | None) -> str:
    """How many users fit within the limits."""
    if capacity is None:
        return f"A minute was too short to find how many users fit {LIMITS_IN_WORDS}."
    if capacity.high is None:
        return f"Not even one user fits {LIMITS_IN_WORDS}."
    if capacity.value is None:
        return f"At most {_count_fitting(capacity.high)} {LIMITS_IN_WORDS}."
    if capacity.is_open and capacity.low is not None:
        return f"At least {_count_fitting(capacity.low)} {LIMITS_IN_WORDS}; more were not tried."
    return (
        f"About {_count_fitting(capacity.value)} {LIMITS_IN_WORDS}; the 95% interval is "
        f"{capacity.format_interval(USERS)}."
    )


def _count_fitting(level: float) -> str:
    """``6 users fit``"""
    return f"{format_load(level, USERS)} {'fits' if level == 1 else 'fit'}"


def describe_next_run(
    capacity: CapacityEstimate | None, words: Sequence[str], most_users: int
) -> str:
    """What the user runs next, with its command line."""
    if capacity is not None and capacity.high is None:
        return f"To see where the time goes, run: {_write_run(words, '-u 1 -t 60')}"
    low = 1.0
    high = float(most_users)
    purpose = "For an answer"
    if capacity is not None and capacity.is_open and capacity.low is not None:
        low = capacity.low
        high = max(WIDER * low, high)
        purpose = "To find the limit"
    elif capacity is not None and capacity.high is not None:
        low = max(1.0, (capacity.low or 1.0) // 2)
        high = min(2 * capacity.high, max(high, capacity.high))
        purpose = "For a narrower interval"
    rules = " ".join(f'--slo "{rule}"' for rule in LIMITS)
    load = f"--sweep concurrency={low:g}..{high:g} --find-max -t {NEXT_TIME} {rules}"
    return f"{purpose}, run: {_write_run(words, load)}"


def _write_run(words: Sequence[str], load: str) -> str:
    return f"locust-llm run --headless {' '.join(words)} {load}"
