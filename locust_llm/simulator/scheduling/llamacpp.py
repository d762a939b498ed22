"""llama.cpp's server: slots, each with room to the end of its request."""

from __future__ import annotations

from typing import Final

from .cost import BLOCK_SIZE
from .scheduler import Batch, Scheduler, Stateful
from .sequence import Sequence, SequenceStatus, num_blocks_for

SIMILARITY: Final = 0.1
"""Its --slot-prompt-similarity, as it is unless set."""


class LlamaCpp(Stateful):
    """tools/server/server-context.cpp, `pre_decode` and `get_available_slot`, at 001d906a6d86. Who
    came first gets, of
    --parallel slots (here max_num_seqs), the free one whose last text begins most like the prompt,
      if that is more than a
    tenth of it, else the one that was free for longest. A step is one token for each slot that
    generates, then prompts in the order of the slots, not of arrival, until it has --batch-size
    tokens (here max_num_batched_tokens). Nobody is preempted.

    Left out: the cache is that of all slots; contexts of equal size (here a request waits until
    there is room to its end); the passes of --ubatch-size, which read the weights anew.
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
        """Who has a slot waits there until there is budget for its first token."""
        if not self.slots:
            self.slots = [None] * scheduler.most_running
            self._free = list(range(scheduler.most_running))
        room = scheduler.blocks.num_blocks
        for number, sequence in enumerate(self.slots):
            if sequence is None:
                continue
            if sequence.status is SequenceStatus.FINISHED:
                self.slots[number] = None
                self._free.append(number)
            else:
                room -= _most_blocks(sequence)
        taken = {sequence for sequence in self.slots if sequence}
        if not self._free or len(taken) == len(scheduler.running) + len(scheduler.waiting):
            return
        for sequence in scheduler.waiting:
            if sequence in taken:
                continue
            room -= _most_blocks(sequence)
            if room < 0 or not self._free:
                break
            number = self._chosen(sequence, scheduler.config.common_prefix_tokens)
            self._free.remove(number)
            self.slots[number] = self._last[number] = sequence

    def _chosen(self, sequence: Sequence, common_prefix_tokens: int) -> int:
        most = SIMILARITY * sequence.num_prompt_tokens
        chosen = self._free[0]
        for number in sorted(self._free):
            last = self._last.get(number)
            if last is None:
                continue
            alike = max(common_prefix_tokens, _num_alike(sequence, last))
            if alike > most:
                most = alike
                chosen = number
        return chosen


def _num_alike(sequence: Sequence, other: Sequence) -> int:
    """Tokens that both begin with, in whole blocks."""
    equal = 0
    for key, last in zip(sequence.block_keys, other.block_keys, strict=False):
        if key != last:
            break
        equal += 1
    return equal * BLOCK_SIZE


def _most_blocks(sequence: Sequence) -> int:
    return num_blocks_for(sequence.num_prompt_tokens + sequence.max_tokens)
