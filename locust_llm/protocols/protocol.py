"""Protocol: how requests of one API are written and how its answers are read. Each protocol fills
this interface."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

from .answer_parser import Completion

Messages = list[dict[str, Any]]
"""The messages of a conversation, in the form of chat completions. ``Answer.message`` is one,
too."""
NO_PARAMETERS: Final = {"type": "object", "properties": {}}
"""The parameters of a function that names none."""


M = TypeVar("M")


class Protocol(ABC, Generic[M]):
    """A protocol has no state: one object serves all requests of a run."""

    path: ClassVar[str]
    """The path of requests, unless ``--endpoint`` names another."""
    length_fields: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """The body's fields that limit the output in tokens. The first is used, unless
    ``--max-tokens-field`` names another."""
    stream_fields: ClassVar[dict[str, Any]] = {"stream": True}
    """The fields that ask for a stream."""
    count_fields: ClassVar[dict[str, Any]] = {}
    """The fields that ask for a token count with each event of a stream. Empty: there are none."""
    least_texts: ClassVar[int] = 1
    """The fewest messages of a request: rerank takes a query and a document."""
    least_tokens: ClassVar[int] = 1
    """The fewest output tokens that a request may ask for."""
    takes: ClassVar[tuple[str, ...]] = ()
    """What a message may hold beside text: image, audio."""
    streams: ClassVar[bool] = True
    """False: answers are always whole and have no output tokens."""

    operation: ClassVar[str] = ""
    """OpenTelemetry's name for it (``gen_ai.operation.name``). Empty: the protocol's own name."""
    provider: ClassVar[str] = "openai"
    """The owner of the API (``gen_ai.provider.name``)."""

    decode: Callable[[bytes], M]
    """Decodes the JSON of an event into what ``event`` takes. A decoder of msgspec is the fastest.
    Raises ValueError."""

    @abstractmethod
    def prompt(self, messages: Messages) -> dict[str, Any]:
        """The fields of the body that carry the conversation."""

    def fields(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Further fields of the body. ``asked`` has them as in chat completions; fields in this
        protocol's own form stay as they are."""
        return asked

    @abstractmethod
    def event(self, answer: Completion, message: M, data: bytes) -> bool:
        """Read one event of a stream into the answer. True: it is a chunk, as it brought output.

        It is called when there is time, perhaps long after the bytes were stamped. ``[DONE]``,
        empty events and events of type ``error`` do not come here. What ``decode`` cannot read
        makes an answer malformed.
        """

    def form(self, data: bytes) -> tuple[bytes, bytes]:
        """(bytes before, bytes behind) the text of an event that is a chunk for its text alone. The
        same bytes around another text are another such chunk.

        Empty: it is no such chunk, or this cannot be found cheaply.
        """
        return b"", b""

    def whole(self, answer: Completion, body: bytes) -> None:
        """Read an answer that came as one JSON body. By default it is read as an event is."""
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
        """The body of a request.

        ``max_tokens_field``: one of ``length_fields``; another one is ignored. ``per_chunk_usage``:
        ask for a token count with each event.
        """
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
        """A record's fields for the requested size, without its input tokens."""
        return {"asked_output_tokens": output_tokens}

    def headers(self, key: str) -> dict[str, str]:
        """The headers of every request. ``key`` is the API key; empty for none."""
        return {"Authorization": f"Bearer {key}"} if key else {}


def read_tool_function(tool: Any) -> dict[str, Any] | None:
    """The function of one of chat's ``tools``, flat or not. None: it is no function."""
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
    """The name of the function in chat's ``tool_choice``. None: it names none."""
    function = (
        choice.get("function", choice)
        if isinstance(choice, dict) and choice.get("type") == "function"
        else None
    )
    return function.get("name") if isinstance(function, dict) else None


def read_response_schema(form: Any) -> dict[str, Any] | None:
    """The JSON schema in chat's ``response_format``, with ``name``, ``schema`` and so on. None: it
    has none."""
    inner = (
        form.get("json_schema")
        if isinstance(form, dict) and form.get("type") == "json_schema"
        else None
    )
    return inner if isinstance(inner, dict) else None


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, without its other parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )
