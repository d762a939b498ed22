"""Kept responses: with ``--responses-state server`` a turn goes on from the last answer by its id,
and sends only what is new."""

import logging
from typing import Any, Final

from locust_llm.client.response_chunks import Response
from locust_llm.protocols.protocol import Messages
from locust_llm.protocols.responses_protocol import RESPONSE_ID, split_at_stored_response
from locust_llm.records.outcomes import OK
from locust_llm.records.record import Record
from locust_llm.settings.run_options import Settings

from .worker_context import WorkerContext

logger = logging.getLogger("locust_llm")

LOST: Final = (400, 404)
"""The HTTP status where the server has no such answer: OpenAI, vLLM."""
WHOLE: Final = "so the next turn sends the whole conversation (--responses-state server)"
_reported: Final[set[tuple[int, str]]] = set()
"""The texts that were logged in each run."""


class KeptResponses:
    """Keeps the response from which the next turn of one user may go on."""

    def __init__(self) -> None:
        self._from: str | None = None
        """The id in the request that is under way."""
        self._lost: str | None = None
        self.id: str | None = None
        """The id of the last answer. None: it failed, or has none."""
        self._calls = False
        """The last answer calls a tool."""

    def asked(self, messages: Messages, settings: Settings) -> tuple[Messages, dict[str, Any]]:
        """(messages to send, fields beside them)."""
        if settings.responses_state != "server":
            return messages, {}
        self._from, news = split_at_stored_response(messages, self._lost)
        return news, {} if self._from is None else {"previous_response_id": self._from}

    def ended(self, record: Record, stream: Response | None, sender: WorkerContext) -> None:
        """Note the end of a request. ``stream`` is its answer, if there is one."""
        if sender.settings.responses_state != "server":
            return
        self.id = stream.answer.response_id if record.outcome == OK and stream is not None else None
        self._calls = stream is not None and bool(stream.answer.calls)
        if record.outcome == OK and self.id is None:
            _say(sender.epoch, f"a response has no id, {WHOLE}")
        if record.failed and record.status in LOST and self._from is not None:
            self._lost = self._from
            _say(
                sender.epoch,
                f"the server no longer has the response {self._from}, {WHOLE}: {record.error}",
            )

    def mark(self, sender: WorkerContext) -> dict[str, str]:
        """The field of the last answer's message for the next turn.

        It is empty after a tool call, as servers refuse to go on without the tool's result.
        """
        if self.id is None or not self._calls:
            return mark_response_id(self.id)
        _say(sender.epoch, f"a response calls a tool without a result in any later turn, {WHOLE}")
        return {}


def mark_response_id(id_: str | None) -> dict[str, str]:
    """The field of an assistant's message from which the next turn goes on."""
    return {RESPONSE_ID: id_} if id_ else {}


def _say(epoch: int, text: str) -> None:
    kind = epoch, text.partition(",")[0][:30]
    if kind not in _reported:
        _reported.add(kind)
        logger.warning(text)
