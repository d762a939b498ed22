"""Batching policies: each chooses how many tokens each sequence computes in the next step, and
names its source."""

from __future__ import annotations

import sys
from typing import Final

from .llamacpp import LlamaCpp
from .scheduler_queues import Batch, Policy, Scheduler, Stateful
from .sequence import Sequence, num_blocks_for
from .sglang import SGLang, SGLangMixed


def static(scheduler: Scheduler) -> Batch:
    """Batches begin and end together: the next batch starts when the longest sequence of this one
    is done, and its first step computes all its prompts. The source is Orca (OSDI '22, section 3,
    "request-level scheduling"), and others call it static batching. Sequences that end early cost
    nothing more here. Padding, which such engines often add, is left out."""
    batch = Batch()
    if scheduler.running:
        scheduler.decode_all(batch)
        return batch
    budget = scheduler.config.max_num_batched_tokens
    free_blocks = scheduler.blocks.num_free
    while scheduler.waiting and len(scheduler.running) < scheduler.most_running:
        sequence = scheduler.waiting[0]
        num_cached, _, num_left = scheduler.look_up(sequence)
        # all blocks to its end, since nothing is preempted
        free_blocks -= num_blocks_for(sequence.num_prompt_tokens + sequence.max_tokens)
        if free_blocks < 0 or num_left > budget:
            break
        scheduler.admit(batch, scheduler.waiting.popleft(), num_cached, num_left)
        budget -= num_left
    return batch


def prefill_first(scheduler: Scheduler) -> Batch:
    """Models vLLM V0 (0.8, vllm/core/scheduler.py, `_schedule_default`). Waiting requests get a
    step of their own with whole prompts, first come, first served. Decodes pause until nothing
    waits or nothing more fits. Left out: swapping."""
    batch = Batch()
    admit_waiting(
        scheduler, batch, scheduler.config.max_num_batched_tokens, sys.maxsize, whole=True
    )
    if not batch.prefills:
        scheduler.serve_running(batch, scheduler.config.max_num_batched_tokens, longest=1)
    return batch


def mixed(scheduler: Scheduler) -> Batch:
    """Adds one token for all decodes to a prefill-first step. So do TGI, and vLLM V1 with
    --no-enable-chunked-prefill (0.32, vllm/v1/core/sched/scheduler.py, `schedule`: a prompt longer
    than the remaining budget ends the step). A long_prefill_token_threshold still cuts prompts, as
    it does there."""
    batch = Batch()
    longest = longest_part(scheduler)
    budget, preempted = scheduler.serve_running(
        batch, scheduler.config.max_num_batched_tokens, longest
    )
    if not preempted:
        admit_waiting(scheduler, batch, budget, longest, whole=True)
    return batch


def chunked(scheduler: Scheduler) -> Batch:
    """Models vLLM V1 (0.32, vllm/v1/core/sched/scheduler.py, `schedule`): one token budget serves
    running sequences in their order first, then waiting ones, first come, first served. Left out:
    speculation, LoRA, asynchronous scheduling."""
    batch = Batch()
    longest = longest_part(scheduler)
    budget, preempted = scheduler.serve_running(
        batch, scheduler.config.max_num_batched_tokens, longest
    )
    if not preempted:
        admit_waiting(scheduler, batch, budget, longest)
    return batch


def longest_part(scheduler: Scheduler) -> int:
    """Returns the most tokens of one prompt in a step. It is the threshold if there are several
    sequences, and at least its share of the budget if adaptive. Without a threshold it exceeds any
    prompt."""
    config = scheduler.config
    count = len(scheduler.running) + len(scheduler.waiting)
    threshold = config.long_prefill_token_threshold
    if not threshold or count <= 1:
        return sys.maxsize
    return max(
        threshold,
        config.max_num_batched_tokens // count * config.long_prefill_token_threshold_adaptive,
    )


def admit_waiting(
    scheduler: Scheduler, batch: Batch, budget: int, longest: int, *, whole: bool = False
) -> None:
    """Admits waiting sequences, first come, first served, in chunks of up to ``longest`` tokens,
    within the budget. ``whole`` admits no chunk that the budget would cut. The whole prompt needs
    free blocks, though a chunk takes only its own (vLLM's scheduler_reserve_full_isl)."""
    waiting = scheduler.waiting
    most = scheduler.most_running
    while waiting and budget > 0 and len(scheduler.running) < most:
        num_cached, num_blocks, num_left = scheduler.look_up(waiting[0])
        num_new_tokens = min(num_left, longest)
        if not scheduler.fits(num_blocks) or (whole and num_new_tokens > budget):
            break
        num_new_tokens = min(num_new_tokens, budget)
        scheduler.admit(batch, waiting.popleft(), num_cached, num_new_tokens)
        budget -= num_new_tokens


def partial_prefills(scheduler: Scheduler) -> Batch:
    """Computes several prompts at a time, of which only some are long: vLLM V0 (#10235,
    `PartialPrefillMetadata`), for V1 in #31330. The prompts of a step share the budget evenly, at
    most max_num_partial_prefills of them, and further ones use the rest. While
    max_long_partial_prefills long ones run, waiting long ones are skipped but keep their place. A
    prompt is long while more than the threshold is left."""
    batch = Batch()
    config = scheduler.config
    budget = config.max_num_batched_tokens
    threshold = config.long_prefill_token_threshold

    def is_long(sequence: Sequence) -> bool:
        return scheduler.num_left(sequence) > threshold

    num_long = sum(map(is_long, scheduler.prefilling))
    longest = budget // _num_slots(scheduler, num_long)
    budget, preempted = scheduler.serve_running(batch, budget, longest)
    passed_over: list[Sequence] = []
    waiting = scheduler.waiting
    running = scheduler.running
    while waiting and budget > 0 and len(running) < scheduler.most_running and not preempted:
        sequence = waiting.popleft()
        if is_long(sequence) and num_long >= config.max_long_partial_prefills:
            passed_over.append(sequence)
            continue
        num_cached, num_blocks, num_left = scheduler.look_up(sequence)
        if not scheduler.fits(num_blocks):
            waiting.appendleft(sequence)
            break
        num_long += is_long(sequence)
        num_new_tokens = min(num_left, longest, budget)
        scheduler.admit(batch, sequence, num_cached, num_new_tokens)
        budget -= num_new_tokens
    waiting.extendleft(reversed(passed_over))
    return batch


def _num_slots(scheduler: Scheduler, num_long: int) -> int:
    """Returns how many prompts could share this step: running ones, then waiting ones that are not
    skipped. The result is between 1 and max_num_partial_prefills."""
    config = scheduler.config
    most = config.max_num_partial_prefills
    slots = len(scheduler.prefilling)
    for sequence in scheduler.waiting:
        if slots >= most:
            break
        if scheduler.num_left(sequence) > config.long_prefill_token_threshold:
            if num_long >= config.max_long_partial_prefills:
                continue
            num_long += 1
        slots += 1
    return max(1, min(slots, most))


POLICIES: Final[dict[str, Policy | type[Stateful]]] = {
    "static": static,
    "prefill-first": prefill_first,
    "mixed": mixed,
    "chunked": chunked,
    "partial-prefills": partial_prefills,
    "sglang": SGLang,
    "sglang-mixed": SGLangMixed,
    "llama.cpp": LlamaCpp,
}
WHOLE_PROMPTS: Final = ("static", "prefill-first", "mixed")
"""These policies compute a prompt in one step, so the budget must hold the longest one."""
