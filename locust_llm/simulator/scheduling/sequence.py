"""Sequence: describes one request inside an engine, and the set of decodes, whose cost does not
depend on their number."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from collections.abc import Sequence as Series
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import NamedTuple

from .kv_cache_blocks import CacheBlock
from .step_cost import BLOCK_SIZE


class SequenceStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class TokenRun(NamedTuple):
    """Holds successive tokens of a sequence: one ``at`` the end of its prefill, then one per
    round."""

    at: float
    round_at: array[float]
    first: int
    last: int


@dataclass(slots=True, eq=False)
class Sequence:
    """Has no prefill or decode phase: each step brings num_computed_tokens nearer to num_tokens,
    and a sequence that has caught up gets one more output token.

    block_keys name its full blocks, first of the prompt, then of the output, as far as known. Equal
    keys mean equal texts up to the end of the block. num_transferred_tokens of its KV cache come
    from another engine.
    """

    num_prompt_tokens: int
    max_tokens: int
    block_keys: Series[int] = ()
    num_transferred_tokens: int = 0
    priority: int = 0  # lower is earlier; these two matter to the queues of `waiting`
    tenant: str = ""
    status: SequenceStatus = SequenceStatus.WAITING
    number: int = 0  # of its arrival, where its queue counts
    arrived_at: float | None = None  # at the engine
    started_at: float | None = None  # the start of its first step
    first_at: float | None = None  # its first token
    last_at: float | None = None
    # see `parts`; the other two hold while it is neither decoding nor preempted
    own_prefill_s: float = 0.0
    pace_s: float = 0.0
    preemption_s: float = 0.0
    num_cached_tokens: int = 0  # found in the prefix cache when it was first admitted
    num_preemptions: int = 0
    order: int = 0  # of its last admission
    named_blocks: list[CacheBlock] = field(
        default_factory=list
    )  # the first of its blocks, with the first of block_keys
    decoding: Decoding | None = None
    joined: int = 0  # the decoding set's round when it joined
    runs: list[TokenRun] = field(default_factory=list)
    # These four are as of when it joined the decoding set, while it is there: see the properties.
    output_then: int = 0
    computed_then: int = 0
    blocks_then: int = 0

    @property
    def num_output_tokens(self) -> int:
        return self.output_then + (self.decoding.rounds - self.joined if self.decoding else 0)

    @property
    def num_computed_tokens(self) -> int:
        return self.num_tokens - 1 if self.decoding else self.computed_then

    @property
    def num_blocks(self) -> int:
        if self.decoding:
            return num_blocks_for(self.num_computed_tokens + self.decoding.in_round)
        return self.blocks_then

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def token_times(self) -> list[float]:
        """Returns the time of each token, if its engine records them. Not to be called while it
        decodes."""
        times: list[float] = []
        for at, round_at, first, last in self.runs:
            times.append(at)
            times += round_at[first:last]
        return times


def num_blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


class Decoding:
    """Holds the sequences that get one token per step, all together in a round. Sums hold the
    effects of a round, so its cost does not depend on the number of sequences.

    With ``record`` it keeps the end of each round for `Sequence.token_times`.
    """

    def __init__(self, *, record: bool = False) -> None:
        self.rounds = 0
        self.in_round = False
        self.sequences: dict[Sequence, None] = {}  # an ordered set
        self.num_context_tokens = 0  # of all of them, with the token that the next round computes
        self.pace_s = 0.0  # the sum of what each round would have taken without prompts beside it
        self.round_at = array("d") if record else None
        self._ends: dict[int, dict[Sequence, None]] = {}  # by the round that is their last
        # Those that begin a block in round 0, 16, 32, ..., in round 1, 17, 33, ..., and so on.
        self._beginning: list[dict[Sequence, None]] = [{} for _ in range(BLOCK_SIZE)]

    @property
    def num_new_blocks(self) -> int:
        """Returns how many begin a block in the next round."""
        return len(self.beginning)

    @property
    def beginning(self) -> Collection[Sequence]:
        """Lists the decodes that begin a block in the next round."""
        return self._beginning[self.rounds % BLOCK_SIZE]

    @property
    def filling(self) -> Collection[Sequence]:
        """Lists the decodes whose block will be full after the next round."""
        return self._beginning[(self.rounds + 1) % BLOCK_SIZE]

    @property
    def next_end(self) -> int:
        """Returns the round that ends some sequence, if nothing happens before. Some sequence must
        decode."""
        return min(last for last, ends in self._ends.items() if ends)

    def join(self, sequence: Sequence, at: float) -> None:
        """Adds a sequence that has just got a token. Only this token is not computed yet."""
        rounds = self.rounds
        output = sequence.output_then
        num_tokens = sequence.num_prompt_tokens + output
        sequence.decoding = self
        sequence.joined = rounds
        sequence.pace_s -= self.pace_s
        self.sequences[sequence] = None
        self.num_context_tokens += num_tokens
        self._beginning[(rounds - num_tokens + 1) % BLOCK_SIZE][sequence] = None
        last = rounds + sequence.max_tokens - output
        if last not in self._ends:
            self._ends[last] = {}
        self._ends[last][sequence] = None
        if self.round_at is not None:
            sequence.runs.append(TokenRun(at, self.round_at, rounds, last))

    def leave(self, sequence: Sequence) -> None:
        """Removes a sequence, and updates its own counts."""
        rounds = self.rounds
        joined = sequence.joined
        num_tokens = sequence.num_tokens
        num_blocks = sequence.num_blocks
        ends = self._ends.get(joined + sequence.max_tokens - sequence.output_then)
        if ends:
            ends.pop(sequence, None)
        del self.sequences[sequence]
        self.num_context_tokens -= num_tokens
        del self._beginning[(rounds - num_tokens + 1) % BLOCK_SIZE][sequence]
        sequence.decoding = None
        sequence.pace_s += self.pace_s
        sequence.output_then += rounds - joined
        sequence.computed_then = num_tokens - 1
        sequence.blocks_then = num_blocks
        if self.round_at is not None:
            sequence.runs[-1] = sequence.runs[-1]._replace(last=rounds)

    def end_round(self, at: float) -> list[Sequence]:
        """Gives each sequence a token, and returns the sequences that got their last one."""
        self.rounds += 1
        self.in_round = False
        self.num_context_tokens += len(self.sequences)
        if self.round_at is not None:
            self.round_at.append(at)
        return list(self._ends.pop(self.rounds, ()))


def draw_draft_steps(
    max_tokens: int, num_draft_tokens: int, acceptance: float, random: Random
) -> list[int]:
    """Draws the accepted draft tokens of each step of speculative decoding, up to max_tokens. The
    prefill brings one token. Each later step brings one, and the accepted drafts before the first
    rejected one. Empty without draft tokens."""
    if not num_draft_tokens:
        return []
    steps = [0]
    count = 1
    while count < max_tokens:
        accepted = 0
        while accepted < num_draft_tokens and random.random() < acceptance:
            accepted += 1
        steps.append(accepted)
        count += 1 + accepted
    return steps
