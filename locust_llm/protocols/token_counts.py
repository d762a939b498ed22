"""Token counts: a server's counts of one answer: the last ones that can be right, and the ones that
cannot be.

An answered prompt has tokens, and so has an answer that is not empty. A count of zero beside them
means nothing. Neither does a negative count, or one that is no whole number.
"""

from typing import Any, Final, NamedTuple

import msgspec

MAX_COUNT: Final = 1 << 53
MAX_DIGITS: Final = 16
CHUNKS_PER_TOKEN: Final = 8
LONGEST_TOKEN: Final = 128
"""The most characters of a token: the longest in common vocabularies have so many. A proxy may send
each by itself, so an answer may have at most so many chunks for each token."""

Count = int | float | str | None
"""A count as servers write it. Proxies that know one kind of number make 6 into 6.0, others write
texts."""
INPUT: Final = "input_tokens"
OUTPUT: Final = "output_tokens"
REASONING: Final = "reasoning_tokens"
CACHED: Final = "cached_tokens"


# gc=False: they hold no cycles, and objects of each event would keep the garbage collector busy
class UsageDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Count = None
    cached_tokens: Count = None


class ChatUsage(msgspec.Struct, gc=False):
    """The counts in the form of chat completions. Some servers write the names of Responses
    instead, or both, one of them with zeros."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: UsageDetails | None = None
    completion_tokens_details: UsageDetails | None = None
    input_tokens: Count = None
    output_tokens: Count = None
    cached_tokens: Count = None
    """Moonshot's, outside the details."""
    reasoning_tokens: Count = None
    """Perplexity's, outside the details."""

    @property
    def prompt(self) -> Count:
        return self.prompt_tokens or (
            self.prompt_tokens if self.input_tokens is None else self.input_tokens
        )

    @property
    def output(self) -> Count:
        return self.completion_tokens or (
            self.completion_tokens if self.output_tokens is None else self.output_tokens
        )

    @property
    def reasoning(self) -> Count:
        details = self.completion_tokens_details
        return self.reasoning_tokens if details is None else details.reasoning_tokens

    @property
    def cached(self) -> Count:
        details = self.prompt_tokens_details
        return self.cached_tokens if details is None else details.cached_tokens


class TokenCounts:
    """The counts of one answer. The last count above zero wins: a missing, zero or impossible later
    count erases none."""

    __slots__ = ("cached", "input", "output", "reasoning", "strange", "total")

    def __init__(self) -> None:
        self.input: int | None = None
        self.output: int | None = None
        self.reasoning: int | None = None
        self.cached: int | None = None
        self.total: int | None = None
        """The tokens of the prompt and all output."""
        self.strange: dict[str, str] = {}
        """Counts that are impossible, as the server wrote them last, by their names in a record."""

    def settled(
        self, *, answered: bool, visible: bool, reasoned: bool, chunks: int, still: bool = False
    ) -> "SettledCounts":
        """The counts that can be right.

        ``answered``: there is content or reasoning. ``visible``: some of it is the answer.
        ``reasoned``: some of it is reasoning, as it was made. ``still``: the count came with each
        chunk, and never grew.
        """
        rejected = {
            name: text for name, text in self.strange.items() if not getattr(self, FIELDS[name])
        }
        read, written, thought, cached = self.input, self.output, self.reasoning, self.cached
        if read == 0 and (answered or written):
            rejected[INPUT], read = "0", None
        if written == 0 and answered and not (thought and not visible):
            rejected[OUTPUT], written = "0", None
        if written is not None:
            generated = _with_reasoning(self, written, thought, reasoned=reasoned)
            if generated != written:
                thought = thought or generated - written
                rejected[OUTPUT] = str(written)
                written = generated
        if written is not None and (still or chunks > CHUNKS_PER_TOKEN * written + LONGEST_TOKEN):
            rejected[OUTPUT] = str(written)
            written = None
        if cached is not None and read is not None and cached > read:
            rejected[CACHED] = str(cached)
            cached = None
        return SettledCounts(read, written, thought, cached, tuple(sorted(rejected.items())))


class SettledCounts:
    """The accepted and the rejected counts of an answer."""

    __slots__ = ("cached", "input", "output", "reasoning", "rejected")

    def __init__(
        self,
        input_: int | None,
        output: int | None,
        reasoning: int | None,
        cached: int | None,
        rejected: tuple[tuple[str, str], ...],
    ) -> None:
        self.input, self.output, self.reasoning, self.cached = input_, output, reasoning, cached
        self.rejected = rejected


class OutputTokens(NamedTuple):
    """The tokens of an answer, and what counted them."""

    output: int | None
    counted_by: str
    """``usage``: the server; ``chunks``: each chunk is one; empty: nothing."""
    reasoning: int | None
    hidden: int | None


def count_output_tokens(
    counts: SettledCounts, chunks: int, hidden: int | None, *, generates: bool
) -> OutputTokens:
    """The server's count, without one a token for each chunk. ``generates``: False for embeddings,
    which have input tokens alone."""
    if counts.output is not None:
        return OutputTokens(counts.output, "usage", counts.reasoning, hidden)
    # a count of a part says little where that of all is unknown
    if chunks:
        return OutputTokens(chunks, "chunks", None, 0)
    only_input = not generates and counts.input is not None
    return OutputTokens(None, "usage" if only_input else "", None, 0)


FIELDS: Final = {INPUT: "input", OUTPUT: "output", REASONING: "reasoning", CACHED: "cached"}


def _with_reasoning(
    counts: TokenCounts, written: int, thought: int | None, *, reasoned: bool
) -> int:
    """All generated tokens, also where the server leaves reasoning out of its count (xAI). Then the
    total holds the reasoning, or there is more reasoning than output.

    ``thought``: tokens of reasoning. ``reasoned``: reasoning came, counted or not.
    """
    generated = counts.total - counts.input if counts.total is not None and counts.input else 0
    if not thought:
        beyond = generated - written
        return generated if reasoned and beyond > 0 and beyond != counts.cached else written
    if generated == written + thought:
        return generated
    if thought > written:
        return generated if generated >= thought else written + thought
    return written


def parse_token_count(value: Any) -> int | None:
    """The number of tokens. None: it cannot be one."""
    if value.__class__ is int:
        return value if 0 <= value < MAX_COUNT else None
    if isinstance(value, str) and len(value) <= MAX_DIGITS and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < MAX_COUNT and value == int(value) else None


def _written(value: Any) -> str:
    """The text of an impossible count, without the server's own words, which could be anything."""
    if isinstance(value, str):
        return "a text"
    return f"{value:g}" if -MAX_COUNT < value < MAX_COUNT else "out of range"


def take_token_count(counts: TokenCounts, field: str, name: str, value: Any) -> None:
    """Take one count that the server wrote."""
    now = parse_token_count(value)
    if value == "":
        return
    if now is None:
        counts.strange[name] = _written(value)
    elif now or getattr(counts, field) is None:
        setattr(counts, field, now)
