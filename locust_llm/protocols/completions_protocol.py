"""Completions protocol (OpenAI, "Completions"): plain completions, with a prompt without roles and
choices that hold their text themselves."""

from typing import Any

import msgspec

from .answer_parser import TextChoice
from .chat_protocol import ChoicesProtocol, CompletionChunk
from .protocol import Messages, text_of


class CompletionsProtocol(ChoicesProtocol):
    path = "/v1/completions"
    operation = "text_completion"
    decode = staticmethod(msgspec.json.Decoder(CompletionChunk[TextChoice]).decode)

    def prompt(self, messages: Messages) -> dict[str, Any]:
        """The contents with blank lines between them."""
        return {"prompt": "\n\n".join(map(text_of, messages))}

    tokenized = prompt
