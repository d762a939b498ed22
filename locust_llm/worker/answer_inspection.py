"""Answer inspection: what the checks of ``--check-answers`` find in each answer, once it is over.

It runs at the end of an answer, on the text that came, and so delays no stamp. The evidence of a
wrong answer goes to the controller.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.fault_names import FOREIGN_MARKER
from locust_llm.answers.received_answer import AnswerRequested, ReceivedAnswer
from locust_llm.answers.session_markers import MarkerKey
from locust_llm.client.chat_answer import REASONING, join_deltas
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.first_token import DEPTH, TEXTS, Delta, TextChoice
from locust_llm.records.answer_checks import MAX_ID_HASH, AnswerChecks
from locust_llm.records.answer_fault import AnswerFault
from locust_llm.records.record import Record
from locust_llm.text.hide_secrets import NO_SECRETS, Secrets
from locust_llm.text.sanitise import sanitise_text
from locust_llm.wire.worker_messages import AnswerFaultFound

from .recent_requests import RecentRequest, RecentRequests, hide_in_body
from .request_to_send import OutgoingTurn

OTHER_REASONING: Final = ("thinking", "thinking_blocks", "reasoning_text", "reasoning_details")
"""Fields of reasoning that no message of a next turn has."""
MAX_REPORTED: Final = 20
"""A process reports the evidence of so many wrong answers. The records have the others too."""
MAX_TEXT_BYTES: Final = 1 << 16
"""The most bytes of a text in a record."""


class InspectedRequest(NamedTuple):
    """What the checks of an answer need of its request."""

    id: str
    turn: OutgoingTurn
    body: Sequence[bytes]
    """Its JSON, in pieces."""
    max_tokens: int | None


class AnswerInspector:
    """Checks the answers of one process in one run."""

    def __init__(
        self,
        markers: MarkerKey,
        report: Callable[[AnswerFaultFound], object] = lambda found: None,
        *,
        keep_text: bool = False,
    ) -> None:
        """``report`` gets the evidence of the first MAX_REPORTED wrong answers. ``keep_text``: the
        record has the text of each answer."""
        self._markers, self._report, self._keep_text = markers, report, keep_text
        self._models = defaultdict[tuple[str, str], ModelNames](ModelNames)
        """By arm and replica: each may have a name of its own for the same model."""
        self._recent = RecentRequests()
        self._reported = 0

    def begin(self, asked: InspectedRequest, session: str, due_unix_s: float) -> None:
        """A request is about to be sent."""
        self._recent.begin(
            RecentRequest(asked.id, session, asked.turn.marker, asked.body, due_unix_s)
        )

    def forget(self, asked: InspectedRequest) -> None:
        """The sender has no more to do with this request."""
        self._recent.forget(asked.id)

    def inspect(
        self,
        record: Record,
        asked: InspectedRequest,
        answer: Completion | None,
        find_secrets: Callable[[], Secrets] = lambda: NO_SECRETS,
    ) -> Record:
        """The record with what was found. ``answer``: what came; None where nothing was sent, or
        another attempt followed. ``find_secrets``: what no evidence may hold."""
        self._recent.end(record)
        turn = asked.turn
        if answer is None or answer.deltas is None:
            return replace(record, answer=AnswerChecks(marker=turn.marker, asked=turn.asked))
        received = read_received_answer(answer)
        text = join_texts(received)
        checks = self._check(record, asked, received, text)
        if self._keep_text:
            kept = sanitise_text(text, find_secrets(), most=MAX_TEXT_BYTES, lines=True)
            checks = replace(checks, text=kept)
        if (checks.foreign or checks.faults) and self._reported < MAX_REPORTED:
            self._reported += 1
            fault = self._collect_evidence(record, asked, checks, text, find_secrets())
            self._report(AnswerFaultFound(msgspec.json.encode(fault)))
        return replace(record, answer=checks)

    def _check(
        self, record: Record, asked: InspectedRequest, received: ReceivedAnswer, text: str
    ) -> AnswerChecks:
        turn, events = asked.turn, received.events
        found = self._markers.find(text)
        names = self._models[record.arm, record.backend]
        requested = AnswerRequested(model=record.model, max_tokens=asked.max_tokens)
        return AnswerChecks(
            marker=turn.marker,
            asked=turn.asked,
            repeated=turn.marker in found,
            foreign=self._select_foreign(found, asked),
            faults=find_answer_faults(received, requested, names),
            id_hash=None if events is None or not events.ids else hash_id(events.ids[0]),
            searched=True,
        )

    def _select_foreign(self, found: list[int], asked: InspectedRequest) -> tuple[int, ...]:
        """The markers that are not in the request either. A locustfile may send the answer to one
        session in the prompt of another."""
        foreign = [number for number in found if number != asked.turn.marker]
        if not foreign:
            return ()
        sent = self._markers.find(b"".join(asked.body).decode("utf-8", "replace"))
        return tuple([number for number in foreign if number not in sent])

    def _collect_evidence(
        self,
        record: Record,
        asked: InspectedRequest,
        checks: AnswerChecks,
        text: str,
        secrets: Secrets,
    ) -> AnswerFault:
        leak = (FOREIGN_MARKER,) if checks.foreign else ()
        return AnswerFault(
            id=record.id,
            session=record.session,
            turn=record.turn,
            worker=record.worker,
            faults=leak + checks.faults,
            markers=checks.foreign,
            own_marker=checks.marker,
            sent_at=record.sent_unix_s,
            ended_at=record.closed_unix_s,
            outcome=record.outcome,
            text=sanitise_text(text, secrets, lines=True),
            body=hide_in_body(asked.body, secrets),
            beside=self._recent.list_beside(record, checks.foreign, secrets),
        )


def read_received_answer(answer: Completion) -> ReceivedAnswer:
    """What came of an answer whose deltas were kept."""
    deltas = answer.deltas or ()
    texts = _read_choice(deltas)
    counts = answer.counts
    several = answer.other_deltas if answer.choices > 1 else None
    return ReceivedAnswer(
        text=texts.text,
        reasoning=texts.reasoning,
        tool_arguments=texts.tool_arguments,
        finish_reason=answer.finish_reason,
        choices=answer.choices,
        other_texts=tuple([_read_choice(other).whole for other in (several or {}).values()]),
        prompt_tokens=counts.input,
        completion_tokens=counts.output,
        reasoning_tokens=counts.reasoning,
        total_tokens=counts.total,
        chunk_texts=tuple([d.content for d in deltas if isinstance(d.content, str) and d.content]),
        tokens_so_far=tuple(answer.counted_by),
        events=answer.events,
    )


class _ChoiceTexts(NamedTuple):
    """All texts of one choice."""

    text: str
    reasoning: str
    tool_arguments: tuple[str, ...]

    @property
    def whole(self) -> str:
        """All of them, one below the other."""
        return _join_lines((self.text, self.reasoning, *self.tool_arguments))


def _read_choice(deltas: Sequence[Delta | TextChoice]) -> _ChoiceTexts:
    message = join_deltas(deltas)
    text = _read_text(message.get("content")) + _read_text(message.get("refusal"))
    return _ChoiceTexts(text, _join_reasoning(message, deltas), tuple(_list_arguments(message)))


def join_texts(received: ReceivedAnswer) -> str:
    """All texts of an answer, one below the other."""
    first = (received.text, received.reasoning, *received.tool_arguments)
    return _join_lines((*first, *received.other_texts))


def _join_lines(texts: Iterable[str]) -> str:
    return "\n".join([text for text in texts if text])


def hash_id(response_id: str) -> int:
    digest = blake2b(response_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") & MAX_ID_HASH


def _join_reasoning(message: dict[str, Any], deltas: Sequence[Delta | TextChoice]) -> str:
    texts = [_read_text(message.get(field)) for field in REASONING]
    for field in OTHER_REASONING:
        parts = [getattr(delta, field, None) for delta in deltas]
        texts.append("".join([_read_text(part) for part in parts if part is not None]))
    return "\n".join([text for text in texts if text])


def _list_arguments(message: dict[str, Any]) -> list[str]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if "function_call" in message:
        calls.append(message["function_call"])
    return [call["arguments"] for call in calls]


def _read_text(content: Any, depth: int = DEPTH) -> str:
    """The text of a content, which may consist of parts, in one another."""
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else []
    if isinstance(content, dict):
        parts = [content.get(field) for field in TEXTS]
    return "".join([_read_text(part, depth - 1) for part in parts]) if depth else ""
