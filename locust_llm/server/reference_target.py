"""Reference target: one server that is asked reference prompts, in the form that it accepts."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from locust_llm.answers.answer_integrity import ModelNames, find_answer_faults
from locust_llm.answers.received_answer import AnswerRequested, EventReader, ReceivedAnswer
from locust_llm.answers.reference_answer import AnswerToken, AnswerToolCall, ReferenceAnswer
from locust_llm.answers.reference_prompts import SCHEMA, TOOL, ReferencePrompt
from locust_llm.answers.token_margins import read_token_margins
from locust_llm.client.chat_answer import REASONING, join_deltas
from locust_llm.client.request_exchange import UserConnection
from locust_llm.client.sse import EventDecoder, EventTooLong
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.error_message import status_message
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.records.outcomes import OK as ANSWERED
from locust_llm.settings.extra_inputs import collect_extra_inputs
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import join_server_url
from locust_llm.text.hide_secrets import Secrets, collect_secrets
from locust_llm.text.sanitise import sanitise_text

from .http_get import FetchedResponse, FetchFailed, fetch
from .preflight_requests import holds_event_stream
from .refused_request_fields import REFUSED, RequestForm

OK: Final = 200
CHOICES_APIS: Final = ("chat", "completions")
TEMPERATURE: Final = "temperature"
LOGPROBS: Final = "logprobs"
OPTIONAL_FIELDS: Final = (LOGPROBS, "seed", TEMPERATURE)
"""The fields that a request can leave out, in the order in which it tries to."""
_MEANINGS: Final = {
    LOGPROBS: "mismatches have no margins, so rounding may look like a fault",
    TEMPERATURE: "answers may differ at random, and the idle mismatch rate shows how often",
    "seed": "answers may differ at random where the server samples",
}
"""What it means that a field is left out."""
_KINDS: Final = {TOOL: " with tools", SCHEMA: " with a JSON schema"}
_NOT_FOR_REFERENCES: Final = frozenset(
    ("n", "best_of", "ignore_eos", "min_tokens", "tools", "tool_choice", "response_format")
)
"""The fields of the load that would change what a reference prompt asks for."""
EMPTY: Final = "empty"
MESSAGE_BYTES: Final = 300


class AskedHow(NamedTuple):
    """How a reference request is sent."""

    asked: str
    """See ReferenceAnswer."""
    streamed: bool
    timeout_s: float
    in_flight: int = 0


class ReferenceTarget:
    """One server: the only one of the run, an arm, or a replica."""

    def __init__(
        self,
        settings: Settings,
        model: str | None,
        form: RequestForm,
        headers: Mapping[str, str],
        own_headers: Mapping[str, str] = MappingProxyType({}),
        *,
        name: str = "",
        body: Mapping[str, Any] = MappingProxyType({}),
        verify: bool | str = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``own_headers`` and ``body``: what its requests have beside the headers and fields of
        every request. ``name`` tells it from the others. ``now``: Unix seconds."""
        self.name = name
        self._without = dict[tuple[str, bool], tuple[str, ...]]()
        """The optional fields that this server refuses, by the kind of the prompt and whether the
        answer is streamed. llama.cpp refuses logprobs with tools in a stream alone."""
        self.notes: list[str] = []
        """What the user must know of refused fields."""
        self._settings, self._model, self._form = settings, model, form
        self._headers, self._own_headers = headers, own_headers
        self._own_fields, self._verify, self._now = body, verify, now
        self._line = UserConnection()
        self._models = ModelNames()

    def ask(self, number: int, prompt: ReferencePrompt, how: AskedHow) -> ReferenceAnswer:
        """Ask one prompt. Where the server refuses an optional field, ask again without it."""
        refusals = list[ReferenceAnswer]()
        known = self._find_known_refusals(prompt.kind, how)
        tried = {known}
        without = known
        answer, status = self._send(number, prompt, how, without)
        while status in REFUSED:
            refusals.append(answer)
            other = self._choose_other_form(known, without, answer.error, tried)
            if other is None:
                return refusals[0]
            without = other
            tried.add(without)
            answer, status = self._send(number, prompt, how, without)
        if refusals and not answer.error:
            self._without[prompt.kind, how.streamed] = without
            messages = [refusal.error for refusal in refusals]
            self._note_refusals([name for name in without if name not in known], prompt, messages)
        return answer

    def close(self) -> None:
        self._line.close()

    @property
    def _secrets(self) -> Secrets:
        """The key may change during a run."""
        headers = {**self._headers, **self._own_headers}
        return collect_secrets(headers, headers)

    def _find_known_refusals(self, kind: str, how: AskedHow) -> tuple[str, ...]:
        """What was refused for such prompts; else for plain ones."""
        plain = self._without.get(("", how.streamed), ())
        return self._without.get((kind, how.streamed), plain)

    def _choose_other_form(
        self,
        known: tuple[str, ...],
        without: tuple[str, ...],
        message: str,
        tried: set[tuple[str, ...]],
    ) -> tuple[str, ...] | None:
        """The fields to leave out next: also the one that the message names; else one alone, at
        last all. ``known``: the fields that were left out first. None: all was tried."""
        own = self._list_optional_fields()
        named = [name for name in own if name in message and name not in without]
        forms = [{*without, name} for name in named]
        forms += [{*known, name} for name in own]
        forms.append({*own})
        for form in forms:
            ordered = tuple(name for name in own if name in form)
            if ordered not in tried:
                return ordered
        return None

    def _list_optional_fields(self) -> tuple[str, ...]:
        has_choices = self._settings.endpoint_type in CHOICES_APIS
        return OPTIONAL_FIELDS if has_choices else (TEMPERATURE,)

    def _note_refusals(
        self, names: Sequence[str], prompt: ReferencePrompt, messages: Sequence[str]
    ) -> None:
        """Note fields that this server was found to refuse. ``messages`` are its refusals."""
        where = f"{self.name}: " if self.name else ""
        whose = _KINDS.get(prompt.kind, "")
        for name in names:
            message = next((text for text in messages if name in text), messages[0])
            note = (
                f"{where}the server refuses {name}{whose} ({message.rstrip('.')}), so reference "
                f"requests leave it out: {_MEANINGS[name]}"
            )
            if note not in self.notes:
                self.notes.append(note)

    def _send(
        self, number: int, prompt: ReferencePrompt, how: AskedHow, without: tuple[str, ...]
    ) -> tuple[ReferenceAnswer, int | None]:
        """(the answer, the HTTP status; None where nothing came)."""
        settings = self._settings
        max_tokens = max(prompt.max_tokens, PROTOCOLS[settings.endpoint_type].least_tokens)
        body = encode_request_body(
            settings.endpoint_type,
            self._model,
            prompt.messages,
            max_tokens,
            streaming=how.streamed,
            **self._form.fields(settings),
            **self._make_fields(prompt, without),
        )
        answer = ReferenceAnswer(
            prompt=number, asked=how.asked, sent_at=self._now(), ended_at=0.0, server=self.name,
            question=prompt.question, streamed=how.streamed, kind=prompt.kind,
            in_flight=how.in_flight, without=without,
        )  # fmt: skip
        try:
            response = fetch(
                "POST",
                join_server_url(settings.host, settings.endpoint),
                {**self._headers, **self._own_headers},
                body,
                line=self._line,
                verify=self._verify and not settings.insecure and self._verify,
                timeout_s=how.timeout_s,
            )
        except FetchFailed as error:
            return self._failed(answer, str(error)), None
        if response.status != OK:
            message = f"HTTP {response.status}: {status_message(response.body)}"
            return self._failed(answer, message), response.status
        return self._read(answer, response, max_tokens), response.status

    def _make_fields(self, prompt: ReferencePrompt, without: tuple[str, ...]) -> dict[str, Any]:
        """The fields of the body beside messages, model and length."""
        settings = self._settings
        load_fields = {**collect_extra_inputs(settings), **self._own_fields}
        fields = {
            name: value for name, value in load_fields.items() if name not in _NOT_FOR_REFERENCES
        }
        optional: dict[str, dict[str, Any]] = {
            LOGPROBS: {"logprobs": True, "top_logprobs": 2}
            if settings.endpoint_type == "chat"
            else {"logprobs": 2},
            "seed": {"seed": 0},
            TEMPERATURE: {TEMPERATURE: 0},
        }
        for name in self._list_optional_fields():
            if name in without:
                fields.pop(name, None)
            else:
                fields |= optional[name]
        return fields | prompt.fields

    def _failed(self, answer: ReferenceAnswer, why: str) -> ReferenceAnswer:
        line = sanitise_text(why, self._secrets, most=MESSAGE_BYTES)
        return msgspec.structs.replace(answer, error=line, ended_at=self._now())

    def _read(
        self, answer: ReferenceAnswer, response: FetchedResponse, max_tokens: int
    ) -> ReferenceAnswer:
        """The answer in a response with status 200."""
        completion = Completion(PROTOCOLS[self._settings.endpoint_type], keep_text=True)
        reader = EventReader()
        tokens = list[AnswerToken]()
        for data in _decode_events(completion, response.body):
            reader.add(data)
            tokens += read_token_margins(data)
        outcome, why = completion.outcome()
        if outcome not in (ANSWERED, EMPTY):  # an empty answer is a finding
            return self._failed(answer, why)
        message = join_deltas(completion.deltas or [])
        text = _join_parts(message.get("content"))
        reasoning = "".join(_join_parts(message.get(name)) for name in REASONING)
        calls = [*_read_calls(message.get("tool_calls") or [])]
        received = ReceivedAnswer(
            text=text,
            reasoning=reasoning,
            tool_arguments=tuple(call.arguments for call in calls),
            finish_reason=completion.finish_reason,
            choices=completion.choices,
            prompt_tokens=completion.input_tokens,
            completion_tokens=completion.output_tokens,
            reasoning_tokens=completion.reasoning_tokens,
            total_tokens=completion.counts.total,
            events=reader,
        )
        requested = AnswerRequested(model=self._model or "", max_tokens=max_tokens)
        hide = self._secrets.hide
        return msgspec.structs.replace(
            answer,
            ended_at=self._now(),
            text=hide(text),
            reasoning=hide(reasoning),
            tool_calls=tuple(AnswerToolCall(call.name, hide(call.arguments)) for call in calls),
            finish_reason=completion.finish_reason or "",
            input_tokens=completion.input_tokens,
            output_tokens=completion.output_tokens,
            cached_tokens=completion.cached_tokens,
            response_ids=tuple(map(hide, reader.ids)),
            model=sanitise_text(reader.models[0] if reader.models else "", self._secrets),
            tokens=tuple(tokens),
            faults=find_answer_faults(received, requested, self._models),
        )


def _decode_events(completion: Completion, body: bytes) -> Iterator[bytes]:
    """Add the events of a stream, or a whole body, to the completion. Gives the data of each."""
    if not holds_event_stream(body):
        completion.whole(body)
        yield body
        return
    try:
        for event in EventDecoder().feed([(0, body)]):
            completion.add(event)
            yield event[2]
    except EventTooLong:  # what came before it counts
        return


def _join_parts(content: Any) -> str:
    """The text of a content: parts of another kind, such as Mistral's lists, as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    return msgspec.json.encode(content).decode()


def _read_calls(calls: list[dict[str, Any]]) -> Iterator[AnswerToolCall]:
    for call in calls:
        function = call.get("function") or {}
        yield AnswerToolCall(str(function.get("name") or ""), str(function.get("arguments") or ""))
