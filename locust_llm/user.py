"""LLMUser: a Locust user whose requests are streamed chat completions; the class to extend."""

import os
import ssl
import time
from functools import cache
from http.cookies import CookieError, SimpleCookie
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from locust import HttpUser
from locust.env import Environment
from locust.exception import StopUser

import certifi
import gevent
import msgspec
import requests
from gevent import GreenletExit

from . import events
from .body import length_fields
from .budget import Permit
from .chat import chat_body
from .connection import Target
from .conversation import Ask
from .exchange import Line, Request, exchange
from .formats import Item
from .gate import GateClosed
from .plan import label_of, stage_of
from .record import CANCELLED, CUT, OK, Record
from .sender import Sender, sender_of
from .stream import Stream


class RequestFailed(Exception):
    """A failed request, as Locust's failure table shows it."""


class RequestCut(Exception):
    """Still running when the grace period at the end was over: no failure, and no reason for exit status 1."""


class RequestCancelled(Exception):
    """Given up on purpose: no failure, and no reason for exit status 1."""


class Turn(NamedTuple):
    """What one request says, and what its record shall say of it."""

    messages: list[dict[str, Any]]
    input_tokens: int | None
    output_tokens: int
    session: str = ""
    number: int = 0
    body: dict[str, Any] | None = None
    sized: bool = False
    """It is about lengths: the output shall have just as many tokens, where the server can be brought to that."""


class LLMUser(HttpUser):
    """Write tasks that call ``self.session()`` or ``self.chat(...)``; ``self.client`` remains Locust's for plain HTTP."""

    abstract = True
    model: str | None = None
    """Ask for this model instead of ``--model``."""
    _number: ClassVar[int] = 0

    def __init__(self, environment: Environment) -> None:
        self.sender: Sender = sender_of(environment)
        self.host = self.host or environment.host or self.sender.settings.host
        super().__init__(environment)
        LLMUser._number += 1
        self.number = LLMUser._number
        self.line = Line()
        self._requests = 0
        self._plain_key: tuple[Any, ...] | None = None
        self._plain: tuple[requests.PreparedRequest, bytes]
        self.client.headers.update(
            {"Accept-Encoding": "identity", "Accept": "text/event-stream, application/json", **self.sender.headers}
        )

    def chat(
        self,
        messages: str | list[dict[str, Any]] | None = None,
        *,
        max_tokens: int | None = None,
        name: str | None = None,
        headers: dict[str, str] | None = None,
        keep_text: bool = False,
        **body: Any,
    ) -> Record:
        """Send one chat completion through the prefill gate and give its record, failed or not.

        ``messages``: a prompt, or a list of messages; None: a synthetic prompt of the asked length. ``max_tokens``:
        None for the asked output length. ``name``: the row in Locust's tables. ``keep_text``: ``self.text`` holds the answer
        afterwards. Everything else goes into the body of the request. Raises StopUser when the run is ending.
        """
        permit = self._permit()
        asked: int | None = None
        drawn = None
        if messages is None:
            drawn = self.sender.prompts.draw()
            system = self.sender.prompts.system
            messages = [*([system] if system else ()), {"role": "user", "content": drawn.text}]
            asked = drawn.input_tokens
        elif isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if max_tokens is None:
            max_tokens = self.sender.prompts.output_tokens() if drawn is None else drawn.output_tokens
        turn = Turn(messages, asked, max_tokens, sized=drawn is not None)
        return self._send(permit, turn, name, headers, keep_text, body)

    def session(
        self,
        *,
        name: str | None = None,
        headers: dict[str, str] | None = None,
        keep_text: bool = False,
        **body: Any,
    ) -> list[Record]:
        """One session to its end: of the dataset, or made up, of as many turns as were asked for (most often one).

        The history grows by the answers; a turn that fails ends it. Gives the records of its turns. ``self.chat`` is for
        prompts of your own. Raises StopUser when the run is ending.
        """
        sender = self.sender
        permit = self._permit()
        try:
            item = permit.item if permit.item is not None else sender.item(permit.phase)
        except GateClosed:
            sender.budget.put_back(permit)
            raise StopUser from None
        said = None if item is None else msgspec.msgpack.decode(item, type=Item)
        conversation = sender.sessions.begin(said)
        records: list[Record] = []
        first_at: float | None = None
        try:
            while (ask := conversation.next()) is not None:
                if records:
                    following = self._next_permit(permit, ask, first_at, records)
                    if following.phase != permit.phase:  # the warmup is over, and its sessions with it
                        sender.budget.put_back(following)
                        break
                    permit = following
                first_at = ask.at_s if first_at is None else first_at
                more = conversation.left > 0
                sized = said is None or said.turns[ask.turn].output_tokens is not None
                turn = Turn(
                    ask.messages, ask.input_tokens, ask.output_tokens, conversation.id, ask.turn, ask.body, sized
                )
                record = self._send(permit, turn, name, headers, keep_text or more, body)
                records.append(record)
                if record.outcome != OK:
                    break
                if more:
                    thought = record.reasoning_tokens or 0
                    conversation.said(
                        self.text, None if record.output_tokens is None else record.output_tokens - thought
                    )
        finally:
            sender.session_ended(permit, conversation.left, dealt=item is not None or sender.counts_sessions)
        return records

    def _permit(self, *, later: bool = False) -> Permit:
        try:
            return self.sender.budget.take(self.number, later=later)
        except GateClosed:
            raise StopUser from None

    def _next_permit(self, permit: Permit, ask: Ask, first_at: float | None, records: list[Record]) -> Permit:
        """For a later turn: when its trace says, or when there is one, after the think time."""
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
        """The content of the last answer that was asked for with ``keep_text=True``."""
        stream = self.line.stream
        return "".join(stream.answer.text or ()) if stream is not None else ""

    def on_stop(self) -> None:
        self.line.close()
        self.sender.budget.leave(self.number)

    def _send(
        self,
        permit: Permit,
        turn: "Turn",
        name: str | None,
        headers: dict[str, str] | None,
        keep_text: bool,
        body: dict[str, Any],
    ) -> Record:
        """One request, all the way to its record."""
        sender = self.sender
        settings = sender.settings
        try:
            self._requests += 1
            request_id = f"{sender.worker}-{self.number}-{self._requests}"
            session = turn.session or request_id
            model = self.model or sender.model
            way = length_fields(sender.length_way, turn.output_tokens) if turn.sized else {}
            data = chat_body(
                model, turn.messages, turn.output_tokens,
                streaming=settings.streaming, max_tokens_field=settings.max_tokens_field,
                **{**way, **sender.extra, **(turn.body or {}), **body},
            )  # fmt: skip
            if settings.session_header:
                headers = {settings.session_header: session, **(headers or {})}
            prepared, wire = self._prepare(data, request_id, headers)
            labels = {
                "id": request_id, "worker": sender.worker, "user": self.number, "user_class": type(self).__name__,
                "name": name or settings.endpoint, "model": model or "", "phase": label_of(permit.phase), "stage": stage_of(permit.phase), "session": session,
                "turn": turn.number, "asked_input_tokens": turn.input_tokens, "asked_output_tokens": turn.output_tokens,
            }  # fmt: skip
            request = Request(
                target=_target(prepared.url or "", self.client.verify, self.client.cert),
                data=wire,
                labels=labels,
                due_at=permit.due_at,
                timeout_s=settings.request_timeout_s,
                first_token_timeout_s=settings.first_token_timeout_s if settings.streaming else None,
                gap_timeout_s=settings.gap_timeout_s,
                cancel_after_s=sender.cancel_after_s(permit.phase),
                keep_text=keep_text,
            )
        except BaseException:
            sender.budget.put_back(permit)
            raise
        return self._exchange(permit, request, prepared)

    def _exchange(self, permit: Permit, request: Request, prepared: requests.PreparedRequest) -> Record:
        sender = self.sender
        self.line.on_kill = lambda: CUT if sender.closed else CANCELLED
        try:
            record = exchange(
                self.line, sender.gate, request, sender.clock_offset_s, self._first_token, sender.wait_until
            )
        except GateClosed:
            sender.turned_away += permit.due_at is None or permit.due_at <= time.monotonic()
            raise StopUser from None
        except BaseException as error:
            cut: Record | None = getattr(error, "record", None)
            if cut is None:
                sender.budget.put_back(permit)  # killed before it was sent
            else:
                self._finish(cut, prepared)
                if not isinstance(error, GreenletExit):
                    self.line.close()
            raise
        self._finish(record, prepared)
        return record

    def _prepare(
        self, data: bytes, request_id: str, headers: dict[str, str] | None
    ) -> tuple[requests.PreparedRequest, bytes]:
        """(what requests makes of it: auth, cookies, headers, hooks of the session; the bytes to send).

        It takes requests 200 µs, a third of all that a short request costs. So where nothing but body and id can differ
        from one request to the next, it is asked once.
        """
        client = self.client
        plain = not (headers or client.auth or client.cookies or client.params or any(client.hooks.values()))
        key = (self.host, *client.headers.items()) if plain else None
        if key is None or key != self._plain_key:
            prepared = self._ask_requests(data, request_id, headers)
            if key is None:
                return prepared, _head(prepared) + b"\r\n" + data
            for name in ("X-Request-Id", "Content-Length"):
                del prepared.headers[name]
            self._plain_key, self._plain = key, (prepared, _head(prepared))
        prepared, head = self._plain
        return prepared, b"%bX-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            head,
            request_id.encode(),
            len(data),
            data,
        )

    def _ask_requests(self, data: bytes, request_id: str, headers: dict[str, str] | None) -> requests.PreparedRequest:
        own = {"Content-Type": "application/json", "X-Request-Id": request_id, **(headers or {})}
        request = requests.Request("POST", self.sender.url(self.host or ""), data=data, headers=own)
        # of requests itself: Locust's own override belongs to its request(), which this is not
        return requests.Session.prepare_request(self.client, request)

    def _first_token(self, stream: Stream, labels: dict[str, Any]) -> None:
        ttft_s = (stream.stamps[stream.answer.chunk_reads[0]] - stream.sent_ns) / 1e9
        self.sender.first_chunk(ttft_s)
        if events.first_token._handlers:
            gevent.spawn(
                events.first_token.fire, user=self, name=labels["name"], request_id=labels["id"], ttft_s=ttft_s
            )

    def _finish(self, record: Record, prepared: requests.PreparedRequest) -> None:
        """Pass the record on: to the reporter, to Locust, to whoever listens."""
        self.sender.finished(record)
        stream = self.line.stream
        if stream is not None:
            self._after_response(stream, prepared)
        latency_s = record.latency_s
        if latency_s is None:
            latency_s = record.closed_at - (record.sent_at or record.asked_at)
        self.environment.events.request.fire(
            request_type="POST",
            name=record.name,
            response_time=latency_s * 1000,
            response_length=record.response_bytes,
            response=None,
            context=self.context(),
            exception=_exception(record),
            start_time=record.clock_offset_s + (record.sent_at or record.asked_at),
            url=prepared.url,
        )
        stats = self.environment.stats
        for row, seconds in (("TTFT", record.ttft_s), ("ITL", record.itl_s), ("gate wait", record.gate_wait_s)):
            if seconds is not None:
                stats.get(record.name, row).log(seconds * 1000, 0)
        events.record.fire(user=self, record=record)

    def _after_response(self, stream: Stream, prepared: requests.PreparedRequest) -> None:
        """Cookies and response hooks, as requests users expect them."""
        set_cookie = stream.frame.get("set-cookie") if stream.frame.has_headers else None
        for line in [set_cookie] if isinstance(set_cookie, str) else set_cookie or ():
            try:
                for morsel in SimpleCookie(line).values():
                    self.client.cookies.set(morsel.key, morsel.value)
            except CookieError:
                continue
        if hooks := prepared.hooks.get("response"):
            response = requests.Response()
            response.status_code = stream.status or 0
            response.headers.update({k: str(v) for k, v in stream.frame.items()})
            response._content = stream.body
            response.url, response.request = prepared.url or "", prepared
            for hook in hooks if isinstance(hooks, list) else [hooks]:
                hook(response)


def _exception(record: Record) -> Exception | None:
    if record.outcome == OK:
        return None
    if record.outcome == CUT:
        return RequestCut(record.outcome)
    if record.outcome == CANCELLED:
        return RequestCancelled(record.outcome)
    return RequestFailed(f"{record.outcome}: {short(record.message)}" if record.message else record.outcome)


def short(message: str) -> str:
    """A failure's message with what differs from request to request taken out, so that Locust's table stays short."""
    words = ("…" if sum(c.isdigit() for c in word) > 3 or len(word) > 40 else word for word in message[:300].split())
    return " ".join(words)


def _head(prepared: requests.PreparedRequest) -> bytes:
    """Request line and headers, each with its line end (RFC 9112)."""
    parts = urlsplit(prepared.url or "")
    lines = [f"{prepared.method} {prepared.path_url} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
    lines += [f"{name}: {value}" for name, value in prepared.headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


def _target(url: str, verify: bool | str | None, cert: Any) -> Target:
    parts = urlsplit(url)
    if parts.scheme == "https":
        return Target(parts.hostname or "", parts.port or 443, _tls(verify, cert))
    return Target(parts.hostname or "", parts.port or 80)


def authorities() -> str:
    """The certificates to trust: those of the environment, as requests and OpenSSL look for them, else certifi's."""
    names = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
    return next((path for name in names if (path := os.environ.get(name))), "") or certifi.where()


@cache
def _tls(verify: bool | str | None, cert: Any) -> ssl.SSLContext:
    """The TLS settings of a requests session as a context."""
    trusted = verify if isinstance(verify, str) else authorities()
    folder = os.path.isdir(trusted)
    context = ssl.create_default_context(cafile=None if folder else trusted, capath=trusted if folder else None)
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context
