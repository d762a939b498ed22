"""First token: whether what a chunk adds (its delta) is text of the answer, reasoning, or nothing,
in every shape that servers write. The first chunk that adds something is the first token."""

from typing import Any, ClassVar, Final

import msgspec

from .token_counts import (
    ChatUsage,
)

Index = int | float | str | None
"""The index of a choice."""
THOUGHTS: Final = (
    "thinking",
    "reasoning",
    "redacted_thinking",
    "reasoning.text",
    "reasoning.summary",
)
"""The types of content parts that are reasoning (Mistral, OpenRouter, LiteLLM). No set: a type that
is a list has no hash."""
TEXTS: Final = ("text", "thinking", "summary", "content", "reasoning")
"""The fields of a part that hold its text."""
DEPTH: Final = 5


def has_text(value: Any, depth: int = DEPTH) -> bool:
    """Whether a text, a part or a list of them has anything to read."""
    if isinstance(value, str):
        return value != ""
    if isinstance(value, list):
        return depth > 0 and any(has_text(part, depth - 1) for part in value)
    if isinstance(value, dict):
        if any(name in value for name in TEXTS):
            return depth > 0 and any(
                has_text(value[name], depth - 1) for name in TEXTS if name in value
            )
        kind = value.get("type")  # of an image, say; of reasoning what is left is its signature
        return (
            isinstance(kind, str)
            and len(value) > 1
            and kind not in THOUGHTS
            and not kind.startswith("reasoning")
        )
    return bool(value)


def classify_content(content: Any) -> tuple[bool, bool]:
    """(whether a ``content`` that is no text holds output, whether it holds reasoning)."""
    parts = content if isinstance(content, list) else [content]
    output = thought = False
    for part in parts:
        if not has_text(part):
            continue
        if isinstance(part, dict) and part.get("type") in THOUGHTS:
            thought = True
        else:
            output = True
    return output, thought


def is_encrypted(part: Any) -> bool:
    """Whether a part of the reasoning is unreadable: it shows only that there was some."""
    return isinstance(part, dict) and part.get("type") in (
        "reasoning.encrypted",
        "redacted_thinking",
    )


def is_summary(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "reasoning.summary"


def has_arguments(function: Any) -> bool:
    """Whether a function call has more of its arguments."""
    return isinstance(function, dict) and bool(function.get("arguments") or function.get("input"))


def read_tool_call_start(part: Any) -> tuple[Any, Any, Any] | None:
    """What a part of a tool call begins with: (index, id, name). None: it begins none."""
    if not isinstance(part, dict):
        return None
    function = part.get("function") or part.get("custom")
    name = function.get("name") if isinstance(function, dict) else part.get("name")
    id_ = part.get("id")
    return (part.get("index"), id_, name) if id_ or name else None


def is_thought(more: Any) -> bool:
    """Whether a delta's ``extra_content`` marks its content as reasoning (Gemini)."""
    google = more.get("google") if isinstance(more, dict) else None
    return isinstance(google, dict) and google.get("thought") is True


class Delta(msgspec.Struct, gc=False):
    """What a chunk adds to the assistant's message, or a whole message, in the form of a chat
    completion."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None
    thinking_blocks: Any = None
    """LiteLLM's, beside ``reasoning_content``."""
    reasoning_text: Any = None
    """GitHub Copilot's."""
    reasoning_details: Any = None
    """OpenRouter's and MiniMax's: parts, each with its type."""
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    """A tool call in the form before ``tool_calls``."""
    images: Any = None
    audio: Any = None
    extra_content: Any = None
    """Gemini's: it may mark the content as reasoning."""

    @property
    def brought(self) -> tuple[bool, bool]:
        """(whether it has output, whether it has reasoning), without tool calls."""
        content = self.content
        if isinstance(content, str):
            output = content != ""
            thought = False
        else:
            output, thought = classify_content(content) if content else (False, False)
        if self.extra_content is not None and is_thought(self.extra_content):
            thought = output or thought
            output = False
        output = output or has_text(self.refusal) or has_text(self.images) or _has_sound(self.audio)
        thoughts = (
            self.reasoning_content,
            self.reasoning,
            self.thinking,
            self.thinking_blocks,
            self.reasoning_details,
            self.reasoning_text,
        )
        return output, thought or any(value is not None and has_text(value) for value in thoughts)

    @property
    def alone(self) -> bool:
        return (
            self.tool_calls is None
            and self.reasoning_content is None
            and self.reasoning is None
            and self.refusal is None
            and self.function_call is None
            and self.thinking is None
            and self.reasoning_details is None
            and self.thinking_blocks is None
            and self.images is None
            and self.extra_content is None
            and self.reasoning_text is None
            and self.audio is None
        )

    @property
    def details(self) -> Any:
        """Reasoning in parts that have types."""
        return self.reasoning_details

    @property
    def has_calls(self) -> bool:
        return bool(self.tool_calls or self.function_call)

    @property
    def text_alone(self) -> bool:
        """The delta adds text of the answer, and nothing else."""
        return (
            isinstance(self.content, str)
            and self.content != ""
            and self == Delta(content=self.content)
        )


def _has_sound(audio: Any) -> bool:
    return isinstance(audio, dict) and bool(audio.get("data") or audio.get("transcript"))


class TextChoice(msgspec.Struct, gc=False):
    """A choice of a plain completion. It holds its text itself, in a stream and in a whole
    answer."""

    index: Index = None
    content: Any = msgspec.field(default=None, name="text")
    finish_reason: Any = None
    usage: ChatUsage | None = None
    error: Any = None
    details: ClassVar[None] = None
    alone: ClassVar[bool] = True

    @property
    def delta(self) -> "TextChoice":
        return self

    message = delta

    @property
    def brought(self) -> tuple[bool, bool]:
        return has_text(self.content), False

    @property
    def has_calls(self) -> bool:
        return False

    @property
    def plain(self) -> bool:
        """The choice adds a text, and nothing else."""
        text = isinstance(self.content, str) and self.content != ""
        return text and self.usage is None and self.error is None
