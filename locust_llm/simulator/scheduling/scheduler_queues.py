"""Scheduler queues: holds the queues, and the moves that every policy consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from operator import attrgetter

from .kv_cache_blocks import Blocks
from .sequence import Decoding, Sequence, SequenceStatus, TokenRun, num_blocks_for
from .step_cost import BLOCK_SIZE
from .waiting_order import Fair, Priority, Waiting, make_waiting_queue


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Holds vLLM's flags. A long_prefill_token_threshold of 0 means no threshold, as in vLLM.
    watermark is the share of the blocks that must stay free when a sequence is admitted beside
    others. common_prefix_tokens is the length that all prompts share, if blocks have no keys."""

    max_num_batched_tokens: int
    max_num_seqs: int
    kv_tokens: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: int | None = None
    watermark: float = 0.0
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    common_prefix_tokens: int = 0


@dataclass(slots=True)
class Batch:
    """Holds one step's work: the prompt tokens that sequences compute, and the decode round."""

    prefills: dict[Sequence, int] = field(default_factory=dict)
    num_decodes: int = 0  # 0: no round
    num_context_tokens: int = 0  # of the round's sequences


Policy = Callable[["Scheduler"], Batch]


class Stateful(ABC):
    """Is a policy with a memory from step to step, so each scheduler has its own."""

    @abstractmethod
    def __call__(self, scheduler: Scheduler) -> Batch: ...


class Scheduler:
    """Holds running sequences in the order of admission. Sequences with more than one token to
    compute are prefilling, the others decoding.

    With ``ahead`` a step is chosen while the one before runs (vLLM 0.32,
    vllm/v1/core/sched/async_scheduler.py). `postprocess` runs when a step begins, since all but its
    tokens is known then, and `release` when it has ended. Until then finished sequences keep their
    place and their blocks. A block that an answer fills can be found a step later.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        policy: Policy | type[Stateful],
        *,
        waiting: Waiting | None = None,
        record: bool = False,
    ) -> None:
        self.config = config
        self.policy: Policy = policy() if isinstance(policy, type) else policy
        self.waiting: Waiting = make_waiting_queue() if waiting is None else waiting
        self.ahead = False  # for `chunked` and `mixed`
        self._fair = waiting if isinstance(waiting, Fair) else None
        self.now = 0.0  # when the step begins for which `schedule` was called
        self.running: dict[Sequence, None] = {}  # ordered sets, these two
        self.prefilling: dict[Sequence, None] = {}
        self.decoding = Decoding(record=record)
        if self._fair is not None:
            self._fair.decoding = self.decoding
        self.blocks = Blocks(config.kv_tokens // BLOCK_SIZE, caching=config.enable_prefix_caching)
        self.most_running = min(
            config.max_num_seqs, config.max_num_active_seqs or config.max_num_seqs
        )
        self._watermark = int(
            config.watermark * (self.blocks.num_blocks + 1)
        )  # vLLM counts a block that nobody may use
        self.num_preemptions = 0
        self._num_admitted = 0
        self.num_cache_queries = self.num_cache_hits = 0  # in tokens

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence. Raises ValueError if it exceeds the whole KV cache."""
        longest = sequence.num_prompt_tokens + sequence.max_tokens
        if (
            sequence.num_prompt_tokens < 1
            or sequence.max_tokens < 1
            or num_blocks_for(longest) > self.blocks.num_blocks
        ):
            most = self.blocks.num_blocks * BLOCK_SIZE
            raise ValueError(f"a sequence of {longest} tokens does not fit in {most} KV tokens")
        self.waiting.append(sequence)

    def schedule(self, at: float = 0.0) -> Batch:
        """Chooses the work of the step that begins at that time. The work is empty only without any
        sequence."""
        self.now = at
        while True:
            num_preemptions = self.num_preemptions
            batch = self.policy(self)
            if (
                batch.prefills
                or batch.num_decodes
                or self.num_preemptions == num_preemptions
                or self.ahead
            ):
                return batch
            # The policy only preempted, which takes no time.

    def postprocess(self, batch: Batch, at: float) -> tuple[list[Sequence], list[Sequence]]:
        """Ends a step. Returns the sequences that got a token at the end of their prompt, and the
        sequences that got their last token. A decode round gives each decoding sequence one."""
        decoding = self.decoding
        finished = decoding.end_round(at) if decoding.in_round else []
        prefilled = []
        for sequence, num_new_tokens in batch.prefills.items():
            if sequence.status is SequenceStatus.FINISHED:  # aborted while the step ran
                continue
            sequence.computed_then += num_new_tokens
            if sequence.computed_then == sequence.num_prompt_tokens + sequence.output_then:
                sequence.output_then += 1
                prefilled.append(sequence)
                self.prefilling.pop(sequence, None)
                self._got_token(sequence, at)
                if sequence.output_then == sequence.max_tokens:
                    if decoding.round_at is not None:
                        sequence.runs.append(TokenRun(at, decoding.round_at, 0, 0))
                    finished.append(sequence)
                else:
                    decoding.join(sequence, at)
                    if self._fair is not None:
                        self._fair.joined(sequence)
            else:
                self.prefilling[sequence] = None
        if len(finished) > 1:  # who is first in the order is emptied of its blocks first
            finished.sort(key=_order)
        for sequence in finished:
            sequence.last_at = at
            if not self.ahead:
                self.finish(sequence)
            elif sequence.decoding:
                self._leave_decoding(sequence)
        return prefilled, finished

    def release(self, finished: Series[Sequence]) -> None:
        """Ends the step of the last tokens, with ``ahead``."""
        for sequence in finished:
            # else it was aborted or preempted meanwhile
            if sequence.status is SequenceStatus.RUNNING:
                self._name_blocks(sequence, sequence.computed_then)
            self.finish(sequence)

    def _got_token(self, sequence: Sequence, at: float) -> None:
        """Records a token at the end of a prompt: the first, or the next one after a preemption."""
        if sequence.first_at is None:
            sequence.first_at = at
        else:
            sequence.preemption_s += at
        if self._fair is not None:
            self._fair.served(sequence, output_tokens=1)

    def finish(self, sequence: Sequence) -> None:
        """Removes a sequence, done or aborted. A second call does nothing."""
        if sequence.status is SequenceStatus.FINISHED:
            return
        if sequence.status is SequenceStatus.RUNNING:
            del self.running[sequence]
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def preempt(self, sequence: Sequence | None = None) -> Sequence:
        """Preempts a running sequence, by default the last one, or the last one by priority. It
        loses its blocks and all that it has computed, and waits again, before others."""
        if sequence is None:
            by_priority = isinstance(self.waiting, Priority)
            if by_priority:
                sequence = max(self.running, key=Priority.key)
            else:
                sequence = next(reversed(self.running))
        del self.running[sequence]
        # else it has had no token yet, or has not come back from the time before
        if sequence.decoding:
            sequence.preemption_s -= self.now
        self._stop(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.computed_then = sequence.num_transferred_tokens = 0
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
        return sequence

    # -- parts of a step ---------------------------------------------------------------------------

    def serve_running(self, batch: Batch, budget: int, longest: int) -> tuple[int, bool]:
        """Serves each decode with one token, and each prefill with up to ``longest``. Returns the
        rest of the budget, and whether a sequence was preempted for lack of blocks.

        vLLM goes through running sequences in their order. The sums are equal: no sequence needs
        more than in the step that admitted the next one, so the budget can run out for the last one
        only.
        """
        left = budget - len(self.decoding.sequences)
        blocks = self.decoding.num_new_blocks
        work: list[tuple[Sequence, int]] = []
        for sequence in self.prefilling:
            num_new_tokens = min(self.num_left(sequence), longest, left)
            if num_new_tokens > 0:
                work.append((sequence, num_new_tokens))
                left -= num_new_tokens
                blocks += self.num_blocks_of(sequence, num_new_tokens)
        if blocks > self.blocks.num_free:
            self._serve_with_preemption(batch, budget, longest)
            return 0, True
        self.decode_all(batch, work)
        return left, False

    def _serve_with_preemption(self, batch: Batch, budget: int, longest: int) -> None:
        """Serves sequences one by one if blocks are short, where the last in order gives way to the
        first. By priority, a sequence served in this step may have to give way, and then others get
        its tokens. A sequence that gives way to itself costs the later ones their turn, as in
        vLLM."""
        served: dict[Sequence, int] = {}  # who decodes, and the blocks it took
        for sequence in list(self.running):
            if sequence not in self.running or sequence.num_output_tokens == sequence.max_tokens:
                continue
            decodes = sequence.decoding is not None
            num_new_tokens = min(1 if decodes else self.num_left(sequence), longest, budget)
            if not num_new_tokens:
                break
            num_new_blocks = (
                num_blocks_for(sequence.num_computed_tokens + num_new_tokens) - sequence.num_blocks
            )
            while (
                num_new_blocks > self.blocks.num_free and sequence.status is SequenceStatus.RUNNING
            ):
                gone = self.preempt()
                budget += batch.prefills.pop(gone, int(gone in served))
                self.blocks.free([], served.pop(gone, 0))
            if sequence.status is not SequenceStatus.RUNNING:
                break
            budget -= num_new_tokens
            if decodes:
                self.blocks.take(num_new_blocks)
                served[sequence] = num_new_blocks
                self._name_blocks(sequence, sequence.num_tokens - self.ahead)
            else:
                self.compute(batch, sequence, num_new_tokens)
        unserved = [sequence for sequence in self.decoding.sequences if sequence not in served]
        for sequence in unserved:
            self._lose_turn(sequence)
        self._begin_round(batch)

    def _lose_turn(self, sequence: Sequence) -> None:
        """Moves a decode without a token in this step to the prefills. It has one token to compute,
        like the end of a prompt."""
        sequence.preemption_s -= self.now
        self._leave_decoding(sequence)
        self.prefilling[sequence] = None
        self.prefilling = dict.fromkeys(sorted(self.prefilling, key=_order))

    def decode_all(self, batch: Batch, work: Series[tuple[Sequence, int]] = ()) -> None:
        """Gives every decode a token, and the prefills their ``work``. The blocks must be free."""
        decoding = self.decoding
        self.blocks.take(decoding.num_new_blocks)
        filling: list[Sequence] = []
        if self.blocks.caching:
            full = decoding.beginning if self.ahead else decoding.filling
            filling = [each for each in full if len(each.named_blocks) < len(each.block_keys)]
            filling.sort(key=_order, reverse=True)
        for sequence, num_new_tokens in work:
            # of equal blocks the first in the order is the older
            while filling and filling[-1].order < sequence.order:
                self._name_blocks(filling[-1], filling.pop().num_tokens - self.ahead)
            self.compute(batch, sequence, num_new_tokens)
        while filling:
            self._name_blocks(filling[-1], filling.pop().num_tokens - self.ahead)
        self._begin_round(batch)

    def _begin_round(self, batch: Batch) -> None:
        decoding = self.decoding
        if decoding.sequences:
            batch.num_decodes = len(decoding.sequences)
            batch.num_context_tokens = decoding.num_context_tokens
            decoding.in_round = True

    def num_left(self, sequence: Sequence) -> int:
        """Returns the tokens that a sequence, not decoding, has to compute."""
        return sequence.num_prompt_tokens + sequence.output_then - sequence.computed_then

    def num_blocks_of(self, sequence: Sequence, num_new_tokens: int) -> int:
        """Returns the further blocks that a sequence, not decoding, needs for these tokens."""
        return num_blocks_for(sequence.computed_then + num_new_tokens) - sequence.blocks_then

    def look_up(self, sequence: Sequence) -> tuple[int, int, int]:
        """Returns three counts of a waiting sequence: its blocks in the prefix cache (at least one
        token stays to be computed), the blocks it needs besides blocks in use, and the tokens left
        to compute."""
        num_tokens = sequence.num_prompt_tokens + sequence.output_then
        num_cached = idle = 0
        if self.blocks.caching and sequence.block_keys:
            num_cached, idle = self.blocks.find(
                sequence.block_keys[: (num_tokens - 1) // BLOCK_SIZE]
            )
        num_computed = max(num_cached * BLOCK_SIZE, sequence.num_transferred_tokens)
        return num_cached, num_blocks_for(num_tokens) - num_cached + idle, num_tokens - num_computed

    def fits(self, num_blocks: int) -> bool:
        """Returns whether a waiting sequence that needs these blocks may be admitted."""
        return num_blocks + (self._watermark if self.running else 0) <= self.blocks.num_free

    def admit(self, batch: Batch, sequence: Sequence, num_cached: int, num_new_tokens: int) -> None:
        """Runs a sequence that was taken from waiting, as the last in order. ``num_cached`` comes
        from `look_up`."""
        if self.blocks.caching:
            sequence.named_blocks = self.blocks.share(sequence.block_keys[:num_cached])
            sequence.blocks_then = num_cached
            if not sequence.num_transferred_tokens:  # else the prefill engine has looked them up
                self.num_cache_queries += sequence.num_prompt_tokens + sequence.output_then
                self.num_cache_hits += num_cached * BLOCK_SIZE
        if self._fair is not None and not sequence.num_preemptions:
            self._fair.served(sequence, prompt_tokens=sequence.num_prompt_tokens)
        if not sequence.num_preemptions and not sequence.num_transferred_tokens:
            sequence.num_cached_tokens = num_cached * BLOCK_SIZE
        sequence.computed_then = max(num_cached * BLOCK_SIZE, sequence.num_transferred_tokens)
        self._num_admitted += 1
        sequence.status = SequenceStatus.RUNNING
        sequence.order = self._num_admitted
        self.running[sequence] = None
        self.compute(batch, sequence, num_new_tokens)

    def compute(self, batch: Batch, sequence: Sequence, num_new_tokens: int) -> None:
        """Computes a part of a prompt. Its blocks must be free. Its full blocks can be found from
        now on: a sequence that shares one in the same step reads it after it was written."""
        batch.prefills[sequence] = num_new_tokens
        num_tokens = sequence.computed_then + num_new_tokens
        num_blocks = num_blocks_for(num_tokens)
        self.blocks.take(num_blocks - sequence.blocks_then)
        sequence.blocks_then = num_blocks
        self._name_blocks(sequence, num_tokens)

    def _name_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        named = sequence.named_blocks
        if self.blocks.caching:
            for key in sequence.block_keys[len(named) : num_tokens // BLOCK_SIZE]:
                named.append(self.blocks.name(key))

    def _leave_decoding(self, sequence: Sequence) -> None:
        if self._fair is not None:
            self._fair.left(sequence)
        self.decoding.leave(sequence)

    def _stop(self, sequence: Sequence) -> None:
        """Frees the blocks of a sequence that runs no more."""
        if sequence.decoding:
            self._leave_decoding(sequence)
        self.prefilling.pop(sequence, None)
        self.blocks.free(sequence.named_blocks, sequence.blocks_then - len(sequence.named_blocks))
        sequence.named_blocks = []
        sequence.blocks_then = 0


_order = attrgetter("order")
