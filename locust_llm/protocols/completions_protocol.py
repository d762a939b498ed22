"""Completions protocol (OpenAI, "Completions"): plain completions, with a prompt without roles and
choices that hold their text themselves."""

from typing import Any

import msgspec

from .chat_protocol import ChoicesProtocol, CompletionChunk
from .first_token import TextChoice
from .protocol import Messages, text_of


class CompletionsProtocol(ChoicesProtocol):
    path = "/v1/completions"
    operation = "text_completion"
    decode = staticmethod(msgspec.json.Decoder(CompletionChunk[TextChoice]).decode)

    def prompt(self, messages: Messages) -> dict[str, Any]:
        """The contents with blank lines between them."""
        return {"prompt": "\n\n".join(map(text_of, messages))}

    tokenized = prompt
