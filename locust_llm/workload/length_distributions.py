"""Length distributions: the random lengths of prompts and outputs in tokens, and the buckets of a
table by length.

A length, as text: ``550``, ``550|50`` (normal: mean|stddev), ``uniform:100..2000`` (both ends
included) or ``lognormal:550|300`` (mean|stddev of the lengths, not of their logarithms). What is
drawn is rounded and at least 1.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any, Final

import msgspec

Length = Callable[[Random], int]
"""Draws one length in tokens."""
Sizes = Callable[[Random], tuple[int, int]]
"""Draws (input tokens, output tokens)."""

LENGTHS: Final = "550, 550|50 (mean|stddev), uniform:100..2000 or lognormal:550|300 (mean|stddev)"
MIXES: Final = "ISL,OSL:PROBABILITY pairs separated by ;, as in 64|10,32|8:70;1024,512:30"
_LARGEST: Final = 10**9
GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it, less their whole part, lie evenly between 0 and 1."""


class EvenRandom(Random):
    """Random numbers of which the first one is chosen: a place in an even sequence."""

    first: float | None = None

    def random(self) -> float:
        if self.first is None:
            return super().random()
        first, self.first = self.first, None
        return first


def make_even_random(sequence: str, number: int) -> EvenRandom:
    """Returns the random numbers of one request of a sequence. The first numbers of the requests
    are multiples of the golden ratio from a random start, so any stretch of the sequence has about
    the mix of lengths that was asked for."""
    made = EvenRandom(f"{sequence}/{number}/lengths")
    made.first = (Random(f"{sequence}/lengths").random() + number * GOLDEN) % 1
    return made


# -- one length ------------------------------------------------------------------------------------


def normal_length(mean: float, stddev: float = 0.0) -> Length:
    """Normal lengths, cut at 1 and not drawn again (as AIPerf's). A stddev near the mean raises the
    resulting mean. Without a stddev the length is fixed and draws nothing."""
    if stddev == 0:
        return lambda random: max(1, round(mean))
    return lambda random: max(1, round(random.gauss(mean, stddev)))


def uniform_length(low: int, high: int) -> Length:
    """Each whole number from low to high, with the same probability."""
    return lambda random: random.randint(low, high)


def lognormal_length(mean: float, stddev: float) -> Length:
    """``mean`` and ``stddev`` are of the lengths. For their logarithms σ² = ln(1 + (stddev /
    mean)²), µ = ln(mean) - σ² / 2."""
    variance = math.log1p((stddev / mean) ** 2)
    mu = math.log(mean) - variance / 2
    sigma = math.sqrt(variance)
    return lambda random: max(1, round(random.lognormvariate(mu, sigma)))


def parse_length(text: str) -> Length:
    """The length that a text describes. Raises ValueError of one sentence with the accepted
    forms."""
    kind, _, numbers = text.strip().rpartition(":")
    separator = ".." if kind == "uniform" else "|"
    try:
        first, *rest = map(float, numbers.split(separator))
    except ValueError:
        first, rest = math.nan, []
    if 1 <= first <= _LARGEST and all(0 <= number <= _LARGEST for number in rest):
        if kind == "" and len(rest) < 2:
            return normal_length(first, *rest)
        if kind == "lognormal" and len(rest) == 1:
            return lognormal_length(first, *rest)
        if (
            kind == "uniform"
            and len(rest) == 1
            and first <= rest[0]
            and first % 1 == rest[0] % 1 == 0
        ):
            return uniform_length(int(first), int(rest[0]))
    raise ValueError(f"a length is {LENGTHS}, at least 1, got {text!r}")


# -- input and output ------------------------------------------------------------------------------


def combine_lengths(input_tokens: Length, output_tokens: Length) -> Sizes:
    """Two independent lengths."""
    return lambda random: (input_tokens(random), output_tokens(random))


def parse_length_mix(text: str) -> Sizes:
    """The pairs of a ``--seq-dist``, each drawn with its probability: percent that sum to 100, or
    shares that sum to 1.

    ``64|10,32|8:70;1024,512:30``, each length any text that ``length`` takes; also AIPerf's other
    forms, ``[(64|10,32|8):70,(1024,512):30]`` and ``{"pairs": [{"isl": 64, "isl_stddev": 10, "osl":
    32, "osl_stddev": 8, "prob": 70}, ...]}``. AIPerf's loader takes percent alone, its newest one
    any weights. Here what sums to neither 100 nor 1 is held for a slip of the pen.

    Raises ValueError of one sentence, which names the pair.
    """
    text = text.strip()
    pairs = _pairs_of_json(text) if text.startswith("{") else _pairs_of_text(text)
    if not pairs:
        raise ValueError(f"a mix of lengths is {MIXES}, got {text!r}")
    drawn = [_pair(number, *pair) for number, pair in enumerate(pairs, 1)]
    sizes = [length for length, _ in drawn]
    bounds = list(accumulate(probability for _, probability in drawn))
    if not any(math.isclose(bounds[-1], whole, rel_tol=1e-6) for whole in (1, 100)):
        raise ValueError(
            f"the probabilities of a mix must sum to 100 (percent) or 1 (shares), these sum to "
            f"{bounds[-1]:g}"
        )
    # bisected to the right, a draw never comes to a pair of probability 0
    return lambda random: sizes[bisect_right(bounds, random.random() * bounds[-1])](random)


def _pairs_of_text(text: str) -> list[tuple[str, str]]:
    """(two lengths, probability) in both forms that are not JSON."""
    bracketed = text.startswith("[") and text.endswith("]")
    items = re.split(r",\s*(?=\()", text[1:-1]) if bracketed else text.split(";")
    parts = (item.rpartition(":") for item in items if item.strip())
    return [(lengths.strip(" ()"), probability.strip()) for lengths, _, probability in parts]


def _length_of_json(pair: Any, key: str) -> str:
    return f"{pair[key]}|{pair.get(f'{key}_stddev', 0)}"


def _pairs_of_json(text: str) -> list[tuple[str, str]]:
    try:
        pairs: Any = msgspec.json.decode(text)["pairs"]
        return [
            (f"{_length_of_json(pair, 'isl')},{_length_of_json(pair, 'osl')}", str(pair["prob"]))
            for pair in pairs
        ]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, RecursionError):
        form = (
            '{"pairs": [{"isl": 64, "osl": 32, "prob": 100}]}, isl_stddev and osl_stddev if wanted'
        )
        raise ValueError(f"a mix of lengths as JSON is {form}, got {text[:80]!r}") from None


def _pair(number: int, lengths: str, probability: str) -> tuple[Sizes, float]:
    try:
        input_tokens, output_tokens = lengths.split(",")
        share = float(probability)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 100:
        raise ValueError(
            f"pair {number}: a mix of lengths is {MIXES}, got {lengths!r} with probability "
            f"{probability!r}"
        )
    try:
        return combine_lengths(parse_length(input_tokens), parse_length(output_tokens)), share
    except ValueError as error:
        raise ValueError(f"pair {number}: {error}") from None
