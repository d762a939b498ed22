"""Token content: whether a delta holds text of the answer, reasoning, or nothing, in every shape
that servers write."""

from typing import Any, Final

THOUGHTS: Final = frozenset(
    {"thinking", "reasoning", "redacted_thinking", "reasoning.text", "reasoning.summary"}
)
"""The types of content parts that are reasoning (Mistral, OpenRouter, LiteLLM)."""
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
