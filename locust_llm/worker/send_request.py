"""Send request: the requests of a user, one after the other, over a connection of their own."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from locust.clients import HttpSession
from locust.env import Environment
from locust.exception import StopUser

import gevent
import requests
from gevent import GreenletExit
from msgspec.structs import replace

from locust_llm import events
from locust_llm.access.headers_and_api_key import EXPIRED, KeyHeaders
from locust_llm.client.chat_answer import Answer, build_answer, join_deltas
from locust_llm.client.event_loop_yields import can_wait
from locust_llm.client.reader.reader_choice import reader_failure
from locust_llm.client.request_bytes import Request, chunk_limit, find_asked_length
from locust_llm.client.request_exchange import UserConnection, exchange_request
from locust_llm.client.requests_bridge import (
    format_request_head,
    make_target,
    strip_headers_elsewhere,
    update_session,
)
from locust_llm.client.response_chunks import Response
from locust_llm.client.retry import RETRIABLE, retry_pause_s
from locust_llm.gate.gate import GateClosed
from locust_llm.locust_adapter.request_statistics import log_to_locust
from locust_llm.protocols.answer_parser import USUAL
from locust_llm.protocols.protocol import Messages
from locust_llm.protocols.protocol_registry import PROTOCOLS
from locust_llm.protocols.request_body import encode_request_pieces
from locust_llm.records.outcomes import CANCELLED, CUT, OK, RETRIED
from locust_llm.records.phase_plan import label_phase, stage_of_phase
from locust_llm.records.record import Record
from locust_llm.records.spans.trace_ids import HEADER as TRACEPARENT
from locust_llm.records.spans.trace_ids import make_traceparent
from locust_llm.server.length_control import make_length_fields
from locust_llm.server.refused_request_fields import RequestForm
from locust_llm.settings.server_address import join_server_url
from locust_llm.text.hide_secrets import Secrets, collect_secrets
from locust_llm.text.sanitise import NAME_BYTES, sanitise_text
from locust_llm.worker.ab_targets import VariantTarget
from locust_llm.worker.kept_responses import KeptResponses, mark_response_id
from locust_llm.worker.send_permits import Permit
from locust_llm.worker.session_affinity import read_response_header
from locust_llm.worker.user_turnaround import UserTurnaround
from locust_llm.worker.worker_context import WorkerContext
from locust_llm.workload.answer_schema import ResponseSchema, find_response_schema
from locust_llm.workload.images_and_audio import count_media

from .answer_inspection import InspectedRequest
from .request_to_send import OutgoingTurn, PreparedHead

FAILED_S: Final = 1.0
"""The least time between two requests of a sender in a closed loop after a failure. A server that
refuses at once would get thousands of requests a second."""
# before it is due a request that is not ready yet goes before all that can wait
SOON_S: Final = 0.05


Attempt = Callable[[int, float | None], tuple[Request, requests.PreparedRequest]]
"""Makes the request from the number of an attempt and its due time."""


class SendingUser(Protocol):
    """What a sender needs of its user."""

    sender: WorkerContext
    environment: Environment
    client: HttpSession
    host: str | None
    model: str | None
    tenant: str | None
    number: int

    @property
    def numbers(self) -> Iterator[int]:
        """The numbers of its requests."""

    def context(self) -> dict[str, Any]: ...


class SentAttempt(NamedTuple):
    """How the last attempt was sent."""

    side: VariantTarget
    form: RequestForm


class RequestDraft(NamedTuple):
    """A request before it is written: what all attempts have in common."""

    id: str
    permit: Permit
    turn: OutgoingTurn
    side: VariantTarget
    model: str | None
    messages: Messages
    fields: dict[str, Any]
    """Fields of the body."""
    headers: dict[str, str] | None
    labels: dict[str, Any]
    keep_text: bool


class RequestSender:
    """Sends one request at a time. The senders of a user run side by side."""

    def __init__(self, user: SendingUser) -> None:
        self._user = user
        self._lines: dict[str, UserConnection] = {}
        """The connections by address, where there are several."""
        self.line = self._line("")
        """The connection of the last request."""
        self._rests_until = 0.0
        self._heads: dict[tuple[str, str], PreparedHead] = {}
        """By address and tenant."""
        self._wanted: ResponseSchema | None = None
        self._lose: Callable[[], int] | None = None
        self._sent: SentAttempt | None = None
        self._inspected: InspectedRequest | None = None
        """The request whose answer is checked."""
        self._keeps_text = True
        self._session = ""
        self.kept = KeptResponses()
        self.turnaround = UserTurnaround()

    @property
    def sender(self) -> WorkerContext:
        return self._user.sender

    def close(self) -> None:
        """Close its connections."""
        for line in self._lines.values():
            line.close()

    def _line(self, address: str) -> UserConnection:
        if address not in self._lines:
            self._lines[address] = UserConnection(lambda: CUT if self.sender.closed else CANCELLED)
        return self._lines[address]

    def permit(self, *, later: bool = False) -> Permit:
        """A permit for one request. ``later``: it belongs to a session that goes on. Raises
        StopUser when the run ends."""
        if reader_failure():  # nothing can be sent any more, and the controller ends the run
            raise StopUser
        try:
            if self._rests_until > time.monotonic():
                self.sender.wait_until(self._rests_until)
            permit = self.sender.permits.take(self._user.number, later=later)
        except GateClosed:
            raise StopUser from None
        self._wait_its_start(permit, later=later)
        self._wait_its_turn(permit)
        if permit.draws:
            sequence, _, number = permit.draws.rpartition("/")
            self.sender.prompts.begin_even_draws(
                f"{self.sender.settings.random_seed}/{sequence}", int(number)
            )
        return permit

    def _wait_its_start(self, permit: Permit, *, later: bool) -> None:
        """Wait: users of a closed loop begin a phase one after the other. Raises StopUser when the
        run ends."""
        sender, user = self.sender, self._user.number
        phase = sender.begun_in(permit.phase)
        if later:
            sender.starts.note_start(user, phase)
        if sender.starts.has_started(user, phase):
            return
        gate = sender.gate
        self.turnaround.forget()
        try:
            sender.starts.wait(user, sender.wait_until, lambda: gate.used + gate.waiting)
        except BaseException as error:
            self.sender.permits.put_back(permit)
            if isinstance(error, GateClosed):
                raise StopUser from None
            raise

    def _wait_its_turn(self, permit: Permit) -> None:
        """Wait for a turn of the loop. A hundred users may get their permits at once, each takes
        100 µs for its request, and one may be due before."""
        due_at, limit = permit.due_at, self.sender.gate.limit
        try:
            if (due_at is None and limit is not None) or (
                due_at is not None and due_at > time.monotonic() + SOON_S
            ):
                can_wait.take()
        except BaseException:
            self.sender.permits.put_back(permit)
            raise

    @property
    def text(self) -> str:
        """The text of the last answer, where it was kept."""
        stream = self.line.stream
        return "".join(stream.answer.text or ()) if stream is not None else ""

    def answer(self, record: Record, *, keep_text: bool = True) -> Answer:
        """What ``chat()`` returns for the request just sent."""
        stream = self.line.stream
        deltas: list[Any] | None = [] if keep_text else None  # of a request that was never sent
        if stream is not None:
            deltas = stream.answer.deltas
        return build_answer(record, deltas, mark_response_id(self.kept.id))

    def send(
        self, permit: Permit, turn: OutgoingTurn, name: str | None, headers: dict[str, str] | None,
        keep_text: bool,
        body: dict[str, Any],
    ) -> Record:  # fmt: skip
        """Send one request and return its record."""
        try:
            draft = self._draft(permit, turn, name, headers, keep_text, body)
        except BaseException:
            self.sender.permits.put_back(permit)
            raise
        self._lose, self._session, self._keeps_text = turn.lose, turn.session, keep_text
        try:
            record = self._attempts(permit, partial(self._make_attempt, draft))
            self.turnaround.answered(record, permit.phase)
            return record
        finally:
            if self.sender.inspector is not None and self._inspected is not None:
                self.sender.inspector.forget(self._inspected)
            self._inspected = None

    def _draft(
        self, permit: Permit, turn: OutgoingTurn, name: str | None, headers: dict[str, str] | None,
        keep_text: bool,
        body: dict[str, Any],
    ) -> RequestDraft:  # fmt: skip
        sender, settings, user = self.sender, self.sender.settings, self._user
        side = sender.tenants.side(
            sender.side(sender.block(permit.phase), turn.session), turn.tenant
        )
        self.line = self._line(side.address if settings.hosts else "")
        request_id = f"{sender.worker}-{user.number}-{next(user.numbers)}"
        session = turn.session or request_id
        model = side.set_model or user.model or turn.model or side.model
        messages, kept_response = self.kept.asked(turn.messages, settings)
        asked = {**sender.extra, **kept_response, **(turn.body or {}), **body, **side.body}
        # an answer with a form of its own ends by itself
        self._wanted = find_response_schema(asked)
        if self._wanted is not None:
            sender.schemas.start()
        sized = turn.sized and self._wanted is None
        fields = {
            **(make_length_fields(side.length_way, turn.output_tokens) if sized else {}),
            **asked,
        }
        if media := count_media(turn.messages):
            sender.turns.take()
        if settings.session_header:
            headers = {settings.session_header: session, **(headers or {})}
        sent = str(fields.get("model") or model or "")  # a row of a file may name its own
        labels = {
            "name": name or settings.endpoint, "model": sent, "session": session,
            **self._labels(permit, turn, side), **media,
        }  # fmt: skip
        return RequestDraft(
            request_id, permit, turn, side, model, messages, fields, headers, labels, keep_text
        )

    def _make_attempt(
        self, draft: RequestDraft, number: int, due_at: float | None
    ) -> tuple[Request, requests.PreparedRequest]:
        """Write the request in the form that the server takes by now."""
        sender, settings = self.sender, self.sender.settings
        turn, side = draft.turn, draft.side
        form = sender.form(side)
        body = encode_request_pieces(
            settings.endpoint_type, draft.model, draft.messages, turn.output_tokens,
            streaming=settings.streaming,
            per_chunk_usage=settings.per_chunk_usage, **form.fields(settings), **draft.fields,
        )  # fmt: skip
        self._sent = SentAttempt(side, form)
        its_id = draft.id if number == 1 else f"{draft.id}.{number}"
        if sender.inspector is not None:
            length = find_asked_length(
                turn.output_tokens, draft.fields, PROTOCOLS[settings.endpoint_type].length_fields
            )
            self._inspected = InspectedRequest(its_id, turn, body, length)
            due_s = max(due_at or 0.0, time.monotonic()) + sender.clock_offset_s
            sender.inspector.begin(self._inspected, draft.labels["session"], due_s)
        prepared, wire, more = self._prepare(body, its_id, draft.headers, side, turn.tenant)
        client = self._user.client
        request = Request(
            target=make_target(prepared.url or "", client.verify, client.cert),
            data=wire,
            more=more,
            labels=draft.labels | {"id": its_id, "attempt": number},
            due_at=due_at,
            previous=None if due_at is not None else self.turnaround.before(draft.permit.phase),
            timeout_s=settings.request_timeout_s,
            first_token_timeout_s=settings.first_token_timeout_s if settings.streaming else None,
            gap_timeout_s=settings.gap_timeout_s,
            cancel_after_s=sender.cancel_after_s(draft.permit.phase),
            max_response_bytes=settings.max_response_bytes,
            max_chunks=chunk_limit(
                turn.output_tokens, draft.fields, PROTOCOLS[settings.endpoint_type].length_fields
            ),
            keep_text=draft.keep_text or self._wanted is not None,
            checked=sender.inspector is not None,
            kind=settings.endpoint_type,
        )
        return request, prepared

    def _labels(self, permit: Permit, turn: OutgoingTurn, side: VariantTarget) -> dict[str, Any]:
        """The record's fields for this request, whatever becomes of it."""
        settings = self.sender.settings
        user = self._user
        block = self.sender.block(permit.phase)
        return {
            "worker": self.sender.worker, "user": user.number, "user_class": type(user).__name__,
            "phase": label_phase(permit.phase), "stage": stage_of_phase(permit.phase),
            "turn": turn.number, "turns": turn.turns, "after": turn.after, "tool_s": turn.tool_s,
            "asked_input_tokens": turn.input_tokens,
            **({} if turn.prefix is None else {"prefix": turn.prefix[0],
                "prefix_tokens": turn.prefix[1]}),
            "arm": side.name, "pair": 0 if block is None else block.pair,
            "backend": side.address if settings.hosts else "", "tenant": turn.tenant,
            **PROTOCOLS[settings.endpoint_type].asked(turn.messages, turn.output_tokens),
        }  # fmt: skip

    def _attempts(self, permit: Permit, attempt: Attempt) -> Record:
        """Send until the server accepts, or retries are used up. Each attempt has a record; the
        last one is returned."""
        sender = self.sender
        refused: tuple[Record, requests.PreparedRequest] | None = None
        """The refused attempt is held until the next one is sent. Without a next one it was the
        last."""
        number, due_at, pause = 1, permit.due_at, 0.0
        while True:
            try:
                if refused is not None:
                    sender.wait_until(time.monotonic() + pause)
                    if refused[0].status == EXPIRED and not self._has_another_key(refused[1]):
                        return self._finish(*refused)
                request, prepared = attempt(number, due_at)
                sender.await_first_chunk(request.labels["id"], due_at)
                try:
                    record = exchange_request(
                        self.line,
                        sender.gate,
                        request,
                        sender.clock_offset_s,
                        self._first_token,
                        sender.wait_until,
                    )
                finally:
                    sender.await_no_longer(request.labels["id"])
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
            again_s = self._again_s(record, prepared)
            if again_s is None:
                return self._finish(record, prepared)
            refused, pause = (record, prepared), again_s
            number += 1
            due_at = record.due_at

    def _again_s(self, record: Record, prepared: requests.PreparedRequest) -> float | None:
        """The seconds until the next attempt. None: there is none."""
        headers = self.sender.headers
        again = record.attempt > 1
        if self._sent is not None and self.sender.learns_form(*self._sent, record):
            return 0.0
        if isinstance(headers, KeyHeaders) and headers.expired(
            prepared.headers, record.status, again=again
        ):
            return 0.0
        if record.outcome not in RETRIABLE or record.attempt > self.sender.settings.max_retries:
            return None
        return retry_pause_s(record.attempt, record.retry_after_s, self.sender.retry_random)

    def _has_another_key(self, refused: requests.PreparedRequest) -> bool:
        """Whether there is another key than the expired one of the refused request. Waits for the
        command that prints it."""
        headers = self.sender.headers
        return isinstance(headers, KeyHeaders) and headers.another(refused.headers)

    def _prepare(
        self,
        body: Sequence[bytes],
        request_id: str,
        headers: dict[str, str] | None,
        side: VariantTarget,
        tenant: str = "",
    ) -> tuple[requests.PreparedRequest, bytes, tuple[bytes, ...]]:
        """(request prepared by requests, with auth, cookies, headers and hooks of the session; the
        bytes to send; what follows on them).

        requests takes 200 µs, a third of the cost of a short request. Where only body and id
        differ, it prepares the first request only, also for users that send alike.
        """
        client = self._user.client
        if isinstance(own_headers := self.sender.headers, KeyHeaders):
            own_headers.renew(client.headers)
        is_plain = not (
            headers or client.auth or client.cookies or client.params or any(client.hooks.values())
        )
        key = None
        if is_plain:
            trace = self.sender.trace
            key = (
                side.address,
                self._user.host,
                trace,
                client.trust_env,  # else no password of .netrc
                *client.headers.items(),
                *side.headers.items(),
            )
        place = side.address, tenant
        head = self._heads.get(place)
        if head is None or key != head.made_from:
            head = self.sender.heads.get(place)  # of another user
        if head is None or key != head.made_from:
            prepared = self._prepare_with_requests(b"".join(body), request_id, headers, side)
            if key is None:
                return prepared, format_request_head(prepared) + b"\r\n" + body[0], tuple(body[1:])
            trace = self._trace(headers, side)
            for name in ("X-Request-Id", "Content-Length", *([TRACEPARENT] if trace else [])):
                del prepared.headers[name]
            head = PreparedHead(key, prepared, format_request_head(prepared), trace)
            self.sender.heads[place] = head
        self._heads[place] = head
        _, prepared, beginning, trace = head
        own = f"X-Request-Id: {request_id}\r\n"
        if trace:
            own += (
                f"{TRACEPARENT}: "
                f"{make_traceparent(trace, request_id, self.sender.settings.traced_share)}\r\n"
            )
        values = (beginning, own.encode(), sum(map(len, body)), body[0])
        return prepared, b"%b%bContent-Length: %d\r\n\r\n%b" % values, tuple(body[1:])

    def _trace(self, headers: dict[str, str] | None, side: VariantTarget) -> str:
        """The trace of the run. Empty: requests have no traceparent, or one of the user's own."""
        given = (*self._user.client.headers, *(headers or ()), *side.headers)
        return "" if any(name.lower() == TRACEPARENT for name in given) else self.sender.trace

    def _prepare_with_requests(
        self, data: bytes, request_id: str, headers: dict[str, str] | None, side: VariantTarget
    ) -> requests.PreparedRequest:
        own = {"Content-Type": "application/json", "X-Request-Id": request_id}
        if trace := self._trace(headers, side):
            own[TRACEPARENT] = make_traceparent(
                trace, request_id, self.sender.settings.traced_share
            )
        own |= {**(headers or {}), **side.headers}
        self.sender.keeps_address(self._user.host, f"a user of {type(self._user).__name__}")
        request = requests.Request(
            "POST",
            join_server_url(side.address, self.sender.settings.endpoint),
            data=data,
            headers=own,
        )
        # of requests itself: Locust's own override belongs to its request(), which this is not
        prepared = requests.Session.prepare_request(self._user.client, request)
        # an auth of the user's may rewrite the address
        strip_headers_elsewhere(
            self._user.client, {**self.sender.headers, **side.headers}, side.address, prepared
        )
        return prepared

    def _first_token(self, stream: Response, labels: dict[str, Any], due_at: float) -> None:
        first_ns = stream.stamps[stream.answer.chunk_reads[0]]
        ttft_s = (first_ns - stream.sent_ns) / 1e9
        self.sender.first_chunk(labels["id"], ttft_s, first_ns / 1e9 - due_at)
        if events.first_token._handlers:
            gevent.spawn(  # not guarded: Locust catches what its listeners raise
                events.first_token.fire,
                user=self._user,
                name=labels["name"],
                request_id=labels["id"],
                ttft_s=ttft_s,
            )

    def _finish(
        self, record: Record, prepared: requests.PreparedRequest, *, retried: bool = False
    ) -> Record:
        """Pass the record on without secrets: to the sender, to Locust, to listeners."""
        stream = None if retried else self.line.stream
        record, failure = self._public(
            self.sender.clock.placed(record, time.monotonic()), prepared, stream, retried=retried
        )
        if stream is not None:
            self.sender.affinity.answered(self._session, stream)
        if self._wanted is not None and record.outcome == OK and stream is not None:
            record = replace(
                record,
                schema_valid=self.sender.schemas.check(
                    self._wanted, join_deltas(stream.answer.deltas or ())
                ),
            )
        record = self._inspect(record, prepared, stream)
        if record.outcome != OK and not retried and self._lose is not None:
            record = replace(record, unsent=self._lose())
        self.kept.ended(record, stream, self.sender)
        self.sender.finished(record)
        if record.failed and not self.sender.settings.open_loop:
            self._rests_until = record.asked_at + FAILED_S
        if stream is not None:
            update_session(self._user.client, prepared, stream)
        gated = self.sender.gate.limit is not None
        log_to_locust(
            self._user.environment,
            record,
            failure,
            prepared.url,
            self._user.context(),
            retried=retried,
            gated=gated,
        )
        if (
            record.outcome == OK
            and events.inter_token_latency._handlers
            and record.itl_s is not None
        ):
            events.inter_token_latency.fire(
                user=self._user, name=record.name, request_id=record.id, itl_s=record.itl_s
            )
        events.record.fire(user=self._user, record=record)
        return record

    def _inspect(
        self, record: Record, prepared: requests.PreparedRequest, stream: Response | None
    ) -> Record:
        """The record with what the checks found in its answer. Its text was kept for them."""
        inspector, inspected = self.sender.inspector, self._inspected
        if inspector is None or inspected is None:
            return record
        checked = inspector.inspect(
            record,
            inspected,
            None if stream is None else stream.answer,
            lambda: self._collect_secrets(prepared, stream),
        )
        if stream is not None and not self._keeps_text:
            stream.answer.deltas = None
        return checked

    def _collect_secrets(
        self, prepared: requests.PreparedRequest, stream: Response | None
    ) -> Secrets:
        return collect_secrets(
            prepared.headers, {**self.sender.own_headers, **self.sender.affinity.secrets(stream)}
        )

    def _public(
        self,
        record: Record,
        prepared: requests.PreparedRequest,
        stream: Response | None,
        *,
        retried: bool,
    ) -> tuple[Record, str]:
        """(record without secrets, with a sample if it is the first failure of its kind; its name
        as a failure)."""
        backend_header = self.sender.settings.backend_header
        usual = record.outcome == OK and record.finish_reason in USUAL
        if usual and not backend_header:
            return record, ""
        secrets = self._collect_secrets(prepared, stream)
        if (
            backend_header
            and stream is not None
            and (backend := read_response_header(stream, backend_header))
        ):
            record = replace(record, backend=sanitise_text(backend, secrets, most=NAME_BYTES))
        if usual:
            return record, ""
        message = sanitise_text(record.error, secrets)
        reason = record.finish_reason
        record = replace(
            record,
            error=message,
            finish_reason=None if reason is None else sanitise_text(reason, secrets),
        )
        if record.outcome == OK:
            return record, ""
        if retried:
            return replace(record, outcome=RETRIED), ""
        name, first = self.sender.failure_kinds.name(record.outcome, message)
        if first and record.failed and stream is not None:
            record = replace(record, sample=sanitise_text(stream.sample, secrets, lines=True))
        return record, name


class SenderPool:
    """The senders of one user: the main one, and as many more as a session needs at a time."""

    def __init__(self, user: SendingUser) -> None:
        self._user = user
        self.main = RequestSender(user)
        self._all = [self.main]
        self._free = list[RequestSender]()

    def tenant(self, session: str) -> str:
        """The tenant of this session."""
        return self._user.tenant or self.main.sender.tenants.of(self._user.number, session)

    def take(self) -> RequestSender:
        """Take a free sender."""
        if self._free:
            branch = self._free.pop()
            branch.turnaround.forget()
            return branch
        self._all.append(branch := RequestSender(self._user))
        return branch

    def give_back(self, branch: RequestSender) -> None:
        """Give a sender back. Its connection stays open for the next use."""
        self._free.append(branch)

    def close(self) -> None:
        """Close the connections of all senders."""
        for branch in self._all:
            branch.close()
