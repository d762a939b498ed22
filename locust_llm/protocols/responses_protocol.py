"""Responses protocol (OpenAI, "Responses"): typed events, with one named delta for each kind of
output. A turn may go on from a stored answer."""

from collections.abc import Callable
from itertools import chain, takewhile
from typing import Any, Final

import msgspec

from .answer_parser import Completion, Count, read_finish_reason
from .error_forms import is_error
from .error_message import error_line
from .first_token import Index, has_text
from .protocol import (
    NO_PARAMETERS,
    Messages,
    Protocol,
    read_response_schema,
    read_tool_choice_name,
    read_tool_function,
    text_of,
)


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: Count = None


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Count = None


class ResponsesUsage(msgspec.Struct, gc=False):
    input_tokens: Count = None
    output_tokens: Count = None
    total_tokens: Count = None
    input_tokens_details: InputDetails | None = None
    output_tokens_details: OutputDetails | None = None


class OutputPart(msgspec.Struct, gc=False):
    """A part of an output item: a text or a refusal."""

    text: Any = None
    refusal: Any = None


class OutputItem(msgspec.Struct, gc=False):
    """An item of the output: a message, reasoning or a tool call."""

    type: str | None = None
    content: list[OutputPart] | None = None
    summary: list[OutputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    input: Any = None
    """The arguments of a custom tool's call, as text."""

    @property
    def is_call(self) -> bool:
        return self.type in CALLS

    @property
    def written(self) -> Any:
        """What the model wrote for the tool."""
        return self.arguments or self.input or ""


class IncompleteDetails(msgspec.Struct, gc=False):
    reason: Any = None


class ResponseObject(msgspec.Struct, gc=False):
    """A whole answer. The last event of a stream has it too."""

    id: Any = None
    status: str | None = None
    output: list[OutputItem] | None = None
    usage: ResponsesUsage | None = None
    error: Any = None
    incomplete_details: IncompleteDetails | None = None
    metrics: msgspec.Raw = msgspec.Raw()
    """vLLM's metrics. records.server_times reads them when the answer is over."""


class ResponsesEvent(msgspec.Struct, gc=False):
    """One event of a stream."""

    type: str = ""
    object: Any = None
    delta: Any = None
    output_index: Index = None
    item: OutputItem | None = None
    arguments: Any = None
    input: Any = None
    text: Any = None
    refusal: Any = None
    response: ResponseObject | None = None
    error: Any = None
    message: Any = None


TEXT: Final = "response.output_text.delta"
CALLS: Final = frozenset({"function_call", "custom_tool_call", "mcp_call"})
ARGUMENTS: Final = frozenset({
    "response.function_call_arguments.delta", "response.custom_tool_call_input.delta",
    "response.mcp_call_arguments.delta",
})  # fmt: skip
ARGUMENTS_DONE: Final = frozenset({
    "response.function_call_arguments.done", "response.custom_tool_call_input.done",
    "response.mcp_call_arguments.done",
})  # fmt: skip
WHOLE_TEXTS: Final = frozenset({"response.output_text.done", "response.refusal.done"})
BEGUN: Final = "response.output_item.added"
ITEMS: Final = frozenset({BEGUN, "response.output_item.done"})
LAST: Final = frozenset(
    {
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "response.done",
    }
)
STATUSES: Final = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
"""The status of a response without one, by the event that it came with."""
RESPONSE_ID: Final = "response_id"
"""The field of an assistant's message that holds the server's name for it, if the server keeps
it."""
REASONS: Final = {"max_output_tokens": "length", "max_tokens": "length"}
"""Why an answer is incomplete, in the words of chat completions."""


class ResponsesProtocol(Protocol[ResponsesEvent]):
    path = "/v1/responses"
    operation = "chat"
    takes = ("image", "audio")
    length_fields = ("max_output_tokens",)
    least_tokens = 16  # of OpenAI
    decode: Callable[[bytes], ResponsesEvent] = staticmethod(
        msgspec.json.Decoder(ResponsesEvent).decode
    )
    decode_whole: Callable[[bytes], ResponseObject] = staticmethod(
        msgspec.json.Decoder(ResponseObject).decode
    )

    def prompt(self, messages: Messages) -> dict[str, Any]:
        """System messages at the begin become instructions, which each request carries: vLLM drops
        instructions of earlier turns from what it keeps."""
        systems = leading_system_messages(messages)
        items = _items_of_messages(messages[len(systems) :])
        if not items:
            return {"input": _items_of_messages(messages)}
        if not systems:
            return {"input": items}
        return {"instructions": "\n\n".join(map(text_of, systems)), "input": items}

    def fields(self, asked: dict[str, Any]) -> dict[str, Any]:
        body = dict(asked)
        if isinstance(tools := asked.get("tools"), list):
            body["tools"] = [_tool(tool) for tool in tools]
        if name := read_tool_choice_name(asked.get("tool_choice")):
            body["tool_choice"] = {"type": "function", "name": name}
        if isinstance(form := asked.get("response_format"), dict):
            del body["response_format"]
            plain = {name: value for name, value in form.items() if name != "json_schema"}
            body["text"] = {
                **(asked.get("text") or {}),
                "format": {**plain, **(read_response_schema(form) or {})},
            }
        return body

    def event(self, answer: Completion, message: ResponsesEvent, data: bytes) -> bool:
        kind = message.type
        if kind == TEXT:
            return answer.add_text(message.delta)
        if kind in ARGUMENTS:
            return bool(message.delta) and answer.add_tool_call(
                message.output_index, arguments=message.delta
            )
        if kind == "response.refusal.delta":
            return answer.add_refusal(message.delta)
        if kind in ITEMS and (item := message.item) is not None and item.is_call:
            return _call(answer, message.output_index, item, begins=kind == BEGUN)
        if kind in ARGUMENTS_DONE and answer.calls.get(message.output_index) is False:
            written = message.arguments or message.input
            return bool(written) and answer.add_tool_call(message.output_index, arguments=written)
        if kind in WHOLE_TEXTS and not answer.visible:
            return answer.add_text(message.text) or answer.add_refusal(message.refusal)
        if kind.startswith("response.") and kind.endswith(".delta") and has_text(message.delta):
            if "reasoning" in kind:
                return answer.add_reasoning(message.delta, summary="summary" in kind)
            return answer.add_other()
        if kind in LAST and message.response is not None:
            # the whole answer, as one event
            chunk = not answer.visible and _items_of(answer, message.response)
            _ended(answer, message.response, data, status=STATUSES.get(kind))
            answer.end()
            return chunk
        if kind == "error" or (message.error and is_error(message.error)):
            answer.fail(message.error or message.message, data)
        elif not kind and message.object == "response":
            before = answer.content
            self.whole(answer, data)
            return answer.content and not before
        elif not kind.startswith("response.") and kind != "ping":
            answer.look_for_error(data)
        return False

    def whole(self, answer: Completion, body: bytes) -> None:
        response = answer.read(self.decode_whole, body)
        if response is None:
            return
        if response.output is None and not is_error(response.error):
            if not answer.look_for_error(body) and answer.complaint is None:
                answer.malformed = "JSON that is not a response: " + error_line(body)
            return
        for index, item in enumerate(response.output or ()):
            _add_whole_item(answer, index, item)
        _ended(answer, response, body)


def _call(answer: Completion, index: Index, item: OutputItem, *, begins: bool) -> bool:
    """Read an item that begins or has ended. An ended item brings what no event has brought
    before."""
    if begins or index not in answer.calls:
        return answer.add_tool_call(index, id_=item.call_id, name=item.name, arguments=item.written)
    if item.written and not answer.calls[index]:
        return answer.add_tool_call(index, arguments=item.written)
    return False


def _items_of(answer: Completion, response: ResponseObject) -> bool:
    """Read all output at once, without reasoning that came before. Returns whether there is any."""
    reasoned = answer.content
    for index, item in enumerate(response.output or ()):
        if not (reasoned and item.type == "reasoning"):
            _add_whole_item(answer, index, item)
    return answer.visible or (answer.content and not reasoned)


def _add_whole_item(answer: Completion, index: int, item: OutputItem) -> None:
    if item.is_call:
        answer.add_tool_call(index, id_=item.call_id, name=item.name, arguments=item.written)
    for part in item.summary or ():
        answer.add_reasoning(part.text, summary=True)
    for part in item.content or ():
        if item.type == "reasoning":
            answer.add_reasoning(part.text)
        else:
            answer.add_text(part.text)
            answer.add_refusal(part.refusal)


def _ended(
    answer: Completion, response: ResponseObject, data: bytes, *, status: str | None = None
) -> None:
    """Read the end and the counts. The response's own status counts, as vLLM sends
    ``response.completed`` with an incomplete one. ``status`` serves where it has none."""
    status = response.status or status
    if (usage := response.usage) is not None:
        of_prompt, of_answer = usage.input_tokens_details, usage.output_tokens_details
        answer.count(
            input_=usage.input_tokens,
            output=usage.output_tokens,
            reasoning=None if of_answer is None else of_answer.reasoning_tokens,
            cached=None if of_prompt is None else of_prompt.cached_tokens,
            total=usage.total_tokens,
        )
    answer.metrics = response.metrics
    if is_error(response.error) or status in ("failed", "cancelled"):
        answer.fail(response.error or f"status {status}", data)
        return
    answer.response_id = response.id if isinstance(response.id, str) and response.id else None
    details = response.incomplete_details
    if details is not None and (why := read_finish_reason(details.reason)):
        answer.finish(REASONS.get(why, why))
    elif status == "incomplete":
        answer.finish("length")
    elif status == "completed":
        called = answer.calls or any(item.is_call for item in response.output or ())
        answer.finish("tool_calls" if called else "stop")


# -- the input -------------------------------------------------------------------------------------


def leading_system_messages(messages: Messages) -> Messages:
    return list(takewhile(lambda message: message.get("role") == "system", messages))


def split_at_stored_response(
    messages: Messages, lost: str | None = None
) -> tuple[str | None, Messages]:
    """(id of the last stored answer, messages to send with it), for a server that keeps answers.

    The messages are the later ones and the system's. It is (None, all messages) where no answer has
    an id, the answer is ``lost``, or nothing came since then.
    """
    for index in range(len(messages) - 1, -1, -1):
        if id_ := messages[index].get(RESPONSE_ID):
            news = messages[index + 1 :]
            return (
                (id_, leading_system_messages(messages) + news)
                if news and id_ != lost
                else (None, messages)
            )
    return None, messages


def _tool(tool: Any) -> Any:
    """The tool in flat form. As in chat, it is not strict unless the tool asks for it; here strict
    is the default."""
    function = read_tool_function(tool)
    return (
        tool
        if function is None
        else {"type": "function", "parameters": NO_PARAMETERS, "strict": False, **function}
    )


def _items_of_messages(messages: Messages) -> list[dict[str, Any]]:
    return list(chain.from_iterable(map(_items, messages)))


def _items(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of the input that are one message of a chat; reasoning is left out, as it needs an
    id of the server's."""
    role = message.get("role")
    content = message.get("content")
    if role == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": message.get("tool_call_id"),
                "output": text_of(message),
            }
        ]
    items: list[dict[str, Any]] = []
    if role == "assistant":
        if text := text_of(message):  # llama.cpp takes an answer in this form only
            part = {"type": "output_text", "text": text, "annotations": []}
            items.append(
                {"type": "message", "role": role, "status": "completed", "content": [part]}
            )
    else:
        parts = [_part(part) for part in content] if isinstance(content, list) else content
        items.append({"role": role, "content": parts})
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        items.append({"type": "function_call", "call_id": call.get("id"),
            "name": function.get("name"),
                      "arguments": function.get("arguments") or "{}"})  # fmt: skip
    return items


def _part(part: Any) -> Any:
    """A part of a message's content where its kind is known. Others stay as they are."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return {"type": "input_text", "text": part.get("text")}
    if kind == "image_url":
        image = part.get("image_url")
        return {
            "type": "input_image",
            "image_url": image.get("url") if isinstance(image, dict) else image,
        }
    return part
