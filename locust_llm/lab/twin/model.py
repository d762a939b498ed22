"""Twin: the model of a server (scheduler, cost of a step, what is around it), and the twin that
holds it, as frozen data."""

from collections.abc import Iterable
from typing import Final, NamedTuple

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


# -- a twin ----------------------------------------------------------------------------------------
# The model of a server, what is uncertain in it, how far it was off, and where it came from. As
# frozen data.

FIGURES, SHAPE, NOT_TO_BE_USED = "figures", "shape", "not to be used"
VERDICTS: Final = {
    FIGURES: "good for figures",
    SHAPE: "good for shape, not for figures",
    NOT_TO_BE_USED: "not to be used",
}


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Of what server, and when."""

    host: str = ""
    model: str = ""
    server: str = ""
    """Name and version, as far as it says."""
    slots: int | None = None
    """How many requests it takes at a time, where it is llama.cpp and says so (``--parallel``),"""
    common_prefix_tokens: int = 0
    """and with how many tokens all prompts begin, as its cache had them."""
    fitted_on: str = ""
    """A date, ISO 8601."""
    made_with: str = ""
    folders: tuple[str, ...] = ()
    """The runs that it was fitted from."""
    requests: int = 0
    notes: tuple[str, ...] = ()
    """What of these was left out, or is doubtful."""


UNKNOWN_ORIGIN: Final = Origin()


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, from the least to the most. Outside of it a prediction is an
    extrapolation."""

    users: tuple[int, int] = (0, 0)
    rate: tuple[float, float] = (0.0, 0.0)
    prompt_tokens: tuple[int, int] = (0, 0)
    output_tokens: tuple[int, int] = (0, 0)
    saturated: bool = False
    """The throughput of the sweep stopped growing, so the capacity is known."""


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """The costs once more, fitted to requests drawn with replacement: seconds, but free_tokens."""

    fixed_s: float
    token_s: float
    stream_s: float
    context_s: float
    pair_s: float
    free_tokens: float
    request_s: float
    reading_s: float
    admission_s: float = 0.0
    own_pair_s: float = 0.0


class HeldOutCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that was kept out of the fit."""

    load: str
    figure: str
    said: float
    low: float
    high: float
    measured: float
    requests: int

    @property
    def error(self) -> float:
        """As a share of what was measured."""
        return self.said / self.measured - 1 if self.measured else 0.0


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """How a load of the sweep was, beside the twin's own replay of it: what a later load is held
    against (drift.py)."""

    users: int
    figure: str
    off: float
    """Logarithm of measured / replayed."""
    error: float
    """Its standard error, by the twin's noise or by which requests there were, whichever is
    larger."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    """``figures``, ``shape`` or ``not to be used``."""
    error: float | None = None
    """Median of the errors of all checks, a share; None: there were none."""
    reasons: tuple[str, ...] = ()
    errors: dict[str, float] = {}
    """By figure: the standard error of a prediction beyond the uncertainty of the fit, as a
    share."""


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    model: ServerModel
    trust: Trust
    ranges: Ranges
    origin: Origin = UNKNOWN_ORIGIN
    intervals: dict[str, tuple[float, float]] = {}
    """95% of each parameter that was fitted, by its name."""
    unknown: dict[str, str] = {}
    """What could not be identified, and what is assumed."""
    lengths: tuple[tuple[int, int], ...] = ()
    """(prompt, output tokens) of requests of the sweep: what a prediction sends, if nothing else is
    asked for."""
    draws: tuple[Draw, ...] = ()
    checks: tuple[HeldOutCheck, ...] = ()
    reference: tuple[Reference, ...] = ()
    """Empty: no closed loop was measured, so drift cannot be told."""

    def models(self) -> list[ServerModel]:
        """One for each draw; the model itself where there are none."""
        return [apply_draw(self.model, draw) for draw in self.draws] or [self.model]


def apply_draw(model: ServerModel, draw: Draw) -> ServerModel:
    cost = {name: getattr(draw, name) for name in model.cost.__struct_fields__}
    return msgspec.structs.replace(
        model,
        cost=msgspec.structs.replace(model.cost, **cost),
        front=msgspec.structs.replace(
            model.front, request_s=draw.request_s, token_s=draw.reading_s
        ),
    )
