"""Request to send: content and labels of one request of a user."""

from collections.abc import Callable
from typing import Any, NamedTuple

import requests

from locust_llm.workload.conversation import Conversation, ConversationRequest, previous_turn


class PreparedHead(NamedTuple):
    """What requests prepared once, for requests that differ in body and id alone."""

    made_from: tuple[Any, ...]
    """What decides the head. Another value needs another head."""
    request: requests.PreparedRequest
    beginning: bytes
    """Its first bytes on the wire."""
    trace: str
    """The trace of the run. Empty: it has no traceparent of ours."""


class OutgoingTurn(NamedTuple):
    messages: list[dict[str, Any]]
    input_tokens: int | None
    output_tokens: int
    session: str = ""
    number: int = 0
    body: dict[str, Any] | None = None
    sized: bool = False
    """The output gets exactly ``output_tokens``, where the server allows it."""
    model: str | None = None
    """The model of the mix. None: the run has no mix."""
    turns: int | None = None
    """The turns of the session, on its first turn. None: one, or not known."""
    after: tuple[int, ...] | None = None
    """The turns that it waited for. None: the turn before it."""
    tool_s: float | None = None
    """The seconds of a tool before it."""
    prefix: tuple[int, int] | None = None
    """(number of the shared prefix that it begins with, tokens in common)."""
    tenant: str = ""
    """The tenant. Empty: the run has no tenants."""
    lose: Callable[[], int] | None = None
    """Called when the turn failed. Returns how many turns are never sent because of that."""
    marker: int | None = None
    """The number of the marker in its session's first prompt. None: there is none."""
    asked: bool = False
    """It asks the model to repeat the marker."""


def make_turn(ask: ConversationRequest, conversation: Conversation, *, sized: bool) -> OutgoingTurn:
    number = ask.turn
    return OutgoingTurn(
        ask.messages, ask.input_tokens, ask.output_tokens, conversation.id, number, ask.body, sized,
        conversation.model,
        turns=conversation.turns if number == 0 and conversation.turns > 1 else None,
        after=None if ask.after == previous_turn(number) else ask.after,
        tool_s=ask.delay_s if ask.tool else None,
        prefix=ask.prefix,
        tenant=conversation.tenant,
        lose=lambda: conversation.lose(number),
        marker=conversation.marked.number, asked=ask.asked,
    )  # fmt: skip
