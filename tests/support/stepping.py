"""Stepping: runs the simulator's scheduler step by step, and shows each sequence's tokens."""

from collections.abc import Sequence as Series

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence

Work = dict[Sequence, int]


def make(
    policy: str = "chunked",
    *,
    budget: int = 4,
    seqs: int = 8,
    kv_tokens: int = 1024,
    threshold: int = 0,
    **more: int,
) -> Scheduler:
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        kv_tokens=kv_tokens,
        long_prefill_token_threshold=threshold,
        **more,  # type: ignore[arg-type]
    )
    return Scheduler(config, POLICIES[policy])


def schedule(scheduler: Scheduler) -> tuple[object, Work]:
    """Returns the batch, and the tokens that each sequence computes in it."""
    batch = scheduler.schedule()
    decodes = scheduler.decoding.sequences if batch.num_decodes else {}
    assert batch.num_decodes == len(decodes)
    return batch, dict.fromkeys(decodes, 1) | batch.prefills


def end(scheduler: Scheduler, batch: object) -> set[Sequence]:
    """Returns the sequences that got a token."""
    before = {q: q.num_output_tokens for q in [*scheduler.running, *scheduler.waiting]}
    scheduler.postprocess(batch, 0.0)  # type: ignore[arg-type]
    got = {q: q.num_output_tokens - count for q, count in before.items()}
    assert set(got.values()) <= {0, 1}
    return {q for q, count in got.items() if count}


def step(scheduler: Scheduler) -> tuple[Work, set[Sequence]]:
    batch, work = schedule(scheduler)
    return work, end(scheduler, batch)


def added(scheduler: Scheduler, *sequences: Sequence) -> Series[Sequence]:
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences
