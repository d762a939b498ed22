"""SGLang's scheduler: serves prompts first, and admits as many requests as will probably fit to
their end."""

from __future__ import annotations

from typing import Final

from .scheduler_queues import Batch, Scheduler, Stateful
from .sequence import Sequence
from .step_cost import BLOCK_SIZE

CLIP: Final = 4096
"""At most this many future tokens of a request count (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION)."""
INIT_RATIO: Final = 0.7
"""Admission expects this share of the future tokens: SGLANG_INIT_NEW_TOKEN_RATIO, conservativeness
1."""
MIN_RATIO: Final = INIT_RATIO * 0.14
DECAY: Final = (INIT_RATIO - MIN_RATIO) / 600
"""The ratio decreases by this value in each round (SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS)."""
RETRACT_STEPS: Final = 20
"""The ratio plans this many rounds after a retraction (SGLANG_RETRACT_DECODE_STEPS)."""


class SGLang(Stateful):
    """Models python/sglang/srt/managers/schedule_policy.py, `PrefillAdder`, at 00550cd11b35, and
    scheduler.py, `get_next_batch_to_run`, at 0003215cf146. While a prompt can be computed, a step
    has prompts only, up to chunked_prefill_size (here max_num_batched_tokens), and decodes pause.
    One prompt may be cut. A request is admitted if its prompt and its whole answer fit beside the
    expected share of the others' answers. If blocks are short, sequences with the shortest answers
    are retracted to the end of the queue.

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
        """Serves prompts. ``reserved`` blocks are not for prompts."""
        waiting = scheduler.waiting
        decoding = scheduler.decoding.sequences
        budget = scheduler.config.max_num_batched_tokens - (len(decoding) if self.mixed else 0)
        expected = self.ratio * sum(min(_future_tokens(sequence), CLIP) for sequence in decoding)
        for sequence in list(scheduler.prefilling):  # at most one
            num_new_tokens = min(scheduler.num_left(sequence), budget)
            if num_new_tokens <= 0:
                return
            if scheduler.num_blocks_of(sequence, num_new_tokens) > _free_blocks(
                scheduler, reserved
            ):
                return
            scheduler.compute(batch, sequence, num_new_tokens)
            budget -= num_new_tokens
            if num_new_tokens == scheduler.num_left(sequence):
                expected += min(_future_tokens(sequence), CLIP)
        while waiting and budget > 0 and not self.full:
            sequence = waiting[0]
            num_cached, num_blocks, num_left = scheduler.look_up(sequence)
            free = _free_blocks(scheduler, reserved)
            future_tokens = min(_future_tokens(sequence), CLIP)
            free_tokens = free * BLOCK_SIZE - expected
            # alone it fits
            crowded = num_blocks * BLOCK_SIZE + future_tokens >= free_tokens and bool(
                scheduler.running
            )
            if crowded or num_blocks > free or len(scheduler.running) >= scheduler.most_running:
                self.full = True
                break
            num_new_tokens = min(num_left, budget)
            scheduler.admit(batch, waiting.popleft(), num_cached, num_new_tokens)
            budget -= num_new_tokens
            expected += future_tokens

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
        """Retracts the shortest answer first, among equal ones the longest prompt. A prompt in
        computation is retracted before the last answer."""
        decoding = scheduler.decoding
        gone = []
        while decoding.num_new_blocks > scheduler.blocks.num_free:
            prompt = next(iter(scheduler.prefilling), None)
            if prompt is None or len(decoding.sequences) > 1:
                gone.append(scheduler.preempt(min(decoding.sequences, key=_retracted_first)))
            else:
                gone.append(scheduler.preempt(prompt))
        for sequence in gone:
            scheduler.waiting.remove(sequence)
            scheduler.waiting.append(sequence)
        outputs = sum(sequence.num_output_tokens for sequence in decoding.sequences)
        most = sum(sequence.max_tokens for sequence in decoding.sequences)
        self.ratio = min(1.0, (outputs + RETRACT_STEPS * len(decoding.sequences)) / (most + 1))


class SGLangMixed(SGLang):
    """Models --enable-mixed-chunk: decodes get a token in a step of prompts too, from the same
    budget."""

    mixed = True


def _future_tokens(sequence: Sequence) -> int:
    return sequence.max_tokens - sequence.num_output_tokens


def _free_blocks(scheduler: Scheduler, reserved: int) -> int:
    return scheduler.blocks.num_free - reserved


def _retracted_first(sequence: Sequence) -> tuple[int, int]:
    return sequence.num_output_tokens, -sequence.num_prompt_tokens
