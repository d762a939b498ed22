"""Twin model: holds a server (scheduler, step costs, front, noise), and the twin that contains it,
as frozen data."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler, by the names of vLLM's flags."""

    policy: str
    """One of the simulator's policies."""
    max_num_batched_tokens: int
    long_prefill_token_threshold: int = 0
    """The most tokens of one prompt in a step while others run. 0: no limit."""
    max_num_partial_prefills: int = 1
    max_num_seqs: int | None = None
    """None: the limit was not reached, so it is unknown, and predictions beyond the fitted loads
    report this."""
    kv_tokens: int | None = None
    """The size of the KV cache in tokens. None: the limit was not reached."""
    common_prefix_tokens: int = 0
    """The number of tokens with which all prompts begin (a chat template)."""


class StepCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Gives the seconds of a step: ``fixed + token x max(0, tokens - free_tokens) + stream x
    sequences + context x tokens read + pair x pairs + own pair x own pairs``. The form is the
    simulator's roofline (simulator/scheduling/step_cost.py). Up to ``free_tokens`` the linear
    layers take as long as reading the weights, which is in ``fixed``. A pair is a new prompt token
    and a token before it, for which attention is computed. If both are in the same step it is an
    own pair. It may take longer, as a kernel may also compute the half of a square that a token
    must not see. Before a step the engine admits new requests, in ``admission_s`` each, including
    requests that arrive meanwhile."""

    fixed_s: float
    token_s: float
    stream_s: float = 0.0
    context_s: float = 0.0
    pair_s: float = 0.0
    free_tokens: float = 0.0
    own_pair_s: float = 0.0
    """The time of an own pair in addition to ``pair_s``."""
    admission_s: float = 0.0

    def step_s(self, work: "StepWork") -> float:
        """Returns the time without noise."""
        return (
            self.fixed_s
            + self.token_s * max(0.0, work.tokens - self.free_tokens)
            + self.stream_s * work.sequences
            + self.context_s * work.context_tokens
            + self.pair_s * work.pairs
            + self.own_pair_s * work.own_pairs
        )


class StepWork(NamedTuple):
    """Describes the work of a step."""

    tokens: int
    sequences: int
    context_tokens: int
    pairs: float = 0.0
    own_pairs: float = 0.0
    """This many of the pairs are of two tokens of this step."""


def step_work(
    segments: Iterable[tuple[int, int]], num_decodes: int = 0, num_context_tokens: int = 0
) -> StepWork:
    """Adds up the work. Each of ``segments`` has a prompt's tokens computed before and in this
    step. Decodes have one token each, and the tokens of all their contexts."""
    tokens = num_decodes
    sequences = num_decodes
    context_tokens = num_context_tokens
    pairs = 0.0
    own_pairs = 0.0
    for computed, new in segments:
        tokens += new
        sequences += 1
        context_tokens += computed + new
        if new > 1:
            own_pairs += new * new / 2
            pairs += new * (computed + new / 2)
    return StepWork(tokens, sequences, context_tokens, pairs, own_pairs)


class FrontendDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Gives the time before the scheduler has a request: network, HTTP, tokenizer. It delays no
    other request."""

    request_s: float = 0.0
    token_s: float = 0.0
    """Each prompt token takes this time."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """Describes how equal steps differ at the client."""

    step_sigma: float = 0.0
    """The logarithm of a step's time has this standard deviation."""
    step_s: float = 0.0
    """A step's time has this further standard deviation in seconds. An operating system affects
    short and long steps equally."""
    chunk_s: float = 0.0
    """Chunks are late by this mean time, with an exponential distribution."""
    merged: float = 0.0
    """This share of the tokens arrives in one chunk with the next."""
    pause_s: float = 0.0
    """The server pauses for this time."""
    pause_every_s: float = 0.0
    """This is the mean time between two pauses. 0: no pauses."""


class ServerModel(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a server for simulation."""

    settings: SchedulerSettings
    cost: StepCosts
    front: FrontendDelay = FrontendDelay()
    noise: Noise = Noise()

    def with_settings(self, settings: SchedulerSettings) -> "ServerModel":
        return msgspec.structs.replace(self, settings=settings)


# -- a twin ----------------------------------------------------------------------------------------

FIGURES: Final = "figures"
SHAPE: Final = "shape"
NOT_TO_BE_USED: Final = "not to be used"
VERDICTS: Final = {
    FIGURES: "good for absolute values",
    SHAPE: "good for relative changes only",
    NOT_TO_BE_USED: "not to be used",
}


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the server and the date of a twin."""

    host: str = ""
    model: str = ""
    server: str = ""
    """The server reports this name and version."""
    slots: int | None = None
    """llama.cpp reports that it serves this many requests at a time (``--parallel``)."""
    common_prefix_tokens: int = 0
    """All prompts begin with this many tokens, as cached by the server."""
    fitted_on: str = ""
    """This is a date in ISO 8601."""
    made_with: str = ""
    folders: tuple[str, ...] = ()
    """The twin was fitted to these runs."""
    requests: int = 0
    notes: tuple[str, ...] = ()
    """The notes report omitted or doubtful parts of the runs."""


UNKNOWN_ORIGIN: Final = Origin()


class Ranges(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the measured ranges. A prediction outside of them is an extrapolation."""

    users: tuple[int, int] = (0, 0)
    rate: tuple[float, float] = (0.0, 0.0)
    prompt_tokens: tuple[int, int] = (0, 0)
    output_tokens: tuple[int, int] = (0, 0)
    saturated: bool = False
    """The throughput of the sweep stopped growing, so the capacity is known."""


class Draw(msgspec.Struct, frozen=True, array_like=True):
    """Holds the costs of a fit to requests drawn with replacement, in seconds, except
    free_tokens."""

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
    """A prediction, and the measured value that the fit did not use."""

    load: str
    figure: str
    said: float
    low: float
    high: float
    measured: float
    requests: int

    @property
    def error(self) -> float:
        """Returns the error as a share of the measured value."""
        return self.said / self.measured - 1 if self.measured else 0.0


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Compares a load of the sweep with the twin's own replay of it. Drift checks compare later
    loads with it (twin_drift.py)."""

    users: int
    figure: str
    off: float
    """This is the logarithm of measured / replayed."""
    error: float
    """Its standard error comes from the twin's noise or from the choice of requests, whichever is
    larger."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str
    """The value is ``figures``, ``shape`` or ``not to be used``."""
    error: float | None = None
    """This is the median error of all checks, as a share. None: there were no checks."""
    reasons: tuple[str, ...] = ()
    errors: dict[str, float] = {}
    """Predictions of each figure have this standard error beyond the uncertainty of the fit, as a
    share."""


class NamedTrust(msgspec.Struct, frozen=True, kw_only=True):
    """A twin's file and how far its predictions can be trusted."""

    file: str
    """The path as it was given."""
    verdict: str
    """``figures``, ``shape`` or ``not to be used``."""
    error: float | None
    """The median error of all checks, as a share of 1. null: there were no checks."""


class Twin(msgspec.Struct, frozen=True, kw_only=True):
    model: ServerModel
    trust: Trust
    ranges: Ranges
    origin: Origin = UNKNOWN_ORIGIN
    intervals: dict[str, tuple[float, float]] = {}
    """Each fitted parameter has its 95% interval, by name."""
    unknown: dict[str, str] = {}
    """Each parameter that could not be identified has an assumption."""
    lengths: tuple[tuple[int, int], ...] = ()
    """Pairs of prompt and output tokens of the sweep's requests. A prediction sends these, unless
    other lengths are requested."""
    draws: tuple[Draw, ...] = ()
    checks: tuple[HeldOutCheck, ...] = ()
    reference: tuple[Reference, ...] = ()
    """Empty: no closed loop was measured, so drift cannot be checked."""

    def models(self) -> list[ServerModel]:
        """Returns one model per draw, or the model itself without draws."""
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
