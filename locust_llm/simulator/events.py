"""The bytes of an answer: the JSON bodies and the events of a stream."""

from __future__ import annotations

import time
from typing import Any

from locust_llm.simulator.api import NAME, dump
from locust_llm.simulator.quirks import Quirks

DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def chat_completion(
    answer_id: str, model: str, content: str, reasoning: str | None, finish_reason: str, used: dict[str, Any]
) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "refusal": None, "reasoning": reasoning},
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": None,
    }
    return {**_head(answer_id, "chat.completion", model), "choices": [choice], "usage": used}


def completion(
    answer_id: str, model: str, content: str, reasoning: str | None, finish_reason: str, used: dict[str, Any]
) -> dict[str, Any]:
    """The same of a plain completion, which has no place for reasoning of its own."""
    text = " ".join(filter(None, (reasoning, content)))
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    return {**_head(answer_id, "text_completion", model), "choices": [choice], "usage": used}


class Chunks:
    """The events of one streamed answer, as the quirks have them. Each may carry usage. Those of a plain completion
    (``chat`` false) have text where the others have a delta, and no role."""

    __slots__ = ("_content", "_finish", "_opening", "_reasoning", "_text_end", "finish_reason", "quirks")

    def __init__(self, answer_id: str, model: str, quirks: Quirks, finish_reason: str, *, chat: bool = True) -> None:
        self.quirks, self.finish_reason = quirks, finish_reason.encode()
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._opening = b"data: " + dump(_head(answer_id, kind, model))[:-1] + b',"choices":['
        reasoning = quirks.reasoning_field.encode()
        self._content = self._opening + (b'{"index":0,"delta":{"content":"' if chat else b'{"index":0,"text":"')
        self._reasoning = self._opening + b'{"index":0,"delta":{"%b":"' % reasoning if chat else self._content
        self._text_end = b'"},"logprobs":null,"finish_reason":' if chat else b'","logprobs":null,"finish_reason":'
        self._finish = b'"delta":{}' if chat else b'"text":""'

    def role(self, used: dict[str, Any] | None = None) -> bytes:
        delta = _ROLES[self.quirks.role_content]
        return self._opening + b'{"index":0,"delta":%b,"logprobs":null,"finish_reason":null}]' % delta + _end(used)

    def text(self, text: bytes, used: dict[str, Any] | None = None, *, reasoning: bool, last: bool) -> bytes:
        """``text`` must need no escape in JSON. ``last``: it carries the finish_reason."""
        reason = b'"%b","stop_reason":null' % self.finish_reason if last else b"null"
        return b'%b%b%b%b,"token_ids":null}]%b' % (
            self._reasoning if reasoning else self._content, text, self._text_end, reason,
            _end(used) if used else b"}\n\n",
        )  # fmt: skip

    def finish(self, used: dict[str, Any] | None = None) -> bytes:
        """The finish_reason alone."""
        return self._opening + b'{"index":0,%b,"finish_reason":"%b"}]' % (self._finish, self.finish_reason) + _end(used)

    def usage(self, used: dict[str, Any]) -> bytes:
        choices = b'{"index":0,"delta":{}}]' if self.quirks.usage == "choices" else b"]"
        return self._opening + choices + _end(used)

    def error(self, message: str) -> bytes:
        form = {"message": message, "type": "InternalServerError", "param": None, "code": 500}
        return b"data: " + dump({"error": form if self.quirks.error_form == "object" else message}) + b"\n\n"


_ROLES = {
    "empty": b'{"role":"assistant","content":""}',
    "null": b'{"role":"assistant","content":null}',
    "absent": b'{"role":"assistant"}',
}


def _end(used: dict[str, Any] | None) -> bytes:
    return b',"usage":' + dump(used) + b"}\n\n" if used else b"}\n\n"


def _head(answer_id: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": int(time.time()), "model": model, "system_fingerprint": NAME}
