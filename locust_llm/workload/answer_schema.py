"""Answer schema: the form that a request wants for its answer (``response_format``, tools, ...),
and whether an answer has it.

The package jsonschema (extra ``schema``) checks answers. No schema is ever fetched: with a ``$ref``
to another address, the result is unknown.
"""

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import import_module
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.files.regular_file import describe_syntax_error
from locust_llm.files.user_file import read_small_text
from locust_llm.text.numbers import truncate_quoted_text

MISSING: Final = "the package jsonschema is missing: pip install 'locust-llm[schema]'"
MAX_CHARS: Final = 1 << 20
"""The most characters of a text that is checked."""
MAX_OBJECTS: Final = 10_000
"""The most objects in the schemas of a request. Each takes half a millisecond to check."""
OBJECT: Final = {"type": "object"}
"""The schema of JSON mode, which has none of its own."""

Schema = Mapping[str, Any] | bool


class SchemaError(ValueError):
    """A text that is no schema. It has one sentence, and the field of the request's body that holds
    it."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(what)
        self.field = field


class ResponseSchema(NamedTuple):
    text: Schema | None
    """The schema of the text, which must be JSON. None: any text will do."""
    arguments: Mapping[str, Schema]
    """The schemas of tool calls, by the name of the tool."""
    must_call: bool


# -- what is wanted --------------------------------------------------------------------------------


def find_response_schema(body: Mapping[str, Any]) -> ResponseSchema | None:
    """The schema in the fields of a request's body. None: there is nothing to check."""
    text = next((schema for _, schema in _of_text(body)), None)
    choice, name = _choice(body.get("tool_choice"))
    arguments = (
        {}
        if choice == "none"
        else {name: schema for _, name, schema in _of_tools(body.get("tools"))}
    )
    if name in arguments:
        arguments = {name: arguments[name]}
    if text is None and not arguments:
        return None
    return ResponseSchema(text, arguments, bool(arguments) and choice not in (None, "none", "auto"))


def _choice(choice: Any) -> tuple[Any, str]:
    """(kind of a ``tool_choice`` of any protocol, name of the requested tool)."""
    if not isinstance(choice, dict):
        return choice, ""
    kind = "allowed_tools" if choice.get("type") == "allowed_tools" else "function"
    inner = choice.get(kind, choice)
    if not isinstance(inner, dict):
        return None, ""
    return inner.get("mode") if kind == "allowed_tools" else choice.get("type"), str(
        inner.get("name") or ""
    )


def check_response_schema(body: Mapping[str, Any]) -> None:
    """Raises SchemaError for an invalid schema. Without jsonschema only the shapes are checked."""
    objects = 0
    schemas = [(field, "", schema) for field, schema in _of_text(body)]
    tools = _of_tools(body.get("tools"), strict=True)
    for field, where, schema in chain(
        schemas, (("tools", f"{tool}: ", its) for tool, _, its in tools)
    ):
        if not isinstance(schema, dict | bool):
            raise SchemaError(field, f"{where}has no schema: it must be an object")
        packed = msgspec.json.encode(schema)
        objects += packed.count(b"{")
        if objects > MAX_OBJECTS:
            raise SchemaError(field, f"{where}its schemas have more than {MAX_OBJECTS:,} objects")
        if has_jsonschema() and (wrong := _mistake(packed)):
            raise SchemaError(field, f"{where}is not a valid schema: {wrong}")


def _of_text(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(field, schema) as OpenAI, its Responses, Anthropic, vLLM, SGLang and llama.cpp have them."""
    text = body.get("text")
    config = body.get("output_config")
    for field, form in (("response_format", body.get("response_format")),
                        ("text", text.get("format") if isinstance(text, dict) else None),
                        ("output_config", config.get("format") if isinstance(config,
                            dict) else None)):  # fmt: skip
        kind = form.get("type") if isinstance(form, dict) else None
        if isinstance(form, dict) and kind == "json_schema":
            inner = form.get("json_schema")
            yield field, _decoded((inner if isinstance(inner, dict) else form).get("schema"))
        elif isinstance(form, dict) and kind == "json_object":
            yield field, form.get("schema", OBJECT)
    outputs = body.get("structured_outputs")
    for field, schema in (
        ("structured_outputs", outputs.get("json") if isinstance(outputs, dict) else None),
        ("guided_json", body.get("guided_json")),
        ("json_schema", body.get("json_schema")),
    ):
        if schema is not None:
            yield field, _decoded(schema)


def _of_tools(tools: Any, *, strict: bool = False) -> Iterator[tuple[str, str, Any]]:
    """(where, name of the tool, schema of its arguments). With ``strict`` a tool that is no
    function is refused, else it is left out."""
    if tools is not None and not isinstance(tools, list) and strict:
        raise SchemaError("tools", "must be a list")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        where = f"[{number}]"
        if strict and not isinstance(tool, dict):
            raise SchemaError("tools", f"{where} must be an object")
        if not isinstance(tool, dict) or tool.get("type", "function") not in ("function", "custom"):
            continue  # a tool of the server's own
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name:
            yield (
                f"{where} ({truncate_quoted_text(name)})",
                name,
                function.get("parameters", function.get("input_schema", OBJECT)),
            )
        elif strict:
            raise SchemaError("tools", f"{where} has no function with a name")


def _decoded(schema: Any) -> Any:
    """Some servers take the schema as a text."""
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema)
    except (ValueError, RecursionError):
        return schema


def read_tools_file(path: str) -> list[dict[str, Any]]:
    """Reads a ``--tools`` file. Raises ValueError of one sentence."""
    try:
        tools_read: Any = msgspec.json.decode(read_small_text(path))
    except OSError as error:
        raise ValueError(f"--tools {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"--tools {path}: is not valid JSON: {describe_syntax_error(error)}"
        ) from None
    if not isinstance(tools_read, list) or not tools_read:
        raise ValueError(
            f'--tools {path}: must be a JSON list of tools, as in [{{"type": "function", '
            f'"function": ...}}]'
        )
    try:
        check_response_schema({"tools": tools_read})
    except SchemaError as error:
        raise ValueError(f"--tools {path}: {error}") from None
    return tools_read


# -- schemas ---------------------------------------------------------------------------------------


@cache
def has_jsonschema() -> bool:
    try:
        import_module("jsonschema")
    except ImportError:
        return False
    return True


@lru_cache(1024)
def _mistake(schema: bytes) -> str:
    """Why it is no schema. Empty: it is one."""
    jsonschema = import_module("jsonschema")
    try:
        _validator(schema).check_schema(msgspec.json.decode(schema))
    except jsonschema.exceptions.SchemaError as error:
        return f"{truncate_quoted_text(error.message, 200)} (at {error.json_path})"
    except (
        Exception
    ) as error:  # a pattern of another kind of regular expression, a schema without end
        return truncate_quoted_text(describe_syntax_error(error), 200)
    return ""


@lru_cache(1024)
def _validator(schema: bytes) -> Any:
    jsonschema = import_module("jsonschema")
    schema_read = msgspec.json.decode(schema)
    kind = jsonschema.validators.validator_for(schema_read, default=jsonschema.Draft202012Validator)
    return kind(schema_read, registry=import_module("referencing").Registry())


# -- whether an answer is it -----------------------------------------------------------------------


def matches_response_schema(what: ResponseSchema, message: Mapping[str, Any]) -> bool | None:
    """Whether an assistant's whole message fits: its calls, if it has any, else its text.

    None: there was nothing to check, or nobody can know (no jsonschema, a text longer than
    MAX_CHARS, a schema elsewhere).
    """
    calls = message.get("tool_calls")
    if calls and what.arguments:
        fits = {_call_fits(what.arguments, call.get("function") or {}) for call in calls}
        if False in fits:
            return False
        return None if None in fits else True
    if what.must_call:
        return False
    content = message.get("content")
    if what.text is None:
        return None
    return _fits(what.text, content if isinstance(content, str) else "")


def _call_fits(arguments: Mapping[str, Schema], function: Mapping[str, Any]) -> bool | None:
    schema = arguments.get(str(function.get("name")))
    return False if schema is None else _fits(schema, function.get("arguments") or "{}")


def _fits(schema: Schema, text: str) -> bool | None:
    if len(text) > MAX_CHARS:
        return None
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    if schema == OBJECT:
        return isinstance(value, dict)
    if not has_jsonschema():
        return None
    try:
        return bool(_validator(msgspec.json.encode(schema)).is_valid(value))
    except Exception:  # of a schema that is none, or is elsewhere, anything can come
        return None
