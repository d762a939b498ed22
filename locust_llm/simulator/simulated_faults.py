"""Simulated faults: names differences between servers, and faults, so that a flag or a request's
header can select them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args, get_type_hints

MAX_DRAFT_TOKENS: Final = 64
HEADER: Final = b"x-simulate"
RATES: Final = (
    "swap", "prefix_leak", "slot_leak", "cancel_leak", "late_block", "near_tie", "wide_flip",
    "drop_delta", "double_delta", "reorder_delta", "wrong_usage", "duplicate_id", "wrong_id",
    "wrong_model", "broken_text",
)  # fmt: skip
"""The quirks that are the share of the answers with that fault; cancel_leak is the share of the
moments at which it can happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """Describes how an answer looks and fails, by default like vLLM. Counts are in output tokens. 0
    or "" means none."""

    # how servers differ: see LIKE
    # with the first token; or before the request even queues
    role: Literal["first", "early", "none"] = "first"
    role_content: Literal["empty", "null", "absent"] = "empty"
    tokens_per_chunk: int = 1  # the first comes alone: vLLM's --stream-interval
    # speculative decoding: so many are proposed for each step after the first token
    draft_tokens: int = 0
    acceptance: float = 0.7  # probability of each to be accepted, if those before it were
    finish: Literal["last", "own", "none"] = (
        "last"  # finish_reason with the last content, in a chunk of its own, nowhere
    )
    # docs/how-to/simulator.md has them
    usage: Literal["asked", "finish", "choices", "always", "none"] = "asked"
    # in every chunk: also where the request asks for continuous_usage_stats
    continuous_usage: bool = False
    reasoning: int = 0  # so many tokens come as reasoning before the content begins
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    ping_s: float = 0.0  # an SSE comment whenever nothing was sent for so long
    done: bool = True  # the stream ends with [DONE]
    error_form: Literal["object", "string"] = "object"  # of an error inside of a stream
    timings: bool = False  # llama.cpp's, in the last event or the body
    # TGI's and Server-Timing; those of a stream come with its first token
    time_headers: bool = False
    eos: int = -1  # the answer ends by itself after so many tokens; 0: at once, without content

    # what goes wrong
    status: int = 0  # refused with this HTTP status
    error: int = -1  # after so many tokens an error in the stream, and its end
    cut: int = -1  # after so many tokens the connection is closed
    reset: int = -1  # after so many tokens the connection is reset
    malformed: int = 0  # this chunk, counted from 1, is broken JSON
    split_utf8: bool = False  # every word has a two-byte letter, its bytes sent apart
    stall: int = -1  # after so many tokens nothing is sent for stall_s, then all at once
    stall_s: float = 1.0
    slow_headers_s: float = 0.0  # the response's headers come so late
    # the work that goes on when the client has left: one more token, or the whole answer
    ghosts: Literal["none", "step", "max_tokens", "unstreamed"] = "none"

    # the metrics page has the memory of a process that keeps so many bytes of each request
    memory_leak: int = -1  # -1: the page has no memory

    # answers that are wrong: the share of them with each fault (planted_faults.py)
    swap: float = 0.0  # two open requests get each other's answer
    prefix_leak: float = 0.0  # the prompt that has most in common is answered in its place
    slot_leak: float = 0.0  # the answer of the last cancelled request
    # a long prompt gets the code of a request that is cancelled while a long answer is written
    cancel_leak: float = 0.0
    late_block: float = 0.0  # it begins with a block of another answer
    near_tie: float = 0.0  # one word is the second of two that are nearly as likely: no fault
    wide_flip: float = 0.0  # one word is another, under load only
    drop_delta: float = 0.0
    double_delta: float = 0.0
    reorder_delta: float = 0.0
    wrong_usage: float = 0.0  # too many output tokens are counted
    duplicate_id: float = 0.0  # the id of the answer before
    wrong_id: float = 0.0  # the id changes within the stream
    wrong_model: float = 0.0  # the answer names another model
    broken_text: float = 0.0  # one word is a replacement character

    @property
    def plants_faults(self) -> bool:
        return any(getattr(self, name) for name in RATES)


LIKE: Final = {  # as their bytes in tests/captures
    "vllm": Quirks(),
    "llama.cpp": Quirks(role_content="null", finish="own", ping_s=30.0, timings=True),
    "transformers": Quirks(
        role="early",
        role_content="absent",
        finish="own",
        usage="finish",
        done=False,
        error_form="string",
    ),
    "litellm": Quirks(finish="own", usage="choices"),
}
_TYPES: Final = {
    name: kind for name, kind in get_type_hints(Quirks).items() if name in Quirks.__slots__
}
_WORDS: Final = {"yes": True, "no": False}


def parse_quirks(text: str, base: Quirks) -> Quirks:
    """Applies the changes of a text such as ``role=early, stall=5, stall_s=0.5`` to ``base``.
    Raises ValueError, which lists the known names."""
    changes: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = word.partition("=")
        name = name.strip()
        value = value.strip()
        if name not in _TYPES:
            raise ValueError(
                f"unknown change {name!r}: use one of {', '.join(field.name for field in fields(Quirks))}"
            )
        changes[name] = _parse_value(name, value)
    changed = replace(base, **changes)
    if changed.tokens_per_chunk < 1:
        raise ValueError("tokens_per_chunk must be at least 1")
    if not (0 <= changed.draft_tokens <= MAX_DRAFT_TOKENS and 0 <= changed.acceptance <= 1):
        raise ValueError(f"draft_tokens must be 0 to {MAX_DRAFT_TOKENS}, and acceptance 0 to 1")
    for name in RATES:
        if not 0 <= getattr(changed, name) <= 1:
            raise ValueError(f"{name} must be 0 to 1: it is a share of the answers")
    return changed


def _parse_value(name: str, value: str) -> object:
    kind = _TYPES[name]
    if choices := get_args(kind) or (tuple(_WORDS) if kind is bool else ()):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        return _WORDS.get(value, value) if kind is bool else value
    try:
        number = kind(value)
    except ValueError:
        number = -2
    if not -1 <= number < float("inf") or (
        name == "status" and number and not 400 <= number <= 599
    ):
        raise ValueError(
            f"{name} must be {'400 to 599' if name == 'status' else 'a number'}, got {value!r}"
        )
    return number
