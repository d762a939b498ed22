"""Length control: the body's fields that keep outputs at their length. Probes find them."""

from typing import Any, Final

# -- outputs of the asked length -------------------------------------------------------------------

WAYS: Final = (("ignore_eos",), ("min_tokens",), ("ignore_eos", "min_tokens"))
"""The fields that keep an output at its length, in the order to try. ``ignore_eos`` costs a server
nothing (vLLM, SGLang, llama.cpp). With ``min_tokens`` vLLM masks the end at every step. Some
servers need both, where a stop token is not the end-of-sequence token."""
LENGTH_PROMPT: Final = "Answer with the one word yes."
"""A probe whose answer ends by itself long before LENGTH_TOKENS, unless a field prevents it."""
LENGTH_TOKENS: Final = 48


def make_length_fields(way: tuple[str, ...], output_tokens: int) -> dict[str, Any]:
    """The fields that give a request's output ``output_tokens``; none for ()."""
    values = {"ignore_eos": True, "min_tokens": output_tokens}
    return {name: values[name] for name in way}


def obeys_length(
    status: int, output_tokens: int | None, finish_reason: str | None, asked: int = LENGTH_TOKENS
) -> bool:
    """Whether a probe of ``asked`` tokens had so many.

    False: it was refused (OpenAI answers 400 to an unknown field, others 422). Or the field was
    accepted and ignored, and the answer ended by itself (``finish_reason`` stop). This is
    conclusive only where the same probe without any field ends by itself: send that first.
    """
    if status != 200:
        return False
    return finish_reason == "length" if output_tokens is None else output_tokens >= asked
