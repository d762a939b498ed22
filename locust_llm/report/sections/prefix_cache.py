"""Prefix cache: the share of the input tokens that repeats: the target, the theoretical share of
the prompts, and the server's.

The theoretical share is exact for a cache of whole blocks that drops the least recently used block,
one request after the other: vLLM's (v1/core/block_pool.py). When a prompt ends, its last block is
dropped first, and at least one token is always computed. Requests side by side can share less (of
two that come at once both compute) or find less room.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from locust_llm.records.outcomes import OK
from locust_llm.records.phase_plan import PROFILING
from locust_llm.records.record import Record
from locust_llm.records.run_facts import Run
from locust_llm.records.server_metrics_history import EngineHistory, counter_increase

BLOCK: Final = 16
_HEAD: Final = -1
"""The line of the blocks that all requests begin with."""
BY_USAGE: Final = "by usage (answered requests)"
BY_METRICS: Final = "by the server's metrics (all requests, profiling phase)"
"""The bases of the server's two shares."""
MAX_OFF: Final = 0.02
"""Two of the three shares that differ by more get a warning."""


class CacheRequest(NamedTuple):
    """A cache's view of a request, in tokens."""

    prefix: int | None
    """The number of the prefix that it begins with. None: it shares no prefix."""
    shared: int
    """Its first tokens in common with the others of this number."""
    input_tokens: int
    output_tokens: int = 0


def simulate_cache_hits(
    requests: Iterable[CacheRequest], block: int = BLOCK, capacity: int | None = None, head: int = 0
) -> Iterator[int]:
    """How many tokens the cache has of each request in turn. ``capacity``: the cache's tokens;
    None: no end. ``head``: tokens that all requests begin with."""
    cache = _Cache(None if capacity is None else capacity // block)
    for request in requests:
        shared = head if request.prefix is None else max(head, request.shared)
        shared, trunk = (min(tokens, request.input_tokens) // block for tokens in (shared, head))
        cached_tokens = cache.found(_HEAD, trunk)
        if cached_tokens == trunk < shared:
            cached_tokens = max(cached_tokens, cache.found(request.prefix, shared))
        yield min(cached_tokens, (request.input_tokens - 1) // block) * block
        # the last block is dropped first: it counts as used before the others
        cache.use(None, shared, (request.input_tokens + max(0, request.output_tokens - 1)) // block)
        cache.use(request.prefix, trunk, shared)
        cache.use(_HEAD, 0, trunk)
        cache.drop()


class _Cache:
    """Blocks that were used together are one segment, so the work grows with requests and not with
    blocks. The blocks of one line (a prefix) lie end to end, the first blocks used last."""

    def __init__(self, most: int | None) -> None:
        self._most, self._held, self._uses = most, 0, 0
        self._segments: OrderedDict[int, list[int]] = OrderedDict()
        """[first block, end] by the number of the use, the oldest first."""
        self._line_of: dict[int, int | None] = {}
        self._lines: defaultdict[int | None, deque[int]] = defaultdict(deque)
        """The uses of each line, the deepest and oldest first."""

    def found(self, line: int | None, most: int) -> int:
        """How many of the first blocks of a line are there."""
        uses = self._lines[line]
        return min(self._segments[uses[0]][1], most) if uses else 0

    def use(self, line: int | None, first: int, end: int) -> None:
        """Use these blocks now. Blocks of no line are new ones."""
        if first >= end:
            return
        uses = self._lines[line] if line is not None else deque[int]()
        while uses and end >= self._segments[uses[-1]][1]:
            self._forget(uses.pop())
        if uses and (segment := self._segments[uses[-1]])[0] < end:
            self._held -= end - segment[0]
            segment[0] = end
        self._uses += 1
        uses.append(self._uses)
        self._segments[self._uses], self._line_of[self._uses] = [first, end], line
        self._held += end - first

    def drop(self) -> None:
        """Drop what does not fit, of the oldest segments the deepest blocks first."""
        while self._most is not None and self._held > self._most:
            use, segment = next(iter(self._segments.items()))
            count = min(self._held - self._most, segment[1] - segment[0])
            segment[1] -= count
            self._held -= count
            if segment[0] == segment[1]:
                if (line := self._line_of[use]) is not None:
                    self._lines[line].popleft()
                self._forget(use)

    def _forget(self, use: int) -> None:
        first, end = self._segments.pop(use)
        self._held -= end - first
        del self._line_of[use]


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    """The shares are of the input tokens of the profiling phase's successful requests."""

    asked: float
    implied: float | None
    """The theoretical share. None: the server counted no input tokens."""
    delivered: float | None
    """The share by the answers' usage. None: no answer has the count."""
    by_metrics: float | None
    """The share by the server's metrics over all requests of this time, with failed and cut
    ones."""
    prefixes: int
    """How many prefixes came."""
    working_set: int
    """The tokens of all prefixes, each at its longest."""
    block: int
    capacity: int | None
    """The tokens that the cache holds. None: unknown; ``implied`` is then for an endless cache."""


class _Row(NamedTuple):
    sent_at: float
    main: bool
    """The request belongs to the profiling phase."""
    cached: int | None
    sent: CacheRequest
    asked: int
    """The input tokens as the prompt was made. ``sent`` has the server's count."""


def measure_prefix_cache(
    records: Iterable[Record], by_metrics: float | None, run: Run
) -> PrefixCache | None:
    """None: no share was requested. ``by_metrics``: see ``find_cached_share``."""
    settings = run.settings
    if settings.prefix_cache_hit_rate is None:
        return None
    flags = {name: int(text) for name, text in run.server_flags.items() if text.isdecimal()}
    block = settings.cache_block_size or flags.get("block_size") or BLOCK
    capacity = (
        settings.cache_tokens or flags.get("num_gpu_blocks", 0) * flags.get("block_size", 0) or None
    )
    rows = sorted(filter(None, map(_row, records)), key=lambda row: row.sent_at)
    sent, depth = _counted(rows)
    # the records of a stage are without those that came before it
    before = (
        []
        if any(not row.main for row in rows)
        else [CacheRequest(n, depth[n], depth[n]) for n in sorted(depth)]
    )
    implied = list(simulate_cache_hits([*before, *sent], block, capacity, run.head_tokens))[
        len(before) :
    ]
    main = [
        (count, row.cached, row.sent.input_tokens)
        for count, row in zip(implied, rows, strict=True)
        if row.main
    ]
    known = [(cached, tokens) for _, cached, tokens in main if cached is not None]
    return PrefixCache(
        asked=settings.prefix_cache_hit_rate / 100,
        implied=_share(sum(row[0] for row in main), sum(row[2] for row in main)),
        delivered=_share(sum(row[0] for row in known), sum(row[1] for row in known)),
        by_metrics=by_metrics,
        prefixes=len(depth),
        working_set=sum(depth.values()),
        block=block,
        capacity=capacity,
    )


def _row(record: Record) -> _Row | None:
    if record.outcome != OK or record.sent_at is None or not record.input_tokens:
        return None
    sent = CacheRequest(
        record.prefix, record.prefix_tokens or 0, record.input_tokens, record.output_tokens or 0
    )
    at = record.sent_at + record.clock_offset_s
    main = record.phase == PROFILING
    return _Row(
        at, main, record.cached_tokens, sent, record.asked_input_tokens or record.input_tokens
    )


def _counted(rows: list[_Row]) -> tuple[list[CacheRequest], dict[int, int]]:
    """(the requests, the deepest use of each prefix).

    Without a tokenizer a prefix's tokens are an estimate. They are corrected as the prompts that
    begin with it are on average, by the server's count.
    """
    made = Counter[int | None]()
    counted = Counter[int | None]()
    for row in rows:
        made[row.sent.prefix] += row.asked
        counted[row.sent.prefix] += row.sent.input_tokens
    sent = [
        row.sent._replace(
            shared=round(row.sent.shared * counted[row.sent.prefix] / made[row.sent.prefix])
        )
        for row in rows
    ]
    depth: dict[int, int] = {}
    for request in sent:
        if request.prefix is not None:
            depth[request.prefix] = max(request.shared, depth.get(request.prefix, 0))
    return sent, depth


def find_cached_share(history: EngineHistory, run: Run) -> float | None:
    """The cached share of the looked-up tokens in the profiling phase: from the reading before it,
    or with a warmup, whose empty cache is left out, from the first one in it. None: the server's
    metrics do not have it."""
    ended_at = run.stopping_at or run.ended_at or float("inf")
    queried = share = 0.0
    stretch = history.inside if run.settings.warms_up else history.between
    for name in history.names:
        samples = stretch(name, run.profiling_at, ended_at)
        queried += counter_increase(samples, "cache_queries") or 0.0
        share += counter_increase(samples, "cache_hits") or 0.0
    return _share(share, queried)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# -- in words --------------------------------------------------------------------------------------


def describe_prefix_cache(of: PrefixCache) -> str:
    room = "unlimited size" if of.capacity is None else f"{of.capacity:,} tokens"
    sets = (
        f" over {of.prefixes} prefixes with {of.working_set:,} tokens in total"
        if of.prefixes
        else ""
    )
    return (
        f"target {of.asked:.1%}{sets}; theoretical {_percent(of.implied)} (blocks of {of.block} "
        f"tokens, a cache of {room}); observed {_percent(of.delivered)} {BY_USAGE}, "
        f"{_percent(of.by_metrics)} {BY_METRICS}"
    )


def describe_cached_input(by_usage: float | None, by_metrics: float | None) -> str:
    """The cached input as a condition: one value with its base."""
    if by_usage is not None:
        return f"{by_usage:.1%} {BY_USAGE}"
    return "unknown" if by_metrics is None else f"{by_metrics:.1%} {BY_METRICS}"


def make_cache_remarks(of: PrefixCache | None) -> Iterator[str]:
    """The remarks where two of the shares differ by more than MAX_OFF."""
    if of is None:
        return
    observed = of.delivered if of.delivered is not None else of.by_metrics
    if of.delivered is None:
        why = "vLLM does with --enable-prompt-tokens-details"
        yield f"The server does not report cached tokens in usage ({why})."
    if of.implied is not None and _is_off(of.implied, of.asked):
        full = of.capacity is not None and of.working_set > of.capacity
        why = (
            f"the working set of {of.working_set:,} tokens does not fit into the cache of "
                f"{of.capacity:,}" if full
            else (
                "text that is not shared takes part of each prompt or of the cache, and only "
                "whole blocks repeat"
            )
        )  # fmt: skip
        yield (
            f"WARNING: {of.asked:.1%} of the input tokens should come from the prefix cache, but "
            f"these prompts allow {of.implied:.1%}: {why}."
        )
    if observed is not None and of.implied is not None and _is_off(observed, of.implied):
        yield (
            f"WARNING: the prompts allow that {of.implied:.1%} of the input tokens come from the "
            f"prefix cache, but the observed hit rate is {observed:.1%}: "
            + (
                "its cache is off, is smaller than the working set or has other block sizes, or a "
                "router sent the requests to other replicas."
                if observed < of.implied
                else "it finds more tokens than the shared prefixes have."
            )
        )


def _is_off(one: float, other: float) -> bool:
    """Rounded, as 52% and 50% are two points apart, and not more."""
    return round(abs(one - other), 9) > MAX_OFF


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
