"""Reference answer: what the server answered to a reference prompt, when it was asked, and how."""

from typing import Final

import msgspec

IDLE: Final = "idle"
"""Before the load, with no other request."""
UNDER_LOAD: Final = "load"
AFTER_LOAD: Final = "after"


class AnswerToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token of an answer, with its place among the likely ones."""

    text: str
    logprob: float | None = None
    margin: float | None = None
    """How much more likely it was than the next one, in nats. None: the server gave no other."""


class AnswerToolCall(msgspec.Struct, frozen=True, gc=False):
    name: str
    arguments: str


class ReferenceAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer to a reference prompt, or why there is none."""

    prompt: int
    """The number of the prompt, from 0."""
    question: str = ""
    """The begin of its last message."""
    asked: str
    """IDLE, UNDER_LOAD or AFTER_LOAD."""
    sent_at: float
    ended_at: float
    """Unix seconds."""
    server: str = ""
    """The arm or the replica, where there are several. Its answers are compared with its own."""
    streamed: bool = True
    kind: str = ""
    """``tool`` for a prompt with a tool call, ``schema`` for one with a JSON schema."""
    in_flight: int = 0
    """The requests of the load that were in flight when this one was sent."""
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[AnswerToolCall, ...] = ()
    finish_reason: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """The tokens of the prompt that the server took from its prefix cache. None: it does not
    report them."""
    response_ids: tuple[str, ...] = ()
    """The ids of its events, each change once. A sound answer has one."""
    model: str = ""
    tokens: tuple[AnswerToken, ...] = ()
    """Empty: the server gives no logprobs."""
    without: tuple[str, ...] = ()
    """The fields that the server refused, so that the request left them out."""
    faults: tuple[str, ...] = ()
    """What was wrong in it alone, by name: see fault_names.py."""
    error: str = ""
    """Why there is no answer. Empty: there is one."""

    @property
    def whole_text(self) -> str:
        """Everything the model wrote, in one text: reasoning, text and tool calls."""
        calls = [f"{call.name}({call.arguments})" for call in self.tool_calls]
        return "\n".join(part for part in (self.reasoning, self.text, *calls) if part)
