"""A/B arms: the two arms of a run that compares them in pairs of blocks: their differences, and the
order and length of the blocks.

A pair is a block of load on each arm, one right after the other, of the same lengths and arrivals.
Which arm comes first is drawn for each pair. So whatever the server does over time, it does as
often to either arm, and exchanging the signs of the pairs' differences is exact (Fisher, The Design
of Experiments, 1935). An alternating order has a period, and a server of that period makes pairs
alike.

The length of a pair's blocks is drawn too. With equal ones, a period of the server could make all
differences of one size, for which Student's t is coarse.
"""

import math
import re
from collections.abc import Iterable
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.text.numbers import truncate_quoted_text

BASE: Final = "base"
CANDIDATE: Final = "candidate"
PAIR: Final = "pair"
"""The name of the stages of such a run: they are its blocks."""
LEAST: Final = 10
"""Fewer pairs give no conclusion."""
PAIRS: Final = 12
"""The pairs of a run without a duration."""
BLOCK_S: Final = 15.0
"""The usual length of a block."""
SHORTEST_S: Final = 2.0
"""No shorter blocks are chosen: their starts and ends would be most of them."""
SPREAD: Final = 0.5
"""The counted part of a block differs from its nominal length by at most this share of it."""
REQUESTS_A_BLOCK: Final = 2.0
"""Without a warning, the counted part of a block is at least so many times as long as a request."""
REDACTED: Final = "***"
FORM: Final = "header:NAME=VALUE, model=NAME, prefill-concurrency=N or body.FIELD=VALUE"
_HEADER: Final = re.compile(r"header:([!#$%&'*+.^_`|~0-9A-Za-z-]+)=([\t -~\x80-\xff]*)")
_BODY: Final = re.compile(r"body\.([^=\s]+)=(.+)", re.DOTALL)
_OWN: Final = (
    "messages", "prompt", "input", "stream", "stream_options", "model", "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
)  # fmt: skip


def find_long_enough_block(request_s: float, *, block_s: float, washout_s: float) -> int | None:
    """The length of blocks, in seconds, that have requests of this length. None: these have."""
    counted_s = block_s - washout_s
    if counted_s >= REQUESTS_A_BLOCK * request_s:
        return None
    return math.ceil(REQUESTS_A_BLOCK * request_s * block_s / counted_s)


class TrialBlock(NamedTuple):
    """One block of load."""

    pair: int
    """0: the first pair, which finds the servers cold and counts nowhere."""
    arm: str
    load_s: float
    """How long requests begin in it, in seconds."""


class CandidateChanges(msgspec.Struct, frozen=True):
    """The differences of the candidate from the base, beside its address."""

    headers: dict[str, str] = {}
    model: str | None = None
    prefill_concurrency: int | None = None
    body: dict[str, Any] = {}


def order_blocks(
    pairs: int, seed: int, *, block_s: float, washout_s: float
) -> tuple[TrialBlock, ...]:
    """The blocks in the order of time: pair 0 and the counted pairs. The same seed gives the same
    order.

    ``block_s`` is their mean length; ``washout_s`` of it is not counted.
    """
    order = Random(f"{seed}/arms")
    lengths = Random(f"{seed}/lengths")
    durations = [block_s, *_shuffle_durations(pairs, block_s, washout_s, lengths)]
    blocks = list[TrialBlock]()
    for pair, load_s in enumerate(durations):
        first = order.choice((BASE, CANDIDATE))
        blocks.append(TrialBlock(pair, first, load_s))
        blocks.append(TrialBlock(pair, opposite_arm(first), load_s))
    return tuple(blocks)


def _shuffle_durations(pairs: int, block_s: float, washout_s: float, random: Random) -> list[float]:
    """The lengths of each pair's blocks. Their counted parts are at equal steps around the nominal
    one, so that all last as long together as equal blocks."""
    durations = []
    for number in range(pairs):
        place = (2 * number + 1 - pairs) / pairs  # from -1 to 1
        durations.append(washout_s + (block_s - washout_s) * (1 + SPREAD * place))
    random.shuffle(durations)
    return durations


def opposite_arm(arm: str) -> str:
    return BASE if arm == CANDIDATE else CANDIDATE


def parse_candidate_changes(texts: Iterable[str]) -> CandidateChanges:
    """Reads ``--candidate-set``. Raises ValueError of one sentence, which quotes no value of a
    header."""
    changes = CandidateChanges()
    for text in texts:
        name, equals, value = text.partition("=")
        if text.startswith("header:"):
            if not (header := _HEADER.fullmatch(text)):
                raise ValueError(
                    f"--candidate-set {truncate_quoted_text(name)}: write a header as "
                    "header:NAME=VALUE, on one line"
                )
            changes.headers[header[1]] = header[2].strip()
        elif name == "model" and value:
            changes = msgspec.structs.replace(changes, model=value)
        elif (
            name == "prefill-concurrency"
            and value.isascii()
            and value.isdecimal()
            and 0 < int(value) <= 10**6
        ):
            changes = msgspec.structs.replace(changes, prefill_concurrency=int(value))
        elif field := _BODY.fullmatch(text):
            if field[1] in _OWN:
                raise ValueError(
                    f"--candidate-set cannot set {field[1]!r} of the request body, because the run "
                    "sets it itself"
                )
            changes.body[field[1]] = _json(field[2])
        else:
            shown = (
                truncate_quoted_text(f"{name}{equals}") if equals else truncate_quoted_text(text)
            )
            raise ValueError(f"--candidate-set takes {FORM}, got {shown!r}")
    return changes


def hide_header_values(text: str) -> str:
    """Replace the value of a header, so that the rest can be written down."""
    name, _, value = text.partition("=")
    return f"{name}={REDACTED}" if text.startswith("header:") and value else text


def _json(text: str) -> Any:
    """The value of a JSON text. Any other text stays as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
