"""Turn: content and labels of one request of a user."""

from typing import Any, NamedTuple

from locust_llm.load.conversation import Ask, Conversation


class Turn(NamedTuple):
    """Content and labels of one request."""

    messages: list[dict[str, Any]]
    input_tokens: int | None
    output_tokens: int
    session: str = ""
    number: int = 0
    body: dict[str, Any] | None = None
    sized: bool = False
    """The output gets exactly ``output_tokens``, where the server allows it."""
    model: str | None = None
    """Of the mix; None: the run has none."""


def turn_of(ask: Ask, conversation: Conversation, *, sized: bool) -> Turn:
    """The next request of a session."""
    length, id_ = ask.output_tokens, conversation.id
    return Turn(ask.messages, ask.input_tokens, length, id_, ask.turn, ask.body, sized, conversation.model)
