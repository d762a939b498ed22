"""A twin: the model of a server, what is uncertain in it, how far it was off, and where it came
from. As frozen data."""

from typing import Final

import msgspec

from .model import ServerModel

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
    against (drift/)."""

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
    origin: Origin = Origin()
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
        return [drawn(self.model, draw) for draw in self.draws] or [self.model]


def drawn(model: ServerModel, draw: Draw) -> ServerModel:
    cost = {name: getattr(draw, name) for name in model.cost.__struct_fields__}
    return msgspec.structs.replace(
        model,
        cost=msgspec.structs.replace(model.cost, **cost),
        front=msgspec.structs.replace(
            model.front, request_s=draw.request_s, token_s=draw.reading_s
        ),
    )
