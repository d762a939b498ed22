"""Schedule: the timetable of a phase: when each request is due, and which sessions there are, from
the settings and without a clock."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, repeat
from random import Random
from typing import Final, NamedTuple

from msgspec.structs import replace

from locust_llm.records.phase_plan import WARMUP, stage_of_phase
from locust_llm.settings.ab_arms import PAIR
from locust_llm.settings.request_rate_option import parse_request_rate
from locust_llm.settings.run_options import Settings
from locust_llm.workload.access_log import parse_column_names
from locust_llm.workload.arrivals import (
    RateFactor,
    draw_arrivals,
    draw_user_centric_arrivals,
    limit_arrivals,
    make_steady_rate,
    replay_arrivals,
)
from locust_llm.workload.dataset import Dataset, Order
from locust_llm.workload.dataset_formats import DatasetSession
from locust_llm.workload.length_distributions import (
    combine_lengths,
    normal_length,
    parse_length_mix,
)
from locust_llm.workload.prefix_reuse import BLOCK, PrefixReuse
from locust_llm.workload.traces.session_start_point import (
    cap_session_waits,
    parse_start_shares,
    start_session_at,
)

ORDERS: Final[dict[str, Order]] = {
    "sequential": "sequential",
    "shuffle": "shuffled",
    "random": "random",
}
"""By the names of --dataset-sampling-strategy, which are AIPerf's."""


class DueArrival(NamedTuple):
    at_s: float
    """Seconds after the start of the phase."""
    slot: int | None = None
    """The user of the user-centric rate, from 0."""
    item: DatasetSession | None = None
    """The session that begins then, for the fixed schedule."""
    draws: str = ""
    """See Permit."""


def schedule_phase(
    settings: Settings,
    phase: str,
    items: Iterable[DatasetSession] = (),
    factor: RateFactor | None = None,
) -> Iterator[DueArrival] | None:
    """The arrivals of ``phase``. None: a closed loop. ``factor`` changes a steady rate meanwhile.

    ``items``: the sessions of the fixed schedule, in the order of their times. A warmup has its own
    rate, else the main one, and is never user-centric nor a replay (as AIPerf's).
    """
    seed = (
        None
        if settings.random_seed is None
        else f"{settings.random_seed}/{_same(settings, phase)}/arrivals"
    )
    if phase == WARMUP:
        per_s = settings.warmup_request_rate
        rate = make_steady_rate(per_s) if per_s else parse_request_rate(settings)
        if rate is None:
            return None
        due = draw_arrivals(
            rate, settings.arrival_pattern, Random(seed), settings.arrival_smoothness or 1.0
        )
        return map(
            DueArrival,
            limit_arrivals(
                due, count=settings.warmup_request_count, duration_s=settings.warmup_duration
            ),
        )
    count = settings.request_count
    duration_s = settings.stage_s(stage_of_phase(phase))
    if settings.fixed_schedule:
        return _bounded(_replayed(settings, items), count=count, duration_s=duration_s)
    if settings.user_centric_rate:
        pairs = draw_user_centric_arrivals(settings.users or 1, settings.user_centric_rate)
        return (
            DueArrival(at_s, slot)
            for at_s, slot in limit_arrivals(pairs, count=count, duration_s=duration_s)
        )
    rate = parse_request_rate(settings)
    if rate is None:
        return None
    drawn = draw_arrivals(
        rate, settings.arrival_pattern, Random(seed), settings.arrival_smoothness or 1.0
    )
    due = drawn if factor is None else factor.apply(drawn)
    return map(DueArrival, limit_arrivals(due, count=count, duration_s=duration_s))


def make_prefix_reuse(settings: Settings, server_flags: Mapping[str, str]) -> PrefixReuse | None:
    """What repeats in the prompts, in blocks of the server's cache. None: no share was
    requested."""
    if settings.prefix_cache_hit_rate is None:
        return None
    block = (
        settings.cache_block_size
        or (
            int(block_size) if (block_size := server_flags.get("block_size", "")).isdecimal() else 0
        )
        or BLOCK
    )
    lengths = (
        normal_length(settings.synthetic_input_tokens_mean, settings.synthetic_input_tokens_stddev),
        normal_length(settings.output_tokens_mean, settings.output_tokens_stddev),
    )
    sizes = parse_length_mix(settings.seq_dist) if settings.seq_dist else combine_lengths(*lengths)
    share = settings.prefix_cache_hit_rate / 100
    return PrefixReuse(
        sizes,
        share,
        seed=f"{settings.random_seed}/reuse",
        block=block,
        working_set=settings.working_set,
    )


def add_priming_phase(settings: Settings, server_flags: Mapping[str, str]) -> Settings:
    """The settings with a warmup that sends each shared prefix once, before the requests of the
    requested warmup."""
    reuse = make_prefix_reuse(settings, server_flags)
    if reuse is None or not settings.prefix_cache_hit_rate:
        return settings
    if not reuse.count and (settings.warmup_request_count or settings.warmup_duration):
        return settings
    # where the blocks of the cache are longer than the prompts nothing is shared, and a warmup
    # without a number of requests would never end
    count = max(1, reuse.count + (settings.warmup_request_count or 0))
    return replace(settings, warmup_request_count=count)


def list_phase_sessions(
    settings: Settings, phase: str, reuse: PrefixReuse | None = None
) -> Iterator[DatasetSession | None] | None:
    """The sessions of a phase, each once: of the dataset or of ``reuse``, at most the requested
    number. None in place of one: a synthetic session. Raises DatasetError, here and later.

    None: users make up their sessions, without end.
    """
    count = settings.num_sessions if phase != WARMUP else None
    if reuse is not None:
        if phase == WARMUP:
            return islice(chain(reuse.prime(), reuse.prompts()), settings.warmup_request_count)
        return islice(reuse.prompts(), count)
    if not settings.input_file:
        return None if count is None else repeat(None, count)
    block = settings.block(stage_of_phase(phase))  # each pair begins elsewhere in the file
    order = ORDERS[settings.dataset_sampling_strategy]
    bounded = (
        settings.num_sessions
        or settings.request_count
        or settings.compares
        or settings.longest_s
        or phase == WARMUP
    )
    dataset = Dataset(
        settings.input_file,
        kind=settings.custom_dataset_type,
        columns=parse_column_names(settings.dataset_columns) if settings.dataset_columns else None,
        order="shuffled" if block is not None and order == "sequential" else order,
        seed=(settings.random_seed or 0) + (0 if block is None else block.pair),
        wrap=bool(bounded) and not settings.fixed_schedule,
        timed=settings.fixed_schedule,
        skip_broken=settings.skip_broken_rows,
    )
    return islice(_changed(settings, phase, dataset), count)


def _changed(
    settings: Settings, phase: str, items: Iterable[DatasetSession]
) -> Iterator[DatasetSession]:
    """Sessions with bounded waits, and from their middle on."""
    random = Random(
        None
        if settings.random_seed is None
        else f"{settings.random_seed}/{_same(settings, phase)}/trajectories"
    )
    for item in items:
        if settings.trajectory_start is not None:
            item = start_session_at(
                item, random.uniform(*parse_start_shares(settings.trajectory_start))
            )
        yield item if settings.idle_cap is None else cap_session_waits(item, settings.idle_cap)


def _same(settings: Settings, phase: str) -> str:
    """A name that phases with the same arrivals share: the blocks of a pair."""
    block = settings.block(stage_of_phase(phase))
    return phase if block is None else f"{PAIR} {block.pair}"


def _replayed(settings: Settings, items: Iterable[DatasetSession]) -> Iterator[DueArrival]:
    latest: list[DatasetSession] = []

    def times_s() -> Iterator[float | None]:
        for item in items:
            latest[:] = [item]
            yield item.turns[0].at_s

    start_s, end_s = (
        None if ms is None else ms / 1000
        for ms in (settings.fixed_schedule_start_offset, settings.fixed_schedule_end_offset)
    )
    auto = settings.fixed_schedule_auto_offset and start_s is None
    for at_s, _ in replay_arrivals(
        times_s(), start_s=start_s, end_s=end_s, auto_offset=auto, speedup=settings.replay_speedup
    ):
        yield DueArrival(at_s, None, latest[0])


def _bounded(
    due: Iterator[DueArrival], *, count: int | None, duration_s: float | None
) -> Iterator[DueArrival]:
    """``count`` bounds the requests. A session that has begun is sent to its end."""
    requests = 0
    for arrival in due:
        if (count is not None and requests >= count) or (
            duration_s is not None and arrival.at_s >= duration_s
        ):
            return
        requests += 1 if arrival.item is None else len(arrival.item.turns)
        yield arrival
