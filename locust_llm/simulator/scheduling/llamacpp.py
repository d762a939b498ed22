"""llama.cpp's server: has slots, each with space to the end of its request."""

from __future__ import annotations

from typing import Final

from .scheduler_queues import Batch, Scheduler, Stateful
from .sequence import Sequence, SequenceStatus, num_blocks_for
from .step_cost import BLOCK_SIZE

SIMILARITY: Final = 0.1
"""The default of --slot-prompt-similarity is this value."""


class LlamaCpp(Stateful):
    """Models tools/server/server-context.cpp, `pre_decode` and `get_available_slot`, at
    001d906a6d86. The first request gets one of --parallel slots (here max_num_seqs): the free slot
    whose last text begins most like the prompt, if at least a tenth of it is equal, else the slot
    that was free for longest. A step is one token for each slot that generates, then prompts in the
    order of the slots, until it has --batch-size tokens (here max_num_batched_tokens). Nothing is
    preempted.

    Left out: the cache is shared by all slots. Contexts of equal size: here a request waits until
    there is space to its end. The passes of --ubatch-size, which read the weights again.
    """

    def __init__(self) -> None:
        self.slots: list[Sequence | None] = []
        self._free: list[int] = []  # the one that was free for longest first
        self._last: dict[int, Sequence] = {}  # who had a slot

    def __call__(self, scheduler: Scheduler) -> Batch:
        self._assign(scheduler)
        batch = Batch()
        budget = scheduler.config.max_num_batched_tokens - len(scheduler.decoding.sequences)
        scheduler.decode_all(batch)
        for sequence in self.slots:
            if sequence is None or sequence.decoding or budget <= 0:
                continue
            if sequence.status is SequenceStatus.RUNNING:
                num_new_tokens = min(scheduler.num_left(sequence), budget)
                scheduler.compute(batch, sequence, num_new_tokens)
            else:
                num_cached, _, num_left = scheduler.look_up(sequence)
                num_new_tokens = min(num_left, budget)
                scheduler.waiting.remove(sequence)
                scheduler.admit(batch, sequence, num_cached, num_new_tokens)
            budget -= num_new_tokens
        return batch

    def _assign(self, scheduler: Scheduler) -> None:
        """Assigns slots. A sequence with a slot waits there until there is budget for its first
        token."""
        if not self.slots:
            self.slots = [None] * scheduler.most_running
            self._free = list(range(scheduler.most_running))
        free_blocks = scheduler.blocks.num_blocks
        for number, sequence in enumerate(self.slots):
            if sequence is None:
                continue
            if sequence.status is SequenceStatus.FINISHED:
                self.slots[number] = None
                self._free.append(number)
            else:
                free_blocks -= _most_blocks(sequence)
        taken = {sequence for sequence in self.slots if sequence}
        if not self._free or len(taken) == len(scheduler.running) + len(scheduler.waiting):
            return
        for sequence in scheduler.waiting:
            if sequence in taken:
                continue
            free_blocks -= _most_blocks(sequence)
            if free_blocks < 0 or not self._free:
                break
            number = self._choose_slot(sequence, scheduler.config.common_prefix_tokens)
            self._free.remove(number)
            self.slots[number] = self._last[number] = sequence

    def _choose_slot(self, sequence: Sequence, common_prefix_tokens: int) -> int:
        most = SIMILARITY * sequence.num_prompt_tokens
        chosen = self._free[0]
        for number in sorted(self._free):
            last = self._last.get(number)
            if last is None:
                continue
            num_common = max(common_prefix_tokens, _count_common_tokens(sequence, last))
            if num_common > most:
                most = num_common
                chosen = number
        return chosen


def _count_common_tokens(sequence: Sequence, other: Sequence) -> int:
    """Returns the tokens of the common beginning, in whole blocks."""
    equal = 0
    for key, last in zip(sequence.block_keys, other.block_keys, strict=False):
        if key != last:
            break
        equal += 1
    return equal * BLOCK_SIZE


def _most_blocks(sequence: Sequence) -> int:
    return num_blocks_for(sequence.num_prompt_tokens + sequence.max_tokens)
