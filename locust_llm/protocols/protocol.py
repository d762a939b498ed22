"""Protocol: how requests of one API are written, and how its answers are read; the seam that each
protocol fills."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from .completion import Completion

Messages = list[dict[str, Any]]
"""Of a conversation, in the form of chat completions; what ``Answer.message`` is, too."""
NO_PARAMETERS: Final = {"type": "object", "properties": {}}
"""Of a function that names none."""


M = TypeVar("M")


class Protocol(ABC, Generic[M]):
    """Has no state: one object serves all requests of a run."""

    path: ClassVar[str]
    """Where requests go, unless ``--endpoint`` names another path."""
    length_fields: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """Fields of the body that limit the output in tokens; the first unless ``--max-tokens-field``
    names another."""
    stream_fields: ClassVar[dict[str, Any]] = {"stream": True}
    """What asks for a stream."""
    count_fields: ClassVar[dict[str, Any]] = {}
    """What asks for a count of tokens with each event of a stream; empty: it has no such thing."""
    least_texts: ClassVar[int] = 1
    """Messages that a request must have: rerank takes a query and a document."""
    least_tokens: ClassVar[int] = 1
    """Of output that a request may ask for."""
    takes: ClassVar[tuple[str, ...]] = ()
    """What a message may hold beside text: image, audio."""
    streams: ClassVar[bool] = True
    """False: answers are whole always, and have no tokens of output."""

    operation: ClassVar[str] = ""
    """As OpenTelemetry's conventions call it (``gen_ai.operation.name``); empty: by its own
    name."""
    provider: ClassVar[str] = "openai"
    """Whose API it is (``gen_ai.provider.name``)."""

    decode: Callable[[bytes], M]
    """The JSON of an event, as what ``event`` takes; a decoder of msgspec is the fastest. Raises
    ValueError."""

    @abstractmethod
    def prompt(self, messages: Messages) -> dict[str, Any]:
        """The fields of the body that carry the conversation."""

    def fields(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Further fields of the body, given as chat completions have them; what is in this
        protocol's own form stays as it is."""
        return asked

    @abstractmethod
    def event(self, answer: Completion, message: M, data: bytes) -> bool:
        """One event of a stream, into the answer. True if it is a chunk: it brought output.

        Called when there is time, perhaps long after the bytes were stamped. ``[DONE]``, empty
        events and those of type ``error`` do not come here, nor what ``decode`` cannot read: that
        makes an answer malformed.
        """

    def form(self, data: bytes) -> tuple[bytes, bytes]:
        """What stands before and behind the text of an event, if this is a chunk for its text
        alone: the same around another text is another such chunk. Empty: it is none, or not to be
        told cheaply."""
        return b"", b""

    def whole(self, answer: Completion, body: bytes) -> None:
        """An answer that came as one JSON body. Unless a protocol says otherwise it is read as an
        event is."""
        if (message := answer.read(self.decode, body)) is not None:
            self.event(answer, message, body)

    def body(
        self,
        model: str | None,
        messages: Messages,
        max_tokens: int | None,
        *,
        streaming: bool,
        max_tokens_field: str,
        per_chunk_usage: bool = False,
    ) -> dict[str, Any]:
        """Of a request. ``max_tokens_field``: of those in ``length_fields``; another one counts for
        nothing. ``per_chunk_usage``: ask for a count of tokens with each event."""
        request = self.prompt(messages)
        if model is not None:
            request["model"] = model
        if max_tokens is not None and self.length_fields:
            request[
                max_tokens_field
                if max_tokens_field in self.length_fields
                else self.length_fields[0]
            ] = max_tokens
        if streaming:
            request |= self.stream_fields
            request |= self.count_fields if per_chunk_usage else {}
        return request

    def tokenized(self, messages: Messages) -> dict[str, Any]:
        """The fields of a request to vLLM's ``/tokenize`` that carry the same conversation."""
        return {"messages": messages}

    def asked(self, messages: Messages, output_tokens: int) -> dict[str, int | None]:
        """What a record has of a request's size, beside its input tokens."""
        return {"asked_output_tokens": output_tokens}

    def headers(self, key: str) -> dict[str, str]:
        """Returns the headers of every request. ``key``: of the API; empty for none."""
        return {"Authorization": f"Bearer {key}"} if key else {}


def read_tool_function(tool: Any) -> dict[str, Any] | None:
    """Of one of chat's ``tools``, flat or not; None: it is no function."""
    if (
        not isinstance(tool, dict)
        or tool.get("type", "function") != "function"
        or "input_schema" in tool
    ):
        return None
    function = tool.get("function", tool)
    return (
        {name: value for name, value in function.items() if name != "type"}
        if isinstance(function, dict)
        else None
    )


def read_tool_choice_name(choice: Any) -> Any:
    """Of the function that a ``tool_choice`` of chat names; None: it names none."""
    function = (
        choice.get("function", choice)
        if isinstance(choice, dict) and choice.get("type") == "function"
        else None
    )
    return function.get("name") if isinstance(function, dict) else None


def read_response_schema(form: Any) -> dict[str, Any] | None:
    """What a ``response_format`` of chat has of a JSON schema: ``name``, ``schema``, ...; None: it
    has none."""
    inner = (
        form.get("json_schema")
        if isinstance(form, dict) and form.get("type") == "json_schema"
        else None
    )
    return inner if isinstance(inner, dict) else None


def text_of(message: dict[str, Any]) -> str:
    """Returns its text, without the parts that are none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )
