"""LLMUser: a Locust user whose requests are streamed answers of a model; the class to extend."""

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from locust import HttpUser
from locust.env import Environment
from locust.exception import StopUser

import gevent
import msgspec
import requests
from gevent import GreenletExit
from msgspec.structs import replace

from locust_llm.client.answer import Answer, answer_tokens, answered, joined
from locust_llm.client.api import length_fields
from locust_llm.client.bounds import chunk_limit
from locust_llm.client.exchange import UserConnection, exchange
from locust_llm.client.gate import GateClosed
from locust_llm.client.request import Request
from locust_llm.client.requests_bridge import PlainRequests, head, keep_home, strip_abroad, target, update_session
from locust_llm.client.response import Response
from locust_llm.client.retry import RETRIABLE, pause_s
from locust_llm.core.foreign_text import secrets_of, shown
from locust_llm.core.phases import label_of, stage_of
from locust_llm.core.record import CANCELLED, CUT, OK, RETRIED, Record
from locust_llm.load.conversation import Ask
from locust_llm.load.formats import Item
from locust_llm.load.media import MediaError, counted
from locust_llm.load.schema import Wanted, fits, wanted
from locust_llm.protocols.answer import USUAL
from locust_llm.protocols.known import PROTOCOLS, request_body
from locust_llm.run.arms import Side
from locust_llm.run.worker.kept_responses import KeptResponses, marked
from locust_llm.run.worker.locust_stats import RequestCancelled, RequestCut, RequestFailed, log  # noqa: F401  for locustfiles
from locust_llm.run.worker.permits import Permit
from locust_llm.run.worker.sender import Sender, sender_of
from locust_llm.run.worker.turn import Turn, turn_of

from . import events

FAILED_S: Final = 1.0
"""Least time between two requests of a user in a closed loop after a failure: a server that refuses at once would
get thousands of requests per second."""
Attempt = Callable[[int, float | None], tuple[Request, requests.PreparedRequest]]
"""From the number of an attempt and its due time to its request."""


class LLMUser(HttpUser):
    """A Locust user whose tasks call ``chat()`` or ``session()``; ``self.client`` remains Locust's, for plain HTTP."""

    abstract = True
    model: str | None = None
    """Model of this user class, instead of ``--model`` or ``--model-mix``."""
    _number: ClassVar[int] = 0

    def __init__(self, environment: Environment) -> None:
        self.sender: Sender = sender_of(environment)
        self.sender.keeps_address(type(self).host, f"the user class {type(self).__name__}")
        self.host = self.sender.address or self.host
        super().__init__(environment)
        LLMUser._number += 1
        self.number = LLMUser._number
        self.line = UserConnection(lambda: CUT if self.sender.closed else CANCELLED)
        self._requests = 0
        self._rests_until = 0.0
        self._plain_key: tuple[Any, ...] | None = None
        self._plain: tuple[requests.PreparedRequest, bytes]
        self._wanted: Wanted | None = None
        self._kept = KeptResponses()
        self.client.headers.update(
            {"Accept-Encoding": "identity", "Accept": "text/event-stream, application/json", **self.sender.headers}
        )
        keep_home(self.client, self.sender.headers, lambda: self.sender.address)
        self.client.request_event = PlainRequests(environment.events.request, self.client.headers, self.sender.headers)
        if self.sender.settings.insecure:
            self.client.verify = False

    def chat(
        self,
        messages: str | list[dict[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
        input_tokens: int | None = None,
        name: str | None = None,
        session: str = "",
        headers: dict[str, str] | None = None,
        keep_text: bool = True,
        **body: Any,
    ) -> Answer:
        """Send one chat completion through the prefill gate, and wait for its end.

        Args:
            messages: a prompt, or a list of messages; None for a synthetic prompt.
            max_tokens: maximum length of the answer in tokens; None for the output length of the command line.
            input_tokens: length of the synthetic prompt in tokens; None for that of the command line. With a prompt of
                your own: its intended length, for the report. With either, the answer gets exactly
                ``max_tokens`` tokens where the server allows it (``ignore_eos`` or ``min_tokens``).
            name: the row in Locust's tables and the report; None for the path of the endpoint.
            session: id of the session, for the record and ``--session-header``; of a ``--model-mix`` it keeps its model.
            headers: further headers of this request.
            keep_text: keep the answer for its ``message``; False spares the memory of long ones.
            body: further fields of the request's body, such as ``temperature=0`` or ``tools=[...]``.

        Returns:
            The record of the request, also of a failed one, with the assistant's message.

        Raises:
            StopUser: the run is ending.
        """
        permit = self._permit()
        prompts, asked = self.sender.prompts, input_tokens
        drawn = None
        if messages is None:
            drawn = prompts.batch() if asked is None else [prompts.drawn(asked)]
            system = prompts.system
            messages = [*([system] if system else ()), *(one.message for one in drawn)]
            asked = sum(one.input_tokens for one in drawn)
        elif isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if max_tokens is None:
            max_tokens = prompts.output_tokens() if drawn is None else drawn[0].output_tokens
        model = self.sender.sessions.model(session)
        turn = Turn(messages, asked, max_tokens, session, sized=asked is not None, model=model)
        record = self._send(permit, turn, name, headers, keep_text, body)
        kept = stream.answer.deltas if (stream := self.line.stream) is not None else [] if keep_text else None
        return answered(record, kept, marked(self._kept.id))

    def session(
        self,
        *,
        name: str | None = None,
        headers: dict[str, str] | None = None,
        keep_text: bool = False,
        **body: Any,
    ) -> list[Record]:
        """Send one session of the dataset or of synthetic prompts, turn by turn, as the command line asks for.

        Most sessions have one turn. With more, the history grows by the answers; a turn that fails ends the session.

        Args:
            name: the row in Locust's tables and the report; None for the path of the endpoint.
            headers: further headers of each request.
            keep_text: keep the last answer in ``self.text``.
            body: further fields of each request's body.

        Returns:
            The records of its turns, failed ones too.

        Raises:
            StopUser: the run is ending.
        """
        sender, permit = self.sender, self._permit()
        try:
            item = permit.item if permit.item is not None else sender.item(permit.phase)
        except GateClosed:
            sender.permits.put_back(permit)
            raise StopUser from None
        decoded = None if item is None else msgspec.msgpack.decode(item, type=Item)
        conversation = sender.sessions.begin(decoded)
        records: list[Record] = []
        first_at: float | None = None
        try:
            while (ask := conversation.next()) is not None:
                if records:
                    following = self._next_permit(permit, ask, first_at, records)
                    if following.phase != permit.phase:  # the warmup is over, and its sessions with it
                        sender.permits.put_back(following)
                        break
                    permit = following
                first_at = ask.at_s if first_at is None else first_at
                more = conversation.left > 0
                sized = decoded is None or decoded.turns[ask.turn].output_tokens is not None
                turn = turn_of(ask, conversation, sized=sized)
                records.append(record := self._send(permit, turn, name, headers, keep_text or more, body))
                if record.outcome != OK:
                    break
                if more:
                    conversation.add_answer(self.text, answer_tokens(record), **self._kept.mark(sender))
        except MediaError as wrong:  # of what the control could read: the run ends
            sender.permits.put_back(permit)
            sender.failure = str(wrong)
            raise StopUser from None
        finally:
            sender.session_ended(permit, conversation.left, dealt=item is not None or sender.counts_sessions)
        return records

    def _permit(self, *, later: bool = False) -> Permit:
        try:
            if self._rests_until > time.monotonic():
                self.sender.wait_until(self._rests_until)
            return self.sender.permits.take(self.number, later=later)
        except GateClosed:
            raise StopUser from None

    def _next_permit(self, permit: Permit, ask: Ask, first_at: float | None, records: list[Record]) -> Permit:
        """For a later turn: due at the time of its trace, or after the think time."""
        if permit.item is None:
            gevent.sleep(ask.delay_s)
            return self._permit(later=True)
        if ask.at_s is not None and first_at is not None:
            due_at = records[0].due_at + (ask.at_s - first_at) / self.sender.settings.replay_speedup
        else:
            due_at = records[-1].closed_at + ask.delay_s
        return permit._replace(due_at=due_at)

    @property
    def text(self) -> str:
        """Text of the last answer, where it was kept."""
        stream = self.line.stream
        return "".join(stream.answer.text or ()) if stream is not None else ""

    def on_stop(self) -> None:
        self.line.close()
        self.sender.permits.leave(self.number)

    def _send(
        self, permit: Permit, turn: Turn, name: str | None, headers: dict[str, str] | None, keep_text: bool,
        body: dict[str, Any],
    ) -> Record:  # fmt: skip
        """Send one request; returns its record."""
        sender, settings = self.sender, self.sender.settings
        try:
            block = sender.block(permit.phase)
            side = sender.side(block)
            self._requests += 1
            request_id = f"{sender.worker}-{self.number}-{self._requests}"
            session = turn.session or request_id
            model = side.set_model or self.model or turn.model or side.model
            messages, kept = self._kept.asked(turn.messages, settings)
            asked = {**sender.extra, **kept, **(turn.body or {}), **body, **side.body}
            self._wanted = wanted(asked)  # an answer with a form of its own ends by itself
            sized = turn.sized and self._wanted is None
            fields = {**(length_fields(side.length_way, turn.output_tokens) if sized else {}), **asked}
            if media := counted(turn.messages):
                sender.turns.take()
            data = request_body(
                settings.endpoint_type, model, messages, turn.output_tokens,
                streaming=settings.streaming, max_tokens_field=settings.max_tokens_field,
                per_chunk_usage=settings.per_chunk_usage, **fields,
            )  # fmt: skip
            max_chunks = chunk_limit(turn.output_tokens, fields, PROTOCOLS[settings.endpoint_type].length_fields)
            sent = str(fields.get("model") or model or "")  # a row of a file may name its own
            if settings.session_header:
                headers = {settings.session_header: session, **(headers or {})}
            labels = {
                "worker": sender.worker, "user": self.number, "user_class": type(self).__name__,
                "name": name or settings.endpoint, "model": sent, "phase": label_of(permit.phase),
                "stage": stage_of(permit.phase), "session": session, "turn": turn.number,
                "arm": side.name, "pair": 0 if block is None else block.pair, "asked_input_tokens": turn.input_tokens,
                **PROTOCOLS[settings.endpoint_type].asked(turn.messages, turn.output_tokens), **media,
            }  # fmt: skip

            def attempt(number: int, due_at: float | None) -> tuple[Request, requests.PreparedRequest]:
                its_id = request_id if number == 1 else f"{request_id}.{number}"
                prepared, wire = self._prepare(data, its_id, headers, side)
                request = Request(
                    target=target(prepared.url or "", self.client.verify, self.client.cert),
                    data=wire,
                    labels=labels | {"id": its_id, "attempt": number},
                    due_at=due_at,
                    timeout_s=settings.request_timeout_s,
                    first_token_timeout_s=settings.first_token_timeout_s if settings.streaming else None,
                    gap_timeout_s=settings.gap_timeout_s,
                    cancel_after_s=sender.cancel_after_s(permit.phase),
                    max_response_bytes=settings.max_response_bytes,
                    max_chunks=max_chunks,
                    keep_text=keep_text or self._wanted is not None,
                    kind=settings.endpoint_type,
                )
                return request, prepared

        except BaseException:
            sender.permits.put_back(permit)
            raise
        return self._attempts(permit, attempt)

    def _attempts(self, permit: Permit, attempt: Attempt) -> Record:
        """Send until the server accepts, or retries are used up. Each attempt has a record; the last one is returned."""
        sender = self.sender
        refused: tuple[Record, requests.PreparedRequest] | None = None
        """Held until the next attempt is sent: without one it was the last."""
        number, due_at, pause = 1, permit.due_at, 0.0
        while True:
            try:
                if refused is not None:
                    sender.wait_until(time.monotonic() + pause)
                request, prepared = attempt(number, due_at)
                record = exchange(
                    self.line, sender.gate, request, sender.clock_offset_s, self._first_token, sender.wait_until
                )
                sender.done += record.admitted_at is not None
            except GateClosed:
                if refused is not None:
                    return self._finish(*refused)
                sender.turned_away += permit.due_at is None or permit.due_at <= time.monotonic()
                raise StopUser from None
            except BaseException as error:
                cut: Record | None = getattr(error, "record", None)
                sender.done += cut is not None
                if refused is not None:
                    self._finish(*refused, retried=cut is not None)
                elif cut is None:
                    sender.permits.put_back(permit)  # killed before it was sent
                if cut is not None:
                    self._finish(cut, prepared)
                    if not isinstance(error, GreenletExit):
                        self.line.close()
                raise
            if refused is not None:
                self._finish(*refused, retried=True)
            again_s = self._again_s(record)
            if again_s is None:
                return self._finish(record, prepared)
            refused, pause = (record, prepared), again_s
            number, due_at = number + 1, record.due_at

    def _again_s(self, record: Record) -> float | None:
        """Seconds to the next attempt; None: there is none."""
        if record.outcome not in RETRIABLE or record.attempt > self.sender.settings.max_retries:
            return None
        return pause_s(record.attempt, record.retry_after_s, self.sender.retry_random)

    def _prepare(
        self, data: bytes, request_id: str, headers: dict[str, str] | None, side: Side
    ) -> tuple[requests.PreparedRequest, bytes]:
        """(request prepared by requests, with auth, cookies, headers and hooks of the session; the bytes to send).

        requests takes 200 µs, a third of the cost of a short request: where only body and id differ, it prepares the first.
        """
        client = self.client
        plain = not (headers or client.auth or client.cookies or client.params or any(client.hooks.values()))
        key = (side.address, self.host, *client.headers.items(), *side.headers.items()) if plain else None
        if key is None or key != self._plain_key:
            prepared = self._prepare_with_requests(data, request_id, headers, side)
            if key is None:
                return prepared, head(prepared) + b"\r\n" + data
            for name in ("X-Request-Id", "Content-Length"):
                del prepared.headers[name]
            self._plain_key, self._plain = key, (prepared, head(prepared))
        prepared, beginning = self._plain
        values = (beginning, request_id.encode(), len(data), data)
        return prepared, b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % values

    def _prepare_with_requests(
        self, data: bytes, request_id: str, headers: dict[str, str] | None, side: Side
    ) -> requests.PreparedRequest:
        own = {"Content-Type": "application/json", "X-Request-Id": request_id, **(headers or {}), **side.headers}
        self.sender.keeps_address(self.host, f"a user of {type(self).__name__}")
        request = requests.Request("POST", side.address + self.sender.settings.endpoint, data=data, headers=own)
        # of requests itself: Locust's own override belongs to its request(), which this is not
        prepared = requests.Session.prepare_request(self.client, request)
        # an auth of the user's may rewrite the address
        strip_abroad(self.client, {**self.sender.headers, **side.headers}, side.address, prepared)
        return prepared

    def _first_token(self, stream: Response, labels: dict[str, Any]) -> None:
        ttft_s = (stream.stamps[stream.answer.chunk_reads[0]] - stream.sent_ns) / 1e9
        self.sender.first_chunk(ttft_s)
        if events.first_token._handlers:
            gevent.spawn(  # not guarded: Locust catches what its listeners raise
                events.first_token.fire, user=self, name=labels["name"], request_id=labels["id"], ttft_s=ttft_s
            )

    def _finish(self, record: Record, prepared: requests.PreparedRequest, *, retried: bool = False) -> Record:
        """Pass the record on, without secrets: to the sender, to Locust, to listeners."""
        stream = None if retried else self.line.stream
        record, failure = self._public(record, prepared, stream, retried=retried)
        if self._wanted is not None and record.outcome == OK and stream is not None:
            record = replace(record, schema_valid=fits(self._wanted, joined(stream.answer.deltas or ())))
        self._kept.ended(record, stream, self.sender)
        self.sender.finished(record)
        if record.failed and not self.sender.settings.open_loop:
            self._rests_until = record.asked_at + FAILED_S
        if stream is not None:
            update_session(self.client, prepared, stream)
        log(self.environment, record, failure, prepared.url, self.context(), retried=retried)
        events.record.fire(user=self, record=record)
        return record

    def _public(
        self, record: Record, prepared: requests.PreparedRequest, stream: Response | None, *, retried: bool
    ) -> tuple[Record, str]:
        """(record without secrets, with a sample if it is the first failure of its kind; its name as a failure)."""
        if record.outcome == OK and record.finish_reason in USUAL:
            return record, ""
        secrets = secrets_of(prepared.headers, self.sender.own_headers)
        message, reason = shown(record.error, secrets), record.finish_reason
        record = replace(record, error=message, finish_reason=None if reason is None else shown(reason, secrets))
        if record.outcome == OK:
            return record, ""
        if retried:
            return replace(record, outcome=RETRIED), ""
        name, first = self.sender.failure_kinds.name(record.outcome, message)
        if first and record.failed and stream is not None:
            record = replace(record, sample=shown(stream.sample, secrets, lines=True))
        return record, name
