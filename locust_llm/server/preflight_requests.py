"""Preflight requests: small completions before the load, in the form that the server accepts. The
first one finds that form."""

from collections.abc import Callable
from typing import Any, Final

from locust_llm.client.sse import EventDecoder
from locust_llm.protocols.answer_parser import Completion
from locust_llm.protocols.error_message import status_message
from locust_llm.protocols.protocol import Messages
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_body
from locust_llm.server.http_get import FetchedResponse, FetchFailed
from locust_llm.server.length_control import LENGTH_PROMPT
from locust_llm.settings.extra_inputs import collect_extra_inputs
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import join_server_url

from .refusals import (
    BUSY,
    PROBE_TIMEOUT_S,
    advise_on_error,
    explain_missing_completion,
    explain_refused_request,
    find_answered_protocols,
)
from .refused_request_fields import REFUSED, RequestForm, is_about_form_field, list_other_forms

QUESTION: Final[Messages] = [{"role": "user", "content": LENGTH_PROMPT}]
FIRST_TOKENS: Final = 16
"""The tokens of the first answer. Some servers of reasoning models refuse fewer."""
OK: Final = 200
TOO_LARGE: Final = 413
BEGINNING_TIMEOUT_S: Final = 10.0
"""The time-out of a request that may be refused. A server that accepts it may compute for
longer."""
SERVER_ERROR: Final = 500
MESSAGE_CHARS: Final = 1_000
Ask = Callable[..., FetchedResponse]


class ProbeRequests:
    """Probe requests to one server. ``ask``: see Ask of the discovery. ``key``: one is sent.
    ``tries_types``: other endpoint types may be tried, see answers_itself."""

    def __init__(
        self,
        ask: Ask,
        settings: Settings,
        model: str | None,
        *,
        key: bool,
        tries_types: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._tries_types = tries_types
        self.ask, self.settings, self.model = ask, settings, model
        self.form = RequestForm()
        self.notes: list[str] = []
        """The changes of the form."""
        self._key = key
        self._streams_only = self._answers_whole = False
        self._least_tokens = PROTOCOLS[settings.endpoint_type].least_tokens

    def send(self, messages: Messages, tokens: int | None = None, **fields: Any) -> FetchedResponse:
        """A completion, by default with the fewest tokens that the server accepts: some require
        more than one. Raises FetchFailed."""
        if tokens is not None:
            return self._send(messages, tokens, **fields)
        answer = self._send(messages, self._least_tokens, **fields)
        if answer.status in REFUSED and self._least_tokens < FIRST_TOKENS:
            longer = self._send(messages, FIRST_TOKENS, **fields)
            if longer.status == OK:
                self._least_tokens = FIRST_TOKENS
                return longer
        return answer

    def _send(self, messages: Messages, tokens: int, **fields: Any) -> FetchedResponse:
        """A completion in one piece, in which every server counts the tokens; a stream where the
        server always streams. Raises FetchFailed."""
        if not self._streams_only:
            answer = self._post(self.form, messages, tokens, streaming=False, **fields)
            self._answers_whole = self._answers_whole or answer.status == OK
            if self._answers_whole or not self.settings.streaming or answer.status not in REFUSED:
                return answer
        streamed = self._post(self.form, messages, tokens, streaming=True, **fields)
        if not self._streams_only and _message(self.settings, streamed) is not None:
            return answer
        self._streams_only = True
        return streamed

    def find_form(self) -> str:
        """Send the first request in the load's form. Returns why the server refuses it in every
        form; empty where it accepts one. Raises FetchFailed."""
        settings = self.settings
        first = self._first(RequestForm(), streaming=settings.streaming)
        if first.status >= SERVER_ERROR:  # one failure shows nothing: what if it fails again?
            first = self._first(RequestForm(), streaming=settings.streaming)
        if first.status in BUSY:
            return ""
        message = _message(settings, first)
        if message is None:
            return ""
        if not self._may_be_the_form(first.status, message):
            return self.refusal(first)
        for form in list_other_forms(settings, message):
            if _message(settings, self._first(form, streaming=settings.streaming)) is not None:
                continue
            if form.without and settings.per_chunk_usage:
                return (
                    f"the server refuses stream_options ({message}), which --per-chunk-usage "
                    "needs: leave out --per-chunk-usage"
                )
            self.form = form
            self.notes = [*form.notes(settings, message)]
            return ""
        if (
            PROTOCOLS[settings.endpoint_type].streams
            and _message(settings, self._first(self.form, streaming=not settings.streaming)) is None
        ):
            flag, what = (
                ("--no-streaming", "no stream")
                if settings.streaming
                else ("--streaming", "streams only")
            )
            return f"the server answers with {what} (HTTP {first.status}: {message}): give {flag}"
        return self.refusal(first)

    def refuses_length(self, tokens: int) -> str:
        """Why the server refuses a request for so long an answer, where it accepts the same one for
        a short answer. Empty: it does not, or it is not known.

        Only the begin of the answer is waited for.
        """
        try:
            answer = self._first(
                self.form, streaming=self.settings.streaming, tokens=tokens, begun=True
            )
        except FetchFailed:  # it may have begun to compute
            return ""
        refuses = answer.status in REFUSED or answer.status == TOO_LARGE
        return _message(self.settings, answer) or "" if refuses else ""

    def send_as_load(
        self, messages: Messages, tokens: int, timeout_s: float, **fields: Any
    ) -> bool:
        """Send a request in the load's form. Returns whether the server answered it. Raises
        FetchFailed."""
        asked = {**collect_extra_inputs(self.settings), **fields}
        answer = self._post(
            self.form,
            messages,
            tokens,
            streaming=self.settings.streaming,
            timeout_s=timeout_s,
            **asked,
        )
        return _message(self.settings, answer) is None

    def _first(
        self, form: RequestForm, *, streaming: bool, tokens: int = FIRST_TOKENS, begun: bool = False
    ) -> FetchedResponse:
        own = PROTOCOLS[self.settings.endpoint_type]
        texts = QUESTION * own.least_texts
        tokens = max(own.least_tokens, tokens)
        return self._post(
            form,
            texts,
            tokens,
            streaming=streaming,
            begun=begun,
            **collect_extra_inputs(self.settings),
        )

    def _may_be_the_form(self, status: int, message: str) -> bool:
        """Another form may help: the server names a field, or refuses the request for an unknown
        reason."""
        if is_about_form_field(self.settings, message):
            return status not in (401, 403)
        return status in REFUSED and not advise_on_error(
            status, message, self.settings, key=self._key
        )

    def _post(
        self,
        form: RequestForm,
        messages: Messages,
        tokens: int,
        *,
        streaming: bool,
        begun: bool = False,
        timeout_s: float | None = None,
        **fields: Any,
    ) -> FetchedResponse:
        settings = self.settings
        body = encode_request_body(
            settings.endpoint_type,
            self.model,
            messages,
            tokens,
            streaming=streaming,
            **form.fields(settings),
            **fields,
        )
        timeout_s = (
            timeout_s or self._timeout_s or (BEGINNING_TIMEOUT_S if begun else PROBE_TIMEOUT_S)
        )
        return self.ask(
            "POST",
            settings.endpoint,
            body,
            timeout_s=timeout_s,
            **({"begun": True} if begun else {}),
        )

    # -- what to say -------------------------------------------------------------------------------

    def refusal(self, answer: FetchedResponse) -> str:
        """Why the plainest request was refused. Empty: it was not."""
        message = _message(self.settings, answer)
        if message is None:
            return ""
        others = (
            find_answered_protocols(self.ask, self.settings, self.model)
            if self._tries_types and answer.status in (404, 405)
            else []
        )
        why = explain_refused_request(
            answer.status, message[:MESSAGE_CHARS], self.settings, key=self._key
        )
        return why + (f". It accepts --endpoint-type {', '.join(others)}" if others else "")

    def unanswered(self, error: FetchFailed) -> str:
        """Why a request was not answered."""
        return (
            f"the first request to {join_server_url(self.settings.host, self.settings.endpoint)} "
            f"failed: {error}"
        )


def decode_completion(settings: Settings, answer: FetchedResponse) -> Completion:
    """The completion in a response. It is empty where there is none."""
    completion = Completion(PROTOCOLS[settings.endpoint_type])
    if not holds_event_stream(answer.body):
        completion.whole(answer.body)
        return completion
    try:
        for event in EventDecoder().feed([(0, answer.body)]):
            completion.add(event)
    except ValueError:  # an event without end: what came before it counts
        pass
    return completion


def holds_event_stream(body: bytes) -> bool:
    return body.lstrip(b"\xef\xbb\xbf\r\n").startswith(
        (b"data:", b"event:", b":", b"id:", b"retry:")
    )


def _message(settings: Settings, answer: FetchedResponse) -> str | None:
    """The server's message, where it has refused or failed. None: it has answered."""
    if answer.status != OK:
        return status_message(answer.body)
    if holds_event_stream(answer.body):
        return decode_completion(settings, answer).error
    return explain_missing_completion(answer.body) or None
