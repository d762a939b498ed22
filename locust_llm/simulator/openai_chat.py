"""OpenAI chat and completions: parses requests like vLLM, refuses invalid ones, and writes the
answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from . import simulated_tokenizer
from .simulated_faults import Quirks
from .simulated_text import (
    MAX_TOP_LOGPROBS,
    NO_WISH,
    SampledToken,
    TextWish,
    chat_logprobs,
    plain_logprobs,
    read_text_wish,
)

NAME = "locust-llm-simulator"  # in every answer: nobody shall take these figures for a GPU's
SAMPLING = ("temperature", "top_p")
DEFAULT_MAX_TOKENS = 128
DEFAULT_PLAIN_MAX_TOKENS = 16  # vLLM's, for /v1/completions

Messages = list[tuple[str, str]]


class RefusedError(Exception):
    """Describes a request that vLLM would refuse, with its status and error object."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(status, message, kind, param)


def error_body(status: int, message: str, kind: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Describes a request for an answer, in any form."""

    form: Form
    pieces: list[str]  # of the prompt, one a token
    max_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    priority: int = 0
    sampling: tuple[tuple[str, float], ...] = ()  # which changes nothing here but a span
    tool: str = ""  # name of the function that the answer calls; empty: it is text
    wish: TextWish = NO_WISH  # for a text of its own
    # takes id and text of the answer, for requests that go on from it
    keep: Callable[[str, str], None] | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.pieces)


class WrittenText(NamedTuple):
    """Holds the fields that depend on the form."""

    pieces: list[str]  # of the prompt, one a token
    length_field: str  # which limits the output
    tool: str = ""
    keep: Callable[[str, str], None] | None = None
    messages: Sequence[tuple[str, str]] = ()  # empty: a prompt of token ids


class StreamEvents(Protocol):
    """Writes the events of one streamed answer with the quirks: see Chunks."""

    done: bytes  # behind all of them, also behind an error

    def call(self) -> bytes: ...

    def role(self, used: dict[str, Any] | None = None) -> bytes: ...

    def text(
        self, text: bytes, used: dict[str, Any] | None = None, *, reasoning: bool, last: bool
    ) -> bytes: ...

    def end(
        self, used: dict[str, Any], with_finish: dict[str, Any] | None, *, include_usage: bool
    ) -> list[bytes]: ...

    def error(self, message: str) -> bytes: ...

    def rename(self, answer_id: str) -> bool:
        """Gives the later events another id. Returns whether they have one."""
        ...


class UnstreamedAnswer(NamedTuple):
    """Holds an answer that is not streamed."""

    id: str
    model: str
    content: str
    reasoning: str | None
    finish_reason: str
    used: dict[str, Any]
    tool: str
    arguments: str  # of the tool's call, as JSON
    logprobs: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Form:
    """Describes one of the APIs that the server has."""

    prefix: str  # of the answers' ids
    parse: Callable[[dict[str, Any]], WrittenText]  # raises RefusedError
    # id, model, quirks, finish_reason
    events: Callable[[str, str, Quirks, str, AnswerRequest], StreamEvents]
    whole: Callable[[UnstreamedAnswer], dict[str, Any]]
    max_tokens: int = DEFAULT_MAX_TOKENS
    opens: bool = True  # its stream begins with an event without text
    # of some tokens, behind a text of so many characters; None: it has no logprobs
    logprobs: Callable[[Sequence[SampledToken], int], dict[str, Any]] | None = None


def parse_asked(body: bytes, names: Sequence[str], max_model_len: int, form: Form) -> AnswerRequest:
    """Parses a request. ``names`` are the names of the model. Raises RefusedError."""
    asked = parse_object(body)
    check_model(asked, names)
    pieces, name, tool, keep, messages = form.parse(asked)
    stream = read_field(asked, "stream", bool) or False
    options = read_field(asked, "stream_options", dict) or {}
    if options and not stream:
        raise RefusedError(
            400, "Stream options can only be defined when `stream=True`.", param="stream_options"
        )
    if asked.get("n") not in (None, 1):
        raise RefusedError(400, "the simulator answers with one choice: n must be 1", param="n")

    max_tokens = read_field(asked, name, int)
    if max_tokens is not None and max_tokens < 1:
        raise RefusedError(
            400,
            f"{name} must be at least 1, got {max_tokens}. {_name_parameter(name, max_tokens)}",
            param=name,
        )
    if max_tokens is not None and max_tokens > max_model_len:
        most = f"{name}={max_tokens} cannot be greater than max_model_len={max_model_len}"
        raise RefusedError(
            400, f"{most}. Please request fewer output tokens. {_name_parameter(name, max_tokens)}",
            param=name
        )  # fmt: skip
    prompt_tokens = len(pieces)
    room = max_model_len - prompt_tokens
    if room < (max_tokens or 1):
        excess = "which exceeds this limit even without any output tokens"
        if max_tokens and room >= 0:
            excess = f"which leaves no room for the {max_tokens} output tokens requested"
        raise RefusedError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains at least "
            f"{prompt_tokens} input tokens, {excess}. Please reduce the length of the input "
            f"prompt. " + _name_parameter("input_tokens", prompt_tokens),
            param="input_tokens",
        )
    return AnswerRequest(
        form=form, pieces=pieces, max_tokens=max_tokens or min(form.max_tokens, room), tool=tool,
        keep=keep,
        ignore_eos=asked.get("ignore_eos") is True, stream=stream,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        priority=read_field(asked, "priority", int) or 0,
        sampling=_read_sampling(asked),
        wish=read_text_wish(
            asked, messages, pieces, _read_top_logprobs(asked, form), has_tool=bool(tool)
        ),
    )  # fmt: skip


def _read_top_logprobs(asked: dict[str, Any], form: Form) -> int | None:
    """Returns how many likely tokens are asked for with each token, or None without logprobs."""
    count = asked.get("logprobs")
    if form.logprobs is None or count is None or count is False:
        return None
    if count is True:
        count = read_field(asked, "top_logprobs", int) or 0
    if type(count) is not int or not 0 <= count <= MAX_TOP_LOGPROBS:
        raise RefusedError(
            400,
            f"Requested sample logprobs of {count}, which is greater than max allowed: "
            f"{MAX_TOP_LOGPROBS}",
            param="logprobs",
        )
    return count


def _read_sampling(asked: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    values = {key: asked.get(key, 1) for key in SAMPLING}
    return tuple(
        (key, float(value)) for key, value in values.items() if type(value) in (int, float)
    )


def encode_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _name_parameter(name: str, value: object) -> str:
    return f"(parameter={name}, value={value})"


def invalid_request_error(loc: str, why: str) -> RefusedError:
    message = f"1 validation error:\n  {{'loc': '{loc}', 'msg': '{why}'}}"
    return RefusedError(400, message, kind="Bad Request", param=loc)


def parse_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    # ValueError: not JSON, not UTF-8, an integer of 5,000 digits
    except (ValueError, RecursionError) as error:
        raise invalid_request_error("body", f"JSON decode error: {error}") from error
    if not isinstance(value, dict):
        raise invalid_request_error("body", "Input should be a valid dictionary")
    return value


def check_model(asked: dict[str, Any], names: Sequence[str]) -> None:
    name = asked.get("model")
    if name is not None and name not in names:
        message = f"The model `{name}` does not exist. Valid aliases: {', '.join(names)}."
        raise RefusedError(404, message, kind="NotFoundError", param="model")


def read_field(asked: dict[str, Any], name: str, kind: type[Any]) -> Any:
    """Returns the field's value, or None if absent or null. The type must be exact: true is no
    integer."""
    value = asked.get(name)
    if value is not None and type(value) is not kind:
        raise invalid_request_error(f"body.{name}", f"Input should be a valid {kind.__name__}")
    return value


def _parse_chat(asked: dict[str, Any]) -> WrittenText:
    messages = parse_messages(asked)
    tool = tool_called(asked, messages[-1][0] == "tool", "function")
    pieces = simulated_tokenizer.chat_pieces(messages)
    return WrittenText(pieces, _length_field(asked), tool, messages=messages)


def _parse_completion(asked: dict[str, Any]) -> WrittenText:
    prompt = asked.get("prompt")
    messages = [("user", prompt)] if isinstance(prompt, str) else []
    return WrittenText(_parse_prompt(asked), _length_field(asked), messages=messages)


def _length_field(asked: dict[str, Any]) -> str:
    return "max_tokens" if asked.get("max_completion_tokens") is None else "max_completion_tokens"


def _parse_prompt(asked: dict[str, Any]) -> list[str]:
    """Parses a text, or token ids."""
    prompt = asked.get("prompt")
    if isinstance(prompt, str):
        return simulated_tokenizer.prompt_pieces(prompt)
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return [str(token) for token in prompt]
    if prompt is None:
        raise invalid_request_error("body.prompt", "Field required")
    raise invalid_request_error(
        "body.prompt", "Input should be a valid string or list of token ids: one prompt"
    )


def parse_messages(asked: dict[str, Any]) -> Messages:
    messages = read_field(asked, "messages", list)
    if not messages:
        raise invalid_request_error("body.messages", "Field required")
    return [
        _parse_message(message, f"body.messages.{index}") for index, message in enumerate(messages)
    ]


def tool_called(asked: dict[str, Any], answered: bool, inner: str = "") -> str:
    """Returns the tool that the request names, else its first one. An answer to a tool's result
    calls none. ``inner`` is the field with the name, if tools and choices do not have it
    themselves."""
    choice = asked.get("tool_choice")
    names = [_name(tool, inner) for tool in read_field(asked, "tools", list) or ()]
    if "" in names:
        raise invalid_request_error(
            ".".join(filter(None, (f"body.tools.{names.index('')}", inner, "name"))),
            "Field required",
        )
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if not names or answered or kind == "none":
        return ""
    named = _name(choice, inner)
    if named and named not in names:
        raise invalid_request_error("body.tool_choice", f"there is no tool {named}")
    return named or names[0]


def _name(tool: Any, inner: str) -> str:
    tool_name = tool.get(inner) if inner and isinstance(tool, dict) else tool
    name = tool_name.get("name") if isinstance(tool_name, dict) else None
    return name if isinstance(name, str) else ""


def format_tool_arguments(arguments: Any) -> str:
    """Formats the arguments of a call equally in each form."""
    try:
        return encode_json(json.loads(arguments)).decode()
    except (TypeError, ValueError, RecursionError):
        return str(arguments)


def read_content(message: dict[str, Any], loc: str) -> str:
    """Returns the text of a message, whose content is a text or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        content = "\n".join(map(simulated_tokenizer.part_text, content))
    if not isinstance(content, str):
        raise invalid_request_error(
            f"{loc}.content", "Input should be a valid string or list of parts"
        )
    return content


def _parse_message(message: Any, loc: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid_request_error(loc, "Input should have a role")
    content = read_content(message, loc)
    functions = [
        call.get("function") or {}
        for call in message.get("tool_calls") or ()
        if isinstance(call, dict)
    ]
    arguments = (format_tool_arguments(function.get("arguments")) for function in functions)
    return message["role"], "\n".join(filter(None, (content, *arguments)))


# -- the bytes of an answer ------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"
CALL_END = b'\\"}'  # of the arguments, within a JSON text
PING = b":\n\n"


def token_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0
) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def chat_completion(ended: UnstreamedAnswer) -> dict[str, Any]:
    """Builds the body of an answer that is not streamed."""
    answer_id, model, content, reasoning, finish_reason, used, tool, arguments, logprobs = ended
    message = {"role": "assistant", "content": content, "refusal": None, "reasoning": reasoning}
    if tool:
        call = _call(answer_id, tool, arguments)
        message |= {"content": None, "tool_calls": [call]}  # type: ignore[dict-item]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": None,
    }
    return {**_make_head(answer_id, "chat.completion", model), "choices": [choice], "usage": used}


ARGUMENT = "text"  # of each function that is called


def _call(answer_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call-{answer_id}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def plain_completion(ended: UnstreamedAnswer) -> dict[str, Any]:
    """Builds the body of a plain completion, which has no field for reasoning."""
    answer_id, model, content, reasoning, finish_reason, used, _, _, logprobs = ended
    text = " ".join(filter(None, (reasoning, content)))
    choice = {
        "index": 0,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": None,
    }
    return {**_make_head(answer_id, "text_completion", model), "choices": [choice], "usage": used}


class Chunks:
    """Writes the events of one streamed answer with the quirks. Each may carry usage. Events of a
    plain completion (``chat`` false) have a text instead of a delta, and no role. Texts of a call
    of ``tool`` are its arguments, between ``call`` and CALL_END."""

    __slots__ = (
        "_call", "_content", "_finish", "_opening", "_reasoning", "_reasoning_end", "_text_end",
        "answer_id", "done", "finish_reason", "logprobs", "quirks",
    )  # fmt: skip

    def __init__(
        self,
        answer_id: str,
        model: str,
        quirks: Quirks,
        finish_reason: str,
        *,
        chat: bool = True,
        tool: str = "",
    ) -> None:
        self.answer_id = answer_id
        self.quirks = quirks
        self.finish_reason = finish_reason.encode()
        self.logprobs = b""  # of the next text, as JSON
        self.done = DONE if quirks.done else b""
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._opening = (
            b"data: " + encode_json(_make_head(answer_id, kind, model))[:-1] + b',"choices":['
        )
        reasoning = quirks.reasoning_field.encode()
        self._content = self._opening + (
            b'{"index":0,"delta":{"content":"' if chat else b'{"index":0,"text":"'
        )
        self._reasoning = (
            self._opening + b'{"index":0,"delta":{"%b":"' % reasoning if chat else self._content
        )
        self._text_end = (
            b'"},"logprobs":null,"finish_reason":'
            if chat
            else b'","logprobs":null,"finish_reason":'
        )
        self._reasoning_end = self._text_end
        self._finish = b'"delta":{}' if chat else b'"text":""'
        self._call = b""
        if tool:
            call = {"index": 0, **_call(answer_id, tool, f'{{"{ARGUMENT}": "')}
            choice = {
                "index": 0,
                "delta": {"tool_calls": [call]},
                "logprobs": None,
                "finish_reason": None,
            }
            self._call = self._opening + encode_json(choice) + b"]}\n\n"
            self._content = (
                self._opening
                + b'{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"'
            )
            self._text_end = b'"}}]},"logprobs":null,"finish_reason":'

    def call(self) -> bytes:
        """Returns the begin of the call with its id and name, or nothing for a text answer."""
        return self._call

    def role(self, used: dict[str, Any] | None = None) -> bytes:
        delta = _ROLES[self.quirks.role_content]
        return (
            self._opening
            + b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":null}]' % delta
            + _encode_end(used)
        )

    def text(
        self, text: bytes, used: dict[str, Any] | None = None, *, reasoning: bool, last: bool
    ) -> bytes:
        """Writes a chunk. ``text`` must need no escape in JSON. ``last``: the chunk carries the
        finish_reason."""
        reason = b'"%b","stop_reason":null' % self.finish_reason if last else b"null"
        text_end = self._reasoning_end if reasoning else self._text_end
        if self.logprobs:
            text_end = text_end.replace(b"null", self.logprobs, 1)
        return b'%b%b%b%b,"token_ids":null}]%b' % (
            self._reasoning if reasoning else self._content, text, text_end, reason,
            _encode_end(used) if used else b"}\n\n",
        )  # fmt: skip

    def rename(self, answer_id: str) -> bool:
        old = self.answer_id.encode()
        new = answer_id.encode()
        self._opening = self._opening.replace(old, new, 1)
        self._content = self._content.replace(old, new, 1)
        self._reasoning = self._reasoning.replace(old, new, 1)
        self.answer_id = answer_id
        return True

    def end(
        self, used: dict[str, Any], with_finish: dict[str, Any] | None, *, include_usage: bool
    ) -> list[bytes]:
        """Writes the events after the last text. ``with_finish`` is the usage in the event of the
        finish_reason."""
        quirks = self.quirks
        chunks = [self.finish(with_finish)] if quirks.finish == "own" else []
        if self._says_usage(include_usage):
            chunks.append(self.usage(used))
        return chunks

    def has_end(self, include_usage: bool) -> bool:
        return self.quirks.finish == "own" or self._says_usage(include_usage)

    def _says_usage(self, include_usage: bool) -> bool:
        return self.quirks.usage == "always" or (
            self.quirks.usage in ("asked", "choices") and include_usage
        )

    def finish(self, used: dict[str, Any] | None = None) -> bytes:
        """Writes the finish_reason alone."""
        return (
            self._opening
            + b'{"index":0,%b,"finish_reason":"%b"}]' % (self._finish, self.finish_reason)
            + _encode_end(used)
        )

    def usage(self, used: dict[str, Any]) -> bytes:
        choices = b'{"index":0,"delta":{}}]' if self.quirks.usage == "choices" else b"]"
        return self._opening + choices + _encode_end(used)

    def error(self, message: str) -> bytes:
        error: object = message
        if self.quirks.error_form == "object":
            error = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return b"data: " + encode_json({"error": error}) + b"\n\n"


_ROLES = {
    "empty": b'{"role":"assistant","content":""}',
    "null": b'{"role":"assistant","content":null}',
    "absent": b'{"role":"assistant"}',
}


def _encode_end(used: dict[str, Any] | None) -> bytes:
    return b',"usage":' + encode_json(used) + b"}\n\n" if used else b"}\n\n"


def _make_head(answer_id: str, kind: str, model: str) -> dict[str, Any]:
    return {
        "id": answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": NAME,
    }


CHAT = Form(
    "chatcmpl", _parse_chat,
    lambda answer_id, model, quirks, reason,
    asked: Chunks(answer_id, model, quirks, reason, tool=asked.tool),
    chat_completion,
    logprobs=lambda tokens, _: chat_logprobs(tokens),
)  # fmt: skip
COMPLETIONS = Form(
    "cmpl", _parse_completion,
    lambda answer_id, model, quirks, reason,
    asked: Chunks(answer_id, model, quirks, reason, chat=False),
    plain_completion, DEFAULT_PLAIN_MAX_TOKENS, opens=False, logprobs=plain_logprobs,
)  # fmt: skip
