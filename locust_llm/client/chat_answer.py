"""Chat answer: the record of a request with the assistant's message, as ``chat()`` returns it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, Final

import msgspec

from locust_llm.protocols.first_token import Delta, TextChoice
from locust_llm.records.record import Record

REASONING: Final = ("reasoning_content", "reasoning")
"""The fields that hold reasoning: of DeepSeek, SGLang and older vLLM; of newer vLLM and
OpenRouter."""


class Answer(Record, frozen=True, kw_only=True, dict=True):
    """What ``chat()`` returns: the record of a request, with the assistant's message."""

    @cached_property
    def message(self) -> dict[str, Any]:
        """The assistant's whole message, ready to append to the messages of the next turn.

        It has text, reasoning (in the field in which it came) and tool calls, joined from the
        chunks. Of several choices it is the first. Of a failed request it has what came. It is made
        when it is asked for.

        Raises ValueError if the request had ``keep_text=False``.
        """
        deltas: Sequence[Delta | TextChoice] | None = self.__dict__.get("deltas", ())
        if deltas is None:
            raise ValueError("the text of the response was not kept: leave out keep_text=False")
        return {**join_deltas(deltas), **self.__dict__.get("more", {})}

    @property
    def text(self) -> str:
        """The text of the message; empty where it has none. Raises as ``message`` does."""
        content = self.message["content"]
        return content if isinstance(content, str) else ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls of the message. Each has ``id``, ``type`` and ``function`` with its
        ``name`` and its ``arguments``, a text that should be JSON. Raises as ``message`` does."""
        calls: list[dict[str, Any]] = self.message.get("tool_calls", [])
        return calls


def build_answer(
    record: Record,
    deltas: Sequence[Delta | TextChoice] | None,
    more: Mapping[str, Any] | None = None,
) -> Answer:
    """``deltas`` are the parts of the chunks, None if they were not kept. ``more`` has further
    fields of the message."""
    answer = Answer(**msgspec.structs.asdict(record))
    answer.__dict__.update(deltas=deltas, more=more or {})
    return answer


def count_answer_tokens(record: Record) -> int | None:
    """Counts output tokens without reasoning, which no history has. None: the count is not
    known."""
    return (
        None
        if record.output_tokens is None
        else record.output_tokens - (record.reasoning_tokens or 0)
    )


def join_deltas(deltas: Sequence[Delta | TextChoice]) -> dict[str, Any]:
    """Join the parts of the chunks to one message: texts and arguments are appended in their order
    (OpenAI, "Chat completion chunk")."""
    content: Any = _text([delta.content for delta in deltas])
    message: dict[str, Any] = {"role": "assistant", "content": content}
    chats = [delta for delta in deltas if isinstance(delta, Delta)]
    for field in (*REASONING, "refusal"):
        if text := _text([getattr(delta, field) for delta in chats]):
            message[field] = text
    calls: list[dict[str, Any]] = []
    for delta in chats:
        for part in delta.tool_calls if isinstance(delta.tool_calls, list) else ():
            if isinstance(part, dict):
                _add_call(calls, part)
        if isinstance(delta.function_call, dict):
            _extend(
                message.setdefault("function_call", {"name": "", "arguments": ""}),
                delta.function_call,
            )
    if calls:
        for call in calls:
            call.pop("index", None)  # of a stream alone
        message["tool_calls"] = calls
    if not content and (calls or "function_call" in message):
        message["content"] = None
    return message


def _text(parts: list[Any]) -> Any:
    """Join texts to one. Parts of another kind, such as Mistral's lists, stay as they are, in their
    order."""
    lists = [part for part in parts if isinstance(part, list)]
    if not lists:
        return "".join(part for part in parts if isinstance(part, str))
    return list(chain.from_iterable(lists))


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """A part with the index of a call belongs to it, unless it has another id: Gemini numbers each
    call 0. A part without either goes on with the last one."""
    index = part.get("index")
    id_ = part.get("id")
    call = None
    if index is not None:
        call = next((call for call in reversed(calls) if call.get("index") == index), None)
    elif id_ is not None:
        call = next((call for call in calls if call.get("id") == id_), None)
    elif calls:
        call = calls[-1]
    if call is None or (id_ and call.get("id") and call["id"] != id_):
        calls.append(
            call := {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
    call.update({key: value for key, value in part.items() if key != "function" and value})
    if index is not None:
        call["index"] = index
    if isinstance(function := part.get("function"), dict):
        _extend(call["function"], function)


def _extend(function: dict[str, Any], part: dict[str, Any]) -> None:
    """The name comes once and the arguments come in pieces. Some servers send the arguments as an
    object."""
    arguments = part.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    function["name"] = part.get("name") or function["name"]
    function["arguments"] += arguments or ""
