"""Model mix: the models of a run and how often each is asked for, such as a base model and its adapters."""

import math
from collections.abc import Callable
from random import Random
from typing import Final

from .numbers import cut_short, read_number

FORM: Final = "NAME=WEIGHT pairs separated by commas, as in base=60,adapter-a=30,adapter-b=10"
MOST: Final = 100

Model = Callable[[Random], str]
"""Draws one model by name."""


def weights(text: str) -> dict[str, float]:
    """By model, in the order of the text. A name ends at the last ``=`` before its comma, so it may hold colons, slashes
    and equals signs. Weights are any positive numbers. Raises ValueError of one sentence."""
    found: dict[str, float] = {}
    for pair in filter(str.strip, text.split(",")):
        name, _, number = (part.strip() for part in pair.rpartition("="))
        if not name:
            raise ValueError(f"--model-mix takes {FORM}, got {cut_short(pair.strip())!r}")
        try:
            weight = float(read_number(float, number))
        except ValueError:
            weight = math.nan
        if not 0 < weight <= 1e9:
            raise ValueError(
                f"--model-mix: the weight of {cut_short(name)!r} must be above 0 and at most 1e9, got {cut_short(number)!r}"
            )
        if name in found:
            raise ValueError(f"--model-mix has the model {cut_short(name)!r} twice")
        found[name] = weight
    if not found:
        raise ValueError(f"--model-mix takes {FORM}, got {text!r}")
    if len(found) > MOST:
        raise ValueError(f"--model-mix takes at most {MOST} models, got {len(found)}")
    return found


def shares(text: str) -> dict[str, float]:
    """By model, of 1. Raises ValueError."""
    found = weights(text)
    whole = sum(found.values())
    return {name: weight / whole for name, weight in found.items()}


def models(text: str) -> Model:
    """Each draw is independent of all others. Raises ValueError."""
    found = weights(text)
    names, numbers = list(found), list(found.values())
    return lambda random: random.choices(names, numbers)[0]


def canonical(text: str) -> str:
    """The same mix, always written alike. Raises ValueError."""
    return ",".join(f"{name}={weight:.12g}" for name, weight in weights(text).items())
