"""The policies: which sequences compute how many tokens in the next step, each beside its
source."""

from __future__ import annotations

import sys
from typing import Final

from .llamacpp import LlamaCpp
from .scheduler import Batch, Policy, Scheduler, Stateful
from .sequence import Sequence, num_blocks_for
from .sglang import SGLang, SGLangMixed


def static(scheduler: Scheduler) -> Batch:
    """Batches that begin and end together: the next one is filled only when the longest of this one
    is done, and all its prompts are computed in its first step. (Orca, OSDI '22, section 3,
    "request-level scheduling"; the seed's "static batching".) What ends early costs nothing more
    here; padding, which such engines often add, is left out."""
    batch = Batch()
    if scheduler.running:
        scheduler.decode_all(batch)
        return batch
    config, blocks = scheduler.config, scheduler.blocks
    budget, room = config.max_num_batched_tokens, blocks.num_free
    while scheduler.waiting and len(scheduler.running) < scheduler.most_running:
        sequence = scheduler.waiting[0]
        num_cached, _, num_left = scheduler.look_up(sequence)
        # to its end: nobody is preempted
        room -= num_blocks_for(sequence.num_prompt_tokens + sequence.max_tokens)
        if room < 0 or num_left > budget:
            break
        scheduler.admit(batch, scheduler.waiting.popleft(), num_cached, num_left)
        budget -= num_left
    return batch


def prefill_first(scheduler: Scheduler) -> Batch:
    """vLLM V0 (0.8, vllm/core/scheduler.py, `_schedule_default`): who waits has a step of its own,
    whole prompts, first come, first served; who decodes pauses until nobody waits or no one more
    fits. Left out: swapping."""
    batch = Batch()
    admit_waiting(
        scheduler, batch, scheduler.config.max_num_batched_tokens, sys.maxsize, whole=True
    )
    if not batch.prefills:
        scheduler.serve_running(batch, scheduler.config.max_num_batched_tokens, longest=1)
    return batch


def mixed(scheduler: Scheduler) -> Batch:
    """Prefill-first with one token for all who decode in the same step: TGI, and vLLM V1 with
    --no-enable-chunked-prefill (0.32, vllm/v1/core/sched/scheduler.py, `schedule`: a prompt longer
    than what is left of the budget ends the step). A long_prefill_token_threshold cuts prompts all
    the same, as it does there."""
    batch = Batch()
    budget = scheduler.config.max_num_batched_tokens
    budget, preempted = scheduler.serve_running(batch, budget, longest := longest_part(scheduler))
    if not preempted:
        admit_waiting(scheduler, batch, budget, longest, whole=True)
    return batch


def chunked(scheduler: Scheduler) -> Batch:
    """vLLM V1 (0.32, vllm/v1/core/sched/scheduler.py, `schedule`): one token budget, first for what
    runs, in its order, then for who waits, first come, first served. Left out: speculation, LoRA,
    asynchronous scheduling."""
    batch = Batch()
    longest = longest_part(scheduler)
    budget, preempted = scheduler.serve_running(
        batch, scheduler.config.max_num_batched_tokens, longest
    )
    if not preempted:
        admit_waiting(scheduler, batch, budget, longest)
    return batch


def longest_part(scheduler: Scheduler) -> int:
    """Most tokens of one prompt in a step: the threshold, where a sequence is not the only one, and
    if adaptive at least its share of the budget. Without a threshold more than any prompt has."""
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
    """First come, first served, in chunks of up to ``longest`` tokens, as far as the budget
    reaches; ``whole``: none that is cut by the budget. There must be blocks for the whole of each,
    though a chunk takes only its own (vLLM's scheduler_reserve_full_isl)."""
    waiting, most = scheduler.waiting, scheduler.most_running
    while waiting and budget > 0 and len(scheduler.running) < most:
        num_cached, num_blocks, num_left = scheduler.look_up(waiting[0])
        num_new_tokens = min(num_left, longest)
        if not scheduler.fits(num_blocks) or (whole and num_new_tokens > budget):
            break
        num_new_tokens = min(num_new_tokens, budget)
        scheduler.admit(batch, waiting.popleft(), num_cached, num_new_tokens)
        budget -= num_new_tokens


def partial_prefills(scheduler: Scheduler) -> Batch:
    """Several prompts at a time, of which only some long ones: vLLM V0 (#10235,
    `PartialPrefillMetadata`), for V1 in
    #31330. The budget is split evenly over the prompts that could be computed in this step, at most
    max_num_partial_prefills; what one does not use goes to further ones. While
    max_long_partial_prefills long ones run, those that wait are passed over, and keep their place.
    A prompt is long while more than the threshold is left."""
    batch = Batch()
    config = scheduler.config
    budget, threshold = config.max_num_batched_tokens, config.long_prefill_token_threshold

    def is_long(sequence: Sequence) -> bool:
        return scheduler.num_left(sequence) > threshold

    num_long = sum(map(is_long, scheduler.prefilling))
    longest = budget // _num_slots(scheduler, num_long)
    budget, preempted = scheduler.serve_running(batch, budget, longest)
    passed_over: list[Sequence] = []
    waiting, running = scheduler.waiting, scheduler.running
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
    """How many prompts could be computed in this step: those that run, then those that wait and
    need not be passed over. At least 1, at most max_num_partial_prefills."""
    config, most = scheduler.config, scheduler.config.max_num_partial_prefills
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
"""Policies that compute a prompt in one step, so that the budget must hold the longest one."""
