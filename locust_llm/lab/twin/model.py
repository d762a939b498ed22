"""Model: what a twin is made of, as frozen data: the scheduler, the cost of a step, what is around
it."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler, by the names of vLLM's flags."""

    policy: str
    """Of the simulator: one of POLICIES."""
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    """Of a step, the most tokens of one prompt while others run; 0: no limit."""
    max_num_partial_prefills: int = 1
    max_num_seqs: int | None = None
    """None: not seen, so not known; predictions beyond the loads of the fit say so."""
    kv_tokens: int | None = None
    """Tokens in the KV cache; None: not seen."""
    common_prefix_tokens: int = 0
    """What all prompts begin with (a chat template): llama.cpp chooses slots by it."""


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step: ``fixed + token x max(0, tokens - free_tokens) + stream x sequences +
    context x tokens read + pair x pairs + own pair x own pairs``. The form is the simulator's
    roofline (simulator/scheduling/cost.py): up to ``free_tokens`` the linear layers take as long as
    the weights are read, which is in ``fixed``; a pair is a new token of a prompt and a token
    before it, for which attention is computed. Where both are of the same step it is its own pair,
    and may take longer: a kernel may also compute the half of a square that a token must not see.
    Before a step the engine takes who has come, in ``admission_s`` each, and who comes meanwhile
    too."""

    fixed_s: float
    token_s: float
    stream_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    free_tokens: float = 0.0
    own_pair_s: float = 0.0
    """Beside ``pair_s``."""
    admission_s: float = 0.0

    def step_s(self, work: "StepWork") -> float:
        """Without the noise."""
        return (
            self.fixed_s
            + self.token_s * max(0.0, work.tokens - self.free_tokens)
            + self.stream_s * work.sequences
            + self.context_s * work.context_tokens
            + self.pair_s * work.pairs
            + self.own_pair_s * work.own_pairs
        )


class StepWork(NamedTuple):
    """What a step is made of."""

    tokens: int
    sequences: int
    context_tokens: int
    pairs: float = 0.0
    own_pairs: float = 0.0
    """Of these, of two tokens of this step."""


def step_work(
    segments: Iterable[tuple[int, int]], num_decodes: int = 0, num_context_tokens: int = 0
) -> StepWork:
    """``segments``: of each prompt the tokens that are computed before, and in the step; then those
    who decode, and the tokens of all their contexts."""
    tokens, sequences, context_tokens, pairs, own_pairs = (
        num_decodes,
        num_decodes,
        num_context_tokens,
        0.0,
        0.0,
    )
    for computed, new in segments:
        tokens += new
        sequences += 1
        context_tokens += computed + new
        if new > 1:
            own_pairs += new * new / 2
            pairs += new * (computed + new / 2)
    return StepWork(tokens, sequences, context_tokens, pairs, own_pairs)


class FrontendDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Before the scheduler has a request: network, HTTP, tokenizer. It holds up nobody else."""

    request_s: float = 0.0
    token_s: float = 0.0
    """For each token of the prompt."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What makes equal steps unequal at the client."""

    step_sigma: float = 0.0
    """Standard deviation of the logarithm of a step's time."""
    step_s: float = 0.0
    """Standard deviation of a step's time beside that: what an operating system does to short steps
    and long ones alike."""
    chunk_s: float = 0.0
    """Mean time by which a chunk is late, exponential."""
    merged: float = 0.0
    """Share of the tokens that come in one chunk with the next."""
    pause_s: float = 0.0
    """Length of the server's pauses"""
    pause_every_s: float = 0.0
    """and the mean time between two; 0: no pauses."""


class ServerModel(msgspec.Struct, frozen=True, kw_only=True):
    """A server, as far as it can be simulated."""

    settings: SchedulerSettings
    cost: StepCosts
    front: FrontendDelay = FrontendDelay()
    noise: Noise = Noise()

    def with_settings(self, settings: SchedulerSettings) -> "ServerModel":
        return msgspec.structs.replace(self, settings=settings)
