"""Workload: what a prediction sends, from the options that ``run`` has for it, or else the lengths
of the twin."""

import argparse
from collections.abc import Iterator
from random import Random
from statistics import fmean, pstdev
from typing import Final, NamedTuple

from locust_llm.lab.twin.model import Twin
from locust_llm.lab.twin.replay import Lengths
from locust_llm.workload.lengths import Length, normal_length, parse_length_mix

DRAWN: Final = 400
"""Requests, of which a prediction draws."""
SEED: Final = 30_000
OPTIONS: Final = {
    "--synthetic-input-tokens-mean": "mean length of the prompts, in tokens (default: those of the "
    "twin)",
    "--synthetic-input-tokens-stddev": "its standard deviation (default: 0)",
    "--output-tokens-mean": "mean length of the answers, in tokens (default: those of the twin)",
    "--output-tokens-stddev": "its standard deviation (default: 0)",
}
MOST: Final = 10**7


class PredictedWorkload(NamedTuple):
    lengths: Lengths
    words: tuple[str, ...]
    """The options of ``run`` that send it, or the nearest that there are."""

    def __str__(self) -> str:
        prompts, answers = ([one[i] for one in self.lengths] for i in (0, 1))
        return f"prompts of {_said(prompts)} tokens, answers of {_said(answers)}"


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    for option, what in OPTIONS.items():
        parser.add_argument(option, type=float, metavar="N", help=what)
    parser.add_argument(
        "--seq-dist",
        metavar="MIX",
        help="lengths and their shares, as run has it: 64|10,32|8:70;1024,512:30",
    )


def workload(options: argparse.Namespace, twin: Twin) -> PredictedWorkload:
    """Raises ValueError of one sentence."""
    given = [options.synthetic_input_tokens_mean, options.output_tokens_mean]
    for number, option in (
        (given[0], "--synthetic-input-tokens-mean"),
        (given[1], "--output-tokens-mean"),
    ):
        if number is not None and not 1 <= number <= MOST:
            raise ValueError(f"{option} must be from 1 to {MOST:,}, got {number:g}")
    spread = (options.synthetic_input_tokens_stddev, options.output_tokens_stddev)
    for stddev, mean, kind in zip(spread, given, ("synthetic-input", "output"), strict=True):
        if stddev is not None and mean is None:
            raise ValueError(f"--{kind}-tokens-stddev needs --{kind}-tokens-mean")
        if stddev is not None and not 0 <= stddev <= MOST:
            raise ValueError(f"--{kind}-tokens-stddev must be from 0 to {MOST:,}, got {stddev:g}")
    random = Random(SEED)
    if options.seq_dist:
        if any(one is not None for one in given):
            raise ValueError(
                "--seq-dist takes the place of --synthetic-input-tokens-mean and "
                "--output-tokens-mean"
            )
        sizes = parse_length_mix(options.seq_dist)
        return PredictedWorkload(
            [sizes(random) for _ in range(DRAWN)], ("--seq-dist", f"'{options.seq_dist}'")
        )
    if given == [None, None]:
        return PredictedWorkload(twin.lengths, tuple(_nearest(twin.lengths)))
    if None in given and not twin.lengths:
        raise ValueError(
            "this twin has no lengths: give --synthetic-input-tokens-mean and --output-tokens-mean"
        )
    drawn: list[Length | None] = [
        None if mean is None else normal_length(mean, stddev or 0.0)
        for mean, stddev in zip(given, spread, strict=True)
    ]
    lengths = [
        _length(drawn, random.choice(twin.lengths) if twin.lengths else (1, 1), random)
        for _ in range(DRAWN)
    ]
    return PredictedWorkload(lengths, tuple(_nearest(lengths)))


def _length(
    drawn: list[Length | None], of_twin: tuple[int, int], random: Random
) -> tuple[int, int]:
    found = [
        own if draw is None else draw(random) for draw, own in zip(drawn, of_twin, strict=True)
    ]
    return found[0], found[1]


def _nearest(lengths: Lengths) -> Iterator[str]:
    for option, column in (("--synthetic-input-tokens", 0), ("--output-tokens", 1)):
        tokens = [one[column] for one in lengths]
        if tokens:
            yield f"{option}-mean {fmean(tokens):.0f}"
            if (stddev := pstdev(tokens)) >= 0.5:
                yield f"{option}-stddev {stddev:.0f}"


def _said(tokens: list[int]) -> str:
    least = min(tokens)
    most = max(tokens)
    return f"{most:,}" if least == most else f"{least:,} to {most:,} (mean {fmean(tokens):,.0f})"
