"""Price of a prompt: how long its prefill takes alone, fitted to prefills that no other one disturbed, or bounded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Prompts = Sequence[tuple[int, float]]
"""Tokens, and seconds to the first token, of prompts that a probe sent alone."""

MIN_FITTED: Final = 20
"""Prefills that a price is fitted to."""
MOST_FITTED: Final = 50_000
"""Of more, so many evenly."""
ALONE: Final = 0.02
"""Of its own tokens: with fewer tokens of others beside it a prefill was alone."""
MIN_VARYING: Final = 0.2
"""Deviation of the decoding streams over their mean, from which on their part is told from that of the prompt."""
SAME_STEP_S: Final = 0.0005
"""Tokens no farther apart are of one step."""
TRIMMED: Final = 4.0
"""Prefills this many deviations (scaled median ones) off the fit are left out of the next one."""
ROUNDS: Final = 3
ENDS: Final = (2.5, 97.5)
"""Percentiles of what the fit leaves: the interval of a price."""
PROBED_OFF: Final = 0.2
"""Of a probe's price: in a run prompts are computed beside others, in other pieces."""
LOOSE: Final = 3.0
"""A price whose interval reaches this factor beyond it explains nothing: something else decides how long a prefill takes."""
MAX_BEATEN: Final = 0.05
"""Share of the requests that may be faster than the lower end of a price."""
LONGER: Final = 4.0
DEARER: Final = 1.5
"""Where the longest prompts (ENDS) are so many times the shortest, they must cost so many times more."""

UNDISTURBED: Final = "fitted to {count:,} prefills that no other one overlapped"
SHORTEST: Final = "at most: fitted to the shortest time to a first token of each of {count} lengths"
PROBED: Final = "fitted to {count:,} prompts that the probe sent alone"
SHARED: Final = "fitted to {count:,} prefills and the tokens of others beside them: next to none was alone"


@dataclass(frozen=True)
class Price:
    """us = fixed + per_token * tokens + per_square * tokens^2, of the prompt tokens that no cache held."""

    fixed_us: float
    per_token_us: float
    per_square_us: float
    low: float
    high: float
    """What the fit leaves of single prefills, as factors of the price: most lie between the price times each."""
    rule: str
    """How it was found."""

    def us(self, tokens: Floats) -> Floats:
        """NaN for an unknown length."""
        price: Floats = self.fixed_us + (self.per_token_us + self.per_square_us * tokens) * tokens
        return np.maximum(price, 0.0)


def fitted(tokens: Floats, prefill_us: Floats, beside: Floats, streams: Floats) -> Price | None:
    """``beside``: tokens of other prompts that were computed during each prefill; ``streams``: how many requests decoded
    meanwhile. None where there are too few.

    What is computed in the same steps makes a prefill longer: by so much a token beside it, by so much a stream, and by so
    much a stream and token. That is fitted too, and is no part of the price.
    """
    known = np.isfinite(tokens) & np.isfinite(prefill_us) & (prefill_us > 0) & (tokens >= 0) & np.isfinite(beside)
    alone = known & (beside <= ALONE * tokens)
    enough = alone.sum() >= MIN_FITTED
    if known.sum() < MIN_FITTED:
        return None
    chosen = np.flatnonzero(alone if enough else known)
    count = len(chosen)
    chosen = chosen[:: -(-count // MOST_FITTED)]
    n, us = tokens[chosen], prefill_us[chosen]
    rule = (UNDISTURBED if enough else SHARED).format(count=count)
    fixed, by_token, by_square, left = _fit(n, us, np.nan_to_num(streams[chosen]), beside[chosen])
    price = Price(fixed, by_token, by_square, 1.0, 1.0, rule)
    low, high = np.percentile(1 + left / np.maximum(price.us(n), 1.0), ENDS)
    return Price(fixed, by_token, by_square, float(np.clip(low, 0, 1)), float(max(high, 1.0)), rule)


def holds(price: Price, tokens: Floats, server_us: Floats) -> bool:
    """Whether it may be one: lengths tell the times apart, and nobody's first token comes before its prompt is computed."""
    known = np.isfinite(tokens) & np.isfinite(server_us)
    if not known.any() or price.high > LOOSE:
        return False
    few, many = np.maximum(np.percentile(tokens[known], ENDS), 1.0)
    dear = price.us(np.array([few, many]))
    beaten = server_us[known] < price.low * price.us(tokens[known])
    return bool(beaten.mean() <= MAX_BEATEN and (many < LONGER * few or dear[1] >= DEARER * dear[0]))


def shortest(tokens: Floats, server_us: Floats) -> Price | None:
    """An upper bound, of a server of which nothing better can be said: of each length the request that was answered soonest,
    and no shorter prompt takes longer than a longer one. None below MIN_FITTED requests."""
    known = np.flatnonzero(np.isfinite(tokens) & np.isfinite(server_us) & (server_us > 0) & (tokens > 0))
    known = known[np.argsort(-tokens[known], kind="stable")]
    soonest = np.minimum.accumulate(server_us[known])
    length = np.round(4 * np.log2(tokens[known]))
    last = np.flatnonzero(np.diff(length, append=np.inf))
    if len(known) < MIN_FITTED:
        return None
    n, us = tokens[known][last], soonest[last]
    fixed, by_token, by_square, left = _fit(n, us, np.zeros(len(n)), np.zeros(len(n)))
    price = Price(fixed, by_token, by_square, 0.0, 1.0, SHORTEST.format(count=len(n)))
    return replace(price, high=float(max(np.percentile(1 + left / np.maximum(price.us(n), 1.0), ENDS[1]), 1.0)))


def probed(prompts: Prompts, rtt_us: float) -> Price | None:
    """``rtt_us``: of the network, which is in those seconds. None below two lengths."""
    n = np.array([tokens for tokens, _ in prompts], np.float64)
    us = np.array([ttft_s for _, ttft_s in prompts], np.float64) * 1e6 - rtt_us
    if not len(n) or np.ptp(n) == 0 or us.min() <= 0:
        return None
    fixed, by_token, by_square, left = _fit(n, us, np.zeros(len(n)), np.zeros(len(n)))
    price = Price(fixed, by_token, by_square, 1.0, 1.0, PROBED.format(count=len(n)))
    off = 1 + left / np.maximum(price.us(n), 1.0)
    low, high = np.clip(off.min(), 0, 1 - PROBED_OFF), max(off.max(), 1 + PROBED_OFF)
    return replace(price, low=float(low), high=float(high))


def tokens_beside(began: Floats, ended: Floats, tokens: Floats) -> Floats:
    """How many tokens of the other prompts were computed during each of these prefills, if each is computed evenly over its
    time. NaN where an end is unknown."""
    real = (ended > began) & np.isfinite(tokens)
    found = np.full(len(began), np.nan)
    if not real.any():
        return found
    start, end, rate = began[real], ended[real], tokens[real] / (ended[real] - began[real])
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    level = np.cumsum(np.concatenate([rate, -rate])[order])
    at = at[order]
    done = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    found[real] = np.maximum(np.interp(end, at, done) - np.interp(start, at, done) - tokens[real], 0.0)
    return found


def _fit(n: Floats, us: Floats, streams: Floats, beside: Floats) -> tuple[float, float, float, Floats]:
    """(fixed, per token, per token squared, what is left of each): least squares, without what lies far off, and without
    terms that come out negative or do not vary. A token beside costs what an own one does."""
    terms = {"1": np.ones(len(n)), "n": n + beside, "nn": n * n, "d": streams, "nd": n * streams}
    kept = ["1", *(name for name in ("n", "nn") if np.ptp(terms[name]) > 1e-9)]
    kept += ["d"] if np.ptp(streams) > 0.5 else []
    kept += ["nd"] if np.std(streams) > MIN_VARYING * max(float(streams.mean()), 1.0) else []
    if len(pd.unique(np.round(4 * np.log2(np.maximum(n, 1.0))))) < 4 and "nn" in kept:  # too few lengths for a bend
        kept.remove("nn")
    while True:
        found = _least_squares([terms[name] for name in kept], us)
        negative = [name for name, value in zip(kept, found, strict=True) if value < 0]
        if not negative or len(kept) == 1:
            break
        kept.remove(min(negative, key=("nd", "d", "nn", "1", "n").index))
    of = dict(zip(kept, found, strict=True))
    left = us - sum(of[name] * terms[name] for name in kept)
    return of.get("1", 0.0), of.get("n", 0.0), of.get("nn", 0.0), left


def _least_squares(columns: list[Floats], us: Floats) -> list[float]:
    """Relative to the length, as errors grow with it; trimmed."""
    table, weight = np.stack(columns, axis=1), 1 / np.maximum(us, 1.0)
    near: Bools = np.ones(len(us), np.bool_)
    found: Floats = np.zeros(len(columns))
    for _ in range(ROUNDS):
        scaled = table * weight[:, None]
        found = np.asarray(np.linalg.lstsq(scaled[near], (us * weight)[near], rcond=None)[0], np.float64)
        left = (us - table @ found) * weight
        deviation = 1.4826 * float(np.median(np.abs(left[near])))
        near = np.abs(left) <= max(TRIMMED * deviation, 1e-6)
    return [float(value) for value in found]
