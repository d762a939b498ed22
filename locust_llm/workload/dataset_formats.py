"""Dataset formats: one row of a JSON dataset, and the turns that it asks for.

- multi_turn: ``turns`` (rows as of single_turn, or plain texts as MT-bench has them),
  ``session_id``. AIPerf 0.13,
  loader/models.py. Ours: ``id``, ``after`` and ``tool`` of a turn make it a tree
  (docs/how-to/sessions.md).
- sharegpt: ``conversations`` or ``conversation``, of ``from``/``value`` or ``role``/``content``;
  ``system``, ``tools``.
  ShareGPT_V3_unfiltered_cleaned_split.json; LLaMA-Factory's with tools, whose ``from`` is also
  ``function_call`` and
  ``observation``.
- mooncake_trace: ``timestamp``, ``input_length``, ``output_length``, ``hash_ids``; or
  ``text_input``, ``messages``,
  ``payload`` instead of a length. kvcache-ai/Mooncake, FAST25-release/traces; AIPerf 0.13 for the
  rest.
- openai: ``messages``; or ``prompt`` and ``output_tokens``, vLLM's custom dataset (0.32); or the
  ``body`` of a batch file.
- single_turn: ``text`` or ``texts``, ``timestamp``, ``delay``, ``output_length``, ``session_id``,
  ``extra``. AIPerf 0.13.

A row with a text, or a turn, may name pictures and sounds: ``image``, ``images``, ``audio``,
``audios`` (images_and_audio.py).

The names that AIPerf has are AIPerf's (``--custom-dataset-type``). Lengths are tokens, times
milliseconds (or ISO 8601).
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from locust_llm.text.numbers import SECONDS, TOKENS, format_quoted_value, parse_finite_number

from . import session_trees
from .images_and_audio import MediaError, list_media_refs
from .synthetic_prompts import BLOCK_TOKENS

JSON_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "multi_turn": ("turns",),
    "sharegpt": ("conversations", "conversation"),
    "mooncake_trace": ("payload", "messages", "text_input", "input_length"),
    "openai": ("body", "messages", "prompt"),
    "single_turn": ("text", "texts"),
}
"""The fields with the content of a row, by kind. The first one that it has counts."""
_OPTIONS: Final = (
    "model tools tool_choice parallel_tool_calls functions function_call response_format "
    "temperature top_p top_k min_p n "
    "guided_json structured_outputs "
    "frequency_penalty presence_penalty repetition_penalty logit_bias logprobs top_logprobs stop "
    "stop_token_ids seed user "
    "min_tokens ignore_eos reasoning_effort chat_template_kwargs continue_final_message "
    "add_generation_prompt"
)
"""The fields of a row that belong to a request. Other fields go there through ``extra``."""
_CONTENT_FIELDS: Final = {"messages", "prompt", "text", "texts", "text_input"}
_NOT_BODY: Final = {
    "messages",
    "prompt",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
}
_LONG: Final = b"0" * 19
_DIGITS_TO_ZERO: Final = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
"""A table for ``bytes.translate``. With it, a search for long numbers is twenty times faster than a
regular expression."""
SMALL_BLOCK_TOKENS: Final = 64
"""Prompts of so few tokens a block, or fewer, belong to a trace with smaller blocks."""
MAX_UNIX_S: Final = 1e11
"""The year 5138."""
_ROLES: Final = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
    "system": "system",
    "function_call": "assistant",
    "observation": "tool",
}
_CALL: Final = "function_call"
_TOOL_OPTIONS: Final = ("tools", "tool_choice", "parallel_tool_calls")
"""The fields of a row with turns that belong to each request. ShareGPT's ``model`` is the one that
recorded the answers."""


class DatasetError(ValueError):
    """The dataset cannot be used. The text is one sentence with file, line and column, as far as
    there are any."""


class RowError(ValueError):
    """A row that cannot be used, with the place in it: a field's name, or a byte's position. For a
    session of several rows it has the line too."""

    def __init__(
        self, what: str, *, field: str = "", byte: int | None = None, line: int | None = None
    ) -> None:
        super().__init__(what)
        self.field, self.byte, self.line = field, byte, line


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session."""

    messages: list[dict[str, Any]] | None = None
    """The messages to add to the conversation, in order. None: a synthetic prompt of
    ``input_tokens``."""
    whole: bool = False
    """The messages (or the input tokens) are the whole conversation: earlier ones are not sent
    again."""
    input_tokens: int | None = None
    """The file's length of a synthetic prompt, or a text's tokens as counted elsewhere."""
    output_tokens: int | None = None
    """The requested output. None: the run's own."""
    reference: str = ""
    """The answer in the file. It is never sent; its length may be the output length."""
    recorded: dict[str, Any] | None = None
    """The message that the history goes on with instead of the server's answer. Empty: none."""
    at_s: float | None = None
    """The trace's own time in seconds: Unix time, or since its own start."""
    delay_s: float | None = None
    """The seconds after the last answer to the turns that it waits for."""
    tool: bool = False
    """A tool waits, not a user."""
    after: tuple[int, ...] | None = None
    """The turns of its session that it waits for, by number, each below its own. The history of the
    first one goes on. None: the turn before it. Empty: it begins with the session."""
    hash_ids: tuple[int, ...] = ()
    """The ids of its prefix blocks. Equal ids share a block (Mooncake; arXiv 2407.00079, section
    4)."""
    block_tokens: int = BLOCK_TOKENS
    """The tokens of each block."""
    prefix: tuple[int, int] | None = None
    """For a synthetic prompt: the number of its shared prefix, and how many tokens of it, with the
    chat template's head."""
    body: dict[str, Any] = {}
    """Further fields of the request's body: model, tools, temperature."""
    media: tuple[tuple[str, str], ...] = ()
    """(field, its text) of each image and audio: a path, a URL or a data URL. They are apart from
    ``messages``, which are sent as they are: nothing that is named there is read."""
    row: int
    """The line in the file."""


class DatasetSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session: turns that follow each other."""

    id: str
    turns: tuple[Turn, ...]
    row: int
    tenant: str = ""
    """The tenant in its first row. Empty: the file names none."""


Count = Annotated[int, msgspec.Meta(ge=1, le=TOKENS)]
Ms = Annotated[float, msgspec.Meta(ge=0)]
Wait = Annotated[float, msgspec.Meta(ge=0, le=SECONDS * 1000)]
Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Row(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    text: str | None = None
    texts: list[str] | None = None
    text_input: str | None = None
    input_length: Count | None = None
    output_length: Count | None = None
    output_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    timestamp: Ms | str | None = None
    delay: Wait | None = None
    tool: Wait | None = None
    hash_ids: tuple[Id, ...] | None = None
    role: str | None = None
    extra: dict[str, Any] | None = None
    message_mode: Literal["history", "delta"] | None = None


class _SessionName(msgspec.Struct):
    session_id: Any = None


_decode = msgspec.json.Decoder().decode
_decode_named = msgspec.json.Decoder(_SessionName).decode


def read_row_session(row: bytes) -> str:
    """The session that a row of a JSON kind names, or "". Raises RowError."""
    try:
        return read_row_id(_decode_named(row).session_id)
    except (ValueError, RecursionError) as wrong:
        raise locate_row_error(wrong, row) from None


def recognise_row(row: bytes) -> str:
    """The kind of a row, by its fields. Raises RowError if it is unknown."""
    fields = decode_row(row)
    for kind, keys in JSON_KINDS.items():
        # Mooncake's rows may have them too
        own = [key for key in keys if key != "messages" or kind == "openai"]
        if any(fields.get(key) is not None for key in own):
            return kind
    looked = "; ".join(f"{kind}: {', '.join(keys)}" for kind, keys in JSON_KINDS.items())
    raise RowError(
        f"not a known format (looked for {looked}); for an access log, name its columns with "
        f"--dataset-columns"
    )


def parse_json_row(kind: str, row: bytes, line: int) -> tuple[str, list[Turn]]:
    """(the name of its session or "", its turns) of a row of a JSON kind. Raises RowError.

    There are no turns where nothing can be sent, as in a ShareGPT conversation without a human.
    """
    fields = decode_row(row)
    name = next(
        filter(None, (read_row_id(fields.get(key)) for key in ("session_id", "custom_id", "id"))),
        "",
    )
    key = next((key for key in JSON_KINDS[kind] if fields.get(key) is not None), None)
    if key is None:
        raise RowError(f"a row of {kind} needs {_either(JSON_KINDS[kind])}, but this row has none")
    if kind == "sharegpt":
        turns = _with_tools(
            _with_system(_conversation(fields[key], key, line), fields.get("system")), fields
        )
        return name, [
            msgspec.structs.replace(turn, media=_media(fields)) for turn in turns[:1]
        ] + turns[1:]
    if kind == "multi_turn":
        return name, _with_tools(
            _with_system(_turns(fields[key], line), fields.get("system")), fields
        )
    turn = parse_request_row(fields, key, line, whole=key not in ("text_input", "input_length"))
    return name, [turn] if key in ("body", "payload") else _with_system(
        [turn], fields.get("system")
    )


def _with_system(turns: list[Turn], system: Any) -> list[Turn]:
    """The turns with the row's system prompt before each turn that begins a conversation, unless it
    has one."""
    if system in (None, ""):
        return turns
    if not isinstance(system, str):
        raise RowError(f"system must be text: {format_quoted_value(system)}", field="system")
    with_system = []
    for number, turn in enumerate(turns):
        begins = (
            turn.messages
            and (number == 0 or turn.after == ())
            and turn.messages[0].get("role") != "system"
        )
        messages = [{"role": "system", "content": system}, *(turn.messages or ())]
        with_system.append(msgspec.structs.replace(turn, messages=messages) if begins else turn)
    return with_system


def _with_tools(turns: list[Turn], fields: Mapping[str, Any]) -> list[Turn]:
    """The turns with the tools of the row, where a turn has none of its own."""
    body = {
        name: value for name, value in select_body_fields(fields).items() if name in _TOOL_OPTIONS
    }
    return [msgspec.structs.replace(turn, body=body | turn.body) for turn in turns]


def _turns(turns: Any, line: int) -> list[Turn]:
    if not isinstance(turns, list) or not turns:
        raise RowError("turns must be a list with at least one turn", field="turns")
    made = list[Turn]()
    ids = list[Any]()
    afters = list[Any]()
    for place, turn in enumerate(turns):
        fields: Any = {"text": turn} if isinstance(turn, str) else turn
        keys = ("messages", "text", "texts", "prompt", "text_input", "content", "input_length")
        key = next(
            (key for key in keys if isinstance(fields, dict) and fields.get(key) is not None), None
        )
        if key is None:
            raise RowError(f"turns[{place}] needs {_either(keys)}", field="turns")
        if key == "content":
            return _conversation(turns, "turns", line)
        if "forks" in fields or "spawns" in fields:
            raise RowError(
                f"turns[{place}] has branches: use --custom-dataset-type dag_jsonl",
                field="turns",
            )
        made.append(parse_request_row(fields, key, line, whole=False))
        ids.append(fields.get("id"))
        afters.append(fields.get("after"))
    return (
        made
        if not any(after is not None for after in (*ids, *afters))
        else order_turns_of_tree(made, ids, afters)
    )


def order_turns_of_tree(turns: list[Turn], ids: list[Any], afters: list[Any]) -> list[Turn]:
    """The turns of one row in an order in which none waits for a later one. Raises RowError."""
    try:
        names = [
            session_trees.read_turn_id(id, number, f"turns[{number}].id")
            for number, id in enumerate(ids)
        ]
        before = [
            session_trees.read_awaited_ids(after, number, f"turns[{number}].after")
            for number, after in enumerate(afters)
        ]
        order = session_trees.link_turns(
            names, before, [turn.at_s for turn in turns], "turns[{}]".format
        )
    except session_trees.TreeError as wrong:
        raise RowError(str(wrong), field="turns") from None
    return [msgspec.structs.replace(turns[place], after=after) for place, after in order]


def parse_request_row(fields: dict[str, Any], key: str, line: int, *, whole: bool) -> Turn:
    """A turn of a row of the JSON kinds. ``key`` is the field with what is sent."""
    request = fields[key] if key in ("body", "payload") else None
    if request is None:
        body = select_body_fields(fields)
    elif isinstance(request, dict):
        body = {name: value for name, value in request.items() if name not in _NOT_BODY}
        fields = {**fields, "messages": None, "prompt": None, **request}
        key = "messages" if fields["messages"] is not None else "prompt"
    else:
        raise RowError(f"{key} must be an object", field=key)
    for video in ("video", "videos"):
        if fields.get(video) and key != "messages":
            raise RowError(
                f"{video} is not supported here: use messages, whose content may have parts",
                field=video,
            )
    used = {
        name: value
        for name, value in fields.items()
        if name not in _CONTENT_FIELDS or name in (key, "input_length")
    }
    try:
        row = msgspec.convert(used, _Row)
    except msgspec.ValidationError as wrong:
        raise locate_row_error(wrong, b"") from None
    if row.delay is not None and row.tool is not None:
        raise RowError(
            "delay and tool exclude each other: a wait belongs to the user or to a tool",
            field="tool",
        )
    wait_ms = row.delay if row.tool is None else row.tool
    body |= row.extra or {}
    if row.input_length is not None and len(row.hash_ids or ()) >= 2:
        _check_blocks(row.input_length, len(row.hash_ids or ()))
    messages, reference = _messages(row, key, body)
    return Turn(
        messages=messages,
        whole=whole and row.message_mode != "delta",
        input_tokens=row.input_length,
        output_tokens=row.output_length
        or row.output_tokens
        or row.max_completion_tokens
        or row.max_tokens,
        reference=reference,
        at_s=parse_time_s(row.timestamp, "timestamp", unit_s=1e-3)
        if row.timestamp is not None
        else None,
        delay_s=None if wait_ms is None else wait_ms / 1e3,
        tool=row.tool is not None,
        hash_ids=row.hash_ids or (),
        body=body,
        media=_media(fields),
        row=line,
    )


def _check_blocks(input_tokens: int, blocks: int) -> None:
    """Blocks have 512 tokens. Many more of them than the prompt has room for have another size."""
    if input_tokens <= SMALL_BLOCK_TOKENS * blocks and blocks > -(-input_tokens // BLOCK_TOKENS):
        raise RowError(
            f"{blocks} hash_ids for {input_tokens} tokens: a block has {BLOCK_TOKENS} tokens here; "
            f"--custom-dataset-type "
            "bailian_trace reads blocks of 16, and times in seconds",
            field="hash_ids",
        )


def select_body_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that belong to a request. Raises RowError."""
    body = {name: fields[name] for name in _OPTIONS.split() if fields.get(name) is not None}
    if "tools" in body:
        body["tools"] = _tools(body["tools"])
        if not body["tools"]:  # servers refuse the others without them
            return {name: value for name, value in body.items() if name not in _TOOL_OPTIONS}
    return body


def _tools(tools: Any) -> list[Any]:
    """Tools as requests have them. Files also have them as a text, and the functions alone. Raises
    RowError."""
    if isinstance(tools, str):
        tools = _decoded(tools, "tools") if tools.strip() else []
    if not isinstance(tools, list):
        raise RowError(f"tools must be a list: {format_quoted_value(tools)}", field="tools")
    return [
        {"type": "function", "function": tool}
        if isinstance(tool, dict) and "name" in tool and "type" not in tool
        else tool
        for tool in tools
    ]


def _decoded(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise RowError(f"{field} is not JSON: {format_quoted_value(text)}", field=field) from None


def _calls(text: Any, field: str) -> dict[str, Any]:
    """The message of an answer that calls functions. Its JSON has one call, or a list. Raises
    RowError."""
    calls_read = _decoded(text, field) if isinstance(text, str) else text
    calls = []
    for number, call in enumerate(calls_read if isinstance(calls_read, list) else [calls_read]):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise RowError(
                f"{field} does not name the function that it calls: {format_quoted_value(text)}",
                field=field.partition("[")[0],
            )
        arguments = call.get("arguments", {})
        written = (
            arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        )
        calls.append(
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call["name"], "arguments": written},
            }
        )
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _media(fields: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    try:
        return list_media_refs(fields)
    except MediaError as wrong:
        raise RowError(str(wrong), field=wrong.field) from None


def _messages(
    row: _Row, key: str, body: Mapping[str, Any]
) -> tuple[list[dict[str, Any]] | None, str]:
    """(messages, reference). A last message that is an answer is the reference, so it is not
    sent."""
    if key == "input_length":
        return None, ""
    if key != "messages":
        text = row.texts[0] if key == "texts" and row.texts else getattr(row, key)
        if not isinstance(text, str):
            raise RowError(f"a request needs text, but {key} has none", field=key)
        return [{"role": row.role or "user", "content": text}], ""
    messages = list(row.messages or ())
    for number, message in enumerate(messages):
        role = message.get("role")
        content = message.get("content")
        if not isinstance(role, str):
            raise RowError(f"messages[{number}] has no role", field="messages")
        if not isinstance(content, str | list) and (content is not None or role != "assistant"):
            raise RowError(
                f"messages[{number}] needs content that is text or a list of parts",
                field="messages",
            )
    reference = ""
    if messages and messages[-1]["role"] == "assistant" and not body.get("continue_final_message"):
        content = messages.pop().get("content")
        reference = content if isinstance(content, str) else ""
    if not messages:
        raise RowError("messages contains no message to answer", field="messages")
    return messages, reference


def _conversation(messages: Any, key: str, line: int) -> list[Turn]:
    """A turn for each time the human speaks. A conversation that was cut may begin with an answer,
    which is left out."""
    if not isinstance(messages, list):
        raise RowError(f"{key} must be a list", field=key)
    turns: list[Turn] = []
    spoken: list[dict[str, Any]] = []
    asked = False
    calls: list[str] = []  # of the answer before, without a result so far
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RowError(f"{key}[{number}] must be an object", field=key)
        role = message.get("from", message.get("role"))
        content = message.get("value", message.get("content"))
        known = _ROLES.get(role) if isinstance(role, str) else None
        if known is None:
            raise RowError(
                f"{key}[{number}] is from {role!r}, which is neither human, gpt, system, "
                f"function_call nor observation",
                field=key,
            )
        if not isinstance(content, str | list):
            raise RowError(f"{key}[{number}] has no text", field=key)
        if known == "assistant" and asked:
            called = _calls(content, f"{key}[{number}]") if role == _CALL else None
            reference = content if isinstance(content, str) else ""
            turns.append(Turn(messages=spoken, reference=reference, recorded=called, row=line))
            spoken, asked = [], False
            calls = [call["id"] for call in called["tool_calls"]] if called else []
        elif known == "tool":
            if not calls:
                raise RowError(
                    f"{key}[{number}] is an observation without a function_call before it",
                    field=key,
                )
            more = any(
                isinstance(next_message, dict) and next_message.get("from") == role
                for next_message in messages[number + 1 : number + 2]
            )
            results, calls = (
                (calls[:1], calls[1:]) if more else (calls, [])
            )  # the last one is that of all that are left
            spoken += [
                {"role": "tool", "tool_call_id": call, "content": content} for call in results
            ]
            asked = True
        elif known != "assistant" and content:
            spoken.append({"role": known, "content": content})
            asked = asked or known == "user"
    return [*turns, Turn(messages=spoken, row=line)] if asked else turns


def decode_row(row: bytes) -> dict[str, Any]:
    """The JSON object of a row. Raises RowError."""
    try:
        fields = _decode(row)
    except (ValueError, RecursionError) as wrong:
        raise locate_row_error(wrong, row) from None
    if not isinstance(fields, dict):
        raise RowError("a JSON object is needed")
    long = row.translate(_DIGITS_TO_ZERO).find(_LONG)
    if long >= 0:
        try:
            msgspec.msgpack.encode(fields)  # as it goes to the workers
        except OverflowError:
            raise RowError("a whole number beyond 64 bits", byte=long) from None
    return fields


def parse_time_s(value: Any, name: str, *, unit_s: float) -> float:
    """Seconds from a number of ``unit_s``, or from an ISO 8601 text (UTC where it names no zone).
    Raises RowError."""
    if value in (None, ""):
        raise RowError(f"{name} is missing", field=name)
    count = parse_finite_number(value)
    if count is not None:
        seconds = count * unit_s
    else:
        try:
            moment = datetime.fromisoformat(value)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (TypeError, ValueError, OverflowError):
            raise RowError(
                f"{name} is not a time: {format_quoted_value(value)}", field=name
            ) from None
    if seconds < 0:
        raise RowError(f"{name} is negative: {format_quoted_value(value)}", field=name)
    if seconds > MAX_UNIX_S:
        raise RowError(f"{name} is out of range: {format_quoted_value(value)}", field=name)
    return seconds


def read_row_id(value: Any) -> str:
    """The name of a session or a request. JSON has them as numbers too."""
    return (
        str(value)
        if isinstance(value, str | int) and (isinstance(value, str) or abs(value) < 2**128)
        else ""
    )


def _either(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def locate_row_error(wrong: Exception, row: bytes) -> RowError:
    """msgspec's error with its position: a byte of the row, a path, or nothing (then it is the
    end)."""
    if isinstance(wrong, RecursionError):
        return RowError("nested too deeply")
    if isinstance(wrong, UnicodeDecodeError):
        return RowError("not UTF-8", byte=find_invalid_utf8(row))
    what, _, at = str(wrong).partition(" - at `$")
    if isinstance(wrong, msgspec.ValidationError):
        path = at.rstrip("`").lstrip(".")
        reason = what.replace(" | null", "").replace("`", "")
        return RowError(
            f"{path or 'the row'}: {reason[0].lower()}{reason[1:]}",
            field=path.partition("[")[0].partition(".")[0],
        )
    what, _, after = what.removeprefix("JSON is malformed: ").rstrip(")").partition(" (byte ")
    byte = int(after) if after else len(row)
    # of these it gives the next
    return RowError(f"broken JSON: {what}", byte=byte - (what == "trailing characters"))


def find_field_byte(row: bytes, field: str) -> int:
    """The byte of a field's name in a row; 0 if it is not there."""
    return max(0, row.find(b'"%s"' % field.encode("utf-8", "replace")))


def find_invalid_utf8(data: bytes) -> int | None:
    """The first byte that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return wrong.start
    return None
