"""Length control: fields of the body that keep outputs at their length, found out by probes."""

from typing import Any, Final

# -- outputs of the asked length -------------------------------------------------------------------

WAYS: Final = (("ignore_eos",), ("min_tokens",), ("ignore_eos", "min_tokens"))
"""To keep an output at its length, in the order to try: ``ignore_eos`` costs a server nothing
(vLLM, SGLang, llama.cpp); ``min_tokens`` has vLLM mask the end at every step; some need both, where
a stop token is not the end-of-sequence token."""
LENGTH_PROMPT: Final = "Answer with the one word yes."
"""A probe whose answer ends by itself long before LENGTH_TOKENS, unless something keeps it
going."""
LENGTH_TOKENS: Final = 48


def make_length_fields(way: tuple[str, ...], output_tokens: int) -> dict[str, Any]:
    """What to add to the body of a request so that its output has ``output_tokens``; nothing for
    ()."""
    values = {"ignore_eos": True, "min_tokens": output_tokens}
    return {name: values[name] for name in way}


def obeys_length(
    status: int, output_tokens: int | None, finish_reason: str | None, asked: int = LENGTH_TOKENS
) -> bool:
    """A probe of ``asked`` tokens came to them. False: it was refused (OpenAI answers 400 to an
    unknown field, others
    422), or the field was accepted and ignored, and the answer ended by itself (``finish_reason``
      stop).

    Conclusive only where the same probe without any field ends by itself: ask that first.
    """
    if status != 200:
        return False
    return finish_reason == "length" if output_tokens is None else output_tokens >= asked
