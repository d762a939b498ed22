"""SGLang's scheduler: prompts first, and as many requests as will probably fit to their end."""

from __future__ import annotations

from typing import Final

from .cost import BLOCK_SIZE
from .scheduler import Batch, Scheduler, Stateful
from .sequence import Sequence

CLIP: Final = 4096
"""Most tokens still to come that are counted of one request
(SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
INIT_RATIO: Final = 0.7
"""Of the tokens still to come, the share that admission counts on: SGLANG_INIT_NEW_TOKEN_RATIO,
conservativeness 1."""
MIN_RATIO: Final = INIT_RATIO * 0.14
DECAY: Final = (INIT_RATIO - MIN_RATIO) / 600
"""Of the ratio in each round (SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS)."""
RETRACT_STEPS: Final = 20
"""Rounds that the ratio foresees after a retraction (SGLANG_RETRACT_DECODE_STEPS)."""


class SGLang(Stateful):
    """python/sglang/srt/managers/schedule_policy.py, `PrefillAdder`, at 00550cd11b35, and
    scheduler.py, `get_next_batch_to_run`, at 0003215cf146. While there is a prompt that can be
    computed, a step is of prompts alone, up to chunked_prefill_size (here max_num_batched_tokens),
    of which one may be cut; those that decode pause. A request is admitted where its prompt and all
    of its answer fit beside the share that is counted on of the others' answers. When blocks are
    short those with the shortest answers are retracted, to the end of the queue.

    Left out: the order by cached prefix, priorities, pages of one token (blocks of 16 here), the
    overlap scheduler.
    """

    mixed = False

    def __init__(self) -> None:
        self.ratio = INIT_RATIO
        self.full = False  # no one is admitted until someone is done
        self._running = 0  # after the step before

    def __call__(self, scheduler: Scheduler) -> Batch:
        batch = Batch()
        if not scheduler.running:
            self.ratio = INIT_RATIO
        if not scheduler.decoding.sequences:
            self.full = False
        reserved = scheduler.decoding.num_new_blocks if self.mixed else 0
        if reserved <= scheduler.blocks.num_free:
            self._prefill(scheduler, batch, reserved)
        if not batch.prefills:
            self._decode(scheduler, batch)
        elif self.mixed:
            scheduler.decode_all(batch)
        self._running = len(scheduler.running)
        return batch

    def _prefill(self, scheduler: Scheduler, batch: Batch, reserved: int) -> None:
        """``reserved``: blocks that are not for prompts."""
        config, waiting, decoding = (
            scheduler.config,
            scheduler.waiting,
            scheduler.decoding.sequences,
        )
        budget = config.max_num_batched_tokens - (len(decoding) if self.mixed else 0)
        expected = self.ratio * sum(min(_to_come(sequence), CLIP) for sequence in decoding)
        for sequence in list(scheduler.prefilling):  # at most one
            num_new_tokens = min(scheduler.num_left(sequence), budget)
            if num_new_tokens <= 0 or scheduler.num_blocks_of(sequence, num_new_tokens) > _free(
                scheduler, reserved
            ):
                return
            scheduler.compute(batch, sequence, num_new_tokens)
            budget -= num_new_tokens
            expected += (
                min(_to_come(sequence), CLIP)
                if num_new_tokens == scheduler.num_left(sequence)
                else 0
            )
        while waiting and budget > 0 and not self.full:
            sequence = waiting[0]
            num_cached, num_blocks, num_left = scheduler.look_up(sequence)
            free = _free(scheduler, reserved)
            to_come = min(_to_come(sequence), CLIP)
            room = free * BLOCK_SIZE - expected
            # alone it fits
            crowded = num_blocks * BLOCK_SIZE + to_come >= room and bool(scheduler.running)
            if crowded or num_blocks > free or len(scheduler.running) >= scheduler.most_running:
                self.full = True
                break
            num_new_tokens = min(num_left, budget)
            scheduler.admit(batch, waiting.popleft(), num_cached, num_new_tokens)
            budget -= num_new_tokens
            expected += to_come

    def _decode(self, scheduler: Scheduler, batch: Batch) -> None:
        decoding = scheduler.decoding
        if not decoding.sequences:
            return
        if len(scheduler.running) < self._running:
            self.full = False
        if decoding.num_new_blocks > scheduler.blocks.num_free:
            self._retract(scheduler)
        else:
            self.ratio = max(self.ratio - DECAY, MIN_RATIO)
        scheduler.decode_all(batch)

    def _retract(self, scheduler: Scheduler) -> None:
        """The shortest answer first, of equal ones the longest prompt; before the last a prompt
        that is being computed."""
        decoding = scheduler.decoding
        gone = []
        while decoding.num_new_blocks > scheduler.blocks.num_free:
            last = next(iter(scheduler.prefilling), None) if len(decoding.sequences) == 1 else None
            gone.append(scheduler.preempt(last or min(decoding.sequences, key=_retracted_first)))
        for sequence in gone:
            scheduler.waiting.remove(sequence)
            scheduler.waiting.append(sequence)
        outputs = sum(sequence.num_output_tokens for sequence in decoding.sequences)
        most = sum(sequence.max_tokens for sequence in decoding.sequences)
        self.ratio = min(1.0, (outputs + RETRACT_STEPS * len(decoding.sequences)) / (most + 1))


class SGLangMixed(SGLang):
    """With --enable-mixed-chunk: those that decode have a token in a step of prompts too, out of
    the same budget."""

    mixed = True


def _to_come(sequence: Sequence) -> int:
    return sequence.max_tokens - sequence.num_output_tokens


def _free(scheduler: Scheduler, reserved: int) -> int:
    return scheduler.blocks.num_free - reserved


def _retracted_first(sequence: Sequence) -> tuple[int, int]:
    return sequence.num_output_tokens, -sequence.num_prompt_tokens
