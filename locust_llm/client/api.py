"""Body: fields that a run adds to every request, asked for by hand or found out to keep outputs at their length."""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

import msgspec

from locust_llm.files import fault_of

EXTRAS: Final = (
    "key:value pairs separated by spaces or commas, as in ignore_eos:true temperature:0.5, or one JSON object"
)
_OWN: Final = {
    "messages": "--input-file",
    "prompt": "--input-file",
    "input": "--input-file",
    "model": "--model",
    "max_tokens": "--output-tokens-mean",
    "max_completion_tokens": "--output-tokens-mean",
    "max_output_tokens": "--output-tokens-mean",
    "stream": "--streaming",
}
_KEY: Final = re.compile(r"[\s,]*([^\s,:{}\[\]\"]+)\s*:\s*")
_WORD: Final = re.compile(r"[^\s,]+")
_NAMED: Final = {"True": True, "False": False, "None": None}


def extra_inputs(text: str) -> dict[str, Any]:
    """What an ``--extra-inputs`` adds to the body of every request (AIPerf 0.13's form). A value that is JSON is that, also
    a list or an object; true, false and null also as Python writes them; anything else is a text.

    Raises ValueError of one sentence, also for fields that the run fills itself.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            pairs = list(msgspec.json.decode(text, type=dict[str, Any]).items())
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"--extra-inputs begins as JSON and is none: {fault_of(error)}") from None
    else:
        pairs = list(_pairs(text))
    if not pairs:
        raise ValueError(f"--extra-inputs takes {EXTRAS}, got {text!r}")
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in _OWN:
            raise ValueError(f"--extra-inputs cannot set {key!r}, which the run sets itself: use {_OWN[key]}")
        if key in found:
            raise ValueError(f"--extra-inputs sets {key!r} twice")
        found[key] = value
    return found


def _pairs(text: str) -> Iterator[tuple[str, Any]]:
    at = 0
    while text[at:].strip(" \t\r\n,"):
        key = _KEY.match(text, at)
        if key is None:
            raise ValueError(f"--extra-inputs takes {EXTRAS}, got {text[at:].strip()[:80]!r}")
        value, at = _value(text, key.end())
        yield key[1], value


def _value(text: str, at: int) -> tuple[Any, int]:
    """(the value that begins there, where it ends). Raises ValueError."""
    if text[at : at + 1] in ("{", "[", '"'):  # it may hold spaces and commas
        try:
            _, end = JSONDecoder().raw_decode(text, at)
            if end < len(text) and text[end] not in " \t\r\n,":
                raise ValueError(f"--extra-inputs takes {EXTRAS}, got {text[end:][:80]!r} behind a value")
            return msgspec.json.decode(text[at:end]), end
        except (JSONDecodeError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(
                f"--extra-inputs: {text[at:][:80]!r} begins as JSON and is none: {fault_of(error)}"
            ) from None
    word = _WORD.match(text, at)
    if word is None:
        raise ValueError(f"--extra-inputs takes {EXTRAS}, got a key without a value at its end")
    if word[0] in _NAMED:
        return _NAMED[word[0]], word.end()
    try:
        return msgspec.json.decode(word[0]), word.end()
    except msgspec.DecodeError:
        return word[0], word.end()


# -- outputs of the asked length ---------------------------------------------------------------------------------------

WAYS: Final = (("ignore_eos",), ("min_tokens",), ("ignore_eos", "min_tokens"))
"""To keep an output at its length, in the order to try: ``ignore_eos`` costs a server nothing (vLLM, SGLang, llama.cpp);
``min_tokens`` has vLLM mask the end at every step; some need both, where a stop token is not the end-of-sequence token."""
LENGTH_PROMPT: Final = "Answer with the one word yes."
"""A probe whose answer ends by itself long before LENGTH_TOKENS, unless something keeps it going."""
LENGTH_TOKENS: Final = 48


def length_fields(way: tuple[str, ...], output_tokens: int) -> dict[str, Any]:
    """What to add to the body of a request so that its output has ``output_tokens``; nothing for ()."""
    values = {"ignore_eos": True, "min_tokens": output_tokens}
    return {name: values[name] for name in way}


def obeyed(status: int, output_tokens: int | None, finish_reason: str | None, asked: int = LENGTH_TOKENS) -> bool:
    """A probe of ``asked`` tokens came to them. False: it was refused (OpenAI answers 400 to an unknown field, others
    422), or the field was accepted and ignored, and the answer ended by itself (``finish_reason`` stop).

    Conclusive only where the same probe without any field ends by itself: ask that first.
    """
    if status != 200:
        return False
    return finish_reason == "length" if output_tokens is None else output_tokens >= asked
