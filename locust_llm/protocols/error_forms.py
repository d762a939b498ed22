"""Error forms: how servers write an error inside an answer: as an object, flat, as a list, in
fields of their own."""

from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

MESSAGES: Final = (
    "message", "error", "errors", "detail", "msg", "status_msg", "error_message", "error_msg",
    "errmsg", "errorMessage",
    "base_resp", "title", "Message", "Error", "fault", "faultstring",
)  # fmt: skip
"""Fields that may hold the text of an error, the likeliest first."""
TEXTS: Final = ("text", "reason", "description")
"""Fields that hold the text where an error is certain: elsewhere they hold much else."""
ERRORS: Final = ("error", "errors", "Error", "fault")
CODES: Final = ("code", "status_code", "statusCode", "error_code", "errorCode", "errcode")
SUCCESS: Final = frozenset({"", "ok", "success", "succeeded", "none", "null", "false", "0"})
"""The values of a code or error field where nothing failed, in lower case."""
EXCEPTION: Final = "Exception"
"""The name of a field that holds an AWS error ends so."""
FAILED: Final = frozenset({"error", "fail", "failed", "failure"})
"""The failures in a field ``status``, which may also hold a state such as ``in_progress``."""
DEPTH: Final = 5
ITEMS: Final = 100


class EmbeddedError(NamedTuple):
    """What looks like an error, without anything that looks like an answer."""

    message: str
    certain: bool
    """False: it is a text alone, which may be harmless. It explains an answer that has no end."""


def is_error(value: Any, depth: int = DEPTH) -> bool:
    """Whether a field named ``error`` means a failure. Null, empty values, a success code and the
    like do not."""
    if isinstance(value, dict):
        if "code" in value and is_success(value["code"]):
            return (read_error_message(value) or "").lower() not in SUCCESS
        value = list(value.values())
    if isinstance(value, list):
        return not depth or any(is_error(item, depth - 1) for item in value)
    if isinstance(value, str):
        return value.strip().lower() not in SUCCESS
    return bool(value)


def is_success(code: Any) -> bool:
    """Whether a code, a number or a word, means success."""
    if isinstance(code, bool):
        return code
    if isinstance(code, str) and code.strip().isdecimal() and len(code) < 10:
        code = int(code)
    if isinstance(code, int | float):
        return code == 0 or 200 <= code < 300
    return code is None or (isinstance(code, str) and code.strip().lower() in SUCCESS)


def find_embedded_error(content: Any) -> EmbeddedError | None:
    """The error in an event or body that holds no part of an answer. None: there is no error."""
    if isinstance(content, list):
        errors = (find_embedded_error(item) for item in content[:ITEMS] if isinstance(item, dict))
        return next((error for error in errors if error is not None), None)
    if not isinstance(content, dict):
        return None
    text = read_error_message(content) or ""
    if _has_failed(content, named=bool(text)):
        return EmbeddedError(text, True)
    codes = [content[name] for name in CODES if content.get(name) is not None]
    if content.get("success") is True or (codes and all(map(is_success, codes))):
        return None
    if not text or text.lower() in SUCCESS:
        return _enveloped(content)
    kinds = f"{content.get('type')} {content.get('__type')}".lower()
    return EmbeddedError(text, bool(codes) or "error" in kinds or "exception" in kinds)


def _enveloped(content: dict[str, Any]) -> EmbeddedError | None:
    """The error in a field that is an object, as clouds write it in their own APIs (Volcengine,
    Tencent, iFlytek, AWS). A code alone is no certain failure there, as it may stand for much."""
    for name, value in content.items():
        if not isinstance(value, dict):
            continue
        text = read_error_message(value) or ""
        if text and (
            name.endswith(EXCEPTION) or any(is_error(value.get(error)) for error in ERRORS)
        ):
            return EmbeddedError(text, True)
        codes = [value[code] for code in CODES if value.get(code) is not None]
        if text and codes and not any(map(is_success, codes)):
            return EmbeddedError(text, False)
    return None


def _has_failed(content: dict[str, Any], *, named: bool) -> bool:
    """Whether a field reports a failure, whatever its code. ``named``: a text names what failed."""
    status = content.get("status")
    failed = isinstance(status, int) and status >= 400
    failed = failed or (isinstance(status, str) and status.lower() in FAILED)
    return (
        any(is_error(content.get(name)) for name in ERRORS)
        or content.get("object") == "error"
        or content.get("success") is False
        or (failed and named)
        or is_failed_base(content.get("base_resp"))
    )


def is_failed_base(base: Any) -> bool:
    """Whether a ``base_resp`` (MiniMax) reports a failure: its code is not 0."""
    return isinstance(base, dict) and not is_success(base.get("status_code"))


def read_error_message(value: Any, depth: int = DEPTH) -> str | None:
    """The text of an error of any shape. None: it has no text that is named as such."""
    if isinstance(value, str):
        return _written_in(value.strip(), depth) or None
    if not depth:
        return None
    if isinstance(value, dict):
        inner = value.get("error") or value.get("Error")
        if isinstance(inner, dict | list) and (text := read_error_message(inner, depth - 1)):
            return text
        messages = (
            read_error_message(value[name], depth - 1) for name in MESSAGES if name in value
        )
        return next((text for text in messages if text), None)
    if isinstance(value, list):
        if any(isinstance(item, dict) and "loc" in item for item in value[:ITEMS]):
            return str(value)  # as FastAPI writes it, the whole of it names the field that is wrong
        messages = (read_error_message(item, depth - 1) for item in value[:ITEMS])
        return next((text for text in messages if text), None)
    return None


def _written_in(text: str, depth: int) -> str:
    """The message in a text that is the JSON of another server's error; else the text as it is."""
    if depth and text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return read_error_message(msgspec.json.decode(text), depth - 1) or text
    return text


def find_error_message(error: Any) -> str | None:
    """The text of a certain error, from more fields. None: it has no text."""
    message = read_error_message(error)
    if message is not None or not isinstance(error, dict):
        return message
    message = next((text for name in TEXTS if (text := read_error_message(error.get(name)))), None)
    if message is None and (inner := _enveloped(error)) is not None:
        message = inner.message
    return message


class ErrorFields(msgspec.Struct, gc=False):
    """The fields in which a failure stands beside an answer, in an event or a whole answer.

    Most servers write ``error``. vLLM until 2025 and LMDeploy write the ``message`` of an
    ``object`` that is an ``error``. MiniMax writes ``base_resp``. Other forms stand alone: see
    ``find_embedded_error``.
    """

    error: Any = None
    object: Any = None
    message: Any = None
    base_resp: Any = None

    @property
    def failed(self) -> bool:
        if self.error and is_error(self.error):
            return True
        return self.object == "error" or (
            self.base_resp is not None and is_failed_base(self.base_resp)
        )
