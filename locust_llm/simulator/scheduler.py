"""Which sequences compute how many tokens in the next step: vLLM V1's scheduler, chunked prefill on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from locust_llm.simulator.cost import BLOCK_SIZE


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. There is no prefill or decode phase: each step brings num_computed_tokens nearer
    to num_tokens, and a sequence that has caught up gets one more output token."""

    num_prompt_tokens: int
    max_tokens: int
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_blocks: int = 0
    status: Status = Status.WAITING

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """vLLM's flags. A long_prefill_token_threshold of 0 is none, as in vLLM."""

    max_num_batched_tokens: int
    max_num_seqs: int
    kv_tokens: int
    long_prefill_token_threshold: int = 0


Batch = dict[Sequence, int]  # vLLM's num_scheduled_tokens: what each sequence computes in this step, in running order
Policy = Callable[["Scheduler"], Batch]


def num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


class Scheduler:
    """The queues and the KV blocks, and the few moves every policy is made of."""

    def __init__(self, config: Config, policy: Policy | None = None) -> None:
        self.config = config
        self.policy = policy or chunked
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_blocks = config.kv_tokens // BLOCK_SIZE
        self.num_free_blocks = self.num_blocks
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Raises ValueError for a sequence that could never finish, alone in the whole KV cache."""
        longest = sequence.num_prompt_tokens + sequence.max_tokens
        if sequence.num_prompt_tokens < 1 or sequence.max_tokens < 1 or num_blocks_for(longest) > self.num_blocks:
            raise ValueError(f"a sequence of {longest} tokens does not fit in {self.num_blocks * BLOCK_SIZE} KV tokens")
        self.waiting.append(sequence)

    def schedule(self) -> Batch:
        """Choose the next step's work. Empty only when there is no sequence at all."""
        return self.policy(self)

    def postprocess(self, batch: Batch) -> list[Sequence]:
        """The step is over: return the sequences that got an output token, the finished ones already freed."""
        emitted = []
        for sequence, num_new_tokens in batch.items():
            if sequence.is_finished:  # aborted while the step ran
                continue
            sequence.num_computed_tokens += num_new_tokens
            if sequence.num_computed_tokens == sequence.num_tokens:
                sequence.num_output_tokens += 1
                emitted.append(sequence)
                if sequence.num_output_tokens == sequence.max_tokens:
                    self.finish(sequence)
        return emitted

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, done or aborted. A second call does nothing."""
        if sequence.is_finished:
            return
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self._free(sequence)

    def can_allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        return num_blocks_for(num_tokens) - sequence.num_blocks <= self.num_free_blocks

    def allocate(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence what is missing to hold num_tokens in all."""
        num_new_blocks = num_blocks_for(num_tokens) - sequence.num_blocks
        self.num_free_blocks -= num_new_blocks
        sequence.num_blocks += num_new_blocks

    def admit(self) -> None:
        """The head of waiting joins the end of running."""
        sequence = self.waiting.popleft()
        sequence.status = Status.RUNNING
        self.running.append(sequence)

    def preempt(self) -> Sequence:
        """The last running sequence gives up its blocks and all it has computed, and is first in line again."""
        sequence = self.running.pop()
        sequence.status = Status.WAITING
        sequence.num_computed_tokens = 0
        self._free(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
        return sequence

    def _free(self, sequence: Sequence) -> None:
        self.num_free_blocks += sequence.num_blocks
        sequence.num_blocks = 0


def chunked(scheduler: Scheduler) -> Batch:
    """vLLM V1 (0.32, vllm/v1/core/sched/scheduler.py, `schedule`): one token budget, first for what runs, in its order,
    then for who waits, first come, first served. Left out: spec decode, LoRA, prefix cache, async scheduling."""
    config, running, waiting = scheduler.config, scheduler.running, scheduler.waiting
    batch: Batch = {}
    budget = config.max_num_batched_tokens
    longest = budget
    if config.long_prefill_token_threshold and len(running) + len(waiting) > 1:
        longest = config.long_prefill_token_threshold

    preempted = False
    index = 0
    while index < len(running) and budget > 0:  # running shrinks at its end while we preempt
        sequence = running[index]
        num_new_tokens = min(sequence.num_tokens - sequence.num_computed_tokens, longest, budget)
        num_tokens = sequence.num_computed_tokens + num_new_tokens
        while not scheduler.can_allocate(sequence, num_tokens):
            preempted = True
            if scheduler.preempt() is sequence:
                return batch
        scheduler.allocate(sequence, num_tokens)
        batch[sequence] = num_new_tokens
        budget -= num_new_tokens
        index += 1
    if preempted:
        return batch

    while waiting and budget > 0 and len(running) < config.max_num_seqs:
        sequence = waiting[0]
        # Room for all of it is asked for, though only this chunk's blocks are taken (scheduler_reserve_full_isl).
        if not scheduler.can_allocate(sequence, sequence.num_tokens):
            break
        num_new_tokens = min(sequence.num_tokens, longest, budget)
        scheduler.admit()
        scheduler.allocate(sequence, num_new_tokens)
        batch[sequence] = num_new_tokens
        budget -= num_new_tokens
    return batch
