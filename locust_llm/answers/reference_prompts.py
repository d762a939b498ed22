"""Reference prompts: short prompts with one expected answer each, asked alone and again under load.

The built-in ones are tasks that even a small model finishes: it counts, lists, copies and fills in
a form. An answer is long enough for a fault to show in it, and short enough to cost little.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from locust_llm.files.regular_file import describe_syntax_error
from locust_llm.files.user_file import read_small_text

TOKENS: Final = 64
"""The longest answer to a prompt that asks for no other length."""
MAX_TOKENS: Final = 4_096
MAX_PROMPTS: Final = 100
QUESTION_CHARACTERS: Final = 40
TOOL: Final = "tool"
SCHEMA: Final = "schema"
WEATHER_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
CITY_SCHEMA: Final[dict[str, Any]] = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "country": {"type": "string"},
                "continent": {"type": "string"},
            },
            "required": ["city", "country", "continent"],
            "additionalProperties": False,
        },
    },
}
COPIED: Final = (
    "The harbour lay still in the early light. Three boats had left before dawn, and the fourth "
    "waited for its crew. An old man sat on the wall and mended a net with a wooden needle. He "
    "counted the knots under his breath, as his father had done. Behind him the baker opened the "
    "shutters, and the smell of bread crossed the square. A dog slept on the steps of the church. "
    "Nobody spoke, for there was nothing new to say, and the tide would turn within the hour."
)
"""A text of several cache blocks."""


class ReferencePrompt(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, with fields in the form of chat completions."""

    messages: list[dict[str, Any]]
    max_tokens: int = TOKENS
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def kind(self) -> str:
        """``tool``, ``schema``, or empty for a plain prompt."""
        if self.tools:
            return TOOL
        return SCHEMA if self.response_format else ""

    @property
    def question(self) -> str:
        """The begin of the last message, to tell it from others. Empty: it is no text."""
        content = self.messages[-1].get("content")
        return " ".join(content.split())[:QUESTION_CHARACTERS] if isinstance(content, str) else ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its body beside messages and length."""
        own = {
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "response_format": self.response_format,
        }
        return {name: value for name, value in own.items() if value is not None}


def make_plain_prompt(text: str) -> ReferencePrompt:
    return ReferencePrompt(messages=[{"role": "user", "content": text}])


BUILT_IN_PROMPTS: Final = (
    make_plain_prompt(
        "Count from one to thirty in English words, separated by commas. Write nothing else."
    ),
    make_plain_prompt(
        "List the months of the year in order, each with its number of days, one on each line. "
        "Write nothing else."
    ),
    make_plain_prompt(f"Copy the following text word by word. Write nothing else.\n\n{COPIED}"),
    make_plain_prompt(
        "Continue this sequence of even numbers up to 80, separated by commas: 2, 4, 6, 8, 10,"
    ),
    make_plain_prompt(
        "Write the letters of the English alphabet in order, separated by spaces, then the same "
        "letters in reverse order."
    ),
    make_plain_prompt(
        "Name the planets of the solar system in order of their distance from the sun, and write "
        "one short sentence about each."
    ),
    ReferencePrompt(
        messages=[
            {
                "role": "user",
                "content": "Which city has the Eiffel Tower? Answer with city, country and "
                "continent as JSON.",
            }
        ],
        response_format=CITY_SCHEMA,
    ),
    ReferencePrompt(
        messages=[{"role": "user", "content": "What is the weather in Paris, in celsius?"}],
        tools=[WEATHER_TOOL],
        tool_choice="required",
    ),
)


def load_reference_prompts(path: str | None) -> tuple[ReferencePrompt, ...]:
    """The prompts of a file, or the built-in ones. A line of the file is a prompt, or a JSON object
    with messages.

    Raises OSError, and ValueError of one sentence.
    """
    if not path:
        return BUILT_IN_PROMPTS
    prompts = tuple(_read_lines(path, read_small_text(path)))
    if not prompts:
        raise ValueError(f"--reference-file {path} has no prompt")
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(
            f"--reference-file {path} has {len(prompts)} prompts, but at most {MAX_PROMPTS} are "
            "possible"
        )
    return prompts


def _read_lines(path: str, text: str) -> Iterator[ReferencePrompt]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line:
            continue
        try:
            yield _parse_line(line)
        except ValueError as error:
            raise ValueError(f"--reference-file {path}, line {number}: {error}") from None


def _parse_line(line: str) -> ReferencePrompt:
    """The prompt of a line. Raises ValueError of one sentence without its place."""
    if not line.startswith("{"):
        return make_plain_prompt(line)
    try:
        prompt = msgspec.json.decode(line, type=ReferencePrompt)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(
            f"it begins as JSON, but is not valid JSON: {describe_syntax_error(error)}"
        ) from None
    if not prompt.messages:
        raise ValueError("messages is empty")
    if not all(isinstance(message.get("role"), str) for message in prompt.messages):
        raise ValueError("each message needs a role")
    if not 1 <= prompt.max_tokens <= MAX_TOKENS:
        raise ValueError(f"max_tokens must be 1 to {MAX_TOKENS}, got {prompt.max_tokens}")
    return prompt
