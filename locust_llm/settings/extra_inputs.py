"""Extra inputs: fields that a run adds to the body of every request, by ``--extra-inputs`` and
``--tools``."""

import re
from collections.abc import Iterator
from json import JSONDecodeError, JSONDecoder
from typing import Any, Final

import msgspec

from locust_llm.files.regular_file import describe_syntax_error
from locust_llm.workload import answer_schema

from .run_options import Settings

EXTRAS: Final = (
    "key:value pairs separated by spaces or commas, as in ignore_eos:true "
    "temperature:0.5, or one JSON object"
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


def parse_extra_inputs(text: str) -> dict[str, Any]:
    """The fields that an ``--extra-inputs`` adds to the body of every request (AIPerf 0.13's form).

    A JSON value is read as JSON, also a list or an object. true, false and null may be written as
    in Python. Anything else is a text. Raises ValueError of one sentence, also for fields that the
    run fills itself.
    """
    text = text.strip()
    if text.startswith("{"):
        try:
            pairs = list(msgspec.json.decode(text, type=dict[str, Any]).items())
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(
                f"--extra-inputs begins as JSON, but is not valid JSON: "
                f"{describe_syntax_error(error)}"
            ) from None
    else:
        pairs = list(_pairs(text))
    if not pairs:
        raise ValueError(f"--extra-inputs takes {EXTRAS}, got {text!r}")
    inputs: dict[str, Any] = {}
    for key, value in pairs:
        if key in _OWN:
            raise ValueError(
                f"--extra-inputs cannot set {key!r}, which the run sets itself: use {_OWN[key]}"
            )
        if key in inputs:
            raise ValueError(f"--extra-inputs sets {key!r} twice")
        inputs[key] = value
    return inputs


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
                raise ValueError(
                    f"--extra-inputs takes {EXTRAS}, got {text[end:][:80]!r} after a value"
                )
            return msgspec.json.decode(text[at:end]), end
        except (JSONDecodeError, msgspec.DecodeError, RecursionError) as error:
            raise ValueError(
                f"--extra-inputs: {text[at:][:80]!r} begins as JSON, but is not valid JSON: "
                f"{describe_syntax_error(error)}"
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


def collect_extra_inputs(settings: Settings) -> dict[str, Any]:
    """All additional fields of every request's body. Raises ValueError of one sentence, and
    OSError."""
    inputs = parse_extra_inputs(settings.extra_inputs) if settings.extra_inputs else {}
    try:
        answer_schema.check_response_schema(inputs)
    except answer_schema.SchemaError as error:
        raise ValueError(f"--extra-inputs {error.field}: {error}") from None
    if settings.tools:
        if "tools" in inputs:
            raise ValueError(
                "--tools and tools in --extra-inputs exclude each other: use one of them"
            )
        inputs["tools"] = answer_schema.read_tools_file(settings.tools)
    return inputs
